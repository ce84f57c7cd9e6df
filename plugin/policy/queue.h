/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of operation records (policy/record.h), from the profiler's events to the engine.
 *
 * A queue belongs to one CollNet resource: the communicator whose listen and connect made it, on one GPU. It
 * is created by whichever comes first, profiler init or connect, and freed with the last of them. Children of
 * ncclCommSplit that share resources have no listen of their own: their operations run over the parent's
 * connections, so their records join the queue on the same GPU whose group has as many nodes.
 *
 * Records are pushed by any thread, also from CUDA host callbacks: nothing here allocates, calls CUDA or
 * waits beyond a few instructions under a lock. What does not fit is dropped and counted, and the next record
 * says how many are missing before it.
 */
#ifndef NIBBLE_POLICY_QUEUE_H
#define NIBBLE_POLICY_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/func.h"
#include "policy/record.h"

struct nb_context;
struct nb_queue;

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

#endif
