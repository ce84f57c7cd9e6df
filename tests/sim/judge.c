/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions that must hold. See judge.h. */
#include "tests/sim/judge.h"
#include "coll/decide/decide.h"
#include "coll/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/comm/comm.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"

#define CULPRITS 64
/* Squared error of a coded sum, over the squares of contributions and sum. 4 bits give 0.007 of the encoded
 * values, error feedback carries as much over from the operation before, and a sum is encoded again on its
 * way. Few values are one sample of the noise. */
#define BOUND 0.05
#define BOUND_FEW 0.3
#define FEW 256

/* The judge's knowledge of a communicator. */
struct fate {
    enum sim_verdict verdict;
    int64_t since; /* the first fault that may end it */
    int64_t fatal; /* the last fault that ends it */
    int culprit[CULPRITS];
    int nculprits;
    uint64_t *hash;  /* [nops] of an all-reduce's (all-gather's) result, by the first node that has it */
    uint64_t *every; /* [nops] of all nodes' results */
    uint64_t state;  /* hashes of residuals and references at their end */
    bool damaged;    /* nodes may retransmit */
    bool differs;    /* members disagree on settings that must agree */
    bool unchecked;  /* results carry no promise */
    unsigned ways;   /* bits: 1 << each verdict so far */
};

struct sim_judge {
    struct fate fate[SIM_COMMS];
    int64_t within[SIM_COMMS]; /* of the last fatal fault */
    int64_t shown[SIM_COMMS];  /* time from which a node sees the end of a connection. 0: it does not */
};

static struct sim_judge judges; /* of the current run */
bool sim_judge_lenient;

void sim_judge_open(struct sim *s)
{
    memset(&judges, 0, sizeof(judges));
    for (int c = 0; c < s->plan->ncomms; c++) {
        judges.fate[c].hash = calloc((size_t)s->plan->comm[c].nops + 1, sizeof(uint64_t));
        judges.fate[c].every = calloc((size_t)s->plan->comm[c].nops + 1, sizeof(uint64_t));
        if (!judges.fate[c].hash || !judges.fate[c].every)
            abort();
    }
}

void sim_judge_begin(struct sim *s)
{
    for (int c = 0; c < s->plan->ncomms; c++) {
        const struct sim_comm *comm = &s->plan->comm[c];
        for (int r = 0; r < comm->nmembers; r++) {
            if (!s->plan->differs[comm->member[r]])
                continue;
            judges.fate[c].differs = true;
            sim_judge_fault(s, SIM_MAY_FAIL, c, comm->member[r], comm->member[r], 0);
        }
    }
}

void sim_judge_unchecked(struct sim *s, int comm)
{
    judges.fate[comm].unchecked = true;
    s->partial = true; /* and results may differ from other runs' */
}

void sim_judge_damage(int comm)
{
    judges.fate[comm].damaged = true;
}

bool sim_judge_promises(int comm)
{
    return !judges.fate[comm].unchecked;
}

void sim_judge_close(struct sim *s)
{
    for (int c = 0; c < s->plan->ncomms; c++) {
        free(judges.fate[c].hash);
        free(judges.fate[c].every);
    }
}

static bool is_member(const struct sim *s, int comm, int node)
{
    return s->node[node]->proxy[comm].rank >= 0;
}

static void add_culprit(struct fate *f, int node)
{
    for (int i = 0; i < f->nculprits; i++)
        if (f->culprit[i] == node)
            return;
    if (f->nculprits < CULPRITS)
        f->culprit[f->nculprits++] = node;
}

void sim_judge_fault(struct sim *s, enum sim_verdict verdict, int comm, int a, int b, int64_t within)
{
    for (int c = 0; c < s->plan->ncomms; c++) {
        struct fate *f = &judges.fate[c];
        if ((comm >= 0 && comm != c) || verdict == SIM_SURVIVES ||
            (!is_member(s, c, a) && !is_member(s, c, b)))
            continue;
        if (f->verdict == SIM_SURVIVES)
            f->since = s->now;
        if (verdict > f->verdict)
            f->verdict = verdict;
        f->ways |= 1u << verdict;
        if (verdict == SIM_FATAL)
            f->fatal = s->now;
        add_culprit(f, a);
        if (a != b)
            add_culprit(f, b);
        if (verdict >= SIM_FATAL_IN_TURN) {
            judges.within[c] = within;
            sim_queue_put(&s->queue, s->now + within, SIM_DUE, -1, (void *)(uintptr_t)(c + 1));
        }
    }
}

