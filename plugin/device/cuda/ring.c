/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's half of the ring of descriptors (kernels/kernels.h): submit work to the kernel, and take back
 * results.
 *
 * Threads: one at a time (the lock of struct nb_gpu), except `failed` and the fields of the pinned ring that
 * are accessed atomically.
 *
 * Memory order. To the kernel: the host writes the descriptor and the sources, then `published` with release.
 * The kernel reads `published` at system scope, fences, and reads the descriptor past its caches. The
 * descriptor's inputs (values that NCCL's kernel wrote and its proxy has seen, bytes that a transport has
 * received and reported) were visible to this thread before, so they are visible to every reader that sees
 * `published`. From the kernel: data and results, a fence at system scope, then `done`. The host reads `done`
 * with acquire, then the rest.
 *
 * C11's atomics ensure the host's side, and the protocol's test runs it under the thread sanitizer. Only a
 * GPU can test the kernel's side.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* nb_work.id of finished work, whose result is in more[0], and of work whose descriptor waits. Other work in
 * flight has its entry's number plus 1 there. */
#define FINISHED UINT64_MAX
#define WAITING (UINT64_MAX - 2) /* work.c has the number between */

int nb_ring_open(struct nb_ring *r, struct nb_arena *arena, const struct nb_clock *clock, nb_cu_stream stream,
                 int major)
{
    const struct nb_cuda *cu = arena->cuda->cu;
    int ret;

    r->cuda = arena->cuda;
    r->arena = arena;
    r->clock = clock;
    r->stream = stream;
    r->major = major;
    r->host = nb_cuda_pinned(r->cuda, sizeof(*r->host));
    if (!r->host)
        return -ENOMEM;
    r->state = nb_arena_take(arena, sizeof(struct nb_gpu_state), NULL);
    if (!r->state) {
        NB_WARN("cuda: GPU %d has no memory for the ring", r->cuda->ordinal);
        return -ENOMEM;
    }
    ret = NB_CU(cu, "state of the ring", MemsetD8Async(r->state, 0, sizeof(struct nb_gpu_state), r->stream));
    if (!ret)
        ret = NB_CU(cu, "state of the ring", StreamSynchronize(r->stream));
    return ret;
}

void nb_ring_close(struct nb_ring *r)
{
    for (unsigned i = 0; i < NB_GPU_RING; i++)
        free(r->waiting[i].sources);
    free(r->aside.sources);
    for (unsigned i = 0; i < r->npinned; i++)
        nb_cuda_unpin(r->cuda, r->pinned[i]);
    nb_cuda_unpin(r->cuda, r->host);
    memset(r, 0, sizeof(*r)); /* the rest belongs to the arena */
}

/* Give all entries larger arrays of sources. Descriptors in flight may use the old arrays, which therefore
 * stay until the end, like the memory of reserve_memory. */
static int reserve_sources(struct nb_ring *r, unsigned sources, pthread_mutex_t *lock)
{
    struct nb_gpu_source *array = nb_cuda_pinned(r->cuda, (size_t)NB_GPU_RING * sources * sizeof(*array));
    bool room, used;

    if (!array)
        return -ENOMEM;
    pthread_mutex_lock(lock);
    room = r->npinned < sizeof(r->pinned) / sizeof(*r->pinned);
    used = room && sources > r->most; /* else another thread has been faster */
    if (used) {
        r->pinned[r->npinned++] = array;
        for (unsigned i = 0; i < NB_GPU_RING; i++)
            r->entry[i].sources = array + (size_t)i * sources;
        r->most = sources;
    }
    pthread_mutex_unlock(lock);
    if (!used)
        nb_cuda_unpin(r->cuda, array);
    if (room)
        return 0;
    NB_WARN("cuda: GPU %d: the ring has grown too often", r->cuda->ordinal);
    return -ENOMEM;
}

