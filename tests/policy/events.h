/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's side of the profiler table, for tests: the events of one operation in NCCL's order and words. */
#ifndef NIBBLE_TESTS_POLICY_EVENTS_H
#define NIBBLE_TESTS_POLICY_EVENTS_H

#include <string.h>

#include "nibble/nccl_profiler.h"

struct ev_comm { /* a communicator as its profiler sees it */
    void *ctx;
    int mask;
    uint64_t seq[3]; /* NCCL's operation numbers by function. Captured operations do not advance them */
};

enum { EV_ALL_REDUCE, EV_ALL_GATHER, EV_REDUCE_SCATTER };

struct ev_op {
    int func;
    const char *type; /* of the user's call */
    size_t type_bytes;
    size_t count; /* of the user's call */
    const void *send;
    void *recv;
    const char *algo;
    bool captured;
    bool symmetric; /* launched with a kernel for symmetric memory */
    uint64_t tag;   /* of the user's call */
    void *call;     /* set by ev_call */
};

static const char *const ev_funcs[] = {"AllReduce", "AllGather", "ReduceScatter"};

static inline void ev_open(const ncclProfiler_v7_t *prof, struct ev_comm *c, uint64_t id, int nnodes,
                           int nranks, int rank)
{
    memset(c, 0, sizeof(*c));
    prof->init(&c->ctx, id, &c->mask, NULL, nnodes, nranks, rank, NULL);
}

/* Fire the events of the user's call. */
static inline void ev_call(const ncclProfiler_v7_t *prof, struct ev_comm *c, struct ev_op *op)
{
    ncclProfilerEventDescr_v7_t d;

    memset(&d, 0, sizeof(d));
    d.type = ncclProfileCollApi;
    d.collApi.func = ev_funcs[op->func];
    d.collApi.count = op->count;
    d.collApi.datatype = op->type;
    d.collApi.graphCaptured = op->captured;
    d.collApi.userTag = op->tag;
    prof->startEvent(c->ctx, &op->call, &d);
    if (op->call)
        prof->stopEvent(op->call);
}

/* Fire the events of the launch, or of one replay of it. With `told` 0 the event is lost on its way. */
static inline void ev_launch(const ncclProfiler_v7_t *prof, struct ev_comm *c, const struct ev_op *op,
                             int told)
{
    ncclProfilerEventDescr_v7_t d;
    void *handle = (void *)(uintptr_t)0xdead;

    memset(&d, 0, sizeof(d));
    d.type = ncclProfileColl;
    d.parentObj = op->call;
    d.coll.seqNumber = c->seq[op->func];
    d.coll.func = ev_funcs[op->func];
    d.coll.sendBuff = op->send;
    d.coll.recvBuff = op->recv;
    d.coll.count = op->func == EV_ALL_GATHER ? op->count * op->type_bytes : op->count;
    d.coll.datatype = op->func == EV_ALL_GATHER ? "ncclInt8" : op->type;
    d.coll.algo = op->algo ? op->algo : "COLLNET_DIRECT";
    d.coll.proto = "SIMPLE";
    d.coll.isSymColl = op->symmetric;
    if (told) {
        prof->startEvent(c->ctx, &handle, &d);
        if (handle)
            prof->stopEvent(handle);
    }
    if (!op->captured)
        c->seq[op->func]++;
}

static inline void ev_close(const ncclProfiler_v7_t *prof, struct ev_comm *c)
{
    if (c->ctx)
        prof->finalize(c->ctx);
    c->ctx = NULL;
}

#endif
