/* SPDX-License-Identifier: Apache-2.0 */
/* A run: carry out a plan, from listening to the last close. */
#ifndef NIBBLE_TESTS_SIM_CLUSTER_H
#define NIBBLE_TESTS_SIM_CLUSTER_H

#include "tests/sim/sim.h"

struct sim_outcome {
    bool failed;
    char violation[1024];
    uint64_t hash;    /* of the trace */
    uint64_t results; /* hash of all operations' results. Without failures it does not depend on timing */
    uint64_t result[SIM_COMMS][SIM_OPS]; /* of each operation, over all nodes. 0: the operation was left
                                            out */
    uint64_t state[SIM_COMMS];           /* the same for residuals and references at the end */
    bool comparable; /* all operations are complete, and only timing may differ between runs */
    uint64_t events, windows, operations, messages;
    int64_t ended; /* virtual ns */
};

/* Run a plan. `loud` prints the trace as it happens. `tell` prints the last events when the run fails. */
void sim_run(const struct sim_plan *plan, bool loud, bool tell, struct sim_outcome *outcome);

#endif
