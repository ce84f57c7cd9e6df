/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the plan: when they happen, their effect, and their end. */
#ifndef NIBBLE_TESTS_SIM_FAULT_H
#define NIBBLE_TESTS_SIM_FAULT_H

#include "tests/sim/sim.h"

/* Called before the first event, and when a node begins an operation of a communicator. */
void sim_fault_begin(struct sim *s);
void sim_fault_operation(struct sim *s, int node, int comm, int op);
/* Called after each event. */
void sim_fault_look(struct sim *s);
/* SIM_HEAL. */
void sim_fault_event(struct sim *s, const struct sim_event *event);

/* Return whether one of these faults hits this piece of work. A device asks for each of them. `lasts`: the
 * work may finish later, so it can be stuck. */
bool sim_fault_device(struct sim *s, int node, int comm, bool lasts, enum sim_fault_kind *kind);
/* Promise for a damaged byte of a message (docs/messages.md). */
enum sim_cover {
    SIM_NOT_CHECKED, /* results may be wrong */
    SIM_FOUND,       /* the communicator fails at once */
    SIM_READ,        /* the same, when it is the message's turn to be read */
    SIM_RESENT,      /* the receiver asks for the bytes again */
    SIM_RESENT_TWICE /* the message was itself a second copy */
};
/* Called by the network: it has damaged such a byte of a message of the communicator. */
void sim_fault_damaged(struct sim *s, int comm, enum sim_cover cover);

/* Number of faults of each kind that took effect, in all runs of this process. */
extern uint64_t sim_fault_count[SIM_FAULTS];

#endif
