/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which variant of the codecs runs: chosen once from what the CPU has, or by nb_codec_select.
 */
#include <errno.h>
#include <stdatomic.h>

#include "codec/ops.h"

static atomic_int selected = NB_VARIANT_AUTO;

static const struct nb_codec_ops *variant_ops(enum nb_variant variant)
{
    switch (variant) {
    case NB_VARIANT_REFERENCE:
        return &nb_codec_reference;
    case NB_VARIANT_PORTABLE:
        return &nb_codec_portable;
    case NB_VARIANT_AVX2:
        return nb_codec_avx2;
    case NB_VARIANT_AVX512:
        return nb_codec_avx512;
    default:
        return NULL;
    }
}

/* __builtin_cpu_supports also checks that the operating system saves the registers. */
static int cpu_has(enum nb_variant variant)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (variant == NB_VARIANT_AVX2 || variant == NB_VARIANT_AVX512) {
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
            !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt"))
            return 0;
#if defined(__clang__) && __clang_major__ < 17
        unsigned eax = 1, ebx, ecx = 0, edx;
        __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
        if (!(ecx >> 29 & 1))
            return 0;
#else
        if (!__builtin_cpu_supports("f16c"))
            return 0;
#endif
    }
    if (variant == NB_VARIANT_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return 1;
#else
    return variant == NB_VARIANT_REFERENCE || variant == NB_VARIANT_PORTABLE;
#endif
}

int nb_codec_available(enum nb_variant variant)
{
    return variant == NB_VARIANT_AUTO || (variant_ops(variant) && cpu_has(variant));
}

static enum nb_variant best(void)
{
    if (nb_codec_available(NB_VARIANT_AVX512))
        return NB_VARIANT_AVX512;
    if (nb_codec_available(NB_VARIANT_AVX2))
        return NB_VARIANT_AVX2;
    return NB_VARIANT_PORTABLE;
}

int nb_codec_select(enum nb_variant variant)
{
    if ((unsigned)variant >= NB_VARIANT_COUNT)
        return -EINVAL;
    if (!nb_codec_available(variant))
        return -ENOTSUP;
    atomic_store_explicit(&selected, variant == NB_VARIANT_AUTO ? best() : variant, memory_order_relaxed);
    return 0;
}

/* Threads that come here first at the same time store the same value. */
enum nb_variant nb_codec_selected(void)
{
    int variant = atomic_load_explicit(&selected, memory_order_relaxed);
    if (variant == NB_VARIANT_AUTO) {
        int expected = NB_VARIANT_AUTO;
        variant = best();
        if (!atomic_compare_exchange_strong(&selected, &expected, variant))
            variant = expected;
    }
    return (enum nb_variant)variant;
}

const struct nb_codec_ops *nb_codec_ops(void)
{
    return variant_ops(nb_codec_selected());
}

const char *nb_variant_name(enum nb_variant variant)
{
    static const char *const names[NB_VARIANT_COUNT] = {"auto", "reference", "portable", "avx2", "avx512"};
    return (unsigned)variant < NB_VARIANT_COUNT ? names[variant] : "unknown";
}
