/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of nibble-scale, as a transport. Each node has one link, with a rate in each direction. Its
 * connections take turns on it, message by message. The receiver's link serves messages in the order of
 * arrival. A message passes both links at the same time, later by the latency, where no other message is in
 * the way. Messages from one site to another also pass the sender's site's trunk, in the order in which
 * nodes' links begin to send them. A connection accepts a limited number of bytes before they are delivered.
 */
#ifndef NIBBLE_TESTS_SCALE_NETWORK_H
#define NIBBLE_TESTS_SCALE_NETWORK_H

#include "net/transport.h"
#include "tests/scale/scale.h"

/* A message keeps so many of its bytes (nb_device_ops.keeps). */
#define SCALE_KEPT 256

/* For nb_net_open_with, with the context of a scale_node. early: as in struct nb_net_ops. */
extern const struct nb_net_ops scale_net_early, scale_net_late;

struct scale_network *scale_network_open(struct scale_cluster *cluster);
void scale_network_close(struct scale_network *net);
/* Handle every event except SIM_NODE. */
void scale_network_event(struct scale_cluster *cluster, const struct sim_event *event);
/* Return the number of connections, between all nodes. */
int scale_network_connections(const struct scale_network *net);
/* Return the memory that the network's simulation itself takes. */
size_t scale_network_bytes(const struct scale_network *net);

#endif
