/* SPDX-License-Identifier: Apache-2.0 */
/* Round to the types that travel. */
#include "values.h"

#include <string.h>

#include "codec/fp.h"

void nbt_to_bf16(const float *src, size_t n, uint16_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, src + i, sizeof u);
        const uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u;
        const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
        dst[i] = (uint16_t)(nan ? u >> 16 | 0x40u : rounded);
    }
}

void nbt_from_bf16(const uint16_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)src[i] << 16;
        memcpy(dst + i, &u, sizeof u);
    }
}

void nbt_narrow(enum nb_dtype type, const float *src, size_t n, void *dst)
{
    uint16_t *const half = dst;
    if (type == NB_F32)
        memcpy(dst, src, n * sizeof *src);
    else if (type == NB_BF16)
        nbt_to_bf16(src, n, half);
    else
        for (size_t i = 0; i < n; i++)
            half[i] = nb_f32_to_f16(src[i]);
}

void nbt_widen(enum nb_dtype type, const void *src, size_t n, float *dst)
{
    const uint16_t *const half = src;
    if (type == NB_F32)
        memcpy(dst, src, n * sizeof *dst);
    else if (type == NB_BF16)
        nbt_from_bf16(half, n, dst);
    else
        for (size_t i = 0; i < n; i++)
            dst[i] = nb_f16_to_f32(half[i]);
}
