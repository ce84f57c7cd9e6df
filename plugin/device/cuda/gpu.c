/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's part of its GPU: context, kernel, memory, ring and launches. Each communicator has its own
 * ring and its own kernels. One ring for all communicators of a GPU would deadlock. Kernels beside NCCL's
 * launches on several streams, one after the other on one ring, begin in the order of the launches. A kernel
 * that stands first waits for its own stream, and the work of another stream's operation waits behind it. A
 * running kernel that went on for all communicators would block the stream that it is joined to.
 * tests/device/test_cuda_launch.c has three communicators that deadlocked this way. As many kernels run at
 * once as communicators have operations at once. Their blocks come out of one budget (gpus.c).
 *
 *   driver.c    the GPU's context, pinned memory
 *   arena.c     GPU memory: reserved at connect, grown on demand, given back at the end
 *   thread.c    driver threads, which call the driver once the communicator is connected
 *   ring.c      descriptors to the kernel and results back
 *   escape.c    work whose kernel does not begin: by the adapter and this processor (processor.c)
 *   launch.c    when the kernel runs: around NCCL's own launches, or for a batch
 *   turn.c      the engine's half of launches
 *   observer.c  the choice between these two ways of launching, and reports of NCCL's launches
 *   memory.c    the owner of the memory at an address
 *   table.h     the device that the engine sees
 *
 * Threads: `lock` covers everything but launching, which has the lock of struct nb_launches. NCCL's launching
 * threads take the launches' lock, and the driver may hold them up for as long as the GPU's queues are full,
 * which can depend on the engine. A thread that has `lock` therefore only tries to take the launches' lock.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

#define REST_NS INT64_C(5000000000)

/* Load the kernel now. With lazy loading the first launch would load it, and might wait for all other kernels
 * on the GPU. Also check that the compiler gave it no local memory, which a launch may have to allocate. */
static int load_kernel(struct nb_gpu *g)
{
    int ret, local = 0, threads = 0;

    ret = NB_CU(g->cuda.cu, "loading the codec kernel", ModuleLoadData(&g->module, g->cuda.cu->image));
    if (ret)
        return ret;
    ret = NB_CU(g->cuda.cu, "finding the codec kernel",
                ModuleGetFunction(&g->kernel, g->module, NB_GPU_KERNEL));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "preloading the codec kernel",
                    FuncGetAttribute(&local, NB_CU_FUNC_LOCAL_BYTES, g->kernel));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "threads of the codec kernel",
                    FuncGetAttribute(&threads, NB_CU_FUNC_MOST_THREADS, g->kernel));
    if (!ret && (unsigned)threads / NB_GPU_THREADS < g->teams)
        g->teams = (unsigned)threads / NB_GPU_THREADS;
    if (!ret)
        ret = NB_CU(
            g->cuda.cu, "shared memory of the codec kernel",
            FuncSetAttribute(g->kernel, NB_CU_FUNC_DYNAMIC_SHARED, (int)(g->teams * NB_GPU_TEAM_SHARED)));
    if (!ret && local)
        NB_INFO(NCCL_INIT, "cuda: the kernel uses %d bytes of local memory a thread on GPU %d", local,
                g->cuda.ordinal);
    return ret;
}

/* Make everything that needs the context. unmake frees it in any state. */
static int make(struct nb_gpu *g)
{
    int ret = load_kernel(g);

    if (!ret)
        ret = nb_arena_open(&g->arena, &g->cuda, (size_t)g->ctx->params->gpu_reserve_mb << 20,
                            atomic_load(&g->ctx->gpus->pointers));
    if (!ret)
        ret = nb_launches_open(&g->launches, g->ctx, &g->cuda, &g->ring, g->kernel, g->multiprocessors,
                               g->teams);
    if (!ret)
        ret = nb_ring_open(&g->ring, &g->arena, &g->ctx->clock, g->launches.stream, g->major);
    return ret;
}

