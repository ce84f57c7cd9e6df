/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the plan: when their moment comes, what they do, and what they end. */
#ifndef NIBBLE_TESTS_SIM_FAULT_H
#define NIBBLE_TESTS_SIM_FAULT_H

#include "tests/sim/sim.h"

/* Before the first event; and a node begins an operation of a communicator. */
void sim_fault_begin(struct sim *s);
void sim_fault_operation(struct sim *s, int node, int comm, int op);
/* After each event. */
void sim_fault_look(struct sim *s);
/* SIM_HEAL. */
void sim_fault_event(struct sim *s, const struct sim_event *event);

/* Asked by a device for each work: whether one of these faults is meant for it now. `lasts`: it may be done later than
 * at once, so that it can be stuck. */
bool sim_fault_device(struct sim *s, int node, int comm, bool lasts, enum sim_fault_kind *kind);
/* What is promised of a byte of a message (docs/messages.md). */
enum sim_cover {
    SIM_NOT_CHECKED, /* results may be wrong */
    SIM_FOUND,       /* the communicator fails at once */
    SIM_READ,        /* ... when it is the message's turn to be read */
    SIM_RESENT,      /* the receiver asks for the bytes again */
    SIM_RESENT_TWICE /* it was a second time already */
};
/* Told by the network: such a byte of a message of the communicator has been damaged. */
void sim_fault_damaged(struct sim *s, int comm, enum sim_cover cover);

/* How many of each kind took effect, in all runs of this process. */
extern uint64_t sim_fault_count[SIM_FAULTS];

#endif
