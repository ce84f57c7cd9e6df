/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: a communicator's part of its GPU. */
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

/* ---- gpus.c: GPUs of a context ------------------------------------------------------------------------- */

#define NB_GPUS_MAX 64 /* number of GPU ordinals whose reports are counted */

struct nb_gpus {
    pthread_mutex_t lock;              /* covers the next members, and each entry's `users` and `shared` */
    struct nb_gpu *list;               /* one for each communicator on a GPU, in no order */
    uint16_t serials;                  /* number of the next entry */
    atomic_int pointers;               /* the plugin told NCCL that it accepts GPU memory */
    atomic_int reporting[NB_GPUS_MAX]; /* communicators on a GPU whose kernel launches NCCL reports */
    unsigned rings[NB_GPUS_MAX];       /* communicators that run codecs on it */
    unsigned blocks[NB_GPUS_MAX]; /* of their kernels, launched outside captures and not yet told to end */
};

/* add: add an entry, with a number that differs from all other entries' numbers. remove: take it out, so that
 * nb_gpus_find skips it. used: say whether some thread still has it. Any thread. */
void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *gpu);
void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *gpu);
int nb_gpus_used(struct nb_gpus *gpus, const struct nb_gpu *gpu);

/* Return the entry of communicator `comm_id` (0: unknown) on the GPU with this ordinal: its own, or its
 * parent's when it is known to share the parent's connections (nb_gpus_share). NULL: it has none. The entry
 * stays until nb_gpus_unfind. No lock is held meanwhile, so that its user may wait. Any thread. */
struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id);
/* Find an entry by number. */
struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial);
void nb_gpus_unfind(struct nb_gpus *gpus, struct nb_gpu *gpu);

/* Note that operations of communicator `comm_id`, a child, have come to this communicator. From now on the
 * child's launches get this communicator's kernels. */
void nb_gpus_share(struct nb_gpus *gpus, struct nb_gpu *gpu, uint64_t comm_id);

/* Return the number of blocks for a launch of the codec kernel. All communicators of a GPU together have at
 * most `budget`, and each has at least NB_GPUS_LEAST, so that many communicators may exceed the budget. Give
 * the same number back. A captured launch may run at any time, so it gets an equal share outside the count.
 * Any thread. */
#define NB_GPUS_LEAST 2u
unsigned nb_gpus_take_blocks(struct nb_gpus *gpus, int ordinal, unsigned budget, int captured);
void nb_gpus_give_blocks(struct nb_gpus *gpus, int ordinal, unsigned blocks);

/* ---- thread.c: driver threads -------------------------------------------------------------------------- */

enum { /* requests */
       NB_CUDA_THREAD_LAUNCH = 1,
       NB_CUDA_THREAD_GROW = 2,
};

struct nb_cuda_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    unsigned wanted; /* bits. Under lock, like the next members */
    int stop, ended;
    int started;
    void (*work)(void *arg, unsigned wanted);
    void *arg;
};

/* Start the thread. It calls `work` with the requests since the last call. Return 0, or a negative errno
 * after a WARN. In that case do not call nb_cuda_thread_stop. */
int nb_cuda_thread_start(struct nb_cuda_thread *thread, void (*work)(void *arg, unsigned wanted), void *arg);
void nb_cuda_thread_ask(struct nb_cuda_thread *thread, unsigned wanted);
/* End the thread, in bounded time of that clock. Return 1, also when it was never started. Return 0 when the
 * driver holds the thread up, which then still uses `thread` and the memory behind `arg`. */
int nb_cuda_thread_stop(struct nb_cuda_thread *thread, const struct nb_clock *clock);

/* ---- ring.c: the host's half of the kernel's ring ------------------------------------------------------ */

/* Destinations of the extra results of a work, in memory that the GPU need not see. NULL: unwanted. */
struct nb_gpu_wanted {
    struct nb_encode_stats *stats; /* added */
    uint64_t *value;
    struct nb_delta4_stats *runs; /* of an NB_GPU_DELTA4_ENCODE. Added */
    struct nb_similarity *near;   /* of an NB_GPU_LIKENESS or NB_GPU_EQUAL, all but `samples` */
    void *numbers;                /* of an NB_GPU_PICK: NB_PICKS patterns, as nb_pick's. Else floats */
};

