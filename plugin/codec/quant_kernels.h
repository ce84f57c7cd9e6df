/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tile operations in plain C, written so that a compiler can vectorize the loops over a group. A variant's
 * source defines NB_TARGET (a function attribute, may be empty) before it includes this. It may replace any
 * of the nb_k_* functions by its own and define NB_HAVE_<piece>.
 */
#include "codec/tile.h"

NB_GROUP_IS_32("transform of 32 values in five stages, masks of a bit a value");

#define NB_FN NB_INLINE NB_TARGET
#define NB_OP static NB_TARGET

/* Keeps a loop of sixteen bytes rolled: GCC would unroll it before it looks for vectors, and then finds
 * poorer ones. */
#if defined(__GNUC__) && !defined(__clang__)
#define NB_ROLLED _Pragma("GCC unroll 1")
#else
#define NB_ROLLED
#endif

NB_FN void nb_k_load(enum nb_dtype type, const uint8_t *src, float *restrict x)
{
    if (type == NB_F32) {
        memcpy(x, src, 4 * NB_GROUP);
        return;
    }
    uint16_t raw[NB_GROUP];
    memcpy(raw, src, sizeof raw);
    for (unsigned i = 0; i < NB_GROUP; i++)
        x[i] = type == NB_BF16 ? nb_bf16_to_f32(raw[i]) : nb_f16_to_f32(raw[i]);
}

NB_FN void nb_k_round(enum nb_dtype type, const float *restrict x, uint8_t *dst)
{
    if (type == NB_F32) {
        uint32_t out[NB_GROUP];
        for (unsigned i = 0; i < NB_GROUP; i++)
            out[i] = x[i] == x[i] ? nb_f32_bits(x[i]) : NB_F32_NAN;
        memcpy(dst, out, sizeof out);
        return;
    }
    uint16_t out[NB_GROUP];
    for (unsigned i = 0; i < NB_GROUP; i++) {
        uint32_t u = nb_f32_bits(x[i]);
        if (type == NB_BF16)
            out[i] = x[i] == x[i] ? (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16) : 0x7fc0;
        else
            out[i] = nb_f32_to_f16(nb_canonical(x[i]));
    }
    memcpy(dst, out, sizeof out);
}

NB_FN void nb_k_hadamard(float *restrict v)
{
    float t[NB_GROUP];
    for (unsigned i = 0; i < NB_GROUP; i += 2) {
        t[i] = v[i] + v[i + 1];
        t[i + 1] = v[i] - v[i + 1];
    }
    for (unsigned i = 0; i < 8; i++) { /* two stages: 16 and 8 */
        const float a = t[i] + t[i + 16], b = t[i] - t[i + 16];
        const float c = t[i + 8] + t[i + 24], d = t[i + 8] - t[i + 24];
        v[i] = a + c;
        v[i + 8] = a - c;
        v[i + 16] = b + d;
        v[i + 24] = b - d;
    }
    for (unsigned b = 0; b < NB_GROUP; b += 8)
        for (unsigned i = b; i < b + 4; i++) {
            t[i] = v[i] + v[i + 4];
            t[i + 4] = v[i] - v[i + 4];
        }
    for (unsigned b = 0; b < NB_GROUP; b += 4)
        for (unsigned i = b; i < b + 2; i++) {
            v[i] = t[i] + t[i + 2];
            v[i + 2] = t[i] - t[i + 2];
        }
}

/* Return the bits of the largest magnitude, NaN above all. */
NB_FN uint32_t nb_k_max(const float *restrict x)
{
    uint32_t max = 0;
    for (unsigned i = 0; i < NB_GROUP; i++) {
        uint32_t a = nb_f32_bits(x[i]) & NB_F32_ABS;
        max = a > max ? a : max;
    }
    return max;
}

/* Return 1 when a value whose magnitude has these bits is not negative. */
NB_FN uint8_t nb_k_positive(const float *restrict x, uint32_t max)
{
    uint32_t positive = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        positive |= nb_f32_bits(x[i]) == max;
    return (uint8_t)positive;
}

