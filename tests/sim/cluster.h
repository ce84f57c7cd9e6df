/* SPDX-License-Identifier: Apache-2.0 */
/* A run: a plan is carried out, from listening to the last close. */
#ifndef NIBBLE_TESTS_SIM_CLUSTER_H
#define NIBBLE_TESTS_SIM_CLUSTER_H

#include "tests/sim/sim.h"

struct sim_outcome {
    bool failed;
    char violation[1024];
    uint64_t hash;    /* of the trace */
    uint64_t results; /* of what operations brought: the same whatever the time, where nothing failed */
    uint64_t result[SIM_COMMS][SIM_OPS]; /* of each operation, of all nodes together; 0: there is none */
    uint64_t state[SIM_COMMS];           /* of residuals and references at the end, likewise */
    bool comparable; /* all operations are complete, and nothing but time makes a difference to them */
    uint64_t events, windows, operations, messages;
    int64_t ended; /* virtual ns */
};

/* loud: print the trace as it happens; tell: print what happened last, if it fails. */
void sim_run(const struct sim_plan *plan, bool loud, bool tell, struct sim_outcome *outcome);

#endif
