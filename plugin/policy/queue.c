/* SPDX-License-Identifier: Apache-2.0 */
/* The process-wide list of record queues; see record.h. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/record.h"

struct nb_queue {
    uint64_t comm_id;
    int device;
    /* Under `registry`. */
    struct nb_queue *next;
    int refs;
    int profilers;
    uint32_t nranks;
    char name[64];
    /* Read without a lock to turn producers away early. */
    atomic_int nnodes; /* of the consumer's group; 0: nobody consumes */
    pthread_mutex_t lock;
    struct nb_record *ring; /* while somebody consumes */
    uint64_t head, tail;
    uint32_t missing[NB_FUNC_COUNT]; /* dropped since the last record that fitted */
    struct nb_queue_counts counts;
};

/* Order: registry before a queue's lock. */
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct nb_queue *queues;
static atomic_int tuners;

/* ---- device ------------------------------------------------------------------------------------------ */

static _Thread_local int pretended = -2;

void nb_pretend_gpu(int gpu)
{
    pretended = gpu;
}

int nb_current_gpu(void)
{
    int (*get_device)(int *);
    void *lib;
    int device = -1;

    if (pretended != -2)
        return pretended;
    lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); /* a job that uses CUDA has it open */
    if (!lib)
        return -1;
    *(void **)&get_device = dlsym(lib, "cuCtxGetDevice");
    if (!get_device || get_device(&device) != 0)
        device = -1;
    dlclose(lib);
    return device;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static struct nb_queue *find(uint64_t comm_id, int device)
{
    struct nb_queue *only = NULL;
    int n = 0;

    for (struct nb_queue *q = queues; q; q = q->next) {
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

struct nb_queue *nb_queue_get(uint64_t comm_id, int device)
{
    struct nb_queue *q;

    pthread_mutex_lock(&registry);
    /* Id 0 is that of tables which do not tell one: such communicators are all different. */
    q = comm_id ? find(comm_id, device) : NULL;
    if (!q) {
        q = calloc(1, sizeof(*q));
        if (q) {
            q->comm_id = comm_id;
            q->device = device;
            pthread_mutex_init(&q->lock, NULL);
            q->next = queues;
            queues = q;
        }
    } else if (q->device == -1) {
        q->device = device;
    }
    if (q)
        q->refs++;
    pthread_mutex_unlock(&registry);
    return q;
}

void nb_queue_put(struct nb_queue *q)
{
    int last;

    if (!q)
        return;
    pthread_mutex_lock(&registry);
    last = --q->refs == 0;
    if (last) {
        struct nb_queue **at = &queues;
        while (*at != q)
            at = &(*at)->next;
        *at = q->next;
    }
    pthread_mutex_unlock(&registry);
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
    pthread_mutex_lock(&registry);
    q->profilers += change;
    pthread_mutex_unlock(&registry);
}

void nb_queue_describe(struct nb_queue *q, uint32_t nranks, const char *name)
{
    pthread_mutex_lock(&registry);
    q->nranks = nranks;
    snprintf(q->name, sizeof(q->name), "%s", name ? name : "");
    pthread_mutex_unlock(&registry);
}

void nb_queue_description(struct nb_queue *q, uint32_t *nranks, char *name, size_t cap)
{
    pthread_mutex_lock(&registry);
    *nranks = q->nranks;
    snprintf(name, cap, "%s", q->name);
    pthread_mutex_unlock(&registry);
}

int nb_queue_is_profiled(struct nb_queue *q)
{
    int is;

    pthread_mutex_lock(&registry);
    is = q->profilers > 0;
    pthread_mutex_unlock(&registry);
    return is;
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

int nb_queue_push_shared(int device, int nnodes, const struct nb_record *record)
{
    struct nb_queue *only = NULL;
    int n = 0, ret = -ENOTCONN;

    pthread_mutex_lock(&registry);
    for (struct nb_queue *q = queues; q; q = q->next) {
        if (q->device == device && atomic_load(&q->nnodes) == nnodes) {
            only = q;
            n++;
        }
    }
    if (n == 1)
        ret = nb_queue_push(only, record);
    for (struct nb_queue *q = queues; q && n > 1; q = q->next)
        if (q->device == device && atomic_load(&q->nnodes) == nnodes)
            nb_queue_missed(q, record->func, 1 + record->missing[record->func]);
    pthread_mutex_unlock(&registry);
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

void nb_note_tuner(void)
{
    atomic_fetch_add(&tuners, 1);
}

int nb_tuner_seen(void)
{
    return atomic_load(&tuners) > 0;
}