/* Return the number of values of at least NB_SMALL times the maximum, 32 for a group that is not thin. */
NB_FN unsigned nb_k_large(const float *restrict x, uint32_t max)
{
    /* Without AVX2 a vector has no shift by the index. */
    static const uint32_t bit[NB_GROUP] = {
        1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
        1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
        1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
        1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    float threshold = nb_bits_f32(max) * NB_SMALL;
    uint32_t small = 0;
    for (unsigned i = 0; i < NB_GROUP; i++)
        small |= (0u - (uint32_t)(nb_bits_f32(nb_f32_bits(x[i]) & NB_F32_ABS) < threshold)) & bit[i];
    return nb_is_thin(small) ? NB_GROUP - (unsigned)__builtin_popcount(small) : NB_GROUP;
}

/* nb_group_has_outliers, mostly by loops that need no order. */
NB_FN bool nb_k_outliers(const float *restrict x, uint32_t max)
{
    const float threshold = nb_bits_f32(max) * NB_SMALL;
    float sums[8] = {0}, sum = 0;
    uint32_t counts[8] = {0}, small = 0;
    for (unsigned i = 0; i < NB_GROUP; i += 8)
        for (unsigned k = 0; k < 8; k++) {
            const uint32_t a = nb_f32_bits(x[i + k]) & NB_F32_ABS;
            const uint32_t counted = 0u - (uint32_t)((a >= NB_FLUSH_BITS) & (nb_bits_f32(a) < threshold));
            sums[k] += nb_bits_f32(a & counted);
            counts[k] -= counted;
        }
    for (unsigned k = 0; k < 8; k++) {
        sum += sums[k];
        small += counts[k];
    }
    const int found = nb_outliers_near(nb_bits_f32(max), small, sum);
    return found == NB_OUTLIERS_UNSURE ? nb_group_has_outliers(x) : found != 0;
}

/* Get the residuals of a group: codes times unit. */
NB_FN void nb_k_error(const int8_t *err, float unit, float *restrict e)
{
    int8_t raw[NB_GROUP];
    memcpy(raw, err, sizeof raw);
    for (unsigned i = 0; i < NB_GROUP; i++)
        e[i] = (float)raw[i] * unit;
}

/* ---- Encoding, first half ----------------------------------------------------------------------------- */

/* Return the sum of squares of a group. */
NB_FN float nb_k_squares(const float *restrict x, float weight)
{
    float s[NB_GROUP];
    for (unsigned i = 0; i < NB_GROUP; i++)
        s[i] = x[i] * x[i] * weight;
    return nb_sum_group(s);
}

/* Compute the factor of residuals, idle groups, and sums of squares for the statistics. Return false when the
 * sums are not finite, because of values that do not count. */
NB_FN bool nb_k_norms(enum nb_dtype type, const struct nb_tile_job *job, struct nb_tile_work *work)
{
    nb_work_begin(work);
    if (!job->err && !job->measure)
        return true;
    for (unsigned j = 0; j < job->groups; j++) {
        float g[NB_GROUP];
        nb_k_load(type, job->src + NB_GROUP * j * (type == NB_F32 ? 4 : 2), g);
        uint32_t any = 0, least = NB_F32_ABS;
        for (unsigned i = 0; i < NB_GROUP; i++) {
            const uint32_t a = nb_f32_bits(g[i]) & NB_F32_ABS;
            any |= a;
            least = a < least ? a : least;
        }
        work->idle[j] = !any;
        if (job->err && any && !least)
            nb_group_zeros(type, job, j);
        work->own2[j] = nb_k_squares(g, 1);
        work->error2[j] = 0;
        if (job->err && any) {
            int32_t squares = 0;
            float unit = nb_error_unit(job->err_scale[j], 1);
            for (unsigned i = 0; i < NB_GROUP; i++)
                squares += job->err[NB_GROUP * j + i] * job->err[NB_GROUP * j + i];
            work->error2[j] = (float)squares * unit * unit;
        }
    }
    return nb_work_norms(work, job);
}

/* Get the values to code of group j: own values plus residuals. Return whether an own value is zero. */
NB_FN bool nb_k_values(enum nb_dtype type, const struct nb_tile_job *job, const struct nb_tile_work *work,
                       unsigned j, bool feedback, float *restrict h)
{
    uint32_t least = NB_F32_ABS;

    nb_k_load(type, job->src + NB_GROUP * j * (type == NB_F32 ? 4 : 2), h);
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const uint32_t a = nb_f32_bits(h[i]) & NB_F32_ABS;
        least = a < least ? a : least;
    }
    if (feedback && !work->idle[j]) {
        float e[NB_GROUP];
        nb_k_error(job->err + NB_GROUP * j, nb_error_unit(job->err_scale[j], work->factor), e);
        for (unsigned i = 0; i < NB_GROUP; i++)
            h[i] += e[i];
    }
    return !least;
}

