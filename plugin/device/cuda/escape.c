/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The escape: work whose kernel does not begin. The adapter fetches the values from GPU memory, this
 * processor does the work (processor.c), and the adapter stores the results. No step calls the driver, so
 * none waits for the driver's locks.
 *
 * Only work that waits outside the ring is taken, since the kernel may be doing all other work. A kernel that
 * begins meanwhile takes the rest of it. The steps of one work:
 *
 *   IDLE      the ring has waiting work                                 FETCHING
 *   FETCHING  all inputs have been copied, and the work is done here    STORING
 *   STORING   all outputs have been copied, and the work is finished    IDLE
 *
 * Host memory that the GPU sees is used in place. GPU memory is NCCL's buffer and the arena. Its pieces are
 * registered with the adapter when they come into being, on NCCL's or the driver thread, before any work
 * names them.
 *
 * Threads: the turns, under the lock of struct nb_gpu. Registrations come from any thread, and may take
 * milliseconds. So they have a lock of their own (`making`), and the list of pieces another one, which is
 * held for moments only.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/nccl_names.h"

#define PAGE ((size_t)65536)          /* the largest page of a host: no other data lies in registered pages */
#define COPY_MOST ((uint64_t)1 << 20) /* bytes of a copy: every port takes messages of this size */
#define SETTLE_NS INT64_C(5000000000) /* maximum wait for a copy at the end */

/* ---- Memory that the adapter reaches ------------------------------------------------------------------- */

void nb_escape_init(struct nb_escape *e, const struct nb_arena *arena, const struct nb_clock *clock)
{
    e->arena = arena;
    e->clock = clock;
    pthread_mutex_init(&e->making, NULL);
    pthread_mutex_init(&e->lock, NULL);
}

void nb_escape_destroy(struct nb_escape *e)
{
    free(e->piece);
    free(e->part);
    free(e->list);
    pthread_mutex_destroy(&e->making);
    pthread_mutex_destroy(&e->lock);
}

/* Return the piece with this address, or that begins there. Under lock. */
static struct nb_escape_piece *piece_at(struct nb_escape *e, uint64_t address)
{
    for (unsigned i = 0; i < e->npieces; i++)
        if (address - e->piece[i].base < e->piece[i].bytes)
            return &e->piece[i];
    return NULL;
}

static int add_piece(struct nb_escape *e, const struct nb_escape_piece *made)
{
    int ret = 0;

    pthread_mutex_lock(&e->lock);
    if (e->npieces == e->cap) {
        const unsigned cap = e->cap ? 2 * e->cap : 16;
        void *grown = realloc(e->piece, cap * sizeof(*e->piece));
        if (grown) {
            e->piece = grown;
            e->cap = cap;
        }
    }
    if (e->npieces < e->cap)
        e->piece[e->npieces++] = *made;
    else
        ret = -ENOMEM;
    pthread_mutex_unlock(&e->lock);
    return ret;
}

void nb_escape_give_up(struct nb_escape *e, const char *why)
{
    if (!atomic_exchange(&e->blind, true))
        NB_INFO(
            NCCL_INIT | NCCL_NET,
            "cuda: GPU %d: the adapter cannot replace a codec kernel that does not begin (%s). Operations "
            "would wait for that kernel (NIBBLE_GPU_TIMEOUT)",
            e->arena->cuda->ordinal, why);
}

void nb_escape_add(struct nb_escape *e, uint64_t base, size_t bytes, int fd, uint64_t offset)
{
    struct nb_escape_piece made = {base, bytes, NULL};
    bool known;
    int ret = -ENOTSUP;

    pthread_mutex_lock(&e->making);
    pthread_mutex_lock(&e->lock);
    known = piece_at(e, base) != NULL;
    pthread_mutex_unlock(&e->lock);
    if (e->adapter && !known && !atomic_load(&e->blind)) {
        nb_log_mildly(true);
        if (fd >= 0)
            ret = e->adapter->reg(e->adapter, (void *)(uintptr_t)base, bytes, true, fd, offset, &made.handle);
        if (ret) {
            const int other =
                e->adapter->reg(e->adapter, (void *)(uintptr_t)base, bytes, true, -1, 0, &made.handle);
            ret = other == -ENOTSUP ? ret : other;
        }
        nb_log_mildly(false);
        if (!ret && (ret = add_piece(e, &made)) != 0)
            e->adapter->dereg(e->adapter, made.handle);
        if (ret)
            nb_escape_give_up(e, strerror(-ret));
    }
    pthread_mutex_unlock(&e->making);
}

