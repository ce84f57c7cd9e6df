/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantizing codecs for aarch64, whose processors all have NEON: primitives for quant_simd.h. Two
 * registers of four lanes make a vector of eight. Per-group numbers are therefore computed for eight groups
 * at a time, and a group, sixteen values of a kind in two such vectors, lies as it does with AVX2.
 */
#include "codec/tile.h"

#if defined(NB_NEON)

#include <arm_neon.h>

NB_GROUP_IS_32("a group in eight registers of 4 lanes");

#define NB_TARGET
#define NB_FN NB_INLINE NB_TARGET
#define NB_OP static NB_TARGET
#define NB_W 8
#define NB_K 2

typedef struct {
    float32x4_t a, b;
} vf;
typedef struct {
    int32x4_t a, b;
} vi;
typedef vi vm; /* all bits of a lane, or 0 */

/* v[0], v[1]: values 0, 2 ... 14 and 16 ... 30. v[2], v[3]: the odd ones. */
struct vgroup {
    vf v[2 * NB_K];
};

/* clang-format off */
#define U(x) vreinterpretq_u32_s32(x)
#define S(x) vreinterpretq_s32_u32(x)
NB_FN vf vf_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
NB_FN void vf_store(float *p, vf x) { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); }
NB_FN vf vf_set1(float f) { return (vf){vdupq_n_f32(f), vdupq_n_f32(f)}; }
NB_FN vf vf_add(vf x, vf y) { return (vf){vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
NB_FN vf vf_sub(vf x, vf y) { return (vf){vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
NB_FN vf vf_mul(vf x, vf y) { return (vf){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
NB_FN vf vf_muladd(vf x, vf y, vf z) { return (vf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
NB_FN vf vf_residual(vf y, vf q, vf s) { return (vf){vfmsq_f32(y.a, q.a, s.a), vfmsq_f32(y.b, q.b, s.b)}; }
NB_FN vf vf_div(vf x, vf y) { return (vf){vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
NB_FN vf vf_sqrt(vf x) { return (vf){vsqrtq_f32(x.a), vsqrtq_f32(x.b)}; }
NB_FN vf vf_cast(vi x) { return (vf){vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b)}; }
NB_FN vf vf_from_int(vi x) { return (vf){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
NB_FN vi vi_load(const void *p) { return (vi){vld1q_s32(p), vld1q_s32((const int32_t *)p + 4)}; }
NB_FN void vi_store(void *p, vi x) { vst1q_s32(p, x.a); vst1q_s32((int32_t *)p + 4, x.b); }
NB_FN vi vi_set1(int i) { return (vi){vdupq_n_s32(i), vdupq_n_s32(i)}; }
NB_FN vi vi_cast(vf x) { return (vi){vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b)}; }
NB_FN vi vi_add(vi x, vi y) { return (vi){vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
NB_FN vi vi_sub(vi x, vi y) { return (vi){vsubq_s32(x.a, y.a), vsubq_s32(x.b, y.b)}; }
NB_FN vi vi_and(vi x, vi y) { return (vi){vandq_s32(x.a, y.a), vandq_s32(x.b, y.b)}; }
NB_FN vi vi_andnot(vi x, vi y) { return (vi){vbicq_s32(y.a, x.a), vbicq_s32(y.b, x.b)}; }
NB_FN vi vi_or(vi x, vi y) { return (vi){vorrq_s32(x.a, y.a), vorrq_s32(x.b, y.b)}; }
NB_FN vi vi_slli(vi x, int n) { return (vi){vshlq_s32(x.a, vdupq_n_s32(n)), vshlq_s32(x.b, vdupq_n_s32(n))}; }
NB_FN vi vi_sllv(vi x, vi n) { return (vi){vshlq_s32(x.a, n.a), vshlq_s32(x.b, n.b)}; }
NB_FN vi vi_srlv(vi x, vi n)
{
    return (vi){S(vshlq_u32(U(x.a), vnegq_s32(n.a))), S(vshlq_u32(U(x.b), vnegq_s32(n.b)))};
}
NB_FN vi vi_srli(vi x, int n) { return vi_srlv(x, vi_set1(n)); }
NB_FN vi vi_srai31(vi x) { return (vi){vshrq_n_s32(x.a, 31), vshrq_n_s32(x.b, 31)}; }
NB_FN vi vi_max_s(vi x, vi y) { return (vi){vmaxq_s32(x.a, y.a), vmaxq_s32(x.b, y.b)}; }
NB_FN vi vi_min_s(vi x, vi y) { return (vi){vminq_s32(x.a, y.a), vminq_s32(x.b, y.b)}; }
NB_FN vi vi_max_u(vi x, vi y) { return (vi){S(vmaxq_u32(U(x.a), U(y.a))), S(vmaxq_u32(U(x.b), U(y.b)))}; }
NB_FN vi vi_round(vf x) { return (vi){vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }
NB_FN vm vi_gt(vi x, vi y) { return (vm){S(vcgtq_s32(x.a, y.a)), S(vcgtq_s32(x.b, y.b))}; }
NB_FN vm vf_lt(vf x, vf y) { return (vm){S(vcltq_f32(x.a, y.a)), S(vcltq_f32(x.b, y.b))}; }
NB_FN vi vi_blend(vm m, vi x, vi y) { return (vi){vbslq_s32(U(m.a), y.a, x.a), vbslq_s32(U(m.b), y.b, x.b)}; }
NB_FN vm vm_blend(vm m, vm x, vm y) { return vi_blend(m, x, y); }
NB_FN vm vm_and(vm x, vm y) { return vi_and(x, y); }
/* clang-format on */

/* NEON lacks a gather, and one a group of a tile costs little. */
NB_FN vf vf_gather(const float *p, vi i)
{
    uint32_t at[NB_W];
    float x[NB_W];
    vi_store(at, i);
    for (unsigned g = 0; g < NB_W; g++)
        x[g] = p[at[g]];
    return vf_load(x);
}

NB_FN unsigned vm_bits(vm m)
{
    const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16(vuzp1q_u16(vreinterpretq_u16_s32(m.a), vreinterpretq_u16_s32(m.b)), bit));
}

NB_FN vm vm_from_bits(unsigned bits)
{
    const int32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128}, all = vdupq_n_s32((int)bits);
    return (vm){S(vtstq_s32(all, low)), S(vtstq_s32(all, high))};
}

NB_FN vi vi_from_bytes(const uint64_t *b)
{
    const uint16x8_t words = vmovl_u8(vcreate_u8(b[0]));
    return (vi){S(vmovl_u16(vget_low_u16(words))), S(vmovl_high_u16(words))};
}

NB_FN void vi_store_bytes(uint8_t *p, vi x)
{
    vst1_u8(p, vmovn_u16(vuzp1q_u16(vreinterpretq_u16_s32(x.a), vreinterpretq_u16_s32(x.b))));
}

NB_FN void vgroup_keep(float *p, const struct vgroup *x)
{
    for (unsigned k = 0; k < 4; k++)
        vf_store(p + 8 * k, x->v[k]);
}

NB_FN struct vgroup vgroup_kept(const float *p)
{
    return (struct vgroup){{vf_load(p), vf_load(p + 8), vf_load(p + 16), vf_load(p + 24)}};
}

NB_FN vi vgroup_max_s(const struct vgroup *x)
{
    return vi_max_s(vi_max_s(vi_cast(x->v[0]), vi_cast(x->v[1])),
                    vi_max_s(vi_cast(x->v[2]), vi_cast(x->v[3])));
}

NB_FN vi vgroup_max_u(const struct vgroup *x)
{
    return vi_max_u(vi_max_u(vi_cast(x->v[0]), vi_cast(x->v[1])),
                    vi_max_u(vi_cast(x->v[2]), vi_cast(x->v[3])));
}

/* Return the bits of the largest magnitude (without NaN). */
NB_FN vi vgroup_max_abs(const struct vgroup *x)
{
    vf m = {vabsq_f32(x->v[0].a), vabsq_f32(x->v[0].b)};
    for (unsigned k = 1; k < 4; k++)
        m = (vf){vmaxq_f32(m.a, vabsq_f32(x->v[k].a)), vmaxq_f32(m.b, vabsq_f32(x->v[k].b))};
    return vi_cast(m);
}

NB_FN bool vgroup_is_zero(const struct vgroup *x)
{
    const vi any =
        vi_or(vi_or(vi_cast(x->v[0]), vi_cast(x->v[1])), vi_or(vi_cast(x->v[2]), vi_cast(x->v[3])));
    return !vmaxvq_u32(vshlq_n_u32(U(vorrq_s32(any.a, any.b)), 1));
}

/* Return bytes of all bits or 0 for 16 magnitudes, by whether they are below t. */
NB_FN uint8x16_t below(const float *p, float32x4_t t)
{
    const uint32x4_t m[4] = {vcaltq_f32(vld1q_f32(p), t), vcaltq_f32(vld1q_f32(p + 4), t),
                             vcaltq_f32(vld1q_f32(p + 8), t), vcaltq_f32(vld1q_f32(p + 12), t)};
    const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(m[0]), vreinterpretq_u16_u32(m[1]));
    const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(m[2]), vreinterpretq_u16_u32(m[3]));
    return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

NB_FN bool values_have_zero(enum nb_dtype type, const uint8_t *src)
{
    if (type == NB_F32) {
        uint32x4_t least = vdupq_n_u32(UINT32_MAX);
        NB_UNROLL
        for (unsigned i = 0; i < 8 * NB_W; i++)
            least = vminq_u32(least, vshlq_n_u32(vreinterpretq_u32_u8(vld1q_u8(src + 16 * i)), 1));
        return vminvq_u32(least) == 0;
    }
    uint16x8_t least = vdupq_n_u16(UINT16_MAX);
    NB_UNROLL
    for (unsigned i = 0; i < 4 * NB_W; i++)
        least = vminq_u16(least, vshlq_n_u16(vreinterpretq_u16_u8(vld1q_u8(src + 16 * i)), 1));
    return vminvq_u16(least) == 0;
}

NB_FN unsigned vgroup_large(const float *p, float threshold)
{
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const float32x4_t t = vdupq_n_f32(threshold);
    uint8x16_t sums = vpaddq_u8(vandq_u8(below(p, t), bit), vandq_u8(below(p + 16, t), bit));
    sums = vpaddq_u8(sums, sums);
    sums = vpaddq_u8(sums, sums);
    const uint32_t small = vgetq_lane_u32(vreinterpretq_u32_u8(sums), 0); /* the even ones, the odd ones */
    /* nb_is_thin for this order */
    if ((small & small >> 16 & 0x3333) | (small & small >> 1 & 0x44444444))
        return NB_GROUP - (unsigned)__builtin_popcount(small);
    return NB_GROUP;
}

NB_FN struct vgroup group_load(enum nb_dtype type, const uint8_t *p)
{
    struct vgroup x;
    for (unsigned k = 0; k < 2; k++) {
        if (type == NB_BF16) {
            const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(p + 32 * k)),
                             b = vreinterpretq_u32_u8(vld1q_u8(p + 32 * k + 16));
            const uint32x4_t odd = vdupq_n_u32(0xffff0000u);
            x.v[k] =
                (vf){vreinterpretq_f32_u32(vshlq_n_u32(a, 16)), vreinterpretq_f32_u32(vshlq_n_u32(b, 16))};
            x.v[k + 2] =
                (vf){vreinterpretq_f32_u32(vandq_u32(a, odd)), vreinterpretq_f32_u32(vandq_u32(b, odd))};
        } else if (type == NB_F16) {
            const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(p + 32 * k)),
                             b = vreinterpretq_u16_u8(vld1q_u8(p + 32 * k + 16));
            const float16x8_t even = vreinterpretq_f16_u16(vuzp1q_u16(a, b)),
                              odd = vreinterpretq_f16_u16(vuzp2q_u16(a, b));
            x.v[k] = (vf){vcvt_f32_f16(vget_low_f16(even)), vcvt_high_f32_f16(even)};
            x.v[k + 2] = (vf){vcvt_f32_f16(vget_low_f16(odd)), vcvt_high_f32_f16(odd)};
        } else {
            const float32x4x2_t a = vld2q_f32((const float *)(const void *)(p + 64 * k)),
                                b = vld2q_f32((const float *)(const void *)(p + 64 * k + 32));
            x.v[k] = (vf){a.val[0], b.val[0]};
            x.v[k + 2] = (vf){a.val[1], b.val[1]};
        }
    }
    return x;
}

/* Add the rounding term, so that the upper half is x to nearest even. */
NB_FN uint32x4_t round_bf16(float32x4_t x, bool nan)
{
    const uint32x4_t u = vreinterpretq_u32_f32(x), odd = vtstq_u32(u, vdupq_n_u32(0x10000));
    const uint32x4_t r = vsubq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    return nan ? vbslq_u32(vceqq_f32(x, x), r, vdupq_n_u32(NB_F32_NAN)) : r;
}

NB_FN float32x4_t canonical(float32x4_t x, bool nan)
{
    return nan ? vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(NB_F32_NAN))) : x;
}

/* Convert eight floats to halves. */
NB_FN uint16x8_t round_f16(vf x, bool nan)
{
    const uint16x8_t h = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b));
    const uint16x8_t magnitude = vandq_u16(h, vdupq_n_u16(0x7fff)), infinity = vdupq_n_u16(0x7c00);
    return nan ? vbslq_u16(vcgtq_u16(magnitude, infinity), vdupq_n_u16(0x7e00), h) : h;
}

NB_FN void group_store(enum nb_dtype type, bool nan, uint8_t *p, const struct vgroup *x)
{
    for (unsigned k = 0; k < 2; k++) {
        const vf even = x->v[k], odd = x->v[k + 2];
        if (type == NB_BF16) {
            const uint32x4_t a = vsriq_n_u32(round_bf16(odd.a, nan), round_bf16(even.a, nan), 16),
                             b = vsriq_n_u32(round_bf16(odd.b, nan), round_bf16(even.b, nan), 16);
            vst1q_u8(p + 32 * k, vreinterpretq_u8_u32(a));
            vst1q_u8(p + 32 * k + 16, vreinterpretq_u8_u32(b));
        } else if (type == NB_F16) {
            const uint16x8_t e = round_f16(even, nan), o = round_f16(odd, nan);
            vst1q_u8(p + 32 * k, vreinterpretq_u8_u16(vzip1q_u16(e, o)));
            vst1q_u8(p + 32 * k + 16, vreinterpretq_u8_u16(vzip2q_u16(e, o)));
        } else {
            const float32x4x2_t a = {{canonical(even.a, nan), canonical(odd.a, nan)}},
                                b = {{canonical(even.b, nan), canonical(odd.b, nan)}};
            vst2q_f32((float *)(void *)(p + 64 * k), a);
            vst2q_f32((float *)(void *)(p + 64 * k + 32), b);
        }
    }
}

/* Bytes `from`, + every, + 2 every, + 3 every of b in the uppermost bits of four lanes. */
#define LANES(from, every) \
    ((uint8x16_t){255, 255, 255, (from), 255, 255, 255, (from) + (every), 255, 255, 255, \
                  (from) + 2 * (every), 255, 255, 255, (from) + 3 * (every)})
#define RAISE(b, from, every) vreinterpretq_s32_u8(vqtbl1q_u8(b, LANES(from, every)))

NB_FN struct vgroup bytes_load(const void *p)
{
    struct vgroup x;
    for (unsigned k = 0; k < 2; k++) {
        const uint8x16_t b = vld1q_u8((const uint8_t *)p + 16 * k);
        x.v[k] = (vf){vcvtq_n_f32_s32(RAISE(b, 0, 2), 24), vcvtq_n_f32_s32(RAISE(b, 8, 2), 24)};
        x.v[k + 2] = (vf){vcvtq_n_f32_s32(RAISE(b, 1, 2), 24), vcvtq_n_f32_s32(RAISE(b, 9, 2), 24)};
    }
    return x;
}

NB_FN vf bytes_squares(const void *p)
{
    const int8x16_t a = vld1q_s8(p), b = vld1q_s8((const int8_t *)p + 16);
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(a));
    const int16x8_t high = vmull_s8(vget_low_s8(b), vget_low_s8(b));
    return vf_from_int((vi){vpadalq_s16(vpaddlq_s16(low), vmull_high_s8(a, a)),
                            vpadalq_s16(vpaddlq_s16(high), vmull_high_s8(b, b))});
}

NB_FN struct vgroup errors_load(const void *p, float unit)
{
    struct vgroup x = bytes_load(p);
    const vf units = vf_set1(unit);
    for (unsigned k = 0; k < 4; k++)
        x.v[k] = vf_mul(x.v[k], units);
    return x;
}

NB_FN void errors_add(struct vgroup *x, const void *p, float unit)
{
    const struct vgroup codes = bytes_load(p);
    const vf units = vf_set1(unit);
    for (unsigned k = 0; k < 4; k++)
        x->v[k] = vf_muladd(codes.v[k], units, x->v[k]);
}

/* Narrow sixteen lanes to bytes. */
NB_FN uint8x16_t narrow(vi x, vi y)
{
    const int16x8_t low = vuzp1q_s16(vreinterpretq_s16_s32(x.a), vreinterpretq_s16_s32(x.b));
    const int16x8_t high = vuzp1q_s16(vreinterpretq_s16_s32(y.a), vreinterpretq_s16_s32(y.b));
    return vuzp1q_u8(vreinterpretq_u8_s16(low), vreinterpretq_u8_s16(high));
}

NB_FN void bytes_store(void *p, const vi *q)
{
    const uint8x16x2_t b = {{narrow(q[0], q[1]), narrow(q[2], q[3])}};
    vst2q_u8(p, b);
}

NB_FN void nibbles_store(uint8_t *p, const vi *q)
{
    vst1q_u8(p, vsliq_n_u8(narrow(q[0], q[1]), narrow(q[2], q[3]), 4));
}

NB_FN struct vgroup nibbles_load(const uint8_t *p, float step)
{
    struct vgroup x;
    const uint8x16_t codes = vld1q_u8(p), even = vshlq_n_u8(codes, 4),
                     odd = vandq_u8(codes, vdupq_n_u8(0xf0));
    const float32x4_t unit = vdupq_n_f32(step), zero = vdupq_n_f32(0);
#define VALUES(b, from) vfmaq_f32(zero, vcvtq_n_f32_s32(RAISE(b, from, 1), 28), unit) /* no -0 */
    x.v[0] = (vf){VALUES(even, 0), VALUES(even, 4)};
    x.v[1] = (vf){VALUES(even, 8), VALUES(even, 12)};
    x.v[2] = (vf){VALUES(odd, 0), VALUES(odd, 4)};
    x.v[3] = (vf){VALUES(odd, 8), VALUES(odd, 12)};
#undef VALUES
    return x;
}

NB_FN float32x4_t low_halves(float32x4_t x, float32x4_t y)
{
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

NB_FN float32x4_t high_halves(float32x4_t x, float32x4_t y)
{
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

/* Stages 8, 4, 2. The last two regroup so that partners face each other. */
NB_FN vf hadamard_vector(vf x)
{
    float32x4_t s = vaddq_f32(x.a, x.b), d = vsubq_f32(x.a, x.b);
    float32x4_t low = low_halves(s, d), high = high_halves(s, d);
    s = vaddq_f32(low, high), d = vsubq_f32(low, high);
    const float32x4_t even = vtrn1q_f32(s, d), odd = vtrn2q_f32(s, d);
    s = vaddq_f32(even, odd), d = vsubq_f32(even, odd);
    return (vf){vzip1q_f32(s, d), vzip2q_f32(s, d)};
}

NB_FN void hadamard(struct vgroup *x)
{
    const vf s0 = vf_add(x->v[0], x->v[2]), d0 = vf_sub(x->v[0], x->v[2]); /* 1 */
    const vf s1 = vf_add(x->v[1], x->v[3]), d1 = vf_sub(x->v[1], x->v[3]);
    x->v[0] = hadamard_vector(vf_add(s0, s1)); /* 16 */
    x->v[1] = hadamard_vector(vf_sub(s0, s1));
    x->v[2] = hadamard_vector(vf_add(d0, d1));
    x->v[3] = hadamard_vector(vf_sub(d0, d1));
}

/* The maxima of four vectors, each of eight lanes. Their order differs from that of sums. */
#define ACROSS(name, max, pairs, to, from) \
    NB_FN int32x4_t name##_four(const vi *m) \
    { \
        return from(pairs(pairs(max(to(m[0].a), to(m[0].b)), max(to(m[1].a), to(m[1].b))), \
                          pairs(max(to(m[2].a), to(m[2].b)), max(to(m[3].a), to(m[3].b))))); \
    } \
    NB_FN vi name(const vi *m) \
    { \
        return (vi){name##_four(m), name##_four(m + 4)}; \
    }
ACROSS(across_max_s, vmaxq_s32, vpmaxq_s32, , )
ACROSS(across_max_u, vmaxq_u32, vpmaxq_u32, U, S)

/* At the distances 8, 4, 2, which is the order of nb_sum_group. */
NB_FN float32x4_t add_pair(vi x, vi y)
{
    const vf a = vf_cast(x), b = vf_cast(y);
    const float32x4_t s = vaddq_f32(a.a, a.b), t = vaddq_f32(b.a, b.b);
    return vaddq_f32(low_halves(s, t), high_halves(s, t));
}

NB_FN vi across_add(const vi *m)
{
    return vi_cast((vf){vpaddq_f32(add_pair(m[0], m[1]), add_pair(m[2], m[3])),
                        vpaddq_f32(add_pair(m[4], m[5]), add_pair(m[6], m[7]))});
}

#define NB_TILE_OPS nb_tile_neon
#define NB_PACK6 nb_pack6
#define NB_UNPACK6 nb_unpack6
#include "codec/quant_simd.h"

#else
typedef int nb_quant_neon_unused;
#endif
