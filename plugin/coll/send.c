/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half: walks the windows for each peer in order, encodes the pieces that go to it into buffers of
 * ours and queues them. A piece that is encoded no longer needs NCCL's memory: a window that only contributes
 * is then finished for NCCL, although its bytes are still on their way ("early completion").
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/internal.h"

static void count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len, uint64_t copies)
{
    struct nb_func_stats *s = &comm->stats.func[func];
    s->units += copies;
    s->sent_bytes += msg->bytes * copies;
    s->wire_bytes += len * copies;
    if (msg->codec == NB_CODEC_RAW)
        s->raw_units += copies;
}

static void describe(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                     struct nb_msg *msg)
{
    memset(msg, 0, sizeof(*msg));
    msg->func = (uint8_t)op->func;
    msg->type = (uint8_t)op->type;
    msg->op = (uint8_t)op->redop;
    msg->token = comm->token;
    msg->opno = op->opno;
    msg->offset = piece->off;
    msg->bytes = piece->most;
}

/* ---- contributions to a sum ------------------------------------------------------------------------ */

/* Encode one piece behind a header into `buf`. `block` selects the error state. Returns the length in all. */
static ssize_t encode_sum(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_piece *piece, const void *src,
                          uint32_t block, uint8_t *buf, struct nb_msg *msg)
{
    size_t n = piece->most / op->value;
    struct nb_ef ef, *feedback = NULL;
    uint64_t nonfinite = comm->stats.encode.nonfinite;
    ssize_t coded;

    describe(comm, op, piece, msg);
    msg->codec = (uint8_t)(n < NB_MIN_CODED_VALUES || !piece->sure ? NB_CODEC_RAW : op->codec);
    if (msg->codec == NB_CODEC_RAW) {
        comm->device->copy(buf + NB_MSG_BYTES, src, piece->most);
        coded = piece->most;
    } else {
        nb_op_settle_feedback(comm, op);
        if (op->ef) {
            nb_op_feedback(op, block, &ef);
            feedback = &ef;
        }
        coded = comm->device->encode(msg->codec, op->dtype, src, n, piece->first, feedback, buf + NB_MSG_BYTES,
                                     comm->unit_slot - NB_MSG_BYTES, &comm->stats.encode);
        if (coded < 0)
            return nb_comm_error(comm, (int)coded, "cannot encode %u bytes at %llu of %s %llu", piece->most,
                                 (unsigned long long)piece->off, nb_func_name(op->func), (unsigned long long)op->opno);
        if (comm->stats.encode.nonfinite != nonfinite && op->ef) {
            /* The optimizer will skip this step or is lost: what its operations consumed and left is wrong. */
            op->ef = NULL;
            if (op->func == NB_FUNC_ALL_REDUCE)
                comm->ar.ef = NULL; /* the windows to come */
            comm->stats.feedback_resets += nb_feedback_drop_step(comm->feedback);
        }
    }
    msg->coded = (uint32_t)coded;
    nb_msg_pack(msg, buf);
    return (ssize_t)NB_MSG_BYTES + coded;
}

static int send_contribution(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                             const struct nb_piece *piece)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    uint8_t *buf = nb_tx_buffer(tx);
    /* Reduce-scatter: each owner's block has an error of its own. All-reduce: one stream for all. */
    uint32_t block = win->op->func == NB_FUNC_REDUCE_SCATTER ? (uint32_t)piece->owner : 0;
    struct nb_msg msg;
    ssize_t len;

    if (!buf)
        return 0;
    len = encode_sum(comm, win->op, piece, win->send + (piece->off - win->off), block, buf, &msg);
    if (len < 0)
        return (int)len;
    count_unit(comm, win->op->func, &msg, (size_t)len, 1);
    nb_tx_push(tx, buf, (size_t)len, NULL);
    return 1;
}

/* ---- all-gather: encoded once, sent to all --------------------------------------------------------- */

static void pick_reference(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece,
                           const uint8_t *src)
{
    struct nb_op *op = win->op;
    uint64_t own = (uint64_t)comm->rank * op->block, rel = piece->off - own;
    uint64_t avail = win->off + win->bytes - piece->off;

    if (avail > op->block - rel)
        avail = op->block - rel;
    op->picked = 1;
    op->outcome = NB_REF_NONE;
    op->ref = NULL;
    if (op->codec != NB_CODEC_ULP)
        return;
    op->outcome = nb_refs_pick(comm->refs, src, rel, avail, op->block, op->opno, &op->ref);
    op->like = op->outcome == NB_REF_NONE ? NULL : nb_refs_last(comm->refs);
    switch (op->outcome) {
    case NB_REF_HIT: comm->stats.ref_hits++; break;
    case NB_REF_NEW: comm->stats.ref_new++; break;
    case NB_REF_UNCONFIRMED: comm->stats.ref_unconfirmed++; break;
    case NB_REF_NONE: comm->stats.ref_budget++; break;
    }
    if (op->ref)
        comm->stats.func[NB_FUNC_ALL_GATHER].coded_ops++;
}

