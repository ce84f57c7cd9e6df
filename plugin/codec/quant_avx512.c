/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs for x86-64 with AVX-512 (F, BW, DQ, VL): primitives for quant_simd.h. */
#include "codec/tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "codec/mask.h"

NB_GROUP_IS_32("a group in two vectors of 16, transposition of 32 bytes a group");

#define NB_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,popcnt,f16c")))
#define NB_FN NB_INLINE NB_TARGET
#define NB_OP static NB_TARGET
#define NB_W 16
#define NB_K 1
#define NB_HAVE_LANES /* quant_lanes_survey.h encodes */

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

struct vgroup {
    vf v[2 * NB_K];
};

/* clang-format off */
NB_FN vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
NB_FN void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
NB_FN vf vf_set1(float f) { return _mm512_set1_ps(f); }
NB_FN vf vf_gather(const float *p, vi i) { return _mm512_i32gather_ps(i, p, 4); }
NB_FN vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
NB_FN vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
NB_FN vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
NB_FN vf vf_muladd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
NB_FN vf vf_residual(vf y, vf q, vf step) { return _mm512_fnmadd_ps(q, step, y); }
NB_FN vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
NB_FN vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
NB_FN vf vf_cast(vi a) { return _mm512_castsi512_ps(a); }
NB_FN vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
NB_FN vm vf_lt(vf a, vf b) { return NB_MASK(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)); }
NB_FN vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
NB_FN void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
NB_FN vi vi_set1(int i) { return _mm512_set1_epi32(i); }
NB_FN vi vi_cast(vf a) { return _mm512_castps_si512(a); }
NB_FN vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
NB_FN vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
NB_FN vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
NB_FN vi vi_andnot(vi a, vi b) { return _mm512_andnot_si512(a, b); }
NB_FN vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
NB_FN vi vi_slli(vi a, unsigned n) { return _mm512_slli_epi32(a, n); }
NB_FN vi vi_srli(vi a, unsigned n) { return _mm512_srli_epi32(a, n); }
NB_FN vi vi_srai31(vi a) { return _mm512_srai_epi32(a, 31); }
NB_FN vi vi_sllv(vi a, vi n) { return _mm512_sllv_epi32(a, n); }
NB_FN vi vi_srlv(vi a, vi n) { return _mm512_srlv_epi32(a, n); }
NB_FN vi vi_max_s(vi a, vi b) { return _mm512_max_epi32(a, b); }
NB_FN vi vi_min_s(vi a, vi b) { return _mm512_min_epi32(a, b); }
NB_FN vi vi_max_u(vi a, vi b) { return _mm512_max_epu32(a, b); }
NB_FN vm vi_gt(vi a, vi b) { return NB_MASK(_mm512_cmpgt_epi32_mask(a, b)); }
NB_FN vm vi_eq(vi a, vi b) { return NB_MASK(_mm512_cmpeq_epi32_mask(a, b)); }
NB_FN vi vi_blend(vm m, vi a, vi b) { return _mm512_mask_mov_epi32(a, m, b); }
NB_FN vi vi_round(vf a) { return _mm512_cvtps_epi32(a); }
NB_FN vm vm_blend(vm m, vm a, vm b) { return (vm)((a & ~m) | (b & m)); }
NB_FN vm vm_from_bits(unsigned bits) { return (vm)bits; }
NB_FN vm vm_and(vm a, vm b) { return a & b; }
NB_FN unsigned vm_bits(vm m) { return m; }
/* clang-format on */

NB_FN vi vi_from_bytes(const uint64_t *b)
{
    return _mm512_cvtepu8_epi32(_mm_set_epi64x((long long)b[1], (long long)b[0]));
}

