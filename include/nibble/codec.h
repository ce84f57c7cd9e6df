/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble: codecs for gradients and weights on the wire.
 *
 * A coded *span* is a run of values (or bytes) of one rank's block of a collective. docs/wire-format.md
 * specifies its format to the bit. Every variant (portable C, AVX2, AVX-512, NEON, CUDA) produces the same
 * bytes and the same decoded values for the same input. A span carries neither length nor type: the engine's
 * message header carries them, and the functions here take them as arguments.
 *
 * Rules common to all functions:
 *  - They allocate no memory, take no locks, do no I/O and keep no state. Any thread may call them.
 *  - Pointers to values need an alignment of 1 byte only. Source and destination must not overlap, except
 *    where a function allows it.
 *  - On x86 the functions set the caller's rounding mode and flush-to-zero aside and restore them.
 *    Elsewhere they assume round-to-nearest with denormals.
 *  - Results: >= 0 (a length in bytes, or 0) on success, a negative errno value on failure:
 *      -EINVAL   an argument is out of range (unknown type, codec ...)
 *      -ENOSPC   `cap` is smaller than the function's bound
 *      -EBADMSG  coded bytes are malformed (a decoder never trusts its input)
 *  - `first` is the index of the span's first value within its *rank block* (the part of the collective that
 *    one rank owns). Tiles start at multiples of NB_TILE of that index, groups at multiples of NB_GROUP.
 *    Group boundaries are therefore independent of NCCL's cut into windows. A group that the span covers
 *    only in part travels raw.
 */
#ifndef NIBBLE_CODEC_H
#define NIBBLE_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif
/* libnibble-codec.so exports this header's declarations and those of emulate.h, and hides other symbols. */
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
    NB_CODEC_INT6 = 5,
    NB_CODEC_COUNT
};

/* Implementations of the same functions. NB_VARIANT_AUTO selects the best one that this CPU runs. */
enum nb_variant {
    NB_VARIANT_AUTO = 0,
    NB_VARIANT_PORTABLE, /* C, which the compiler may vectorize */
    NB_VARIANT_AVX2,
    NB_VARIANT_AVX512,
    NB_VARIANT_NEON,
    NB_VARIANT_AVX512_VBMI, /* AVX-512 with byte permutation: faster exact and bounded deltas */
    NB_VARIANT_COUNT
};

/* Return the bytes of one value of `type`, 0 for an unknown type. */
size_t nb_dtype_size(enum nb_dtype type);
/* Return the name that log lines and settings use ("bfloat16", "int4", "avx2"), in static storage.
 * Return "unknown" for a number outside the enumeration. */
const char *nb_dtype_name(enum nb_dtype type);
const char *nb_codec_name(enum nb_codec codec);
const char *nb_variant_name(enum nb_variant variant);

/* Select the variant that all functions below use in this process (NIBBLE_CODEC_VARIANT, tests).
 * No other thread may encode or decode during the call. Return 0, -ENOTSUP when this CPU or build lacks the
 * variant, or -EINVAL for a number outside the enumeration. On an error the selected variant stays. */
int nb_codec_select(enum nb_variant variant);
/* Return the selected variant (never NB_VARIANT_AUTO). */
enum nb_variant nb_codec_selected(void);
/* Return 1 when nb_codec_select(variant) would succeed, else 0. Any thread. */
int nb_codec_available(enum nb_variant variant);

/* ---- Error feedback ------------------------------------------------------------------------------- */

/* How an encoder keeps the quantization error of a contribution and adds it to the next one.
 *   full: h = g + e, send Q(h), e' = h - Q(h)                       (EF14 / 1-bit SGD, Seide et al.)
 *   ema:  h = g + e, send Q(h), e' = beta e + (1-beta)(h - Q(h))    (LoCo, arXiv 2407.04480)
 * Both modes scale e down before use, so that its norm over a tile is at most `bound` times the norm of the
 * tile's own values. A group whose own values are all zero sends zeros and keeps its e. A value that is sent
 * exactly (escape, partial group, raw tile) leaves an error of zero. */
