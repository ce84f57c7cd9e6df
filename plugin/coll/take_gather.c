/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of all-gathers: blocks are delivered as they come, each owner's pieces in order, many at a time.
 * Differences are added to this node's copy of the reference; where that does not fit, raw bytes are asked for, and the
 * task waits for them.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/task.h"

/* ---- raw bytes that are asked for -------------------------------------------------------------------- */

static uint64_t place_in_block(const struct nb_task *t)
{
    return t->msg.offset - (uint64_t)t->owner->rank * t->op->block;
}

static int ask_raw(struct nb_coll_comm *comm, struct nb_task *t)
{
    uint32_t left = t->bytes - t->got;
    struct nb_ctl ctl = {.kind = NB_CTL_RAW, .a = t->msg.opno, .b = place_in_block(t) + t->got,
                         .c = left < NB_CTL_DATA_BYTES ? left : NB_CTL_DATA_BYTES};

    return nb_control(comm, t->owner, &ctl);
}

int nb_gather_ask(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    if (t->got == t->bytes)
        return 0;
    if (!t->owner->asked) {
        t->owner->asked = t;
        ret = ask_raw(comm, t);
        if (ret)
            return ret;
    }
    return -EAGAIN;
}

int nb_receive_resend(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl, const uint8_t *data)
{
    struct nb_device *dev = comm->device;
    struct nb_task *t = peer->asked;

    if (!t || ctl->a != t->msg.opno || ctl->b != place_in_block(t) + t->got || ctl->c == 0 ||
        ctl->c > t->bytes - t->got)
        return nb_comm_error(comm, -EPROTO, "%s sent raw bytes of all_gather %llu that were not asked for", peer->name,
                             (unsigned long long)ctl->a);
    dev->ops->copy(dev, NULL, t->values + t->got, data, ctl->c);
    t->got += ctl->c;
    if (t->got < t->bytes)
        return ask_raw(comm, t);
    peer->asked = NULL;
    return 0;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

/* The piece is delivered, and its bytes are kept, or could not be. */
static int delivered(struct nb_coll_comm *comm, struct nb_task *t)
{
    const struct nb_msg *m = &t->msg;
    struct nb_peer *owner = t->owner;
    int kept = t->ref || !(m->flags & NB_MSG_KEEP);

    owner->gather_tasks--;
    if (m->flags & NB_MSG_WAY) {
        nb_two_hop_note(t->op, owner->rank, m, kept);
        return NB_TASK_OVER;
    }
    owner->gather_done += m->bytes;
    owner->gather_kept &= kept;
    if (owner->gather_done == t->op->block && owner->gather_keep) {
        struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = m->opno, .b = (uint64_t)owner->gather_kept, .c = 1};
        if (nb_control(comm, owner, &ctl))
            return -1;
    }
    return NB_TASK_OVER;
}

/* The bytes are where NCCL wants them: keep them as the reference. */
static int keep(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (!t->ref)
        return delivered(comm, t);
    t->step = NB_STEP_STORE;
    return NB_TASK_MORE;
}

/* This node does not hold what the differences are from. */
static int ask(struct nb_task *t)
{
    NB_INFO(NCCL_NET, "reference %u of %s does not fit: asking for raw bytes of all_gather %llu", t->msg.slot,
            t->owner->name, (unsigned long long)t->msg.opno);
    t->got = 0;
    t->step = NB_STEP_ASK;
    return NB_TASK_MORE;
}

static int stepped(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_device *dev = comm->device;
    uint8_t *ref;

    if (t->step == NB_STEP_ADD || t->step == NB_STEP_SHOW)
        nb_task_release_head(t);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot take %u bytes, codec %u, from %s in all_gather %llu: %s",
                             t->bytes, t->msg.codec, t->owner->name, (unsigned long long)t->msg.opno,
                             strerror((int)-result));
    switch (t->step) {
    case NB_STEP_RECALL: return t->msg.new_hash == t->msg.ref_hash ? delivered(comm, t) : ask(t);
    case NB_STEP_ADD: return dev->ops->hash(dev, t->values, t->bytes, 0) == t->msg.new_hash ? keep(comm, t) : ask(t);
    case NB_STEP_ASK:
        ref = NULL;
        if (t->msg.flags & NB_MSG_KEEP)
            ref = nb_refs_of_peer(comm->refs, t->owner->rank, t->msg.slot, t->op->block, 1);
        t->ref = ref ? ref + place_in_block(t) : NULL;
        return keep(comm, t);
    case NB_STEP_STORE: return delivered(comm, t);
    default: return keep(comm, t);
    }
}

/* 1 when the differences can be added to what this node holds. */
static int fits(struct nb_coll_comm *comm, const struct nb_task *t)
{
    if (t->ref && comm->fault_ref && ++comm->fault_ref % 3 == 0)
        t->ref[t->bytes / 2] ^= 0x10;
    return t->ref && comm->device->ops->hash(comm->device, t->ref, t->bytes, 0) == t->msg.ref_hash;
}

