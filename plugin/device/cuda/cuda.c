/* SPDX-License-Identifier: Apache-2.0 */
/* The device of communicators whose codecs run on a GPU. gpu.c lists its parts. */
#include "device/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/cuda/gpu.h"
#include "device/cuda/table.h"

static int cuda_failed(struct nb_device *dev)
{
    return atomic_load(&nb_cuda_of(dev)->gpu->ring.failed);
}

static void cuda_quiesce(struct nb_device *dev)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);

    /* Work in the ring cannot be taken back. It is short, and its kernel runs. Without a kernel the watchdog
     * cancels the work, and later kernels skip it. */
    pthread_mutex_lock(&d->gpu->lock);
    nb_escape_stop(&d->gpu->escape, &d->gpu->ring);
    pthread_mutex_unlock(&d->gpu->lock);
    nb_cuda_dev_drain(d);
}

static void cuda_adapter(struct nb_device *dev, const struct nb_adapter *adapter)
{
    nb_gpu_use_adapter(nb_cuda_of(dev)->gpu, adapter);
}

static int cuda_turn(struct nb_device *dev, int busy)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    int ret;

    atomic_store_explicit(&d->connected, 1, memory_order_relaxed);
    pthread_mutex_lock(&d->gpu->lock);
    if (busy > 0)
        nb_launches_busy(&d->gpu->launches);
    else
        nb_launches_idle(&d->gpu->launches);
    d->gpu->launches.given_up = busy < 0;
    ret = nb_launches_turn(&d->gpu->launches);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

static int cuda_ready(struct nb_device *dev)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    int ret;

    pthread_mutex_lock(&d->gpu->lock);
    ret = nb_launches_ready(&d->gpu->launches);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

/* Note that windows of `comm_id`, a child, come to this communicator. */
static void cuda_shares(struct nb_device *dev, uint64_t comm_id)
{
    struct nb_gpu *g = nb_cuda_of(dev)->gpu;

    nb_gpus_share(g->ctx->gpus, g, comm_id);
}

static void cuda_begins(struct nb_device *dev)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);

    pthread_mutex_lock(&d->gpu->lock);
    nb_launches_begun(&d->gpu->launches);
    pthread_mutex_unlock(&d->gpu->lock);
}

static void free_instance(struct nb_cuda_device *d)
{
    for (unsigned i = 0; i < 3; i++)
        nb_cuda_unpin(&d->gpu->cuda, d->bounce[i]);
    nb_gpu_put(d->gpu);
    nb_ranges_free(&d->ranges);
    free(d->list);
    free(d);
}

static void cuda_close(struct nb_device *dev)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);

    cuda_quiesce(dev);
    free_instance(d);
}

static const struct nb_device_ops cuda_ops = {
    .name = "cuda",
    .quiesce = cuda_quiesce,
    .failed = cuda_failed,
    .turn = cuda_turn,
    .close = cuda_close,
    .region = nb_cuda_dev_region,
    .shares = cuda_shares,
    .begins = cuda_begins,
    .adapter = cuda_adapter,
    .ready = cuda_ready,
    .alloc = nb_cuda_dev_alloc,
    .free = nb_cuda_dev_free,
    .dmabuf = nb_cuda_dev_dmabuf,
    .poll = nb_cuda_dev_poll,
    .copy = nb_cuda_dev_copy,
    .zero = nb_cuda_dev_zero,
    .encode = nb_cuda_dev_encode,
    .decode = nb_cuda_dev_decode,
    .reduce = nb_cuda_dev_reduce,
    .reduce_exact = nb_cuda_dev_reduce_exact,
    .compare = nb_cuda_dev_compare,
    .similarity = nb_cuda_dev_similarity,
    .sample = nb_cuda_dev_sample,
    .sums = nb_cuda_dev_sums,
    .pick = nb_cuda_dev_pick,
};

/* Compute workspace and scratch memory for the largest segment of any kind, a wire unit. Plans depend only on
 * lengths, so the addresses are arbitrary. */
