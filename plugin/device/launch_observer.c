/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's launches, each given to the GPU of its communicator; see launch_observer.h. */
#include "device/launch_observer.h"

#include "device/cuda_gpu.h"
#include "device/gpus.h"

void nb_launch_attached(struct nb_context *ctx, int gpu, int by)
{
    if (gpu >= 0 && gpu < NB_GPUS_MAX)
        atomic_fetch_add(&ctx->gpus->reporting[gpu], by);
}

/* The number of a launch: that of its GPU in the upper 16 bits, the ticket of nb_launches_fork in the others.
 * */
#define TICKET_BITS 48
#define TICKET_MASK ((UINT64_C(1) << TICKET_BITS) - 1)

uint64_t nb_launch_begin(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g;
    uint64_t ticket, number = 0;

    if (nnodes < 2)
        return 0;
    g = nb_gpus_find(gpus, gpu, comm_id);
    if (!g)
        return 0;
    ticket = nb_launches_fork(&g->launches, stream);
    if (ticket)
        number = (uint64_t)g->serial << TICKET_BITS | ticket;
    nb_gpus_unfind(gpus, g);
    return number;
}

void nb_launch_end(struct nb_context *ctx, uint64_t number)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g = number ? nb_gpus_find_serial(gpus, (uint16_t)(number >> TICKET_BITS)) : NULL;

    if (!g)
        return;
    nb_launches_join(&g->launches, number & TICKET_MASK);
    nb_gpus_unfind(gpus, g);
}

void nb_launch_unused(struct nb_context *ctx, uint64_t number)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g = number ? nb_gpus_find_serial(gpus, (uint16_t)(number >> TICKET_BITS)) : NULL;

    if (!g)
        return;
    nb_launches_unused(&g->launches, number & TICKET_MASK);
    nb_gpus_unfind(gpus, g);
}

void nb_launch_posted(struct nb_context *ctx, uint64_t number)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g = number ? nb_gpus_find_serial(gpus, (uint16_t)(number >> TICKET_BITS)) : NULL;

    if (!g)
        return;
    nb_launches_posted(&g->launches, number & TICKET_MASK);
    nb_gpus_unfind(gpus, g);
}
