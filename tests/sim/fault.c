/* SPDX-License-Identifier: Apache-2.0 */
/* Faults take effect. See fault.h. */
#include "tests/sim/fault.h"

#include <stdio.h>
#include <stdlib.h>

#include "coll/comm/comm.h"
#include "coll/comm/grid.h"
#include "coll/comm/node.h"
#include "coll/engine.h"
#include "tests/sim/judge.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"

#define SOON SIM_S /* by then all nodes know of a fault that they can notice at once */
#define HEADER 56  /* bytes of a message that a check always covers */

enum { WAITING, ARMED, TAKEN, HEALED };

uint64_t sim_fault_count[SIM_FAULTS];

const char *const sim_fault_name[SIM_FAULTS] = {
    [SIM_KILL] = "kill",
    [SIM_POWER] = "power",
    [SIM_STOP] = "stop",
    [SIM_SLOW] = "slow",
    [SIM_CUT] = "cut",
    [SIM_ISOLATE] = "isolate",
    [SIM_RESET] = "reset",
    [SIM_HALF] = "half-close",
    [SIM_STALL] = "stall",
    [SIM_FLIP] = "flip",
    [SIM_TRUNCATE] = "truncate",
    [SIM_NO_MEMORY] = "no-memory",
    [SIM_NO_MR] = "no-mr",
    [SIM_BROKEN_DEVICE] = "broken-device",
    [SIM_STUCK_DEVICE] = "stuck-device",
    [SIM_PAUSE] = "pause",
    [SIM_ABORT] = "abort",
    [SIM_SWITCH] = "switch",
};

/* ---- when ---------------------------------------------------------------------------------------------- */

static void find_next(struct sim *s)
{
    s->fault_next = UINT64_MAX;
    for (int i = 0; i < s->plan->nfaults; i++)
        if (s->fault_state[i] == ARMED && s->fault_event[i] < s->fault_next)
            s->fault_next = s->fault_event[i];
}

static void arm(struct sim *s, int i)
{
    s->fault_state[i] = ARMED;
    s->fault_event[i] = s->events + s->plan->fault[i].events;
    find_next(s);
}

void sim_fault_begin(struct sim *s)
{
    s->fault_next = UINT64_MAX;
    for (int i = 0; i < s->plan->nfaults; i++)
        if (!s->plan->fault[i].skip && s->plan->fault[i].at_op < 0)
            arm(s, i);
}

void sim_fault_operation(struct sim *s, int node, int comm, int op)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (!f->skip && s->fault_state[i] == WAITING && f->at_op >= 0 && f->at_node == node &&
            f->comm == comm && f->at_op <= op)
            arm(s, i);
    }
}

/* Return whether all communicators are connected, so that the fault does not hit a connect. */
static bool all_connected(const struct sim *s)
{
    for (int i = 0; i < s->plan->nnodes; i++)
        if (!s->node[i]->dead && s->node[i]->connecting < s->plan->ncomms)
            return false;
    return true;
}

/* ---- effects ------------------------------------------------------------------------------------------- */

static int64_t peer_timeout(const struct sim *s)
{
    return s->plan->params[0].peer_timeout * SIM_S;
}

static int64_t shorter(int64_t ns, int64_t seconds)
{
    return seconds * SIM_S < ns ? seconds * SIM_S : ns;
}

/* Return the shortest limit of all nodes for a close, and for a connect. */
static int64_t close_timeout(const struct sim *s)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < s->plan->nnodes; i++)
        least = shorter(least, s->plan->params[i].close_timeout);
    return least;
}

static int64_t connect_timeout(const struct sim *s)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < s->plan->nnodes; i++)
        least = shorter(least, s->plan->params[i].connect_timeout);
    return least;
}

/* Return the verdict of a silence of peers that lasts so long. A node that closes waits for less. */
static enum sim_verdict verdict_of_silence(const struct sim *s, int64_t lasts)
{
    const int64_t closing = close_timeout(s);
    const int64_t patience = peer_timeout(s) < closing ? peer_timeout(s) : closing;
    int64_t all = 0;

    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (!f->skip && (f->kind == SIM_STOP || f->kind == SIM_CUT || f->kind == SIM_ISOLATE ||
                         f->kind == SIM_STALL || f->kind == SIM_SLOW))
            all += f->lasts;
    }
    if (lasts > peer_timeout(s) * 13 / 10)
        return SIM_FATAL;
    return all > patience * 6 / 10 ? SIM_MAY_FAIL : SIM_SURVIVES;
}

/* Judge a fault's effect on communicators. While they connect nearly everything may happen: they decline, or
 * connect and fail. But connecting ends, in time (judge.h). */
