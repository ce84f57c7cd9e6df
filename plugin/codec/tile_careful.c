/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rare path of encoding: groups with outliers, tiles with values too large for any code, and tiles whose
 * groups lie too far apart for one scale. Scalar code that all fast variants share.
 */
#include "codec/tile.h"

NB_GROUP_IS_32("masks of a bit a value, five stages of the transform");

static uint32_t magnitude_bits(float x)
{
    return nb_f32_bits(x) & NB_F32_ABS;
}

static float magnitude(float x)
{
    return nb_bits_f32(magnitude_bits(x));
}

/* Return one bit for each of 32 bytes that are 0 or 1. */
static uint32_t gather_bits(const uint8_t *bytes)
{
    uint32_t mask = 0;
    for (unsigned b = 0; b < NB_GROUP; b += 8) {
        const uint64_t eight = (uint64_t)nb_get32(bytes + b + 4) << 32 | nb_get32(bytes + b);
        mask |= (uint32_t)(eight * UINT64_C(0x0102040810204080) >> 56) << b;
    }
    return mask;
}

/* Return a bit for each of the magnitudes a, times p, above the limit. */
static uint32_t above(const float *a, float p, float limit)
{
    uint8_t found[NB_GROUP];
    for (unsigned i = 0; i < NB_GROUP; i++)
        found[i] = a[i] * p > limit;
    return gather_bits(found);
}

/* One round: return a bit for each value whose magnitude exceeds 2^10 times the mean of the small ones. Small
 * values lie above the floor and below 2^-8 of the largest. Return 0 for a group that is not thin, except in
 * another round with less `members`. */
static uint32_t outliers(const float *h, unsigned members)
{
    float a[NB_GROUP], counted[NB_GROUP], sums[4] = {0};
    uint8_t below[NB_GROUP], small[NB_GROUP];
    int32_t max = 0;

    for (unsigned i = 0; i < NB_GROUP; i++) {
        const int32_t bits = (int32_t)magnitude_bits(h[i]);
        a[i] = nb_bits_f32((uint32_t)bits);
        max = bits > max ? bits : max;
    }
    const float threshold = nb_bits_f32((uint32_t)max) * NB_SMALL;
    for (unsigned i = 0; i < NB_GROUP; i++) {
        below[i] = a[i] < threshold;
        small[i] = (a[i] < threshold) & (a[i] >= NB_FLUSH);
        counted[i] = nb_bits_f32(nb_f32_bits(a[i]) & nb_all_if((a[i] < threshold) & (a[i] >= NB_FLUSH)));
    }
    const uint32_t is_below = gather_bits(below), is_small = gather_bits(small);
    const unsigned count = (unsigned)__builtin_popcount(is_small);
    if (count < members || (members == NB_OUTLIER_MEMBERS && !nb_is_thin(is_below)))
        return 0;
    /* In four parts first: another order changes a sum by less than 2^-18 of it, which rarely decides. */
    for (unsigned i = 0; i < NB_GROUP; i += 4)
        for (unsigned k = 0; k < 4; k++)
            sums[k] += counted[i + k];
    const float p = (float)count, limit = (sums[0] + sums[1] + sums[2] + sums[3]) * NB_OUTLIER;
    uint32_t found = above(a, p, limit * (1 + 0x1p-12f));
    if (found != above(a, p, limit * (1 - 0x1p-12f))) {
        float sum = 0;
        for (unsigned i = 0; i < NB_GROUP; i++)
            sum += counted[i];
        found = above(a, p, sum * NB_OUTLIER);
    }
    return found & ~is_below;
}

bool nb_group_has_outliers(const float *h)
{
    return outliers(h, NB_OUTLIER_MEMBERS) != 0;
}

/* Get the values to code of group j: own values plus residuals. */
static void load_group(const struct nb_tile_job *job, const struct nb_tile_work *work, unsigned j, float *g,
                       float *e)
{
    const uint8_t *src = job->src + NB_GROUP * j * nb_value_bytes(job->type);
    const float unit = job->err && !work->idle[j] ? nb_error_unit(job->err_scale[j], work->factor) : 0;

    if (job->type == NB_F32)
        for (unsigned i = 0; i < NB_GROUP; i++)
            g[i] = nb_load_value(NB_F32, src, i);
    else if (job->type == NB_BF16)
        for (unsigned i = 0; i < NB_GROUP; i++)
            g[i] = nb_load_value(NB_BF16, src, i);
    else
        for (unsigned i = 0; i < NB_GROUP; i++)
            g[i] = nb_load_value(NB_F16, src, i);
    memset(e, 0, NB_GROUP * sizeof(float));
    if (unit != 0)
        for (unsigned i = 0; i < NB_GROUP; i++)
            e[i] = (float)job->err[NB_GROUP * j + i] * unit;
}