/* Mark all members of the communicator if one of them is marked. Return whether the call marked any. */
static bool spread(const struct sim *s, int comm, bool *late)
{
    const struct sim_comm *c = &s->plan->comm[comm];
    bool any = false, all = true;

    for (int r = 0; r < c->nmembers; r++) {
        any |= late[c->member[r]];
        all &= late[c->member[r]];
    }
    for (int r = 0; r < c->nmembers && any; r++)
        late[c->member[r]] = true;
    return any && !all;
}

void sim_judge_delay(struct sim *s, int a, int b)
{
    bool late[SIM_NODES_MAX] = {false}, more = s->plan->ncomms > 1;

    if (a >= 0)
        late[a] = true;
    if (b >= 0)
        late[b] = true;
    while (more) {
        more = false;
        for (int c = 0; c < s->plan->ncomms; c++)
            more |= spread(s, c, late);
    }
    for (int c = 0; c < s->plan->ncomms && s->plan->ncomms > 1; c++) {
        for (int r = 0; r < s->plan->comm[c].nmembers; r++)
            if (late[s->plan->comm[c].member[r]])
                sim_judge_fault(s, SIM_MAY_FAIL, c, s->plan->comm[c].member[r], s->plan->comm[c].member[r],
                                0);
    }
}

/* A node closes before a peer, whose NCCL has paused for longer, has received everything. */
static void judge_close(struct sim *s, int node)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (f->kind == SIM_PAUSE && s->fault_at[i] &&
            f->lasts > s->plan->params[node].close_timeout * SIM_S * 6 / 10)
            sim_judge_fault(s, SIM_MAY_FAIL, f->comm, node, f->node, 0);
    }
}

/* ---- messages of nodes --------------------------------------------------------------------------------- */

void sim_judge_warning(struct sim *s, int node, const char *text)
{
    struct sim_node *n = node >= 0 ? s->node[node] : NULL;
    bool expected = false;

    sim_trace(s, "warning", node, 0, 0, text);
    if (!n)
        return;
    if (n->warnings < 4)
        snprintf(n->warning[n->warnings], sizeof(n->warning[0]), "%s", text);
    n->warnings++;
    if (strstr(text, "(NIBBLE_CLOSE_TIMEOUT)"))
        judge_close(s, node);
    for (int c = 0; c < s->plan->ncomms; c++)
        expected |= is_member(s, c, node) && judges.fate[c].verdict != SIM_SURVIVES;
    if (!expected)
        sim_violation(s, "node %d warns, and nothing has happened that it may warn of: %s", node, text);
}

/* Return whether a line names the node: "node 3", or each of "node 3, nor node 4, 5, 6 and 2 more". With
 * "more" it may be a node that the line leaves out. */
static bool names(const char *text, int rank)
{
    for (const char *at = strstr(text, "node "); at; at = strstr(at, "node ")) {
        char *end;
        long told = strtol(at += 5, &end, 10);

        while (end != at) {
            if (told == rank || (strncmp(end, " and ", 5) == 0 && strstr(end, " more")))
                return true;
            if (strncmp(end, ", ", 2) != 0)
                break;
            at = end + 2;
            told = strtol(at, &end, 10);
        }
    }
    return false;
}

/* A failing node waits for one second until its peers have heard why (abort.c). Return whether this node was
 * cut off longer from some or all peers. */
static bool could_not_hear(const struct sim *s, int node)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (s->fault_at[i] && f->lasts > SIM_S &&
            (f->kind == SIM_ISOLATE || f->kind == SIM_CUT || f->kind == SIM_STALL) &&
            (f->node == node || (f->peer == node && f->kind != SIM_ISOLATE)))
            return true;
    }
    return false;
}

