/* SPDX-License-Identifier: Apache-2.0 */
/* See cluster.h. */
#include "coll/cluster.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device.h"
#include "net/loopback.h"
#include "policy/job.h"
#include "policy/queue.h"

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

void cluster_open(struct cluster *c, int nodes)
{
    cluster_open_driven(c, nodes, NULL);
}

void cluster_open_driven(struct cluster *c, int nodes, const struct nb_runner *runner)
{
    memset(c, 0, sizeof(*c));
    CLUSTER_CHECK(nodes > 0 && nodes <= CLUSTER_MOST);
    c->nodes = nodes;
    c->most_rounds = 10000000;
    for (int i = 0; i < nodes; i++) {
        struct cluster_node *n = &c->node[i];
        n->params = *nb_params_defaults();
        n->params.credits = 4;
        n->params.unit_bytes = 8192;
        n->params.device = 1;                                    /* host */
        n->now = (1 + 3600 * (int64_t)i) * (int64_t)NB_NS_PER_S; /* clocks have nothing in common */
        n->ctx.params = &n->params;
        if (!runner)
            n->ctx.clock = (struct nb_clock){virtual_ns, n};
        n->ctx.current_gpu = no_gpu;
        CLUSTER_CHECK(!nb_budgets_open(&n->ctx) && !nb_gpus_open(&n->ctx) && !nb_queues_open(&n->ctx));
        CLUSTER_CHECK(!nb_jobs_open(&n->ctx) && !nb_engine_open(&n->ctx, runner));
        CLUSTER_CHECK(!nb_net_open_with(&n->ctx, &loopback_ops));
        for (int b = 0; b < NB_BUDGET_COUNT; b++)
            n->left[b] = nb_budget_left(n->ctx.budgets, (enum nb_budget)b);
    }
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

/* One step of everything on a node: true when something moved. Else *until is when time alone moves something. */
static bool step(struct cluster_node *n, int64_t *until)
{
    bool moved = nb_engine_step(n->ctx.engine, n->now);
    struct pollfd none[1]; /* of which there is room for 0 */
    struct nb_engine_wait wait = nb_engine_wait(n->ctx.engine, n->now, none, 0);

    *until = wait.until_ns;
    if (n->connect) {
        bool on;
        n->connected = nb_coll_connect_step(n->connect, &on, &n->comm);
        if (n->connected != -EINPROGRESS)
            n->connect = NULL;
        else if (nb_coll_connect_until(n->connect) < *until)
            *until = nb_coll_connect_until(n->connect);
        moved |= on;
    }
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
        moved |= step(&c->node[i], &until);
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

void cluster_connect_as(struct cluster *c, uint64_t comm_id)
{
    void *handles[CLUSTER_MOST];
    bool more = true;

    for (int i = 0; i < c->nodes; i++) {
        handles[i] = c->node[i].handle;
        CLUSTER_CHECK(nb_coll_listen(&c->node[i].ctx, 0, comm_id, c->node[i].handle, &c->node[i].listen) ==
                      0);
    }
    for (int i = 0; i < c->nodes; i++) {
        struct cluster_node *n = &c->node[i];
        n->connected = -EINPROGRESS;
        CLUSTER_CHECK(nb_coll_connect_begin(handles, c->nodes, i, n->listen, &n->connect) == 0);
    }
    while (more) {
        CLUSTER_CHECK(cluster_turn(c));
        more = false;
        for (int i = 0; i < c->nodes; i++)
            more |= c->node[i].connected == -EINPROGRESS;
    }
    for (int i = 0; i < c->nodes; i++) {
        CLUSTER_CHECK(c->node[i].connected == 0 && c->node[i].comm);
        CLUSTER_CHECK(nb_coll_close_listen(c->node[i].listen) == 0);
        c->node[i].listen = NULL;
    }
}

void cluster_connect(struct cluster *c)
{
    cluster_connect_as(c, 17);
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
