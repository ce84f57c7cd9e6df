/* SPDX-License-Identifier: Apache-2.0 */
/* Compare a run with the same run without lateness. The results of operations, and residuals and references
 * at the end, must be equal. */
#ifndef NIBBLE_TESTS_SIM_COMPARE_H
#define NIBBLE_TESTS_SIM_COMPARE_H

#include "tests/sim/cluster.h"

/* `outcome` is the outcome of a comparable run of `plan`. Where the calm run fails, or differs, `outcome`
 * becomes a failure that says so. */
void sim_compare(const struct sim_plan *plan, struct sim_outcome *outcome);

#endif
