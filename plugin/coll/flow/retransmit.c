/* SPDX-License-Identifier: Apache-2.0 */
/* Retransmission: raw bytes of all-gathers that a receiver requests. */
#include <errno.h>
#include <string.h>

#include "coll/flow/internal.h"
#include "nibble/codec.h"

#define RETRIES 3u /* of damaged bytes: more retries mean that the damage is systematic */

/* ---- requests ---------------------------------------------------------------------------------------- */

static int ask_raw(struct nb_coll_comm *comm, struct nb_task *t)
{
    uint32_t left = t->bytes - t->got;
    struct nb_ctl ctl = {.kind = NB_CTL_RAW,
                         .a = t->msg.opno,
                         .b = nb_task_place_in_block(t) + t->got,
                         .c = left < NB_CTL_DATA_BYTES ? left : NB_CTL_DATA_BYTES};

    return nb_control(comm, t->owner, &ctl);
}

ssize_t nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    if (t->from)
        return comm->device->ops->copy(comm->device, &t->work, t->values + t->got, t->from, t->part);
    if (!t->owner->flow->raw.waiting) {
        t->owner->flow->raw.waiting = t;
        ret = ask_raw(comm, t);
        if (ret)
            return ret;
    }
    return -EAGAIN;
}

bool nb_retransmit_copied(struct nb_coll_comm *comm, struct nb_task *t, int *error)
{
    nb_task_release_head(t);
    t->rx = NULL;
    t->from = NULL;
    t->got += t->part;
    t->retries = 0;
    *error = t->got < t->bytes ? ask_raw(comm, t) : 0;
    if (t->got < t->bytes)
        return false;
    t->owner->flow->raw.waiting = NULL;
    return true;
}

int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           struct nb_rx *rx, unsigned at)
{
    const uint8_t *data = rx->mem + at * rx->buffer_bytes + NB_CTL_BYTES;
    struct nb_task *t = peer->flow->raw.waiting;

    if (!t || t->from || ctl->a != t->msg.opno || ctl->b != nb_task_place_in_block(t) + t->got ||
        ctl->c == 0 || ctl->c > t->bytes - t->got)
        return nb_comm_error(comm, -EPROTO, "%s sent raw bytes of all_gather %llu that were not asked for",
                             peer->name, (unsigned long long)ctl->a);
    if (nb_hash64(data, ctl->c, NB_PAYLOAD_SEED) != ctl->check) {
        if (t->retries++ == RETRIES)
            return nb_payload_damaged(comm, peer, peer->rank, &t->msg);
        nb_payload_damage_mended(comm, peer, peer->rank, &t->msg);
        return ask_raw(comm, t);
    }
    t->from = data;
    t->part = ctl->c;
    t->rx = rx;
    t->at = at;
    rx->held[at]++;
    return 0;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    struct nb_peer *hop = nb_control_hop(comm, NB_CTL_DATA, peer->rank);

    if (hop->flow->raw.n == hop->flow->raw.most || ctl->c == 0 || ctl->c > NB_CTL_DATA_BYTES)
        return nb_comm_error(comm, -EPROTO, "%s asks for raw bytes once too often", peer->name);
    hop->flow->raw.ask[hop->flow->raw.n++] =
        (struct nb_ask){.opno = ctl->a, .off = ctl->b, .len = ctl->c, .rank = peer->rank};
    return 0;
}

