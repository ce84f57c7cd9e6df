/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler tables, ncclProfiler_v4 to _v6. Of all events only the user's call of a collective (CollApi,
 * v5 and later), its launch (Coll) and the launch of NCCL's kernel (KernelLaunch, v5 and later) are wanted; NCCL
 * delivers their relatives too, which get a NULL handle, so that no handle of an earlier event is left in their place.
 *
 * Usable without the other tables and without a logger. Nothing here ever fails: an operation that could not
 * be recorded is exchanged raw.
 */
#include <stdint.h>

#include "abi/properties.h"
#include "base/log.h"
#include "nibble/nccl_profiler.h"
#include "policy/events.h"

static ncclResult_t prof_init(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes, int nranks, int rank,
                              ncclDebugLogger_t logger, int has_calls)
{
    struct nb_events *events;

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (logger)
        nb_log_set(logger);
    events = nb_events_create(comm_id, nnodes, nranks, rank, has_calls);
    if (!events) { /* the mask is shared by all communicators: left as it is */
        NB_INFO(NCCL_INIT | NCCL_PROFILE, "no memory to record operations of communicator 0x%llx",
                (unsigned long long)comm_id);
        return ncclSuccess;
    }
    nb_events_name(events, name);
    *context = events;
    if (mask)
        *mask = has_calls ? ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch : ncclProfileColl;
    return ncclSuccess;
}

static ncclResult_t prof_init_v4(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                                 int nranks, int rank, ncclDebugLogger_t logger)
{
    return prof_init(context, mask, name, comm_id, nnodes, nranks, rank, logger, 0);
}

static ncclResult_t prof_init_v5(void **context, uint64_t comm_id, int *mask, const char *name, int nnodes,
                                 int nranks, int rank, ncclDebugLogger_t logger)
{
    return prof_init(context, mask, name, comm_id, nnodes, nranks, rank, logger, 1);
}

static ncclResult_t prof_start_v4(void *context, void **handle, ncclProfilerEventDescr_v4_t *descr)
{
    if (handle)
        *handle = NULL;
    if (context && descr && descr->type == ncclProfileColl) {
        const struct nb_prof_coll_v4 *c = &descr->coll;
        const struct nb_events_op op = {.func = c->func,
                                        .type = c->datatype,
                                        .algo = c->algo,
                                        .count = c->count,
                                        .seq = c->seqNumber,
                                        .send = c->sendBuff,
                                        .recv = c->recvBuff};
        nb_events_launch(context, &op);
    }
    return ncclSuccess;
}

static void *start_call(void *context, const struct nb_prof_coll_api *c)
{
    const struct nb_events_call call = {.func = c->func,
                                        .type = c->datatype,
                                        .count = c->count,
                                        .stream = c->stream,
                                        .captured = c->graphCaptured};
    return nb_events_call(context, &call);
}

static void *start_launch(void *context, const void *parent, const struct nb_prof_coll_v5 *c)
{
    const struct nb_events_op op = {.func = c->func,
                                    .type = c->datatype,
                                    .algo = c->algo,
                                    .count = c->count,
                                    .seq = c->seqNumber,
                                    .send = c->sendBuff,
                                    .recv = c->recvBuff,
                                    .call = parent};
    nb_events_launch(context, &op);
    return nb_events_launched();
}

static ncclResult_t prof_start_v5(void *context, void **handle, ncclProfilerEventDescr_v5_t *descr)
{
    void *made = NULL;

    if (context && descr && descr->type == ncclProfileCollApi)
        made = start_call(context, &descr->collApi);
    else if (context && descr && descr->type == ncclProfileColl)
        made = start_launch(context, descr->parentObj, &descr->coll);
    else if (context && descr && descr->type == ncclProfileKernelLaunch)
        made = nb_events_kernel(context, descr->kernelLaunch.stream);
    if (handle)
        *handle = made;
    return ncclSuccess;
}

static ncclResult_t prof_start_v6(void *context, void **handle, ncclProfilerEventDescr_v6_t *descr)
{
    void *made = NULL;

    if (context && descr && descr->type == ncclProfileCollApi)
        made = start_call(context, &descr->collApi);
    else if (context && descr && descr->type == ncclProfileColl)
        made = start_launch(context, descr->parentObj, &descr->coll);
    else if (context && descr && descr->type == ncclProfileKernelLaunch)
        made = nb_events_kernel(context, descr->kernelLaunch.stream);
    if (handle)
        *handle = made;
    return ncclSuccess;
}

/* A call is over before it is launched, so there is nothing to end. */
static ncclResult_t prof_stop_v4(void *handle)
{
    (void)handle;
    return ncclSuccess;
}

/* The launch of NCCL's kernel, and of an operation: of interest for our own kernel's. */
static ncclResult_t prof_stop_v5(void *handle)
{
    nb_events_stop(handle);
    return ncclSuccess;
}

static ncclResult_t prof_state_v4(void *handle, ncclProfilerEventState_v4_t state,
                                  ncclProfilerEventStateArgs_v4_t *args)
{
    (void)handle;
    (void)state;
    (void)args;
    return ncclSuccess;
}

static ncclResult_t prof_finalize_v4(void *context)
{
    nb_events_destroy(context);
    return ncclSuccess;
}

NB_EXPORT const ncclProfiler_v4_t ncclProfiler_v4 = {
    .name = "nibble",
    .init = prof_init_v4,
    .startEvent = prof_start_v4,
    .stopEvent = prof_stop_v4,
    .recordEventState = prof_state_v4,
    .finalize = prof_finalize_v4,
};

NB_EXPORT const ncclProfiler_v5_t ncclProfiler_v5 = {
    .name = "nibble",
    .init = prof_init_v5,
    .startEvent = prof_start_v5,
    .stopEvent = prof_stop_v5,
    .recordEventState = prof_state_v4,
    .finalize = prof_finalize_v4,
};

NB_EXPORT const ncclProfiler_v6_t ncclProfiler_v6 = {
    .name = "nibble",
    .init = prof_init_v5,
    .startEvent = prof_start_v6,
    .stopEvent = prof_stop_v5,
    .recordEventState = prof_state_v4,
    .finalize = prof_finalize_v4,
};
