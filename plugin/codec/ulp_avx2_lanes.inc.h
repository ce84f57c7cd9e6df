/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that ulp_block.inc.h needs, with AVX2, for any width of a lane. ulp_avx2_16.inc.h and
 * ulp_avx2_32.inc.h define
 *
 *     lane, signed_lane       a lane; a vector has LANES of them. VECS vectors are a group of 32 values
 *     EPI(op), EPU(op)        an intrinsic on lanes, or on unsigned ones
 *     load, store             a vector from values of W bytes, sign-extended to lanes; vector i of a group to
 *                             such values
 *     to_words                the first eight lanes at an address, as words of 32 bits
 *     clamp_k, costs          the width of the low parts; the price of a run with three widths
 *     split, drop             a group of differences into high and low parts; without some of its values
 *     low_is_zero, put_low    the low parts of a group, as the string of bits has them
 *     set_width, get_low      decoding: the width of the low parts of vector i, then the parts
 *     joined                  decoding: the differences of vector i, zigzagged
 */

#define MAGNITUDE ((int)((1u << (8 * W - 1)) - 1))
#define LANE_BITS ((int)(8 * sizeof(lane)))

/* Values of width 1 wrap as bytes do. */
static inline __m256i NAME(wrap)(__m256i x)
{
#if W == 1
    return EPI(srai)(EPI(slli)(x, 8), 8);
#else
    return x;
#endif
}

/* Convert between pattern and ordered integer (its own inverse). flip is MAGNITUDE or, for plain integers,
 * 0. */
static inline __m256i NAME(order)(__m256i x, __m256i flip)
{
    return _mm256_xor_si256(x, _mm256_and_si256(EPI(srai)(x, LANE_BITS - 1), flip));
}

static inline __m256i NAME(flip)(const struct nb_ulp_map *map)
{
    return EPI(set1)(map->plain ? 0 : MAGNITUDE);
}

static inline __m256i NAME(exponent)(__m256i r, const struct nb_ulp_map *map)
{
    return EPI(srl)(_mm256_and_si256(r, EPI(set1)(MAGNITUDE)), _mm_cvtsi32_si128(map->shift));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const __m256i flip = NAME(flip)(map);
    __m256i any = _mm256_setzero_si256();

    for (int i = 0; i < VECS; i++) {
        const __m256i r = NAME(load)(ref + LANES * W * i), x = NAME(load)(cur + LANES * W * i);
        const __m256i d = NAME(wrap)(EPI(sub)(NAME(order)(x, flip), NAME(order)(r, flip)));
        _mm256_store_si256((__m256i *)zz + i, _mm256_xor_si256(EPI(add)(d, d), EPI(srai)(d, LANE_BITS - 1)));
        _mm256_store_si256((__m256i *)ex + i, NAME(exponent)(r, map));
        any = _mm256_or_si256(any, d);
    }
    return !_mm256_testz_si256(any, any);
}

static unsigned NAME(estimate)(const lane *zz, const lane *ex, size_t n)
{
    __m256i sum = _mm256_setzero_si256(), equal = sum;

    for (size_t i = 0; i < n; i += 8)
        add_bits(NAME(to_words)(zz + i), NAME(to_words)(ex + i), &sum, &equal);
    return estimate_of(sum, equal, n);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    __m256i any = _mm256_setzero_si256();

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += LANES) {
        const size_t from = i / 32 * 64 + i % 32;
        const __m256i *z = (const __m256i *)(zz + from), *e = (const __m256i *)(ex + from);
        const __m256i s = EPI(blend)(_mm256_load_si256(z), _mm256_load_si256(z + VECS), 0xaa);
        _mm256_store_si256((__m256i *)(zs + i), s);
        _mm256_store_si256((__m256i *)(es + i),
                           EPI(blend)(_mm256_load_si256(e), _mm256_load_si256(e + VECS), 0xaa));
        any = _mm256_or_si256(any, s);
    }
    return !_mm256_testz_si256(any, any);
}

