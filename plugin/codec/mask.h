/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks of AVX-512 as integers. Included by the sources of its variants only.
 */
#ifndef NIBBLE_CODEC_MASK_H
#define NIBBLE_CODEC_MASK_H

/* The mask m of a comparison, before it is widened: (uint64_t)NB_MASK(_mm512_cmpgt_epu16_mask(a, b)).
 * GCC 12 joins a comparison with the extension of its mask to an integer that is wider than the mask, and then takes it
 * that writing the mask writes all of the integer. That is so in a mask register, but where the integer is on the stack,
 * only the mask's bytes are stored, and all of the integer's are loaded:
 *     uint64_t m = _mm512_cmpgt_epu16_mask(a, b);    vpcmpuw $6, %zmm1, %zmm0, %k0; kmovd %k0, -8(%rsp)
 *     ... m is kept over a call ...                  movq -8(%rsp), %rax
 * Where a mask has its own register first, the extension is an instruction of its own (encoding takes 0.6 % more of them). */
#if defined(__GNUC__) && !defined(__clang__)
#define NB_MASK(m) \
    __extension__({ \
        __typeof__(m) nb_mask = (m); \
        __asm__("" : "+k"(nb_mask)); \
        nb_mask; \
    })
#else
#define NB_MASK(m) (m)
#endif

#endif
