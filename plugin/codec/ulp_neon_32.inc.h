/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that ulp_block.inc.h needs, with NEON, for W = 4: a group is eight vectors of four lanes of
 * 32 bits. */

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
#define signed_lane int32_t
#define vec uint32x4_t
#define LANES 4
#define VECS 8
#define U(op) op##_u32
#define S(op) op##_s32
#define SIGNED(x) vreinterpretq_s32_u32(x)
#define UNSIGNED(x) vreinterpretq_u32_s32(x)
#define AS_WORDS(x) (x)
#define ODD_LANES vreinterpretq_u32_u64(vdupq_n_u64(UINT64_MAX << 32))
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

/* Narrow to bytes, with 255 for larger values, and widen again. */
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

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    for (int i = 0; i < 8; i++) {
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(g->k[i]), vdupq_n_u64(UINT32_MAX));
        put_pair(b, join64(vreinterpretq_u64_u32(g->low[i]), first), vpaddlq_u32(g->k[i]));
    }
}

static inline size_t NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    const uint32x4_t all = vdupq_n_u32((lane)~0u);

    for (int i = 0; i < 8; i++) {
        const uint64x2_t first = vandq_u64(vreinterpretq_u64_u32(g->k[i]), vdupq_n_u64(UINT32_MAX));
        const uint32x4_t v = vreinterpretq_u32_u64(part64(get_pair(p, &pos, vpaddlq_u32(g->k[i])), first));
        g->low[i] = vbicq_u32(v, vshlq_u32(all, vreinterpretq_s32_u32(g->k[i])));
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
