/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler, without table versions; see api.h. Of all events only the user's call of a collective
 * (CollApi, v5 and later), its launch (Coll) and the launch of NCCL's kernel (KernelLaunch, v5 and later) are
 * wanted; NCCL delivers their relatives too, which get a NULL handle, so that no handle of an earlier event
 * is left in their place.
 *
 * Usable without the other tables and without a logger. Nothing here ever fails: an operation that could not
 * be recorded is exchanged raw.
 */
#include <stdint.h>

#include "abi/api.h"
#include "abi/process.h"
#include "base/log.h"
#include "device/launch_observer.h"
#include "nibble/nccl_profiler.h"
#include "policy/events.h"
#include "policy/stack.h"

/* ---- Launches: for the codec kernel that runs beside NCCL's -------------------------------------------- */

static const struct nb_launch_observer to_device = {
    .attached = nb_launch_attached,
    .begin = nb_launch_begin,
    .end = nb_launch_end,
    .unused = nb_launch_unused,
};

/* ---- The tables' functions ----------------------------------------------------------------------------- */

ncclResult_t nb_api_prof_init(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                              int nranks, int rank, ncclDebugLogger_t logger, bool calls)
{
    struct nb_events *events = NULL;

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (logger)
        nb_log_set(logger);
    struct nb_context *ctx = nb_process_context();
    if (ctx)
        events = nb_events_create(ctx, &to_device, comm_id, nnodes, nranks, rank, calls);
    if (!events) { /* the mask is shared by all communicators: left as it is */
        NB_INFO(NCCL_INIT | NCCL_PROFILE, "no memory to record operations of communicator 0x%llx",
                (unsigned long long)comm_id);
        return ncclSuccess;
    }
    nb_process_profilers(1);
    nb_events_name(events, name);
    *context = events;
    if (mask)
        *mask = calls ? ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch : ncclProfileColl;
    return ncclSuccess;
}

static void *start_call(void *context, const struct nb_prof_coll_api *c)
{
    struct nb_events_call call = {.func = c->func,
                                  .type = c->datatype,
                                  .count = c->count,
                                  .stream = c->stream,
                                  .captured = c->graphCaptured};

    if (nb_events_asks_caller(context, &call)) /* NCCL tells on the thread that calls it */
        call.caller = nb_stack_caller();
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

ncclResult_t nb_api_prof_start(void *context, void **handle, const struct nb_api_event *event)
{
    void *made = NULL;

    if (context && event && event->type == ncclProfileCollApi)
        made = start_call(context, event->call);
    else if (context && event && event->type == ncclProfileColl)
        made = start_launch(context, event->parent, event->coll);
    else if (context && event && event->type == ncclProfileKernelLaunch)
        made = nb_events_kernel(context, event->stream);
    if (handle)
        *handle = made;
    return ncclSuccess;
}

/* The launch of NCCL's kernel, and of an operation: of interest for our own kernel's. A call is over before
 * it is launched, so there is nothing to end. */
ncclResult_t nb_api_prof_stop(void *handle)
{
    nb_events_stop(handle);
    return ncclSuccess;
}

ncclResult_t nb_api_prof_state(void *handle, ncclProfilerEventState_v4_t state,
                               ncclProfilerEventStateArgs_v4_t *args)
{
    (void)handle;
    (void)state;
    (void)args;
    return ncclSuccess;
}

ncclResult_t nb_api_prof_finalize(void *context)
{
    if (context) {
        nb_events_destroy(context);
        nb_process_profilers(-1);
    }
    return ncclSuccess;
}
