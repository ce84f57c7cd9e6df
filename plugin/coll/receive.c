/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half: looks at the oldest message of every peer and does what it allows. Blocks of an all-gather
 * and results of an all-reduce are delivered as they come, for each peer on its own; a sum waits until the
 * message of every peer for the same piece is at the head, and is taken in rank order, so that its bits do not
 * depend on who was first.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/internal.h"

/* ---- finding the window of a message ---------------------------------------------------------------- */

static int ends_before(const struct nb_coll_req *win, const struct nb_msg *m)
{
    return win->op->opno < m->opno || (win->op->opno == m->opno && win->off + win->bytes <= m->offset);
}

/* 1 when the message is that of the piece. Of an all-reduce's it carries what its sender takes for values, from the
 * start: all of it, a part, or nothing. */
static int carries(const struct nb_op *op, const struct nb_piece *piece, const struct nb_msg *m)
{
    if (m->offset != piece->off)
        return 0;
    if (op->func != NB_FUNC_ALL_REDUCE)
        return m->bytes == piece->len;
    return m->bytes <= piece->len && m->bytes % op->value == 0;
}

/* The window that holds message `m`, starting from *seq, which moves past windows that ended before it. NULL: NCCL
 * has not posted it here yet, or (after an error) it does not fit. */
static struct nb_coll_req *find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
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
    if (win->op->opno != m->opno || win->op->func != m->func || !comm->schedule->piece_at(comm, win, m->offset, piece) ||
        !carries(win->op, piece, m)) {
        nb_comm_error(comm, -EPROTO,
                      "%s sent %s %llu, %u bytes at %llu, which does not fit %s %llu, window of %llu bytes at %llu here",
                      peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                      (unsigned long long)m->offset, nb_func_name(win->op->func), (unsigned long long)win->op->opno,
                      (unsigned long long)win->bytes, (unsigned long long)win->off);
        return NULL;
    }
    return win;
}

static int type_mismatch(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op, const struct nb_msg *m)
{
    if (m->type == (uint8_t)op->type && m->op == (uint8_t)op->redop)
        return 0;
    return nb_comm_error(comm, -EPROTO, "%s sent %s %llu with type %u and reduction %u, but here it is %d and %d",
                         peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->type, m->op, (int)op->type,
                         (int)op->redop);
}

/* ---- all-gather ------------------------------------------------------------------------------------- */

static int ask_raw(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m, uint64_t rel)
{
    struct nb_ctl ctl = {.kind = NB_CTL_RAW, .a = m->opno, .b = rel, .c = m->bytes};
    NB_INFO(NCCL_NET, "reference %u of %s does not fit: asking for raw bytes of all_gather %llu", m->slot, peer->name,
            (unsigned long long)m->opno);
    peer->asked_raw = 1;
    return nb_control(comm, peer, &ctl);
}

/* A piece of `peer`'s block has been delivered. */
static int gather_delivered(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                            const struct nb_msg *m, int keep, int kept)
{
    if (!peer->gather_open || peer->gather_op != m->opno) {
        peer->gather_open = 1;
        peer->gather_op = m->opno;
        peer->gather_bytes = 0;
        peer->gather_keep = 0;
        peer->gather_kept = 1;
    }
    peer->gather_bytes += m->bytes;
    peer->gather_keep |= keep;
    peer->gather_kept &= kept;
    if (peer->gather_bytes == win->op->block) {
        struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = m->opno, .b = (uint64_t)peer->gather_kept};
        peer->gather_open = 0;
        peer->gathers_done = m->opno + 1;
        if (peer->gather_keep && nb_control(comm, peer, &ctl))
            return -1;
    }
    nb_window_received(comm, win, m->bytes);
    return 1;
}

