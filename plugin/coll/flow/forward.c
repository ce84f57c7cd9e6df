/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwards: this node sends a message on unchanged, from the message buffer in which it arrived, and delivers
 * it here. The message buffer is free when the last receiver has taken the message. So a window that is done
 * has no pending forwards. internal.h explains the order.
 */
#include <errno.h>

#include "coll/flow/internal.h"

/* ---- arrivals ---------------------------------------------------------------------------------------- */

/* Return 1 when the head of the ring is `segment`, 0 when it has not arrived yet, < 0 when another message is
 * there. */
static int has_arrived(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_rx *rx,
                       const struct nb_op *op, const struct nb_segment *segment)
{
    const struct nb_msg *m = &rx->head;

    if (!nb_rx_head(comm, peer, rx == &peer->rx[NB_CLASS_CONTRIB] ? NB_CLASS_CONTRIB : NB_CLASS_RESULT))
        return 0;
    if (m->opno < op->opno && m->func == NB_FUNC_ALL_GATHER && !(m->flags & NB_MSG_ROUTE))
        return 0; /* a block of an earlier all-gather, which waits for delivery */
    if (m->opno != op->opno || m->func != op->func || !nb_msg_carries(op, segment, m))
        return nb_comm_error(
            comm, -EPROTO,
            "%s sent %s %llu, %u bytes at %llu, codec %u, where %u bytes at %llu of %s %llu are to be "
            "forwarded",
            peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
            (unsigned long long)m->offset, m->codec, segment->len, (unsigned long long)segment->off,
            nb_func_name(op->func), (unsigned long long)op->opno);
    if (nb_msg_check_schedule(comm, peer, op, m) ||
        (op->func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, op, m)))
        return -1;
    return 1;
}

/* Return 1 when all receivers of the segment have room, else 0, or < 0 when a receiver has left. */
static int room(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_segment *segment)
{
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        if (!op->schedule->forwards_to(comm, op, segment, peer))
            continue;
        if (nb_peer_has_left(comm, peer, NB_CLASS_RESULT, op))
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

/* If the message at the head of `rx`, from `from`, is the segment, forward and deliver it. Return 1, 0 when
 * this has to wait, or < 0. */
static int forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                   struct nb_peer *from, struct nb_rx *rx)
{
    struct nb_peer *owner = &comm->peer[segment->owner];
    struct nb_shared *unit = &rx->shared[nb_rx_at(rx)];
    const struct nb_op *op = win->op;
    struct nb_msg head;
    size_t len;
    int ret = has_arrived(comm, from, rx, op, segment), copies = 0;

    if (ret > 0)
        ret = room(comm, op, segment);
    if (ret <= 0)
        return ret;
    head = rx->head;
    len = (size_t)rx->head_bytes + head.coded;
    if (head.func == NB_FUNC_ALL_GATHER && !nb_gather_can_take(comm, owner, &head))
        return 0;
    /* Hold the message buffer while the message is taken, which may complete the window. */
    unit->head = (size_t)rx->head_bytes;
    unit->len = len;
    unit->left = 1;
    ret = head.func == NB_FUNC_ALL_GATHER ? nb_gather_take(comm, owner, from, win, segment, rx)
                                          : nb_result_deliver(comm, from, win, segment);
    if (ret > 0) {
        for (int i = 0; i < comm->nneighbors; i++) {
            struct nb_peer *peer = nb_next_neighbor(comm, i);
            if (!op->schedule->forwards_to(comm, op, segment, peer))
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

/* Forward a result of this node to the other peers, in its turn. The peers of results_to already have it. */
static int emit(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    struct nb_pool *pool = &comm->flow->reduce.results;
    struct nb_shared *unit;
    int ret;

    /* Numbers in between belong to results of operations without forwards. */
    comm->flow->forward.emit_next = nb_max64(comm->flow->forward.emit_next, pool->head);
    while (comm->flow->forward.emit_next < pool->tail &&
           pool->shared[comm->flow->forward.emit_next % pool->buffers].opno < win->op->opno)
        comm->flow->forward.emit_next++;
    if (comm->flow->forward.emit_next == pool->tail)
        return 0;
    unit = &pool->shared[comm->flow->forward.emit_next % pool->buffers];
    if (unit->opno != win->op->opno || unit->off != segment->off)
        return nb_comm_error(comm, -EPROTO, "all_reduce results are out of step (%llu at %llu)",
                             (unsigned long long)unit->opno, (unsigned long long)unit->off);
    ret = room(comm, win->op, segment);
    if (ret <= 0)
        return ret;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = nb_next_neighbor(comm, i);
        if (win->op->schedule->forwards_to(comm, win->op, segment, peer))
            nb_tx_reserve(&peer->tx[NB_CLASS_RESULT], unit);
    }
    comm->flow->forward.emit_next++;
    nb_window_received(comm, win, segment->len);
    return 1;
}

/* ---- the cursor -------------------------------------------------------------------------------------- */

/* Return the next window and *segment, or NULL. Pass windows whose segments are all forwarded. */
static struct nb_coll_req *next(struct nb_coll_comm *comm, struct nb_segment *segment)
{
    struct nb_cursor *at = &comm->flow->forward.cursor;
    struct nb_coll_req *win;

    while ((win = nb_cursor_window(comm, at)) != NULL) {
        const struct nb_schedule_ops *s = win->op->schedule;
        if (s->next_forward && s->next_forward(comm, win, at->off, segment))
            return win;
        nb_cursor_pass(at);
    }
    return NULL;
}

int nb_forward_next(struct nb_coll_comm *comm)
{
    struct nb_segment segment;
    struct nb_peer *from = NULL;
    struct nb_coll_req *win = next(comm, &segment);
    struct nb_rx *rx;
    int ret;

    if (!win || nb_reduce_reached(comm) < comm->flow->forward.cursor.seq) /* older sums come first */
        return 0;
    rx = win->op->schedule->forward_from(comm, win->op, &segment, &from);
    ret = rx ? forward(comm, win, &segment, from, rx) : emit(comm, win, &segment);
    if (ret > 0)
        comm->flow->forward.cursor.off = segment.off + segment.len;
    return ret;
}

bool nb_forward_lets_result_pass(struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    struct nb_segment segment;

    next(comm, &segment);
    return nb_cursor_reached(comm, &comm->flow->forward.cursor) >=
           (win->op->func == NB_FUNC_ALL_REDUCE ? win->after_gather : win->seq);
}

bool nb_forward_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer)
{
    const struct nb_schedule_ops *s = win->op->schedule;
    struct nb_peer *source = NULL;
    struct nb_segment segment;
    const struct nb_rx *rx;

    if (!s->next_forward || nb_cursor_reached(comm, &comm->flow->forward.cursor) > win->seq ||
        !s->next_forward(comm, win, nb_cursor_place(&comm->flow->forward.cursor, win), &segment))
        return false;
    rx = s->forward_from(comm, win->op, &segment, &source);
    return rx && source == peer && rx->taken == rx->arrived;
}
