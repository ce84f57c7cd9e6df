/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes do with calls and messages, as plugin/coll has them do it; see follow.h. */
#include "follow.h"

#include <stdlib.h>

static double wire(const struct follow *f, double ratio, const struct segment *s)
{
    return nb_cost_wire(f->w->op, ratio, 1, s->bytes);
}

static bool sums(const struct follow *f)
{
    return f->w->op->func == NB_FUNC_REDUCE_SCATTER;
}

static bool straight(const struct follow *f)
{
    return f->w->op->schedule == NB_COST_DIRECT;
}

/* The node of its column that a segment has in the row of `node`. */
static int relay(const struct follow *f, const struct segment *s, int node)
{
    return node / f->columns * f->columns + s->column;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* A node hands over what it may. True: something. */
static bool post(struct follow *f, int node)
{
    const struct walk *w = f->w;
    struct node *n = &f->node[node];
    const long before = n->posted;

    while (n->posted < f->calls) {
        const long group = n->posted % w->groups, step = n->posted / w->groups;
        if (step >= f->tested[node * w->groups + group] + STEPS)
            break;
        if (w->f->host_slots) /* filled with what it contributes */
            follow_work(f, node, nb_cost_copy(w->f, sums(f) ? w->call : w->call / w->n));
        n->posted++;
    }
    if (n->posted == before)
        return false;
    for (struct segment *s = f->segment_of[before]; sums(f) && s < f->segment_of[n->posted]; s++) {
        const int to = straight(f) ? s->owner : relay(f, s, node);
        struct message *m;
        struct ring *r;

        if (s->owner == node || to == node)
            continue;
        r = follow_ring(f, node, to, FOLLOW_VALUES);
        m = follow_message(f, r, s, wire(f, w->op->ratio, s));
        if (!m)
            return false;
        follow_append(&r->todo, m);
        n->todo++;
    }
    return true;
}

/* The node needs nothing more of a segment. */
static void finish(struct follow *f, int node, const struct segment *s)
{
    const struct walk *w = f->w;
    const long group = s->call % w->groups;
    int *left = &f->left[(size_t)node * (size_t)f->calls];
    long *tested = &f->tested[node * w->groups + group];

    if (--left[s->call] > 0)
        return;
    if (w->f->host_slots) /* drained of what it gets */
        follow_work(f, node, nb_cost_copy(w->f, sums(f) ? w->call / w->n : w->call));
    f->ended = nb_max_double(f->ended, f->node[node].thread);
    while (*tested * w->groups + group < f->calls && left[*tested * w->groups + group] == 0)
        (*tested)++;
}

/* ---- what has come ------------------------------------------------------------------------------------- */

/* The node's thread looks at what has come. */
static bool look(struct follow *f, int node)
{
    struct node *n = &f->node[node];
    const bool any = n->inbox.head != NULL;

    while (n->inbox.head) {
        struct message *m = follow_pop(&n->inbox);
        struct segment *s = m->segment;
        const bool job = straight(f) ? sums(f) : node != s->owner && relay(f, s, node) == node;

        follow_work(f, node, f->w->f->message);
        if (!job) {
            follow_append(&n->mine, m);
            continue;
        }
        s->waiting[straight(f) ? 0 : node / f->columns]--;
        follow_free(f, m);
    }
    return any;
}

/* What is for this node itself, of calls that it has posted. */
static bool deliver(struct follow *f, int node)
{
    const struct walk *w = f->w;
    struct node *n = &f->node[node];
    struct line all = n->mine;
    bool moved = false;

    n->mine = (struct line){NULL, NULL};
    while (all.head) {
        struct message *m = follow_pop(&all);
        struct segment *s = m->segment;

        if (s->call >= n->posted) {
            follow_append(&n->mine, m);
            continue;
        }
        follow_work(f, node,
                    sums(f) ? nb_cost_add(w->f, w->op, s->bytes) + nb_cost_copy(w->f, s->bytes)
                            : nb_cost_decode(w->f, w->op, s->bytes));
        finish(f, node, s);
        follow_read(f, m->ring);
        follow_free(f, m);
        moved = true;
    }
    return moved;
}

/* ---- sums and forwards --------------------------------------------------------------------------------- */

/* To whom a sum goes; the node itself: it stays. */
static int goal(const struct follow *f, int node, const struct segment *s)
{
    const int finisher = relay(f, s, s->owner);

    return straight(f) ? node : node == finisher ? s->owner : finisher;
}

/* All that the node sums of a segment has come. */
static void sum(struct follow *f, int node, struct segment *s)
{
    const struct walk *w = f->w;
    const int to = goal(f, node, s), k = f->columns;
    int sources = 0;

    for (int i = 0; i < f->npeers; i++) {
        const int from = f->peers[node * f->npeers + i];
        const bool same_row = from / k == node / k;
        if (from == s->owner || (!same_row && to != s->owner))
            continue;
        sources++;
        follow_read(f, follow_ring(f, from, node, FOLLOW_VALUES));
    }
    follow_work(f, node, nb_cost_copy(w->f, s->bytes) + nb_cost_add(w->f, w->op, sources * s->bytes));
    if (to != node) {
        struct ring *r = follow_ring(f, node, to, to == s->owner ? FOLLOW_RESULTS : FOLLOW_VALUES);
        const double ratio = to == s->owner ? nb_cost_ratio_again(w->op) : nb_cost_ratio_of_rows(w->op);
        struct message *m = follow_message(f, r, s, wire(f, ratio, s));
        if (!m)
            return;
        follow_work(f, node, nb_cost_recode(w->f, w->op, s->bytes));
        follow_made(f, m);
    }
    finish(f, node, s);
}

static bool forwards_to(const struct follow *f, int node, const struct segment *s, int to)
{
    const bool same_row = to / f->columns == node / f->columns;

    return same_row ? to != s->owner : s->owner / f->columns == node / f->columns;
}

static void forward(struct follow *f, int node, struct segment *s)
{
    const struct walk *w = f->w;
    const bool first = s->owner / f->columns == node / f->columns;
    const int from = first ? s->owner : relay(f, s, s->owner);
    const double bytes = wire(f, w->op->ratio, s);

    follow_work(f, node, nb_cost_decode(w->f, w->op, s->bytes));
    for (int i = 0; i < f->npeers; i++) {
        const int to = f->peers[node * f->npeers + i];
        struct message *m;
        if (!forwards_to(f, node, s, to))
            continue;
        m = follow_message(f, follow_ring(f, node, to, FOLLOW_RESULTS), s, bytes);
        if (!m)
            return;
        follow_made(f, m);
    }
    finish(f, node, s);
    follow_read(f, follow_ring(f, from, node, first ? FOLLOW_VALUES : FOLLOW_RESULTS));
}

static bool room(const struct follow *f, int node, const struct segment *s)
{
    if (sums(f)) {
        const int to = goal(f, node, s);
        return to == node ||
               follow_room(f, follow_ring(f, node, to, to == s->owner ? FOLLOW_RESULTS : FOLLOW_VALUES));
    }
    for (int i = 0; i < f->npeers; i++) {
        const int to = f->peers[node * f->npeers + i];
        if (forwards_to(f, node, s, to) && !follow_room(f, follow_ring(f, node, to, FOLLOW_RESULTS)))
            return false;
    }
    return true;
}

/* A few: what else has come must not wait for a long row of them. */
static bool work_for_others(struct follow *f, int node)
{
    struct node *n = &f->node[node];
    struct segment *s;
    int made = 0;

    while (made < 4 && (s = n->sum) && s->call < n->posted &&
           s->waiting[straight(f) ? 0 : node / f->columns] == 0 && room(f, node, s)) {
        n->sum = s->next;
        if (sums(f))
            sum(f, node, s);
        else
            forward(f, node, s);
        made++;
    }
    return made > 0;
}

/* ---- a node's own values ------------------------------------------------------------------------------- */

/* The next of its own block, which it gathers. False: there is no room. */
static bool spread(struct follow *f, int node, struct segment *s)
{
    const struct walk *w = f->w;
    const double bytes = wire(f, w->op->ratio, s);
    const int to = straight(f) ? -1 : relay(f, s, node);

    for (int i = 0; i < f->npeers; i++) {
        const int peer = f->peers[node * f->npeers + i];
        if ((to < 0 || peer == to) && !follow_room(f, follow_ring(f, node, peer, FOLLOW_VALUES)))
            return false;
    }
    follow_work(f, node, nb_cost_encode(w->f, w->op, s->bytes));
    for (int i = 0; i < f->npeers; i++) {
        const int peer = f->peers[node * f->npeers + i];
        struct message *m;
        if (to >= 0 && peer != to)
            continue;
        m = follow_message(f, follow_ring(f, node, peer, FOLLOW_VALUES), s, bytes);
        if (!m)
            return false;
        follow_made(f, m);
    }
    finish(f, node, s);
    return true;
}

/* What the node contributes, as far as there are buffers. */
static bool contribute(struct follow *f, int node)
{
    struct node *n = &f->node[node];
    struct segment *s = n->own;
    const long last = s && !straight(f) ? s->call : f->calls; /* what goes through others: a call at a time */
    bool moved = false;

    while ((s = n->own) && s->call <= last && s->call < n->posted && spread(f, node, s)) {
        n->own = s + 1 < f->segment + f->segments && s[1].owner == node ? s + 1 : NULL;
        moved = true;
    }
    for (int i = 0; n->todo > 0 && i < f->npeers; i++) {
        struct ring *r = follow_ring(f, node, f->peers[node * f->npeers + i], FOLLOW_VALUES);
        while (r->todo.head && follow_room(f, r)) {
            struct message *m = follow_pop(&r->todo);
            follow_work(f, node, nb_cost_encode(f->w->f, f->w->op, m->segment->bytes));
            follow_made(f, m);
            finish(f, node, m->segment);
            n->todo--;
            moved = true;
        }
    }
    return moved;
}

/* The thread looks round once, as the engine does (plugin/coll/progress.c); then NCCL's does. */
static void go_round(struct follow *f, int node)
{
    bool moved = follow_send(f, node);

    moved |= look(f, node);
    moved |= deliver(f, node);
    moved |= work_for_others(f, node);
    moved |= contribute(f, node);
    if (moved) { /* what was just made should leave now */
        follow_send(f, node);
        look(f, node);
    }
    moved |= post(f, node);
    if (moved)
        follow_wake(f, node);
}

/* ---- the operation ------------------------------------------------------------------------------------- */

/* Cut it into segments, as plugin/coll does; with `to` NULL only count them. */
static long cut(const struct follow *f, struct segment *to)
{
    const struct walk *w = f->w;
    const double block = w->op->bytes / w->n;
    long n = 0;

    for (long i = 0; i < f->calls; i++) {
        const double stop = nb_min_double((double)(i + 1) * w->call, w->op->bytes);
        double next;
        for (double x = (double)i * w->call; x < stop - 1e-6; x = next) {
            const int owner = (int)nb_min_double(floor(x / block + 1e-9), w->n - 1), ways = f->columns - 1;
            const double base = owner * block,
                         end = owner == w->n - 1 ? stop : nb_min_double(stop, base + block);
            const double least = w->columns ? NB_COST_PIECE_GRID : NB_COST_PIECE;
            double each = w->op->unit;
            long way = 0;

            if (straight(f)) {
                next = nb_min_double(end, base + (floor((x - base) / each + 1e-9) + 1) * each);
                if (to)
                    to[n] = (struct segment){.bytes = next - x, .owner = owner, .column = -1, .call = i};
                n++;
                continue;
            }
            each = ceil((end - x) / nb_max_double(1, nb_min_double(ways, floor((end - x) / least))));
            each = ceil(each / ceil(each / w->op->unit));
            each = ceil(each / NB_COST_QUANTUM) * NB_COST_QUANTUM;
            way = (long)floor((x - base) / each + 1e-9);
            for (double at = x; at < end - 1e-6; at += each, way++) {
                if (to)
                    to[n] =
                        (struct segment){.bytes = nb_min_double(each, end - at),
                                         .owner = owner,
                                         .column = (int)((owner % f->columns + 1 + way % ways) % f->columns),
                                         .call = i};
                n++;
            }
            next = end;
        }
    }
    return n;
}

/* Which segments a node sums or forwards, of which it owns the block, and what it waits for. */
static void give(struct follow *f, int *waiting)
{
    const int k = f->columns;

    for (long i = 0; i <= f->calls; i++)
        f->segment_of[i] = f->segment + f->segments;
    for (long i = f->segments - 1; i >= 0; i--) {
        struct segment *s = &f->segment[i];

        f->segment_of[s->call] = s;
        s->waiting = &waiting[i * f->rows];
        for (int j = 0; j < f->w->n; j++)
            f->left[(size_t)j * (size_t)f->calls + (size_t)s->call]++;
        if (!sums(f))
            f->node[s->owner].own = s;
        if (straight(f)) {
            s->waiting[0] = f->w->n - 1;
            if (sums(f)) {
                s->next = f->node[s->owner].sum;
                f->node[s->owner].sum = s;
            }
            continue;
        }
        s->next = f->node[s->column].sum; /* the same in all rows */
        for (int r = 0; r < f->rows; r++) {
            const bool own = r == s->owner / k;
            f->node[r * k + s->column].sum = s;
            s->waiting[r] = !sums(f) ? 1 : own ? k - 2 + f->rows - 1 : k - 1;
        }
    }
}

static void find_peers(struct follow *f)
{
    const int n = f->w->n, k = f->columns;

    for (int j = 0; j < n; j++) {
        int found = 0;
        for (int i = 1; i < n; i++)
            if ((j + i) % n % k == j % k)
                f->peers[j * f->npeers + found++] = (j + i) % n;
        for (int i = 1; i < n; i++)
            if ((j + i) % n / k == j / k)
                f->peers[j * f->npeers + found++] = (j + i) % n;
        for (int i = 0; i < f->npeers; i++)
            for (int class = 0; class < FOLLOW_CLASSES; class ++) {
                struct ring *r = follow_ring(f, j, f->peers[j * f->npeers + i], class);
                r->from = j;
                r->to = f->peers[j * f->npeers + i];
                r->moved = f->node[j].fair[class].since = f->node[j].alarm = -1;
            }
    }
}

static double run(struct follow *f)
{
    struct nm_event e;

    for (int j = 0; j < f->w->n; j++)
        if (post(f, j))
            follow_wake(f, j);
    while (!f->failed && !f->agenda.failed && nm_agenda_take(&f->agenda, &e)) {
        f->now = e.at;
        if (e.kind == FOLLOW_LOOK) {
            follow_wake(f, e.node);
            continue;
        }
        if (e.kind != FOLLOW_ROUND) {
            follow_link_event(f, &e);
            continue;
        }
        f->node[e.node].woken = false;
        f->node[e.node].thread = nb_max_double(f->node[e.node].thread, f->now);
        go_round(f, e.node);
    }
    for (int j = 0; j < f->w->n; j++)
        for (int g = 0; g < f->w->groups; g++)
            if (f->tested[j * f->w->groups + g] * f->w->groups + g < f->calls)
                return NAN;
    return f->failed || f->agenda.failed ? NAN : f->ended;
}

/* One operation. leads[n][classes]: how far rings may be ahead of one another, as the operation before has
 * left it, and as this one leaves it. */
static double follow(struct walk *w, double most, double (*leads)[FOLLOW_CLASSES])
{
    struct follow f = {
        .w = w, .columns = w->columns ? w->columns : w->n, .calls = (long)ceil(w->op->bytes / w->call)};
    const size_t n = (size_t)w->n;
    double seconds = NAN;
    int *waiting = NULL;

    f.rows = w->n / f.columns;
    f.npeers = f.columns + f.rows - 2;
    if (w->op->bytes / w->op->unit * (w->n - 1) > most || (double)w->n * w->n > most)
        return NAN;
    f.segments = cut(&f, NULL);
    if ((double)f.segments * (w->n - 1) > most)
        return NAN;
    f.segment = calloc((size_t)f.segments, sizeof(*f.segment));
    waiting = calloc((size_t)(f.segments * f.rows), sizeof(*waiting));
    f.segment_of = calloc((size_t)f.calls + 1, sizeof(*f.segment_of));
    f.left = calloc(n * (size_t)f.calls, sizeof(*f.left));
    f.tested = calloc(n * (size_t)w->groups, sizeof(*f.tested));
    f.node = calloc(n, sizeof(*f.node));
    f.peers = calloc(n * (size_t)f.npeers, sizeof(*f.peers));
    f.ring = calloc(n * (size_t)(f.columns + f.rows) * FOLLOW_CLASSES, sizeof(*f.ring));
    if (f.segment && f.segment_of && waiting && f.left && f.tested && f.node && f.peers && f.ring) {
        w->used = 0;
        cut(&f, f.segment);
        find_peers(&f);
        give(&f, waiting);
        for (size_t i = 0; i < n * FOLLOW_CLASSES; i++)
            f.node[i / FOLLOW_CLASSES].fair[i % FOLLOW_CLASSES].lead =
                leads[i / FOLLOW_CLASSES][i % FOLLOW_CLASSES];
        seconds = run(&f);
        for (size_t i = 0; i < n * FOLLOW_CLASSES; i++)
            leads[i / FOLLOW_CLASSES][i % FOLLOW_CLASSES] =
                f.node[i / FOLLOW_CLASSES].fair[i % FOLLOW_CLASSES].lead;
    }
    nm_agenda_free(&f.agenda);
    follow_free_all(&f);
    free(f.segment);
    free(f.segment_of);
    free(waiting);
    free(f.left);
    free(f.tested);
    free(f.node);
    free(f.peers);
    free(f.ring);
    return seconds;
}

double nm_follow(struct walk *w, double most)
{
    const struct nb_cost_op *op = w->op;
    double(*leads)[FOLLOW_CLASSES] = calloc((size_t)w->n, sizeof(*leads));
    struct nb_cost_op raw = *op;
    double seconds = NAN;

    if (!leads)
        return NAN;
    /* Before differences can be sent there was an operation with whole weights. What it has left matters
     * where an owner sends to all others at the same time. */
    if (op->func == NB_FUNC_ALL_GATHER && op->coded && op->schedule == NB_COST_DIRECT && w->f->queue > 0) {
        raw.coded = false;
        raw.ratio = 1;
        w->op = &raw;
        follow(w, most, leads);
        w->op = op;
    }
    seconds = follow(w, most, leads);
    free(leads);
    return seconds;
}
