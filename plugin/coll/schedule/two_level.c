/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a grid (comm/grid.h), where nodes are connected along rows and columns only, for all
 * functions.
 *
 * The part of a window that lies in one block is cut into segments, one for each column but the owner's: the
 * owner gets all of them in the end, and would get twice as much as the others if it had to sum one, too. An
 * all-reduce's window is cut into segments that go round over the columns, and over rows as far as they are
 * long enough.
 *
 * Sums. In every row, all send their values of a segment to the node of the row that is in the segment's
 * column. In the row of the block's owner that node finishes the sum; those of the other rows send it theirs,
 * with 8 bits, along the column. It adds up its row's values, the other rows' sums and its own in one pass,
 * and sends what comes of it, coded as in two hops, to the owner, which adds its own values. An all-reduce's
 * segments are finished by their owners, who send them along their columns, and they are forwarded along the
 * rows as they are. So a node sends about what it does in two hops, and twice (rows - 1) / columns of that
 * along its column.
 *
 *     rows            columns          rows
 *     values, 4 bits  sums, 8 bits     sums, coded as the policy says
 *     ------------->  ------------->   ------------->
 *
 * All-gathers go the other way: the owner sends a segment to each of its row, who forward it along their
 * columns and to the others of the row; who gets it along the column forwards it along its row. It is coded
 * once.
 *
 * Order. Sums and forwards along the row are in the order that flow/internal.h tells of: an all-reduce's
 * results come back while newer segments are summed. The classes of a row and of a column feed each other in
 * one direction only:
 *
 *     CONTRIB of the row -> CONTRIB of the column -> RESULT of the column -> RESULT of the row
 *
 * and each of them carries messages in the order of windows. Nothing in a ring waits for what comes later in
 * this chain, and in a ring nothing waits for a newer window; so the oldest unfinished segment of the group
 * can always go on, and no two nodes deadlock.
 *
 * The error of each code is carried on by the node that makes it, at the segment's place: nobody codes a
 * segment twice.
 */
#include "coll/schedule/cut.h"

/* An all-reduce's shares of a column are not shorter than this when there are several. */
#define SHORT 65536u

/* ---- the cut of all-reduces (others: cut.c) ----------------------------------------------------------- */

/* An all-reduce's window has as many shares for each column as rows, or fewer where these would be short:
 * messages cost time, and a node that owns a segment gets no more than some tenths more than one that owns
 * none. */
static int shares_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const uint64_t columns = (uint64_t)comm->grid.columns, most = win->bytes / (columns * SHORT);

    return (int)(columns * (most < 1 ? 1 : nb_min64(most, (uint64_t)comm->grid.rows)));
}

/* Share n is of column n % columns; its owner is in a row that depends on nothing but n, so that the same
 * places are coded by the same nodes in every step, and errors are carried to where they came from. Until
 * then the segment's owner is n. Returns 1. */
static int give_owner(const struct nb_coll_comm *comm, struct nb_segment *segment)
{
    const struct nb_grid g = comm->grid;
    int column = segment->owner % g.columns, row = (segment->owner / g.columns + column) % g.rows;

    segment->owner = nb_grid_node(g, row, column);
    return 1;
}

/* Next segment of an all-reduce that goes through `column`: segments are numbered as their shares are, over
 * and over. */
static int next_in_stream(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int column,
                          uint64_t from, struct nb_segment *segment)
{
    return nb_stream_next(comm, win, shares_of(comm, win), comm->grid.columns, column, from, segment) &&
           give_owner(comm, segment);
}

/* ---- the schedule ----------------------------------------------------------------------------------- */

/* Next segment that goes through the column of `node`, of a reduce-scatter or all-gather but of this node's
 * block. */
static int in_column(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                     struct nb_segment *segment)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return next_in_stream(comm, win, nb_grid_column(comm->grid, node), from, segment);
    return nb_cut_through(comm, win, node, from, segment);
}

