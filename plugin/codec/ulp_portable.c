/* SPDX-License-Identifier: Apache-2.0 */
/* ulp block coder in portable C, on lanes of 32 bits for all widths. */
#include "codec/ulp.h"

#include <errno.h>
#include <string.h>

#include "codec/ulp_bits.h"

typedef uint32_t lane;
typedef struct {
    uint8_t k[32];
    uint32_t high[32], low[32];
} group;

static inline uint32_t pext(uint32_t x, uint32_t mask)
{
    uint32_t out = 0;

    for (unsigned at = 0; mask; mask &= mask - 1, at++)
        out |= (x >> __builtin_ctz(mask) & 1u) << at;
    return out;
}

static inline uint32_t pdep(uint32_t x, uint32_t mask)
{
    uint32_t out = 0;

    for (; mask; mask &= mask - 1, x >>= 1)
        out |= (x & 1) << __builtin_ctz(mask);
    return out;
}

#define W 1
#define NAME(x) x##_w8
#include "codec/ulp_portable.inc.h"
#undef W
#undef NAME

#define W 2
#define NAME(x) x##_w16
#include "codec/ulp_portable.inc.h"
#undef W
#undef NAME

#define W 4
#define NAME(x) x##_w32
#include "codec/ulp_portable.inc.h"
#undef W
#undef NAME

const struct nb_ulp_ops nb_ulp_portable = {
    .encode = {encode_block_w8, encode_block_w16, encode_block_w32},
    .decode = {decode_block_w8, decode_block_w16, decode_block_w32},
    .probe = {probe_w8, probe_w16, probe_w32},
};