static void unmake(struct nb_gpu *g)
{
    nb_launches_close(&g->launches);
    nb_ring_close(&g->ring);
    nb_arena_close(&g->arena);
    if (g->module)
        NB_CU(g->cuda.cu, "unloading the codec kernel", ModuleUnload(g->module));
    g->module = NULL;
}

static int describe(struct nb_gpu *g)
{
    int ret, unified = 0, shared = 0;

    ret = NB_CU(g->cuda.cu, "name of the GPU", DeviceGetName(g->name, sizeof(g->name), g->cuda.device));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "size of the GPU",
                    DeviceGetAttribute(&g->multiprocessors, NB_CU_ATTR_MULTIPROCESSORS, g->cuda.device));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "generation of the GPU",
                    DeviceGetAttribute(&g->major, NB_CU_ATTR_CAPABILITY_MAJOR, g->cuda.device));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "addresses of the GPU",
                    DeviceGetAttribute(&unified, NB_CU_ATTR_UNIFIED_ADDRESSING, g->cuda.device));
    if (!ret)
        ret = NB_CU(g->cuda.cu, "shared memory of the GPU",
                    DeviceGetAttribute(&shared, NB_CU_ATTR_BLOCK_SHARED, g->cuda.device));
    if (!ret && (unsigned)shared < NB_GPU_TEAM_SHARED) {
        NB_WARN("cuda: GPU %d has %d bytes of shared memory for a block, and the codec kernel needs %u",
                g->cuda.ordinal, shared, NB_GPU_TEAM_SHARED);
        ret = -ENOTSUP;
    }
    g->teams = (unsigned)shared / NB_GPU_TEAM_SHARED;
    if (g->teams > NB_GPU_TEAMS)
        g->teams = NB_GPU_TEAMS;
    if (!ret && !unified) {
        NB_WARN("cuda: GPU %d has no unified addresses", g->cuda.ordinal);
        ret = -ENOTSUP;
    }
    return ret;
}

/* Set up everything that needs the GPU's open context. */
static int set_up(struct nb_gpu *g)
{
    int mode, ret = describe(g);

    if (!ret)
        ret = nb_cuda_enter(&g->cuda, &mode);
    if (ret)
        return ret;
    ret = make(g);
    if (ret)
        unmake(g);
    nb_cuda_leave(&g->cuda, mode);
    return ret;
}

static void take_down(struct nb_gpu *g)
{
    int mode;

    if (!nb_cuda_enter(&g->cuda, &mode)) {
        unmake(g);
        nb_cuda_leave(&g->cuda, mode);
    } else {
        nb_launches_forget(&g->launches);
        nb_arena_forget(&g->arena);
    }
}

static void grow_arena(struct nb_gpu *g)
{
    size_t bytes;
    int mode;

    pthread_mutex_lock(&g->lock);
    bytes = g->grow;
    g->grow = 0;
    pthread_mutex_unlock(&g->lock);
    if (!bytes || nb_cuda_enter(&g->cuda, &mode))
        return;
    nb_arena_grow(&g->arena, bytes, &g->lock); /* logged. The allocation that needs it will fail */
    nb_cuda_leave(&g->cuda, mode);
}

void nb_gpu_register(struct nb_gpu *g, uint64_t base, size_t bytes, int fd, uint64_t offset)
{
    nb_escape_add(&g->escape, base, bytes, fd, offset);
    pthread_mutex_lock(&g->lock);
    nb_escape_tidy(&g->escape);
    pthread_mutex_unlock(&g->lock);
}

/* Register a part of the arena, where there is an adapter. bytes 0: end that. */
static void register_part(void *arg, nb_cu_ptr at, size_t bytes)
{
    struct nb_gpu *g = arg;

    if (!bytes) {
        nb_escape_remove(&g->escape, at);
        return;
    }
    if (!nb_escape_possible(&g->escape))
        return;
    nb_log_mildly(true); /* without a descriptor the address may do */
    const int fd = nb_cuda_dmabuf(&g->cuda, at, bytes);
    nb_log_mildly(false);
    nb_gpu_register(g, at, bytes, fd, 0);
    if (fd >= 0)
        close(fd);
}

