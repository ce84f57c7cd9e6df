/* SPDX-License-Identifier: Apache-2.0 */
/* The model: what is asked of it; see walk.h. */
#include "model.h"

#include <math.h>
#include <stdlib.h>

#include "walk.h"

#define GRID_MOST 128 /* rows, and columns */

const char *nm_func_name(enum nb_func func)
{
    static const char *const names[] = {"reduce_scatter", "all_gather", "all_reduce"};

    return names[func];
}

const char *nm_schedule_name(enum nb_cost_schedule schedule)
{
    static const char *const names[] = {"direct", "two-hop", "two-level"};

    return names[schedule];
}

/* As plugin/coll/comm/grid.c has it. */
static bool possible(int nodes, int columns)
{
    return columns >= 2 && columns <= GRID_MOST && columns < nodes && nodes % columns == 0 &&
           nodes / columns <= GRID_MOST;
}

int nm_group(int nodes)
{
    int best = 0;

    for (int k = 2; k < nodes; k++)
        if (possible(nodes, k) && (!best || k * best < 4 * nodes || (k * best == 4 * nodes && k <= 16)))
            best = k;
    return best;
}

int nm_columns(const struct nb_cost_op *op)
{
    if (op->schedule != NB_COST_TWO_LEVEL)
        return 0;
    if (op->group >= 1)
        return possible(op->nodes, op->group) ? op->group : 0;
    return nm_group(op->nodes);
}

static bool sane(const struct nb_cost_figures *f, const struct nb_cost_op *op)
{
    return f->link > 0 && f->latency >= 0 && f->message >= 0 && f->cores > 0 && op->nodes >= 2 &&
           op->bytes > 0 && op->value > 0 && op->ratio > 0 && op->chunk > 0 && op->channels >= 1 &&
           op->unit > 0 && op->credits >= 1;
}

/* The walk over an operation with these figures: the time (NAN: no memory), and w->used. */
static double walked(struct walk *w, bool even)
{
    const size_t nodes = even ? 1 : (size_t)w->n, flight = (size_t)w->in_flight;
    const size_t sizes[] = {nodes, nodes,          nodes,           nodes,  nodes,
                            nodes, nodes * flight, nodes * NM_RING, NM_RING};
    double **const to[] = {&w->tx,   &w->rx,   &w->cpu,  &w->add,    &w->order,
                           &w->sums, &w->done, &w->gone, &w->reduced};
    size_t all = 0;
    double *memory, *at, seconds = NAN;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        all += sizes[i];
    memory = at = calloc(all, sizeof(double));
    for (size_t i = 0; at && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        *to[i] = at;
        at += sizes[i];
    }
    w->used = 0;
    if (memory)
        seconds = nm_walk(w, w->call, (long)ceil(w->op->bytes / w->call), even);
    free(memory);
    return seconds;
}

/* What links allow where the row of a block's owner has more to do than others. `turns`: how much of that
 * goes on while no other row is the owner's; 1: all. */
static double rows_in_turn(const struct walk *w, double turns)
{
    const double part = nb_min_double(w->call, w->op->bytes / w->n);
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, part);
    const struct nb_cost_load all = nb_cost_average(w->op, w->columns, &p);
    const double others = nb_max_double(all.tx, all.rx) * w->n / (w->n - 1.0);
    const double own = nb_max_double(nb_max_double(p.row.tx, p.row.rx), others);

    return w->op->bytes / part * (turns * own + (1 - turns) * others) / w->rate;
}

/* What goes through other nodes passes processors and links in turn, several times. Sets w->used. */
static double through_others(struct walk *w)
{
    const struct nb_cost_figures *given = w->f;
    const struct nb_cost_figures links = {
        .link = given->link, .latency = given->latency, .queue = given->queue, .cores = 1};
    const double part = nb_min_double(w->call, w->op->bytes / w->n), speed = nb_min_double(1, given->cores);
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, part);
    double link, used;

    walked(w, false);
    used = w->used;
    w->f = &links;
    link = walked(w, false);
    if (w->columns &&
        w->op->func == NB_FUNC_REDUCE_SCATTER) /* about half, but of what is in flight at the end */
        link = nb_max_double(
            link, rows_in_turn(w, (1 - nb_min_double(1, w->in_flight * w->call / w->op->bytes)) / 2));
    else if (w->columns) /* all of it; the walk, which knows no units, would have them wait even longer */
        link =
            nb_min_double(link, 1.1 * rows_in_turn(w, 1) + 3 * given->latency * ceil(w->op->bytes / w->call));
    w->f = given;
    w->used = used;
    return nb_cost_in_turns(link, used / given->cores) +
           (p.other.first + p.owner.last + p.other.last) / speed;
}

/*
 * All nodes have the same to do, but on a grid what goes through others does so stage by stage, and at each
 * of them a call waits for what the node does for other calls. So few are in flight that nodes run dry now
 * and then: with N calls that go round S equal stations work takes (N + S - 1) / N of its time (balanced job
 * bounds; Zahorjan, Sevcik, Eager and Galler 1982). A gather's call passes three; in a sum whoever has
 * encoded its values is done with them, which leaves two. In two hops nothing is seen of this (follow.h,
 * where both can be asked).
 */
static double in_stages(const struct walk *w)
{
    if (!w->columns || w->op->func == NB_FUNC_ALL_REDUCE)
        return 1;
    return 1 + (w->op->func == NB_FUNC_REDUCE_SCATTER ? 1.0 : 2.0) / w->in_flight;
}

