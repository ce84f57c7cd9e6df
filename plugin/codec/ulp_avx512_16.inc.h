/* SPDX-License-Identifier: Apache-2.0 */
/* What ulp_block.inc.h asks for, with AVX-512, for W = 1 and 2: a group is one vector of 32 lanes of 16 bits.
 * Values of width 1 are sign-extended into their lanes, so that the same code orders and subtracts them. */

#ifndef NB_ULP_AVX512_16
#define NB_ULP_AVX512_16
typedef struct {
    __m512i k, high, low;
} group16;
#endif

#define lane uint16_t
#define group group16
#define BITS (8 * W)
#define MAGNITUDE ((1 << (BITS - 1)) - 1)

static inline __m512i NAME(load)(const uint8_t *p)
{
#if W == 1
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
#else
    return _mm512_loadu_si512(p);
#endif
}

static inline __m512i NAME(order)(__m512i x, __m512i flip)
{
    /* x ^ (sign & flip) */
    return _mm512_ternarylogic_epi32(x, _mm512_srai_epi16(x, 15), flip, 0x78);
}

static inline __m512i NAME(flip)(const struct nb_ulp_map *map)
{
    return _mm512_set1_epi16(map->plain ? 0 : MAGNITUDE);
}

static inline __m512i NAME(exponent)(__m512i r, const struct nb_ulp_map *map)
{
    return _mm512_srl_epi16(_mm512_and_si512(r, _mm512_set1_epi16(MAGNITUDE)), _mm_cvtsi32_si128(map->shift));
}

static inline __m512i NAME(clamp_k)(__m512i ex, unsigned c)
{
    return _mm512_min_epu16(_mm512_subs_epu16(_mm512_set1_epi16((short)c), ex),
                            _mm512_set1_epi16(NB_ULP_KMAX(W)));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const __m512i flip = NAME(flip)(map), r = NAME(load)(ref);
    __m512i d = _mm512_sub_epi16(NAME(order)(NAME(load)(cur), flip), NAME(order)(r, flip)), z;

#if W == 1
    d = _mm512_srai_epi16(_mm512_slli_epi16(d, 8), 8);
#endif
    z = _mm512_xor_si512(_mm512_add_epi16(d, d), _mm512_srai_epi16(d, 15));
    _mm512_store_si512(zz, z);
    _mm512_store_si512(ex, NAME(exponent)(r, map));
    return _mm512_test_epi16_mask(z, z) != 0;
}

static inline __m512i NAME(add_cost)(__m512i sum, __m512i zz, __m512i k)
{
    __m512i high = _mm512_srlv_epi16(zz, k);

    high = _mm512_mask_mov_epi16(high, _mm512_cmpgt_epu16_mask(high, _mm512_set1_epi16(NB_ULP_PLANES)),
                                 _mm512_set1_epi16(NB_ULP_EXC_COST(W)));
    return _mm512_add_epi16(sum, _mm512_add_epi16(k, high));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    const __m512i one = _mm512_set1_epi16(1);
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0;

    /* A lane's sum stays small: at most 8 groups of 14 + 33. */
    for (size_t i = 0; i < n; i += 32) {
        const __m512i e = _mm512_load_si512(ex + i), z = _mm512_load_si512(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c - 1));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c + 1));
    }
    sum_three(_mm512_madd_epi16(s0, one), _mm512_madd_epi16(s1, one), _mm512_madd_epi16(s2, one), out);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    __m512i any = _mm512_setzero_si512();

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += 32) {
        __m512i z = _mm512_mask_loadu_epi16(_mm512_load_si512(zz + 2 * i), 0xaaaaaaaa, zz + 2 * i + 32);
        __m512i e = _mm512_mask_loadu_epi16(_mm512_load_si512(ex + 2 * i), 0xaaaaaaaa, ex + 2 * i + 32);
        _mm512_store_si512(zs + i, z);
        _mm512_store_si512(es + i, e);
        any = _mm512_or_si512(any, z);
    }
    return _mm512_test_epi16_mask(any, any) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const __m512i z = _mm512_load_si512(zz);

    g->k = NAME(clamp_k)(_mm512_load_si512(ex), c);
    g->high = _mm512_srlv_epi16(z, g->k);
    g->low = _mm512_andnot_si512(_mm512_sllv_epi16(_mm512_set1_epi16(-1), g->k), z);
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    g->high = _mm512_maskz_mov_epi16(~mask, g->high);
    g->low = _mm512_maskz_mov_epi16(~mask, g->low);
}

