/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that ulp_block.inc.h needs, with AVX-512, once for lanes of 16 bits (W = 1 and 2: a group is
 * one vector) and of 32 bits (W = 4: two vectors). Values of width 1 are sign-extended into their lanes, so
 * that the same code orders and subtracts them.
 */

#if W == 4
#define lane uint32_t
#define signed_lane int32_t
#define group group32
#define lane_mask __mmask16
#define LANE_BITS 32
#define VECS 2
#define MAGNITUDE 0x7fffffff
#define EPI(op) _mm512_##op##_epi32
#define EPU(op) _mm512_##op##_epu32
#define EPI_MASK(op) _mm512_##op##_epi32_mask
#define EPU_MASK(op) _mm512_##op##_epu32_mask
#else
#define lane uint16_t
#define signed_lane int16_t
#define group group16
#define lane_mask __mmask32
#define LANE_BITS 16
#define VECS 1
#define MAGNITUDE ((1 << (8 * W - 1)) - 1)
#define EPI(op) _mm512_##op##_epi16
#define EPU(op) _mm512_##op##_epu16
#define EPI_MASK(op) _mm512_##op##_epi16_mask
#define EPU_MASK(op) _mm512_##op##_epu16_mask
#endif
#define LANES (512 / LANE_BITS)

#define EACH(x) EPI(set1)((signed_lane)(x))

/* The bits of vector i of a mask of 32 values. */
#define PART(mask, i) ((lane_mask)((mask) >> (LANES * (i)&31)))

static inline __m512i NAME(load)(const uint8_t *p)
{
#if W == 1
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
#else
    return _mm512_loadu_si512(p);
#endif
}

static inline void NAME(store)(uint8_t *p, __m512i x)
{
#if W == 1
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi16_epi8(x));
#else
    _mm512_storeu_si512(p, x);
#endif
}

/* Sign-extend the lowest W bytes of a lane. */
static inline __m512i NAME(wrap)(__m512i x)
{
    return W == 1 ? EPI(srai)(EPI(slli)(x, 8), 8) : x;
}

static inline __m512i NAME(order)(__m512i x, __m512i flip)
{
    /* x ^ (sign & flip) */
    return _mm512_ternarylogic_epi32(x, EPI(srai)(x, LANE_BITS - 1), flip, 0x78);
}

static inline __m512i NAME(flip)(const struct nb_ulp_map *map)
{
    return EPI(set1)((signed_lane)(map->plain ? 0 : MAGNITUDE));
}

static inline __m512i NAME(exponent)(__m512i r, const struct nb_ulp_map *map)
{
    return EPI(srl)(_mm512_and_si512(r, EACH(NUMBER.magnitude[W])), _mm_cvtsi32_si128(map->shift));
}

static inline __m512i NAME(clamp_k)(__m512i ex, unsigned c)
{
#if W == 4
    const __m512i k =
        _mm512_max_epi32(_mm512_sub_epi32(_mm512_set1_epi32((int)c), ex), _mm512_setzero_si512());
#else
    const __m512i k = _mm512_subs_epu16(_mm512_set1_epi16((short)c), ex);
#endif
    return EPU(min)(k, EACH(NUMBER.kmax[W]));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const __m512i flip = NAME(flip)(map);
    __m512i any = _mm512_setzero_si512();

    for (int i = 0; i < VECS; i++) {
        const __m512i r = NAME(load)(ref + 64 * i), x = NAME(load)(cur + 64 * i);
        const __m512i d = NAME(wrap)(EPI(sub)(NAME(order)(x, flip), NAME(order)(r, flip)));
        _mm512_store_si512(zz + LANES * i, _mm512_xor_si512(EPI(add)(d, d), EPI(srai)(d, LANE_BITS - 1)));
        _mm512_store_si512(ex + LANES * i, NAME(exponent)(r, map));
        any = _mm512_or_si512(any, d);
    }
    return EPI_MASK(test)(any, any) != 0;
}

