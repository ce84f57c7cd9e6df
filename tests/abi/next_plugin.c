/* SPDX-License-Identifier: Apache-2.0 */
/* See next_plugin.h. NEXT_VERSION is 4, 5, 6 or 7. */
#include "next_plugin.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define VERSION(name) JOIN(name, JOIN(_v, NEXT_VERSION))
#define TYPE(name) JOIN(VERSION(name), _t)

EXPORT struct next_plugin nb_next_plugin;

struct handle {
    int number;
};

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
    struct next_plugin *p = &nb_next_plugin;
    va_list ap;

    if (!p->log) /* loaded by a process that keeps no log */
        return;
    va_start(ap, fmt);
    p->used += (size_t)vsnprintf(p->log + p->used, p->cap - p->used, fmt, ap);
    va_end(ap);
    if (p->used >= p->cap)
        abort();
}

static int number(const void *handle)
{
    return handle ? ((const struct handle *)handle)->number : 0;
}

static struct handle *numbered(int n)
{
    static struct handle all[65536]; /* children may name a handle at any later time */
    static atomic_uint used;
    struct handle *h = &all[atomic_fetch_add(&used, 1) % 65536];

    h->number = n;
    return h;
}

/* ---- Profiler ------------------------------------------------------------------------------------------ */

static ncclResult_t prof_init(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                              int nranks, int rank)
{
    struct next_plugin *p = &nb_next_plugin;

    if (p->refuses)
        return p->refuses;
    *context = numbered(++p->contexts);
    __atomic_store_n(mask, p->mask, __ATOMIC_RELAXED);
    p->mask_of_nccl = mask;
    note("init %d: %s 0x%llx %d %d %d\n", p->contexts, name ? name : "-", (unsigned long long)comm_id, nnodes,
         nranks, rank);
    return ncclSuccess;
}

static ncclResult_t prof_start(void *context, void **handle, TYPE(ncclProfilerEventDescr) * d)
{
    /* A proxy's operation for another process, marked by the test: its parent, its context, and the context
     * of events below it belong to that process. */
    const bool foreign = d->type == ncclProfileProxyOp && d->proxyOp.pid < 0;
    const bool below = d->type == ncclProfileProxyStep || d->type == ncclProfileNetPlugin;

    *handle = numbered(++nb_next_plugin.handles);
    note("start %d: %d of %d in %d rank %d", number(*handle), (int)d->type,
         foreign ? -1 : number(d->parentObj), foreign || below ? -1 : number(context), d->rank);
    if (d->type == ncclProfileColl)
        note(" %s %s %zu %s %s %d %p", d->coll.func, d->coll.datatype, d->coll.count, d->coll.algo,
             d->coll.proto, d->coll.nChannels, d->coll.recvBuff);
#if NEXT_VERSION > 4
    if (d->type == ncclProfileColl)
        note(" group %d", number(d->coll.parentGroup));
    if (d->type == ncclProfileCollApi)
        note(" %s %s %zu %d", d->collApi.func, d->collApi.datatype, d->collApi.count,
             d->collApi.graphCaptured);
#endif
#if NEXT_VERSION > 6
    if (d->type == ncclProfileColl)
        note(" %s %d tag %llu", d->coll.kernelVariant, d->coll.isSymColl,
             (unsigned long long)d->coll.userTag);
    if (d->type == ncclProfileCollApi)
        note(" tag %llu", (unsigned long long)d->collApi.userTag);
    if (d->type == ncclProfileKernelPhase)
        note(" channel %d phase %d", d->kernelPhase.channelId, d->kernelPhase.phaseId);
#endif
    if (d->type == ncclProfileProxyStep)
        note(" step %d", d->proxyStep.step);
    if (d->type == ncclProfileKernelCh)
        note(" channel %d", d->kernelCh.channelId);
    note("\n");
    return ncclSuccess;
}

