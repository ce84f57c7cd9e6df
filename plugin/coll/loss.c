/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a connection has ended, where its peer has not said goodbye. A peer that fails says why on CONTROL
 * before it closes its connections, and so does everybody who hears of a failure; but connections are
 * independent, and their ends may be seen in any order. So before the peer is called lost, what has arrived
 * as CONTROL is read:
 *
 *   ABORT from anybody                     the cause that it tells
 *   BYE from the peer                      no error: it closes
 *   the end of the peer's CONTROL          it is lost: it died, or it could not say anything any more
 *   nothing for a while                    it is lost, as far as this node can tell
 *
 * The communicator will fail in any case, so nothing else is done meanwhile.
 */
#include "coll/loss.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "coll/comm.h"
#include "coll/control.h"
#include "coll/control_send.h"

static int lost(struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return nb_comm_error(comm, peer->life.lost, "lost %s: %s", peer->name, strerror(-peer->life.lost));
}

/* All that has come as CONTROL. */
static int read_control(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    nb_watch_look(comm);
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        do { /* more than its ring holds may have come */
            ret = nb_rx_progress(comm, peer, &peer->rx[NB_CLASS_CONTROL]) > 0;
            int read = nb_control_read(comm, peer);
            if (read < 0)
                return read;
            ret |= read;
            moved |= ret;
        } while (ret);
        if (nb_tx_progress(comm, peer, &peer->tx[NB_CLASS_CONTROL]) > 0)
            moved = 1;
    }
    return moved;
}

int nb_loss_explain(struct nb_coll_comm *comm, int64_t now_ns)
{
    const struct nb_peer *suspect = NULL;
    int moved = read_control(comm);

    if (moved < 0)
        return moved;
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
        if (!peer->life.lost || peer->gone || !nb_peer_needed(comm, peer))
            continue;
        if (rx->ended && rx->taken == rx->arrived)
            return lost(comm, peer);
        if (!suspect)
            suspect = peer;
    }
    if (!suspect) { /* all have said goodbye, or what was needed of them has come */
        comm->failure.suspect_ns = 0;
        return 1;
    }
    if (now_ns - comm->failure.suspect_ns >
        nb_control_doubt_ns(comm)) /* as peers do not hear from this node meanwhile */
        return lost(comm, suspect);
    return moved;
}