NB_FN void vi_store_bytes(uint8_t *p, vi a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

NB_FN void vgroup_keep(float *p, const struct vgroup *x)
{
    _mm512_store_ps(p, x->v[0]);
    _mm512_store_ps(p + 16, x->v[1]);
}

NB_FN struct vgroup vgroup_kept(const float *p)
{
    return (struct vgroup){{_mm512_load_ps(p), _mm512_load_ps(p + 16)}};
}

NB_FN vi vgroup_max_s(const struct vgroup *x)
{
    return vi_max_s(vi_cast(x->v[0]), vi_cast(x->v[1]));
}

NB_FN vi vgroup_max_u(const struct vgroup *x)
{
    return vi_max_u(vi_cast(x->v[0]), vi_cast(x->v[1]));
}

/* Return the bits of the larger magnitude (without NaN). */
NB_FN vi vgroup_max_abs(const struct vgroup *x)
{
    return vi_cast(_mm512_range_ps(x->v[0], x->v[1], 0x0b));
}

NB_FN bool vgroup_is_zero(const struct vgroup *x)
{
    vi any = vi_or(vi_cast(x->v[0]), vi_cast(x->v[1]));
    return !_mm512_test_epi32_mask(any, vi_set1((int)NB_F32_ABS));
}

NB_FN bool values_have_zero(enum nb_dtype type, const uint8_t *src)
{
    /* Four chains hide the latency of a test. Each test keeps the bits of its chain where no value is
     * zero. */
    if (type == NB_F32) {
        __mmask16 k[4] = {0xffff, 0xffff, 0xffff, 0xffff};
        NB_UNROLL
        for (unsigned i = 0; i < 2 * NB_W; i += 4)
            NB_UNROLL
        for (unsigned c = 0; c < 4; c++)
            k[c] = _mm512_mask_test_epi32_mask(k[c], vi_set1((int)NB_F32_ABS), vi_load(src + 64 * (i + c)));
        return (k[0] & k[1] & k[2] & k[3]) != 0xffff;
    }
    __mmask32 k[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    NB_UNROLL
    for (unsigned i = 0; i < NB_W; i += 4)
        NB_UNROLL
    for (unsigned c = 0; c < 4; c++)
        k[c] = _mm512_mask_test_epi16_mask(k[c], vi_set1(0x7fff7fff), vi_load(src + 64 * (i + c)));
    return (k[0] & k[1] & k[2] & k[3]) != UINT32_MAX;
}

NB_FN unsigned vgroup_large(const float *p, float threshold)
{
    vf t = vf_set1(threshold);
    vi mask = vi_set1((int)NB_F32_ABS);
    unsigned even = vf_lt(vf_cast(vi_and(vi_load(p), mask)), t);
    unsigned odd = vf_lt(vf_cast(vi_and(vi_load(p + 16), mask)), t);
    /* nb_is_thin for this order */
    if ((even & odd & 0x3333) | (even & even >> 1 & 0x4444) | (odd & odd >> 1 & 0x4444))
        return NB_GROUP - (unsigned)__builtin_popcount(even | odd << 16);
    return NB_GROUP;
}

NB_FN struct vgroup vgroup_split(vf a, vf b)
{
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const vi odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return (struct vgroup){{_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)}};
}

NB_FN void vgroup_join(const struct vgroup *x, vf *a, vf *b)
{
    const vi low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const vi high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    *a = _mm512_permutex2var_ps(x->v[0], low, x->v[1]);
    *b = _mm512_permutex2var_ps(x->v[0], high, x->v[1]);
}

NB_FN struct vgroup group_load(enum nb_dtype type, const uint8_t *p)
{
    if (type == NB_BF16) {
        vi raw = vi_load(p);
        return (struct vgroup){{vf_cast(vi_slli(raw, 16)), vf_cast(vi_and(raw, vi_set1((int)0xffff0000u)))}};
    }
    if (type == NB_F16)
        return vgroup_split(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)),
                            _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32))));
    return vgroup_split(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 64));
}

/* Add the term that rounds the upper half to nearest even. */
NB_FN vi round_bf16(vi u)
{
    vi r = vi_add(u, vi_set1(0x7fff));
    return _mm512_mask_sub_epi32(r, _mm512_test_epi32_mask(u, vi_set1(0x10000)), r, vi_set1(-1));
}

NB_FN void group_store(enum nb_dtype type, bool nan, uint8_t *p, const struct vgroup *x)
{
    vf v[2] = {x->v[0], x->v[1]};
    /* NaN are replaced before, so any rounding of them will do */
    if (nan && __builtin_expect(NB_MASK(_mm512_cmp_ps_mask(v[0], v[1], _CMP_UNORD_Q)), 0))
        for (unsigned k = 0; k < 2; k++)
            v[k] = _mm512_mask_mov_ps(v[k], _mm512_cmp_ps_mask(v[k], v[k], _CMP_UNORD_Q),
                                      vf_cast(vi_set1(0x7fc00000)));
    if (type == NB_BF16) {
        vi e = round_bf16(vi_cast(v[0])), o = round_bf16(vi_cast(v[1]));
        vi_store(p, _mm512_mask_blend_epi16(0xaaaaaaaau, vi_srli(e, 16), o));
        return;
    }
    vf a, b;
    struct vgroup y = {{v[0], v[1]}};
    vgroup_join(&y, &a, &b);
    if (type == NB_F16) {
        _mm256_storeu_si256((__m256i *)(void *)p,
                            _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        _mm256_storeu_si256((__m256i *)(void *)(p + 32),
                            _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        return;
    }
    _mm512_storeu_ps(p, a);
    _mm512_storeu_ps(p + 64, b);
}

NB_FN struct vgroup bytes_load(const void *p)
{
    vi pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
    vi even = _mm512_srai_epi32(vi_slli(pairs, 24), 24), odd = _mm512_srai_epi32(pairs, 8);
    return (struct vgroup){{vf_from_int(even), vf_from_int(odd)}};
}

NB_FN vf bytes_squares(const void *p)
{
    const __m256i a =
        _mm256_min_epu8(_mm256_abs_epi8(_mm256_loadu_si256((const __m256i *)p)), _mm256_set1_epi8(127));
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), _mm256_set1_epi16(1));
    return vf_from_int(_mm512_zextsi256_si512(sums));
}

