/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is late, for tests. It runs the host's functions some time after each request, in any order,
 * on the polling thread or on its own. It also holds the engine to the rules of device/device.h: when the
 * engine writes memory before work on it is done, or reads memory that work still writes, the process ends
 * with a line that describes the access.
 *
 * tests/harness/over-late.sh links it with the plugin's parts into a separate plugin, which has no other
 * device. NB_LATE holds settings, words with commas between them: "thread" works on a thread, else polling
 * does the work. "slow": a thread that begins work and finishes it 0.1 s after the engine starts to wait for
 * it. "stuck": requested work never finishes. "fail=N": the N-th work of a communicator fails, and the device
 * with it. "none": the device is absent. "sync": never late, as the host. NB_LATE_REPORT names a file to
 * which every closed device adds a line.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi/process.h"
#include "base/context.h"
#include "base/nccl_names.h"
#include "device/device.h"
#include "device/host/host.h"
#include "policy/rules/rules.h"
#include "tests/device/call.h"

#define RING 48 /* works in flight */
#define RANGES 80
#define POISON_BYTES 4096
#define SLOW_US 100000

static const char *const kind_name[] = {"copy", "zero",    "encode",   "decode", "reduce", "reduce_exact",
                                        "pick", "compare", "nearness", "sample", "sums"};

enum { FREE, QUEUED, RUNNING, DONE };

/* One call, and its state. */
struct call {
    struct device_call what;
    struct nb_work *work;
    int state;      /* under lock */
    unsigned polls; /* before it is done */
    ssize_t result;
};

struct late {
    struct asked_device asked; /* first */
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread;
    int threaded, slow, waited_for, stuck, sync, stop, failed;
    uint64_t seed, works, fail_at, refused, inflight, most;
    struct call ring[RING];
};

static struct late *late_of(struct nb_device *dev)
{
    return (struct late *)dev;
}

static unsigned dice(struct late *d, unsigned n)
{
    d->seed = d->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(d->seed >> 33) % n;
}

/* ---- the rules --------------------------------------------------------------------------------------- */

struct range {
    uintptr_t beg, end;
    int write;
};

static size_t add(struct range *r, size_t n, const void *p, size_t bytes, int write)
{
    if (!p || !bytes)
        return n;
    if (n == RANGES) {
        fprintf(stderr, "late: too many sources for this device\n");
        abort();
    }
    r[n] = (struct range){(uintptr_t)p, (uintptr_t)p + bytes, write};
    return n + 1;
}

/* List the ranges that a call reads and writes, and return their number. */
static size_t ranges_of(const struct device_call *c, struct range *r)
{
    const struct nb_encoding *e = &c->encoding;
    const struct nb_decoding *d = &c->decoding;
    size_t n = 0, size = c->kind == REDUCE_EXACT ? nb_nccl_type_size(c->type) : nb_dtype_size(c->dtype);

    switch (c->kind) {
    case COPY:
    case PICK: n = add(r, n, c->src, c->n, 0); return add(r, n, c->dst, c->n, 1);
    case ZERO: return add(r, n, c->dst, c->n, 1);
    case COMPARE:
    case NEARNESS:
        n = add(r, n, c->src, c->n, 0);
        n = add(r, n, c->own, c->n, 0);
        if (c->kind == COMPARE)
            return add(r, n, c->compared, sizeof(*c->compared), 1);
        return add(r, n, c->near, sizeof(*c->near), 1);
    case SAMPLE:
    case SUMS:
        n = add(r, n, c->src, c->n * size, 0);
        return add(r, n, c->sample, c->samples * sizeof(*c->sample), 1);
    case ENCODE:
        n = add(r, n, e->src, e->bytes, 0);
        n = add(r, n, e->ref, e->bytes, 0);
        if (e->ef && e->ef->mode != NB_EF_OFF) { /* of whole groups */
            uint64_t values = e->bytes / nb_dtype_size((enum nb_dtype)e->format);
            uint64_t beg = (e->first + NB_GROUP - 1) / NB_GROUP, end = (e->first + values) / NB_GROUP;
            if (end > beg) {
                n = add(r, n, e->ef->err + beg * NB_GROUP, (end - beg) * NB_GROUP, 1);
                n = add(r, n, e->ef->scale + beg, end - beg, 1);
            }
        }
        n = add(r, n, e->stats, sizeof(*e->stats), 1);
        n = add(r, n, e->runs, sizeof(*e->runs), 1);
        return add(r, n, e->dst, e->cap, 1);
    case REDUCE:
        for (size_t i = 0; i < c->nsources; i++)
            n = add(r, n, c->sources[i].coded, c->sources[i].len, 0);
        n = add(r, n, c->own, c->n * size, 0);
        return add(r, n, c->dst, c->n * size, 1);
    case REDUCE_EXACT:
        for (size_t i = 0; i < c->nsources; i++)
            n = add(r, n, c->plain[i], c->n * size, 0);
        n = add(r, n, c->own, c->n * size, 0);
        return add(r, n, c->dst, c->n * size, 1);
    default: /* DECODE */
        n = add(r, n, d->coded, d->len, 0);
        n = add(r, n, d->ref, d->bytes, 0);
        return add(r, n, d->dst, d->bytes, 1);
    }
}