static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(g->high, _mm256_set1_epi8((char)j)));
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    for (int i = 0; i < VECS; i++) {
        __m256i ex = NAME(exponent)(NAME(load)(ref + LANES * W * i), map);
        if (map->floor)
            ex = EPU(max)(ex, EPI(set1)((signed_lane)map->floor));
        NAME(set_width)(g, i, NAME(clamp_k)(ex, c));
    }
}

static inline void NAME(add)(group *g, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    g->high = sum_of_masks(m0, m1, m2, m3);
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const __m256i one = EPI(set1)(1), flip = NAME(flip)(map), zero = _mm256_setzero_si256();
    __m256i out[VECS];

    for (int i = 0; i < VECS; i++) {
        __m256i z = NAME(joined)(g, i);
        if (W == 1) /* high parts may exceed it in blocks that no encoder writes */
            z = _mm256_and_si256(z, EPI(set1)(0xff));
        const __m256i d = _mm256_xor_si256(EPI(srli)(z, 1), EPI(sub)(zero, _mm256_and_si256(z, one)));
        const __m256i o = NAME(wrap)(EPI(add)(NAME(order)(NAME(load)(ref + LANES * W * i), flip), d));
        out[i] = NAME(order)(o, flip);
        NAME(store)(dst, i, out);
    }
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < VECS; i++)
        _mm256_store_si256((__m256i *)zz + i, NAME(joined)(g, i));
}
#endif

#define HAVE_MASKS
/* Return a bit for each of 64 values whose lane of the vectors, which have W bytes each, is 0. */
static inline uint64_t NAME(zero_lanes)(const __m256i *v)
{
    uint64_t mask = 0;

#if W == 4
    for (int i = 0; i < 8; i++)
        mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(v[i])) << 8 * i;
#else
    for (int i = 0; i < 2; i++) {
#if W == 1
        const __m256i bytes = v[i];
#else
        const __m256i bytes =
            _mm256_permute4x64_epi64(_mm256_packs_epi16(v[2 * i], v[2 * i + 1]), _MM_SHUFFLE(3, 1, 2, 0));
#endif
        mask |= (uint64_t)(uint32_t)_mm256_movemask_epi8(bytes) << 32 * i;
    }
#endif
    return ~mask;
}

#if W == 1
#define LANES_OF(op) _mm256_##op##_epi8
#elif W == 2
#define LANES_OF(op) _mm256_##op##_epi16
#else
#define LANES_OF(op) _mm256_##op##_epi32
#endif

static inline uint64_t NAME(changed)(const uint8_t *cur, const uint8_t *ref)
{
    __m256i equal[2 * W];

    for (int i = 0; i < 2 * W; i++)
        equal[i] = LANES_OF(cmpeq)(_mm256_loadu_si256((const __m256i *)(cur + 32 * i)),
                                   _mm256_loadu_si256((const __m256i *)(ref + 32 * i)));
    return NAME(zero_lanes)(equal);
}

static inline uint64_t NAME(below)(const uint8_t *ref, uint32_t bound)
{
#if W == 1
    const __m256i magnitude = _mm256_set1_epi8(MAGNITUDE), most = _mm256_set1_epi8((char)(bound - 1));
#elif W == 2
    const __m256i magnitude = _mm256_set1_epi16(MAGNITUDE), most = _mm256_set1_epi16((short)(bound - 1));
#else
    const __m256i magnitude = _mm256_set1_epi32(MAGNITUDE), most = _mm256_set1_epi32((int)(bound - 1));
#endif
    __m256i over[2 * W];

    for (int i = 0; i < 2 * W; i++)
        over[i] = LANES_OF(cmpgt)(
            _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(ref + 32 * i)), magnitude), most);
    return NAME(zero_lanes)(over);
}

#undef LANES_OF

#include "codec/ulp_block.inc.h"

#undef HAVE_MASKS
#undef MAGNITUDE
#undef LANE_BITS