void nb_gpu_use_adapter(struct nb_gpu *g, const struct nb_adapter *adapter)
{
    pthread_mutex_lock(&g->lock);
    nb_escape_use(&g->escape, adapter, &g->ring);
    const struct nb_arena_map *map = g->arena.maps;
    pthread_mutex_unlock(&g->lock);
    if (adapter && g->arena.virtual_memory && !g->arena.for_adapters)
        nb_escape_give_up(&g->escape, "the GPU's memory is not for adapters");
    for (; map; map = map->next) /* the list only grows, in front of this one */
        register_part(g, map->at, map->bytes);
}

/* Work of the two driver threads. Memory has a thread of its own, so that a launch for which NCCL's kernel
 * waits never stands behind it. */
static void launch_kernels(void *arg, unsigned wanted)
{
    struct nb_gpu *g = arg;

    (void)wanted;
    nb_launches_alone(&g->launches);
}

static void grow(void *arg, unsigned wanted)
{
    (void)wanted;
    grow_arena(arg);
}

void nb_gpu_grow(struct nb_gpu *g, size_t bytes)
{
    pthread_mutex_lock(&g->lock);
    g->arena.refused++;
    g->grow += bytes;
    pthread_mutex_unlock(&g->lock);
    nb_cuda_thread_ask(&g->grower, NB_CUDA_THREAD_GROW);
}

static int loads_eagerly(void)
{
    const char *how = getenv("CUDA_MODULE_LOADING");
    return how && strcmp(how, "EAGER") == 0;
}

static void announce(const struct nb_gpu *g)
{
    const struct nb_launches *l = &g->launches;

    NB_INFO(
        NCCL_INIT | NCCL_NET,
        "cuda: GPU %d (%s): codecs run on it, at most %u blocks on %d multiprocessors, memory %s, %zu MiB at "
        "first",
        g->cuda.ordinal, g->name, l->blocks, g->multiprocessors,
        g->arena.virtual_memory ? "grows on demand" : "cannot grow (no virtual memory management)",
        g->arena.mapped >> 20);
    if (l->how == NB_LAUNCH_RESIDENT)
        NB_INFO(NCCL_INIT | NCCL_NET,
                "cuda: the kernel is launched beside each of NCCL's (KernelLaunch events), also in graphs%s",
                l->together ? ", both by one call"
                : loads_eagerly()
                    ? ", behind it (NIBBLE_GPU_LAUNCH=behind)"
                    : ", behind it (NIBBLE_GPU_LAUNCH=behind). Set CUDA_MODULE_LOADING=EAGER if several "
                      "threads launch kernels: a thread that loads a kernel between NCCL's launch and this "
                      "one holds up both");
    else
        NB_INFO(NCCL_INIT | NCCL_NET,
                "cuda: the kernel is launched for each batch of work, on a stream of its own: %s",
                g->ctx->params->gpu_launch == NB_GPU_LAUNCH_BATCH
                    ? "NIBBLE_GPU_LAUNCH says so"
                    : "no KernelLaunch events from NCCL (before 2.28, or another profiler)");
}

static void free_gpu(struct nb_gpu *g)
{
    nb_escape_destroy(&g->escape);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->launches.lock);
    free(g);
}

static int start_threads(struct nb_gpu *g)
{
    int ret = nb_cuda_thread_start(&g->thread, launch_kernels, g);

    if (ret)
        return ret;
    ret = nb_cuda_thread_start(&g->grower, grow, g);
    if (ret)
        nb_cuda_thread_stop(&g->thread, &g->ctx->clock);
    return ret;
}

