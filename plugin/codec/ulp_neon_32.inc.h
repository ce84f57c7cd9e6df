/* SPDX-License-Identifier: Apache-2.0 */
/* What ulp_block.inc.h asks for, with NEON, for W = 4: a group is eight vectors of four lanes of 32 bits. */

#ifndef NB_ULP_NEON_32
#define NB_ULP_NEON_32
typedef struct {
    uint32x4_t k[8], high[8], low[8];
    uint32x4_t planes; /* of the high parts */
    uint32_t over;     /* those greater than NB_ULP_PLANES */
} group32;
#endif

#define lane uint32_t
#define group group32
#define BITS (8 * W)
#define MAGNITUDE ((1u << (BITS - 1)) - 1)

static inline uint32x4_t NAME(load)(const uint8_t *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

static inline void NAME(store)(uint8_t *p, uint32x4_t x)
{
    vst1q_u8(p, vreinterpretq_u8_u32(x));
}

static inline uint32x4_t NAME(wrap)(uint32x4_t x)
{
    return x;
}

/* To bytes, 255 for what is larger, and back. */
static inline void NAME(narrow)(const uint32x4_t *x, uint8x16_t *bytes)
{
    for (int i = 0; i < 2; i++)
        bytes[i] = vqmovn_high_u16(vqmovn_u16(vqmovn_high_u32(vqmovn_u32(x[4 * i]), x[4 * i + 1])),
                                   vqmovn_high_u32(vqmovn_u32(x[4 * i + 2]), x[4 * i + 3]));
}

static inline void NAME(widen)(const uint8x16_t *bytes, uint32x4_t *x)
{
    for (int i = 0; i < 2; i++) {
        const uint16x8_t low = vmovl_u8(vget_low_u8(bytes[i])), high = vmovl_high_u8(bytes[i]);
        x[4 * i] = vmovl_u16(vget_low_u16(low));
        x[4 * i + 1] = vmovl_high_u16(low);
        x[4 * i + 2] = vmovl_u16(vget_low_u16(high));
        x[4 * i + 3] = vmovl_high_u16(high);
    }
}

/* Between pattern and ordered integer (its own inverse); flip is MAGNITUDE or, for plain integers, 0. */
static inline uint32x4_t NAME(order)(uint32x4_t x, uint32x4_t flip)
{
    const uint32x4_t sign = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(x), 32 - 1));
    return veorq_u32(x, vandq_u32(sign, flip));
}

static inline uint32x4_t NAME(flip)(const struct nb_ulp_map *map)
{
    return vdupq_n_u32(map->plain ? 0 : MAGNITUDE);
}

static inline uint32x4_t NAME(exponent)(uint32x4_t r, const struct nb_ulp_map *map)
{
    return vshlq_u32(vandq_u32(r, vdupq_n_u32(MAGNITUDE)), vdupq_n_s32((int32_t)(0 - map->shift)));
}

/* clamp(c - exponent); and its negative, by which shifts go to the right. */
static inline uint32x4_t NAME(clamp_k)(uint32x4_t ex, uint32x4_t c)
{
    return vminq_u32(vqsubq_u32(c, ex), vdupq_n_u32(NB_ULP_KMAX(W)));
}

static inline uint32x4_t NAME(shift_right)(uint32x4_t x, uint32x4_t k)
{
    return vshlq_u32(x, vnegq_s32(vreinterpretq_s32_u32(k)));
}

static inline uint32x4_t NAME(shift_left)(uint32x4_t x, uint32x4_t k)
{
    return vshlq_u32(x, vreinterpretq_s32_u32(k));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const uint32x4_t flip = NAME(flip)(map);
    uint32x4_t any = vdupq_n_u32(0);

    for (int i = 0; i < 8; i++) {
        const uint32x4_t r = NAME(load)(ref + 4 * W * i), x = NAME(load)(cur + 4 * W * i);
        const uint32x4_t d = NAME(wrap)(vsubq_u32(NAME(order)(x, flip), NAME(order)(r, flip)));
        const uint32x4_t sign = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(d), 32 - 1));
        vst1q_u32(zz + 4 * i, veorq_u32(vaddq_u32(d, d), sign));
        vst1q_u32(ex + 4 * i, NAME(exponent)(r, map));
        any = vorrq_u32(any, d);
    }
    return vmaxvq_u32(any) != 0;
}

static inline uint32x4_t NAME(add_cost)(uint32x4_t sum, uint32x4_t zz, uint32x4_t k)
{
    const uint32x4_t high = NAME(shift_right)(zz, k);
    const uint32x4_t cost =
        vbslq_u32(vcgtq_u32(high, vdupq_n_u32(NB_ULP_PLANES)), vdupq_n_u32(NB_ULP_EXC_COST(W)), high);
    return vaddq_u32(sum, vaddq_u32(k, cost));
}

