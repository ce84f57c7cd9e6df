/* SPDX-License-Identifier: Apache-2.0 */
/* What a part of a call costs, by schedule and by a node's place. */
#include "walk.h"

#define HEADER 64.0 /* of a message */

/* Processor time of `bytes` at `speed`; an unknown speed costs nothing. */
static double work(double bytes, double speed)
{
    return speed > 0 ? bytes / speed : 0;
}

/* Processor times of values: to make a message of them, to add one to a sum, to store one. */
double nm_encode_time(const struct walk *w, double bytes)
{
    const struct nm_speed *s = &w->f->speed;

    if (!w->op->coded)
        return work(bytes, w->f->copy);
    if (w->op->func == NM_ALL_GATHER) /* copied into the reference and the node's own result, too */
        return work(bytes, s->ulp_encode) + 2 * work(bytes, w->f->copy);
    return work(bytes, w->op->feedback ? s->encode_feedback : s->encode);
}

double nm_copy_time(const struct walk *w, double bytes)
{
    return work(bytes, w->f->copy);
}

double nm_add_time(const struct walk *w, double bytes)
{
    /* A raw sum reads two operands and writes one, into FP32. */
    return w->op->coded ? work(bytes, w->f->speed.decode_add) : 2 * work(bytes, w->f->copy);
}

double nm_decode_time(const struct walk *w, double bytes)
{
    const struct nm_speed *s = &w->f->speed;

    if (!w->op->coded)
        return work(bytes, w->f->copy);
    if (w->op->func == NM_ALL_GATHER) /* it is kept as the next one's reference, too */
        return work(bytes, s->ulp_decode) + work(bytes, w->f->copy);
    return work(bytes, s->decode);
}

/* To code a sum again that was coded before; feedback is for a node's own values. */
double nm_recode_time(const struct walk *w, double bytes)
{
    return work(bytes, w->op->coded ? w->f->speed.encode : w->f->copy);
}

static double messages(const struct walk *w, double bytes)
{
    double rounds = max2(1, ceil(bytes / w->op->unit));

    /* What goes through other nodes is cut into pieces of whole quanta: so there are fewer of them than ways. */
    if (w->op->schedule != NM_DIRECT && w->op->func != NM_ALL_REDUCE)
        return bytes / (ceil(bytes / rounds / NM_QUANTUM) * NM_QUANTUM);
    return rounds;
}

/* Bytes on the wire of `copies` messages' worth of `bytes` each. Ratios as measured hold headers of full
 * units; small pieces have more of them. */
double nm_wire(const struct walk *w, double ratio, double copies, double bytes)
{
    const double full = ratio * bytes, pieces = messages(w, bytes);
    const double extra = bytes < w->op->unit ? HEADER * (1 - bytes / w->op->unit) * pieces : 0;

    return copies * (full + extra);
}

double nm_ratio_again(const struct nm_op *op)
{
    return op->ratio_again > 0 ? op->ratio_again : op->ratio;
}

/* Sums of rows have 8 bits where others have 4: half a byte of each value more. */
double nm_ratio_of_rows(const struct nm_op *op)
{
    return op->coded ? op->ratio + 0.5 / op->value : op->ratio;
}

/*
 * Two-level reduce-scatter of `len` bytes. They are cut into a piece for each column but the owner's; in
 * every row a node sends the others of these columns their pieces and adds what it gets of its own. Outside
 * the owner's row that sum goes along the column, with 8 bits, to the owner's row. The nodes there add those
 * sums to the contributions of their own row, but the owner's, and send the result to the owner, which adds
 * its values.
 */
