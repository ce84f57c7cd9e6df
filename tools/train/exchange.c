/* SPDX-License-Identifier: Apache-2.0 */
/* What all exchanges share: their names, the memory they get, and BF16. */
#include "exchange.h"

#include <string.h>

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

const struct nbt_exchange_ops *nbt_exchange_find(const char *name)
{
    static const struct nbt_exchange_ops *const all[] = {&nbt_exchange_plugin, &nbt_exchange_shm,
                                                         &nbt_exchange_codec};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

/* Every node's whole send vector, as FP32 or coded, lies here during an operation; coded it may be a little
 * longer. */
size_t nbt_exchange_shared_bytes(int nnodes, size_t block)
{
    return (size_t)nnodes * (size_t)nnodes * (block * sizeof(float) + block / 8 + 4096);
}
