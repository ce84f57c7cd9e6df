/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the peers and ends communicators: heartbeats, late peers, lost connections, aborts, and the
 * graceful shutdown. For the engine thread, unless a comment says otherwise.
 */
#ifndef NIBBLE_COLL_WATCH_WATCH_H
#define NIBBLE_COLL_WATCH_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

/* ---- life -------------------------------------------------------------------------------------------- */

/* Create comm->watch: 0 or -ENOMEM. destroy: also of none. begin: all nodes are connected, start the
 * clock. */
int nb_watch_create(struct nb_coll_comm *comm);
void nb_watch_destroy(struct nb_coll_comm *comm);
void nb_watch_begin(struct nb_coll_comm *comm);

/* ---- heartbeats -------------------------------------------------------------------------------------- */

/* Queue a heartbeat for a neighbor if the last one is old enough. It names a silent neighbor of this node,
 * and the node that this one waits for in the end. 0 or < 0. */
int nb_control_alive(struct nb_coll_comm *comm, struct nb_peer *peer, int64_t t_ns);

/* Send heartbeats and check silence and lateness, if the last check is old enough. 0, or < 0 when the
 * communicator has failed. */
int nb_watch_tick(struct nb_coll_comm *comm, int64_t t_ns);

/* Return how often late peers were reported. Any thread. */
uint64_t nb_watch_late_reports(const struct nb_coll_comm *comm);

/* ---- control messages -------------------------------------------------------------------------------- */

/* Read the control messages of a neighbor, and relay those for other nodes: 1 moved, 0, or < 0 when the
 * communicator has failed. */
int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- aborts ----------------------------------------------------------------------------------------- */

/* The communicator has failed: send ABORT to the peers, and let NCCL's calls return the error. Call it in
 * every round. True when ABORT has left for all of them, or enough time has passed: connections may be
 * closed. */
bool nb_abort_progress(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- lost connections -------------------------------------------------------------------------------- */

/* Find out why a connection has ended (nb_comm_suspect), in a round that takes the place of the usual one. <
 * 0 when the communicator has failed with the cause, else whether something moved. */
int nb_loss_explain(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- shutdown ---------------------------------------------------------------------------------------- */

/*
 * The graceful end of a communicator: this node sends the messages that it owes, then FIN, and all peers
 * acknowledge it.
 *
 * Where NIBBLE_CLOSE_TIMEOUT is too short for the first, some peers have all they need and cannot tell the
 * end of this node from a loss. So the communicator fails a little before the time is up, and tells them
 * which peer has not taken its messages. It names silent peers before others, which such a peer may hold up.
 * It also fails earlier where one is silent: of nodes that began to close together the first to fail is
 * believed. Where all peers live, the line names the node of which they hear nothing, from their heartbeats.
 */

/* Start the time limit of close. Any thread that closes. */
void nb_shutdown_begin(struct nb_coll_comm *comm);
/* The thread that closes makes the rounds, and time may stand still meanwhile: try ABORT once. */
void nb_shutdown_hurry(struct nb_coll_comm *comm);
/* Make a round of a communicator that is closing: it closes, fails, or goes on. */
void nb_shutdown_progress(struct nb_coll_comm *comm, int64_t now_ns);

#endif
