/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's device with codec threads (pool.h): workers process values while the engine goes on. In all else
 * it equals the host's own device (host.c). Queries, work without a handle, and work that takes less time
 * than handing it over are done on the spot.
 *
 *     engine: encode(work)   fills a free entry with the arguments, queues its job           -EINPROGRESS
 *     worker                 runs the host's function, notes the result, wakes the engine (ctx->work_done)
 *     engine: poll(work)     takes the result, and frees the entry
 *
 * A worker that notes a result holds the instance's lock until it has woken the engine, and poll takes that
 * lock once. Work that poll has returned is therefore over, and its worker has finished with the means of
 * waking the engine, which may then be closed.
 */
#include "device/host/host.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "base/nccl_names.h"
#include "device/host/pool.h"

#define SLOTS 64u /* works in flight: as many as a communicator has tasks */
/* Bytes of values that the caller processes itself. They take a microsecond or two, and waking a thread takes
 * longer. */
#define ON_THE_SPOT_BYTES 8192u

/* Minimum time without an ended work after which the threads are stuck: twice NIBBLE_PEER_TIMEOUT, as with an
 * engine that hangs (coll/engine.h), but at least this. */
#define STUCK_LEAST_NS (60 * (int64_t)NB_NS_PER_S)
/* Maximum time that counts between two turns, for a process that was stopped meanwhile. */
#define STUCK_GAP_NS ((int64_t)NB_NS_PER_S)

enum kind { COPY, ENCODE, DECODE, REDUCE, REDUCE_EXACT, COMPARE };

struct copying {
    void *dst;
    const void *src;
    size_t bytes;
};

struct comparing {
    const void *cur, *ref;
    size_t bytes;
    struct nb_compared *out;
};

struct reducing {
    enum nb_dtype type;
    ncclDataType_t nccl_type;
    ncclRedOp_t op;
    const struct nb_source *sources;
    const void *const *plain;
    size_t nsources, n;
    const void *own;
    uint64_t first;
    void *dst;
};

/* The arguments of a call, kept for the thread that makes it. */
struct call {
    enum kind kind;
    union {
        struct copying copy;
        struct nb_encoding encode;
        struct nb_decoding decode;
        struct reducing reduce;
        struct comparing compare;
    };
};

struct entry {
    struct nb_pool_job job;
    struct pooled *dev;
    struct entry *next;   /* the next free one */
    struct nb_work *work; /* its work. NULL: free */
    bool cancelled;
    struct call call;
    ssize_t result;
    int64_t took_ns;
    atomic_bool done; /* written with the instance's lock held */
};

struct pooled {
    struct nb_device dev;
    struct nb_device_ops ops; /* the host's, except this file's functions */
    struct nb_context *ctx;
    struct nb_host_pool *pool;
    unsigned workers;

    /* Members of the thread that uses the instance. */
    struct entry entry[SLOTS], *free;
    unsigned in_flight;
    int failed;                   /* 0 or a negative errno */
    bool lost;                    /* a worker hangs, and may touch memory at any time */
    int64_t looked_ns, waited_ns; /* of the watchdog: its last turn, and the time since then without an
                                     ended work */
    uint64_t ended_before;

    pthread_mutex_t lock;
    pthread_cond_t less; /* signals a finished work, while `waiting` */
    bool waiting;        /* under lock */

    /* For `news`, which reads without a lock: the number of results, and of results taken or dropped. */
    _Atomic uint64_t made, taken;
};

static struct pooled *pooled_of(struct nb_device *dev)
{
    return (struct pooled *)dev;
}

/* ---- on a worker --------------------------------------------------------------------------------------- */

