/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantizing codecs, slow and obvious: a transcript of docs/wire-format.md. Tests compare the other
 * variants with this one, so it shares no arithmetic with them beyond type conversion and the scale code.
 * This file turns values into bytes, reference_decode.c turns bytes into values.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "reference.h"

/* A tile during encoding. It has `n` values, with indices relative to its first. */
struct ref_tile {
    unsigned n, groups, group0;
    float g[NB_TILE]; /* the values */
    float e[NB_TILE]; /* error as used */
    float h[NB_TILE]; /* values to encode: sum of both, 0 where escaped */
    bool measure;     /* measure energies */
    bool escaped[NB_TILE];
    bool idle[NB_TILE_GROUPS]; /* all of the group's own values are zero */
    bool zero[NB_TILE_GROUPS]; /* some of them are */
    bool transform[NB_TILE_GROUPS];
    float y[NB_TILE]; /* h, or its unnormalized transform */
    float max[NB_TILE_GROUPS];
    bool negative[NB_TILE_GROUPS]; /* sign of the value of largest magnitude */
};

static float magnitude(float x)
{
    return nb_bits_f32(nb_f32_bits(x) & NB_F32_ABS);
}

static bool too_large(float x)
{
    return (nb_f32_bits(x) & NB_F32_ABS) >= NB_ESCAPE_BITS;
}

/* Sum squares: within each group in steps of the distances 1, 16, 8, 4, 2, then over the groups. */
static float sum_over_groups(const float *group, unsigned groups)
{
    float sum[NB_TILE_GROUPS] = {0};
    memcpy(sum, group, groups * sizeof *sum);
    for (unsigned half = NB_TILE_GROUPS / 2; half; half /= 2)
        for (unsigned j = 0; j < half; j++)
            sum[j] = sum[j] + sum[j + half];
    return sum[0];
}

static float sum_squares(const struct ref_tile *t, const float *x, const float *weight)
{
    static const unsigned distances[5] = {1, 16, 8, 4, 2};
    float group[NB_TILE_GROUPS];
    for (unsigned j = 0; j < t->groups; j++) {
        float s[NB_GROUP];
        for (unsigned i = 0; i < NB_GROUP; i++) {
            s[i] = x[32 * j + i] * x[32 * j + i];
            if (weight)
                s[i] = s[i] * weight[j];
        }
        for (unsigned stage = 0; stage < 5; stage++)
            for (unsigned i = 0; i < NB_GROUP; i++)
                if (!(i & distances[stage]))
                    s[i] = s[i] + s[i + distances[stage]];
        group[j] = s[0];
    }
    return sum_over_groups(group, t->groups);
}

/* Sum the squares of carried errors before any factor: sums of squares of codes, which are exact, times
 * units. */
static float sum_errors(const struct ref_tile *t, const int8_t *err, const uint8_t *scale)
{
    float group[NB_TILE_GROUPS];
    for (unsigned j = 0; j < t->groups; j++) {
        float unit = nb_error_unit(scale[j], 1);
        int sum = 0;
        for (unsigned i = 32 * j; i < 32 * j + 32; i++)
            sum += err[i] * err[i];
        group[j] = (float)sum * unit;
        group[j] = t->idle[j] ? 0 : group[j] * unit;
    }
    return sum_over_groups(group, t->groups);
}

static void load_tile(struct ref_tile *t, enum nb_dtype type, const uint8_t *src)
{
    for (unsigned i = 0; i < t->n; i++)
        t->g[i] = nb_load_value(type, src, i);
    for (unsigned j = 0; j < t->groups; j++) {
        t->idle[j] = true;
        t->zero[j] = false;
        for (unsigned i = 32 * j; i < 32 * j + 32; i++)
            if (t->g[i] != 0) /* true for NaN */
                t->idle[j] = false;
            else
                t->zero[j] = true;
    }
}