static void judge(struct sim *s, const struct sim_fault *f, enum sim_verdict verdict, int comm, int a, int b,
                  int64_t within)
{
    const int64_t patience = connect_timeout(s);

    if (f->at_op < 0 && verdict != SIM_SURVIVES)
        verdict = SIM_MAY_FAIL;
    if (f->at_op < 0 && f->kind != SIM_SWITCH && f->lasts + SIM_S > patience / 2)
        verdict = SIM_MAY_FAIL;
    sim_judge_fault(s, verdict, comm, a, b, within);
    if (f->at_op < 0 && verdict == SIM_MAY_FAIL)
        sim_judge_delay(s, a, b);
}

/* Return the time within which a fault becomes known. Where another fault may keep news from spreading,
 * heartbeats must tell. */
static int64_t soon(const struct sim *s)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const enum sim_fault_kind k = s->plan->fault[i].kind;
        if (!s->plan->fault[i].skip && (k == SIM_STOP || k == SIM_CUT || k == SIM_ISOLATE || k == SIM_STALL ||
                                        k == SIM_POWER || k == SIM_SLOW))
            return 2 * peer_timeout(s) + SOON;
    }
    /* A node doubts the end of a connection for a fourth of the limit, a second at most. */
    return peer_timeout(s) / 4 < SOON ? SOON : 2 * SOON;
}

static int rank_of(const struct sim_comm *c, int node)
{
    for (int r = 0; r < c->nmembers; r++)
        if (c->member[r] == node)
            return r;
    return -1;
}

/* Return the grid of a communicator. The caller frees it. */
static struct nb_grid grid_of(const struct sim *s, const struct sim_comm *c)
{
    const struct nb_params *p = s->plan->params;
    char(*site)[NB_SITE_BYTES] = calloc((size_t)c->nmembers, sizeof(*site)), why[64];
    struct nb_grid grid;

    if (!site)
        abort();
    for (int r = 0; r < c->nmembers; r++)
        snprintf(site[r], sizeof(site[r]), "%s", p[c->member[r]].site);
    if (nb_grid_of_sites(c->nmembers, (const char(*)[NB_SITE_BYTES])site, p->schedule, p->group, &grid, why,
                         sizeof(why)))
        abort();
    free(site);
    return grid;
}

/* Return whether two nodes are connected in a communicator. */
static bool linked(const struct sim *s, int comm, int a, int b)
{
    const struct sim_comm *c = &s->plan->comm[comm];
    const int ra = rank_of(c, a), rb = rank_of(c, b);
    struct nb_grid grid;
    bool is;

    if (ra < 0 || rb < 0)
        return false;
    grid = grid_of(s, c);
    is = grid.rows <= 1 || nb_grid_same_column(grid, ra, rb) || nb_grid_same_row(grid, ra, rb);
    nb_grid_free(&grid);
    return is;
}

static void heal_at(struct sim *s, int i, int64_t at)
{
    sim_queue_put(&s->queue, at, SIM_HEAL, -1, (void *)(uintptr_t)(i + 1));
}

/* How far `other` is done with `node` in the communicator. NOT_PARTED: not yet. HEARD: all messages of `node`
 * have arrived there, its FIN last, so it may be silent. PARTED: the end of its connections, too, or `other`
 * has left. */
enum { NOT_PARTED, HEARD, PARTED };

static int parting(const struct sim *s, int comm, int node, int other)
{
    const struct nb_coll_comm *coll = s->node[other]->proxy[comm].coll;
    const struct nb_peer *peer = coll ? &coll->peer[s->node[node]->proxy[comm].rank] : NULL;

    if (s->node[other]->dead || s->node[other]->proxy[comm].state == SIM_CLOSED || (peer && peer->gone))
        return PARTED;
    return peer && peer->life.fin_acked ? HEARD : NOT_PARTED;
}

/* Return the meaning of `verdict` for a communicator that node `a` may have left. A fault that ends a
 * communicator has no effect once the node has closed it and all nodes have seen that. A node that has only
 * heard its FIN may still wait for an answer to its own FIN, and say so when it closes. The same is true of
 * the node itself, while it waits for their FINs. `b`: the other end of the fault. -1: all nodes connected
 * with `a`. */
static enum sim_verdict verdict_left(const struct sim *s, enum sim_verdict verdict, int comm, int a, int b)
{
    const struct sim_proxy *p = &s->node[a]->proxy[comm];
    const bool leaves = p->state == SIM_CLOSING && p->coll && p->coll->drained && !p->failed_at;
    int least = p->state == SIM_CLOSED ? PARTED : leaves ? HEARD : NOT_PARTED;

