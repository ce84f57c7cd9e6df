/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that ulp_block.inc.h needs, with NEON, for W = 1 and 2: a group is four vectors of eight
 * lanes of 16 bits. */

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
#define signed_lane int16_t
#define vec uint16x8_t
#define LANES 8
#define VECS 4
#define U(op) op##_u16
#define S(op) op##_s16
#define SIGNED(x) vreinterpretq_s16_u16(x)
#define UNSIGNED(x) vreinterpretq_u16_s16(x)
#define AS_WORDS(x) vreinterpretq_u32_u16(x)
#define ODD_LANES vreinterpretq_u16_u32(vdupq_n_u32(0xffff0000u))
#define BITS (8 * W)
#define MAGNITUDE ((1u << (BITS - 1)) - 1)

/* Load eight values. Those of width 1 are sign-extended, so that the same code orders and subtracts them. */
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

/* Narrow to bytes, with 255 for larger values, and widen again. */
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

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    for (int i = 0; i < 4; i++) {
        const uint32x4_t k = vreinterpretq_u32_u16(g->k[i]), pairs = vpaddlq_u16(g->k[i]);
        const uint32x4_t v = join32(vreinterpretq_u32_u16(g->low[i]), vandq_u32(k, vdupq_n_u32(0xffff)));
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(pairs), vdupq_n_u64(UINT32_MAX));
        put_pair(b, join64(vreinterpretq_u64_u32(v), first), vpaddlq_u32(pairs));
    }
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
        g->low[i] = vbicq_u16(v, vshlq_u16(all, vreinterpretq_s16_u16(g->k[i])));
    }
    return pos;
}

#include "codec/ulp_neon_lanes.inc.h"

#undef lane
#undef group
#undef BITS
#undef MAGNITUDE
#undef signed_lane
#undef vec
#undef LANES
#undef VECS
#undef U
#undef S
#undef SIGNED
#undef UNSIGNED
#undef AS_WORDS
#undef ODD_LANES
