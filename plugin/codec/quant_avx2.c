/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs for x86-64 with AVX2, BMI, F16C and FMA: primitives for quant_simd.h. */
#include "codec/tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

NB_GROUP_IS_32("a group in four vectors of 8, transposition of 32 bytes a group");

#define NB_TARGET __attribute__((target("avx2,bmi,bmi2,popcnt,f16c,fma")))
#define NB_FN NB_INLINE NB_TARGET
#define NB_OP static NB_TARGET
#define NB_W 8
#define NB_K 2
#define NB_HAVE_LANES /* quant_lanes_survey.h encodes */

typedef __m256 vf;
typedef __m256i vi, vm;

/* v[0], v[1]: values 0, 2 ... 14 and 16 ... 30. v[2], v[3]: the odd ones. */
struct vgroup {
    vf v[2 * NB_K];
};

/* clang-format off */
NB_FN vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
NB_FN void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
NB_FN vf vf_set1(float f) { return _mm256_set1_ps(f); }
NB_FN vf vf_gather(const float *p, vi i) { return _mm256_i32gather_ps(p, i, 4); }
NB_FN vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
NB_FN vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
NB_FN vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
NB_FN vf vf_muladd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
NB_FN vf vf_residual(vf y, vf q, vf step) { return _mm256_fnmadd_ps(q, step, y); }
NB_FN vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
NB_FN vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
NB_FN vf vf_cast(vi a) { return _mm256_castsi256_ps(a); }
NB_FN vf vf_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
NB_FN vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
NB_FN void vi_store(void *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
NB_FN vi vi_set1(int i) { return _mm256_set1_epi32(i); }
NB_FN vi vi_cast(vf a) { return _mm256_castps_si256(a); }
NB_FN vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
NB_FN vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
NB_FN vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
NB_FN vi vi_andnot(vi a, vi b) { return _mm256_andnot_si256(a, b); }
NB_FN vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
NB_FN vi vi_slli(vi a, int n) { return _mm256_slli_epi32(a, n); }
NB_FN vi vi_srli(vi a, int n) { return _mm256_srli_epi32(a, n); }
NB_FN vi vi_srai31(vi a) { return _mm256_srai_epi32(a, 31); }
NB_FN vi vi_sllv(vi a, vi n) { return _mm256_sllv_epi32(a, n); }
NB_FN vi vi_srlv(vi a, vi n) { return _mm256_srlv_epi32(a, n); }
NB_FN vi vi_max_s(vi a, vi b) { return _mm256_max_epi32(a, b); }
NB_FN vi vi_min_s(vi a, vi b) { return _mm256_min_epi32(a, b); }
NB_FN vi vi_max_u(vi a, vi b) { return _mm256_max_epu32(a, b); }
NB_FN vi vi_round(vf a) { return _mm256_cvtps_epi32(a); }
NB_FN vm vi_gt(vi a, vi b) { return _mm256_cmpgt_epi32(a, b); }
NB_FN vm vi_eq(vi a, vi b) { return _mm256_cmpeq_epi32(a, b); }
NB_FN vm vf_lt(vf a, vf b) { return vi_cast(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
NB_FN vi vi_blend(vm m, vi a, vi b) { return _mm256_blendv_epi8(a, b, m); }
NB_FN vm vm_blend(vm m, vm a, vm b) { return _mm256_blendv_epi8(a, b, m); }
NB_FN vm vm_and(vm a, vm b) { return _mm256_and_si256(a, b); }
NB_FN unsigned vm_bits(vm m) { return (unsigned)_mm256_movemask_ps(vf_cast(m)); }
/* clang-format on */

NB_FN vm vm_from_bits(unsigned bits)
{
    const vi bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return vi_eq(vi_and(vi_set1((int)bits), bit), bit);
}

NB_FN vi vi_from_bytes(const uint64_t *b)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)b[0]));
}

NB_FN void vi_store_bytes(uint8_t *p, vi a)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(words, words));
}

