/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half: walks the windows for each peer in order, encodes the pieces that go to it into buffers of
 * ours and queues them. A piece that is encoded no longer needs NCCL's memory: a window that only contributes
 * is then finished for NCCL, although its bytes are still on their way ("early completion").
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/task.h"

#define MEASURE_SELDOM 65536u /* tiles; only the first of a window */

/* Which tiles of a piece are measured (struct nb_encode_stats). It depends on nothing but the piece's place, so that
 * what is compared with the step before is always of the same values (state/jump.h). Tiles of an all-reduce are
 * numbered from its window's start, and by their numbers alone a node may own all that would be measured: there it
 * is every 17th piece, beginning with the first that this node sends. */
static uint32_t measured_tiles(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece)
{
    uint64_t begin = nb_grid_column(comm->grid, comm->rank) == 0; /* to which the others send the first piece */

    if (op->func != NB_FUNC_ALL_REDUCE)
        return NB_STATS_EVERY;
    return piece->number % NB_STATS_EVERY == begin ? 1 : MEASURE_SELDOM;
}

void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len, uint64_t copies)
{
    struct nb_func_stats *s = &comm->stats.func[func];
    s->units += copies;
    s->sent_bytes += msg->bytes * copies;
    s->wire_bytes += len * copies;
    if (msg->codec == NB_CODEC_RAW)
        s->raw_units += copies;
}

void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                     struct nb_msg *msg)
{
    memset(msg, 0, sizeof(*msg));
    msg->func = (uint8_t)op->func;
    msg->type = (uint8_t)op->type;
    msg->op = (uint8_t)op->redop;
    msg->flags = op->schedule->flags;
    msg->token = comm->token;
    msg->opno = op->opno;
    msg->offset = piece->off;
    msg->bytes = piece->most;
}

/* ---- contributions to a sum ------------------------------------------------------------------------ */

/* A step of a contribution's task is done: code (in shadow mode into nowhere), or copy. */
static int contributed(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_op *op = t->op;

    nb_task_release_error(comm, t);
    if (t->step == NB_STEP_CODE && comm->shadow)
        comm->scratch_used = 0;
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot encode %u bytes at %llu of %s %llu: %s", t->bytes,
                             (unsigned long long)t->piece.off, nb_func_name(op->func), (unsigned long long)op->opno,
                             strerror((int)-result));
    if (t->step == NB_STEP_CODE) {
        nb_op_encoded(comm, op, &t->stats, t->bytes, (size_t)result);
        if (comm->shadow) {
            t->msg.codec = NB_CODEC_RAW;
            t->body = t->buf + NB_MSG_BYTES;
            t->step = NB_STEP_COPY;
            return NB_TASK_MORE;
        }
        t->msg.coded = (uint32_t)result;
    } else {
        t->msg.coded = t->bytes;
    }
    nb_msg_pack(&t->msg, t->buf);
    nb_count_unit(comm, op->func, &t->msg, NB_MSG_BYTES + t->msg.coded, 1);
    nb_tx_ready(t->tx, t->item, NB_MSG_BYTES + t->msg.coded);
    return NB_TASK_OVER;
}

/* What is done with the values of a contribution. 1, or 0: later. */
static int plan_contribution(struct nb_coll_comm *comm, struct nb_task *t, const uint8_t *src)
{
    struct nb_op *op = t->op;
    const struct nb_piece *piece = &t->piece;
    /* Reduce-scatter: each owner's block has an error of its own. All-reduce: one stream for all. */
    uint32_t block = op->func == NB_FUNC_REDUCE_SCATTER ? (uint32_t)piece->owner : 0;
    int may_be_coded = piece->sure && piece->most / op->value >= NB_MIN_CODED_VALUES;
    enum nb_codec codec = may_be_coded ? nb_op_codec(op) : NB_CODEC_RAW;

    nb_msg_describe(comm, op, piece, &t->msg);
    t->msg.codec = (uint8_t)codec;
    t->values = (uint8_t *)(uintptr_t)src; /* only read */
    t->bytes = piece->most;
    t->body = t->buf + NB_MSG_BYTES;
    t->step = NB_STEP_COPY;
    t->next = contributed;
    if (codec == NB_CODEC_RAW)
        return 1;
    if (comm->shadow && comm->scratch_used)
        return 0;
    if (!nb_task_hold_error(t, block))
        return 0;
    if (comm->shadow)
        t->body = comm->scratch;
    t->step = NB_STEP_CODE;
    t->dtype = op->facts->dtype;
    t->stats = (struct nb_encode_stats){.every = measured_tiles(comm, op, piece)};
    t->counted = 1;
    return 1;
}

static int send_contribution(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                             const struct nb_piece *piece)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    uint8_t *buf = nb_tx_buffer(tx);
    struct nb_task *t;

    if (!buf || !nb_op_settle(comm, win->op) || !(t = nb_task_new(comm, win, piece)))
        return 0;
    t->buf = buf;
    if (!plan_contribution(comm, t, win->send + (piece->off - win->off)) || !nb_task_ask(comm, t)) {
        nb_task_drop(comm, t);
        return 0;
    }
    if (comm->shadow && t->step == NB_STEP_CODE)
        comm->scratch_used = 1;
    t->tx = tx;
    t->item = nb_tx_reserve(tx, NULL);
    return nb_task_run(comm, t);
}

