/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator has on its GPU: context, kernel, memory, ring and launches. Each communicator has its
 * own ring and its own kernels. One for all of a GPU's communicators does not work: kernels beside NCCL's
 * launches on several streams, one after the other on one ring, begin in the order of the launches, so one
 * that stands before others waits for its own stream, while what another stream's operation needs waits
 * behind it; telling whichever runs to go on for all of them then blocks the stream that it is joined to
 * (tests/gpu/test_cuda.c has three communicators that got stuck so). As many kernels run at once as
 * communicators have operations at once; NIBBLE_GPU_BLOCKS is for each.
 *
 *   cuda_gpu.c     context, module, streams; life
 *   cuda_arena.c   GPU memory: reserved at connect, grown by the engine thread, given back at the end
 *   cuda_ring.c    descriptors to the kernel and results back
 *   cuda_launch.c  when the kernel runs: around NCCL's own launches, or for a batch
 *   cuda.c         the table that the engine sees
 *
 * Threads: `lock` covers everything but launching, which has `launch_lock`. NCCL's launching threads take the
 * latter and may be held up by the driver for as long as the GPU's queues are full, which can depend on the
 * engine: so whoever has `lock` only tries to take it.
 */
#ifndef NIBBLE_DEVICE_CUDA_GPU_H
#define NIBBLE_DEVICE_CUDA_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "kernels/kernels.h"

/* ---- The arena (cuda_arena.c) -------------------------------------------------------------------------- */

struct nb_arena_block { /* a piece of the arena, used or free; in the order of addresses */
    nb_cu_ptr at;
    size_t bytes;
    int used;
    struct nb_arena_block *next;
};

struct nb_arena_map { /* physical memory behind a part of it */
    nb_cu_ptr at;
    size_t bytes;
    unsigned long long handle; /* 0: of cuMemAlloc */
    struct nb_arena_map *next;
};

struct nb_arena {
    int virtual_memory; /* reserved addresses, mapped as they are needed; else pieces of cuMemAlloc made at
                           connect */
    nb_cu_ptr base;
    size_t reserved, mapped, used, peak, granularity;
    uint64_t grown, refused; /* counters: growths, allocations that had no memory */
    struct nb_arena_block *blocks;
    struct nb_arena_map *maps;
};

/* ---- The ring (cuda_ring.c) ---------------------------------------------------------------------------- */

struct nb_gpu_slot {
    struct nb_work *work;       /* the caller's, NULL: free */
    struct nb_cuda_device *dev; /* whose */
    struct nb_encode_stats *stats;
    uint64_t values;
    nb_cu_ptr work_at, scratch_at; /* its workspace and scratch memory */
    struct nb_gpu_source *sources; /* pinned */
    int64_t since_ns;
};

struct nb_gpu_host { /* one piece of pinned memory, mapped at the same address */
    struct nb_gpu_ring ring;
    struct nb_gpu_result result[NB_GPU_RING];
};

struct nb_ring {
    struct nb_gpu_host *host;
    nb_cu_ptr state;            /* struct nb_gpu_state */
    struct nb_gpu_slot slot[NB_GPU_RING];
    uint64_t published;         /* descriptors written so far */
    uint64_t tickets;
    uint64_t oldest;            /* none before this is unfinished */
    size_t work_bytes, scratch_bytes; /* of each */
    unsigned most;              /* sources of a descriptor */
    void *pinned[32];           /* arrays of sources, freed at the end */
    unsigned npinned;
    int64_t moved_ns;           /* when a descriptor was last finished, or the first one was handed over */
    uint64_t full, done;        /* counters */
};

/* ---- Launches (cuda_launch.c) -------------------------------------------------------------------------- */

enum nb_launching {
    NB_LAUNCH_RESIDENT, /* around NCCL's launches, by the profiler's KernelLaunch events */
    NB_LAUNCH_BATCH,    /* when there is work, on a stream of ours */
};

#define NB_LAUNCH_OPEN 4096u      /* launches that are not captured and have not ended */
#define NB_LAUNCH_CAPTURED 16384u /* captured ones: a place for each as long as the GPU is in use */
#define NB_LAUNCH_STREAMS 4u      /* captures under way at once */

/* A place for an NCCL kernel that one of ours goes beside. `mark` is set by the GPU behind NCCL's kernel. */
struct nb_beside {
    _Atomic int state; /* enum in cuda_launch.c */
    uint16_t gen;
    nb_cu_stream stream;
    nb_cu_event event; /* our kernel has ended; until the launch is ended */
    uint64_t number;   /* of our kernel, if none is captured */
    uint64_t marked;   /* turn in which the mark was seen */
};

struct nb_launches {
    enum nb_launching how;
    int one_queue;             /* CUDA_DEVICE_MAX_CONNECTIONS=1 */
    unsigned blocks;
    nb_cu_stream stream;       /* ours */
    nb_cu_stream captured_stream[NB_LAUNCH_STREAMS];
    uint64_t capture_id[NB_LAUNCH_STREAMS];
    nb_cu_event before;
    nb_cu_event event[16];
    unsigned next_event;
    uint32_t *mark;            /* pinned: [NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED] */
    struct nb_beside *beside;  /* the same places */
    unsigned cursor;           /* where a free place is looked for */
    _Atomic unsigned captured; /* places of captured launches in use */
    _Atomic unsigned places;   /* places of others in use */
    _Atomic unsigned open;     /* of these, the ones whose kernel has not been told to end */
    uint64_t waiting[NB_LAUNCH_CAPTURED / 64]; /* captured places whose mark was seen and whose end is due */
    uint64_t due;              /* ends that are to be told */
    uint64_t told;             /* ends told */
    _Atomic uint64_t launched; /* kernels launched, not counting replays */
    uint64_t alone;            /* of these, for a batch */
    int64_t orphan_ns;         /* since when there is work and nothing that would do it */
    int said;
};