NB_FN enum nb_survey nb_k_survey(enum nb_dtype type, bool int4, bool feedback, const struct nb_tile_job *job,
                                 struct nb_tile_work *work)
{
    uint32_t tile_max = 0, tile_min = NB_F32_INF;

    memset(work->outliers, 0, sizeof work->outliers);
    for (unsigned j = 0; j < job->groups; j++) {
        float *h = work->y[j][0], *y = work->y[j][1];
        const bool zero = nb_k_values(type, job, work, j, feedback, h);
        uint32_t max = nb_k_max(h);
        if (max >= NB_ESCAPE_BITS)
            return NB_SURVEY_CAREFUL;
        unsigned large = nb_k_large(h, max);
        if (NB_GROUP - large >= NB_OUTLIER_MEMBERS && nb_k_outliers(h, max)) {
            work->outliers[j / 8] |= (uint8_t)(1 << j % 8);
            continue;
        }
        work->transform[j] = 0;
        const uint32_t top = max;
        if (int4)
            max = nb_f32_bits(nb_group_plain_max(h, false, large < NB_GROUP, nb_bits_f32(max)));
        if (int4 && !zero) {
            memcpy(y, h, sizeof work->y[j][0]);
            nb_k_hadamard(y);
            uint32_t max_y = nb_k_max(y);
            float scaled = nb_bits_f32(max_y) * 0.125f;
            if (nb_transform_better(nb_bits_f32(max), scaled, large)) {
                work->transform[j] = 1;
                work->positive[j] = nb_k_positive(y, max_y);
                max = nb_f32_bits(scaled);
            }
        }
        if (!work->transform[j])
            work->positive[j] = nb_k_positive(h, top);
        work->max[j] = max;
        tile_max = max > tile_max ? max : tile_max;
        if (max >= NB_FLUSH_BITS)
            tile_min = max < tile_min ? max : tile_min;
    }
    if (nb_work_has_outliers(work))
        return NB_SURVEY_OUTLIERS;
    return nb_work_range(work, tile_max, tile_min, int4);
}

/* ---- Encoding, second half ---------------------------------------------------------------------------- */

NB_FN void nb_k_store_error(const float *restrict r, int8_t *err, uint8_t *scale)
{
    uint32_t max = nb_k_max(r);
    int8_t out[NB_GROUP];
    if (max < NB_FLUSH_BITS) {
        memset(err, 0, NB_GROUP);
        *scale = 0;
        return;
    }
    max += 0x10000; /* 127.5/64 and more belong to the next power of two: 127 is the most */
    float inverse = nb_pow2(133 - (int)(max >> 23));
    *scale = (uint8_t)((max >> 23) - 6);
    for (unsigned i = 0; i < NB_GROUP; i++)
        out[i] = (int8_t)(int)nb_rint(r[i] * inverse);
    memcpy(err, out, sizeof out);
}

