/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a call whose segments go through other nodes, in two hops or two levels. A full mesh is a grid of
 * one row here. What costs time besides the bytes, as nibble-scale shows it (docs/scale.md):
 *
 *   - a node makes its sums and forwards in the order of calls: one that waits for a piece holds up those behind it,
 *     although their pieces may have come. So rows of a grid, which are busiest while one of them owns the block,
 *     work one after the other;
 *   - a node forwards when a piece has come, and sums when all have: hops follow one another;
 *   - a call in which a node sums or forwards is not finished for NCCL before it has.
 *
 * A node has one thread: all that it does for a part is served at once, when it can begin with it.
 */
#include "walk.h"

static int columns_of(const struct walk *w)
{
    return w->columns ? w->columns : w->n;
}

/* The k-th node of a row behind that of the owner, by columns. */
static int behind(int row, int owner, int k, int columns)
{
    return row * columns + (owner % columns + k) % columns;
}

/* The node's thread works for `seconds` from `ready` on; returns when the first `first` of them are over, and
 * in *end when all are. */
static double work_on(struct walk *w, int node, double ready, double seconds, double first, double *end)
{
    *end = serve(&w->cpu[node], ready, seconds);
    return nb_max_double(ready, *end - seconds) + nb_min_double(first, seconds);
}

void nm_run_gather(struct walk *w, long i, int owner, double len, double *when)
{
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, len);
    const int k = columns_of(w), h = w->n / k, own_row = owner / k;
    const double speed = nb_min_double(1, w->f->cores), hop = w->f->latency;
    /* A piece goes on unit by unit. */
    const double unit =
        nb_cost_wire(w->op, w->op->ratio, 1, nb_min_double(len / (k - 1), w->op->unit)) / w->rate;
    const double each = w->f->message / speed, own = p.owner.tx / w->rate;
    const bool units = len / (k - 1) > w->op->unit;
    const double room = w->op->credits * w->op->unit / nb_max_double(len, 1) * p.owner.tx / w->rate;
    const struct nb_cost_load *relay = h > 1 ? &p.row : &p.other;
    double end, start, left, began, last_own = 0;

    w->used += p.owner.cpu / w->n + (k - 1.0) / w->n * relay->cpu + (h - 1.0) / w->n * p.column.cpu +
               (h - 1.0) * (k - 1.0) / w->n * p.other.cpu;
    /* The owner's pieces share its link with what it forwards. */
    start = work_on(w, owner, posted(w, owner, i), p.owner.cpu / speed, p.owner.first / speed, &end);
    began = nb_max_double(start, nb_min_double(w->tx[owner], start + own));
    w->tx[owner] = nb_max_double(w->tx[owner], start) + own;
    when[owner] = nb_max_double(when[owner], nb_max_double(end, began + own - room));
    for (int r = 0; r < h; r++)
        w->reduced[r] = 0; /* when the row has all pieces */
    for (int c = 1; c < k; c++) {
        const int j = behind(own_row, owner, c, k);
        double come = nb_max_double(began + c * unit, end - p.owner.cpu / speed) + hop, done;

        come = nb_max_double(come, nb_max_double(w->order[j], posted(w, j, i)));
        w->order[j] = come;
        start = work_on(w, j, come, relay->cpu / speed, each, &done);
        left = serve(&w->tx[j], start, relay->tx / w->rate);
        start = left - relay->tx / w->rate;
        if (units)
            left = nb_max_double(left, began + own + hop + (h + k - 3) * unit);
        last_own = nb_max_double(last_own, nb_max_double(left, done));
        for (int r = 1; r < h; r++) { /* to the other rows, after the rest of the own one */
            const int to = behind((own_row + r) % h, owner, c, k);
            double at = start + (k - 1 - j % k + r) * unit + hop;

            at = nb_max_double(at, nb_max_double(w->order[to], posted(w, to, i)));
            w->order[to] = at;
            at = work_on(w, to, at, p.other.cpu / speed, each, &done);
            at = nb_max_double(done, serve(&w->tx[to], at, p.other.tx / w->rate));
            if (units)
                at = nb_max_double(at, left + hop + (k - 1) * unit);
            w->reduced[to / k] = nb_max_double(w->reduced[to / k], at);
        }
    }
    w->reduced[own_row] = last_own;
    /* The owner gets nothing meanwhile. That time is lost: pieces of the next block move when all nodes'
     * do. */
    serve(&w->rx[owner], posted(w, owner, i), relay->rx / w->rate);
    for (int j = 0; j < w->n; j++) {
        const struct nb_cost_load *l = j / k == own_row ? relay : j % k == owner % k ? &p.column : &p.other;
        double come;

        if (j == owner)
            continue;
        come = nb_max_double(w->reduced[j / k], serve(&w->rx[j], began + hop, l->rx / w->rate)) + hop;
        if (j % k == owner % k)
            work_on(w, j, posted(w, j, i), l->cpu / speed, 0, &end);
        when[j] = nb_max_double(when[j], come + p.other.last / speed);
    }
}

