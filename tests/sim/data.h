/* SPDX-License-Identifier: Apache-2.0 */
/* Values that operations carry, and their expected results. All of them follow from the plan. */
#ifndef NIBBLE_TESTS_SIM_DATA_H
#define NIBBLE_TESTS_SIM_DATA_H

#include "tests/sim/sim.h"

/* Make the tables of values. Call it once. */
void sim_data_open(void);
void sim_data_close(void);

/* Write `n` values of rank `rank`, from value `first` on, to dst: values of its whole vector (reduce-scatter,
 * all-reduce) or block (all-gather). */
void sim_data_fill(const struct sim_op *op, int rank, size_t first, size_t n, void *dst);

/* Compare `got` with `n` values of a sum over `nranks` ranks, from value `first` of the vector on. Exact:
 * return the index of the first different value, or -1. */
long sim_data_check_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got);
/* Within a bound: add squared differences to *error, and the squares of all contributions and of the sum, by
 * which they are measured, to *energy. */
void sim_data_measure_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got,
                          double *error, double *energy);
/* Do the same with an all-gather, in bytes of the whole vector. */
long sim_data_check_gather(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got);

#endif
