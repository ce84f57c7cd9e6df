/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a context (nb_context.gpus): the communicators that run codecs on each, and whether NCCL
 * reports its kernel launches and may hand over GPU memory. Private to plugin/device. device.h has
 * nb_gpus_open and nb_gpus_close.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda/cuda.h"
#include "device/device.h"

int nb_gpus_open(struct nb_context *ctx)
{
    struct nb_gpus *gpus = calloc(1, sizeof(*gpus));

    if (!gpus) {
        NB_WARN("out of memory");
        return -ENOMEM;
    }
    pthread_mutex_init(&gpus->lock, NULL);
    ctx->gpus = gpus;
    return 0;
}

void nb_gpus_close(struct nb_context *ctx)
{
    if (!ctx->gpus)
        return;
    pthread_mutex_destroy(&ctx->gpus->lock);
    free(ctx->gpus);
    ctx->gpus = NULL;
}

void nb_device_pointers(struct nb_context *ctx, int claimed)
{
    atomic_store(&ctx->gpus->pointers, claimed);
}

int nb_cuda_pointers_claimed(const struct nb_context *ctx)
{
    return atomic_load(&ctx->gpus->pointers);
}

static int counted(int ordinal)
{
    return ordinal >= 0 && ordinal < NB_GPUS_MAX;
}

void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *g)
{
    pthread_mutex_lock(&gpus->lock);
    g->serial = gpus->serials++;
    g->next = gpus->list;
    gpus->list = g;
    if (counted(g->cuda.ordinal))
        gpus->rings[g->cuda.ordinal]++;
    pthread_mutex_unlock(&gpus->lock);
}

void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *g)
{
    struct nb_gpu **link = &gpus->list;

    pthread_mutex_lock(&gpus->lock);
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    if (counted(g->cuda.ordinal))
        gpus->rings[g->cuda.ordinal]--;
    pthread_mutex_unlock(&gpus->lock);
}

int nb_gpus_used(struct nb_gpus *gpus, const struct nb_gpu *g)
{
    pthread_mutex_lock(&gpus->lock);
    const int used = g->users > 0;
    pthread_mutex_unlock(&gpus->lock);
    return used;
}

static int is_of(const struct nb_gpu *g, uint64_t comm_id)
{
    if (g->comm_id == comm_id)
        return 1;
    for (unsigned i = 0; i < NB_GPU_SHARED; i++)
        if (g->shared[i] == comm_id)
            return 1;
    return 0;
}

struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id)
{
    struct nb_gpu *g = NULL;

    if (!comm_id)
        return NULL;
    pthread_mutex_lock(&gpus->lock);
    for (g = gpus->list; g && (g->cuda.ordinal != ordinal || !is_of(g, comm_id)); g = g->next)
        ;
    if (g)
        g->users++;
    pthread_mutex_unlock(&gpus->lock);
    return g;
}

struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial)
{
    struct nb_gpu *g;

    pthread_mutex_lock(&gpus->lock);
    for (g = gpus->list; g && g->serial != serial; g = g->next)
        ;
    if (g)
        g->users++;
    pthread_mutex_unlock(&gpus->lock);
    return g;
}

void nb_gpus_unfind(struct nb_gpus *gpus, struct nb_gpu *g)
{
    pthread_mutex_lock(&gpus->lock);
    g->users--;
    pthread_mutex_unlock(&gpus->lock);
}

void nb_gpus_share(struct nb_gpus *gpus, struct nb_gpu *g, uint64_t comm_id)
{
    pthread_mutex_lock(&gpus->lock);
    if (comm_id && !is_of(g, comm_id))
        g->shared[g->nshared++ % NB_GPU_SHARED] = comm_id;
    pthread_mutex_unlock(&gpus->lock);
}

unsigned nb_gpus_take_blocks(struct nb_gpus *gpus, int ordinal, unsigned budget, int captured)
{
    unsigned rings, used, left, n;

    if (!counted(ordinal))
        return budget;
    pthread_mutex_lock(&gpus->lock);
    rings = gpus->rings[ordinal] ? gpus->rings[ordinal] : 1;
    used = gpus->blocks[ordinal];
    if (captured) {
        n = budget / rings;
    } else { /* leave the other communicators their minimum */
        left = budget > used ? budget - used : 0;
        n = left > (rings - 1) * NB_GPUS_LEAST ? left - (rings - 1) * NB_GPUS_LEAST : 0;
    }
    n = n < NB_GPUS_LEAST ? NB_GPUS_LEAST : n;
    if (!captured)
        gpus->blocks[ordinal] += n;
    pthread_mutex_unlock(&gpus->lock);
    return n;
}

void nb_gpus_give_blocks(struct nb_gpus *gpus, int ordinal, unsigned blocks)
{
    if (!counted(ordinal))
        return;
    pthread_mutex_lock(&gpus->lock);
    gpus->blocks[ordinal] -= blocks;
    pthread_mutex_unlock(&gpus->lock);
}
