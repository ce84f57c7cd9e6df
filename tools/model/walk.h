/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the model share: model.c (what is asked of it), walk.c
 * (NCCL's walk over an operation) and hops.c (its parts where segments go through other nodes). */
#ifndef NIBBLE_TOOLS_MODEL_WALK_H
#define NIBBLE_TOOLS_MODEL_WALK_H

#include <math.h>

#include "base/minmax.h"
#include "model.h"

#define STEPS NB_COST_STEPS
#define CALL_GROUP NB_COST_GROUP
#define NM_RING 512 /* units of a block that are remembered */

struct walk {
    const struct nb_cost_figures *f;
    const struct nb_cost_op *op;
    int n, groups, in_flight; /* calls in flight: STEPS x groups */
    int columns, rows;        /* of the grid; 0 columns: every node sends to every other */
    double rate;              /* bytes a second of the link */
    double call;              /* bytes of a call */
    double *tx, *rx, *cpu;    /* [n]: when each server is free */
    double *add;              /* the same, of what arrives: values to be encoded need not wait for it */
    double *order;   /* [n]: when a node has begun its last sum or forward: they go in the order of calls */
    double *sums;    /* [n]: when what it has sent of its sums has left */
    double *done;    /* [n][in_flight]: when calls were finished, by call % in_flight */
    double *reduced; /* [ring]: RS, direct: when units of the current block were reduced */
    double *gone;    /* [ring][n]: and when contributions had arrived */
    double used;     /* processor time of one node on average */
};

/* The operation's time; NAN: no memory. `even`: one node stands for all. */
double nm_walk(struct walk *w, double call, long calls, bool even);

/* A server that is free at *server serves something that is ready at `ready` for `seconds`: when that is
 * done. */
static inline double serve(double *server, double ready, double seconds)
{
    if (seconds <= 0)
        return ready; /* nothing to do, so nothing to wait for */
    *server = nb_max_double(*server, ready) + seconds;
    return *server;
}

/* A node may hand over call `i` when its call `i - in_flight` is finished. */
static inline double posted(const struct walk *w, int node, long i)
{
    return i < w->in_flight ? 0 : w->done[(size_t)node * (size_t)w->in_flight + (size_t)(i % w->in_flight)];
}

/* A reduce-scatter or all-gather, followed message by message (follow.h). NAN: it has more than `most`
 * messages, or there is no memory. Sets w->used. */
double nm_follow(struct walk *w, double most);

/* `len` bytes of call `i` in the block of `owner`, of an all-gather or a sum that goes through other nodes.
 * when[j] is raised to what the call needs on node j. */
void nm_run_gather(struct walk *w, long i, int owner, double len, double *when);
void nm_run_sum(struct walk *w, long i, int owner, double len, double *when);

#endif
