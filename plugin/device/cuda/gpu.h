/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: what a communicator has on its GPU. */
#ifndef NIBBLE_DEVICE_CUDA_GPU_H
#define NIBBLE_DEVICE_CUDA_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/context.h"
#include "codec/pick.h"
#include "device/cuda/driver.h"
#include "device/device.h"
#include "device/host/host.h"
#include "kernels/kernels.h"

/* ---- gpus.c: GPUs of a context
 * --------------------------------------------------------------------------- */

#define NB_GPUS_MAX 64 /* ordinals of which reports are counted */

struct nb_gpus {
    pthread_mutex_t lock;              /* covers what follows, and each entry's `users` and `shared` */
    struct nb_gpu *list;               /* one for each communicator on a GPU, in no order */
    uint16_t serials;                  /* number of the next entry */
    atomic_int pointers;               /* NCCL was told that GPU memory is welcome */
    atomic_int reporting[NB_GPUS_MAX]; /* communicators on a GPU whose kernel launches NCCL reports */
    unsigned rings[NB_GPUS_MAX];       /* communicators that run codecs on it */
    unsigned blocks
        [NB_GPUS_MAX]; /* of their kernels that were launched and not captured, and have not been told to end */
};

/* Add an entry and give it a number that no entry beside it has; take it out: no more of it is found, and
 * nb_gpus_used says whether some thread still has it. Any thread. */
void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *gpu);
void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *gpu);
int nb_gpus_used(struct nb_gpus *gpus, const struct nb_gpu *gpu);

/* The entry of communicator `comm_id` (0: not known) on the GPU with this ordinal: its own, or that of the
 * parent whose connections it is known to share (nb_gpus_share). NULL: none. The entry stays until
 * nb_gpus_unfind; no lock is held meanwhile, so what is done with it may wait. Any thread. */
struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id);
/* The same by number. */
struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial);
void nb_gpus_unfind(struct nb_gpus *gpus, struct nb_gpu *gpu);

/* Operations of communicator `comm_id` have come to this one: its launches get kernels of this one's from now
 * on. */
void nb_gpus_share(struct nb_gpus *gpus, struct nb_gpu *gpu, uint64_t comm_id);

/* How many blocks a launch of the codec kernel gets: so many that all communicators of a GPU together have at
 * most `budget`, and each at least NB_GPUS_LEAST (so more than the budget where there are many). Given back
 * by the same number; a captured launch (which may run at any time) gets an equal share, which is not
 * counted. Any thread. */
#define NB_GPUS_LEAST 2u
unsigned nb_gpus_take_blocks(struct nb_gpus *gpus, int ordinal, unsigned budget, int captured);
void nb_gpus_give_blocks(struct nb_gpus *gpus, int ordinal, unsigned blocks);

/* ---- thread.c: threads for calls of the driver
 * ----------------------------------------------------------- */

enum { /* what can be asked for */
       NB_CUDA_THREAD_LAUNCH = 1,
       NB_CUDA_THREAD_GROW = 2,
};

struct nb_cuda_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    unsigned wanted; /* bits; under lock, as are the following */
    int stop, ended;
    int started;
    void (*work)(void *arg, unsigned wanted);
    void *arg;
};

/* Start it; `work` is called on it with what was asked for since the last time. 0, or a negative errno after
 * a WARN; then nb_cuda_thread_stop is not called. */
int nb_cuda_thread_start(struct nb_cuda_thread *thread, void (*work)(void *arg, unsigned wanted), void *arg);
void nb_cuda_thread_ask(struct nb_cuda_thread *thread, unsigned wanted);
/* End it, in bounded time of that clock: 1; or 0 when the driver holds it up: then it still uses `thread` and
 * what `arg` leads to. Never started: 1. */
int nb_cuda_thread_stop(struct nb_cuda_thread *thread, const struct nb_clock *clock);

/* ---- ring.c: the host's half of the kernel's ring
 * -------------------------------------------------------- */

/* Where what comes with a result is wanted, in memory that needs not be the GPU's to see; NULL: it is not. */
struct nb_gpu_wanted {
    struct nb_encode_stats *stats; /* added */
    uint64_t *value;
    struct nb_delta4_stats *runs; /* of an NB_GPU_DELTA4_ENCODE; added */
    struct nb_similarity *near;   /* of an NB_GPU_LIKENESS or NB_GPU_EQUAL, all but `samples` */
    void *numbers;                /* of an NB_GPU_PICK: NB_PICKS patterns, as nb_pick has them; else floats */
};

struct nb_gpu_entry {
    struct nb_work *work; /* the caller's, NULL: free */
    unsigned *inflight;   /* counter of the caller's, lower by one when the work is finished */
    struct nb_gpu_wanted want;
    nb_cu_ptr work_at, scratch_at; /* its workspace and scratch memory */
    struct nb_gpu_source *sources; /* pinned */
};

