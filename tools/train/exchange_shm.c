/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange through shared memory. It sums in FP32, the other nodes in rank order and then the own
 * contribution, and rounds once. The plugin's raw codec adds in the same order, so both must agree to the
 * bit.
 */
#include "exchange.h"

#include <errno.h>
#include <string.h>

#include "values.h"

static char *slot(const struct nbt_exchange *x, int rank)
{
    return (char *)x->cfg.shared + (size_t)rank * (size_t)x->cfg.node->nnodes * x->cfg.block * sizeof(float);
}

static int shm_open_(struct nbt_exchange *x)
{
    return nb_dtype_size(x->cfg.grad_type) > 0 ? 0 : -EINVAL;
}

static int shm_reduce_scatter(struct nbt_exchange *x, const void *send, void *recv)
{
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t block = x->cfg.block, size = nb_dtype_size(x->cfg.grad_type);
    memcpy(slot(x, me), send, (size_t)n * block * size);
    hx_barrier(x->cfg.node);
    for (size_t i0 = 0; i0 < block; i0 += 1024) {
        const size_t c = block - i0 < 1024 ? block - i0 : 1024;
        float sum[1024] = {0}, part[1024];
        for (int k = 1; k <= n; k++) { /* the other nodes in rank order, the own values last */
            const int r = k == n ? me : k - 1 + (k - 1 >= me);
            const char *from = slot(x, r) + ((size_t)me * block + i0) * size;
            nbt_widen(x->cfg.grad_type, from, c, part);
            for (size_t i = 0; i < c; i++)
                sum[i] += part[i];
        }
        nbt_narrow(x->cfg.grad_type, sum, c, (char *)recv + i0 * size);
    }
    hx_barrier(x->cfg.node);
    return 0;
}

static int shm_all_gather(struct nbt_exchange *x, uint16_t *buf)
{
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t bytes = x->cfg.block * sizeof *buf;
    memcpy(slot(x, me), buf + (size_t)me * x->cfg.block, bytes);
    hx_barrier(x->cfg.node);
    for (int r = 0; r < n; r++)
        if (r != me)
            memcpy(buf + (size_t)r * x->cfg.block, slot(x, r), bytes);
    hx_barrier(x->cfg.node);
    return 0;
}

static int shm_close(struct nbt_exchange *x)
{
    (void)x;
    return 0;
}

const struct nbt_exchange_ops nbt_exchange_shm = {
    .name = "shm",
    .open = shm_open_,
    .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather,
    .close = shm_close,
};
