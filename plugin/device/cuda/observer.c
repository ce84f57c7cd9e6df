/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the codec kernel is launched: by the settings, by NCCL's reports, and by the job's CUDA_ variables.
 *
 * NCCL's kernel launches are reported here, so that the codec kernel can run beside them. The profiler's
 * KernelLaunch event (NCCL 2.28 and later) begins and ends directly around the launch of NCCL's kernel, on
 * the launching thread, also during the capture of a graph. The ABI layer registers these functions with
 * the recipient of those events (policy/job/events.c, struct nb_launch_observer).
 *
 * Any thread. No call waits for a GPU. Errors are logged, and fail their device.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"

int nb_launch_queues(void)
{
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int n = queues ? atoi(queues) : 0;

    return n > 0 ? n : NB_LAUNCH_QUEUES;
}

int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, char *why, size_t cap)
{
    const enum nb_gpu_launch_word wish = ctx->params->gpu_launch;
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    int tells = gpu < 0 || (gpu < NB_GPUS_MAX &&
                            atomic_load(&ctx->gpus->reporting[gpu]) > 0); /* -1: too early to know */

    if (blocking && *blocking && strcmp(blocking, "0") != 0) {
        snprintf(why, cap,
                 "CUDA_LAUNCH_BLOCKING is set: NCCL's kernel would begin only after the end of a kernel "
                 "beside it");
        return -ENOTSUP;
    }
    if (nb_launch_queues() < NB_LAUNCH_QUEUES &&
        (wish == NB_GPU_LAUNCH_BEHIND || wish == NB_GPU_LAUNCH_BATCH || !tells)) {
        snprintf(
            why, cap,
            "CUDA_DEVICE_MAX_CONNECTIONS=%d leaves fewer than %d hardware queues: a codec kernel in a launch "
            "of its own could wait behind work that waits for NCCL's kernel (one launch of both needs "
            "NIBBLE_GPU_LAUNCH=together and NCCL's KernelLaunch events, from 2.28 on)",
            nb_launch_queues(), NB_LAUNCH_QUEUES);
        return -ENOTSUP;
    }
    if ((wish == NB_GPU_LAUNCH_TOGETHER || wish == NB_GPU_LAUNCH_BEHIND) && !tells) {
        snprintf(why, cap,
                 "NIBBLE_GPU_LAUNCH=%s, but NCCL reports no KernelLaunch events (before 2.28, or another "
                 "profiler)",
                 nb_gpu_launch_words[wish]);
        return -ENOTSUP;
    }
    *how = wish == NB_GPU_LAUNCH_BATCH || !tells ? NB_LAUNCH_BATCH : NB_LAUNCH_RESIDENT;
    return 0;
}

void nb_launch_attached(struct nb_context *ctx, int gpu, int by)
{
    if (gpu >= 0 && gpu < NB_GPUS_MAX)
        atomic_fetch_add(&ctx->gpus->reporting[gpu], by);
}

/* Number of a launch: its GPU's number in the upper 16 bits, the ticket of nb_launches_fork in the lower 48.
 * */
#define TICKET_BITS 48
#define TICKET_MASK ((UINT64_C(1) << TICKET_BITS) - 1)

uint64_t nb_launch_begin(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream,
                         bool sums, bool eager)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g;
    uint64_t ticket, number = 0;

    if (nnodes < 2)
        return 0;
    g = nb_gpus_find(gpus, gpu, comm_id);
    if (!g)
        return 0;
    ticket = nb_launches_fork(&g->launches, stream, sums, eager);
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

void nb_launch_handed(struct nb_context *ctx, int gpu, uint64_t comm_id)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g = nb_gpus_find(gpus, gpu, comm_id);

    if (!g)
        return;
    nb_launches_handed(&g->launches);
    nb_gpus_unfind(gpus, g);
}

void nb_launch_posted(struct nb_context *ctx, uint64_t number, bool counts)
{
    struct nb_gpus *gpus = ctx->gpus;
    struct nb_gpu *g = number ? nb_gpus_find_serial(gpus, (uint16_t)(number >> TICKET_BITS)) : NULL;

    if (!g)
        return;
    nb_launches_posted(&g->launches, number & TICKET_MASK, counts);
    nb_gpus_unfind(gpus, g);
}