void nb_escape_remove(struct nb_escape *e, uint64_t base)
{
    struct nb_escape_piece gone = {0};

    pthread_mutex_lock(&e->making);
    pthread_mutex_lock(&e->lock);
    for (unsigned i = 0; i < e->npieces && !gone.bytes; i++)
        if (e->piece[i].base == base) {
            gone = e->piece[i];
            e->piece[i] = e->piece[--e->npieces];
        }
    pthread_mutex_unlock(&e->lock);
    if (gone.bytes)
        e->adapter->dereg(e->adapter, gone.handle);
    pthread_mutex_unlock(&e->making);
}

/* Wait, in bounded time, until no copy is under way. After an error of the connection that copies, nothing
 * tells when the copy ends. The end of the registrations stops it. */
static void settle(struct nb_escape *e)
{
    const int64_t limit = nb_clock_ns(e->clock) + SETTLE_NS;
    int done = 0, ret = 0;

    while (e->request && !done && !ret && nb_clock_ns(e->clock) < limit)
        ret = e->adapter->test(e->adapter, e->request, &done);
    if (e->request && !done && !ret)
        NB_WARN("cuda: GPU %d: a copy by the adapter does not end", e->arena->cuda->ordinal);
    e->request = NULL;
    e->step = NB_ESCAPE_IDLE;
}

void nb_escape_stop(struct nb_escape *e, struct nb_ring *ring)
{
    settle(e);
    nb_ring_cancel_waiting(ring);
}

/* End the registration of this side's memory and free it. */
static void free_memory(struct nb_escape *e)
{
    if (e->mem_handle)
        e->adapter->dereg(e->adapter, e->mem_handle);
    free(e->mem);
    e->mem = NULL;
    e->mem_handle = NULL;
    e->mem_bytes = 0;
}

/* End all registrations. Under `making`, with no work aside. */
static void end_registrations(struct nb_escape *e)
{
    free_memory(e);
    for (unsigned i = 0; i < e->npieces; i++)
        e->adapter->dereg(e->adapter, e->piece[i].handle);
    e->npieces = 0;
}

void nb_escape_use(struct nb_escape *e, const struct nb_adapter *adapter, struct nb_ring *ring)
{
    pthread_mutex_lock(&e->making);
    if (e->adapter) {
        nb_escape_stop(e, ring);
        end_registrations(e);
    }
    e->adapter = adapter;
    pthread_mutex_unlock(&e->making);
}

void nb_escape_tidy(struct nb_escape *e)
{
    if (!atomic_load(&e->blind)) /* do not wait for another thread's registration */
        return;
    pthread_mutex_lock(&e->making);
    if (e->adapter && e->step == NB_ESCAPE_IDLE)
        end_registrations(e);
    pthread_mutex_unlock(&e->making);
}

bool nb_escape_possible(const struct nb_escape *e)
{
    return atomic_load(&e->adapter) && !atomic_load(&e->blind);
}

/* ---- The memory of a work ------------------------------------------------------------------------------ */

enum { IN = 1, OUT = 2 };

static bool encodes(const struct nb_gpu_desc *d)
{
    return d->op == NB_GPU_ENCODE || d->op == NB_GPU_ULP_ENCODE || d->op == NB_GPU_DELTA4_ENCODE;
}

/* Note `bytes` bytes that begin `skip` bytes behind *base. `begin` replaces *base, so that they begin as far
 * behind it for this processor. */
static void part(struct nb_escape *e, uint64_t *base, uint64_t skip, uint64_t bytes, int how)
{
    if (*base && bytes)
        e->part[e->nparts++] = (struct nb_escape_part){.base = base,
                                                       .skip = skip,
                                                       .at = *base + skip,
                                                       .bytes = bytes,
                                                       .how = how,
                                                       .bound = how == OUT && encodes(&e->desc)};
}

static void encoder_parts(struct nb_escape *e, struct nb_gpu_desc *d)
{
    const uint64_t groups = (d->first + d->n + NB_GROUP - 1) / NB_GROUP - d->first / NB_GROUP;

    part(e, &d->src, 0, d->n * nb_dtype_size((enum nb_dtype)d->type), IN);
    part(e, &d->dst, 0, nb_encode_bound((enum nb_codec)d->codec, (enum nb_dtype)d->type, d->n), OUT);
    if (d->mode == NB_EF_OFF)
        return;
    part(e, &d->err, d->first, d->n, IN | OUT);
    part(e, &d->scale, d->first / NB_GROUP, groups, IN | OUT);
}