    for (int other = 0; other < s->plan->nnodes; other++)
        if (other != a && (b < 0 || b == other) && linked(s, comm, a, other) &&
            parting(s, comm, a, other) < least)
            least = parting(s, comm, a, other);
    if (verdict < SIM_FATAL_IN_TURN || least == NOT_PARTED)
        return verdict;
    return least == PARTED ? SIM_SURVIVES : SIM_MAY_FAIL;
}

/* Judge all communicators in which the two are connected. */
static void judge_link(struct sim *s, const struct sim_fault *f, enum sim_verdict verdict, int a, int b,
                       int64_t within)
{
    for (int c = 0; c < s->plan->ncomms; c++)
        if (linked(s, c, a, b))
            judge(s, f, verdict_left(s, verdict_left(s, verdict, c, a, b), c, b, a), c, a, b, within);
}

/* Judge all communicators of the node. */
static void judge_node(struct sim *s, const struct sim_fault *f, enum sim_verdict verdict, int64_t within)
{
    for (int c = 0; c < s->plan->ncomms; c++)
        if (rank_of(&s->plan->comm[c], f->node) >= 0)
            judge(s, f, verdict_left(s, verdict, c, f->node, -1), c, f->node, f->node, within);
}

static bool take_link(struct sim *s, const struct sim_fault *f, int i)
{
    const enum sim_verdict verdict = verdict_of_silence(s, f->lasts);

    if (f->kind == SIM_ISOLATE) {
        for (int b = 0; b < s->plan->nnodes; b++)
            if (b != f->node) {
                sim_network_cut(s, f->node, b);
                sim_network_cut(s, b, f->node);
            }
        judge_node(s, f, verdict, peer_timeout(s) + soon(s));
    } else {
        sim_network_cut(s, f->node, f->peer);
        if (f->amount)
            sim_network_cut(s, f->peer, f->node);
        judge_link(s, f, verdict, f->node, f->peer, peer_timeout(s) + soon(s));
    }
    heal_at(s, i, s->now + f->lasts);
    return true;
}

static bool take_connection(struct sim *s, const struct sim_fault *f)
{
    const int ends = f->kind == SIM_RESET ? 3 : f->amount & 1 ? 2 : 1;

    if (!sim_network_reset(s, f->node, f->peer, f->amount / 2, f->comm, ends))
        return false;
    judge(s, f, SIM_FATAL_IN_USE, f->comm, f->node, f->peer, soon(s));
    return true;
}

static bool take_node(struct sim *s, const struct sim_fault *f, int i)
{
    struct sim_node *n = s->node[f->node];

    switch (f->kind) {
    case SIM_KILL:
    case SIM_POWER:
        judge_node(s, f, SIM_FATAL, f->kind == SIM_KILL ? soon(s) : peer_timeout(s) + soon(s));
        sim_node_kill(s, f->node, f->kind == SIM_POWER);
        return true;
    case SIM_STOP:
        if (n->stopped)
            return false;
        sim_node_stop(s, f->node);
        judge_node(s, f, verdict_of_silence(s, f->lasts), peer_timeout(s) + soon(s));
        heal_at(s, i, s->now + f->lasts);
        return true;
    case SIM_SLOW:
        n->slow_until = s->now + f->lasts;
        n->slow_ns = (int64_t)f->amount;
        return true;
    case SIM_NO_MEMORY:
        sim_memory_refuse(f->node, f->amount);
        judge(s, f, SIM_MAY_FAIL, -1, f->node, f->node, 0);
        return true;
    case SIM_NO_MR:
        sim_network_no_mr(s, f->node);
        judge(s, f, SIM_MAY_FAIL, -1, f->node, f->node, 0);
        return true;
    case SIM_SWITCH:
        nb_engine_node(n->ctx.engine)->control.off = f->amount != 0;
        sim_node_wake(s, f->node);
        return true;
    default: return false;
    }
}

static bool take_nccl(struct sim *s, const struct sim_fault *f)
{
    struct sim_proxy *p = &s->node[f->node]->proxy[f->comm];
    const struct nb_params *params = &s->plan->params[f->node];

    if (p->rank < 0 || p->state < SIM_WAITING || p->state > SIM_RUNNING || p->error_code)
        return false;
    if (f->kind == SIM_PAUSE) {
        p->paused = s->now + f->lasts;
        sim_node_wake_at(s, f->node, p->paused);
        return true;
    }
    p->aborts = true;
    judge(s, f, SIM_FATAL, f->comm, f->node, f->node,
          params->close_timeout * SIM_S + peer_timeout(s) + soon(s));
    sim_node_wake(s, f->node);
    return true;
}

