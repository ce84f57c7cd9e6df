/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model checker for policy/handback.h: a group of nodes whose ranks' calls, verdicts, notes and failures come in
 * every order that there is. States are kept whole, so none is missed by chance.
 *
 *   call      a rank's caller comes to its next call of a signature
 *   verdict   a head's opinion changes, or is said once more
 *   deliver   the first note on the way from one node to another arrives
 *   stop      a node hands nothing more back
 *   break     a node aborts: its callers go on and are answered "CollNet", where they get the error; or it dies with
 *             what it had sent and had not yet arrived, and makes no more calls. Either way every other node hears of it behind
 *             what is still on its way
 *
 * Wrong is: two ranks whose communicators had not failed were answered differently at the same call; a caller
 * that waits though nothing is on its way; node 0 and a node that differ, then, in what that node has told.
 */
#include "handback_model.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "policy/handback.h"

enum { NODES = 3, RANKS = 2, SIGNATURES = 2, CALLS = 12, ON_WAY = 6 };
#define FAILURE 0xffu /* a note that the sender has failed */

struct sig_state {
    uint8_t calls[RANKS], from, until, period, raw, flags, barrier, raw_on;
};
struct node_state {
    struct sig_state sig[SIGNATURES];
    uint8_t failed, dead, stopped, turns, order;
    uint8_t open, number, which, answered, refused, furthest; /* node 0's vote */
};
struct wire_note {
    uint8_t kind, sig, call, vote;
};
struct state {
    struct node_state node[NODES];
    struct wire_note way[NODES][NODES][ON_WAY];
    uint8_t on_way[NODES][NODES];
    uint8_t answer[SIGNATURES][CALLS]; /* bits: a healthy rank was answered CollNet, NCCL */
    uint8_t breaks, stops;
};

static uint64_t bytes_of(int sig)
{
    return 100u + (unsigned)sig;
}

/* Small numbers, and NONE. */
static uint8_t small(uint64_t v)
{
    return v == NB_HANDBACK_NONE ? 255 : (uint8_t)v;
}

static uint64_t large(uint8_t v)
{
    return v == 255 ? NB_HANDBACK_NONE : v;
}

static void save(const struct nb_handback *h, struct node_state *n)
{
    /* The order in which signatures got their places: 0, 1 or 1, 0; and how many. */
    n->order = (uint8_t)(h->signatures * 2 + (h->signatures && h->signature[0].bytes == bytes_of(1)));
    memset(n->sig, 0, sizeof(n->sig));
    for (unsigned i = 0; i < h->signatures; i++) {
        const struct nb_handback_signature *s = &h->signature[i];
        n->sig[i] = (struct sig_state){
            .calls = {small(s->calls[0]), small(s->calls[1])},
            .from = small(s->from),
            .until = small(s->until),
            .period = small(s->period),
            .raw = (uint8_t)s->raw,
            .flags = (uint8_t)(s->told | s->voting << 1),
            .barrier = s->voting ? small(s->barrier) : 0,
            .raw_on = (uint8_t)s->raw_on,
        };
    }
    n->failed = h->failed;
    n->stopped = h->stopped;
    n->open = h->vote.open;
    n->number = (uint8_t)h->vote.number;
    n->which = h->vote.open ? (uint8_t)h->vote.signature : 0;
    n->answered = h->vote.open ? (uint8_t)h->vote.answered : 0;
    n->refused = h->vote.open && h->vote.refused;
    n->furthest = h->vote.open ? small(h->vote.furthest) : 0;
}

static int ranks_of(const struct handback_case *c)
{
    return c->ranks ? c->ranks : 1;
}

static int heads_of(const struct handback_case *c)
{
    return c->heads ? c->heads : 1;
}

