/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tile operations for SIMD, over a few primitives that quant_avx2.c and quant_avx512.c define before they
 * include this. A group is in 2 * NB_K vectors of NB_W lanes, its even values before its odd ones, because
 * that is how 16-bit values and nibbles come apart without shuffles. What there is one of per group (maximum,
 * scale code, reciprocal) is computed for NB_W groups at a time.
 *
 *   vf, vi, vm             float lanes, integer lanes, a mask of lanes
 *   group_load/_store      32 values of a type from/to memory; store rounds, and makes NaN canonical if asked
 *   bytes_load/_store      32 int8, widened to float / from integer lanes that are in range
 *   errors_load            32 int8 times a unit, which is 0 or at least 2^-102
 *   vf_residual(y, q, s)   y - q * s, where q * s is exact
 *   nibbles_load/_store    16 bytes of codes; load multiplies by a signed step and gives no -0
 *   hadamard               the unnormalised transform, stages 1, 16, 8, 4, 2
 *   across_max_s/_u        lane g of the result is the (signed, unsigned) maximum of the lanes of m[g]
 */
#include "codec/ops.h"

#define NB_AHEAD NB_TILE /* values by which memory is prefetched */

/* Loop over the vectors of a group, unrolled so that they stay in registers. */
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
#define NB_EACH_VECTOR(k) \
    NB_UNROLL             \
    for (unsigned k = 0; k < 2 * NB_K; k++)

/* Copies for a last batch that is not full. */
struct nb_padded {
    uint8_t src[4 * NB_GROUP * NB_W];
    int8_t err[NB_GROUP * NB_W];
    uint8_t err_scale[NB_W], idle[NB_W];
    uint8_t scales[NB_W], codes[NB_GROUP * NB_W];
};

NB_FN unsigned nb_value_bytes(enum nb_dtype type)
{
    return type == NB_F32 ? 4 : 2;
}

/* Put a group that is kept even-odd into order. */
NB_FN void nb_s_in_order(const float *y, float *x)
{
    for (unsigned i = 0; i < NB_GROUP; i++)
        x[i] = y[nb_place(true, i)];
}

/* Sums of squares in chains kept even-odd, as nb_sum_lanes does it. */
NB_FN float nb_s_sum_lanes(float chain[8][NB_GROUP])
{
    float lane[NB_GROUP] __attribute__((aligned(64))), ordered[NB_GROUP];
    NB_EACH_VECTOR (k) {
        vf c[8];
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++)
            c[i] = vf_load(chain[i] + NB_W * k);
        NB_UNROLL
        for (unsigned i = 0; i < 4; i++)
            c[i] = vf_add(c[i], c[i + 4]);
        vf_store(lane + NB_W * k, vf_add(vf_add(c[0], c[2]), vf_add(c[1], c[3])));
    }
    nb_s_in_order(lane, ordered);
    for (unsigned half = NB_GROUP / 2; half; half /= 2)
        for (unsigned l = 0; l < half; l++)
            ordered[l] += ordered[l + half];
    return ordered[0];
}

NB_FN void nb_s_add_squares(float *lanes, const struct vgroup *x)
{
    NB_EACH_VECTOR (k)
        vf_store(lanes + NB_W * k, vf_add(vf_load(lanes + NB_W * k), vf_mul(x->v[k], x->v[k])));
}

#include "codec/quant_simd_decode.h"
#include "codec/quant_simd_encode.h"

/* ---- Operations ------------------------------------------------------------------------------------- */

#define NB_BY_TYPE(type, call) \
    do {                       \
        switch (type) {        \
        case NB_F32:           \
            call(NB_F32);      \
            break;             \
        case NB_BF16:          \
            call(NB_BF16);     \
            break;             \
        default:               \
            call(NB_F16);      \
            break;             \
        }                      \
    } while (0)

NB_OP int nb_op_survey(const struct nb_tile_job *job, struct nb_tile_work *work, bool stats)
{
    int result = 1;
#define CALL(t)                                                                         \
    result = job->int4  ? job->err ? nb_s_survey_tile(t, true, true, job, work, stats)  \
                                   : nb_s_survey_tile(t, true, false, job, work, stats) \
              : job->err ? nb_s_survey_tile(t, false, true, job, work, stats)           \
                        : nb_s_survey_tile(t, false, false, job, work, stats)
    NB_BY_TYPE(job->type, CALL);
#undef CALL
    return result;
}

NB_OP float nb_op_quantize(const struct nb_tile_job *job, struct nb_tile_work *work, uint8_t *scales,
                           uint8_t *domains, uint8_t *codes, struct nb_encode_stats *stats)
{
    if (!job->int4)
        return nb_s_quantize_tile(false, job->err != NULL, stats != NULL, job, work, scales, domains, codes,
                                  stats);
    if (job->err)
        return stats ? nb_s_quantize_tile(true, true, true, job, work, scales, domains, codes, stats)
                     : nb_s_quantize_tile(true, true, false, job, work, scales, domains, codes, NULL);
    return stats ? nb_s_quantize_tile(true, false, true, job, work, scales, domains, codes, stats)
                 : nb_s_quantize_tile(true, false, false, job, work, scales, domains, codes, NULL);
}

NB_OP void nb_op_decode(enum nb_dtype type, const struct nb_tile_view *view, const uint8_t *own, uint8_t *dst)
{
    bool int4 = view->kind == NB_TILE_INT4 || view->kind == NB_TILE_INT4_WIDE;
#define CALL(t)                                      \
    if (int4 && own)                                 \
        nb_s_decode(t, true, true, view, own, dst);  \
    else if (int4)                                   \
        nb_s_decode(t, true, false, view, own, dst); \
    else                                             \
        nb_s_decode(t, false, own != NULL, view, own, dst)
    NB_BY_TYPE(type, CALL);
#undef CALL
}

NB_OP void nb_op_add(enum nb_dtype type, const struct nb_tile_view *view, float *plain, float *coeff,
                     uint8_t *any)
{
    bool wide = view->kind == NB_TILE_INT4_WIDE || view->kind == NB_TILE_INT8_WIDE;
    struct vgroup x;
    if (view->kind == NB_TILE_INT4 || view->kind == NB_TILE_INT4_WIDE) {
        float *const sums[2] = {plain, coeff};
        for (unsigned j = 0; j < view->groups; j++) {
            unsigned transform = view->domain[j / 8] >> j % 8 & 1u;
            __builtin_prefetch(view->code + 16 * j + NB_TILE * 9 / 16); /* about the next record */
            x = nb_s_int4(wide, view, j, transform);
            nb_s_accumulate(sums[transform] + NB_GROUP * j, &x);
            any[j] |= (uint8_t)transform;
        }
        return;
    }
    if (view->kind == NB_TILE_INT8 || view->kind == NB_TILE_INT8_WIDE) {
        for (unsigned j = 0; j < view->groups; j++) {
            x = nb_s_int8(wide, view, j);
            nb_s_accumulate(plain + NB_GROUP * j, &x);
        }
        return;
    }
#define CALL(t)                                                           \
    for (unsigned j = 0; j < view->groups; j++) {                         \
        x = group_load(t, view->code + NB_GROUP * j * nb_value_bytes(t)); \
        nb_s_accumulate(plain + NB_GROUP * j, &x);                        \
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

static const struct nb_tile_ops nb_tile_operations = {nb_op_survey,  nb_op_quantize, nb_op_decode, nb_op_add,
                                                      nb_op_inverse, nb_op_store,    true};
