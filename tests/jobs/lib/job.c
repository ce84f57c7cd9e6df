/* SPDX-License-Identifier: Apache-2.0 */
/* Steps, communicators and announced operations: see job.h. network.c runs an operation when its turn
 * comes. */
#include "job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nccl_names.h"
#include "internal.h"
#include "model.h"
#include "policy/job/job.h"
#include "policy/reckon/reckon.h"

/* ---- memory and steps ---------------------------------------------------------------------------------- */

float *values(struct job *job, size_t n)
{
    struct kept *k = calloc(1, sizeof(*k) + n * sizeof(float));

    if (!k)
        abort();
    k->next = job->kept;
    job->kept = k;
    return k->value;
}

int job_step(struct job *job)
{
    return ++job->step < job->steps;
}

int job_now(const struct job *job)
{
    return job->step;
}

int job_every(const struct job *job, int n)
{
    return job->step % n == n - 1;
}

struct memory *job_memory(struct job *job)
{
    return &job->memory;
}

void *job_arg(const struct job *job)
{
    return job->arg;
}

truth job_buffer(struct job *job)
{
    return ++job->buffers;
}

/* ---- communicators ------------------------------------------------------------------------------------- */

static struct comm *comm_new(struct job *job, const char *name, int nodes, int ranks)
{
    struct comm *c = NULL;

    for (int i = 0; i < COMMS && !c; i++)
        if (!job->comm[i].job)
            c = &job->comm[i];
    if (!c)
        abort();
    *c = (struct comm){.job = job, .id = 0x9e3700 + ++job->comms, .nodes = nodes, .ranks = ranks};
    c->since = job->step < 0 ? 0 : job->step;
    for (int r = 0; r < NODES && !job->silent; r++) {
        struct nb_context *ctx = &job->cluster.node[r].ctx;
        c->member[r].events = nb_events_create(ctx, NULL, c->id, nodes, ranks, nodes > 1 ? r : 0, 1);
        if (!c->member[r].events)
            abort();
        if (name)
            nb_events_name(c->member[r].events, name);
    }
    if (nodes > 1)
        network_connect(c);
    return c;
}

struct comm *comm_between(struct job *job, const char *name)
{
    return comm_new(job, name, NODES, NODES);
}

struct comm *comm_inside(struct job *job, const char *name, int ranks)
{
    return comm_new(job, name, 1, ranks);
}

void comm_close(struct comm *c)
{
    network_drain(c->job);
    judge_rest(c);
    if (c->nodes > 1)
        network_disconnect(c);
    for (int r = 0; r < NODES; r++)
        nb_events_destroy(c->member[r].events);
    free(c->done);
    memset(c, 0, sizeof(*c));
}

/* ---- values as they travel ----------------------------------------------------------------------------- */

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Round to nearest, and below the smallest normal value in its steps. */
static uint16_t to_fp16(float x)
{
    const uint16_t s = signbit(x) ? 0x8000 : 0;
    int e;

    x = fabsf(x);
    if (!(x < 65520.0f))
        return (uint16_t)(s | (isnan(x) ? 0x7e00 : 0x7c00));
    if (x < 0x1p-14f)
        return (uint16_t)(s | (uint16_t)lrintf(x * 0x1p24f));
    x = frexpf(x, &e); /* 0.5 to 1 */
    return (uint16_t)(s + (uint16_t)((e + 13) * 1024 + (int)lrintf(x * 2048.0f)));
}

static void store(ncclDataType_t type, const float *from, size_t n, void *to)
{
    switch (type) {
    case ncclFloat32: memcpy(to, from, n * 4); break;
    case ncclBfloat16:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = to_bf16(from[i]);
        break;
    case ncclFloat16:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = to_fp16(from[i]);
        break;
    case ncclFloat64:
        for (size_t i = 0; i < n; i++)
            ((double *)to)[i] = (double)from[i];
        break;
    case ncclInt32:
        for (size_t i = 0; i < n; i++)
            ((int32_t *)to)[i] = (int32_t)lrintf(from[i]);
        break;
    case ncclInt64:
        for (size_t i = 0; i < n; i++)
            ((int64_t *)to)[i] = (int64_t)lrintf(from[i]);
        break;
    case ncclUint8:
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)to)[i] = (uint8_t)lrintf(from[i]);
        break;
    default: abort();
    }
}

