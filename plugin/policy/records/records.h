/* SPDX-License-Identifier: Apache-2.0 */
/* Records of operations: what NCCL's profiler tells of each, and which record belongs to which window. */
#ifndef NIBBLE_POLICY_RECORDS_H
#define NIBBLE_POLICY_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/nccl_types.h"

struct nb_context;
struct nb_queue;

/* ---- caller.c: who calls a collective
 * -------------------------------------------------------------------- */

/* Frames that are worth walking: DDP's reducer lay at most 24 deep, below a hook in Python. */
#define NB_CALLER_FRAMES 64u

enum nb_caller {
    NB_CALLER_UNKNOWN = 0, /* nothing is recognised */
    NB_CALLER_BUCKET,      /* DDP's reducer itself: a bucket of gradients, for certain */
    NB_CALLER_HOOK,        /* a hook that DDP's reducer has called: likely a gradient, not for certain */
    NB_CALLER_BACKWARD, /* somebody else in a backward pass: a gradient of parameters, activations or anything */
    NB_CALLER_OUTSIDE /* PyTorch, outside of any backward pass */
};

/* As dladdr tells it; NULL: not known. */
struct nb_frame {
    const char *module; /* file of the shared object; folders do not matter */
    const char *symbol; /* mangled */
};

/* `frame`: of a stack, from the innermost (the collective) outwards, `n` of them. whole: as above. */
enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n, int whole);

/* Who calls, by the frames above this function's caller. Not in signal handlers. */
enum nb_caller nb_stack_caller(void);

/* ---- a record
 * -------------------------------------------------------------------------------------------- */

/*
 * Operation records: what is known about an operation beyond what its CollNet calls say. NCCL's profiler
 * events tell it before NCCL's proxy begins the operation; the engine matches it with the operation's first
 * window (policy/records/align.c). Records travel from the profiler to the engine in queues
 * (policy/records/queue.c).
 */

enum {
    NB_RECORD_API = 1,      /* the user's call is known and agrees with the launch */
    NB_RECORD_CAPTURED = 2, /* of a CUDA graph; comes again at every replay */
    NB_RECORD_CHAIN = 4, /* COLLNET_CHAIN: this rank serves some of the channels only; or a node may have any
                             * number of heads */
    NB_RECORD_DOUBT = 8, /* call and launch contradict each other: one operation, of no known kind */
};

struct nb_record {
    enum nb_func func;
    ncclDataType_t type;     /* as the windows have it: ncclInt8 for every all-gather */
    ncclDataType_t api_type; /* as the user has it, with NB_RECORD_API */
    uint32_t flags;
    uint64_t bytes; /* reduce-scatter, all-gather: bytes per rank; all-reduce: of the whole operation */
    const void *send, *recv; /* the user's buffers; NULL: unknown */
    const void *stream;
    enum nb_caller caller; /* of an all-reduce, with NB_RECORD_API */
    int64_t slot;          /* identity of the buffer for error feedback; -1: unknown, no feedback */
    uint64_t call;         /* number of its announcement (policy/job/job.c); 0: none, or not certain which */
    uint64_t comm;         /* NCCL's number of the communicator that told it */
    uint32_t nranks;       /* of that communicator */
    uint32_t source;       /* the same communicator, counted by this process */
    uint32_t node;         /* number of the own node in that communicator, from 1; 0: unknown */
    /* At most so many operations before this one, by function, may have reached the engine unrecorded. */
    uint32_t missing[NB_FUNC_COUNT];
    /* All-reduce: how the vector is dealt out. heads: bit H is set when a node may have H heads; chunk 0 and
     * head -1: unknown. */
    uint64_t heads;
    int32_t head;
    uint32_t chunk;
};

/* ---- queue.c: queues of records, from the profiler to the engine
 * ----------------------------------------- */

/* Make and free the context's list of queues (ctx->queues): 0 or -ENOMEM. All queues have been put before it
 * is freed. */