static ssize_t perform(const struct call *c)
{
    struct nb_device *h = nb_host_device();
    const struct reducing *r = &c->reduce;

    switch (c->kind) {
    case COPY: return h->ops->copy(h, NULL, c->copy.dst, c->copy.src, c->copy.bytes);
    case ENCODE: return h->ops->encode(h, NULL, &c->encode);
    case DECODE: return h->ops->decode(h, NULL, &c->decode);
    case COMPARE:
        return h->ops->compare(h, NULL, c->compare.cur, c->compare.ref, c->compare.bytes, c->compare.out);
    case REDUCE:
        return h->ops->reduce(h, NULL, r->type, r->sources, r->nsources, r->own, r->n, r->first, r->dst);
    default:
        return h->ops->reduce_exact(h, NULL, r->nccl_type, r->op, r->plain, r->nsources, r->own, r->n,
                                    r->dst);
    }
}

static void run(struct nb_pool_job *job)
{
    struct entry *s = (struct entry *)job;
    struct pooled *d = s->dev;
    const uint64_t begun = nb_now_ns();

    s->result = perform(&s->call);
    s->took_ns = (int64_t)(nb_now_ns() - begun);
    pthread_mutex_lock(&d->lock);
    atomic_store_explicit(&s->done, true, memory_order_release);
    /* Sequentially consistent, like the engine's looks before it sleeps: either the engine sees this result
     * or it is woken. */
    atomic_fetch_add(&d->made, 1);
    if (d->ctx->work_done)
        d->ctx->work_done(d->ctx);
    if (d->waiting)
        pthread_cond_signal(&d->less);
    pthread_mutex_unlock(&d->lock);
}

/* ---- submitting ---------------------------------------------------------------------------------------- */

static ssize_t ask(struct nb_device *dev, struct nb_work *work, const struct call *call, size_t bytes)
{
    struct pooled *d = pooled_of(dev);
    struct entry *s = d->free;

    if (d->failed)
        return d->failed;
    if (!work || bytes <= ON_THE_SPOT_BYTES)
        return perform(call);
    if (!s)
        return -EAGAIN;
    d->free = s->next;
    d->in_flight++;
    s->call = *call;
    s->work = work;
    s->cancelled = false;
    atomic_store_explicit(&s->done, false, memory_order_relaxed);
    work->at = s;
    nb_pool_submit(d->pool, &s->job);
    return -EINPROGRESS;
}

static int pooled_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    const struct call c = {.kind = COPY, .copy = {dst, src, bytes}};

    return dst == src ? 0 : (int)ask(dev, work, &c, bytes);
}

static int pooled_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                          size_t bytes, struct nb_compared *out)
{
    const struct call c = {.kind = COMPARE, .compare = {cur, ref, bytes, out}};

    return (int)ask(dev, work, &c, bytes);
}

static ssize_t pooled_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    const struct call c = {.kind = ENCODE, .encode = *e};

    return ask(dev, work, &c, e->bytes);
}

static int pooled_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *g)
{
    const struct call c = {.kind = DECODE, .decode = *g};

    return (int)ask(dev, work, &c, g->bytes);
}

static int pooled_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                         const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                         uint64_t first, void *dst)
{
    const struct call c = {.kind = REDUCE,
                           .reduce = {.type = type,
                                      .sources = sources,
                                      .nsources = nsources,
                                      .own = own,
                                      .n = n,
                                      .first = first,
                                      .dst = dst}};

    return (int)ask(dev, work, &c, n * nb_dtype_size(type) * (nsources + 1));
}

static int pooled_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type,
                               ncclRedOp_t op, const void *const *sources, size_t nsources, const void *own,
                               size_t n, void *dst)
{
    const struct call c = {.kind = REDUCE_EXACT,
                           .reduce = {.nccl_type = type,
                                      .op = op,
                                      .plain = sources,
                                      .nsources = nsources,
                                      .own = own,
                                      .n = n,
                                      .dst = dst}};

    return (int)ask(dev, work, &c, n * nb_nccl_type_size(type) * (nsources + 1));
}

static void retire(struct pooled *d, struct entry *s)
{
    s->work = NULL;
    s->next = d->free;
    d->free = s;
    d->in_flight--;
}