/* `author`: the rank of the node that has found the cause. */
static bool names_culprit(const struct sim *s, int comm, int node, int author, const char *text)
{
    const struct fate *f = &judges.fate[comm];
    const struct sim_comm *c = &s->plan->comm[comm];

    for (int r = 0; r < c->nmembers; r++) {
        const struct sim_node *n = s->node[c->member[r]];
        bool guilty = sim_judge_lenient && (n->proxy[comm].failed_at || n->dead);
        for (int i = 0; i < f->nculprits; i++)
            guilty |= f->culprit[i] == c->member[r];
        if (n->proxy[comm].failed_at && s->now - n->proxy[comm].failed_at > SIM_S)
            guilty |= could_not_hear(s, node);
        if (guilty && (c->member[r] == node || r == author || names(text, r)))
            return true;
    }
    return false;
}

/* Without another fault, all nodes must find different settings as soon as the last node has begun to
 * connect. */
static void judge_difference(struct sim *s, const struct sim_proxy *p)
{
    int64_t last = 0;

    for (int r = 0; r < p->comm->nmembers; r++) {
        const struct sim_proxy *other = &s->node[p->comm->member[r]]->proxy[p->index];
        if (other->began > last)
            last = other->began;
    }
    if (!p->connected)
        sim_violation(s, "node %d: communicator %d stands, although settings differ", p->node->number,
                      p->index);
    else if (s->plan->nfaults == 0 && s->now - last > SIM_S)
        sim_violation(s, "node %d: communicator %d is declined %lld ms after all were there", p->node->number,
                      p->index, (long long)((s->now - last) / SIM_MS));
}

/* Return whether all messages can arrive. */
static bool alone(const struct sim *s)
{
    for (int i = 0; i < s->plan->nfaults; i++)
        if (!s->plan->fault[i].skip && s->plan->fault[i].kind != SIM_SWITCH &&
            s->plan->fault[i].kind != SIM_PAUSE)
            return false;
    return true;
}

/* The operator's switch must hold for all nodes within two seconds. */
static void judge_switch(struct sim *s, struct sim_proxy *p)
{
    const struct sim_fault *last = NULL;
    int64_t at = 0;
    int n = 0;

    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (f->kind != SIM_SWITCH || f->skip || !s->fault_at[i])
            continue;
        last = f;
        at = s->fault_at[i];
        n++;
    }
    /* The asking node, and node 0, which decides, have taken part all the time. */
    for (int i = 0; i < s->plan->nnodes && n == 1; i++)
        if ((i == last->node || s->node[i]->proxy[p->index].rank == 0) &&
            s->node[i]->proxy[p->index].state > SIM_DONE)
            return;
    if (n != 1 || s->now - at < 2 * SIM_S || p->failed_at || s->node[last->node]->proxy[p->index].rank < 0 ||
        judges.fate[p->index].verdict != SIM_SURVIVES || !alone(s))
        return;
    if (nb_decisions_off(p->coll->decisions) != (last->amount != 0))
        sim_violation(
            s, "node %d: communicator %d closes %lld ms after the operator's switch, and has not heard of it",
            p->node->number, p->index, (long long)((s->now - at) / SIM_MS));
}

/* A node that calls another node lost must have read all control messages of that node: the reason may be in
 * the last one. */
static void judge_loss(struct sim *s, const struct sim_proxy *p)
{
    int lost;

    if (p->coll->failure.author == p->rank && sscanf(p->coll->failure.text, "lost node %d", &lost) == 1 &&
        sim_network_has_unread(s, p->index, p->comm->member[lost], p->node->number))
        sim_violation(s, "node %d: communicator %d has unread messages of the node that it calls lost: %s",
                      p->node->number, p->index, p->coll->failure.text);
}

