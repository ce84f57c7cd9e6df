/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choose the variant of the codecs: once from the CPU's features, or by nb_codec_select.
 */
#include "codec/dispatch.h"

#include <errno.h>
#include <stdatomic.h>

#define SPAN(tile) \
    { \
        nb_span_encode, nb_span_decode, nb_span_reduce, tile \
    }

/* By enum nb_variant. Entries are empty for variants outside the build, and for NB_VARIANT_AUTO. */
static const struct nb_variant_ops variants[NB_VARIANT_COUNT] = {
    [NB_VARIANT_PORTABLE] = {SPAN(&nb_tile_portable), &nb_ulp_portable, nb_stripes_portable},
#if defined(__x86_64__)
    [NB_VARIANT_AVX2] = {SPAN(&nb_tile_avx2), &nb_ulp_avx2, nb_stripes_avx2},
    [NB_VARIANT_AVX512] = {SPAN(&nb_tile_avx512), &nb_ulp_avx512, nb_stripes_avx512},
    [NB_VARIANT_AVX512_VBMI] = {SPAN(&nb_tile_avx512), &nb_ulp_avx512_vbmi, nb_stripes_avx512},
#endif
#if defined(NB_NEON)
    [NB_VARIANT_NEON] = {SPAN(&nb_tile_neon), &nb_ulp_neon, nb_stripes_neon},
#endif
};

/* NULL: still to be chosen. */
static _Atomic(const struct nb_variant_ops *) in_force;

/* Every aarch64 has NEON. __builtin_cpu_supports also checks that the operating system saves the
 * registers. */
static int cpu_has(enum nb_variant variant)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (variant == NB_VARIANT_AVX2 || variant == NB_VARIANT_AVX512 || variant == NB_VARIANT_AVX512_VBMI) {
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
            !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt") ||
            !__builtin_cpu_supports("fma"))
            return 0;
#if defined(__clang__) ? __clang_major__ < 17 : __GNUC__ < 11 /* compilers that lack its name */
        unsigned eax = 1, ebx, ecx = 0, edx;
        __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
        if (!(ecx >> 29 & 1))
            return 0;
#else
        if (!__builtin_cpu_supports("f16c"))
            return 0;
#endif
    }
    if (variant == NB_VARIANT_AVX512 || variant == NB_VARIANT_AVX512_VBMI)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               (variant == NB_VARIANT_AVX512 || __builtin_cpu_supports("avx512vbmi"));
#endif
    return variants[variant].ulp != NULL;
}

int nb_codec_available(enum nb_variant variant)
{
    return variant == NB_VARIANT_AUTO || ((unsigned)variant < NB_VARIANT_COUNT && cpu_has(variant));
}

/* Return the widest variant. Measuring the variants would gain nothing: their order is clear for every
 * operation that takes time in a job with default settings (docs/performance.md). */
static enum nb_variant best(void)
{
    if (nb_codec_available(NB_VARIANT_AVX512_VBMI))
        return NB_VARIANT_AVX512_VBMI;
    if (nb_codec_available(NB_VARIANT_AVX512))
        return NB_VARIANT_AVX512;
    if (nb_codec_available(NB_VARIANT_AVX2))
        return NB_VARIANT_AVX2;
    return nb_codec_available(NB_VARIANT_NEON) ? NB_VARIANT_NEON : NB_VARIANT_PORTABLE;
}

void nb_variant_use(const struct nb_variant_ops *ops)
{
    atomic_store_explicit(&in_force, ops, memory_order_relaxed);
}

int nb_codec_select(enum nb_variant variant)
{
    if ((unsigned)variant >= NB_VARIANT_COUNT)
        return -EINVAL;
    if (!nb_codec_available(variant))
        return -ENOTSUP;
    nb_variant_use(&variants[variant == NB_VARIANT_AUTO ? best() : variant]);
    return 0;
}

/* Threads that arrive here first at the same time store the same value. */
static const struct nb_variant_ops *choose(void)
{
    const struct nb_variant_ops *expected = NULL, *ops = &variants[best()];

    return atomic_compare_exchange_strong(&in_force, &expected, ops) ? ops : expected;
}

const struct nb_variant_ops *nb_variant(void)
{
    const struct nb_variant_ops *ops = atomic_load_explicit(&in_force, memory_order_relaxed);
    return ops ? ops : choose();
}

enum nb_variant nb_codec_selected(void)
{
    const struct nb_variant_ops *ops = nb_variant();

    for (int v = NB_VARIANT_AUTO + 1; v < NB_VARIANT_COUNT; v++)
        if (ops == &variants[v])
            return (enum nb_variant)v;
    return NB_VARIANT_AUTO;
}

const char *nb_variant_name(enum nb_variant variant)
{
    static const char *const names[NB_VARIANT_COUNT] = {"auto",   "portable", "avx2",
                                                        "avx512", "neon",     "avx512-vbmi"};
    return (unsigned)variant < NB_VARIANT_COUNT ? names[variant] : "unknown";
}