static void grid_sum(const struct walk *w, double len, struct part_loads *p)
{
    const double k = w->columns, h = w->rows, m = w->f->message, piece = len / (k - 1);
    const double r = w->op->ratio, r2 = nm_ratio_again(w->op), r8 = nm_ratio_of_rows(w->op);
    const double unit = min2(piece, w->op->unit), each = messages(w, piece) * m;

    p->hops = 3;
    p->other.tx = nm_wire(w, r, k - 2, piece) + nm_wire(w, r8, 1, piece);
    p->other.rx = nm_wire(w, r, k - 1, piece);
    p->other.cpu = nm_encode_time(w, len - piece) + nm_add_time(w, len) + work(piece, w->f->copy) +
                   nm_recode_time(w, piece) + 2 * (k - 1) * each;
    p->column.tx = nm_wire(w, r, k - 1, piece);
    p->column.cpu = nm_encode_time(w, len) + (k - 1) * each;
    p->row.tx = nm_wire(w, r, k - 2, piece) + nm_wire(w, r2, 1, piece);
    p->row.rx = nm_wire(w, r, k - 2, piece) + nm_wire(w, r8, h - 1, piece);
    p->row.cpu = nm_encode_time(w, len - piece) + nm_add_time(w, (k - 2 + h - 1) * piece) +
                 work(piece, w->f->copy) + nm_recode_time(w, piece) + (2 * (k - 1) + h - 2) * each;
    p->owner.rx = nm_wire(w, r2, k - 1, piece);
    p->owner.cpu = nm_add_time(w, len) + (k - 1) * each;
    /* A unit is added on its way by a node of another row, one of the owner's and the owner. */
    p->owner.last = 3 * nm_add_time(w, unit) + 2 * nm_recode_time(w, unit);
}

/*
 * Two-level all-gather: the owner sends each of the others of its row a piece. Those send theirs on along
 * their column and to the rest of the row; where a piece arrives in another row it goes to all others of
 * that. Only the nodes of the owner's column have nothing to pass on.
 */
static void grid_gather(const struct walk *w, double len, struct part_loads *p)
{
    const double k = w->columns, h = w->rows, piece = len / (k - 1);
    const double each = messages(w, piece) * w->f->message;

    p->hops = 3;
    p->owner.tx = nm_wire(w, w->op->ratio, k - 1, piece);
    p->owner.cpu = nm_encode_time(w, len) + (k - 1) * each;
    p->column.rx = nm_wire(w, w->op->ratio, k - 1, piece);
    p->column.cpu = nm_decode_time(w, len) + (k - 1) * each;
    p->row = p->other = p->column;
    p->row.tx = nm_wire(w, w->op->ratio, h + k - 3, piece);
    p->row.cpu += (h + k - 3) * each;
    p->other.tx = nm_wire(w, w->op->ratio, k - 1, piece);
    p->other.cpu += (k - 1) * each;
}

/*
 * Two-level all-reduce: for each column as many pieces as rows, fewer where they would be shorter than 64
 * KiB, each owned by a node of the column. Contributions go along rows to the owner's column, rows' sums with
 * 8 bits along it to the owner. The result goes to the owner's column and row, and from the column along the
 * other rows. Of a node that owns as much as any.
 */
static void grid_all_reduce(const struct walk *w, double len, struct part_loads *p)
{
    const double k = w->columns, h = w->rows, shares = max2(1, min2(h, floor(len / k / 65536)));
    const double piece = len / k / shares, unit = min2(piece, w->op->unit);
    const double r = w->op->ratio, r2 = nm_ratio_again(w->op), r8 = nm_ratio_of_rows(w->op);
    const double sums = h - 1, others = shares * (k - 1);

    p->hops = 4;
    p->other.rx = nm_wire(w, r, others, piece) + nm_wire(w, r8, sums, piece) +
                  nm_wire(w, r2, others + shares - 1, piece);
    p->other.tx = nm_wire(w, r, others, piece) + nm_wire(w, r8, shares - 1, piece) +
                  nm_wire(w, r2, others + sums, piece);
    p->other.cpu = (4 * others + 2 * (sums + shares - 1)) * messages(w, piece) * w->f->message +
                   nm_encode_time(w, others * piece) + nm_add_time(w, (others + sums) * piece) +
                   work(len / k, w->f->copy) + nm_recode_time(w, (shares - 1) * piece) +
                   nm_encode_time(w, piece) + nm_decode_time(w, len);
    p->other.first = nm_encode_time(w, unit);
    p->other.last = 2 * nm_add_time(w, unit) + nm_recode_time(w, unit) + 2 * nm_encode_time(w, unit);
}

struct part_loads nm_part_costs(const struct walk *w, double len)
{
    const double n = w->n, r = w->op->ratio, r2 = nm_ratio_again(w->op);
    const double unit = min2(len, w->op->unit), m = w->f->message;
    struct part_loads p = {.hops = 1, .early = w->op->func == NM_REDUCE_SCATTER};
    double piece;