static inline void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    const uint32x4_t c0 = vdupq_n_u32((lane)(c - 1)), c1 = vdupq_n_u32((lane)c),
                     c2 = vdupq_n_u32((lane)(c + 1));
    uint32x4_t s0 = vdupq_n_u32(0), s1 = s0, s2 = s0;

    for (size_t i = 0; i < n; i += 4) {
        const uint32x4_t e = vld1q_u32(ex + i), z = vld1q_u32(zz + i);
        s0 = NAME(add_cost)(s0, z, NAME(clamp_k)(e, c0));
        s1 = NAME(add_cost)(s1, z, NAME(clamp_k)(e, c1));
        s2 = NAME(add_cost)(s2, z, NAME(clamp_k)(e, c2));
    }
    out[0] = vaddvq_u32(s0);
    out[1] = vaddvq_u32(s1);
    out[2] = vaddvq_u32(s2);
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    const uint32x4_t odd = vreinterpretq_u32_u64(vdupq_n_u64(UINT64_MAX << 32));
    uint32x4_t any = vdupq_n_u32(0);

    for (size_t i = 0; i < NB_ULP_RUN / 2; i += 4) {
        const size_t from = i / 32 * 64 + i % 32;
        const uint32x4_t s = vbslq_u32(odd, vld1q_u32(zz + from + 32), vld1q_u32(zz + from));
        vst1q_u32(zs + i, s);
        vst1q_u32(es + i, vbslq_u32(odd, vld1q_u32(ex + from + 32), vld1q_u32(ex + from)));
        any = vorrq_u32(any, s);
    }
    return vmaxvq_u32(any) != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    const uint32x4_t cs = vdupq_n_u32((lane)c), all = vdupq_n_u32((lane)~0u);
    uint8x16_t high[2];

    for (int i = 0; i < 8; i++) {
        const uint32x4_t z = vld1q_u32(zz + 4 * i);
        g->k[i] = NAME(clamp_k)(vld1q_u32(ex + 4 * i), cs);
        g->high[i] = NAME(shift_right)(z, g->k[i]);
        g->low[i] = vbicq_u32(z, NAME(shift_left)(all, g->k[i]));
    }
    NAME(narrow)(g->high, high);
    g->planes = planes_of(high);
    g->over = vmaxvq_u8(vmaxq_u8(high[0], high[1])) > NB_ULP_PLANES ? above_word(high, NB_ULP_PLANES) : 0;
}

/* Seldom: a value in hundreds at most is an exception. */
static inline void NAME(drop)(group *g, uint32_t mask)
{
    lane low[32];

    for (int i = 0; i < 8; i++)
        vst1q_u32(low + 4 * i, g->low[i]);
    g->planes = vbicq_u32(g->planes, vdupq_n_u32(mask));
    for (; mask; mask &= mask - 1)
        low[__builtin_ctz(mask)] = 0;
    for (int i = 0; i < 8; i++)
        g->low[i] = vld1q_u32(low + 4 * i);
}

static inline int NAME(low_is_zero)(const group *g)
{
    uint32x4_t any = g->low[0];

    for (int i = 1; i < 8; i++)
        any = vorrq_u32(any, g->low[i]);
    return vmaxvq_u32(any) == 0;
}

/* Of the planes, 0 is asked for; and what lies beyond all. */
static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return j == 0 ? vgetq_lane_u32(g->planes, 0) : g->over;
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    for (int i = 0; i < 8; i++) {
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(g->k[i]), vdupq_n_u64(UINT32_MAX));
        put_pair(b, join64(vreinterpretq_u64_u32(g->low[i]), first), vpaddlq_u32(g->k[i]));
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
    const uint32x4_t cs = vdupq_n_u32((lane)c), floor = vdupq_n_u32(map->floor);

    for (int i = 0; i < 8; i++)
        g->k[i] = NAME(clamp_k)(vmaxq_u32(NAME(exponent)(NAME(load)(ref + 4 * W * i), map), floor), cs);
}

static inline size_t NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    const uint32x4_t all = vdupq_n_u32((lane)~0u);

    for (int i = 0; i < 8; i++) {
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(g->k[i]), vdupq_n_u64(UINT32_MAX));
        const uint32x4_t v = vreinterpretq_u32_u64(part64(get_pair(p, &pos, vpaddlq_u32(g->k[i])), first));
        g->low[i] = vbicq_u32(v, NAME(shift_left)(all, g->k[i]));
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
    const uint32x4_t flip = NAME(flip)(map), one = vdupq_n_u32(1);

    for (int i = 0; i < 8; i++) {
        const uint32x4_t z = vorrq_u32(g->low[i], NAME(shift_left)(g->high[i], g->k[i]));
        const uint32x4_t d = veorq_u32(vshrq_n_u32(z, 1), vtstq_u32(z, one));
        const uint32x4_t o = NAME(wrap)(vaddq_u32(NAME(order)(NAME(load)(ref + 4 * W * i), flip), d));
        NAME(store)(dst + 4 * W * i, NAME(order)(o, flip));
    }
}

static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (int i = 0; i < 8; i++)
        vst1q_u32(zz + 4 * i, vorrq_u32(g->low[i], NAME(shift_left)(g->high[i], g->k[i])));
}

#include "codec/ulp_block.inc.h"

#undef lane
#undef group
#undef BITS
#undef MAGNITUDE
