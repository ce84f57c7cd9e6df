/* SPDX-License-Identifier: Apache-2.0 */
/* The device whose codecs run on a GPU, copies for transports, and the reports of NCCL's kernel launches. */
#ifndef NIBBLE_DEVICE_CUDA_H
#define NIBBLE_DEVICE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct nb_cuda_copier;
struct nb_context;

/* ---- cuda.c: the device ---------------------------------------------------------------------------------- */

/* Create a communicator's instance, which uses ctx until its table's `close`. 0 and *dev; -ENODEV or -ENOTSUP
 * when this process cannot use a GPU (`why`, of `cap` bytes, has the reason, and nothing is logged); other
 * errors after a WARN. On NCCL's thread, at connect. */
int nb_cuda_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev,
                        char *why, size_t cap);

/* 1 when NIBBLE_DEVICE and NIBBLE_GPU_POINTERS allow telling NCCL that device pointers are welcome, and all
 * that this needs is there; else 0, and the reason in `why`. `gpu`: ordinal, -1: not known yet. On NCCL's
 * thread. */
int nb_cuda_takes_pointers(struct nb_context *ctx, int gpu, char *why, size_t cap);

/* 1 when NCCL was told that it may hand over GPU memory (nb_device_pointers). Any thread. */
int nb_cuda_pointers_claimed(const struct nb_context *ctx);

/* ---- copy.c: copies between GPU and host memory ---------------------------------------------------------- */

/* 0 and *copier for the GPU with this ordinal, or a negative errno after a WARN. The caller closes it. */
int nb_copier_open(int gpu, struct nb_cuda_copier **copier);
void nb_copier_close(struct nb_cuda_copier *copier); /* NULL is allowed */

/* `bytes` of pinned host memory, zeroed, to be freed before the copier is closed. NULL after a WARN. */
void *nb_copier_pinned(struct nb_cuda_copier *copier, size_t bytes);
void nb_copier_unpin(struct nb_cuda_copier *copier, void *p);

/* Copy, and wait until it is done: 0, or a negative errno after a WARN. One side is GPU memory, the other
 * pinned. */
int nb_copier_copy(struct nb_cuda_copier *copier, void *dst, const void *src, size_t bytes);

/* ---- observer.c: NCCL's kernel launches ------------------------------------------------------------------ */

/* One communicator more (by = 1) or less (-1) on GPU `gpu` (its ordinal) has its launches reported. Devices
 * opened while there is one launch their kernel beside NCCL's; others for each batch of work. */
void nb_launch_attached(struct nb_context *ctx, int gpu, int by);

/* NCCL is about to launch a kernel of communicator `comm_id` (of `nnodes` nodes) on `stream`, a CUstream of
 * the calling thread's context: fork ours off it. Returns a nonzero number for the next three, or 0 when none
 * will be launched: the communicator has no codecs on this GPU, nor is it known as a child whose operations come to
 * one that has (device.h, `shares`). */
uint64_t nb_launch_begin(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream);

/* NCCL has launched it, and has still to hand it over to its proxy: no driver call is made here, but for captured
 * launches. Then: NCCL has handed it over. Each once for each nonzero number, on the same thread; 0 is ignored. */
void nb_launch_end(struct nb_context *ctx, uint64_t launch);
void nb_launch_posted(struct nb_context *ctx, uint64_t launch);

/* No operation of that launch comes to the engine: our kernel may end at once. Between the two above; without effect
 * on captured launches, and for 0. */
void nb_launch_unused(struct nb_context *ctx, uint64_t launch);

#endif