enum nb_ef_mode { NB_EF_OFF = 0, NB_EF_FULL = 1, NB_EF_EMA = 2 };

/* Residual of a rank block: int8 codes and one 8-bit scale a group. err[i] belongs to value i of the block,
 * scale[i / NB_GROUP] to its group. Pass the block's base addresses: the functions index with `first`.
 * All-zero bytes mean a residual of zero. */
struct nb_ef {
    int8_t *err;
    uint8_t *scale;
    enum nb_ef_mode mode;
    float beta;  /* ema only, 0 <= beta < 1 */
    float bound; /* normally 0.2 */
};

/* Return the bytes of `err` and of `scale` for a rank block of n values: one a value, and one a group (the
 * last group may be partial). The caller allocates both, zeroed, and keeps them as long as the buffer. */
size_t nb_ef_err_bytes(size_t n);
size_t nb_ef_scale_bytes(size_t n);

/* Statistics of encoding. Encoders add to the fields, so that one struct can collect many spans. The counts
 * are exact. The three energies serve for ratios and cost time: encoders measure them only for tiles whose
 * number in the rank block is a multiple of `every`. The default is a prime, so that a node that encodes
 * every second or fourth piece of a vector still meets such tiles. */
#define NB_STATS_EVERY 17u
struct nb_encode_stats {
    uint64_t values;    /* values encoded */
    uint64_t nonfinite; /* NaN or infinity among them (before feedback) */
    uint64_t escapes;   /* values sent as escapes */
    uint64_t fallback;  /* tiles sent as int8 or raw because they had too many escapes */
    uint64_t flushed;   /* groups flushed to zero, far below their tile's scale */
    uint64_t bounded;   /* tiles whose residual the bound scaled down */
    double signal2;     /* sum of g^2 over finite, quantized values */
    double noise2;      /* sum of (h - Q(h))^2 over the same; h == g without feedback */
    double carried2;    /* sum of e^2 as used, over the same */
    uint32_t every;     /* set by the caller: 1 measures all tiles, 0 means NB_STATS_EVERY */
};

/* Add the counts and energies of `from` to those of `to`. to->every stays. The caller serializes access to
 * both. */
void nb_encode_stats_add(struct nb_encode_stats *to, const struct nb_encode_stats *from);

/* ---- Quantizing codecs (int4, int6, int8, raw) ------------------------------------------------------ */

/* Return an upper bound of the coded length in bytes of any span of n values, whatever its `first`. Return 0
 * for unknown arguments, for codecs that need a reference, and for more values than a span may have
 * (SIZE_MAX / 16).
 *   int4  4-bit codes after a Hadamard transform of the groups that gain by it (SDP4Bit, arXiv 2410.15526),
 *         8-bit scales of groups below one scale of the tile, 4.29 bits a value in all
 *   int8  8-bit codes without transform
 *   int6  6-bit codes without transform
 *   raw   the values */
size_t nb_encode_bound(enum nb_codec codec, enum nb_dtype type, size_t n);

/* Encode n values of `type` at `src` into `dst`, which has room for `cap` bytes. `ef` and `stats` may be
 * NULL. With `ef` (raw ignores it) the function reads and writes the residuals of values [first, first + n)
 * only. Two threads may therefore encode spans of one block that share no group. NaN and infinities arrive as
 * such. Bytes of dst between the returned length and `cap` are unspecified afterwards. Return the coded
 * length in bytes. Return -EINVAL for an unknown codec or type, a codec that needs a reference, missing
 * pointers, or settings in `ef` out of range, and -ENOSPC when `cap` is below nb_encode_bound. On an error
 * dst and the residuals are unchanged. */
ssize_t nb_encode(enum nb_codec codec, enum nb_dtype type, const void *src, size_t n, uint64_t first,
                  const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats);

