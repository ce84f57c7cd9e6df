/* SPDX-License-Identifier: Apache-2.0 */
/* What ulp_block.inc.h asks for, with NEON, for W = 1 and 2: a group is four vectors of eight lanes of 16 bits. */

#ifndef NB_ULP_NEON_16
#define NB_ULP_NEON_16
typedef struct {
    uint16x8_t k[4], high[4], low[4];
    uint32x4_t planes; /* of the high parts */
    uint32_t over;     /* those greater than NB_ULP_PLANES */
} group16;
#endif

#define lane uint16_t
#define group group16
#define BITS (8 * W)
#define MAGNITUDE ((1u << (BITS - 1)) - 1)

/* Eight values; those of width 1 are sign-extended, so that the same code orders and subtracts them. */
static inline uint16x8_t NAME(load)(const uint8_t *p)
{
#if W == 1
    return vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p))));
#else
    return vreinterpretq_u16_u8(vld1q_u8(p));
#endif
}

static inline void NAME(store)(uint8_t *p, uint16x8_t x)
{
#if W == 1
    vst1_u8(p, vmovn_u16(x));
#else
    vst1q_u8(p, vreinterpretq_u8_u16(x));
#endif
}

/* Sign-extend from the width of a value. */
static inline uint16x8_t NAME(wrap)(uint16x8_t x)
{
    return W == 2 ? x : vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(vshlq_n_u16(x, 8)), 8));
}

/* To bytes, 255 for what is larger, and back. */
static inline void NAME(narrow)(const uint16x8_t *x, uint8x16_t *bytes)
{
    bytes[0] = vqmovn_high_u16(vqmovn_u16(x[0]), x[1]);
    bytes[1] = vqmovn_high_u16(vqmovn_u16(x[2]), x[3]);
}

static inline void NAME(widen)(const uint8x16_t *bytes, uint16x8_t *x)
{
    for (int i = 0; i < 2; i++) {
        x[2 * i] = vmovl_u8(vget_low_u8(bytes[i]));
        x[2 * i + 1] = vmovl_high_u8(bytes[i]);
    }
}

/* Between pattern and ordered integer (its own inverse); flip is MAGNITUDE or, for plain integers, 0. */
static inline uint16x8_t NAME(order)(uint16x8_t x, uint16x8_t flip)
{
    const uint16x8_t sign = vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(x), 16 - 1));
    return veorq_u16(x, vandq_u16(sign, flip));
}

static inline uint16x8_t NAME(flip)(const struct nb_ulp_map *map)
{
    return vdupq_n_u16(map->plain ? 0 : MAGNITUDE);
}

static inline uint16x8_t NAME(exponent)(uint16x8_t r, const struct nb_ulp_map *map)
{
    return vshlq_u16(vandq_u16(r, vdupq_n_u16(MAGNITUDE)), vdupq_n_s16((int16_t)(0 - map->shift)));
}

/* clamp(c - exponent); and its negative, by which shifts go to the right. */
static inline uint16x8_t NAME(clamp_k)(uint16x8_t ex, uint16x8_t c)
{
    return vminq_u16(vqsubq_u16(c, ex), vdupq_n_u16(NB_ULP_KMAX(W)));
}

static inline uint16x8_t NAME(shift_right)(uint16x8_t x, uint16x8_t k)
{
    return vshlq_u16(x, vnegq_s16(vreinterpretq_s16_u16(k)));
}

static inline uint16x8_t NAME(shift_left)(uint16x8_t x, uint16x8_t k)
{
    return vshlq_u16(x, vreinterpretq_s16_u16(k));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const uint16x8_t flip = NAME(flip)(map);
    uint16x8_t any = vdupq_n_u16(0);

    for (int i = 0; i < 4; i++) {
        const uint16x8_t r = NAME(load)(ref + 8 * W * i), x = NAME(load)(cur + 8 * W * i);
        const uint16x8_t d = NAME(wrap)(vsubq_u16(NAME(order)(x, flip), NAME(order)(r, flip)));
        const uint16x8_t sign = vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(d), 16 - 1));
        vst1q_u16(zz + 8 * i, veorq_u16(vaddq_u16(d, d), sign));
        vst1q_u16(ex + 8 * i, NAME(exponent)(r, map));
        any = vorrq_u16(any, d);
    }
    return vmaxvq_u32(vreinterpretq_u32_u16(any)) != 0;
}