NB_FN struct vgroup errors_load(const void *p, float unit)
{
    vi pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
    vi even = vi_slli(pairs, 24), odd = vi_and(pairs, vi_set1((int)0xffffff00u));
    return (struct vgroup){{vf_mul(vf_from_int(even), vf_set1(unit * 0x1p-24f)),
                            vf_mul(vf_from_int(odd), vf_set1(unit * 0x1p-8f))}};
}

NB_FN void errors_add(struct vgroup *x, const void *p, float unit)
{
    vi pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
    vi even = vi_slli(pairs, 24), odd = vi_and(pairs, vi_set1((int)0xffffff00u));
    x->v[0] = vf_muladd(vf_from_int(even), vf_set1(unit * 0x1p-24f), x->v[0]);
    x->v[1] = vf_muladd(vf_from_int(odd), vf_set1(unit * 0x1p-8f), x->v[1]);
}

NB_FN void bytes_store(void *p, const vi *q)
{
    vi pairs = _mm512_mask_blend_epi8(0x2222222222222222u, q[0], vi_slli(q[1], 8));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(pairs));
}

NB_FN void nibbles_store(uint8_t *p, const vi *q)
{
    /* (q0 & 15) | q1 << 4. Only the low byte is stored. */
    vi pair = _mm512_ternarylogic_epi32(q[0], vi_set1(15), vi_slli(q[1], 4), 0xea);
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(pair));
}

NB_FN struct vgroup nibbles_load(const uint8_t *p, float step)
{
    /* A permutation uses four bits of its index: a table of all products, where adding +0 removes -0. */
    const vf levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    vf table = _mm512_fmadd_ps(levels, vf_set1(step), _mm512_setzero_ps());
    vi pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (struct vgroup){
        {_mm512_permutexvar_ps(pairs, table), _mm512_permutexvar_ps(vi_srli(pairs, 4), table)}};
}

/* Stages 16, 8, 4, 2 within a vector: each lane adds or subtracts its partner's value. The products are
 * exact, so each sum is rounded once. */
NB_FN vf hadamard_lanes(vf x)
{
    const vf s8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    const vf s4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const vf s2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const vf s1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    x = _mm512_fmadd_ps(x, s8, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = _mm512_fmadd_ps(x, s4, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_fmadd_ps(x, s2, _mm512_permute_ps(x, 0x4e));
    return _mm512_fmadd_ps(x, s1, _mm512_permute_ps(x, 0xb1));
}

NB_FN void hadamard(struct vgroup *x)
{
    vf even = vf_add(x->v[0], x->v[1]), odd = vf_sub(x->v[0], x->v[1]); /* 1 */
    x->v[0] = hadamard_lanes(even);
    x->v[1] = hadamard_lanes(odd);
}

#define ACROSS(name, op) \
    NB_FN vi name(const vi *m) \
    { \
        vi r[8], t[4], w[2]; \
        for (unsigned i = 0; i < 8; i++) \
            r[i] = op(_mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0x44), \
                      _mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0xee)); \
        for (unsigned i = 0; i < 4; i++) \
            t[i] = op(_mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0x88), \
                      _mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0xdd)); \
        for (unsigned i = 0; i < 2; i++) \
            w[i] = op(_mm512_unpacklo_epi64(t[2 * i], t[2 * i + 1]), \
                      _mm512_unpackhi_epi64(t[2 * i], t[2 * i + 1])); \
        vi all = op(vi_cast(_mm512_shuffle_ps(vf_cast(w[0]), vf_cast(w[1]), 0x88)), \
                    vi_cast(_mm512_shuffle_ps(vf_cast(w[0]), vf_cast(w[1]), 0xdd))); \
        return _mm512_permutexvar_epi32( \
            _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all); \
    }
