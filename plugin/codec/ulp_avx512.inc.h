/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp block coder with AVX-512 and BMI2: a group of 32 values is one vector of 16-bit lanes for widths 1 and
 * 2, two of 32-bit lanes for width 4. Bit planes are comparison masks. The including source sets the target,
 * and defines ULP_TABLE, and ULP_VBMI where it may use that.
 *
 * The low parts of a vector are first joined to eight strings, one in each lane of 64 bits, of at most 56
 * bits (NB_ULP_KMAX). A string's place follows from the lengths before it, and the reference alone gives the
 * lengths.
 */

#include "codec/fp.h"
#include "codec/mask.h"
#include "codec/ulp_avx512_numbers.h"
#include "codec/ulp_bits.h"

#define ULP_BMI2
#include "codec/ulp_sparse.h"

#define NUMBER nb_ulp_avx512_numbers
#define EACH64(x) _mm512_set1_epi64((long long)(x))

static inline uint64_t pext(uint64_t x, uint64_t mask)
{
    return _pext_u64(x, mask);
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

/* Return the lengths of the strings of a vector whose lanes take k bits each: k is in the low byte of its
 * lane. */
static inline __m512i string_lengths(__m512i k)
{
    return _mm512_sad_epu8(k, _mm512_setzero_si512());
}

/* Return for each string the sum of the lengths before it. The first lane, whose sum would be 0, has the sum
 * of all. `len` is at most 255 each. */
static inline __m512i lengths_before(__m512i len, unsigned *total)
{
#ifdef ULP_VBMI
    const __m512i before = string_lengths(_mm512_permutexvar_epi8(_mm512_loadu_si512(NUMBER.before), len));
#else
    const __m512i zero = _mm512_setzero_si512();
    __m512i sum = _mm512_add_epi64(len, _mm512_alignr_epi64(len, zero, 7));

    sum = _mm512_add_epi64(sum, _mm512_alignr_epi64(sum, zero, 6));
    sum = _mm512_add_epi64(sum, _mm512_alignr_epi64(sum, zero, 4));
    const __m512i before = _mm512_alignr_epi64(sum, sum, 7);
#endif
    *total = (unsigned)_mm_cvtsi128_si32(_mm512_castsi512_si128(before));
    return before;
}

/* Return the lengths before each string, with 0 in the first lane. */
static inline __m512i but_first(__m512i before)
{
    return _mm512_and_si512(before, _mm512_loadu_si512(NUMBER.others));
}

/* Append eight strings of at least a byte each. Each begins in the byte in which the string before it ends,
 * and they are stored one over the other. */
static inline void put_long_strings(struct bits *b, __m512i v, __m512i len, __m512i before, unsigned total)
{
    const __m512i at = _mm512_add_epi64(EACH64(b->n), before),
                  bit = _mm512_and_si512(at, EACH64(NUMBER.seven));
    const __m512i bytes = _mm512_and_si512(_mm512_add_epi64(bit, len), _mm512_set1_epi64(0x38));
    _Alignas(64) uint64_t words[8], places[8];

    v = _mm512_sllv_epi64(v, bit);
    v = _mm512_mask_or_epi64(v, 1, v, EACH64(b->acc));
    v = _mm512_or_si512(v, _mm512_alignr_epi64(_mm512_srlv_epi64(v, bytes), _mm512_setzero_si512(), 7));
    _mm512_store_si512(words, v);
    _mm512_store_si512(places, _mm512_srli_epi64(at, 3));
    for (int i = 0; i < 8; i++)
        memcpy(b->p + places[i], &words[i], 8);
    total += b->n;
    b->p += total >> 3;
    b->n = total & 7;
    b->acc = *b->p; /* the rest of this byte is empty */
}

/* Append eight strings in order. */
NB_INLINE void put_strings(struct bits *b, __m512i v, __m512i len, __m512i before, unsigned total)
{
    before = but_first(before);
    if (__builtin_expect(total <= 56, 1)) {
        bits_put(b, (uint64_t)_mm512_reduce_or_epi64(_mm512_sllv_epi64(v, before)), total);
        return;
    }
    const unsigned half = (unsigned)_mm_cvtsi128_si32(_mm512_extracti64x2_epi64(before, 2));
    if (half <= 56 && total - half <= 56) {
        before = _mm512_mask_sub_epi64(before, 0xf0, before, _mm512_set1_epi64((long long)half));
        v = _mm512_sllv_epi64(v, before);
        v = _mm512_or_si512(v, _mm512_shuffle_i64x2(v, v, _MM_SHUFFLE(2, 3, 0, 1)));
        v = _mm512_or_si512(v, _mm512_unpackhi_epi64(v, v));
        bits_put(b, (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(v)), half);
        bits_put(b, (uint64_t)_mm_cvtsi128_si64(_mm512_extracti64x2_epi64(v, 2)), total - half);
    } else if (NB_MASK(_mm512_cmplt_epu64_mask(len, _mm512_set1_epi64(8))) == 0) {
        put_long_strings(b, v, len, before, total);
    } else {
        _Alignas(64) uint64_t vs[8], ls[8];
        _mm512_store_si512(vs, v);
        _mm512_store_si512(ls, len);
        for (int i = 0; i < 8; i++)
            bits_put(b, vs[i], (unsigned)ls[i]);
    }
}

/* Return the first bit of each string, counted from the byte that holds bit `pos`. */
static inline __m512i string_places(size_t pos, __m512i before)
{
    return _mm512_add_epi64(EACH64(pos & 7), but_first(before));
}

#ifdef ULP_VBMI
/* Load eight bytes for each string. The first byte has its first bit. */
static inline __m512i get_strings(const uint8_t *p, size_t pos, __m512i at)
{
    const __m512i bytes =
        _mm512_add_epi8(_mm512_multishift_epi64_epi8(EACH64(NUMBER.three), at), EACH64(NUMBER.bytes));

    return _mm512_permutexvar_epi8(bytes, _mm512_loadu_si512(p + (pos >> 3)));
}
#else
/* Get eight strings. Bits above their lengths are undefined. */
static inline __m512i get_strings(const uint8_t *p, size_t pos, __m512i at, unsigned total)
{
    if (__builtin_expect(total <= 57, 1)) {
        const __m512i from = _mm512_set1_epi64((long long)(pos & 7));
        return _mm512_srlv_epi64(_mm512_set1_epi64((long long)bits_peek(p, pos)), _mm512_sub_epi64(at, from));
    }
    const __m512i v = _mm512_i64gather_epi64(_mm512_srli_epi64(at, 3), p + (pos >> 3), 1);
    return _mm512_srlv_epi64(v, _mm512_and_si512(at, EACH64(NUMBER.seven)));
}
#endif

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

typedef struct {
    __m512i k[1], high[1], low[1];
} group16;

typedef struct {
    __m512i k[2], high[2], low[2];
} group32;

#define ULP_NARROW "codec/ulp_avx512_lanes.inc.h"
#define ULP_WIDE "codec/ulp_avx512_lanes.inc.h"
#include "codec/ulp_widths.inc.h"

#undef NUMBER
#undef EACH64
