/* SPDX-License-Identifier: Apache-2.0 */
/* A node's life. See node.h. */
#include "tests/sim/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/coll.h"
#include "coll/engine.h"
#include "device/device.h"
#include "policy/job/job.h"
#include "policy/records/records.h"
#include "tests/sim/device.h"
#include "tests/sim/judge.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"

#define STEPS_AT_ONCE 10000 /* of an eager node: with more it makes no progress */

static uint64_t clock_ns(void *arg)
{
    const struct sim_node *n = arg;

    return (uint64_t)(n->sim->now + n->sim->plan->clock[n->number]);
}

static int no_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return -1;
}

static int random_bytes(struct nb_context *ctx, void *buf, size_t bytes)
{
    struct sim_node *n = (struct sim_node *)ctx;

    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)buf)[i] = (uint8_t)(hx_rand(&n->random) >> 32);
    return 0;
}

static const char *const hosts[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

static void open_context(struct sim_node *n)
{
    struct nb_context *ctx = &n->ctx;
    const struct sim_plan *plan = n->sim->plan;

    ctx->params = &plan->params[n->number];
    ctx->clock = (struct nb_clock){clock_ns, n};
    ctx->current_gpu = no_gpu;
    ctx->random = random_bytes;
    ctx->host = hosts[n->number % 8];
    ctx->open_device = sim_device_open;
    snprintf(ctx->label, sizeof(ctx->label), "n%d", n->number);
    if (nb_budgets_open(ctx) || nb_gpus_open(ctx) || nb_queues_open(ctx) || nb_jobs_open(ctx) ||
        nb_engine_open(ctx, NULL) || nb_net_open_with(ctx, plan->early ? &sim_net_early : &sim_net_late))
        sim_violation(n->sim, "node %d: cannot make a context", n->number);
    for (int b = 0; b < NB_BUDGET_COUNT; b++)
        n->left[b] = nb_budget_left(ctx->budgets, (enum nb_budget)b);
}

struct sim_node *sim_node_open(struct sim *s, int number)
{
    struct sim_node *n = calloc(1, sizeof(*n));
    int before;

    if (!n)
        abort();
    s->node[number] = n;
    n->sim = s;
    n->number = number;
    n->wake = SIM_NEVER;
    n->random = hx_seed(s->plan->seed, (uint64_t)number, 0x6e6f6465);
    n->connect_at = s->plan->start[number];
    before = sim_enter(s, number);
    open_context(n);
    n->blocks = sim_memory_blocks(number);
    for (int c = 0; c < s->plan->ncomms; c++) {
        struct sim_proxy *p = &n->proxy[c];
        p->node = n;
        p->comm = &s->plan->comm[c];
        p->index = c;
        p->rank = -1;
        for (int r = 0; r < p->comm->nmembers; r++)
            if (p->comm->member[r] == number)
                p->rank = r;
        sim_network_comm(s, number, c);
        if (p->rank >= 0)
            sim_proxy_listen(p);
    }
    sim_enter(s, before);
    return n;
}

static void close_context(struct sim_node *n)
{
    struct nb_context *ctx = &n->ctx;

    nb_net_close(ctx);
    nb_engine_close(ctx);
    nb_jobs_close(ctx);
    nb_queues_close(ctx);
    nb_gpus_close(ctx);
    nb_budgets_close(ctx);
}

void sim_node_close(struct sim_node *n)
{
    struct sim *s = n->sim;
    int before = sim_enter(s, n->number);

    if (!n->dead && !s->failed) {
        for (int b = 0; b < NB_BUDGET_COUNT; b++)
            if (nb_budget_left(n->ctx.budgets, (enum nb_budget)b) != n->left[b])
                sim_violation(s, "node %d: %zu bytes of budget %d were not given back", n->number,
                              n->left[b] - nb_budget_left(n->ctx.budgets, (enum nb_budget)b), b);
        if (sim_network_objects(s, n->number))
            sim_violation(s, "node %d: %d connections, listeners or registrations are still open", n->number,
                          sim_network_objects(s, n->number));
        close_context(n);
        if (sim_memory_blocks(n->number))
            sim_violation(s, "node %d: %zu blocks of memory (%zu bytes) are left", n->number,
                          sim_memory_blocks(n->number), sim_memory_bytes(n->number));
    }
    sim_memory_drop(n->number);
    sim_enter(s, before);
    for (int c = 0; c < s->plan->ncomms; c++)
        sim_proxy_free(&n->proxy[c]);
    for (int c = 0; c < s->plan->ncomms; c++)
        free(n->device[c]);
    free(n);
}

/* ---- stepping ------------------------------------------------------------------------------------------ */

void sim_node_wake_at(struct sim *s, int node, int64_t at)
{
    struct sim_node *n = s->node[node];

    if (!n || n->dead || at >= n->wake)
        return;
    n->wake = at;
    sim_queue_put(&s->queue, at, SIM_NODE, node, NULL);
}

void sim_node_wake(struct sim *s, int node)
{
    const struct sim_node *n = s->node[node];
    int64_t notices = s->plan->step_ns;

    if (!n || n->dead || n->wake <= s->now + 1)
        return;
    if (n->slow_until > s->now)
        notices = n->slow_ns;
    sim_node_wake_at(s, node, s->now + 1 + (notices ? (int64_t)sim_below(s, (uint64_t)notices) : 0));
}

/* Go on with connecting, one communicator after the other. */
static bool connect_step(struct sim_node *n, int64_t *until)
{
    struct sim *s = n->sim;
    struct sim_proxy *p;
    bool moved = false;

    while (n->connecting < s->plan->ncomms) {
        p = &n->proxy[n->connecting];
        if (p->rank < 0 || p->state > SIM_CONNECTING) {
            n->connecting++;
            n->connect_at = s->now;
            continue;
        }
        if (p->state == SIM_UNBORN) {
            if (n->connect_at > s->now) {
                *until = n->connect_at;
                return moved;
            }
            sim_network_comm(s, n->number, n->connecting);
            n->was_stopped = false;
            p->began = s->now;
            sim_proxy_connect(p);
        }
        if (p->state == SIM_CONNECTING) {
            bool on;
            p->connected = nb_coll_connect_step(p->connect, &on, &p->coll);
            moved |= on;
            if (p->connected == -EINPROGRESS) {
                const int64_t due = nb_coll_connect_until(p->connect);
                *until = due == INT64_MAX ? due : due - s->plan->clock[n->number] + 1;
                return moved;
            }
            p->connect = NULL;
            sim_judge_connected(s, p);
            p->state = p->connected ? SIM_DECLINED : SIM_WAITING;
            p->at = s->now;
            s->progress = s->now;
            sim_trace(s, "connected", n->number, p->index, p->connected, NULL);
            if (p->connected)
                p->listen = NULL; /* freed with it */
            else
                sim_proxy_connected(p);
        }
    }
    return moved;
}

/* Run one round of everything. Without progress, set *until to when time alone leads to progress. */
static bool step(struct sim_node *n, int64_t *until)
{
    struct sim *s = n->sim;
    const int64_t now = (int64_t)clock_ns(n);
    struct nb_engine_wait wait;
    bool moved = nb_engine_step(n->ctx.engine, now), open;

    nb_log_label(n->ctx.label);
    wait = nb_engine_wait(n->ctx.engine, now, NULL, 0);
    *until = wait.until_ns == INT64_MAX ? SIM_NEVER : wait.until_ns - now + s->now;
    if (n->connecting < s->plan->ncomms) {
        int64_t due = SIM_NEVER;
        moved |= connect_step(n, &due);
        *until = due < *until ? due : *until;
    }
    open = n->connecting < s->plan->ncomms;
    for (int c = 0; c < s->plan->ncomms; c++) {
        struct sim_proxy *p = &n->proxy[c];
        int64_t due;
        if (p->rank < 0)
            continue;
        moved |= sim_proxy_step(p);
        due = sim_proxy_until(p);
        *until = due < *until ? due : *until;
        open |= p->state != SIM_CLOSED && p->state != SIM_DECLINED;
    }
    n->finished = !open;
    return moved;
}

void sim_node_event(struct sim *s, const struct sim_event *event)
{
    struct sim_node *n = s->node[event->node];
    int64_t until = SIM_NEVER;
    int before, steps = s->plan->eager ? STEPS_AT_ONCE : 1;
    bool moved = true;

    if (n->dead || n->wake != event->at)
        return; /* it was woken earlier */
    n->wake = SIM_NEVER;
    if (n->stopped) {
        n->woken = true;
        return;
    }
    before = sim_enter(s, n->number);
    for (int i = 0; i < steps && moved && !s->failed && !n->dead; i++)
        moved = step(n, &until);
    sim_enter(s, before);
    if (n->dead || n->finished)
        return;
    if (moved && s->plan->eager && !s->failed)
        sim_violation(s, "node %d makes steps without end", n->number);
    else if (moved)
        sim_node_wake(s, n->number);
    else if (until != SIM_NEVER)
        sim_node_wake_at(s, n->number, until > s->now ? until : s->now + 1);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

void sim_node_kill(struct sim *s, int node, bool silently)
{
    struct sim_node *n = s->node[node];

    n->dead = true;
    sim_network_kill(s, node, silently);
    for (int c = 0; c < s->plan->ncomms; c++)
        if (n->device[c])
            n->device[c]->ops->quiesce(n->device[c]);
    sim_memory_drop(node);
    for (int c = 0; c < s->plan->ncomms; c++)
        n->proxy[c].coll = NULL;
}

void sim_node_stop(struct sim *s, int node)
{
    s->node[node]->stopped = s->node[node]->was_stopped = true;
}

void sim_node_continue(struct sim *s, int node)
{
    struct sim_node *n = s->node[node];

    n->stopped = false;
    n->continued = s->now;
    if (n->woken)
        sim_node_wake(s, node);
    n->woken = false;
}
