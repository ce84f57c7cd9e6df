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

/* Pieces of a block's part start at multiples of this from where it starts. */
#define QUANTUM 1024u
/* An all-reduce's shares of a column are not shorter than this when there are several. */
#define SHORT 65536u

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- the cut ---------------------------------------------------------------------------------------- */

/* The part of a window that lies in one block. */
struct part {
    uint64_t beg, end;
    uint64_t each; /* bytes of a piece */
    uint64_t base; /* short parts have fewer pieces than there are columns: go on where the part before stopped */
    uint64_t ways; /* columns that pieces go through: all but the owner's */
    int owner;
};

/* The part that holds `off`, which is not before the window: 1, or 0 behind its end. */
static int part_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct part *p)
{
    uint64_t block = win->op->block, owner = off / block, each, rounds;

    if (off >= win->off + win->bytes)
        return 0;
    p->owner = (int)owner;
    p->beg = max64(win->off, owner * block);
    p->end = min64(win->off + win->bytes, (owner + 1) * block);
    p->ways = (uint64_t)comm->grid.columns - 1;
    each = (p->end - p->beg + p->ways - 1) / p->ways;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    p->each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    p->base = (p->beg - owner * block) / p->each;
    return 1;
}

/* Where the first piece at or behind `from` begins that goes through `column`; at the part's end or behind
 * it: there is none. Ways are counted from the column behind the owner's. */
static uint64_t through(const struct nb_coll_comm *comm, const struct part *p, uint64_t from, int column)
{
    uint64_t columns = (uint64_t)comm->grid.columns, at = (from - p->beg) / p->each;
    uint64_t way = ((uint64_t)column + columns - (uint64_t)nb_grid_column(comm->grid, p->owner) - 1) % columns;
    uint64_t ahead = (way + p->ways - (p->base + at) % p->ways) % p->ways;

    if (way >= p->ways)
        return p->end;
    return ahead ? p->beg + (at + ahead) * p->each : from;
}

/* An all-reduce's window has as many shares for each column as rows, or fewer where these would be short:
 * messages cost time, and a node that owns a piece gets no more than some tenths more than one that owns
 * none. */
static int shares_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const uint64_t columns = (uint64_t)comm->grid.columns, most = win->bytes / (columns * SHORT);

    return (int)(columns * (most < 1 ? 1 : min64(most, (uint64_t)comm->grid.rows)));
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

static int piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct nb_piece *piece)
{
    const struct nb_grid g = comm->grid;
    uint64_t at;
    int column;
    struct part p;

    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return nb_stream_piece(comm, win, shares_of(comm, win), off, piece) && give_owner(comm, piece);
    if (!part_at(comm, win, off, &p))
        return 0;
    at = (off - p.beg) / p.each;
    column = (int)(((uint64_t)nb_grid_column(g, p.owner) + 1 + (p.base + at) % p.ways) % (uint64_t)g.columns);
    piece->off = off;
    piece->len = (uint32_t)(min64(p.beg + (at + 1) * p.each, p.end) - off);
    piece->owner = p.owner;
    piece->relay = nb_grid_node(g, nb_grid_row(g, p.owner), column);
    piece->first = (off - (uint64_t)p.owner * win->op->block) / win->op->value;
    piece->number = 0;
    piece->most = piece->len;
    piece->sure = 1;
    return 1;
}

/* The part has no piece that goes through `column`: where to look next. Blocks that a window covers whole are
 * cut alike, so that those in between can be left out: in windows of many small blocks every peer's cursor
 * would look at every one. */
static uint64_t behind(const struct nb_coll_comm *comm, const struct nb_coll_req *win, const struct part *p, int column)
{
    const uint64_t block = win->op->block, columns = (uint64_t)comm->grid.columns;
    const uint64_t last = (win->off + win->bytes - 1) / block * block; /* perhaps not whole */
    uint64_t way = ((uint64_t)column + columns - (uint64_t)nb_grid_column(comm->grid, p->owner) - 1) % columns;
    uint64_t pieces = min64((p->end - p->beg + p->each - 1) / p->each, p->ways), next;

    if (p->end - p->beg < block || way < pieces)
        return p->end;
    /* From one owner to the next the way to a column is one less. */
    next = p->beg + (way - pieces + 1) * block;
    return min64(next, max64(last, p->end));
}

