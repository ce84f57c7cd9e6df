/* SPDX-License-Identifier: Apache-2.0 */
/* Sending ABORT after a failure, and explaining the end of a connection. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "coll/watch/internal.h"

/* ---- aborts ------------------------------------------------------------------------------------------ */

#define PATIENCE_NS ((int64_t)NB_NS_PER_S) /* the longest wait for a peer to take ABORT */

/* Queue ABORT in place of unsent control messages, which the peer can do without. */
static void queue(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *abort)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];

    if (tx->closed)
        return;
    for (uint64_t i = tx->sent; i < tx->queued; i++)
        if (tx->item[i % tx->buffers].shared)
            tx->item[i % tx->buffers].shared->left--;
    tx->queued = tx->sent;
    nb_control(comm, peer, abort);
}

/* Return true while ABORT waits in the ring. A connection that fails here has failed before, or its peer has
 * left. */
static bool waits(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];

    while (!peer->gone && !tx->closed && tx->done < tx->queued) {
        const int ret = nb_tx_progress(comm, peer, tx);
        if (ret <= 0)
            return ret == 0 && tx->done < tx->queued;
    }
    return false;
}

bool nb_abort_progress(struct nb_coll_comm *comm, int64_t now_ns)
{
    struct nb_failure *failure = &comm->failure;
    int none = 0;

    if (!failure->abort_ns) {
        struct nb_ctl abort = {.kind = NB_CTL_ABORT, .a = (uint64_t)failure->author};
        memcpy(abort.text, failure->text, sizeof(abort.text));
        failure->abort_ns = now_ns ? now_ns : 1;
        failure->aborts_left = comm->nneighbors;
        for (int i = 0; i < comm->nneighbors; i++)
            if (!comm->neighbors[i]->gone)
                queue(comm, comm->neighbors[i], &abort);
    }
    if (failure->aborts_left) {
        const bool late = comm->watch->hurries || now_ns - failure->abort_ns > PATIENCE_NS ||
                          (comm->state == NB_COMM_CLOSING && now_ns > comm->watch->close_deadline_ns);
        failure->aborts_left = 0;
        for (int i = 0; i < comm->nneighbors; i++)
            failure->aborts_left += waits(comm, comm->neighbors[i]);
        if (late)
            failure->aborts_left = 0;
    }
    atomic_compare_exchange_strong(&failure->shown, &none, nb_comm_failed(comm));
    return failure->aborts_left == 0;
}

/* ---- lost connections -------------------------------------------------------------------------------- */

/*
 * The end of a connection without a FIN. A peer that fails sends its reason on CONTROL before it closes its
 * connections, and a node that learns of a failure passes it on. Connections are independent, and their ends
 * may be seen in any order. So this node reads all arrived CONTROL before it calls the peer lost:
 *
 *   ABORT from any node                    the cause is in it
 *   FIN from the peer                      it closes: no error
 *   the end of the peer's CONTROL          it is lost: it died, or failed to send a reason
 *   silence for a while                    it is lost, as far as this node can tell
 *
 * The communicator fails in any case, so other work stops meanwhile.
 */

/* Return a hint at the cause of the loss. Where heartbeats arrived to the end, the path passes small packets.
 * A switch or tunnel with a smaller MTU than the hosts drops large ones without a word. */
static const char *hint(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const char *path = nb_net_hint(-peer->life.lost);

    if (!path[0] || comm->failure.suspect_ns - peer->life.received_ns > nb_control_overdue_ns(comm))
        return path;
    return ": the MTU of the path may be too small: its heartbeats arrive, data does not";
}

static int lost(struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return nb_comm_error(comm, peer->life.lost, "lost %s: %s%s", peer->name, strerror(-peer->life.lost),
                         hint(comm, peer));
}

/* Read all control messages that have arrived. */
static int read_control(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    nb_arrivals_poll(comm);
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        do { /* more may have arrived than the ring holds */
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
    if (!suspect) { /* all suspects have sent FIN, or their messages are complete */
        comm->failure.suspect_ns = 0;
        return 1;
    }
    if (now_ns - comm->failure.suspect_ns >
        nb_control_doubt_ns(comm)) /* meanwhile this node sends no heartbeats */
        return lost(comm, suspect);
    return moved;
}