/* Compute h = g + e, with e scaled down so that |e| <= bound |g|. A zero has no residual. */
static void add_error(struct ref_tile *t, const struct nb_ef *ef, int8_t *err, const uint8_t *scale,
                      struct nb_encode_stats *stats)
{
    static const float zero[NB_TILE];
    memcpy(t->e, zero, sizeof t->e);
    if (ef) {
        float finite[NB_TILE] = {0};
        for (unsigned i = 0; i < t->n; i++) {
            unsigned j = i / NB_GROUP;
            if (!too_large(t->g[i]))
                finite[i] = t->g[i];
            if (t->g[i] == 0 && !t->idle[j])
                err[i] = 0;
            if (!t->idle[j])
                t->e[i] = (float)err[i] * nb_error_unit(scale[j], 1);
        }
        float gg = sum_squares(t, finite, NULL), ee = sum_errors(t, err, scale);
        float limit = ef->bound * ef->bound;
        limit = limit * gg;
        if (ee > limit) {
            float f = gg / ee;
            f = nb_sqrtf(f);
            f = ef->bound * f;
            for (unsigned i = 0; i < t->n; i++)
                if (t->e[i] != 0) {
                    float unit = nb_error_unit(scale[i / NB_GROUP], f);
                    t->e[i] = (float)err[i] * unit;
                }
            if (stats)
                stats->bounded++;
        }
    }
    for (unsigned i = 0; i < t->n; i++)
        t->h[i] = t->g[i] + t->e[i];
}

/* Return whether value i of group j is below 2^-8 of the group's maximum. */
static bool is_small(const struct ref_tile *t, unsigned j, unsigned i, float max)
{
    return magnitude(t->h[32 * j + i]) < max * 0x1p-8f;
}

/* Return whether a group is thin: both values of some pair are small. */
static bool is_thin(const struct ref_tile *t, unsigned j, float max)
{
    for (unsigned i = 0; i < NB_GROUP; i++) {
        unsigned partner = i ^ (i / 4 % 2 ? 2 : 1); /* neighbors, or two apart, four by four */
        if (is_small(t, j, i, max) && is_small(t, j, partner, max))
            return true;
    }
    return false;
}

/* Escape values of group j that would drown the rest of it. */
static void escape_outliers(struct ref_tile *t, unsigned j, unsigned members)
{
    bool again = true;
    while (again) {
        float max = 0, sum = 0;
        unsigned small = 0;
        again = false;
        for (unsigned i = 32 * j; i < 32 * j + 32; i++)
            if (magnitude(t->h[i]) > max)
                max = magnitude(t->h[i]);
        if (members == NB_OUTLIER_MEMBERS && !is_thin(t, j, max))
            return;
        for (unsigned i = 32 * j; i < 32 * j + 32; i++)
            if (nb_f32_bits(magnitude(t->h[i])) >= NB_FLUSH_BITS && magnitude(t->h[i]) < max * 0x1p-8f) {
                sum = sum + magnitude(t->h[i]);
                small++;
            }
        if (small < members)
            return;
        for (unsigned i = 32 * j; i < 32 * j + 32; i++)
            if (magnitude(t->h[i]) >= max * 0x1p-8f && magnitude(t->h[i]) * (float)small > sum * 0x1p10f) {
                t->h[i] = 0;
                t->escaped[i] = true;
                again = true;
            }
    }
}

static void find_escapes(struct ref_tile *t, unsigned members)
{
    for (unsigned i = 0; i < t->n; i++) {
        t->escaped[i] = t->escaped[i] || too_large(t->h[i]);
        if (t->escaped[i])
            t->h[i] = 0;
    }
    for (unsigned j = 0; j < t->groups; j++)
        escape_outliers(t, j, members);
}

static void find_max(const float *y, float *max, bool *negative)
{
    *max = 0;
    *negative = false;
    for (unsigned i = 0; i < NB_GROUP; i++)
        if (magnitude(y[i]) > *max) {
            *max = magnitude(y[i]);
            *negative = nb_f32_bits(y[i]) >> 31;
        } else if (magnitude(y[i]) == *max && !(nb_f32_bits(y[i]) >> 31)) {
            *negative = false;
        }
}

/* Return whether a group is flat: the larger value of each pair is above 7/8 of its maximum. */
static bool is_flat(const float *y, float max)
{
    for (unsigned i = 0; i < NB_GROUP; i++) {
        unsigned partner = i ^ (i / 4 % 2 ? 2 : 1);
        if (!(magnitude(y[i]) > max * 0.875f) && !(magnitude(y[partner]) > max * 0.875f))
            return false;
    }
    return true;
}

/* Return 8/7 of the largest magnitude of the sign that has the smaller one. */
static float other_side(const float *y)
{
    float largest[2] = {0, 0};
    for (unsigned i = 0; i < NB_GROUP; i++)
        if (magnitude(y[i]) > largest[y[i] < 0])
            largest[y[i] < 0] = magnitude(y[i]);
    return (largest[0] < largest[1] ? largest[0] : largest[1]) * 0x1.24924ap0f;
}

