/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives all-gathers. This node delivers blocks as they arrive, many at a time, each owner's segments in
 * order. It adds deltas to its copy of the reference. Where that copy does not fit, the task requests raw
 * bytes and waits for them.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/flow/internal.h"

/* ---- steps ------------------------------------------------------------------------------------------- */

/*
 * Message                          first step                      next steps
 *
 *   raw or quantized values        DECODE        the values        STORE_REF to keep them; before it HASH
 *                                                                  where kept raw values are checked, and
 *                                                                  RETRANSMIT where the hash is wrong
 *   deltas                         HASH_REF: does the reference fit? Then
 *                                  DELTA_DECODE  reference + them  HASH. If right STORE_REF, else RETRANSMIT
 *   header only                    HASH_REF likewise, then
 *                                  LOAD_REF      the reference     done. If the hashes differ RETRANSMIT
 *   either, reference misfits      RETRANSMIT    the owner's bytes HASH, then STORE_REF to keep them
 *
 * After STORE_REF (values into the reference) the segment is delivered. The task holds the message buffer of
 * the ring until the message is decoded, or until it is known that it will not be decoded.
 */

/* The segment is delivered. Note whether its bytes were kept or could not be kept. */
static int delivered(struct nb_coll_comm *comm, struct nb_task *t)
{
    const struct nb_msg *m = &t->msg;
    struct nb_peer *owner = t->owner;
    int kept = t->ref || !(m->flags & NB_MSG_KEEP);

    owner->gather.tasks--;
    return t->op->schedule->delivered(comm, t->op, owner, m, kept) ? -1 : NB_TASK_OVER;
}

/* The bytes are in place. Keep them as the reference. */
static int keep(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (!t->ref)
        return delivered(comm, t);
    t->step = NB_STEP_STORE_REF;
    return NB_TASK_MORE;
}

/* Release the message. */
static void release_head(struct nb_task *t)
{
    if (t->rx)
        nb_task_release_head(t);
    t->rx = NULL;
}

static int ask(struct nb_task *t)
{
    release_head(t);
    t->resent = true;
    t->got = 0;
    t->retries = 0;
    t->step = NB_STEP_RETRANSMIT;
    return NB_TASK_MORE;
}

/* This node lacks the reference of the deltas. Request raw bytes. */
static int ask_without_reference(struct nb_task *t)
{
    NB_INFO(NCCL_NET, "reference %u of %s does not fit: asking for raw bytes of all_gather %llu",
            t->msg.ref_number, t->owner->name, (unsigned long long)t->msg.opno);
    return ask(t);
}

/* The data is damaged: the message, or bytes on their way through this node. Request raw bytes. */
static int ask_after_damage(struct nb_coll_comm *comm, struct nb_task *t)
{
    nb_payload_damage_mended(comm, t->peer, t->owner->rank, &t->msg);
    return ask(t);
}

/* Compare the values with the owner's hash. */
static int check(struct nb_task *t)
{
    t->step = NB_STEP_HASH;
    return NB_TASK_MORE;
}

/* A part of the requested bytes is in place. Continue. */
static int resent(struct nb_coll_comm *comm, struct nb_task *t)
{
    int error;

    if (nb_retransmit_copied(comm, t, &error))
        return check(t);
    return error ? error : NB_TASK_MORE;
}

/* Raw or quantized values are in place. Continue. */
static int decoded(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (!(t->msg.flags & NB_MSG_KEEP) || t->msg.codec != NB_CODEC_RAW || !nb_payload_compares_kept(comm))
        return keep(comm, t);
    comm->stats.payload_checked++;
    comm->stats.payload_checked_bytes += t->bytes;
    return check(t);
}

static int checked(struct nb_coll_comm *comm, struct nb_task *t)
{
    const bool as_meant = t->seen.hash == t->msg.new_hash;
    uint8_t *ref = NULL;

    if (!t->resent)
        return as_meant ? keep(comm, t) : ask_after_damage(comm, t);
    if (!as_meant) /* the second time: the damage did not happen on the way */
        return nb_payload_damaged(comm, t->owner, t->owner->rank, &t->msg);
    if (t->msg.flags & NB_MSG_KEEP)
        ref = nb_refs_of_peer(comm->refs, t->owner->rank, t->msg.ref_number, t->op->block, 1);
    t->ref = ref ? ref + nb_task_place_in_block(t) : NULL;
    return keep(comm, t);
}

/* Compare the hash of this node's reference with the message's. */
static int compared(struct nb_task *t)
{
    if (t->seen.hash != t->msg.ref_hash)
        return ask_without_reference(t);
    t->step = t->msg.coded ? NB_STEP_DELTA_DECODE : NB_STEP_LOAD_REF;
    return NB_TASK_MORE;
}