static const char *type_name(ncclDataType_t type)
{
    static const char *const name[ncclNumTypes] = {
        "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
        "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

    return name[type];
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static const char *const func_name[] = {[NB_FUNC_REDUCE_SCATTER] = "ReduceScatter",
                                        [NB_FUNC_ALL_GATHER] = "AllGather",
                                        [NB_FUNC_ALL_REDUCE] = "AllReduce"};

/* Make NCCL's profiler events of a call and its launch, on one node. */
static void announce(struct comm *c, int r, enum nb_func func, const struct buffer *b, int passes)
{
    struct member *m = &c->member[r];
    const size_t size = nb_nccl_type_size(b->type);
    const size_t each = func == NB_FUNC_ALL_REDUCE ? b->n : b->n / (size_t)c->ranks;
    const int gather = func == NB_FUNC_ALL_GATHER;
    struct nb_events_call call = {
        .func = func_name[func], .type = type_name(b->type), .count = each, .tag = b->tag};
    struct nb_events_op op = {.func = func_name[func],
                              .type = gather ? "ncclInt8" : type_name(b->type),
                              .algo = passes ? "COLLNET_DIRECT" : "RING",
                              .count = gather ? each * size : each,
                              .seq = m->seq[func]++,
                              .send = (const void *)(uintptr_t)b->send,
                              .recv = (const void *)(uintptr_t)b->recv};

    if (!m->events)
        return;
    nb_log_label(c->job->cluster.node[r].ctx.label);
    if (nb_events_asks_caller(m->events, &call))
        call.caller = b->caller;
    op.call = nb_events_call(m->events, &call);
    if (op.call)
        nb_events_stop((void *)(uintptr_t)op.call);
    nb_events_launch(m->events, &op);
    nb_events_stop(nb_events_launched());
}

static int passes(const struct comm *c, enum nb_func func, size_t bytes)
{
    static const ncclFunc_t nccl[] = {[NB_FUNC_REDUCE_SCATTER] = ncclFuncReduceScatter,
                                      [NB_FUNC_ALL_GATHER] = ncclFuncAllGather,
                                      [NB_FUNC_ALL_REDUCE] = ncclFuncAllReduce};
    struct nb_tuning tuning = {.params = c->job->cluster.node[0].ctx.params,
                               .nranks = (size_t)c->ranks,
                               .nnodes = (size_t)c->nodes,
                               .records = !c->job->silent};

    return c->nodes > 1 && (c->job->all_collnet || nb_tuning_pays(&tuning, nccl[func], bytes));
}

/* `from`: the values that each node sends, `n` each. */
static void call(struct comm *c, enum nb_func func, const struct buffer *b, const float *const from[NODES],
                 size_t n)
{
    const size_t size = nb_nccl_type_size(b->type);
    struct operation o = {.comm = c, .func = func, .what = *b, .size = size, .bytes = b->n * size};
    const int pass = passes(c, func, o.bytes);

    if (c->job->step < 0)
        o.step = 0;
    else
        o.step = c->job->step;
    for (int r = 0; r < NODES; r++)
        announce(c, r, func, b, pass);
    if (!pass)
        return;
    for (int r = 0; r < NODES; r++) {
        o.data[r] = malloc(n * size);
        if (!o.data[r])
            abort();
        store(b->type, from[r], n, o.data[r]);
    }
    network_queue(&o);
}

void all_reduce(struct comm *c, const struct buffer *b, const float *x, const float *y)
{
    call(c, NB_FUNC_ALL_REDUCE, b, (const float *const[]){x, y}, b->n);
}

void reduce_scatter(struct comm *c, const struct buffer *b, const float *x, const float *y)
{
    call(c, NB_FUNC_REDUCE_SCATTER, b, (const float *const[]){x, y}, b->n);
}

void all_gather(struct comm *c, const struct buffer *b, const float *whole)
{
    call(c, NB_FUNC_ALL_GATHER, b, (const float *const[]){whole, whole + b->n / NODES}, b->n / NODES);
}

void all_reduce_scalar(struct comm *c, address at, float x, float y)
{
    const struct buffer b = {.type = ncclFloat32, .n = 1, .send = at, .recv = at};

    all_reduce(c, &b, &x, &y);
}
