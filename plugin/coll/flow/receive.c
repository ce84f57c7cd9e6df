/* SPDX-License-Identifier: Apache-2.0 */
/* Receives: takes the oldest message of every peer as far as possible. This node delivers blocks of an
 * all-gather (gather_receive.c) and results of an all-reduce as they arrive, for each peer independently. A
 * sum (reduce.c) waits for the messages of all its contributors. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/flow/internal.h"

/* ---- one result -------------------------------------------------------------------------------------- */

/* A step of a result's task is done: decode, the sum with the own values, or the proof. Continue. */
static int taken(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    if (t->step == NB_STEP_PROVE) {
        nb_proof_picked(t->op, result);
        return NB_TASK_OVER;
    }
    if (t->step == NB_STEP_LOOK_OWN && nb_look_next(comm, t, result))
        return NB_TASK_MORE;
    if (t->step == NB_STEP_LOOK_SUM) {
        nb_look_end(comm, t, result);
        return nb_task_prove(t);
    }
    nb_task_release_head(t);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot take the result of %s %llu at %llu from %s: %s",
                             nb_func_name(t->op->func), (unsigned long long)t->op->opno,
                             (unsigned long long)t->segment.off, t->peer->name, strerror((int)-result));
    return nb_look_next(comm, t, result) ? NB_TASK_MORE : nb_task_prove(t);
}

/* Run the task, complete except its `next`, on the message at the head of the peer's RESULT ring. Return 1, 0
 * when the device has no room and the task is dropped, or < 0 when the communicator has failed. */
static int take_result(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_task *t)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];

    if (nb_payload_verify(comm, peer, nb_segment_finisher(&t->segment), &rx->head, nb_rx_body(rx))) {
        nb_task_drop(comm, t);
        return -1;
    }
    t->next = taken;
    t->delivers = t->segment.len;
    if (!nb_task_ask(comm, t)) {
        nb_task_drop(comm, t);
        return 0;
    }
    nb_task_hold_head(t, peer, &peer->rx[NB_CLASS_RESULT]);
    return nb_task_run(comm, t);
}

int nb_result_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                      const struct nb_segment *segment)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t;
    enum nb_dtype dtype = NB_F32;

    if (m->codec != NB_CODEC_RAW &&
        (nb_codec_row(m->codec)->reference || nb_policy_dtype(win->op->type, &dtype)))
        return nb_comm_error(comm, -EBADMSG, "malformed result of %s %llu from %s: codec %u",
                             nb_func_name(m->func), (unsigned long long)m->opno, peer->name, m->codec);
    t = nb_task_new(comm, win, segment);
    if (!t)
        return 0;
    t->step = NB_STEP_DECODE;
    t->msg = *m;
    t->dtype = dtype;
    t->body = nb_rx_body(rx);
    t->values = win->recv + (m->offset - win->off);
    t->bytes = m->bytes;
    t->own = win->send + (m->offset - win->off);
    t->exact = 0;
    if (m->codec != NB_CODEC_RAW)
        nb_look_begin(comm, t);
    return take_result(comm, peer, t);
}

/* Two hops and two levels: take the sum of all other nodes' values at the head of the peer's RESULT ring, for
 * a segment of this node's block. Add the own values and deliver it. Return as take_result. */
static int take_sum(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                    const struct nb_segment *segment)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t = nb_task_new(comm, win, segment);

    if (!t)
        return 0;
    t->exact = nb_policy_dtype(win->op->type, &t->dtype) != 0 || win->op->redop != ncclSum;
    if (t->exact && m->codec != NB_CODEC_RAW) {
        nb_task_drop(comm, t);
        return nb_comm_error(comm, -EBADMSG, "%s sent a sum of %s %llu, whose type has no quantizer",
                             peer->name, nb_func_name(m->func), (unsigned long long)m->opno);
    }
    t->sources[0] = (struct nb_source){.codec = m->codec, .len = m->coded, .coded = nb_rx_body(rx)};
    t->plain[0] = t->sources[0].coded;
    t->nsources = 1;
    t->own = win->send + (segment->off - win->off);
    t->values = win->recv + (segment->off - win->part_off);
    t->bytes = segment->len;
    t->step = NB_STEP_SUM;
    nb_look_begin(comm, t);
    return take_result(comm, peer, t);
}

/* ---- messages in general ----------------------------------------------------------------------------- */

/* ---- results ----------------------------------------------------------------------------------------- */

static int receive_result(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    struct nb_msg m;
    struct nb_segment segment, next;
    struct nb_coll_req *win;
    int ret;

    if (rx->shared)
        return 0; /* every message on it is forwarded, too (forward.c) */
    if (!nb_rx_head(comm, peer, NB_CLASS_RESULT))
        return 0;
    m = rx->head;
    if (m.func != NB_FUNC_ALL_REDUCE && !(m.flags & NB_MSG_ROUTE))
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu", peer->name, nb_func_name(m.func),
                             (unsigned long long)m.opno);
    win = nb_find_window(comm, peer, &m, &peer->flow->results.seq, &segment);
    if (!win)
        return 0;
    if (m.func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, win->op, &m))
        return -1;
    if (peer->flow->results.win != peer->flow->results.seq) {
        peer->flow->results.win = peer->flow->results.seq;
        peer->flow->results.off = 0;
    }
    if (!win->op->schedule->next_result(comm, win, peer->rank, peer->flow->results.off, &next) ||
        next.off != segment.off)
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu at %llu that is not its next",
                             peer->name, nb_func_name(m.func), (unsigned long long)m.opno,
                             (unsigned long long)m.offset);
    if (m.func == NB_FUNC_ALL_GATHER) {
        struct nb_peer *owner = &comm->peer[segment.owner];
        ret = nb_gather_can_take(comm, owner, &m) ? nb_gather_take(comm, owner, peer, win, &segment, rx) : 0;
    } else {
        ret = m.func == NB_FUNC_REDUCE_SCATTER ? take_sum(comm, peer, win, &segment)
                                               : nb_result_deliver(comm, peer, win, &segment);
    }
    if (ret > 0)
        peer->flow->results.off = segment.off + segment.len;
    return ret;
}

/* Sum and forward a few segments at a time, so that other arrivals and departures do not wait for many of
 * them. */
static int work_for_others(struct nb_coll_comm *comm)
{
    const uint64_t at = comm->flow->reduce.cursor.seq + comm->flow->forward.cursor.seq;
    int moved = 0, ret = 0;

    for (int i = 0; i < 4 && (ret = nb_reduce_next(comm)) > 0; i++)
        moved = 1;
    for (int i = 0; i < 4 && ret >= 0 && (ret = nb_forward_next(comm)) > 0; i++)
        moved = 1;
    /* A passed window counts as movement, since the other cursor may have waited for it. */
    return ret < 0 ? ret : moved | (at != comm->flow->reduce.cursor.seq + comm->flow->forward.cursor.seq);
}

int nb_receive_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    for (int i = 0; i < comm->nneighbors; i++) {
        while ((ret = nb_gather_receive(comm, comm->neighbors[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
        while ((ret = receive_result(comm, comm->neighbors[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
    }
    ret = work_for_others(comm);
    return ret < 0 ? ret : moved | ret;
}
