/* SPDX-License-Identifier: Apache-2.0 */
/* The model: NCCL's walk over an operation, and what its parts cost under each schedule. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 8       /* NCCL_STEPS */
#define CALL_GROUP 8  /* channels that share a call */
#define HEADER 64.0   /* of a message */
#define GRID_MOST 128 /* rows, and columns */

/* What one part of a call costs a node in one role. Link loads in bytes on the wire. */
struct load {
    double tx, rx, cpu;
    double first; /* processor time before the first unit can go */
    double last;  /* processor time behind the last unit's arrival */
};

/* By a node's place: the block's owner, the nodes of its row and of its column, and all others. Without a
 * grid all but the owner are others. */
struct part_loads {
    struct load owner, row, column, other;
    int hops;
    bool early; /* a node that only contributes is finished once it has encoded */
};

struct walk {
    const struct nm_figures *f;
    const struct nm_op *op;
    int n, groups, in_flight; /* calls in flight: STEPS x groups */
    int columns, rows;        /* of the grid; 0 columns: every node sends to every other */
    double rate;              /* bytes a second of the link */
    double *tx, *rx, *cpu;    /* [n]: when each server is free */
    double *add;              /* the same, of what arrives: values to be encoded need not wait for it */
    double *done;             /* [n][in_flight]: when calls were finished, by call % in_flight */
    double *reduced;          /* [ring]: RS, direct: when units of the current block were reduced */
    double *gone;             /* [ring][n]: and when contributions had arrived */
    double summed;            /* two-level: when the sums of the part before had been made */
    double used;              /* processor time of one node on average */
};

static double max2(double a, double b)
{
    return a > b ? a : b;
}
static double min2(double a, double b)
{
    return a < b ? a : b;
}

const char *nm_func_name(enum nm_func func)
{
    static const char *const names[] = {"reduce_scatter", "all_gather", "all_reduce"};

    return names[func];
}

const char *nm_schedule_name(enum nm_schedule schedule)
{
    static const char *const names[] = {"direct", "two-hop", "two-level"};

    return names[schedule];
}

/* As plugin/coll/grid.c has it. */
static bool possible(int nodes, int columns)
{
    return columns >= 2 && columns <= GRID_MOST && columns < nodes && nodes % columns == 0 &&
           nodes / columns <= GRID_MOST;
}

int nm_group(int nodes)
{
    double least = INFINITY;
    int best = 0;

    for (int k = 2; k < nodes; k++) {
        const double ratio = (double)k * k / (4.0 * nodes), off = ratio < 1 ? 1 / ratio : ratio;
        if (possible(nodes, k) && off < least) {
            least = off;
            best = k;
        }
    }
    return best;
}

int nm_columns(const struct nm_op *op)
{
    if (op->schedule != NM_TWO_LEVEL)
        return 0;
    if (op->group >= 1)
        return possible(op->nodes, op->group) ? op->group : 0;
    return nm_group(op->nodes);
}

