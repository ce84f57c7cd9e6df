/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of a part of one operation's bytes on the nodes: bytes on their links and time of their processors,
 * by schedule and by a node's place. nibble-model (tools/model) walks NCCL's calls over these costs, and
 * policy/reckon/reckon.c decides by them which operations are coded. Both therefore agree on the same link
 * and codec.
 *
 * All figures are in bytes and seconds. A codec's speed counts the bytes of values before coding. Pure
 * functions of their arguments, for any thread.
 *
 * Further functions give the waits of short all-reduces, whose calls are too few to fill one another's waits.
 */
#include "policy/reckon/reckon.h"

#include <math.h>
#include <stddef.h>

#include "base/minmax.h"

#define HEADER 64.0 /* of a message */

/* The common arguments of all functions here. */
struct costs {
    const struct nb_cost_machine *f;
    const struct nb_cost_op *op;
    int n, columns, rows; /* of the grid. 0 columns: every node sends to all nodes */
};

/* Return the processor time of `bytes` at `speed`. An unknown speed costs no time. */
static double work(double bytes, double speed)
{
    return speed > 0 ? bytes / speed : 0;
}

/* Return the processor time for values: to make a message of them, to add one to a sum, to store one. */
static double encode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes)
{
    const struct nb_cost_speed *s = &figures->speed;

    if (!op->coded)
        return work(bytes, figures->copy);
    if (op->func == NB_FUNC_ALL_GATHER) /* also copied into the reference and the node's own result */
        return work(bytes, s->ulp_encode) + 2 * work(bytes, figures->copy);
    return work(bytes, op->feedback ? s->encode_feedback : s->encode);
}

static double add(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes)
{
    /* A raw sum reads two operands and writes one, into FP32. */
    return op->coded ? work(bytes, figures->speed.decode_add) : 2 * work(bytes, figures->copy);
}

static double decode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes)
{
    const struct nb_cost_speed *s = &figures->speed;

    if (!op->coded)
        return work(bytes, figures->copy);
    if (op->func == NB_FUNC_ALL_GATHER) /* it also is kept as the next one's reference */
        return work(bytes, s->ulp_decode) + work(bytes, figures->copy);
    return work(bytes, s->decode);
}

/* Return the time to code a sum of coded values. Feedback applies only to a node's own values. */
static double recode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes)
{
    return work(bytes, op->coded ? figures->speed.encode : figures->copy);
}

static double messages(const struct nb_cost_op *op, double bytes)
{
    const double least = op->schedule == NB_COST_TWO_LEVEL ? NB_COST_PIECE_GRID : NB_COST_PIECE;
    const double rounds = nb_max_double(1, ceil(bytes / op->unit));
    double each;

    if (op->schedule == NB_COST_DIRECT || op->func == NB_FUNC_ALL_REDUCE)
        return rounds;
    /* Bytes that go through other nodes are cut into pieces of whole quanta with a minimum length, so that
     * there may be fewer pieces than ways. */
    each = nb_max_double(bytes / rounds, least / ceil(least / op->unit));
    return bytes / (ceil(each / NB_COST_QUANTUM) * NB_COST_QUANTUM);
}

/* Return the bytes on the wire for `copies` messages' worth of `bytes` each. Measured ratios contain the
 * headers of full units. Small pieces have more headers. */
static double wire(const struct nb_cost_op *op, double ratio, double copies, double bytes)
{
    const double full = ratio * bytes, pieces = messages(op, bytes);
    const double extra = bytes < op->unit ? HEADER * (1 - bytes / op->unit) * pieces : 0;

    return copies * (full + extra);
}

double nb_cost_ratio_again(const struct nb_cost_op *op)
{
    return op->ratio_again > 0 ? op->ratio_again : op->ratio;
}

/* Sums of rows have 8 bits where other messages have 4: half a byte of each value more. */
double nb_cost_ratio_of_rows(const struct nb_cost_op *op)
{
    return op->coded ? op->ratio + 0.5 / op->value : op->ratio;
}

/*
 * Two-level reduce-scatter of `len` bytes. They are cut into a piece for each column but the owner's. In
 * every row a node sends each piece to the row's node of that column, and adds the pieces of its own column.
 * Outside the owner's row that sum goes along the column, with 8 bits, to the owner's row. The nodes of the
 * owner's row add those sums to the contributions of their own row, but the owner's, and send the result to
 * the owner, which adds its values.
 */
