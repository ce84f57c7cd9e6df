/* SPDX-License-Identifier: Apache-2.0 */
/* The loop over events. See cluster.h. */
#include "tests/sim/cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/sim/device.h"
#include "tests/sim/fault.h"
#include "tests/sim/judge.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"

#define MOST_EVENTS 30000000u /* of a run: a run with more makes no progress */
#define GRACE SIM_S           /* after the last event, while nodes only exchange heartbeats */

/* ---- trace --------------------------------------------------------------------------------------------- */

static struct sim *running; /* for the logger, which has no context argument */

static uint64_t mix(uint64_t h, uint64_t x)
{
    return (h ^ x) * UINT64_C(0x100000001b3);
}

static void print_entry(const struct sim_trace_entry *e)
{
    printf("%14.6f ms  ", 1e-6 * (double)e->at);
    if (e->node >= 0)
        printf("node %-3d ", e->node);
    printf("%s %ld %ld%s%s\n", e->what, e->a, e->b, e->text[0] ? ": " : "", e->text);
}

void sim_trace(struct sim *s, const char *what, int node, long a, long b, const char *text)
{
    struct sim_trace_entry *e = &s->trace[s->traced++ % SIM_TRACE];

    e->at = s->now;
    e->what = what;
    e->node = node;
    e->a = a;
    e->b = b;
    e->text[0] = 0;
    s->hash = mix(mix(mix(mix(s->hash, (uint64_t)s->now), (uint64_t)node), (uint64_t)a), (uint64_t)b);
    for (const char *c = what; *c; c++)
        s->hash = mix(s->hash, (uint8_t)*c);
    if (text) {
        snprintf(e->text, sizeof(e->text), "%s", text);
        for (const char *c = text; *c; c++)
            s->hash = mix(s->hash, (uint8_t)*c);
    }
    if (s->loud)
        print_entry(e);
}

void sim_violation(struct sim *s, const char *fmt, ...)
{
    va_list ap;

    if (s->failed)
        return;
    s->failed = true;
    va_start(ap, fmt);
    vsnprintf(s->violation, sizeof(s->violation), fmt, ap);
    va_end(ap);
}

int sim_enter(struct sim *s, int node)
{
    const int before = s->log_node;

    s->log_node = node;
    sim_memory_enter(node);
    nb_log_label(node >= 0 ? s->node[node]->ctx.label : NULL);
    return before;
}

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags,
                                                         const char *file, int line, const char *fmt, ...)
{
    char text[1100];
    va_list ap;

    (void)flags;
    (void)file;
    (void)line;
    if (!running || (level != NCCL_LOG_WARN && !running->loud))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (level == NCCL_LOG_WARN)
        sim_judge_warning(running, running->log_node, text);
    else
        printf("                   node %-3d %s\n", running->log_node, text);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static bool all_finished(const struct sim *s)
{
    for (int i = 0; i < s->plan->nnodes; i++)
        if (!s->node[i]->dead && !s->node[i]->finished)
            return false;
    return true;
}

/* Return whether the run is stuck: for a while only heartbeats have happened, the queue holds only steps of
 * engines, and no node will do anything by itself. */
static bool stands_still(const struct sim *s)
{
    int64_t grace = GRACE, noticed = 0;

    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct nb_params *p = &s->plan->params[i];
        const int64_t all =
            (p->peer_timeout + p->close_timeout + p->gpu_timeout + 2 * p->connect_timeout) * SIM_S * 2;
        noticed = all > noticed ? all : noticed;
    }
    for (int i = 0; i < s->plan->nfaults; i++)
        if (s->fault_state[i] > 1) /* nodes must notice the fault by that time */
            grace = noticed;
    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_node *n = s->node[i];
        if (n->dead)
            continue;
        if (n->connecting < s->plan->ncomms && n->connect_at > s->now)
            return false;
        for (int c = 0; c < s->plan->ncomms; c++) {
            const int64_t until = sim_proxy_until(&n->proxy[c]);
            if (n->proxy[c].rank >= 0 && until != SIM_NEVER)
                return false;
            if (n->proxy[c].paused && s->now - n->proxy[c].paused <= GRACE) /* it goes on only now */
                return false;
        }
    }
    return s->now - s->progress > grace;
}

static void dispatch(struct sim *s, const struct sim_event *e)
{
    switch (e->kind) {
    case SIM_NODE:
        sim_node_event(s, e);
        sim_judge_node(s, e->node);
        break;
    case SIM_WORK: sim_device_event(s, e); break;
    case SIM_HEAL: sim_fault_event(s, e); break;
    case SIM_DUE: sim_judge_due(s, e); break;
    default: sim_network_event(s, e); break;
    }
}

