/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages: sending, passing on, reading. Between nodes of a grid that are not connected they go through one that
 * is connected with both (grid.h): for an owner and a receiver of its block always the same node, the one in the owner's
 * column and the receiver's row. There confirmations are gathered on their way, so that an owner gets one from each row
 * and not one from each node; and as long as some of its row are missing, that node stays (`confirms_open`), since the
 * missing may have something to ask of the owner.
 *
 * Passing on needs no room that could be missing for ever. Of what goes to owners a node passes on at most one message
 * for each of its row at a time (struct nb_peer.asked, NB_GRID_MOST), fewer than a ring holds. Raw bytes, which come along
 * a column and go on along a row, wait in the column's ring for their turn; rows are always read.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/internal.h"

/* ---- sending ---------------------------------------------------------------------------------------- */

/* For a node that has asked, or will be answered: an owner; or node 0, which owns the switch. */
static int is_to_owner(enum nb_ctl_kind kind)
{
    return kind == NB_CTL_CONFIRM || kind == NB_CTL_RAW || kind == NB_CTL_SWITCH_ASK || kind == NB_CTL_SWITCHED;
}

/* Messages that may be for, or of, nodes that this one is not connected with. */
static int travels(enum nb_ctl_kind kind)
{
    return is_to_owner(kind) || kind == NB_CTL_DATA || kind == NB_CTL_SWITCH;
}

struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to)
{
    return &comm->peer[nb_grid_next(comm->grid, comm->rank, to, is_to_owner(kind))];
}

/* On a connection; `ctl` says of whom and to whom. */
static int put(struct nb_coll_comm *comm, struct nb_peer *hop, const struct nb_ctl *ctl)
{
    struct nb_tx *tx = &hop->tx[NB_CLASS_CONTROL];
    void *buf;

    if (hop->gone)
        return 0;
    buf = nb_tx_buffer(tx);
    if (!buf) {
        if (ctl->kind == NB_CTL_ALIVE || ctl->kind == NB_CTL_ABORT)
            return 0; /* the peer reads the ones before, or it will be found dead */
        return nb_comm_error(comm, -ENOBUFS, "%s has not taken %u control messages", hop->name, tx->slots);
    }
    nb_ctl_pack(ctl, buf);
    nb_tx_push(tx, buf, NB_CTL_BYTES, NULL);
    comm->stats.control_bytes += NB_CTL_BYTES;
    return 0;
}

int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what)
{
    struct nb_ctl ctl = *what;

    ctl.token = comm->token;
    ctl.from = (uint32_t)comm->rank;
    ctl.to = (uint32_t)peer->rank;
    return put(comm, nb_control_hop(comm, ctl.kind, peer->rank), &ctl);
}

/* ---- confirmations ---------------------------------------------------------------------------------- */

/* `nodes` more of this row have taken over the block of `owner`, a node of this column in another row. */
static int gather_confirm(struct nb_coll_comm *comm, int owner, uint64_t opno, int kept, uint32_t nodes)
{
    struct nb_confirms *c = &comm->confirms[(opno % NB_OPS) * (unsigned)comm->grid.rows +
                                            (unsigned)nb_grid_row(comm->grid, owner)];
    struct nb_ctl all = {.kind = NB_CTL_CONFIRM, .a = opno, .c = (uint32_t)comm->grid.columns};

    if (c->nodes && c->opno != opno)
        return nb_comm_error(comm, -EPROTO, "all_gather %llu of node %d's block is confirmed before all_gather %llu",
                             (unsigned long long)opno, owner, (unsigned long long)c->opno);
    if (c->nodes == 0) {
        *c = (struct nb_confirms){.opno = opno, .kept = 1};
        comm->confirms_open++;
    }
    c->nodes += nodes;
    c->kept &= kept;
    if (c->nodes > (uint32_t)comm->grid.columns)
        return nb_comm_error(comm, -EPROTO, "all_gather %llu of node %d's block is confirmed once too often",
                             (unsigned long long)opno, owner);
    if (c->nodes < (uint32_t)comm->grid.columns)
        return 0;
    all.b = (uint64_t)c->kept;
    c->nodes = 0;
    comm->confirms_open--;
    return nb_control(comm, &comm->peer[owner], &all);
}

int nb_confirm(struct nb_coll_comm *comm, int owner, uint64_t opno, int kept)
{
    struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = opno, .b = (uint64_t)kept, .c = 1};

    if (nb_on_grid(comm) && nb_grid_same_column(comm->grid, owner, comm->rank))
        return gather_confirm(comm, owner, opno, kept, 1);
    return nb_control(comm, &comm->peer[owner], &ctl);
}

/* ---- passing on ------------------------------------------------------------------------------------- */

