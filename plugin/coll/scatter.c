/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first hop of all-gathers that are forwarded. The owner encodes and sends its segments in order, with
 * one cursor for all peers: a reference is written from front to back.
 */
#include "coll/scatter.h"

#include "coll/comm.h"
#include "coll/window.h"

int nb_scatter_progress(struct nb_coll_comm *comm)
{
    struct nb_cursor *at = &comm->scatter;
    struct nb_coll_req *win;
    int moved = 0;

    while ((win = nb_cursor_window(comm, at)) != NULL) {
        struct nb_segment segment;
        struct nb_peer *peer;

        if (!nb_is_scattered(win->op) || !win->op->schedule->next_scatter(comm, win, at->off, &segment)) {
            nb_cursor_pass(at);
            nb_window_sent(comm, win);
            moved = 1;
            continue;
        }
        peer = &comm->peer[segment.relay];
        if (nb_peer_left(comm, peer, NB_CLASS_CONTRIB, win->op))
            return -1;
        /* What older windows have for this node goes first. */
        if (peer->send.cursor.seq < at->seq)
            break;
        if (!nb_tx_buffer(&peer->tx[NB_CLASS_CONTRIB]) || !nb_gather_can_send(comm, win, &segment))
            break;
        if (nb_gather_send(comm, win, &segment, &peer->tx[NB_CLASS_CONTRIB], NULL) < 0)
            return -1;
        at->off = segment.off + segment.len;
        moved = 1;
    }
    return moved;
}
