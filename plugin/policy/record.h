/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operation records: what is known about an operation beyond what its CollNet calls say. NCCL's profiler
 * events tell it before NCCL's proxy begins the operation; the engine takes it up with the operation's first
 * window.
 *
 * A queue belongs to one CollNet resource: the communicator whose listen and connect made it, on one device.
 * It comes into being with whichever half is first (profiler init, or connect), and goes with the last.
 * Children of ncclCommSplit that share resources have no listen of their own: their operations run over the
 * parent's connections, so their records join the queue on the same device whose group has as many nodes.
 *
 * Records are pushed by any thread, also from CUDA host callbacks: nothing here allocates, calls CUDA or
 * waits beyond a few instructions under a lock. What does not fit is dropped and counted, and the next record
 * says how many are missing before it.
 */
#ifndef NIBBLE_POLICY_RECORD_H
#define NIBBLE_POLICY_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "coll/wire.h"
#include "nibble/nccl_types.h"

struct nb_coll_comm;

enum {
    NB_RECORD_API = 1,      /* the user's call is known and agrees with the launch */
    NB_RECORD_CAPTURED = 2, /* of a CUDA graph; comes again at every replay */
    NB_RECORD_CHAIN = 4,    /* COLLNET_CHAIN: this rank serves some of the channels only; or a node may have any
                             * number of heads */
    NB_RECORD_DOUBT = 8,    /* call and launch contradict each other: one operation, of no known kind */
};

struct nb_record {
    enum nb_func func;
    ncclDataType_t type;     /* as the windows have it: ncclInt8 for every all-gather */
    ncclDataType_t api_type; /* as the user has it, with NB_RECORD_API */
    uint32_t flags;
    uint64_t bytes; /* reduce-scatter, all-gather: bytes per rank; all-reduce: of the whole operation */
    const void *send, *recv; /* the user's buffers; NULL: unknown */
    const void *stream;
    int64_t slot;            /* identity of the buffer for error feedback; -1: unknown, no feedback */
    uint64_t call;           /* number of its announcement (policy/job.h); 0: none, or not certain which */
    uint64_t comm;           /* NCCL's number of the communicator that told it */
    uint32_t nranks;         /* of that communicator */
    uint32_t source;         /* the same communicator, counted by this process */
    uint32_t node;           /* number of the own node in that communicator, from 1; 0: unknown */
    /* At most so many operations before this one, by function, may have reached the engine unrecorded. */
    uint32_t missing[NB_FUNC_COUNT];
    /* All-reduce: how the vector is dealt out. heads: bit H is set when a node may have H heads; chunk 0 and
     * head -1: unknown. */
    uint64_t heads;
    int32_t head;
    uint32_t chunk;
};

/* ---- Queues ----------------------------------------------------------------------------------------- */

struct nb_queue;

#define NB_QUEUE_RECORDS 4096u /* how far NCCL's launches may be ahead of its proxy */

struct nb_queue_counts {
    uint64_t pushed, dropped; /* dropped: the queue was full */
    uint64_t unused;          /* came while no group was connected */
};

/* Ordinal of the GPU that is current on the calling thread, -1 without CUDA. Not from host callbacks. */
int nb_current_gpu(void);
/* For tests: what nb_current_gpu says on this thread; -2 ends it. */
void nb_pretend_gpu(int gpu);

/* The queue of a communicator on a device, made if need be; one reference. NULL: no memory. A device of -1
 * finds the only queue of this communicator when there is exactly one. */
struct nb_queue *nb_queue_get(uint64_t comm_id, int device);
void nb_queue_put(struct nb_queue *queue);

/* A group of `nnodes` nodes begins to consume, or ends. One consumer a queue: -EBUSY, -ENOMEM. Ending drops
 * what is left. */
int nb_queue_attach(struct nb_queue *queue, int nnodes);
void nb_queue_detach(struct nb_queue *queue);

/* A profiler context for this queue's communicator began or ended. */
void nb_queue_profiled(struct nb_queue *queue, int change);
/* What NCCL told the profiler of it: ranks, and its name ("" when it has none). */
void nb_queue_describe(struct nb_queue *queue, uint32_t nranks, const char *name);
void nb_queue_description(struct nb_queue *queue, uint32_t *nranks, char *name, size_t cap);
/* 1 when NCCL's profiler events of this communicator come to us. */
int nb_queue_is_profiled(struct nb_queue *queue);

/* Append. 0; -ENOTCONN: nobody consumes; -ENOSPC: dropped. */
int nb_queue_push(struct nb_queue *queue, const struct nb_record *record);
/* Tell the consumer that `n` operations of `func` came without records. */
void nb_queue_missed(struct nb_queue *queue, enum nb_func func, uint32_t n);
/* As push, for a communicator whose own queue nobody consumes: into the queue on `device` with a consumer of
 * `nnodes` nodes. Where several fit, each is told that a record may be missing, and -ENOTUNIQ. */
int nb_queue_push_shared(int device, int nnodes, const struct nb_record *record);

/* Oldest records, at most `max`, out of the queue; the number. Consumer only. */
size_t nb_queue_take(struct nb_queue *queue, struct nb_record *out, size_t max);
void nb_queue_get_counts(struct nb_queue *queue, struct nb_queue_counts *counts);

/* For tests and tools linked with the library: push into the queue of a connected communicator. 0, -EINVAL
 * for a record that contradicts itself, -ENOSPC. Any thread. */
int nb_record_push(struct nb_coll_comm *comm, const struct nb_record *record);

/* ---- Which parts of the plugin NCCL uses ------------------------------------------------------------- */

/* A tuner context was made. */
void nb_note_tuner(void);
int nb_tuner_seen(void);

#endif
