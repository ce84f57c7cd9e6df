/* SPDX-License-Identifier: Apache-2.0 */
/* Modes of the floating-point unit that a caller may have set. NB_FP_MODES: this processor has them. */
#ifndef NIBBLE_TESTS_CODEC_FP_MODE_H
#define NIBBLE_TESTS_CODEC_FP_MODE_H

#if defined(__SSE2__)
#include <xmmintrin.h>

#define NB_FP_MODES 1
#define FP_TOWARD_ZERO 0xffc0u /* flushes denormals, as operands and as results. Exceptions are masked */
#define FP_DOWNWARD 0xbfc0u
typedef unsigned fp_mode;

static inline fp_mode fp_mode_get(void)
{
    return _mm_getcsr(); /* the six lowest bits are status flags */
}

static inline void fp_mode_set(fp_mode mode)
{
    _mm_setcsr(mode);
}
#elif defined(__aarch64__)
#include <stdint.h>

#define NB_FP_MODES 1
#define FP_TOWARD_ZERO 0x07c00000u /* flushes likewise. NaN is the default one, halves are not IEEE's */
#define FP_DOWNWARD 0x07800000u
typedef uint64_t fp_mode;

static inline fp_mode fp_mode_get(void)
{
    fp_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static inline void fp_mode_set(fp_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#endif

#endif
