/* SPDX-License-Identifier: Apache-2.0 */
/* A node's life, and NCCL's walk. See node.h. */
#include "tests/scale/node.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"
#include "coll/coll.h"
#include "coll/engine.h"
#include "device/device.h"
#include "policy/job/job.h"
#include "policy/records/records.h"
#include "state/budget.h"
#include "tests/scale/device.h"
#include "tests/scale/network.h"

#define COMM_ID 0x7363616c65ull
#define NEVER INT64_MAX

static uint64_t clock_ns(void *arg)
{
    const struct scale_node *n = arg;

    return (uint64_t)(SCALE_S + n->clock);
}

static int no_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return -1;
}

static int random_bytes(struct nb_context *ctx, void *buf, size_t bytes)
{
    struct scale_node *n = (struct scale_node *)ctx;

    for (size_t i = 0; i < bytes; i++) {
        n->random = n->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        ((uint8_t *)buf)[i] = (uint8_t)(n->random >> 56);
    }
    return 0;
}

static void wrong(struct scale_node *n, const char *what, int err)
{
    if (!n->cluster->failed)
        fprintf(stderr, "nibble-scale: node %d: %s: %s\n", n->number, what, strerror(-err));
    n->cluster->failed = true;
}

struct scale_node *scale_node_open(struct scale_cluster *cl, int number)
{
    struct scale_node *n = calloc(1, sizeof(*n));
    struct nb_context *ctx;
    int ret;

    if (!n)
        abort();
    ctx = &n->ctx;
    cl->node[number] = n;
    n->cluster = cl;
    n->number = number;
    n->wake = NEVER;
    n->random = (uint64_t)number + 1;
    n->params = cl->set->params;
    if (cl->set->sites > 1) {
        snprintf(n->site, sizeof(n->site), cl->set->trunk > 0 ? "%d:%.0f" : "%d", scale_site(cl->set, number),
                 fmax(1, 8e-6 * cl->set->trunk));
        n->params.site = n->site;
    }
    ctx->params = &n->params;
    ctx->clock = (struct nb_clock){clock_ns, n};
    ctx->current_gpu = no_gpu;
    ctx->random = random_bytes;
    ctx->host = "scale";
    ctx->open_device = scale_device_open;
    snprintf(ctx->label, sizeof(ctx->label), "n%d", number);
    ret = nb_budgets_open(ctx) || nb_gpus_open(ctx) || nb_queues_open(ctx) || nb_jobs_open(ctx) ||
          nb_engine_open(ctx, NULL) ||
          nb_net_open_with(ctx, cl->set->early ? &scale_net_early : &scale_net_late);
    if (ret)
        wrong(n, "cannot make a context", -ENOMEM);
    else if ((ret = nb_coll_listen(ctx, 0, COMM_ID, n->handle, &n->listen)))
        wrong(n, "cannot listen", ret);
    return n;
}

void scale_node_free(struct scale_node *n)
{
    struct nb_context *ctx = &n->ctx;

    if (n->state == SCALE_CLOSED) {
        nb_net_close(ctx);
        nb_engine_close(ctx);
        nb_jobs_close(ctx);
        nb_queues_close(ctx);
        nb_gpus_close(ctx);
        nb_budgets_close(ctx);
    }
    free(n->device);
    free(n);
}

/* ---- connecting ---------------------------------------------------------------------------------------- */

void scale_node_connect(struct scale_node *n)
{
    struct scale_cluster *cl = n->cluster;
    void **handles = malloc((size_t)cl->set->nodes * sizeof(*handles));
    int ret;

    if (!handles)
        abort();
    for (int r = 0; r < cl->set->nodes; r++)
        handles[r] = cl->node[r]->handle;
    ret = nb_coll_connect_begin(handles, cl->set->nodes, n->number, n->listen, &n->connect);
    free(handles);
    if (ret)
        wrong(n, "cannot connect", ret);
}

static size_t region_bytes(const struct scale_settings *set)
{
    return nb_nccl_walk_region(set->channels, NB_NCCL_STEPS * set->chunk);
}

/* Return NCCL's buffer. It stays untouched, so all nodes share one. */
static uint8_t *region(const struct scale_settings *set)
{
    static uint8_t *at;
    static size_t bytes;

    if (bytes < region_bytes(set)) {
        bytes = region_bytes(set);
        at = scale_nowhere(bytes);
    }
    return at;
}

static bool connect_step(struct scale_node *n, int64_t *until)
{
    const struct scale_settings *set = n->cluster->set;
    bool moved = false;
    int ret = nb_coll_connect_step(n->connect, &moved, &n->coll);

    if (ret == -EINPROGRESS) {
        const int64_t due = nb_coll_connect_until(n->connect);
        *until = due == INT64_MAX ? NEVER : due - SCALE_S + 1;
        return moved;
    }
    n->connect = NULL;
    if (ret) {
        wrong(n, "connecting has failed", ret);
        return false;
    }
    nb_coll_close_listen(n->listen);
    n->listen = NULL;
    for (int i = 0; i < 2; i++)
        if ((ret = nb_coll_reg_mr(n->coll, region(set), region_bytes(set), NCCL_PTR_HOST, &n->mhandle[i])))
            wrong(n, "registration of NCCL's buffer", ret);
    n->state = SCALE_WAITING;
    n->cluster->connected++;
    return true;
}

/* ---- an operation -------------------------------------------------------------------------------------- */

static ncclDataType_t type_of(const struct scale_settings *set)
{
    return set->wide ? ncclFloat32 : ncclBfloat16;
}

