/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles: a variant's operations on up to NB_TILE_GROUPS groups that share a scale. A fast variant is a table
 * of these operations, and spans (span.h) consist of tiles.
 */
#ifndef NIBBLE_CODEC_TILE_H
#define NIBBLE_CODEC_TILE_H

#include <stdbool.h>
#include <sys/types.h>

#include "codec/format.h"

/* Parsers of tile records (nb_record_fn of codec/row.h). An int4 span may contain int8 records. An int6 or
 * int8 span contains its own records only. */
ssize_t nb_record_int4(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view);
ssize_t nb_record_int6(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view);
ssize_t nb_record_int8(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view);

/* Pack int6 codes of whole groups, a byte each, to 24 bytes a group, and back (six.c). All variants quantize
 * to bytes and read bytes, so int6 shares their code for int8. */
typedef void nb_six_fn(const uint8_t *from, unsigned groups, uint8_t *to);
nb_six_fn nb_pack6, nb_unpack6;
#if defined(__x86_64__)
nb_six_fn nb_pack6_avx2, nb_unpack6_avx2;
#endif

/* Unroll a loop, so that its values stay in registers. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NB_UNROLL _Pragma("GCC unroll 8")
#endif
#if defined(__clang__)
#define NB_UNROLL16 NB_UNROLL
#else
#define NB_UNROLL16 _Pragma("GCC unroll 16")
#endif

/* ---- Encoding a tile ----------------------------------------------------------------------------------- */

/* The full groups of one tile that a span covers. */
struct nb_tile_job {
    enum nb_dtype type;
    bool int4; /* else codes are bytes: int8, and int6 before packing */
    const uint8_t *src;
    unsigned groups, group0; /* number of groups, and the first one's index in the tile */
    int8_t *err;             /* residuals of the first value and group. NULL: none */
    uint8_t *err_scale;
    enum nb_ef_mode mode;
    float beta, bound;
    bool measure; /* measure sums of squares for the statistics */
    bool split;   /* the variant's order of a group's floats, see nb_place */
};

/* Return the place of value i of a group in the variant's floats: in order, or the even values before the odd
 * ones. */
NB_INLINE unsigned nb_place(bool split, unsigned i)
{
    return split ? i % 2 * 16 + i / 2 : i;
}

/* Return the place of group j of its tile, and of its per-group numbers, in a variant that keeps batches of
 * eight or sixteen groups in lanes (quant_lanes_survey.h). Value i of the group lies i times as many floats
 * further. */
NB_INLINE unsigned nb_lane(unsigned lanes, unsigned j)
{
    return lanes == 16 ? (j & ~15u) | (j % 4 * 4 + j % 16 / 4) : j;
}

/* Results of the first half of encoding for the second. */
struct nb_tile_work {
    float y[NB_TILE_GROUPS][2][NB_GROUP]
        __attribute__((aligned(64)));   /* values; their unnormalised transform */
    uint32_t max[NB_TILE_GROUPS];       /* bits of the largest magnitude. Transformed: times 1/8 */
    uint32_t top;                       /* the largest of max, after a complete survey */
    uint32_t positive[NB_TILE_GROUPS];  /* 1: a value of that magnitude is not negative */
    uint32_t transform[NB_TILE_GROUPS]; /* 1: transformed */
    uint8_t idle[NB_TILE_GROUPS];       /* 1: all own values are zero */
    float factor;                       /* for residuals, at most 1 */
    float own2[NB_TILE_GROUPS];         /* squares of the groups' values, */
    float error2[NB_TILE_GROUPS];       /* and of their residuals before the factor */
    float noise2;                       /* of the second half, for the variant's own use */
    float fine;                         /* codes in bytes: the step as a fraction of a group's scale */
    unsigned lanes;                     /* batch size of quant_lanes_survey.h, else 0 */
    bool doubt; /* the bound was near in the last tile: estimates would not suffice. False at first */
    float signal2, carried2; /* sums of squares of values and of residuals as used */
    int exponent;            /* of the tile's scale */
    bool wide;
    uint8_t outliers[NB_TILE_GROUPS / 8]; /* bits: groups with outliers. A survey begins without any */
    unsigned escapes;
    uint16_t escape_index[NB_INT8_ESCAPES]; /* in the tile */
    uint32_t escape_value[NB_INT8_ESCAPES];
};