static inline int NAME(low_is_zero)(const group *g)
{
    return _mm512_test_epi16_mask(g->low, g->low) == 0;
}

static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return _mm512_cmpgt_epu16_mask(g->high, _mm512_set1_epi16((short)j));
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    const __m512i one = _mm512_set1_epi16(1), low32 = _mm512_set1_epi64(0xffffffff);
    __m512i first, len, v, high;

    if (_mm512_test_epi16_mask(g->k, g->k) == 0)
        return;
    /* Pairs of lanes become one string each: low + high * 2^k(low). */
    v = _mm512_madd_epi16(g->low, _mm512_sllv_epi16(one, _mm512_slli_epi32(g->k, 16)));
    len = _mm512_madd_epi16(g->k, one);
    /* Then pairs of pairs. */
    first = _mm512_and_si512(len, low32);
    high = _mm512_sllv_epi64(_mm512_srli_epi64(v, 32), first);
    v = _mm512_ternarylogic_epi32(v, low32, high, 0xea); /* (v & low32) | high */
    put_lanes(b, v, _mm512_add_epi64(first, _mm512_srli_epi64(len, 32)));
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    g->k = NAME(clamp_k)(
        _mm512_max_epu16(NAME(exponent)(NAME(load)(ref), map), _mm512_set1_epi16(map->floor)), c);
}

static inline void NAME(add)(group *g, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const __m512i minus = _mm512_set1_epi16(-1);
    __m512i a = _mm512_maskz_mov_epi16(m0, _mm512_set1_epi16(1)), b = _mm512_maskz_mov_epi16(m2, minus);

    a = _mm512_mask_sub_epi16(a, m1, a, minus);
    b = _mm512_mask_add_epi16(b, m3, b, minus);
    g->high = _mm512_sub_epi16(a, b);
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    __m512i k, len, v;
    unsigned total;

    if (_mm512_test_epi16_mask(g->k, g->k) == 0) {
        g->low = _mm512_setzero_si512();
        return 0;
    }
    k = _mm512_and_si512(g->k, _mm512_set1_epi32(0xffff));
    len = _mm512_madd_epi16(g->k, _mm512_set1_epi16(1));
    const __m512i first = _mm512_and_si512(len, _mm512_set1_epi64(0xffffffff));
    v = get_lanes(p, pos, _mm512_add_epi64(first, _mm512_srli_epi64(len, 32)), &total);
    v = _mm512_mask_mov_epi32(v, 0xaaaa, _mm512_slli_epi64(_mm512_srlv_epi64(v, first), 32));
    v = _mm512_mask_mov_epi16(v, 0xaaaaaaaa, _mm512_slli_epi32(_mm512_srlv_epi32(v, k), 16));
    g->low = _mm512_andnot_si512(_mm512_sllv_epi16(_mm512_set1_epi16(-1), g->k), v);
    return total;
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const __m512i one = _mm512_set1_epi16(1), flip = NAME(flip)(map);
    __m512i z = _mm512_or_si512(g->low, _mm512_sllv_epi16(g->high, g->k)), d, o;

#if W == 1
    z = _mm512_and_si512(z, _mm512_set1_epi16(0xff));
#endif
    d = _mm512_xor_si512(_mm512_srli_epi16(z, 1),
                         _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(z, one)));
    o = _mm512_add_epi16(NAME(order)(NAME(load)(ref), flip), d);
#if W == 1
    o = _mm512_srai_epi16(_mm512_slli_epi16(o, 8), 8);
    _mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi16_epi8(NAME(order)(o, flip)));
#else
    _mm512_storeu_si512(dst, NAME(order)(o, flip));
#endif
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    _mm512_store_si512(zz, _mm512_or_si512(g->low, _mm512_sllv_epi16(g->high, g->k)));
}
#endif

#include "codec/ulp_block.inc.h"

#undef lane
#undef group
#undef BITS
#undef MAGNITUDE
