/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's table: the engine's works as descriptors for the kernel. What the kernel does not do
 * (nb_gpu_plan says -ENOTSUP: an alignment it does not take, a span without room behind it) the CPU does, on
 * copies where the bytes lie in GPU memory.
 */
#include "device/cuda.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "device/cuda_gpu.h"
#include "device/evidence.h"
#include "device/exact.h"

#define PAGE_BITS 16 /* memory is asked about by pieces of 64 KiB */

static struct nb_cuda_device *of(struct nb_device *dev)
{
    return (struct nb_cuda_device *)dev;
}

static uint64_t address(const void *p)
{
    return (uintptr_t)p;
}

/* ---- Whose memory -------------------------------------------------------------------------------------- */

enum { REACH_NONE = 1, REACH_CPU, REACH_GPU }; /* CPU: both; GPU: that alone */

static int ask(struct nb_cuda_device *d, const void *p)
{
    unsigned type = 0;
    int mode, reach = REACH_NONE;
    nb_cu_ptr seen = 0;

    if (nb_gpu_enter(d->gpu, &mode))
        return REACH_NONE;
    /* An error here says that CUDA does not know the address. */
    if (d->gpu->cu->PointerGetAttribute(&type, NB_CU_POINTER_MEMORY_TYPE, address(p)) == 0) {
        if (type == 2) /* device */
            reach = REACH_GPU;
        else if (d->gpu->cu->PointerGetAttribute(&seen, NB_CU_POINTER_DEVICE_POINTER, address(p)) == 0 &&
                 seen == address(p))
            reach = REACH_CPU; /* host, at the same address */
    }
    nb_gpu_leave(d->gpu, mode);
    return reach;
}

static int reach_of(struct nb_cuda_device *d, const void *p)
{
    const struct nb_arena *a = &d->gpu->arena;
    const uintptr_t page = (uintptr_t)p >> PAGE_BITS;
    const unsigned at = (unsigned)(page % (sizeof(d->seen) / sizeof(*d->seen)));

    if (a->virtual_memory && address(p) - a->base < a->reserved)
        return REACH_GPU;
    if (d->seen[at].page != page || !d->seen[at].reach) {
        d->seen[at].reach = ask(d, p);
        d->seen[at].page = page;
    }
    return d->seen[at].reach;
}

/* 0 when the GPU sees it; NULL does not count. */
static int check(struct nb_cuda_device *d, const void *p)
{
    if (!p || reach_of(d, p) != REACH_NONE)
        return 0;
    NB_WARN("cuda: memory at %p is neither GPU memory nor pinned, so GPU %d cannot reach it: was it not "
            "registered?",
            p, d->gpu->ordinal);
    atomic_store(&d->gpu->failed, -EFAULT);
    return -EFAULT;
}

/* ---- Handing over and waiting -------------------------------------------------------------------------- */

