/* SPDX-License-Identifier: Apache-2.0 */
/* How the codec kernel is launched; see launch_choice.h. */
#include "device/launch_choice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpus.h"

#define QUEUES 8 /* that a GPU has unless told otherwise */

int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, char *why, size_t cap)
{
    const enum nb_gpu_launch_word wish = ctx->params->gpu_launch;
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int tells = gpu < 0 || (gpu < NB_GPUS_MAX &&
                            atomic_load(&ctx->gpus->reporting[gpu]) > 0); /* -1: too early to know */

    if (blocking && *blocking && strcmp(blocking, "0") != 0) {
        snprintf(
            why, cap,
            "CUDA_LAUNCH_BLOCKING is set: a kernel beside NCCL's would be waited for before NCCL's begins");
        return -ENOTSUP;
    }
    if (queues && atoi(queues) > 0 && atoi(queues) < QUEUES) {
        snprintf(why, cap,
                 "CUDA_DEVICE_MAX_CONNECTIONS=%s leaves fewer than %d hardware queues: what has to wait for "
                 "NCCL's kernel "
                 "there would hold up the job's kernels, and what NCCL's kernel needs could wait for it",
                 queues, QUEUES);
        return -ENOTSUP;
    }
    if ((wish == NB_GPU_LAUNCH_RESIDENT || wish == NB_GPU_LAUNCH_BEFORE) && !tells) {
        snprintf(why, cap,
                 "NIBBLE_GPU_LAUNCH=%s, but NCCL tells no KernelLaunch events (before 2.28, or another "
                 "profiler)",
                 nb_gpu_launch_words[wish]);
        return -ENOTSUP;
    }
    *how = wish == NB_GPU_LAUNCH_BATCH || !tells ? NB_LAUNCH_BATCH : NB_LAUNCH_RESIDENT;
    return 0;
}
