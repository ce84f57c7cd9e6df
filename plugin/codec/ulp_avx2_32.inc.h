/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that ulp_block.inc.h needs, with AVX2, for W = 4: a group is four vectors of eight lanes of
 * 32 bits. */

#define lane uint32_t
#define signed_lane int32_t
#define group group32
#define LANES 8
#define VECS 4
#define EPI(op) _mm256_##op##_epi32
#define EPU(op) _mm256_##op##_epu32

/* Load eight values. */
static inline __m256i NAME(load)(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void NAME(store)(uint8_t *p, int i, const __m256i *x)
{
    _mm256_storeu_si256((__m256i *)p + i, x[i]);
}

static inline __m256i NAME(to_words)(const lane *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

static inline __m256i NAME(clamp_k)(__m256i ex, unsigned c)
{
    const __m256i k = _mm256_sub_epi32(_mm256_set1_epi32((int)c), ex);

    return _mm256_min_epi32(_mm256_max_epi32(k, _mm256_setzero_si256()), _mm256_set1_epi32(NB_ULP_KMAX(W)));
}

static inline __m256i NAME(add_cost)(__m256i sum, __m256i zz, __m256i k)
{
    /* All values beyond the planes cost the same: 5 at most. */
    const __m256i cost = _mm256_setr_epi32(0, 1, 2, 3, 4, NB_ULP_EXC_COST(W), 0, 0);
    const __m256i high = _mm256_min_epu32(_mm256_srlv_epi32(zz, k), _mm256_set1_epi32(NB_ULP_PLANES + 1));

    return _mm256_add_epi32(sum, _mm256_add_epi32(k, _mm256_permutevar8x32_epi32(cost, high)));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    __m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0;

    for (size_t i = 0; i < n; i += 8) {
        const __m256i e = _mm256_load_si256((const __m256i *)(ex + i));
        const __m256i z = _mm256_load_si256((const __m256i *)(zz + i));
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c - 1));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c + 1));
    }
    sum_three(s0, s1, s2, out);
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const __m256i most = _mm256_set1_epi32(127);
    __m256i high[4];

    for (int i = 0; i < 4; i++) {
        const __m256i z = _mm256_load_si256((const __m256i *)zz + i);
        g->k[i] = NAME(clamp_k)(_mm256_load_si256((const __m256i *)ex + i), c);
        high[i] = _mm256_min_epu32(_mm256_srlv_epi32(z, g->k[i]), most);
        g->low[i] = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), g->k[i]), z);
    }
    g->high =
        _mm256_packus_epi16(_mm256_packus_epi32(high[0], high[1]), _mm256_packus_epi32(high[2], high[3]));
    g->high = _mm256_permutevar8x32_epi32(g->high, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    const __m256i dropped = expand_bytes(mask);

    g->high = _mm256_andnot_si256(dropped, g->high);
    for (int i = 0; i < 4; i++)
        g->low[i] = _mm256_andnot_si256(_mm256_cvtepi8_epi32(quarter_of(dropped, i)), g->low[i]);
}

static inline int NAME(low_is_zero)(const group *g)
{
    const __m256i any =
        _mm256_or_si256(_mm256_or_si256(g->low[0], g->low[1]), _mm256_or_si256(g->low[2], g->low[3]));

    return _mm256_testz_si256(any, any);
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    const __m256i one = _mm256_set1_epi32(1);
    _Alignas(32) uint64_t z[4], keep[4];

    for (int i = 0; i < 4; i++) {
        if (_mm256_testz_si256(g->k[i], g->k[i]))
            continue;
        _mm256_store_si256((__m256i *)z, g->low[i]);
        _mm256_store_si256((__m256i *)keep, _mm256_sub_epi32(_mm256_sllv_epi32(one, g->k[i]), one));
        put_four(b, z, keep);
    }
}

static inline void NAME(set_width)(group *g, int i, __m256i k)
{
    g->k[i] = k;
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    unsigned sum = 0, total;

    for (int i = 0; i < 4; i++) {
        if (_mm256_testz_si256(g->k[i], g->k[i])) {
            g->low[i] = _mm256_setzero_si256();
            continue;
        }
        const __m256i first = _mm256_and_si256(g->k[i], _mm256_set1_epi64x(0xffffffff));
        __m256i v = get_lanes(p, pos + sum, _mm256_add_epi64(first, _mm256_srli_epi64(g->k[i], 32)), &total);
        v = _mm256_blend_epi32(v, _mm256_slli_epi64(_mm256_srlv_epi64(v, first), 32), 0xaa);
        g->low[i] = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), g->k[i]), v);
        sum += total;
    }
    return sum;
}

/* Return the zigzagged differences of a quarter of a group. */
static inline __m256i NAME(joined)(const group *g, int i)
{
    const __m256i high = _mm256_cvtepu8_epi32(quarter_of(g->high, i));

    return _mm256_or_si256(g->low[i], _mm256_sllv_epi32(high, g->k[i]));
}

#include "codec/ulp_avx2_lanes.inc.h"

#undef lane
#undef signed_lane
#undef group
#undef LANES
#undef VECS
#undef EPI
#undef EPU
