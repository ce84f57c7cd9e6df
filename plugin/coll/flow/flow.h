/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a window through the engine. NCCL hands the window over. The engine begins its operation and
 * decides on it. Then it encodes, sends, sums, forwards and delivers the window's segments. All functions are
 * for the engine thread, unless a comment says otherwise.
 *
 *     nb_windows_dequeue    take up a new window: schedule, record and first values of its
 *                           operation (operation.c)
 *     nb_send_progress      encode this node's segments as tasks (send.c, gather_send.c), and queue
 *                           them on the rings
 *     nb_receive_progress   handle the messages that have arrived (receive.c): blocks of all-gathers
 *                           (gather_receive.c), sums (reduce.c), forwards (forward.c), results
 *     nb_tasks_progress     continue the tasks whose step the device has done (task.c)
 *     window.c              count the bytes that a window still lacks, and report it to NCCL as done
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

/* Create comm->flow and the state of every peer. Return 0 or -ENOMEM. destroy: comm->flow may be NULL. Call
 * it without work in flight. For the thread that connects or closes. */
int nb_flow_create(struct nb_coll_comm *comm);
void nb_flow_destroy(struct nb_coll_comm *comm);
/* Create the records of a communicator whose identifier and size are set. Return 0 or -ENOMEM. destroy: also
 * after a failed init or before any. */
int nb_records_init(struct nb_coll_comm *comm);

void nb_records_destroy(struct nb_coll_comm *comm);

/* ---- staging memory ---------------------------------------------------------------------------------- */

/*
 * Staging memory of a communicator: for each neighbor and class a ring to send from and one to receive into
 * (comm/ring.h), buffers that several rings send from, and scratch memory. It lies on the communicator's
 * device, counts against the node's staging budget, and is registered with the connections that use it.
 *
 * For the thread that connects or closes (NCCL's proxy service thread), while the engine does not know the
 * communicator.
 */

/* Allocate NIBBLE_CREDITS buffers for each ring. Where the budget is too small, log that and take fewer, at
 * least one. Return 0 or -ENOMEM. Call nb_staging_destroy in any case. */
int nb_staging_create(struct nb_coll_comm *comm);
/* Free the staging memory, after nb_staging_unregister. Also after a failed create or before any. */
void nb_staging_destroy(struct nb_coll_comm *comm);
/* Return true when payloads lie in the device's memory. */
bool nb_staging_on_device(const struct nb_coll_comm *comm);

/* Register the memory with the connections of the rings. Return 0 or a negative errno. Call
 * nb_staging_unregister in any case. */
int nb_staging_register(struct nb_coll_comm *comm);
/* Stop receiving and deregister the memory. May be called twice. */
void nb_staging_unregister(struct nb_coll_comm *comm);

/* Give the device the transport's adapter where both have use for it, once the rings are connected, and
 * take it back before the connections end. May be called twice. */
void nb_adapter_give(struct nb_coll_comm *comm);
void nb_adapter_take_back(struct nb_coll_comm *comm);

/* ---- parts of a round: return 1 when something moved, 0, or < 0 when the communicator has failed ----- */

/* Take up the windows that NCCL has handed over, and begin their operations. Return true when there was
 * one. */
bool nb_windows_dequeue(struct nb_coll_comm *comm);
/* Continue the tasks whose step is done. */
int nb_tasks_progress(struct nb_coll_comm *comm);

/* Handle the messages at the heads of the rings. */
int nb_receive_progress(struct nb_coll_comm *comm);

/* Encode and queue segments, as far as there is room. */
int nb_send_progress(struct nb_coll_comm *comm);

/* Send the raw bytes that `peer`, or nodes behind it, have requested, as far as its ring and the device have
 * room. */
int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer);

/* ---- work in flight ---------------------------------------------------------------------------------- */

/* Return true while the device works for the communicator: on tasks, on residuals to empty, or on answers
 * with raw bytes. */
bool nb_device_has_works(const struct nb_coll_comm *comm);

/* Return true while the device works on a step of a task. A task that waits for raw bytes of a peer does not
 * count. */
bool nb_tasks_work(const struct nb_coll_comm *comm);
/* Abandon the work of a communicator that has failed or is closed. Return 0 when all work has let go of
 * memory, or -ETIMEDOUT when some work does not end: then its memory has to stay. With progress_lock, or
 * where the engine has let go of the communicator. */
int nb_tasks_abandon(struct nb_coll_comm *comm);

/* Check the device. Return true when it has failed, and with it the communicator: then ignore the device's
 * results. */
bool nb_device_failed(struct nb_coll_comm *comm);

/* Return true when the oldest open window lacks something that `peer`, a neighbor, has to send. Call it with
 * an open window (oldest < begun). Also for threads that hold progress_lock. */
bool nb_window_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* Return true while messages for the peer are queued. */
bool nb_peer_has_not_taken(const struct nb_peer *peer);
/* Note that a window has moved. */
void nb_pace_moved(struct nb_coll_comm *comm);

/* ---- control messages about retransmission ----------------------------------------------------------- */

/* Handle DATA from `peer`, which lies in message buffer `at` of `rx`. Return 0, or < 0 when the communicator
 * has failed. */
int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           struct nb_rx *rx, unsigned at);

/* Handle RAW from `peer`: note the range that it requests. Return 0, or < 0 when the communicator has
 * failed. */
int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* Pass on a message with raw bytes for `to`, a neighbor. Return 1, or 0 when it has to wait. */
int nb_retransmit_relay(struct nb_coll_comm *comm, struct nb_peer *to, const uint8_t *message, size_t len);

#endif