static inline uint16x8_t NAME(add_cost)(uint16x8_t sum, uint16x8_t zz, uint16x8_t k)
{
    const uint16x8_t high = NAME(shift_right)(zz, k);
    const uint16x8_t cost =
        vbslq_u16(vcgtq_u16(high, vdupq_n_u16(NB_ULP_PLANES)), vdupq_n_u16(NB_ULP_EXC_COST(W)), high);
    return vaddq_u16(sum, vaddq_u16(k, cost));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    const uint16x8_t c0 = vdupq_n_u16((lane)(c - 1)), c1 = vdupq_n_u16((lane)c),
                     c2 = vdupq_n_u16((lane)(c + 1));
    uint16x8_t s0 = vdupq_n_u16(0), s1 = s0, s2 = s0;

    for (size_t i = 0; i < n; i += 8) {
        const uint16x8_t e = vld1q_u16(ex + i), z = vld1q_u16(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c0));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c1));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c2));
    }
    out[0] = vaddlvq_u16(s0);
    out[1] = vaddlvq_u16(s1);
    out[2] = vaddlvq_u16(s2);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    const uint16x8_t odd = vreinterpretq_u16_u32(vdupq_n_u32(0xffff0000u));
    uint16x8_t any = vdupq_n_u16(0);

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += 8) {
        const size_t from = i / 32 * 64 + i % 32;
        const uint16x8_t s = vbslq_u16(odd, vld1q_u16(zz + from + 32), vld1q_u16(zz + from));
        vst1q_u16(zs + i, s);
        vst1q_u16(es + i, vbslq_u16(odd, vld1q_u16(ex + from + 32), vld1q_u16(ex + from)));
        any = vorrq_u16(any, s);
    }
    return vmaxvq_u32(vreinterpretq_u32_u16(any)) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const uint16x8_t cs = vdupq_n_u16((lane)c), all = vdupq_n_u16((lane)~0u);
    uint8x16_t high[2];

    for (int i = 0; i < 4; i++) {
        const uint16x8_t z = vld1q_u16(zz + 8 * i);
        g->k[i] = NAME(clamp_k)(vld1q_u16(ex + 8 * i), cs);
        g->high[i] = NAME(shift_right)(z, g->k[i]);
        g->low[i] = vbicq_u16(z, NAME(shift_left)(all, g->k[i]));
    }
    NAME(narrow)(g->high, high);
    g->planes = planes_of(high);
    g->over = vmaxvq_u8(vmaxq_u8(high[0], high[1])) > NB_ULP_PLANES ? above_word(high, NB_ULP_PLANES) : 0;
}

/* Seldom: a value in hundreds at most is an exception. */
static inline void NAME(drop)(group *g, uint32_t mask)
{
    lane low[32];

    for (int i = 0; i < 4; i++)
        vst1q_u16(low + 8 * i, g->low[i]);
    g->planes = vbicq_u32(g->planes, vdupq_n_u32(mask));
    for (; mask; mask &= mask - 1)
        low[__builtin_ctz(mask)] = 0;
    for (int i = 0; i < 4; i++)
        g->low[i] = vld1q_u16(low + 8 * i);
}

static inline int NAME(low_is_zero)(const group *g)
{
    uint16x8_t any = g->low[0];

    for (int i = 1; i < 4; i++)
        any = vorrq_u16(any, g->low[i]);
    return vmaxvq_u32(vreinterpretq_u32_u16(any)) == 0;
}

/* Of the planes, 0 is asked for; and what lies beyond all. */
static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return j == 0 ? vgetq_lane_u32(g->planes, 0) : g->over;
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    for (int i = 0; i < 4; i++) {
        const uint32x4_t k = vreinterpretq_u32_u16(g->k[i]), pairs = vpaddlq_u16(g->k[i]);
        const uint32x4_t v = join32(vreinterpretq_u32_u16(g->low[i]), vandq_u32(k, vdupq_n_u32(0xffff)));
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(pairs), vdupq_n_u64(UINT32_MAX));
        put_pair(b, join64(vreinterpretq_u64_u32(v), first), vpaddlq_u32(pairs));
    }
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
    const uint16x8_t cs = vdupq_n_u16((lane)c), floor = vdupq_n_u16(map->floor);

    for (int i = 0; i < 4; i++)
        g->k[i] = NAME(clamp_k)(vmaxq_u16(NAME(exponent)(NAME(load)(ref + 8 * W * i), map), floor), cs);
}

static inline size_t NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    const uint16x8_t all = vdupq_n_u16((lane)~0u);

    for (int i = 0; i < 4; i++) {
        const uint32x4_t k = vreinterpretq_u32_u16(g->k[i]), pairs = vpaddlq_u16(g->k[i]);
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(pairs), vdupq_n_u64(UINT32_MAX));
        const uint64x2_t quads = part64(get_pair(p, &pos, vpaddlq_u32(pairs)), first);
        const uint16x8_t v =
            vreinterpretq_u16_u32(part32(vreinterpretq_u32_u64(quads), vandq_u32(k, vdupq_n_u32(0xffff))));
        g->low[i] = vbicq_u16(v, NAME(shift_left)(all, g->k[i]));
    }
    return pos;
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
    const uint16x8_t flip = NAME(flip)(map), one = vdupq_n_u16(1);

    for (int i = 0; i < 4; i++) {
        uint16x8_t z = vorrq_u16(g->low[i], NAME(shift_left)(g->high[i], g->k[i]));
        if (W == 1) /* its high parts may reach beyond it in blocks that no encoder writes */
            z = vandq_u16(z, vdupq_n_u16(0xff));
        const uint16x8_t d = veorq_u16(vshrq_n_u16(z, 1), vtstq_u16(z, one));
        const uint16x8_t o = NAME(wrap)(vaddq_u16(NAME(order)(NAME(load)(ref + 8 * W * i), flip), d));
        NAME(store)(dst + 8 * W * i, NAME(order)(o, flip));
    }
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < 4; i++)
        vst1q_u16(zz + 8 * i, vorrq_u16(g->low[i], NAME(shift_left)(g->high[i], g->k[i])));
}
#endif

#include "codec/ulp_block.inc.h"

#undef lane
#undef group
#undef BITS
#undef MAGNITUDE
