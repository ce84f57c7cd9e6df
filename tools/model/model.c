/* SPDX-License-Identifier: Apache-2.0 */
/* See model.h. */
#include "model.h"

#include <math.h>

#include "base/minmax.h"
#include "policy/reckon/reckon.h"

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

/* The rule of plugin/coll/comm/grid.c. */
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

static bool sane(const struct nb_cost_machine *f, const struct nb_cost_op *op)
{
    return f->link > 0 && f->latency >= 0 && f->message >= 0 && f->cores > 0 && op->nodes >= 2 &&
           op->bytes > 0 && op->value > 0 && op->ratio > 0 && op->chunk > 0 && op->channels >= 1 &&
           op->unit > 0 && op->credits >= 1;
}

bool nm_predict(const struct nb_cost_machine *f, const struct nb_cost_op *given, struct nm_result *result)
{
    struct nb_cost_op op = *given;
    const int channels = op.channels < NB_COST_CALL_CHANNELS ? op.channels : NB_COST_CALL_CHANNELS;
    const double n = op.nodes, call = op.chunk * channels, ways = op.func == NB_FUNC_ALL_REDUCE ? 2 : 1;
    const int columns = nm_columns(&op);

    if (!sane(f, &op))
        return false;
    if (n < 3 || (op.schedule == NB_COST_TWO_LEVEL && !columns))
        op.schedule = NB_COST_DIRECT;
    result->seconds = nb_reckon_seconds(f, &op, columns);
    result->ideal = ways * (n - 1) / n * op.bytes * op.ratio / f->link;
    result->in_flight = nb_min_double(op.bytes, op.chunk * op.channels * NB_COST_STEPS);

    const double part = nb_min_double(call, ways == 2 ? op.bytes : op.bytes / n);
    const struct nb_cost_part p = nb_cost_part(f, &op, columns, part);
    result->cpu = op.bytes / part * nb_cost_average(&op, columns, &p).cpu / result->seconds;
    result->latency = p.hops * f->latency +
                      (p.other.first + p.owner.last + p.other.last) / nb_min_double(1, f->cores) +
                      nb_max_double(nb_max_double(nb_max_double(p.owner.tx, p.owner.rx),
                                                  nb_max_double(p.other.tx, p.other.rx)),
                                    nb_max_double(p.row.tx, p.row.rx)) /
                          f->link;
    return isfinite(result->seconds);
}

enum nb_cost_schedule nm_predict_best(const struct nb_cost_machine *f, const struct nb_cost_op *given,
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
    /* Rings for sending and receiving in each of two classes for each peer, and two pools of shared units. */
    needs->staging = (4 * peers + 2) * op->credits * op->unit;
    /* One byte a value and one scale for 32 of them. A reduce-scatter's own block needs no residual. */
    needs->feedback =
        gathers || !op->coded ? 0 : (gradients > 0 ? gradients : op->bytes) / op->value * (1 + 1.0 / 32);
    if (op->func == NB_FUNC_REDUCE_SCATTER)
        needs->feedback *= (n - 1) / n;
    needs->references = gathers && op->coded ? (weights > 0 ? weights : op->bytes) : 0;
}

double nm_nccl(const struct nb_cost_machine *f, enum nb_func func, int nodes, double bytes)
{
    /* Rings pass between two sites once each way. */
    const double link = f->trunk > 0 ? nb_min_double(f->link, f->trunk) : f->link;
    const double one_way = (nodes - 1.0) / nodes * bytes / link;

    return func == NB_FUNC_ALL_REDUCE ? 2 * (one_way + nb_min_double(nodes - 1.0, log2(nodes)) * f->latency)
                                      : one_way + (nodes - 1.0) * f->latency;
}