/* Begin and end of every first half. */
NB_INLINE void nb_work_begin(struct nb_tile_work *work)
{
    work->wide = false;
    work->lanes = 0;
    work->escapes = 0;
    work->factor = 1;
    work->signal2 = work->carried2 = 0;
}

/* Return whether these sums show that nb_error_factor is 1. `own` is at most the squares of the values,
 * `carried` at least the squares of the residuals, apart from rounding in any order, and apart from codes of
 * -128, which no encoder writes and which count as -127. Below 2^-100 a sum could consist of rounding
 * errors. */
NB_INLINE bool nb_is_unbound(float own, float carried, float bound)
{
    const float limit = 0.97f * bound * bound * own;
    return limit > 0x1p-100f && own < 0x1p100f && carried <= limit;
}

/* Compute the factor and the sums for the statistics from own2 and error2. Return false when they are not
 * finite, because of values that do not count. */
NB_INLINE bool nb_work_norms(struct nb_tile_work *work, const struct nb_tile_job *job)
{
    for (unsigned j = job->groups; j < NB_TILE_GROUPS; j++)
        work->own2[j] = work->error2[j] = 0;
    work->signal2 = nb_sum_groups(work->own2);
    if (job->err) {
        float ee = nb_sum_groups(work->error2);
        work->factor = nb_error_factor(work->signal2, ee, job->bound);
        work->carried2 = work->factor != 0 ? work->factor * ee * work->factor : 0;
        work->doubt = !nb_is_unbound(0.4f * work->signal2, ee, job->bound);
    }
    return (nb_f32_bits(work->signal2) & NB_F32_ABS) < NB_F32_INF;
}

/* Return the number of maxima. Batches of lanes have an order of their own, with zeros for missing groups. */
NB_INLINE unsigned nb_work_groups(const struct nb_tile_work *work, const struct nb_tile_job *job)
{
    return work->lanes ? (job->groups + work->lanes - 1) & ~(work->lanes - 1) : job->groups;
}

/* The rest of the survey after a variant's first half. */
enum nb_survey {
    NB_SURVEY_DONE,
    NB_SURVEY_OUTLIERS, /* groups with outliers, work->outliers. The others are done */
    NB_SURVEY_CAREFUL   /* all groups: values that are not finite or too large, or groups too far apart */
};

NB_INLINE bool nb_work_has_outliers(const struct nb_tile_work *work)
{
    uint64_t part[2];
    memcpy(part, work->outliers, sizeof part);
    return (part[0] | part[1]) != 0;
}

/* Compute the tile's exponent from its largest maximum and the smallest above the floor. Return
 * NB_SURVEY_CAREFUL when they lie too far apart. */
NB_INLINE enum nb_survey nb_work_range(struct nb_tile_work *work, uint32_t max, uint32_t min, bool int4)
{
    work->top = max;
    work->exponent = NB_EXPONENT_MIN;
    if (max < NB_FLUSH_BITS)
        return NB_SURVEY_DONE;
    work->exponent = nb_tile_exponent(max);
    return nb_scale_code(min, work->exponent, !int4) ? NB_SURVEY_DONE : NB_SURVEY_CAREFUL;
}

/* Return nb_plain_max of the values h[32], in the order of nb_place, where the group is thin or flat, else
 * `max`, their largest magnitude. */
NB_INLINE float nb_group_plain_max(const float *h, bool split, bool thin, float max)
{
    const float least = max * NB_FLAT;
    float positive = 0, negative = 0;
    bool flat = true;

    for (unsigned i = 0; i < NB_GROUP && !thin && flat; i++) {
        const unsigned other = i ^ (i / 4 % 2 ? 2u : 1u);
        const float a = nb_bits_f32(nb_f32_bits(h[nb_place(split, i)]) & NB_F32_ABS);
        const float b = nb_bits_f32(nb_f32_bits(h[nb_place(split, other)]) & NB_F32_ABS);
        flat = (a > b ? a : b) > least;
    }
    if (!thin && !flat)
        return max;
    for (unsigned i = 0; i < NB_GROUP; i++) {
        positive = h[i] > positive ? h[i] : positive;
        negative = -h[i] > negative ? -h[i] : negative;
    }
    return nb_plain_max(max, positive, negative);
}

/* Return whether group j holds an exact zero of its own, of either sign. Clear the residuals of these zeros,
 * unless the group is idle. */
