/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: context, kernel, life. See cuda_gpu.h. */
#include "device/cuda_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nb_gpu *list;

int nb_gpu_enter(struct nb_gpu *g, int *mode)
{
    int ret = NB_CU(g->cu, "making the context current", CtxPushCurrent_v2(g->context));

    if (ret)
        return ret;
    *mode = NB_CU_CAPTURE_MODE_RELAXED;
    ret = NB_CU(g->cu, "relaxing the capture mode", ThreadExchangeStreamCaptureMode(mode));
    if (ret)
        g->cu->CtxPopCurrent_v2(&(nb_cu_context){NULL});
    return ret;
}

void nb_gpu_leave(struct nb_gpu *g, int mode)
{
    nb_cu_context old;

    NB_CU(g->cu, "restoring the capture mode", ThreadExchangeStreamCaptureMode(&mode));
    NB_CU(g->cu, "restoring the context", CtxPopCurrent_v2(&old));
}

void *nb_gpu_pinned(struct nb_gpu *g, size_t bytes)
{
    nb_cu_ptr seen = 0;
    void *p = NULL;
    int mode;

    if (nb_gpu_enter(g, &mode))
        return NULL;
    if (NB_CU(g->cu, "pinned memory", MemHostAlloc(&p, bytes, NB_CU_HOST_PORTABLE | NB_CU_HOST_DEVICEMAP))) {
        p = NULL;
    } else if (NB_CU(g->cu, "address of pinned memory", MemHostGetDevicePointer_v2(&seen, p, 0)) ||
               seen != (uintptr_t)p) {
        if (seen)
            NB_WARN("cuda: GPU %d sees pinned memory at another address than the CPU", g->ordinal);
        g->cu->MemFreeHost(p);
        p = NULL;
    }
    nb_gpu_leave(g, mode);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void nb_gpu_unpin(struct nb_gpu *g, void *p)
{
    int mode;

    if (!p || nb_gpu_enter(g, &mode))
        return;
    NB_CU(g->cu, "freeing pinned memory", MemFreeHost(p));
    nb_gpu_leave(g, mode);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

/* Load the kernel now: with lazy loading the first launch would, and it may wait for all that the GPU does.
 * That the compiler's report has no local memory (which a launch may have to allocate) is looked at, too. */
static int load_kernel(struct nb_gpu *g)
{
    int ret, local = 0;

    ret = NB_CU(g->cu, "loading the codec kernel", ModuleLoadData(&g->module, g->cu->image));
    if (ret)
        return ret;
    ret = NB_CU(g->cu, "finding the codec kernel", ModuleGetFunction(&g->kernel, g->module, NB_GPU_KERNEL));
    if (!ret)
        ret = NB_CU(g->cu, "preloading the codec kernel",
                    FuncGetAttribute(&local, NB_CU_FUNC_LOCAL_BYTES, g->kernel));
    if (!ret && local)
        NB_INFO(NCCL_INIT, "cuda: the kernel uses %d bytes of local memory a thread on GPU %d", local,
                g->ordinal);
    return ret;
}

/* All that needs the context. What was made is freed by unmake, in whatever state it is. */
static int make(struct nb_gpu *g)
{
    int ret = load_kernel(g);

    if (!ret)
        ret = nb_arena_open(g, (size_t)nb_params()->gpu_arena_mb << 20);
    if (!ret)
        ret = nb_launch_open(g);
    if (!ret)
        ret = nb_ring_open(g);
    return ret;
}

static void unmake(struct nb_gpu *g)
{
    nb_launch_close(g);
    nb_ring_close(g);
    nb_arena_close(g);
    if (g->module)
        NB_CU(g->cu, "unloading the codec kernel", ModuleUnload(g->module));
    g->module = NULL;
}

static int open_gpu(struct nb_gpu *g)
{
    int ret, mode, unified = 0;

    ret = NB_CU(g->cu, "finding the GPU", DeviceGet(&g->device, g->ordinal));
    if (!ret)
        ret = NB_CU(g->cu, "name of the GPU", DeviceGetName(g->name, sizeof(g->name), g->device));
    if (!ret)
        ret = NB_CU(g->cu, "size of the GPU",
                    DeviceGetAttribute(&g->multiprocessors, NB_CU_ATTR_MULTIPROCESSORS, g->device));
    if (!ret)
        ret = NB_CU(g->cu, "generation of the GPU",
                    DeviceGetAttribute(&g->major, NB_CU_ATTR_CAPABILITY_MAJOR, g->device));
    if (!ret)
        ret = NB_CU(g->cu, "addresses of the GPU",
                    DeviceGetAttribute(&unified, NB_CU_ATTR_UNIFIED_ADDRESSING, g->device));
    if (!ret && !unified) {
        NB_WARN("cuda: GPU %d has no unified addresses", g->ordinal);
        ret = -ENOTSUP;
    }
    if (ret)
        return ret;
    /* The runtime's context, which the job and NCCL use; it outlives us unless the job resets the device. */
    ret = NB_CU(g->cu, "the GPU's context", DevicePrimaryCtxRetain(&g->context, g->device));
    if (ret)
        return ret;
    ret = nb_gpu_enter(g, &mode);
    if (!ret) {
        ret = make(g);
        if (ret)
            unmake(g);
        nb_gpu_leave(g, mode);
    }
    if (ret)
        NB_CU(g->cu, "giving back the GPU's context", DevicePrimaryCtxRelease_v2(g->device));
    return ret;
}

static void announce(const struct nb_gpu *g)
{
    const struct nb_launches *l = &g->launches;

    NB_INFO(NCCL_INIT | NCCL_NET,
            "cuda: GPU %d (%s): codecs run on it, %u blocks of %d multiprocessors; memory %s, %zu MiB to "
            "begin with",
            g->ordinal, g->name, l->blocks, g->multiprocessors,
            g->arena.virtual_memory ? "grows as it is needed" : "cannot grow (no virtual memory management)",
            g->arena.mapped >> 20);
    if (l->how == NB_LAUNCH_RESIDENT)
        NB_INFO(NCCL_INIT | NCCL_NET,
                "cuda: the kernel is launched beside each of NCCL's (KernelLaunch events), also in graphs");
    else
        NB_INFO(NCCL_INIT | NCCL_NET,
                "cuda: the kernel is launched for each batch of work, on a stream of its own: %s",
                nb_params()->gpu_launch == 2
                    ? "NIBBLE_GPU_LAUNCH says so"
                    : "no KernelLaunch events from NCCL (before 2.28, or another profiler)");
}

int nb_gpu_get(const struct nb_device_wish *wish, struct nb_gpu **out, char *why, size_t cap)
{
    static uint16_t serials;
    struct nb_gpu *g;
    enum nb_launching how;
    int ret, one_queue = 0;

    ret = nb_launch_choose(&how, &one_queue, wish->gpu, why, cap);
    if (ret)
        return ret;
    g = calloc(1, sizeof(*g));
    if (!g) {
        NB_WARN("cuda: out of memory");
        return -ENOMEM;
    }
    g->ordinal = wish->gpu;
    g->comm_id = wish->comm_id;
    g->nranks = wish->nranks;
    g->launches.how = how;
    g->launches.one_queue = one_queue;
    ret = nb_cuda_open(&g->cu, why, cap);
    if (ret) {
        free(g);
        return ret;
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->launch_lock, NULL);
    ret = open_gpu(g);
    if (ret) {
        snprintf(why, cap, "GPU %d could not be set up", wish->gpu);
        pthread_mutex_destroy(&g->lock);
        pthread_mutex_destroy(&g->launch_lock);
        nb_cuda_close();
        free(g);
        return ret;
    }
    pthread_mutex_lock(&list_lock);
    g->serial = serials++;
    g->next = list;
    list = g;
    pthread_mutex_unlock(&list_lock);
    announce(g);
    *out = g;
    return 0;
}

void nb_gpu_put(struct nb_gpu *g)
{
    struct nb_gpu **link = &list;
    int mode;

    pthread_mutex_lock(&list_lock);
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    pthread_mutex_unlock(&list_lock);
    NB_INFO(NCCL_INIT | NCCL_NET,
            "cuda: GPU %d: %llu works, %llu times the ring was full, %llu launches (%llu for a batch), "
            "memory %zu MiB of "
            "%zu, grown %llu times, refused %llu times",
            g->ordinal, (unsigned long long)g->ring.done, (unsigned long long)g->ring.full,
            (unsigned long long)atomic_load(&g->launches.launched), (unsigned long long)g->launches.alone,
            g->arena.peak >> 20, g->arena.mapped >> 20, (unsigned long long)g->arena.grown,
            (unsigned long long)g->arena.refused);
    if (!nb_launch_drain(g)) {
        NB_WARN("cuda: GPU %d: a codec kernel does not end, its memory is left as it is: %llu launched, %llu "
                "begun, %llu ended, "
                "%llu told to end",
                g->ordinal, (unsigned long long)atomic_load(&g->launches.launched),
                (unsigned long long)__atomic_load_n(&g->ring.host->ring.started, __ATOMIC_ACQUIRE),
                (unsigned long long)__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE),
                (unsigned long long)g->launches.told);
        return;
    }
    if (!nb_gpu_enter(g, &mode)) {
        unmake(g);
        nb_gpu_leave(g, mode);
    }
    NB_CU(g->cu, "giving back the GPU's context", DevicePrimaryCtxRelease_v2(g->device));
    nb_cuda_close();
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->launch_lock);
    free(g);
}

struct nb_gpu *nb_gpu_find(int ordinal, uint64_t comm_id, int nnodes)
{
    struct nb_gpu *g, *like = NULL;
    int n = 0;

    pthread_mutex_lock(&list_lock);
    for (g = list; g; g = g->next) {
        if (g->ordinal != ordinal)
            continue;
        if (comm_id && g->comm_id == comm_id)
            return g;
        if (g->nranks == nnodes) {
            like = g;
            n++;
        }
    }
    if (n == 1)
        return like;
    pthread_mutex_unlock(&list_lock);
    return NULL;
}

struct nb_gpu *nb_gpu_find_serial(uint16_t serial)
{
    struct nb_gpu *g;

    pthread_mutex_lock(&list_lock);
    for (g = list; g && g->serial != serial; g = g->next)
        ;
    if (!g)
        pthread_mutex_unlock(&list_lock);
    return g;
}

void nb_gpu_unfind(void)
{
    pthread_mutex_unlock(&list_lock);
}

void nb_gpu_fail(struct nb_gpu *g, int error)
{
    int none = 0;

    atomic_compare_exchange_strong(&g->failed, &none, error);
    nb_ring_cancel(g);
}
