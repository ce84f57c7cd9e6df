/* SPDX-License-Identifier: Apache-2.0 */
/* Results of sums that arrive on a RESULT ring. For the engine thread; all return 1, 0 when it has to wait,
 * or < 0 when the communicator has failed. */
#ifndef NIBBLE_COLL_RESULT_H
#define NIBBLE_COLL_RESULT_H

struct nb_coll_comm;
struct nb_coll_req;
struct nb_peer;
struct nb_segment;
struct nb_task;

/* Run the task, set up but for its next function: it makes of the message at the head of the peer's RESULT
 * ring what its segment delivers. At 0 the device has no room, and the task is dropped. */
int nb_take_result(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_task *task);
/* Deliver a segment of an all-reduce from the message at the head of the peer's RESULT ring. What lies behind
 * its values is padding. */
int nb_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
               const struct nb_segment *segment);
/* Two hops and levels: the message at the head of the peer's RESULT ring is a sum of all others' values for
 * the segment of this node's block: add the own values and deliver it. */
int nb_take_sum(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                const struct nb_segment *segment);

#endif
