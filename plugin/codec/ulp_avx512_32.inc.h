/* SPDX-License-Identifier: Apache-2.0 */
/* What ulp_block.inc.h asks for, with AVX-512, for W = 4: a group is two vectors of 16 lanes of 32 bits. */

#ifndef NB_ULP_AVX512_32
#define NB_ULP_AVX512_32
typedef struct {
    __m512i k[2], high[2], low[2];
} group32;
#endif

#define lane uint32_t
#define group group32
#define MAGNITUDE 0x7fffffff

static inline __m512i NAME(order)(__m512i x, __m512i flip)
{
    /* x ^ (sign & flip) */
    return _mm512_ternarylogic_epi32(x, _mm512_srai_epi32(x, 31), flip, 0x78);
}

static inline __m512i NAME(flip)(const struct nb_ulp_map *map)
{
    return _mm512_set1_epi32(map->plain ? 0 : MAGNITUDE);
}

static inline __m512i NAME(exponent)(__m512i r, const struct nb_ulp_map *map)
{
    return _mm512_srl_epi32(_mm512_and_si512(r, _mm512_set1_epi32(MAGNITUDE)), _mm_cvtsi32_si128(map->shift));
}

static inline __m512i NAME(clamp_k)(__m512i ex, unsigned c)
{
    const __m512i k = _mm512_sub_epi32(_mm512_set1_epi32((int)c), ex);

    return _mm512_min_epi32(_mm512_max_epi32(k, _mm512_setzero_si512()), _mm512_set1_epi32(NB_ULP_KMAX(W)));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const __m512i flip = NAME(flip)(map);
    __m512i any = _mm512_setzero_si512();

    for (int i = 0; i < 2; i++) {
        __m512i r = _mm512_loadu_si512(ref + 64 * i), x = _mm512_loadu_si512(cur + 64 * i);
        __m512i d = _mm512_sub_epi32(NAME(order)(x, flip), NAME(order)(r, flip));
        _mm512_store_si512(zz + 16 * i, _mm512_xor_si512(_mm512_add_epi32(d, d), _mm512_srai_epi32(d, 31)));
        _mm512_store_si512(ex + 16 * i, NAME(exponent)(r, map));
        any = _mm512_or_si512(any, d);
    }
    return _mm512_test_epi32_mask(any, any) != 0;
}

static inline __m512i NAME(add_cost)(__m512i sum, __m512i zz, __m512i k)
{
    __m512i high = _mm512_srlv_epi32(zz, k);

    high = _mm512_mask_mov_epi32(high, _mm512_cmpgt_epu32_mask(high, _mm512_set1_epi32(NB_ULP_PLANES)),
                                 _mm512_set1_epi32(NB_ULP_EXC_COST(W)));
    return _mm512_add_epi32(sum, _mm512_add_epi32(k, high));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0;

    for (size_t i = 0; i < n; i += 16) {
        const __m512i e = _mm512_load_si512(ex + i), z = _mm512_load_si512(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c - 1));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c + 1));
    }
    sum_three(s0, s1, s2, out);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    __m512i any = _mm512_setzero_si512();

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += 16) {
        const size_t from = i / 32 * 64 + i % 32;
        __m512i z = _mm512_mask_loadu_epi32(_mm512_load_si512(zz + from), 0xaaaa, zz + from + 32);
        __m512i e = _mm512_mask_loadu_epi32(_mm512_load_si512(ex + from), 0xaaaa, ex + from + 32);
        _mm512_store_si512(zs + i, z);
        _mm512_store_si512(es + i, e);
        any = _mm512_or_si512(any, z);
    }
    return _mm512_test_epi32_mask(any, any) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    for (int i = 0; i < 2; i++) {
        const __m512i z = _mm512_load_si512(zz + 16 * i);
        g->k[i] = NAME(clamp_k)(_mm512_load_si512(ex + 16 * i), c);
        g->high[i] = _mm512_srlv_epi32(z, g->k[i]);
        g->low[i] = _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), g->k[i]), z);
    }
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    for (int i = 0; i < 2; i++) {
        g->high[i] = _mm512_maskz_mov_epi32((__mmask16)(~mask >> 16 * i), g->high[i]);
        g->low[i] = _mm512_maskz_mov_epi32((__mmask16)(~mask >> 16 * i), g->low[i]);
    }
}