static inline __m512i NAME(add_cost)(__m512i sum, __m512i zz, __m512i k)
{
    __m512i high = EPI(srlv)(zz, k);

    high = EPI(mask_mov)(high, EPU_MASK(cmpgt)(high, EACH(NUMBER.count[NB_ULP_PLANES])),
                         EACH(NUMBER.exception[W]));
    return EPI(add)(sum, EPI(add)(k, high));
}

/* Sums of pairs of lanes of 16 bits. */
static inline __m512i NAME(in_words)(__m512i sum)
{
    return LANE_BITS == 16 ? _mm512_madd_epi16(sum, EACH(NUMBER.count[1])) : sum;
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0;

    /* A lane's sum stays small: at most eight or sixteen times the largest k and the price of an
     * exception. */
    for (size_t i = 0; i < n; i += LANES) {
        const __m512i e = _mm512_load_si512(ex + i), z = _mm512_load_si512(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c - 1));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c + 1));
    }
    sum_three(NAME(in_words)(s0), NAME(in_words)(s1), NAME(in_words)(s2), out);
}

/* Sixteen values as words. */
static inline __m512i NAME(words)(const lane *p)
{
#if W == 4
    return _mm512_load_si512(p);
#else
    return _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)p));
#endif
}

#define HAVE_ESTIMATE
static unsigned NAME(estimate)(const lane *zz, const lane *ex, size_t n)
{
    __m512i sum = _mm512_setzero_si512();
    unsigned count = 0;

    for (size_t i = 0; i < n; i += 16) {
        const __m512i z = NAME(words)(zz + i);
        const __mmask16 any = _mm512_test_epi32_mask(z, z);
        /* The exponent of its float gives its highest bit. Clearing the next bit keeps it from being rounded
         * up. */
        const __m512 f = _mm512_cvtepu32_ps(_mm512_andnot_si512(_mm512_srli_epi32(z, 1), z));
        const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(f), 23);
        sum = _mm512_mask_add_epi32(sum, any, sum, _mm512_add_epi32(bits, NAME(words)(ex + i)));
        count += (unsigned)__builtin_popcount(any);
    }
    return nb_ulp_estimate((uint64_t)(uint32_t)_mm512_reduce_add_epi32(sum) - 126 * count, count);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    __m512i any = _mm512_setzero_si512();

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += LANES) {
        const size_t from = i / 32 * 64 + i % 32;
        const lane_mask odd = (lane_mask)0xaaaaaaaa;
        const __m512i z = EPI(mask_loadu)(_mm512_load_si512(zz + from), odd, zz + from + 32);
        const __m512i e = EPI(mask_loadu)(_mm512_load_si512(ex + from), odd, ex + from + 32);
        _mm512_store_si512(zs + i, z);
        _mm512_store_si512(es + i, e);
        any = _mm512_or_si512(any, z);
    }
    return EPI_MASK(test)(any, any) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    for (int i = 0; i < VECS; i++) {
        const __m512i z = _mm512_load_si512(zz + LANES * i);
        g->k[i] = NAME(clamp_k)(_mm512_load_si512(ex + LANES * i), c);
        g->high[i] = EPI(srlv)(z, g->k[i]);
        g->low[i] = _mm512_andnot_si512(EPI(sllv)(EPI(set1)(-1), g->k[i]), z);
    }
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    for (int i = 0; i < VECS; i++) {
        g->high[i] = EPI(maskz_mov)(PART(~mask, i), g->high[i]);
        g->low[i] = EPI(maskz_mov)(PART(~mask, i), g->low[i]);
    }
}

static inline int NAME(low_is_zero)(const group *g)
{
    const __m512i any = _mm512_or_si512(g->low[0], g->low[VECS - 1]);

    return EPI_MASK(test)(any, any) == 0;
}

