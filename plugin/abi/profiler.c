/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler, without table versions. See api.h. nibble wants these events: the user's call of a collective
 * (CollApi, v5 and later), its launch (Coll), the launch of NCCL's kernel (KernelLaunch, v5 and later), and
 * collectives of copy engines (CeColl, v6 and later). NCCL delivers related events too. They get a NULL
 * handle, which replaces an earlier event's handle. The next profiler gets its part of all events, see
 * profiler_next.h.
 *
 * The profiler works without the other tables and without a logger. These functions never fail of themselves:
 * the engine exchanges an operation without a record raw.
 */
#include <stdint.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/profiler_next.h"
#include "base/log.h"
#include "device/cuda/cuda.h"
#include "nibble/nccl_profiler.h"
#include "policy/job/job.h"
#include "policy/records/records.h"

/* ---- Launches: for the codec kernel that runs beside NCCL's -------------------------------------------- */

static const struct nb_launch_observer to_device = {
    .attached = nb_launch_attached,
    .begin = nb_launch_begin,
    .end = nb_launch_end,
    .handed = nb_launch_handed,
    .posted = nb_launch_posted,
};

/* ---- The tables' functions ----------------------------------------------------------------------------- */

#define CALLS_REPORTED \
    5 /* from this version on NCCL reports the users' calls and the launches of its kernels */

#define COPY_ENGINES_REPORTED 6 /* and the collectives of copy engines */

#define SYMMETRY_REPORTED 7 /* and which launches are kernels for symmetric memory */

/* Return the NB_REPORTS bits of a version. */
static unsigned reports(int version)
{
    return (version >= CALLS_REPORTED ? NB_REPORTS_CALLS : 0) |
           (version >= SYMMETRY_REPORTED ? NB_REPORTS_SYMMETRY : 0);
}

/* Return the mask of events that nibble wants. */
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
        events =
            nb_events_create(ctx, &to_device, s->comm_id, s->nnodes, s->nranks, s->rank, reports(s->version));
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
    int mask = 0; /* all communicators share NCCL's mask, and one without records leaves it alone */

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

static void *start_call(void *context, const struct nb_prof_coll_api *c, uint64_t tag)
{
    struct nb_events_call call = {
        .func = c->func, .type = c->datatype, .count = c->count, .captured = c->graphCaptured, .tag = tag};

    if (nb_events_asks_caller(context, &call)) /* NCCL reports on the calling thread */
        call.caller = nb_stack_caller();
    return nb_events_call(context, &call);
}

static void *start_launch(void *context, const void *parent, const struct nb_api_event *event)
{
    const struct nb_prof_coll_v5 *c = event->coll;
    const struct nb_events_op op = {.func = c->func,
                                    .type = c->datatype,
                                    .algo = c->algo,
                                    .count = c->count,
                                    .seq = c->seqNumber,
                                    .send = c->sendBuff,
                                    .recv = c->recvBuff,
                                    .call = parent,
                                    .symmetric = event->symmetric};
    nb_events_launch(context, &op);
    return nb_events_launched();
}

/* Return nibble's handle for an event. The context of foreign events may belong to another process. */
static void *start_own(void *context, const struct nb_api_event *event)
{
    switch (event->type) {
    case ncclProfileCollApi:
        context = nb_prof_next_own(context);
        return context ? start_call(context, event->call, event->tag) : NULL;
    case ncclProfileColl:
        context = nb_prof_next_own(context);
        return context ? start_launch(context, nb_prof_next_own_event(event->parent), event) : NULL;
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
    /* Before CALLS_REPORTED nibble ignores the ends of events. */
    if (event->version < CALLS_REPORTED)
        own = NULL;
    return nb_prof_next_start(context, handle, own, event->version, event->description,
                              event->type == ncclProfileCollApi && event->call->graphCaptured);
}

/* The end of a KernelLaunch event, of a Coll event and of the launches of a kernel concerns nibble's own
 * kernel. The end of a call needs no action, since a call ends before its launch. */
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