struct nm_op nm_op_make(enum nm_func func, int nodes, double bytes, double value, double ratio)
{
    return (struct nm_op){.func = func,
                          .schedule = NM_DIRECT,
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

/* Processor time of `bytes` at `speed`; an unknown speed costs nothing. */
static double work(double bytes, double speed)
{
    return speed > 0 ? bytes / speed : 0;
}

/* Processor times of values: to make a message of them, to add one to a sum, to store one. */
static double encode_time(const struct walk *w, double bytes)
{
    const struct nm_speed *s = &w->f->speed;

    if (!w->op->coded)
        return work(bytes, w->f->copy);
    if (w->op->func == NM_ALL_GATHER)
        return work(bytes, s->ulp_encode);
    return work(bytes, w->op->feedback ? s->encode_feedback : s->encode);
}

static double add_time(const struct walk *w, double bytes)
{
    /* A raw sum reads two operands and writes one, into FP32. */
    return w->op->coded ? work(bytes, w->f->speed.decode_add) : 2 * work(bytes, w->f->copy);
}

static double decode_time(const struct walk *w, double bytes)
{
    const struct nm_speed *s = &w->f->speed;

    if (!w->op->coded)
        return work(bytes, w->f->copy);
    return work(bytes, w->op->func == NM_ALL_GATHER ? s->ulp_decode : s->decode);
}

/* To code a sum again that was coded before; feedback is for a node's own values. */
static double recode_time(const struct walk *w, double bytes)
{
    return work(bytes, w->op->coded ? w->f->speed.encode : w->f->copy);
}

static double messages(const struct walk *w, double bytes)
{
    return max2(1, ceil(bytes / w->op->unit));
}

/* Bytes on the wire of `copies` messages' worth of `bytes` each. Ratios as measured hold headers of full
 * units; small pieces have more of them. */
static double wire(const struct walk *w, double ratio, double copies, double bytes)
{
    const double full = ratio * bytes, pieces = messages(w, bytes);
    const double extra = bytes < w->op->unit ? HEADER * (1 - bytes / w->op->unit) * pieces : 0;

    return copies * (full + extra);
}

static double ratio_again(const struct nm_op *op)
{
    return op->ratio_again > 0 ? op->ratio_again : op->ratio;
}

/* Sums of rows have 8 bits where others have 4: half a byte of each value more. */
static double ratio_of_rows(const struct nm_op *op)
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
    const double r = w->op->ratio, r2 = ratio_again(w->op), r8 = ratio_of_rows(w->op);
    const double unit = min2(piece, w->op->unit), each = messages(w, piece) * m;

    p->hops = 3;
    p->other.tx = wire(w, r, k - 2, piece) + wire(w, r8, 1, piece);
    p->other.rx = wire(w, r, k - 1, piece);
    p->other.cpu = encode_time(w, len - piece) + add_time(w, len) + work(piece, w->f->copy) +
                   recode_time(w, piece) + 2 * (k - 1) * each;
    p->column.tx = wire(w, r, k - 1, piece);
    p->column.cpu = encode_time(w, len) + (k - 1) * each;
    p->row.tx = wire(w, r, k - 2, piece) + wire(w, r2, 1, piece);
    p->row.rx = wire(w, r, k - 2, piece) + wire(w, r8, h - 1, piece);
    p->row.cpu = encode_time(w, len - piece) + add_time(w, (k - 2 + h - 1) * piece) +
                 work(piece, w->f->copy) + recode_time(w, piece) + (2 * (k - 1) + h - 2) * each;
    p->owner.rx = wire(w, r2, k - 1, piece);
    p->owner.cpu = add_time(w, len) + (k - 1) * each;
    /* A unit is added on its way by a node of another row, one of the owner's and the owner. */
    p->owner.last = 3 * add_time(w, unit) + 2 * recode_time(w, unit);
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
    p->owner.tx = wire(w, w->op->ratio, k - 1, piece);
    p->owner.cpu = encode_time(w, len) + (k - 1) * each;
    p->column.rx = wire(w, w->op->ratio, k - 1, piece);
    p->column.cpu = decode_time(w, len) + (k - 1) * each;
    p->row = p->other = p->column;
    p->row.tx = wire(w, w->op->ratio, h + k - 3, piece);
    p->row.cpu += (h + k - 3) * each;
    p->other.tx = wire(w, w->op->ratio, k - 1, piece);
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
    const double r = w->op->ratio, r2 = ratio_again(w->op), r8 = ratio_of_rows(w->op);
    const double sums = h - 1, others = shares * (k - 1);

    p->hops = 4;
    p->other.rx =
        wire(w, r, others, piece) + wire(w, r8, sums, piece) + wire(w, r2, others + shares - 1, piece);
    p->other.tx =
        wire(w, r, others, piece) + wire(w, r8, shares - 1, piece) + wire(w, r2, others + sums, piece);
    p->other.cpu = (4 * others + 2 * (sums + shares - 1)) * messages(w, piece) * w->f->message +
                   encode_time(w, others * piece) + add_time(w, (others + sums) * piece) +
                   work(len / k, w->f->copy) + recode_time(w, (shares - 1) * piece) + encode_time(w, piece) +
                   decode_time(w, len);
    p->other.first = encode_time(w, unit);
    p->other.last = 2 * add_time(w, unit) + recode_time(w, unit) + 2 * encode_time(w, unit);
}

/* Costs of `len` bytes that lie in one rank's block, or of an all-reduce, where every node is "other". */
static struct part_loads part_costs(const struct walk *w, double len)
{
    const double n = w->n, r = w->op->ratio, r2 = ratio_again(w->op);
    const double unit = min2(len, w->op->unit), m = w->f->message;
    struct part_loads p = {.hops = 1, .early = w->op->func == NM_REDUCE_SCATTER};
    double piece;