/* Next piece that goes through `column`, of any block but that of `but`. */
static int in_column(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int column, int but, uint64_t from,
                     struct nb_piece *piece)
{
    struct part p;

    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return next_in_stream(comm, win, column, from, piece);
    from = max64(from, win->off);
    while (part_at(comm, win, from, &p)) {
        uint64_t at = p.owner == but ? p.end : through(comm, &p, from, column);
        if (at < p.end)
            return piece_at(comm, win, at, piece);
        from = p.owner == but ? p.end : behind(comm, win, &p, column);
    }
    return 0;
}

/* ---- the schedule ----------------------------------------------------------------------------------- */

static int column_of(const struct nb_coll_comm *comm, int rank)
{
    return nb_grid_column(comm->grid, rank);
}

/* Of a reduce-scatter, what ends here: the own block, and what is summed for others. */
static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    uint64_t own = (uint64_t)comm->rank * win->op->block, from = win->off, left, beg, end;
    struct nb_piece piece;

    if (win->op->func == NB_FUNC_ALL_GATHER)
        nb_gather_take_notes(comm, win->op);
    if (win->op->func != NB_FUNC_REDUCE_SCATTER)
        return win->bytes;
    beg = max64(own, win->off);
    end = min64(own + win->op->block, win->off + win->bytes);
    left = end > beg ? end - beg : 0;
    while (in_column(comm, win, column_of(comm, comm->rank), comm->rank, from, &piece)) {
        left += piece.len;
        from = piece.off + piece.len;
    }
    return left;
}

/* Values go along rows. The owner keeps its own of a reduce-scatter; an all-gather's are sent by the scatter
 * cursor, and what goes along columns, by those of sums and forwards. */
static int next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_GATHER || nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    return in_column(comm, win, column_of(comm, peer), comm->rank, from, piece);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_GATHER)
        return 0;
    return in_column(comm, win, column_of(comm, comm->rank), -1, from, piece);
}

static int next_owned(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                      struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE) {
        for (; in_column(comm, win, column_of(comm, owner), -1, from, piece); from = piece->off + piece->len)
            if (piece->owner == owner)
                return 1;
        return 0;
    }
    from = max64(max64(from, win->off), (uint64_t)owner * win->op->block);
    return piece_at(comm, win, from, piece) && piece->owner == owner;
}

/* Results come along rows; those along columns are not for this node alone (nb_two_level_forward). */
static int next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                       struct nb_piece *piece)
{
    struct part p;

    if (nb_grid_same_column(comm->grid, peer, comm->rank))
        return 0;
    if (win->op->func != NB_FUNC_REDUCE_SCATTER)
        return in_column(comm, win, column_of(comm, peer), comm->rank, from, piece);
    from = max64(max64(from, win->off), (uint64_t)comm->rank * win->op->block);
    if (!part_at(comm, win, from, &p) || p.owner != comm->rank)
        return 0;
    from = through(comm, &p, from, column_of(comm, peer));
    return from < p.end && piece_at(comm, win, from, piece);
}

int nb_two_level_next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_REDUCE_SCATTER)
        return 0;
    return in_column(comm, win, column_of(comm, comm->rank), -1, from, piece);
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

/* 1: the head of the ring is `piece`; 0: not yet; < 0: something else is there. */
static int has_arrived(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_rx *rx, const struct nb_op *op,
                       const struct nb_piece *piece)
{
    const struct nb_msg *m = &rx->head;

    if (!nb_rx_head(comm, peer, rx == &peer->rx[NB_CLASS_CONTRIB] ? NB_CLASS_CONTRIB : NB_CLASS_RESULT))
        return 0;
    if (m->opno != op->opno || m->func != op->func || !nb_msg_carries(op, piece, m))
        return nb_comm_error(comm, -EPROTO,
                             "%s sent %s %llu, %u bytes at %llu, codec %u, where %u bytes at %llu of %s %llu are to be "
                             "forwarded",
                             peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                             (unsigned long long)m->offset, m->codec, piece->len, (unsigned long long)piece->off,
                             nb_func_name(op->func), (unsigned long long)op->opno);
    if (nb_msg_check_schedule(comm, peer, op, m) ||
        (op->func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, op, m)))
        return -1;
    return 1;
}