static int segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return nb_stream_segment(comm, win, shares_of(comm, win), off, segment) && give_owner(comm, segment);
    return nb_cut_segment_at(comm, win, off, segment);
}

static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    if (win->op->func == NB_FUNC_ALL_GATHER)
        nb_gather_notes_begin(comm, win->op);
    return win->op->func == NB_FUNC_REDUCE_SCATTER ? nb_cut_sums(comm, win) : win->bytes;
}

/* Values go along rows. An all-gather's are sent by the first-hop cursor, and what goes along columns, by those
 * of sums and forwards. */
static int next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_segment *segment)
{
    if (win->op->func == NB_FUNC_ALL_GATHER || nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    return in_column(comm, win, peer, from, segment);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_segment *segment)
{
    return win->op->func != NB_FUNC_ALL_GATHER && in_column(comm, win, comm->rank, from, segment);
}

static int next_first_hop(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                          struct nb_segment *segment)
{
    return win->op->func == NB_FUNC_ALL_GATHER && nb_cut_of_owner(comm, win, comm->rank, from, segment);
}

/* Results come along rows; those along columns are forwarded. */
static int next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                       uint64_t from, struct nb_segment *segment)
{
    if (nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    return win->op->func == NB_FUNC_REDUCE_SCATTER ? nb_cut_own_through(comm, win, peer, from, segment)
                                                   : in_column(comm, win, peer, from, segment);
}

static int next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment)
{
    return win->op->func != NB_FUNC_REDUCE_SCATTER && in_column(comm, win, comm->rank, from, segment);
}

/* ---- who is who -------------------------------------------------------------------------------------- */

/* Nodes are not connected for any other. */
static int takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    (void)win;
    return nb_on_grid(comm);
}

static int in_row(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return nb_grid_same_row(comm->grid, peer->rank, comm->rank);
}

static int across(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return nb_grid_same_column(comm->grid, peer->rank, comm->rank);
}

/* All of the row but the owner, whose values come last; of the column, the other rows' sums go to the
 * finisher. */
static int contributes(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank)
{
    if (segment->relay >= 0 && rank == segment->owner)
        return 0;
    return !nb_grid_same_column(comm->grid, rank, comm->rank) || nb_segment_finisher(segment) == comm->rank;
}

static struct nb_rx *forward_from(const struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_segment *segment, struct nb_peer **peer)
{
    int from =
        op->func == NB_FUNC_ALL_REDUCE || segment->relay == comm->rank ? segment->owner : segment->relay;

    if (from == comm->rank)
        return NULL;
    *peer = &comm->peer[from];
    return &(*peer)->rx[in_row(comm, *peer) ? NB_CLASS_CONTRIB : NB_CLASS_RESULT];
}

/* To the others of the row, and, by who has it of its owner, of the column. */
static int forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op,
                       const struct nb_segment *segment, const struct nb_peer *peer)
{
    if (in_row(comm, peer))
        return peer->rank != segment->owner;
    return op->func == NB_FUNC_ALL_GATHER && segment->relay == comm->rank;
}

/* An all-gather's last window is finished: confirm all its blocks. */
static void finished(struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    if (win->op->func == NB_FUNC_ALL_GATHER &&
        win->off + win->bytes == win->op->block * (uint64_t)comm->nnodes)
        nb_confirm_columns(comm, win->op);
}

const struct nb_schedule_ops nb_schedule_two_level = {
    .name = "two-level",
    .flags = NB_MSG_TWO_LEVEL,
    .takes = takes,
    .begin = begin,
    .segment_at = segment_at,
    .next_send = next_send,
    .next_first_hop = next_first_hop,
    .next_reduce = next_reduce,
    .next_forward = next_forward,
    .next_result = next_result,
    .contributes = contributes,
    .values_to = in_row,
    .results_to = across,
    .forward_from = forward_from,
    .forwards_to = forwards_to,
    .delivered = nb_gather_note,
    .finished = finished,
};