/* Deliver a coded unit against our copy of the reference. 1, 0 when the copy does not fit, or < 0. */
static int decode_gather(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m, const uint8_t *coded,
                         uint8_t *ref, uint8_t *dst)
{
    const struct nb_device_ops *dev = comm->device;

    if (ref && comm->fault_ref && ++comm->fault_ref % 3 == 0)
        ref[m->bytes / 2] ^= 0x10;
    if (!ref || dev->hash(ref, m->bytes, 0) != m->ref_hash)
        return 0;
    if (m->coded == 0) {
        dev->copy(dst, ref, m->bytes);
        return m->new_hash == m->ref_hash;
    }
    if (dev->ulp_decode((enum nb_ulp_width)m->type, coded, m->coded, ref, m->bytes, dst))
        return nb_comm_error(comm, -EBADMSG, "malformed differences from %s in all_gather %llu", peer->name,
                             (unsigned long long)m->opno);
    if (dev->hash(dst, m->bytes, 0) != m->new_hash)
        return 0;
    dev->copy(ref, dst, m->bytes);
    return 1;
}

static int receive_gather(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const uint8_t *slot = nb_rx_head(comm, peer, NB_CLASS_CONTRIB);
    struct nb_msg m;
    struct nb_piece piece;
    struct nb_coll_req *win;
    uint8_t *dst, *ref = NULL;
    uint64_t rel;
    int ret, keep, kept = 1;

    if (!slot || rx->head.func != NB_FUNC_ALL_GATHER || peer->asked_raw)
        return 0;
    m = rx->head;
    win = find_window(comm, peer, &m, &peer->rx_seq, &piece);
    if (!win)
        return 0;
    rel = m.offset - (uint64_t)peer->rank * win->op->block;
    /* A block's pieces come in order: a repeated or skipped one would be counted as another. */
    if (piece.owner != peer->rank || (m.codec != NB_CODEC_RAW && m.codec != NB_CODEC_ULP) ||
        rel != (peer->gather_open && peer->gather_op == m.opno ? peer->gather_bytes : 0))
        return nb_comm_error(comm, -EPROTO, "%s sent %u bytes at %llu of node %d's block in all_gather %llu, codec %u, "
                             "which are not next", peer->name, m.bytes, (unsigned long long)m.offset, piece.owner,
                             (unsigned long long)m.opno, m.codec);
    dst = win->recv + (m.offset - win->off);
    keep = (m.flags & NB_MSG_KEEP) != 0;
    if (keep) {
        ref = nb_refs_of_peer(comm->refs, peer->rank, m.slot, win->op->block, m.codec == NB_CODEC_RAW);
        kept = ref != NULL;
        if (ref)
            ref += rel;
    }
    if (m.codec == NB_CODEC_ULP) {
        ret = decode_gather(comm, peer, &m, slot + rx->head_bytes, ref, dst);
        if (ret < 0)
            return ret;
        if (ret == 0)
            return ask_raw(comm, peer, &m, rel) ? -1 : 1;
    } else {
        comm->device->copy(dst, slot + rx->head_bytes, m.bytes);
        if (ref)
            comm->device->copy(ref, dst, m.bytes);
    }
    nb_rx_take(rx);
    return gather_delivered(comm, peer, win, &m, keep, kept);
}

/* The raw bytes that were asked for: they stand in for the message at the head of CONTRIB. */
static int receive_resend(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m, const uint8_t *data)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    struct nb_piece piece;
    struct nb_coll_req *win;
    uint64_t rel;
    uint8_t *ref;
    struct nb_msg head = rx->head;

    if (!peer->asked_raw || m->opno != head.opno || m->bytes != head.bytes || m->codec != NB_CODEC_RAW)
        return nb_comm_error(comm, -EPROTO, "%s sent raw bytes of all_gather %llu that were not asked for", peer->name,
                             (unsigned long long)m->opno);
    win = find_window(comm, peer, &head, &peer->rx_seq, &piece);
    if (!win)
        return 0;
    rel = head.offset - (uint64_t)peer->rank * win->op->block;
    if (m->offset != rel)
        return nb_comm_error(comm, -EPROTO, "%s sent raw bytes of another range of all_gather %llu", peer->name,
                             (unsigned long long)m->opno);
    comm->device->copy(win->recv + (head.offset - win->off), data, m->bytes);
    ref = nb_refs_of_peer(comm->refs, peer->rank, head.slot, win->op->block, 1);
    if (ref)
        comm->device->copy(ref + rel, data, m->bytes);
    peer->asked_raw = 0;
    nb_rx_take(&peer->rx[NB_CLASS_RESULT]);
    nb_rx_take(rx);
    return gather_delivered(comm, peer, win, &head, 1, ref != NULL);
}