struct nb_gpu_entry {
    struct nb_work *work; /* the caller's. NULL: free */
    unsigned *inflight;   /* the caller's counter, decremented when the work is finished */
    struct nb_gpu_wanted want;
    nb_cu_ptr work_at, scratch_at; /* its workspace and scratch memory */
    struct nb_gpu_source *sources; /* pinned */
};

/* A work whose descriptor is not in the ring: it waits for a kernel. */
struct nb_gpu_waiting {
    struct nb_work *work;
    unsigned *inflight;
    struct nb_gpu_wanted want;
    struct nb_gpu_desc desc;
    struct nb_gpu_source *sources; /* of malloc */
};

struct nb_gpu_host { /* pinned, mapped at the same address */
    struct nb_gpu_ring ring;
    struct nb_gpu_result result[NB_GPU_RING];
    uint32_t found[NB_GPU_RING][NB_PICKS]; /* numbers that an entry's descriptor asks for */
};

struct nb_ring {
    const struct nb_cuda_context *cuda;
    struct nb_arena *arena;
    const struct nb_clock *clock;
    nb_cu_stream stream; /* for setting memory, at connect */
    int major;           /* of the GPU's compute capability */
    _Atomic int
        failed; /* 0, or the error with which the ring, and the device, has failed. Set once for good */
    struct nb_gpu_host *host;
    nb_cu_ptr state; /* struct nb_gpu_state */
    struct nb_gpu_entry entry[NB_GPU_RING];
    struct nb_gpu_waiting waiting[NB_GPU_RING]; /* from number `first` on, `nwaiting` of them, in order */
    uint64_t first;
    unsigned nwaiting;
    struct nb_gpu_waiting aside;      /* the work aside, which this processor does. Without `work`: none */
    bool served;                      /* a kernel runs, and was not told to end */
    uint64_t published;               /* descriptors written so far */
    uint64_t tickets;                 /* of all of them */
    uint64_t oldest;                  /* all descriptors before this one are finished */
    size_t work_bytes, scratch_bytes; /* of each entry */
    unsigned most;                    /* maximum number of a descriptor's sources */
    void *pinned[32];                 /* arrays of sources, freed at the end */
    unsigned npinned;
    int64_t moved_ns;    /* time of the last finished descriptor, or of the first submission */
    uint64_t full, done; /* counters: submissions refused by a full ring, descriptors finished */
};

/* Make the ring. Arena and clock outlive it, and `stream` is one of the context. Return 0, or a negative
 * errno after a WARN. Call nb_ring_close in either case. Entered. */
int nb_ring_open(struct nb_ring *ring, struct nb_arena *arena, const struct nb_clock *clock,
                 nb_cu_stream stream, int major);
void nb_ring_close(struct nb_ring *ring);

/* Ensure `work` bytes of workspace, `scratch` bytes of scratch memory and `sources` sources a descriptor.
 * Return 0, or a negative errno after a WARN. At connect, entered. It holds `lock` only while it changes the
 * ring: the driver's calls may wait for kernels, which wait for engines, which wait for the lock. */
int nb_ring_reserve(struct nb_ring *ring, size_t work, size_t scratch, unsigned sources,
                    pthread_mutex_t *lock);

/* Note whether a kernel runs and was not told to end. With such a kernel the ring publishes waiting
 * descriptors now, and later descriptors at once. Without it descriptors wait on the host. */
void nb_ring_serve(struct nb_ring *ring, bool served);

/* Submit a descriptor. Return 0, -EAGAIN when the ring is full, or the error of nb_gpu_plan. -ENOTSUP also
 * means more workspace or sources than reserved, and work that the kernel cannot do on this GPU. Complete
 * `desc` and copy it, and copy `sources` (an array of desc->nsources). `sources` and `want` may be NULL.
 * `work`, `inflight` and the memory behind `want` stay until the work is finished. The wanted results are
 * there when the work is finished without an error. With want->numbers, at most NB_PICKS of them, the ring
 * provides `dst`. The result of a pick is the number of values. */
int nb_ring_submit(struct nb_ring *ring, unsigned *inflight, struct nb_work *work, struct nb_gpu_desc *desc,
                   const struct nb_source *sources, const struct nb_gpu_wanted *want);

