/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between GPU memory and the host's, for bytes that a transport cannot fetch from a GPU itself. On a
 * stream of its own, so that nothing waits for what NCCL and the job have running. One thread at a time for
 * each copier.
 */
#ifndef NIBBLE_DEVICE_CUDA_COPY_H
#define NIBBLE_DEVICE_CUDA_COPY_H

#include <stddef.h>

struct nb_cuda_copier;

/* 0 and *copier, or a negative errno after a WARN. `gpu`: its ordinal. */
int nb_copier_open(int gpu, struct nb_cuda_copier **copier);
void nb_copier_close(struct nb_cuda_copier *copier); /* NULL is allowed */

/* Pinned host memory, zeroed; given back before the copier is closed. NULL after a WARN. */
void *nb_copier_pinned(struct nb_cuda_copier *copier, size_t bytes);
void nb_copier_unpin(struct nb_cuda_copier *copier, void *p);

/* Copy, and wait until it is done: 0, or -EIO after a WARN. One side is GPU memory, the other pinned. */
int nb_copier_copy(struct nb_cuda_copier *copier, void *dst, const void *src, size_t bytes);

#endif