NB_FN float nb_k_quantize(bool int4, bool feedback, const struct nb_tile_job *job, struct nb_tile_work *work,
                          uint8_t *scales, uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats)
{
    float noise[NB_TILE_GROUPS] = {0};
    const float tile_unit = nb_pow2(work->exponent);

    for (unsigned j = 0; j < job->groups; j++) {
        float step = 0, inverse = 0, q[NB_GROUP], r[NB_GROUP];
        unsigned code = 0;
        bool transform = work->transform[j], negate = int4 && work->positive[j];

        if (work->max[j] >= NB_FLUSH_BITS)
            code = work->wide ? nb_scale_code_wide(work->max[j], work->exponent, !int4)
                              : nb_scale_code(work->max[j], work->exponent, !int4);
        if (code) {
            step = nb_scale_table[work->wide][code] * tile_unit;
            if (!int4)
                step = step * work->fine;
            else if (!transform)
                step = step * 0.125f;
            if (negate) /* the extreme value becomes -8 */
                step = -step;
            inverse = 1.0f / step;
        } else {
            if (stats && work->max[j])
                stats->flushed++;
            transform = false;
        }
        const float *restrict y = work->y[j][transform];
        const float low = int4 ? -8.0f : -127.0f, high = int4 ? 7.0f : 127.0f;
        for (unsigned i = 0; i < NB_GROUP; i++) {
            float x = nb_rint(y[i] * inverse);
            x = x < low ? low : x;
            q[i] = x > high ? high : x;
        }
        scales[j] = (uint8_t)(code | (code && negate ? 0x80 : 0));
        if (int4) {
            uint8_t out[NB_GROUP / 2];
            for (unsigned i = 0; i < NB_GROUP / 2; i++)
                out[i] = (uint8_t)(((int)q[2 * i] & 15) | ((int)q[2 * i + 1] & 15) << 4);
            memcpy(codes + 16 * j, out, sizeof out);
            domains[j / 8] |= (uint8_t)(transform << j % 8);
        } else {
            int8_t out[NB_GROUP];
            for (unsigned i = 0; i < NB_GROUP; i++)
                out[i] = (int8_t)(int)q[i];
            memcpy(codes + 32 * j, out, sizeof out);
        }
        if (!feedback && !job->measure)
            continue;
        for (unsigned i = 0; i < NB_GROUP; i++) {
            float carried = q[i] * step;
            r[i] = y[i] - carried;
        }
        if (job->measure)
            noise[j] = nb_k_squares(r, transform ? 0.03125f : 1.0f);
        if (!feedback || work->idle[j])
            continue;
        if (transform) {
            nb_k_hadamard(r);
            for (unsigned i = 0; i < NB_GROUP; i++)
                r[i] *= 0.03125f;
        }
        if (job->mode == NB_EF_EMA) {
            float e[NB_GROUP], rest = 1.0f - job->beta;
            nb_k_error(job->err + NB_GROUP * j, nb_error_unit(job->err_scale[j], work->factor), e);
            for (unsigned i = 0; i < NB_GROUP; i++) {
                float kept = job->beta * e[i], added = rest * r[i];
                r[i] = kept + added;
            }
        }
        nb_k_store_error(r, job->err + NB_GROUP * j, job->err_scale + j);
    }
    return nb_sum_groups(noise);
}

/* ---- Decoding ------------------------------------------------------------------------------------- */

/* Get the products of code and step of group j, never -0. Return whether they are coefficients. */
NB_FN bool nb_k_dequantize(const struct nb_tile_view *view, unsigned j, float *restrict x)
{
    bool wide = view->kind == NB_TILE_INT4_WIDE || view->kind == NB_TILE_INT8_WIDE;
    float step = nb_scale_value(wide, view->scale[j] & 127, view->unit);

    if (view->kind == NB_TILE_INT8 || view->kind == NB_TILE_INT8_WIDE) {
        int8_t raw[NB_GROUP];
        memcpy(raw, view->code + 32 * j, sizeof raw);
        step *= view->fine;
        for (unsigned i = 0; i < NB_GROUP; i++)
            x[i] = 0.0f + (float)raw[i] * step;
        return false;
    }
    bool transform = view->domain[j / 8] >> j % 8 & 1;
    uint8_t raw[NB_GROUP / 2];
    memcpy(raw, view->code + 16 * j, sizeof raw);
    if (!transform)
        step *= 0.125f;
    if (view->scale[j] & 0x80)
        step = -step;
    NB_ROLLED
    for (unsigned i = 0; i < NB_GROUP / 2; i++) {
        const int32_t even = (int32_t)((uint32_t)raw[i] << 28) >> 28;
        const int32_t odd = (int32_t)((uint32_t)raw[i] << 24) >> 28;
        x[2 * i] = 0.0f + (float)even * step;
        x[2 * i + 1] = 0.0f + (float)odd * step;
    }
    return transform;
}

NB_FN void nb_k_decode(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own, uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * (type == NB_F32 ? 4 : 2);
    for (unsigned j = 0; j < view->groups; j++) {
        float x[NB_GROUP], o[NB_GROUP];
        if (nb_k_dequantize(view, j, x)) {
            nb_k_hadamard(x);
            for (unsigned i = 0; i < NB_GROUP; i++)
                x[i] *= 0.03125f;
        }
        if (own) {
            nb_k_load(type, own + bytes * j, o);
            for (unsigned i = 0; i < NB_GROUP; i++)
                x[i] += o[i];
        }
        nb_k_round(type, x, dst + bytes * j);
    }
}