static void grid_sum(const struct costs *w, double len, struct nb_cost_part *p)
{
    const double k = w->columns, h = w->rows, m = w->f->message, piece = len / (k - 1);
    const double r = w->op->ratio, r2 = nb_cost_ratio_again(w->op), r8 = nb_cost_ratio_of_rows(w->op);
    const double unit = nb_min_double(piece, w->op->unit), each = messages(w->op, piece) * m;

    p->hops = 3;
    p->other.tx = wire(w->op, r, k - 2, piece) + wire(w->op, r8, 1, piece);
    p->other.rx = wire(w->op, r, k - 1, piece);
    p->other.cpu = encode(w->f, w->op, len - piece) + add(w->f, w->op, len) + work(piece, w->f->copy) +
                   recode(w->f, w->op, piece) + 2 * (k - 1) * each;
    p->column.tx = wire(w->op, r, k - 1, piece);
    p->column.cpu = encode(w->f, w->op, len) + (k - 1) * each;
    p->row.tx = wire(w->op, r, k - 2, piece) + wire(w->op, r2, 1, piece);
    p->row.rx = wire(w->op, r, k - 2, piece) + wire(w->op, r8, h - 1, piece);
    p->row.cpu = encode(w->f, w->op, len - piece) + add(w->f, w->op, (k - 2 + h - 1) * piece) +
                 work(piece, w->f->copy) + recode(w->f, w->op, piece) + (2 * (k - 1) + h - 2) * each;
    p->owner.rx = wire(w->op, r2, k - 1, piece);
    p->owner.cpu = add(w->f, w->op, len) + (k - 1) * each;
    /* A node of another row, a node of the owner's row and the owner add a unit on its way. */
    p->owner.last = 3 * add(w->f, w->op, unit) + 2 * recode(w->f, w->op, unit);
}

/*
 * Two-level all-gather: the owner sends each other node of its row a piece. These nodes send their pieces on
 * along their columns and to the rest of the row. A piece that arrives in another row goes to all other nodes
 * of that row. Only the nodes of the owner's column pass on no piece.
 */
static void grid_gather(const struct costs *w, double len, struct nb_cost_part *p)
{
    const double k = w->columns, h = w->rows, piece = len / (k - 1);
    const double each = messages(w->op, piece) * w->f->message;

    p->hops = 3;
    p->owner.tx = wire(w->op, w->op->ratio, k - 1, piece);
    p->owner.cpu = encode(w->f, w->op, len) + (k - 1) * each;
    p->column.rx = wire(w->op, w->op->ratio, k - 1, piece);
    p->column.cpu = decode(w->f, w->op, len) + (k - 1) * each;
    p->row = p->other = p->column;
    p->row.tx = wire(w->op, w->op->ratio, h + k - 3, piece);
    p->row.cpu += (h + k - 3) * each;
    p->other.tx = wire(w->op, w->op->ratio, k - 1, piece);
    p->other.cpu += (k - 1) * each;
}

/*
 * Two-level all-reduce: each column has as many pieces as there are rows, or fewer where they would be
 * shorter than 64 KiB. A node of the column owns each of them. Contributions go along rows to the owner's
 * column, and the rows' sums go with 8 bits along that column to the owner. The result goes to the owner's
 * column and row, and from the column along the other rows. The costs are those of a node that owns as much
 * as any.
 */
static void grid_all_reduce(const struct costs *w, double len, struct nb_cost_part *p)
{
    const double k = w->columns, h = w->rows,
                 shares = nb_max_double(1, nb_min_double(h, floor(len / k / 65536)));
    const double piece = len / k / shares, unit = nb_min_double(piece, w->op->unit);
    const double r = w->op->ratio, r2 = nb_cost_ratio_again(w->op), r8 = nb_cost_ratio_of_rows(w->op);
    const double sums = h - 1, others = shares * (k - 1);

    p->hops = 4;
    p->other.rx = wire(w->op, r, others, piece) + wire(w->op, r8, sums, piece) +
                  wire(w->op, r2, others + shares - 1, piece);
    p->other.tx = wire(w->op, r, others, piece) + wire(w->op, r8, shares - 1, piece) +
                  wire(w->op, r2, others + sums, piece);
    p->other.cpu = (4 * others + 2 * (sums + shares - 1)) * messages(w->op, piece) * w->f->message +
                   encode(w->f, w->op, others * piece) + add(w->f, w->op, (others + sums) * piece) +
                   work(len / k, w->f->copy) + recode(w->f, w->op, (shares - 1) * piece) +
                   encode(w->f, w->op, piece) + decode(w->f, w->op, len);
    p->other.first = encode(w->f, w->op, unit);
    p->other.last = 2 * add(w->f, w->op, unit) + recode(w->f, w->op, unit) + 2 * encode(w->f, w->op, unit);
}