/* The bytes of one unit, as differences where there is a reference. */
static ssize_t encode_gather(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece,
                             const uint8_t *src, uint8_t *buf, struct nb_msg *msg)
{
    const struct nb_device_ops *dev = comm->device;
    struct nb_op *op = win->op;
    uint64_t rel = piece->off - (uint64_t)comm->rank * op->block;
    size_t header, len = piece->len;

    describe(comm, op, piece, msg);
    msg->codec = NB_CODEC_RAW;
    if (op->outcome == NB_REF_UNCONFIRMED && !op->changed)
        op->changed = !dev->equal(src, op->like->data + rel, len);
    if (op->ref) {
        const uint8_t *ref = op->ref->data + rel;
        msg->flags = NB_MSG_KEEP;
        msg->slot = op->ref->slot;
        msg->version = op->ref->version + (op->ref->last_op != op->opno || op->ref->version == 0);
        msg->new_hash = dev->hash(src, len, 0);
        if (op->outcome == NB_REF_HIT) {
            if (dev->equal(src, ref, len)) {
                msg->codec = NB_CODEC_ULP;
                msg->type = NB_ULP_16;
                msg->ref_hash = msg->new_hash;
                nb_refs_store(comm->refs, op->ref, ref, rel, len, op->opno);
                comm->stats.func[NB_FUNC_ALL_GATHER].unchanged_units += (uint64_t)comm->nranks - 1;
                nb_msg_pack(msg, buf);
                return NB_MSG_MAX_BYTES;
            }
            enum nb_ulp_width width = dev->ulp_guess(src, ref, len);
            ssize_t coded = dev->ulp_encode(width, src, ref, len, len, buf + NB_MSG_MAX_BYTES,
                                            comm->unit_slot - NB_MSG_MAX_BYTES);
            if (coded >= 0) {
                msg->codec = NB_CODEC_ULP;
                msg->type = (uint8_t)width;
                msg->coded = (uint32_t)coded;
                msg->ref_hash = dev->hash(ref, len, 0);
            } else if (coded != -E2BIG) {
                return nb_comm_error(comm, (int)coded, "cannot encode differences of all_gather %llu",
                                     (unsigned long long)op->opno);
            }
        }
        op->changed = 1;
        nb_refs_store(comm->refs, op->ref, src, rel, len, op->opno);
    }
    header = nb_msg_header_bytes(msg);
    if (msg->codec == NB_CODEC_RAW) {
        dev->copy(buf + header, src, len);
        msg->coded = (uint32_t)len;
    }
    nb_msg_pack(msg, buf);
    return (ssize_t)(header + msg->coded);
}

/* The own block of an operation has been encoded whole. */
static void gather_ended(struct nb_coll_comm *comm, struct nb_op *op)
{
    if (op->like && nb_signatures_gather(comm->signatures, op->like->slot, op->changed))
        nb_feedback_step(comm->feedback, op->opno);
}

static int send_gather(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                       const struct nb_piece *piece)
{
    struct nb_pool *pool = &comm->gather;
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTRIB];
    struct nb_shared *unit;

    if (!nb_tx_buffer(tx))
        return 0;
    if (peer->gather_next == pool->tail) { /* this peer is the first to need it */
        const uint8_t *src = win->send + (piece->off - win->part_off);
        uint8_t *dst = win->recv + (piece->off - win->off);
        struct nb_msg msg;
        ssize_t len;

        if (pool->tail - pool->head == pool->slots)
            return 0;
        unit = &pool->unit[pool->tail % pool->slots];
        if (!win->op->picked)
            pick_reference(comm, win, piece, src);
        len = encode_gather(comm, win, piece, src, unit->buf, &msg);
        if (len < 0)
            return (int)len;
        unit->len = (size_t)len;
        unit->opno = win->op->opno;
        unit->off = piece->off;
        unit->left = comm->nranks - 1;
        pool->tail++;
        count_unit(comm, NB_FUNC_ALL_GATHER, &msg, unit->len, (uint64_t)comm->nranks - 1);
        comm->device->copy(dst, src, piece->len);
        if (piece->off + piece->len == ((uint64_t)comm->rank + 1) * win->op->block)
            gather_ended(comm, win->op);
        nb_window_received(comm, win, piece->len);
    }
    unit = &pool->unit[peer->gather_next % pool->slots];
    if (unit->opno != win->op->opno || unit->off != piece->off)
        return nb_comm_error(comm, -EPROTO, "all_gather units are out of step (%llu at %llu)",
                             (unsigned long long)unit->opno, (unsigned long long)unit->off);
    nb_tx_push(tx, unit->buf, unit->len, unit);
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
        if (!comm->schedule->next_send(comm, win, peer->rank, peer->tx_off, &piece)) {
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
    int moved = 0;

    for (int r = 1; r < comm->nranks; r++) { /* start behind oneself: spreads the load over receivers */
        int ret = send_to(comm, &comm->peer[(comm->rank + r) % comm->nranks]);
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
    struct nb_tx *tx = &peer->tx[NB_CLASS_RESULT];
    int moved = 0;

    while (peer->nask) {
        uint64_t opno = peer->ask[0].opno, off = peer->ask[0].off;
        uint32_t len = peer->ask[0].len;
        uint8_t *buf = nb_tx_buffer(tx);
        const void *data;
        struct nb_msg msg = {.func = NB_FUNC_ALL_GATHER, .codec = NB_CODEC_RAW, .type = ncclInt8, .op = ncclSum,
                             .flags = NB_MSG_RESEND, .token = comm->token, .opno = opno, .offset = off, .bytes = len,
                             .coded = len};

        if (!buf)
            break;
        data = nb_refs_find_op(comm->refs, opno, off, len);
        if (!data)
            return nb_comm_error(comm, -EPROTO, "%s asks for bytes of all_gather %llu that are gone", peer->name,
                                 (unsigned long long)opno);
        nb_msg_pack(&msg, buf);
        comm->device->copy(buf + NB_MSG_BYTES, data, len);
        nb_tx_push(tx, buf, NB_MSG_BYTES + len, NULL);
        comm->stats.func[NB_FUNC_ALL_GATHER].wire_bytes += NB_MSG_BYTES + len;
        comm->stats.resends++;
        memmove(peer->ask, peer->ask + 1, (--peer->nask) * sizeof(peer->ask[0]));
        moved = 1;
    }
    return moved;
}
