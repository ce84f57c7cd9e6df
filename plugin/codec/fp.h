/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar floating-point functions that the codecs share: bit casts and the 16-bit types. All
 * round to nearest even and are defined for every bit pattern.
 */
#ifndef NIBBLE_CODEC_FP_H
#define NIBBLE_CODEC_FP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <math.h>
#endif

#include "base/bytes.h"
#include "nibble/codec.h"

/* The NEON variant is built: every aarch64 with the wire's byte order has it. */
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)
#define NB_NEON 1
#endif

/* Contraction to fused multiply-add would change bits. Clang honours the pragma. GCC needs -ffp-contract=off,
 * which plugin/codec/Makefile.inc passes. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* Each row of a table gets its own copy of the operations, in which the row's type is a constant. With
 * sanitizers and without optimisation the compiler decides: copies would take it a minute a file. */
#if defined(__has_feature)
#define NB_HAS(feature) __has_feature(feature)
#else
#define NB_HAS(feature) 0
#endif
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    NB_HAS(address_sanitizer) || NB_HAS(thread_sanitizer)
#define NB_INLINE static inline __attribute__((unused))
#else
#define NB_INLINE static inline __attribute__((always_inline, unused))
#endif

#define NB_F32_SIGN 0x80000000u
#define NB_F32_ABS 0x7fffffffu
#define NB_F32_INF 0x7f800000u
#define NB_F32_NAN 0x7fc00000u /* the NaN that sums give */

NB_INLINE uint32_t nb_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

NB_INLINE float nb_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* 2^e for -126 <= e <= 127. */
NB_INLINE float nb_pow2(int e)
{
    return nb_bits_f32((uint32_t)(e + 127) << 23);
}

NB_INLINE float nb_bf16_to_f32(uint16_t b)
{
    return nb_bits_f32((uint32_t)b << 16);
}

/* NaN keeps its sign and upper payload. A NaN whose payload lies in the lower bits becomes quiet instead of
 * infinity. */
NB_INLINE uint16_t nb_f32_to_bf16(float f)
{
    uint32_t u = nb_f32_bits(f);
    if ((u & NB_F32_ABS) > NB_F32_INF)
        return (uint16_t)((u >> 16) | ((u >> 16 & 0x7f) ? 0 : 0x40));
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Return all bits where `condition` holds, else 0. The two conversions below select by it instead of
 * branching. Small and normal values are mixed in gradients, so that a branch would be mispredicted, and such
 * loops become vector code. */
NB_INLINE uint32_t nb_all_if(bool condition)
{
    return 0u - (uint32_t)condition;
}

/* A NaN becomes quiet, as with F16C. */
NB_INLINE float nb_f16_to_f32(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000) << 16;
    const int32_t a = v & 0x7fff; /* signed, which SSE2 can compare */
    const uint32_t normal = ((uint32_t)a << 13) + (112u << 23);
    const uint32_t special = ((uint32_t)a << 13 | NB_F32_INF) | (nb_all_if(a > 0x7c00) & 0x00400000u);
    const uint32_t small = nb_f32_bits((float)a * 0x1p-24f); /* exact for small numbers */
    const uint32_t is_small = nb_all_if(a < 0x400), is_special = nb_all_if(a >= 0x7c00);
    return nb_bits_f32(sign | (small & is_small) | (special & is_special) |
                       (normal & ~(is_small | is_special)));
}

/* Overflow gives infinity, small results are denormal. */
NB_INLINE uint16_t nb_f32_to_f16(float f)
{
    const uint32_t u = nb_f32_bits(f), sign = u >> 16 & 0x8000, a = u & NB_F32_ABS;
    const uint32_t nan = 0x7e00 | (a >> 13 & 0x3ff);
    const uint32_t rebased = a - (112u << 23);
    const uint32_t normal = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
    /* Adding 1/2 leaves units of 2^-24 in the low mantissa bits. */
    const uint32_t small = nb_f32_bits(nb_bits_f32(a) + 0.5f) - 0x3f000000u;
    const uint32_t is_nan = nb_all_if((int32_t)a > 0x7f800000);
    const uint32_t is_small = nb_all_if((int32_t)a < 0x38800000);            /* 2^-14 */
    const uint32_t is_large = nb_all_if((int32_t)a >= 0x477ff000) & ~is_nan; /* 65520 and more */
    return (uint16_t)(sign | (nan & is_nan) | (0x7c00 & is_large) | (small & is_small) |
                      (normal & ~(is_nan | is_large | is_small)));
}

/* nb_dtype_size for a known type. */
NB_INLINE unsigned nb_value_bytes(enum nb_dtype type)
{
    return type == NB_F32 ? 4 : 2;
}

NB_INLINE float nb_load_value(enum nb_dtype type, const void *base, size_t i)
{
    if (type == NB_F32) {
        float f;
        memcpy(&f, (const char *)base + 4 * i, 4);
        return f;
    }
    uint16_t v;
    memcpy(&v, (const char *)base + 2 * i, 2);
    return type == NB_BF16 ? nb_bf16_to_f32(v) : nb_f16_to_f32(v);
}

NB_INLINE void nb_store_value(enum nb_dtype type, void *base, size_t i, float f)
{
    if (type == NB_F32) {
        memcpy((char *)base + 4 * i, &f, 4);
        return;
    }
    uint16_t v = type == NB_BF16 ? nb_f32_to_bf16(f) : nb_f32_to_f16(f);
    memcpy((char *)base + 2 * i, &v, 2);
}

/* Return f, or the canonical NaN for every NaN: machines differ in the operand whose payload an addition
 * keeps. */
NB_INLINE float nb_canonical(float f)
{
    const uint32_t u = nb_f32_bits(f), is_nan = nb_all_if((int32_t)(u & NB_F32_ABS) > 0x7f800000);
    return nb_bits_f32((u & ~is_nan) | (NB_F32_NAN & is_nan));
}

/* Nearest integer, ties to even, for |f| <= 2^22. */
NB_INLINE float nb_rint(float f)
{
    return (f + 0x1.8p23f) - 0x1.8p23f;
}

/* Correctly rounded on every machine; on x86 without a call into libm. */
NB_INLINE float nb_sqrtf(float f)
{
#if defined(__SSE2__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(f)));
#else
    return sqrtf(f);
#endif
}

#endif
