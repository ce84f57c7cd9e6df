/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp block coder with AVX2 and BMI2: values of 1 and 2 bytes in lanes of 16 bits, values of 4 bytes in lanes
 * of 32.
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

#define ULP_BMI2
#include "codec/ulp_sparse.h"

typedef struct {
    __m256i k[4], low[4], high; /* high: a byte a value, in order, at most 127 */
} group32;

static inline uint64_t pext(uint64_t x, uint64_t mask)
{
    return _pext_u64(x, mask);
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    return _pdep_u32(x, mask);
}

/* Sums of the 32-bit lanes of three vectors. */
static inline void sum_three(__m256i s0, __m256i s1, __m256i s2, uint32_t *out)
{
    s0 = _mm256_hadd_epi32(_mm256_hadd_epi32(s0, s1), _mm256_hadd_epi32(s2, s2));
    const __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s0), _mm256_extracti128_si256(s0, 1));

    out[0] = (uint32_t)_mm_cvtsi128_si32(s);
    out[1] = (uint32_t)_mm_extract_epi32(s, 1);
    out[2] = (uint32_t)_mm_extract_epi32(s, 2);
}

/* Inclusive prefix sums of four 64-bit lanes. */
static inline __m256i prefix(__m256i len)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i s = _mm256_add_epi64(len, _mm256_slli_si256(len, 8));

    return _mm256_add_epi64(
        s, _mm256_blend_epi32(_mm256_permute4x64_epi64(s, _MM_SHUFFLE(1, 1, 0, 0)), zero, 0x0f));
}

/* Return -1 in the bytes whose bit in the mask is 1. */
static inline __m256i expand_bytes(uint32_t mask)
{
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2,
                                          2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);

    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)mask), from), bit),
                             bit);
}

/* Count for each bit the masks that have it, a byte a bit. */
static inline __m256i sum_of_masks(uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const __m256i a = _mm256_add_epi8(expand_bytes(m0), expand_bytes(m1));
    const __m256i b = _mm256_add_epi8(expand_bytes(m2), expand_bytes(m3));

    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(a, b));
}

/* Bytes 16 i and following, 8 i and following. */
static inline __m128i half_of(__m256i bytes, int i)
{
    return i ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
}

static inline __m128i quarter_of(__m256i bytes, int i)
{
    const __m128i half = half_of(bytes, i / 2);

    return i % 2 ? _mm_srli_si128(half, 8) : half;
}

/* Append the bits of four strings, each in the low bits, with as few writes as their lengths allow. */
static inline void put_four(struct bits *b, const uint64_t *z, const uint64_t *keep)
{
    const uint64_t v0 = _pext_u64(z[0], keep[0]), v1 = _pext_u64(z[1], keep[1]);
    const uint64_t v2 = _pext_u64(z[2], keep[2]), v3 = _pext_u64(z[3], keep[3]);
    const unsigned n0 = (unsigned)__builtin_popcountll(keep[0]), n1 = (unsigned)__builtin_popcountll(keep[1]);
    const unsigned n2 = (unsigned)__builtin_popcountll(keep[2]), n3 = (unsigned)__builtin_popcountll(keep[3]);
    const unsigned first = n0 + n1, second = n2 + n3;

    if (__builtin_expect(first + second <= 56, 1)) {
        bits_put(b, (v0 | v1 << n0) | (v2 | v3 << n2) << first, first + second);
    } else if (first <= 56 && second <= 56) {
        bits_put(b, v0 | v1 << n0, first);
        bits_put(b, v2 | v3 << n2, second);
    } else {
        bits_put(b, v0, n0);
        bits_put(b, v1, n1);
        bits_put(b, v2, n2);
        bits_put(b, v3, n3);
    }
}

/* Get the four strings, each value in its 16 bits. */
static inline __m256i get_four(const uint8_t *p, size_t *pos, const uint64_t *keep)
{
    const unsigned n0 = (unsigned)__builtin_popcountll(keep[0]), n1 = (unsigned)__builtin_popcountll(keep[1]);
    const unsigned n2 = (unsigned)__builtin_popcountll(keep[2]), n3 = (unsigned)__builtin_popcountll(keep[3]);
    const size_t at = *pos, first = n0 + n1, second = first + n2, all = second + n3;
    uint64_t w[4] = {bits_peek(p, at)};

    if (__builtin_expect(all <= 57, 1)) {
        w[1] = w[0] >> n0;
        w[2] = w[0] >> first;
        w[3] = w[0] >> second;
    } else {
        w[1] = bits_peek(p, at + n0);
        w[2] = bits_peek(p, at + first);
        w[3] = bits_peek(p, at + second);
    }
    *pos = at + all;
    return _mm256_set_epi64x((long long)_pdep_u64(w[3], keep[3]), (long long)_pdep_u64(w[2], keep[2]),
                             (long long)_pdep_u64(w[1], keep[1]), (long long)_pdep_u64(w[0], keep[0]));
}
/* Get four strings: lane i starts at bit pos + the lengths before it. Bits above its length are undefined. */
static inline __m256i get_lanes(const uint8_t *p, size_t pos, __m256i len, unsigned *total)
{
    const __m256i incl = prefix(len);
    const __m256i at = _mm256_add_epi64(_mm256_sub_epi64(incl, len), _mm256_set1_epi64x((long long)pos));
    const __m256i v = _mm256_i64gather_epi64((const long long *)p, _mm256_srli_epi64(at, 3), 1);

    *total = (unsigned)_mm256_extract_epi64(incl, 3);
    return _mm256_srlv_epi64(v, _mm256_and_si256(at, _mm256_set1_epi64x(7)));
}

/* For nb_ulp_estimate, eight values: add to *sum exponents plus bits of values other than 0, to *equal the
 * zeros. The exponent of a number's float gives its bits. Clearing the bit behind the highest one keeps
 * rounding from changing it. Numbers of 32 bits are negative ones here. */
static inline void add_bits(__m256i z, __m256i ex, __m256i *sum, __m256i *equal)
{
    const __m256i none = _mm256_cmpeq_epi32(z, _mm256_setzero_si256());
    const __m256 f = _mm256_cvtepi32_ps(_mm256_andnot_si256(_mm256_srli_epi32(z, 1), z));
    const __m256i few =
        _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(f), 23), _mm256_set1_epi32(126));
    const __m256i bits = _mm256_blendv_epi8(few, _mm256_set1_epi32(32), _mm256_srai_epi32(z, 31));

    *sum = _mm256_add_epi32(*sum, _mm256_andnot_si256(none, _mm256_add_epi32(ex, bits)));
    *equal = _mm256_sub_epi32(*equal, none);
}

static inline unsigned estimate_of(__m256i sum, __m256i equal, size_t n)
{
    const __m256i both = _mm256_hadd_epi32(_mm256_hadd_epi32(sum, equal), _mm256_setzero_si256());
    const __m128i s = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));

    return nb_ulp_estimate((uint32_t)_mm_cvtsi128_si32(s), (unsigned)n - (unsigned)_mm_extract_epi32(s, 1));
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

#define HAVE_ESTIMATE
#define ULP_NARROW "codec/ulp_avx2_16.inc.h"
#define ULP_WIDE "codec/ulp_avx2_32.inc.h"
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
