/* SPDX-License-Identifier: Apache-2.0 */
/* What schedules share: the cuts of a window, and the confirmations of all-gathers. Private to this room. */
#ifndef NIBBLE_COLL_SCHEDULE_CUT_H
#define NIBBLE_COLL_SCHEDULE_CUT_H

#include <stdint.h>

#include "coll/schedule/schedule.h"

extern const struct nb_schedule_ops nb_schedule_direct, nb_schedule_two_hop_gather,
    nb_schedule_two_hop_reduce, nb_schedule_two_level;

/* What choosers share: NCCL has at most this many steps of an operation in flight. */
#define NB_SCHEDULE_STEPS 8u

/* ---- cuts of windows --------------------------------------------------------------------------------- */

/* Cuts of windows that schedules share; pure functions of the window and what is the same on all nodes. */

/* Segments of an all-reduce's window that is cut into so many shares, as in nb_schedule_ops: that at `off`;
 * the next whose number leaves `residue` when divided by `modulus`. Shares go round over the segments; the
 * owner that is set is the share's number. */
int nb_stream_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares,
                      uint64_t off, struct nb_segment *segment);
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment);

/* As in nb_schedule_ops, for reduce-scatters and all-gathers that go in two hops or levels. */
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
/* 1 when segments of a window that is cut into one for each of the others are long enough to be worth a
 * second hop. */
int nb_cut_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* Bytes of a reduce-scatter's window that end at this node: of its block, and what it sums for others. */
uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* ---- confirmations ----------------------------------------------------------------------------------- */

/*
 * Confirmations of all-gathers. An owner may use what it has sent as a reference once all nodes have
 * confirmed its block (state/reference.h). In a full mesh each node tells the owner (CONFIRM).
 *
 * On a grid they are aggregated: at the end of an all-gather a node tells each of its row that it has the
 * blocks of that one's column (COLUMN), and a node that has heard all of its row tells the owners of its
 * column (CONFIRM, for a row). So an owner receives one message for each row, and no connection carries more
 * than one for an operation. What is known of an operation at the node in the owners' column:
 *
 *              COLUMN of one of the row,                the last one of the row:
 *              or the own end                           CONFIRM to the owners
 *     nothing ----------------------------> some of row ------------------------> nothing
 *
 * While there is such an operation the node does not leave: others of its row may have to ask an owner
 * through it.
 *
 * For the engine thread. Functions return 0, or < 0 when the communicator has failed.
 */

/* On a grid: nodes of this row that have taken over the blocks of this column. */
struct nb_confirm {
    uint64_t opno;
    uint32_t nodes;   /* 0: nothing is known yet */
    uint64_t told[2]; /* a bit for each of them, by its column */
    uint64_t rows[2],
        lost[2]; /* a bit for each owner, by its row: something was to be kept; some node could not */
};

/* What a communicator keeps of confirmations. */
struct nb_confirms {
    struct nb_confirm *op; /* [NB_OPS], where there is more than one row */
    unsigned words;        /* of each operation's `keep`, and of its `lost` */
    uint64_t *bits;        /* [NB_OPS][2][words] */
};

/* In a full mesh: `owner`'s block of all-gather `opno` was taken over whole; kept: what was to be kept could
 * be. */
int nb_confirm_block(struct nb_coll_comm *comm, struct nb_peer *owner, uint64_t opno, int kept);
/* On a grid: all windows of an all-gather are finished here; tell those whose blocks were to be kept. */
int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op);

/* ---- blocks whose segments are forwarded ------------------------------------------------------------- */

/*
 * What has become of each block of an all-gather whose segments are forwarded: a bit for each owner says that
 * some of its block was to be kept as a reference, another that some could not be. Segments of a block arrive
 * by several routes, in no order between these, so that only the end of windows tells that a block is whole.
 * For the engine thread.
 */

/* The operation begins: get its bits, all clear. */
void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op);
/* As in the schedule's table: a segment of `owner`'s block was delivered; kept: as its message wished.
 * Returns 0. */
int nb_gather_note(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner, const struct nb_msg *m,
                   int kept);
/* Likewise: all windows up to and with `win` are finished: confirm the blocks of an all-gather that end in it
 * to their owners, with which this node is connected. */
void nb_gather_confirm_blocks(struct nb_coll_comm *comm, const struct nb_coll_req *win);

#endif
