/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler, without table versions; see api.h. Of all events only the user's call of a collective
 * (CollApi, v5 and later), its launch (Coll), the launch of NCCL's kernel (KernelLaunch, v5 and later) and
 * what copy engines do without one (CeColl, v6) are wanted; NCCL delivers their relatives too, which get a
 * NULL handle, so that no handle of an earlier event is left in their place. A profiler that comes after ours
 * has its part of all of them, see profiler_next.h.
 *
 * Usable without the other tables and without a logger. Nothing here ever fails: an operation that could not
 * be recorded is exchanged raw.
 */
#include <stdint.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/profiler_next.h"
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
    .posted = nb_launch_posted,
};

/* ---- The tables' functions ----------------------------------------------------------------------------- */

#define CALLS_REPORTED \
    5 /* from this version on NCCL reports the users' calls and the launches of its kernels */

#define COPY_ENGINES_REPORTED 6 /* and what copy engines carry out */

/* Which events nibble wants. */
static int wanted(int version)
{
    int mask = ncclProfileColl;

    if (version >= CALLS_REPORTED)
        mask |= ncclProfileCollApi | ncclProfileKernelLaunch;
    if (version >= COPY_ENGINES_REPORTED)
        mask |= ncclProfileCeColl;
    return mask;
}

static struct nb_events *begin(const struct nb_prof_setting *s)
{
    struct nb_context *ctx = nb_process_context();
    struct nb_events *events = NULL;

    if (ctx)
        events = nb_events_create(ctx, &to_device, s->comm_id, s->nnodes, s->nranks, s->rank,
                                  s->version >= CALLS_REPORTED);
    if (!events) {
        NB_INFO(NCCL_INIT | NCCL_PROFILE, "no memory to record operations of communicator 0x%llx",
                (unsigned long long)s->comm_id);
        return NULL;
    }
    nb_process_profilers(1);
    nb_events_name(events, s->name);
    return events;
}

static void end(struct nb_events *events)
{
    if (events) {
        nb_events_destroy(events);
        nb_process_profilers(-1);
    }
}

ncclResult_t nb_api_prof_init(void **context, const struct nb_prof_setting *setting)
{
    struct nb_events *events;
    int mask = 0; /* NCCL's is shared by all communicators: one that is not recorded does not change it */

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (setting->logger)
        nb_log_set(setting->logger);
    events = begin(setting);
    if (events)
        mask = wanted(setting->version);
    *context = nb_prof_next_init(setting, events, mask);
    if (!*context)
        end(events);
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

/* What nibble makes of an event: its handle. The context of others may be another process's. */
static void *start_own(void *context, const struct nb_api_event *event)
{
    switch (event->type) {
    case ncclProfileCollApi:
        context = nb_prof_next_own(context);
        return context ? start_call(context, event->call) : NULL;
    case ncclProfileColl:
        context = nb_prof_next_own(context);
        return context ? start_launch(context, nb_prof_next_own_event(event->parent), event->coll) : NULL;
    case ncclProfileGroup: return nb_prof_next_own(context) ? nb_events_grouped() : NULL;
    case ncclProfileKernelLaunch:
        context = nb_prof_next_own(context);
        return context ? nb_events_kernel(context, event->stream) : NULL;
    case ncclProfileCeColl:
        context = nb_prof_next_own(context);
        if (context && event->version >= COPY_ENGINES_REPORTED)
            nb_events_copy_engine(context,
                                  ((const ncclProfilerEventDescr_v6_t *)event->description)->ceColl.func);
        return NULL;
    default: return NULL;
    }
}

ncclResult_t nb_api_prof_start(void *context, void **handle, const struct nb_api_event *event)
{
    void *own;

    if (!event || !context) {
        if (handle)
            *handle = NULL;
        return ncclSuccess;
    }
    own = start_own(context, event);
    /* Before the calls are reported, no end of an event is of interest. */
    if (event->version < CALLS_REPORTED)
        own = NULL;
    return nb_prof_next_start(context, handle, own, event->version, event->description,
                              event->type == ncclProfileCollApi && event->call->graphCaptured);
}

/* The launch of NCCL's kernel, of an operation, and of all of a kernel: of interest for our own kernel's. A call is over before
 * it is launched, so there is nothing to end. */
ncclResult_t nb_api_prof_stop(void *handle)
{
    nb_events_stop(nb_prof_next_own_event(handle));
    return nb_prof_next_stop(handle);
}

ncclResult_t nb_api_prof_state(void *handle, ncclProfilerEventState_v4_t state,
                               ncclProfilerEventStateArgs_v4_t *args)
{
    return nb_prof_next_state(handle, state, args);
}

ncclResult_t nb_api_prof_finalize(void *context)
{
    if (!context)
        return ncclSuccess;
    end(nb_prof_next_own(context));
    return nb_prof_next_finalize(context);
}