static ssize_t pooled_poll(struct nb_device *dev, struct nb_work *work)
{
    struct pooled *d = pooled_of(dev);
    struct entry *s = work->at;

    if (!s) /* quiesce has ended it */
        return -ECANCELED;
    if (d->failed)
        return d->failed;
    if (!atomic_load_explicit(&s->done, memory_order_acquire))
        return -EINPROGRESS;
    pthread_mutex_lock(
        &d->lock); /* until its worker has finished with this instance and has woken the engine */
    pthread_mutex_unlock(&d->lock);
    atomic_fetch_add_explicit(&d->taken, 1, memory_order_relaxed);
    work->at = NULL;
    work->id = (uint64_t)s->took_ns;
    retire(d, s);
    return s->result;
}

static int pooled_news(struct nb_device *dev)
{
    struct pooled *d = pooled_of(dev);

    return atomic_load(&d->made) != atomic_load_explicit(&d->taken, memory_order_relaxed);
}

static uint64_t pooled_took(struct nb_device *dev, const struct nb_work *work)
{
    (void)dev;
    return work->id;
}

static unsigned pooled_workers(struct nb_device *dev)
{
    return pooled_of(dev)->workers;
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static int64_t stuck_after_ns(const struct pooled *d)
{
    const int64_t twice = 2 * d->ctx->params->peer_timeout * (int64_t)NB_NS_PER_S;

    return twice > STUCK_LEAST_NS ? twice : STUCK_LEAST_NS;
}

static void tell_stuck(const struct pooled *d)
{
    NB_WARN("device: codec threads have not ended a work for %lld s (twice NIBBLE_PEER_TIMEOUT, at least "
            "%lld s): they hang, or get no processor",
            (long long)(stuck_after_ns(d) / (int64_t)NB_NS_PER_S),
            (long long)(STUCK_LEAST_NS / (int64_t)NB_NS_PER_S));
}

static int pooled_turn(struct nb_device *dev, int busy)
{
    struct pooled *d = pooled_of(dev);
    const int64_t now = d->in_flight ? nb_clock_ns(&d->ctx->clock) : 0;
    const uint64_t ended = nb_pool_ended(d->pool);

    (void)busy;
    if (!d->in_flight || d->failed || ended != d->ended_before || !d->looked_ns) {
        d->ended_before = ended;
        d->waited_ns = 0;
    } else {
        const int64_t gap = now - d->looked_ns;
        d->waited_ns += gap < STUCK_GAP_NS ? gap : STUCK_GAP_NS;
        if (d->waited_ns > stuck_after_ns(d)) {
            tell_stuck(d);
            d->failed = -ETIMEDOUT;
        }
    }
    d->looked_ns = now;
    return 0;
}

static int pooled_failed(struct nb_device *dev)
{
    return pooled_of(dev)->failed;
}

static void cancelled(struct nb_pool_job *job)
{
    ((struct entry *)job)->cancelled = true;
}

/* Return whether a work that has begun is unfinished. With the lock held. */
static bool one_runs(const struct pooled *d)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (d->entry[i].work && !d->entry[i].cancelled && !atomic_load(&d->entry[i].done))
            return true;
    return false;
}

/* Wait for works that have begun. Each takes microseconds, unless its worker hangs. */
static void await_running(struct pooled *d)
{
    struct timespec until;
    int err = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += d->failed ? 1 : (time_t)(stuck_after_ns(d) / (int64_t)NB_NS_PER_S);
    pthread_mutex_lock(&d->lock);
    d->waiting = true;
    while (one_runs(d) && !err)
        err = pthread_cond_timedwait(&d->less, &d->lock, &until);
    d->waiting = false;
    d->lost = one_runs(d);
    pthread_mutex_unlock(&d->lock);
    if (d->lost) {
        if (!d->failed)
            tell_stuck(d);
        d->failed = -ETIMEDOUT;
    }
}

static void pooled_quiesce(struct nb_device *dev)
{
    struct pooled *d = pooled_of(dev);

    if (!d->in_flight)
        return;
    if (!nb_pool_is_orphan(d->pool)) {
        nb_pool_cancel(d->pool, d, cancelled);
        await_running(d);
    }
    if (d->lost)
        return;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct entry *s = &d->entry[i];
        if (!s->work)
            continue;
        s->work->at = NULL;
        if (atomic_load(&s->done))
            atomic_fetch_add_explicit(&d->taken, 1, memory_order_relaxed);
        retire(d, s);
    }
}

