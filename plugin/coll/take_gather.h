/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of all-gathers. For the engine thread. */
#ifndef NIBBLE_COLL_TAKE_GATHER_H
#define NIBBLE_COLL_TAKE_GATHER_H

#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;
struct nb_msg;
struct nb_peer;
struct nb_segment;
struct nb_rx;

/* Of each peer: what of its block is arriving. */
struct nb_peer_gather {
    uint64_t seq; /* receive cursor over windows: its CONTRIB messages */
    /* The all-gather whose segments arrive from their owner itself (direct). */
    uint64_t op, bytes, delivered; /* its number; bytes taken, and delivered */
    int open, keep, kept;          /* some of it has been taken; was to be kept; could be */
    uint64_t next_op;              /* all-gathers before this operation number have arrived whole */
    unsigned tasks; /* in flight with segments of this peer's block, all of operation task_op */
    uint64_t task_op;
};

/* Take the head of the peer's CONTRIB ring, if it is of an all-gather that is delivered as it arrives: 1, 0
 * not now, or < 0 when the communicator has failed. */
int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer);
/* Deliver a segment of `owner`'s block to `win`, from the message at the head of `rx`, a ring of `from`.
 * can_take: 1 when that can be done now. take: 1, or < 0 when the communicator has failed. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m);
int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_peer *from,
                   struct nb_coll_req *win, const struct nb_segment *segment, struct nb_rx *rx);

#endif
