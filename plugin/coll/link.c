/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections. A receive ring's slots are the credits of its peer and class:
 * what has not been taken keeps its slot, and the transport's back-pressure stops the sender. A send ring owns the
 * bytes until the transport has taken them.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/internal.h"

static int link_error(struct nb_coll_comm *comm, struct nb_peer *peer, int err)
{
    /* A peer that has said goodbye may close its connections. */
    if (peer->bye || comm->state != NB_COMM_RUNNING) {
        peer->gone = 1;
        return 0;
    }
    return nb_comm_error(comm, err, "lost %s: %s", peer->name, strerror(-err));
}

int nb_tx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx)
{
    int moved = 0, ret, done;

    if (peer->gone)
        return 0;
    while (tx->sent < tx->queued) {
        struct nb_tx_item *it = &tx->item[tx->sent % tx->slots];
        void *mhandle = it->shared ? tx->shared_mhandle : tx->mhandle;
        ret = comm->net->isend(tx->conn, it->data, it->len, 0, mhandle, &it->req);
        if (ret)
            return link_error(comm, peer, ret);
        if (!it->req)
            break;
        tx->sent++;
        moved = 1;
    }
    while (tx->done < tx->sent) {
        struct nb_tx_item *it = &tx->item[tx->done % tx->slots];
        done = 0;
        ret = comm->net->test(it->req, &done, NULL);
        if (ret)
            return link_error(comm, peer, ret);
        if (!done)
            break;
        it->req = NULL;
        if (it->shared)
            it->shared->left--;
        tx->done++;
        moved = 1;
    }
    return moved;
}

int nb_rx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx)
{
    int moved = 0, ret, done;

    if (peer->gone)
        return 0;
    while (rx->arrived < rx->posted) {
        unsigned at = (unsigned)(rx->arrived % rx->slots);
        done = 0;
        ret = comm->net->test(rx->req[at], &done, &rx->len[at]);
        if (ret)
            return link_error(comm, peer, ret);
        if (!done)
            break;
        rx->req[at] = NULL;
        rx->arrived++;
        moved = 1;
    }
    while (rx->posted - rx->taken < rx->slots && rx->posted - rx->arrived < rx->window) {
        unsigned at = (unsigned)(rx->posted % rx->slots);
        void *data = rx->mem + at * rx->slot, *mh = rx->mhandle;
        size_t size = rx->slot;
        int tag = 0;
        ret = comm->net->irecv(rx->conn, 1, &data, &size, &tag, &mh, &rx->req[at]);
        if (ret)
            return link_error(comm, peer, ret);
        if (!rx->req[at])
            break;
        rx->posted++;
    }
    return moved;
}

void nb_tx_push(struct nb_tx *tx, const void *data, size_t len, struct nb_shared *shared)
{
    tx->item[tx->queued % tx->slots] = (struct nb_tx_item){.data = data, .len = len, .shared = shared};
    tx->queued++;
}

const uint8_t *nb_rx_head(struct nb_coll_comm *comm, struct nb_peer *peer, enum nb_class cls)
{
    struct nb_rx *rx = &peer->rx[cls];
    const uint8_t *slot;

    if (rx->taken == rx->arrived)
        return NULL;
    slot = rx->mem + (rx->taken % rx->slots) * rx->slot;
    if (cls != NB_CLASS_CONTROL && !rx->parsed) {
        const char *why = "";
        size_t len = rx->len[rx->taken % rx->slots];
        rx->head_bytes = nb_msg_parse(slot, len, comm->token, comm->unit, &rx->head, &why);
        if (rx->head_bytes < 0) {
            nb_comm_error(comm, -EBADMSG, "malformed message of %zu bytes from %s: %s", len, peer->name, why);
            return NULL;
        }
        rx->parsed = 1;
    }
    return slot;
}

void nb_rx_take(struct nb_rx *rx)
{
    rx->parsed = 0;
    rx->taken++;
}

int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what)
{
    struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];
    struct nb_ctl ctl = *what;
    void *buf;

    if (peer->gone)
        return 0;
    buf = nb_tx_buffer(tx);
    if (!buf) {
        if (ctl.kind == NB_CTL_ALIVE || ctl.kind == NB_CTL_ABORT)
            return 0; /* the peer reads the ones before, or it will be found dead */
        return nb_comm_error(comm, -ENOBUFS, "%s has not taken %u control messages", peer->name, tx->slots);
    }
    ctl.token = comm->token;
    nb_ctl_pack(&ctl, buf);
    nb_tx_push(tx, buf, NB_CTL_BYTES, NULL);
    comm->stats.control_bytes += NB_CTL_BYTES;
    return 0;
}