/* The state of a work, and a round of what has to be done for it. */
static ssize_t look(struct nb_cuda_device *d, struct nb_work *w)
{
    ssize_t ret;

    pthread_mutex_lock(&d->gpu->lock);
    ret = nb_ring_poll(d->gpu, w);
    if (ret == -EINPROGRESS)
        nb_launch_turn(d->gpu);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

/* Wait for a work. The watchdog of nb_launch_turn bounds it. */
static ssize_t await(struct nb_cuda_device *d, struct nb_work *w)
{
    ssize_t ret;

    while ((ret = look(d, w)) == -EINPROGRESS)
        sched_yield();
    return ret;
}

/* Submit, and without `work` wait; `value` gets the result's. */
static ssize_t give(struct nb_cuda_device *d, struct nb_work *work, struct nb_gpu_desc *desc,
                    const struct nb_source *sources, struct nb_encode_stats *stats, uint64_t *value)
{
    struct nb_work own, *w = work ? work : &own;
    ssize_t ret;

    for (;;) {
        pthread_mutex_lock(&d->gpu->lock);
        ret = atomic_load(&d->gpu->failed);
        if (!ret)
            ret = nb_ring_submit(d->gpu, d, w, desc, sources, stats);
        if (ret == -EAGAIN || (!ret && d->gpu->launches.how == NB_LAUNCH_BATCH && !work))
            nb_launch_turn(d->gpu);
        pthread_mutex_unlock(&d->gpu->lock);
        if (ret != -EAGAIN || work)
            break;
        sched_yield();
    }
    if (ret)
        return ret;
    if (work)
        return -EINPROGRESS;
    ret = await(d, w);
    if (value)
        *value = w->more[1];
    return ret;
}

static ssize_t cuda_poll(struct nb_device *dev, struct nb_work *work)
{
    return look(of(dev), work);
}

/* ---- What the CPU does --------------------------------------------------------------------------------- */

static int copy_now(struct nb_cuda_device *d, void *dst, const void *src, size_t bytes)
{
    struct nb_gpu_desc c = {.op = NB_GPU_COPY, .n = bytes, .src = address(src), .dst = address(dst)};
    return bytes ? (int)give(d, NULL, &c, NULL, NULL, NULL) : 0;
}

/* The bytes where the CPU can read them: `p`, or a copy in bounce buffer `i`. NULL: too many; the device has
 * failed. */
static void *view(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes, int fill)
{
    if (!p || reach_of(d, p) == REACH_CPU)
        return (void *)(uintptr_t)p;
    if (bytes > d->bounce_bytes) {
        NB_WARN("cuda: %zu bytes of GPU memory at %p are more than the %zu that can be copied for the CPU",
                bytes, p, d->bounce_bytes);
        atomic_store(&d->gpu->failed, -EIO);
        return NULL;
    }
    if (fill && copy_now(d, d->bounce[i], p, bytes))
        return NULL;
    return d->bounce[i];
}

/* What the CPU has written at `from` belongs at `to`. */
static int unview(struct nb_cuda_device *d, void *to, const void *from, size_t bytes)
{
    return to == from ? 0 : copy_now(d, to, from, bytes);
}

static int lost(struct nb_cuda_device *d)
{
    const int err = atomic_load(&d->gpu->failed);
    return err ? err : -EIO;
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static int cuda_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_COPY, .n = bytes, .src = address(src), .dst = address(dst)};

    if (!bytes || dst == src)
        return 0;
    if (check(d, dst) || check(d, src))
        return -EFAULT;
    return (int)give(d, work, &c, NULL, NULL, NULL);
}

static int cuda_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    struct nb_gpu_desc c = {.op = NB_GPU_ZERO, .n = bytes, .dst = address(dst)};
    return bytes ? (int)give(of(dev), work, &c, NULL, NULL, NULL) : 0;
}

static void *cuda_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    struct nb_cuda_device *d = of(dev);
    nb_cu_ptr at = 0;
    int mode;

    if (place == NB_PLACE_WIRE)
        return nb_gpu_pinned(d->gpu, bytes ? bytes : 1);
    pthread_mutex_lock(&d->gpu->lock);
    if (!nb_gpu_enter(d->gpu, &mode)) {
        at = nb_arena_take(d->gpu, bytes, 1);
        nb_gpu_leave(d->gpu, mode);
    }
    pthread_mutex_unlock(&d->gpu->lock);
    if (at && cuda_zero(dev, NULL, (void *)(uintptr_t)at, bytes)) {
        pthread_mutex_lock(&d->gpu->lock);
        nb_arena_give(d->gpu, at);
        pthread_mutex_unlock(&d->gpu->lock);
        at = 0;
    }
    return (void *)(uintptr_t)at;
}

static void cuda_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    struct nb_cuda_device *d = of(dev);

    (void)bytes;
    if (!p)
        return;
    if (place == NB_PLACE_WIRE) {
        nb_gpu_unpin(d->gpu, p);
        return;
    }
    pthread_mutex_lock(&d->gpu->lock);
    nb_arena_give(d->gpu, address(p));
    pthread_mutex_unlock(&d->gpu->lock);
}

/* ---- Codecs -------------------------------------------------------------------------------------------- */

static ssize_t cuda_encode(struct nb_device *dev, struct nb_work *work, enum nb_codec codec,
                           enum nb_dtype type, const void *src, size_t n, uint64_t first,
                           const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_ENCODE,
                            .type = (uint8_t)type,
                            .codec = (uint8_t)codec,
                            .n = n,
                            .first = first,
                            .src = address(src),
                            .dst = address(dst)};
    const size_t bound = nb_encode_bound(codec, type, n);
    const uint8_t *values;
    ssize_t ret = -ENOTSUP;

    if (check(d, src) || check(d, dst))
        return -EFAULT;
    if (ef && ef->mode != NB_EF_OFF) {
        c.mode = (uint8_t)ef->mode;
        c.err = address(ef->err);
        c.scale = address(ef->scale);
        c.beta = ef->beta;
        c.bound = ef->bound;
    }
    if (codec != NB_CODEC_RAW && bound && cap >= (bound + 3) / 4 * 4)
        ret = give(d, work, &c, NULL, stats, NULL);
    if (ret != -ENOTSUP)
        return ret;
    if (c.mode != NB_EF_OFF)
        return -EINVAL; /* carried errors are where the CPU cannot reach them; the engine's memory is aligned
                           for us */
    values = view(d, 0, src, n * nb_dtype_size(type), 1);
    return values ? nb_encode(codec, type, values, n, first, NULL, dst, cap, stats) : lost(d);
}

