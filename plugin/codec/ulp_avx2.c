/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp block coder with AVX2 and BMI2. AVX2 shifts by different amounts only in lanes of 32 bits and more, so
 * values of all widths are worked on in four vectors of eight such lanes; narrow ones are sign-extended into
 * them.
 */
#include "codec/ulp.h"

#ifdef NB_ULP_X86

#include <errno.h>
#include <immintrin.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,f16c")
#endif

#include "codec/fp.h"
#include "codec/ulp_bits.h"

typedef uint32_t lane;
typedef struct {
    __m256i k[4], high[4], low[4];
} group;

static inline uint32_t pext(uint32_t x, uint32_t mask)
{
    return _pext_u32(x, mask);
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    return _pdep_u32(x, mask);
}

/* Inclusive prefix sums of four 64-bit lanes. */
static inline __m256i prefix(__m256i len)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i s = _mm256_add_epi64(len, _mm256_slli_si256(len, 8));

    return _mm256_add_epi64(
        s, _mm256_blend_epi32(_mm256_permute4x64_epi64(s, _MM_SHUFFLE(1, 1, 0, 0)), zero, 0x0f));
}

/* Four strings of len[i] <= 56 bits, in the low bits of the 64-bit lanes of v, appended in order. */
static inline void put_lanes(struct bits *b, __m256i v, __m256i len)
{
    const __m256i incl = prefix(len);
    const uint64_t total = (uint64_t)_mm256_extract_epi64(incl, 3);

    if (__builtin_expect(total <= 56, 1)) {
        v = _mm256_sllv_epi64(v, _mm256_sub_epi64(incl, len));
        __m128i x = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        x = _mm_or_si128(x, _mm_unpackhi_epi64(x, x));
        bits_put(b, (uint64_t)_mm_cvtsi128_si64(x), (unsigned)total);
    } else {
        _Alignas(32) uint64_t vs[4], ls[4];
        _mm256_store_si256((__m256i *)vs, v);
        _mm256_store_si256((__m256i *)ls, len);
        for (int i = 0; i < 4; i++)
            bits_put(b, vs[i], (unsigned)ls[i]);
    }
}

/* Four strings again: lane i starts at bit pos + the lengths before it; bits above its length are garbage. */
static inline __m256i get_lanes(const uint8_t *p, size_t pos, __m256i len, unsigned *total)
{
    const __m256i incl = prefix(len);
    const __m256i at = _mm256_add_epi64(_mm256_sub_epi64(incl, len), _mm256_set1_epi64x((long long)pos));
    const __m256i v = _mm256_i64gather_epi64((const long long *)p, _mm256_srli_epi64(at, 3), 1);

    *total = (unsigned)_mm256_extract_epi64(incl, 3);
    return _mm256_srlv_epi64(v, _mm256_and_si256(at, _mm256_set1_epi64x(7)));
}

static inline void halves_to_floats(const uint16_t *x, float *v)
{
    for (unsigned i = 0; i < 32; i += 8)
        _mm256_storeu_ps(v + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
}

static inline void floats_to_halves(const float *v, uint16_t *x)
{
    for (unsigned i = 0; i < 32; i += 8)
        _mm_storeu_si128((__m128i *)(x + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(v + i), _MM_FROUND_TO_NEAREST_INT));
}

#define ULP_NARROW "codec/ulp_avx2.inc.h"
#define ULP_WIDE "codec/ulp_avx2.inc.h"
#define ULP_TABLE nb_ulp_avx2
#include "codec/ulp_widths.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int nb_ulp_avx2_unused;
#endif