    switch (w->op->func) {
    case NM_REDUCE_SCATTER:
        p.owner.last = add_time(w, unit);
        if (w->columns) {
            grid_sum(w, len, &p);
        } else if (w->op->schedule == NM_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.rx = wire(w, r2, n - 1, piece);
            p.owner.cpu = add_time(w, len) + (n - 1) * messages(w, piece) * m;
            p.other.tx = wire(w, r, n - 2, piece) + wire(w, r2, 1, piece);
            p.other.rx = wire(w, r, n - 2, piece);
            p.other.cpu =
                encode_time(w, len) + add_time(w, len - piece) + (2 * (n - 2) + 1) * messages(w, piece) * m;
        } else {
            p.owner.rx = wire(w, r, n - 1, len);
            p.owner.cpu = add_time(w, (n - 1) * len) + (n - 1) * messages(w, len) * m;
            p.other.tx = wire(w, r, 1, len);
            p.other.cpu = encode_time(w, len) + messages(w, len) * m;
        }
        p.owner.cpu += work(len, w->f->copy); /* its own contribution */
        p.other.first = encode_time(w, unit);
        break;
    case NM_ALL_GATHER:
        if (w->columns) {
            grid_gather(w, len, &p);
        } else if (w->op->schedule == NM_TWO_HOP && n > 2) {
            piece = len / (n - 1);
            p.hops = 2;
            p.owner.tx = wire(w, r, n - 1, piece);
            p.owner.cpu = encode_time(w, len) + (n - 1) * messages(w, piece) * m;
            p.other.tx = wire(w, r, n - 2, piece);
            p.other.rx = wire(w, r, n - 1, piece);
            p.other.cpu = decode_time(w, len) + (2 * n - 3) * messages(w, piece) * m;
        } else {
            p.owner.tx = wire(w, r, n - 1, len);
            p.owner.cpu = encode_time(w, len) + (n - 1) * messages(w, len) * m;
            p.other.rx = wire(w, r, 1, len);
            p.other.cpu = decode_time(w, len) + messages(w, len) * m;
        }
        p.owner.first = encode_time(w, unit);
        p.other.last = decode_time(w, unit);
        break;
    default:
        piece = len / n;
        if (w->columns) {
            grid_all_reduce(w, len, &p);
        } else {
            p.hops = 2;
            p.other.tx = wire(w, r, n - 1, piece) + wire(w, r2, n - 1, piece);
            p.other.cpu = 4 * (n - 1) * messages(w, piece) * m + encode_time(w, len - piece) +
                          add_time(w, len - piece) + encode_time(w, piece) + decode_time(w, len);
            p.other.first = encode_time(w, min2(piece, unit));
            p.other.last = add_time(w, min2(piece, unit)) + 2 * encode_time(w, min2(piece, unit));
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

static const struct load *load_of(const struct walk *w, const struct part_loads *p, int owner, int node)
{
    return node == owner                             ? &p->owner
           : !w->columns                             ? &p->other
           : node / w->columns == owner / w->columns ? &p->row
           : node % w->columns == owner % w->columns ? &p->column
                                                     : &p->other;
}

/* Of one node on average, as the owner goes round. */
static struct load average(const struct walk *w, const struct part_loads *p)
{
    const double k = w->columns, h = w->rows, each = 1.0 / w->n;
    const double row = k > 0 ? (k - 1) * each : 0, column = k > 0 ? (h - 1) * each : 0;
    const double other = 1 - each - row - column;

    return (struct load){
        .tx = each * p->owner.tx + row * p->row.tx + column * p->column.tx + other * p->other.tx,
        .rx = each * p->owner.rx + row * p->row.rx + column * p->column.rx + other * p->other.rx,
        .cpu = each * p->owner.cpu + row * p->row.cpu + column * p->column.cpu + other * p->other.cpu};
}

static double serve(double *server, double ready, double seconds)
{
    if (seconds <= 0)
        return ready; /* nothing to do, so nothing to wait for */
    *server = max2(*server, ready) + seconds;
    return *server;
}

/* A node may hand over call `i` when its call `i - in_flight` is finished. */
static double posted(const struct walk *w, int node, long i)
{
    return i < w->in_flight ? 0 : w->done[(size_t)node * (size_t)w->in_flight + (size_t)(i % w->in_flight)];
}

static void finish(struct walk *w, int node, long i, double when)
{
    double *row = w->done + (size_t)node * (size_t)w->in_flight;
    /* Slots are given back in order within a group of channels. */
    const double before = i < w->groups ? 0 : row[(i - w->groups) % w->in_flight];

    row[i % w->in_flight] = max2(before, when);
}

#define RING 512

/*
 * One unit, `len` bytes of call `i` in block `owner`, of a reduce-scatter that goes straight to the owner.
 * Nodes that only contribute run ahead as far as memory for coded units goes: their own, and the owner's,
 * which is free again when the owner has handed over that unit, too, and added it. `at`: number of this unit
 * within the block.
 */
static void run_direct_sum(struct walk *w, long i, int owner, double len, long at, double *when)
{
    const struct part_loads p = part_costs(w, len);
    const double speed = min2(1, w->f->cores), each = p.owner.rx / (w->n - 1) / w->rate;
    const double memory = w->op->credits * w->op->unit;
    const long back = (long)max2(1, floor(memory / max2(len, 1)));
    /* A unit that the transport has taken needs no memory of ours. */
    const long mine = (long)max2(1, floor((memory + w->f->queue / w->op->ratio) / max2(len, 1)));
    const bool full = at >= back && back < RING;
    double *gone = w->gone + (size_t)(at % RING) * (size_t)w->n;
    double first = INFINITY, last = 0, late, ready, sum;

    w->used += (p.owner.cpu + (w->n - 1) * p.other.cpu) / w->n;
    for (int j = 0; j < w->n; j++) {
        double encoded, left;

        if (j == owner)
            continue;
        ready = posted(w, j, i);
        if (at >= mine && mine < RING)
            ready = max2(ready, w->gone[(size_t)((at - mine) % RING) * (size_t)w->n + (size_t)j]);
        encoded = serve(&w->cpu[j], ready, p.other.cpu / speed);
        ready = encoded - p.other.cpu / speed + p.other.first / speed;
        if (full)
            ready = max2(ready, w->reduced[(at - back) % RING]);
        left = max2(serve(&w->tx[j], ready, p.other.tx / w->rate), encoded);
        gone[j] = left;
        first = min2(first, ready); /* connections share a link: what was posted before is not in the way */
        last = max2(last, left);
        when[j] = max2(when[j], encoded);
    }
    /* The owner's link takes what comes from the first byte on, as it comes; what is late waits for nobody.
     */
    ready = serve(&w->rx[owner], first, (w->n - 1) * each);
    late = last;
    last = max2(last, ready) + w->f->latency;
    for (int j = 0; j < w->n; j++)
        gone[j] = max2(gone[j], gone[j] < late ? ready - each : ready);
    ready = max2(last - p.owner.cpu / speed, posted(w, owner, i));
    sum = serve(&w->add[owner], ready, p.owner.cpu / speed);
    sum = max2(sum, max2(last, posted(w, owner, i)) + p.owner.last / speed);
    w->reduced[at % RING] = sum;
    when[owner] = max2(when[owner], sum);
}

/* One part of anything else. when[j] is raised to what the call needs on node j. */
static void run_part(struct walk *w, long i, int owner, double len, double *when)
{
    const struct part_loads p = part_costs(w, len);
    const double speed = min2(1, w->f->cores);
    double arrived = 0, ready, sum;

    for (int j = 0; j < w->n; j++) {
        const struct load *l = load_of(w, &p, owner, j);
        double encoded, left;

        w->used += l->cpu / w->n;
        if (j == owner && p.early)
            continue;
        ready = posted(w, j, i);
        if (j == owner || w->op->func != NM_ALL_GATHER) {
            encoded = serve(&w->cpu[j], ready, l->cpu / speed);
            ready = max2(ready, encoded - l->cpu / speed) + l->first / speed;
        } else {
            encoded = serve(&w->add[j], ready, l->cpu / speed);
        }
        left = serve(&w->tx[j], ready, l->tx / w->rate);
        if (j != owner)
            left = max2(left, serve(&w->rx[j], ready, l->rx / w->rate));
        arrived = max2(arrived, max2(left, encoded));
        if (p.early || (j == owner && w->op->func == NM_ALL_GATHER)) {
            /* Done for NCCL when the units have been encoded, and those have room. */
            const double room = w->op->credits * w->op->unit / max2(len, 1) * l->tx / w->rate;
            when[j] = max2(when[j], max2(encoded, left - room));
        }
    }
    if (w->op->schedule != NM_DIRECT && w->op->func != NM_ALL_REDUCE) {
        /* While the others work on its block, the owner's link has one idle direction. That time is lost, as
         * is measured: the pieces of the next block move when all nodes' do. */
        serve(&w->tx[owner], posted(w, owner, i), max2(0, p.other.tx - p.owner.tx) / w->rate);
        serve(&w->rx[owner], posted(w, owner, i), p.early ? 0 : max2(0, p.other.rx - p.owner.rx) / w->rate);
    }
    if (p.early && w->columns) {
        /* A node makes its sums in the order of windows, and those of the owner's row wait for all along
         * their column: no part's are made before those of the part before. */
        arrived = w->summed = max2(arrived, w->summed);
    }
    arrived += p.hops * w->f->latency;
    if (p.early) {
        const double start = posted(w, owner, i);
        arrived = max2(arrived, serve(&w->rx[owner], start, p.owner.rx / w->rate) + w->f->latency);
        ready = max2(arrived - p.owner.cpu / speed, start);
        sum = serve(&w->add[owner], ready, p.owner.cpu / speed);
        when[owner] = max2(when[owner], max2(sum, max2(arrived, start) + p.owner.last / speed));
        return;
    }
    for (int j = 0; j < w->n; j++)
        if (j != owner || w->op->func != NM_ALL_GATHER)
            when[j] = max2(when[j], arrived + p.other.last / speed);
}

/* Where a call covers many blocks all nodes have the same to do: one stands for all. */
static void run_even(struct walk *w, long i, double len)
{
    struct walk one = *w;
    const double speed = min2(1, w->f->cores), blocks = w->op->bytes / w->n;
    const double part = w->op->func == NM_ALL_REDUCE ? len : min2(blocks, len), parts = len / part;
    const struct part_loads p = part_costs(&one, part);
    const struct load all = average(w, &p);
    const double tx = parts * all.tx, rx = parts * all.rx, cpu = parts * all.cpu;
    const double first = max2(p.owner.first, p.other.first), last = max2(p.owner.last, p.other.last);
    double ready = posted(w, 0, i), encoded, left;

    w->used += cpu;
    encoded = serve(&w->cpu[0], ready, cpu / speed);
    ready = max2(ready, encoded - cpu / speed) + first / speed;
    left = max2(serve(&w->tx[0], ready, tx / w->rate), serve(&w->rx[0], ready, rx / w->rate));
    finish(w, 0, i, max2(left, encoded) + p.hops * w->f->latency + last / speed);
}

static bool sane(const struct nm_figures *f, const struct nm_op *op)
{
    return f->link > 0 && f->latency >= 0 && f->message >= 0 && f->cores > 0 && op->nodes >= 2 &&
           op->bytes > 0 && op->value > 0 && op->ratio > 0 && op->chunk > 0 && op->channels >= 1 &&
           op->unit > 0 && op->credits >= 1;
}

static double walk_all(struct walk *w, double call, long calls, bool even)
{
    double *when = calloc((size_t)w->n, sizeof(*when)), end = 0;
    const double block = w->op->bytes / w->n;
    long at = 0;
    int last = -1;

    if (!when)
        return NAN;
    for (long i = 0; i < calls; i++) {
        const double beg = (double)i * call, stop = min2(beg + call, w->op->bytes);
        if (even) {
            run_even(w, i, stop - beg);
            continue;
        }
        for (int j = 0; j < w->n; j++)
            when[j] = posted(w, j, i);
        for (double x = beg; x < stop - 1e-6;) {
            const int owner = (int)min2(floor(x / block + 1e-9), w->n - 1);
            const double to = owner == w->n - 1 ? stop : min2(stop, (owner + 1) * block);
            if (w->op->func != NM_REDUCE_SCATTER || w->op->schedule != NM_DIRECT) {
                run_part(w, i, owner, to - x, when);
                x = to;
                continue;
            }
            /* What the owner has added it gives back unit by unit, however much of a call lies in its block.
             * */
            for (double next; x < to - 1e-6; x = next) {
                next = min2(to, x + w->op->unit);
                at = owner == last ? at + 1 : 0;
                last = owner;
                run_direct_sum(w, i, owner, next - x, at, when);
            }
        }
        for (int j = 0; j < w->n; j++)
            finish(w, j, i, when[j]);
    }
    for (int j = 0; j < (even ? 1 : w->n); j++)
        for (int k = 0; k < w->in_flight && k < calls; k++)
            end = max2(end, w->done[(size_t)j * (size_t)w->in_flight + (size_t)k]);
    free(when);
    return end;
}

bool nm_predict(const struct nm_figures *f, const struct nm_op *given, struct nm_result *result)
{
    struct nm_op op = *given;
    struct walk w = {.f = f, .op = &op, .n = op.nodes, .rate = f->link};
    const int together = op.channels < CALL_GROUP ? op.channels : CALL_GROUP;
    const double n = op.nodes, call = op.chunk * together;
    size_t nodes;
    bool even;

    if (!sane(f, &op))
        return false;
    w.columns = nm_columns(&op);
    w.rows = w.columns ? op.nodes / w.columns : 1;
    if (op.schedule == NM_TWO_LEVEL && !w.columns)
        op.schedule = NM_DIRECT;
    w.groups = (op.channels + CALL_GROUP - 1) / CALL_GROUP;
    w.in_flight = STEPS * w.groups;
    /* All-reduces are cut evenly whatever the call; else calls that cover a good many of the blocks. */
    even = op.func == NM_ALL_REDUCE || (op.bytes / n * 8 <= call && op.nodes > 16);
    nodes = even ? 1 : (size_t)op.nodes;
    w.tx = calloc(nodes, sizeof(double));
    w.rx = calloc(nodes, sizeof(double));
    w.cpu = calloc(nodes, sizeof(double));
    w.add = calloc(nodes, sizeof(double));
    w.done = calloc(nodes * (size_t)w.in_flight, sizeof(double));
    w.gone = calloc(nodes * RING, sizeof(double));
    w.reduced = calloc(RING, sizeof(double));
    if (w.tx && w.rx && w.cpu && w.add && w.done && w.gone && w.reduced) {
        result->seconds = walk_all(&w, call, (long)ceil(op.bytes / call), even);
        /* Processors are busy with one thing at a time, and there are only so many. */
        result->seconds = max2(result->seconds, w.used / f->cores);
        result->cpu = w.used / result->seconds;
        result->ideal = (n - 1) / n * op.bytes * op.ratio / f->link * (op.func == NM_ALL_REDUCE ? 2 : 1);
        result->in_flight = min2(op.bytes, op.chunk * op.channels * STEPS);
        op.bytes = min2(op.bytes, call);
        const struct part_loads p =
            part_costs(&w, op.func == NM_ALL_REDUCE ? op.bytes : min2(op.bytes, given->bytes / n));
        result->latency =
            p.hops * f->latency + (p.other.first + p.owner.last + p.other.last) / min2(1, f->cores) +
            max2(max2(max2(p.owner.tx, p.owner.rx), max2(p.other.tx, p.other.rx)), max2(p.row.tx, p.row.rx)) /
                f->link;
    } else {
        result->seconds = NAN;
    }
    free(w.tx);
    free(w.rx);
    free(w.cpu);
    free(w.add);
    free(w.done);
    free(w.gone);
    free(w.reduced);
    return isfinite(result->seconds);
}

void nm_needs(const struct nm_op *op, double gradients, double weights, struct nm_needs *needs)
{
    const double n = op->nodes;
    const int columns = nm_columns(op);
    const double peers = columns ? columns - 1 + n / columns - 1 : n - 1;
    const bool gathers = op->func == NM_ALL_GATHER;

    needs->connections = peers;
    /* Rings to send and to receive in each of two classes for each peer, and two pools of shared units. */
    needs->staging = (4 * peers + 2) * op->credits * op->unit;
    /* One byte a value and one scale for 32 of them; a reduce-scatter's own block needs none. */
    needs->feedback =
        gathers || !op->coded ? 0 : (gradients > 0 ? gradients : op->bytes) / op->value * (1 + 1.0 / 32);
    if (op->func == NM_REDUCE_SCATTER)
        needs->feedback *= (n - 1) / n;
    needs->references = gathers && op->coded ? (weights > 0 ? weights : op->bytes) : 0;
}

double nm_nccl(const struct nm_figures *f, enum nm_func func, int nodes, double bytes)
{
    const double one_way = (nodes - 1.0) / nodes * bytes / f->link;

    return func == NM_ALL_REDUCE ? 2 * (one_way + min2(nodes - 1.0, log2(nodes)) * f->latency)
                                 : one_way + (nodes - 1.0) * f->latency;
}
