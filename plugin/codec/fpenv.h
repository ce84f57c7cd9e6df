/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point environment. A caller may run with flush-to-zero or another rounding mode, and the
 * codecs' results must be the same. */
#ifndef NIBBLE_CODEC_FPENV_H
#define NIBBLE_CODEC_FPENV_H

#if defined(__SSE2__)
#include <xmmintrin.h>

#define NB_DEFAULT_MXCSR 0x1f80u
typedef unsigned nb_fp_environment;

static inline nb_fp_environment nb_fp_enter(void)
{
    unsigned old = _mm_getcsr();
    if ((old & ~0x3fu) != NB_DEFAULT_MXCSR)
        _mm_setcsr(NB_DEFAULT_MXCSR);
    return old;
}

static inline void nb_fp_leave(nb_fp_environment old)
{
    if ((old & ~0x3fu) != NB_DEFAULT_MXCSR)
        _mm_setcsr(old);
}
#elif defined(__aarch64__)
#include <stdint.h>

typedef uint64_t
    nb_fp_environment; /* FPCR. 0: nearest even, denormals and NaN kept, no traps, IEEE's halves */

static inline void nb_fp_set(nb_fp_environment fpcr)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr) : "memory");
}

static inline nb_fp_environment nb_fp_enter(void)
{
    nb_fp_environment old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    if (old)
        nb_fp_set(0);
    return old;
}

static inline void nb_fp_leave(nb_fp_environment old)
{
    if (old)
        nb_fp_set(old);
}
#else
/* Elsewhere the code assumes the default environment (nearest even, denormals kept). */
typedef int nb_fp_environment;

static inline nb_fp_environment nb_fp_enter(void)
{
    return 0;
}

static inline void nb_fp_leave(nb_fp_environment old)
{
    (void)old;
}
#endif

#endif
