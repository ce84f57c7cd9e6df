/* SPDX-License-Identifier: Apache-2.0 */
/* How the codec kernel is launched; see launch_choice.h. */
#include "device/launch_choice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpus.h"

static int set_to(const char *name, const char *value)
{
    const char *v = getenv(name);
    return v && strcmp(v, value) == 0;
}

int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, int *one_queue, char *why,
                     size_t cap)
{
    const int wish = ctx->params->gpu_launch; /* auto, resident, batch */
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    int tells = gpu < 0 || (gpu < NB_GPUS_MAX &&
                            atomic_load(&ctx->gpus->reporting[gpu]) > 0); /* -1: too early to know */

    *one_queue = set_to("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    if (blocking && *blocking && strcmp(blocking, "0") != 0) {
        snprintf(
            why, cap,
            "CUDA_LAUNCH_BLOCKING is set: a kernel beside NCCL's would be waited for before NCCL's begins");
        return -ENOTSUP;
    }
    if (wish == 1 && !tells) {
        snprintf(why, cap,
                 "NIBBLE_GPU_LAUNCH=resident, but NCCL tells no KernelLaunch events (before 2.28, or another "
                 "profiler)");
        return -ENOTSUP;
    }
    *how = wish == 2 || !tells ? NB_LAUNCH_BATCH : NB_LAUNCH_RESIDENT;
    if (*how == NB_LAUNCH_BATCH && *one_queue) {
        snprintf(why, cap,
                 "CUDA_DEVICE_MAX_CONNECTIONS=1 leaves one hardware queue, in which a kernel launched for a "
                 "batch could wait for "
                 "the operation that needs it, and %s",
                 wish == 2 ? "NIBBLE_GPU_LAUNCH=batch"
                           : "NCCL tells no KernelLaunch events (before 2.28, or another profiler)");
        return -ENOTSUP;
    }
    return 0;
}
