/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rare path of encoding: tiles that hold values to escape, or whose groups lie too far apart for one
 * scale. Scalar, and shared by all fast variants.
 */
#include "codec/tile.h"

static uint32_t magnitude_bits(float x)
{
    return nb_f32_bits(x) & NB_F32_ABS;
}

static float magnitude(float x)
{
    return nb_bits_f32(magnitude_bits(x));
}

/* One round: values of magnitude above 2^10 times the mean of the small ones, those above the floor and below
 * 2^-8 of the largest. Returns them as a bit mask; none for groups that are not thin, except when looking
 * once more with less `members`. */
static uint32_t outliers(const float *h, unsigned members)
{
    uint32_t max = 0, found = 0, below = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        max = magnitude_bits(h[i]) > max ? magnitude_bits(h[i]) : max;
    float threshold = nb_bits_f32(max) * NB_SMALL, sum = 0;
    unsigned small = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        below |= (uint32_t)(magnitude(h[i]) < threshold) << i;
    if (members == NB_OUTLIER_MEMBERS && !nb_is_thin(below))
        return 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        if (magnitude_bits(h[i]) >= NB_FLUSH_BITS && magnitude(h[i]) < threshold) {
            sum += magnitude(h[i]);
            small++;
        }
    if (small < members)
        return 0;
    sum *= 0x1p10f;
    for (unsigned i = 0; i < NB_GROUP; i++)
        if (magnitude(h[i]) >= threshold && magnitude(h[i]) * (float)small > sum)
            found |= 1u << i;
    return found;
}

int nb_group_has_outliers(const float *h, unsigned members)
{
    return outliers(h, members) != 0;
}

/* Coded values of group j: sums of values and residuals. */
static void load_group(const struct nb_tile_job *job, const struct nb_tile_work *work, unsigned j, float *g,
                       float *e)
{
    float unit = job->err && !work->idle[j] ? nb_error_unit(job->err_scale[j], work->factor) : 0;
    for (unsigned i = 0; i < NB_GROUP; i++) {
        g[i] = nb_load_value(job->type, job->src, NB_GROUP * j + i);
        e[i] = unit != 0 ? (float)job->err[NB_GROUP * j + i] * unit : 0;
    }
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

/* The positive one of equal magnitudes decides. */
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

/* Store a group in the order in which the variant keeps it. */
static void place(const struct nb_tile_job *job, float *dst, const float *x)
{
    for (unsigned i = 0; i < NB_GROUP; i++)
        dst[nb_place(job->split, i)] = x[i];
}

/* Survey group j: its escapes as a mask, its values and maximum into work. */
static uint32_t survey_group(const struct nb_tile_job *job, struct nb_tile_work *work, unsigned j,
                             unsigned members)
{
    float g[NB_GROUP], e[NB_GROUP], y[NB_GROUP];
    uint32_t escaped = 0, more;

    load_group(job, work, j, g, e);
    for (unsigned i = 0; i < NB_GROUP; i++) {
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
    work->transform[j] = 0;
    work->max[j] = largest(y, &work->positive[j]);
    if (job->int4 && !escaped) {
        float v[NB_GROUP];
        uint32_t positive;
        memcpy(v, y, sizeof v);
        transform(v);
        float max = nb_bits_f32(largest(v, &positive)) * 0.125f;
        uint32_t small = 0;
        for (unsigned i = 0; i < NB_GROUP; i++)
            small |= (uint32_t)(magnitude(y[i]) < nb_bits_f32(work->max[j]) * NB_SMALL) << i;
        unsigned large = nb_is_thin(small) ? NB_GROUP - (unsigned)__builtin_popcount(small) : NB_GROUP;
        if (nb_transform_better(nb_bits_f32(work->max[j]), max, large)) {
            work->transform[j] = 1;
            work->max[j] = nb_f32_bits(max);
            work->positive[j] = positive;
        }
        place(job, work->y[j][1], v);
    }
    place(job, work->y[j][0], y);
    return escaped;
}

/* Exponent of the tile; true when some group is above the floor and yet too small for a code. */
static bool spread(const struct nb_tile_job *job, struct nb_tile_work *work)
{
    uint32_t max = 0;
    for (unsigned j = 0; j < job->groups; j++)
        max = work->max[j] > max ? work->max[j] : max;
    work->exponent = max < NB_FLUSH_BITS ? NB_EXPONENT_MIN : nb_tile_exponent(max);
    for (unsigned j = 0; j < job->groups; j++)
        if (work->max[j] >= NB_FLUSH_BITS && !nb_scale_code(work->max[j], work->exponent, !job->int4))
            return true;
    return false;
}

/* Which groups have no values of their own, and by how much residuals are scaled down. */
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

int nb_tile_survey(const struct nb_tile_job *job, struct nb_tile_work *work)
{
    uint32_t escaped[NB_TILE_GROUPS];
    unsigned most = job->int4 ? NB_INT4_ESCAPES : NB_INT8_ESCAPES, count = 0;
    double signal = 0, carried = 0;

    nb_work_begin(work);
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
    work->escapes = count;
    if (count > most)
        return 1;
    count = 0;
    for (unsigned j = 0; j < job->groups; j++) {
        float g[NB_GROUP], e[NB_GROUP];
        load_group(job, work, j, g, e);
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (escaped[j] >> i & 1) {
                work->escape_index[count] = (uint16_t)(NB_GROUP * (job->group0 + j) + i);
                work->escape_value[count++] = nb_f32_bits(g[i]);
            } else {
                signal += (double)g[i] * (double)g[i];
                carried += (double)e[i] * (double)e[i];
            }
    }
    work->signal2 = (float)signal;
    work->carried2 = (float)carried;
    return 0;
}