struct nb_cost_part nb_cost_part(const struct nb_cost_machine *figures, const struct nb_cost_op *op,
                                 int columns, double len)
{
    const struct costs all = {figures, op, op->nodes, columns, columns ? op->nodes / columns : 1}, *w = &all;
    const double n = w->n, r = w->op->ratio, r2 = nb_cost_ratio_again(w->op);
    const double unit = nb_min_double(len, w->op->unit), m = w->f->message;
    struct nb_cost_part p = {.hops = 1};
    double piece;

    switch (w->op->func) {
    case NB_FUNC_REDUCE_SCATTER:
        p.owner.last = add(w->f, w->op, unit);
        if (w->columns) {
            grid_sum(w, len, &p);
        } else if (w->op->schedule == NB_COST_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.rx = wire(w->op, r2, n - 1, piece);
            p.owner.cpu = add(w->f, w->op, len) + (n - 1) * messages(w->op, piece) * m;
            p.other.tx = wire(w->op, r, n - 2, piece) + wire(w->op, r2, 1, piece);
            p.other.rx = wire(w->op, r, n - 2, piece);
            p.other.cpu = encode(w->f, w->op, len) + add(w->f, w->op, len - piece) + work(piece, w->f->copy) +
                          (2 * (n - 2) + 1) * messages(w->op, piece) * m;
        } else {
            p.owner.rx = wire(w->op, r, n - 1, len);
            p.owner.cpu = add(w->f, w->op, (n - 1) * len) + (n - 1) * messages(w->op, len) * m;
            p.other.tx = wire(w->op, r, 1, len);
            p.other.cpu = encode(w->f, w->op, len) + messages(w->op, len) * m;
        }
        p.owner.cpu += work(len, w->f->copy); /* its own contribution */
        p.other.first = encode(w->f, w->op, unit);
        break;
    case NB_FUNC_ALL_GATHER:
        if (w->columns) {
            grid_gather(w, len, &p);
        } else if (w->op->schedule == NB_COST_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.tx = wire(w->op, r, n - 1, piece);
            p.owner.cpu = encode(w->f, w->op, len) + (n - 1) * messages(w->op, piece) * m;
            p.other.tx = wire(w->op, r, n - 2, piece);
            p.other.rx = wire(w->op, r, n - 1, piece);
            p.other.cpu = decode(w->f, w->op, len) + (2 * n - 3) * messages(w->op, piece) * m;
        } else {
            p.owner.tx = wire(w->op, r, n - 1, len);
            p.owner.cpu = encode(w->f, w->op, len) + (n - 1) * messages(w->op, len) * m;
            p.other.rx = wire(w->op, r, 1, len);
            p.other.cpu = decode(w->f, w->op, len) + messages(w->op, len) * m;
        }
        p.owner.first = encode(w->f, w->op, unit);
        p.other.last = decode(w->f, w->op, unit);
        break;
    default:
        piece = len / n;
        if (w->columns) {
            grid_all_reduce(w, len, &p);
        } else {
            p.hops = 2;
            p.other.tx = wire(w->op, r, n - 1, piece) + wire(w->op, r2, n - 1, piece);
            p.other.cpu = 4 * (n - 1) * messages(w->op, piece) * m + encode(w->f, w->op, len - piece) +
                          add(w->f, w->op, len - piece) + encode(w->f, w->op, piece) +
                          decode(w->f, w->op, len);
            p.other.first = encode(w->f, w->op, nb_min_double(piece, unit));
            p.other.last = add(w->f, w->op, nb_min_double(piece, unit)) +
                           2 * encode(w->f, w->op, nb_min_double(piece, unit));
        }
        if (!w->columns)
            p.other.rx = p.other.tx;
        p.owner = p.other;
        break;
    }
    if (w->f->host_slots) { /* filled with a node's own values, drained of received values */
        const double once = work(len, w->f->copy);
        p.owner.cpu += 2 * once;
        p.row.cpu += once;
        p.column.cpu += once;
        p.other.cpu += w->op->func == NB_FUNC_ALL_REDUCE ? 2 * once : once;
    }
    if (!w->columns || w->op->func == NB_FUNC_ALL_REDUCE)
        p.row = p.column = p.other;
    p.row.first = p.column.first = p.other.first;
    return p;
}

struct nb_cost_load nb_cost_average(const struct nb_cost_op *op, int columns, const struct nb_cost_part *p)
{
    const double each = 1.0 / op->nodes, row = columns ? (columns - 1) * each : 0;
    const double column = columns ? (op->nodes / columns - 1) * each : 0;
    const double other = 1 - each - row - column;

    return (struct nb_cost_load){
        .tx = each * p->owner.tx + row * p->row.tx + column * p->column.tx + other * p->other.tx,
        .rx = each * p->owner.rx + row * p->row.rx + column * p->column.rx + other * p->other.rx,
        .cpu = each * p->owner.cpu + row * p->row.cpu + column * p->column.cpu + other * p->other.cpu};
}

