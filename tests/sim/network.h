/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between nodes, as a transport: connections of NICs that have a rate in each direction, a
 * latency and a queue. A message leaves when those before it have left the NIC, and arrives in the order of
 * its connection; a connection takes a bounded number of them. What is done to it: fault.h.
 */
#ifndef NIBBLE_TESTS_SIM_NETWORK_H
#define NIBBLE_TESTS_SIM_NETWORK_H

#include "net/transport.h"
#include "tests/sim/sim.h"

/* To be taken with nb_net_open_with by the context of a sim_node. early: sends are done when taken; late:
 * when they have arrived. */
extern const struct nb_net_ops sim_net_early, sim_net_late;

struct sim_network *sim_network_open(struct sim *s);
void sim_network_close(struct sim_network *net);

/* Events of the queue. */
void sim_network_event(struct sim *s, const struct sim_event *event);

/* Faults. From here on nothing passes from `a` to `b`, until it is joined as often as it was cut. */
void sim_network_cut(struct sim *s, int a, int b);
void sim_network_join(struct sim *s, int a, int b);
/* All ends of a node are closed (its process has ended), or vanish (its machine has). */
void sim_network_kill(struct sim *s, int node, bool silently);
/* A connection from `a` to `b` of communicator `comm` (chosen by `which`) ends: bit 0 for the sender, bit 1
 * for the receiver. False: there is none. */
bool sim_network_reset(struct sim *s, int a, int b, uint64_t which, int comm, int ends);
/* A node has something under way on a connection of the communicator that was ended so, and will be told. */
bool sim_network_shows(const struct sim *s, int comm);
/* It delivers nothing until `until`. */
bool sim_network_stall(struct sim *s, int a, int b, uint64_t which, int64_t until);
/* The next message (control: of CONTROL) from a to b gets a bit turned (below `limit` bytes; 0: anywhere), or
 * loses its end. */
void sim_network_flip(struct sim *s, int a, int b, bool control, uint64_t which, size_t limit);
void sim_network_truncate(struct sim *s, int a, int b, bool control);
/* The next registration of a node fails. */
void sim_network_no_mr(struct sim *s, int node);
/* What has been done: damage that has happened to a message of communicator `comm`. */
bool sim_network_damaged(const struct sim *s, int *comm);

/* Which communicator connections that are made now belong to; for faults of one of them. */
void sim_network_comm(struct sim *s, int node, int comm);

/* Connections' ends, listeners and registrations that a node has open. */
int sim_network_objects(const struct sim *s, int node);
/* Messages delivered in all. */
uint64_t sim_network_messages(const struct sim *s);

#endif