static void needs(uint64_t unit, int nnodes, size_t *work, size_t *scratch)
{
    uint64_t most = 0, also = 0;

    for (unsigned op = NB_GPU_ENCODE; op < NB_GPU_OP_COUNT; op++) {
        for (unsigned type = 0; type < NB_DTYPE_COUNT; type++) {
            const uint64_t size = nb_dtype_size((enum nb_dtype)type);
            const int sums = op == NB_GPU_ENCODE || op == NB_GPU_DECODE || op == NB_GPU_REDUCE;
            struct nb_gpu_desc d = {
                .op = (uint8_t)op,
                .type = (uint8_t)type,
                .codec = NB_CODEC_INT4,
                .width = NB_ULP_16,
                .nsources = op == NB_GPU_REDUCE || op == NB_GPU_REDUCE_EXACT ? (uint32_t)nnodes : 1,
                .n = sums ? unit / size : unit,
                .first = 1,
                .src = 4096,
                .ref = 4096,
                .own = 4096,
                .dst = 4096,
                .sources = 4096,
                .err = 4096,
                .scale = 4096,
                .limit = unit,
                .result = 4096};
            int64_t need = nb_gpu_plan(&d);
            if (need > 0 && (uint64_t)need > most)
                most = (uint64_t)need;
            if (need >= 0 && nb_gpu_scratch(&d) > also)
                also = nb_gpu_scratch(&d);
        }
    }
    *work = most;
    *scratch = also;
}

int nb_cuda_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev,
                        char *why, size_t cap)
{
    const size_t unit = (size_t)ctx->params->unit_bytes;
    struct nb_cuda_device *d;
    size_t work, scratch;
    int ret, mode;

    why[0] = 0;
    if (wish->gpu < 0) {
        snprintf(why, cap, "no CUDA context is current");
        return -ENODEV;
    }
    d = calloc(1, sizeof(*d));
    if (!d) {
        NB_WARN("cuda: out of memory");
        return -ENOMEM;
    }
    d->dev.ops = &cuda_ops;
    nb_ranges_init(&d->ranges);
    d->list = calloc((size_t)wish->nnodes, sizeof(*d->list));
    ret = d->list ? nb_gpu_get(ctx, wish, &d->gpu, why, cap) : -ENOMEM;
    if (ret) {
        nb_ranges_free(&d->ranges);
        free(d->list);
        free(d);
        return ret;
    }
    if (!d->gpu->arena.virtual_memory) { /* else its addresses identify it */
        const struct nb_arena_map *all = d->gpu->arena.maps;
        ret = nb_ranges_add(&d->ranges, (const void *)(uintptr_t)all->at, all->bytes, NB_REACH_GPU);
    }
    needs(unit, wish->nnodes, &work, &scratch);
    d->bounce_bytes = unit + 65536;
    if (!ret)
        ret = nb_cuda_enter(&d->gpu->cuda, &mode);
    if (!ret) {
        ret = nb_ring_reserve(&d->gpu->ring, work, scratch, (unsigned)wish->nnodes, &d->gpu->lock);
        nb_cuda_leave(&d->gpu->cuda, mode);
    }
    for (unsigned i = 0; i < 3 && !ret; i++)
        if (!(d->bounce[i] = nb_cuda_pinned(&d->gpu->cuda, d->bounce_bytes)) ||
            nb_ranges_add(&d->ranges, d->bounce[i], d->bounce_bytes, NB_REACH_CPU))
            ret = -ENOMEM;
    if (ret) {
        free_instance(d);
        return ret;
    }
    *dev = &d->dev;
    return 0;
}

int nb_cuda_takes_pointers(struct nb_context *ctx, int gpu, char *why, size_t cap)
{
    const struct nb_params *p = ctx->params;
    const struct nb_cuda *cu;
    enum nb_launching how;

    why[0] = 0;
    if (p->device == NB_DEVICE_HOST) {
        snprintf(why, cap, "NIBBLE_DEVICE=host");
        return 0;
    }
    if (p->gpu_pointers == NB_GPU_POINTERS_NEVER) {
        snprintf(why, cap, "NIBBLE_GPU_POINTERS=0");
        return 0;
    }
    if (nb_cuda_open(&cu, why, cap))
        return 0;
    nb_cuda_close();
    return nb_launch_choose(ctx, gpu, &how, why, cap) == 0;
}