static int cuda_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_REDUCE,
                            .type = (uint8_t)type,
                            .nsources = (uint32_t)nsources,
                            .n = n,
                            .first = first,
                            .own = address(own),
                            .dst = address(dst)};
    const size_t bytes = n * nb_dtype_size(type);
    uint8_t *out;
    const uint8_t *mine;
    int ret;

    if (check(d, own) || check(d, dst))
        return -EFAULT;
    ret = (int)give(d, work, &c, sources, NULL, NULL);
    if (ret != -ENOTSUP)
        return ret;
    mine = view(d, 0, own, bytes, 1);
    out = view(d, 1, dst, bytes, 0);
    if ((own && !mine) || !out)
        return lost(d);
    ret = nb_reduce(type, sources, nsources, mine, n, first, out);
    return ret ? ret : unview(d, dst, out, bytes);
}

static int cuda_decode(struct nb_device *dev, struct nb_work *work, enum nb_codec codec, enum nb_dtype type,
                       const void *coded, size_t len, size_t n, uint64_t first, void *dst)
{
    struct nb_cuda_device *d = of(dev);
    const struct nb_source source = {codec, coded, len};
    struct nb_gpu_desc c = {.op = NB_GPU_DECODE, .type = (uint8_t)type, .nsources = 1, .n = n, .first = first,
                            .dst = address(dst)};
    const size_t bytes = n * nb_dtype_size(type);
    uint8_t *out;
    int ret;

    if (check(d, coded) || check(d, dst))
        return -EFAULT;
    ret = (int)give(d, work, &c, &source, NULL, NULL);
    if (ret != -ENOTSUP)
        return ret;
    out = view(d, 0, dst, bytes, 0);
    if (!out)
        return lost(d);
    ret = nb_decode(codec, type, coded, len, n, first, out);
    return ret ? ret : unview(d, dst, out, bytes);
}

static int cuda_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_REDUCE_EXACT, .type = (uint8_t)type, .mode = (uint8_t)op,
                            .nsources = (uint32_t)nsources, .n = n, .own = address(own), .dst = address(dst)};
    const size_t bytes = n * nb_nccl_type_size(type);
    struct nb_source *list;
    uint8_t *out;
    const uint8_t *mine;
    int ret = -ENOTSUP;

    if (check(d, own) || check(d, dst))
        return -EFAULT;
    list = nsources <= d->gpu->ring.most ? d->list : NULL;
    for (size_t i = 0; list && i < nsources; i++)
        list[i] = (struct nb_source){NB_CODEC_RAW, sources[i], bytes};
    if (list)
        ret = (int)give(d, work, &c, list, NULL, NULL);
    if (ret != -ENOTSUP)
        return ret;
    mine = view(d, 0, own, bytes, 1);
    out = view(d, 1, dst, bytes, 0);
    if ((own && !mine) || !out)
        return lost(d);
    ret = nb_exact_reduce(type, op, sources, nsources, mine, n, out);
    return ret ? ret : unview(d, dst, out, bytes);
}

/* Differences are of a width (ulp) or of a type (delta4). */
struct differences {
    int delta4;
    enum nb_ulp_width width;
    enum nb_dtype type;
};

static struct nb_gpu_desc describe(const struct differences *of_what, int encode, size_t bytes,
                                   const void *ref, void *dst)
{
    struct nb_gpu_desc c = {.n = bytes, .ref = address(ref), .dst = address(dst)};

    if (of_what->delta4) {
        c.op = encode ? NB_GPU_DELTA4_ENCODE : NB_GPU_DELTA4_DECODE;
        c.type = (uint8_t)of_what->type;
    } else {
        c.op = encode ? NB_GPU_ULP_ENCODE : NB_GPU_ULP_DECODE;
        c.width = (uint8_t)of_what->width;
    }
    return c;
}

