/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending control messages. Between nodes of a grid that are not connected they are relayed by one that is
 * connected with both (grid.h): for an owner and a receiver of its block always the same node, the one in the
 * owner's column and the receiver's row. For the engine thread.
 */
#ifndef NIBBLE_COLL_CONTROL_SEND_H
#define NIBBLE_COLL_CONTROL_SEND_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/wire.h"

struct nb_coll_comm;
struct nb_peer;

/* Heartbeats are sent so long after each other, in ns: by this node, and by its peers as far as it knows
 * (their NIBBLE_PEER_TIMEOUT is the same: a setting that nodes must agree on). */
int64_t nb_control_alive_ns(const struct nb_coll_comm *comm);
/* After so long, in ns, the next one of a peer is overdue. */
int64_t nb_control_overdue_ns(const struct nb_coll_comm *comm);
/* So long, in ns, the end of a connection is doubted to be the cause of a failure: others may know more. */
int64_t nb_control_doubt_ns(const struct nb_coll_comm *comm);
/* Queue a heartbeat for a neighbor, where the last one (life.sent_ns) was sent long enough before t_ns. It
 * says of which neighbor nothing is heard (life.quiet), and whom this node waits for (life.chain). 0 or
 * < 0. */
int nb_control_alive(struct nb_coll_comm *comm, struct nb_peer *peer, int64_t t_ns);
/* Queue a control message for `peer`, from which this node may be two connections away: 0, or < 0 when the
 * communicator has failed because the first on the route has not taken the ones before. To one that has left
 * nothing is sent. */
int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what);
/* The first node on the route of such a message. */
struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to);
/* Queue `ctl`, complete with sender and receiver, on the connection with `hop`. 0 or < 0. */
int nb_control_put(struct nb_coll_comm *comm, struct nb_peer *hop, const struct nb_ctl *ctl);
/* True when a message that came from `via` may have come along its route. */
bool nb_control_came_along_route(const struct nb_coll_comm *comm, const struct nb_peer *via,
                                 const struct nb_ctl *ctl);

#endif
