/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages: sending, passing on, reading. Between nodes of a grid that are not connected they go
 * through one that is connected with both (grid.h): for an owner and a receiver of its block always the same
 * node, the one in the owner's column and the receiver's row.
 *
 * Confirmations are gathered there: at the end of an all-gather a node tells each of its row that it has the
 * blocks of that one's column, and who has heard of all of its row tells the others of its column. So an
 * owner hears once of each row, and no connection carries more than one message for an operation. As long as
 * some of its row are missing a node stays (`confirms_open`): these may have something to ask of an owner,
 * through it.
 *
 * Passing on needs no room that could be missing for ever. Of what goes to an owner a node passes on at most
 * one request of each of its row at a time (struct nb_peer.asked), and to node 0 two more; a ring holds that
 * of NB_GRID_MOST nodes. Raw bytes, which come along a column and go on along a row, wait in the column's
 * ring for their turn; rows are always read.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "coll/internal.h"

/* ---- sending ---------------------------------------------------------------------------------------- */

/* For a node that has asked, or will be answered: an owner; or node 0, which owns the switch. */
static int is_to_owner(enum nb_ctl_kind kind)
{
    return kind == NB_CTL_RAW || kind == NB_CTL_SWITCH_ASK || kind == NB_CTL_SWITCHED;
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

static int bit(const uint64_t *bits, int at) { return (int)(bits[at / 64] >> (at % 64) & 1); }

/* All of the row have taken over the blocks of this column: tell the owners in other rows. */
static int tell_owners(struct nb_coll_comm *comm, const struct nb_confirms *c)
{
    for (int i = 0; i < comm->nnear; i++) {
        const int row = nb_grid_row(comm->grid, comm->near[i]->rank);
        const struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = c->opno, .b = (uint64_t)!bit(c->lost, row),
                                   .c = (uint32_t)comm->grid.columns};
        if (row != nb_grid_row(comm->grid, comm->rank) && bit(c->rows, row) && nb_control(comm, comm->near[i], &ctl))
            return -1;
    }
    return 0;
}

/* What is known of an operation, or a place for it; NULL: there is none. The messages of one node may come
 * much later than those of others, so that what is open need not lie close together. */
static struct nb_confirms *confirms_of(struct nb_coll_comm *comm, uint64_t opno)
{
    struct nb_confirms *place = NULL;
    unsigned seen = 0;

    for (unsigned i = 0; i < NB_OPS && (seen < comm->confirms_open || !place); i++) {
        struct nb_confirms *c = &comm->confirms[(opno + i) % NB_OPS];
        if (c->nodes && c->opno == opno)
            return c;
        seen += c->nodes != 0;
        if (!c->nodes && !place)
            place = c;
    }
    return place;
}

/* One more node of this row has taken over the blocks of this column. 0 or < 0. */
static int gather_confirm(struct nb_coll_comm *comm, uint64_t opno, const uint64_t rows[2], const uint64_t lost[2])
{
    const int row = nb_grid_row(comm->grid, comm->rank);
    uint64_t others[2] = {rows[0], rows[1]};
    struct nb_confirms *c;

    others[row / 64] &= ~(UINT64_C(1) << (row % 64));
    if (!others[0] && !others[1]) /* there is no owner to be told */
        return 0;
    c = confirms_of(comm, opno);
    if (!c)
        return nb_comm_error(comm, -EPROTO, "all_gather %llu is confirmed before %u others are",
                             (unsigned long long)opno, NB_OPS);
    if (c->nodes == 0) {
        *c = (struct nb_confirms){.opno = opno};
        comm->confirms_open++;
    }
    c->nodes++;
    for (int i = 0; i < 2; i++) {
        c->rows[i] |= others[i];
        c->lost[i] |= lost[i];
    }
    if (c->nodes < (uint32_t)comm->grid.columns)
        return 0;
    c->nodes = 0;
    comm->confirms_open--;
    return tell_owners(comm, c);
}

/* A node of the row has the blocks of this column, among them that of this node. */
static int column_confirmed(struct nb_coll_comm *comm, const struct nb_ctl *ctl)
{
    const int row = nb_grid_row(comm->grid, comm->rank);

    if (bit(ctl->rows, row))
        nb_refs_confirmed(comm->refs, ctl->a, !bit(ctl->lost, row), 1);
    return gather_confirm(comm, ctl->a, ctl->rows, ctl->lost);
}

int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op)
{
    const struct nb_grid g = comm->grid;

    for (int column = 0; column < g.columns; column++) {
        struct nb_ctl ctl = {.kind = NB_CTL_COLUMN, .a = op->opno};
        int to = nb_grid_node(g, nb_grid_row(g, comm->rank), column), ret;

        for (int row = 0; row < g.rows; row++) {
            const int owner = nb_grid_node(g, row, column);
            if (owner == comm->rank)
                continue;
            ctl.rows[row / 64] |= (uint64_t)bit(op->keep, owner) << (row % 64);
            ctl.lost[row / 64] |= (uint64_t)bit(op->lost, owner) << (row % 64);
        }
        if (!ctl.rows[0] && !ctl.rows[1])
            continue;
        ret = to == comm->rank ? gather_confirm(comm, op->opno, ctl.rows, ctl.lost)
                               : nb_control(comm, &comm->peer[to], &ctl);
        if (ret)
            return ret;
    }
    return 0;
}

/* ---- passing on ------------------------------------------------------------------------------------- */

/* A message that is not for this node, at the head of a ring. 1, 0 when it has to wait there, or < 0. */
static int pass_on(struct nb_coll_comm *comm, const struct nb_ctl *ctl, const uint8_t *message, size_t len)
{
    struct nb_peer *to = &comm->peer[ctl->to];
    struct nb_shared *unit = &to->resend;

    if (ctl->kind == NB_CTL_RAW && to->gone) { /* the asker would wait for ever */
        struct nb_ctl abort = {.kind = NB_CTL_ABORT};
        snprintf(abort.text, sizeof(abort.text), "%.100s is gone, of which bytes were asked for", to->name);
        return nb_control(comm, &comm->peer[ctl->from], &abort) ? -1 : 1;
    }
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
        if (ctl->c != (nb_on_grid(comm) ? (uint32_t)comm->grid.columns : 1))
            return nb_comm_error(comm, -EPROTO, "%s confirms for %u nodes", peer->name, ctl->c);
        nb_refs_confirmed(comm->refs, ctl->a, ctl->b != 0, ctl->c);
        break;
    case NB_CTL_RAW:
        hop = nb_control_hop(comm, NB_CTL_DATA, peer->rank);
        if (hop->nask == (nb_on_grid(comm) ? NB_GRID_MOST : NB_ASKS) || ctl->c == 0 || ctl->c > NB_CTL_DATA_BYTES)
            return nb_comm_error(comm, -EPROTO, "%s asks for raw bytes once too often", peer->name);
        hop->ask[hop->nask++] = (struct nb_ask){.opno = ctl->a, .off = ctl->b, .len = ctl->c, .rank = peer->rank};
        break;
    case NB_CTL_COLUMN:
        if (!nb_on_grid(comm) || !nb_grid_same_row(comm->grid, peer->rank, comm->rank))
            return nb_comm_error(comm, -EPROTO, "%s confirms a column that is not its business", peer->name);
        return column_confirmed(comm, ctl);
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