int nb_queues_open(struct nb_context *ctx);
void nb_queues_close(struct nb_context *ctx);

#define NB_QUEUE_RECORDS 4096u /* how far NCCL's launches may be ahead of its proxy */

struct nb_queue_counts {
    uint64_t pushed, dropped; /* dropped: the queue was full */
    uint64_t unused;          /* pushed while no group was connected */
};

/* The queue of a communicator on a GPU (nb_current_gpu), created if need be; one reference. NULL: no memory.
 * A GPU of -1 finds the only queue of this communicator when there is exactly one. */
struct nb_queue *nb_queue_get(struct nb_context *ctx, uint64_t comm_id, int gpu);
void nb_queue_put(struct nb_queue *queue);

/* A group of `nnodes` nodes begins to consume, or ends. One consumer a queue: -EBUSY, -ENOMEM. Ending drops
 * the records that are left. */
int nb_queue_attach(struct nb_queue *queue, int nnodes);
void nb_queue_detach(struct nb_queue *queue);

/* A profiler instance for this queue's communicator began (+1) or ended (-1). */
void nb_queue_profiled(struct nb_queue *queue, int change);
/* What NCCL passed to the profiler's init: number of ranks, and name ("" when it has none). */
void nb_queue_describe(struct nb_queue *queue, uint32_t nranks, const char *name);
void nb_queue_description(struct nb_queue *queue, uint32_t *nranks, char *name, size_t cap);
/* 1 when NCCL's profiler events of this communicator reach this plugin. */
int nb_queue_is_profiled(struct nb_queue *queue);

/* Append. 0; -ENOTCONN: nobody consumes; -ENOSPC: dropped. */
int nb_queue_push(struct nb_queue *queue, const struct nb_record *record);
/* Report to the consumer that `n` operations of `func` had no records. */
void nb_queue_missed(struct nb_queue *queue, enum nb_func func, uint32_t n);
/* As push, for a communicator whose own queue nobody consumes: into the queue on `gpu` with a consumer of
 * `nnodes` nodes. Where several fit, each is told that a record may be missing, and -ENOTUNIQ is returned. */
int nb_queue_push_shared(struct nb_context *ctx, int gpu, int nnodes, const struct nb_record *record);

/* Move the oldest records, at most `max`, out of the queue; returns how many. Consumer only. */
size_t nb_queue_take(struct nb_queue *queue, struct nb_record *out, size_t max);
void nb_queue_get_counts(struct nb_queue *queue, struct nb_queue_counts *counts);

/* ---- Which parts of the plugin NCCL uses; any thread --------------------------------------------------- */

/* A tuner instance was made. */
void nb_note_tuner(struct nb_context *ctx);
/* 1 when one was, ever. */
int nb_tuner_seen(const struct nb_context *ctx);
/* Number of a profiler instance of this context, from 0. */
uint32_t nb_count_profiler(struct nb_context *ctx);

/* ---- align.c: which record belongs to which operation
 * ---------------------------------------------------- */

#define NB_ALIGN_POSITIONS 64u
#define NB_ALIGN_REACH 16u /* how far records and operations may be apart after a misfit */

enum nb_alignment {
    NB_ALIGN_CERTAIN = 0, /* the record is the operation's */
    NB_ALIGN_ALIKE,       /* one of several that tell the same, but for the buffer */
    NB_ALIGN_ABSENT,      /* the operation has no record */
    NB_ALIGN_DOUBT,       /* several records are possible, and they differ */
    NB_ALIGN_MISFIT,      /* no record fits: where the next one belongs is found by the operations to come */
};

struct nb_position {
    uint64_t at; /* number of the record that belongs to the next operation */
    int took;    /* the record before is that of the operation at hand */
};

struct nb_align {
    struct nb_record *ring; /* [cap]; grows to NB_QUEUE_RECORDS */
    uint32_t cap;
    uint64_t head, tail;
    struct nb_position position[NB_ALIGN_POSITIONS];
    unsigned n;
    /* Operations that came without a record while it was certain that they are the next ones: the losses that
     * a later record of the same function tells of. Only while all records are of one communicator. */
    uint32_t owed[NB_FUNC_COUNT];
    uint32_t source;
    int mixed;
    int blind; /* too much was lost to keep track, or memory was short: no record is used any more */
};