/* End the process when work in flight writes a range that `whose` touches, or touches a range that it writes.
 * Under lock. */
static void hold_to_rules(struct late *d, const char *whose, const struct range *mine, size_t n)
{
    struct range others[RANGES];

    for (int i = 0; i < RING; i++) {
        const struct call *o = &d->ring[i];
        size_t m;
        if (o->state == FREE)
            continue;
        m = ranges_of(&o->what, others);
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < m; b++)
                if ((mine[a].write || others[b].write) && mine[a].beg < others[b].end &&
                    others[b].beg < mine[a].end) {
                    fprintf(
                        stderr,
                        "late: %s %s %zu bytes at %#zx while a %s that %s %zu bytes at %#zx is in flight\n",
                        whose, mine[a].write ? "writes" : "reads", mine[a].end - mine[a].beg,
                        (size_t)mine[a].beg, kind_name[o->what.kind], others[b].write ? "writes" : "reads",
                        others[b].end - others[b].beg, (size_t)others[b].beg);
                    abort();
                }
    }
}

/* Overwrite the result's memory, so that an early reader finds wrong bytes. Memory that the work also reads
 * stays. */
static void poison(const struct device_call *c)
{
    void *dst = c->kind == ENCODE ? c->encoding.dst : c->kind == DECODE ? c->decoding.dst : c->dst;
    struct range r[RANGES];
    size_t n = ranges_of(c, r), bytes = 0;

    for (size_t i = 0; i < n; i++)
        if (r[i].write && r[i].beg == (uintptr_t)dst)
            bytes = r[i].end - r[i].beg;
    for (size_t i = 0; i < n; i++)
        if (!r[i].write && r[i].beg < (uintptr_t)dst + bytes && (uintptr_t)dst < r[i].end)
            return;
    if (c->kind != ZERO && bytes)
        memset(dst, 0xa5, bytes < POISON_BYTES ? bytes : POISON_BYTES);
}

/* End the process: the engine called without work, and so waits for the result, which it must not. */
static void is_waited_for(const char *what)
{
    fprintf(stderr, "late: the engine waits until it is done (%s)\n", what);
    abort();
}

/* ---- doing the work ---------------------------------------------------------------------------------- */

static void pause_us(unsigned us)
{
    struct timespec ts = {0, us * 1000L};
    nanosleep(&ts, NULL);
}

/* Do the queued work, in any order. */
static void *thread_main(void *arg)
{
    struct late *d = arg;

    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        int at = (int)dice(d, RING), i = 0;
        while (i < RING && d->ring[(at + i) % RING].state != QUEUED)
            i++;
        if (i == RING || d->stuck) {
            pthread_cond_wait(&d->news, &d->lock);
            continue;
        }
        struct call *c = &d->ring[(at + i) % RING];
        unsigned us = d->slow ? SLOW_US : dice(d, 8) ? 0 : dice(d, 200);
        c->state = RUNNING;
        while (d->slow && !d->waited_for && !d->stop)
            pthread_cond_wait(&d->news, &d->lock);
        pthread_mutex_unlock(&d->lock);
        if (us)
            pause_us(us);
        ssize_t result = device_call_perform(&c->what);
        pthread_mutex_lock(&d->lock);
        c->result = result;
        c->state = DONE;
        pthread_cond_broadcast(&d->news);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- requesting work --------------------------------------------------------------------------------- */

static ssize_t ask(struct asked_device *dev, struct nb_work *work, const struct device_call *what)
{
    struct late *d = late_of(&dev->device);
    struct range touched[RANGES];
    ssize_t ret = -EINPROGRESS;
    struct call *c = NULL;

    if (!work)
        is_waited_for(kind_name[what->kind]);
    pthread_mutex_lock(&d->lock);
    if (work && (d->inflight == RING || dice(d, 8) == 0)) {
        d->refused++;
        ret = -EAGAIN;
        goto out;
    }
    hold_to_rules(d, kind_name[what->kind], touched, ranges_of(what, touched));
    if (d->failed) {
        ret = d->failed;
        goto out;
    }
    if (++d->works == d->fail_at)
        d->failed = -EIO;
    if (!work || d->sync || (!d->stuck && !d->slow && dice(d, 8) == 0)) { /* at once, as any device may */
        ret = d->failed ? d->failed : device_call_perform(what);
        goto out;
    }
    for (unsigned at = dice(d, RING); !c || c->state != FREE; at++)
        c = &d->ring[at % RING];
    c->what = *what;
    c->work = work;
    c->polls = dice(d, 4) ? dice(d, 6) : dice(d, 200);
    c->state = QUEUED;
    poison(&c->what);
    work->at = c;
    if (++d->inflight > d->most)
        d->most = d->inflight;
    pthread_cond_broadcast(&d->news);
out:
    pthread_mutex_unlock(&d->lock);
    return ret;
}

static void retire(struct late *d, struct call *c)
{
    c->state = FREE;
    d->inflight--;
}

static ssize_t late_poll(struct nb_device *dev, struct nb_work *work)
{
    struct late *d = late_of(dev);
    struct call *c = work->at;
    ssize_t ret = -EINPROGRESS;

    pthread_mutex_lock(&d->lock);
    if (!c) { /* quiesce was here */
        ret = -ECANCELED;
        goto out;
    }
    if (c->work != work || c->state == FREE) {
        fprintf(stderr, "late: poll of work that is not in flight\n");
        abort();
    }
    if (d->stuck)
        goto out;
    if (c->polls)
        c->polls--;
    else if (!d->threaded && c->state == QUEUED) {
        c->result = device_call_perform(&c->what);
        c->state = DONE;
    }
    if (c->state == DONE && !c->polls) {
        ret = d->failed ? d->failed : c->result;
        retire(d, c);
    }
out:
    pthread_mutex_unlock(&d->lock);
    return ret;
}

static void late_quiesce(struct nb_device *dev)
{
    struct late *d = late_of(dev);

    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < RING; i++) {
        struct call *c = &d->ring[i];
        while (c->state == RUNNING) {
            d->waited_for = 1;
            pthread_cond_broadcast(&d->news);
            pthread_cond_wait(&d->news, &d->lock);
        }
        if (c->state != FREE) {
            c->work->at = NULL;
            retire(d, c);
        }
    }
    pthread_mutex_unlock(&d->lock);
}