static void transform(float *v)
{
    /* Distance 1 first, then 16, 8, 4, 2. */
    for (unsigned stage = 0; stage < 5; stage++)
        for (unsigned d = stage ? 32 >> stage : 1, i = 0; i < NB_GROUP; i++)
            if (!(i & d)) {
                float a = v[i], b = v[i + d];
                v[i] = a + b;
                v[i + d] = a - b;
            }
}

/* Return the largest magnitude. The positive one of equal magnitudes decides the sign. */
static uint32_t largest(const float *y, uint32_t *positive)
{
    uint32_t max = 0;
    *positive = 1;
    for (unsigned i = 0; i < NB_GROUP; i++) {
        uint32_t bits = magnitude_bits(y[i]), sign = nb_f32_bits(y[i]) >> 31;
        if (bits > max)
            *positive = !sign;
        else if (bits == max)
            *positive |= !sign;
        max = bits > max ? bits : max;
    }
    return max;
}

/* Store a group in the variant's order. */
static void place(const struct nb_tile_job *job, float *dst, const float *x)
{
    for (unsigned i = 0; i < NB_GROUP; i++)
        dst[nb_place(job->split, i)] = x[i];
}

/* The same for the values of a plain group j, where the variant may keep batches in lanes. */
static void place_plain(const struct nb_tile_job *job, struct nb_tile_work *work, unsigned j, const float *x)
{
    if (!work->lanes) {
        place(job, work->y[j][0], x);
        return;
    }
    const unsigned lanes = work->lanes;
    float *to = &work->y[0][0][0] + NB_GROUP * (j & ~(lanes - 1)) + nb_lane(lanes, j) % lanes;
    for (unsigned i = 0; i < NB_GROUP; i++)
        to[lanes * i] = x[i];
}

/* Survey group j: return its escapes as a mask, store its values and maximum in work. */
static uint32_t survey_group(const struct nb_tile_job *job, struct nb_tile_work *work, unsigned j,
                             unsigned members)
{
    const unsigned at = work->lanes ? nb_lane(work->lanes, j) : j;
    float g[NB_GROUP], e[NB_GROUP], y[NB_GROUP];
    uint32_t escaped = 0, more;
    bool zero = false;

    load_group(job, work, j, g, e);
    for (unsigned i = 0; i < NB_GROUP; i++) {
        zero |= g[i] == 0;
        y[i] = g[i] + e[i];
        if (magnitude_bits(y[i]) >= NB_ESCAPE_BITS) {
            y[i] = 0;
            escaped |= 1u << i;
        }
    }
    while ((more = outliers(y, members)) != 0) {
        escaped |= more;
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (more >> i & 1)
                y[i] = 0;
    }
    work->transform[at] = 0;
    work->max[at] = largest(y, &work->positive[at]);
    const float threshold = nb_bits_f32(work->max[at]) * NB_SMALL;
    uint32_t small = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        small |= (uint32_t)(magnitude(y[i]) < threshold) << i;
    if (job->int4)
        work->max[at] =
            nb_f32_bits(nb_group_plain_max(y, false, nb_is_thin(small), nb_bits_f32(work->max[at])));
    if (job->int4 && !escaped && !zero) { /* false in lanes, whose groups here have outliers */
        float v[NB_GROUP];
        uint32_t positive;
        memcpy(v, y, sizeof v);
        transform(v);
        float max = nb_bits_f32(largest(v, &positive)) * 0.125f;
        unsigned large = nb_is_thin(small) ? NB_GROUP - (unsigned)__builtin_popcount(small) : NB_GROUP;
        if (nb_transform_better(nb_bits_f32(work->max[j]), max, large)) {
            work->transform[j] = 1;
            work->max[j] = nb_f32_bits(max);
            work->positive[j] = positive;
        }
        place(job, work->y[j][1], v);
    }
    place_plain(job, work, j, y);
    return escaped;
}

/* Compute the exponent of the tile. Return true when some group lies above the floor and is still too small
 * for a code. */
static bool spread(const struct nb_tile_job *job, struct nb_tile_work *work)
{
    const unsigned groups = nb_work_groups(work, job);
    uint32_t max = 0;
    for (unsigned j = 0; j < groups; j++)
        max = work->max[j] > max ? work->max[j] : max;
    work->exponent = max < NB_FLUSH_BITS ? NB_EXPONENT_MIN : nb_tile_exponent(max);
    for (unsigned j = 0; j < groups; j++)
        if (work->max[j] >= NB_FLUSH_BITS && !nb_scale_code(work->max[j], work->exponent, !job->int4))
            return true;
    return false;
}

