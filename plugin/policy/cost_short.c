/* SPDX-License-Identifier: Apache-2.0 */
/* What all-reduces wait for that are too short for their calls to fill one another's waits; see cost.h. */
#include <math.h>

#include "base/minmax.h"
#include "policy/cost.h"

#define SHARE_LEAST \
    65536.0 /* coll/schedule/two_level.c: bytes of a column's part that one of its nodes owns, at least */

/* Nodes of a column that own a part each of what a call has for it. */
static double shares_of(const struct nb_cost_op *op, int columns, double column)
{
    const double rows = columns ? op->nodes / columns : 1;

    return nb_max_double(1, nb_min_double(rows, floor(column / SHARE_LEAST)));
}

double nb_cost_turns(const struct nb_cost_figures *f, const struct nb_cost_op *op, int columns, double call,
                     double calls)
{
    const double column = columns ? call / columns : call, shares = shares_of(op, columns, column);
    const double unit = nb_min_double(column / shares, op->unit),
                 segments = shares * ceil(column / shares / unit);
    const double speed = nb_min_double(1, f->cores);

    if (!columns || op->func != NB_FUNC_ALL_REDUCE || shares < 2)
        return 0;
    return calls * segments *
           (f->latency + nb_cost_wire(op, nb_cost_ratio_of_rows(op), 1, unit) / f->link +
            (2 * f->message + nb_cost_add(f, op, unit) + nb_cost_recode(f, op, unit)) / speed);
}

/* Processor and link work side by side on messages that a node sends and gets, `bytes` of values each, of a ratio: from the
 * first that is sent to the last that is read. `parts`: of so many the first goes on while the others come, so that the next
 * stage's messages fill the link behind them. */
static double stage(const struct nb_cost_figures *f, const struct nb_cost_op *op, double parts, double sent,
                    double got, double ratio, double bytes)
{
    const double m = f->message / nb_min_double(1, f->cores);
    const double link = nb_max_double(sent, got) * nb_cost_wire(op, ratio, 1, bytes) / f->link;
    const double ends = nb_max_double(0, 2 * m + f->latency - (1 - 1 / parts) * link);

    return nb_max_double(link + ends, (sent + got) * m);
}

double nb_cost_alone(const struct nb_cost_figures *f, const struct nb_cost_op *op, int columns, double call)
{
    const double k = columns ? columns : op->nodes, h = columns ? op->nodes / columns : 1, column = call / k;
    const double shares = shares_of(op, columns, column);
    const double piece = column / shares / ceil(column / shares / op->unit);
    const double bytes = nb_min_double(piece, op->bytes), all = ceil(op->bytes / piece - 1e-9);
    const double through = ceil(all / k), own = ceil(all / k / shares); /* a column, an owner */
    const double again = nb_cost_ratio_again(op), speed = nb_min_double(1, f->cores);
    double work = nb_cost_add(f, op, (k - 1 + h - 1) * bytes) + nb_cost_copy(f, bytes) +
                  nb_cost_encode(f, op, bytes) + nb_cost_decode(f, op, bytes),
           seconds = stage(f, op, own, all - through, (k - 1) * through, op->ratio, bytes) +
                     stage(f, op, 1, (k - 1) * through, all - through, again, bytes);

    if (columns) {
        const double rows = stage(f, op, own, shares < h ? through : through - own, (h - 1) * own,
                                  nb_cost_ratio_of_rows(op), bytes);
        /* The first segment's turn comes when its values have, and not all others'. */
        const double turns =
            nb_cost_turns(f, op, columns, call, 1) * nb_min_double(1, op->bytes / call) -
            (1 - 1 / through) * (k - 1) * through * nb_cost_wire(op, op->ratio, 1, bytes) / f->link;

        work += nb_cost_add(f, op, (k - 1) * bytes) + nb_cost_copy(f, bytes) + nb_cost_recode(f, op, bytes) +
                nb_cost_decode(f, op, bytes);
        seconds += nb_max_double(rows, turns) + stage(f, op, own, (h - 1) * own, through - own, again, bytes);
    }
    return seconds + (nb_cost_encode(f, op, (all - through) * bytes) + work / own) / speed;
}
