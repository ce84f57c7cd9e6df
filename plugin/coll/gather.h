/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of all-gathers: what is sent of the own block. For the engine thread. */
#ifndef NIBBLE_COLL_GATHER_H
#define NIBBLE_COLL_GATHER_H

#include <stdbool.h>

#include "coll/gather_pick.h"
#include "coll/link.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_op;
struct nb_segment;

struct nb_gather {
    struct nb_pool units; /* messages that are sent to every peer (send.c) */
    unsigned tasks;       /* in flight with segments of the own block, or picking */
    struct nb_gather_pick pick;
};

/* True while segments of the own block are in flight. */
static inline bool nb_gather_under_way(const struct nb_gather *gather)
{
    return gather->tasks != 0;
}

/* Send a segment of the own block, as differences where there is a reference, and deliver it to this node. In
 * the order of operations and segments, each once. Into the next buffer of `tx`, or into `unit`. can_send: 1
 * when that can be done now; an operation's first also picks the reference. send: 1, or < 0 when the
 * communicator has failed. */
int nb_gather_can_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment);
int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                   struct nb_tx *tx, struct nb_shared *unit);

#endif