/* Return 1 when so many more descriptors can be submitted now. */
int nb_ring_room(struct nb_ring *ring, unsigned descriptors);

/* Return the state of a work: -EINPROGRESS, or its result. */
ssize_t nb_ring_poll(struct nb_ring *ring, struct nb_work *work);
/* Note the finished descriptors. Return the number of unfinished ones. */
unsigned nb_ring_sweep(struct nb_ring *ring);
/* take_aside: take the oldest waiting work aside for this processor, so that no kernel gets it. put_back: let
 * the work aside wait again, as the oldest. finish_aside: finish it with `res` and `found`, the results as a
 * kernel would have left them. cancel_waiting: finish it, and all waiting work, with -ECANCELED. */
void nb_ring_take_aside(struct nb_ring *ring);
void nb_ring_put_back(struct nb_ring *ring);
void nb_ring_finish_aside(struct nb_ring *ring, const struct nb_gpu_result *res, const uint32_t *found);
void nb_ring_cancel_waiting(struct nb_ring *ring);
/* Finish all unfinished work with -ECANCELED after the device has failed and `error` was logged. */
void nb_ring_fail(struct nb_ring *ring, int error);

/* ---- processor.c: descriptors' work by this processor -------------------------------------------------- */

/* Do the work of a descriptor. Its addresses and its sources' addresses are this processor's. Set *res as the
 * kernel does, except for `length`, and return the length. -EINVAL also means a profile with a stride.
 * -ENOMEM: there is no memory. */
int64_t nb_gpu_by_processor(const struct nb_gpu_desc *desc, struct nb_gpu_result *res);

/* ---- escape.c: work whose kernel does not begin -------------------------------------------------------- */

/* A part of GPU memory that is registered with the adapter. */
struct nb_escape_piece {
    uint64_t base;
    size_t bytes;
    void *handle;
};

/* Memory that a work reads (how & 1) or writes (how & 2). */
struct nb_escape_part {
    uint64_t *base; /* the member of the descriptor, or of its list of sources */
    uint64_t skip;  /* its first byte begins so far behind *base */
    uint64_t at;    /* the GPU's address of that byte */
    uint64_t bytes;
    int how;
    bool bound;    /* an encoder's output, whose `bytes` are its bound */
    bool copied;   /* it lies in GPU memory */
    bool repeats;  /* all of it has the bytes of one copy, which is stored again and again */
    size_t place;  /* offset of its copy in `mem` */
    uint8_t *seen; /* this processor's address */
};

enum nb_escape_step { NB_ESCAPE_IDLE, NB_ESCAPE_FETCHING, NB_ESCAPE_STORING };

struct nb_escape {
    const struct nb_arena *arena;
    const struct nb_clock *clock;
    pthread_mutex_t making; /* registrations are made or ended one at a time */
    /* Changes under both `making` and the lock of struct nb_gpu. */
    const struct nb_adapter *_Atomic adapter;
    atomic_bool blind;    /* not all memory could be registered */
    pthread_mutex_t lock; /* the list of pieces */
    struct nb_escape_piece *piece;
    unsigned npieces, cap;
    /* The work aside (struct nb_ring). */
    enum nb_escape_step step;
    struct nb_gpu_desc desc; /* with this processor's addresses */
    struct nb_gpu_result result;
    uint32_t found[NB_PICKS];
    struct nb_gpu_source *list;
    struct nb_escape_part *part;
    uint32_t list_cap;
    unsigned nparts, next;    /* next: to be copied */
    uint64_t copied, copying; /* bytes of that part, copied and under way */
    void *request;            /* of the copy under way */
    uint8_t *mem;             /* copies of GPU memory, registered with the adapter */
    size_t mem_bytes;
    void *mem_handle;
    uint64_t works; /* counter */
};

/* The arena and the clock outlive it. */
void nb_escape_init(struct nb_escape *escape, const struct nb_arena *arena, const struct nb_clock *clock);
void nb_escape_destroy(struct nb_escape *escape);

/* Use this adapter from now on, NULL: none. This ends all registrations with the adapter before, and cancels
 * waiting work. Under the lock of struct nb_gpu. */