static void choose_domains(struct ref_tile *t, bool int4)
{
    for (unsigned j = 0; j < t->groups; j++) {
        float *y = t->y + 32 * j;
        bool has_escape = false;
        memcpy(y, t->h + 32 * j, 4 * NB_GROUP);
        find_max(y, &t->max[j], &t->negative[j]);
        t->transform[j] = false;
        for (unsigned i = 0; i < NB_GROUP; i++)
            has_escape = has_escape || t->escaped[32 * j + i];
        const bool thin = is_thin(t, j, t->max[j]);
        unsigned large = 32;
        if (thin)
            for (unsigned i = 0; i < NB_GROUP; i++)
                large -= is_small(t, j, i, t->max[j]);
        if (int4 && (thin || is_flat(y, t->max[j])) && other_side(y) > t->max[j])
            t->max[j] = other_side(y);
        if (!int4 || has_escape || t->zero[j])
            continue;
        float v[NB_GROUP], max;
        bool negative;
        memcpy(v, y, sizeof v);
        reference_hadamard(v);
        find_max(v, &max, &negative);
        max = max * 0.125f;
        float factor = 64.0f / (float)large;
        factor = nb_sqrtf(factor);
        if (max * factor < t->max[j]) {
            t->transform[j] = true;
            t->max[j] = max;
            t->negative[j] = negative;
            memcpy(y, v, sizeof v);
        }
    }
}

/* Return the exponent of the tile, or INT32_MIN when every group is below the floor. */
static int tile_exponent(const struct ref_tile *t)
{
    uint32_t max = 0;
    for (unsigned j = 0; j < t->groups; j++)
        if (nb_f32_bits(t->max[j]) > max)
            max = nb_f32_bits(t->max[j]);
    return max < NB_FLUSH_BITS ? INT32_MIN : nb_tile_exponent(max);
}

/* Return whether some group is above the floor, but too small for a code of a tile that is not wide. */
static bool is_spread(const struct ref_tile *t, int exponent, bool int4)
{
    for (unsigned j = 0; j < t->groups; j++)
        if (nb_f32_bits(t->max[j]) >= NB_FLUSH_BITS &&
            !nb_scale_code(nb_f32_bits(t->max[j]), exponent, !int4))
            return true;
    return false;
}

/* Store the new error of group j, rounded from the exact error x. */
static void store_error(const struct ref_tile *t, unsigned j, const float *x, int8_t *err, uint8_t *scale)
{
    float max = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        if (!t->escaped[32 * j + i] && magnitude(x[i]) > max)
            max = magnitude(x[i]);
    uint32_t bits = nb_f32_bits(max);
    if (bits < NB_FLUSH_BITS) {
        memset(err + 32 * j, 0, NB_GROUP);
        scale[j] = 0;
        return;
    }
    bits = bits + 0x10000; /* 127.5/64 and more needs the next power of two */
    scale[j] = (uint8_t)((bits >> 23) - 6);
    for (unsigned i = 0; i < NB_GROUP; i++) {
        float q = x[i] * nb_pow2(127 + 6 - (int)(bits >> 23));
        q = nb_rint(q);
        err[32 * j + i] = (int8_t)(t->escaped[32 * j + i] ? 0 : q);
    }
}

/* Quantize the groups. Write the record and the new error. Return the record's length. */
static size_t write_tile(struct ref_tile *t, unsigned bits_a_code, bool wide, int exponent,
                         const struct nb_ef *ef, int8_t *err, uint8_t *scale, uint8_t *dst,
                         struct nb_encode_stats *stats)
{
    const bool int4 = bits_a_code == 4, int6 = bits_a_code == 6;
    const int highest = int4 ? 7 : int6 ? 31 : 127, lowest = int4 ? -8 : -highest;
    uint8_t *start = dst;
    unsigned escapes = 0;
    static _Thread_local float noise[NB_TILE], weight[NB_TILE_GROUPS];

    dst[0] = (uint8_t)((int4 ? NB_TILE_INT4 : int6 ? NB_TILE_INT6 : NB_TILE_INT8) + wide);
    dst[2] = (uint8_t)(exponent + 127);
    dst[3] = 0;
    dst += NB_TILE_HEADER;
    for (unsigned i = 0; i < t->n; i++)
        if (t->escaped[i]) {
            nb_put16(dst, 32 * t->group0 + i);
            nb_put16(dst + 2, 0);
            nb_put32(dst + 4, nb_f32_bits(t->g[i]));
            dst += NB_ESCAPE_BYTES;
            escapes++;
        }
    start[1] = (uint8_t)escapes;
    uint8_t *scales = dst, *domains = dst + nb_pad4(t->groups), *codes = domains;
    if (int4)
        codes += 4 * ((t->groups + 31) / 32);
    memset(scales, 0, (size_t)(codes - scales));

