/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where NCCL's kernel launches are reported, so that the codec kernel can run beside them. The profiler's
 * KernelLaunch event (NCCL 2.28 and later) begins and ends directly around the launch of NCCL's kernel, on
 * the launching thread, also while a graph is captured. The ABI layer registers these five functions with the
 * recipient of those events (policy/events.h, struct nb_launch_observer).
 *
 * Any thread; no call waits for a GPU. Errors are logged, and fail the device that they concern.
 */
#ifndef NIBBLE_DEVICE_LAUNCH_OBSERVER_H
#define NIBBLE_DEVICE_LAUNCH_OBSERVER_H

#include <stdint.h>

struct nb_context;

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