static void load(const struct handback_case *c, int node, const struct node_state *n, struct nb_handback *h)
{
    nb_handback_init(
        h, &(struct nb_handback_config){.node = node,
                                        .nnodes = c->nodes,
                                        .ranks = c->mutant == MUTANT_FIRST ? 1u : (unsigned)ranks_of(c),
                                        .heads = (unsigned)heads_of(c),
                                        .leader = (unsigned)heads_of(c) - 1,
                                        .slack = (uint64_t)c->slack,
                                        .period = (uint64_t)c->period,
                                        .longest = 2 * (uint64_t)c->period});
    h->signatures = n->order / 2u;
    for (unsigned i = 0; i < h->signatures; i++) {
        const struct sig_state *s = &n->sig[i];
        h->signature[i] = (struct nb_handback_signature){
            .func = NB_FUNC_ALL_REDUCE,
            .bytes = bytes_of((int)i ^ (n->order & 1)),
            .calls = {s->calls[0], s->calls[1]},
            .from = s->from,
            .until = s->until,
            .period = s->period,
            .raw = s->raw,
            .told = s->flags & 1,
            .voting = s->flags >> 1 & 1,
            .barrier = s->barrier,
            .raw_on = s->raw_on,
        };
    }
    h->failed = n->failed;
    h->stopped = n->stopped;
    h->vote.open = n->open;
    h->vote.number = n->number;
    h->vote.signature = n->which;
    h->vote.answered = n->answered;
    h->vote.refused = n->refused;
    h->vote.furthest = n->furthest;
}

/* ---- states seen ------------------------------------------------------------------------------------- */

struct seen {
    struct state *all;
    uint32_t *slot; /* numbers of states, plus one */
    uint64_t n, most, mask;
};