/* The first step: 0, or a negative errno when the message makes no sense. */
static int plan(struct nb_coll_comm *comm, struct nb_task *t)
{
    const struct nb_msg *m = &t->msg;
    uint64_t rel = place_in_block(t);

    switch (m->codec) {
    case NB_CODEC_RAW:
        t->step = NB_STEP_SHOW;
        return 0;
    case NB_CODEC_INT8:
        if (nb_policy_dtype((ncclDataType_t)m->type, &t->dtype))
            return -EBADMSG;
        t->value = nb_dtype_size(t->dtype);
        t->first = rel / t->value;
        t->step = NB_STEP_SHOW;
        return rel % t->value || m->bytes % t->value ? -EBADMSG : 0;
    default:
        t->width = (enum nb_ulp_width)m->type;
        if (m->coded && m->codec == NB_CODEC_DELTA4 && nb_policy_dtype((ncclDataType_t)m->type, &t->dtype))
            return -EBADMSG;
        if (!fits(comm, t))
            ask(t);
        else
            t->step = m->coded ? NB_STEP_ADD : NB_STEP_RECALL;
        return 0;
    }
}

/* ---- one piece --------------------------------------------------------------------------------------- */

/* The operation before has to be out of the way: it writes the reference that this one is decoded against. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m)
{
    return comm->task_free && (!owner->gather_tasks || owner->gather_task_op == m->opno);
}

int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_coll_req *win,
                   const struct nb_piece *piece, struct nb_rx *rx)
{
    const struct nb_msg *m = &rx->head;
    struct nb_task *t = nb_task_new(comm, win, piece);
    uint8_t *ref = NULL;
    int ret;

    t->next = stepped;
    t->msg = *m;
    t->owner = owner;
    t->body = rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes;
    t->bytes = m->bytes;
    t->values = win->recv + (m->offset - win->off);
    t->delivers = piece->len;
    if (m->flags & NB_MSG_KEEP)
        ref = nb_refs_of_peer(comm->refs, owner->rank, m->slot, win->op->block,
                              m->codec != NB_CODEC_ULP && m->codec != NB_CODEC_DELTA4);
    t->ref = ref ? ref + place_in_block(t) : NULL;
    ret = plan(comm, t);
    if (ret) {
        nb_task_drop(comm, t);
        return nb_comm_error(comm, ret, "malformed message from %s in all_gather %llu: codec %u, type %u, %u bytes at "
                             "%llu", owner->name, (unsigned long long)m->opno, m->codec, m->type, m->bytes,
                             (unsigned long long)m->offset);
    }
    owner->gather_tasks++;
    owner->gather_task_op = m->opno;
    if (t->step == NB_STEP_ADD || t->step == NB_STEP_SHOW)
        nb_task_hold_head(t, owner, rx);
    else
        nb_rx_take(rx);
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}

int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const struct nb_msg *m = &rx->head;
    struct nb_piece piece;
    struct nb_coll_req *win;
    uint64_t rel;

    if (!nb_rx_head(comm, peer, NB_CLASS_CONTRIB) || m->func != NB_FUNC_ALL_GATHER)
        return 0;
    win = nb_find_window(comm, peer, m, &peer->rx_seq, &piece);
    if (!win || (m->flags & NB_MSG_WAY)) /* the latter are taken in the order of windows: two_hop_gather.c, two_level.c */
        return 0;
    rel = m->offset - (uint64_t)peer->rank * win->op->block;
    /* A block's pieces come in order: a repeated or skipped one would be counted as another. */
    if (piece.owner != peer->rank ||
        rel != (peer->gather_open && peer->gather_op == m->opno ? peer->gather_bytes : 0))
        return nb_comm_error(comm, -EPROTO, "%s sent %u bytes at %llu of node %d's block in all_gather %llu, codec %u, "
                             "which are not next", peer->name, m->bytes, (unsigned long long)m->offset, piece.owner,
                             (unsigned long long)m->opno, m->codec);
    if (!nb_gather_can_take(comm, peer, m))
        return 0;
    if (!peer->gather_open || peer->gather_op != m->opno) {
        peer->gather_open = 1;
        peer->gather_op = m->opno;
        peer->gather_bytes = peer->gather_done = 0;
        peer->gather_keep = 0;
        peer->gather_kept = 1;
    }
    peer->gather_bytes += m->bytes;
    peer->gather_keep |= m->flags & NB_MSG_KEEP;
    if (peer->gather_bytes == win->op->block) {
        peer->gather_open = 0;
        peer->gathers_done = m->opno + 1;
    }
    return nb_gather_take(comm, peer, win, &piece, rx);
}