/* An all-reduce: all nodes have the same to do. */
static double all_reduce(struct walk *w)
{
    double seconds = walked(w, true);

    const double turns = nb_cost_turns(w->f, w->op, w->columns, w->call, ceil(w->op->bytes / w->call));

    return turns > 0 ? nb_cost_in_turns(seconds - 4 * w->f->latency, turns + 3 * w->f->latency) : seconds;
}

/* And with what calls wait for when there are few of them. */
static double short_all_reduce(struct walk *w)
{
    const struct nb_cost_op *all = w->op;
    const double calls = ceil(all->bytes / w->call);
    struct nb_cost_op first = *all;
    double one;

    first.bytes = nb_min_double(all->bytes, w->call);
    w->op = &first;
    one = nb_cost_alone(w->f, w->op, w->columns, w->call) - all_reduce(w);
    w->op = all;
    return all_reduce(w) + one / calls;
}

bool nm_predict(const struct nb_cost_figures *f, const struct nb_cost_op *given, struct nm_result *result)
{
    struct nb_cost_op op = *given;
    struct walk w = {.f = f, .op = &op, .n = op.nodes, .rate = f->link};
    const int group = op.channels < CALL_GROUP ? op.channels : CALL_GROUP;
    const double n = op.nodes;
    bool even;

    if (!sane(f, &op))
        return false;
    w.call = op.chunk * group;
    w.columns = nm_columns(&op);
    w.rows = w.columns ? op.nodes / w.columns : 1;
    if (op.schedule == NB_COST_TWO_LEVEL && !w.columns)
        op.schedule = NB_COST_DIRECT;
    w.groups = (op.channels + CALL_GROUP - 1) / CALL_GROUP;
    w.in_flight = STEPS * w.groups;
    /* All-reduces are cut evenly whatever the call; else calls that cover a good many of the blocks. */
    even = op.func == NB_FUNC_ALL_REDUCE || (op.bytes / n * 8 <= w.call && op.nodes > 16);
    if (n < 3)
        op.schedule = NB_COST_DIRECT; /* there is nobody to go through */
    result->seconds = op.func == NB_FUNC_ALL_REDUCE ? NAN : nm_follow(&w, op.followed);
    if (!isfinite(result->seconds))
        result->seconds = op.func == NB_FUNC_ALL_REDUCE
                              ? (op.followed > 0 ? short_all_reduce(&w) : all_reduce(&w))
                          : even                          ? walked(&w, true) * in_stages(&w)
                          : op.schedule == NB_COST_DIRECT ? walked(&w, false)
                                                          : through_others(&w);
    /* Processors are busy with one thing at a time, and there are only so many. */
    result->seconds = nb_max_double(result->seconds, w.used / f->cores);
    result->cpu = w.used / result->seconds;
    result->ideal = (n - 1) / n * op.bytes * op.ratio / f->link * (op.func == NB_FUNC_ALL_REDUCE ? 2 : 1);
    result->in_flight = nb_min_double(op.bytes, op.chunk * op.channels * STEPS);
    op.bytes = nb_min_double(op.bytes, w.call);
    const struct nb_cost_part p =
        nb_cost_part(w.f, w.op, w.columns,
                     op.func == NB_FUNC_ALL_REDUCE ? op.bytes : nb_min_double(op.bytes, given->bytes / n));
    result->latency = p.hops * f->latency +
                      (p.other.first + p.owner.last + p.other.last) / nb_min_double(1, f->cores) +
                      nb_max_double(nb_max_double(nb_max_double(p.owner.tx, p.owner.rx),
                                                  nb_max_double(p.other.tx, p.other.rx)),
                                    nb_max_double(p.row.tx, p.row.rx)) /
                          f->link;
    return isfinite(result->seconds);
}

enum nb_cost_schedule nm_predict_best(const struct nb_cost_figures *f, const struct nb_cost_op *given,
                                      struct nm_result *result)
{
    enum nb_cost_schedule best = NB_COST_SCHEDULES;

    for (int s = 0; s < NB_COST_SCHEDULES; s++) {
        struct nb_cost_op op = *given;
        struct nm_result r;

        op.schedule = (enum nb_cost_schedule)s;
        if ((s == NB_COST_TWO_LEVEL && !nm_columns(&op)) || !nm_predict(f, &op, &r))
            continue;
        if (best == NB_COST_SCHEDULES || r.seconds < result->seconds) {
            best = (enum nb_cost_schedule)s;
            *result = r;
        }
    }
    return best;
}

void nm_needs(const struct nb_cost_op *op, double gradients, double weights, struct nm_needs *needs)
{
    const double n = op->nodes;
    const int columns = nm_columns(op);
    const double peers = columns ? columns - 1 + n / columns - 1 : n - 1;
    const bool gathers = op->func == NB_FUNC_ALL_GATHER;

    needs->connections = peers;
    /* Rings to send and to receive in each of two classes for each peer, and two pools of shared units. */
    needs->staging = (4 * peers + 2) * op->credits * op->unit;
    /* One byte a value and one scale for 32 of them; a reduce-scatter's own block needs none. */
    needs->feedback =
        gathers || !op->coded ? 0 : (gradients > 0 ? gradients : op->bytes) / op->value * (1 + 1.0 / 32);
    if (op->func == NB_FUNC_REDUCE_SCATTER)
        needs->feedback *= (n - 1) / n;
    needs->references = gathers && op->coded ? (weights > 0 ? weights : op->bytes) : 0;
}

double nm_nccl(const struct nb_cost_figures *f, enum nb_func func, int nodes, double bytes)
{
    const double one_way = (nodes - 1.0) / nodes * bytes / f->link;

    return func == NB_FUNC_ALL_REDUCE ? 2 * (one_way + nb_min_double(nodes - 1.0, log2(nodes)) * f->latency)
                                      : one_way + (nodes - 1.0) * f->latency;
}
