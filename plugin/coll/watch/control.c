/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads control messages, and relays messages between nodes of a grid that are not connected (comm/comm.h).
 *
 * A relay always has room in the end. For owners it relays at most one request at a time of each node of its
 * row (flow/retransmit.c), and for node 0 two more messages. A ring holds the messages of NB_GRID_MOST nodes.
 * Raw bytes come along a column and go on along a row. They wait in the column's ring for their turn, and
 * rows are always read.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "coll/decide/decide.h"
#include "coll/flow/flow.h"
#include "coll/schedule/schedule.h"
#include "coll/watch/internal.h"

/* ---- relaying ---------------------------------------------------------------------------------------- */

/* Pass on the message at the head of a ring. 1, 0 when it has to wait there, or < 0. */
static int pass_on(struct nb_coll_comm *comm, const struct nb_ctl *ctl, const uint8_t *message, size_t len)
{
    struct nb_peer *to = &comm->peer[ctl->to];

    if (ctl->kind == NB_CTL_RAW && to->gone) { /* the asking node would wait for ever */
        struct nb_ctl abort = {.kind = NB_CTL_ABORT, .a = (uint64_t)comm->rank};
        snprintf(abort.text, sizeof(abort.text), "%.100s has left, and its bytes were requested", to->name);
        return nb_control(comm, &comm->peer[ctl->from], &abort) ? -1 : 1;
    }
    if (ctl->kind != NB_CTL_DATA)
        return nb_control_put(comm, to, ctl) ? -1 : 1;
    return nb_retransmit_relay(comm, to, message, len);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

/* Take a heartbeat: the silent neighbor and the wait that it reports. */
static int take_alive(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    if (ctl->a > (uint64_t)comm->nnodes || ctl->b > INT64_MAX)
        return nb_comm_error(comm, -EPROTO, "%s has sent a heartbeat about node %llu of %d", peer->name,
                             (unsigned long long)ctl->a - 1, comm->nnodes);
    peer->life.quiet = (int)ctl->a - 1;
    peer->life.quiet_ms = (int64_t)ctl->b;
    return nb_chain_received(comm, peer, ctl);
}

/* Handle a message for this node, which lies in message buffer `at` of `rx`. */
static int handle(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl, struct nb_rx *rx,
                  unsigned at)
{
    switch (ctl->kind) {
    case NB_CTL_ALIVE: return take_alive(comm, peer, ctl);
    case NB_CTL_CONFIRM: return nb_confirm_received(comm, peer, ctl);
    case NB_CTL_RAW: return nb_retransmit_requested(comm, peer, ctl);
    case NB_CTL_COLUMN: return nb_confirm_column_received(comm, peer, ctl);
    case NB_CTL_DATA: return nb_retransmit_received(comm, peer, ctl, rx, at);
    case NB_CTL_FIN:
        peer->life.fin = 1;
        peer->life.fin_count[0] = ctl->a;
        peer->life.fin_count[1] = ctl->b;
        break;
    case NB_CTL_FIN_ACK: peer->life.our_fin_acked = 1; break;
    case NB_CTL_ABORT:
        if (comm->state == NB_COMM_RUNNING || !comm->drained) /* a closing peer may still owe messages */
            return nb_comm_abort_received(comm, peer, ctl);
        peer->gone = 1;
        break;
    case NB_CTL_SWITCH_ASK:
    case NB_CTL_SWITCH:
    case NB_CTL_SWITCHED: return nb_kill_switch_control(comm, peer, ctl);
    default: break;
    }
    return 0;
}

int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
    const uint8_t *message;
    int moved = 0, ret;

    while ((message = nb_rx_head(comm, peer, NB_CLASS_CONTROL)) != NULL) {
        struct nb_ctl ctl;
        const char *why = "";
        const unsigned at = nb_rx_at(rx);
        size_t len = rx->len[at];
        if (nb_vote_is_no(message, len, ctl.text))
            return nb_comm_error(comm, -ECONNABORTED, "%s gave up connecting: %s", peer->name, ctl.text);
        if (nb_ctl_parse(message, len, comm->token, &ctl, &why))
            return nb_comm_error(comm, -EBADMSG, "malformed control message of %zu bytes from %s: %s", len,
                                 peer->name, why);
        if (!nb_control_came_along_route(comm, peer, &ctl))
            return nb_comm_error(comm, -EPROTO,
                                 "%s sent control message %u of node %u to node %u, which does not go "
                                 "through it",
                                 peer->name, ctl.kind, ctl.from, ctl.to);
        if (ctl.to != (uint32_t)comm->rank) {
            ret = pass_on(comm, &ctl, message, len);
            if (ret <= 0)
                return ret < 0 ? ret : moved;
        }
        nb_rx_take(rx); /* its message buffer stays until the links move again, and while it is held */
        if (ctl.to == (uint32_t)comm->rank && handle(comm, &comm->peer[ctl.from], &ctl, rx, at))
            return -1;
        moved = 1;
    }
    if (peer->life.fin && !peer->life.fin_acked &&
        peer->rx[NB_CLASS_CONTRIB].arrived >= peer->life.fin_count[0] &&
        peer->rx[NB_CLASS_RESULT].arrived >= peer->life.fin_count[1]) {
        struct nb_ctl ack = {.kind = NB_CTL_FIN_ACK};
        peer->life.fin_acked = 1;
        if (nb_control(comm, peer, &ack))
            return -1;
        moved = 1;
    }
    return moved;
}
