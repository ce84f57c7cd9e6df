/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that ulp_block.inc.h needs, with AVX2, for W = 1 and 2: a group is two vectors of sixteen
 * lanes of 16 bits. Values of width 1 are sign-extended into their lanes, so that the same code orders and
 * subtracts them. AVX2 has no shifts by different amounts in such lanes: products with powers of two replace
 * them, and pext and pdep move the low parts, four values at a time.
 */

#ifndef NB_ULP_AVX2_16
#define NB_ULP_AVX2_16
typedef struct {
    __m256i z[2], power[2], keep[2]; /* differences; 2^k; 2^k - 1, the bits of the low parts */
    __m256i high;                    /* a byte a value, in order, at most 127 */
    __m256i low[2];                  /* decoding only */
} group16;

/* Prepare two lookups of a byte each: k in the low byte, and k with bit 3 inverted in the high one. */
static inline __m256i power_index(__m256i k)
{
    return _mm256_xor_si256(_mm256_or_si256(k, _mm256_slli_epi16(k, 8)), _mm256_set1_epi16(0x0800));
}

/* 2^k for k < 16. */
static inline __m256i power_up(__m256i index)
{
    return _mm256_shuffle_epi8(_mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4,
                                                8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0),
                               index);
}

/* 2^(16 - k) for 0 < k < 16. */
static inline __m256i power_down(__m256i index)
{
    return _mm256_shuffle_epi8(_mm256_setr_epi8(1, 0, 0, 0, 0, 0, 0, 0, 0, -128, 64, 32, 16, 8, 4, 2, 1, 0, 0,
                                                0, 0, 0, 0, 0, 0, -128, 64, 32, 16, 8, 4, 2),
                               index);
}
#endif

#define lane uint16_t
#define signed_lane int16_t
#define group group16
#define LANES 16
#define VECS 2
#define EPI(op) _mm256_##op##_epi16
#define EPU(op) _mm256_##op##_epu16

/* Load sixteen values. */
static inline __m256i NAME(load)(const uint8_t *p)
{
#if W == 1
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
#else
    return _mm256_loadu_si256((const __m256i *)p);
#endif
}

/* Store both vectors of a group when i is its second, as bytes are packed from two. */
static inline void NAME(store)(uint8_t *p, int i, const __m256i *x)
{
    if (i == 0)
        return;
#if W == 1
    const __m256i bytes = _mm256_set1_epi16(0xff);
    const __m256i v = _mm256_packus_epi16(_mm256_and_si256(x[0], bytes), _mm256_and_si256(x[1], bytes));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(v, _MM_SHUFFLE(3, 1, 2, 0)));
#else
    _mm256_storeu_si256((__m256i *)p, x[0]);
    _mm256_storeu_si256((__m256i *)p + 1, x[1]);
#endif
}

static inline __m256i NAME(to_words)(const lane *p)
{
    return _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)p));
}

static inline __m256i NAME(clamp_k)(__m256i ex, unsigned c)
{
    return _mm256_min_epu16(_mm256_subs_epu16(_mm256_set1_epi16((short)c), ex),
                            _mm256_set1_epi16(NB_ULP_KMAX(W)));
}

/* Return z >> k, with k as power_index() takes it apart. */
static inline __m256i NAME(shifted)(__m256i z, __m256i k)
{
    const __m256i down = _mm256_mulhi_epu16(z, power_down(power_index(k)));

    return _mm256_blendv_epi8(down, z, _mm256_cmpeq_epi16(k, _mm256_setzero_si256()));
}

/* Turn z >> before into z >> k, where k is `before` or one more. */
static inline __m256i NAME(shifted_on)(__m256i z, __m256i before, __m256i k)
{
    return _mm256_blendv_epi8(_mm256_srli_epi16(z, 1), z, _mm256_cmpeq_epi16(k, before));
}

