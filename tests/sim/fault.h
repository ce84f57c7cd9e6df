/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the plan: when their moment comes, what they do, and what they end. */
#ifndef NIBBLE_TESTS_SIM_FAULT_H
#define NIBBLE_TESTS_SIM_FAULT_H

#include "sim/sim.h"

/* Before the first event; and a node begins an operation of a communicator. */
void sim_fault_begin(struct sim *s);
void sim_fault_operation(struct sim *s, int node, int comm, int op);
/* After each event. */
void sim_fault_look(struct sim *s);
/* SIM_HEAL. */
void sim_fault_event(struct sim *s, const struct sim_event *event);

/* Asked by a device for each work: whether one of these faults is meant for it now. */
bool sim_fault_device(struct sim *s, int node, int comm, enum sim_fault_kind *kind);
/* Told by the network: a message of the communicator has been damaged, where a check covers it or not. */
void sim_fault_damaged(struct sim *s, int comm, bool covered);

/* How many of each kind took effect, in all runs of this process. */
extern uint64_t sim_fault_count[SIM_FAULTS];

#endif