/* A communicator of the node has failed: check that it had a reason. */
static void judge_failure(struct sim *s, struct sim_proxy *p)
{
    const struct fate *f = &judges.fate[p->index];
    const char *text = p->coll->failure.text;

    p->failed_at = s->now;
    sim_trace(s, "has failed", p->node->number, p->index, nb_comm_failed(p->coll), text);
    s->progress = s->now;
    if (f->verdict < SIM_MAY_FAIL)
        sim_violation(s,
                      "node %d: communicator %d has failed, and nothing had happened to it but lateness: %s",
                      p->node->number, p->index, text);
    else if (!names_culprit(s, p->index, p->node->number, p->coll->failure.author, text))
        sim_violation(
            s, "node %d: communicator %d has failed, and the cause that is told is not the true one: %s",
            p->node->number, p->index, text);
    judge_loss(s, p);
}

void sim_judge_connected(struct sim *s, struct sim_proxy *p)
{
    const struct sim_node *n = p->node;
    const int64_t limit = s->plan->params[n->number].connect_timeout * SIM_S + SIM_S / 2;
    bool named = false;

    if (!n->was_stopped && s->now - p->began > limit)
        sim_violation(s, "node %d: connecting communicator %d took %lld ms", n->number, p->index,
                      (long long)((s->now - p->began) / SIM_MS));
    if (judges.fate[p->index].differs)
        judge_difference(s, p);
    if (!p->connected || judges.fate[p->index].verdict < SIM_MAY_FAIL)
        return;
    for (unsigned i = 0; i < n->warnings && i < 4; i++) {
        named |= names_culprit(s, p->index, n->number, -1, n->warning[i]);
    }
    if (n->warnings && n->warnings <= 4 && !named)
        sim_violation(
            s, "node %d: communicator %d is declined, and no node is named to which something happened: %s",
            n->number, p->index, n->warning[n->warnings - 1]);
    if (!n->warnings)
        sim_violation(s, "node %d: communicator %d is declined without a line", n->number, p->index);
}

/* Check retransmissions: nodes ask for bytes again where references do not fit, which only damage can
 * cause. */
static void judge_resends(struct sim *s, const struct sim_proxy *p)
{
    struct nb_coll_stats stats;

    nb_coll_get_stats(p->coll, &stats);
    if (stats.resends && !judges.fate[p->index].damaged)
        sim_violation(s,
                      "node %d: communicator %d: bytes were sent again %llu times, and nothing was damaged",
                      p->node->number, p->index, (unsigned long long)stats.resends);
}

void sim_judge_closes(struct sim *s, struct sim_proxy *p)
{
    if (judges.fate[p->index].verdict < SIM_MAY_FAIL)
        judge_resends(s, p);
    if (!p->aborts && !p->error_code)
        judge_switch(s, p);
}

void sim_judge_node(struct sim *s, int node)
{
    struct sim_node *n = s->node[node];

    if (n->dead)
        return;
    for (int c = 0; c < s->plan->ncomms; c++) {
        struct sim_proxy *p = &n->proxy[c];
        if (p->coll && p->state >= SIM_WAITING && !p->failed_at && nb_comm_failed(p->coll) && !p->aborts &&
            (p->state < SIM_CLOSING || p->done == 0))
            judge_failure(s, p);
    }
}

static bool takes_part(const struct sim_proxy *p)
{
    return !p->node->dead && p->rank >= 0 && p->state >= SIM_WAITING && p->state <= SIM_RUNNING;
}

/* Return whether a fault that must end the communicator happened long before this operation, and all members
 * have taken part since. */
static bool should_have_failed(const struct sim *s, const struct sim_proxy *p)
{
    const struct fate *f = &judges.fate[p->index];
    const int64_t within = judges.within[p->index];

    if (!(f->ways & 1u << SIM_FATAL) || p->began - f->fatal <= within)
        return false;
    for (int r = 0; r < p->comm->nmembers; r++) {
        const struct sim_node *n = s->node[p->comm->member[r]];
        if (n->dead)
            continue;
        if (!takes_part(&n->proxy[p->index]) || n->stopped || p->began - n->continued <= within)
            return false;
    }
    return true;
}

/* ---- results ------------------------------------------------------------------------------------------- */

