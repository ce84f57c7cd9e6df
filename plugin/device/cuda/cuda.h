/* SPDX-License-Identifier: Apache-2.0 */
/* The device whose codecs run on a GPU, copies for transports, and the reports of NCCL's kernel launches. */
#ifndef NIBBLE_DEVICE_CUDA_H
#define NIBBLE_DEVICE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct nb_cuda_copier;
struct nb_context;

/* ---- cuda.c: the device -------------------------------------------------------------------------------- */

/* Create a communicator's instance, which uses ctx until its table's `close`. Return 0 and *dev. Return
 * -ENODEV or -ENOTSUP when this process cannot use a GPU, with the reason in `why`, of `cap` bytes, and
 * without a log line. Return other errors after a WARN. On NCCL's thread, at connect. */
int nb_cuda_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev,
                        char *why, size_t cap);

/* Return 1 when NIBBLE_DEVICE and NIBBLE_GPU_POINTERS allow the plugin to accept device pointers from NCCL,
 * and all requirements are met, else 0 with the reason in `why`. `gpu`: ordinal, or -1 while it is unknown.
 * On NCCL's thread. */
int nb_cuda_takes_pointers(struct nb_context *ctx, int gpu, char *why, size_t cap);

/* Return 1 when the plugin told NCCL that it may hand over GPU memory (nb_device_pointers). Any thread. */
int nb_cuda_pointers_claimed(const struct nb_context *ctx);

/* ---- copy.c: copies between GPU and host memory -------------------------------------------------------- */

/* Open a copier for the GPU with this ordinal. Return 0 and *copier, or a negative errno after a WARN. The
 * caller closes it. */
int nb_copier_open(int gpu, struct nb_cuda_copier **copier);
void nb_copier_close(struct nb_cuda_copier *copier); /* NULL is allowed */

/* Return `bytes` of pinned host memory, zeroed, or NULL after a WARN. The caller frees it before closing the
 * copier. */
void *nb_copier_pinned(struct nb_cuda_copier *copier, size_t bytes);
void nb_copier_unpin(struct nb_cuda_copier *copier, void *p);

/* Copy, and wait until it is done. Return 0, or a negative errno after a WARN. One side is GPU memory, the
 * other pinned. */
int nb_copier_copy(struct nb_cuda_copier *copier, void *dst, const void *src, size_t bytes);

/* ---- observer.c: NCCL's kernel launches ---------------------------------------------------------------- */

/* Note that the launches of one communicator more (by = 1) or less (-1) on GPU `gpu` (its ordinal) are
 * reported. Devices that open while NCCL reports the launches of some communicator launch their kernel beside
 * NCCL's. Other devices launch it for each batch of work. */
void nb_launch_attached(struct nb_context *ctx, int gpu, int by);

/* Begin a launch: NCCL is about to launch a kernel of communicator `comm_id` (of `nnodes` nodes) on `stream`,
 * a CUstream of the calling thread's context. The stream is captured until nb_launch_end. `eager`: the kernel
 * may have collectives outside graphs of the job. `sums`: all-reduces are among them. Without `eager` a
 * kernel on a stream outside captures has no collectives. Return a nonzero number for the next two functions.
 * Return 0 without a launch: the kernel has no collectives, or neither the communicator nor a known parent of
 * it (device.h, `shares`) has codecs on this GPU. */
uint64_t nb_launch_begin(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream,
                         bool sums, bool eager);

/* Note that NCCL has launched its kernel and has still to hand the operations over to its proxy (end), and
 * that NCCL has handed them over (posted). nb_launch_end launches both kernels. `counts`: nb_launch_handed
 * has noted all operations of the launch that come to the engine. Call each once for each nonzero number, on
 * the same thread. Both ignore 0. */
void nb_launch_end(struct nb_context *ctx, uint64_t launch);
void nb_launch_posted(struct nb_context *ctx, uint64_t launch, bool counts);

/* Note that NCCL hands over an operation of communicator `comm_id` that comes to the engine, other than an
 * all-reduce. Any thread. */
void nb_launch_handed(struct nb_context *ctx, int gpu, uint64_t comm_id);

#endif
