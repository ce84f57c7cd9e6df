/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of operation records (policy/records/records.h), from the profiler's events to the engine.
 *
 * A queue belongs to one CollNet resource: the communicator whose listen and connect made it, on one GPU.
 * Profiler init or connect creates it, whichever comes first, and the last of its users frees it. Children of
 * ncclCommSplit that share resources have no listen of their own. Their operations run over the parent's
 * connections, so their records join the queue on the same GPU whose group has as many nodes.
 *
 * Any thread pushes records, also a CUDA host callback. The functions for that allocate no memory, call no
 * CUDA function and wait at most for a few instructions under a lock. A record that does not fit is dropped
 * and counted. The next record says how many are missing before it.
 */
#include "policy/records/records.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"

/* Order of locks: the list's, then a queue's. */
struct nb_queues {
    pthread_mutex_t lock;
    struct nb_queue *list;
    atomic_int tuners;
    atomic_uint profilers;
};

struct nb_queue {
    struct nb_queues *queues;
    uint64_t comm_id;
    int device;
    /* Under the list's lock. */
    struct nb_queue *next;
    int refs;
    int profilers;
    uint32_t nranks;
    char name[64];
    /* Producers read it without a lock first. */
    atomic_int nnodes;  /* of the consumer's group. 0: without a consumer */
    atomic_uint choice; /* ASKED and REACHES */
    pthread_mutex_t lock;
    struct nb_record *ring; /* while it has a consumer */
    uint64_t head, tail;
    uint32_t missing[NB_FUNC_COUNT]; /* dropped since the last record that fitted */
    struct nb_queue_counts counts;
};

/* ---- life -------------------------------------------------------------------------------------------- */

int nb_queues_open(struct nb_context *ctx)
{
    struct nb_queues *queues = calloc(1, sizeof(*queues));

    if (!queues)
        return -ENOMEM;
    pthread_mutex_init(&queues->lock, NULL);
    ctx->queues = queues;
    return 0;
}

void nb_queues_close(struct nb_context *ctx)
{
    if (!ctx->queues)
        return;
    pthread_mutex_destroy(&ctx->queues->lock);
    free(ctx->queues);
    ctx->queues = NULL;
}

static struct nb_queue *find(const struct nb_queues *queues, uint64_t comm_id, int device)
{
    struct nb_queue *only = NULL;
    int n = 0;

    for (struct nb_queue *q = queues->list; q; q = q->next) {
        if (q->comm_id != comm_id)
            continue;
        if (q->device == device)
            return q;
        if (q->device == -1 || device == -1) {
            only = q;
            n++;
        }
    }
    return n == 1 ? only : NULL;
}

struct nb_queue *nb_queue_get(struct nb_context *ctx, uint64_t comm_id, int device)
{
    struct nb_queues *queues = ctx->queues;
    struct nb_queue *q;

    pthread_mutex_lock(&queues->lock);
    /* Tables without a communicator id pass 0. Such communicators are all different. */
    q = comm_id ? find(queues, comm_id, device) : NULL;
    if (!q) {
        q = calloc(1, sizeof(*q));
        if (q) {
            q->queues = queues;
            q->comm_id = comm_id;
            q->device = device;
            pthread_mutex_init(&q->lock, NULL);
            q->next = queues->list;
            queues->list = q;
        }
    } else if (q->device == -1) {
        q->device = device;
    }
    if (q)
        q->refs++;
    pthread_mutex_unlock(&queues->lock);
    return q;
}

void nb_queue_put(struct nb_queue *q)
{
    struct nb_queues *queues;
    int last;

    if (!q)
        return;
    queues = q->queues;
    pthread_mutex_lock(&queues->lock);
    last = --q->refs == 0;
    if (last) {
        struct nb_queue **at = &queues->list;
        while (*at != q)
            at = &(*at)->next;
        *at = q->next;
    }
    pthread_mutex_unlock(&queues->lock);
    if (last) {
        pthread_mutex_destroy(&q->lock);
        free(q->ring);
        free(q);
    }
}

int nb_queue_attach(struct nb_queue *q, int nnodes)
{
    struct nb_record *ring = calloc(NB_QUEUE_RECORDS, sizeof(*ring));
    int ret = 0;

    if (!ring)
        return -ENOMEM;
    pthread_mutex_lock(&q->lock);
    if (q->ring) {
        ret = -EBUSY;
    } else {
        q->ring = ring;
        q->head = q->tail = 0;
        memset(q->missing, 0, sizeof(q->missing));
        atomic_store(&q->nnodes, nnodes);
    }
    pthread_mutex_unlock(&q->lock);
    if (ret)
        free(ring);
    return ret;
}

void nb_queue_detach(struct nb_queue *q)
{
    struct nb_record *ring;

    pthread_mutex_lock(&q->lock);
    atomic_store(&q->nnodes, 0);
    ring = q->ring;
    q->ring = NULL;
    pthread_mutex_unlock(&q->lock);
    free(ring);
}