/* ---- all-gather: encoded once, for all ------------------------------------------------------------- */

static int send_gather(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                       const struct nb_piece *piece)
{
    struct nb_pool *pool = &comm->gather;
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    struct nb_shared *unit;

    if (!nb_tx_buffer(tx))
        return 0;
    if (peer->gather_next == pool->tail) { /* this peer is the first to need it */
        if (pool->tail - pool->head == pool->slots || !nb_gather_can_send(comm, win->op))
            return 0;
        unit = &pool->unit[pool->tail % pool->slots];
        unit->opno = win->op->opno;
        unit->off = piece->off;
        unit->ready = 0;
        unit->left = comm->nranks; /* the others, and the task */
        pool->tail++;
        if (nb_gather_send(comm, win, piece, NULL, unit) < 0)
            return -1;
    }
    unit = &pool->unit[peer->gather_next % pool->slots];
    if (unit->opno != win->op->opno || unit->off != piece->off)
        return nb_comm_error(comm, -EPROTO, "all_gather units are out of step (%llu at %llu)",
                             (unsigned long long)unit->opno, (unsigned long long)unit->off);
    nb_tx_reserve(tx, unit);
    peer->gather_next++;
    return 1;
}

/* ---- walking --------------------------------------------------------------------------------------- */

static int send_to(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    int moved = 0, ret;

    while (peer->tx_seq < comm->begun) {
        struct nb_coll_req *win = nb_window(comm, peer->tx_seq);
        struct nb_piece piece;

        if (!peer->tx_started) {
            peer->tx_started = 1;
            peer->tx_off = win->off;
        }
        if (!win->op->schedule->next_send(comm, win, peer->rank, peer->tx_off, &piece)) {
            /* What the scatter cursor has for this peer comes before any newer window. */
            if (comm->scatter_seq <= peer->tx_seq && nb_is_scattered(win->op))
                break;
            peer->tx_seq++;
            peer->tx_started = 0;
            nb_window_sent(comm, win);
            moved = 1;
            continue;
        }
        if (peer->gone || peer->tx[NB_CLASS_CONTRIB].closed)
            return nb_comm_error(comm, -ECONNRESET, "%s has closed its communicator but %s %llu needs it", peer->name,
                                 nb_func_name(win->op->func), (unsigned long long)win->op->opno);
        ret = win->op->func == NB_FUNC_ALL_GATHER ? send_gather(comm, peer, win, &piece)
                                                  : send_contribution(comm, peer, win, &piece);
        if (ret < 0)
            return ret;
        if (ret == 0)
            break;
        peer->tx_off = piece.off + piece.len;
        moved = 1;
    }
    return moved;
}

int nb_send_progress(struct nb_coll_comm *comm)
{
    int moved = nb_two_hop_scatter(comm);

    if (moved < 0)
        return moved;
    for (int i = 0; i < comm->nnear; i++) {
        int ret = send_to(comm, nb_near_behind(comm, i));
        if (ret < 0)
            return ret;
        moved |= ret;
    }
    for (struct nb_pool *pool = &comm->gather;; pool = &comm->result) {
        while (pool->head < pool->tail && pool->unit[pool->head % pool->slots].left == 0)
            pool->head++;
        if (pool == &comm->result)
            break;
    }
    return moved;
}

/* ---- answers to requests for raw bytes -------------------------------------------------------------- */

int nb_resend_progress(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];
    struct nb_shared *unit = &peer->resend;
    int moved = 0;

    while (peer->nask && unit->left == 0 && nb_tx_buffer(tx)) {
        const struct nb_ask *ask = &peer->ask[0];
        struct nb_ctl ctl = {.kind = NB_CTL_DATA, .token = comm->token, .from = (uint32_t)comm->rank,
                             .to = (uint32_t)ask->rank, .a = ask->opno, .b = ask->off, .c = ask->len};
        const void *data = nb_refs_find_op(comm->refs, ctl.a, ctl.b, ctl.c);

        if (!data)
            return nb_comm_error(comm, -EPROTO, "%s asks for bytes of all_gather %llu that are gone", comm->peer[ask->rank].name,
                                 (unsigned long long)ctl.a);
        nb_ctl_pack(&ctl, unit->buf);
        comm->device->ops->copy(comm->device, NULL, unit->buf + NB_CTL_BYTES, data, ctl.c);
        unit->len = NB_CTL_BYTES + ctl.c;
        unit->ready = 1;
        unit->left = 1;
        nb_tx_push(tx, unit->buf, unit->len, unit);
        comm->stats.func[NB_FUNC_ALL_GATHER].wire_bytes += unit->len;
        comm->stats.resends++;
        memmove(peer->ask, peer->ask + 1, (--peer->nask) * sizeof(peer->ask[0]));
        moved = 1;
    }
    return moved;
}