static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    uint32_t mask = 0;

    for (int i = 0; i < VECS; i++)
        mask |= (uint32_t)(j ? NB_MASK(EPU_MASK(cmpgt)(g->high[i], EACH(NUMBER.count[j])))
                             : EPI_MASK(test)(g->high[i], g->high[i]))
                << (LANES * i & 31);
    return mask;
}

#if W < 4
/* A bit for each cell of four values that has a bit in plane 0. */
#define HAVE_CELLS
static inline uint32_t NAME(cells)(const group *g)
{
    return _mm512_test_epi64_mask(g->high[0], g->high[0]);
}
#endif

/* Return the low parts of a vector as eight strings. */
static inline __m512i NAME(strings)(__m512i v, __m512i k)
{
    const __m512i low32 = EACH64(NUMBER.low32);
    __m512i first = k;

#if W < 4
    /* Pairs of lanes become one string each: low + high * 2^k(low). Then pairs of pairs. */
    const __m512i one = EACH(NUMBER.count[1]);
    v = _mm512_madd_epi16(v, _mm512_sllv_epi16(one, _mm512_slli_epi32(k, 16)));
    first = _mm512_madd_epi16(k, one);
#endif
    const __m512i second = _mm512_sllv_epi64(_mm512_srli_epi64(v, 32), _mm512_and_si512(first, low32));
    return _mm512_ternarylogic_epi32(v, low32, second, 0xea); /* (v & low32) | second */
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    for (int i = 0; i < VECS; i++) {
        const __m512i len = string_lengths(g->k[i]);
        unsigned total;
        const __m512i before = lengths_before(len, &total);
        if (total)
            put_strings(b, NAME(strings)(g->low[i], g->k[i]), len, before, total);
    }
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    for (int i = 0; i < VECS; i++) {
        __m512i ex = NAME(exponent)(NAME(load)(ref + 64 * i), map);
        if (map->floor)
            ex = EPU(max)(ex, EPI(set1)(map->floor));
        g->k[i] = NAME(clamp_k)(ex, c);
    }
}

static inline void NAME(add)(group *g, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const __m512i minus = EPI(set1)(-1), zero = _mm512_setzero_si512();

    for (int i = 0; i < VECS; i++) {
        __m512i h = EPI(mask_sub)(zero, PART(m0, i), zero, minus);
        h = EPI(mask_sub)(h, PART(m1, i), h, minus);
        h = EPI(mask_sub)(h, PART(m2, i), h, minus);
        g->high[i] = EPI(mask_sub)(h, PART(m3, i), h, minus);
    }
}

/* Get the low parts of a vector at bit `pos`. Bits above their k bits are undefined. */
static inline __m512i NAME(get_vector)(const uint8_t *p, size_t pos, __m512i k, unsigned *total)
{
    const __m512i at = string_places(pos, lengths_before(string_lengths(k), total));

#ifdef ULP_VBMI
    /* The beginning of a lane's bits in its string, and eight for each further byte of the lane. These are
     * sums over bytes: a multiplication forms them from the k's, each shifted by a lane, and from a
     * constant. */
    const __m512i begin = _mm512_ternarylogic_epi64(at, EACH64(NUMBER.seven), EACH64(NUMBER.begin[W]),
                                                    0xea); /* (at & 7) | begin */
    const __m512i bits =
        _mm512_mullo_epi64(_mm512_add_epi64(begin, _mm512_slli_epi64(k, LANE_BITS)), EACH64(NUMBER.sums));
    return _mm512_multishift_epi64_epi8(bits, get_strings(p, pos, at));
#else
    __m512i v = get_strings(p, pos, at, *total), first = k;
#if W < 4
    first = _mm512_madd_epi16(k, _mm512_set1_epi16(1));
#endif
    first = _mm512_and_si512(first, _mm512_set1_epi64(0xffffffff));
    v = _mm512_mask_mov_epi32(v, 0xaaaa, _mm512_slli_epi64(_mm512_srlv_epi64(v, first), 32));
#if W < 4
    const __m512i even = _mm512_and_si512(k, _mm512_set1_epi32(0xffff));
    v = _mm512_mask_mov_epi16(v, 0xaaaaaaaa, _mm512_slli_epi32(_mm512_srlv_epi32(v, even), 16));
#endif
    return v;
#endif
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    unsigned total, sum = 0;

    for (int i = 0; i < VECS; i++) {
        const __m512i v = NAME(get_vector)(p, pos + sum, g->k[i], &total);
        g->low[i] = _mm512_andnot_si512(EPI(sllv)(EPI(set1)(-1), g->k[i]), v);
        sum += total;
    }
    return sum;
}

