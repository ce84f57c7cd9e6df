/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is late, for tests: the host's functions, done some time after they were asked for, in any
 * order, by the thread that polls or by one of its own. It also holds the engine to the rules of
 * device/device.h: what is written before work on it is done, or read while it is written, ends the process
 * with a line that says what it was.
 *
 * Linked with the plugin's parts into a plugin of its own (tests/harness/over-late.sh), which has no other
 * device. Settings, words in NB_LATE with commas between: "thread" (else work is done while polling), "slow"
 * (a thread that begins a work and finishes it 0.1 s after somebody waits for that), "stuck" (what is asked
 * for is never done), "fail=N" (the N-th work of a communicator fails, and the device with it), "none" (there
 * is no such device), "sync" (never later: the host as it is). NB_LATE_REPORT names a file to which every
 * closed device adds a line.
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

#define RING 48 /* works in flight */
#define RANGES 80
#define POISON_BYTES 4096
#define SLOW_US 100000

enum kind { COPY, ZERO, ENCODE, DECODE, REDUCE, REDUCE_EXACT, PICK, LOOK };
static const char *const kind_name[] = {"copy",   "zero",         "encode", "decode",
                                        "reduce", "reduce_exact", "pick",   "look"};

enum { FREE, QUEUED, RUNNING, DONE };

/* One call: what the functions are given, and how it stands. */
struct call {
    enum kind kind;
    const struct nb_codec_row *codec;
    unsigned format;
    enum nb_dtype type;
    ncclDataType_t nccl_type;
    ncclRedOp_t redop;
    const void *src, *ref, *own;
    void *dst;
    size_t n, len, cap, limit, nsources;
    uint64_t first;
    const struct nb_ef *ef;
    struct nb_encode_stats *stats;
    struct nb_delta4_stats *delta4;
    const struct nb_source *sources;
    const void *const *plain;
    /* A pick: of `block` values, of which those at src begin with `first`. */
    size_t width;
    uint64_t block;
    unsigned picks;
    uint32_t *out; /* several may fill one, so it is nothing that a call has for itself */

    struct nb_work *work;
    int state;      /* under lock */
    unsigned polls; /* before it is done */
    ssize_t result;
};

struct late {
    struct nb_device device;
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

/* What a call reads and writes. */
static size_t ranges_of(const struct call *c, struct range *r)
{
    size_t n = 0, size = c->kind == REDUCE_EXACT ? nb_nccl_type_size(c->nccl_type) : nb_dtype_size(c->type);

    switch (c->kind) {
    case COPY:
    case PICK:
    case LOOK:
        n = add(r, n, c->src, c->n, 0);
        n = add(r, n, c->ref, c->n, 0);
        return add(r, n, c->dst, c->n, 1);
    case ZERO: return add(r, n, c->dst, c->n, 1);
    case ENCODE:
        n = add(r, n, c->src, c->n, 0);
        n = add(r, n, c->ref, c->n, 0);
        if (c->ef && c->ef->mode != NB_EF_OFF) { /* of whole groups */
            uint64_t values = c->n / nb_dtype_size((enum nb_dtype)c->format);
            uint64_t beg = (c->first + NB_GROUP - 1) / NB_GROUP, end = (c->first + values) / NB_GROUP;
            if (end > beg) {
                n = add(r, n, c->ef->err + beg * NB_GROUP, (end - beg) * NB_GROUP, 1);
                n = add(r, n, c->ef->scale + beg, end - beg, 1);
            }
        }
        n = add(r, n, c->stats, sizeof(*c->stats), 1);
        n = add(r, n, c->delta4, sizeof(*c->delta4), 1);
        return add(r, n, c->dst, c->cap, 1);
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
        n = add(r, n, c->src, c->len, 0);
        n = add(r, n, c->ref, c->n, 0);
        return add(r, n, c->dst, c->n, 1);
    }
}

/* Nothing that is in flight may write what this call touches, or touch what it writes. Under lock. */
static void hold_to_rules(struct late *d, const struct call *c)
{
    struct range mine[RANGES], others[RANGES];
    size_t n = ranges_of(c, mine), m;

    for (int i = 0; i < RING; i++) {
        const struct call *o = &d->ring[i];
        if (o->state == FREE)
            continue;
        m = ranges_of(o, others);
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < m; b++)
                if ((mine[a].write || others[b].write) && mine[a].beg < others[b].end &&
                    others[b].beg < mine[a].end) {
                    fprintf(
                        stderr,
                        "late: %s %s %zu bytes at %#zx while a %s that %s %zu bytes at %#zx is in flight\n",
                        kind_name[c->kind], mine[a].write ? "writes" : "reads", mine[a].end - mine[a].beg,
                        (size_t)mine[a].beg, kind_name[o->kind], others[b].write ? "writes" : "reads",
                        others[b].end - others[b].beg, (size_t)others[b].beg);
                    abort();
                }
    }
}