static bool take(struct sim *s, int i)
{
    const struct sim_fault *f = &s->plan->fault[i];

    if (s->node[f->node]->dead || s->node[f->peer]->dead)
        return false;
    switch (f->kind) {
    case SIM_CUT:
    case SIM_ISOLATE: return take_link(s, f, i);
    case SIM_RESET:
    case SIM_HALF: return take_connection(s, f);
    case SIM_STALL:
        if (!sim_network_stall(s, f->node, f->peer, f->amount, s->now + f->lasts))
            return false;
        judge_link(s, f, verdict_of_silence(s, f->lasts) == SIM_SURVIVES ? SIM_SURVIVES : SIM_MAY_FAIL,
                   f->node, f->peer, 0);
        return true;
    case SIM_FLIP:
        sim_network_flip(s, f->node, f->peer, f->control, f->amount / 4, f->amount & 1 ? 0 : HEADER);
        return true;
    case SIM_TRUNCATE: sim_network_truncate(s, f->node, f->peer, f->control); return true;
    case SIM_BROKEN_DEVICE:
    case SIM_STUCK_DEVICE: return true; /* the device asks */
    case SIM_PAUSE:
    case SIM_ABORT: return take_nccl(s, f);
    default: return take_node(s, f, i);
    }
}

void sim_fault_look(struct sim *s)
{
    const bool connected = s->events >= s->fault_next && all_connected(s);

    if (s->events < s->fault_next)
        return;
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (s->fault_state[i] != ARMED || s->fault_event[i] > s->events || (f->at_op >= 0 && !connected))
            continue;
        s->fault_state[i] = TAKEN;
        if (take(s, i)) {
            sim_fault_count[f->kind]++;
            s->fault_at[i] = s->now + 1;
            s->progress = s->now;
            sim_trace(s, "fault", f->node, f->peer, (long)(f->lasts / SIM_US), sim_fault_name[f->kind]);
        }
    }
    find_next(s);
}

/* ---- afterwards ---------------------------------------------------------------------------------------- */

void sim_fault_event(struct sim *s, const struct sim_event *event)
{
    const int i = (int)(uintptr_t)event->thing - 1;
    const struct sim_fault *f = &s->plan->fault[i];

    s->fault_state[i] = HEALED;
    s->progress = s->now;
    sim_trace(s, "healed", f->node, f->peer, 0, sim_fault_name[f->kind]);
    if (f->kind == SIM_STOP) {
        sim_node_continue(s, f->node);
        if (verdict_of_silence(s, f->lasts) == SIM_FATAL) /* the node must now hear of it, too */
            judge_node(s, f, SIM_FATAL, peer_timeout(s) + soon(s));
        return;
    }
    for (int b = 0; b < s->plan->nnodes && f->kind == SIM_ISOLATE; b++)
        if (b != f->node) {
            sim_network_join(s, f->node, b);
            sim_network_join(s, b, f->node);
        }
    if (f->kind == SIM_CUT) {
        sim_network_join(s, f->node, f->peer);
        if (f->amount)
            sim_network_join(s, f->peer, f->node);
    }
    for (int n = 0; n < s->plan->nnodes; n++)
        sim_node_wake(s, n);
}

bool sim_fault_device(struct sim *s, int node, int comm, bool lasts, enum sim_fault_kind *kind)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (s->fault_state[i] != TAKEN || f->node != node || f->comm != comm ||
            !(f->kind == SIM_BROKEN_DEVICE || (f->kind == SIM_STUCK_DEVICE && lasts)))
            continue;
        s->fault_state[i] = HEALED;
        *kind = f->kind;
        judge(s, f, SIM_FATAL, comm, node, node,
              soon(s) + (f->kind == SIM_STUCK_DEVICE ? s->plan->params[node].gpu_timeout * SIM_S : 0));
        return true;
    }
    return false;
}

void sim_fault_damaged(struct sim *s, int comm, enum sim_cover cover)
{
    static const enum sim_verdict verdicts[] = {[SIM_NOT_CHECKED] = SIM_MAY_FAIL,
                                                [SIM_FOUND] = SIM_FATAL,
                                                [SIM_READ] = SIM_FATAL_IN_TURN,
                                                [SIM_RESENT] = SIM_MENDED,
                                                [SIM_RESENT_TWICE] = SIM_MAY_FAIL};

    sim_judge_damage(comm);
    if (cover == SIM_NOT_CHECKED)
        sim_judge_unchecked(s, comm);
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (s->fault_state[i] == TAKEN && (f->kind == SIM_FLIP || f->kind == SIM_TRUNCATE)) {
            s->fault_state[i] = HEALED;
            judge(s, f, verdicts[cover], comm, f->node, f->peer, soon(s));
        }
    }
}
