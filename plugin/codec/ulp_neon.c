/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp block coder with NEON: lanes of 16 bits for widths 1 and 2, of 32 bits for width 4. NEON has no gather
 * or scatter of bits. The four bit planes of a group are four words of one vector, in whose bytes bits move
 * by steps of 1, 2 and 4 (Warren, Hacker's Delight, "Compress" and "Expand"). The bytes are then joined as
 * low parts are, pair by pair.
 */
#include "codec/ulp.h"

#include "codec/fp.h"

#if defined(NB_NEON)

#include <arm_neon.h>
#include <errno.h>
#include <string.h>

#include "codec/ulp_bits.h"
#include "codec/ulp_sparse.h"

/* Parities of the bits up to each, in every byte. */
static inline uint8x16_t parities(uint8x16_t x)
{
    return vreinterpretq_u8_p8(vmulq_p8(vreinterpretq_p8_u8(x), vdupq_n_p8(0xff)));
}

/* The moves of a mask: the bits that go down by 1, by 2 and by 4, so that the mask's bits become the lowest
 * of their byte. */
struct moves {
    uint8x16_t by1, by2, by4;
};

static inline struct moves moves_of(uint8x16_t mask)
{
    struct moves m;
    uint8x16_t gaps = vshlq_n_u8(vmvnq_u8(mask), 1), odd = parities(gaps);

    m.by1 = vandq_u8(odd, mask);
    mask = vsraq_n_u8(veorq_u8(mask, m.by1), m.by1, 1);
    gaps = vbicq_u8(gaps, odd);
    odd = parities(gaps);
    m.by2 = vandq_u8(odd, mask);
    mask = vsraq_n_u8(veorq_u8(mask, m.by2), m.by2, 2);
    gaps = vbicq_u8(gaps, odd);
    m.by4 = vandq_u8(parities(gaps), mask);
    return m;
}

/* Join the two numbers of a lane: the lower one has `low` bits, and the upper one moves down to it. */
static inline uint16x8_t join16(uint16x8_t x, uint16x8_t low)
{
    return vorrq_u16(vandq_u16(x, vdupq_n_u16(0xff)),
                     vshlq_u16(vshrq_n_u16(x, 8), vreinterpretq_s16_u16(low)));
}

static inline uint32x4_t join32(uint32x4_t x, uint32x4_t low)
{
    return vorrq_u32(vandq_u32(x, vdupq_n_u32(0xffff)),
                     vshlq_u32(vshrq_n_u32(x, 16), vreinterpretq_s32_u32(low)));
}

static inline uint64x2_t join64(uint64x2_t x, uint64x2_t low)
{
    return vorrq_u64(vandq_u64(x, vdupq_n_u64(UINT32_MAX)),
                     vshlq_u64(vshrq_n_u64(x, 32), vreinterpretq_s64_u64(low)));
}

/* Gather in every word the bits of x, a subset of the mask's. *len: their number. */
static inline uint32x4_t gather(uint32x4_t x, uint32x4_t mask, uint32x4_t *len)
{
    const struct moves m = moves_of(vreinterpretq_u8_u32(mask));
    const uint8x16_t count = vcntq_u8(vreinterpretq_u8_u32(mask));
    const uint16x8_t pairs = vpaddlq_u8(count);
    uint8x16_t b = vreinterpretq_u8_u32(x), t = vandq_u8(b, m.by1);

    b = vsraq_n_u8(veorq_u8(b, t), t, 1);
    t = vandq_u8(b, m.by2);
    b = vsraq_n_u8(veorq_u8(b, t), t, 2);
    t = vandq_u8(b, m.by4);
    b = vsraq_n_u8(veorq_u8(b, t), t, 4);
    *len = vpaddlq_u16(pairs);
    return join32(vreinterpretq_u32_u16(join16(vreinterpretq_u16_u8(b),
                                               vandq_u16(vreinterpretq_u16_u8(count), vdupq_n_u16(0xff)))),
                  vandq_u32(vreinterpretq_u32_u16(pairs), vdupq_n_u32(0xffff)));
}

/* Scatter the lowest bits of x to the bits of the mask, a word. *n: their number. */
static inline uint8x16_t scatter(uint32_t x, uint8x16_t mask, unsigned *n)
{
    const struct moves m = moves_of(mask);
    const uint8x16_t count = vcntq_u8(mask);
    const uint8x8_t to =
        vreinterpret_u8_u32(vmul_n_u32(vreinterpret_u32_u8(vget_low_u8(count)), 0x01010101u));
    const uint16x8_t from = vmovl_u8(vsub_u8(to, vget_low_u8(count)));
    const int32x4_t down = vnegq_s32(vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(from))));
    const uint16x4_t words = vmovn_u32(vshlq_u32(vdupq_n_u32(x), down));
    uint8x16_t b = vreinterpretq_u8_u16(vcombine_u16(words, vdup_n_u16(0)));

    b = vuzp1q_u8(b, b);
    *n = vget_lane_u8(to, 3);
    b = vbslq_u8(m.by4, vshlq_n_u8(b, 4), b);
    b = vbslq_u8(m.by2, vshlq_n_u8(b, 2), b);
    b = vbslq_u8(m.by1, vshlq_n_u8(b, 1), b);
    return vandq_u8(b, mask);
}

