/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a window. NCCL hands it over. Its operation begins and is decided. Its segments are coded, sent,
 * summed, forwarded and delivered. For the engine thread, unless a comment says otherwise.
 *
 *     nb_windows_dequeue    take up a new window: record and first values of its operation (operation.c), schedule
 *     nb_send_progress      encode this node's segments as tasks (send.c, gather_send.c) and queue them on the rings
 *     nb_receive_progress   handle the messages that have arrived (receive.c): blocks of all-gathers
 *                           (gather_receive.c), sums (reduce.c), forwards (forward.c), results
 *     nb_tasks_progress     continue the tasks whose step the device has done (task.c)
 *     window.c              count what a window still lacks, and report it to NCCL as done
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

/* Create comm->flow and the state of every peer: 0 or -ENOMEM. destroy: also of none, and without work in
 * flight. For the thread that connects or closes. */
int nb_flow_create(struct nb_coll_comm *comm);
void nb_flow_destroy(struct nb_coll_comm *comm);
/* Create the records of a communicator whose identifier and size are set: 0 or -ENOMEM. destroy: also of half
 * of them, or none. */
int nb_records_init(struct nb_coll_comm *comm);

void nb_records_destroy(struct nb_coll_comm *comm);

/* ---- staging memory ---------------------------------------------------------------------------------- */

/*
 * Staging memory of a communicator: a ring to send from and one to receive into for each neighbor and class
 * (comm/ring.h), buffers that several rings send from, and scratch memory. It lies on the communicator's
 * device, counts against the node's staging budget, and is registered with the connections that use it.
 *
 * For the thread that connects or closes (NCCL's proxy service thread), while the engine does not know the
 * communicator.
 */

/* Allocate as many buffers a ring as NIBBLE_CREDITS says. Where the budget is too small, log that and take
 * fewer, at least one. 0 or -ENOMEM. Call nb_staging_destroy in any case. */
int nb_staging_create(struct nb_coll_comm *comm);
/* Free it, also after a failed create or none, and after nb_staging_unregister. */
void nb_staging_destroy(struct nb_coll_comm *comm);

/* Register it with the connections of the rings: 0 or a negative errno. Call nb_staging_unregister in any
 * case. */
int nb_staging_register(struct nb_coll_comm *comm);
/* Stop receiving and deregister. May be called twice. */
void nb_staging_unregister(struct nb_coll_comm *comm);

/* ---- parts of a round: 1 when something moved, 0, or < 0 when the communicator has failed ----------- */

/* Take up the windows that NCCL has handed over, and begin their operations. True when there was one. */
bool nb_windows_dequeue(struct nb_coll_comm *comm);
/* Continue the tasks whose step is done. */
int nb_tasks_progress(struct nb_coll_comm *comm);

/* Handle the messages at the heads of the rings. */
int nb_receive_progress(struct nb_coll_comm *comm);

/* Encode and queue segments, as far as there is room. */
int nb_send_progress(struct nb_coll_comm *comm);

/* Send the raw bytes that `peer`, or nodes behind it, have asked for, as far as its ring and the device have
 * room. */
int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- work in flight ------------------------------------------------------------------------------------ */

/* True while the device works for the communicator: on tasks, on residuals to empty, or on answers with raw
 * bytes. */
bool nb_device_has_works(const struct nb_coll_comm *comm);

/* True while the device works on a step of a task. A task that waits for raw bytes of a peer does not
 * count. */
bool nb_tasks_work(const struct nb_coll_comm *comm);
/* Abandon the work of a communicator that has failed or is closed. 0: no work touches memory any more.
 * -ETIMEDOUT: some work does not end, so its memory has to stay. With progress_lock, or where the engine has
 * let go of the communicator. */
int nb_tasks_abandon(struct nb_coll_comm *comm);

/* Check the device. True: it has failed, and so has the communicator. Ignore its results. */
bool nb_device_failed(struct nb_coll_comm *comm);

/* True when the oldest open window (there is one: oldest < begun) lacks something that `peer`, a neighbor,
 * has to send. Also for threads that hold progress_lock. */
bool nb_window_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* True while messages for the peer are queued. */
bool nb_peer_has_not_taken(const struct nb_peer *peer);
/* Note that a window has moved. */
void nb_pace_moved(struct nb_coll_comm *comm);

/* ---- control messages about retransmission ----------------------------------------------------------- */

/* Handle DATA from `peer`, which lies in message buffer `at` of `rx`. 0, or < 0 when the communicator has
 * failed. */
int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           struct nb_rx *rx, unsigned at);

/* Handle RAW from `peer`: note what it asks for. 0, or < 0 when the communicator has failed. */
int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* Pass on a message with raw bytes for `to`, a neighbor. 1, or 0 when it has to wait. */
int nb_retransmit_relay(struct nb_coll_comm *comm, struct nb_peer *to, const uint8_t *message, size_t len);

#endif
