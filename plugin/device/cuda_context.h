/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's primary context, which the job and NCCL use too, and pinned memory in it.
 *
 * Threads: all functions from any thread, but for one object's open and close.
 */
#ifndef NIBBLE_DEVICE_CUDA_CONTEXT_H
#define NIBBLE_DEVICE_CUDA_CONTEXT_H

#include <stddef.h>

#include "device/cuda_driver.h"

struct nb_cuda_context {
    const struct nb_cuda *cu; /* the driver */
    int ordinal;              /* of the GPU */
    nb_cu_device device;
    nb_cu_context context;
};

/* Open the driver and retain the context of GPU `ordinal`. 0; -ENODEV where there is no driver to use (`why`,
 * of `cap` bytes, says so and nothing is logged); -ENOMEM or -EIO after a WARN. Closed once after success,
 * with nothing current. */
int nb_cuda_context_open(struct nb_cuda_context *context, int ordinal, char *why, size_t cap);
void nb_cuda_context_close(struct nb_cuda_context *context);

/* Make the context current, with the relaxed mode of captures, in which calls that a capture on another
 * thread would forbid are allowed to this one. 0 and *mode (what to give to leave), or -ENOMEM or -EIO after
 * a WARN. Leave only after success. */
int nb_cuda_enter(const struct nb_cuda_context *context, int *mode);
void nb_cuda_leave(const struct nb_cuda_context *context, int mode);

/* `bytes` of pinned memory, zeroed, that the GPU sees at the same address; the caller frees it. NULL after a
 * WARN. The functions enter by themselves. */
void *nb_cuda_pinned(const struct nb_cuda_context *context, size_t bytes);
void nb_cuda_unpin(const struct nb_cuda_context *context, void *p); /* NULL is allowed */

#endif
