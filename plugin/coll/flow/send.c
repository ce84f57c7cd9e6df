/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends. For each peer this node walks over the windows in order, encodes the peer's segments into the
 * engine's buffers, and queues them. An encoded segment is independent of NCCL's memory. So a window that
 * only contributes is done for NCCL while its bytes are still on their way ("early completion").
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/flow/internal.h"

#define MEASURE_SELDOM 65536u /* in tiles: only the first tile of a window */

/* Choose the tiles of a segment that are measured (struct nb_encode_stats), by the segment's place alone, so
 * that a step is compared with the same values of the step before (state/jump.h). Tiles of an all-reduce are
 * numbered from the start of its window. By this number alone all measured tiles might belong to one node. So
 * a node measures every 17th segment of an all-reduce, beginning with the first segment that it sends. That
 * is the second segment of the window where this node sums the first one itself. */
static uint32_t measured_tiles(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                               const struct nb_segment *segment)
{
    struct nb_segment first;
    uint64_t begin;

    if (win->op->func != NB_FUNC_ALL_REDUCE)
        return NB_STATS_EVERY;
    begin = win->op->schedule->next_reduce(comm, win, win->off, &first) && first.number == 0;
    return segment->number % NB_STATS_EVERY == begin ? 1 : MEASURE_SELDOM;
}

/* ---- contributions to a sum -------------------------------------------------------------------------- */

/* A step of a contribution's task is done: encode (in shadow mode into scratch), or copy. Continue. */
static int contributed(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_op *op = t->op;

    nb_task_release_error(comm, t);
    if (t->step == NB_STEP_ENCODE && comm->shadow)
        comm->flow->scratch.used = 0;
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot encode %u bytes at %llu of %s %llu: %s", t->bytes,
                             (unsigned long long)t->segment.off, nb_func_name(op->func),
                             (unsigned long long)op->opno, strerror((int)-result));
    if (t->step == NB_STEP_ENCODE) {
        nb_op_encoded(comm, op, &t->stats, t->bytes, (size_t)result);
        if (comm->shadow) {
            t->msg.codec = NB_CODEC_RAW;
            t->body = nb_task_body(t, NB_MSG_BYTES);
            t->step = NB_STEP_COPY;
            return NB_TASK_MORE;
        }
        t->msg.coded = (uint32_t)result;
    } else {
        t->msg.coded = t->bytes;
    }
    nb_payload_seal(comm, &t->msg, t->body);
    nb_msg_pack(&t->msg, t->buf);
    nb_count_unit(comm, op->func, &t->msg, NB_MSG_BYTES + t->msg.coded, 1);
    nb_tx_ready(t->tx, t->item, NB_MSG_BYTES, NB_MSG_BYTES + t->msg.coded);
    return NB_TASK_OVER;
}

/* Choose the codec of a contribution and hold its residual. Return 1, or 0 when that has to wait. */
static int plan_contribution(struct nb_coll_comm *comm, struct nb_task *t, const uint8_t *src)
{
    struct nb_op *op = t->op;
    const struct nb_segment *segment = &t->segment;
    /* A reduce-scatter has a residual for each owner's block, an all-reduce one residual for all blocks. */
    uint32_t block = op->func == NB_FUNC_REDUCE_SCATTER ? (uint32_t)segment->owner : 0;
    enum nb_codec codec =
        nb_op_segment_codec(op, segment->sure, segment->most / op->value, NB_HOP_CONTRIBUTION);

    nb_msg_describe(comm, op, segment, &t->msg);
    t->msg.codec = (uint8_t)codec;
    t->values = (uint8_t *)(uintptr_t)src; /* only read */
    t->bytes = segment->most;
    t->body = nb_task_body(t, NB_MSG_BYTES);
    t->step = NB_STEP_COPY;
    t->next = contributed;
    if (codec == NB_CODEC_RAW)
        return 1;
    if (comm->shadow && comm->flow->scratch.used)
        return 0;
    if (!nb_task_hold_error(t, block))
        return 0;
    if (comm->shadow)
        t->body = comm->flow->scratch.mem;
    t->step = NB_STEP_ENCODE;
    t->dtype = nb_op_info_dtype(op->info);
    t->stats = (struct nb_encode_stats){.every = measured_tiles(comm, t->win, segment)};
    t->counted = 1;
    return 1;
}