NB_FN vi vi_add_floats(vi a, vi b)
{
    return vi_cast(vf_add(vf_cast(a), vf_cast(b)));
}

ACROSS(across_add, vi_add_floats)
ACROSS(across_max_s, vi_max_s)
ACROSS(across_max_u, vi_max_u)

/* ---- With a group in each lane: quant_lanes_survey.h --------------------------------------------------- */

/* Compute x here. GCC 12 delays values that are used late (sums of squares and maxima) and meanwhile keeps
 * their operands on the stack: a store, a load and a copy for each vector. */
#define NB_HERE(x) __asm__ volatile("" : : "v"(x))
#define NB_FORGET()

/* clang-format off */
NB_FN vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
NB_FN vf vf_nearest(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NB_FN vm vf_is_nan(vf a) { return NB_MASK(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)); }
NB_FN vi vi_or3(vi a, vi b, vi c) { return _mm512_ternarylogic_epi32(a, b, c, 0xfe); }
NB_FN vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
NB_FN vi vi_words(vi low, vi high) { return _mm512_mask_blend_epi16(0xaaaaaaaau, low, vi_slli(high, 16)); }
NB_FN vi vi_packs32(vi a, vi b) { return _mm512_packs_epi32(a, b); }
NB_FN vi vi_packs16(vi a, vi b) { return _mm512_packs_epi16(a, b); }
NB_FN vi vi_min_7(vi bytes) { return _mm512_min_epi8(bytes, _mm512_set1_epi8(7)); }
NB_FN vi vi_nibbles(vi low, vi high) { return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(15), 0xe4); }
NB_FN vf lanes_add_unless(vm m, vf keep, vf a, vf b) { return _mm512_mask_add_ps(keep, (vm)~m, a, b); }
NB_FN vf lanes_sub_unless(vm m, vf keep, vf a, vf b) { return _mm512_mask_sub_ps(keep, (vm)~m, a, b); }
NB_FN void lanes_store_if(vm m, float *p, const float *from) { _mm512_mask_store_ps(p, m, vf_load(from)); }
/* clang-format on */

NB_FN vi lanes_bytes(vi a)
{
    return _mm512_shuffle_epi8(a, _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400));
}

/* Lane 4 a + b holds group 4 b + a of the batch (nb_lane), which saves both directions a stage of
 * shuffles. */
NB_FN vi lanes_order(vi a)
{
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    a);
}

NB_FN unsigned lanes_bits(vm m)
{
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm_movepi8_mask(_mm_shuffle_epi8(_mm_movm_epi8(m), order));
}

/* The places of groups and of lanes are exchanged, so a second exchange undoes the first. */
NB_FN vm lanes_mask(unsigned bits)
{
    return vm_from_bits(lanes_bits(vm_from_bits(bits)));
}

NB_FN void lanes_dwords(vi *a, vi *b, vi *c, vi *d)
{
    vi t0 = _mm512_unpacklo_epi32(*a, *b), t1 = _mm512_unpackhi_epi32(*a, *b);
    vi t2 = _mm512_unpacklo_epi32(*c, *d), t3 = _mm512_unpackhi_epi32(*c, *d);
    *a = _mm512_unpacklo_epi64(t0, t2);
    *b = _mm512_unpackhi_epi64(t0, t2);
    *c = _mm512_unpacklo_epi64(t1, t3);
    *d = _mm512_unpackhi_epi64(t1, t3);
}

NB_FN void lanes_load_four(const uint8_t *src, unsigned stride, unsigned l, vi *r)
{
    NB_UNROLL
    for (unsigned e = 0; e < 4; e++)
        r[4 * l + e] = vi_load(src + stride * (l + 4 * e));
    lanes_dwords(&r[4 * l], &r[4 * l + 1], &r[4 * l + 2], &r[4 * l + 3]);
}

NB_FN void lanes_load(const uint8_t *src, unsigned stride, vi *row)
{
    vi r[16];
    lanes_load_four(src, stride, 0, r);
    lanes_load_four(src, stride, 1, r);
    lanes_load_four(src, stride, 2, r);
    lanes_load_four(src, stride, 3, r);
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        vi u0 = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x44), u1 = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xee);
        vi u2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x44);
        vi u3 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xee);
        row[k] = _mm512_shuffle_i32x4(u0, u2, 0x88);
        row[4 + k] = _mm512_shuffle_i32x4(u0, u2, 0xdd);
        row[8 + k] = _mm512_shuffle_i32x4(u1, u3, 0x88);
        row[12 + k] = _mm512_shuffle_i32x4(u1, u3, 0xdd);
    }
}

