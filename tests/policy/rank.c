/* SPDX-License-Identifier: Apache-2.0 */
/* See rank.h. */
#include "rank.h"

#include <string.h>

#include "abi/tables.h"
#include "nibble/nccl_tuner.h"

#define INT4_NMSE 0.0070

static const ncclProfiler_v7_t *const prof = &NB_NEWEST_PROFILER;

int rank_open(struct hx_node *node, const struct hx_comm_cfg *cfg, int ranks_a_node, struct rank *r)
{
    struct hx_comm_cfg with_id = *cfg;
    const char *stage;
    ncclResult_t ret;

    memset(r, 0, sizeof(*r));
    r->node = node;
    r->lib = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    with_id.comm_id = COMM_ID;
    /* As in ncclCommInitRank: init of net and CollNet, profiler, CollNet's listen and connect, tuner. The
     * harness does the first and the third at once. */
    ev_open(prof, &r->events, COMM_ID, node->nnodes, node->nnodes * ranks_a_node, node->rank * ranks_a_node);
    ret = hx_comm_open(node, r->lib, &with_id, &r->comm, &stage);
    if (ret != ncclSuccess)
        return hx_fail("bring-up failed in %s with %d", stage, (int)ret);
    if (NB_NEWEST_TUNER.init(&r->tuner, COMM_ID, (size_t)(node->nnodes * ranks_a_node), (size_t)node->nnodes,
                             hx_logger(), NULL, NULL) != ncclSuccess)
        return hx_fail("tuner init");
    return 0;
}

int rank_close(struct rank *r)
{
    NB_NEWEST_TUNER.finalize(r->tuner);
    ev_close(prof, &r->events);
    return sx_close(r->lib, r->comm, false);
}

static const char *nccl_type(ncclDataType_t type)
{
    return type == ncclFloat32 ? "ncclFloat32" : type == ncclBfloat16 ? "ncclBfloat16" : "ncclFloat16";
}

struct ev_op event_of(const struct sx_run *run)
{
    const struct sx_spec *s = &run->spec;

    return (struct ev_op){.func = s->func == HX_ALL_REDUCE   ? EV_ALL_REDUCE
                                  : s->func == HX_ALL_GATHER ? EV_ALL_GATHER
                                                             : EV_REDUCE_SCATTER,
                          .type = nccl_type(s->type),
                          .type_bytes = hx_type_size(s->type),
                          .count = s->count,
                          .send = run->op.send,
                          .recv = run->op.recv};
}

static int tuned(struct rank *r, const struct ev_op *e)
{
    static const ncclFunc_t funcs[] = {ncclFuncAllReduce, ncclFuncAllGather, ncclFuncReduceScatter};
    float table[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    int channels = 0;

    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS_V5; p++)
            table[a][p] = a == NCCL_ALGO_RING || (a == NCCL_ALGO_COLLNET_DIRECT && p == NCCL_PROTO_SIMPLE)
                              ? (float)(10 * (a + 1))
                              : -1.0f;
    HX_CHECK(NB_NEWEST_TUNER.getCollInfo(r->tuner, funcs[e->func], (size_t)64 << 20, 1, (float **)table,
                                         NCCL_NUM_ALGORITHMS_V5, NCCL_NUM_PROTOCOLS_V5, 0,
                                         &channels) == ncclSuccess &&
                 channels == 0,
             "tuner");
    HX_CHECK(table[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] < table[NCCL_ALGO_RING][0],
             "CollNet is not preferred");
    return 0;
}

int group(struct rank *r, struct sx_run *run, const enum fate *fate, int n, const int *order)
{
    struct ev_op e[8];

    for (int i = 0; i < n; i++) {
        e[i] = event_of(&run[i]);
        ev_call(prof, &r->events, &e[i]);
        if (fate[i] == NO_CALL)
            e[i].call = NULL;
    }
    for (int i = 0; i < n; i++)
        if (tuned(r, &e[i]))
            return 1;
    for (int i = 0; i < n; i++) {
        int k = order ? order[i] : i;
        struct ev_op wrong = e[k];
        if (fate[k] == WRONG_COUNT)
            wrong.count /= 2;
        if (fate[k] == WRONG_TYPE)
            wrong.type = e[k].type_bytes == 4 ? "ncclBfloat16" : "ncclFloat32";
        ev_launch(prof, &r->events, &wrong, fate[k] != LOST);
    }
    for (int i = 0; i < n; i++)
        HX_CHECK(hx_post(r->comm, &run[order ? order[i] : i].op) == ncclSuccess, "post");
    for (int i = 0; i < n; i++) {
        struct sx_run *one = &run[order ? order[i] : i];
        ncclResult_t ret = hx_wait(r->comm, &one->op, 0);
        HX_CHECK(ret == ncclSuccess, "%s: result %d", sx_describe(&one->spec), (int)ret);
    }
    return 0;
}

double bound_of(int nnodes, const struct sx_spec *s)
{
    double rounding = s->type == ncclFloat32 ? 1e-13 : s->type == ncclFloat16 ? 1e-6 : 1.6e-5;
    double bound = INT4_NMSE * ((nnodes - 1.0) / nnodes + (s->func == HX_ALL_REDUCE));

    return (s->count * (s->func == HX_ALL_REDUCE ? 1 : (size_t)nnodes) >= 30000 ? bound : 4 * bound) +
           rounding;
}

int one(struct rank *r, struct sx_spec spec, enum fate fate, double *nmse)
{
    struct sx_run run;

    sx_prepare(r->node, &spec, &run);
    hx_where("%s, event %d", sx_describe(&spec), fate);
    if (group(r, &run, &fate, 1, NULL) || sx_check(r->node, &run))
        return 1;
    HX_CHECK(hx_all_equal(r->node, spec.func == HX_REDUCE_SCATTER
                                       ? 0
                                       : hx_hash(run.recv, run.recv_values * hx_type_size(spec.type))),
             "%s: not the same bits on all nodes", sx_describe(&spec));
    if (nmse)
        *nmse = run.nmse;
    sx_free(&run);
    return 0;
}
