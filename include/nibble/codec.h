/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble: codecs for gradients and weights on the wire.
 *
 * A coded *span* is a run of values (or bytes) of one rank's block of a collective. The format of a span
 * is specified to the bit in docs/wire-format.md; every variant (portable C, AVX2, AVX-512, CUDA) produces
 * the same bytes and the same decoded values for the same input. Spans carry no lengths or types of their
 * own: those travel in the message header of the engine, and are arguments here.
 *
 * Rules common to all functions:
 *  - No allocation, no locks, no I/O; any thread; no state beyond the arguments.
 *  - Pointers to values need no alignment beyond 1 byte. Source and destination do not overlap unless said.
 *  - The caller's rounding mode and flush-to-zero settings do not matter on x86 (they are set aside and
 *    restored); elsewhere round-to-nearest with denormals is assumed.
 *  - Results: >= 0 (a length in bytes, or 0) on success, a negative errno value on failure:
 *      -EINVAL   an argument is out of range (unknown type, codec ...)
 *      -ENOSPC   `cap` is smaller than the function's bound
 *      -EBADMSG  coded bytes are malformed (a decoder never trusts its input)
 *  - `first` is the index of the span's first value within its *rank block* (the part of the collective that
 *    one rank owns). Tiles start at multiples of NB_TILE and groups at multiples of NB_GROUP of that index,
 *    so where NCCL cuts its windows does not move group boundaries. A group of which the span covers only
 *    a part travels raw.
 */
#ifndef NIBBLE_CODEC_H
#define NIBBLE_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif
/* libnibble-codec.so exports what stands in this header; everything else is hidden when it is compiled. */
#pragma GCC visibility push(default)

#define NB_GROUP 32u  /* values that share a scale, a transform bit and an error scale */
#define NB_TILE 4096u /* values that share an FP32 scale, escapes and the feedback bound */

/* Types of values that can be quantized. The numbers are on the wire. */
enum nb_dtype { NB_F32 = 0, NB_BF16 = 1, NB_F16 = 2, NB_DTYPE_COUNT };

/* Codecs. The numbers are on the wire. */
enum nb_codec {
    NB_CODEC_RAW = 0,
    NB_CODEC_INT4 = 1,
    NB_CODEC_INT8 = 2,
    NB_CODEC_ULP = 3,
    NB_CODEC_DELTA4 = 4,
    NB_CODEC_COUNT
};

/* Implementations of the same functions. NB_VARIANT_AUTO is the best this CPU runs. */
enum nb_variant {
    NB_VARIANT_AUTO = 0,
    NB_VARIANT_PORTABLE, /* C the compiler may vectorize */
    NB_VARIANT_AVX2,
    NB_VARIANT_AVX512,
    NB_VARIANT_NEON,
    NB_VARIANT_AVX512_VBMI, /* the same where the CPU permutes bytes, too: exact and bounded differences are faster */
    NB_VARIANT_COUNT
};

/* Bytes of one value of `type`; 0 for an unknown type. */
size_t nb_dtype_size(enum nb_dtype type);
/* Names for log lines and settings ("bfloat16", "int4", "avx2"), of static storage; "unknown" for a number
 * that is none. */
const char *nb_dtype_name(enum nb_dtype type);
const char *nb_codec_name(enum nb_codec codec);
const char *nb_variant_name(enum nb_variant variant);

/* Select the variant that all functions below use, process-wide: NIBBLE_CODEC_VARIANT and the tests do this;
 * not meant to be changed while other threads code. 0; -ENOTSUP when this CPU or build lacks it, -EINVAL when
 * there is none of that number: then the one in force stays. */
int nb_codec_select(enum nb_variant variant);
/* The variant in force (never NB_VARIANT_AUTO). */
enum nb_variant nb_codec_selected(void);
/* 1 when nb_codec_select(variant) would succeed, else 0; changes nothing. Any thread. */
int nb_codec_available(enum nb_variant variant);

/* ---- Error feedback ------------------------------------------------------------------------------- */

/* How the part of a contribution that its code did not carry is kept for the next one.
 *   full: h = g + e, send Q(h), e' = h - Q(h)                       (EF14 / 1-bit SGD, Seide et al.)
 *   ema:  h = g + e, send Q(h), e' = beta e + (1-beta)(h - Q(h))    (LoCo, arXiv 2407.04480)
 * In both, e is scaled down before use so that its norm over a tile is at most `bound` times the norm of
 * the tile's own values; a group whose own values are all zero sends zero and keeps its e; a value sent
 * exactly (escape, partial group, raw tile) leaves no error. */
enum nb_ef_mode { NB_EF_OFF = 0, NB_EF_FULL = 1, NB_EF_EMA = 2 };

/* Error state of a span: int8 codes and one 8-bit scale a group. The arrays are laid out for the whole rank
 * block: err[i] belongs to value i of the block, scale[i / NB_GROUP] to its group; pass the block's bases
 * (the functions index with `first`). All-zero bytes are "no error". */
