/* SPDX-License-Identifier: Apache-2.0 */
/* Code that all exchanges share: their names and their memory. */
#include "exchange.h"

#include <string.h>

const struct nbt_exchange_ops *nbt_exchange_find(const char *name)
{
    static const struct nbt_exchange_ops *const all[] = {&nbt_exchange_plugin, &nbt_exchange_shm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

/* Each node's whole send vector, as FP32 or coded, lies here during an operation. Coded it may be a little
 * longer. */
size_t nbt_exchange_shared_bytes(int nnodes, size_t block)
{
    return (size_t)nnodes * (size_t)nnodes * (block * sizeof(float) + block / 8 + 4096);
}
