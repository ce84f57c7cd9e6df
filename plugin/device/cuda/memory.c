/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the CUDA device: the kind of memory at an address, copies for the CPU, and its own memory.
 *
 * A communicator's device keeps the ranges of addresses that it was given or has made. While a kernel runs it
 * therefore knows whose memory an address is, without the driver.
 *
 * Threads: any.
 */
#include "device/cuda/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/cuda/cuda.h"

void nb_ranges_init(struct nb_ranges *r)
{
    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
}

void nb_ranges_free(struct nb_ranges *r)
{
    free(r->range);
    pthread_mutex_destroy(&r->lock);
}

/* Return the number of ranges that begin at or below `address`. Under lock. */
static unsigned below(const struct nb_ranges *r, uintptr_t address)
{
    unsigned low = 0, high = r->n;

    while (low < high) {
        const unsigned mid = (low + high) / 2;
        if (r->range[mid].base <= address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int nb_ranges_add(struct nb_ranges *r, const void *base, size_t bytes, enum nb_reach reach)
{
    const struct nb_reach_range made = {(uintptr_t)base, bytes, reach};
    unsigned at;
    int ret = 0;

    pthread_mutex_lock(&r->lock);
    at = below(r, made.base);
    if (at && r->range[at - 1].base == made.base) {
        r->range[at - 1] = made;
    } else {
        if (r->n == r->cap) {
            const unsigned cap = r->cap ? 2 * r->cap : 64;
            void *grown = realloc(r->range, cap * sizeof(*r->range));
            if (grown) {
                r->range = grown;
                r->cap = cap;
            }
        }
        if (r->n < r->cap) {
            memmove(r->range + at + 1, r->range + at, (r->n - at) * sizeof(*r->range));
            r->range[at] = made;
            r->n++;
        } else {
            ret = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return ret;
}

static void remove_range(struct nb_ranges *r, const void *base)
{
    unsigned at;

    pthread_mutex_lock(&r->lock);
    at = below(r, (uintptr_t)base);
    if (at && r->range[at - 1].base == (uintptr_t)base) {
        memmove(r->range + at - 1, r->range + at, (r->n - at) * sizeof(*r->range));
        r->n--;
    }
    pthread_mutex_unlock(&r->lock);
}

static enum nb_reach find_range(struct nb_ranges *r, const void *address)
{
    enum nb_reach reach = NB_REACH_UNKNOWN;
    unsigned at;

    pthread_mutex_lock(&r->lock);
    at = below(r, (uintptr_t)address);
    if (at && (uintptr_t)address - r->range[at - 1].base < r->range[at - 1].bytes)
        reach = r->range[at - 1].reach;
    pthread_mutex_unlock(&r->lock);
    return reach;
}

/* ---- Whose memory an address is ------------------------------------------------------------------------ */

/* Ask the driver. Only before the engine has the device. */
static enum nb_reach ask(struct nb_cuda_device *d, const void *p)
{
    unsigned type = 0;
    int mode;
    enum nb_reach reach = NB_REACH_NONE;
    nb_cu_ptr seen = 0;

    if (nb_cuda_enter(&d->gpu->cuda, &mode))
        return NB_REACH_NONE;
    /* An error here means that CUDA does not know the address. */
    if (d->gpu->cuda.cu->PointerGetAttribute(&type, NB_CU_POINTER_MEMORY_TYPE, nb_cuda_address(p)) == 0) {
        if (type == 2) /* device */
            reach = NB_REACH_GPU;
        else if (d->gpu->cuda.cu->PointerGetAttribute(&seen, NB_CU_POINTER_DEVICE_POINTER,
                                                      nb_cuda_address(p)) == 0 &&
                 seen == nb_cuda_address(p))
            reach = NB_REACH_CPU; /* host memory, at the same address */
    }
    nb_cuda_leave(&d->gpu->cuda, mode);
    return reach;
}

static enum nb_reach reach_of(struct nb_cuda_device *d, const void *p)
{
    const struct nb_arena *a = &d->gpu->arena;
    enum nb_reach reach;

    if (nb_cuda_address(p) - a->base < a->reserved)
        return NB_REACH_GPU;
    reach = find_range(&d->ranges, p);
    if (reach != NB_REACH_UNKNOWN)
        return reach;
    return atomic_load(&d->connected) ? NB_REACH_NONE : ask(d, p);
}

int nb_cuda_dev_region(struct nb_device *dev, const void *base, size_t bytes, int fd, uint64_t offset)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    const enum nb_reach reach = bytes ? ask(d, base) : NB_REACH_UNKNOWN;

    if (!bytes) {
        nb_escape_remove(&d->gpu->escape, nb_cuda_address(base));
        remove_range(&d->ranges, base);
        return 0;
    }
    if (reach == NB_REACH_GPU)
        nb_gpu_register(d->gpu, nb_cuda_address(base), bytes, fd, offset);
    return nb_ranges_add(&d->ranges, base, bytes, reach);
}

int nb_cuda_dev_check_reach(struct nb_cuda_device *d, const void *p)
{
    if (!p || reach_of(d, p) != NB_REACH_NONE)
        return 0;
    NB_WARN("cuda: memory at %p is outside GPU memory and pinned memory, so GPU %d cannot reach it. Is it "
            "registered?",
            p, d->gpu->cuda.ordinal);
    atomic_store(&d->gpu->ring.failed, -EFAULT);
    return -EFAULT;
}

/* ---- Copies for the CPU -------------------------------------------------------------------------------- */

static int copy_now(struct nb_cuda_device *d, void *dst, const void *src, size_t bytes)
{
    struct nb_gpu_desc c = {
        .op = NB_GPU_COPY, .n = bytes, .src = nb_cuda_address(src), .dst = nb_cuda_address(dst)};
    return bytes ? (int)nb_cuda_dev_submit(d, NULL, &c, NULL, NULL) : 0;
}

int nb_cuda_dev_may_view(struct nb_cuda_device *d, const void *p, size_t bytes)
{
    return reach_of(d, p) == NB_REACH_CPU || bytes <= d->bounce_bytes;
}

void *nb_cuda_dev_copied(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes)
{
    if (bytes > d->bounce_bytes) {
        NB_WARN("cuda: %zu bytes of GPU memory at %p are more than the %zu that can be copied for the CPU",
                bytes, p, d->bounce_bytes);
        atomic_store(&d->gpu->ring.failed, -EIO);
        return NULL;
    }
    if (p && copy_now(d, d->bounce[i], p, bytes))
        return NULL;
    return d->bounce[i];
}

void *nb_cuda_dev_view(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes, int fill)
{
    if (!p || reach_of(d, p) == NB_REACH_CPU)
        return (void *)(uintptr_t)p;
    return nb_cuda_dev_copied(d, i, fill ? p : NULL, bytes);
}

int nb_cuda_dev_unview(struct nb_cuda_device *d, void *to, const void *from, size_t bytes)
{
    return to == from ? 0 : copy_now(d, to, from, bytes);
}

/* ---- The table's functions ---------------------------------------------------------------------------- */

int nb_cuda_dev_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_COPY, .n = bytes, .src = nb_cuda_address(src), .dst = nb_cuda_address(dst)};

    if (!bytes || dst == src)
        return 0;
    if (nb_cuda_dev_check_reach(d, dst) || nb_cuda_dev_check_reach(d, src))
        return -EFAULT;
    return (int)nb_cuda_dev_submit(d, work, &c, NULL, NULL);
}

int nb_cuda_dev_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    struct nb_gpu_desc c = {.op = NB_GPU_ZERO, .n = bytes, .dst = nb_cuda_address(dst)};
    return bytes ? (int)nb_cuda_dev_submit(nb_cuda_of(dev), work, &c, NULL, NULL) : 0;
}

static void *alloc_wire(struct nb_cuda_device *d, size_t bytes)
{
    void *p = nb_cuda_pinned(&d->gpu->cuda, bytes);

    if (p && nb_ranges_add(&d->ranges, p, bytes, NB_REACH_CPU)) {
        NB_WARN("cuda: out of memory");
        nb_cuda_unpin(&d->gpu->cuda, p);
        p = NULL;
    }
    return p;
}

/* Allocate from the arena. A full arena grows: at once while the communicator connects, later on the driver
 * thread, so that there is memory when the caller asks again. */
static nb_cu_ptr alloc_state(struct nb_cuda_device *d, size_t bytes)
{
    nb_cu_ptr at;
    int mode;

    pthread_mutex_lock(&d->gpu->lock);
    at = nb_arena_cut(&d->gpu->arena, bytes);
    pthread_mutex_unlock(&d->gpu->lock);
    if (at)
        return at;
    if (atomic_load(&d->connected)) {
        nb_gpu_grow(d->gpu, bytes);
        return 0;
    }
    if (nb_cuda_enter(&d->gpu->cuda, &mode))
        return 0;
    at = nb_arena_take(&d->gpu->arena, bytes, &d->gpu->lock);
    nb_cuda_leave(&d->gpu->cuda, mode);
    return at;
}

/* Payloads lie where NCCL's buffers lie: in GPU memory where NCCL was told that adapters reach it. */
static void *alloc_payload(struct nb_cuda_device *d, size_t bytes)
{
    nb_cu_ptr at;
    int mode;

    if (!nb_cuda_pointers_claimed(d->gpu->ctx) || nb_cuda_enter(&d->gpu->cuda, &mode))
        return NULL;
    at = nb_arena_take_whole(&d->gpu->arena, bytes, &d->gpu->lock);
    nb_cuda_leave(&d->gpu->cuda, mode);
    return (void *)(uintptr_t)at;
}

int nb_cuda_dev_dmabuf(struct nb_device *dev, void *p, size_t bytes)
{
    return nb_cuda_dmabuf(&nb_cuda_of(dev)->gpu->cuda, nb_cuda_address(p), bytes);
}

void *nb_cuda_dev_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    nb_cu_ptr at;

    if (place == NB_PLACE_WIRE)
        return alloc_wire(d, bytes ? bytes : 1);
    if (place == NB_PLACE_PAYLOAD)
        return alloc_payload(d, bytes);
    at = alloc_state(d, bytes);
    /* Zero it by a codec kernel while the communicator connects. So the first kernel runs before any other
     * work can wait for it. Later no thread could wait for its end. */
    if (at && !atomic_load(&d->connected) && nb_cuda_dev_zero(dev, NULL, (void *)(uintptr_t)at, bytes)) {
        pthread_mutex_lock(&d->gpu->lock);
        nb_arena_give(&d->gpu->arena, at);
        pthread_mutex_unlock(&d->gpu->lock);
        at = 0;
    }
    return (void *)(uintptr_t)at;
}

void nb_cuda_dev_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);

    (void)bytes;
    if (!p)
        return;
    if (place == NB_PLACE_WIRE) {
        remove_range(&d->ranges, p);
        nb_cuda_unpin(&d->gpu->cuda, p);
        return;
    }
    pthread_mutex_lock(&d->gpu->lock);
    if (place == NB_PLACE_PAYLOAD)
        nb_arena_give_whole(&d->gpu->arena, nb_cuda_address(p));
    else
        nb_arena_give(&d->gpu->arena, nb_cuda_address(p));
    pthread_mutex_unlock(&d->gpu->lock);
}