NB_FN void vgroup_keep(float *p, const struct vgroup *x)
{
    for (unsigned k = 0; k < 4; k++)
        _mm256_store_ps(p + 8 * k, x->v[k]);
}

NB_FN struct vgroup vgroup_kept(const float *p)
{
    return (struct vgroup){
        {_mm256_load_ps(p), _mm256_load_ps(p + 8), _mm256_load_ps(p + 16), _mm256_load_ps(p + 24)}};
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

NB_FN vi vgroup_max_abs(const struct vgroup *x)
{
    vi mask = vi_set1((int)NB_F32_ABS), m = vi_and(vi_cast(x->v[0]), mask);
    for (unsigned k = 1; k < 4; k++)
        m = vi_max_s(m, vi_and(vi_cast(x->v[k]), mask));
    return m;
}

NB_FN bool vgroup_is_zero(const struct vgroup *x)
{
    vi any = vi_or(vi_or(vi_cast(x->v[0]), vi_cast(x->v[1])), vi_or(vi_cast(x->v[2]), vi_cast(x->v[3])));
    return _mm256_testz_si256(any, vi_set1((int)NB_F32_ABS));
}

NB_FN bool values_have_zero(enum nb_dtype type, const uint8_t *src)
{
    const vi absolute = vi_set1(type == NB_F32 ? (int)NB_F32_ABS : 0x7fff7fff);
    vi least = vi_set1(-1);
    NB_UNROLL16
    for (unsigned i = 0; i < NB_W * nb_value_bytes(type); i++) {
        const vi a = vi_and(vi_load(src + 32 * i), absolute);
        least = type == NB_F32 ? _mm256_min_epu32(least, a) : _mm256_min_epu16(least, a);
    }
    const vi zero = _mm256_setzero_si256();
    return _mm256_movemask_epi8(type == NB_F32 ? vi_eq(least, zero) : _mm256_cmpeq_epi16(least, zero)) != 0;
}

NB_FN unsigned vgroup_large(const float *p, float threshold)
{
    vf t = vf_set1(threshold);
    vi mask = vi_set1((int)NB_F32_ABS), m[4];
    for (unsigned k = 0; k < 4; k++)
        m[k] = vi_cast(_mm256_cmp_ps(vf_cast(vi_and(vi_load(p + 8 * k), mask)), t, _CMP_LT_OQ));
    vi bytes = _mm256_packs_epi16(_mm256_packs_epi32(m[0], m[1]), _mm256_packs_epi32(m[2], m[3]));
    unsigned small = (unsigned)_mm256_movemask_epi8(bytes); /* four bits a vector, then the other four */
    /* nb_is_thin for this order */
    if ((small & small >> 8 & 0x00330033) | (small & small >> 1 & 0x44444444))
        return NB_GROUP - (unsigned)__builtin_popcount(small);
    return NB_GROUP;
}

/* Split 16 values in order into even and odd ones, and join them again. */
NB_FN void split16(vf a, vf b, vf *even, vf *odd)
{
    __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)),
            o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}

NB_FN void join16(vf even, vf odd, vf *a, vf *b)
{
    vf low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

NB_FN struct vgroup group_load(enum nb_dtype type, const uint8_t *p)
{
    struct vgroup x;
    for (unsigned k = 0; k < 2; k++) {
        if (type == NB_BF16) {
            vi raw = vi_load(p + 32 * k);
            x.v[k] = vf_cast(vi_slli(raw, 16));
            x.v[k + 2] = vf_cast(vi_and(raw, vi_set1((int)0xffff0000u)));
        } else if (type == NB_F16) {
            const __m128i *q = (const __m128i *)(const void *)(p + 32 * k);
            split16(_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1)), &x.v[k],
                    &x.v[k + 2]);
        } else {
            const float *q = (const float *)(const void *)(p + 64 * k);
            split16(vf_load(q), vf_load(q + 8), &x.v[k], &x.v[k + 2]);
        }
    }
    return x;
}

