/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of operations. See nccl.h. */
#include "tests/sim/nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "policy/records/records.h"
#include "tests/sim/data.h"
#include "tests/sim/fault.h"
#include "tests/sim/judge.h"
#include "tests/sim/memory.h"
#include "tests/sim/node.h"

static struct sim *sim_of(const struct sim_proxy *p)
{
    return p->node->sim;
}

static const struct sim_op *op_of(const struct sim_proxy *p)
{
    return &p->comm->op[p->op];
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

/* ---- begin --------------------------------------------------------------------------------------------- */

void sim_proxy_listen(struct sim_proxy *p)
{
    int ret = nb_coll_listen(&p->node->ctx, 0, p->comm->id, p->handle, &p->listen);

    if (ret)
        sim_violation(sim_of(p), "node %d cannot listen: %s", p->node->number, strerror(-ret));
}

static void fail(struct sim_proxy *p, int err, const char *call)
{
    struct sim *s = sim_of(p);

    sim_trace(s, "nccl got an error", p->node->number, p->index, err, call);
    s->progress = s->now;
    p->error_code = err;
    p->state = SIM_FAILED;
    p->at = s->now + (int64_t)sim_below(s, 20 * SIM_MS);
}

void sim_proxy_connect(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);
    void **handles = malloc((size_t)p->comm->nmembers * sizeof(*handles));
    int ret;

    sim_trace(s, "connects", p->node->number, p->index, 0, NULL);
    p->state = SIM_CONNECTING;
    if (!handles) {
        p->connected = -ENOMEM;
        p->state = SIM_DECLINED;
        nb_coll_close_listen(p->listen);
        p->listen = NULL;
        return;
    }
    for (int r = 0; r < p->comm->nmembers; r++)
        handles[r] = s->node[p->comm->member[r]]->proxy[p->index].handle;
    ret = nb_coll_connect_begin(handles, p->comm->nmembers, p->rank, p->listen, &p->connect);
    free(handles);
    if (ret) {
        p->connected = ret;
        p->listen = NULL;
        p->state = SIM_DECLINED;
    }
}

void sim_proxy_connected(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);
    const size_t bytes = 2 * NB_NCCL_STEPS * (size_t)p->comm->channels * p->comm->slot_size;
    int before, ret;

    nb_coll_close_listen(p->listen);
    p->listen = NULL;
    before = sim_memory_enter(SIM_NOBODY);
    p->region = calloc(1, bytes);
    p->result = calloc((size_t)p->comm->nops + 1, sizeof(*p->result));
    if (!p->region || !p->result)
        abort();
    sim_memory_enter(before);
    for (int i = 0; i < 2 * p->comm->channels; i++) {
        ret = nb_coll_reg_mr(p->coll, p->region, bytes, NCCL_PTR_HOST, &p->mhandle[i]);
        if (ret)
            sim_violation(s, "node %d: regMr of NCCL's buffer: %s", p->node->number, strerror(-ret));
    }
    p->op = -1;
}

/* Advance to the next operation of the plan. Return false at the end. */
static bool next_op(struct sim_proxy *p)
{
    do
        p->op++;
    while (p->op < p->comm->nops && op_of(p)->skip);
    return p->op < p->comm->nops;
}

/* Make the record of the operation, as NCCL's profiler events would. */
static void record(struct sim_proxy *p)
{
    const struct sim_op *op = op_of(p);
    const bool gather = op->func == NB_FUNC_ALL_GATHER;
    struct nb_record r = {.func = op->func,
                          .type = gather ? ncclInt8 : op->type,
                          .api_type = op->type,
                          .flags = NB_RECORD_API,
                          .bytes = op->count * hx_type_size(op->type),
                          .slot = op->slot,
                          .chunk = (uint32_t)op->chunk,
                          .heads = 1 << 1,
                          .head = 0};

    if (sim_of(p)->plan->vague[p->node->number] > 0)
        r.chunk = 0;
    if (sim_of(p)->plan->vague[p->node->number] > 1) {
        r.heads = 0x1e; /* any of one to four */
        r.head = -1;
    }
    if (sim_of(p)->plan->recorded[p->node->number])
        nb_record_push(p->coll, &r);
}