/* Replace the memory of all entries by `each` and `also` bytes. */
static int reserve_memory(struct nb_ring *r, size_t each, size_t also, pthread_mutex_t *lock)
{
    const nb_cu_ptr at = nb_arena_take(r->arena, (each + also) * NB_GPU_RING, lock);
    int ret;

    if (!at) {
        NB_WARN("cuda: GPU %d has no %zu bytes for the kernel's workspaces (NIBBLE_GPU_RESERVE_MB)",
                r->cuda->ordinal, (each + also) * NB_GPU_RING);
        return -ENOMEM;
    }
    ret = NB_CU(r->cuda->cu, "workspaces", MemsetD8Async(at, 0, each * NB_GPU_RING, r->stream));
    if (!ret)
        ret = NB_CU(r->cuda->cu, "workspaces", StreamSynchronize(r->stream));
    if (ret)
        return ret;
    pthread_mutex_lock(lock);
    if (each >= r->work_bytes && also >= r->scratch_bytes) {
        for (unsigned i = 0; i < NB_GPU_RING; i++) {
            r->entry[i].work_at = at + i * each;
            r->entry[i].scratch_at = at + NB_GPU_RING * each + i * also;
        }
        r->work_bytes = each;
        r->scratch_bytes = also;
    } else { /* another thread has been faster, and needs more of one */
        nb_arena_give(r->arena, at);
    }
    pthread_mutex_unlock(lock);
    return 0;
}