struct nb_gpu_host { /* pinned, mapped at the same address */
    struct nb_gpu_ring ring;
    struct nb_gpu_result result[NB_GPU_RING];
    uint32_t found[NB_GPU_RING][NB_PICKS]; /* numbers that a entry's descriptor is asked for */
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
    struct nb_gpu_entry entry[NB_GPU_RING];
    uint64_t published;               /* descriptors written so far */
    uint64_t tickets;                 /* of all of them */
    uint64_t oldest;                  /* none before this is unfinished */
    size_t work_bytes, scratch_bytes; /* of each entry */
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
 * `sources` (an array of desc->nsources, copied) may be NULL, as may `want`. `work`, what `want` points to
 * and `inflight` stay until the work is finished; what is wanted is there when it is found finished without
 * an error. With want->numbers, at most NB_PICKS of them, `dst` is the ring's; of a pick the result is how
 * many. */
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

/* ---- observer.c: how the kernel is launched
 * -------------------------------------------------------------- */

enum nb_launching {
    NB_LAUNCH_RESIDENT, /* around NCCL's launches, by the profiler's KernelLaunch events */
    NB_LAUNCH_BATCH,    /* when there is work, on a stream of ours */
};

/* For GPU `gpu` (-1: not known yet, so that events may still come): 0 and *how; or -ENOTSUP when the kernel
 * must not be launched in either way: `why` (of `cap` bytes) says so, and nothing is logged. Any thread. */
int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, char *why, size_t cap);

/* ---- launch.c, turn.c: when the kernel runs
 * -------------------------------------------------------------- */

#define NB_LAUNCH_OPEN 4096u      /* launches that are not captured and have not ended */
#define NB_LAUNCH_CAPTURED 16384u /* captured ones: a place for each until the communicator is closed */
#define NB_LAUNCH_STREAMS 4u      /* captures in flight at once */

/* Of a place; the table in launch.c. The engine's turn skips those before AHEAD. */
enum nb_beside_state {
    NB_BESIDE_FREE = 0,
    NB_BESIDE_MADE,
    NB_BESIDE_LEFT,
    NB_BESIDE_AHEAD,
    NB_BESIDE_LATE,
    NB_BESIDE_OPEN,
    NB_BESIDE_NOTHING,
    NB_BESIDE_TOLD,
    NB_BESIDE_MARKED,
    NB_BESIDE_SPARE,
    NB_BESIDE_CAPTURED,
    NB_BESIDE_STATES
};

/* A place for an NCCL kernel that one of ours runs beside. */
struct nb_beside {
    _Atomic int state;    /* the table in launch.c */
    _Atomic uint16_t gen; /* how often the place was used: tickets of earlier uses are not valid any more */
    nb_cu_stream stream, ours; /* NCCL's; the one for our kernel */
    nb_cu_event event;         /* our kernel has ended; until the launch is ended */
    uint64_t number;           /* of our kernel, from its launch on, if none is captured */
    _Atomic int unmarked;      /* its mark has still to be submitted (nb_launches_posted) */
    _Atomic int wanted;        /* NCCL's launch does not return: another of ours is to be launched */
    int64_t asked_ns;          /* when it was asked for; 0: it was not */
    int64_t forked_ns;         /* when ours was launched */
    int64_t begun_ns;          /* when ours was seen to run; 0: not yet */
    uint64_t marked;           /* turn in which the mark was seen */
    int64_t marked_ns;         /* and when */
    _Atomic unsigned blocks;   /* of our kernel that count in the GPU's budget, until it is told to end */
};

