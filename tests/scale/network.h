/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of nibble-scale, as a transport. Each node has one link, of a rate in each direction. What its
 * connections have to send takes turns, message by message; at the receiver's link messages are served as
 * they come. A message passes both links at the same time, later by the latency, where nothing else is in the
 * way. A connection takes so many bytes before they are delivered, then none.
 */
#ifndef NIBBLE_TESTS_SCALE_NETWORK_H
#define NIBBLE_TESTS_SCALE_NETWORK_H

#include "net/transport.h"
#include "tests/scale/scale.h"

/* Of a message so many bytes are there (nb_device_ops.keeps). */
#define SCALE_KEPT 256

/* For nb_net_open_with, by the context of a scale_node. early: as in struct nb_net_ops. */
extern const struct nb_net_ops scale_net_early, scale_net_late;

struct scale_network *scale_network_open(struct scale_cluster *cluster);
void scale_network_close(struct scale_network *net);
/* Everything but SIM_NODE. */
void scale_network_event(struct scale_cluster *cluster, const struct sim_event *event);
/* Of connections, between all nodes. */
int scale_network_connections(const struct scale_network *net);
/* Memory that the simulation of the network itself takes. */
size_t scale_network_bytes(const struct scale_network *net);

#endif