/* Note all memory that a work reads or writes. Return 0, or -ENOMEM. */
static int note_parts(struct nb_escape *e, const struct nb_gpu_waiting *w)
{
    struct nb_gpu_desc *d = &e->desc;
    const uint32_t sources = w->sources ? w->desc.nsources : 0;
    uint64_t value = 1, coded = 0;

    if (sources > e->list_cap || !e->part) {
        struct nb_gpu_source *list = realloc(e->list, (sources + 1) * sizeof(*list));
        struct nb_escape_part *parts = list ? realloc(e->part, (sources + 5) * sizeof(*parts)) : NULL;

        e->list = list ? list : e->list;
        if (!parts)
            return -ENOMEM;
        e->part = parts;
        e->list_cap = sources;
    }
    *d = w->desc;
    e->nparts = 0;
    if (sources) {
        memcpy(e->list, w->sources, sources * sizeof(*e->list));
        d->sources = (uintptr_t)e->list;
    }
    if (w->want.numbers)
        d->dst = (uintptr_t)e->found;
    switch (d->op) {
    case NB_GPU_ENCODE: encoder_parts(e, d); return 0;
    case NB_GPU_ULP_ENCODE: coded = nb_ulp_bound((enum nb_ulp_width)d->width, d->n); break;
    case NB_GPU_DELTA4_ENCODE: coded = nb_delta4_bound((enum nb_dtype)d->type, d->n); break;
    case NB_GPU_DECODE:
    case NB_GPU_REDUCE:
    case NB_GPU_SAMPLE:
    case NB_GPU_PROFILE: value = nb_dtype_size((enum nb_dtype)d->type); break;
    case NB_GPU_REDUCE_EXACT: value = nb_nccl_type_size((ncclDataType_t)d->type); break;
    case NB_GPU_PICK: value = d->width; break;
    default: break;
    }
    for (uint32_t i = 0; i < sources; i++)
        part(e, &e->list[i].coded, 0, d->op == NB_GPU_REDUCE_EXACT ? d->n * value : e->list[i].bytes, IN);
    if (!sources && d->op != NB_GPU_ZERO)
        part(e, &d->src, 0, d->n * value, IN);
    part(e, &d->ref, 0, d->n, IN);
    part(e, &d->own, 0, d->n * value, IN);
    if (!w->want.numbers)
        part(e, &d->dst, 0, coded ? coded : d->n * value, OUT);
    return 0;
}

/* Return how many bytes from `at` on lie in one piece of GPU memory, with its handle. 0: in none. */
static uint64_t look_up(struct nb_escape *e, uint64_t at, void **handle)
{
    const struct nb_escape_piece *piece;
    uint64_t bytes = 0;

    pthread_mutex_lock(&e->lock);
    piece = piece_at(e, at);
    if (piece) {
        *handle = piece->handle;
        bytes = piece->base + piece->bytes - at;
    }
    pthread_mutex_unlock(&e->lock);
    return bytes;
}

/* Find out where the work's memory lies, and give each part of GPU memory a place in this side's. Return the
 * bytes of all places, or -EFAULT. */
static int64_t place_parts(struct nb_escape *e)
{
    size_t all = 0;

    for (unsigned i = 0; i < e->nparts; i++) {
        struct nb_escape_part *p = &e->part[i];
        void *handle;

        p->copied = look_up(e, p->at, &handle) > 0;
        if (!p->copied && p->at - e->arena->base < e->arena->reserved)
            return -EFAULT; /* the arena is registered, as long as there is an adapter */
        if (!p->copied)
            continue;
        p->repeats = e->desc.op == NB_GPU_ZERO && p->bytes > COPY_MOST;
        p->place = all;
        all += ((p->repeats ? COPY_MOST : p->bytes) + 255) / 256 * 256;
    }
    return (int64_t)all;
}

