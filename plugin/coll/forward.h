/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwarding, for schedules in which segments go through other nodes. For the engine thread.
 *
 * Order. Two cursors work for others: sums (reduce.c) and forwards (here), each in the order of windows. Both
 * put messages into RESULT rings, and these have to be in the order of windows, too: receivers take them in
 * that order. So
 *
 *   - nothing is forwarded before all sums of older windows are done;
 *   - a sum that leaves as RESULT waits until all older windows are forwarded, an all-reduce's until all
 *   older all-gathers
 *     are (its own results are forwarded by this cursor: it would wait for itself).
 *
 * Each of them waits for older windows only. So the cursor whose window is the older one never waits for the
 * other, and no two nodes deadlock: of the oldest window in the group that is not finished, sums wait for
 * contributions only, forwards for sums and arrivals of the same window (comm.h tells the rest).
 */
#ifndef NIBBLE_COLL_FORWARD_H
#define NIBBLE_COLL_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/cursor.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_peer;

struct nb_forward {
    struct nb_cursor cursor; /* over what this node forwards, own results of all-reduces included: */
    uint64_t emit_next;      /* the number of the next of these (nb_reduce.results) */
};

/* Forward the next segment, and deliver it here: 1 moved, 0 not, < 0 when the communicator has failed. */
int nb_forward_next(struct nb_coll_comm *comm);
/* True when a sum of the window may leave as RESULT, by the order above. */
bool nb_forward_lets_result_pass(struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* True when the next segment of the window that is to be forwarded has to come from `peer`, and nothing has
 * arrived. */
bool nb_forward_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer);

#endif