static inline __m256i NAME(add_cost)(__m256i sum, __m256i high, __m256i k)
{
    const __m256i cost = _mm256_setr_epi8(0, 1, 2, 3, 4, NB_ULP_EXC_COST(W), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                          1, 2, 3, 4, NB_ULP_EXC_COST(W), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

    high = _mm256_shuffle_epi8(cost, _mm256_min_epu16(high, _mm256_set1_epi16(NB_ULP_PLANES + 1)));
    return _mm256_add_epi16(sum, _mm256_add_epi16(k, high));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0;

    /* A lane's sum stays small: at most sixteen times 14 + 33. */
    for (size_t i = 0; i < n; i += 16) {
        const __m256i e = _mm256_load_si256((const __m256i *)(ex + i));
        const __m256i k0 = NAME(clamp_k)(e, c - 1), k1 = NAME(clamp_k)(e, c), k2 = NAME(clamp_k)(e, c + 1);
        const __m256i h0 = NAME(shifted)(_mm256_load_si256((const __m256i *)(zz + i)), k0);
        const __m256i h1 = NAME(shifted_on)(h0, k0, k1), h2 = NAME(shifted_on)(h1, k1, k2);
        s0 = NAME(add_cost)(s0, h0, k0);
        s1 = NAME(add_cost)(s1, h1, k1);
        s2 = NAME(add_cost)(s2, h2, k2);
    }
    sum_three(_mm256_madd_epi16(s0, one), _mm256_madd_epi16(s1, one), _mm256_madd_epi16(s2, one), out);
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const __m256i minus = _mm256_set1_epi16(-1), most = _mm256_set1_epi16(127);
    __m256i high[2];

    for (int i = 0; i < 2; i++) {
        const __m256i k = NAME(clamp_k)(_mm256_load_si256((const __m256i *)ex + i), c);
        const __m256i index = power_index(k), none = _mm256_cmpeq_epi16(k, _mm256_setzero_si256());
        const __m256i z = _mm256_load_si256((const __m256i *)zz + i);
        g->z[i] = z;
        g->keep[i] = _mm256_add_epi16(power_up(index), minus);
        high[i] = _mm256_blendv_epi8(_mm256_mulhi_epu16(z, power_down(index)), z, none);
        high[i] = _mm256_min_epu16(high[i], most);
    }
    g->high = _mm256_permute4x64_epi64(_mm256_packus_epi16(high[0], high[1]), _MM_SHUFFLE(3, 1, 2, 0));
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    const __m256i dropped = expand_bytes(mask);

    g->high = _mm256_andnot_si256(dropped, g->high);
    for (int i = 0; i < 2; i++)
        g->z[i] = _mm256_andnot_si256(_mm256_cvtepi8_epi16(half_of(dropped, i)), g->z[i]);
}

static inline int NAME(low_is_zero)(const group *g)
{
    return _mm256_testz_si256(g->z[0], g->keep[0]) && _mm256_testz_si256(g->z[1], g->keep[1]);
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    _Alignas(32) uint64_t z[4], keep[4];

    for (int i = 0; i < 2; i++) {
        if (_mm256_testz_si256(g->keep[i], g->keep[i]))
            continue;
        _mm256_store_si256((__m256i *)z, g->z[i]);
        _mm256_store_si256((__m256i *)keep, g->keep[i]);
        put_four(b, z, keep);
    }
}

static inline void NAME(set_width)(group *g, int i, __m256i k)
{
    g->power[i] = power_up(power_index(k));
    g->keep[i] = _mm256_add_epi16(g->power[i], _mm256_set1_epi16(-1));
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    _Alignas(32) uint64_t keep[4];
    size_t at = pos;

    for (int i = 0; i < 2; i++) {
        if (_mm256_testz_si256(g->keep[i], g->keep[i])) {
            g->low[i] = _mm256_setzero_si256();
            continue;
        }
        _mm256_store_si256((__m256i *)keep, g->keep[i]);
        g->low[i] = get_four(p, &at, keep);
    }
    return (unsigned)(at - pos);
}

/* Return the zigzagged differences of half a group. */
static inline __m256i NAME(joined)(const group *g, int i)
{
    const __m256i high = _mm256_cvtepu8_epi16(half_of(g->high, i));

    return _mm256_or_si256(g->low[i], _mm256_mullo_epi16(high, g->power[i]));
}

#include "codec/ulp_avx2_lanes.inc.h"

#undef lane
#undef signed_lane
#undef group
#undef LANES
#undef VECS
#undef EPI
#undef EPU
