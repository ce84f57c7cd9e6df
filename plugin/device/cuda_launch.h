/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel of a communicator runs: beside NCCL's own kernels, or for a batch of work.
 * cuda_launch.c explains both, and has the states of a launch.
 *
 * Threads: nb_launches_fork, _join and _unused on NCCL's launching threads, any number at once, and nb_launches_alone
 * on the thread for calls of the driver: they take the lock of this struct. Everything else one thread at a time (the lock of struct nb_gpu); see cuda_gpu.h for
 * the order of the two.
 */
#ifndef NIBBLE_DEVICE_CUDA_LAUNCH_H
#define NIBBLE_DEVICE_CUDA_LAUNCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/context.h"
#include "device/cuda_context.h"
#include "device/cuda_ring.h"
#include "device/cuda_thread.h"
#include "device/launch_choice.h"

#define NB_LAUNCH_OPEN 4096u      /* launches that are not captured and have not ended */
#define NB_LAUNCH_CAPTURED 16384u /* captured ones: a place for each until the communicator is closed */
#define NB_LAUNCH_STREAMS 4u      /* captures in flight at once */

/* Of a place; the table in cuda_launch.c. The engine's turn skips those before OPEN. */
enum nb_beside_state {
    NB_BESIDE_FREE = 0,
    NB_BESIDE_MADE,
    NB_BESIDE_OPEN,
    NB_BESIDE_NOTHING,
    NB_BESIDE_TOLD,
    NB_BESIDE_MARKED,
    NB_BESIDE_CAPTURED,
    NB_BESIDE_STATES
};

/* A place for an NCCL kernel that one of ours runs beside. */
struct nb_beside {
    _Atomic int state; /* the table in cuda_launch.c */
    uint16_t gen;      /* how often the place was used: tickets of earlier uses are not valid any more */
    nb_cu_stream stream, ours; /* NCCL's; the one for our kernel */
    nb_cu_event event;         /* our kernel has ended; until the launch is ended */
    uint64_t number;           /* of our kernel, from its launch on, if none is captured */
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
    unsigned blocks;     /* budget of the GPU: a launch has at most so many (gpus.h) */
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
        alone_turn; /* turn in which the engine heard of those launched alone that have not been told to end */
    unsigned alone_open;           /* how many these are */
    int64_t worked_ns;             /* when there was last work for them */
    int wanted;                    /* a window waits for a kernel to begin */
    int64_t wanted_ns;             /* since then */
    _Atomic int alone_asked;       /* the thread for calls of the driver was asked for one */
    _Atomic unsigned alone_new;    /* it has launched so many that the engine does not know of */
    _Atomic unsigned alone_blocks; /* of these, in the GPU's budget */
    int64_t now;                   /* of the engine's turn */
    int64_t orphan_ns; /* since when there is work and nothing that would do it; 0: there is not */
    int said;          /* that a kernel of its own was launched */
};

/* Make streams, events and places for a GPU of `multiprocessors`. `how`, `thread` and `lock` are set before; the ring need not be open yet. What is given outlives it. 0, or a negative errno
 * (after a WARN, unless the host is out of memory); nb_launches_close in either case. Entered. */
int nb_launches_open(struct nb_launches *l, const struct nb_context *ctx, const struct nb_cuda_context *cuda,
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors);
void nb_launches_close(struct nb_launches *l);

/* Instead of it where the GPU's context cannot be entered: frees the host's memory alone. */
void nb_launches_forget(struct nb_launches *l);

/* NCCL is about to launch a kernel on `stream`: fork ours off it. A nonzero ticket of 48 bits for the two
 * below, or 0 when nothing was launched (the device works in batches or has failed, or an error was logged).
 * */
uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream);
/* NCCL has launched it: launch ours. Once for each ticket. */
void nb_launches_join(struct nb_launches *l, uint64_t ticket);
/* Nothing of that launch comes to the engine. At any time after the join; ignored for captured launches, and
 * while the join is outstanding. */
void nb_launches_unused(struct nb_launches *l, uint64_t ticket);

/* Work waits and no kernel is there for it: launch one, unless one has come meanwhile. */
void nb_launches_alone(struct nb_launches *l);

/* One turn of the engine's: see which of NCCL's kernels have ended, tell ours to end, launch for a batch,
 * watch the clock. Calls no driver. 1 while something may happen that nobody wakes the engine for. */
int nb_launches_turn(struct nb_launches *l);
/* The communicator has nothing open now: no window, and no operation of which more windows are to come. */
void nb_launches_idle(struct nb_launches *l);
/* 1 when a kernel runs that will take what is handed over now; else 0, and one is launched unless one is coming. */
int nb_launches_ready(struct nb_launches *l);
/* End all kernels, in bounded time: 1, or 0 when one would not end. */
int nb_launches_drain(struct nb_launches *l);

#endif
