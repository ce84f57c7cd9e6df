/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl.h. */
#include "nccl.h"

#include "abi/tables.h"
#include "tests/harness/lib/harness.h"
#include "tests/policy/torch_stack.h"

struct hx_lib *nccl_lib(const struct fw_nccl *nccl)
{
#define NET(V) &ncclNetPlugin_v##V,
#define COLL(V) &ncclCollNetPlugin_v##V,
    static const void *const net[] = {NB_NET_VERSIONS(NET)};
    static const void *const coll[] = {NB_NET_VERSIONS(COLL)};

    return hx_lib_static(net[nccl->net - NB_NET_OLDEST], coll[nccl->net - NB_NET_OLDEST], nccl->net);
}

void nccl_open(struct nccl_comm *c, const struct fw_nccl *nccl, uint64_t id, int nodes, int ranks, int rank)
{
    *c = (struct nccl_comm){.nccl = nccl, .nodes = nodes};
    if (nccl->profiler == 4)
        ncclProfiler_v4.init(&c->events.ctx, &c->events.mask, "", id, nodes, ranks, rank, NULL);
    else if (nccl->profiler == 5)
        ncclProfiler_v5.init(&c->events.ctx, id, &c->events.mask, NULL, nodes, ranks, rank, NULL);
    else if (nccl->profiler == 6)
        ncclProfiler_v6.init(&c->events.ctx, id, &c->events.mask, NULL, nodes, ranks, rank, NULL);
    else if (nccl->profiler == 7)
        ev_open(&ncclProfiler_v7, &c->events, id, nodes, ranks, rank);
}

int nccl_open_tuner(struct nccl_comm *c, uint64_t id, int ranks)
{
    size_t r = (size_t)ranks, n = (size_t)c->nodes;
    ncclResult_t ret = ncclSuccess;

    if (c->nccl->tuner == 4)
        ret = ncclTunerPlugin_v4.init(r, n, hx_logger(), &c->tuner);
    else if (c->nccl->tuner == 5)
        ret = ncclTunerPlugin_v5.init(&c->tuner, id, r, n, hx_logger(), NULL, NULL);
    else if (c->nccl->tuner == 6)
        ret = ncclTunerPlugin_v6.init(&c->tuner, id, r, n, hx_logger(), NULL, NULL);
    return ret == ncclSuccess ? 0 : hx_fail("tuner init");
}

void nccl_close(struct nccl_comm *c)
{
    if (c->nccl && c->tuner && c->nccl->tuner == 4)
        ncclTunerPlugin_v4.destroy(c->tuner);
    else if (c->nccl && c->tuner)
        ncclTunerPlugin_v6.finalize(c->tuner);
    if (c->events.ctx)
        ncclProfiler_v7.finalize(c->events.ctx);
    c->tuner = c->events.ctx = NULL;
}

/* 2.27: launches only. */
static void launch_v4(struct nccl_comm *c, const struct ev_op *op)
{
    ncclProfilerEventDescr_v4_t d;
    void *handle = NULL;

    memset(&d, 0, sizeof(d));
    d.type = ncclProfileColl;
    d.coll.seqNumber = c->events.seq[op->func]++;
    d.coll.func = ev_funcs[op->func];
    d.coll.sendBuff = op->send;
    d.coll.recvBuff = op->recv;
    d.coll.count = op->func == EV_ALL_GATHER ? op->count * op->type_bytes : op->count;
    d.coll.datatype = op->func == EV_ALL_GATHER ? "ncclInt8" : op->type;
    d.coll.algo = op->algo;
    d.coll.proto = "SIMPLE";
    ncclProfiler_v4.startEvent(c->events.ctx, &handle, &d);
    if (handle)
        ncclProfiler_v4.stopEvent(handle);
}

/* Events of v5 and v6 are the beginning of v7's. */
#define OLDER(V) \
    static ncclResult_t start_v##V(void *ctx, void **handle, ncclProfilerEventDescr_v7_t *newest) \
    { \
        ncclProfilerEventDescr_v##V##_t d; \
        memcpy(&d, newest, sizeof(d)); \
        return ncclProfiler_v##V.startEvent(ctx, handle, &d); \
    }
OLDER(5)
OLDER(6)

static int ask(struct nccl_comm *c, enum nb_func func, size_t bytes)
{
    static const ncclFunc_t funcs[] = {[NB_FUNC_REDUCE_SCATTER] = ncclFuncReduceScatter,
                                       [NB_FUNC_ALL_GATHER] = ncclFuncAllGather,
                                       [NB_FUNC_ALL_REDUCE] = ncclFuncAllReduce};
    float table[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    int channels = 0;
    ncclResult_t ret;

    if (!c->nccl->tuner)
        return c->nodes > 1;
    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int b = 0; b < NCCL_NUM_PROTOCOLS_V5; b++)
            table[a][b] = a == NCCL_ALGO_RING ||
                                  (c->nodes > 1 && a == NCCL_ALGO_COLLNET_DIRECT && b == NCCL_PROTO_SIMPLE)
                              ? (float)(10 * (a + 1))
                              : -1.0f;
    ret = (c->nccl->tuner == 4   ? ncclTunerPlugin_v4.getCollInfo
           : c->nccl->tuner == 5 ? ncclTunerPlugin_v5.getCollInfo
                                 : ncclTunerPlugin_v6.getCollInfo)(c->tuner, funcs[func], bytes, 1,
                                                                   (float **)table, NCCL_NUM_ALGORITHMS_V5,
                                                                   NCCL_NUM_PROTOCOLS_V5, 0, &channels);
    if (ret != ncclSuccess || channels != 0)
        return -1;
    return c->nodes > 1 && table[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] < table[NCCL_ALGO_RING][0];
}

struct user_call {
    const ncclProfiler_v7_t *prof;
    struct nccl_comm *comm;
    struct ev_op *op;
};

static void tell_call(void *arg)
{
    const struct user_call *u = arg;

    ev_call(u->prof, &u->comm->events, u->op);
}

int nccl_start(struct nccl_comm *c, struct ev_op *op, enum nb_func func, size_t bytes, int bucket)
{
    static const enum torch_function script[] = {TORCH_PYTHON},
                                     reducer[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_BUCKET};
    ncclProfiler_v7_t prof = ncclProfiler_v7;
    struct user_call call = {&prof, c, op};
    int collnet;

    if (c->nccl->profiler == 5) {
        prof.startEvent = start_v5;
        prof.stopEvent = ncclProfiler_v5.stopEvent;
    } else if (c->nccl->profiler == 6) {
        prof.startEvent = start_v6;
        prof.stopEvent = ncclProfiler_v6.stopEvent;
    }
    if (c->nccl->profiler >= 5)
        torch_call(bucket ? reducer : script, bucket ? 3 : 1, tell_call, &call);
    collnet = ask(c, func, bytes);
    op->algo = collnet > 0 ? "COLLNET_DIRECT" : "RING";
    if (c->nccl->profiler >= 5)
        ev_launch(&prof, &c->events, op, 1);
    else if (c->nccl->profiler == 4)
        launch_v4(c, op);
    return collnet;
}
