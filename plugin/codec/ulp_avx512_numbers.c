/* SPDX-License-Identifier: Apache-2.0 */
/* See ulp_avx512_numbers.h. */
#include "codec/ulp_avx512_numbers.h"

#include "codec/ulp.h"

/* Sums over bytes from the beginning of a lane's bits: by 8 for each byte of a lane of 16 or of 32 bits. */
#define BY_16 0x0800080008000800u
#define BY_32 0x1810080018100800u
#define NONE 1 /* index of a byte that is zero in lengths */
#define LENGTHS(a, b, c, d, e, f, g, h) \
    { \
        a, b, c, d, e, f, g, h \
    }

const struct nb_ulp_avx512_numbers nb_ulp_avx512_numbers = {
    .before = {LENGTHS(0, 8, 16, 24, 32, 40, 48, 56), LENGTHS(0, NONE, NONE, NONE, NONE, NONE, NONE, NONE),
               LENGTHS(0, 8, NONE, NONE, NONE, NONE, NONE, NONE),
               LENGTHS(0, 8, 16, NONE, NONE, NONE, NONE, NONE), LENGTHS(0, 8, 16, 24, NONE, NONE, NONE, NONE),
               LENGTHS(0, 8, 16, 24, 32, NONE, NONE, NONE), LENGTHS(0, 8, 16, 24, 32, 40, NONE, NONE),
               LENGTHS(0, 8, 16, 24, 32, 40, 48, NONE)},
    .others = {0, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX},
    .bytes = 0x0706050403020100,
    .three = 0x0303030303030303,
    .seven = 7,
    .begin = {[1] = BY_16 - (BY_16 << 8), [2] = BY_16 - (BY_16 << 8), [4] = BY_32 - (BY_32 << 8)},
    .sums = 0x0101010101010101,
    .low32 = 0xffffffff,
    .kmax = {[1] = NB_ULP_KMAX(1), [2] = NB_ULP_KMAX(2), [4] = NB_ULP_KMAX(4)},
    .exception = {[1] = NB_ULP_EXC_COST(1), [2] = NB_ULP_EXC_COST(2), [4] = NB_ULP_EXC_COST(4)},
    .magnitude = {[1] = 0x7f, [2] = 0x7fff, [4] = 0x7fffffff},
    .count = {0, 1, 2, 3, 4},
};