static int late_failed(struct nb_device *dev)
{
    struct late *d = late_of(dev);
    int failed;

    pthread_mutex_lock(&d->lock);
    failed = d->failed;
    pthread_mutex_unlock(&d->lock);
    return failed;
}

static void late_close(struct nb_device *dev)
{
    struct late *d = late_of(dev);
    const char *report = getenv("NB_LATE_REPORT");
    FILE *f;

    late_quiesce(dev);
    if (d->threaded) {
        pthread_mutex_lock(&d->lock);
        d->stop = 1;
        pthread_cond_broadcast(&d->news);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    f = report ? fopen(report, "ae") : NULL;
    if (f) {
        fprintf(f, "works %llu most %llu refused %llu failed %d\n", (unsigned long long)d->works,
                (unsigned long long)d->most, (unsigned long long)d->refused, d->failed);
        fclose(f);
    }
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->news);
    free(d);
}

/* ---- the table --------------------------------------------------------------------------------------- */

/* Allocate state full of wrong bytes, so that a read before a write is noticed. */
static void *late_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    void *p = nb_host_device()->ops->alloc(nb_host_device(), place, bytes);

    (void)dev;
    if (p && place == NB_PLACE_STATE)
        memset(p, 0xa5, bytes);
    return p;
}

/* Free memory, which must not be in flight. */
static void late_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    struct late *d = late_of(dev);
    struct range given_back;

    pthread_mutex_lock(&d->lock);
    hold_to_rules(d, "free", &given_back, add(&given_back, 0, p, bytes, 1));
    pthread_mutex_unlock(&d->lock);
    nb_host_device()->ops->free(nb_host_device(), place, p, bytes);
}

static int late_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    if (dst == src)
        return 0;
    return device_call_copy(dev, work, dst, src, bytes);
}

static const struct nb_device_ops late_ops = {
    .name = "late",
    .quiesce = late_quiesce,
    .failed = late_failed,
    .close = late_close,
    .alloc = late_alloc,
    .free = late_free,
    .poll = late_poll,
    .copy = late_copy,
    .zero = device_call_zero,
    .encode = device_call_encode,
    .decode = device_call_decode,
    .reduce = device_call_reduce,
    .reduce_exact = device_call_reduce_exact,
    .compare = device_call_compare,
    .similarity = device_call_similarity,
    .sample = device_call_sample,
    .sums = device_call_sums,
    .pick = device_call_pick,
};

static int late_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    const char *words = getenv("NB_LATE"), *fail = words ? strstr(words, "fail=") : NULL;
    static atomic_uint opened;
    struct late *d;

    (void)ctx;

    if (words && strstr(words, "none"))
        return -ENODEV;
    d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->asked.device.ops = &late_ops;
    d->asked.ask = ask;
    d->slow = words && strstr(words, "slow");
    d->threaded = d->slow || (words && strstr(words, "thread"));
    d->stuck = words && strstr(words, "stuck");
    d->sync = words && strstr(words, "sync");
    d->fail_at = fail ? strtoull(fail + 5, NULL, 10) : 0;
    d->seed = (uint64_t)getpid() * 1000003u + atomic_fetch_add(&opened, 1) + (uint64_t)wish->nnodes;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->news, NULL);
    if (d->threaded && pthread_create(&d->thread, NULL, thread_main, d)) {
        free(d);
        return -ENOMEM;
    }
    *dev = &d->asked.device;
    return 0;
}

__attribute__((constructor)) static void install(void)
{
    nb_process_context()->open_device = late_open;
}