static ncclResult_t prof_stop(void *handle)
{
    note("stop %d\n", number(handle));
    return ncclSuccess;
}

static ncclResult_t prof_state(void *handle, int state, ncclProfilerEventStateArgs_v4_t *args)
{
    note("state %d: %d %d\n", number(handle), state, args ? args->proxyCtrl.appendedProxyOps : -1);
    return ncclSuccess;
}

static ncclResult_t prof_finalize(void *context)
{
    note("finalize %d\n", number(context));
    return ncclSuccess;
}

#if NEXT_VERSION == 4
static ncclResult_t prof_begin(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                               int nranks, int rank, ncclDebugLogger_t logger)
{
    (void)logger;
    return prof_init(context, mask, name, comm_id, nnodes, nranks, rank);
}
#else
static ncclResult_t prof_begin(void **context, uint64_t comm_id, int *mask, const char *name, int nnodes,
                               int nranks, int rank, ncclDebugLogger_t logger)
{
    (void)logger;
    return prof_init(context, mask, name, comm_id, nnodes, nranks, rank);
}
#endif

EXPORT const TYPE(ncclProfiler) VERSION(ncclProfiler) = {
    .name = "next",
    .init = prof_begin,
    .startEvent = prof_start,
    .stopEvent = prof_stop,
    .recordEventState = prof_state,
    .finalize = prof_finalize,
};

#if NEXT_VERSION <= NB_TUNER_NEWEST
/* ---- Tuner --------------------------------------------------------------------------------------------- */

static ncclResult_t tuner_init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes)
{
    struct next_plugin *p = &nb_next_plugin;

    *context = numbered(++p->contexts);
    note("init %d: 0x%llx %zu %zu\n", p->contexts, (unsigned long long)comm_id, nranks, nnodes);
    return ncclSuccess;
}

static ncclResult_t tuner_info(void *context, ncclFunc_t func, size_t bytes, int ops, float **table,
                               int algos, int protos, int registered, int *channels)
{
    const struct next_plugin *p = &nb_next_plugin;

    note("info %d: %d %zu %d %d %d %d %d %g\n", number(context), (int)func, bytes, ops, algos, protos,
         registered, *channels, (double)((float *)table)[NCCL_ALGO_RING * protos]);
    if (p->refuses)
        return p->refuses;
    if (p->prefers >= 0) {
        ((float *)table)[p->prefers * protos] = p->writes;
        *channels = 7;
    }
    return ncclSuccess;
}

static ncclResult_t tuner_end(void *context)
{
    note("finalize %d\n", number(context));
    return ncclSuccess;
}

#if NEXT_VERSION == 4
static ncclResult_t tuner_begin(size_t nranks, size_t nnodes, ncclDebugLogger_t logger, void **context)
{
    (void)logger;
    return tuner_init(context, 0, nranks, nnodes);
}
#else
static ncclResult_t tuner_begin(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                                ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                                ncclTunerConstants_v5_t *constants)
{
    (void)logger;
    (void)domains;
    (void)constants;
    return tuner_init(context, comm_id, nranks, nnodes);
}
#endif

#if NEXT_VERSION == 6
static ncclResult_t tuner_chunk(void *context, ncclFunc_t func, size_t bytes, int algo, int proto,
                                int channels, size_t *chunk)
{
    note("chunk %d: %d %zu %d %d %d %zu\n", number(context), (int)func, bytes, algo, proto, channels, *chunk);
    *chunk = 4096;
    return ncclSuccess;
}
#endif

EXPORT const TYPE(ncclTuner) VERSION(ncclTunerPlugin) = {
    .name = "next",
    .init = tuner_begin,
    .getCollInfo = tuner_info,
#if NEXT_VERSION == 4
    .destroy = tuner_end,
#else
    .finalize = tuner_end,
#endif
#if NEXT_VERSION == 6
    .getChunkSize = tuner_chunk,
#endif
};
#endif
