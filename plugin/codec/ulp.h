/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ulp codec (exact deltas): constants of the format, and the table through which ulp.c reaches
 * the variants' block coders. docs/wire-format.md, section "ulp", specifies the format.
 *
 * How it works. Weights under an Adam-like optimizer all move by about the same absolute amount. The size of
 * a difference in units of the last place therefore follows from the exponent of the *reference* value, which
 * both sides know: difference ~ 2^(c - exponent), with a `c` that hardly changes over a row. A run of 256
 * values shares one byte c. Value i gets k_i = c - exponent_i low bits verbatim, and the coder sends the rest
 * in unary. The unary parts of a group of 32 are stored as bit planes (plane j: one bit for each value that
 * has not ended yet). A CPU makes planes with compare-to-mask and pext, a warp with ballots.
 */
#ifndef NIBBLE_CODEC_ULP_H
#define NIBBLE_CODEC_ULP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NB_ULP_GROUP 32u
#define NB_ULP_RUN 256u    /* values that share c */
#define NB_ULP_BLOCK 1024u /* values of one independently coded block */
#define NB_ULP_PROBE 128u  /* values by which a block is judged before it is coded */
#define NB_ULP_PLANES 4u   /* the longest unary part. Larger values are exceptions */
#define NB_ULP_MAX_EXC 255u
#define NB_ULP_DENSE 6u /* with so many cells of four values plane 0 is sent as it is */

/* The mode of a group: two bits each in the block's header, of which 3 is unused.
 *   EQUAL   all values equal the reference
 *   SPARSE  plane 0 is eight bits for cells of four values, then the cells that are not empty
 *   DENSE   plane 0 is 32 bits */
#define NB_ULP_MODE_EQUAL 0u
#define NB_ULP_MODE_SPARSE 1u
#define NB_ULP_MODE_DENSE 2u

/* Bits of the first byte of a block. */
#define NB_ULP_SHIFT_MASK 0x1fu /* where the exponent starts */
#define NB_ULP_PLAIN 0x20u      /* two's complement instead of sign-magnitude patterns */
#define NB_ULP_FLOORS 0x40u     /* delta4 only: floors of the runs follow the exceptions */
#define NB_ULP_RAW 0x80u        /* the patterns themselves follow */

/* First byte of a span. */
#define NB_ULP_SPAN_EQUAL 0u
#define NB_ULP_SPAN_BLOCKS 1u

#define NB_ULP_SPAN_CHUNKS 2u

/* Sparse spans. A chunk has a sparse record where at most one value in NB_ULP_FEW changes. */
#define NB_ULP_CHUNK 32768u /* bytes */
#define NB_ULP_FEW 8u
#define NB_ULP_SPARSE 0x80u      /* first byte of a sparse record, beside shift and NB_ULP_PLAIN */
#define NB_ULP_UNARY 0x40u       /* differences have high parts */
#define NB_ULP_PARTS 0x8000u     /* beside the number of changes: a map of the parts that have some follows */
#define NB_ULP_PART 512u         /* bytes. A chunk has 64 */
#define NB_ULP_ESCAPE 20u        /* so many zeros before a difference's one: its low part is all of it */
#define NB_ULP_GAP_MAX 14u       /* the largest parameter of gaps: 57 bits hold four low parts */
#define NB_ULP_SAMPLE 64u        /* changed values by which a chunk is judged */
#define NB_ULP_SPARSE_STRIDE 16u /* of the values whose exponents are counted */
#define NB_ULP_SPARSE_REMAP 16u  /* records after which reading and split are chosen anew */
#define NB_ULP_SPARSE_SLACK 32u  /* a record of a few values, and the last word of its string */
#define NB_ULP_NOT_SPARSE SIZE_MAX

/* The most low bits of one value. 64 bits hold the low bits of a 64-bit lane's values with 7 bits to spare,
 * so that one unaligned 8-byte load from any bit offset gets them all. */
#define NB_ULP_KMAX(w) (7u * (w))
/* Bits of an exception: index, pattern, and its empty place in plane 0. */
#define NB_ULP_EXC_COST(w) (8u * (w) + 17u)

/* A coder may write this far into dst whatever it returns. A decoder may read this far beyond the end of the
 * coded block: the largest run of a group is 32 planes-bytes and 32 * 28 low bits. */
#define NB_ULP_DST_SLACK 8192u
#define NB_ULP_SRC_SLACK 192u

/* The reading of a block's patterns. */
struct nb_ulp_map {
    uint8_t shift; /* exponent = (pattern without sign) >> shift. width in bits - 1: no exponent */
    uint8_t plain; /* 1: patterns are two's complement integers. 0: sign and magnitude */
    uint8_t floor; /* delta4: lower exponents count as this one. 0: exact */
};

/* Block coders of one variant for one width. n is 1..NB_ULP_BLOCK values.
 *
 * encode returns the length of the block (0: cur equals ref). It is at most 1 + n * width, since a block goes
 * raw where coding would not shorten it. The search for the first run's c begins at *c, which gets the last
 * run's. `dst` has room for NB_ULP_DST_SLACK.
 *
 * decode takes len > 0 bytes at `coded`, readable to len + NB_ULP_SRC_SLACK. dst may equal ref. It returns 0
 * or -EBADMSG. */