/* `stats`: of delta4. The count of lossy runs comes with the result, so that one is waited for. */
static ssize_t encode_differences(struct nb_cuda_device *d, struct nb_work *work,
                                  const struct differences *of_what, const void *cur, const void *ref,
                                  size_t bytes, size_t limit, void *dst, size_t cap,
                                  struct nb_delta4_stats *stats)
{
    const int delta4 = of_what->delta4;
    const size_t bound = delta4 ? nb_delta4_bound(of_what->type, bytes) : nb_ulp_bound(of_what->width, bytes);
    struct nb_gpu_desc c = describe(of_what, 1, bytes, ref, dst);
    const void *a, *b;
    uint64_t lossy = 0;
    ssize_t ret = -ENOTSUP;

    if (check(d, cur))
        return -EFAULT;
    c.src = address(cur);
    c.limit = limit;
    if (cap >= (bound + 3) / 4 * 4)
        ret = give(d, delta4 ? NULL : work, &c, NULL, NULL, &lossy);
    if (ret >= 0 && stats) {
        stats->runs += (bytes / nb_dtype_size(of_what->type) + NB_DELTA4_RUN - 1) / NB_DELTA4_RUN;
        stats->lossy += lossy;
    }
    if (ret != -ENOTSUP)
        return ret;
    a = view(d, 0, cur, bytes, 1);
    b = a ? view(d, 1, ref, bytes, 1) : NULL;
    if (!b)
        return lost(d);
    return delta4 ? nb_delta4_encode(of_what->type, a, b, bytes, limit, dst, cap, stats)
                  : nb_ulp_encode(of_what->width, a, b, bytes, limit, dst, cap);
}

static int decode_differences(struct nb_cuda_device *d, struct nb_work *work,
                              const struct differences *of_what, const void *coded, size_t len,
                              const void *ref, size_t bytes, void *dst)
{
    const struct nb_source source = {of_what->delta4 ? NB_CODEC_DELTA4 : NB_CODEC_ULP, coded, len};
    struct nb_gpu_desc c = describe(of_what, 0, bytes, ref, dst);
    const void *b;
    uint8_t *out;
    int ret;

    if (check(d, dst))
        return -EFAULT;
    c.nsources = 1;
    ret = (int)give(d, work, &c, &source, NULL, NULL);
    if (ret != -ENOTSUP)
        return ret;
    b = view(d, 0, ref, bytes, 1);
    out = b ? view(d, 1, dst, bytes, 0) : NULL;
    if (!out)
        return lost(d);
    ret = of_what->delta4 ? nb_delta4_decode(of_what->type, coded, len, b, bytes, out)
                          : nb_ulp_decode(of_what->width, coded, len, b, bytes, out);
    return ret ? ret : unview(d, dst, out, bytes);
}

static ssize_t cuda_ulp_encode(struct nb_device *dev, struct nb_work *work, enum nb_ulp_width width,
                               const void *cur, const void *ref, size_t bytes, size_t limit, void *dst,
                               size_t cap)
{
    return encode_differences(of(dev), work, &(struct differences){.width = width}, cur, ref, bytes, limit,
                              dst, cap, NULL);
}

static int cuda_ulp_decode(struct nb_device *dev, struct nb_work *work, enum nb_ulp_width width,
                           const void *coded, size_t len, const void *ref, size_t bytes, void *dst)
{
    return decode_differences(of(dev), work, &(struct differences){.width = width}, coded, len, ref, bytes,
                              dst);
}

static ssize_t cuda_delta4_encode(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                                  const void *cur, const void *ref, size_t bytes, size_t limit, void *dst,
                                  size_t cap, struct nb_delta4_stats *stats)
{
    return encode_differences(of(dev), work, &(struct differences){.delta4 = 1, .type = type}, cur, ref,
                              bytes, limit, dst, cap, stats);
}

static int cuda_delta4_decode(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                              const void *coded, size_t len, const void *ref, size_t bytes, void *dst)
{
    return decode_differences(of(dev), work, &(struct differences){.delta4 = 1, .type = type}, coded, len,
                              ref, bytes, dst);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

static enum nb_ulp_width cuda_ulp_guess(struct nb_device *dev, const void *cur, const void *ref, size_t bytes)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_ULP_GUESS, .n = bytes, .src = address(cur), .ref = address(ref)};
    const void *a, *b;
    uint64_t width = 0;

    if (check(d, cur))
        return NB_ULP_16;
    if (give(d, NULL, &c, NULL, NULL, &width) != -ENOTSUP)
        return width == NB_ULP_8 || width == NB_ULP_32 ? (enum nb_ulp_width)width : NB_ULP_16;
    a = view(d, 0, cur, bytes, 1);
    b = a ? view(d, 1, ref, bytes, 1) : NULL;
    return b ? nb_ulp_guess_width(a, b, bytes) : NB_ULP_16;
}