static void loop(struct sim *s)
{
    struct sim_event e;

    while (!s->failed && sim_queue_take(&s->queue, &e)) {
        s->now = e.at;
        s->events++;
        dispatch(s, &e);
        sim_fault_look(s);
        if (e.kind == SIM_NODE && s->node[e.node]->finished && all_finished(s))
            return;
        if (s->events > MOST_EVENTS)
            sim_violation(s, "no end after %u events", MOST_EVENTS);
        if (s->queue.foreground == 0 && s->now - s->progress > GRACE && stands_still(s))
            sim_judge_deadlock(s);
    }
    if (!s->failed && !all_finished(s))
        sim_judge_deadlock(s);
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

static bool comparable(const struct sim *s)
{
    if (s->failed || s->partial)
        return false;
    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct nb_params *p = &s->plan->params[i];
        const bool told = s->plan->recorded[i] && strcmp(p->grad, "all") == 0 && p->warmup_steps == 0;
        if (p->ref_max_mb == 0) /* timing decides when owners hear of it */
            return false;
        /* Without records the plugin finds tracked buffers, gradients and steps by the order of all calls of
         * a job. That is the order in which the engine takes them up (policy/job/job.c). */
        if (s->plan->ncomms > 1 && !told)
            return false;
    }
    for (int i = 0; i < s->plan->nfaults; i++)
        if (!s->plan->fault[i].skip &&
            (s->plan->fault[i].kind == SIM_SWITCH || s->plan->fault[i].kind == SIM_NO_MEMORY))
            return false;
    return true;
}

static void report(struct sim *s)
{
    const uint64_t n = s->traced < SIM_TRACE ? s->traced : SIM_TRACE;

    printf("the last %llu of %llu lines of the trace:\n", (unsigned long long)n,
           (unsigned long long)s->traced);
    for (uint64_t i = s->traced - n; i < s->traced; i++)
        print_entry(&s->trace[i % SIM_TRACE]);
}

void sim_run(const struct sim_plan *plan, bool loud, bool tell, struct sim_outcome *out)
{
    struct sim *s = calloc(1, sizeof(*s));

    if (!s)
        abort();
    sim_memory_reset();
    nb_log_set(logger);
    running = s;
    s->plan = plan;
    s->loud = loud;
    s->log_node = SIM_NOBODY;
    s->random = hx_seed(plan->seed, 0x72616e64, 2);
    s->hash = UINT64_C(0xcbf29ce484222325);
    s->fault_state = calloc((size_t)plan->nfaults + 1, 1);
    s->fault_event = calloc((size_t)plan->nfaults + 1, sizeof(uint64_t));
    s->fault_at = calloc((size_t)plan->nfaults + 1, sizeof(int64_t));
    s->node = calloc((size_t)plan->nnodes, sizeof(struct sim_node *));
    if (!s->fault_at || !s->fault_state || !s->fault_event || !s->node)
        abort();
    s->network = sim_network_open(s);
    sim_judge_open(s);
    for (int i = 0; i < plan->nnodes; i++)
        sim_node_open(s, i);
    sim_judge_begin(s);
    sim_fault_begin(s);
    for (int i = 0; i < plan->nnodes; i++)
        sim_node_wake_at(s, i, plan->start[i]);
    loop(s);
    if (!s->failed)
        sim_judge_end(s);
    for (int i = 0; i < plan->nnodes; i++)
        sim_node_close(s->node[i]);
    if (s->failed && tell)
        report(s);
    memset(out, 0, sizeof(*out));
    out->failed = s->failed;
    sim_judge_results(s, out->result);
    for (int c = 0; c < plan->ncomms; c++)
        out->state[c] = sim_judge_states(c);
    memcpy(out->violation, s->violation, sizeof(out->violation));
    out->hash = s->hash;
    out->results = s->results;
    out->comparable = comparable(s);
    out->events = s->events;
    out->windows = s->windows;
    out->operations = s->operations;
    out->messages = sim_network_messages(s);
    out->ended = s->now;
    running = NULL;
    sim_judge_close(s);
    sim_network_close(s->network);
    sim_queue_free(&s->queue);
    free(s->fault_state);
    free(s->fault_event);
    free(s->fault_at);
    free(s->node);
    free(s);
}