static void begin(struct scale_node *n)
{
    const struct scale_settings *set = n->cluster->set;
    const size_t bytes = set->func == NB_FUNC_ALL_REDUCE ? set->bytes : set->bytes / (size_t)set->nodes;
    const struct nb_record r = {.func = set->func,
                                .type = set->func == NB_FUNC_ALL_GATHER ? ncclInt8 : type_of(set),
                                .api_type = type_of(set),
                                .flags = NB_RECORD_API,
                                .bytes = bytes,
                                .slot = 1,
                                .chunk = (uint32_t)set->chunk,
                                .heads = 1 << 1,
                                .head = 0};

    nb_record_push(n->coll, &r);
    n->walk = nb_nccl_walk(set->func, set->nodes, n->number, set->channels, NB_NCCL_STEPS * set->chunk,
                           set->chunk, bytes);
    n->step = 0;
    n->next = 0;
    memset(n->group, 0, sizeof(n->group));
    n->state = SCALE_RUNNING;
}

/* Post the next window. Return 1, 0 when it cannot be posted yet, or < 0. */
static int call(struct scale_node *n)
{
    const struct scale_settings *set = n->cluster->set;
    struct scale_group *g = &n->group[n->next];
    struct nb_coll_req *req;
    int ret;

    if (n->step >= n->walk.steps || n->step >= g->tested + NB_NCCL_STEPS)
        return 0;
    ret = nb_nccl_call(&n->walk, n->coll, region(set), n->next, n->step, type_of(set), ncclSum, &req);
    if (ret)
        return ret;
    if (!req && nb_nccl_place(&n->walk, true, n->next, n->step).valid)
        return -ENOBUFS;
    g->request[n->step % NB_NCCL_STEPS] = req;
    g->called = n->step + 1;
    if (++n->next == n->walk.groups) {
        n->next = 0;
        n->step++;
    }
    return 1;
}

static int test(struct scale_group *g)
{
    struct nb_coll_req *req = g->request[g->tested % NB_NCCL_STEPS];
    int done = 1, ret = 0;

    if (g->tested == g->called)
        return 0;
    if (req)
        ret = nb_coll_test(req, &done, NULL);
    if (ret || !done)
        return ret;
    g->tested++;
    return 1;
}

static bool run(struct scale_node *n)
{
    bool moved = false, complete = true;
    int ret = 0;

    for (int i = 0; i < n->walk.groups && ret >= 0; i++)
        while ((ret = test(&n->group[i])) > 0)
            moved = true;
    while (ret >= 0 && (ret = call(n)) > 0)
        moved = true;
    if (ret < 0)
        wrong(n, "a call of NCCL has failed", ret);
    for (int i = 0; i < n->walk.groups; i++)
        complete &= n->group[i].tested == n->walk.steps;
    if (complete) {
        n->state = SCALE_COMPLETE;
        n->ended = n->clock;
        n->cluster->complete++;
    }
    return moved;
}

/* ---- closing ------------------------------------------------------------------------------------------- */

void scale_node_close(struct scale_node *n)
{
    for (int i = 0; i < 2; i++)
        nb_coll_dereg_mr(n->coll, n->mhandle[i]);
    if (nb_coll_close_begin(n->coll))
        wrong(n, "close is refused", -EINVAL);
    n->state = SCALE_CLOSING;
    scale_node_wake(n->cluster, n->number);
}

/* ---- stepping ------------------------------------------------------------------------------------------ */

void scale_node_wake_at(struct scale_cluster *cl, int node, int64_t at)
{
    struct scale_node *n = cl->node[node];

    if (at < n->clock)
        at = n->clock;
    if (at >= n->wake || n->state == SCALE_CLOSED)
        return;
    n->wake = at;
    sim_queue_put(&cl->queue, at, SIM_NODE, node, NULL);
}

void scale_node_wake(struct scale_cluster *cl, int node)
{
    scale_node_wake_at(cl, node, cl->now);
}

int64_t scale_node_spends(struct scale_node *n, int64_t ns)
{
    return n->clock += ns;
}

/* Play NCCL, and the part that connects and closes. */
static bool proxy(struct scale_node *n, int64_t *until)
{
    switch (n->state) {
    case SCALE_CONNECTING: return connect_step(n, until);
    case SCALE_WAITING:
        if (n->cluster->barrier > n->clock) {
            *until = n->cluster->barrier;
            return false;
        }
        begin(n);
        return true;
    case SCALE_RUNNING: return run(n);
    case SCALE_CLOSING:
        if (nb_coll_close_step(n->coll))
            return false;
        n->coll = NULL;
        n->state = SCALE_CLOSED;
        n->cluster->closed++;
        return false;
    default: return false;
    }
}

void scale_node_event(struct scale_cluster *cl, const struct sim_event *event)
{
    struct scale_node *n = cl->node[event->node];
    int64_t until = NEVER, due;
    struct nb_engine_wait wait;
    bool moved;

    if (n->wake != event->at)
        return; /* it was woken earlier */
    n->wake = NEVER;
    n->clock = cl->now > n->clock ? cl->now : n->clock;
    do {
        moved = nb_engine_step(n->ctx.engine, SCALE_S + n->clock);
        moved |= proxy(n, &until);
        cl->steps++;
    } while (moved && n->clock == cl->now && !cl->failed);
    if (n->state == SCALE_CLOSED)
        return;
    if (moved) {
        scale_node_wake_at(cl, n->number, n->clock);
        return;
    }
    wait = nb_engine_wait(n->ctx.engine, SCALE_S + n->clock, NULL, 0);
    due = wait.until_ns == INT64_MAX ? NEVER : wait.until_ns - SCALE_S;
    due = until < due ? until : due;
    if (due != NEVER)
        scale_node_wake_at(cl, n->number, due > cl->now ? due : cl->now + 1);
}