/* Add the rounding term, so that the upper half is x to nearest even. */
NB_FN vi round_bf16(vf x, bool nan)
{
    vi u = vi_cast(x), even = vi_and(vi_srli(u, 16), vi_set1(1));
    vi r = vi_add(u, vi_add(even, vi_set1(0x7fff)));
    return nan ? vi_blend(vi_cast(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)), r, vi_set1(0x7fc00000)) : r;
}

NB_FN vf canonical(vf x)
{
    return _mm256_blendv_ps(x, vf_cast(vi_set1(0x7fc00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

NB_FN void group_store(enum nb_dtype type, bool nan, uint8_t *p, const struct vgroup *x)
{
    for (unsigned k = 0; k < 2; k++) {
        if (type == NB_BF16) {
            vi e = round_bf16(x->v[k], nan), o = round_bf16(x->v[k + 2], nan);
            vi_store(p + 32 * k, _mm256_blend_epi16(vi_srli(e, 16), o, 0xaa));
            continue;
        }
        vf a, b;
        join16(nan ? canonical(x->v[k]) : x->v[k], nan ? canonical(x->v[k + 2]) : x->v[k + 2], &a, &b);
        if (type == NB_F16) {
            __m128i *q = (__m128i *)(void *)(p + 32 * k);
            _mm_storeu_si128(q, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
            _mm_storeu_si128(q + 1, _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        } else {
            float *q = (float *)(void *)(p + 64 * k);
            vf_store(q, a);
            vf_store(q + 8, b);
        }
    }
}

NB_FN struct vgroup bytes_load(const void *p)
{
    struct vgroup x;
    for (unsigned k = 0; k < 2; k++) {
        vi pairs = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p + k));
        x.v[k] = vf_from_int(_mm256_srai_epi32(vi_slli(pairs, 24), 24));
        x.v[k + 2] = vf_from_int(_mm256_srai_epi32(pairs, 8));
    }
    return x;
}

NB_FN vf bytes_squares(const void *p)
{
    const vi a = _mm256_min_epu8(_mm256_abs_epi8(vi_load(p)), _mm256_set1_epi8(127));
    return vf_from_int(_mm256_madd_epi16(_mm256_maddubs_epi16(a, a), _mm256_set1_epi16(1)));
}

/* Codes times powers of two. Their products with the remaining factor of the unit are exact. */
NB_FN void errors_widen(const void *p, float unit, unsigned k, vf *even, vf *odd, vf *unit_even, vf *unit_odd)
{
    const vi pairs = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p + k));
    *even = vf_from_int(vi_slli(pairs, 24));
    *odd = vf_from_int(vi_and(pairs, vi_set1((int)0xffffff00u)));
    *unit_even = vf_set1(unit * 0x1p-24f);
    *unit_odd = vf_set1(unit * 0x1p-8f);
}

NB_FN struct vgroup errors_load(const void *p, float unit)
{
    struct vgroup x;
    for (unsigned k = 0; k < 2; k++) {
        vf even, odd, unit_even, unit_odd;
        errors_widen(p, unit, k, &even, &odd, &unit_even, &unit_odd);
        x.v[k] = vf_mul(even, unit_even);
        x.v[k + 2] = vf_mul(odd, unit_odd);
    }
    return x;
}

NB_FN void errors_add(struct vgroup *x, const void *p, float unit)
{
    for (unsigned k = 0; k < 2; k++) {
        vf even, odd, unit_even, unit_odd;
        errors_widen(p, unit, k, &even, &odd, &unit_even, &unit_odd);
        x->v[k] = vf_muladd(even, unit_even, x->v[k]);
        x->v[k + 2] = vf_muladd(odd, unit_odd, x->v[k + 2]);
    }
}

/* Pack a group's integers into words: each quarter of the values at the place of the vectors' halves. */
NB_FN vi words_even(const vi *q)
{
    return _mm256_packs_epi32(q[0], q[1]);
}
NB_FN vi words_odd(const vi *q)
{
    return _mm256_packs_epi32(q[2], q[3]);
}

NB_FN void bytes_store(void *p, const vi *q)
{
    const vi low = vi_and(words_even(q), _mm256_set1_epi16(0xff));
    const vi pairs = vi_or(low, _mm256_slli_epi16(words_odd(q), 8));
    vi_store(p, _mm256_permute4x64_epi64(pairs, 0xd8)); /* words 0-3, 8-11 | 4-7, 12-15 before */
}

NB_FN void nibbles_store(uint8_t *p, const vi *q)
{
    const vi low = vi_and(words_even(q), _mm256_set1_epi16(15));
    const vi pairs = vi_and(vi_or(low, _mm256_slli_epi16(words_odd(q), 4)),
                            _mm256_set1_epi16(0xff)); /* in the same order */
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128((__m128i *)(void *)p, _mm_shuffle_epi32(bytes, 0xd8));
}

NB_FN struct vgroup nibbles_load(const uint8_t *p, float step)
{
    struct vgroup x;
    vf unit = vf_set1(step * 0x1p-28f), zero = _mm256_setzero_ps();
    for (unsigned k = 0; k < 2; k++) {
        vi pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * k)));
        vi even = vi_slli(pairs, 28), odd = vi_and(vi_slli(pairs, 24), vi_set1((int)0xf0000000u));
        x.v[k] = vf_muladd(vf_from_int(even), unit, zero); /* no -0 */
        x.v[k + 2] = vf_muladd(vf_from_int(odd), unit, zero);
    }
    return x;
}

