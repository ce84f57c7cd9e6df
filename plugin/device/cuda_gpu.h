/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator has on its GPU: context, kernel, memory, ring and launches. Each communicator has its
 * own ring and its own kernels. One for all of a GPU's communicators does not work: kernels beside NCCL's
 * launches on several streams, one after the other on one ring, begin in the order of the launches, so one
 * that stands before others waits for its own stream, while what another stream's operation needs waits
 * behind it; telling whichever runs to go on for all of them then blocks the stream that it is joined to
 * (tests/device/test_cuda_launch.c has three communicators that deadlocked so). As many kernels run at once
 * as communicators have operations at once; their blocks come out of one budget (gpus.h).
 *
 *   cuda_context    the GPU's context, pinned memory
 *   cuda_arena      GPU memory: reserved at connect, grown as it is needed, given back at the end
 *   cuda_thread     threads that call the driver once the communicator is connected
 *   cuda_reach      whose memory an address is
 *   cuda_ring       descriptors to the kernel and results back
 *   cuda_launch     when the kernel runs: around NCCL's own launches, or for a batch
 *   cuda_gpu        all of it, for one communicator
 *   launch_choice   which of the two ways of launching
 *   launch_observer NCCL's launches as they are reported
 *   cuda_device     the device that the engine sees
 *
 * Threads: `lock` covers everything but launching, which has the lock of struct nb_launches. NCCL's launching
 * threads take the latter and may be held up by the driver for as long as the GPU's queues are full, which
 * can depend on the engine: so whoever has `lock` only tries to take the other.
 */
#ifndef NIBBLE_DEVICE_CUDA_GPU_H
#define NIBBLE_DEVICE_CUDA_GPU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/context.h"
#include "device/cuda_arena.h"
#include "device/cuda_context.h"
#include "device/cuda_launch.h"
#include "device/cuda_ring.h"
#include "device/cuda_thread.h"
#include "device/device.h"

#define NB_GPU_SHARED 16u /* children of a communicator that are remembered */

struct nb_gpu {
    struct nb_context *ctx;
    struct nb_cuda_context cuda;
    uint16_t serial;  /* number in the context's list; see gpus.h */
    uint64_t comm_id; /* 0: not known */
    int nnodes;       /* of the communicator */
    char name[64];
    nb_cu_module module;
    nb_cu_function kernel;
    int multiprocessors, major; /* major: of the compute capability */
    pthread_mutex_t lock;
    struct nb_arena arena;
    struct nb_ring ring;
    struct nb_launches launches;
    struct nb_cuda_thread thread, grower; /* that call the driver: launch kernels; grow the arena */
    size_t grow;                          /* bytes of memory that were asked for in vain; under `lock` */
    uint64_t shared
        [NB_GPU_SHARED]; /* children whose operations come here; these four under the lock of struct nb_gpus */
    unsigned nshared, users;
    struct nb_gpu *next;
};

/* Make one, and put it on the context's list. 0; -ENODEV or -ENOTSUP when the GPU cannot be used (`why`, of
 * `cap` bytes, says so; nothing is logged unless the GPU has no unified addresses); others after a WARN. On a
 * connecting thread. */
int nb_gpu_get(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_gpu **gpu, char *why,
               size_t cap);

/* There was no room for `bytes` of GPU memory: have the arena grown, without waiting for it. Any thread. */
void nb_gpu_grow(struct nb_gpu *gpu, size_t bytes);

/* Take it off the list, wait in bounded time until its kernels have ended, and free it. When one does not end
 * its memory is left as it is, after a WARN. Nothing is in flight. */
void nb_gpu_put(struct nb_gpu *gpu);

#endif