/* ---- all-reduce results ----------------------------------------------------------------------------- */

static int deliver(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_msg *m, const uint8_t *coded,
                   const struct nb_piece *piece, uint8_t *dst)
{
    enum nb_dtype dtype;

    if (m->codec == NB_CODEC_RAW) {
        comm->device->copy(dst, coded, m->bytes);
        return 0; /* what lies behind is padding */
    }
    if (m->codec == NB_CODEC_ULP || nb_policy_dtype(op->type, &dtype))
        return -EBADMSG;
    return comm->device->decode(m->codec, dtype, coded, m->coded, m->bytes / op->value, piece->first, dst);
}

static int receive_result(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const uint8_t *slot = nb_rx_head(comm, peer, NB_CLASS_RESULT);
    struct nb_msg m;
    struct nb_piece piece, next;
    struct nb_coll_req *win;
    int ret;

    if (!slot)
        return 0;
    m = rx->head;
    if (m.func == NB_FUNC_ALL_GATHER && (m.flags & NB_MSG_RESEND))
        return receive_resend(comm, peer, &m, slot + rx->head_bytes);
    if (m.func != NB_FUNC_ALL_REDUCE)
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu", peer->name, nb_func_name(m.func),
                             (unsigned long long)m.opno);
    win = find_window(comm, peer, &m, &peer->result_seq, &piece);
    if (!win)
        return 0;
    if (type_mismatch(comm, peer, win->op, &m))
        return -1;
    if (peer->result_win != peer->result_seq) {
        peer->result_win = peer->result_seq;
        peer->result_off = 0;
    }
    if (!comm->schedule->next_owned(comm, win, peer->rank, peer->result_off, &next) || next.off != piece.off)
        return nb_comm_error(comm, -EPROTO, "%s sent a result of all_reduce %llu that is not its next", peer->name,
                             (unsigned long long)m.opno);
    ret = deliver(comm, win->op, &m, slot + rx->head_bytes, &piece, win->recv + (m.offset - win->off));
    if (ret)
        return nb_comm_error(comm, ret, "malformed result of all_reduce %llu from %s", (unsigned long long)m.opno,
                             peer->name);
    nb_rx_take(rx);
    peer->result_off = piece.off + piece.len;
    nb_window_received(comm, win, piece.len);
    return 1;
}

/* ---- sums ------------------------------------------------------------------------------------------- */

/* 1: the head of every peer is its contribution to `piece`; 0: not yet; < 0: something else is there. */
static int all_arrived(struct nb_coll_comm *comm, const struct nb_coll_req *win, const struct nb_piece *piece)
{
    const struct nb_op *op = win->op;

    for (int r = 0; r < comm->nranks; r++) {
        struct nb_peer *peer = &comm->peer[r];
        const struct nb_msg *m = &peer->rx[NB_CLASS_CONTRIB].head;
        if (r == comm->rank)
            continue;
        if (!nb_rx_head(comm, peer, NB_CLASS_CONTRIB))
            return 0;
        if (m->opno < op->opno && m->func == NB_FUNC_ALL_GATHER)
            return 0; /* an earlier all-gather's block, not delivered yet */
        if (m->opno != op->opno || m->func != op->func || !carries(op, piece, m))
            return nb_comm_error(comm, -EPROTO,
                                 "%s sent %s %llu, %u bytes at %llu, where %s %llu, %u bytes at %llu is expected",
                                 peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                                 (unsigned long long)m->offset, nb_func_name(op->func), (unsigned long long)op->opno,
                                 piece->len, (unsigned long long)piece->off);
        if (type_mismatch(comm, peer, op, m))
            return -1;
    }
    return 1;
}

