/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hide instructions of this processor from the program: NB_CPU=avx2 hides AVX-512, NB_CPU=portable hides all.
 * __builtin_cpu_supports reads a table of the compiler's library. This file changes the table before main()
 * runs. The environment variable GLIBC_TUNABLES does not reach that table.
 */
#if defined(__x86_64__)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `struct __processor_model` of libgcc and compiler-rt: vendor, type, subtype, features. The alias keeps
 * clang's own declaration apart. */
extern unsigned cpu_model[4] __asm__("__cpu_model");

/* AVX-512 F, then VL, BW, DQ and its other parts up to VBMI2. */
#define FEATURES_AVX512 (1u << 15 | 0xfffu << 20)

static _Noreturn void fail(const char *text)
{
    fprintf(stderr, "NB_CPU: %s\n", text);
    exit(1);
}

__attribute__((constructor)) static void hide(void)
{
    const char *kind = getenv("NB_CPU");

    if (!kind)
        return;
    __builtin_cpu_init();
    if (strcmp(kind, "avx2") == 0)
        cpu_model[3] &= ~FEATURES_AVX512;
    else if (strcmp(kind, "portable") == 0)
        cpu_model[3] = 0;
    else
        fail("neither avx2 nor portable");
    __asm__ volatile("" ::: "memory");
    if (__builtin_cpu_supports("avx512f") || __builtin_cpu_supports("avx512vl") ||
        __builtin_cpu_supports("avx512bw") || __builtin_cpu_supports("avx512dq") ||
        __builtin_cpu_supports("avx512vbmi") || __builtin_cpu_supports("avx512vpopcntdq") ||
        (strcmp(kind, "portable") == 0 &&
         (__builtin_cpu_supports("avx2") || __builtin_cpu_supports("popcnt"))))
        fail("this compiler keeps its table of the processor elsewhere");
    fprintf(stderr, "NB_CPU=%s in force\n", kind);
}

#else
typedef int nb_masked_cpu_nothing_here;
#endif
