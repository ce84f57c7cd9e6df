/* SPDX-License-Identifier: Apache-2.0 */
/* What a context knows of GPUs; see gpus.h. */
#include "device/gpus.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda_gpu.h"
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

void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *g)
{
    pthread_mutex_lock(&gpus->lock);
    g->serial = gpus->serials++;
    g->next = gpus->list;
    gpus->list = g;
    pthread_mutex_unlock(&gpus->lock);
}

void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *g)
{
    struct nb_gpu **link = &gpus->list;

    pthread_mutex_lock(&gpus->lock);
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    pthread_mutex_unlock(&gpus->lock);
}

struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id, int nnodes)
{
    struct nb_gpu *g, *like = NULL;
    int n = 0;

    pthread_mutex_lock(&gpus->lock);
    for (g = gpus->list; g; g = g->next) {
        if (g->cuda.ordinal != ordinal)
            continue;
        if (comm_id && g->comm_id == comm_id)
            return g;
        if (g->nnodes == nnodes) {
            like = g;
            n++;
        }
    }
    if (n == 1)
        return like;
    pthread_mutex_unlock(&gpus->lock);
    return NULL;
}

struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial)
{
    struct nb_gpu *g;

    pthread_mutex_lock(&gpus->lock);
    for (g = gpus->list; g && g->serial != serial; g = g->next)
        ;
    if (!g)
        pthread_mutex_unlock(&gpus->lock);
    return g;
}

void nb_gpus_unfind(struct nb_gpus *gpus)
{
    pthread_mutex_unlock(&gpus->lock);
}
