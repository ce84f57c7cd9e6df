/* SPDX-License-Identifier: Apache-2.0 */
/* Records of operations: the facts that NCCL's profiler reports of each, and the record of each window. */
#ifndef NIBBLE_POLICY_RECORDS_H
#define NIBBLE_POLICY_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/nccl_types.h"

struct nb_context;
struct nb_queue;

/* ---- caller.c: the caller of a collective -------------------------------------------------------------- */

/* Frames that a walk covers. DDP's reducer lay at most 24 deep, below a hook in Python. */
#define NB_CALLER_FRAMES 64u

enum nb_caller {
    NB_CALLER_UNKNOWN = 0, /* anything else */
    NB_CALLER_BUCKET,      /* DDP's reducer itself: certainly a bucket of gradients */
    NB_CALLER_HOOK,        /* a hook that DDP's reducer has called: probably a gradient */
    /* The framework's word in place of the caller: by the tag of the call or its communicator's name */
    NB_CALLER_SAYS_GRADIENT,
    NB_CALLER_SAYS_EXACT
};

/* A frame as dladdr describes it. NULL: unknown. */
struct nb_frame {
    const char *module; /* file of the shared object, in any folder */
    const char *symbol; /* mangled */
};

/* Return the caller by the `n` frames of a stack, from the innermost (the collective) outwards. */
enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n);

/* Return the caller by the frames above this function's caller. Not in signal handlers. */
enum nb_caller nb_stack_caller(void);

/* ---- a record ------------------------------------------------------------------------------------------ */

/*
 * Operation records: facts of an operation beyond its CollNet calls. NCCL's profiler events report them
 * before NCCL's proxy begins the operation. The engine matches them with the operation's first window
 * (policy/records/align.c). Records travel from the profiler to the engine in queues
 * (policy/records/queue.c).
 */

enum {
    NB_RECORD_API = 1,      /* the user's call is known and agrees with the launch */
    NB_RECORD_CAPTURED = 2, /* of a CUDA graph: returns at every replay */
    NB_RECORD_CHAIN = 4,    /* COLLNET_CHAIN: this rank serves only some of the channels, or a node may
                               have any number of heads */
    NB_RECORD_DOUBT = 8,    /* call and launch contradict each other: one operation of unknown kind */
};

struct nb_record {
    enum nb_func func;
    ncclDataType_t type;     /* as the windows have it: ncclInt8 for every all-gather */
    ncclDataType_t api_type; /* the user's, with NB_RECORD_API */
    uint32_t flags;
    uint64_t bytes; /* reduce-scatter, all-gather: bytes per rank. All-reduce: of the whole operation */
    const void *send, *recv; /* the user's buffers. NULL: unknown */
    enum nb_caller caller;   /* of a sum, with NB_RECORD_API */
    int64_t slot;            /* identity of the buffer for error feedback. -1: unknown, without feedback */
    uint64_t call;           /* number of its announcement (policy/job/job.c). 0: unannounced or uncertain */
    uint64_t comm;           /* NCCL's number of the communicator that reported it */
    uint32_t nranks;         /* of that communicator */
    uint32_t source;         /* the same communicator, counted by this process */
    uint32_t node;           /* number of the own node in that communicator, from 1. 0: unknown */
    /* By function, the maximum number of operations before this one that may have reached the engine without
     * a record. */
    uint32_t missing[NB_FUNC_COUNT];
    /* All-reduce: how NCCL deals out the vector. Bit H of `heads` is set when a node may have H heads. Chunk
     * 0 and head -1: unknown. */
    uint64_t heads;
    int32_t head;
    uint32_t chunk;
};

/* ---- queue.c: queues of records, from the profiler to the engine --------------------------------------- */

/* Create and free the context's list of queues (ctx->queues). Return 0 or -ENOMEM. Put all queues before the
 * list is freed. */
int nb_queues_open(struct nb_context *ctx);
void nb_queues_close(struct nb_context *ctx);

#define NB_QUEUE_RECORDS 4096u /* how far NCCL's launches may be ahead of its proxy */

struct nb_queue_counts {
    uint64_t pushed, dropped; /* dropped: the queue was full */
    uint64_t unused;          /* pushed while no group was connected */
};

