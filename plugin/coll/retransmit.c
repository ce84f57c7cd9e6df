/* SPDX-License-Identifier: Apache-2.0 */
/* Retransmit requests; see retransmit.h. */
#include "coll/retransmit.h"

#include <errno.h>
#include <string.h>

#include "coll/comm.h"
#include "coll/control_send.h"
#include "coll/payload.h"
#include "coll/task.h"
#include "nibble/codec.h"

#define RETRIES 3u /* of damaged bytes, before it is no accident */

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

int nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    if (t->got == t->bytes)
        return 0;
    if (!t->owner->raw.waiting) {
        t->owner->raw.waiting = t;
        ret = ask_raw(comm, t);
        if (ret)
            return ret;
    }
    return -EAGAIN;
}

int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           const uint8_t *data)
{
    struct nb_device *dev = comm->device;
    struct nb_task *t = peer->raw.waiting;

    if (!t || ctl->a != t->msg.opno || ctl->b != nb_task_place_in_block(t) + t->got || ctl->c == 0 ||
        ctl->c > t->bytes - t->got)
        return nb_comm_error(comm, -EPROTO, "%s sent raw bytes of all_gather %llu that were not asked for",
                             peer->name, (unsigned long long)ctl->a);
    if (nb_hash64(data, ctl->c, NB_PAYLOAD_SEED) != ctl->check) {
        if (t->retries++ == RETRIES)
            return nb_payload_damaged(comm, peer, peer->rank, &t->msg);
        nb_payload_damage_mended(comm, peer, peer->rank, &t->msg);
        return ask_raw(comm, t);
    }
    dev->ops->copy(dev, NULL, t->values + t->got, data, ctl->c);
    t->got += ctl->c;
    t->retries = 0;
    if (t->got < t->bytes)
        return ask_raw(comm, t);
    peer->raw.waiting = NULL;
    return 0;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    struct nb_peer *hop = nb_control_hop(comm, NB_CTL_DATA, peer->rank);

    if (hop->raw.n == hop->raw.most || ctl->c == 0 || ctl->c > NB_CTL_DATA_BYTES)
        return nb_comm_error(comm, -EPROTO, "%s asks for raw bytes once too often", peer->name);
    hop->raw.ask[hop->raw.n++] =
        (struct nb_ask){.opno = ctl->a, .off = ctl->b, .len = ctl->c, .rank = peer->rank};
    return 0;
}

int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];
    struct nb_shared *unit = &peer->raw.answer;
    int moved = 0;

    while (peer->raw.n && unit->left == 0 && nb_tx_buffer(tx)) {
        const struct nb_ask *ask = &peer->raw.ask[0];
        struct nb_ctl ctl = {.kind = NB_CTL_DATA,
                             .token = comm->token,
                             .from = (uint32_t)comm->rank,
                             .to = (uint32_t)ask->rank,
                             .a = ask->opno,
                             .b = ask->off,
                             .c = ask->len};
        const void *data = nb_refs_find_op(comm->refs, ctl.a, ctl.b, ctl.c);

        if (!data)
            return nb_comm_error(comm, -EPROTO, "%s asks for bytes of all_gather %llu that are gone",
                                 comm->peer[ask->rank].name, (unsigned long long)ctl.a);
        comm->device->ops->copy(comm->device, NULL, unit->buf + NB_CTL_BYTES, data, ctl.c);
        ctl.check = nb_hash64(unit->buf + NB_CTL_BYTES, ctl.c, NB_PAYLOAD_SEED);
        nb_ctl_pack(&ctl, unit->buf);
        unit->len = NB_CTL_BYTES + ctl.c;
        unit->ready = 1;
        unit->left = 1;
        nb_tx_push(tx, unit->buf, unit->len, unit);
        comm->stats.func[NB_FUNC_ALL_GATHER].wire_bytes += unit->len;
        comm->stats.resends++;
        memmove(peer->raw.ask, peer->raw.ask + 1, (--peer->raw.n) * sizeof(peer->raw.ask[0]));
        moved = 1;
    }
    return moved;
}
