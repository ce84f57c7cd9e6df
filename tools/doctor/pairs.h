/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of a job's transport between all pairs of nodes, in both directions, over each device, and
 * messages on
 * them: a small one, and one that no single packet carries. Nothing blocks beyond the seconds given.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_PAIRS_H
#define NIBBLE_TOOLS_DOCTOR_PAIRS_H

#include <stddef.h>
#include <stdio.h>

#include "net/transport.h"

struct pairs;

/* Listen on each device. 0 and *pairs, or a negative errno. */
int pairs_open(struct nb_net *net, int rank, int nodes, struct pairs **pairs);
/* What others need to connect: devices x NB_NET_HANDLE_BYTES. */
const void *pairs_handles(const struct pairs *pairs, size_t *len);
/* Handles of another node; without them it is absent. */
void pairs_set(struct pairs *pairs, int node, const void *handles, size_t len);
/* Connect with all that are not absent, exchange the messages. Ends early when all is done. */
void pairs_run(struct pairs *pairs, double seconds);
/* What became of it, a line each:
 *   out PEER DEVICE ok|connect|send ADDRESS<TAB>CAUSE     as the sender saw it
 *   in PEER DEVICE ok|small|none|damaged                  as the receiver did: the peer's connection, its messages */
void pairs_tell(const struct pairs *pairs, FILE *out);

/* Over device 0, of pairs that are well: seconds for a hop from node to node, as a message goes round all
 * nodes, exact on node 0; NAN: it did not get through within `limit`, and nothing may be streamed. */
double pairs_hop(struct pairs *pairs, double limit);
/* All nodes: send to the next one (if `to`) for `seconds`, receive from the one before (if `from`): bytes a
 * second that came in; NAN: nothing did within `limit`. */
double pairs_stream(struct pairs *pairs, int to, int from, double seconds, double limit);

void pairs_close(struct pairs *pairs);

#endif