    switch (w->op->func) {
    case NM_REDUCE_SCATTER:
        p.owner.last = nm_add_time(w, unit);
        if (w->columns) {
            grid_sum(w, len, &p);
        } else if (w->op->schedule == NM_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.rx = nm_wire(w, r2, n - 1, piece);
            p.owner.cpu = nm_add_time(w, len) + (n - 1) * messages(w, piece) * m;
            p.other.tx = nm_wire(w, r, n - 2, piece) + nm_wire(w, r2, 1, piece);
            p.other.rx = nm_wire(w, r, n - 2, piece);
            p.other.cpu = nm_encode_time(w, len) + nm_add_time(w, len - piece) + work(piece, w->f->copy) +
                          (2 * (n - 2) + 1) * messages(w, piece) * m;
        } else {
            p.owner.rx = nm_wire(w, r, n - 1, len);
            p.owner.cpu = nm_add_time(w, (n - 1) * len) + (n - 1) * messages(w, len) * m;
            p.other.tx = nm_wire(w, r, 1, len);
            p.other.cpu = nm_encode_time(w, len) + messages(w, len) * m;
        }
        p.owner.cpu += work(len, w->f->copy); /* its own contribution */
        p.other.first = nm_encode_time(w, unit);
        break;
    case NM_ALL_GATHER:
        if (w->columns) {
            grid_gather(w, len, &p);
        } else if (w->op->schedule == NM_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.tx = nm_wire(w, r, n - 1, piece);
            p.owner.cpu = nm_encode_time(w, len) + (n - 1) * messages(w, piece) * m;
            p.other.tx = nm_wire(w, r, n - 2, piece);
            p.other.rx = nm_wire(w, r, n - 1, piece);
            p.other.cpu = nm_decode_time(w, len) + (2 * n - 3) * messages(w, piece) * m;
        } else {
            p.owner.tx = nm_wire(w, r, n - 1, len);
            p.owner.cpu = nm_encode_time(w, len) + (n - 1) * messages(w, len) * m;
            p.other.rx = nm_wire(w, r, 1, len);
            p.other.cpu = nm_decode_time(w, len) + messages(w, len) * m;
        }
        p.owner.first = nm_encode_time(w, unit);
        p.other.last = nm_decode_time(w, unit);
        break;
    default:
        piece = len / n;
        if (w->columns) {
            grid_all_reduce(w, len, &p);
        } else {
            p.hops = 2;
            p.other.tx = nm_wire(w, r, n - 1, piece) + nm_wire(w, r2, n - 1, piece);
            p.other.cpu = 4 * (n - 1) * messages(w, piece) * m + nm_encode_time(w, len - piece) +
                          nm_add_time(w, len - piece) + nm_encode_time(w, piece) + nm_decode_time(w, len);
            p.other.first = nm_encode_time(w, min2(piece, unit));
            p.other.last = nm_add_time(w, min2(piece, unit)) + 2 * nm_encode_time(w, min2(piece, unit));
        }
        if (!w->columns)
            p.other.rx = p.other.tx;
        p.owner = p.other;
        break;
    }
    if (w->f->host_slots) { /* filled with what a node hands over, drained of what it gets */
        const double once = work(len, w->f->copy);
        p.owner.cpu += 2 * once;
        p.row.cpu += once;
        p.column.cpu += once;
        p.other.cpu += w->op->func == NM_ALL_REDUCE ? 2 * once : once;
    }
    if (!w->columns || w->op->func == NM_ALL_REDUCE)
        p.row = p.column = p.other;
    p.row.first = p.column.first = p.other.first;
    return p;
}

struct load nm_average(const struct walk *w, const struct part_loads *p)
{
    const double k = w->columns, h = w->rows, each = 1.0 / w->n;
    const double row = k > 0 ? (k - 1) * each : 0, column = k > 0 ? (h - 1) * each : 0;
    const double other = 1 - each - row - column;

    return (struct load){
        .tx = each * p->owner.tx + row * p->row.tx + column * p->column.tx + other * p->other.tx,
        .rx = each * p->owner.rx + row * p->row.rx + column * p->column.rx + other * p->other.rx,
        .cpu = each * p->owner.cpu + row * p->row.cpu + column * p->column.cpu + other * p->other.cpu};
}