void nb_escape_use(struct nb_escape *escape, const struct nb_adapter *adapter, struct nb_ring *ring);
/* Return whether there is one that reaches all memory. Any thread. */
bool nb_escape_possible(const struct nb_escape *escape);
/* Stop to use the adapter, and log why. Any thread. */
void nb_escape_give_up(struct nb_escape *escape, const char *why);
/* Register GPU memory with the adapter, unless it is registered. Where that fails, give the adapter up. `fd`,
 * `offset`: as in struct nb_adapter, -1: none. nb_escape_remove ends the registration. Any thread, without
 * the lock of struct nb_gpu. */
void nb_escape_add(struct nb_escape *escape, uint64_t base, size_t bytes, int fd, uint64_t offset);
void nb_escape_remove(struct nb_escape *escape, uint64_t base);

/* The following under the lock of struct nb_gpu.
 *
 * End all registrations where the adapter was given up: some GPUs can map little memory for adapters, and
 * NCCL may need it. Work aside keeps them. */
void nb_escape_tidy(struct nb_escape *escape);
/* Go on with the work aside. `begins`: also take waiting work aside. An error fails the ring. */
void nb_escape_turn(struct nb_escape *escape, struct nb_ring *ring, bool begins);
/* Cancel the work aside and all waiting work, after the end of its copies. */
void nb_escape_stop(struct nb_escape *escape, struct nb_ring *ring);

/* ---- observer.c: how the kernel is launched ------------------------------------------------------------ */

enum nb_launching {
    NB_LAUNCH_RESIDENT, /* around NCCL's launches, by the profiler's KernelLaunch events */
    NB_LAUNCH_BATCH,    /* when there is work, on a stream of ours */
};

/* Choose the launches for GPU `gpu` (-1: still unknown, so that events may come later). Return 0 and *how, or
 * -ENOTSUP when the kernel must not be launched in either way, with the reason in `why` (of `cap` bytes) and
 * without a log line. Any thread. */
int nb_launch_choose(struct nb_context *ctx, int gpu, enum nb_launching *how, char *why, size_t cap);

/* Return the job's number of hardware queues (CUDA_DEVICE_MAX_CONNECTIONS). */
int nb_launch_queues(void);

/* ---- launch.c, turn.c: when the kernel runs ------------------------------------------------------------ */

#define NB_LAUNCH_OPEN 4096u      /* launches outside captures that have not ended */
#define NB_LAUNCH_CAPTURED 16384u /* captured ones: a place for each until the communicator is closed */
#define NB_LAUNCH_STREAMS 4u      /* captures in flight at once */

#define NB_LAUNCH_QUEUES 8 /* hardware queues that a GPU has by default */

/* States of a place: the table in launch.c. */
enum nb_beside_state {
    NB_BESIDE_FREE = 0,
    NB_BESIDE_MADE,
    NB_BESIDE_OPEN, /* the engine's turn changes this one and the later ones */
    NB_BESIDE_TOLD,
    NB_BESIDE_MARKED,
    NB_BESIDE_CAPTURED,
};

/* A place for an NCCL kernel, with our kernel beside it. */
struct nb_beside {
    _Atomic int state;         /* the table in launch.c */
    _Atomic uint16_t gen;      /* number of the place's uses: tickets of earlier uses are invalid */
    nb_cu_stream stream, ours; /* NCCL's, and the one for our kernel */
    nb_cu_event event;         /* our kernel has ended. Valid until the launch is ended */
    uint64_t number;           /* of our kernel, from its launch on, without captures */
    bool together;             /* both kernels are launched by one call */
    bool marks;                /* a mark comes behind NCCL's kernel */
    bool counts;               /* the launch's operations can be counted. From `posted` on, like `upto` */
    uint64_t upto;             /* operations handed over up to this launch */
    _Atomic int posted;        /* NCCL has handed it over */
    uint64_t served;           /* first turn in which they all had begun. 0: not yet */
    int64_t forked_ns;         /* time of the fork */
    uint64_t marked;           /* turn that saw the mark */
    int64_t marked_ns;         /* its time */
    _Atomic unsigned blocks;   /* our kernel's blocks in the GPU's budget, until it is told to end */
};