void nb_queue_profiled(struct nb_queue *q, int change)
{
    pthread_mutex_lock(&q->queues->lock);
    q->profilers += change;
    pthread_mutex_unlock(&q->queues->lock);
}

void nb_queue_describe(struct nb_queue *q, uint32_t nranks, const char *name)
{
    pthread_mutex_lock(&q->queues->lock);
    q->nranks = nranks;
    snprintf(q->name, sizeof(q->name), "%s", name ? name : "");
    pthread_mutex_unlock(&q->queues->lock);
}

void nb_queue_description(struct nb_queue *q, uint32_t *nranks, char *name, size_t cap)
{
    pthread_mutex_lock(&q->queues->lock);
    *nranks = q->nranks;
    snprintf(name, cap, "%s", q->name);
    pthread_mutex_unlock(&q->queues->lock);
}

int nb_queue_is_profiled(struct nb_queue *q)
{
    int is;

    pthread_mutex_lock(&q->queues->lock);
    is = q->profilers > 0;
    pthread_mutex_unlock(&q->queues->lock);
    return is;
}

#define ASKED 1u
#define REACHES 2u

void nb_queue_chosen(struct nb_queue *q, bool reaches)
{
    atomic_fetch_or_explicit(&q->choice, reaches ? ASKED | REACHES : ASKED, memory_order_relaxed);
}

bool nb_queue_may_reach(const struct nb_queue *q)
{
    return atomic_load_explicit(&q->choice, memory_order_relaxed) != ASKED;
}

unsigned nb_queue_choice(const struct nb_queue *q)
{
    return atomic_load_explicit(&q->choice, memory_order_relaxed);
}

void nb_queue_all_launched(struct nb_queue *q, unsigned choice)
{
    atomic_compare_exchange_strong(&q->choice, &choice, 0);
}

/* ---- records ----------------------------------------------------------------------------------------- */

int nb_queue_push(struct nb_queue *q, const struct nb_record *record)
{
    int ret = 0;

    pthread_mutex_lock(&q->lock);
    if (!q->ring) {
        q->counts.unused++;
        ret = -ENOTCONN;
    } else if (q->tail - q->head == NB_QUEUE_RECORDS) {
        q->counts.dropped++;
        q->missing[record->func] += 1 + record->missing[record->func];
        ret = -ENOSPC;
    } else {
        struct nb_record *r = &q->ring[q->tail++ % NB_QUEUE_RECORDS];
        *r = *record;
        for (int f = 0; f < NB_FUNC_COUNT; f++)
            r->missing[f] += q->missing[f];
        memset(q->missing, 0, sizeof(q->missing));
        q->counts.pushed++;
    }
    pthread_mutex_unlock(&q->lock);
    return ret;
}

void nb_queue_missed(struct nb_queue *q, enum nb_func func, uint32_t n)
{
    pthread_mutex_lock(&q->lock);
    q->missing[func] += n;
    pthread_mutex_unlock(&q->lock);
}

int nb_queue_push_shared(struct nb_context *ctx, int device, int nnodes, const struct nb_record *record)
{
    struct nb_queues *queues = ctx->queues;
    struct nb_queue *only = NULL;
    int n = 0, ret = -ENOTCONN;

    pthread_mutex_lock(&queues->lock);
    for (struct nb_queue *q = queues->list; q; q = q->next) {
        if (q->device == device && atomic_load(&q->nnodes) == nnodes) {
            only = q;
            n++;
        }
    }
    if (n == 1)
        ret = nb_queue_push(only, record);
    for (struct nb_queue *q = queues->list; q && n > 1; q = q->next)
        if (q->device == device && atomic_load(&q->nnodes) == nnodes)
            nb_queue_missed(q, record->func, 1 + record->missing[record->func]);
    pthread_mutex_unlock(&queues->lock);
    return n > 1 ? -ENOTUNIQ : ret;
}

size_t nb_queue_take(struct nb_queue *q, struct nb_record *out, size_t max)
{
    size_t n = 0;

    pthread_mutex_lock(&q->lock);
    while (q->ring && n < max && q->head < q->tail)
        out[n++] = q->ring[q->head++ % NB_QUEUE_RECORDS];
    pthread_mutex_unlock(&q->lock);
    return n;
}

void nb_queue_get_counts(struct nb_queue *q, struct nb_queue_counts *counts)
{
    pthread_mutex_lock(&q->lock);
    *counts = q->counts;
    pthread_mutex_unlock(&q->lock);
}

void nb_note_tuner(struct nb_context *ctx)
{
    atomic_fetch_add(&ctx->queues->tuners, 1);
}

int nb_tuner_seen(const struct nb_context *ctx)
{
    return atomic_load(&ctx->queues->tuners) > 0;
}

uint32_t nb_count_profiler(struct nb_context *ctx)
{
    return atomic_fetch_add(&ctx->queues->profilers, 1);
}
