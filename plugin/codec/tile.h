/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles: what a variant does with up to NB_TILE_GROUPS groups that share a scale. A fast variant is a table
 * of these operations; spans (span.h) are made of them.
 */
#ifndef NIBBLE_CODEC_TILE_H
#define NIBBLE_CODEC_TILE_H

#include <stdbool.h>
#include <sys/types.h>

#include "codec/format.h"

/* Parsers of tile records (nb_record_fn of codec/row.h): an int4 span may contain int8 records, an int8 span
 * no int4 ones. */
ssize_t nb_record_int4(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view);
ssize_t nb_record_int8(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view);

/* Loops that are unrolled, so that what they handle stays in registers. */
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
    bool int4; /* else int8 */
    const uint8_t *src;
    unsigned groups, group0; /* how many; which is the first of the tile */
    int8_t *err;             /* feedback state of the first value and group; NULL: none */
    uint8_t *err_scale;
    enum nb_ef_mode mode;
    float beta, bound;
    bool measure; /* sums of squares are wanted for the statistics */
    bool split;   /* how the variant keeps a group's floats: see nb_place */
};

/* Where value i of a group lies in the variant's floats: in order, or the even ones before the odd ones. */
NB_INLINE unsigned nb_place(bool split, unsigned i)
{
    return split ? i % 2 * 16 + i / 2 : i;
}

/* Where batches of so many groups in lanes, eight or sixteen (quant_lanes_survey.h), have group j of its tile: also the
 * place of what there is one of per group. Value i of it is i times as many floats further. */
NB_INLINE unsigned nb_lane(unsigned lanes, unsigned j)
{
    return lanes == 16 ? (j & ~15u) | (j % 4 * 4 + j % 16 / 4) : j;
}

/* What the first half of encoding finds out for the second. */
struct nb_tile_work {
    float y[NB_TILE_GROUPS][2][NB_GROUP]
        __attribute__((aligned(64)));   /* values; their unnormalised transform */
    uint32_t max[NB_TILE_GROUPS];       /* bits of the largest magnitude; transformed: times 1/8 */
    uint32_t top;                       /* the largest of max, where the survey was done */
    uint32_t positive[NB_TILE_GROUPS];  /* 1: a value of that magnitude is not negative */
    uint32_t transform[NB_TILE_GROUPS]; /* 1: transformed */
    uint8_t idle[NB_TILE_GROUPS];       /* 1: all own values are zero */
    float factor;                       /* by which residuals are scaled down */
    float own2[NB_TILE_GROUPS];         /* squares of the groups' values, */
    float error2[NB_TILE_GROUPS];       /* and of their residuals before the factor */
    float noise2;                       /* of the second half, for a variant's own use */
    unsigned lanes; /* not 0: batches of so many groups, kept as quant_lanes_survey.h does it */
    bool doubt;     /* in the last tile the bound was not far: estimates would not do. False at first */
    float signal2, carried2; /* sums of squares of values and of residuals as used */
    int exponent;            /* of the tile's scale */
    bool wide;
    uint8_t outliers[NB_TILE_GROUPS / 8]; /* bits: groups that hold some; a survey begins with none */
    unsigned escapes;
    uint16_t escape_index[NB_INT8_ESCAPES]; /* in the tile */
    uint32_t escape_value[NB_INT8_ESCAPES];
};

/* What every first half begins and ends with. */
NB_INLINE void nb_work_begin(struct nb_tile_work *work)
{
    work->wide = false;
    work->lanes = 0;
    work->escapes = 0;
    work->factor = 1;
    work->signal2 = work->carried2 = 0;
}

/* Do these sums show that nb_error_factor is 1? `own` is no more than the squares of the values, `carried` at
 * least those of the residuals, but for rounding in any order, and for codes of -128, which no encoder
 * writes, taken for -127. Below 2^-100 rounding could be all there is. */
NB_INLINE bool nb_is_unbound(float own, float carried, float bound)
{
    const float limit = 0.97f * bound * bound * own;
    return limit > 0x1p-100f && own < 0x1p100f && carried <= limit;
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
        work->doubt = !nb_is_unbound(0.4f * work->signal2, ee, job->bound);
    }
    return (nb_f32_bits(work->signal2) & NB_F32_ABS) < NB_F32_INF;
}

/* How many maxima there are: batches of lanes are in an order of their own, and zero where there is no group.
 */
NB_INLINE unsigned nb_work_groups(const struct nb_tile_work *work, const struct nb_tile_job *job)
{
    return work->lanes ? (job->groups + work->lanes - 1) & ~(work->lanes - 1) : job->groups;
}

/* What the first half of encoding leaves to be done. */
enum nb_survey {
    NB_SURVEY_DONE,
    NB_SURVEY_OUTLIERS, /* groups that hold outliers, work->outliers: the others are done */
    NB_SURVEY_CAREFUL   /* all: values that are not finite or too large, groups too far apart */
};

NB_INLINE bool nb_work_has_outliers(const struct nb_tile_work *work)
{
    uint64_t part[2];
    memcpy(part, work->outliers, sizeof part);
    return (part[0] | part[1]) != 0;
}

/* The tile's exponent from its largest maximum and the smallest above the floor; NB_SURVEY_CAREFUL when they
 * lie too far apart. */
NB_INLINE enum nb_survey nb_work_range(struct nb_tile_work *work, uint32_t max, uint32_t min, bool int4)
{
    work->top = max;
    work->exponent = NB_EXPONENT_MIN;
    if (max < NB_FLUSH_BITS)
        return NB_SURVEY_DONE;
    work->exponent = nb_tile_exponent(max);
    return nb_scale_code(min, work->exponent, !int4) ? NB_SURVEY_DONE : NB_SURVEY_CAREFUL;
}

struct nb_tile_ops {
    /* First half: factor, domains, maxima. What it leaves is for nb_tile_survey. */
    enum nb_survey (*survey)(const struct nb_tile_job *job, struct nb_tile_work *work);
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

extern const struct nb_tile_ops nb_tile_portable;
#if defined(__x86_64__)
extern const struct nb_tile_ops nb_tile_avx2, nb_tile_avx512;
#endif
#if defined(NB_NEON)
extern const struct nb_tile_ops nb_tile_neon;
#endif

/* The rest of the first half for tiles in which something has to be escaped (tile_careful.c): `rest` is what
 * the survey of a variant returned, not NB_SURVEY_DONE. 0, or 1 when there are too many escapes for this
 * codec. */
int nb_tile_survey(const struct nb_tile_job *job, struct nb_tile_work *work, enum nb_survey rest);

/* Does the group of values h[32] (finite, in order), which is thin, contain outliers that have to be escaped?
 * The definition: exact, and slow. */
bool nb_group_has_outliers(const float *h);

/* What nb_outliers_near says: that only the definition can tell. */
#define NB_OUTLIERS_UNSURE 2

/* The same from the largest magnitude, the number of small values and their sum, which may have been added up
 * in any order: 0 or 1, or NB_OUTLIERS_UNSURE when the order might decide. (Outliers are above a limit, so
 * the largest value is one if any is. Sums of 32 positive values in two orders differ by less than 2^-18 of
 * them.) */
NB_INLINE int nb_outliers_near(float max, unsigned small, float sum)
{
    if (small < NB_OUTLIER_MEMBERS)
        return 0;
    const float size = max * (float)small, limit = sum * NB_OUTLIER;
    return size > limit * (1 + 0x1p-12f) ? 1 : size < limit * (1 - 0x1p-12f) ? 0 : NB_OUTLIERS_UNSURE;
}

#endif
