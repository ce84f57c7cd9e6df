/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-model: the time of a collective, from the speeds of a link and a codec.
 *
 * The plugin's own reckoning gives the time of an operation (policy/reckon/reckon.h). nibble-scale compares
 * it with the engine itself in virtual time. All figures are in bytes and seconds. "Bytes" of a codec's speed
 * are bytes of values, before coding.
 */
#ifndef NIBBLE_TOOLS_MODEL_H
#define NIBBLE_TOOLS_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "policy/reckon/reckon.h"

struct nm_result {
    double seconds;
    double ideal;     /* time of the bytes that must pass the busiest link */
    double in_flight; /* bytes that NCCL keeps in flight, at most the operation's */
    double latency;   /* latency of one call on an idle link */
    double cpu;       /* processors busy on a node, on average */
};

/* Predict an operation. Return false when a figure or the operation is invalid. Two-level is direct where
 * nodes make no grid (nm_columns). */
bool nm_predict(const struct nb_cost_machine *figures, const struct nb_cost_op *op, struct nm_result *result);

/* Predict with the fastest schedule instead of the operation's. Return it, or NB_COST_SCHEDULES when all are
 * invalid. */
enum nb_cost_schedule nm_predict_best(const struct nb_cost_machine *figures, const struct nb_cost_op *op,
                                      struct nm_result *result);

/* Resources that a node needs. `gradients` and `weights` are the bytes of all values reduced and gathered in
 * a step, 0: the operation's own. */
struct nm_needs {
    double connections; /* connections to peers, for one communicator and GPU */
    double staging;     /* bytes of units sent and received, when memory allows for all credits */
    double feedback, references;
};
void nm_needs(const struct nb_cost_op *op, double gradients, double weights, struct nm_needs *needs);

/* Return the time of NCCL's own way with the same bytes, as a user without nibble has it: rings, and for an
 * all-reduce the latency of a tree. */
double nm_nccl(const struct nb_cost_machine *figures, enum nb_func func, int nodes, double bytes);

/* Return the columns of the two-level schedule's grid, which are the nodes of a row. It is the divisor of
 * `nodes` next to twice their square root that leaves at least two rows, with at most 128 rows and columns.
 * 0: there is none. */
int nm_group(int nodes);
/* Return an operation's columns. 0 when every node sends to every other node, because its schedule says so or
 * because there is no grid. */
int nm_columns(const struct nb_cost_op *op);

const char *nm_func_name(enum nb_func func);
const char *nm_schedule_name(enum nb_cost_schedule schedule);

/* ---- measured figures ---- */

/* Read the speeds of the fastest variant of `type` from nibble-perf codec --json, and the speed of memcpy. */
bool nm_read_codec(const char *path, const char *type, struct nb_cost_machine *figures);

/* One line of bench.sh's samples. */
struct nm_sample {
    char set[16], tool[16], schedule[24], op[24], type[16];
    int nodes, channels;
    double mbps, bytes, chunk, seconds, ratio, cpu;
};
/* Return the number of samples, with medians over the rounds. The caller frees *samples. Return a negative
 * number after a message. */
long nm_read_bench(const char *path, struct nm_sample **samples);

#endif