/* Return the queue of a communicator on a GPU (nb_current_gpu) with one reference, or NULL without memory.
 * Create it if need be. A GPU of -1 finds the only queue of this communicator when there is exactly one. */
struct nb_queue *nb_queue_get(struct nb_context *ctx, uint64_t comm_id, int gpu);
void nb_queue_put(struct nb_queue *queue);

/* Begin and end consuming for a group of `nnodes` nodes. A queue has one consumer. Return 0, -EBUSY or
 * -ENOMEM. Ending drops the remaining records. */
int nb_queue_attach(struct nb_queue *queue, int nnodes);
void nb_queue_detach(struct nb_queue *queue);

/* Note that a profiler instance for this queue's communicator began (+1) or ended (-1). */
void nb_queue_profiled(struct nb_queue *queue, int change);
/* Set and get NCCL's arguments of the profiler's init: number of ranks, and name ("" for an unnamed
 * communicator). */
void nb_queue_describe(struct nb_queue *queue, uint32_t nranks, const char *name);
void nb_queue_description(struct nb_queue *queue, uint32_t *nranks, char *name, size_t cap);
/* Return 1 when NCCL's profiler events of this communicator reach this plugin. */
int nb_queue_is_profiled(struct nb_queue *queue);

/* chosen: note the algorithm that NCCL is about to choose for an operation of this communicator, by the table
 * of its tuner. may_reach: return false where NCCL has asked its tuner for operations that are not launched
 * yet, and chose CollNet for none of them. all_launched: note that there are none left, unless the tuner was
 * asked since `choice` was returned. Any thread. */
void nb_queue_chosen(struct nb_queue *queue, bool reaches);
bool nb_queue_may_reach(const struct nb_queue *queue);
unsigned nb_queue_choice(const struct nb_queue *queue);
void nb_queue_all_launched(struct nb_queue *queue, unsigned choice);

/* Append a record. Return 0, -ENOTCONN without a consumer, or -ENOSPC when the record was dropped. */
int nb_queue_push(struct nb_queue *queue, const struct nb_record *record);
/* Report to the consumer that `n` operations of `func` had no records. */
void nb_queue_missed(struct nb_queue *queue, enum nb_func func, uint32_t n);
/* Push like nb_queue_push for a communicator whose own queue has no consumer: into the queue on `gpu` with a
 * consumer of `nnodes` nodes. Where several fit, report a missing record to each of them and return
 * -ENOTUNIQ. */
int nb_queue_push_shared(struct nb_context *ctx, int gpu, int nnodes, const struct nb_record *record);

/* Move the oldest records, at most `max`, out of the queue. Return their number. Consumer only. */
size_t nb_queue_take(struct nb_queue *queue, struct nb_record *out, size_t max);
void nb_queue_get_counts(struct nb_queue *queue, struct nb_queue_counts *counts);

/* ---- Parts of the plugin that NCCL uses, any thread ---------------------------------------------------- */

/* Note that a tuner instance was created. */
void nb_note_tuner(struct nb_context *ctx);
/* Return 1 when one ever was. */
int nb_tuner_seen(const struct nb_context *ctx);
/* Return the number of a new profiler instance of this context, from 0. */
uint32_t nb_count_profiler(struct nb_context *ctx);

/* ---- align.c: the record of each operation ------------------------------------------------------------- */

#define NB_ALIGN_POSITIONS 64u
#define NB_ALIGN_REACH 16u /* how far records and operations may be apart after a misfit */

enum nb_alignment {
    NB_ALIGN_CERTAIN = 0, /* the record belongs to the operation */
    NB_ALIGN_ALIKE,       /* one of several records that are equal but for the buffer */
    NB_ALIGN_ABSENT,      /* the operation has no record */
    NB_ALIGN_DOUBT,       /* several records are possible, and they differ */
    NB_ALIGN_MISFIT,      /* all records contradict it: the next operations find the position again */
};

struct nb_position {
    uint64_t at; /* number of the record that belongs to the next operation */
    int took;    /* the record before is the current operation's */
};

