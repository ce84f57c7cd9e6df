/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between "which segment goes where" (a schedule) and "how it gets there" (everything else). A
 * schedule is one constant table of pure functions over the cut of a window, and a line in the list of
 * schedule.c; docs/adding.md tells how to add one. Only schedules with what they share (cut.h, schedule.h),
 * and what connects nodes (comm/grid.h, connect/setup.c, flow/staging.c, connect/mesh.c, connect/vote.c,
 * connect/vote.c, connect/connect.c, decide/reckoning.c) or routes between them (comm/control.c), know of
 * rows and columns.
 *
 * What can become of a segment, and who asks the table for it:
 *
 *   sums         next_send: values go to the node that sums the segment (flow/send.c, CONTRIB)
 *                next_reduce: that node waits for all who contribute and sums (flow/reduce.c). The sum ends there,
 *                or goes
 *                  - to its finisher (segment.relay, else segment.owner), if that is another node (CONTRIB);
 *                  - from the finisher to the owner, which adds its own values (reduce-scatter, RESULT);
 *                  - from the finisher to all of results_to, and, by next_forward, on (all-reduce, RESULT)
 *   all-gathers  next_send: a segment of the own block goes to every peer (flow/send.c, CONTRIB), or
 *                next_first_hop: to its relay only (flow/gather_send.c, CONTRIB)
 *                next_forward: what arrived of forward_from is delivered and goes on to forwards_to
 *                (flow/forward.c, RESULT)
 *   both         next_result: what a peer sends as RESULT, in its order (flow/receive.c)
 *
 * Segments are enumerated in the same order on every node; `from` is where the search starts, `peer` a rank.
 * Unless said otherwise functions named next_ return 1 and *segment, or 0 when the window has none left. All
 * are for the engine thread.
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
    uint16_t flags; /* those of NB_MSG_ROUTE that every data message of an operation has */
    /* 1 when the operation that begins with this window takes this schedule. Depends on nothing but what is
     * the same on all nodes: settings, number of nodes, function, type, bytes per rank, length of the
     * window. */
    int (*takes)(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
    /* Called once, when the engine dequeues the window: bytes to be delivered here. */
    uint64_t (*begin)(struct nb_coll_comm *comm, struct nb_coll_req *win);

    /* The segment that starts at `off`. */
    int (*segment_at)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment);
    /* Next segment this node sends to `peer` as CONTRIB. */
    int (*next_send)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_segment *segment);
    /* All-gathers: next segment of the own block that goes to its relay alone. NULL: none does. */
    int (*next_first_hop)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                          struct nb_segment *segment);
    /* Next segment this node sums. */
    int (*next_reduce)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_segment *segment);
    /* Next segment of an all-gather or all-reduce that this node forwards, or just delivers in the order of
     * windows; own results of all-reduces included. NULL: it delivers all-gathers as they arrive from their
     * owners. */
    int (*next_forward)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment);
    /* Next segment that this node gets from `peer` as RESULT, and does not forward. */
    int (*next_result)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                       uint64_t from, struct nb_segment *segment);

    /* 1 when node `rank`, with which this one is connected, sends it something for its sum of the segment. */
    int (*contributes)(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank);
    /* 1 when this node sends values to be summed to the peer. NULL: to all that it is connected with. */
    int (*values_to)(const struct nb_coll_comm *comm, const struct nb_peer *peer);
    /* 1 when an all-reduce's result goes to the peer as soon as there is one; to the others it is forwarded,
     * and delivered here then. NULL: to all. */
    int (*results_to)(const struct nb_coll_comm *comm, const struct nb_peer *peer);
    /* With next_forward: the ring from which the segment comes, and *peer, whose it is; NULL: it is a result
     * of this node. */
    struct nb_rx *(*forward_from)(const struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_segment *segment, struct nb_peer **peer);
    /* With next_forward: 1 when this node sends the segment on to `peer`. */
    int (*forwards_to)(const struct nb_coll_comm *comm, const struct nb_op *op,
                       const struct nb_segment *segment, const struct nb_peer *peer);
    /* 1 when the window waits for something else of the peer than a sum, a forward or a result. NULL:
     * never. */
    int (*waits_for)(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                     const struct nb_peer *peer);

    /* All-gathers: a segment of `owner`'s block was delivered; kept: as its message wished. 0, or < 0 when
     * the communicator has failed. */
    int (*delivered)(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner,
                     const struct nb_msg *m, int kept);
    /* All windows up to and with `win` are finished: all-gathers confirm what was to be kept. NULL: nothing
     * to do. */
    void (*finished)(struct nb_coll_comm *comm, const struct nb_coll_req *win);
};

/* The schedule of the operation that begins with this window. Nodes do not agree on it by message: each
 * decides for itself from facts that are the same everywhere, and messages say what was decided, so that a
 * difference is found. */
const struct nb_schedule_ops *nb_schedule_choose(const struct nb_coll_comm *comm,
                                                 const struct nb_coll_req *win);

/* ---- confirmations of all-gathers (confirm.c) ---------------------------------------------------------- */

/* Make comm->confirms, for the communicator's nodes and grid: 0 or -ENOMEM. destroy: also of what was half made, or
 * not. */
int nb_confirms_create(struct nb_coll_comm *comm);
void nb_confirms_destroy(struct nb_coll_comm *comm);
/* Others wait for a message from `peer`, a neighbor, about an all-gather that some of its row have taken over. */
bool nb_confirm_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);

/* CONFIRM has come from `peer`: of this node's block. */
int nb_confirm_received(struct nb_coll_comm *comm, const struct nb_peer *peer, const struct nb_ctl *ctl);

/* COLUMN has come from `peer`, a node of the row, which has the blocks of this column, this node's among
 * them. */
int nb_confirm_column_received(struct nb_coll_comm *comm, const struct nb_peer *peer,
                               const struct nb_ctl *ctl);

#endif
