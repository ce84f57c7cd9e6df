/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between a schedule, which says where each segment goes, and flow, which moves it there. A
 * schedule is one constant table of pure functions over the cut of a window, and a line in the list of
 * schedule.c. docs/adding.md explains how to add one. Rows and columns are known to schedules, to the code
 * that connects nodes (connect/, comm/grid.h, flow/staging.c, decide/reckoning.c) and to routes between them
 * (comm/control.c).
 *
 * The ways of a segment, and the file that asks the table for each:
 *
 *   sums         next_send: values go to the node that sums the segment (flow/send.c, CONTRIB)
 *                next_reduce: that node waits for all contributions and sums (flow/reduce.c). The sum ends
 *                there, or goes
 *                  - to its finisher (segment.relay, else segment.owner), if that is another node (CONTRIB)
 *                  - from the finisher to the owner, which adds its own values (reduce-scatter, RESULT)
 *                  - from the finisher to all of results_to, and by next_forward on (all-reduce, RESULT)
 *   all-gathers  next_send: a segment of the own block goes to every peer (flow/send.c, CONTRIB), or
 *                next_first_hop: to its relay only (flow/gather_send.c, CONTRIB)
 *                next_forward: a segment from forward_from is delivered and goes on to forwards_to
 *                (flow/forward.c, RESULT)
 *   both         next_result: the next RESULT of a peer, in its order (flow/receive.c)
 *
 * Every node enumerates segments in the same order. `from` is where the search starts, `peer` is a rank.
 * Functions named next_ return 1 and *segment, or 0 when the window has no segment left, unless a comment
 * says otherwise. For the engine thread.
 */
#ifndef NIBBLE_COLL_SCHEDULE_SCHEDULE_H
#define NIBBLE_COLL_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;
struct nb_ctl;
struct nb_msg;
struct nb_op;
struct nb_peer;
struct nb_rx;
struct nb_segment;

struct nb_schedule_ops {
    const char *name;
    uint16_t flags; /* flags of NB_MSG_ROUTE in every data message of an operation */
    /* Return true when the operation that begins with this window takes this schedule. The answer depends
     * only on facts that all nodes share: settings, number of nodes, function, type, bytes per rank, length
     * of the window. */
    int (*takes)(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
    /* Called once, when the engine dequeues the window. Return the bytes that will be delivered here. */
    uint64_t (*begin)(struct nb_coll_comm *comm, struct nb_coll_req *win);

    /* Find the segment that starts at `off`. */
    int (*segment_at)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment);
    /* Find the next segment that this node sends to `peer` as CONTRIB. */
    int (*next_send)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_segment *segment);
    /* All-gathers: find the next segment of the own block that goes to its relay alone. NULL: the schedule
     * sends its segments to all peers. */
    int (*next_first_hop)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                          struct nb_segment *segment);
    /* Find the next segment that this node sums. */
    int (*next_reduce)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_segment *segment);
    /* Find the next segment of an all-gather or all-reduce that this node forwards, or only delivers in the
     * order of windows. Own results of all-reduces are included. NULL: it delivers all-gathers as they arrive
     * from their owners. */
    int (*next_forward)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment);
    /* Find the next segment that this node receives from `peer` as RESULT and keeps to itself. */
    int (*next_result)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                       uint64_t from, struct nb_segment *segment);

    /* Return true when neighbor `rank` sends this node values, or a row's sum, for its sum of the segment. */
    int (*contributes)(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank);
    /* Return true when this node sends the peer values for its sums. NULL: it sends them to all neighbors. */
    int (*values_to)(const struct nb_coll_comm *comm, const struct nb_peer *peer);
    /* Return true when an all-reduce's result goes to the peer at once. The remaining nodes get it by
     * forwarding, and then it is delivered here. NULL: it goes to all neighbors at once. */
    int (*results_to)(const struct nb_coll_comm *comm, const struct nb_peer *peer);
    /* With next_forward: return the ring that the segment comes from and *peer, its sender. Return NULL for a
     * result of this node. */
    struct nb_rx *(*forward_from)(const struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_segment *segment, struct nb_peer **peer);
    /* With next_forward: return true when this node sends the segment on to `peer`. */
    int (*forwards_to)(const struct nb_coll_comm *comm, const struct nb_op *op,
                       const struct nb_segment *segment, const struct nb_peer *peer);
    /* Return true when the window waits for the peer, apart from its sums, forwards and results. NULL: it
     * never does. */
    int (*waits_for)(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                     const struct nb_peer *peer);

    /* All-gathers: a segment of `owner`'s block was delivered. kept: this node kept it, if its message asked
     * for that. Return 0, or < 0 when the communicator has failed. */
    int (*delivered)(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner,
                     const struct nb_msg *m, int kept);
    /* All windows up to `win` are done: confirm the blocks of all-gathers that were to be kept. NULL: this
     * schedule confirms in `delivered`. */
    void (*finished)(struct nb_coll_comm *comm, const struct nb_coll_req *win);
};

/* Choose the schedule of the operation that begins with this window. Each node chooses by itself, from shared
 * facts. Messages carry the choice, so a receiver detects a difference. */
const struct nb_schedule_ops *nb_schedule_choose(const struct nb_coll_comm *comm,
                                                 const struct nb_coll_req *win);

/* ---- confirmations of all-gathers (confirm.c) -------------------------------------------------------- */

/* Create comm->confirms for the nodes and grid of a communicator. Return 0 or -ENOMEM. nb_confirms_destroy
 * also accepts a half-created or missing state. */
int nb_confirms_create(struct nb_coll_comm *comm);
void nb_confirms_destroy(struct nb_coll_comm *comm);
/* Return true while nodes wait for `peer`, a neighbor, to report on an all-gather that other nodes of its row
 * have reported. */
bool nb_confirm_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);

/* Handle CONFIRM from `peer`, about this node's block. Return 0, or < 0 when the communicator has failed. */
int nb_confirm_received(struct nb_coll_comm *comm, const struct nb_peer *peer, const struct nb_ctl *ctl);

/* Handle COLUMN from `peer`, a node of the row, which has the blocks of this column. Return 0, or < 0 when
 * the communicator has failed. */
int nb_confirm_column_received(struct nb_coll_comm *comm, const struct nb_peer *peer,
                               const struct nb_ctl *ctl);

#endif
