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

#include "codec/ulp_bits.h"

static inline uint32_t pext(uint32_t x, uint32_t mask)
{
    return _pext_u32(x, mask);
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    return _pdep_u32(x, mask);
}

/* Eight strings of len[i] <= 56 bits, in the low bits of the 64-bit lanes of v, appended in order. */
static inline void put_lanes(struct bits *b, __m512i v, __m512i len)
{
    /* Offsets in each half of four lanes: exclusive prefix sums. */
    __m512i incl = _mm512_add_epi64(len, _mm512_maskz_permutex_epi64(0xee, len, _MM_SHUFFLE(2, 1, 0, 0)));
    incl = _mm512_add_epi64(incl, _mm512_maskz_permutex_epi64(0xcc, incl, _MM_SHUFFLE(1, 0, 0, 0)));
    const uint64_t low = (uint64_t)_mm_extract_epi64(_mm512_extracti64x2_epi64(incl, 1), 1);
    const uint64_t high = (uint64_t)_mm_extract_epi64(_mm512_extracti64x2_epi64(incl, 3), 1);

    if (__builtin_expect(low <= 56 && high <= 56, 1)) {
        v = _mm512_sllv_epi64(v, _mm512_sub_epi64(incl, len));
        v = _mm512_or_si512(v, _mm512_permutex_epi64(v, _MM_SHUFFLE(2, 3, 0, 1)));
        v = _mm512_or_si512(v, _mm512_permutex_epi64(v, _MM_SHUFFLE(1, 0, 3, 2)));
        bits_put(b, (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(v)), (unsigned)low);
        bits_put(b, (uint64_t)_mm_cvtsi128_si64(_mm512_extracti32x4_epi32(v, 2)), (unsigned)high);
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
    const __m512i zero = _mm512_setzero_si512();
    __m512i incl = _mm512_add_epi64(len, _mm512_alignr_epi64(len, zero, 7));
    incl = _mm512_add_epi64(incl, _mm512_alignr_epi64(incl, zero, 6));
    incl = _mm512_add_epi64(incl, _mm512_alignr_epi64(incl, zero, 4));
    __m512i at = _mm512_add_epi64(_mm512_sub_epi64(incl, len), _mm512_set1_epi64((long long)pos));
    __m512i v = _mm512_i64gather_epi64(_mm512_srli_epi64(at, 3), (const long long *)p, 1);

    *total = (unsigned)_mm_extract_epi64(_mm512_extracti64x2_epi64(incl, 3), 1);
    return _mm512_srlv_epi64(v, _mm512_and_si512(at, _mm512_set1_epi64(7)));
}

#define W 1
#define NAME(x) x##_w8
#include "codec/ulp_avx512_16.inc.h"
#undef W
#undef NAME

#define W 2
#define NAME(x) x##_w16
#include "codec/ulp_avx512_16.inc.h"
#undef W
#undef NAME

#define W 4
#define NAME(x) x##_w32
#include "codec/ulp_avx512_32.inc.h"
#undef W
#undef NAME

const struct nb_ulp_ops nb_ulp_avx512 = {
    .encode = {encode_block_w8, encode_block_w16, encode_block_w32},
    .decode = {decode_block_w8, decode_block_w16, decode_block_w32},
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int nb_ulp_avx512_unused;
#endif