struct nb_cost_op nb_cost_op_make(enum nb_func func, int nodes, double bytes, double value, double ratio)
{
    return (struct nb_cost_op){.func = func,
                               .schedule = NB_COST_DIRECT,
                               .nodes = nodes,
                               .bytes = bytes,
                               .value = value,
                               .ratio = ratio,
                               .coded = ratio < 1,
                               .chunk = 131072,
                               .channels = 8,
                               .unit = 131072,
                               .credits = 48};
}

double nb_cost_usual_ratio(enum nb_func func, double value)
{
    const bool wide = value > 2;

    if (func == NB_FUNC_ALL_GATHER)
        return wide ? 0.55 : 0.19;
    return wide ? 0.134 : 0.268;
}

#define SHARE_LEAST \
    65536.0 /* coll/schedule/two_level.c: minimum bytes of a column's part that one of its nodes owns */

#define PARKED_MOST 256.0 /* coll/flow/internal.h: segments that a node parks */

/* Return the number of nodes that each own a share of a call's bytes for the column. */
static double shares_of(const struct nb_cost_op *op, int columns, double column)
{
    const double rows = columns ? op->nodes / columns : 1;

    return nb_max_double(1, nb_min_double(rows, floor(column / SHARE_LEAST)));
}

double nb_cost_turns(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns, double call,
                     double calls)
{
    const double column = columns ? call / columns : call, shares = shares_of(op, columns, column);
    const double unit = nb_min_double(column / shares, op->unit),
                 segments = shares * ceil(column / shares / unit);
    const double speed = nb_min_double(1, f->cores);

    if (!columns || op->func != NB_FUNC_ALL_REDUCE || shares < 2)
        return 0;
    return calls * segments / nb_min_double(op->credits, PARKED_MOST) *
           (f->latency + wire(op, nb_cost_ratio_of_rows(op), 1, unit) / f->link +
            (2 * f->message + add(f, op, unit) + recode(f, op, unit)) / speed);
}

/* Return the seconds from the first message sent to the last one read, with processor and link at work side
 * by side. A node sends and gets messages of `bytes` bytes of values each, coded with `ratio`. `parts`: the
 * first of so many parts goes on while the rest come, so that the next stage's messages fill the link behind
 * them. */
static double stage(const struct nb_cost_machine *f, const struct nb_cost_op *op, double parts, double sent,
                    double got, double ratio, double bytes)
{
    const double m = f->message / nb_min_double(1, f->cores);
    const double link = nb_max_double(sent, got) * wire(op, ratio, 1, bytes) / f->link;
    const double ends = nb_max_double(0, 2 * m + f->latency - (1 - 1 / parts) * link);

    return nb_max_double(link + ends, (sent + got) * m);
}

double nb_cost_alone(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns, double call)
{
    const double k = columns ? columns : op->nodes, h = columns ? op->nodes / columns : 1, column = call / k;
    const double shares = shares_of(op, columns, column);
    const double piece = column / shares / ceil(column / shares / op->unit);
    const double bytes = nb_min_double(piece, op->bytes), all = ceil(op->bytes / piece - 1e-9);
    const double through = ceil(all / k), own = ceil(all / k / shares); /* of a column, of an owner */
    const double again = nb_cost_ratio_again(op), speed = nb_min_double(1, f->cores);
    struct nb_cost_machine row = *f; /* whose nodes are near, within a site */

    if (columns && op->sites > 1)
        row.latency = f->near;
    double busy = add(f, op, (k - 1 + h - 1) * bytes) + work(bytes, f->copy) + encode(f, op, bytes) +
                  decode(f, op, bytes),
           seconds = stage(&row, op, own, all - through, (k - 1) * through, op->ratio, bytes) +
                     stage(&row, op, 1, (k - 1) * through, all - through, again, bytes);

    if (columns) {
        const double rows = stage(f, op, own, shares < h ? through : through - own, (h - 1) * own,
                                  nb_cost_ratio_of_rows(op), bytes);
        /* The first segment's turn comes with its own values, before all others'. */
        const double turns = nb_cost_turns(f, op, columns, call, 1) * nb_min_double(1, op->bytes / call) -
                             (1 - 1 / through) * (k - 1) * through * wire(op, op->ratio, 1, bytes) / f->link;

        busy +=
            add(f, op, (k - 1) * bytes) + work(bytes, f->copy) + recode(f, op, bytes) + decode(f, op, bytes);
        seconds += nb_max_double(rows, turns) + stage(f, op, own, (h - 1) * own, through - own, again, bytes);
    }
    return seconds + (encode(f, op, (all - through) * bytes) + busy / own) / speed;
}