/* Whoever reads the result before it is there finds something else. What is read as well as written stays. */
static void poison(const struct call *c)
{
    struct range r[RANGES];
    size_t n = ranges_of(c, r), bytes = 0;

    for (size_t i = 0; i < n; i++)
        if (r[i].write && r[i].beg == (uintptr_t)c->dst)
            bytes = r[i].end - r[i].beg;
    for (size_t i = 0; i < n; i++)
        if (!r[i].write && r[i].beg < (uintptr_t)c->dst + bytes && (uintptr_t)c->dst < r[i].end)
            return;
    if (c->kind != ZERO && bytes)
        memset(c->dst, 0xa5, bytes < POISON_BYTES ? bytes : POISON_BYTES);
}

/* ---- doing it ---------------------------------------------------------------------------------------- */

static ssize_t perform(const struct call *c)
{
    struct nb_device *h = nb_host_device();

    switch (c->kind) {
    case COPY: return h->ops->copy(h, NULL, c->dst, c->src, c->n);
    case ZERO: return h->ops->zero(h, NULL, c->dst, c->n);
    case ENCODE:
        return h->ops->encode(h, NULL,
                              &(struct nb_encoding){.codec = c->codec,
                                                    .format = c->format,
                                                    .src = c->src,
                                                    .bytes = c->n,
                                                    .first = c->first,
                                                    .ref = c->ref,
                                                    .limit = c->limit,
                                                    .ef = c->ef,
                                                    .dst = c->dst,
                                                    .cap = c->cap,
                                                    .stats = c->stats,
                                                    .runs = c->delta4});
    case DECODE:
        return h->ops->decode(h, NULL,
                              &(struct nb_decoding){.codec = c->codec,
                                                    .format = c->format,
                                                    .coded = c->src,
                                                    .len = c->len,
                                                    .ref = c->ref,
                                                    .bytes = c->n,
                                                    .first = c->first,
                                                    .dst = c->dst});
    case REDUCE:
        return h->ops->reduce(h, NULL, c->type, c->sources, c->nsources, c->own, c->n, c->first, c->dst);
    case REDUCE_EXACT:
        return h->ops->reduce_exact(h, NULL, c->nccl_type, c->redop, c->plain, c->nsources, c->own, c->n,
                                    c->dst);
    case PICK:
        return h->ops->pick(h, NULL, c->width, c->src, c->block, c->picks, c->first, c->n / c->width, c->out);
    default: return 0;
    }
}

static void pause_us(unsigned us)
{
    struct timespec ts = {0, us * 1000L};
    nanosleep(&ts, NULL);
}

/* Does what is queued, in any order. */
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
        ssize_t result = perform(c);
        pthread_mutex_lock(&d->lock);
        c->result = result;
        c->state = DONE;
        pthread_cond_broadcast(&d->news);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- asking for it ----------------------------------------------------------------------------------- */

static ssize_t ask(struct nb_device *dev, struct nb_work *work, const struct call *what)
{
    struct late *d = late_of(dev);
    ssize_t ret = -EINPROGRESS;
    struct call *c = NULL;

    pthread_mutex_lock(&d->lock);
    if (work && (d->inflight == RING || dice(d, 8) == 0)) {
        d->refused++;
        ret = -EAGAIN;
        goto out;
    }
    hold_to_rules(d, what);
    if (d->failed) {
        ret = d->failed;
        goto out;
    }
    if (++d->works == d->fail_at)
        d->failed = -EIO;
    if (!work || d->sync || (!d->stuck && !d->slow && dice(d, 8) == 0)) { /* at once, as any device may */
        ret = d->failed ? d->failed : perform(what);
        goto out;
    }
    for (unsigned at = dice(d, RING); !c || c->state != FREE; at++)
        c = &d->ring[at % RING];
    *c = *what;
    c->work = work;
    c->polls = dice(d, 4) ? dice(d, 6) : dice(d, 200);
    c->state = QUEUED;
    poison(c);
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
        c->result = perform(c);
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

static void *late_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    (void)dev;
    return nb_host_device()->ops->alloc(nb_host_device(), place, bytes);
}