NB_FN void nb_k_add(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                    uint8_t *any)
{
    for (unsigned j = 0; j < view->groups; j++) {
        float x[NB_GROUP], *sum = plain + NB_GROUP * j;
        if (view->kind == NB_TILE_RAW) {
            nb_k_load(type, view->code + NB_GROUP * j * (type == NB_F32 ? 4 : 2), x);
        } else if (nb_k_dequantize(view, j, x)) {
            sum = coeff + NB_GROUP * j;
            any[j] = 1;
        }
        for (unsigned i = 0; i < NB_GROUP; i++)
            sum[i] += x[i];
    }
}

NB_FN void nb_k_inverse(float *plain, float *coeff, const uint8_t *any, unsigned groups)
{
    for (unsigned j = 0; j < groups; j++)
        if (any[j]) {
            nb_k_hadamard(coeff + NB_GROUP * j);
            for (unsigned i = NB_GROUP * j; i < NB_GROUP * j + NB_GROUP; i++)
                plain[i] += coeff[i] * 0.03125f;
        }
}

NB_FN void nb_k_store(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups,
                      uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * (type == NB_F32 ? 4 : 2);
    for (unsigned j = 0; j < groups; j++) {
        float x[NB_GROUP], o[NB_GROUP];
        memcpy(x, plain + NB_GROUP * j, sizeof x);
        if (own) {
            nb_k_load(type, own + bytes * j, o);
            for (unsigned i = 0; i < NB_GROUP; i++)
                x[i] += o[i];
        }
        nb_k_round(type, x, dst + bytes * j);
    }
}

/* ---- Instances for each type ------------------------------------------------------------------------ */

#define NB_BY_TYPE(type, call) \
    switch (type) { \
    case NB_F32: call(NB_F32); break; \
    case NB_BF16: call(NB_BF16); break; \
    default: call(NB_F16); break; \
    }

NB_OP enum nb_survey nb_op_survey(const struct nb_tile_job *job, struct nb_tile_work *work)
{
#define CALL(t) \
    do { \
        if (!nb_k_norms(t, job, work)) \
            return NB_SURVEY_CAREFUL; \
        if (job->int4) \
            return job->err ? nb_k_survey(t, true, true, job, work) \
                            : nb_k_survey(t, true, false, job, work); \
        return job->err ? nb_k_survey(t, false, true, job, work) : nb_k_survey(t, false, false, job, work); \
    } while (0)
    NB_BY_TYPE(job->type, CALL)
#undef CALL
    return NB_SURVEY_CAREFUL;
}

NB_OP float nb_op_quantize(const struct nb_tile_job *job, struct nb_tile_work *work, uint8_t *scales,
                           uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats)
{
    if (job->int4)
        return job->err ? nb_k_quantize(true, true, job, work, scales, domains, codes, stats)
                        : nb_k_quantize(true, false, job, work, scales, domains, codes, stats);
    return job->err ? nb_k_quantize(false, true, job, work, scales, domains, codes, stats)
                    : nb_k_quantize(false, false, job, work, scales, domains, codes, stats);
}

NB_OP void nb_op_decode(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own,
                        uint8_t *dst){
#define CALL(t) nb_k_decode(t, view, own, dst)
    NB_BY_TYPE(type, CALL)
#undef CALL
}

NB_OP void nb_op_add(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                     uint8_t *any){
#define CALL(t) nb_k_add(t, view, plain, coeff, any)
    NB_BY_TYPE(type, CALL)
#undef CALL
}

NB_OP void nb_op_inverse(float *plain, float *coeff, const uint8_t *any, unsigned groups)
{
    nb_k_inverse(plain, coeff, any, groups);
}

NB_OP void nb_op_store(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups,
                       uint8_t *dst)
{
#define CALL(t) nb_k_store(t, plain, own, groups, dst)
    NB_BY_TYPE(type, CALL)
#undef CALL
}

const struct nb_tile_ops NB_TILE_OPS = {nb_op_survey, nb_op_quantize, nb_op_decode, nb_op_add, nb_op_inverse,
                                        nb_op_store,  nb_pack6,       nb_unpack6,   false};