/* Handle the result of the copy for the first answer, as the device's functions return it. */
static int set_copying(struct nb_coll_comm *comm, struct nb_peer *peer, int ret)
{
    struct nb_peer_raw *raw = &peer->flow->raw;
    const bool before = raw->answering == NB_ANSWER_COPYING;

    if (ret < 0 && ret != -EINPROGRESS && ret != -EAGAIN)
        return nb_comm_error(comm, ret, "cannot copy bytes of all_gather %llu that %s asks for: %s",
                             (unsigned long long)raw->ask[0].opno, comm->peer[raw->ask[0].rank].name,
                             strerror(-ret));
    raw->answering = ret == -EINPROGRESS ? NB_ANSWER_COPYING
                     : ret == -EAGAIN    ? NB_ANSWER_NONE
                                         : NB_ANSWER_COPIED;
    raw->answer.left = raw->answering != NB_ANSWER_NONE; /* meanwhile no relayed message uses it */
    comm->flow->retransmits.copying += (unsigned)(raw->answering == NB_ANSWER_COPYING) - (unsigned)before;
    return 0;
}

static int begin_answer(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    const struct nb_ask *ask = &peer->flow->raw.ask[0];
    const void *data = nb_refs_find_op(comm->refs, ask->opno, ask->off, ask->len);

    if (!data)
        return nb_comm_error(comm, -EPROTO, "%s asks for bytes of all_gather %llu that are gone",
                             comm->peer[ask->rank].name, (unsigned long long)ask->opno);
    return set_copying(comm, peer,
                       comm->device->ops->copy(comm->device, &peer->flow->raw.work,
                                               peer->flow->raw.answer.buf + NB_CTL_BYTES, data, ask->len));
}

/* Send the answer, whose bytes are in place. The ring has room. */
static void send_answer(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_peer_raw *raw = &peer->flow->raw;
    struct nb_shared *unit = &raw->answer;
    const struct nb_ask *ask = &raw->ask[0];
    const struct nb_ctl ctl = {.kind = NB_CTL_DATA,
                               .token = comm->token,
                               .from = (uint32_t)comm->rank,
                               .to = (uint32_t)ask->rank,
                               .a = ask->opno,
                               .b = ask->off,
                               .c = ask->len,
                               .check = nb_hash64(unit->buf + NB_CTL_BYTES, ask->len, NB_PAYLOAD_SEED)};

    nb_ctl_pack(&ctl, unit->buf);
    unit->len = NB_CTL_BYTES + ctl.c;
    unit->ready = 1;
    raw->answering = NB_ANSWER_NONE;
    nb_tx_push(&peer->tx[NB_CLASS_CONTROL], unit->buf, unit->len, unit);
    comm->stats.func[NB_FUNC_ALL_GATHER].wire_bytes += unit->len;
    comm->stats.resends++;
    memmove(raw->ask, raw->ask + 1, (--raw->n) * sizeof(raw->ask[0]));
}

int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_peer_raw *raw = &peer->flow->raw;
    struct nb_device *dev = comm->device;
    int moved = 0, ret = 0;

    while (raw->n && nb_tx_buffer(&peer->tx[NB_CLASS_CONTROL])) {
        if (raw->answering == NB_ANSWER_COPYING)
            ret = set_copying(comm, peer, (int)dev->ops->poll(dev, &raw->work));
        else if (raw->answering == NB_ANSWER_NONE && raw->answer.left == 0)
            ret = begin_answer(comm, peer);
        if (ret < 0)
            return ret;
        if (raw->answering != NB_ANSWER_COPIED)
            break;
        if (nb_device_failed(comm))
            return -1;
        send_answer(comm, peer);
        moved = 1;
    }
    return moved;
}

int nb_retransmit_relay(struct nb_coll_comm *comm, struct nb_peer *to, const uint8_t *message, size_t len)
{
    struct nb_shared *unit = &to->flow->raw.answer;

    if (to->gone)
        return 1;
    if (unit->left || !nb_tx_buffer(&to->tx[NB_CLASS_CONTROL]))
        return 0;
    memcpy(unit->buf, message, len);
    unit->len = len;
    unit->ready = unit->left = 1;
    nb_tx_push(&to->tx[NB_CLASS_CONTROL], unit->buf, len, unit);
    comm->stats.func[NB_FUNC_ALL_GATHER].wire_bytes += len;
    return 1;
}
