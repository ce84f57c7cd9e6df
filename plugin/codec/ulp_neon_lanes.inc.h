/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that ulp_block.inc.h needs, with NEON, for any width of a lane. ulp_neon_16.inc.h and
 * ulp_neon_32.inc.h define
 *
 *     lane, signed_lane, vec      a lane; a vector of LANES of them. VECS vectors are a group of 32 values
 *     U(op), S(op)                an intrinsic on unsigned or signed lanes; SIGNED(x) and UNSIGNED(x) between the two
 *     AS_WORDS(x), ODD_LANES      a vector as words of 32 bits; a mask of every second lane
 *     load, store, wrap           values of W bytes, sign-extended to lanes
 *     narrow, widen               lanes to bytes and back
 *     put_low, get_low            the low parts of a group, as the string of bits has them
 */

/* Convert between pattern and ordered integer (its own inverse). flip is MAGNITUDE or, for plain integers,
 * 0. */
static inline vec NAME(order)(vec x, vec flip)
{
    const vec sign = UNSIGNED(S(vshrq_n)(SIGNED(x), 8 * sizeof(lane) - 1));
    return U(veorq)(x, U(vandq)(sign, flip));
}

static inline vec NAME(flip)(const struct nb_ulp_map *map)
{
    return U(vdupq_n)(map->plain ? 0 : MAGNITUDE);
}

static inline vec NAME(exponent)(vec r, const struct nb_ulp_map *map)
{
    return U(vshlq)(U(vandq)(r, U(vdupq_n)(MAGNITUDE)), S(vdupq_n)((signed_lane)(0 - map->shift)));
}

/* Return clamp(c - exponent), and its negative for shifts to the right. */
static inline vec NAME(clamp_k)(vec ex, vec c)
{
    return U(vminq)(U(vqsubq)(c, ex), U(vdupq_n)(NB_ULP_KMAX(W)));
}

static inline vec NAME(shift_right)(vec x, vec k)
{
    return U(vshlq)(x, S(vnegq)(SIGNED(k)));
}

static inline vec NAME(shift_left)(vec x, vec k)
{
    return U(vshlq)(x, SIGNED(k));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const vec flip = NAME(flip)(map);
    vec any = U(vdupq_n)(0);

    for (int i = 0; i < VECS; i++) {
        const vec r = NAME(load)(ref + LANES * W * i), x = NAME(load)(cur + LANES * W * i);
        const vec d = NAME(wrap)(U(vsubq)(NAME(order)(x, flip), NAME(order)(r, flip)));
        const vec sign = UNSIGNED(S(vshrq_n)(SIGNED(d), 8 * sizeof(lane) - 1));
        U(vst1q)(zz + LANES * i, U(veorq)(U(vaddq)(d, d), sign));
        U(vst1q)(ex + LANES * i, NAME(exponent)(r, map));
        any = U(vorrq)(any, d);
    }
    return vmaxvq_u32(AS_WORDS(any)) != 0;
}