static void begin(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);
    const struct sim_op *op = op_of(p);
    const size_t bytes = op->count * hx_type_size(op->type);

    p->walk = nb_nccl_walk(op->func, p->comm->nmembers, p->rank, op->channels,
                           NB_NCCL_STEPS * p->comm->slot_size, op->chunk, bytes);
    p->walk.laid_out = p->comm->channels;
    p->began = s->now;
    p->step = 0;
    p->next = 0;
    p->hash = 1;
    p->error = p->energy = 0;
    p->partial = false;
    memset(p->group, 0, sizeof(p->group));
    p->state = SIM_RUNNING;
    s->progress = s->now;
    sim_trace(s, "begins", p->node->number, p->index, p->op, nb_func_name(op->func));
    sim_fault_operation(s, p->node->number, p->index, p->op);
    if (p->walk.steps)
        record(p);
}

/* ---- the GPU's part ------------------------------------------------------------------------------------ */

/* Return true once the time drawn for this step is over. */
static bool due(struct sim_proxy *p, int64_t *at)
{
    struct sim *s = sim_of(p);

    if (!s->plan->gpu_ns)
        return true;
    if (!*at)
        *at = s->now + (int64_t)sim_below(s, (uint64_t)s->plan->gpu_ns);
    if (*at > s->now)
        return false;
    *at = 0;
    return true;
}

static void fill(struct sim_proxy *p, int group, uint64_t step)
{
    static const uint32_t pattern[] = {0x7fc00000u, 0x7149f2cau, 0x7fc17fc1u, 0x453b8000u, 0xffffffffu};
    const struct sim_op *op = op_of(p);
    const size_t size = hx_type_size(op->type);
    const struct nb_nccl_place w = nb_nccl_place(&p->walk, false, group, step);
    uint8_t *dst = p->region + w.at;
    size_t first = w.from - (op->func == NB_FUNC_ALL_GATHER ? (size_t)p->rank * p->walk.block : 0);

    sim_data_fill(op, p->rank, first / size, w.valid / size, dst);
    for (size_t i = w.valid; i < w.bytes; i += 4) /* stale memory, in its worst form */
        memcpy(dst + i, &pattern[(i + (size_t)p->rank) % 5], w.bytes - i < 4 ? w.bytes - i : 4);
}

static void wrong(struct sim_proxy *p, long at, const struct nb_nccl_place *w)
{
    const struct sim_op *op = op_of(p);

    sim_violation(
        sim_of(p),
        "node %d: wrong result: communicator %d, operation %d (%s, type %s, reduction %d, %zu values), "
        "byte %zu of the vector, value %ld of a window",
        p->node->number, p->index, p->op, nb_func_name(op->func), hx_type_name(op->type), (int)op->redop,
        op->count, w->from, at);
}

static void drain(struct sim_proxy *p, int group, uint64_t step)
{
    const struct sim_op *op = op_of(p);
    const size_t size = hx_type_size(op->type);
    const struct nb_nccl_place w = nb_nccl_place(&p->walk, true, group, step);
    const uint8_t *src = p->region + w.at;
    uint64_t hash;
    long at = -1;

    if (!w.valid)
        return;
    if (op->func != NB_FUNC_ALL_GATHER && op->coded)
        sim_data_measure_sum(op, p->comm->nmembers, w.from / size, w.valid / size, src, &p->error,
                             &p->energy);
    else if (op->func != NB_FUNC_ALL_GATHER)
        at = sim_data_check_sum(op, p->comm->nmembers, w.from / size, w.valid / size, src);
    else if (!op->lossy_gather)
        at = sim_data_check_gather(op, p->comm->nmembers, w.from, w.valid, src);
    if (at >= 0 && sim_judge_promises(p->index))
        wrong(p, at, &w);
    hash = nb_hash64(src, w.valid, step * 31 + (uint64_t)group);
    sim_trace(sim_of(p), "drains", p->node->number, (long)(step * 10 + (uint64_t)group), (long)(hash >> 40),
              NULL);
    if (!(op->lossy_gather && w.from < ((size_t)p->rank + 1) * p->walk.block &&
          w.from + w.valid > (size_t)p->rank * p->walk.block)) /* a node keeps its own lossy weights exact */
        p->hash += mix(1, hash);                               /* groups of channels come in any order */
    else
        p->partial = true;
}