struct nb_ef {
    int8_t *err;
    uint8_t *scale;
    enum nb_ef_mode mode;
    float beta;  /* ema only, 0 <= beta < 1 */
    float bound; /* normally 0.2 */
};

/* Bytes of `err` and of `scale` for a rank block of n values: one a value, and one a group (the last may be
 * partial). The caller allocates both, zeroed, and keeps them from one use of the buffer to the next. */
size_t nb_ef_err_bytes(size_t n);
size_t nb_ef_scale_bytes(size_t n);

/* What an encoder saw; fields are added to, so that one struct can collect many spans. The counts are exact.
 * The three energies cost time and are measured only for tiles whose number in the rank block is a multiple
 * of `every`; their ratios are what they are for. The default is a prime: a node that encodes every second or
 * fourth piece of a vector must not miss all of those tiles. */
#define NB_STATS_EVERY 17u
struct nb_encode_stats {
    uint64_t values;    /* values encoded */
    uint64_t nonfinite; /* NaN or infinity among them (before feedback) */
    uint64_t escapes;   /* values sent as escapes */
    uint64_t fallback;  /* tiles that went int8 or raw because they had too many escapes */
    uint64_t flushed;   /* groups flushed to zero because they lie far below their tile's scale */
    uint64_t bounded;   /* tiles whose carried error was scaled down by the bound */
    double signal2;     /* sum of g^2 over finite, quantized values */
    double noise2;      /* sum of (h - Q(h))^2 over the same; h == g without feedback */
    double carried2;    /* sum of e^2 as used, over the same */
    uint32_t every;     /* set by the caller: 1 measures all tiles, 0 means NB_STATS_EVERY */
};

/* Add the counts and energies of `from` to those of `to`; to->every stays. The caller keeps other threads
 * away from both. */
void nb_encode_stats_add(struct nb_encode_stats *to, const struct nb_encode_stats *from);

/* ---- Quantizing codecs (int4, int8, raw) ------------------------------------------------------------ */

/* Upper bound of the coded length in bytes of any span of n values starting anywhere; 0 for unknown
 * arguments, for codecs that need a reference, and for more values than a span may have (SIZE_MAX / 16).
 * int4: 4-bit codes after a Hadamard transform of groups where that helps (SDP4Bit, arXiv 2410.15526), with
 * 8-bit scales of groups below one scale of the tile, 4.29 bits a value in all; int8: 8-bit codes, no
 * transform; raw: the values. */
size_t nb_encode_bound(enum nb_codec codec, enum nb_dtype type, size_t n);

/* Encode n values of `type` at `src` into `dst`, which has room for `cap` bytes. `ef` may be NULL (no
 * feedback; raw ignores it): its arrays are read and written for values first ... first + n - 1 only, so that
 * two threads may encode spans of one block that share no group. `stats` may be NULL. NaN and infinities
 * arrive as such. Nothing beyond dst[cap - 1] is written; what lies between the returned length and there is
 * unspecified. Returns the coded length in bytes; -EINVAL for an unknown codec or type, a codec that needs a
 * reference, pointers that are missing, or settings in `ef` out of their range; -ENOSPC when `cap` is below
 * nb_encode_bound. Where it fails nothing has been written. */
ssize_t nb_encode(enum nb_codec codec, enum nb_dtype type, const void *src, size_t n, uint64_t first,
                  const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats);

/* Decode a span of n values, coded in `len` bytes, into `dst` (n values of `type`, which it was encoded
 * from), each rounded once to nearest even. n and `first` are those of the encoder. 0; -EINVAL as nb_encode;
 * -EBADMSG when the bytes are malformed or the values do not take all of them: dst then holds some values. */
int nb_decode(enum nb_codec codec, enum nb_dtype type, const void *coded, size_t len, size_t n,
              uint64_t first, void *dst);

/* One contribution to a sum: a span as nb_encode made it. */
struct nb_source {
    enum nb_codec codec; /* RAW, INT4 or INT8 */
    const void *coded;   /* the caller's, read only during the call */
    size_t len;          /* bytes */
};

#define NB_MAX_SOURCES 4096u /* of one sum */

/* Decode and sum: dst[i] = round(((sum of int4 sources) + (sum of the others)) + own[i]), in FP32 with a
 * fixed order: int4 sources in array order, plain and transform domain apart, the latter transformed back
 * once and added to the former; then int8 and raw sources in array order; then `own` (values of `type`; may
 * be NULL, and may equal dst). The order of the sources decides the bits of the result. Each result is
 * rounded once to `type`. All sources are of `type`, n values from `first`. With one source and own == dst
 * this is decode-and-add. 0; -EINVAL for more than NB_MAX_SOURCES sources, an unknown type, or a source of
 * another codec; -EBADMSG for malformed bytes or lengths, which leaves dst unspecified. */
int nb_reduce(enum nb_dtype type, const struct nb_source *sources, size_t nsources, const void *own, size_t n,
              uint64_t first, void *dst);