int nb_gpu_get(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_gpu **out, char *why,
               size_t cap)
{
    struct nb_gpu *g;
    enum nb_launching how;
    int ret;

    ret = nb_launch_choose(ctx, wish->gpu, &how, why, cap);
    if (ret)
        return ret;
    g = calloc(1, sizeof(*g));
    if (!g) {
        NB_WARN("cuda: out of memory");
        return -ENOMEM;
    }
    g->ctx = ctx;
    g->comm_id = wish->comm_id;
    g->nnodes = wish->nnodes;
    g->launches.how = how;
    g->launches.together = ctx->params->gpu_launch != NB_GPU_LAUNCH_BEHIND;
    g->launches.queues = nb_launch_queues();
    g->launches.mbps = wish->mbps;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->launches.lock, NULL);
    g->launches.thread = &g->thread;
    g->launches.escape = &g->escape;
    nb_escape_init(&g->escape, &g->arena, &ctx->clock);
    g->arena.made = register_part;
    g->arena.made_arg = g;
    ret = nb_cuda_context_open(&g->cuda, wish->gpu, why, cap);
    if (!ret) {
        ret = set_up(g);
        if (!ret && (ret = start_threads(g)) != 0)
            take_down(g);
        if (ret)
            nb_cuda_context_close(&g->cuda);
    }
    if (ret) {
        if (ret != -ENODEV)
            snprintf(why, cap, "GPU %d could not be set up", wish->gpu);
        free_gpu(g);
        return ret;
    }
    nb_gpus_add(ctx->gpus, g);
    announce(g);
    *out = g;
    return 0;
}

/* Wait until all kernels, all launches of other threads and the driver threads have ended. Return 1, or 0
 * when that takes too long. */
static int come_to_rest(struct nb_gpu *g)
{
    const int64_t limit = nb_clock_ns(&g->ctx->clock) + REST_NS;
    const struct timespec pause = {0, 100000};

    for (;;) {
        const int used = nb_gpus_used(g->ctx->gpus, g); /* first, so that later launches are drained */
        if (!nb_launches_drain(&g->launches))
            return 0;
        if (!used)
            break;
        if (nb_clock_ns(&g->ctx->clock) > limit)
            return 0;
        nanosleep(&pause, NULL);
    }
    if (!nb_cuda_thread_stop(&g->thread, &g->ctx->clock) || !nb_cuda_thread_stop(&g->grower, &g->ctx->clock))
        return 0;
    return nb_launches_drain(&g->launches);
}

void nb_gpu_put(struct nb_gpu *g)
{
    nb_gpus_remove(g->ctx->gpus, g);
    NB_INFO(NCCL_INIT | NCCL_NET,
            "cuda: GPU %d: %llu works (%llu by this processor), %llu times the ring was full, %llu launches "
            "(%llu for a batch), "
            "memory %zu MiB of %zu, grown %llu times, refused %llu times",
            g->cuda.ordinal, (unsigned long long)g->ring.done, (unsigned long long)g->escape.works,
            (unsigned long long)g->ring.full, (unsigned long long)atomic_load(&g->launches.launched),
            (unsigned long long)g->launches.alone, g->arena.peak >> 20, g->arena.mapped >> 20,
            (unsigned long long)g->arena.grown, (unsigned long long)g->arena.refused);
    if (!come_to_rest(g)) {
        NB_WARN(
            "cuda: GPU %d: a codec kernel does not end, so its memory stays allocated: %llu launched, %llu "
            "begun, %llu ended, %llu told to end",
            g->cuda.ordinal, (unsigned long long)atomic_load(&g->launches.launched),
            (unsigned long long)__atomic_load_n(&g->ring.host->ring.started, __ATOMIC_ACQUIRE),
            (unsigned long long)__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE),
            (unsigned long long)g->launches.told);
        return;
    }
    take_down(g);
    nb_cuda_context_close(&g->cuda);
    free_gpu(g);
}
