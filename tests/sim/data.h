/* SPDX-License-Identifier: Apache-2.0 */
/* Values that operations carry, and what has to come of them. All of it follows from the plan. */
#ifndef NIBBLE_TESTS_SIM_DATA_H
#define NIBBLE_TESTS_SIM_DATA_H

#include "tests/sim/sim.h"

/* Make the tables that values come from; once. */
void sim_data_open(void);
void sim_data_close(void);

/* `n` values of rank `rank`, from value `first` on, into dst: of its whole vector (reduce-scatter,
 * all-reduce) or block (all-gather). */
void sim_data_fill(const struct sim_op *op, int rank, size_t first, size_t n, void *dst);

/* Compare `n` values of a sum over `nranks` ranks from value `first` of the vector on with what is at `got`.
 * Exact: the index of the first that differs, or -1. */
long sim_data_check_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got);
/* Within a bound: adds squared differences to *error, and to *energy what they are measured by: squares of
 * all contributions and of the sum. */
void sim_data_measure_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got,
                          double *error, double *energy);
/* The same of an all-gather, in bytes of the whole vector. */
long sim_data_check_gather(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got);

#endif
