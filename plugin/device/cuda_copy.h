/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronous copies between GPU memory and pinned host memory, for transports that cannot access GPU memory
 * themselves. They run on a stream of their own, so that they do not wait for what NCCL and the job have
 * running.
 *
 * Threads: one at a time for each copier.
 */
#ifndef NIBBLE_DEVICE_CUDA_COPY_H
#define NIBBLE_DEVICE_CUDA_COPY_H

#include <stddef.h>

struct nb_cuda_copier;

/* 0 and *copier for the GPU with this ordinal, or a negative errno after a WARN. The caller closes it. */
int nb_copier_open(int gpu, struct nb_cuda_copier **copier);
void nb_copier_close(struct nb_cuda_copier *copier); /* NULL is allowed */

/* `bytes` of pinned host memory, zeroed, to be freed before the copier is closed. NULL after a WARN. */
void *nb_copier_pinned(struct nb_cuda_copier *copier, size_t bytes);
void nb_copier_unpin(struct nb_cuda_copier *copier, void *p);

/* Copy, and wait until it is done: 0, or a negative errno after a WARN. One side is GPU memory, the other
 * pinned. */
int nb_copier_copy(struct nb_cuda_copier *copier, void *dst, const void *src, size_t bytes);

#endif