/* Return bit i where byte i of 32 is greater than j. */
static inline uint8x16_t above_pairs(const uint8x16_t *bytes, uint8_t j)
{
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128}, limit = vdupq_n_u8(j);
    return vpaddq_u8(vandq_u8(vcgtq_u8(bytes[0], limit), bit), vandq_u8(vcgtq_u8(bytes[1], limit), bit));
}

static inline uint32_t above_word(const uint8x16_t *bytes, uint8_t j)
{
    uint8x16_t sum = above_pairs(bytes, j);
    sum = vpaddq_u8(sum, sum);
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u32(vreinterpretq_u32_u8(sum), 0);
}

/* Return the four planes of 32 bytes. */
static inline uint32x4_t planes_of(const uint8x16_t *bytes)
{
    return vreinterpretq_u32_u8(vpaddq_u8(vpaddq_u8(above_pairs(bytes, 0), above_pairs(bytes, 1)),
                                          vpaddq_u8(above_pairs(bytes, 2), above_pairs(bytes, 3))));
}

/* Expand a plane's bits to bytes of all bits or 0. */
static inline void spread(uint8x16_t plane, uint8x16_t *bytes)
{
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t first = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};

    bytes[0] = vtstq_u8(vqtbl1q_u8(plane, first), bit);
    bytes[1] = vtstq_u8(vqtbl1q_u8(plane, vaddq_u8(first, vdupq_n_u8(2))), bit);
}

/* Append two strings of len[i] <= 56 bits. */
static inline void put_pair(struct bits *b, uint64x2_t v, uint64x2_t len)
{
    const unsigned first = (unsigned)vgetq_lane_u64(len, 0), second = (unsigned)vgetq_lane_u64(len, 1);
    const uint64_t v0 = vgetq_lane_u64(v, 0), v1 = vgetq_lane_u64(v, 1);

    if (__builtin_expect(first + second <= 56, 1)) {
        bits_put(b, v0 | v1 << first, first + second);
    } else {
        bits_put(b, v0, first);
        bits_put(b, v1, second);
    }
}

/* Read them again. *pos moves on. Bits above their lengths are undefined. */
static inline uint64x2_t get_pair(const uint8_t *p, size_t *pos, uint64x2_t len)
{
    const uint64_t first = bits_peek(p, *pos), second = bits_peek(p, *pos + vgetq_lane_u64(len, 0));

    *pos += vgetq_lane_u64(vpaddq_u64(len, len), 0);
    return vcombine_u64(vcreate_u64(first), vcreate_u64(second));
}

/* Return the upper numbers of lanes whose lower number has `low` bits. */
static inline uint64x2_t part64(uint64x2_t x, uint64x2_t low)
{
    return vsliq_n_u64(x, vshlq_u64(x, vnegq_s64(vreinterpretq_s64_u64(low))), 32);
}

static inline uint32x4_t part32(uint32x4_t x, uint32x4_t low)
{
    return vsliq_n_u32(x, vshlq_u32(x, vnegq_s32(vreinterpretq_s32_u32(low))), 16);
}