static uint64_t hash_of(const struct state *s)
{
    const uint8_t *b = (const uint8_t *)s;
    uint64_t h = 0xcbf29ce484222325u, word;
    size_t i;

    for (i = 0; i + 8 <= sizeof(*s); i += 8) {
        memcpy(&word, b + i, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; i < sizeof(*s); i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* Add it, if it is new. -1: no room. */
static int add(struct seen *t, const struct state *s)
{
    uint64_t at = hash_of(s) & t->mask;

    for (; t->slot[at]; at = (at + 1) & t->mask)
        if (!memcmp(&t->all[t->slot[at] - 1], s, sizeof(*s)))
            return 0;
    if (t->n == t->most)
        return -1;
    t->all[t->n++] = *s;
    t->slot[at] = (uint32_t)t->n;
    return 0;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

struct model {
    const struct handback_case *what;
    struct seen seen;
    struct handback_found *found;
};

static bool put(struct state *s, int from, int to, struct wire_note note)
{
    if (s->node[to].failed || s->node[to].dead) /* reads no more */
        return true;
    if (s->on_way[from][to] == ON_WAY)
        return false;
    s->way[from][to][s->on_way[from][to]++] = note;
    return true;
}

static bool post(struct model *m, struct state *s, int from, const struct nb_handback_out *out)
{
    for (unsigned i = 0; i < out->n; i++) {
        const struct nb_handback_note *note = &out->sent[i].note;
        const struct wire_note w = {.kind = (uint8_t)note->kind,
                                    .sig = (uint8_t)(note->bytes - bytes_of(0)),
                                    .call = small(note->call),
                                    .vote = (uint8_t)note->vote};
        for (int to = 0; to < m->what->nodes; to++)
            if (to != from && (out->sent[i].to < 0 || out->sent[i].to == to) && !put(s, from, to, w))
                return false;
    }
    return true;
}

static struct wire_note take(struct state *s, int from, int to)
{
    struct wire_note first = s->way[from][to][0];

    s->on_way[from][to]--;
    memmove(&s->way[from][to][0], &s->way[from][to][1], (ON_WAY - 1) * sizeof(first));
    s->way[from][to][ON_WAY - 1] = (struct wire_note){.kind = 0};
    return first;
}

static void drop_all(struct state *s, int from, int to)
{
    memset(s->way[from][to], 0, sizeof(s->way[from][to]));
    s->on_way[from][to] = 0;
}

static int wrong(struct model *m, const char *what)
{
    m->found->wrong = what;
    return 1;
}

/* 1: something is wrong; -1: no room. */
static int keep(struct model *m, const struct state *s)
{
    m->found->steps++;
    return add(&m->seen, s);
}

static int step_call(struct model *m, const struct state *old, int node, int rank, int sig)
{
    struct state s = *old;
    struct nb_handback h;
    const struct nb_handback_signature *was;
    enum nb_handback_answer answer;
    uint64_t call;

    load(m->what, node, &s.node[node], &h);
    was = nb_handback_find(&h, NB_FUNC_ALL_REDUCE, bytes_of(sig));
    call = was ? was->calls[rank] : 0;
    if (s.node[node].dead || (h.failed && m->what->breaks) || call == (uint64_t)m->what->calls)
        return 0; /* the failed are answered CollNet whatever the call */
    answer = nb_handback_call(&h, (unsigned)rank, NB_FUNC_ALL_REDUCE, bytes_of(sig));
    if (answer == NB_HANDBACK_WAIT) {
        m->found->waited++;
        if (m->what->mutant != MUTANT_NO_WAIT)
            return 0;
        for (unsigned i = 0; i < h.signatures; i++)
            if (h.signature[i].bytes == bytes_of(sig))
                h.signature[i].calls[rank]++;
        answer = NB_HANDBACK_COLLNET;
    }
    s.answer[sig][call] |= answer == NB_HANDBACK_NCCL ? 2 : 1;
    if (answer == NB_HANDBACK_NCCL) {
        m->found->handed_back++;
        m->found->again += was->until > was->from + (uint64_t)m->what->period;
    } else if (was && was->until && call + 1 >= was->until) {
        m->found->came_back++;
    }
    if (s.answer[sig][call] == 3)
        return wrong(m, "two ranks choose differently");
    save(&h, &s.node[node]);
    return keep(m, &s);
}

static int step_verdict(struct model *m, const struct state *old, int node, int head, int sig, bool turn)
{
    struct state s = *old;
    struct nb_handback_out out;
    const struct nb_handback_signature *now;
    struct nb_handback h;
    bool raw;

    load(m->what, node, &s.node[node], &h);
    now = nb_handback_find(&h, NB_FUNC_ALL_REDUCE, bytes_of(sig));
    if (h.failed || s.node[node].dead || !now || (turn && s.node[node].turns == m->what->turns))
        return 0;
    raw = (now->raw >> head & 1) != turn;
    s.node[node].turns += turn;
    nb_handback_verdict(&h, (unsigned)head, NB_FUNC_ALL_REDUCE, bytes_of(sig), raw, &out);
    save(&h, &s.node[node]);
    return post(m, &s, node, &out) ? keep(m, &s) : -1;
}

/* What comes to node 1 is damaged, where the case says so. */
static bool damage(const struct handback_case *c, int to, struct wire_note *w)
{
    if (to != 1 || w->kind != NB_HANDBACK_SET || w->call == 255)
        return true;
    w->call = (uint8_t)(w->call - (c->mutant == MUTANT_EARLY && w->call > 1));
    return c->mutant != MUTANT_LOST;
}

static int step_deliver(struct model *m, const struct state *old, int from, int to)
{
    struct state s = *old;
    struct nb_handback_note note;
    struct nb_handback_out out;
    struct nb_handback h;
    struct wire_note w;

    if (!s.on_way[from][to])
        return 0;
    w = take(&s, from, to);
    if (w.kind == FAILURE) { /* and tells the others */
        s.node[to].failed = 1;
        for (int r = 0; r < m->what->nodes; r++) {
            drop_all(&s, r, to);
            if (r != to && !put(&s, to, r, (struct wire_note){.kind = FAILURE}))
                return -1;
        }
        load(m->what, to, &s.node[to], &h);
        nb_handback_fail(&h);
        save(&h, &s.node[to]);
        return keep(m, &s);
    }
    load(m->what, to, &s.node[to], &h);
    if (damage(m->what, to, &w)) {
        note = (struct nb_handback_note){.kind = (enum nb_handback_kind)w.kind,
                                         .func = NB_FUNC_ALL_REDUCE,
                                         .bytes = bytes_of(w.sig),
                                         .call = large(w.call),
                                         .vote = w.vote};
        if (m->what->mutant == MUTANT_EARLY && to == 1 && w.kind == NB_HANDBACK_SET)
            for (unsigned i = 0; i < h.signatures; i++)
                h.signature[i].barrier = 0; /* past the check */
        if (nb_handback_receive(&h, from, &note, &out))
            return wrong(m, "a rank's own note is refused");
        if (m->what->mutant == MUTANT_FORGETFUL && out.n && out.sent[0].note.kind == NB_HANDBACK_FAR &&
            out.sent[0].note.call != NB_HANDBACK_NONE)
            out.sent[0].note.call = 0;
        if (!post(m, &s, to, &out))
            return -1;
    }
    save(&h, &s.node[to]);
    return keep(m, &s);
}

static int step_break(struct model *m, const struct state *old, int rank, bool dies)
{
    struct state s = *old;
    struct nb_handback h;

    if (s.breaks == m->what->breaks || s.node[rank].failed || s.node[rank].dead)
        return 0;
    s.breaks++;
    load(m->what, rank, &s.node[rank], &h);
    nb_handback_fail(&h);
    save(&h, &s.node[rank]);
    s.node[rank].dead = dies;
    for (int r = 0; r < m->what->nodes; r++) {
        drop_all(&s, r, rank);
        if (dies)
            drop_all(&s, rank, r);
        if (r != rank && !put(&s, rank, r, (struct wire_note){.kind = FAILURE}))
            return -1;
    }
    return keep(m, &s);
}

static int step_stop(struct model *m, const struct state *old, int node)
{
    struct state s = *old;
    struct nb_handback h;

    if (s.stops == m->what->stops || s.node[node].stopped || s.node[node].failed || s.node[node].dead)
        return 0;
    s.stops++;
    load(m->what, node, &s.node[node], &h);
    nb_handback_stop(&h);
    save(&h, &s.node[node]);
    return keep(m, &s);
}

/* Nothing is on its way: nobody may wait, and node 0 knows what it was told. */
static int look_at_rest(struct model *m, const struct state *s)
{
    struct nb_handback first, h;

    for (int a = 0; a < m->what->nodes; a++)
        for (int b = 0; b < m->what->nodes; b++)
            if (s->on_way[a][b])
                return 0;
    load(m->what, 0, &s->node[0], &first);
    if (first.failed)
        return 0;
    if (first.vote.open)
        return wrong(m, "a vote never ends");
    for (int r = 0; r < m->what->nodes; r++) {
        load(m->what, r, &s->node[r], &h);
        for (unsigned i = 0; i < h.signatures; i++) {
            const struct nb_handback_signature *mine = &h.signature[i];
            const struct nb_handback_signature *known = nb_handback_find(&first, mine->func, mine->bytes);
            if (mine->voting)
                return wrong(m, "a caller waits for ever");
            if (mine->told != (known && (known->raw_on >> r & 1)))
                return wrong(m, "node 0 does not know what it was told");
        }
    }
    return 0;
}

static int step_all(struct model *m, const struct state *s)
{
    const struct handback_case *c = m->what;
    int ret = look_at_rest(m, s);

    for (int r = 0; r < c->nodes && !ret; r++) {
        for (int g = 0; g < c->signatures && !ret; g++) {
            for (int i = 0; i < ranks_of(c) && !ret; i++)
                ret = step_call(m, s, r, i, g);
            for (int i = 0; i < heads_of(c) && !ret; i++) {
                ret = step_verdict(m, s, r, i, g, true);
                if (!ret)
                    ret = step_verdict(m, s, r, i, g, false);
            }
        }
        for (int from = 0; from < c->nodes && !ret; from++)
            ret = step_deliver(m, s, from, r);
        if (!ret)
            ret = step_stop(m, s, r);
        if (!ret)
            ret = step_break(m, s, r, false);
        if (!ret)
            ret = step_break(m, s, r, true);
    }
    return ret;
}

int handback_explore(const struct handback_case *what, uint64_t most, struct handback_found *found)
{
    struct model m = {.what = what, .found = found, .seen = {.most = most, .mask = 1}};
    struct state first;
    int ret;

    *found = (struct handback_found){.wrong = NULL};
    memset(&first, 0, sizeof(first));
    for (int r = 0; r < what->nodes; r++) {
        struct nb_handback h;
        load(what, r, &first.node[r], &h);
        save(&h, &first.node[r]);
    }
    while (m.seen.mask < 2 * most)
        m.seen.mask *= 2;
    m.seen.all = malloc(most * sizeof(*m.seen.all));
    m.seen.slot = calloc(m.seen.mask--, sizeof(*m.seen.slot));
    ret = m.seen.all && m.seen.slot ? add(&m.seen, &first) : -1;
    for (uint64_t i = 0; i < m.seen.n && !ret; i++) {
        const struct state s = m.seen.all[i];
        ret = step_all(&m, &s);
    }
    found->states = m.seen.n;
    free(m.seen.all);
    free(m.seen.slot);
    return ret < 0 ? -1 : 0;
}