struct nb_launches {
    const struct nb_context *ctx; /* settings, clock */
    const struct nb_cuda_context *cuda;
    struct nb_cuda_thread *thread; /* set before nb_launches_open */
    struct nb_ring *ring;
    nb_cu_function kernel;
    pthread_mutex_t lock; /* launching: streams, events, places being made, `next_event` */
    enum nb_launching how;
    int first;           /* launched before NCCL's, where nothing stands against it; else behind it */
    unsigned blocks;     /* budget of the GPU: a launch has at most so many (gpus.c) */
    nb_cu_stream stream; /* ours */
    nb_cu_stream marks;  /* what waits for NCCL's kernels */
    nb_cu_stream captured_stream[NB_LAUNCH_STREAMS];
    uint64_t capture_id[NB_LAUNCH_STREAMS];
    nb_cu_event before, behind;
    nb_cu_event event[16];
    unsigned next_event;
    uint32_t *mark; /* pinned: [NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED]; set by the GPU behind NCCL's kernel */
    struct nb_beside *beside;                  /* the same places */
    _Atomic unsigned captured;                 /* places of captured launches in use */
    _Atomic unsigned places;                   /* places of others in use */
    _Atomic unsigned open;                     /* of these, the ones whose kernel has not been told to end */
    uint64_t waiting[NB_LAUNCH_CAPTURED / 64]; /* captured places whose mark was seen and whose end is due */
    uint64_t turn;                             /* number of the engine's turn */
    uint64_t idle;             /* the last turn before which the communicator had nothing open, plus 1 */
    uint64_t due;              /* ends that are to be told to the kernel */
    uint64_t told;             /* ends told */
    _Atomic uint64_t launched; /* kernels launched, not counting replays */
    uint64_t alone;            /* of these, for a batch */
    uint64_t
        again; /* of these, for a launch of NCCL's whose kernel had left, or was about to; under `lock` */
    uint64_t
        alone_turn; /* turn in which the engine heard of those launched alone that have not been told to end */
    unsigned alone_open;           /* how many these are */
    int64_t worked_ns;             /* when there was last work for them */
    int wanted;                    /* a window waits for a kernel to begin */
    int64_t wanted_ns;             /* since then */
    _Atomic int alone_asked;       /* the thread for calls of the driver was asked for one */
    _Atomic unsigned alone_new;    /* it has launched so many that the engine does not know of */
    _Atomic unsigned alone_blocks; /* of these, in the GPU's budget */
    int64_t now;                   /* of the engine's turn */
    int64_t busy_ns;               /* when the communicator had something open, last */
    _Atomic unsigned stalls;       /* launches of NCCL's in a row that did not return while ours ran */
    _Atomic unsigned late;         /* places whose kernel the thread for calls of the driver is to launch */
    int64_t orphan_ns; /* since when there is work and nothing that would do it; 0: there is not */
    int said;          /* that a kernel of its own was launched */
};

/* Make streams, events and places for a GPU of `multiprocessors`. `how`, `thread` and `lock` are set before;
 * the ring need not be open yet. What is given outlives it. 0, or a negative errno (after a WARN, unless the
 * host is out of memory); nb_launches_close in either case. Entered. */
int nb_launches_open(struct nb_launches *l, const struct nb_context *ctx, const struct nb_cuda_context *cuda,
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors);
void nb_launches_close(struct nb_launches *l);

/* Instead of it where the GPU's context cannot be entered: frees the host's memory alone. */
void nb_launches_forget(struct nb_launches *l);

/* NCCL is about to launch a kernel on `stream`: fork ours off it. A nonzero ticket of 48 bits for the three
 * below, or 0 when nothing was launched (the device works in batches or has failed, or an error was logged).
 * */
uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream);
/* NCCL has launched it, and has still to hand it over to its proxy. Once for each ticket. Calls no driver and
 * waits for nobody where ours are launched before NCCL's, but where a graph is or was captured, or NCCL's
 * launches always stall beside ours; else it launches ours and submits the mark. */
void nb_launches_join(struct nb_launches *l, uint64_t ticket);
/* NCCL has handed it over: what tells that its kernel has ended follows it. Once for each ticket, after the
 * join; it is not valid any more afterwards. */
void nb_launches_posted(struct nb_launches *l, uint64_t ticket);
/* Nothing of that launch comes to the engine. Between the join and `posted`; ignored for captured
 * launches. */
void nb_launches_unused(struct nb_launches *l, uint64_t ticket);

/* On the thread for calls of the driver. Kernels whose launch came too late for NCCL's; and where work waits
 * and no kernel is there for it one, unless one has come meanwhile. */
void nb_launches_alone(struct nb_launches *l);

/* One turn of the engine's: see which of NCCL's kernels have ended, tell ours to end, launch for a batch,
 * watch the clock. Calls no driver. 1 while something may happen that nobody wakes the engine for. */
int nb_launches_turn(struct nb_launches *l);
/* The communicator has something open now: a window, or an operation of which more windows are to come; or it
 * has not. */
void nb_launches_busy(struct nb_launches *l);
void nb_launches_idle(struct nb_launches *l);
/* 1 when a kernel runs that will take what is handed over now; else 0, and one is launched unless one is
 * coming. */
int nb_launches_ready(struct nb_launches *l);
/* End all kernels, in bounded time: 1, or 0 when one would not end. */
int nb_launches_drain(struct nb_launches *l);

/* ---- gpu.c: a communicator's GPU
 * ------------------------------------------------------------------------- */

#define NB_GPU_SHARED 16u /* children of a communicator that are remembered */

struct nb_gpu {
    struct nb_context *ctx;
    struct nb_cuda_context cuda;
    uint16_t serial;  /* number in the context's list; see gpus.c */
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