    for (unsigned j = 0; j < t->groups; j++) {
        float *y = t->y + 32 * j, r[NB_GROUP], step = 0;
        int q[NB_GROUP] = {0};
        unsigned code = 0;
        uint32_t bits = nb_f32_bits(t->max[j]);
        if (bits >= NB_FLUSH_BITS)
            code = wide ? nb_scale_code_wide(bits, exponent, !int4) : nb_scale_code(bits, exponent, !int4);
        if (!code) {
            t->transform[j] = false;
            memcpy(y, t->h + 32 * j, 4 * NB_GROUP);
            if (bits && stats)
                stats->flushed++;
        } else {
            float unit = nb_scale_table[wide][code] * nb_pow2(exponent);
            if (int4)
                step = t->transform[j] ? unit : unit * 0.125f;
            else
                step = unit * (int6 ? NB_INT6_STEP : NB_INT8_STEP);
            if (int4 && !t->negative[j])
                step = -step; /* makes the extreme value -8 */
            float inverse = 1.0f / step;
            for (unsigned i = 0; i < NB_GROUP; i++) {
                float x = y[i] * inverse;
                q[i] = (int)nb_rint(x);
                if (q[i] < lowest)
                    q[i] = lowest;
                if (q[i] > highest)
                    q[i] = highest;
            }
            scales[j] = (uint8_t)(code | (int4 && !t->negative[j] ? 0x80 : 0));
            if (t->transform[j])
                domains[j / 8] |= (uint8_t)(1 << j % 8);
        }
        for (unsigned i = 0; i < NB_GROUP; i++) {
            if (int4 && i < 16)
                codes[16 * j + i] = (uint8_t)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
            if (int6 && i < 24)
                codes[24 * j + i] = (uint8_t)(q[i] & 63);
            if (int6 && i >= 24)
                for (unsigned part = 0; part < 3; part++)
                    codes[24 * j + 8 * part + i - 24] |= (uint8_t)((q[i] >> 2 * part & 3) << 6);
            if (bits_a_code == 8)
                codes[32 * j + i] = (uint8_t)q[i];
            float carried = (float)q[i] * step;
            r[i] = y[i] - carried;
            noise[32 * j + i] = r[i];
        }
        weight[j] = t->transform[j] ? 0.03125f : 1.0f;
        if (!ef || t->idle[j])
            continue;
        if (t->transform[j]) {
            reference_hadamard(r);
            for (unsigned i = 0; i < NB_GROUP; i++)
                r[i] = r[i] * 0.03125f;
        }
        if (ef->mode == NB_EF_EMA)
            for (unsigned i = 0; i < NB_GROUP; i++) {
                float rest = 1.0f - ef->beta, kept = ef->beta * t->e[32 * j + i];
                rest = rest * r[i];
                r[i] = kept + rest;
            }
        store_error(t, j, r, err, scale);
    }
    if (stats) {
        stats->escapes += escapes;
        if (t->measure)
            stats->noise2 += sum_squares(t, noise, weight);
    }
    return (size_t)(codes - start) + 4 * bits_a_code * t->groups;
}

/* Encode the tile with codes of `bits` bits. Return 0 when it has too many escapes. */
static size_t encode_as(struct ref_tile *t, unsigned bits, enum nb_dtype type, const struct nb_ef *ef,
                        int8_t *err, uint8_t *scale, uint8_t *dst, struct nb_encode_stats *stats)
{
    const bool int4 = bits == 4;
    bool wide = false;
    memset(t->escaped, 0, sizeof t->escaped);
    for (unsigned i = 0; i < t->n; i++)
        t->h[i] = t->g[i] + t->e[i];
    find_escapes(t, NB_OUTLIER_MEMBERS);
    choose_domains(t, int4);
    int exponent = tile_exponent(t);
    if (exponent != INT32_MIN && is_spread(t, exponent, int4)) {
        find_escapes(t, 1);
        choose_domains(t, int4);
        exponent = tile_exponent(t);
        wide = exponent != INT32_MIN && is_spread(t, exponent, int4);
    }
    unsigned escapes = 0;
    for (unsigned i = 0; i < t->n; i++)
        escapes += t->escaped[i];
    size_t bytes = NB_ESCAPE_BYTES * escapes + nb_pad4(t->groups) + 4 * bits * t->groups +
                   (int4 ? 4 * ((t->groups + 31) / 32) : 0);
    if (escapes > (int4 ? NB_INT4_ESCAPES : NB_INT8_ESCAPES) || bytes > t->n * nb_dtype_size(type))
        return 0;
    if (stats && t->measure) {
        float finite[NB_TILE] = {0};
        for (unsigned i = 0; i < t->n; i++)
            finite[i] = t->escaped[i] ? 0 : t->g[i];
        stats->signal2 += sum_squares(t, finite, NULL);
        for (unsigned i = 0; i < t->n; i++)
            finite[i] = t->escaped[i] ? 0 : t->e[i];
        float carried2 = sum_squares(t, finite, NULL);
        stats->carried2 += carried2 < NB_LEAST_CARRIED ? 0 : carried2;
    }
    return write_tile(t, bits, wide, exponent == INT32_MIN ? NB_EXPONENT_MIN : exponent, ef, err, scale, dst,
                      stats);
}

