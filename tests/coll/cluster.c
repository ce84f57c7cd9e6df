/* SPDX-License-Identifier: Apache-2.0 */
/* See cluster.h. */
#include "tests/coll/cluster.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device.h"
#include "policy/job/job.h"
#include "policy/records/records.h"
#include "tests/net/loopback.h"

void cluster_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
    abort();
}

static uint64_t virtual_ns(void *arg)
{
    return (uint64_t)((struct cluster_node *)arg)->now;
}

static int no_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return -1;
}

void cluster_begin(struct cluster *c)
{
    memset(c, 0, sizeof(*c));
    c->most_rounds = 10000000;
}

struct cluster_node *cluster_add(struct cluster *c, const struct nb_runner *runner,
                                 const struct nb_net_ops *net)
{
    struct cluster_node *n = &c->node[c->nodes];

    CLUSTER_CHECK(c->nodes < CLUSTER_MOST);
    n->params = *nb_params_defaults();
    n->params.credits = 4;
    n->params.unit_bytes = 8192;
    n->params.device = NB_DEVICE_HOST;
    n->now = (1 + 3600 * (int64_t)c->nodes) * (int64_t)NB_NS_PER_S; /* clocks differ widely */
    n->connected = -EINPROGRESS;
    n->ctx.params = &n->params;
    if (!runner)
        n->ctx.clock = (struct nb_clock){virtual_ns, n};
    n->ctx.current_gpu = no_gpu;
    CLUSTER_CHECK(!nb_budgets_open(&n->ctx) && !nb_gpus_open(&n->ctx) && !nb_queues_open(&n->ctx));
    CLUSTER_CHECK(!nb_jobs_open(&n->ctx) && !nb_engine_open(&n->ctx, runner));
    CLUSTER_CHECK(!nb_net_open_with(&n->ctx, net));
    for (int b = 0; b < NB_BUDGET_COUNT; b++)
        n->left[b] = nb_budget_left(n->ctx.budgets, (enum nb_budget)b);
    c->nodes++;
    return n;
}

void cluster_open_driven(struct cluster *c, int nodes, const struct nb_runner *runner)
{
    cluster_begin(c);
    for (int i = 0; i < nodes; i++)
        cluster_add(c, runner, &loopback_ops);
}

void cluster_open(struct cluster *c, int nodes)
{
    cluster_open_driven(c, nodes, NULL);
}

void cluster_close(struct cluster *c)
{
    for (int i = 0; i < c->nodes; i++) {
        struct cluster_node *n = &c->node[i];
        for (int b = 0; b < NB_BUDGET_COUNT; b++)
            CLUSTER_CHECK(nb_budget_left(n->ctx.budgets, (enum nb_budget)b) == n->left[b]);
        nb_net_close(&n->ctx);
        nb_engine_close(&n->ctx);
        nb_jobs_close(&n->ctx);
        nb_queues_close(&n->ctx);
        nb_gpus_close(&n->ctx);
        nb_budgets_close(&n->ctx);
    }
    CLUSTER_CHECK(loopback_open_objects() == 0);
}

/* Return true when something moved. */
static bool connect_step(struct cluster_node *n)
{
    bool moved;

    n->connected = nb_coll_connect_step(n->connect, &moved, &n->comm);
    if (n->connected != -EINPROGRESS)
        n->connect = NULL;
    return moved;
}

bool cluster_step(struct cluster *c, int node, int64_t *until)
{
    struct cluster_node *n = &c->node[node];
    bool moved = nb_engine_step(n->ctx.engine, n->now);
    struct pollfd none[1]; /* with room for 0 descriptors */
    struct nb_engine_wait wait = nb_engine_wait(n->ctx.engine, n->now, none, 0);

    *until = wait.until_ns;
    if (n->connect) {
        moved |= connect_step(n);
        if (n->connect && nb_coll_connect_until(n->connect) < *until)
            *until = nb_coll_connect_until(n->connect);
        return moved;
    }
    if (c->nccl)
        moved |= c->nccl(c, node);
    return moved;
}

bool cluster_turn(struct cluster *c)
{
    int64_t wait = INT64_MAX;
    bool moved = false;

    CLUSTER_CHECK(c->rounds++ < c->most_rounds);
    for (int i = 0; i < c->nodes; i++) {
        int64_t until = INT64_MAX;
        if (c->node[i].asleep)
            continue;
        moved |= cluster_step(c, i, &until);
        if (until != INT64_MAX && until - c->node[i].now < wait)
            wait = until - c->node[i].now;
    }
    if (moved)
        return true;
    if (wait == INT64_MAX)
        return false;
    for (int i = 0; i < c->nodes; i++)
        c->node[i].now += wait + 1;
    return true;
}

void cluster_listen(struct cluster *c, uint64_t comm_id)
{
    for (int i = 0; i < c->nodes; i++) {
        struct cluster_node *n = &c->node[i];
        CLUSTER_CHECK(nb_coll_listen(&n->ctx, 0, comm_id, n->handle, &n->listen) == 0);
    }
}

void cluster_begin_connect(struct cluster *c, int node)
{
    struct cluster_node *n = &c->node[node];
    void *handles[CLUSTER_MOST];

    for (int i = 0; i < c->nodes; i++)
        handles[i] = c->node[i].handle;
    n->connected = -EINPROGRESS;
    CLUSTER_CHECK(nb_coll_connect_begin(handles, c->nodes, node, n->listen, &n->connect) == 0);
}

void cluster_await_connect(struct cluster *c)
{
    for (int i = 0; i < c->nodes; i++)
        while (!c->node[i].asleep && c->node[i].connect)
            CLUSTER_CHECK(cluster_turn(c));
}

void cluster_close_listen(struct cluster *c, int node)
{
    CLUSTER_CHECK(nb_coll_close_listen(c->node[node].listen) == 0);
    c->node[node].listen = NULL;
}

static void begin_group(struct cluster *c, uint64_t comm_id)
{
    cluster_listen(c, comm_id);
    for (int i = 0; i < c->nodes; i++)
        cluster_begin_connect(c, i);
}

static void end_group(struct cluster *c)
{
    for (int i = 0; i < c->nodes; i++) {
        CLUSTER_CHECK(c->node[i].connected == 0 && c->node[i].comm);
        cluster_close_listen(c, i);
    }
}

void cluster_connect_as(struct cluster *c, uint64_t comm_id)
{
    begin_group(c, comm_id);
    cluster_await_connect(c);
    end_group(c);
}

void cluster_connect(struct cluster *c)
{
    cluster_connect_as(c, 17);
}

void cluster_connect_alone(struct cluster *c)
{
    begin_group(c, 17);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < c->nodes; i++)
            if (c->node[i].connect) {
                connect_step(&c->node[i]);
                more = true;
            }
    }
    end_group(c);
}

void cluster_disconnect(struct cluster *c)
{
    bool open[CLUSTER_MOST], more = false;

    for (int i = 0; i < c->nodes; i++) {
        open[i] = c->node[i].comm != NULL;
        more |= open[i];
        if (open[i])
            CLUSTER_CHECK(nb_coll_close_begin(c->node[i].comm) == 0);
    }
    while (more) {
        more = false;
        for (int i = 0; i < c->nodes; i++) {
            if (open[i] && !nb_coll_close_step(c->node[i].comm)) {
                open[i] = false;
                c->node[i].comm = NULL;
            }
            more |= open[i];
        }
        if (more)
            CLUSTER_CHECK(cluster_turn(c));
    }
}