/* Stages 8, 4, 2 on a pair of vectors. Each stage regroups so that partners face each other. */
NB_FN void hadamard_pair(vf *x, vf *y)
{
    vf a = _mm256_permute2f128_ps(*x, *y, 0x20), b = _mm256_permute2f128_ps(*x, *y, 0x31);
    vf s = vf_add(a, b), d = vf_sub(a, b);
    a = _mm256_shuffle_ps(s, d, 0x44), b = _mm256_shuffle_ps(s, d, 0xee);
    s = vf_add(a, b), d = vf_sub(a, b);
    a = _mm256_shuffle_ps(s, d, 0x88), b = _mm256_shuffle_ps(s, d, 0xdd);
    s = vf_add(a, b), d = vf_sub(a, b);
    __m256d low = _mm256_castps_pd(_mm256_unpacklo_ps(s, d)),
            high = _mm256_castps_pd(_mm256_unpackhi_ps(s, d));
    a = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high)), b = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    *x = _mm256_permute2f128_ps(a, b, 0x20);
    *y = _mm256_permute2f128_ps(a, b, 0x31);
}

NB_FN void hadamard(struct vgroup *x)
{
    vf s0 = vf_add(x->v[0], x->v[2]), d0 = vf_sub(x->v[0], x->v[2]); /* 1 */
    vf s1 = vf_add(x->v[1], x->v[3]), d1 = vf_sub(x->v[1], x->v[3]);
    vf e0 = vf_add(s0, s1), e1 = vf_sub(s0, s1), o0 = vf_add(d0, d1), o1 = vf_sub(d0, d1); /* 16 */
    hadamard_pair(&e0, &e1);
    hadamard_pair(&o0, &o1);
    x->v[0] = e0;
    x->v[1] = e1;
    x->v[2] = o0;
    x->v[3] = o1;
}

#define ACROSS(name, op) \
    NB_FN vi name(const vi *m) \
    { \
        vi r[4], t[2]; \
        for (unsigned i = 0; i < 4; i++) \
            r[i] = op(_mm256_permute2x128_si256(m[2 * i], m[2 * i + 1], 0x20), \
                      _mm256_permute2x128_si256(m[2 * i], m[2 * i + 1], 0x31)); \
        for (unsigned i = 0; i < 2; i++) \
            t[i] = op(_mm256_unpacklo_epi64(r[2 * i], r[2 * i + 1]), \
                      _mm256_unpackhi_epi64(r[2 * i], r[2 * i + 1])); \
        vi all = op(vi_cast(_mm256_shuffle_ps(vf_cast(t[0]), vf_cast(t[1]), 0x88)), \
                    vi_cast(_mm256_shuffle_ps(vf_cast(t[0]), vf_cast(t[1]), 0xdd))); \
        return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); \
    }
