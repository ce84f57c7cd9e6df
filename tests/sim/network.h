/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between nodes, as a transport: connections of NICs that have a rate in each direction, a
 * latency and a queue. A message leaves when earlier messages have left the NIC, and arrives in the order of
 * its connection. A connection takes a bounded number of messages. fault.h has the faults.
 */
#ifndef NIBBLE_TESTS_SIM_NETWORK_H
#define NIBBLE_TESTS_SIM_NETWORK_H

#include "net/transport.h"
#include "tests/sim/sim.h"

/* For nb_net_open_with, with the context of a sim_node. early: a send is done when taken. late: a send is
 * done when it has arrived. */
extern const struct nb_net_ops sim_net_early, sim_net_late;

struct sim_network *sim_network_open(struct sim *s);
void sim_network_close(struct sim_network *net);

/* Handle an event of the queue. */
void sim_network_event(struct sim *s, const struct sim_event *event);

/* Faults. Stop all messages from `a` to `b` until as many joins as cuts have come. */
void sim_network_cut(struct sim *s, int a, int b);
void sim_network_join(struct sim *s, int a, int b);
/* Close all ends of a node, whose process has ended, or let them vanish, because its machine has. */
void sim_network_kill(struct sim *s, int node, bool silently);
/* End a connection from `a` to `b` of communicator `comm`, chosen by `which`: bit 0 for the sender, bit 1 for
 * the receiver. Return false when there is no such connection. */
bool sim_network_reset(struct sim *s, int a, int b, uint64_t which, int comm, int ends);
/* Return whether a node has messages in flight on a connection that was ended so, and will hear of it. */
bool sim_network_shows(const struct sim *s, int comm);
/* Return whether CONTROL from a node holds messages that their receiver has not read. */
bool sim_network_has_unread(const struct sim *s, int comm, int from, int to);
/* Stop deliveries until `until`. */
bool sim_network_stall(struct sim *s, int a, int b, uint64_t which, int64_t until);
/* Flip a bit of the next message from a to b, or cut off its end. `limit`: the bit lies below so many bytes,
 * 0: anywhere. `control`: the next message of class CONTROL. */
void sim_network_flip(struct sim *s, int a, int b, bool control, uint64_t which, size_t limit);
void sim_network_truncate(struct sim *s, int a, int b, bool control);
/* Fail the next registration of a node. */
void sim_network_no_mr(struct sim *s, int node);
/* Return whether damage has happened, and set *comm to the message's communicator. */
bool sim_network_damaged(const struct sim *s, int *comm);

/* Set the communicator of connections made from now on, for faults of one communicator. */
void sim_network_comm(struct sim *s, int node, int comm);

/* Return the number of connections' ends, listeners and registrations that a node has open. */
int sim_network_objects(const struct sim *s, int node);
/* Return the number of messages delivered in all. */
uint64_t sim_network_messages(const struct sim *s);

#endif