void sim_judge_operation(struct sim *s, struct sim_proxy *p)
{
    const struct sim_op *op = &p->comm->op[p->op];
    struct fate *f = &judges.fate[p->index];
    const uint64_t hash = p->result[p->op];
    const double bound = op->count < FEW ? BOUND_FEW : BOUND;

    if (should_have_failed(s, p))
        sim_violation(s, "node %d: communicator %d completes operation %d, and should have failed before",
                      p->node->number, p->index, p->op);
    f->every[p->op] += hash * (uint64_t)(2 * p->rank + 1);
    if (f->unchecked)
        return;
    if (op->func != NB_FUNC_REDUCE_SCATTER && !p->partial) {
        if (!f->hash[p->op])
            f->hash[p->op] = hash;
        else if (f->hash[p->op] != hash)
            sim_violation(
                s, "node %d: communicator %d, operation %d (%s): another result than that of other nodes",
                p->node->number, p->index, p->op, nb_func_name(op->func));
    }
    if (op->coded && p->error > bound * p->energy)
        sim_violation(
            s,
            "node %d: communicator %d, operation %d (%s, %zu values): squared error %g, by the bound it is "
            "at most %g",
            p->node->number, p->index, p->op, nb_func_name(op->func), op->count, p->error, bound * p->energy);
}

/* ---- time ---------------------------------------------------------------------------------------------- */

/* Return whether the job waits for NCCL or the device of some node, which is idle or was until now. */
static bool any_paused(const struct sim *s, int comm)
{
    for (int i = 0; i < s->plan->nfaults; i++) {
        const struct sim_fault *f = &s->plan->fault[i];
        if (f->kind == SIM_STUCK_DEVICE && f->comm == comm && s->fault_at[i] &&
            s->fault_at[i] + s->plan->params[f->node].gpu_timeout * SIM_S + judges.within[comm] > s->now)
            return true;
    }
    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_proxy *p = &s->node[i]->proxy[comm];
        if (!s->node[i]->dead && p->rank >= 0 && p->paused && p->paused + judges.within[comm] > s->now)
            return true;
    }
    return false;
}

/* Return whether a member has not begun another member's operation, or has only just begun it. */
static bool any_late(const struct sim *s, int comm)
{
    int most = -1;

    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_proxy *p = &s->node[i]->proxy[comm];
        if (takes_part(p) && p->state == SIM_RUNNING && p->op > most)
            most = p->op;
    }
    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_proxy *p = &s->node[i]->proxy[comm];
        if (takes_part(p) && (p->op < most || (p->op == most && p->state == SIM_WAITING) ||
                              s->now - p->began < judges.within[comm]))
            return true;
    }
    return false;
}

/* Return whether a node of the group has just learned of the fault, so that its peers are about to. */
static bool any_told(const struct sim *s, int comm)
{
    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_proxy *p = &s->node[i]->proxy[comm];
        if (p->rank >= 0 && p->failed_at && s->now - p->failed_at < SIM_S)
            return true;
    }
    return false;
}

/* Return whether no node can know so far. */
static bool is_unheard(const struct sim *s, int comm)
{
    const unsigned ways = judges.fate[comm].ways;

    if (any_told(s, comm))
        return true;
    if (ways & 1u << SIM_FATAL)
        return false;
    if (ways & 1u << SIM_FATAL_IN_TURN && !any_late(s, comm) && !any_paused(s, comm))
        return false;
    if (!(ways & 1u << SIM_FATAL_IN_USE))
        return true;
    if (!sim_network_shows(s, comm))
        judges.shown[comm] = 0;
    else if (!judges.shown[comm])
        judges.shown[comm] = s->now;
    return !judges.shown[comm] || s->now - judges.shown[comm] < judges.within[comm];
}