NB_FN vi vi_add_floats(vi a, vi b)
{
    return vi_cast(vf_add(vf_cast(a), vf_cast(b)));
}

ACROSS(across_add, vi_add_floats)
ACROSS(across_max_s, vi_max_s)
ACROSS(across_max_u, vi_max_u)

/* ---- With a group in each lane: quant_lanes_survey.h --------------------------------------------------- */

#define NB_HERE(x) __asm__ volatile("" : : "x"(x))
#define NB_FORGET() __asm__ volatile("" : : : "memory")

/* clang-format off */
NB_FN vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
NB_FN vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
NB_FN vf vf_nearest(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NB_FN vm vf_is_nan(vf a) { return vi_cast(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
NB_FN vi vi_or3(vi a, vi b, vi c) { return vi_or(vi_or(a, b), c); }
NB_FN vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
NB_FN vi vi_words(vi low, vi high) { return _mm256_blend_epi16(low, vi_slli(high, 16), 0xaa); }
NB_FN vi vi_packs32(vi a, vi b) { return _mm256_packs_epi32(a, b); }
NB_FN vi vi_packs16(vi a, vi b) { return _mm256_packs_epi16(a, b); }
NB_FN vi vi_min_7(vi bytes) { return _mm256_min_epi8(bytes, _mm256_set1_epi8(7)); }
NB_FN vf lanes_add_unless(vm m, vf keep, vf a, vf b) { return _mm256_blendv_ps(vf_add(a, b), keep, vf_cast(m)); }
NB_FN vf lanes_sub_unless(vm m, vf keep, vf a, vf b) { return _mm256_blendv_ps(vf_sub(a, b), keep, vf_cast(m)); }
NB_FN vi lanes_order(vi a) { return a; }
NB_FN unsigned lanes_bits(vm m) { return vm_bits(m); }
NB_FN vm lanes_mask(unsigned bits) { return vm_from_bits(bits); }
/* clang-format on */

NB_FN vi vi_nibbles(vi low, vi high)
{
    const vi mask = _mm256_set1_epi8(15);
    return vi_or(vi_and(low, mask), vi_andnot(mask, high));
}

NB_FN void lanes_store_if(vm m, float *p, const float *from)
{
    vf_store(p, _mm256_blendv_ps(vf_load(p), vf_load(from), vf_cast(m)));
}

NB_FN vi lanes_bytes(vi a)
{
    const vi order = _mm256_setr_epi32(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703, 0x0c080400, 0x0d090501,
                                       0x0e0a0602, 0x0f0b0703);
    return _mm256_shuffle_epi8(a, order);
}

NB_FN void lanes_dwords(vi *a, vi *b, vi *c, vi *d)
{
    vi t0 = _mm256_unpacklo_epi32(*a, *b), t1 = _mm256_unpackhi_epi32(*a, *b);
    vi t2 = _mm256_unpacklo_epi32(*c, *d), t3 = _mm256_unpackhi_epi32(*c, *d);
    *a = _mm256_unpacklo_epi64(t0, t2);
    *b = _mm256_unpackhi_epi64(t0, t2);
    *c = _mm256_unpacklo_epi64(t1, t3);
    *d = _mm256_unpackhi_epi64(t1, t3);
}

/* Four dwords of each group. */
NB_FN void lanes_load_four(const uint8_t *src, unsigned stride, vi *row)
{
    NB_UNROLL
    for (unsigned g = 0; g < 4; g++) {
        const __m128i *low = (const __m128i *)(const void *)(src + stride * g);
        const __m128i *high = (const __m128i *)(const void *)(src + stride * (g + 4));
        row[g] =
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
    }
    lanes_dwords(&row[0], &row[1], &row[2], &row[3]);
}

NB_FN void lanes_load(const uint8_t *src, unsigned stride, vi *row)
{
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++)
        lanes_load_four(src + 16 * k, stride, row + 4 * k);
}

NB_FN void lanes_load_bytes(const int8_t *p, vi *row)
{
    lanes_load_four((const uint8_t *)p, NB_GROUP, row);
    lanes_load_four((const uint8_t *)p + 16, NB_GROUP, row + 4);
}

/* Sixteen bytes of each group. */
NB_FN void lanes_store_four(uint8_t *p, unsigned stride, vi *row)
{
    lanes_dwords(&row[0], &row[1], &row[2], &row[3]);
    NB_UNROLL
    for (unsigned g = 0; g < 4; g++) {
        _mm_storeu_si128((__m128i *)(void *)(p + stride * g), _mm256_castsi256_si128(row[g]));
        _mm_storeu_si128((__m128i *)(void *)(p + stride * (g + 4)), _mm256_extracti128_si256(row[g], 1));
    }
}

NB_FN void lanes_store_bytes(uint8_t *p, vi *row)
{
    lanes_store_four(p, NB_GROUP, row);
    lanes_store_four(p + 16, NB_GROUP, row + 4);
}

NB_FN void lanes_store_nibbles(uint8_t *p, vi *row)
{
    lanes_store_four(p, 16, row);
}

NB_FN void lanes_halves(vi row, vf *low, vf *high)
{
    const vi words = _mm256_packus_epi32(vi_and(row, vi_set1(0xffff)), vi_srli(row, 16));
    const vi halves = _mm256_permute4x64_epi64(words, 0xd8);
    *low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    *high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

NB_FN vi lanes_byte(vi row, unsigned i)
{
    const int a = i == 1 ? 0x01ffffff : 0x02ffffff, next = 0x04000000;
    if (i == 0)
        return vi_slli(row, 24);
    if (i == 3)
        return vi_and(row, vi_set1((int)0xff000000u));
    return _mm256_shuffle_epi8(row, _mm256_setr_epi32(a, a + next, a + 2 * next, a + 3 * next, a, a + next,
                                                      a + 2 * next, a + 3 * next));
}

/* The largest and the smallest value so far. less: minus the smallest of the pairs' larger magnitudes. */
struct lanes_max {
    vf top, low, less;
};

NB_FN void lanes_max_begin(struct lanes_max *m)
{
    m->top = m->low = vf_set1(0);
    m->less = vf_cast(vi_set1((int)(NB_F32_INF | 0x80000000u)));
}

NB_FN void lanes_eight(struct lanes_max *m, const vf *v)
{
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++) {
        m->top = vf_max(v[k], m->top);
        m->low = vf_min(v[k], m->low);
    }
    NB_HERE(m->top);
    NB_HERE(m->low);
}

NB_FN void lanes_pairs(struct lanes_max *m, const vf *a, const vf *b)
{
    const vf sign = vf_set1(-0.0f);
    NB_UNROLL
    for (unsigned q = 0; q < 4; q++) {
        const vf both = vf_min(_mm256_or_ps(a[q], sign), _mm256_or_ps(b[q], sign));
        m->low = vf_min(both, m->low);
        m->less = vf_max(both, m->less);
        m->top = vf_max(b[q], vf_max(a[q], m->top));
    }
    NB_HERE(m->top);
    NB_HERE(m->low);
    NB_HERE(m->less);
}

NB_FN vi lanes_most(const struct lanes_max *m)
{
    /* avoids -0: the second of equal values wins */
    return vi_cast(vf_max(_mm256_xor_ps(m->low, vf_set1(-0.0f)), m->top));
}

NB_FN vf lanes_least(const struct lanes_max *m)
{
    return _mm256_xor_ps(m->less, vf_set1(-0.0f));
}

NB_FN vm lanes_positive(const struct lanes_max *m)
{
    return vi_eq(vi_cast(m->top), lanes_most(m));
}

#define NB_TILE_OPS nb_tile_avx2
#define NB_PACK6 nb_pack6_avx2
#define NB_UNPACK6 nb_unpack6_avx2
#include "codec/quant_simd.h"

#else
typedef int nb_quant_avx2_unused;
#endif
