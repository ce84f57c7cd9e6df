/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's walk over an operation, call by call. */
#include "walk.h"

#include <stdlib.h>

static void finish(struct walk *w, int node, long i, double when)
{
    double *row = w->done + (size_t)node * (size_t)w->in_flight;
    /* Slots are given back in order within a group of channels. */
    const double before = i < w->groups ? 0 : row[(i - w->groups) % w->in_flight];

    row[i % w->in_flight] = nb_max_double(before, when);
}

/*
 * A node hands over all that it contributes, up to the calls behind its own block that NCCL keeps in flight,
 * at the beginning, and the rest when its block is done: as far as memory goes, it sends to so many owners at
 * the same time. They share its link evenly, so that the first of them gets its values hardly sooner than the
 * last, and is waited for by all behind it.
 */
static double sharers(const struct walk *w, int node, int owner, double encode, double send)
{
    const double ahead = nb_min_double(w->n - 1, floor(w->in_flight * w->call / (w->op->bytes / w->n)));
    const double all = owner < node + ahead ? nb_min_double(node + ahead, w->n) - 1 : w->n - node - ahead;

    if (ahead < 1 || send <= encode)
        return 1;
    /* About half of that: who has got all that there is for him does not share any more. */
    return 1 + (all - 1) / 2 * (1 - encode / send);
}

/*
 * One unit, `len` bytes of call `i` in block `owner`, of a reduce-scatter that goes straight to the owner.
 * Nodes that only contribute run ahead as far as memory for coded units goes: their own, and the owner's,
 * which is free again when the owner has handed over that unit, too, and added it. `at`: number of this unit
 * within the block.
 */
static void run_direct_sum(struct walk *w, long i, int owner, double len, long at, double *when)
{
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, len);
    const double speed = nb_min_double(1, w->f->cores), each = p.owner.rx / (w->n - 1) / w->rate;
    const double memory = w->op->credits * w->op->unit;
    const long back = (long)nb_max_double(1, floor(memory / nb_max_double(len, 1)));
    /* A unit that the transport has taken needs no memory of ours. */
    const long mine =
        (long)nb_max_double(1, floor((memory + w->f->queue / w->op->ratio) / nb_max_double(len, 1)));
    const bool full = at >= back && back < NM_RING;
    double *gone = w->gone + (size_t)(at % NM_RING) * (size_t)w->n;
    double first = INFINITY, last = 0, late, ready, sum;

    w->used += (p.owner.cpu + (w->n - 1) * p.other.cpu) / w->n;
    for (int j = 0; j < w->n; j++) {
        double encoded, left;

        if (j == owner)
            continue;
        ready = posted(w, j, i);
        if (at >= mine && mine < NM_RING)
            ready = nb_max_double(ready, w->gone[(size_t)((at - mine) % NM_RING) * (size_t)w->n + (size_t)j]);
        encoded = serve(&w->cpu[j], ready, p.other.cpu / speed);
        ready = encoded - p.other.cpu / speed + p.other.first / speed;
        if (full)
            ready = nb_max_double(ready, w->reduced[(at - back) % NM_RING]);
        left = nb_max_double(serve(&w->tx[j], ready, p.other.tx / w->rate), encoded);
        if (at < mine && !full)
            left = nb_max_double(left, posted(w, j, i) +
                                           sharers(w, j, owner, p.other.cpu / speed, p.other.tx / w->rate) *
                                               (double)(at + 1) * p.other.tx / w->rate);
        gone[j] = left;
        first = nb_min_double(first,
                              ready); /* connections share a link: what was posted before is not in the way */
        last = nb_max_double(last, left);
        when[j] = nb_max_double(when[j], encoded);
    }
    /* The owner's link takes what comes from the first byte on, as it comes; what is late waits for nobody.
     */
    ready = serve(&w->rx[owner], first, (w->n - 1) * each);
    late = last;
    last = nb_max_double(last, ready) + w->f->latency;
    for (int j = 0; j < w->n; j++)
        gone[j] = nb_max_double(gone[j], gone[j] < late ? ready - each : ready);
    ready = nb_max_double(last - p.owner.cpu / speed, posted(w, owner, i));
    sum = serve(&w->add[owner], ready, p.owner.cpu / speed);
    sum = nb_max_double(sum, nb_max_double(last, posted(w, owner, i)) + p.owner.last / speed);
    w->reduced[at % NM_RING] = sum;
    when[owner] = nb_max_double(when[owner], sum);
}

