/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's half of the ring of descriptors (kernels/kernels.h): handing work to the kernel, and taking back
 * results.
 *
 * Threads: one at a time (the lock of struct nb_gpu), except `failed` and the fields of the pinned ring that
 * are accessed atomically.
 */
#ifndef NIBBLE_DEVICE_CUDA_RING_H
#define NIBBLE_DEVICE_CUDA_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "codec/pick.h"
#include "device/cuda_arena.h"
#include "device/cuda_context.h"
#include "device/device.h"
#include "device/evidence.h"
#include "kernels/kernels.h"

/* Where what comes with a result is wanted, in memory that needs not be the GPU's to see; NULL: it is not. */
struct nb_gpu_wanted {
    struct nb_encode_stats *stats; /* added */
    uint64_t *value;
    struct nb_delta4_stats *runs; /* of an NB_GPU_DELTA4_ENCODE; added */
    struct nb_nearness *near;     /* of an NB_GPU_LIKENESS or NB_GPU_EQUAL, all but `samples` */
    void *numbers;                /* of an NB_GPU_PICK: NB_PICKS patterns, as nb_pick has them; else floats */
};

struct nb_gpu_slot {
    struct nb_work *work; /* the caller's, NULL: free */
    unsigned *inflight;   /* counter of the caller's, lower by one when the work is finished */
    struct nb_gpu_wanted want;
    nb_cu_ptr work_at, scratch_at; /* its workspace and scratch memory */
    struct nb_gpu_source *sources; /* pinned */
};

struct nb_gpu_host { /* pinned, mapped at the same address */
    struct nb_gpu_ring ring;
    struct nb_gpu_result result[NB_GPU_RING];
    uint32_t found[NB_GPU_RING][NB_PICKS]; /* numbers that a slot's descriptor is asked for */
};

struct nb_ring {
    const struct nb_cuda_context *cuda;
    struct nb_arena *arena;
    const struct nb_clock *clock;
    nb_cu_stream stream; /* for setting memory, at connect */
    int major;           /* of the GPU's compute capability */
    _Atomic int
        failed; /* 0, or the error with which the ring, and the device, has failed; set once for good */
    struct nb_gpu_host *host;
    nb_cu_ptr state; /* struct nb_gpu_state */
    struct nb_gpu_slot slot[NB_GPU_RING];
    uint64_t published;               /* descriptors written so far */
    uint64_t tickets;                 /* of all of them */
    uint64_t oldest;                  /* none before this is unfinished */
    size_t work_bytes, scratch_bytes; /* of each slot */
    unsigned most;                    /* sources of a descriptor */
    void *pinned[32];                 /* arrays of sources, freed at the end */
    unsigned npinned;
    int64_t moved_ns;    /* when a descriptor was last finished, or the first one was handed over */
    uint64_t full, done; /* counters: submissions refused by a full ring; descriptors finished */
};

/* Make the ring; arena and clock outlive it, and `stream` is one of the context. 0, or a negative errno after
 * a WARN; nb_ring_close in either case. Entered. */
int nb_ring_open(struct nb_ring *ring, struct nb_arena *arena, const struct nb_clock *clock,
                 nb_cu_stream stream, int major);
void nb_ring_close(struct nb_ring *ring);

/* Make sure of `work` bytes of workspace, `scratch` bytes of scratch memory and `sources` sources a
 * descriptor. 0, or a negative errno after a WARN. At connect, entered. */
int nb_ring_reserve(struct nb_ring *ring, size_t work, size_t scratch, unsigned sources);

/* Hand over: 0; -EAGAIN when the ring is full; or what nb_gpu_plan says, -ENOTSUP also for more workspace or
 * sources than reserved and for what the kernel does not do on this GPU. Completes `desc`, which is copied.
 * `sources` (an array of desc->nsources, copied) may be NULL, as may `want`. `work`, what `want` points to and `inflight`
 * stay until the work is finished; what is wanted is there when it is found finished without an error. With
 * want->numbers, at most NB_PICKS of them, `dst` is the ring's; of a pick the result is how many. */
int nb_ring_submit(struct nb_ring *ring, unsigned *inflight, struct nb_work *work, struct nb_gpu_desc *desc,
                   const struct nb_source *sources, const struct nb_gpu_wanted *want);

/* 1 when so many more descriptors can be handed over now. */
int nb_ring_room(struct nb_ring *ring, unsigned descriptors);

/* The state of a work: -EINPROGRESS, or its result. */
ssize_t nb_ring_poll(struct nb_ring *ring, struct nb_work *work);
/* Note what is finished; the number of descriptors that are not. */
unsigned nb_ring_sweep(struct nb_ring *ring);
/* The device has failed, `error` is logged: finish everything that is not finished with -ECANCELED. */
void nb_ring_fail(struct nb_ring *ring, int error);

#endif
