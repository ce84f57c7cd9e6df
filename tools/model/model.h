/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-model: how long a collective takes, from what a link and a codec can do.
 *
 * The plugin's own reckoning says how long an operation takes (policy/reckon/reckon.h). nibble-scale compares
 * it with the engine itself in virtual time. Everything is in bytes and seconds. "Bytes" of a codec's speed
 * are those of values, before coding.
 */
#ifndef NIBBLE_TOOLS_MODEL_H
#define NIBBLE_TOOLS_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "policy/reckon/reckon.h"

struct nm_result {
    double seconds;
    double ideal;     /* of the bytes that must pass the busiest link, nothing else */
    double in_flight; /* bytes that NCCL keeps in flight, at most the operation */
    double latency;   /* of one call when nothing else is under way */
    double cpu;       /* processors busy on a node, on average */
};

/* false when a figure or the operation makes no sense. Two-level where nodes make no grid (nm_columns) is
 * direct. */
bool nm_predict(const struct nb_cost_machine *figures, const struct nb_cost_op *op, struct nm_result *result);

/* The same with the fastest schedule instead of the operation's. Returns it; NB_COST_SCHEDULES: none makes
 * sense. */
enum nb_cost_schedule nm_predict_best(const struct nb_cost_machine *figures, const struct nb_cost_op *op,
                                      struct nm_result *result);

/* What a node needs. `gradients` and `weights`: bytes of all that is reduced and gathered in a step, 0: the
 * operation's own. */
struct nm_needs {
    double connections; /* to peers, for one communicator and GPU */
    double staging;     /* bytes of units sent and received, when memory allows for all credits */
    double feedback, references;
};
void nm_needs(const struct nb_cost_op *op, double gradients, double weights, struct nm_needs *needs);

/* NCCL's own way with the same bytes, what a user has without nibble: rings, an all-reduce's latency that of
 * a tree. */
double nm_nccl(const struct nb_cost_machine *figures, enum nb_func func, int nodes, double bytes);

/* Columns of the two-level schedule's grid, nodes of a row: the divisor of nodes next to twice their square
 * root that leaves two rows at least, and neither rows nor columns beyond 128. 0: there is none. */
int nm_group(int nodes);
/* Those that an operation has: 0 when every node sends to every other, as its schedule says or for want of a
 * grid. */
int nm_columns(const struct nb_cost_op *op);

const char *nm_func_name(enum nb_func func);
const char *nm_schedule_name(enum nb_cost_schedule schedule);

/* ---- measured figures ---- */

/* Speeds of the fastest variant of `type` from nibble-perf codec --json, and the speed of memcpy. */
bool nm_read_codec(const char *path, const char *type, struct nb_cost_machine *figures);

/* One line of bench.sh's samples. */
struct nm_sample {
    char set[16], tool[16], schedule[24], op[24], type[16];
    int nodes, channels;
    double mbps, bytes, chunk, seconds, ratio, cpu;
};
/* The medians over the rounds; *samples is for the caller to free. A negative number after a message. */
long nm_read_bench(const char *path, struct nm_sample **samples);

#endif