/* Load halves of groups, 16 bytes each: the lower halves, then the upper halves of the groups in two
 * vectors. */
NB_FN void lanes_load_bytes(const int8_t *p, vi *row)
{
    const vi lower = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13),
             upper = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        vi a = vi_load(p + 128 * k), b = vi_load(p + 128 * k + 64);
        row[k] = _mm512_permutex2var_epi64(a, lower, b);
        row[4 + k] = _mm512_permutex2var_epi64(a, upper, b);
    }
    lanes_dwords(&row[0], &row[1], &row[2], &row[3]);
    lanes_dwords(&row[4], &row[5], &row[6], &row[7]);
}

NB_FN void lanes_store_bytes(uint8_t *p, vi *row)
{
    const vi first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
             second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    lanes_dwords(&row[0], &row[1], &row[2], &row[3]);
    lanes_dwords(&row[4], &row[5], &row[6], &row[7]);
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        vi_store(p + 128 * k, _mm512_permutex2var_epi64(row[k], first, row[4 + k]));
        vi_store(p + 128 * k + 64, _mm512_permutex2var_epi64(row[k], second, row[4 + k]));
    }
}

NB_FN void lanes_store_nibbles(uint8_t *p, vi *row)
{
    lanes_dwords(&row[0], &row[1], &row[2], &row[3]);
    NB_UNROLL
    for (unsigned b = 0; b < 4; b++)
        vi_store(p + 64 * b, row[b]);
}

NB_FN void lanes_halves(vi row, vf *low, vf *high)
{
    *low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(row));
    *high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(vi_srli(row, 16)));
}

NB_FN vi lanes_byte(vi row, unsigned i)
{
    const vi second = _mm512_set4_epi32((int)0x0dffffff, (int)0x09ffffff, (int)0x05ffffff, (int)0x01ffffff);
    const vi third = _mm512_set4_epi32((int)0x0effffff, (int)0x0affffff, (int)0x06ffffff, (int)0x02ffffff);
    return i == 0   ? vi_slli(row, 24)
           : i == 1 ? _mm512_shuffle_epi8(row, second)
           : i == 2 ? _mm512_shuffle_epi8(row, third)
                    : vi_and(row, vi_set1((int)0xff000000u));
}

/* Values of the largest magnitude so far, the positive one of equal magnitudes. */
struct lanes_max {
    vf max, least;
};

NB_FN void lanes_max_begin(struct lanes_max *m)
{
    m->max = vf_set1(0);
    m->least = vf_cast(vi_set1((int)NB_F32_INF));
}

NB_FN vf larger(vf a, vf b)
{
    return _mm512_range_ps(a, b, 0x07);
}

NB_FN vf smaller_abs(vf a, vf b)
{
    return _mm512_range_ps(a, b, 0x0a);
}

NB_FN void lanes_eight(struct lanes_max *m, const vf *v)
{
    const vf a = larger(larger(v[0], v[1]), larger(v[2], v[3])),
             b = larger(larger(v[4], v[5]), larger(v[6], v[7]));
    m->max = larger(m->max, larger(a, b));
    NB_HERE(m->max);
}

NB_FN void lanes_pairs(struct lanes_max *m, const vf *a, const vf *b)
{
    vf p[4];
    NB_UNROLL
    for (unsigned q = 0; q < 4; q++)
        p[q] = larger(a[q], b[q]);
    m->max = larger(m->max, larger(larger(p[0], p[1]), larger(p[2], p[3])));
    m->least = smaller_abs(m->least, smaller_abs(smaller_abs(p[0], p[1]), smaller_abs(p[2], p[3])));
    NB_HERE(m->max);
    NB_HERE(m->least);
}

NB_FN vi lanes_most(const struct lanes_max *m)
{
    return vi_and(vi_cast(m->max), vi_set1((int)NB_F32_ABS));
}

NB_FN vf lanes_least(const struct lanes_max *m)
{
    return m->least;
}

NB_FN vm lanes_positive(const struct lanes_max *m)
{
    return vi_gt(vi_cast(m->max), vi_set1(-1));
}

#define NB_TILE_OPS nb_tile_avx512
#define NB_PACK6 nb_pack6_avx2
#define NB_UNPACK6 nb_unpack6_avx2
#include "codec/quant_simd.h"

#else
typedef int nb_quant_avx512_unused;
#endif