static int step_done(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    if (t->step == NB_STEP_DELTA_DECODE || t->step == NB_STEP_DECODE)
        release_head(t);
    if (t->step == NB_STEP_DELTA_DECODE && result == -EBADMSG)
        return ask_after_damage(comm, t);
    if (result < 0)
        return nb_comm_error(
            comm, (int)result, "cannot take %u bytes, codec %u, from %s in all_gather %llu: %s", t->bytes,
            t->msg.codec, t->owner->name, (unsigned long long)t->msg.opno, strerror((int)-result));
    switch (t->step) {
    case NB_STEP_RETRANSMIT: return resent(comm, t);
    case NB_STEP_HASH_REF: return compared(t);
    case NB_STEP_LOAD_REF:
        return t->msg.new_hash == t->msg.ref_hash ? delivered(comm, t) : ask_without_reference(t);
    case NB_STEP_DELTA_DECODE: return check(t);
    case NB_STEP_HASH: return checked(comm, t);
    case NB_STEP_STORE_REF: return delivered(comm, t);
    default: return decoded(comm, t);
    }
}

/* Choose the first step. Return 0, or a negative errno when the message makes no sense. */
static int first_step(struct nb_coll_comm *comm, struct nb_task *t)
{
    const struct nb_msg *m = &t->msg;
    const struct nb_codec_row *codec = nb_codec_row(m->codec);

    if (!codec->reference) {
        t->step = NB_STEP_DECODE;
        return 0;
    }
    if (codec->format == NB_FORMAT_VALUES && m->coded && nb_policy_dtype((ncclDataType_t)m->type, &t->dtype))
        return -EBADMSG;
    if (codec->format == NB_FORMAT_PATTERNS)
        t->width = (enum nb_ulp_width)m->type;
    if (t->ref && comm->fault_ref && ++comm->fault_ref % 3 == 0)
        t->ref[t->bytes / 2] ^= 0x10;
    if (t->ref)
        t->step = NB_STEP_HASH_REF;
    else
        ask_without_reference(t);
    return 0;
}

/* ---- one segment ------------------------------------------------------------------------------------- */

/* Wait for the operation before this one: it writes the reference that this one needs. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m)
{
    return nb_tasks_to_be_had(&comm->flow->tasks) &&
           (!owner->gather.tasks || owner->gather.task_op == m->opno);
}

int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_peer *from,
                   struct nb_coll_req *win, const struct nb_segment *segment, struct nb_rx *rx)
{
    const struct nb_msg *m = &rx->head;
    struct nb_task *t = nb_task_new(comm, win, segment);
    uint8_t *ref = NULL;
    int ret;

    t->next = step_done;
    t->msg = *m;
    t->owner = owner;
    t->peer = from;
    t->body = nb_rx_body(rx);
    t->bytes = m->bytes;
    t->values = win->recv + (m->offset - win->off);
    t->resent = false;
    t->delivers = segment->len;
    if (nb_payload_verify(comm, from, owner->rank, m, t->body)) {
        nb_task_drop(comm, t);
        return -1;
    }
    if (m->flags & NB_MSG_KEEP)
        ref = nb_refs_of_peer(comm->refs, owner->rank, m->ref_number, win->op->block,
                              !nb_codec_row(m->codec)->reference);
    t->ref = ref ? ref + nb_task_place_in_block(t) : NULL;
    ret = first_step(comm, t);
    if (ret) {
        nb_task_drop(comm, t);
        return nb_comm_error(comm, ret,
                             "malformed message from %s in all_gather %llu: codec %u, type %u, %u bytes at "
                             "%llu",
                             owner->name, (unsigned long long)m->opno, m->codec, m->type, m->bytes,
                             (unsigned long long)m->offset);
    }
    owner->gather.tasks++;
    owner->gather.task_op = m->opno;
    if (t->step == NB_STEP_DECODE || (t->step == NB_STEP_HASH_REF && m->coded))
        nb_task_hold_head(t, from, rx);
    else
        nb_rx_take(rx);
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}

int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const struct nb_msg *m = &rx->head;
    struct nb_segment segment;
    struct nb_coll_req *win;
    uint64_t rel;

    if (!nb_rx_head(comm, peer, NB_CLASS_CONTRIB) || m->func != NB_FUNC_ALL_GATHER)
        return 0;
    win = nb_find_window(comm, peer, m, &peer->gather.seq, &segment);
    if (!win ||
        win->op->schedule->next_forward) /* forward.c takes other nodes' segments, in the order of windows */
        return 0;
    rel = m->offset - (uint64_t)peer->rank * win->op->block;
    /* A block's segments come in order. A repeated or skipped segment would be counted as another one. */
    if (segment.owner != peer->rank ||
        rel != (peer->gather.open && peer->gather.op == m->opno ? peer->gather.bytes : 0))
        return nb_comm_error(comm, -EPROTO,
                             "%s sent %u bytes at %llu of node %d's block in all_gather %llu, codec %u, "
                             "which are not next",
                             peer->name, m->bytes, (unsigned long long)m->offset, segment.owner,
                             (unsigned long long)m->opno, m->codec);
    if (!nb_gather_can_take(comm, peer, m))
        return 0;
    if (!peer->gather.open || peer->gather.op != m->opno) {
        peer->gather.open = 1;
        peer->gather.op = m->opno;
        peer->gather.bytes = peer->gather.delivered = 0;
        peer->gather.keep = 0;
        peer->gather.kept = 1;
    }
    peer->gather.bytes += m->bytes;
    peer->gather.keep |= m->flags & NB_MSG_KEEP;
    if (peer->gather.bytes == win->op->block) {
        peer->gather.open = 0;
        peer->gather.next_op = m->opno + 1;
    }
    return nb_gather_take(comm, peer, peer, win, &segment, rx);
}