void nm_run_sum(struct walk *w, long i, int owner, double len, double *when)
{
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, len);
    const int k = columns_of(w), h = w->n / k, own_row = owner / k;
    const double speed = nb_min_double(1, w->f->cores), hop = w->f->latency, bytes = len / (k - 1);
    const double unit = nb_min_double(bytes, w->op->unit);
    const double row_sum = nb_cost_wire(w->op, nb_cost_ratio_of_rows(w->op), 1, bytes) / w->rate;
    const double result = nb_cost_wire(w->op, nb_cost_ratio_again(w->op), 1, bytes) / w->rate;
    const double piece = nb_cost_wire(w->op, w->op->ratio, 1, bytes) / w->rate;
    const double last = (nb_cost_add(w->f, w->op, unit) + nb_cost_recode(w->f, w->op, unit)) / speed;
    const struct nb_cost_load *finisher = h > 1 ? &p.row : &p.other;
    double all = 0, at, start, end, sum;

    w->used += p.owner.cpu / w->n + (k - 1.0) / w->n * finisher->cpu + (h - 1.0) / w->n * p.column.cpu +
               (h - 1.0) * (k - 1.0) / w->n * p.other.cpu;
    /* Values go along the rows. */
    for (int r = 0; r < h; r++)
        w->reduced[r] = 0;
    for (int j = 0; j < w->n; j++) {
        const struct nb_cost_load *l = j / k == own_row     ? finisher
                                       : j % k == owner % k ? &p.column
                                                            : &p.other;
        const double pieces = (j % k == owner % k ? k - 1 : k - 2) * piece;

        if (j == owner)
            continue;
        at = work_on(w, j, posted(w, j, i), l->cpu / speed, p.other.first / speed, &end);
        at = serve(&w->tx[j], at, pieces);
        w->reduced[j / k] = nb_max_double(w->reduced[j / k], at);
        when[j] = nb_max_double(when[j], end);
    }
    for (int c = 1; c < k; c++) {
        const int to = behind(own_row, owner, c, k);
        double come = w->reduced[own_row] + hop;

        for (int r = 1; r < h; r++) {
            const int j = behind((own_row + r) % h, owner, c, k);

            at = nb_max_double(w->reduced[j / k] + hop,
                               serve(&w->rx[j], posted(w, j, i), p.other.rx / w->rate));
            at = nb_max_double(nb_max_double(at, w->order[j]), w->cpu[j] - p.other.cpu / speed) + last;
            w->order[j] = at;
            when[j] = nb_max_double(when[j], at);
            /* It takes turns with values that wait for the same link. */
            start = at + nb_min_double(nb_max_double(0, w->tx[j] - at), k * piece);
            w->tx[j] += row_sum;
            come = nb_max_double(come, serve(&w->sums[j], start, row_sum) + hop);
        }
        come = nb_max_double(come, serve(&w->rx[to], posted(w, to, i), finisher->rx / w->rate));
        come = nb_max_double(nb_max_double(come, w->order[to]), w->cpu[to] - finisher->cpu / speed) + last;
        w->order[to] = come;
        when[to] = nb_max_double(when[to], come);
        start = come + nb_min_double(nb_max_double(0, w->tx[to] - come), k * piece);
        w->tx[to] += result;
        all = nb_max_double(all, serve(&w->sums[to], start, result));
    }
    start = posted(w, owner, i);
    if (h == 1) /* the owner sends nothing meanwhile */
        serve(&w->tx[owner], start, finisher->tx / w->rate);
    all = nb_max_double(all, serve(&w->rx[owner], start, p.owner.rx / w->rate)) + hop;
    sum = serve(&w->add[owner], nb_max_double(all - p.owner.cpu / speed, start), p.owner.cpu / speed);
    when[owner] = nb_max_double(
        when[owner], nb_max_double(sum, nb_max_double(all, start) + nb_cost_add(w->f, w->op, unit) / speed));
}