/* 1 when this node sends the piece on to `peer`: to the others of its row, and, if it has it of its owner, of
 * its column. */
static int forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                       const struct nb_peer *peer)
{
    if (nb_grid_same_row(comm->grid, peer->rank, comm->rank))
        return peer->rank != piece->owner;
    return op->func == NB_FUNC_ALL_GATHER && piece->relay == comm->rank;
}

/* 1 when all that it is sent on to have room; 0, or < 0 when one of them has left. */
static int room(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece)
{
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
        if (!forwards_to(comm, op, piece, peer))
            continue;
        if (nb_peer_left(comm, peer, NB_CLASS_RESULT, op))
            return -1;
        if (!nb_tx_buffer(&peer->tx[NB_CLASS_RESULT]))
            return 0;
    }
    return 1;
}

static void count(struct nb_coll_comm *comm, const struct nb_msg *m, size_t len, int copies)
{
    nb_count_unit(comm, m->func, m, len, (uint64_t)copies);
    if (m->func == NB_FUNC_ALL_GATHER && m->codec != NB_CODEC_RAW && m->coded == 0)
        comm->stats.func[NB_FUNC_ALL_GATHER].unchanged_units += (uint64_t)copies;
}

/* From the slot in which it arrived, which is free again when the last receiver has taken it; and deliver it
 * here. So a finished window owes nobody anything. */
static int forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece, struct nb_peer *from,
                   struct nb_rx *rx)
{
    struct nb_peer *owner = &comm->peer[piece->owner];
    struct nb_shared *unit = &rx->unit[nb_rx_at(rx)];
    const struct nb_op *op = win->op;
    struct nb_msg head;
    size_t len;
    int ret = has_arrived(comm, from, rx, op, piece), copies = 0;

    if (ret > 0)
        ret = room(comm, op, piece);
    if (ret <= 0)
        return ret;
    head = rx->head;
    len = rx->len[nb_rx_at(rx)];
    if (head.func == NB_FUNC_ALL_GATHER && !nb_gather_can_take(comm, owner, &head))
        return 0;
    /* The slot is kept by a count of its own while it is taken, which may finish the window. */
    unit->len = len;
    unit->left = 1;
    ret = head.func == NB_FUNC_ALL_GATHER ? nb_gather_take(comm, owner, win, piece, rx)
                                          : nb_deliver(comm, from, win, piece);
    if (ret > 0) {
        for (int i = 0; i < comm->nnear; i++) {
            struct nb_peer *peer = nb_near_behind(comm, i);
            if (!forwards_to(comm, op, piece, peer))
                continue;
            unit->left++;
            copies++;
            nb_tx_forward(&peer->tx[NB_CLASS_RESULT], unit);
        }
        count(comm, &head, len, copies);
    }
    unit->left--;
    return ret;
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
    ret = room(comm, win->op, piece);
    if (ret <= 0)
        return ret;
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = nb_near_behind(comm, i);
        if (forwards_to(comm, win->op, piece, peer))
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
        if (max64(comm->red_seq, comm->oldest) < comm->forward_seq) /* older sums have to be done */
            return 0;
        rx = source_of(comm, win->op, &piece, &from);
        ret = rx ? forward(comm, win, &piece, from, rx) : emit(comm, win, &piece);
        if (ret > 0)
            comm->forward_off = piece.off + piece.len;
        return ret;
    }
    return 0;
}

/* ---- the other cursor ------------------------------------------------------------------------------- */

int nb_two_level_may_sum(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t forwarded = max64(comm->forward_seq, comm->oldest);

    return forwarded >= (win->op->func == NB_FUNC_ALL_REDUCE ? win->after_gather : win->seq);
}