/* Bytes of the piece that all nodes take for values. Every node sends at least those that are: one that has no record
 * sends padding besides, which nobody needs. A node that coded more than another sent contradicts it: one of the two
 * has a wrong record, and values are missing. */
static int64_t common_bytes(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece)
{
    uint32_t least = piece->most;
    int least_rank = comm->rank;

    for (int r = 0; r < comm->nranks; r++) {
        const struct nb_msg *m = &comm->peer[r].rx[NB_CLASS_CONTRIB].head;
        if (r != comm->rank && m->bytes < least) {
            least = m->bytes;
            least_rank = r;
        }
    }
    for (int r = 0; r < comm->nranks; r++) {
        const struct nb_msg *m = &comm->peer[r].rx[NB_CLASS_CONTRIB].head;
        int more = r == comm->rank ? piece->sure && piece->most > least
                                   : m->codec != NB_CODEC_RAW && m->bytes > least;
        if (more)
            return nb_comm_error(comm, -EPROTO,
                                 "all_reduce %llu: node %d has %u bytes of values at %llu and node %d has only %u: an "
                                 "operation record is wrong (NIBBLE_AR=raw does without records)",
                                 (unsigned long long)op->opno, r, r == comm->rank ? piece->most : m->bytes,
                                 (unsigned long long)piece->off, least_rank, least);
    }
    return least;
}

/* Sum (or other reduction) of the first `bytes` bytes of all contributions and the own values at `own` into `dst`. */
static int reduce_piece(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece, uint32_t bytes,
                        const uint8_t *own, uint8_t *dst)
{
    size_t n = 0, values = bytes / op->value;
    enum nb_dtype dtype;
    int coded = 0, quantizable = nb_policy_dtype(op->type, &dtype) == 0 && op->redop == ncclSum;

    for (int r = 0; r < comm->nranks; r++) {
        const struct nb_rx *rx = &comm->peer[r].rx[NB_CLASS_CONTRIB];
        if (r == comm->rank)
            continue;
        comm->sources[n].codec = rx->head.codec;
        comm->sources[n].coded = rx->mem + (rx->taken % rx->slots) * rx->slot + rx->head_bytes;
        comm->sources[n].len = rx->head.codec == NB_CODEC_RAW ? bytes : rx->head.coded;
        comm->plain[n] = comm->sources[n].coded;
        coded |= rx->head.codec != NB_CODEC_RAW;
        n++;
    }
    if (quantizable)
        return comm->device->reduce(dtype, comm->sources, n, own, values, piece->first, dst);
    if (coded)
        return -EBADMSG; /* quantized values of a type or reduction that has no quantizer */
    return comm->device->reduce_exact(op->type, op->redop, comm->plain, n, own, values, dst);
}

/* The reduced piece of an all-reduce: code it once for everyone, oneself included. */
static int publish_result(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_piece *piece, uint32_t bytes,
                          uint8_t *values)
{
    struct nb_pool *pool = &comm->result;
    struct nb_shared *unit = &pool->unit[pool->tail % pool->slots];
    struct nb_func_stats *stats = &comm->stats.func[NB_FUNC_ALL_REDUCE];
    struct nb_msg msg = {.func = NB_FUNC_ALL_REDUCE, .codec = (uint8_t)op->codec, .type = (uint8_t)op->type,
                         .op = (uint8_t)op->redop, .token = comm->token, .opno = op->opno, .offset = piece->off,
                         .bytes = bytes};
    size_t n = bytes / op->value;
    uint8_t *body = unit->buf + NB_MSG_BYTES;

    if (!piece->sure || n < NB_MIN_CODED_VALUES)
        msg.codec = NB_CODEC_RAW;
    if (msg.codec == NB_CODEC_RAW) {
        comm->device->copy(body, values, bytes);
        msg.coded = bytes;
        stats->raw_units += (uint64_t)comm->nranks - 1;
    } else {
        struct nb_ef ef;
        ssize_t coded;
        if (op->ef)
            nb_op_feedback(op, 0, &ef);
        coded = comm->device->encode(op->codec, op->dtype, values, n, piece->first, op->ef ? &ef : NULL, body,
                                     comm->unit_slot - NB_MSG_BYTES, NULL);
        if (coded < 0)
            return (int)coded;
        msg.coded = (uint32_t)coded;
        coded = comm->device->decode(op->codec, op->dtype, body, (size_t)coded, n, piece->first, values);
        if (coded < 0)
            return (int)coded;
    }
    nb_msg_pack(&msg, unit->buf);
    unit->len = NB_MSG_BYTES + msg.coded;
    unit->left = comm->nranks - 1;
    pool->tail++;
    for (int r = 1; r < comm->nranks; r++)
        nb_tx_push(&comm->peer[(comm->rank + r) % comm->nranks].tx[NB_CLASS_RESULT], unit->buf, unit->len, unit);
    stats->units += (uint64_t)comm->nranks - 1;
    stats->sent_bytes += bytes * ((uint64_t)comm->nranks - 1);
    stats->wire_bytes += unit->len * ((uint64_t)comm->nranks - 1);
    return 0;
}

