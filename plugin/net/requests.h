/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of one connection: objects of one size, with a free list that grows a block at a time and is freed
 * with the connection. As a connection, used by one thread at a time.
 */
#ifndef NIBBLE_NET_REQUESTS_H
#define NIBBLE_NET_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>

/* First member of a transport's request. */
struct nb_net_req {
    struct nb_net_req *next; /* in the free list */
    void *comm;              /* the connection */
    unsigned index;          /* of this request among all of the connection, from 0 */
    bool done;
};

struct nb_net_reqs {
    struct nb_net_req *free;
    void *comm;
    size_t size; /* bytes of a request */
    unsigned n, max;
    char **block;
};

/* Requests of `size` bytes, a multiple of their alignment, for `comm`; at most `max` at a time, a multiple of
 * NB_NET_REQ_BLOCK, or as many as there is memory for when it is 0. Allocates nothing. */
void nb_net_reqs_init(struct nb_net_reqs *reqs, void *comm, size_t size, unsigned max);
/* Frees all, also those that have not been put back. */
void nb_net_reqs_free(struct nb_net_reqs *reqs);

#define NB_NET_REQ_BLOCK 64 /* requests allocated at a time */

/* For nb_net_req_get: puts a block of zeroed requests into the free list. The first of them, or NULL. */
struct nb_net_req *nb_net_reqs_grow(struct nb_net_reqs *reqs);

/* A request that is not done; what the transport keeps in it is as it was left. NULL: all are in use, or no
 * memory. */
static inline void *nb_net_req_get(struct nb_net_reqs *reqs)
{
    struct nb_net_req *r = reqs->free ? reqs->free : nb_net_reqs_grow(reqs);

    if (!r)
        return NULL;
    reqs->free = r->next;
    r->done = false;
    return r;
}

static inline void nb_net_req_put(struct nb_net_reqs *reqs, struct nb_net_req *r)
{
    r->next = reqs->free;
    reqs->free = r;
}

/* The request of this index, in use or not; NULL: there never was one. */
static inline void *nb_net_req_at(const struct nb_net_reqs *reqs, unsigned index)
{
    return index < reqs->n ? reqs->block[index / NB_NET_REQ_BLOCK] + index % NB_NET_REQ_BLOCK * reqs->size
                           : NULL;
}

#endif
