/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a grid (comm/grid.h), where nodes are connected along rows and columns only, for all
 * functions.
 *
 * The part of a window that lies in one block is cut into segments, one for each column except the owner's.
 * The owner gets all of them in the end. It would get twice as much as the other nodes if it had to sum one,
 * too. An all-reduce's segments go round over the columns, and over rows as far as segments are long enough.
 *
 * Sums. In every row, all nodes send their values of a segment to the row's node in the segment's column. In
 * the owner's row this node is the finisher of the sum. The column's nodes in other rows send it their rows'
 * sums, with 8 bits, along the column. The finisher adds up its row's values, the other rows' sums and its
 * own values in one pass. It sends the sum, coded as in two hops, to the owner, which adds its own values. An
 * all-reduce's segments are finished by their owners. They send the results along their columns, and the
 * columns' nodes forward them unchanged along their rows. So a node sends about as much as in two hops, and
 * twice (rows - 1) / columns of that along its column.
 *
 *     rows            columns          rows
 *     values, 4 bits  sums, 8 bits     sums, coded as the policy says
 *     ------------->  ------------->   ------------->
 *
 * All-gathers go the other way. The owner codes a segment once and sends it to the node of its row that is
 * the relay. The relay forwards it along its column and to the other nodes of the row. A node that gets it
 * along the column forwards it along its own row.
 *
 * Order. Sums and forwards along the row are in the order that flow/internal.h explains: an all-reduce's
 * results come back while newer segments are summed. The classes of a row and of a column feed each other in
 * one direction only:
 *
 *     CONTRIB of the row -> CONTRIB of the column -> RESULT of the column -> RESULT of the row
 *
 * A finisher parks the values of its row until its column's sums come (flow/reduce.c). They keep their
 * buffers, as if they were still in their rings. Each class carries messages in the order of windows. No
 * message in a ring waits for a later class of this chain or, within its ring, for a newer window. So the
 * oldest unfinished segment of the group can always go on, and no two nodes deadlock.
 *
 * The node that codes a segment carries the code's error, at the segment's place. Each node codes a segment
 * at most once.
 */
#include "coll/schedule/cut.h"

/* Shortest share of a column, in bytes, when an all-reduce's window has several shares for a column. */
#define SHORT 65536u

/* ---- the cut of all-reduces (cut.c has the other cuts) --------------------------------------------- */

/* Return the number of shares of an all-reduce's window. There is a share for each row of each column, or
 * fewer where shares would be short, because messages cost time. A node that owns a segment gets at most some
 * tenths more than a node without one. */
static int shares_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const uint64_t columns = (uint64_t)comm->grid.columns, most = win->bytes / (columns * SHORT);

    return (int)(columns * (most < 1 ? 1 : nb_min64(most, (uint64_t)comm->grid.rows)));
}

/* Set the owner of a segment whose owner field holds its share's number n. Share n belongs to column n %
 * columns. The owner's row depends only on n. So the same nodes code the same places in every step, and
 * errors are carried to the places that they came from. Return 1. */
static int give_owner(const struct nb_coll_comm *comm, struct nb_segment *segment)
{
    const struct nb_grid g = comm->grid;
    int column = segment->owner % g.columns, row = (segment->owner / g.columns + column) % g.rows;

    segment->owner = nb_grid_node(g, row, column);
    return 1;
}

/* Find the next segment of an all-reduce that goes through `column`. Segments are numbered as their shares
 * are, over and over. */
static int next_in_stream(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int column,
                          uint64_t from, struct nb_segment *segment)
{
    return nb_stream_next(comm, win, shares_of(comm, win), comm->grid.columns, column, from, segment) &&
           give_owner(comm, segment);
}

/* ---- the schedule ----------------------------------------------------------------------------------- */

/* Find the next segment that goes through the column of `node`. Segments of this node's block are left out in
 * reduce-scatters and all-gathers. */
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

/* Values go along rows. The first-hop cursor sends an all-gather's segments. The cursors of sums and forwards
 * send along columns. */
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

/* Results come along rows. Nodes forward the results that come along columns. */
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

/* ---- roles of nodes -------------------------------------------------------------------------------- */

/* Take all operations: nodes of a grid are connected for this schedule only. */
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

/* All nodes of the row contribute except the owner, whose values come last. The column's other nodes send
 * their rows' sums to the finisher. */
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

/* Segments go to the other nodes of the row. The relay of an all-gather's segment, which has it from its
 * owner, also sends it along the column. */
static int forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op,
                       const struct nb_segment *segment, const struct nb_peer *peer)
{
    if (in_row(comm, peer))
        return peer->rank != segment->owner;
    return op->func == NB_FUNC_ALL_GATHER && segment->relay == comm->rank;
}

/* Confirm all blocks of an all-gather when its last window is finished. */
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