/* Decode a span of n values of `type`, coded in `len` bytes, into `dst`. Round each value once, to nearest
 * even. `codec`, `type`, n and `first` must be the encoder's. Return 0, -EINVAL as nb_encode, or -EBADMSG
 * when the bytes are malformed or longer than the values need: dst is then partly written. */
int nb_decode(enum nb_codec codec, enum nb_dtype type, const void *coded, size_t len, size_t n,
              uint64_t first, void *dst);

/* One contribution to a sum: a span as nb_encode made it. */
struct nb_source {
    enum nb_codec codec; /* RAW, INT4, INT6 or INT8 */
    const void *coded;   /* owned by the caller, read during the call only */
    size_t len;          /* bytes */
};

#define NB_MAX_SOURCES 4096u /* of one sum */

/* Decode and sum: dst[i] = round(((sum of int4 sources) + (sum of other sources)) + own[i]), in FP32.
 * The order is fixed and decides the bits of the result. First come the int4 sources in array order, plain
 * and transform domain apart: the latter's sum is transformed back once and added to the former's. Then come
 * the int6, int8 and raw sources in array order, and last `own`. Each result is rounded once to `type`. All
 * sources hold n values of `type` from `first`. `own` holds values of `type`, may be NULL, and may equal dst.
 * One source with own == dst is decode-and-add. Return 0, -EINVAL for more than NB_MAX_SOURCES sources, an
 * unknown type or another codec, or -EBADMSG for malformed bytes or lengths: dst is then unspecified. */
int nb_reduce(enum nb_dtype type, const struct nb_source *sources, size_t nsources, const void *own, size_t n,
              uint64_t first, void *dst);

/* ---- Exact deltas (ulp) ----------------------------------------------------------------------------- */

/* The coder sends weights as distances, in units of the last place, to a reference: the same weights of an
 * earlier step, which both sides hold. An optimizer of Adam's kind moves all weights by about the same
 * amount. The exponent of the reference therefore tells how many low bits of the distance are noise. The
 * coder sends those bits as they are and the rest in unary (Golomb and Rice's division, with the exponent in
 * place of the parameter). The format and this use of the exponent are our own. Distances of floats as
 * integers follow Lindstrom and Isenburg's predictive coder (fpzip, TVCG 2006). All arithmetic is on
 * integers, so that every bit pattern arrives, NaN payloads and signs of zero included. */

/* Bytes of the bit patterns that the coder subtracts as ordered integers. */
enum nb_ulp_width { NB_ULP_8 = 1, NB_ULP_16 = 2, NB_ULP_32 = 4 };

/* Return an upper bound in bytes of the coded length of `bytes` bytes, 0 for an unknown width. The bound may
 * exceed `bytes`: callers send raw unless the actual length is smaller. */
size_t nb_ulp_bound(enum nb_ulp_width width, size_t bytes);

/* Encode `cur` as deltas against `ref` into `dst`. `cur` and `ref` are `bytes` long. A tail shorter than
 * `width` is carried as it is. dst has room for `cap` bytes and must not overlap `cur` or `ref`. Return the
 * coded length in bytes (1 where both are equal), -E2BIG as soon as the length is known to reach `limit`,
 * -EINVAL for an unknown width, or -ENOSPC when `cap` is below nb_ulp_bound. Up to `cap` bytes of dst may be
 * written in every case. */
ssize_t nb_ulp_encode(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                      void *dst, size_t cap);

/* Decode `len` coded bytes with the encoder's `ref` into `bytes` bytes at dst, which may equal ref. Return 0,
 * -EINVAL for an unknown width, or -EBADMSG when the bytes are malformed or `len` does not fit: dst is then
 * unspecified, and a reference decoded in place is lost. The decoder cannot tell a wrong `ref`: compare
 * nb_hash64 of both sides' references first. */
int nb_ulp_decode(enum nb_ulp_width width, const void *coded, size_t len, const void *ref, size_t bytes,
                  void *dst);