int nb_ring_reserve(struct nb_ring *r, size_t work, size_t scratch, unsigned sources, pthread_mutex_t *lock)
{
    size_t each, also;
    bool many, large;
    int ret = 0;

    work = (work + 255) / 256 * 256;
    scratch = (scratch + 255) / 256 * 256;
    do {
        pthread_mutex_lock(lock);
        many = sources > r->most;
        large = work > r->work_bytes || scratch > r->scratch_bytes;
        each = work > r->work_bytes ? work : r->work_bytes;
        also = scratch > r->scratch_bytes ? scratch : r->scratch_bytes;
        pthread_mutex_unlock(lock);
        if (many)
            ret = reserve_sources(r, sources, lock);
        else if (large)
            ret = reserve_memory(r, each, also, lock);
    } while (!ret && (many || large));
    return ret;
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static void take_stats(const struct nb_gpu_result *res, struct nb_encode_stats *to, uint64_t values)
{
    struct nb_encode_stats s = {.values = values,
                                .nonfinite = res->nonfinite,
                                .escapes = res->escapes,
                                .fallback = res->fallback,
                                .flushed = res->flushed,
                                .bounded = res->bounded,
                                .signal2 = res->signal2,
                                .noise2 = res->noise2,
                                .carried2 = res->carried2};
    nb_encode_stats_add(to, &s);
}

static void take_near(const struct nb_gpu_desc *d, const struct nb_gpu_result *res, struct nb_similarity *to)
{
    if (d->op == NB_GPU_EQUAL) {
        to->near8 = res->value == 0;
        return;
    }
    to->near16 = res->value >> 32;
    to->near8 = (uint32_t)res->value;
    to->far16 = res->escapes;
}

/* Copy a descriptor's extra results to their destinations. Return the result, which for a pick is the number
 * of values. */
static ssize_t take_wanted(const struct nb_gpu_desc *d, const struct nb_gpu_result *res,
                           const uint32_t *found, const struct nb_gpu_wanted *w)
{
    if (res->length < 0)
        return (ssize_t)res->length;
    if (w->stats)
        take_stats(res, w->stats, d->n);
    if (w->value)
        *w->value = res->value;
    if (w->runs) {
        w->runs->runs += (d->n / nb_dtype_size((enum nb_dtype)d->type) + NB_DELTA4_RUN - 1) / NB_DELTA4_RUN;
        w->runs->lossy += res->value;
    }
    if (w->near)
        take_near(d, res, w->near);
    if (d->op == NB_GPU_PICK) {
        nb_pick_place(d->picks, d->part, d->nsources, found, w->numbers);
        return (ssize_t)d->nsources;
    }
    if (w->numbers)
        memcpy(w->numbers, found, (size_t)res->length * sizeof(float));
    return (ssize_t)res->length;
}

/* Finish a work: its owner gets the result. */
static void finish(struct nb_ring *r, struct nb_work *work, unsigned *inflight, ssize_t result)
{
    work->id = FINISHED;
    work->more[0] = (uint64_t)result;
    (*inflight)--;
    r->done++;
    r->moved_ns = nb_clock_ns(r->clock);
}

static void finish_entry(struct nb_ring *r, struct nb_gpu_entry *entry, ssize_t result)
{
    finish(r, entry->work, entry->inflight, result);
    entry->work = NULL;
}

/* Return 1 when entry `at` is free or its descriptor is finished. */
static int look(struct nb_ring *r, unsigned at)
{
    struct nb_gpu_entry *entry = &r->entry[at];
    const struct nb_gpu_result *res = &r->host->result[at];

    if (!entry->work)
        return 1;
    if (__atomic_load_n(&res->done, __ATOMIC_ACQUIRE) != r->host->ring.desc[at].id)
        return 0;
    finish_entry(r, entry, take_wanted(&r->host->ring.desc[at], res, r->host->found[at], &entry->want));
    return 1;
}

unsigned nb_ring_sweep(struct nb_ring *r)
{
    unsigned open = 0;

    for (uint64_t s = r->oldest; s < r->published; s++) {
        if (!look(r, (unsigned)(s % NB_GPU_RING)))
            open++;
        else if (s == r->oldest)
            r->oldest++;
    }
    return open + r->nwaiting + (r->aside.work != NULL);
}

/* Take the oldest waiting work out. */
static struct nb_gpu_waiting take_waiting(struct nb_ring *r)
{
    struct nb_gpu_waiting *at = &r->waiting[r->first++ % NB_GPU_RING], w = *at;

    at->sources = NULL;
    r->nwaiting--;
    return w;
}

void nb_ring_take_aside(struct nb_ring *r)
{
    r->aside = take_waiting(r);
}

void nb_ring_put_back(struct nb_ring *r)
{
    r->waiting[--r->first % NB_GPU_RING] = r->aside;
    r->nwaiting++;
    r->aside = (struct nb_gpu_waiting){0};
}

static void finish_aside(struct nb_ring *r, ssize_t result)
{
    finish(r, r->aside.work, r->aside.inflight, result);
    free(r->aside.sources);
    r->aside = (struct nb_gpu_waiting){0};
}

void nb_ring_finish_aside(struct nb_ring *r, const struct nb_gpu_result *res, const uint32_t *found)
{
    finish_aside(r, take_wanted(&r->aside.desc, res, found, &r->aside.want));
}

void nb_ring_cancel_waiting(struct nb_ring *r)
{
    if (r->aside.work)
        finish_aside(r, -ECANCELED);
    while (r->nwaiting) {
        nb_ring_take_aside(r);
        finish_aside(r, -ECANCELED);
    }
}

void nb_ring_fail(struct nb_ring *r, int error)
{
    int none = 0;

    atomic_compare_exchange_strong(&r->failed, &none, error);
    nb_ring_sweep(r);
    for (unsigned i = 0; i < NB_GPU_RING; i++)
        if (r->entry[i].work)
            finish_entry(r, &r->entry[i], -ECANCELED);
    r->oldest = r->published;
    nb_ring_cancel_waiting(r);
}

ssize_t nb_ring_poll(struct nb_ring *r, struct nb_work *work)
{
    if (work->id == WAITING)
        return -EINPROGRESS;
    if (work->id != FINISHED && !look(r, (unsigned)((work->id - 1) % NB_GPU_RING)))
        return -EINPROGRESS;
    return (ssize_t)work->more[0];
}

int nb_ring_room(struct nb_ring *r, unsigned descriptors)
{
    const unsigned before = r->nwaiting + (r->aside.work != NULL); /* they may come into the ring first */

    for (unsigned i = before; i < before + descriptors; i++)
        if (i >= NB_GPU_RING || !look(r, (unsigned)((r->published + i) % NB_GPU_RING))) {
            r->full++;
            return 0;
        }
    return 1;
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

/* Set the descriptor's fields for the next entry. */
static struct nb_gpu_entry *prepare(struct nb_ring *r, struct nb_gpu_desc *d, bool numbers)
{
    const unsigned at = (unsigned)(r->published % NB_GPU_RING);
    struct nb_gpu_entry *entry = &r->entry[at];

    d->result = (uintptr_t)&r->host->result[at];
    d->work = entry->work_at;
    d->scratch = entry->scratch_at;
    d->id = (uint32_t)r->published + 1;
    if (d->id == r->host->result[at].done)
        d->id = ~d->id; /* after 2^32 descriptors */
    if (d->sources)
        d->sources = (uintptr_t)entry->sources;
    if (numbers)
        d->dst = (uintptr_t)r->host->found[at];
    return entry;
}

static void put_sources(struct nb_gpu_source *to, const struct nb_source *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = (struct nb_gpu_source){
            .coded = (uintptr_t)from[i].coded, .bytes = from[i].len, .codec = (uint32_t)from[i].codec};
}

/* Put a work into the ring, where there is room. `sources`: the sources of a work that has not waited. */
static void publish(struct nb_ring *r, struct nb_gpu_waiting *w, const struct nb_source *sources)
{
    struct nb_gpu_entry *entry = prepare(r, &w->desc, w->want.numbers != NULL);

    if (w->sources)
        memcpy(entry->sources, w->sources, w->desc.nsources * sizeof(*w->sources));
    else if (sources)
        put_sources(entry->sources, sources, w->desc.nsources);
    w->desc.ticket = r->tickets;
    r->tickets += w->desc.tickets;
    entry->work = w->work;
    entry->inflight = w->inflight;
    entry->want = w->want;
    w->work->id = r->published + 1;
    r->host->ring.desc[r->published % NB_GPU_RING] = w->desc;
    __atomic_store_n(&r->host->ring.published, ++r->published, __ATOMIC_RELEASE);
}

void nb_ring_serve(struct nb_ring *r, bool served)
{
    r->served = served;
    while (served && r->nwaiting) {
        struct nb_gpu_waiting w = take_waiting(r);
        publish(r, &w, NULL);
        free(w.sources);
    }
}

/* Let a work wait for a kernel. Return 0, or -EAGAIN without memory. */
static int wait_for_kernel(struct nb_ring *r, struct nb_gpu_waiting *w, const struct nb_source *sources)
{
    if (sources) {
        w->sources = malloc(w->desc.nsources * sizeof(*w->sources));
        if (!w->sources)
            return -EAGAIN;
        put_sources(w->sources, sources, w->desc.nsources);
    }
    w->work->id = WAITING;
    r->waiting[(r->first + r->nwaiting++) % NB_GPU_RING] = *w;
    return 0;
}

int nb_ring_submit(struct nb_ring *r, unsigned *inflight, struct nb_work *work, struct nb_gpu_desc *d,
                   const struct nb_source *sources, const struct nb_gpu_wanted *want)
{
    const bool idle = r->oldest == r->published && !r->nwaiting && !r->aside.work;
    struct nb_gpu_waiting w = {.work = work, .inflight = inflight};
    int64_t need;
    int ret = 0;

    if (r->major >= NB_GPU_NO_DIFFERENCES && nb_gpu_differs(d->op))
        return -ENOTSUP;
    if (!nb_ring_room(r, 1))
        return -EAGAIN;
    if (sources && d->nsources > r->most)
        return -ENOTSUP;
    d->sources = sources ? 8 : 0; /* any aligned address, until there is an entry */
    prepare(r, d, want && want->numbers);
    if (want && want->stats) {
        d->flags |= NB_GPU_STATS;
        d->every = want->stats->every;
    }
    need = nb_gpu_plan(d);
    if (need < 0)
        return (int)need;
    if ((uint64_t)need > r->work_bytes || nb_gpu_scratch(d) > r->scratch_bytes)
        return -ENOTSUP;
    w.desc = *d;
    if (want)
        w.want = *want;
    if (r->served)
        publish(r, &w, sources);
    else
        ret = wait_for_kernel(r, &w, sources);
    if (ret)
        return ret;
    if (idle)
        r->moved_ns = nb_clock_ns(r->clock);
    work->at = r;
    (*inflight)++;
    return 0;
}