static uint64_t cuda_hash(struct nb_device *dev, const void *data, size_t bytes, uint64_t seed)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_HASH, .n = bytes, .first = seed, .src = address(data)};
    uint64_t value = 0;
    const void *p;

    if (check(d, data))
        return 0;
    /* A seed is no index, so it must not look like one that is too large. */
    if (seed <= UINT64_MAX - bytes && give(d, NULL, &c, NULL, NULL, &value) != -ENOTSUP)
        return value;
    p = view(d, 0, data, bytes, 1);
    return p ? nb_hash64(p, bytes, seed) : 0;
}

static int cuda_equal(struct nb_device *dev, const void *a, const void *b, size_t bytes)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_EQUAL, .n = bytes, .src = address(a), .ref = address(b)};
    uint64_t differ = 1;

    if (check(d, a) || check(d, b))
        return 0;
    return !bytes || (give(d, NULL, &c, NULL, NULL, &differ) == 0 && differ == 0);
}

/* As view, but what is too much is not seen (NULL), and nothing fails. */
static const void *glimpse(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes)
{
    return reach_of(d, p) == REACH_CPU || bytes <= d->bounce_bytes ? view(d, i, p, bytes, 1) : NULL;
}

static double cuda_likeness(struct nb_device *dev, const void *a, const void *b, size_t bytes,
                            unsigned samples)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_LIKENESS, .nsources = samples, .n = bytes, .src = address(a), .ref = address(b)};
    struct nb_nearness near = {.samples = samples < bytes / 4 ? samples : (unsigned)(bytes / 4)};
    struct nb_encode_stats stats = {0};
    uint64_t value = 0;

    if (check(d, a) || check(d, b))
        return 0;
    if (near.samples == 0)
        return bytes && cuda_equal(dev, a, b, bytes) ? 1.0 : 0.0;
    if (give(d, NULL, &c, NULL, &stats, &value) < 0)
        return 0;
    near.near16 = value >> 32;
    near.near8 = (uint32_t)value;
    near.far16 = stats.escapes;
    return nb_likeness_of(&near);
}

/* One number for each of nsources places, FP32, into bounce buffer 0; how many. -ENOTSUP: not by the
 * kernel. */
static ssize_t ask_for_numbers(struct nb_cuda_device *d, struct nb_gpu_desc *c)
{
    if (c->nsources * sizeof(float) > d->bounce_bytes)
        return 0;
    c->dst = address(d->bounce[0]);
    return give(d, NULL, c, NULL, NULL, NULL);
}

static unsigned cuda_sample(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                            unsigned samples, float *out)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_SAMPLE, .type = (uint8_t)type, .nsources = samples, .n = n, .src = address(src)};
    const void *p;
    ssize_t got;

    if (check(d, src) || samples == 0)
        return 0;
    got = ask_for_numbers(d, &c);
    if (got == -ENOTSUP) {
        p = glimpse(d, 0, src, n * nb_dtype_size(type));
        return p ? nb_host_sample(type, p, n, samples, out) : 0;
    }
    if (got <= 0)
        return 0;
    memcpy(out, d->bounce[0], sizeof(*out) * (size_t)got);
    return (unsigned)got;
}

static unsigned cuda_profile(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                             unsigned groups, float *out)
{
    struct nb_cuda_device *d = of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_PROFILE,
                            .type = (uint8_t)type,
                            .flags = NB_GPU_SPREAD,
                            .nsources = groups,
                            .n = n,
                            .src = address(src)};
    const void *p;
    ssize_t got;

    if (check(d, src) || groups == 0)
        return 0;
    got = ask_for_numbers(d, &c);
    if (got == -ENOTSUP) {
        p = glimpse(d, 0, src, n * nb_dtype_size(type));
        return p ? nb_host_profile(type, p, n, groups, out) : 0;
    }
    return got <= 0 ? 0 : nb_profile_of_sums((const float *)(const void *)d->bounce[0], (unsigned)got, out);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static int cuda_failed(struct nb_device *dev)
{
    return atomic_load(&of(dev)->gpu->failed);
}