/* Return the zigzagged differences of a vector. */
static inline __m512i NAME(joined)(const group *g, int i)
{
    return _mm512_or_si512(g->low[i], EPI(sllv)(g->high[i], g->k[i]));
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const __m512i flip = NAME(flip)(map);

    for (int i = 0; i < VECS; i++) {
        __m512i z = NAME(joined)(g, i);
        if (W == 1) /* high parts may exceed it in blocks that no encoder writes */
            z = _mm512_and_si512(z, EPI(set1)(0xff));
        const __m512i minus = EPI(srai)(EPI(slli)(z, LANE_BITS - 1), LANE_BITS - 1); /* where z is odd */
        const __m512i d = _mm512_xor_si512(EPI(srli)(z, 1), minus);
        const __m512i o = NAME(wrap)(EPI(add)(NAME(order)(NAME(load)(ref + 64 * i), flip), d));
        NAME(store)(dst + 64 * i, NAME(order)(o, flip));
    }
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < VECS; i++)
        _mm512_store_si512(zz + LANES * i, NAME(joined)(g, i));
}
#endif

#define HAVE_MASKS
#if W == 1
#define MASKS(op, a, b) (uint64_t) _mm512_##op##_epu8_mask(a(0), b(0))
#elif W == 2
#define MASKS(op, a, b) \
    ((uint64_t)_mm512_##op##_epu16_mask(a(0), b(0)) | (uint64_t)_mm512_##op##_epu16_mask(a(1), b(1)) << 32)
#else
#define MASKS(op, a, b) \
    ((uint64_t)_mm512_##op##_epu32_mask(a(0), b(0)) | (uint64_t)_mm512_##op##_epu32_mask(a(1), b(1)) << 16 | \
     (uint64_t)_mm512_##op##_epu32_mask(a(2), b(2)) << 32 | \
     (uint64_t)_mm512_##op##_epu32_mask(a(3), b(3)) << 48)
#endif
#define CUR(i) _mm512_loadu_si512(cur + 64 * (i))
#define REF(i) _mm512_loadu_si512(ref + 64 * (i))
#define UNSIGNED(i) _mm512_and_si512(REF(i), magnitude)
#define BOUND(i) most

static inline uint64_t NAME(changed)(const uint8_t *cur, const uint8_t *ref)
{
    return MASKS(cmpneq, CUR, REF);
}

static inline uint64_t NAME(below)(const uint8_t *ref, uint32_t bound)
{
#if W == 1
    const __m512i magnitude = _mm512_set1_epi8(0x7f), most = _mm512_set1_epi8((char)bound);
#elif W == 2
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), most = _mm512_set1_epi16((short)bound);
#else
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), most = _mm512_set1_epi32((int)bound);
#endif

    return MASKS(cmplt, UNSIGNED, BOUND);
}

#undef MASKS
#undef CUR
#undef REF
#undef UNSIGNED
#undef BOUND

#include "codec/ulp_block.inc.h"

#undef lane
#undef signed_lane
#undef group
#undef lane_mask
#undef LANE_BITS
#undef LANES
#undef VECS
#undef MAGNITUDE
#undef EPI
#undef EPU
#undef EPI_MASK
#undef EPU_MASK
#undef PART
#undef EACH
#undef HAVE_CELLS
#undef HAVE_ESTIMATE
#undef HAVE_MASKS
