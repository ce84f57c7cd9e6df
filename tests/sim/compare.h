/* SPDX-License-Identifier: Apache-2.0 */
/* A run against the same one without lateness: what operations bring, and what is kept at the end, must not
 * differ. */
#ifndef NIBBLE_TESTS_SIM_COMPARE_H
#define NIBBLE_TESTS_SIM_COMPARE_H

#include "tests/sim/cluster.h"

/* `outcome` is that of a run of `plan` that is comparable. Where the calm run fails, or differs, it becomes a
 * failure that says so. */
void sim_compare(const struct sim_plan *plan, struct sim_outcome *outcome);

#endif
