/* SPDX-License-Identifier: Apache-2.0 */
/* All interleavings of a small group that hands operations back: see handback_model.c. */
#ifndef NIBBLE_TESTS_POLICY_HANDBACK_MODEL_H
#define NIBBLE_TESTS_POLICY_HANDBACK_MODEL_H

#include <stdint.h>

/* What is broken on purpose, to see that it is found. */
enum handback_mutant {
    MUTANT_NONE,
    MUTANT_NO_WAIT,   /* callers pass an undecided switch */
    MUTANT_EARLY,     /* a node takes the switch a call too early */
    MUTANT_LOST,      /* an outcome is lost, and nobody notices */
    MUTANT_FORGETFUL, /* a node says how far it is before it has looked */
    MUTANT_FIRST,     /* a node asks its first rank only how far it is */
    MUTANT_COUNT
};

struct handback_case {
    int nodes, signatures;
    int ranks;  /* of each node; 0: one */
    int heads;  /* of these; 0: one. The last is the leader */
    int calls;  /* of each signature on each rank */
    int turns;  /* verdicts that each node's heads change */
    int breaks; /* nodes that may fail */
    int stops;  /* nodes that may stop handing back */
    int slack, period;
    enum handback_mutant mutant;
};

struct handback_found {
    uint64_t states, steps;
    uint64_t handed_back, waited, came_back, again; /* states in which that is seen */
    const char *wrong;                              /* NULL: nothing */
};

/* Try everything. -1: no memory, or more than `most` states. */
int handback_explore(const struct handback_case *what, uint64_t most, struct handback_found *found);

#endif