void sim_judge_due(struct sim *s, const struct sim_event *event)
{
    const int c = (int)(uintptr_t)event->thing - 1;
    const bool unheard = is_unheard(s, c);
    bool again = false;

    for (int i = 0; i < s->plan->nnodes; i++) {
        const struct sim_node *n = s->node[i];
        const struct sim_proxy *p = &n->proxy[c];
        if (n->dead || p->rank < 0 || p->failed_at || p->error_code || p->aborts || p->state > SIM_RUNNING ||
            p->state < SIM_WAITING)
            continue;
        /* A node need not know before its next operation. */
        if (n->stopped || s->now - n->continued < judges.within[c] || unheard || p->state == SIM_WAITING ||
            p->paused > s->now || s->now - p->began < judges.within[c]) {
            again = true;
            continue;
        }
        sim_violation(s, "node %d: communicator %d should have failed by now, %lld ms after the fault", i, c,
                      (long long)(judges.within[c] / SIM_MS));
    }
    if (again)
        sim_queue_put(&s->queue, s->now + judges.within[c], SIM_DUE, -1, event->thing);
}

void sim_judge_deadlock(struct sim *s)
{
    char text[900];
    size_t at = 0;

    for (int i = 0; i < s->plan->nnodes && at + 1 < sizeof(text); i++) {
        for (int c = 0; c < s->plan->ncomms && at + 1 < sizeof(text); c++) {
            const struct sim_proxy *p = &s->node[i]->proxy[c];
            if (s->node[i]->dead || p->rank < 0 || p->state == SIM_CLOSED || p->state == SIM_DECLINED)
                continue;
            text[at++] = ' ';
            sim_proxy_describe(p, text + at, sizeof(text) - at);
            at += strlen(text + at);
            if (at + 1 < sizeof(text))
                text[at++] = ';';
        }
    }
    text[at < sizeof(text) ? at : sizeof(text) - 1] = 0;
    sim_violation(s, "deadlock: nothing is left to happen, and:%s", text);
}

void sim_judge_end(struct sim *s)
{
    for (int c = 0; c < s->plan->ncomms; c++) {
        const struct sim_comm *comm = &s->plan->comm[c];
        const struct fate *f = &judges.fate[c];
        int most = 0, connected = 0, living = 0, finished = 0;

        for (int k = 0; k < comm->nops; k++)
            most += !comm->op[k].skip;
        for (int r = 0; r < comm->nmembers; r++) {
            const struct sim_node *n = s->node[comm->member[r]];
            const struct sim_proxy *p = &n->proxy[c];
            s->partial |= n->dead;
            if (n->dead)
                continue;
            living++;
            s->partial |= p->done != most;
            connected += p->state != SIM_DECLINED;
            finished += p->done == most && !p->error_code && !p->failed_at && !p->aborts;
            if (f->verdict < SIM_MAY_FAIL && (p->done != most || p->error_code))
                sim_violation(
                    s,
                    "node %d: communicator %d has completed %d of %d operations, and nothing had happened "
                    "to it but lateness (error %d)",
                    n->number, c, p->done, most, p->error_code);
        }
        if (f->ways & 1u << SIM_FATAL_IN_TURN && finished == comm->nmembers)
            sim_violation(s, "communicator %d has completed all operations, and a damaged message among them",
                          c);
        if (connected != 0 && connected != living && f->verdict < SIM_MAY_FAIL)
            sim_violation(s, "communicator %d stands on %d of %d nodes", c, connected, living);
        for (int k = 0; k < comm->nops; k++)
            s->results = (s->results ^ f->every[k]) * UINT64_C(0x100000001b3);
    }
}

void sim_judge_state(struct sim *s, int node, int comm, uint64_t hash)
{
    const int rank = s->node[node]->proxy[comm].rank;

    sim_trace(s, "state", node, comm, (long)(hash >> 40), NULL);
    judges.fate[comm].state += hash * (uint64_t)(2 * rank + 1);
}

uint64_t sim_judge_states(int comm)
{
    return judges.fate[comm].state;
}

void sim_judge_results(const struct sim *s, uint64_t result[SIM_COMMS][SIM_OPS])
{
    for (int c = 0; c < s->plan->ncomms; c++)
        for (int k = 0; k < s->plan->comm[c].nops && k < SIM_OPS; k++)
            result[c][k] = judges.fate[c].every[k];
}