static int send_contribution(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                             const struct nb_segment *segment)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    uint8_t *buf = nb_tx_buffer(tx);
    struct nb_task *t;

    if (!buf || !nb_op_settle(comm, win->op) || !(t = nb_task_new(comm, win, segment)))
        return 0;
    t->buf = buf;
    t->payload = nb_tx_body(tx);
    if (!plan_contribution(comm, t, win->send + (segment->off - win->off)) || !nb_task_ask(comm, t)) {
        nb_task_drop(comm, t);
        return 0;
    }
    if (comm->shadow && t->step == NB_STEP_ENCODE)
        comm->flow->scratch.used = 1;
    t->tx = tx;
    t->item = nb_tx_reserve(tx, NULL);
    tx->item[t->item % tx->buffers].apart = win->op->func == NB_FUNC_REDUCE_SCATTER &&
                                            !(win->op->schedule->flags & NB_MSG_ROUTE); /* comm/ring.c */
    return nb_task_run(comm, t);
}

/* ---- all-gather: encoded once for all receivers ------------------------------------------------------ */

static int send_gather(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                       const struct nb_segment *segment)
{
    struct nb_pool *pool = &comm->flow->gather.units;
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    struct nb_shared *unit;

    if (!nb_tx_buffer(tx))
        return 0;
    if (peer->flow->send.gather_next == pool->tail) { /* this peer is the first to need it */
        if (pool->tail - pool->head == pool->buffers || !nb_gather_can_send(comm, win, segment))
            return 0;
        unit = &pool->shared[pool->tail % pool->buffers];
        unit->opno = win->op->opno;
        unit->off = segment->off;
        unit->ready = 0;
        unit->left = comm->nnodes; /* the other peers, and the task */
        pool->tail++;
        if (nb_gather_send(comm, win, segment, NULL, unit) < 0)
            return -1;
    }
    unit = &pool->shared[peer->flow->send.gather_next % pool->buffers];
    if (unit->opno != win->op->opno || unit->off != segment->off)
        return nb_comm_error(comm, -EPROTO, "all_gather units are out of step (%llu at %llu)",
                             (unsigned long long)unit->opno, (unsigned long long)unit->off);
    nb_tx_reserve(tx, unit);
    peer->flow->send.gather_next++;
    return 1;
}

/* ---- walking ----------------------------------------------------------------------------------------- */

static int send_to(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_cursor *at = &peer->flow->send.cursor;
    struct nb_coll_req *win;
    int moved = 0, ret;

    while ((win = nb_cursor_window(comm, at)) != NULL) {
        struct nb_segment segment;

        if (!win->op->schedule->next_send(comm, win, peer->rank, at->off, &segment)) {
            /* The first-hop cursor's segments for this peer come before any newer window. */
            if (comm->flow->first_hop.seq <= at->seq && nb_has_first_hop(win->op))
                break;
            nb_cursor_pass(at);
            nb_window_sent(comm, win);
            moved = 1;
            continue;
        }
        if (nb_peer_has_left(comm, peer, NB_CLASS_CONTRIB, win->op))
            return -1;
        ret = win->op->func == NB_FUNC_ALL_GATHER ? send_gather(comm, peer, win, &segment)
                                                  : send_contribution(comm, peer, win, &segment);
        if (ret < 0)
            return ret;
        if (ret == 0)
            break;
        at->off = segment.off + segment.len;
        moved = 1;
    }
    return moved;
}

int nb_send_progress(struct nb_coll_comm *comm)
{
    int moved = nb_first_hop_progress(comm);

    if (moved < 0)
        return moved;
    for (int i = 0; i < comm->nneighbors; i++) {
        int ret = send_to(comm, nb_next_neighbor(comm, i));
        if (ret < 0)
            return ret;
        moved |= ret;
    }
    for (struct nb_pool *pool = &comm->flow->gather.units;; pool = &comm->flow->reduce.results) {
        while (pool->head < pool->tail && pool->shared[pool->head % pool->buffers].left == 0)
            pool->head++;
        if (pool == &comm->flow->reduce.results)
            break;
    }
    return moved;
}
