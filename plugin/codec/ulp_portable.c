/* SPDX-License-Identifier: Apache-2.0 */
/* ulp block coder in portable C, on lanes of 32 bits for all widths. */
#include "codec/ulp.h"

#include <errno.h>
#include <string.h>

#include "codec/fp.h"
#include "codec/ulp_bits.h"
#include "codec/ulp_sparse.h"

typedef uint32_t lane;
typedef struct {
    uint8_t k[32], high[32]; /* high: at most NB_ULP_PLANES + 1 */
    uint32_t low[32];
} group;

static inline uint64_t pext(uint64_t x, uint64_t mask)
{
    uint64_t out = 0;

    for (unsigned at = 0; mask; mask &= mask - 1, at++)
        out |= (x >> __builtin_ctzll(mask) & 1) << at;
    return out;
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    uint32_t out = 0;

    for (; mask; mask &= mask - 1, x >>= 1)
        out |= (x & 1) << __builtin_ctz(mask);
    return out;
}

#define EACH UINT64_C(0x0101010101010101)

/* Return bit i where byte i of 32, all below 0x7f, is greater than j. Eight bytes at a time, by carries into
 * their top bits, which a multiplication then gathers. */
static inline uint32_t bytes_above(const uint8_t *bytes, uint32_t j)
{
    uint32_t m = 0;

    for (unsigned i = 0; i < 32; i += 8) {
        uint64_t x;
        memcpy(&x, bytes + i, 8);
        x = (le64toh(x) + (0x7f - j) * EACH) >> 7 & EACH;
        m |= (uint32_t)(x * UINT64_C(0x0102040810204080) >> 56) << i;
    }
    return m;
}

/* Expand eight bits to eight bytes of 0 or 1. */
static inline uint64_t spread(uint32_t m)
{
    return (((m & 0xff) * EACH & UINT64_C(0x8040201008040201)) + 0x7f * EACH) >> 7 & EACH;
}

static inline void halves_to_floats(const uint16_t *x, float *v)
{
    for (unsigned i = 0; i < 32; i++)
        v[i] = nb_f16_to_f32(x[i]);
}

static inline void floats_to_halves(const float *v, uint16_t *x)
{
    for (unsigned i = 0; i < 32; i++)
        x[i] = nb_f32_to_f16(v[i]);
}

#define ULP_NARROW "codec/ulp_portable.inc.h"
#define ULP_WIDE "codec/ulp_portable.inc.h"
#define ULP_TABLE nb_ulp_portable
#include "codec/ulp_widths.inc.h"