/* An operation as its windows show it; bytes 0: not known (all-reduce). */
struct nb_seen {
    enum nb_func func;
    ncclDataType_t type;
    uint64_t bytes;
};

struct nb_align *nb_align_create(void);
void nb_align_destroy(struct nb_align *align);
/* Room for further records; add: where there is no memory for one, the order is lost. */
size_t nb_align_room(const struct nb_align *align);
void nb_align_add(struct nb_align *align, const struct nb_record *record);

/* An operation begins; all records of operations up to it have been added. *record is set for CERTAIN and
 * ALIKE (then without slot and buffers). */
enum nb_alignment nb_align_begin(struct nb_align *align, const struct nb_seen *seen,
                                 struct nb_record *record);
/* The window at hand may have begun another operation without one being able to tell. */
void nb_align_perhaps(struct nb_align *align, const struct nb_seen *seen);
/* The all-reduce at hand ended after `steps` steps of `step_bytes` bytes. Strikes out records that
 * contradict; -1 when all do. */
int nb_align_ended(struct nb_align *align, uint64_t steps, uint64_t step_bytes);
/* The order of operations itself is lost. */
void nb_align_lost(struct nb_align *align);

/* ---- walk.c: where an all-reduce window stands in its operation
 * ------------------------------------------ */

#define NB_WALK_SLOTS 8u         /* steps in NCCL's region */
#define NB_WALK_CALL_CHANNELS 8u /* channels in a window at most */

struct nb_walk {
    int open;            /* windows of an operation are coming in */
    uint64_t steps;      /* begun, the one at hand included */
    uint64_t step_bytes; /* of a complete step; 0: none is complete yet */
    uint64_t cur;        /* bytes of the step at hand so far */
    uint64_t first;      /* bytes of the operation's first window */
    uint64_t chunk;      /* once certain, else 0 */
    uint64_t done;       /* D: bytes of all its windows so far */
};

enum nb_walk_place {
    NB_WALK_BEGINS,    /* another operation */
    NB_WALK_CONTINUES, /* the one at hand */
    NB_WALK_EITHER,    /* only the length tells */
    NB_WALK_NOWHERE,   /* not a place that a window of NCCL's has */
};

/* What is known of an operation: B, the heads that a node may have (bit H), h or -1, k or 0. */
struct nb_extent {
    uint64_t bytes;
    uint64_t heads;
    int head;
    uint64_t chunk;
};

/* Judge by its place, `at` bytes into `slot` of the region, where a window of `bytes` bytes belongs. */
enum nb_walk_place nb_walk_place(const struct nb_walk *walk, unsigned slot, uint64_t at, uint64_t bytes);
/* An operation begins. */
void nb_walk_begin(struct nb_walk *walk);
/* Account for the window that nb_walk_place placed into the operation at hand; before nb_walk_values. */
void nb_walk_step(struct nb_walk *walk, uint64_t at, uint64_t bytes);
/* Bytes of values in the window that was just accounted for, `value` bytes each: *sure of its first bytes
 * certainly are some, and from *most on none is. */
void nb_walk_values(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t bytes,
                    uint64_t value, uint64_t *sure, uint64_t *most);
/* The largest S that is possible: no stream has values beyond. */
uint64_t nb_walk_longest(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t value);

/* Heads (bits) with which the operation would have `steps` steps of `step_bytes` bytes. */
uint64_t nb_walk_heads(const struct nb_extent *extent, uint64_t steps, uint64_t step_bytes);
/* The step at hand is complete (nothing of it is missing): has the operation ended? 1, 0, or -1 when the
 * heads that are possible do not agree. */
int nb_walk_ended(const struct nb_walk *walk, const struct nb_extent *extent);

#endif
