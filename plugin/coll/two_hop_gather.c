/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather in two hops. The part of a window that lies in one block is cut into a piece for each of the
 * other nodes; its owner sends every node one piece (CONTRIB), and that node forwards it to the rest (RESULT)
 * as it is: coded bytes are never coded again. So each node's link carries the window about once, where the
 * owner's would carry it N-1 times.
 *
 * Order. The owner encodes and sends its pieces in order, with the scatter cursor: a reference is written
 * from front to back. A node forwards in the order of windows, with the cursor that its sums have, so that
 * everything it sends as RESULT is in that order; it forwards from the slot in which the piece arrived, which
 * is free again when the last receiver has taken it. A piece is delivered here when it is forwarded: so a
 * finished window owes nobody anything. Pieces of a block reach a receiver by several ways and in no order
 * between these; that a block is whole is known when the windows up to its end are finished.
 */
#include <errno.h>
#include <string.h>

#include "coll/internal.h"

/* ---- the schedule ----------------------------------------------------------------------------------- */

void nb_gather_take_notes(struct nb_coll_comm *comm, struct nb_op *op)
{
    if (op->keep)
        return;
    op->keep = comm->op_bits + (op->opno % NB_OPS) * 2 * comm->op_words;
    op->lost = op->keep + comm->op_words;
    memset(op->keep, 0, 2 * comm->op_words * sizeof(*op->keep));
}

static uint64_t two_hop_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    nb_gather_take_notes(comm, win->op);
    return win->bytes;
}

static int two_hop_next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                             uint64_t from, struct nb_piece *piece)
{
    (void)comm, (void)win, (void)peer, (void)from, (void)piece;
    return 0; /* the scatter cursor sends them */
}

static int two_hop_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                               struct nb_piece *piece)
{
    return nb_cut_through(comm, win, comm->rank, from, piece);
}

const struct nb_schedule_ops nb_schedule_two_hop_gather = {
    .name = "two-hop",
    .flags = NB_MSG_TWO_HOP,
    .begin = two_hop_begin,
    .next_send = two_hop_next_send,
    .next_reduce = two_hop_next_reduce,
    .next_owned = nb_cut_of_owner,
    .next_result = nb_cut_through,
    .piece_at = nb_cut_piece_at,
};

/* ---- first hop -------------------------------------------------------------------------------------- */

int nb_peer_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls, const struct nb_op *op)
{
    if (!peer->gone && !peer->tx[cls].closed)
        return 0;
    nb_comm_error(comm, -ECONNRESET, "%s has closed its communicator but %s %llu needs it", peer->name,
                  nb_func_name(op->func), (unsigned long long)op->opno);
    return 1;
}

int nb_two_hop_scatter(struct nb_coll_comm *comm)
{
    int moved = 0;

    while (comm->scatter_seq < comm->begun) {
        struct nb_coll_req *win = nb_window(comm, comm->scatter_seq);
        struct nb_piece piece;
        struct nb_peer *peer;

        if (!comm->scatter_started) {
            comm->scatter_started = 1;
            comm->scatter_off = win->off;
        }
        if (!nb_is_scattered(win->op) ||
            !win->op->schedule->next_owned(comm, win, comm->rank, comm->scatter_off, &piece)) {
            comm->scatter_seq++;
            comm->scatter_started = 0;
            nb_window_sent(comm, win);
            moved = 1;
            continue;
        }
        peer = &comm->peer[piece.relay];
        if (nb_peer_left(comm, peer, NB_CLASS_CONTRIB, win->op))
            return -1;
        /* What older windows have for this node goes first. */
        if (peer->tx_seq < comm->scatter_seq)
            break;
        if (!nb_tx_buffer(&peer->tx[NB_CLASS_CONTRIB]) || !nb_gather_can_send(comm, win->op))
            break;
        if (nb_gather_send(comm, win, &piece, &peer->tx[NB_CLASS_CONTRIB], NULL) < 0)
            return -1;
        comm->scatter_off = piece.off + piece.len;
        moved = 1;
    }
    return moved;
}

/* ---- second hop ------------------------------------------------------------------------------------- */

void nb_two_hop_note(struct nb_op *op, int owner, const struct nb_msg *m, int kept)
{
    uint64_t bit = UINT64_C(1) << (owner % 64);

    if (m->flags & NB_MSG_KEEP)
        op->keep[owner / 64] |= bit;
    if (!kept)
        op->lost[owner / 64] |= bit;
}

int nb_two_hop_forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece)
{
    struct nb_peer *owner = &comm->peer[piece->owner];

    return nb_forward(comm, win, piece, owner, &owner->rx[NB_CLASS_CONTRIB]);
}

void nb_two_hop_finished(struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const struct nb_op *op = win->op;

    if (nb_on_grid(comm)) {
        if (win->off + win->bytes == op->block * (uint64_t)comm->nranks)
            nb_confirm_columns(comm, op);
        return;
    }
    for (uint64_t r = win->off / op->block; (r + 1) * op->block <= win->off + win->bytes; r++) {
        struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = op->opno, .b = !(op->lost[r / 64] >> (r % 64) & 1), .c = 1};
        if (r != (uint64_t)comm->rank && (op->keep[r / 64] >> (r % 64) & 1))
            nb_control(comm, &comm->peer[r], &ctl);
    }
}