struct nb_align {
    struct nb_record *ring; /* [cap], grows to NB_QUEUE_RECORDS */
    uint32_t cap;
    uint64_t head, tail;
    struct nb_position position[NB_ALIGN_POSITIONS];
    unsigned n;
    /* Operations that certainly were next and came without a record: the losses that a later record of the
     * same function reports. Only while all records are of one communicator. */
    uint32_t owed[NB_FUNC_COUNT];
    uint32_t source;
    int mixed;
    int blind; /* too many losses to keep track, or out of memory: later records stay unused */
};

/* An operation as its windows show it. Bytes 0: unknown (all-reduce). */
struct nb_seen {
    enum nb_func func;
    ncclDataType_t type;
    uint64_t bytes;
};

struct nb_align *nb_align_create(void);
void nb_align_destroy(struct nb_align *align);
/* Return the room for further records, and add one. Without memory for it the order is lost. */
size_t nb_align_room(const struct nb_align *align);
void nb_align_add(struct nb_align *align, const struct nb_record *record);

/* Begin an operation, after all records up to it were added. Set *record for CERTAIN and ALIKE (for the
 * latter without slot and buffers). */
enum nb_alignment nb_align_begin(struct nb_align *align, const struct nb_seen *seen,
                                 struct nb_record *record);
/* Note that the current window may have begun another operation, with no way to tell. */
void nb_align_perhaps(struct nb_align *align, const struct nb_seen *seen);
/* End the current all-reduce after `steps` steps of `step_bytes` bytes. Strike out records that contradict.
 * Return 0, or -1 when all do. */
int nb_align_ended(struct nb_align *align, uint64_t steps, uint64_t step_bytes);
/* Note that the order of operations itself is lost. */
void nb_align_lost(struct nb_align *align);

/* ---- walk.c: the place of an all-reduce window in its operation ---------------------------------------- */

#define NB_WALK_SLOTS 8u         /* steps in NCCL's region */
#define NB_WALK_CALL_CHANNELS 8u /* channels in a window at most */

struct nb_walk {
    int open;            /* windows of an operation are coming in */
    uint64_t steps;      /* begun, with the current one */
    uint64_t step_bytes; /* of a complete step. 0: before the first complete one */
    uint64_t cur;        /* bytes of the current step so far */
    uint64_t first;      /* bytes of the operation's first window */
    uint64_t chunk;      /* 0 until it is certain */
    uint64_t done;       /* D: bytes of all its windows so far */
};

enum nb_walk_place {
    NB_WALK_BEGINS,    /* another operation */
    NB_WALK_CONTINUES, /* the current one */
    NB_WALK_EITHER,    /* only the length decides */
    NB_WALK_NOWHERE,   /* not a place of any of NCCL's windows */
};

/* Known facts of an operation: B, the possible numbers of heads of a node (bit H), h or -1, k or 0. */
struct nb_extent {
    uint64_t bytes;
    uint64_t heads;
    int head;
    uint64_t chunk;
};

/* Return where a window of `bytes` bytes belongs, by its place, `at` bytes into `slot` of the region. */
enum nb_walk_place nb_walk_place(const struct nb_walk *walk, unsigned slot, uint64_t at, uint64_t bytes);
/* Begin an operation. */
void nb_walk_begin(struct nb_walk *walk);
/* Account for the window that nb_walk_place placed into the current operation. Call it before
 * nb_walk_values. */
void nb_walk_step(struct nb_walk *walk, uint64_t at, uint64_t bytes);
/* Set the bytes of values, `value` bytes each, in the window that was just accounted for: the first *sure
 * bytes certainly are values, and the bytes from *most on certainly are padding. */
void nb_walk_values(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t bytes,
                    uint64_t value, uint64_t *sure, uint64_t *most);
/* Return the largest possible S. Every stream's values end there or before. */
uint64_t nb_walk_longest(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t value);

/* Return the numbers of heads (bits) with which the operation would have `steps` steps of `step_bytes`
 * bytes. */
uint64_t nb_walk_heads(const struct nb_extent *extent, uint64_t steps, uint64_t step_bytes);
/* Return 1 when the operation has ended with the current, complete step, 0 when it goes on, or -1 when the
 * possible numbers of heads disagree. */
int nb_walk_ended(const struct nb_walk *walk, const struct nb_extent *extent);

#endif
