/* SPDX-License-Identifier: Apache-2.0 */
/* Routes and sending of control messages. */
#include <errno.h>

#include "base/clock.h"
#include "coll/comm/comm.h"

/* Return true for messages to an owner, or to node 0, which owns the kill switch. */
static int is_to_owner(enum nb_ctl_kind kind)
{
    return kind == NB_CTL_RAW || kind == NB_CTL_SWITCH_ASK || kind == NB_CTL_SWITCHED;
}

/* Return true for messages between nodes that may not be connected. */
static int travels(enum nb_ctl_kind kind)
{
    return is_to_owner(kind) || kind == NB_CTL_DATA || kind == NB_CTL_SWITCH;
}

struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to)
{
    return &comm->peer[nb_grid_next(comm->grid, comm->rank, to, is_to_owner(kind))];
}

int nb_control_put(struct nb_coll_comm *comm, struct nb_peer *hop, const struct nb_ctl *ctl)
{
    struct nb_tx *tx = &hop->tx[NB_CLASS_CONTROL];
    void *buf;

    if (hop->gone)
        return 0;
    buf = nb_tx_buffer(tx);
    if (!buf) {
        if (ctl->kind == NB_CTL_ALIVE || ctl->kind == NB_CTL_ABORT)
            return 0; /* if the peer reads earlier messages it lives, otherwise its silence will be found */
        return nb_comm_error(comm, -ENOBUFS, "%s has not taken %u control messages", hop->name, tx->buffers);
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
    return nb_control_put(comm, nb_control_hop(comm, ctl.kind, peer->rank), &ctl);
}

bool nb_control_came_along_route(const struct nb_coll_comm *comm, const struct nb_peer *via,
                                 const struct nb_ctl *ctl)
{
    const struct nb_grid g = comm->grid;
    int from = (int)ctl->from, to = (int)ctl->to, hop;

    if (ctl->from >= (uint32_t)comm->nnodes || ctl->to >= (uint32_t)comm->nnodes || from == to)
        return false;
    if (from == via->rank && to == comm->rank)
        return true;
    hop = nb_grid_next(g, from, to, is_to_owner(ctl->kind));
    return travels(ctl->kind) && hop != to && hop == (to == comm->rank ? via->rank : comm->rank) &&
           (to == comm->rank || from == via->rank);
}