/* Append the planes m of a group and return its mode. ulp_block.inc.h explains the format. */
static inline unsigned put_planes(struct bits *b, uint32x4_t m)
{
    const uint32_t m0 = vgetq_lane_u32(m, 0);
    uint32_t t = m0 | m0 >> 1;

    t = (t | t >> 2) & 0x11111111u;
    uint32x4_t len;
    const uint32x4_t p = gather(m, vextq_u32(vdupq_n_u32(t * 15), m, 3), &len);
    const unsigned n0 = vgetq_lane_u32(len, 1), n1 = vgetq_lane_u32(len, 2), n2 = vgetq_lane_u32(len, 3);
    const uint64_t p1 = vgetq_lane_u32(p, 1), p2 = vgetq_lane_u32(p, 2), p3 = vgetq_lane_u32(p, 3);
    const unsigned bits = vgetq_lane_u32(len, 0), dense = bits >= 4 * NB_ULP_DENSE;
    t = (t | t >> 3) & 0x03030303u;
    t = (t | t >> 6) & 0x000f000fu;
    t = (t | t >> 12) & 0xff;
    const uint32_t packed = t | vgetq_lane_u32(p, 0) << 8;
    bits_put(b, dense ? m0 : packed, dense ? 32 : 8 + bits);
    if (__builtin_expect(n0 + n1 + n2 <= 56, 1)) {
        bits_put(b, p1 | p2 << n0 | p3 << (n0 + n1), n0 + n1 + n2);
    } else {
        bits_put(b, p1, n0);
        bits_put(b, p2, n1);
        bits_put(b, p3, n2);
    }
    return NB_ULP_MODE_SPARSE + dense;
}

/* Read planes: the number of planes of each of 32 values, as bytes. Return the bit position behind them. */
static inline size_t get_planes(const uint8_t *p, size_t pos, unsigned sparse, uint8x16_t *high)
{
    uint64_t w = bits_peek(p, pos);
    uint32_t cells = (uint32_t)w & 0xff;
    unsigned n, n0, n1, n2;
    uint8x16_t m[4], bytes[2];

    cells = (cells | cells << 12) & 0x000f000fu;
    cells = (cells | cells << 6) & 0x03030303u;
    cells = (cells | cells << 3) & 0x11111111u;
    cells = (cells * 15) | (sparse - 1);
    m[0] = scatter((uint32_t)(w >> 8 * sparse),
                   vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(cells), vdup_n_u64(0))), &n);
    pos += 8 * sparse + n;
    w = bits_peek(p, pos);
    m[1] = scatter((uint32_t)w, m[0], &n0);
    m[2] = scatter((uint32_t)(w >> n0), m[1], &n1);
    m[3] = scatter((uint32_t)(w >> n0 >> n1), m[2], &n2);
    if (__builtin_expect(n0 + n1 + n2 > 57, 0)) {
        m[2] = scatter((uint32_t)bits_peek(p, pos + n0), m[1], &n1);
        m[3] = scatter((uint32_t)bits_peek(p, pos + n0 + n1), m[2], &n2);
    }
    spread(m[0], high);
    for (int i = 1; i < 4; i++) {
        spread(m[i], bytes);
        high[0] = vaddq_u8(high[0], bytes[0]);
        high[1] = vaddq_u8(high[1], bytes[1]);
    }
    high[0] = vsubq_u8(vdupq_n_u8(0), high[0]);
    high[1] = vsubq_u8(vdupq_n_u8(0), high[1]);
    return pos + n0 + n1 + n2;
}

static inline void halves_to_floats(const uint16_t *x, float *v)
{
    for (unsigned i = 0; i < 32; i += 4)
        vst1q_f32(v + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
}

static inline void floats_to_halves(const float *v, uint16_t *x)
{
    for (unsigned i = 0; i < 32; i += 4)
        vst1_u16(x + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(v + i))));
}

#define ULP_OWN_PLANES
#define ULP_NARROW "codec/ulp_neon_16.inc.h"
#define ULP_WIDE "codec/ulp_neon_32.inc.h"
#define ULP_TABLE nb_ulp_neon
#include "codec/ulp_widths.inc.h"

#else
typedef int nb_ulp_neon_unused;
#endif