/* A message that is not for this node, at the head of a ring. 1, 0 when it has to wait there, or < 0. */
static int pass_on(struct nb_coll_comm *comm, const struct nb_ctl *ctl, const uint8_t *message, size_t len)
{
    struct nb_peer *to = &comm->peer[ctl->to];
    struct nb_shared *unit = &to->resend;

    if (ctl->kind == NB_CTL_CONFIRM)
        return gather_confirm(comm, to->rank, ctl->a, ctl->b != 0, ctl->c) ? -1 : 1;
    if (ctl->kind != NB_CTL_DATA)
        return put(comm, to, ctl) ? -1 : 1;
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

/* 1 when a message that came from `via` may have come that way. */
static int came_well(const struct nb_coll_comm *comm, const struct nb_peer *via, const struct nb_ctl *ctl)
{
    const struct nb_grid g = comm->grid;
    int from = (int)ctl->from, to = (int)ctl->to, hop;

    if (ctl->from >= (uint32_t)comm->nranks || ctl->to >= (uint32_t)comm->nranks || from == to)
        return 0;
    if (from == via->rank && to == comm->rank)
        return 1;
    hop = nb_grid_next(g, from, to, is_to_owner(ctl->kind));
    return travels(ctl->kind) && hop != to && hop == (to == comm->rank ? via->rank : comm->rank) &&
           (to == comm->rank || from == via->rank);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

/* `data` follows a DATA message. */
static int handle(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl, const uint8_t *data)
{
    struct nb_peer *hop;

    switch (ctl->kind) {
    case NB_CTL_CONFIRM:
        if (ctl->c == 0 || ctl->c >= (uint32_t)comm->nranks)
            return nb_comm_error(comm, -EPROTO, "%s confirms for %u nodes", peer->name, ctl->c);
        nb_refs_confirmed(comm->refs, ctl->a, ctl->b != 0, ctl->c);
        break;
    case NB_CTL_RAW:
        hop = nb_control_hop(comm, NB_CTL_DATA, peer->rank);
        if (hop->nask == (nb_on_grid(comm) ? NB_GRID_MOST : NB_ASKS) || ctl->c == 0 || ctl->c > NB_CTL_DATA_BYTES)
            return nb_comm_error(comm, -EPROTO, "%s asks for raw bytes once too often", peer->name);
        hop->ask[hop->nask++] = (struct nb_ask){.opno = ctl->a, .off = ctl->b, .len = ctl->c, .rank = peer->rank};
        break;
    case NB_CTL_DATA:
        return nb_receive_resend(comm, peer, ctl, data);
    case NB_CTL_BYE:
        peer->bye = 1;
        peer->bye_count[0] = ctl->a;
        peer->bye_count[1] = ctl->b;
        break;
    case NB_CTL_BYE_ACK:
        peer->our_bye_acked = 1;
        break;
    case NB_CTL_ABORT:
        if (comm->state == NB_COMM_RUNNING)
            return nb_comm_error(comm, -ECONNABORTED, "%s has failed: %s", peer->name, ctl->text);
        peer->gone = 1;
        break;
    case NB_CTL_SWITCH_ASK:
    case NB_CTL_SWITCH:
    case NB_CTL_SWITCHED:
        return nb_switch_control(comm, peer, ctl);
    default:
        break;
    }
    return 0;
}

int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
    const uint8_t *slot;
    int moved = 0, ret;

    while ((slot = nb_rx_head(comm, peer, NB_CLASS_CONTROL)) != NULL) {
        struct nb_ctl ctl;
        const char *why = "";
        size_t len = rx->len[nb_rx_at(rx)];
        if (nb_ctl_parse(slot, len, comm->token, &ctl, &why))
            return nb_comm_error(comm, -EBADMSG, "malformed control message of %zu bytes from %s: %s", len, peer->name,
                                 why);
        if (!came_well(comm, peer, &ctl))
            return nb_comm_error(comm, -EPROTO, "%s sent control message %u of node %u to node %u, which does not go "
                                 "through it", peer->name, ctl.kind, ctl.from, ctl.to);
        if (ctl.to != (uint32_t)comm->rank) {
            ret = pass_on(comm, &ctl, slot, len);
            if (ret <= 0)
                return ret < 0 ? ret : moved;
        }
        nb_rx_take(rx); /* its slot is not filled again before links are moved */
        if (ctl.to == (uint32_t)comm->rank && handle(comm, &comm->peer[ctl.from], &ctl, slot + NB_CTL_BYTES))
            return -1;
        moved = 1;
    }
    if (peer->bye && !peer->bye_acked && peer->rx[NB_CLASS_CONTRIB].arrived >= peer->bye_count[0] &&
        peer->rx[NB_CLASS_RESULT].arrived >= peer->bye_count[1]) {
        struct nb_ctl ack = {.kind = NB_CTL_BYE_ACK};
        peer->bye_acked = 1;
        if (nb_control(comm, peer, &ack))
            return -1;
        moved = 1;
    }
    return moved;
}
