/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the peers live, whom this node waits for, and how a communicator ends: heartbeats, late peers, connections that
 * end, failures that the peers are told of, and the graceful shutdown. For the engine thread, but where it says otherwise.
 */
#ifndef NIBBLE_COLL_WATCH_WATCH_H
#define NIBBLE_COLL_WATCH_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

/* ---- life -------------------------------------------------------------------------------------------- */

/* Make comm->watch: 0 or -ENOMEM. destroy: also of none. begin: all nodes are connected, time begins to count. */
int nb_watch_create(struct nb_coll_comm *comm);
void nb_watch_destroy(struct nb_coll_comm *comm);
void nb_watch_begin(struct nb_coll_comm *comm);

/* ---- heartbeats -------------------------------------------------------------------------------------- */

/* Queue a heartbeat for a neighbor, where the last one (life.sent_ns) was sent long enough before t_ns. It
 * says of which neighbor nothing is heard (life.quiet), and whom this node waits for (life.chain). 0 or
 * < 0. */
int nb_control_alive(struct nb_coll_comm *comm, struct nb_peer *peer, int64_t t_ns);

/* Look at heartbeats, silence and lateness, where the last look was long enough ago. 0, or < 0 when the communicator
 * has failed. */
int nb_watch_tick(struct nb_coll_comm *comm, int64_t t_ns);

/* How often late peers were reported. Any thread. */
uint64_t nb_watch_late_reports(const struct nb_coll_comm *comm);

/* ---- control messages -------------------------------------------------------------------------------- */

/* Reading control messages. For the engine thread. */

/* Read, and relay, what has come from a peer that this node is connected with: 1 moved, 0, or < 0 when the
 * communicator has failed. */
int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- telling the peers ------------------------------------------------------------------------------- */

/* Telling the other nodes that, and why, a communicator has failed. For the engine thread. */

/* The communicator has failed: send ABORT to all that still listen, as far as that is possible now, and let
 * NCCL's calls return the error. To be called again in every round. True when it has left for all, or enough
 * time has passed: then connections may be closed. */
bool nb_abort_progress(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- why a connection has ended ---------------------------------------------------------------------- */

/* Why a connection has ended. For the engine thread. */

/* A round of a communicator some of whose connections have ended (nb_comm_suspect), in place of the usual
 * one: look for the cause. < 0 when the communicator has failed with it, else whether something moved. */
int nb_loss_explain(struct nb_coll_comm *comm, int64_t now_ns);

/* ---- graceful end ------------------------------------------------------------------------------------ */

/*
 * The graceful end of a communicator: what this node owes its peers is sent, then BYE, and all have to
 * confirm that.
 *
 * Where NIBBLE_CLOSE_TIMEOUT does not suffice for the first, peers that need nothing more of this node cannot
 * tell its end from a loss. So a little before the time is up it fails, which tells all of them who has not
 * taken what. A peer that is silent comes before others, which may only be held up by one: in the line, and
 * in time, since of nodes that began to close together the first to fail is believed. Where all that are
 * waited for live, the line says of whom they hear nothing, as their heartbeats tell.
 *
 * For the engine thread.
 */

/* Close is asked for: its time begins. Any thread that closes. */
void nb_shutdown_begin(struct nb_coll_comm *comm);
/* Who closes makes the rounds, and time may stand still meanwhile: ABORT is tried once. */
void nb_shutdown_hurry(struct nb_coll_comm *comm);
/* A round of a communicator that is closing and has not failed: it is closed, or fails, or neither yet. */
void nb_shutdown_progress(struct nb_coll_comm *comm, int64_t now_ns);

#endif
