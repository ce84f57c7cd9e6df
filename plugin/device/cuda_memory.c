/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CUDA device: what an address is, copies for the CPU, and its own. See cuda_device.h. */
#include "device/cuda_device.h"

#include <errno.h>

#include "base/log.h"

#define PAGE_BITS 16 /* the driver is asked about memory in ranges of 64 KiB */

/* ---- Whose memory ------------------------------------------------------------------------------------- */

enum { REACH_NONE = 1, REACH_CPU, REACH_GPU }; /* CPU: both; GPU: that alone */

static int ask(struct nb_cuda_device *d, const void *p)
{
    unsigned type = 0;
    int mode, reach = REACH_NONE;
    nb_cu_ptr seen = 0;

    if (nb_cuda_enter(&d->gpu->cuda, &mode))
        return REACH_NONE;
    /* An error here says that CUDA does not know the address. */
    if (d->gpu->cuda.cu->PointerGetAttribute(&type, NB_CU_POINTER_MEMORY_TYPE, nb_cuda_address(p)) == 0) {
        if (type == 2) /* device */
            reach = REACH_GPU;
        else if (d->gpu->cuda.cu->PointerGetAttribute(&seen, NB_CU_POINTER_DEVICE_POINTER,
                                                      nb_cuda_address(p)) == 0 &&
                 seen == nb_cuda_address(p))
            reach = REACH_CPU; /* host, at the same address */
    }
    nb_cuda_leave(&d->gpu->cuda, mode);
    return reach;
}

static int reach_of(struct nb_cuda_device *d, const void *p)
{
    const struct nb_arena *a = &d->gpu->arena;
    const uintptr_t page = (uintptr_t)p >> PAGE_BITS;
    const unsigned at = (unsigned)(page % (sizeof(d->seen) / sizeof(*d->seen)));

    if (a->virtual_memory && nb_cuda_address(p) - a->base < a->reserved)
        return REACH_GPU;
    if (d->seen[at].page != page || !d->seen[at].reach) {
        d->seen[at].reach = ask(d, p);
        d->seen[at].page = page;
    }
    return d->seen[at].reach;
}

int nb_cuda_dev_check_reach(struct nb_cuda_device *d, const void *p)
{
    if (!p || reach_of(d, p) != REACH_NONE)
        return 0;
    NB_WARN("cuda: memory at %p is neither GPU memory nor pinned, so GPU %d cannot reach it: was it not "
            "registered?",
            p, d->gpu->cuda.ordinal);
    atomic_store(&d->gpu->ring.failed, -EFAULT);
    return -EFAULT;
}

/* ---- What the CPU does -------------------------------------------------------------------------------- */

static int copy_now(struct nb_cuda_device *d, void *dst, const void *src, size_t bytes)
{
    struct nb_gpu_desc c = {
        .op = NB_GPU_COPY, .n = bytes, .src = nb_cuda_address(src), .dst = nb_cuda_address(dst)};
    return bytes ? (int)nb_cuda_dev_submit(d, NULL, &c, NULL, NULL, NULL) : 0;
}

int nb_cuda_dev_may_view(struct nb_cuda_device *d, const void *p, size_t bytes)
{
    return reach_of(d, p) == REACH_CPU || bytes <= d->bounce_bytes;
}

void *nb_cuda_dev_view(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes, int fill)
{
    if (!p || reach_of(d, p) == REACH_CPU)
        return (void *)(uintptr_t)p;
    if (bytes > d->bounce_bytes) {
        NB_WARN("cuda: %zu bytes of GPU memory at %p are more than the %zu that can be copied for the CPU",
                bytes, p, d->bounce_bytes);
        atomic_store(&d->gpu->ring.failed, -EIO);
        return NULL;
    }
    if (fill && copy_now(d, d->bounce[i], p, bytes))
        return NULL;
    return d->bounce[i];
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
    return (int)nb_cuda_dev_submit(d, work, &c, NULL, NULL, NULL);
}

int nb_cuda_dev_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    struct nb_gpu_desc c = {.op = NB_GPU_ZERO, .n = bytes, .dst = nb_cuda_address(dst)};
    return bytes ? (int)nb_cuda_dev_submit(nb_cuda_of(dev), work, &c, NULL, NULL, NULL) : 0;
}

void *nb_cuda_dev_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    nb_cu_ptr at = 0;
    int mode;

    if (place == NB_PLACE_WIRE)
        return nb_cuda_pinned(&d->gpu->cuda, bytes ? bytes : 1);
    pthread_mutex_lock(&d->gpu->lock);
    if (!nb_cuda_enter(&d->gpu->cuda, &mode)) {
        at = nb_arena_take(&d->gpu->arena, bytes);
        nb_cuda_leave(&d->gpu->cuda, mode);
    }
    pthread_mutex_unlock(&d->gpu->lock);
    if (at && nb_cuda_dev_zero(dev, NULL, (void *)(uintptr_t)at, bytes)) {
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
        nb_cuda_unpin(&d->gpu->cuda, p);
        return;
    }
    pthread_mutex_lock(&d->gpu->lock);
    nb_arena_give(&d->gpu->arena, nb_cuda_address(p));
    pthread_mutex_unlock(&d->gpu->lock);
}