static inline int NAME(low_is_zero)(const group *g)
{
    const __m512i any = _mm512_or_si512(g->low[0], g->low[1]);

    return _mm512_test_epi32_mask(any, any) == 0;
}

static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    const __m512i limit = _mm512_set1_epi32((int)j);

    return (uint32_t)_mm512_cmpgt_epu32_mask(g->high[0], limit) |
           (uint32_t)_mm512_cmpgt_epu32_mask(g->high[1], limit) << 16;
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    const __m512i low32 = _mm512_set1_epi64(0xffffffff);

    for (int i = 0; i < 2; i++) {
        if (_mm512_test_epi32_mask(g->k[i], g->k[i]) == 0)
            continue;
        __m512i k = _mm512_and_si512(g->k[i], low32), v = g->low[i];
        v = _mm512_or_si512(_mm512_and_si512(v, low32), _mm512_sllv_epi64(_mm512_srli_epi64(v, 32), k));
        put_lanes(b, v, _mm512_add_epi64(k, _mm512_srli_epi64(g->k[i], 32)));
    }
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    for (int i = 0; i < 2; i++) {
        g->k[i] = NAME(clamp_k)(_mm512_max_epu32(NAME(exponent)(_mm512_loadu_si512(ref + 64 * i), map),
                                                 _mm512_set1_epi32(map->floor)),
                                c);
    }
}

static inline void NAME(add)(group *g, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const __m512i one = _mm512_set1_epi32(1);

    for (int i = 0; i < 2; i++) {
        __m512i h = _mm512_maskz_mov_epi32((__mmask16)(m0 >> 16 * i), one);
        h = _mm512_mask_add_epi32(h, (__mmask16)(m1 >> 16 * i), h, one);
        h = _mm512_mask_add_epi32(h, (__mmask16)(m2 >> 16 * i), h, one);
        g->high[i] = _mm512_mask_add_epi32(h, (__mmask16)(m3 >> 16 * i), h, one);
    }
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    unsigned total, sum = 0;

    for (int i = 0; i < 2; i++) {
        const __m512i first = _mm512_and_si512(g->k[i], _mm512_set1_epi64(0xffffffff));
        __m512i v = get_lanes(p, pos + sum, _mm512_add_epi64(first, _mm512_srli_epi64(g->k[i], 32)), &total);
        v = _mm512_mask_mov_epi32(v, 0xaaaa, _mm512_slli_epi64(_mm512_srlv_epi64(v, first), 32));
        g->low[i] = _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), g->k[i]), v);
        sum += total;
    }
    return sum;
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const __m512i one = _mm512_set1_epi32(1), flip = NAME(flip)(map), zero = _mm512_setzero_si512();

    for (int i = 0; i < 2; i++) {
        __m512i z = _mm512_or_si512(g->low[i], _mm512_sllv_epi32(g->high[i], g->k[i])), d, o;
        d = _mm512_xor_si512(_mm512_srli_epi32(z, 1), _mm512_sub_epi32(zero, _mm512_and_si512(z, one)));
        o = _mm512_add_epi32(NAME(order)(_mm512_loadu_si512(ref + 64 * i), flip), d);
        _mm512_storeu_si512(dst + 64 * i, NAME(order)(o, flip));
    }
}

static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < 2; i++)
        _mm512_store_si512(zz + 16 * i, _mm512_or_si512(g->low[i], _mm512_sllv_epi32(g->high[i], g->k[i])));
}

#include "codec/ulp_block.inc.h"

#undef lane
#undef group
#undef MAGNITUDE