static void cuda_quiesce(struct nb_device *dev)
{
    struct nb_cuda_device *d = of(dev);
    unsigned open;

    /* What was handed over cannot be taken back, but it is short, and it has a kernel, or gets one; the
     * watchdog cancels it otherwise, after which no kernel begins with it. */
    do {
        pthread_mutex_lock(&d->gpu->lock);
        nb_launch_turn(d->gpu);
        open = d->inflight;
        pthread_mutex_unlock(&d->gpu->lock);
        if (open)
            sched_yield();
    } while (open);
    memset(d->seen, 0, sizeof(d->seen));
}

static int cuda_turn(struct nb_device *dev, int busy)
{
    struct nb_cuda_device *d = of(dev);
    int ret;

    pthread_mutex_lock(&d->gpu->lock);
    if (!busy)
        d->gpu->idle = d->gpu->turn + 1;
    ret = nb_launch_turn(d->gpu);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

static void free_instance(struct nb_cuda_device *d)
{
    for (unsigned i = 0; i < 2; i++)
        nb_gpu_unpin(d->gpu, d->bounce[i]);
    nb_gpu_put(d->gpu);
    free(d->list);
    free(d);
}

static void cuda_close(struct nb_device *dev)
{
    struct nb_cuda_device *d = of(dev);

    cuda_quiesce(dev);
    free_instance(d);
}

static const struct nb_device_ops cuda_ops = {
    .name = "cuda",
    .quiesce = cuda_quiesce,
    .failed = cuda_failed,
    .turn = cuda_turn,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .poll = cuda_poll,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .encode = cuda_encode,
    .decode = cuda_decode,
    .reduce = cuda_reduce,
    .reduce_exact = cuda_reduce_exact,
    .ulp_encode = cuda_ulp_encode,
    .ulp_decode = cuda_ulp_decode,
    .delta4_encode = cuda_delta4_encode,
    .delta4_decode = cuda_delta4_decode,
    .ulp_guess = cuda_ulp_guess,
    .hash = cuda_hash,
    .equal = cuda_equal,
    .likeness = cuda_likeness,
    .sample = cuda_sample,
    .profile = cuda_profile,
};

/* Workspace of the largest piece of any kind: a wire unit. Plans depend on lengths alone; addresses are made
 * up. */
static void needs(int nranks, size_t *work, size_t *scratch)
{
    const uint64_t unit = (uint64_t)nb_params()->unit_bytes;
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
                .nsources = op == NB_GPU_REDUCE || op == NB_GPU_REDUCE_EXACT ? (uint32_t)nranks : 1,
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

int nb_cuda_device_open(const struct nb_device_wish *wish, struct nb_device **dev, char *why, size_t cap)
{
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
    d->wish = *wish;
    d->list = calloc((size_t)wish->nranks, sizeof(*d->list));
    ret = d->list ? nb_gpu_get(wish, &d->gpu, why, cap) : -ENOMEM;
    if (ret) {
        free(d->list);
        free(d);
        return ret;
    }
    needs(wish->nranks, &work, &scratch);
    d->bounce_bytes = (size_t)nb_params()->unit_bytes + 65536;
    ret = nb_gpu_enter(d->gpu, &mode);
    if (!ret) {
        pthread_mutex_lock(&d->gpu->lock);
        ret = nb_ring_reserve(d->gpu, work, scratch, (unsigned)wish->nranks);
        pthread_mutex_unlock(&d->gpu->lock);
        nb_gpu_leave(d->gpu, mode);
    }
    for (unsigned i = 0; i < 2 && !ret; i++)
        if (!(d->bounce[i] = nb_gpu_pinned(d->gpu, d->bounce_bytes)))
            ret = -ENOMEM;
    if (ret) {
        free_instance(d);
        return ret;
    }
    *dev = &d->dev;
    return 0;
}

int nb_cuda_takes_pointers(int gpu, char *why, size_t cap)
{
    const struct nb_params *p = nb_params();
    const struct nb_cuda *cu;
    enum nb_launching how;
    int one;

    why[0] = 0;
    if (p->device == 1) {
        snprintf(why, cap, "NIBBLE_DEVICE=host");
        return 0;
    }
    if (p->gpu_pointers == 0) {
        snprintf(why, cap, "NIBBLE_GPU_POINTERS=0");
        return 0;
    }
    if (nb_cuda_open(&cu, why, cap))
        return 0;
    nb_cuda_close();
    return nb_launch_choose(&how, &one, gpu, why, cap) == 0;
}