/* Ensure `bytes` of memory on this side. */
static int ensure(struct nb_escape *e, size_t bytes)
{
    int ret;

    if (bytes <= e->mem_bytes)
        return 0;
    free_memory(e);
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    e->mem = aligned_alloc(PAGE, bytes);
    if (!e->mem)
        return -ENOMEM;
    ret = e->adapter->reg(e->adapter, e->mem, bytes, false, -1, 0, &e->mem_handle);
    if (ret) {
        e->mem_handle = NULL;
        free_memory(e);
        return ret;
    }
    e->mem_bytes = bytes;
    return 0;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* Begin with the oldest waiting work. Return 1, or 0 when it cannot be done now. */
static int begin(struct nb_escape *e, struct nb_ring *ring)
{
    const struct nb_gpu_waiting *w = &ring->waiting[ring->first % NB_GPU_RING];
    int64_t bytes = 0;
    int ret = note_parts(e, w);

    if (!ret)
        bytes = place_parts(e);
    if (!ret)
        ret = bytes < 0 ? (int)bytes : ensure(e, (size_t)bytes);
    if (ret) {
        nb_escape_give_up(e, strerror(-ret));
        return 0;
    }
    for (unsigned i = 0; i < e->nparts; i++) {
        struct nb_escape_part *p = &e->part[i];

        p->seen = p->copied ? e->mem + p->place : (uint8_t *)(uintptr_t)p->at;
        *p->base = (uintptr_t)p->seen - p->skip;
        if (p->repeats)
            e->desc.n = COPY_MOST;
    }
    nb_ring_take_aside(ring);
    e->step = NB_ESCAPE_FETCHING;
    e->next = 0;
    e->copied = 0;
    return 1;
}

/* Copy the parts of one direction, one after the other. Return 1 when all are copied, 0 while copies are
 * under way, or a negative errno. */
static int copy_parts(struct nb_escape *e, int how)
{
    for (;;) {
        const struct nb_escape_part *p = &e->part[e->next];
        int ret, done = 0;

        if (e->request) {
            ret = e->adapter->test(e->adapter, e->request, &done);
            if (ret || !done)
                return ret;
            e->request = NULL;
            e->copied += e->copying;
        }
        if (e->next == e->nparts)
            return 1;
        if (!(p->how & how) || !p->copied || e->copied >= p->bytes) {
            e->next++;
            e->copied = 0;
            continue;
        }
        void *const near = p->seen + (p->repeats ? 0 : e->copied);
        void *const far = (void *)(uintptr_t)(p->at + e->copied);
        void *handle = NULL;
        uint64_t bytes = look_up(e, p->at + e->copied, &handle);

        if (!bytes)
            return -EFAULT;
        if (bytes > p->bytes - e->copied)
            bytes = p->bytes - e->copied;
        if (bytes > COPY_MOST)
            bytes = COPY_MOST;
        e->copying = bytes;
        if (how == IN)
            ret = e->adapter->copy(e->adapter, near, e->mem_handle, far, handle, bytes, &e->request);
        else
            ret = e->adapter->copy(e->adapter, far, handle, near, e->mem_handle, bytes, &e->request);
        if (ret || !e->request)
            return ret;
    }
}

/* Do the work. Of an encoder's output keep the bytes that it has written. Return 1, or -ENOMEM. */
static int work(struct nb_escape *e)
{
    memset(&e->result, 0, sizeof(e->result));
    e->result.length = nb_gpu_by_processor(&e->desc, &e->result);
    for (unsigned i = 0; i < e->nparts; i++)
        if (e->part[i].bound)
            e->part[i].bytes = e->result.length > 0 ? (uint64_t)e->result.length : 0;
    return e->result.length == -ENOMEM ? -ENOMEM : 1;
}

/* Make the next step. Return 1 when there may be another one at once, 0, or a negative errno. */
static int step(struct nb_escape *e, struct nb_ring *ring)
{
    int ret;

    if (e->step != NB_ESCAPE_IDLE && !ring->aside.work) { /* the ring has failed meanwhile */
        settle(e);
        return 0;
    }
    switch (e->step) {
    case NB_ESCAPE_IDLE: return ring->nwaiting && !ring->served ? begin(e, ring) : 0;
    case NB_ESCAPE_FETCHING:
        ret = copy_parts(e, IN);
        if (ret > 0)
            ret = work(e);
        if (ret < 0) { /* nothing is stored yet, so a kernel can do it */
            nb_escape_give_up(e, strerror(-ret));
            settle(e);
            nb_ring_put_back(ring);
            return 0;
        }
        if (ret > 0) {
            e->step = NB_ESCAPE_STORING;
            e->next = 0;
            e->copied = 0;
        }
        return ret;
    default:
        ret = copy_parts(e, OUT);
        if (ret <= 0)
            return ret;
        e->step = NB_ESCAPE_IDLE;
        e->works++;
        nb_ring_finish_aside(ring, &e->result, e->found);
        return 1;
    }
}

void nb_escape_turn(struct nb_escape *e, struct nb_ring *ring, bool begins)
{
    int ret = 1;

    while (ret > 0 && ((begins && nb_escape_possible(e)) || e->step != NB_ESCAPE_IDLE))
        ret = step(e, ring);
    if (ret >= 0)
        return;
    NB_WARN("cuda: GPU %d: the adapter cannot store the results of a codec kernel's work: %s",
            e->arena->cuda->ordinal, strerror(-ret));
    settle(e);
    nb_ring_fail(ring, ret);
}