/* ---- the proxy's part ---------------------------------------------------------------------------------- */

/* Post the next window. Return 1, 0 when it cannot be posted yet, or < 0. */
static int call(struct sim_proxy *p)
{
    struct sim_group *g = &p->group[p->next];
    const struct sim_op *op = op_of(p);
    size_t bytes;
    struct nb_coll_req *req;
    int ret;

    if (p->step >= p->walk.steps || g->filled <= p->step || p->step >= g->drained + NB_NCCL_STEPS)
        return 0;
    bytes = nb_nccl_place(&p->walk, false, p->next, p->step).bytes +
            nb_nccl_place(&p->walk, true, p->next, p->step).bytes;
    sim_of(p)->windows += bytes > 0;
    ret = nb_nccl_call(&p->walk, p->coll, p->region, p->next, p->step, op->type, op->redop, &req);
    if (ret)
        return ret;
    if (!req && bytes) {
        sim_violation(sim_of(p), "node %d: a window was refused", p->node->number);
        return 0;
    }
    g->request[p->step % NB_NCCL_STEPS] = req;
    g->called = p->step + 1;
    if (++p->next == p->walk.groups) {
        p->next = 0;
        p->step++;
    }
    return 1;
}

static int test(struct sim_proxy *p, struct sim_group *g)
{
    struct nb_coll_req **req = &g->request[g->tested % NB_NCCL_STEPS];
    int done = 1, ret;

    if (g->tested == g->called)
        return 0;
    if (*req) {
        ret = nb_coll_test(*req, &done, NULL);
        if (ret)
            return ret;
    }
    if (!done)
        return 0;
    *req = NULL;
    g->tested++;
    sim_of(p)->progress = sim_of(p)->now;
    return 1;
}

/* Run one round of an operation. */
static int run(struct sim_proxy *p)
{
    int moved = 0, ret;

    for (int i = 0; i < p->walk.groups; i++) {
        struct sim_group *g = &p->group[i];
        while (g->filled < p->walk.steps && g->filled < g->tested + NB_NCCL_STEPS && due(p, &g->fill_at)) {
            fill(p, i, g->filled++);
            moved = 1;
        }
    }
    while ((ret = call(p)) > 0)
        moved = 1;
    for (int i = 0; i < p->walk.groups && ret >= 0; i++) {
        struct sim_group *g = &p->group[i];
        while ((ret = test(p, g)) > 0)
            moved = 1;
        while (g->drained < g->tested && due(p, &g->drain_at)) {
            drain(p, i, g->drained++);
            moved = 1;
        }
    }
    return ret < 0 ? ret : moved;
}

static bool complete(const struct sim_proxy *p)
{
    for (int i = 0; i < p->walk.groups; i++)
        if (p->group[i].drained < p->walk.steps)
            return false;
    return true;
}

/* The operation is over: choose the time of the next. */
static void after_op(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);

    if (next_op(p)) {
        const int64_t pause = op_of(p)->pause;
        p->state = SIM_WAITING;
        p->at = s->now + (pause ? (int64_t)sim_below(s, (uint64_t)pause) : 0);
    } else {
        p->state = SIM_DONE;
        p->at = s->now + (p->comm->closes_late ? (int64_t)sim_below(s, 3 * SIM_MS) : 0);
    }
}

/* ---- end ----------------------------------------------------------------------------------------------- */

