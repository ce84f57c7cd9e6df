/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of one connection: objects of one size, with a free list that grows by a block at a time and is
 * freed with the connection. One thread at a time uses them, as with the connection.
 */
#include "net/tcp/tcp.h"

#include <stdlib.h>

void nb_net_reqs_init(struct nb_net_reqs *reqs, void *comm, size_t size, unsigned max)
{
    *reqs = (struct nb_net_reqs){.comm = comm, .size = size, .max = max};
}

void nb_net_reqs_free(struct nb_net_reqs *reqs)
{
    for (unsigned i = 0; i < reqs->n / NB_NET_REQ_BLOCK; i++)
        free(reqs->block[i]);
    free(reqs->block);
    *reqs = (struct nb_net_reqs){0};
}

struct nb_net_req *nb_net_reqs_grow(struct nb_net_reqs *reqs)
{
    unsigned blocks = reqs->n / NB_NET_REQ_BLOCK;
    char **list, *block;

    if (reqs->max && reqs->n >= reqs->max)
        return NULL;
    list = realloc(reqs->block, (blocks + 1) * sizeof(*list));
    if (!list)
        return NULL;
    reqs->block = list;
    block = calloc(NB_NET_REQ_BLOCK, reqs->size);
    if (!block)
        return NULL;
    list[blocks] = block;
    for (unsigned i = NB_NET_REQ_BLOCK; i > 0; i--) {
        struct nb_net_req *r = (struct nb_net_req *)(void *)(block + (i - 1) * reqs->size);

        r->comm = reqs->comm;
        r->index = reqs->n + i - 1;
        nb_net_req_put(reqs, r);
    }
    reqs->n += NB_NET_REQ_BLOCK;
    return reqs->free;
}