/* ---- Lossless differences (ulp) -------------------------------------------------------------------- */

/* Weights against the same weights of an earlier step, which both sides hold: what is sent is the distance of
 * the two in units of the last place. An optimizer of Adam's kind moves all weights by about the same amount,
 * so the exponent of the reference tells how many low bits of that distance are noise; those go as they are,
 * the rest in unary (the division of Golomb and Rice, with the exponent's help in place of one parameter).
 * The format and this use of the exponent are our own; distances of floats as integers are those of Lindstrom
 * and Isenburg's predictive coder (fpzip, TVCG 2006). No floating point arithmetic: all bit patterns arrive,
 * NaN payloads and signs of zero included. */

/* Bytes of the patterns whose ordered-integer difference is coded. */
enum nb_ulp_width { NB_ULP_8 = 1, NB_ULP_16 = 2, NB_ULP_32 = 4 };

/* Upper bound in bytes of a coded ulp span of `bytes` bytes (it may exceed `bytes`; callers send raw when the
 * actual length is not smaller); 0 for an unknown width. */
size_t nb_ulp_bound(enum nb_ulp_width width, size_t bytes);

/* Code `cur` as differences against `ref` (both `bytes` long; a tail shorter than `width` is carried as is)
 * into `dst`, which has room for `cap` bytes and overlaps neither. Returns the coded length in bytes, 1 where
 * the two are equal; or -E2BIG as soon as it is clear that it would not be smaller than `limit`; -EINVAL for
 * an unknown width; -ENOSPC when `cap` is below nb_ulp_bound. Up to `cap` bytes of dst may have been written
 * in any case. */
ssize_t nb_ulp_encode(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                      void *dst, size_t cap);

/* Inverse: `bytes` bytes into dst, which may equal ref, from the `len` coded ones and the `ref` of the
 * encoder. 0; -EINVAL for an unknown width; -EBADMSG when the bytes are malformed or not taken exactly: dst
 * is then unspecified (a reference decoded in place is lost). That ref is the encoder's cannot be seen here:
 * compare nb_hash64 of both. */
int nb_ulp_decode(enum nb_ulp_width width, const void *coded, size_t len, const void *ref, size_t bytes,
                  void *dst);

/* The width whose differences between cur and ref (`bytes` bytes each, of a type that is not known) look
 * cheapest, judged on samples; the same on every variant. A wrong guess costs length only. */
enum nb_ulp_width nb_ulp_guess_width(const void *cur, const void *ref, size_t bytes);

/* ---- Bounded differences (delta4) ------------------------------------------------------------------- */

/* Differences of weights against a reference at about 4 bits a value whatever the step size (the lossy weight
 * gather of SDP4Bit, arXiv 2410.15526, without its drift: the caller takes the next difference against what
 * was delivered). Where exact differences take no more than that they are sent; else those bits of a run of
 * 256 values are dropped that lie below a floor that the run's values share. A run never loses more than a
 * fraction of what rounding its current values to bfloat16 would (expected: 1/4 of the RMS; never more than
 * 1/2), and is sent exactly where that cannot be had. A value never changes its sign, values near zero,
 * infinities and NaN arrive exactly, and where `cur` equals `ref` so does the result. What the receivers get
 * is what nb_delta4_decode makes of the bytes: the sender calls it too when the encoder says that it dropped
 * something. */
#define NB_DELTA4_RUN 256u /* values that are lossy or exact together */

/* What an encoder did; fields are added to. */
struct nb_delta4_stats {
    uint64_t runs;  /* runs of at most NB_DELTA4_RUN values */
    uint64_t lossy; /* those of which something was dropped; 0: decoding gives `cur` */
};

/* Upper bound in bytes of the coded length of `bytes` bytes of values; 0 for an unknown type. */
size_t nb_delta4_bound(enum nb_dtype type, size_t bytes);

/* Code `cur` against `ref`, both `bytes` long, values of `type` from the first byte on (a tail shorter than a
 * value is carried as it is), into `dst`, which has room for `cap` bytes and overlaps neither. Returns the
 * coded length in bytes; -E2BIG when it would not be smaller than `limit`; -EINVAL for an unknown type;
 * -ENOSPC when `cap` is below nb_delta4_bound. `stats`, which may be NULL, is added to on success only. */
ssize_t nb_delta4_encode(enum nb_dtype type, const void *cur, const void *ref, size_t bytes, size_t limit,
                         void *dst, size_t cap, struct nb_delta4_stats *stats);

/* What the coded bytes stand for: `bytes` bytes into dst, which may equal ref. Errors as nb_ulp_decode. */
int nb_delta4_decode(enum nb_dtype type, const void *coded, size_t len, const void *ref, size_t bytes,
                     void *dst);

/* 64-bit hash of a byte string (not cryptographic); the same on every machine and variant. `bytes` may be 0,
 * and then `data` NULL. docs/wire-format.md has the definition. */
uint64_t nb_hash64(const void *data, size_t bytes, uint64_t seed);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
