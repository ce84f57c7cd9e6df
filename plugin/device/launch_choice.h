/* SPDX-License-Identifier: Apache-2.0 */
/* How the codec kernel is launched: by the settings, by what NCCL reports, and by the job's CUDA_ variables.
 * */
#ifndef NIBBLE_DEVICE_LAUNCH_CHOICE_H
#define NIBBLE_DEVICE_LAUNCH_CHOICE_H

#include <stddef.h>

#include "base/context.h"

enum nb_launching {
    NB_LAUNCH_RESIDENT, /* around NCCL's launches, by the profiler's KernelLaunch events */
    NB_LAUNCH_BATCH,    /* when there is work, on a stream of ours */
};

/* For GPU `gpu` (-1: not known yet, so that events may still come): 0 and *how; or -ENOTSUP when the kernel must not be launched in either way: `why` (of
 * `cap` bytes) says so, and nothing is logged. Any thread. */
int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, char *why, size_t cap);

#endif
