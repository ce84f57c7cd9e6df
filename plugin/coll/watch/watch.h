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

/* Create comm->watch. Return 0 or -ENOMEM. destroy: comm->watch may be NULL. begin: start the clock, now that
 * all nodes are connected. */
int nb_watch_create(struct nb_coll_comm *comm);
void nb_watch_destroy(struct nb_coll_comm *comm);
void nb_watch_begin(struct nb_coll_comm *comm);

/* ---- heartbeats -------------------------------------------------------------------------------------- */

/* Queue a heartbeat for a neighbor if the last one is old enough. It names a silent neighbor of this node,
 * and the node that this one waits for in the end. Return 0 or < 0. */
int nb_control_alive(struct nb_coll_comm *comm, struct nb_peer *peer, int64_t t_ns);

/* Send heartbeats and check silence and lateness, if the last check is old enough. Return 0, or < 0 when the
 * communicator has failed. */
int nb_watch_tick(struct nb_coll_comm *comm, int64_t t_ns);

/* Return how often late peers were reported. Any thread. */
uint64_t nb_watch_late_reports(const struct nb_coll_comm *comm);

/* ---- control messages -------------------------------------------------------------------------------- */

/* Read the control messages of a neighbor, and relay messages for other nodes. Return 1 when something moved,
 * 0, or < 0 when the communicator has failed. */
int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- aborts ------------------------------------------------------------------------------------------ */

/* Send ABORT to the peers of a communicator that has failed, and let NCCL's calls return the error. Call it
 * in every round. Return true when ABORT has left for all peers, or enough time has passed: then connections
 * may be closed. */
bool nb_abort_progress(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- lost connections -------------------------------------------------------------------------------- */

/* Find out why a connection has ended (nb_comm_suspect), in a round that takes the place of the usual one.
 * Return < 0 when the communicator has failed with the cause, otherwise whether something moved. */
int nb_loss_explain(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- shutdown ---------------------------------------------------------------------------------------- */

/*
 * The graceful end of a communicator: this node sends the messages that it owes, then FIN, and all peers
 * acknowledge it.
 *
 * Where NIBBLE_CLOSE_TIMEOUT is too short for the messages, some peers have everything they need and cannot
 * distinguish the end of this node from a loss. So the communicator fails a little before the time is up, and
 * tells these peers which peer has not taken its messages. It names silent peers before peers that a silent
 * peer may hold up. It also fails earlier where a peer is silent, because nodes that began to close together
 * believe the first node that fails. Where all peers live, the line names the node that their heartbeats
 * report as silent.
 */

/* Start the time limit of close. Any thread that closes. */
void nb_shutdown_begin(struct nb_coll_comm *comm);
/* Try ABORT once. For a thread that closes and makes the rounds itself, where time may stand still
 * meanwhile. */
void nb_shutdown_hurry(struct nb_coll_comm *comm);
/* Make a round of a communicator that is closing: it closes, fails, or continues. */
void nb_shutdown_progress(struct nb_coll_comm *comm, int64_t now_ns);

#endif
