/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a window: NCCL hands it over, its operation is begun and decided, its segments are coded, sent, summed,
 * forwarded and delivered. For the engine thread, but where it says otherwise.
 *
 *     nb_windows_dequeue    a new window: record and first values of its operation (operation.c), schedule, account
 *     nb_send_progress      segments that this node sends: coded as tasks (send.c, gather_send.c), queued on rings
 *     nb_receive_progress   messages that have arrived (receive.c): blocks of all-gathers (gather_receive.c), sums
 *                           (reduce.c), forwards (forward.c), results
 *     nb_tasks_progress     steps of tasks that the device has done (task.c)
 *     window.c              counts what a window still lacks, and tells NCCL when nothing is left
 */
#ifndef NIBBLE_COLL_FLOW_FLOW_H
#define NIBBLE_COLL_FLOW_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;
struct nb_ctl;
struct nb_peer;
struct nb_rx;

/* ---- life -------------------------------------------------------------------------------------------- */

/* Make comm->flow, with what flow keeps of each peer: 0 or -ENOMEM. destroy: also of none; no work is in flight. For the thread that connects or closes. */
int nb_flow_create(struct nb_coll_comm *comm);
void nb_flow_destroy(struct nb_coll_comm *comm);
/* Make the state of a communicator whose identifier and size are set: 0 or -ENOMEM. destroy: also of what was
 * half made. */
int nb_records_init(struct nb_coll_comm *comm);

void nb_records_destroy(struct nb_coll_comm *comm);

/* ---- staging memory ---------------------------------------------------------------------------------- */

/*
 * Staging memory of a communicator: for each neighbor and class of messages a ring to send from and one to
 * receive into (comm/ring.h), buffers that several rings send from, and scratch memory; all on the communicator's
 * device, counted against the node's staging budget, and registered with the connections that use it.
 *
 * For the thread that connects or closes (NCCL's proxy service thread), while the engine does not know the
 * communicator.
 */

/* Allocate: as many buffers a ring as NIBBLE_CREDITS says, fewer (after a log line) when they do not fit into
 * the budget, at least one. 0 or -ENOMEM; nb_staging_destroy is due in any case. */
int nb_staging_create(struct nb_coll_comm *comm);
/* Free all of it, also after a failed create or none. Nothing is registered any more. */
void nb_staging_destroy(struct nb_coll_comm *comm);

/* Register with the connections, which the rings have been given. 0, or a negative errno;
 * nb_staging_unregister is due in any case. */
int nb_staging_register(struct nb_coll_comm *comm);
/* Stop receiving on the connections and deregister what is registered; may be called twice. */
void nb_staging_unregister(struct nb_coll_comm *comm);

/* ---- rounds of the engine; each returns 1 when something moved, 0, or < 0: the communicator has failed  */

/* Take up the windows that NCCL has handed over and begin their operations. True when one was. */
bool nb_windows_dequeue(struct nb_coll_comm *comm);
/* Look after all that are in flight: 1 something moved, 0, or < 0. */
int nb_tasks_progress(struct nb_coll_comm *comm);

/* Do what the messages at the heads of the rings allow: 1 moved, 0 not, < 0 when the communicator has
 * failed. */
int nb_receive_progress(struct nb_coll_comm *comm);

/* Encode and queue what there is to send, as far as there is room: 1 moved, 0 not, < 0 when the communicator
 * has failed. */
int nb_send_progress(struct nb_coll_comm *comm);

/* Answer what `peer`, or nodes behind it, have asked for, as far as its ring and the device have room: 1 something moved,
 * 0, or < 0 when the communicator has failed. */
int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- what is under way ------------------------------------------------------------------------------- */

/* True while the device has some work of the communicator's: a task's, of residuals that are emptied, or of answers to who
 * asks for raw bytes. */
bool nb_device_has_works(const struct nb_coll_comm *comm);

/* The device is at work on a task's step. A task that waits for raw bytes of a peer is not. */
bool nb_tasks_work(const struct nb_coll_comm *comm);
/* The communicator has failed or is closed: 0, no work touches memory any more; or -ETIMEDOUT, some work on
 * the device does not end, so that what it may touch has to stay. */
int nb_tasks_abandon(struct nb_coll_comm *comm);

/* True when the device has failed, and then so has the communicator: nothing that the device was asked for
 * counts. */
bool nb_device_failed(struct nb_coll_comm *comm);

/* The oldest unfinished window needs something from `peer`, a neighbor, that has not arrived. There is such a
 * window: oldest < begun. Also for others that hold progress_lock. */
bool nb_window_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* Something that is queued for the peer has not left. */
bool nb_peer_has_not_taken(const struct nb_peer *peer);
/* A window got on. */
void nb_pace_moved(struct nb_coll_comm *comm);

/* ---- retransmission: control messages that have come ------------------------------------------------- */

/* DATA has come from `peer`, and lies in slot `at` of `rx`. 0, or < 0 when the communicator has failed. */
int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           struct nb_rx *rx, unsigned at);

/* RAW has come from `peer`: note it. 0, or < 0 when the communicator has failed. */
int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* A message with raw bytes has come that is for `to`, a neighbor: pass it on. 1, or 0 when it has to wait. */
int nb_retransmit_relay(struct nb_coll_comm *comm, struct nb_peer *to, const uint8_t *message, size_t len);

#endif