/* One part of an all-gather that its owner sends to all. when[j] is raised to what the call needs on node
 * j. */
static void run_direct_gather(struct walk *w, long i, int owner, double len, double *when)
{
    const struct nb_cost_part p = nb_cost_part(w->f, w->op, w->columns, len);
    const double speed = nb_min_double(1, w->f->cores),
                 room = w->op->credits * w->op->unit / nb_max_double(len, 1);
    double ready = posted(w, owner, i), encoded, left, arrived;

    w->used += (p.owner.cpu + (w->n - 1) * p.other.cpu) / w->n;
    encoded = serve(&w->cpu[owner], ready, p.owner.cpu / speed);
    ready = nb_max_double(ready, encoded - p.owner.cpu / speed) + p.owner.first / speed;
    left = serve(&w->tx[owner], ready, p.owner.tx / w->rate);
    arrived = nb_max_double(left, encoded);
    /* Done for NCCL when the units have been encoded, and those have room. */
    when[owner] = nb_max_double(when[owner], nb_max_double(encoded, left - room * p.owner.tx / w->rate));
    for (int j = 0; j < w->n; j++) {
        if (j == owner)
            continue;
        ready = posted(w, j, i);
        left = serve(&w->rx[j], ready, p.other.rx / w->rate);
        arrived = nb_max_double(arrived, nb_max_double(left, serve(&w->add[j], ready, p.other.cpu / speed)));
    }
    arrived += p.hops * w->f->latency;
    for (int j = 0; j < w->n; j++)
        if (j != owner)
            when[j] = nb_max_double(when[j], arrived + p.other.last / speed);
}

/* Where a call covers many blocks all nodes have the same to do: one stands for all. */
static void run_even(struct walk *w, long i, double len)
{
    struct walk one = *w;
    const double speed = nb_min_double(1, w->f->cores), blocks = w->op->bytes / w->n;
    const double part = w->op->func == NB_FUNC_ALL_REDUCE ? len : nb_min_double(blocks, len),
                 parts = len / part;
    const struct nb_cost_part p = nb_cost_part(one.f, one.op, one.columns, part);
    const struct nb_cost_load all = nb_cost_average(w->op, w->columns, &p);
    const double tx = parts * all.tx, rx = parts * all.rx, cpu = parts * all.cpu;
    const double first = nb_max_double(p.owner.first, p.other.first),
                 last = nb_max_double(p.owner.last, p.other.last);
    double ready = posted(w, 0, i), encoded, left;

    w->used += cpu;
    encoded = serve(&w->cpu[0], ready, cpu / speed);
    ready = nb_max_double(ready, encoded - cpu / speed) + first / speed;
    left = nb_max_double(serve(&w->tx[0], ready, tx / w->rate), serve(&w->rx[0], ready, rx / w->rate));
    finish(w, 0, i, nb_max_double(left, encoded) + p.hops * w->f->latency + last / speed);
}

double nm_walk(struct walk *w, double call, long calls, bool even)
{
    double *when = calloc((size_t)w->n, sizeof(*when)), end = 0;
    const double block = w->op->bytes / w->n;
    long at = 0;
    int last = -1;

    if (!when)
        return NAN;
    for (long i = 0; i < calls; i++) {
        const double beg = (double)i * call, stop = nb_min_double(beg + call, w->op->bytes);
        if (even) {
            run_even(w, i, stop - beg);
            continue;
        }
        for (int j = 0; j < w->n; j++)
            when[j] = posted(w, j, i);
        for (double x = beg; x < stop - 1e-6;) {
            const int owner = (int)nb_min_double(floor(x / block + 1e-9), w->n - 1);
            const double to = owner == w->n - 1 ? stop : nb_min_double(stop, (owner + 1) * block);
            if (w->op->schedule != NB_COST_DIRECT && w->n > 2) {
                (w->op->func == NB_FUNC_REDUCE_SCATTER ? nm_run_sum : nm_run_gather)(w, i, owner, to - x,
                                                                                     when);
                x = to;
                continue;
            }
            if (w->op->func == NB_FUNC_ALL_GATHER) {
                run_direct_gather(w, i, owner, to - x, when);
                x = to;
                continue;
            }
            /* What the owner has added it gives back unit by unit, however much of a call lies in its block.
             * */
            for (double next; x < to - 1e-6; x = next) {
                next = nb_min_double(to, x + w->op->unit);
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
            end = nb_max_double(end, w->done[(size_t)j * (size_t)w->in_flight + (size_t)k]);
    free(when);
    return end;
}