static void close_begin(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);

    sim_trace(s, "closes", p->node->number, p->index, p->error_code, NULL);
    s->progress = s->now;
    sim_judge_closes(s, p);
    for (int i = 0; i < 2 * p->comm->channels; i++)
        nb_coll_dereg_mr(p->coll, p->mhandle[i]);
    memset(p->region, 0xdb, p->comm->slot_size); /* the plugin has released it */
    if (nb_coll_close_begin(p->coll))
        sim_violation(s, "node %d: close is refused", p->node->number);
    p->state = SIM_CLOSING;
}

bool sim_proxy_step(struct sim_proxy *p)
{
    struct sim *s = sim_of(p);
    int ret;

    if (p->state == SIM_WAITING && p->op < 0) { /* just connected */
        after_op(p);
        return true;
    }
    if (p->aborts && p->state >= SIM_WAITING && p->state <= SIM_DONE) {
        p->aborts = false;
        close_begin(p);
        return true;
    }
    if (p->paused > s->now && p->state < SIM_CLOSING)
        return false;
    switch (p->state) {
    case SIM_WAITING:
        if (p->at > s->now)
            return false;
        begin(p);
        return true;
    case SIM_RUNNING:
        ret = run(p);
        if (ret < 0) {
            fail(p, ret, "in an operation");
        } else if (complete(p)) {
            p->result[p->op] = p->hash ? p->hash : 1;
            p->done++;
            s->operations++;
            s->progress = s->now;
            sim_trace(s, "completes", p->node->number, p->index, p->op, NULL);
            sim_judge_operation(s, p);
            after_op(p);
            ret = 1;
        }
        return ret != 0;
    case SIM_FAILED:
    case SIM_DONE:
        if (p->at > s->now)
            return false;
        close_begin(p);
        return true;
    case SIM_CLOSING:
        if (nb_coll_close_step(p->coll))
            return false;
        p->coll = NULL;
        p->state = SIM_CLOSED;
        s->progress = s->now;
        sim_trace(s, "closed", p->node->number, p->index, 0, NULL);
        return true;
    default: return false;
    }
}

int64_t sim_proxy_until(const struct sim_proxy *p)
{
    const struct sim *s = sim_of(p);
    int64_t at = SIM_NEVER;

    if (p->state == SIM_WAITING || p->state == SIM_FAILED || p->state == SIM_DONE) {
        at = p->at < at ? p->at : at;
    } else if (p->state == SIM_RUNNING) {
        for (int i = 0; i < p->walk.groups; i++) {
            const struct sim_group *g = &p->group[i];
            if (g->fill_at && g->fill_at < at)
                at = g->fill_at;
            if (g->drain_at && g->drain_at < at)
                at = g->drain_at;
        }
    }
    if (p->paused > s->now && p->state < SIM_CLOSING && at != SIM_NEVER && at < p->paused)
        at = p->paused;
    else if (p->paused > s->now && p->state == SIM_RUNNING)
        at = p->paused;
    return at;
}

void sim_proxy_free(struct sim_proxy *p)
{
    free(p->region);
    free(p->result);
    p->region = NULL;
    p->result = NULL;
}

void sim_proxy_describe(const struct sim_proxy *p, char *buf, size_t cap)
{
    static const char *const words[] = {"has not begun to connect",
                                        "is connecting",
                                        "declined",
                                        "waits for its time",
                                        "runs",
                                        "has failed",
                                        "is done",
                                        "is closing",
                                        "has closed"};
    size_t at =
        (size_t)snprintf(buf, cap, "node %d communicator %d %s", p->node->number, p->index, words[p->state]);

    if (p->state == SIM_RUNNING && at < cap)
        at += (size_t)snprintf(buf + at, cap - at, " operation %d (%s), step %llu of %llu", p->op,
                               nb_func_name(op_of(p)->func), (unsigned long long)p->step,
                               (unsigned long long)p->walk.steps);
    for (int i = 0; p->state == SIM_RUNNING && i < p->walk.groups && at < cap; i++)
        at +=
            (size_t)snprintf(buf + at, cap - at, " [%llu filled %llu called %llu done %llu drained]",
                             (unsigned long long)p->group[i].filled, (unsigned long long)p->group[i].called,
                             (unsigned long long)p->group[i].tested, (unsigned long long)p->group[i].drained);
}
