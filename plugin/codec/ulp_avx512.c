/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp block coder with AVX-512 (F, BW, DQ, VL) and BMI2: a group of 32 values is one vector of 16-bit lanes
 * for widths 1 and 2, two of 32-bit lanes for width 4. Bit planes are comparison masks.
 */
#include "codec/ulp.h"

#ifdef NB_ULP_X86

#include <errno.h>
#include <immintrin.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt")
#endif

#include "codec/fp.h"
#include "codec/ulp_bits.h"

static inline uint32_t pext(uint32_t x, uint32_t mask)
{
    return _pext_u32(x, mask);
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    return _pdep_u32(x, mask);
}

/* Sums of the 32-bit lanes of three vectors. */
static inline void sum_three(__m512i s0, __m512i s1, __m512i s2, uint32_t *out)
{
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s0, s1), _mm512_unpackhi_epi32(s0, s1));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s2, s2), _mm512_unpackhi_epi32(s2, s2));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));

    out[0] = (uint32_t)_mm_cvtsi128_si32(q);
    out[1] = (uint32_t)_mm_extract_epi32(q, 1);
    out[2] = (uint32_t)_mm_extract_epi32(q, 2);
}

/* Inclusive prefix sums of eight 64-bit lanes. */
static inline __m512i prefix(__m512i len)
{
    const __m512i zero = _mm512_setzero_si512();

    len = _mm512_add_epi64(len, _mm512_alignr_epi64(len, zero, 7));
    len = _mm512_add_epi64(len, _mm512_alignr_epi64(len, zero, 6));
    return _mm512_add_epi64(len, _mm512_alignr_epi64(len, zero, 4));
}

static inline unsigned last_lane(__m512i v)
{
    return (unsigned)_mm_extract_epi64(_mm512_extracti64x2_epi64(v, 3), 1);
}

/* Eight strings of len[i] <= 56 bits, in the low bits of the 64-bit lanes of v, appended in order. */
static inline void put_lanes(struct bits *b, __m512i v, __m512i len)
{
    const __m512i incl = prefix(len);
    const unsigned total = last_lane(incl);

    if (__builtin_expect(total <= 56, 1)) {
        bits_put(b, (uint64_t)_mm512_reduce_or_epi64(_mm512_sllv_epi64(v, _mm512_sub_epi64(incl, len))),
                 total);
    } else {
        _Alignas(64) uint64_t vs[8], ls[8];
        _mm512_store_si512(vs, v);
        _mm512_store_si512(ls, len);
        for (int i = 0; i < 8; i++)
            bits_put(b, vs[i], (unsigned)ls[i]);
    }
}

/* The eight strings again: lane i starts at bit pos + the lengths before it; bits above its length are
 * garbage. *total is the sum of the lengths. */
static inline __m512i get_lanes(const uint8_t *p, size_t pos, __m512i len, unsigned *total)
{
    const __m512i incl = prefix(len), before = _mm512_sub_epi64(incl, len);

    *total = last_lane(incl);
    if (__builtin_expect(*total <= 57, 1))
        return _mm512_srlv_epi64(_mm512_set1_epi64((long long)bits_peek(p, pos)), before);
    const __m512i at = _mm512_add_epi64(before, _mm512_set1_epi64((long long)pos));
    const __m512i v = _mm512_i64gather_epi64(_mm512_srli_epi64(at, 3), p, 1);
    return _mm512_srlv_epi64(v, _mm512_and_si512(at, _mm512_set1_epi64(7)));
}

static inline void halves_to_floats(const uint16_t *x, float *v)
{
    for (unsigned i = 0; i < 32; i += 16)
        _mm512_storeu_ps(v + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
}

static inline void floats_to_halves(const float *v, uint16_t *x)
{
    for (unsigned i = 0; i < 32; i += 16)
        _mm256_storeu_si256((__m256i *)(x + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(v + i), _MM_FROUND_TO_NEAREST_INT));
}

#define ULP_NARROW "codec/ulp_avx512_16.inc.h"
#define ULP_WIDE "codec/ulp_avx512_32.inc.h"
#define ULP_TABLE nb_ulp_avx512
#include "codec/ulp_widths.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int nb_ulp_avx512_unused;
#endif