static int pooled_lost(struct nb_device *dev)
{
    return pooled_of(dev)->lost;
}

static void pooled_close(struct nb_device *dev)
{
    struct pooled *d = pooled_of(dev);

    pooled_quiesce(dev);
    if (d->lost)
        return;
    nb_pool_release(d->pool);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->less);
    free(d);
}

static int pooled_region(struct nb_device *dev, const void *base, size_t bytes, int fd, uint64_t offset)
{
    (void)fd;
    (void)offset;
    if (bytes)
        nb_pool_prefer_near(pooled_of(dev)->pool, base);
    return 0;
}

/* ---- making one ---------------------------------------------------------------------------------------- */

static void fill_table(struct nb_device_ops *ops)
{
    *ops = *nb_host_device()->ops;
    ops->quiesce = pooled_quiesce;
    ops->failed = pooled_failed;
    ops->turn = pooled_turn;
    ops->close = pooled_close;
    ops->region = pooled_region;
    ops->lost = pooled_lost;
    ops->poll = pooled_poll;
    ops->news = pooled_news;
    ops->took = pooled_took;
    ops->workers = pooled_workers;
    ops->copy = pooled_copy;
    ops->compare = pooled_compare;
    ops->encode = pooled_encode;
    ops->decode = pooled_decode;
    ops->reduce = pooled_reduce;
    ops->reduce_exact = pooled_reduce_exact;
}

/* Return the number of workers for a communicator. Set `cores`, the facts of the default, where the setting
 * leaves the number to the default. */
static unsigned threads_wanted(const struct nb_context *ctx, struct nb_cores *cores)
{
    struct nb_cpus mine;

    if (ctx->params->host_threads >= 0)
        return (unsigned)ctx->params->host_threads;
    nb_cpus_mine(&mine);
    nb_cores_look(ctx->root ? ctx->root : "", &mine, cores);
    return nb_cores_default_threads(cores);
}

static void tell(const struct nb_context *ctx, unsigned workers, const struct nb_cores *cores)
{
    char where[64] = "the engine's thread", why[160] = "NIBBLE_HOST_THREADS";

    if (workers)
        snprintf(where, sizeof(where), "%u threads of their own", workers);
    if (ctx->params->host_threads < 0)
        snprintf(why, sizeof(why), "this rank's share of %u cores is %u, ranks on this machine: %u%s%s",
                 cores->machine, cores->share, cores->ranks, *cores->ranks_by ? " by " : "", cores->ranks_by);
    NB_INFO(NCCL_INIT, "device: codecs run on %s (%s)", where, why);
}

struct nb_device *nb_host_threads_open(struct nb_context *ctx)
{
    struct nb_cores cores;
    struct nb_cpus mine;
    struct pooled *d;
    unsigned threads;
    pthread_condattr_t attr;

    /* A caller that makes the engine's steps itself gets extra threads only when it asks for them. */
    if (!ctx->host_pool || (ctx->params->host_threads < 0 && !ctx->work_done))
        return NULL;
    threads = threads_wanted(ctx, &cores);
    d = threads ? calloc(1, sizeof(*d)) : NULL;
    if (d) {
        nb_cpus_mine(&mine);
        d->workers = nb_pool_acquire(ctx->host_pool, threads, &mine);
    }
    tell(ctx, d ? d->workers : 0, &cores);
    if (!d || !d->workers) {
        free(d);
        return NULL;
    }
    fill_table(&d->ops);
    d->dev.ops = &d->ops;
    d->ctx = ctx;
    d->pool = ctx->host_pool;
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->less, &attr);
    pthread_condattr_destroy(&attr);
    for (unsigned i = SLOTS; i-- > 0;) {
        d->entry[i].job = (struct nb_pool_job){.run = run, .owner = d};
        d->entry[i].dev = d;
        d->entry[i].next = d->free;
        d->free = &d->entry[i];
    }
    return &d->dev;
}
