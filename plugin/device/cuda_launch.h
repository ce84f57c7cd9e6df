/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel of a communicator runs: beside NCCL's own kernels, or for a batch of work.
 * cuda_launch.c explains both, and has the states of a launch.
 *
 * Threads: nb_launches_fork, _join, _posted and _unused on NCCL's launching threads, any number at once, and
 * nb_launches_alone on the thread for calls of the driver. Those that call the driver take the lock of this struct;
 * _join and _unused do neither where `first`, unless a graph was captured or NCCL's launches stall. Everything else one thread at a time (the lock of struct
 * nb_gpu); see cuda_gpu.h for the order of the two.
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

/* Of a place; the table in cuda_launch.c. The engine's turn skips those before AHEAD. */
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
    _Atomic int state;    /* the table in cuda_launch.c */
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

/* Make streams, events and places for a GPU of `multiprocessors`. `how`, `thread` and `lock` are set before; the ring need not be open yet. What is given outlives it. 0, or a negative errno
 * (after a WARN, unless the host is out of memory); nb_launches_close in either case. Entered. */
int nb_launches_open(struct nb_launches *l, const struct nb_context *ctx, const struct nb_cuda_context *cuda,
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors);
void nb_launches_close(struct nb_launches *l);

/* Instead of it where the GPU's context cannot be entered: frees the host's memory alone. */
void nb_launches_forget(struct nb_launches *l);

/* NCCL is about to launch a kernel on `stream`: fork ours off it. A nonzero ticket of 48 bits for the three
 * below, or 0 when nothing was launched (the device works in batches or has failed, or an error was logged).
 * */
uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream);
/* NCCL has launched it, and has still to hand it over to its proxy. Once for each ticket. Calls no driver and waits for
 * nobody where ours are launched before NCCL's, but where a graph is or was captured, or NCCL's launches always stall
 * beside ours; else it launches ours and submits the mark. */
void nb_launches_join(struct nb_launches *l, uint64_t ticket);
/* NCCL has handed it over: what tells that its kernel has ended follows it. Once for each ticket, after the join; it is
 * not valid any more afterwards. */
void nb_launches_posted(struct nb_launches *l, uint64_t ticket);
/* Nothing of that launch comes to the engine. Between the join and `posted`; ignored for captured launches. */
void nb_launches_unused(struct nb_launches *l, uint64_t ticket);

/* On the thread for calls of the driver. Kernels whose launch came too late for NCCL's; and where work waits and no
 * kernel is there for it one, unless one has come meanwhile. */
void nb_launches_alone(struct nb_launches *l);

/* One turn of the engine's: see which of NCCL's kernels have ended, tell ours to end, launch for a batch,
 * watch the clock. Calls no driver. 1 while something may happen that nobody wakes the engine for. */
int nb_launches_turn(struct nb_launches *l);
/* The communicator has something open now: a window, or an operation of which more windows are to come; or it has not. */
void nb_launches_busy(struct nb_launches *l);
void nb_launches_idle(struct nb_launches *l);
/* 1 when a kernel runs that will take what is handed over now; else 0, and one is launched unless one is coming. */
int nb_launches_ready(struct nb_launches *l);
/* End all kernels, in bounded time: 1, or 0 when one would not end. */
int nb_launches_drain(struct nb_launches *l);

#endif
