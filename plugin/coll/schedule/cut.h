/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that schedules share: the cuts of a window, and confirmations of all-gathers. Private to this
 * folder. */
#ifndef NIBBLE_COLL_SCHEDULE_CUT_H
#define NIBBLE_COLL_SCHEDULE_CUT_H

#include <stdint.h>

#include "coll/comm/comm.h"
#include "coll/schedule/schedule.h"

extern const struct nb_schedule_ops nb_schedule_direct, nb_schedule_two_hop_gather,
    nb_schedule_two_hop_reduce, nb_schedule_two_level;

/* Largest number of an operation's steps that NCCL has in flight. */
#define NB_SCHEDULE_STEPS 8u

/* ---- cuts of windows --------------------------------------------------------------------------------- */

/* Cuts of windows: pure functions of the window and of facts that all nodes share. */

/* Find segments of an all-reduce's window in `shares` shares. The shares take turns: segment i belongs to
 * share i modulo `shares`. nb_stream_segment finds the segment at `off`. nb_stream_next finds the next
 * segment whose number is `residue` modulo `modulus`. Both set the segment's owner to its share. */
int nb_stream_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares,
                      uint64_t off, struct nb_segment *segment);
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment);

/* Find the segment at `off`, as segment_at of nb_schedule_ops does, for reduce-scatters and all-gathers in
 * two hops or two levels. */
int nb_cut_segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment);
/* Find the next segment of `owner`'s block. */
int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_segment *segment);
/* Find the next segment of another node's block that goes through the column of `node`. In two hops it goes
 * through `node` itself. */
int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_segment *segment);
/* Find the next segment of this node's block that goes through the column of `node`. */
int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node,
                       uint64_t from, struct nb_segment *segment);
/* Return true when a window's segments, one for each other node, are long enough for a second hop. */
int nb_cut_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* Return the bytes of a reduce-scatter's window that end at this node: the bytes of its own block, and the
 * bytes that it sums for other owners. */
uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* ---- confirmations ----------------------------------------------------------------------------------- */

/*
 * Confirmations of all-gathers. An owner may use a block that it has sent as a reference once all nodes have
 * confirmed it (state/reference.h). In a full mesh each node sends CONFIRM to the owner.
 *
 * A grid aggregates confirmations. At the end of an all-gather a node sends COLUMN to each node of its row:
 * it has the blocks of the receiver's column. A node that has received COLUMN from its whole row sends
 * CONFIRM to the owners of its column, for the row. So an owner receives one message for each row, and a
 * connection carries at most one message for an operation. The operation's state at the node in the owners'
 * column:
 *
 *              COLUMN from one node of the row,         the last one of the row:
 *              or the own end                           CONFIRM to the owners
 *     empty -----------------------------> some of row ------------------------> empty
 *
 * Until then the node stays connected: other nodes of its row may have to ask an owner through it.
 *
 * Functions return 0, or < 0 when the communicator has failed.
 */

/* On a grid: the nodes of this row that have the blocks of this column. */
struct nb_confirm {
    uint64_t opno;
    uint32_t nodes;       /* how many have reported. 0: the place is free */
    uint64_t reported[2]; /* a bit for each node, by column */
    uint64_t rows[2],
        lost[2]; /* a bit for each owner, by row. rows: a segment was to be kept. lost: some node could not
                    keep it */
};

/* State of a communicator. */
struct nb_confirms {
    struct nb_confirm *op; /* [NB_OPS], on grids with more than one row */
    unsigned words;        /* words of each operation's `keep`, and of its `lost` */
    uint64_t *bits;        /* [NB_OPS][2][words] */
};

/* Confirm `owner`'s block of all-gather `opno`, in a full mesh. kept: this node kept all segments of it that
 * it was asked to keep. */
int nb_confirm_block(struct nb_coll_comm *comm, struct nb_peer *owner, uint64_t opno, int kept);
/* Report the blocks that were to be kept, on a grid. Call when all windows of an all-gather are done here. */
int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op);

/* ---- blocks whose segments are forwarded ------------------------------------------------------------- */

/* Blocks whose segments are forwarded. Each owner has two bits: one says that segments of its block were to
 * be kept as a reference, the second one that a segment could not be kept. Segments arrive by several routes
 * in any order, so a block is complete when all windows up to its end are done. */

/* Begin an operation: clear its bits. */
void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op);
/* Implements `delivered` of a schedule's table. Returns 0. */
int nb_gather_note(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner, const struct nb_msg *m,
                   int kept);
/* Implements `finished` of a schedule's table: confirm the blocks that end in this window to their owners. */
void nb_gather_confirm_blocks(struct nb_coll_comm *comm, const struct nb_coll_req *win);

#endif
