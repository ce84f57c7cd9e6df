/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where NCCL's launches are told, so that the codec kernel can run beside them. The profiler's KernelLaunch event
 * (NCCL 2.28 and later) begins and ends directly around the launch of NCCL's kernel, on the launching thread, also
 * while a graph is captured. Any thread; no call waits for a GPU.
 */
#ifndef NIBBLE_DEVICE_CUDA_LAUNCH_H
#define NIBBLE_DEVICE_CUDA_LAUNCH_H

#include <stdint.h>

/* A communicator (+1, -1) on GPU `gpu` tells its launches: what the choice of the way of launching goes by. */
void nb_launch_told(int gpu, int by);

/* NCCL is about to launch a kernel of this communicator on `stream`. Returns a number for the next two, or 0 when
 * nothing was launched: it has no codecs on this GPU, nor has (for a child of another) exactly one communicator of `nnodes` nodes. */
uint64_t nb_launch_begin(int gpu, uint64_t comm_id, int nnodes, void *stream);
/* NCCL has launched it. */
void nb_launch_end(uint64_t launch);
/* Nothing in that launch will come to us: our kernel may end at once. Between the two above or later; only for
 * launches that are not captured (others: ignored). */
void nb_launch_nothing(uint64_t launch);

#endif
