/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a grid (grid.h), where nodes are connected along rows and columns only, for all functions.
 *
 * The part of a window that lies in one block is cut into pieces, one for each column but the owner's: the
 * owner gets all of them in the end, and would get twice as much as the others if it had to sum one, too. An
 * all-reduce's window is cut into pieces that go round over the columns, and over rows as far as they are
 * long enough.
 *
 * Sums. In every row, all send their values of a piece to the node of the row that is in the piece's column.
 * In the row of the block's owner that node finishes the sum; those of the other rows send it theirs, with 8
 * bits, along the column. It adds up its row's values, the other rows' sums and its own in one pass, and
 * sends what comes of it, coded as in two hops, to the owner, which adds its own values. An all-reduce's
 * pieces are finished by their owners, who send them along their columns, and they are forwarded along the
 * rows as they are. So a node sends about what it does in two hops, and twice (rows - 1) / columns of that
 * along its column.
 *
 *     rows            columns          rows
 *     values, 4 bits  sums, 8 bits     sums, coded as the policy says
 *     ------------->  ------------->   ------------->
 *
 * All-gathers go the other way: the owner sends a piece to each of its row, who forward it along their
 * columns and to the others of the row; who gets it along the column forwards it along its row. It is coded
 * once.
 *
 * Order. What a node sums it does in the order of windows, with one cursor (reduce.c); what it forwards along
 * its row, as well, with another (here): an all-reduce's results come back while newer pieces are summed.
 * Where both put something into the same ring, it is in the order of windows, too: a finished sum waits until
 * all older windows are forwarded, an all-reduce's result until all older gathers are, and nothing is
 * forwarded before all older sums are done. The classes of a row and of a column feed each other in one
 * direction only: contributions of the row, of the column, results of the column, of the row; and each of
 * them carries messages in the order of windows. So what internal.h tells of circles holds here.
 *
 * The error of each code is carried on by the node that makes it, at the piece's place: nobody codes a piece
 * twice.
 */
#include <errno.h>

#include "coll/internal.h"

/* An all-reduce's shares of a column are not shorter than this when there are several. */
#define SHORT 65536u

/* ---- the cut of all-reduces (others: cut.c) ----------------------------------------------------------- */

/* An all-reduce's window has as many shares for each column as rows, or fewer where these would be short:
 * messages cost time, and a node that owns a piece gets no more than some tenths more than one that owns
 * none. */
static int shares_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const uint64_t columns = (uint64_t)comm->grid.columns, most = win->bytes / (columns * SHORT);

    return (int)(columns * (most < 1 ? 1 : nb_min64(most, (uint64_t)comm->grid.rows)));
}

/* Share n is of column n % columns; its owner is in a row that depends on nothing but n, so that the same
 * places are coded by the same nodes in every step, and errors are carried to where they came from. Until
 * then the piece's owner is n. Returns 1. */
static int give_owner(const struct nb_coll_comm *comm, struct nb_piece *piece)
{
    const struct nb_grid g = comm->grid;
    int column = piece->owner % g.columns, row = (piece->owner / g.columns + column) % g.rows;

    piece->owner = nb_grid_node(g, row, column);
    return 1;
}

/* Next piece of an all-reduce that goes through `column`: pieces are numbered as their shares are, over and
 * over. */
static int next_in_stream(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int column, uint64_t from,
                          struct nb_piece *piece)
{
    return nb_stream_next(comm, win, shares_of(comm, win), comm->grid.columns, column, from, piece) &&
           give_owner(comm, piece);
}

/* ---- the schedule ----------------------------------------------------------------------------------- */

/* Next piece that goes through the column of `node`, of a reduce-scatter or all-gather but of this node's
 * block. */
static int in_column(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                     struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return next_in_stream(comm, win, nb_grid_column(comm->grid, node), from, piece);
    return nb_cut_through(comm, win, node, from, piece);
}

static int piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return nb_stream_piece(comm, win, shares_of(comm, win), off, piece) && give_owner(comm, piece);
    return nb_cut_piece_at(comm, win, off, piece);
}

static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    if (win->op->func == NB_FUNC_ALL_GATHER)
        nb_gather_take_notes(comm, win->op);
    return win->op->func == NB_FUNC_REDUCE_SCATTER ? nb_cut_sums(comm, win) : win->bytes;
}

/* Values go along rows. An all-gather's are sent by the scatter cursor, and what goes along columns, by those
 * of sums and forwards. */
static int next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_GATHER || nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    return in_column(comm, win, peer, from, piece);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_piece *piece)
{
    return win->op->func != NB_FUNC_ALL_GATHER && in_column(comm, win, comm->rank, from, piece);
}

