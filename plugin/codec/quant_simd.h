/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tile operations for SIMD, over a few primitives that quant_avx2.c, quant_avx512.c and quant_neon.c define
 * before they include this. A group is in 2 * NB_K vectors of NB_W lanes, its even values before its odd
 * ones, because 16-bit values and nibbles come apart that way without shuffles. Per-group numbers (maximum,
 * scale code, reciprocal) are computed for NB_W groups at a time.
 *
 *   vf, vi, vm             float lanes, integer lanes, a mask of lanes
 *   group_load/_store      32 values of a type from/to memory; store rounds, and makes NaN canonical if asked
 *   bytes_load/_store      32 int8, widened to float / from integer lanes that are in range
 *   bytes_squares          squares of 32 int8 in lanes that add up to them; -128 may count as 127
 *   errors_load, _add      32 int8 times a unit, which is 0 or at least 2^-102; added where that product is exact
 *   vf_muladd(a, b, c)     a * b + c, rounded once: where the product is exact, and in estimates
 *   vf_residual(y, q, s)   y - q * s, where q * s is exact
 *   nibbles_load/_store    16 bytes of codes; load multiplies by a signed step and never gives -0
 *   values_have_zero       whether NB_W groups in memory hold a zero, of either sign
 *   vgroup_large           number of magnitudes of at least a threshold; 32 unless the group is thin
 *   hadamard               the unnormalised transform, stages 1, 16, 8, 4, 2
 *   across_max_s/_u/_add   lane g of the result is the (signed, unsigned) maximum or sum of lanes of m[g]
 */
#include "codec/tile.h"

NB_GROUP_IS_32("vectors of a group: 2 * NB_K of NB_W lanes, masks of a bit a value");

#define NB_AHEAD NB_TILE /* values by which memory is prefetched */

/* Loop over the vectors of a group. */
#define NB_EACH_VECTOR(k) \
    NB_UNROLL \
    for (unsigned k = 0; k < 2 * NB_K; k++)

/* Copies for a last batch that is not full. */
struct nb_padded {
    uint8_t src[4 * NB_GROUP * NB_W];
    int8_t err[NB_GROUP * NB_W];
    uint8_t err_scale[NB_W], idle[NB_W];
    uint8_t scales[NB_W], codes[NB_GROUP * NB_W];
};

/* Put an even-odd group into order. */
NB_FN void nb_s_in_order(const float *y, float *x)
{
    for (unsigned i = 0; i < NB_GROUP; i++)
        x[i] = y[nb_place(true, i)];
}

/* Squares of a group, summed at the distances 1 and 16: the first two steps of nb_sum_group. */
NB_FN vi nb_s_squares(const struct vgroup *x)
{
    vf s[2 * NB_K];
    NB_EACH_VECTOR(k)
    s[k] = vf_mul(x->v[k], x->v[k]);
    NB_UNROLL
    for (unsigned k = 0; k < NB_K; k++)
        s[k] = vf_add(s[k], s[k + NB_K]);
    return vi_cast(NB_K == 2 ? vf_add(s[0], s[NB_K - 1]) : s[0]);
}

#include "codec/quant_simd_decode.h"
#include "codec/quant_simd_encode.h"
#ifdef NB_HAVE_LANES
#include "codec/quant_lanes_survey.h"
/* the second half follows the first */
#include "codec/quant_lanes_quantize.h"
#endif

/* ---- Halves of encoding ------------------------------------------------------------------------------- */

NB_FN enum nb_survey nb_survey(enum nb_dtype type, bool int4, bool feedback, const struct nb_tile_job *job,
                               struct nb_tile_work *work)
{
#ifdef NB_HAVE_LANES
    return nb_t_survey_tile(type, int4, feedback, job, work, job->measure);
#else
    return nb_s_survey_tile(type, int4, feedback, job, work, job->measure);
#endif
}

#ifdef NB_HAVE_LANES
/* Quantize a tile that went through nb_tile_survey. Such tiles are rare, so one function serves all cases. */
static NB_TARGET __attribute__((noinline)) float nb_quantize_careful(const struct nb_tile_job *job,
                                                                     struct nb_tile_work *work,
                                                                     uint8_t *scales, uint8_t *domains,
                                                                     uint8_t *codes,
                                                                     struct nb_encode_stats *stats)
{
    return nb_s_quantize_tile(job->int4, job->err != NULL, job->measure, job, work, scales, domains, codes,
                              stats);
}
#endif

NB_FN float nb_quantize(bool int4, bool feedback, const struct nb_tile_job *job, struct nb_tile_work *work,
                        uint8_t *scales, uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats)
{
#ifdef NB_HAVE_LANES
    if (!work->lanes)
        return nb_quantize_careful(job, work, scales, domains, codes, stats);
    return job->measure ? nb_t_quantize_tile(int4, feedback, true, job, work, scales, domains, codes, stats)
                        : nb_t_quantize_tile(int4, feedback, false, job, work, scales, domains, codes, stats);
#else
    return job->measure ? nb_s_quantize_tile(int4, feedback, true, job, work, scales, domains, codes, stats)
                        : nb_s_quantize_tile(int4, feedback, false, job, work, scales, domains, codes, stats);
#endif
}

