/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the model share: model.c (what is asked of it), loads.c (what a part of a call costs), walk.c
 * (NCCL's walk over an operation) and hops.c (its parts where segments go through other nodes). */
#ifndef NIBBLE_TOOLS_MODEL_WALK_H
#define NIBBLE_TOOLS_MODEL_WALK_H

#include <math.h>

#include "model.h"

#define STEPS 8           /* NCCL_STEPS */
#define CALL_GROUP 8      /* channels that share a call */
#define NM_RING 512       /* units of a block that are remembered */
#define NM_QUANTUM 1024.0 /* plugin/coll/cut.c: what goes through others is cut into multiples of it */

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

static inline double max2(double a, double b)
{
    return a > b ? a : b;
}
static inline double min2(double a, double b)
{
    return a < b ? a : b;
}

/* Costs of `len` bytes that lie in one rank's block, or of an all-reduce, where every node is "other". */
struct part_loads nm_part_costs(const struct walk *w, double len);
/* Of one node on average, as the owner goes round. */
struct load nm_average(const struct walk *w, const struct part_loads *p);
/* Bytes on the wire of `copies` messages' worth of `bytes` each, of `ratio`. */
double nm_wire(const struct walk *w, double ratio, double copies, double bytes);
/* Ratios of what is quantized a second time, and of sums of rows. */
double nm_ratio_again(const struct nm_op *op);
double nm_ratio_of_rows(const struct nm_op *op);
/* Processor times of `bytes` of values: to make messages of them, to add them to a sum, to code a sum again, to store
 * what has come, to copy. */
double nm_encode_time(const struct walk *w, double bytes);
double nm_decode_time(const struct walk *w, double bytes);
double nm_copy_time(const struct walk *w, double bytes);
double nm_add_time(const struct walk *w, double bytes);
double nm_recode_time(const struct walk *w, double bytes);

/* The operation's time; NAN: no memory. `even`: one node stands for all. */
double nm_walk(struct walk *w, double call, long calls, bool even);

/* A server that is free at *server serves something that is ready at `ready` for `seconds`: when that is done. */
static inline double serve(double *server, double ready, double seconds)
{
    if (seconds <= 0)
        return ready; /* nothing to do, so nothing to wait for */
    *server = max2(*server, ready) + seconds;
    return *server;
}

/* A node may hand over call `i` when its call `i - in_flight` is finished. */
static inline double posted(const struct walk *w, int node, long i)
{
    return i < w->in_flight ? 0 : w->done[(size_t)node * (size_t)w->in_flight + (size_t)(i % w->in_flight)];
}

/* A reduce-scatter or all-gather, followed message by message (follow.h). NAN: it has more than `most` messages, or there is
 * no memory. Sets w->used. */
double nm_follow(struct walk *w, double most);

/* `len` bytes of call `i` in the block of `owner`, of an all-gather or a sum that goes through other nodes. when[j] is
 * raised to what the call needs on node j. */
void nm_run_gather(struct walk *w, long i, int owner, double len, double *when);
void nm_run_sum(struct walk *w, long i, int owner, double len, double *when);

#endif
