/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constants of the ulp block coder with AVX-512 that stay in registers or are memory operands of the
 * instructions that use them. A compiler that sees their values builds them from immediates at each use: two
 * instructions each, a fifth of all.
 */
#ifndef NIBBLE_CODEC_ULP_AVX512_NUMBERS_H
#define NIBBLE_CODEC_ULP_AVX512_NUMBERS_H

#include <stdint.h>

struct nb_ulp_avx512_numbers {
    uint8_t before[8][8]; /* of eight lengths, the bytes that lengths_before() adds for each lane */
    uint64_t others[8];   /* all lanes but the first */
    uint64_t bytes, three, seven, sums, low32;
    uint64_t begin[5]; /* by width, as the fields below */
    uint32_t kmax[5], exception[5], magnitude[5];
    uint32_t count[5]; /* 0 to 4 */
};

extern const struct nb_ulp_avx512_numbers nb_ulp_avx512_numbers __attribute__((visibility("hidden")));

#endif