static int next_owned(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                      struct nb_piece *piece)
{
    if (win->op->func != NB_FUNC_ALL_REDUCE)
        return nb_cut_of_owner(comm, win, owner, from, piece);
    for (; in_column(comm, win, owner, from, piece); from = piece->off + piece->len)
        if (piece->owner == owner)
            return 1;
    return 0;
}

/* Results come along rows; those along columns are not for this node alone (nb_two_level_forward). */
static int next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                       struct nb_piece *piece)
{
    if (nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    return win->op->func == NB_FUNC_REDUCE_SCATTER ? nb_cut_own_through(comm, win, peer, from, piece)
                                                   : in_column(comm, win, peer, from, piece);
}

int nb_two_level_next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_piece *piece)
{
    return win->op->func != NB_FUNC_REDUCE_SCATTER && in_column(comm, win, comm->rank, from, piece);
}

const struct nb_schedule_ops nb_schedule_two_level = {
    .name = "two-level",
    .flags = NB_MSG_TWO_LEVEL,
    .begin = begin,
    .next_send = next_send,
    .next_reduce = next_reduce,
    .next_owned = next_owned,
    .next_result = next_result,
    .piece_at = piece_at,
};

/* ---- forwarding along the row ----------------------------------------------------------------------- */

/* Where a piece comes from that this node forwards, or NULL: it is a result of its own. */
static struct nb_rx *source_of(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                               struct nb_peer **peer)
{
    int from = op->func == NB_FUNC_ALL_REDUCE || piece->relay == comm->rank ? piece->owner : piece->relay;

    if (from == comm->rank)
        return NULL;
    *peer = &comm->peer[from];
    return &(*peer)->rx[nb_grid_same_row(comm->grid, from, comm->rank) ? NB_CLASS_CONTRIB : NB_CLASS_RESULT];
}

int nb_two_level_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                           const struct nb_peer *peer)
{
    struct nb_piece piece;
    struct nb_peer *source = NULL;
    const struct nb_rx *rx;

    if (!nb_two_level_next_forward(comm, win, from, &piece))
        return 0;
    rx = source_of(comm, win->op, &piece, &source);
    return rx && source == peer && rx->taken == rx->arrived;
}

/* A result of this node's own, which has gone along the column: to the row, now that it is its turn. */
static int emit(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece)
{
    struct nb_pool *pool = &comm->result;
    struct nb_shared *unit = &pool->unit[comm->emit_next % pool->slots];
    int ret;

    if (comm->emit_next == pool->tail)
        return 0;
    if (unit->opno != win->op->opno || unit->off != piece->off)
        return nb_comm_error(comm, -EPROTO, "all_reduce results are out of step (%llu at %llu)",
                             (unsigned long long)unit->opno, (unsigned long long)unit->off);
    ret = nb_forward_room(comm, win->op, piece);
    if (ret <= 0)
        return ret;
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = nb_near_behind(comm, i);
        if (nb_forwards_to(comm, win->op, piece, peer))
            nb_tx_reserve(&peer->tx[NB_CLASS_RESULT], unit);
    }
    comm->emit_next++;
    nb_window_received(comm, win, piece->len);
    return 1;
}

int nb_two_level_forward(struct nb_coll_comm *comm)
{
    while (comm->forward_seq < comm->begun) {
        struct nb_coll_req *win = nb_window(comm, comm->forward_seq);
        struct nb_piece piece;
        struct nb_peer *from = NULL;
        struct nb_rx *rx;
        int ret;

        if (comm->forward_seq < comm->oldest) { /* finished without a piece of ours, perhaps used again */
            comm->forward_seq = comm->oldest;
            comm->forward_started = 0;
            continue;
        }
        if (!comm->forward_started) {
            comm->forward_started = 1;
            comm->forward_off = win->off;
        }
        if (!nb_two_level_next_forward(comm, win, comm->forward_off, &piece)) {
            comm->forward_seq++;
            comm->forward_started = 0;
            continue;
        }
        if (nb_max64(comm->red_seq, comm->oldest) < comm->forward_seq) /* older sums have to be done */
            return 0;
        rx = source_of(comm, win->op, &piece, &from);
        ret = rx ? nb_forward(comm, win, &piece, from, rx) : emit(comm, win, &piece);
        if (ret > 0)
            comm->forward_off = piece.off + piece.len;
        return ret;
    }
    return 0;
}

/* ---- the other cursor ------------------------------------------------------------------------------- */

int nb_two_level_may_sum(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t forwarded = nb_max64(comm->forward_seq, comm->oldest);

    return forwarded >= (win->op->func == NB_FUNC_ALL_REDUCE ? win->after_gather : win->seq);
}
