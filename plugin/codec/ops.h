/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a variant of the quantizing codecs provides, and how work is cut for it. Two levels: spans (the
 * reference has its own functions, the others share quant_span.c) and tiles (`nb_tile_ops`, what a fast
 * variant implements). Arguments have been validated by codec.c: known type, codec INT4 or INT8 for encode
 * and decode, n >= 1, sane feedback, cap large enough, the floating-point environment at its default.
 */
#ifndef NIBBLE_CODEC_OPS_H
#define NIBBLE_CODEC_OPS_H

#include <stdbool.h>

#include "codec/format.h"

struct nb_tile_ops;

struct nb_codec_ops {
    size_t (*encode)(const struct nb_codec_ops *self, enum nb_codec codec, enum nb_dtype type,
                     const uint8_t *src, size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                     struct nb_encode_stats *stats);
    int (*decode)(const struct nb_codec_ops *self, enum nb_codec codec, enum nb_dtype type,
                  const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
    int (*reduce)(const struct nb_codec_ops *self, enum nb_dtype type, const struct nb_source *sources,
                  size_t nsources, const uint8_t *own, size_t n, uint64_t first, uint8_t *dst);
    const struct nb_tile_ops *tile; /* NULL: reference */
};

extern const struct nb_codec_ops nb_codec_reference, nb_codec_portable;
/* NULL where the build has none. */
extern const struct nb_codec_ops *const nb_codec_avx2, *const nb_codec_avx512;

/* The variant in force. */
const struct nb_codec_ops *nb_codec_ops(void);

/* Span functions over tile operations (quant_span.c). */
size_t nb_span_encode(const struct nb_codec_ops *self, enum nb_codec codec, enum nb_dtype type,
                      const uint8_t *src, size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                      struct nb_encode_stats *stats);
int nb_span_decode(const struct nb_codec_ops *self, enum nb_codec codec, enum nb_dtype type,
                   const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
int nb_span_reduce(const struct nb_codec_ops *self, enum nb_dtype type, const struct nb_source *sources,
                   size_t nsources, const uint8_t *own, size_t n, uint64_t first, uint8_t *dst);

#define NB_SPAN_OPS(tile_ops)                                    \
    {                                                            \
        nb_span_encode, nb_span_decode, nb_span_reduce, tile_ops \
    }

/* ---- How a span is cut -------------------------------------------------------------------------------- */

/* n values from index `first`: `head` values of a group that began before, whole groups, `tail` values of a
 * group that ends behind. A span inside one group is all head. */
struct nb_span {
    size_t head, groups, tail;
};

NB_INLINE struct nb_span nb_span_cut(size_t n, uint64_t first)
{
    struct nb_span s;
    size_t into = (size_t)(first % NB_GROUP);
    s.head = into ? NB_GROUP - into : 0;
    if (s.head > n)
        s.head = n;
    s.groups = (n - s.head) / NB_GROUP;
    s.tail = (n - s.head) % NB_GROUP;
    return s;
}

/* Groups of the tile that group `group` of the block lies in, from there on, at most `left`. */
NB_INLINE unsigned nb_tile_groups(uint64_t group, size_t left)
{
    size_t in_tile = NB_TILE_GROUPS - (size_t)(group % NB_TILE_GROUPS);
    return (unsigned)(in_tile < left ? in_tile : left);
}

/* Write `count` values of a partial group and forget their error; returns the bytes written. */
size_t nb_partial_encode(enum nb_dtype type, const uint8_t *src, size_t count, uint64_t first,
                         const struct nb_ef *ef, uint8_t *dst, struct nb_encode_stats *stats);

/* Bytes of such a run, padding included. */
NB_INLINE size_t nb_partial_bytes(enum nb_dtype type, size_t count)
{
    return nb_pad4((unsigned)(count * nb_dtype_size(type)));
}

/* Are the energies of the tile of group `group` of the block measured? */
NB_INLINE bool nb_measured(const struct nb_encode_stats *stats, uint64_t group)
{
    return group / NB_TILE_GROUPS % (stats->every ? stats->every : NB_STATS_EVERY) == 0;
}

/* ---- Encoding a tile ------------------------------------------------------------------------------------
 */

/* The full groups of one tile that a span covers. */
struct nb_tile_job {
    enum nb_dtype type;
    bool int4; /* else int8 */
    const uint8_t *src;
    unsigned groups, group0; /* how many; which is the first of the tile */
    int8_t *err;             /* feedback state of the first value and group; NULL: none */
    uint8_t *err_scale;
    enum nb_ef_mode mode;
    float beta, bound;
    bool measure; /* sums of squares are wanted for the statistics */
    bool split; /* how the variant keeps a group's floats: see nb_place */
};

/* Where value i of a group lies in the variant's floats: in order, or the even ones before the odd ones. */
NB_INLINE unsigned nb_place(bool split, unsigned i)
{
    return split ? i % 2 * 16 + i / 2 : i;
}

/* What the first half of encoding finds out for the second. */
struct nb_tile_work {
    float y[NB_TILE_GROUPS][2][NB_GROUP]
        __attribute__((aligned(64)));   /* values; their unnormalised transform */
    uint32_t max[NB_TILE_GROUPS];       /* bits of the largest magnitude; transformed: times 1/8 */
    uint32_t positive[NB_TILE_GROUPS];  /* 1: a value of that magnitude is not negative */
    uint32_t transform[NB_TILE_GROUPS]; /* 1: transformed */
    uint8_t idle[NB_TILE_GROUPS];       /* 1: all own values are zero */
    float factor;                       /* by which carried errors are scaled down */
    float own2[NB_TILE_GROUPS];         /* squares of the groups' values, */
    float error2[NB_TILE_GROUPS];       /* and of their carried errors before the factor */
    float noise2;                       /* of the second half, for a variant's own use */
    bool lanes;                         /* batches are kept as quant_avx512_encode.h does it */
    float signal2, carried2;            /* sums of squares of values and of carried errors as used */
    int exponent;                       /* of the tile's scale */
    bool wide;
    unsigned escapes;
    uint16_t escape_index[NB_INT8_ESCAPES]; /* in the tile */
    uint32_t escape_value[NB_INT8_ESCAPES];
};

/* What every first half begins and ends with. */
NB_INLINE void nb_work_begin(struct nb_tile_work *work)
{
    work->wide = work->lanes = false;
    work->escapes = 0;
    work->factor = 1;
    work->signal2 = work->carried2 = 0;
}

/* Factor and sums for the statistics from own2 and error2; false when they are not finite, because of values
 * that do not count. */
NB_INLINE bool nb_work_norms(struct nb_tile_work *work, const struct nb_tile_job *job)
{
    for (unsigned j = job->groups; j < NB_TILE_GROUPS; j++)
        work->own2[j] = work->error2[j] = 0;
    work->signal2 = nb_sum_groups(work->own2);
    if (job->err) {
        float ee = nb_sum_groups(work->error2);
        work->factor = nb_error_factor(work->signal2, ee, job->bound);
        work->carried2 = work->factor != 0 ? work->factor * ee * work->factor : 0;
    }
    return (nb_f32_bits(work->signal2) & NB_F32_ABS) < NB_F32_INF;
}

/* The tile's exponent from its largest maximum and the smallest above the floor; 1 when they lie too far
 * apart. */
NB_INLINE int nb_work_range(struct nb_tile_work *work, uint32_t max, uint32_t min, bool int4)
{
    work->exponent = NB_EXPONENT_MIN;
    if (max < NB_FLUSH_BITS)
        return 0;
    work->exponent = nb_tile_exponent(max);
    return !nb_scale_code(min, work->exponent, !int4);
}

struct nb_tile_ops {
    /* First half: factor, domains, maxima. 0, or 1 when the tile needs nb_tile_survey: something to escape,
     * sums that overflow. */
    int (*survey)(const struct nb_tile_job *job, struct nb_tile_work *work);
    /* Second half, for groups: scale codes, domain bits and codes at `scales`, `domains`, `codes`, new error
     * state. Returns the sum of squared errors (0 unless job->measure), adds to stats->flushed. */
    float (*quantize)(const struct nb_tile_job *job, struct nb_tile_work *work, uint8_t *scales,
                      uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats);
    /* dst = round(values of the record, + own unless NULL), escapes left out. Not for raw and zero tiles. */
    void (*decode)(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own, uint8_t *dst);
    /* plain += values of the record (int4: or coeff += coefficients, and any[j] set), escapes left out. Not
     * for zero tiles. */
    void (*add)(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                uint8_t *any);
    /* plain += inverse transform of coeff where any[j], for a tile of `groups`. */
    void (*inverse)(float *plain, float *coeff, const uint8_t *any, unsigned groups);
    /* dst = round(plain + own) for `groups`, own may be NULL. */
    void (*store)(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups, uint8_t *dst);
    bool split; /* order of floats inside a group, nb_place */
};

/* The first half for tiles in which something has to be escaped, and the decision whether it is
 * (quant_careful.c). 0, or 1 when there are too many escapes for this codec. */
int nb_tile_survey(const struct nb_tile_job *job, struct nb_tile_work *work);

/* 1 when the group of values h[32] (finite) contains outliers that have to be escaped. */
int nb_group_has_outliers(const float *h, unsigned members);

#endif