typedef size_t nb_ulp_encode_block_fn(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                      size_t n, unsigned *c, uint8_t *dst);
typedef int nb_ulp_decode_block_fn(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n,
                                   uint8_t *dst);

/* Decode two blocks of NB_ULP_BLOCK values at once. The second one follows the first in ref and dst. */
typedef int nb_ulp_decode_two_fn(const uint8_t *coded, size_t len, const uint8_t *coded2, size_t len2,
                                 const uint8_t *ref, uint8_t *dst);

/* Return the bits that NB_ULP_PROBE values would take besides their plane 0, read by `map`, and the c for
 * that. */
typedef uint32_t nb_ulp_probe_fn(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                 unsigned *c);

typedef size_t nb_delta4_encode_block_fn(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                         size_t n, unsigned *c, uint8_t *dst, uint64_t *lossy);

/* What the encoder of sparse records has chosen, and the next record begins from. All 0 at first. */
struct nb_ulp_sparse {
    struct nb_ulp_map map;
    unsigned c, split; /* split: lower exponents change often. 0: no split */
    unsigned records;
};

/* Encode a chunk of n values with one of four readings. Return the length of the record, 0 where cur equals
 * ref, or NB_ULP_NOT_SPARSE. dst has room for nb_ulp_sparse_bound. */
typedef size_t nb_ulp_encode_sparse_fn(struct nb_ulp_sparse *s, const struct nb_ulp_map *maps,
                                       const uint8_t *cur, const uint8_t *ref, size_t n, uint8_t *dst);

struct nb_ulp_ops {
    nb_ulp_encode_block_fn *encode[3]; /* for widths 1, 2, 4 */
    nb_ulp_decode_block_fn *decode[3];
    nb_ulp_decode_two_fn *decode_two[3]; /* NULL: one after the other */
    nb_ulp_probe_fn *probe[3];
    /* delta4, for widths 2 and 4. *lossy counts the runs with a floor. */
    nb_delta4_encode_block_fn *encode_floors[2];
    nb_ulp_decode_block_fn *decode_floors[2];
    /* Sparse records. Their decoder reads nothing beyond len > 0 bytes. */
    nb_ulp_encode_sparse_fn *encode_sparse[3];
    nb_ulp_decode_block_fn *decode_sparse[3];
};

extern const struct nb_ulp_ops nb_ulp_portable;
#if defined(__x86_64__)
#define NB_ULP_X86 1
extern const struct nb_ulp_ops nb_ulp_avx2, nb_ulp_avx512, nb_ulp_avx512_vbmi;
#endif
#if defined(__aarch64__) /* where NB_NEON is defined (codec/fp.h) */
extern const struct nb_ulp_ops nb_ulp_neon;
#endif

/* ---- Floors (delta4) ---------------------------------------------------------------------------------- */

/* Bits that a run may take besides plane 0, in sixteenths a value, before it gets a floor. Then the limit of
 * the error under the floor as a fraction of bfloat16's error: squares, of steps and units in the last place.
 * A run that needs more bits even so may have a larger error to get down to HOT_BITS. */
#define NB_DELTA4_BITS 45u
#define NB_DELTA4_RATIO 16u
#define NB_DELTA4_HOT_BITS 49u
#define NB_DELTA4_HOT_RATIO 4u
/* Differences in steps of the floor are below this. Larger ones are exceptions. */
#define NB_DELTA4_MOST 0x1p14f
/* The most low bits under a floor: a decoder recognises an exception by its size. */
#define NB_DELTA4_KMAX 12u

/* A format that may have floors: the bias of its exponents, and the range of steps that a float can hold. */
struct nb_delta4_format {
    uint8_t shift;     /* bits of mantissa */
    uint8_t low, high; /* floors */
    uint8_t spare;     /* bits of mantissa beyond bfloat16's */
    int16_t bias;      /* a step is 2^(floor - bias) */
};

/* Return the format of a map, NULL for a map without floors. */
static inline const struct nb_delta4_format *nb_delta4_format(unsigned width, unsigned shift)
{
    static const struct nb_delta4_format bf16 = {7, 24, 254, 0, 134}, f16 = {10, 1, 30, 3, 25},
                                         f32 = {23, 25, 254, 16, 150};

    if (width == 2)
        return shift == 7 ? &bf16 : shift == 10 ? &f16 : NULL;
    return width == 4 && shift == 23 ? &f32 : NULL;
}

/* Return the start of a search for c: the mean, over the `count` values that differ, of exponent plus bits of
 * the zigzagged difference (`sum` is their sum), less one. */
static inline unsigned nb_ulp_estimate(uint64_t sum, unsigned count)
{
    uint64_t mean = count ? sum / count : 0;
    return mean < 1 ? 0 : mean > 256 ? 255 : (unsigned)mean - 1;
}

#endif
