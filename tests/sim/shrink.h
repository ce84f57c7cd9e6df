/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce a failure: leave out faults, operations and differences as long as the run still fails. */
#ifndef NIBBLE_TESTS_SIM_SHRINK_H
#define NIBBLE_TESTS_SIM_SHRINK_H

#include "tests/sim/sim.h"

/* Print the shortest run found that fails as seed `seed` does, with `violation`. */
void sim_shrink(uint64_t seed, const struct sim_options *options, const char *violation);

#endif
