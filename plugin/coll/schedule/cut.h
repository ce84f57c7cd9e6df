/* SPDX-License-Identifier: Apache-2.0 */
/* What schedules share: the cuts of a window, and confirmations of all-gathers. Private to this folder. */
#ifndef NIBBLE_COLL_SCHEDULE_CUT_H
#define NIBBLE_COLL_SCHEDULE_CUT_H

#include <stdint.h>

#include "coll/comm/comm.h"
#include "coll/schedule/schedule.h"

extern const struct nb_schedule_ops nb_schedule_direct, nb_schedule_two_hop_gather,
    nb_schedule_two_hop_reduce, nb_schedule_two_level;

/* Steps of an operation that NCCL has in flight at most. */
#define NB_SCHEDULE_STEPS 8u

/* ---- cuts of windows --------------------------------------------------------------------------------- */

/* Cuts of windows: pure functions of the window and of facts that all nodes share. */

/* Segments of an all-reduce's window in `shares` shares, which alternate over the segments: the segment at
 * `off`, and the next one whose number is `residue` modulo `modulus`. The owner of a segment is set to its
 * share. */
int nb_stream_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares,
                      uint64_t off, struct nb_segment *segment);
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment);

/* Return the segment at `off`, as in nb_schedule_ops, of reduce-scatters and all-gathers in two hops or
 * levels. */
int nb_cut_segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment);
/* Next segment of `owner`'s block. */
int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_segment *segment);
/* Next segment of another node's block that goes through the column of `node` (in two hops: through
 * `node`). */
int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_segment *segment);
/* Next segment of this node's block that goes through it. */
int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node,
                       uint64_t from, struct nb_segment *segment);
/* True when a window's segments, one for each other node, are long enough for a second hop. */
int nb_cut_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* Return the bytes of a reduce-scatter's window that end at this node: those of its block, and those that it
 * sums for others. */
uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* ---- confirmations ----------------------------------------------------------------------------------- */

/*
 * Confirmations of all-gathers. An owner may use a block that it has sent as a reference once all nodes have
 * confirmed it (state/reference.h). In a full mesh each node sends CONFIRM to the owner.
 *
 * A grid aggregates them. At the end of an all-gather a node tells each node of its row that it has the
 * blocks of that one's column (COLUMN). A node that has heard of its whole row sends CONFIRM to the owners of
 * its column, for the row. So an owner receives one message for each row, and a connection carries at most
 * one for an operation. The state of an operation at the node in the owners' column:
 *
 *              COLUMN of one of the row,                the last one of the row:
 *              or the own end                           CONFIRM to the owners
 *     none ------------------------------> some of row ------------------------> none
 *
 * Until then the node stays connected: others of its row may have to ask an owner through it.
 *
 * Functions return 0, or < 0 when the communicator has failed.
 */

/* Grid: the nodes of this row that have the blocks of this column. */
struct nb_confirm {
    uint64_t opno;
    uint32_t nodes;       /* 0: no report yet */
    uint64_t reported[2]; /* a bit for each, by column */
    uint64_t rows[2],
        lost[2]; /* a bit for each owner, by row: some segment was to be kept; some node could not keep it */
};

/* State of a communicator. */
struct nb_confirms {
    struct nb_confirm *op; /* [NB_OPS], where there is more than one row */
    unsigned words;        /* of each operation's `keep`, and of its `lost` */
    uint64_t *bits;        /* [NB_OPS][2][words] */
};

/* Full mesh: confirm `owner`'s block of all-gather `opno`. kept: all of it that was to be kept could be. */
int nb_confirm_block(struct nb_coll_comm *comm, struct nb_peer *owner, uint64_t opno, int kept);
/* Grid: all windows of an all-gather are done here. Report the blocks that were to be kept. */
int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op);

/* ---- blocks whose segments are forwarded ------------------------------------------------------------- */

/* Blocks whose segments are forwarded. A bit for each owner says that segments of its block were to be kept
 * as a reference, another one that some could not be. Segments arrive by several routes in any order, so a
 * block is complete when all windows up to its end are done. */

/* Begin an operation: clear its bits. */
void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op);
/* `delivered` of a schedule's table. Returns 0. */
int nb_gather_note(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner, const struct nb_msg *m,
                   int kept);
/* `finished` of a schedule's table: confirm the blocks that end in this window to their owners. */
void nb_gather_confirm_blocks(struct nb_coll_comm *comm, const struct nb_coll_req *win);

#endif