static inline vec NAME(add_cost)(vec sum, vec zz, vec k)
{
    const vec high = NAME(shift_right)(zz, k);
    const vec cost =
        U(vbslq)(U(vcgtq)(high, U(vdupq_n)(NB_ULP_PLANES)), U(vdupq_n)(NB_ULP_EXC_COST(W)), high);
    return U(vaddq)(sum, U(vaddq)(k, cost));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    const vec c0 = U(vdupq_n)((lane)(c - 1)), c1 = U(vdupq_n)((lane)c), c2 = U(vdupq_n)((lane)(c + 1));
    vec s0 = U(vdupq_n)(0), s1 = s0, s2 = s0;

    for (size_t i = 0; i < n; i += LANES) {
        const vec e = U(vld1q)(ex + i), z = U(vld1q)(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c0));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c1));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c2));
    }
    out[0] = (uint32_t)U(vaddlvq)(s0);
    out[1] = (uint32_t)U(vaddlvq)(s1);
    out[2] = (uint32_t)U(vaddlvq)(s2);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    const vec odd = ODD_LANES;
    vec any = U(vdupq_n)(0);

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += LANES) {
        const size_t from = i / 32 * 64 + i % 32;
        const vec s = U(vbslq)(odd, U(vld1q)(zz + from + 32), U(vld1q)(zz + from));
        U(vst1q)(zs + i, s);
        U(vst1q)(es + i, U(vbslq)(odd, U(vld1q)(ex + from + 32), U(vld1q)(ex + from)));
        any = U(vorrq)(any, s);
    }
    return vmaxvq_u32(AS_WORDS(any)) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const vec cs = U(vdupq_n)((lane)c), all = U(vdupq_n)((lane)~0u);
    uint8x16_t high[2];

    for (int i = 0; i < VECS; i++) {
        const vec z = U(vld1q)(zz + LANES * i);
        g->k[i] = NAME(clamp_k)(U(vld1q)(ex + LANES * i), cs);
        g->high[i] = NAME(shift_right)(z, g->k[i]);
        g->low[i] = U(vbicq)(z, NAME(shift_left)(all, g->k[i]));
    }
    NAME(narrow)(g->high, high);
    g->planes = planes_of(high);
    g->over = vmaxvq_u8(vmaxq_u8(high[0], high[1])) > NB_ULP_PLANES ? above_word(high, NB_ULP_PLANES) : 0;
}

/* Rare: a value in hundreds at most is an exception. */
static inline void NAME(drop)(group *g, uint32_t mask)
{
    lane low[32];

    for (int i = 0; i < VECS; i++)
        U(vst1q)(low + LANES * i, g->low[i]);
    g->planes = vbicq_u32(g->planes, vdupq_n_u32(mask));
    for (; mask; mask &= mask - 1)
        low[__builtin_ctz(mask)] = 0;
    for (int i = 0; i < VECS; i++)
        g->low[i] = U(vld1q)(low + LANES * i);
}

static inline int NAME(low_is_zero)(const group *g)
{
    vec any = g->low[0];

    for (int i = 1; i < VECS; i++)
        any = U(vorrq)(any, g->low[i]);
    return vmaxvq_u32(AS_WORDS(any)) == 0;
}

/* Callers ask for plane 0, and for values beyond all planes. */
static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return j == 0 ? vgetq_lane_u32(g->planes, 0) : g->over;
}

static inline unsigned NAME(put_group)(struct bits *b, const group *g, uint32_t m0)
{
    const unsigned mode = put_planes(b, g->planes);

    (void)m0;
    NAME(put_low)(b, g);
    return mode;
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    const vec cs = U(vdupq_n)((lane)c), floor = U(vdupq_n)(map->floor);

    for (int i = 0; i < VECS; i++)
        g->k[i] = NAME(clamp_k)(U(vmaxq)(NAME(exponent)(NAME(load)(ref + LANES * W * i), map), floor), cs);
}

static inline size_t NAME(get_group)(const uint8_t *p, size_t pos, unsigned sparse, group *g)
{
    uint8x16_t high[2];

    pos = get_planes(p, pos, sparse, high);
    NAME(widen)(high, g->high);
    return NAME(get_low)(p, pos, g);
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const vec flip = NAME(flip)(map), one = U(vdupq_n)(1);

    for (int i = 0; i < VECS; i++) {
        vec z = U(vorrq)(g->low[i], NAME(shift_left)(g->high[i], g->k[i]));
        if (W == 1) /* high parts may exceed it in blocks that no encoder writes */
            z = U(vandq)(z, U(vdupq_n)(0xff));
        const vec d = U(veorq)(U(vshrq_n)(z, 1), U(vtstq)(z, one));
        const vec o = NAME(wrap)(U(vaddq)(NAME(order)(NAME(load)(ref + LANES * W * i), flip), d));
        NAME(store)(dst + LANES * W * i, NAME(order)(o, flip));
    }
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < VECS; i++)
        U(vst1q)(zz + LANES * i, U(vorrq)(g->low[i], NAME(shift_left)(g->high[i], g->k[i])));
}
#endif

#include "codec/ulp_block.inc.h"