/* ---- The GPU ------------------------------------------------------------------------------------------- */

struct nb_gpu {
    int ordinal;
    uint16_t serial;   /* of the process */
    uint64_t comm_id;
    int nranks;
    char name[64];
    const struct nb_cuda *cu;
    nb_cu_device device;
    nb_cu_context context;
    nb_cu_module module;
    nb_cu_function kernel;
    int multiprocessors, major; /* major: of the compute capability */
    pthread_mutex_t lock, launch_lock;
    struct nb_arena arena;
    struct nb_ring ring;
    struct nb_launches launches;
    uint64_t idle;     /* the last turn before which the communicator had nothing open, plus 1 */
    uint64_t turn;
    _Atomic int failed;
    struct nb_gpu *next;
};

/* A communicator's instance; see cuda.c. */
struct nb_cuda_device {
    struct nb_device dev;
    struct nb_gpu *gpu;
    struct nb_device_wish wish;
    unsigned inflight;
    struct nb_source *list; /* [nranks] */
    uint8_t *bounce[2]; /* pinned, for what the CPU does */
    size_t bounce_bytes;
    struct { uintptr_t page; int reach; } seen[256]; /* memory that the driver was asked about */
};

/* cuda_gpu.c */
/* Make one. 0, or a negative errno: -ENODEV or -ENOTSUP when the GPU cannot be used (`why` says so, nothing
 * is logged), others after a WARN. On a connecting thread. */
int nb_gpu_get(const struct nb_device_wish *wish, struct nb_gpu **gpu, char *why, size_t cap);
void nb_gpu_put(struct nb_gpu *gpu);
/* The one of this communicator; else, for a child that shares its parent's resources, the only one of as many
 * nodes on this GPU. NULL: none. It stays until nb_gpu_unfind, which must follow unless NULL. */
struct nb_gpu *nb_gpu_find(int ordinal, uint64_t comm_id, int nnodes);
/* The same by number. */
struct nb_gpu *nb_gpu_find_serial(uint16_t serial);
void nb_gpu_unfind(void);
/* Make the context current, with the relaxed mode of captures, in which calls that a capture on another
 * thread would forbid are allowed to this one. 0 or a negative errno; leave only after success. */
int nb_gpu_enter(struct nb_gpu *gpu, int *mode);
void nb_gpu_leave(struct nb_gpu *gpu, int mode);
/* Pinned memory, zeroed, that the GPU sees at the same address. NULL after a WARN. Enters by itself. */
void *nb_gpu_pinned(struct nb_gpu *gpu, size_t bytes);
void nb_gpu_unpin(struct nb_gpu *gpu, void *p);
/* The GPU has failed, `error` is logged. Whatever runs is told to end. Under lock. */
void nb_gpu_fail(struct nb_gpu *gpu, int error);

/* cuda_arena.c; entered, under lock. */
int nb_arena_open(struct nb_gpu *gpu, size_t bytes);
void nb_arena_close(struct nb_gpu *gpu);
/* Not zeroed, aligned to 256 bytes. 0: there is none. `grow` 0: only what is there. */
nb_cu_ptr nb_arena_take(struct nb_gpu *gpu, size_t bytes, int grow);
void nb_arena_give(struct nb_gpu *gpu, nb_cu_ptr at);

/* cuda_ring.c; under lock. */
int nb_ring_open(struct nb_gpu *gpu);
void nb_ring_close(struct nb_gpu *gpu);
/* Make sure of `work` bytes of workspace, `scratch` of scratch memory and `sources` sources a descriptor; at
 * connect, entered. */
int nb_ring_reserve(struct nb_gpu *gpu, size_t work, size_t scratch, unsigned sources);
/* Hand over: 0, -EAGAIN when the ring is full, or what nb_gpu_plan says, -ENOTSUP also for more workspace or
 * sources than reserved and for what the kernel does not do on this GPU. `sources` may be NULL. */
int nb_ring_submit(struct nb_gpu *gpu, struct nb_cuda_device *dev, struct nb_work *work,
                   struct nb_gpu_desc *desc, const struct nb_source *sources, struct nb_encode_stats *stats);
/* The state of a work: -EINPROGRESS, or its result. */
ssize_t nb_ring_poll(struct nb_gpu *gpu, struct nb_work *work);
/* Take note of what is finished; the number of descriptors that are not. */
unsigned nb_ring_sweep(struct nb_gpu *gpu);
/* Give up on everything that is not finished. */
void nb_ring_cancel(struct nb_gpu *gpu);

/* cuda_launch.c */
/* Choose how the kernel is launched; -ENOTSUP and `why` when it must not be. */
int nb_launch_choose(enum nb_launching *how, int *one_queue, int gpu, char *why, size_t cap);
int nb_launch_open(struct nb_gpu *gpu);   /* entered */
void nb_launch_close(struct nb_gpu *gpu); /* entered */
/* One round: see which of NCCL's kernels have ended, tell ours to end, launch for a batch, watch the clock.
 * Under lock. 1 while something may happen that nobody wakes the engine for. */
int nb_launch_turn(struct nb_gpu *gpu);
/* End all kernels, in bounded time: 1, or 0 when one would not end. Under lock. */
int nb_launch_drain(struct nb_gpu *gpu);

#endif