/* What is given back may not be in flight. */
static void late_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    struct late *d = late_of(dev);

    pthread_mutex_lock(&d->lock);
    hold_to_rules(d, &(struct call){.kind = ZERO, .dst = p, .n = bytes});
    pthread_mutex_unlock(&d->lock);
    nb_host_device()->ops->free(nb_host_device(), place, p, bytes);
}

static int late_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    if (dst == src)
        return 0;
    return (int)ask(dev, work, &(struct call){.kind = COPY, .dst = dst, .src = src, .n = bytes});
}

static int late_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    return (int)ask(dev, work, &(struct call){.kind = ZERO, .dst = dst, .n = bytes});
}

static ssize_t late_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    return ask(dev, work,
               &(struct call){.kind = ENCODE,
                              .codec = e->codec,
                              .format = e->format,
                              .src = e->src,
                              .n = e->bytes,
                              .first = e->first,
                              .ref = e->ref,
                              .limit = e->limit,
                              .ef = e->ef,
                              .dst = e->dst,
                              .cap = e->cap,
                              .stats = e->stats,
                              .delta4 = e->runs});
}

static int late_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *g)
{
    return (int)ask(dev, work,
                    &(struct call){.kind = DECODE,
                                   .codec = g->codec,
                                   .format = g->format,
                                   .src = g->coded,
                                   .len = g->len,
                                   .ref = g->ref,
                                   .n = g->bytes,
                                   .first = g->first,
                                   .dst = g->dst});
}

static int late_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    return (int)ask(dev, work,
                    &(struct call){.kind = REDUCE,
                                   .type = type,
                                   .sources = sources,
                                   .nsources = nsources,
                                   .own = own,
                                   .n = n,
                                   .first = first,
                                   .dst = dst});
}

static int late_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    return (int)ask(dev, work,
                    &(struct call){.kind = REDUCE_EXACT,
                                   .nccl_type = type,
                                   .redop = op,
                                   .plain = sources,
                                   .nsources = nsources,
                                   .own = own,
                                   .n = n,
                                   .dst = dst});
}

static void look(struct nb_device *dev, const void *a, const void *b, size_t bytes)
{
    struct late *d = late_of(dev);

    pthread_mutex_lock(&d->lock);
    hold_to_rules(d, &(struct call){.kind = LOOK, .src = a, .ref = b, .n = bytes});
    pthread_mutex_unlock(&d->lock);
}

static enum nb_ulp_width late_ulp_guess(struct nb_device *dev, const void *cur, const void *ref, size_t bytes)
{
    look(dev, cur, ref, bytes);
    return nb_host_device()->ops->ulp_guess(nb_host_device(), cur, ref, bytes);
}

static uint64_t late_hash(struct nb_device *dev, const void *data, size_t bytes, uint64_t seed)
{
    look(dev, data, NULL, bytes);
    return nb_host_device()->ops->hash(nb_host_device(), data, bytes, seed);
}

static int late_equal(struct nb_device *dev, const void *a, const void *b, size_t bytes)
{
    look(dev, a, b, bytes);
    return nb_host_device()->ops->equal(nb_host_device(), a, b, bytes);
}

static double late_likeness(struct nb_device *dev, const void *a, const void *b, size_t bytes,
                            unsigned samples)
{
    look(dev, a, b, bytes);
    return nb_host_device()->ops->likeness(nb_host_device(), a, b, bytes, samples);
}

static unsigned late_sample(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                            unsigned samples, float *out)
{
    look(dev, src, NULL, n * nb_dtype_size(type));
    return nb_host_device()->ops->sample(nb_host_device(), type, src, n, samples, out);
}

static unsigned late_profile(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                             unsigned groups, float *out)
{
    look(dev, src, NULL, n * nb_dtype_size(type));
    return nb_host_device()->ops->profile(nb_host_device(), type, src, n, groups, out);
}

static ssize_t late_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out)
{
    return ask(dev, work,
               &(struct call){.kind = PICK,
                              .width = width,
                              .src = src,
                              .n = count * width,
                              .block = n,
                              .picks = picks,
                              .first = first,
                              .out = out});
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
    .zero = late_zero,
    .encode = late_encode,
    .decode = late_decode,
    .reduce = late_reduce,
    .reduce_exact = late_reduce_exact,
    .ulp_guess = late_ulp_guess,
    .hash = late_hash,
    .equal = late_equal,
    .likeness = late_likeness,
    .sample = late_sample,
    .profile = late_profile,
    .pick = late_pick,
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
    d->device.ops = &late_ops;
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
    *dev = &d->device;
    return 0;
}

__attribute__((constructor)) static void install(void)
{
    nb_process_context()->open_device = late_open;
}
