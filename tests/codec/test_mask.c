/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of AVX-512 keep their value when they are widened and stored on a dirty stack. Without NB_MASK, GCC
 * 12 puts the stack's bytes above the mask's. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/codec.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "codec/mask.h"
#include "tests/suite.h"

#define LANES __attribute__((noinline, target("avx512f,avx512bw,avx512dq,avx512vl")))

/* No register keeps its value across this. */
#if defined(__clang__)
#define MASKS "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define MASKS "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#endif
#define FORGET() \
    __asm__ volatile("" :: \
                         : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "rbx", "r12", "r13", \
                           "r14", "r15", "memory", MASKS)

#define WIDENED(name, wide, bits, mask) \
    static LANES wide name(const uint8_t *a, const uint8_t *b, wide *above) \
    { \
        const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b); \
        const wide m = NB_MASK(mask); \
        *above = m << (bits); \
        FORGET(); \
        return m | m << (bits); \
    }

WIDENED(words, uint64_t, 32, _mm512_cmpgt_epu16_mask(x, y))
WIDENED(halves, uint64_t, 16, _mm512_cmpgt_epi32_mask(x, y))
WIDENED(floats, uint32_t, 16, _mm512_cmp_ps_mask(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), _CMP_GT_OQ))
WIDENED(quads, uint32_t, 8, _mm512_cmpgt_epu64_mask(x, y))

/* Fill the stack below the caller's frame with ones. */
static __attribute__((noinline)) void soil(void)
{
    uint8_t dirt[8192];

    memset(dirt, 0xff, sizeof(dirt));
    __asm__ volatile("" ::"r"(dirt) : "memory");
}

START_TEST(widened)
{
    uint32_t a[16], b[16], above32;
    uint64_t above;

    for (unsigned i = 0; i < 16; i++) {
        a[i] = i % 3 == 0 ? 0x00020002 : 0x00010001;
        b[i] = 0x00010001;
    }
    const uint8_t *x = (const uint8_t *)a, *y = (const uint8_t *)b;
    soil();
    ck_assert_uint_eq(words(x, y, &above), 0xc30c30c3c30c30c3);
    ck_assert_uint_eq(above, 0xc30c30c300000000);
    soil();
    ck_assert_uint_eq(halves(x, y, &above), 0x92499249);
    soil();
    ck_assert_uint_eq(floats(x, y, &above32), 0x92499249);
    soil();
    ck_assert_uint_eq(quads(x, y, &above32), 0xdbdb);
}
END_TEST

int main(void)
{
    if (!nb_codec_available(NB_VARIANT_AVX512)) {
        puts("SKIP: no AVX-512 here");
        return 77;
    }
    return SUITE("masks", TEST(widened));
}

#else
int main(void)
{
    puts("SKIP: AVX-512 is for x86-64");
    return 77;
}
#endif