/* Find the groups without values of their own, and the factor of residuals. */
static void norms(const struct nb_tile_job *job, struct nb_tile_work *work)
{
    work->factor = 1;
    for (unsigned j = 0; j < job->groups; j++) {
        float g[NB_GROUP], e[NB_GROUP], unit = job->err ? nb_error_unit(job->err_scale[j], 1) : 0;
        int32_t squares = 0;
        uint32_t any = 0;
        work->idle[j] = 0;
        load_group(job, work, j, g, e);
        for (unsigned i = 0; i < NB_GROUP; i++) {
            int32_t code = job->err ? job->err[NB_GROUP * j + i] : 0;
            any |= magnitude_bits(g[i]);
            squares += code * code;
            g[i] = magnitude_bits(g[i]) >= NB_ESCAPE_BITS ? 0 : g[i] * g[i];
        }
        work->idle[j] = !any;
        work->own2[j] = nb_sum_group(g);
        work->error2[j] = any ? (float)squares * unit * unit : 0;
    }
    nb_work_norms(work, job);
}

/* Sum the squares of all values but escapes, for the statistics. */
static void measure(const struct nb_tile_job *job, struct nb_tile_work *work, const uint32_t *escaped)
{
    double signal = 0, carried = 0;

    for (unsigned j = 0; j < job->groups; j++) {
        float g[NB_GROUP], e[NB_GROUP];
        load_group(job, work, j, g, e);
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (!(escaped[j] >> i & 1)) {
                signal += (double)g[i] * (double)g[i];
                carried += (double)e[i] * (double)e[i];
            }
    }
    work->signal2 = (float)signal;
    work->carried2 = (float)carried;
}

static void list_escapes(const struct nb_tile_job *job, struct nb_tile_work *work, const uint32_t *escaped)
{
    unsigned count = 0;

    for (unsigned j = 0; j < job->groups; j++)
        for (uint32_t rest = escaped[j]; rest; rest &= rest - 1) {
            const unsigned i = NB_GROUP * j + (unsigned)__builtin_ctz(rest);
            work->escape_index[count] = (uint16_t)(NB_GROUP * job->group0 + i);
            work->escape_value[count++] = nb_f32_bits(nb_load_value(job->type, job->src, i));
        }
}

/* Survey all groups. Return the number of escapes. */
static unsigned survey_all(const struct nb_tile_job *job, struct nb_tile_work *work, uint32_t *escaped)
{
    unsigned count = 0;

    nb_work_begin(work);
    for (unsigned j = 0; job->err && j < job->groups; j++)
        nb_group_zeros(job->type, job, j);
    norms(job, work);
    for (unsigned j = 0; j < job->groups; j++)
        escaped[j] = survey_group(job, work, j, NB_OUTLIER_MEMBERS);
    if (spread(job, work)) {
        for (unsigned j = 0; j < job->groups; j++)
            escaped[j] = survey_group(job, work, j, 1);
        work->wide = spread(job, work);
    }
    for (unsigned j = 0; j < job->groups; j++)
        count += (unsigned)__builtin_popcount(escaped[j]);
    return count;
}

/* Survey the groups with outliers. The variant has done the others. Return the number of escapes, as soon as
 * it exceeds `most`. */
static unsigned survey_outliers(const struct nb_tile_job *job, struct nb_tile_work *work, uint32_t *escaped,
                                unsigned most)
{
    unsigned count = 0;

    for (unsigned j = 0; j < job->groups; j++) {
        escaped[j] = 0;
        if (!(work->outliers[j / 8] >> j % 8 & 1))
            continue;
        escaped[j] = survey_group(job, work, j, NB_OUTLIER_MEMBERS);
        count += (unsigned)__builtin_popcount(escaped[j]);
        if (count > most)
            return count;
    }
    return count;
}

int nb_tile_survey(const struct nb_tile_job *job, struct nb_tile_work *work, enum nb_survey rest)
{
    uint32_t escaped[NB_TILE_GROUPS];
    const unsigned most = job->int4 ? NB_INT4_ESCAPES : NB_INT8_ESCAPES;

    if (rest == NB_SURVEY_OUTLIERS) {
        work->escapes = survey_outliers(job, work, escaped, most);
        /* Survey groups that lie too far apart once more, with another definition of outliers. */
        if (work->escapes <= most && spread(job, work))
            rest = NB_SURVEY_CAREFUL;
    }
    if (rest == NB_SURVEY_CAREFUL)
        work->escapes = survey_all(job, work, escaped);
    if (work->escapes > most)
        return 1;
    list_escapes(job, work, escaped);
    if (job->measure)
        measure(job, work, escaped);
    return 0;
}
