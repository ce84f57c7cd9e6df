/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the other nodes of a failure; see abort.h. */
#include "coll/abort.h"

#include <string.h>

#include "base/clock.h"
#include "coll/comm.h"
#include "coll/control_send.h"

#define PATIENCE_NS ((int64_t)NB_NS_PER_S) /* with a peer that does not take it */

/* Queue ABORT in place of what has not been sent: nobody needs that any more. */
static void queue(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *abort)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];

    if (tx->closed)
        return;
    for (uint64_t i = tx->sent; i < tx->queued; i++)
        if (tx->item[i % tx->slots].shared)
            tx->item[i % tx->slots].shared->left--;
    tx->queued = tx->sent;
    nb_control(comm, peer, abort);
}

/* Whether some of it has not left. A connection that fails here has failed before, or is that of a peer that
 * has left. */
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

    if (!failure->told_ns) {
        struct nb_ctl abort = {.kind = NB_CTL_ABORT, .a = (uint64_t)failure->author};
        memcpy(abort.text, failure->text, sizeof(abort.text));
        failure->told_ns = now_ns ? now_ns : 1;
        failure->untold = comm->nneighbors;
        for (int i = 0; i < comm->nneighbors; i++)
            if (!comm->neighbors[i]->gone)
                queue(comm, comm->neighbors[i], &abort);
    }
    if (failure->untold) {
        const bool late = comm->life.hurries || now_ns - failure->told_ns > PATIENCE_NS ||
                          (comm->state == NB_COMM_CLOSING && now_ns > comm->life.close_deadline_ns);
        failure->untold = 0;
        for (int i = 0; i < comm->nneighbors; i++)
            failure->untold += waits(comm, comm->neighbors[i]);
        if (late)
            failure->untold = 0;
    }
    atomic_compare_exchange_strong(&failure->shown, &none, nb_comm_failed(comm));
    return failure->untold == 0;
}