NB_INLINE bool nb_group_zeros(enum nb_dtype type, const struct nb_tile_job *job, unsigned j)
{
    const uint8_t *src = job->src + NB_GROUP * j * nb_value_bytes(type);
    uint8_t keep[NB_GROUP]; /* ones, except for zeros */
    uint64_t part[NB_GROUP / 8];

    if (type == NB_F32) {
        uint32_t v[NB_GROUP];
        memcpy(v, src, sizeof v);
        for (unsigned i = 0; i < NB_GROUP; i++)
            keep[i] = (v[i] & NB_F32_ABS) ? 0xff : 0;
    } else {
        uint16_t v[NB_GROUP];
        memcpy(v, src, sizeof v);
        for (unsigned i = 0; i < NB_GROUP; i++)
            keep[i] = (v[i] & 0x7fff) ? 0xff : 0;
    }
    memcpy(part, keep, sizeof part);
    if (!~(part[0] & part[1] & part[2] & part[3]))
        return false;
    if (job->err && (part[0] | part[1] | part[2] | part[3])) {
        uint8_t err[NB_GROUP];
        memcpy(err, job->err + NB_GROUP * j, sizeof err);
        for (unsigned i = 0; i < NB_GROUP; i++)
            err[i] &= keep[i];
        memcpy(job->err + NB_GROUP * j, err, sizeof err);
    }
    return true;
}

struct nb_tile_ops {
    /* First half: factor, domains, maxima. nb_tile_survey completes it as the result asks. */
    enum nb_survey (*survey)(const struct nb_tile_job *job, struct nb_tile_work *work);
    /* Second half, for `groups` groups: write scale codes, domain bits and codes (int6: still in bytes) to
     * `scales`, `domains` and `codes`, and new residuals. Return the sum of squared errors (0 unless
     * job->measure) and add to stats->flushed. */
    float (*quantize)(const struct nb_tile_job *job, struct nb_tile_work *work, uint8_t *scales,
                      uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats);
    /* dst = round(values of the record, + own unless NULL), without escapes. For neither raw nor zero
     * tiles. */
    void (*decode)(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own, uint8_t *dst);
    /* plain += values of the record (int4: or coeff += coefficients, and set any[j]), without escapes. For
     * all but zero tiles. */
    void (*add)(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                uint8_t *any);
    /* plain += inverse transform of coeff where any[j], for a tile of `groups`. */
    void (*inverse)(float *plain, float *coeff, const uint8_t *any, unsigned groups);
    /* dst = round(plain + own) for `groups` groups. own may be NULL. */
    void (*store)(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups, uint8_t *dst);
    nb_six_fn *pack6, *unpack6;
    bool split; /* order of floats inside a group, nb_place */
};

extern const struct nb_tile_ops nb_tile_portable;
#if defined(__x86_64__)
extern const struct nb_tile_ops nb_tile_avx2, nb_tile_avx512;
#endif
#if defined(NB_NEON)
extern const struct nb_tile_ops nb_tile_neon;
#endif

/* Complete the first half for tiles that need escapes (tile_careful.c). `rest` is the result of the variant's
 * survey, other than NB_SURVEY_DONE. Return 0, or 1 when there are too many escapes for this codec. */
int nb_tile_survey(const struct nb_tile_job *job, struct nb_tile_work *work, enum nb_survey rest);

/* Return whether the thin group of values h[32] (finite, in order) contains outliers that need escapes. This
 * is the definition: exact, and slow. */
bool nb_group_has_outliers(const float *h);

/* Result of nb_outliers_near: only the definition can decide. */
#define NB_OUTLIERS_UNSURE 2

/* Decide the same from the largest magnitude, the number of small values and their sum, added in any order.
 * Return 0 or 1, or NB_OUTLIERS_UNSURE when the order might decide. Outliers are above a limit, so the
 * largest value is one if any is. Sums of 32 positive values in two orders differ by less than 2^-18 of
 * them. */
NB_INLINE int nb_outliers_near(float max, unsigned small, float sum)
{
    if (small < NB_OUTLIER_MEMBERS)
        return 0;
    const float size = max * (float)small, limit = sum * NB_OUTLIER;
    return size > limit * (1 + 0x1p-12f) ? 1 : size < limit * (1 - 0x1p-12f) ? 0 : NB_OUTLIERS_UNSURE;
}

#endif
