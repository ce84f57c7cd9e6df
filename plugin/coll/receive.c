/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half: looks at the oldest message of every peer and does what it allows. Blocks of an all-gather
 * (take_gather.c) and results of an all-reduce are delivered as they come, for each peer on its own; a sum (reduce.c)
 * waits for the messages of all.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/task.h"

/* ---- finding the window of a message ---------------------------------------------------------------- */

static int ends_before(const struct nb_coll_req *win, const struct nb_msg *m)
{
    return win->op->opno < m->opno || (win->op->opno == m->opno && win->off + win->bytes <= m->offset);
}

int nb_msg_carries(const struct nb_op *op, const struct nb_piece *piece, const struct nb_msg *m)
{
    if (m->offset != piece->off)
        return 0;
    if (op->func != NB_FUNC_ALL_REDUCE)
        return m->bytes == piece->len;
    return m->bytes <= piece->len && m->bytes % op->value == 0;
}

/* Which schedule an operation takes follows from what all nodes know. */
int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m)
{
    if ((m->flags & NB_MSG_WAY) == op->schedule->flags)
        return 0;
    return nb_comm_error(comm, -EPROTO, "%s sent %s %llu %s, but here its schedule is %s", peer->name,
                         nb_func_name(op->func), (unsigned long long)op->opno,
                         m->flags & NB_MSG_TWO_HOP     ? "in two hops"
                         : m->flags & NB_MSG_TWO_LEVEL ? "in two levels"
                                                       : "in one hop",
                         op->schedule->name);
}

struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_piece *piece)
{
    struct nb_coll_req *win;

    for (;; (*seq)++) {
        if (*seq == comm->begun)
            return NULL;
        if (*seq < comm->oldest)
            continue; /* finished, perhaps used again */
        win = nb_window(comm, *seq);
        if (!ends_before(win, m))
            break;
    }
    if (win->op->opno == m->opno && win->op->func == m->func && nb_msg_check_schedule(comm, peer, win->op, m))
        return NULL;
    if (win->op->opno != m->opno || win->op->func != m->func || m->offset < win->off ||
        !win->op->schedule->piece_at(comm, win, m->offset, piece) || !nb_msg_carries(win->op, piece, m)) {
        nb_comm_error(comm, -EPROTO,
                      "%s sent %s %llu, %u bytes at %llu, which does not fit %s %llu, window of %llu bytes at %llu here",
                      peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                      (unsigned long long)m->offset, nb_func_name(win->op->func), (unsigned long long)win->op->opno,
                      (unsigned long long)win->bytes, (unsigned long long)win->off);
        return NULL;
    }
    return win;
}

int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op, const struct nb_msg *m)
{
    if (m->type == (uint8_t)op->type && m->op == (uint8_t)op->redop)
        return 0;
    return nb_comm_error(comm, -EPROTO, "%s sent %s %llu with type %u and reduction %u, but here it is %d and %d",
                         peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->type, m->op, (int)op->type,
                         (int)op->redop);
}

/* ---- results ----------------------------------------------------------------------------- */

/* A result has been decoded, or the own values were added to it. */
static int taken(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    nb_task_release_head(t);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot take the result of %s %llu at %llu from %s: %s",
                             nb_func_name(t->op->func), (unsigned long long)t->op->opno,
                             (unsigned long long)t->piece.off, t->peer->name, strerror((int)-result));
    return NB_TASK_OVER;
}

int nb_take_result(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_task *t)
{
    t->next = taken;
    t->delivers = t->piece.len;
    if (!nb_task_ask(comm, t)) {
        nb_task_drop(comm, t);
        return 0;
    }
    nb_task_hold_head(t, peer, &peer->rx[NB_CLASS_RESULT]);
    return nb_task_run(comm, t);
}

/* The result at the head of the peer's ring. What lies behind its values is padding. */
int nb_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win, const struct nb_piece *piece)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t;
    enum nb_dtype dtype = NB_F32;

    if (m->codec != NB_CODEC_RAW && (m->codec == NB_CODEC_ULP || nb_policy_dtype(win->op->type, &dtype)))
        return nb_comm_error(comm, -EBADMSG, "malformed result of %s %llu from %s: codec %u", nb_func_name(m->func),
                             (unsigned long long)m->opno, peer->name, m->codec);
    t = nb_task_new(comm, win, piece);
    if (!t)
        return 0;
    t->step = NB_STEP_SHOW;
    t->msg = *m;
    t->dtype = dtype;
    t->body = rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes;
    t->values = win->recv + (m->offset - win->off);
    t->bytes = m->bytes;
    return nb_take_result(comm, peer, t);
}

static int receive_result(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    struct nb_msg m;
    struct nb_piece piece, next;
    struct nb_coll_req *win;
    int ret;

    if (nb_on_grid(comm) && nb_grid_same_column(comm->grid, peer->rank, comm->rank))
        return 0; /* to be forwarded, too */
    if (!nb_rx_head(comm, peer, NB_CLASS_RESULT))
        return 0;
    m = rx->head;
    if (m.func != NB_FUNC_ALL_REDUCE && !(m.flags & NB_MSG_WAY))
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu", peer->name, nb_func_name(m.func),
                             (unsigned long long)m.opno);
    win = nb_find_window(comm, peer, &m, &peer->result_seq, &piece);
    if (!win)
        return 0;
    if (m.func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, win->op, &m))
        return -1;
    if (peer->result_win != peer->result_seq) {
        peer->result_win = peer->result_seq;
        peer->result_off = 0;
    }
    if (!win->op->schedule->next_result(comm, win, peer->rank, peer->result_off, &next) || next.off != piece.off)
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu at %llu that is not its next", peer->name,
                             nb_func_name(m.func), (unsigned long long)m.opno, (unsigned long long)m.offset);
    if (m.func == NB_FUNC_ALL_GATHER) {
        struct nb_peer *owner = &comm->peer[piece.owner];
        ret = nb_gather_can_take(comm, owner, &m) ? nb_gather_take(comm, owner, win, &piece, rx) : 0;
    } else {
        ret = m.func == NB_FUNC_REDUCE_SCATTER ? nb_two_hop_sum(comm, peer, win, &piece)
                                               : nb_deliver(comm, peer, win, &piece);
    }
    if (ret > 0)
        peer->result_off = piece.off + piece.len;
    return ret;
}

/* Sums and forwards, a few at a time: arrivals and departures of other pieces must not wait for a long row of them. */
static int work_for_others(struct nb_coll_comm *comm)
{
    const uint64_t at = comm->red_seq + comm->forward_seq;
    int moved = 0, ret = 0;

    for (int i = 0; i < 4 && (ret = nb_reduce_next(comm)) > 0; i++)
        moved = 1;
    for (int i = 0; i < 4 && ret >= 0 && nb_on_grid(comm) && (ret = nb_two_level_forward(comm)) > 0; i++)
        moved = 1;
    /* One of the two may have waited for the other to pass a window. */
    return ret < 0 ? ret : moved | (at != comm->red_seq + comm->forward_seq);
}

int nb_receive_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    for (int i = 0; i < comm->nnear; i++) {
        while ((ret = nb_gather_receive(comm, comm->near[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
        while ((ret = receive_result(comm, comm->near[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
    }
    ret = work_for_others(comm);
    return ret < 0 ? ret : moved | ret;
}
