/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks of AVX-512 as integers. Only the sources of its variants include this.
 */
#ifndef NIBBLE_CODEC_MASK_H
#define NIBBLE_CODEC_MASK_H

/* The mask m of a comparison, before it is widened: (uint64_t)NB_MASK(_mm512_cmpgt_epu16_mask(a, b)). GCC 12
 * joins a comparison with the extension of its mask to an integer wider than the mask. It then assumes that
 * writing the mask writes the whole integer. That holds in a mask register. For an integer on the stack GCC
 * stores the mask's bytes only, and loads the whole integer:
 *     uint64_t m = _mm512_cmpgt_epu16_mask(a, b);    vpcmpuw $6, %zmm1, %zmm0, %k0; kmovd %k0, -8(%rsp)
 *     ... m is kept over a call ...                  movq -8(%rsp), %rax
 * With a register of its own for the mask, the extension is an instruction of its own. Encoding takes 0.6 %
 * more instructions that way. */
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