/* 1 when a result can be handed to every peer now. */
static int result_room(struct nb_coll_comm *comm)
{
    if (comm->result.tail - comm->result.head == comm->result.slots)
        return 0;
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank && !nb_tx_buffer(&comm->peer[r].tx[NB_CLASS_RESULT]))
            return 0;
    return 1;
}

static int reduce_next(struct nb_coll_comm *comm)
{
    while (comm->red_seq < comm->begun) {
        struct nb_coll_req *win = nb_window(comm, comm->red_seq);
        struct nb_piece piece;
        const uint8_t *own;
        uint8_t *dst;
        int64_t bytes;
        int ret;

        if (comm->red_seq < comm->oldest) { /* finished without a piece of ours, perhaps used again */
            comm->red_seq = comm->oldest;
            comm->red_started = 0;
            continue;
        }
        if (!comm->red_started) {
            comm->red_started = 1;
            comm->red_off = win->off;
        }
        if (!comm->schedule->next_reduce(comm, win, comm->red_off, &piece)) {
            comm->red_seq++;
            comm->red_started = 0;
            continue;
        }
        if (win->op->func == NB_FUNC_ALL_REDUCE && !result_room(comm))
            return 0;
        ret = all_arrived(comm, win, &piece);
        if (ret <= 0)
            return ret;
        own = win->send + (piece.off - win->off);
        dst = win->op->func == NB_FUNC_ALL_REDUCE ? win->recv + (piece.off - win->off)
                                                  : win->recv + (piece.off - win->part_off);
        bytes = common_bytes(comm, win->op, &piece);
        if (bytes < 0)
            return (int)bytes;
        ret = bytes ? reduce_piece(comm, win->op, &piece, (uint32_t)bytes, own, dst) : 0;
        if (!ret && win->op->func == NB_FUNC_ALL_REDUCE)
            ret = publish_result(comm, win->op, &piece, (uint32_t)bytes, dst);
        if (ret)
            return nb_comm_error(comm, ret, "cannot reduce %s %llu, %u bytes at %llu: malformed contribution",
                                 nb_func_name(win->op->func), (unsigned long long)win->op->opno, piece.len,
                                 (unsigned long long)piece.off);
        for (int r = 0; r < comm->nranks; r++)
            if (r != comm->rank)
                nb_rx_take(&comm->peer[r].rx[NB_CLASS_CONTRIB]);
        comm->red_off = piece.off + piece.len;
        nb_window_received(comm, win, piece.len);
        return 1;
    }
    return 0;
}

int nb_receive_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    for (int r = 0; r < comm->nranks; r++) {
        if (r == comm->rank)
            continue;
        while ((ret = receive_gather(comm, &comm->peer[r])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
        while ((ret = receive_result(comm, &comm->peer[r])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
    }
    /* A few at a time: arrivals and departures of other pieces must not wait for a long row of sums. */
    for (int i = 0; i < 4 && (ret = reduce_next(comm)) > 0; i++)
        moved = 1;
    return ret < 0 ? ret : moved;
}