static size_t encode_tile(struct ref_tile *t, unsigned bits, enum nb_dtype type, const uint8_t *src,
                          const struct nb_ef *ef, int8_t *err, uint8_t *scale, uint8_t *dst,
                          struct nb_encode_stats *stats)
{
    load_tile(t, type, src);
    if (stats)
        for (unsigned i = 0; i < t->n; i++)
            stats->nonfinite += (nb_f32_bits(t->g[i]) & NB_F32_ABS) >= NB_F32_INF;
    add_error(t, ef, err, scale, stats);
    size_t length = encode_as(t, bits, type, ef, err, scale, dst, stats);
    if (!length) {
        if (stats)
            stats->fallback++;
        if (bits == 4)
            length = encode_as(t, 8, type, ef, err, scale, dst, stats);
    }
    if (!length) {
        nb_put32(dst, NB_TILE_RAW);
        memcpy(dst + NB_TILE_HEADER, src, t->n * nb_dtype_size(type));
        for (unsigned j = 0; ef && j < t->groups; j++)
            if (!t->idle[j]) {
                memset(err + 32 * j, 0, NB_GROUP);
                scale[j] = 0;
            }
        return NB_TILE_HEADER + t->n * nb_dtype_size(type);
    }
    /* A tile of zeros is a header. */
    bool zero = dst[1] == 0;
    for (size_t i = NB_TILE_HEADER; i < length; i++)
        zero = zero && !dst[i];
    if (zero) {
        nb_put32(dst, NB_TILE_ZERO);
        length = NB_TILE_HEADER;
    }
    return length;
}

static size_t ref_encode(const struct nb_span_ops *self, unsigned bits, enum nb_dtype type,
                         const uint8_t *src, size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                         struct nb_encode_stats *stats)
{
    static _Thread_local struct ref_tile tile;
    struct nb_span span = nb_span_cut(n, first);
    (void)self;
    size_t size = nb_dtype_size(type), done = 0;
    uint8_t *start = dst;

    dst += nb_partial_encode(type, src, span.head, first, ef, dst, stats);
    src += span.head * size;
    first += span.head;
    while (done < span.groups) {
        uint64_t group = first / NB_GROUP;
        tile.measure = stats && nb_measured(stats, group);
        tile.groups = nb_tile_groups(group, span.groups - done);
        tile.group0 = (unsigned)(group % NB_TILE_GROUPS);
        tile.n = tile.groups * NB_GROUP;
        dst += encode_tile(&tile, bits, type, src, ef, ef ? ef->err + first : NULL,
                           ef ? ef->scale + group : NULL, dst, stats);
        done += tile.groups;
        src += tile.n * size;
        first += tile.n;
    }
    dst += nb_partial_encode(type, src, span.tail, first, ef, dst, stats);
    return (size_t)(dst - start);
}

/* ---- the variant ----------------------------------------------------------------------------------- */

const struct nb_variant_ops reference_variant = {
    .span = {ref_encode, reference_decode, reference_reduce, NULL},
    .ulp = &reference_ulp,
    .stripes = nb_stripes_portable,
};

bool variant_available(int variant)
{
    return variant == VARIANT_REFERENCE || nb_codec_available((enum nb_variant)variant);
}

int variant_select(int variant)
{
    if (variant != VARIANT_REFERENCE)
        return nb_codec_select((enum nb_variant)variant);
    nb_variant_use(&reference_variant);
    return 0;
}

bool next_variant(int *variant)
{
    while (*variant < NB_VARIANT_COUNT && !variant_available(*variant))
        ++*variant;
    if (*variant == NB_VARIANT_COUNT)
        return false;
    if (variant_select(*variant))
        abort();
    return true;
}

const char *variant_name(int variant)
{
    return variant == VARIANT_REFERENCE ? "reference" : nb_variant_name((enum nb_variant)variant);
}
