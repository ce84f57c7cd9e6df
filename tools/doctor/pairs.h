/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of a job's transport between all pairs of nodes, in both directions, over each device. Each
 * carries a small message, and one too large for a single packet. No function blocks beyond the given
 * seconds.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_PAIRS_H
#define NIBBLE_TOOLS_DOCTOR_PAIRS_H

#include <stddef.h>
#include <stdio.h>

#include "net/transport.h"

struct pairs;

/* Listen on each device. Return 0 and *pairs, or a negative errno. */
int pairs_open(struct nb_net *net, int rank, int nodes, struct pairs **pairs);
/* Return the handles that other nodes need to connect: devices x NB_NET_HANDLE_BYTES. */
const void *pairs_handles(const struct pairs *pairs, size_t *len);
/* Set another node's handles. A node without handles is absent. */
void pairs_set(struct pairs *pairs, int node, const void *handles, size_t len);
/* Connect with all present nodes and exchange the messages. Returns early when all is done. */
void pairs_run(struct pairs *pairs, double seconds);
/* Write the results, a line each:
 *   out PEER DEVICE ok|connect|send ADDRESS<TAB>CAUSE     as the sender saw it
 *   in PEER DEVICE ok|small|none|damaged                  as the receiver saw the peer's connection and
 * messages */
void pairs_tell(const struct pairs *pairs, FILE *out);

/* Choose the device of the measurements below: 0 before, and instead of one that this node lacks. */
void pairs_choose(struct pairs *pairs, int dev);
/* Measure a hop between pairs that work, by a message that goes round all nodes. Return its
 * seconds, exact on node 0. Return NAN when the message got lost within `limit`: streaming is then
 * impossible. */
double pairs_hop(struct pairs *pairs, double limit);
/* Send to the next node (if `to`) for `seconds` and receive from the previous one (if `from`). All nodes
 * call. Return the received bytes a second, of a part where the rest did not arrive within `limit`, or NAN
 * when the first message did not. */
double pairs_stream(struct pairs *pairs, int to, int from, double seconds, double limit);

void pairs_close(struct pairs *pairs);

#endif