/* ---- Operations ------------------------------------------------------------------------------------- */

#define NB_BY_TYPE(type, call) \
    do { \
        switch (type) { \
        case NB_F32: call(NB_F32); break; \
        case NB_BF16: call(NB_BF16); break; \
        default: call(NB_F16); break; \
        } \
    } while (0)

NB_OP enum nb_survey nb_op_survey(const struct nb_tile_job *job, struct nb_tile_work *work)
{
    enum nb_survey result = NB_SURVEY_CAREFUL;
#define CALL(t) \
    if (job->int4) \
        result = job->err ? nb_survey(t, true, true, job, work) : nb_survey(t, true, false, job, work); \
    else \
        result = job->err ? nb_survey(t, false, true, job, work) : nb_survey(t, false, false, job, work)
    NB_BY_TYPE(job->type, CALL);
#undef CALL
    return result;
}

NB_OP float nb_op_quantize(const struct nb_tile_job *job, struct nb_tile_work *work, uint8_t *scales,
                           uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats)
{
    if (job->int4)
        return job->err ? nb_quantize(true, true, job, work, scales, domains, codes, stats)
                        : nb_quantize(true, false, job, work, scales, domains, codes, stats);
    return job->err ? nb_quantize(false, true, job, work, scales, domains, codes, stats)
                    : nb_quantize(false, false, job, work, scales, domains, codes, stats);
}

NB_OP void nb_op_decode(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own, uint8_t *dst)
{
    bool int4 = view->kind == NB_TILE_INT4 || view->kind == NB_TILE_INT4_WIDE;
#define CALL(t) \
    if (int4 && own) \
        nb_s_decode(t, true, true, view, own, dst); \
    else if (int4) \
        nb_s_decode(t, true, false, view, own, dst); \
    else \
        nb_s_decode(t, false, own != NULL, view, own, dst)
    NB_BY_TYPE(type, CALL);
#undef CALL
}

NB_OP void nb_op_add(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                     uint8_t *any)
{
    struct vgroup x;
    float step[NB_TILE_GROUPS] __attribute__((aligned(64)));
    if (view->kind == NB_TILE_INT4 || view->kind == NB_TILE_INT4_WIDE) {
        float *const sums[2] = {plain, coeff};
        nb_s_steps(true, view, 1.0f, step);
        for (unsigned j = 0; j < view->groups; j++) {
            unsigned transform = view->domain[j / 8] >> j % 8 & 1u;
            __builtin_prefetch(view->code + 16 * j + NB_TILE * 9 / 16); /* about the next record */
            x = nibbles_load(view->code + 16 * j, step[j]);
            nb_s_accumulate(sums[transform] + NB_GROUP * j, &x);
            any[j] |= (uint8_t)transform;
        }
        return;
    }
    if (view->kind == NB_TILE_INT8 || view->kind == NB_TILE_INT8_WIDE) {
        nb_s_steps(false, view, 1.0f, step);
        for (unsigned j = 0; j < view->groups; j++) {
            x = nb_s_int8(view, j, step[j]);
            nb_s_accumulate(plain + NB_GROUP * j, &x);
        }
        return;
    }
#define CALL(t) \
    for (unsigned j = 0; j < view->groups; j++) { \
        x = group_load(t, view->code + NB_GROUP * j * nb_value_bytes(t)); \
        nb_s_accumulate(plain + NB_GROUP * j, &x); \
    }
    NB_BY_TYPE(type, CALL);
#undef CALL
}

NB_OP void nb_op_inverse(float *plain, float *coeff, const uint8_t *any, unsigned groups)
{
    for (unsigned j = 0; j < groups; j++)
        if (any[j]) {
            struct vgroup x = vgroup_kept(coeff + NB_GROUP * j);
            nb_s_transform_back(&x);
            nb_s_accumulate(plain + NB_GROUP * j, &x);
        }
}

NB_FN void nb_s_store(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups,
                      uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    for (unsigned j = 0; j < groups; j++) {
        struct vgroup x = vgroup_kept(plain + NB_GROUP * j);
        if (own)
            nb_s_finish(type, true, &x, own + bytes * j, dst + bytes * j);
        else
            group_store(type, true, dst + bytes * j, &x);
    }
}

NB_OP void nb_op_store(enum nb_dtype type, const float *plain, const uint8_t *own, unsigned groups,
                       uint8_t *dst)
{
#define CALL(t) nb_s_store(t, plain, own, groups, dst)
    NB_BY_TYPE(type, CALL);
#undef CALL
}

const struct nb_tile_ops NB_TILE_OPS = {nb_op_survey, nb_op_quantize, nb_op_decode, nb_op_add, nb_op_inverse,
                                        nb_op_store,  NB_PACK6,       NB_UNPACK6,   true};