/* Spans for contents of which few values change, such as weights that reinforcement learning pushes to
 * inference engines: the coder sends the gaps between changed values, and their distances. It compares
 * unchanged memory at the speed of memory, and takes the form of nb_ulp_encode where many values change. The
 * CPU alone has these functions. GPU kernels decode nb_ulp_encode's spans only, so both ends must be known to
 * decode on the host. */

/* Return an upper bound in bytes of the coded length of `bytes` bytes, 0 for an unknown width. */
size_t nb_ulp_sparse_bound(enum nb_ulp_width width, size_t bytes);

/* Encode as nb_ulp_encode does, with the bound of nb_ulp_sparse_bound. */
ssize_t nb_ulp_encode_sparse(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes,
                             size_t limit, void *dst, size_t cap);

/* Decode a span of nb_ulp_encode_sparse or of nb_ulp_encode. Otherwise as nb_ulp_decode. */
int nb_ulp_decode_sparse(enum nb_ulp_width width, const void *coded, size_t len, const void *ref,
                         size_t bytes, void *dst);

/* Return the width that codes the deltas of cur and ref (`bytes` bytes each, of unknown type) in the fewest
 * bytes, judged on samples. All variants return the same. A wrong guess costs length only. */
enum nb_ulp_width nb_ulp_guess_width(const void *cur, const void *ref, size_t bytes);

/* ---- Bounded deltas (delta4) ------------------------------------------------------------------------ */

/* Deltas of weights against a reference at about 4 bits a value, whatever the step size: the lossy weight
 * gather of SDP4Bit (arXiv 2410.15526) without its drift, as the caller takes the next delta against the
 * delivered weights. A run of 256 values is sent exactly where that takes at most 4 bits a value. Otherwise
 * the encoder drops the bits below a floor that the run's values share. The loss of a run is a fraction of
 * the loss by rounding its values to bfloat16: 1/4 of the RMS expected, 1/2 at most. A run that cannot keep
 * this bound is sent exactly. A value always keeps its sign. Values near zero, infinities and NaN arrive
 * exactly. Where `cur` equals `ref` so does the result. The receivers get the values that nb_delta4_decode
 * makes of the bytes: the sender decodes them too when the encoder reports lossy runs. */
#define NB_DELTA4_RUN 256u /* values that are lossy or exact together */

/* Statistics of encoding. Encoders add to the fields. */
struct nb_delta4_stats {
    uint64_t runs;  /* runs of at most NB_DELTA4_RUN values */
    uint64_t lossy; /* runs with dropped bits; 0: decoding gives `cur` */
};

/* Return an upper bound in bytes of the coded length of `bytes` bytes of values, 0 for an unknown type. */
size_t nb_delta4_bound(enum nb_dtype type, size_t bytes);

/* Encode `cur` as bounded deltas against `ref` into `dst`. `cur` and `ref` are `bytes` long and hold values
 * of `type` from the first byte on. A tail shorter than a value is carried as it is. dst has room for `cap`
 * bytes and must not overlap `cur` or `ref`. `stats` may be NULL and is added to on success only. Return the
 * coded length in bytes, -E2BIG when it would reach `limit`, -EINVAL for an unknown type, or -ENOSPC when
 * `cap` is below nb_delta4_bound. */
ssize_t nb_delta4_encode(enum nb_dtype type, const void *cur, const void *ref, size_t bytes, size_t limit,
                         void *dst, size_t cap, struct nb_delta4_stats *stats);

/* Decode `len` coded bytes into `bytes` bytes at dst, which may equal ref. Errors as nb_ulp_decode. */
int nb_delta4_decode(enum nb_dtype type, const void *coded, size_t len, const void *ref, size_t bytes,
                     void *dst);

/* Return a 64-bit hash of a byte string, the same on every machine and variant. It is not cryptographic.
 * `data` may be NULL when `bytes` is 0. docs/wire-format.md defines it. */
uint64_t nb_hash64(const void *data, size_t bytes, uint64_t seed);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
