/* SPDX-License-Identifier: Apache-2.0 */
/* Reading control messages. For the engine thread. */
#ifndef NIBBLE_COLL_CONTROL_H
#define NIBBLE_COLL_CONTROL_H

struct nb_coll_comm;
struct nb_peer;

/* Read, and relay, what has come from a peer that this node is connected with: 1 moved, 0, or < 0 when the
 * communicator has failed. */
int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer);

#endif
