/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef NIBBLE_COLL_SHUTDOWN_H
#define NIBBLE_COLL_SHUTDOWN_H

#include <stdint.h>

struct nb_coll_comm;

/* Close is asked for: its time begins. Any thread that closes. */
void nb_shutdown_begin(struct nb_coll_comm *comm);
/* A round of a communicator that is closing and has not failed: it is closed, or fails, or neither yet. */
void nb_shutdown_progress(struct nb_coll_comm *comm, int64_t now_ns);

#endif