struct nb_launches {
    const struct nb_context *ctx; /* settings, clock */
    const struct nb_cuda_context *cuda;
    struct nb_cuda_thread *thread; /* set before nb_launches_open */
    struct nb_ring *ring;
    struct nb_escape *escape;
    nb_cu_function kernel;
    pthread_mutex_t lock; /* for launching: streams, events, places being made, `next_event` */
    enum nb_launching how;
    bool together;       /* launch both kernels by one call, where NCCL's stream can be captured */
    int queues;          /* hardware queues of the job */
    uint32_t mbps;       /* of the node's link, 0: unknown */
    unsigned blocks;     /* budget of the GPU: maximum of a launch (gpus.c) */
    unsigned teams;      /* of a block */
    nb_cu_stream stream; /* ours */
    nb_cu_stream marks;  /* for marks, which wait for NCCL's kernels */
    nb_cu_stream captured_stream[NB_LAUNCH_STREAMS];
    nb_cu_event before, behind;
    nb_cu_event event[16];
    unsigned next_event;
    nb_cu_graph_exec exec[2]; /* of both kernels, without and with a mark. NULL: none yet */
    uint64_t owns, followed;  /* kernels launched on our stream. Of these, those that a capture followed */
    uint32_t *mark; /* pinned: [NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED]. Set by the GPU behind NCCL's kernel */
    struct nb_beside *beside;                  /* the same places */
    _Atomic unsigned captured;                 /* places of captured launches in use */
    _Atomic unsigned places;                   /* places of others in use */
    _Atomic uint64_t handed;                   /* countable operations that NCCL has handed over */
    uint64_t begun;                            /* of these, those that the engine has begun */
    _Atomic unsigned open;                     /* of these, with a kernel that was not told to end */
    uint64_t waiting[NB_LAUNCH_CAPTURED / 64]; /* captured places whose mark was seen and whose end is due */
    uint64_t turn;                             /* number of the engine's turn */
    uint64_t idle;             /* the last turn before which the communicator had no open work, plus 1 */
    uint64_t due;              /* ends due, to be told to the kernel */
    uint64_t told;             /* ends told */
    _Atomic uint64_t launched; /* kernels launched outside of graphs of the job */
    uint64_t alone;            /* of these, for a batch */
    uint64_t
        alone_turn; /* turn in which the engine learned of kernels launched alone and not yet told to end */
    unsigned alone_open;           /* their number */
    int64_t worked_ns;             /* time of the last work for them */
    int wanted;                    /* a window waits for a kernel to begin */
    int64_t wanted_ns;             /* since this time */
    _Atomic int alone_asked;       /* the driver thread was asked for one */
    _Atomic unsigned alone_new;    /* kernels of the driver thread that the engine does not know yet */
    _Atomic unsigned alone_blocks; /* their blocks in the GPU's budget */
    int64_t now;                   /* time of the engine's turn */
    int64_t busy_ns;               /* last time at which the communicator had open work */
    bool given_up;                 /* its open work will not be finished. Until the next turn */
    int64_t orphan_ns;             /* time since which work has no kernel. 0: it has one */
    int said;                      /* the launch of a kernel of its own was logged */
    int64_t stalled_ns;            /* time since which waiting work has no kernel that runs. 0: it has none */
    bool escapes;                  /* this processor does waiting work */
    bool escape_said;              /* that was logged */
};

/* Make streams, events and places for a GPU of `multiprocessors`. The caller has set `how`, `thread`, `mbps`
 * and `lock`. The ring need not be open yet. All arguments outlive the launches. Return 0, or a negative
 * errno (after a WARN, unless the host is out of memory). Call nb_launches_close in either case. Entered. */
int nb_launches_open(struct nb_launches *l, const struct nb_context *ctx, const struct nb_cuda_context *cuda,
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors, unsigned teams);
void nb_launches_close(struct nb_launches *l);

/* Free only the host's memory. Call it instead of nb_launches_close where the GPU's context cannot be
 * entered. */
void nb_launches_forget(struct nb_launches *l);

/* Begin a launch: NCCL is about to launch a kernel on `stream`, which is captured until the join. `sums`,
 * `eager`: of nb_launch_begin. Return a nonzero ticket of 48 bits for the two below, or 0 without a launch
 * (the device works in batches or has failed, the kernel has no collectives, or an error was logged). */
uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream, bool sums, bool eager);
/* Launch both kernels, or ours behind NCCL's. NCCL has launched its kernel, and has still to hand the
 * operations over to its proxy. Once for each ticket. */
void nb_launches_join(struct nb_launches *l, uint64_t ticket);
/* Note that NCCL has handed the operations over. `counts`: nb_launches_handed has noted all operations of the
 * launch that come to the engine. Once for each ticket, after the join. Afterwards the ticket is invalid. */
void nb_launches_posted(struct nb_launches *l, uint64_t ticket, bool counts);
/* Note that NCCL hands over an operation that comes to the engine, other than an all-reduce. Any thread. */
void nb_launches_handed(struct nb_launches *l);

/* Launch a kernel for waiting work, unless a kernel has come meanwhile. On the driver thread. */
void nb_launches_alone(struct nb_launches *l);

/* Make a turn of the engine: see which of NCCL's kernels have ended, tell ours to end, launch for a batch,
 * watch the clock. Calls no driver. Return 1 while it may make progress without waking the engine. */
int nb_launches_turn(struct nb_launches *l);
/* Note that the engine begins an operation that is no all-reduce. */
void nb_launches_begun(struct nb_launches *l);
/* Note that the communicator has open work now (a window, or an operation that expects more windows), or has
 * none. */
void nb_launches_busy(struct nb_launches *l);
void nb_launches_idle(struct nb_launches *l);
/* Return 1 when a running kernel will take work that is submitted now. Else return 0, and launch a kernel
 * unless one is coming. */
int nb_launches_ready(struct nb_launches *l);
/* End all kernels, in bounded time. Return 1, or 0 when a kernel does not end. */
int nb_launches_drain(struct nb_launches *l);

/* ---- gpu.c: a communicator's GPU ----------------------------------------------------------------------- */

#define NB_GPU_SHARED 16u /* maximum number of known children of a communicator */

struct nb_gpu {
    struct nb_context *ctx;
    struct nb_cuda_context cuda;
    uint16_t serial;  /* number in the context's list (gpus.c) */
    uint64_t comm_id; /* 0: unknown */
    int nnodes;       /* of the communicator */
    char name[64];
    nb_cu_module module;
    nb_cu_function kernel;
    int multiprocessors, major; /* major: of the compute capability */
    unsigned teams;             /* of a block of the codec kernel */
    pthread_mutex_t lock;
    struct nb_arena arena;
    struct nb_ring ring;
    struct nb_launches launches;
    struct nb_escape escape;
    struct nb_cuda_thread thread, grower; /* driver threads: one launches kernels, one grows the arena */
    size_t grow;                          /* bytes of refused allocations. Under `lock` */
    /* Children whose operations come here. These four members are under the lock of struct nb_gpus. */
    uint64_t shared[NB_GPU_SHARED];
    unsigned nshared, users;
    struct nb_gpu *next;
};

/* Make a communicator's GPU, and put it on the context's list. Return 0. Return -ENODEV or -ENOTSUP when the
 * GPU cannot be used, with the reason in `why`, of `cap` bytes, and without a log line unless the GPU lacks
 * unified addresses. Return other errors after a WARN. On a connecting thread. */
int nb_gpu_get(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_gpu **gpu, char *why,
               size_t cap);

/* Ask the driver thread to grow the arena by `bytes` after a refused allocation. Any thread. */
void nb_gpu_grow(struct nb_gpu *gpu, size_t bytes);

/* Use this adapter for work whose kernel does not begin (`adapter` of device.h). */
void nb_gpu_use_adapter(struct nb_gpu *gpu, const struct nb_adapter *adapter);
/* Register GPU memory with it, as nb_escape_add. Where that fails, end all registrations. */
void nb_gpu_register(struct nb_gpu *gpu, uint64_t base, size_t bytes, int fd, uint64_t offset);

/* Take it off the list, wait in bounded time until its kernels have ended, and free it. Where a kernel does
 * not end the memory stays allocated, after a WARN. The caller has no work in flight. */
void nb_gpu_put(struct nb_gpu *gpu);

#endif
