/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections. A receive ring's slots are the credits of its peer and
 * class: what has not been taken keeps its slot, and the transport's back-pressure stops the sender. A send
 * ring owns the bytes until the transport has taken them.
 */
#include <errno.h>

#include "coll/comm.h"

/* Sends in flight at once. NCCL never has more on a connection, so that plugins (transport `forward`) need
 * not take more, and some fail the one that is too many. */
#define SENDS_MAX ((uint64_t)NCCL_NET_MAX_REQUESTS)

/* 0: the end of a connection is in order: its peer has said goodbye, or this node is closing and needs
 * nothing more of it. */
static int link_error(struct nb_coll_comm *comm, struct nb_peer *peer, int err)
{
    if (!nb_peer_needed(comm, peer))
        return 0;
    return nb_comm_suspect(comm, peer, err);
}

/* The peer takes nothing more. What was queued for it is let go; shared units must not wait for it. */
static void close_tx(struct nb_tx *tx)
{
    tx->closed = 1;
    for (; tx->done < tx->queued; tx->done++)
        if (tx->item[tx->done % tx->slots].shared)
            tx->item[tx->done % tx->slots].shared->left--;
    tx->sent = tx->queued;
    tx->under_way = 0;
}

static int closed_any(const struct nb_peer *peer)
{
    for (int c = 0; c < NB_CLASS_COUNT; c++)
        if (peer->tx[c].closed || peer->rx[c].closed)
            return 1;
    return 0;
}

/* A peer that has left is done with when all it sent has arrived, or cannot arrive any more. Its connections
 * end in any order: bytes may still lie in the kernel behind a connection that is already closed in the other
 * direction. */
static void update_gone(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    const struct nb_rx *c = &peer->rx[NB_CLASS_CONTRIB], *r = &peer->rx[NB_CLASS_RESULT];

    if (!peer->life.bye)
        peer->gone = comm->state != NB_COMM_RUNNING;
    else if (!closed_any(peer))
        return;
    else if ((c->closed || c->arrived >= peer->life.bye_count[0]) &&
             (r->closed || r->arrived >= peer->life.bye_count[1]))
        peer->gone = 1;
    /* One that left in the middle of an operation leaves sends behind for which a window would wait for ever,
     * instead of the values that will not come, which is an error (progress.c). */
    for (int i = 0; i < NB_CLASS_COUNT && peer->gone; i++)
        if (!peer->tx[i].closed)
            close_tx(&peer->tx[i]);
}

static int tx_error(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx, int err)
{
    int ret = link_error(comm, peer, err);

    if (ret == 0) {
        close_tx(tx);
        update_gone(comm, peer);
    }
    return ret;
}

static int rx_error(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx, int err)
{
    int ret = link_error(comm, peer, err);

    rx->ended = 1;
    if (ret == 0) {
        rx->closed = 1;
        update_gone(comm, peer);
    }
    return ret;
}

static size_t item_bytes(const struct nb_tx_item *it)
{
    return it->shared ? it->shared->len : it->len;
}

int nb_tx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx)
{
    int moved = 0, ret, done;

    if (peer->gone || tx->closed)
        return 0;
    while (tx->sent < tx->queued && tx->sent - tx->done < SENDS_MAX) {
        struct nb_tx_item *it = &tx->item[tx->sent % tx->slots];
        if (!(it->shared ? it->shared->ready : it->ready) || !nb_fair_allows(&comm->fair[tx->cls], tx))
            break;
        ret = comm->net->isend(tx->conn, it->data, item_bytes(it), 0, it->mhandle, &it->req);
        if (ret)
            return tx_error(comm, peer, tx, ret);
        if (!it->req)
            break;
        tx->under_way += item_bytes(it);
        tx->sent++;
        moved = 1;
    }
    while (tx->done < tx->sent) {
        struct nb_tx_item *it = &tx->item[tx->done % tx->slots];
        done = 0;
        ret = comm->net->test(it->req, &done, NULL);
        if (ret)
            return tx_error(comm, peer, tx, ret);
        if (!done)
            break;
        it->req = NULL;
        tx->had += item_bytes(it);
        tx->under_way -= item_bytes(it);
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

    if (peer->gone || rx->closed)
        return 0;
    while (rx->arrived < rx->posted && !rx->quiet) {
        unsigned at = (unsigned)(rx->arrived % rx->slots);
        done = 0;
        ret = comm->net->test(rx->req[at], &done, &rx->len[at]);
        if (ret)
            return rx_error(comm, peer, rx, ret);
        if (!done) {
            rx->quiet = rx->watched;
            break;
        }
        rx->req[at] = NULL;
        rx->arrived++;
        moved = 1;
    }
    while (rx->freed < rx->taken && !rx->held[rx->freed % rx->slots] &&
           (!rx->unit || rx->unit[rx->freed % rx->slots].left == 0))
        rx->freed++;
    while (rx->posted - rx->freed < rx->slots && rx->posted - rx->arrived < rx->window) {
        unsigned at = (unsigned)(rx->posted % rx->slots);
        void *data = rx->mem + at * rx->slot, *mh = rx->mhandle;
        size_t size = rx->slot;
        int tag = 0;
        ret = comm->net->irecv(rx->conn, 1, &data, &size, &tag, &mh, &rx->req[at]);
        if (ret)
            return rx_error(comm, peer, rx, ret);
        if (!rx->req[at])
            break;
        rx->posted++;
        rx->quiet = 0; /* what the transport had read ahead may be for this one */
    }
    if (peer->life.bye && !peer->gone)
        update_gone(comm, peer);
    return moved;
}

static void push(struct nb_tx *tx, const struct nb_tx_item *item)
{
    if (tx->closed) {
        if (item->shared)
            item->shared->left--;
        return;
    }
    tx->item[tx->queued % tx->slots] = *item;
    tx->queued++;
}

void nb_tx_push(struct nb_tx *tx, const void *data, size_t len, struct nb_shared *shared)
{
    push(tx, &(struct nb_tx_item){.data = data,
                                  .len = len,
                                  .shared = shared,
                                  .ready = 1,
                                  .mhandle = shared ? tx->shared_mhandle : tx->mhandle});
}

uint64_t nb_tx_reserve(struct nb_tx *tx, struct nb_shared *shared)
{
    uint64_t number = tx->queued;

    push(tx, &(struct nb_tx_item){.data = shared ? shared->buf : tx->mem + (number % tx->slots) * tx->slot,
                                  .shared = shared,
                                  .mhandle = shared ? tx->shared_mhandle : tx->mhandle});
    return number;
}

void nb_tx_ready(struct nb_tx *tx, uint64_t number, size_t len)
{
    struct nb_tx_item *it = &tx->item[number % tx->slots];

    if (tx->closed) /* let go of, and nothing is queued any more */
        return;
    it->len = len;
    it->ready = 1;
}

void nb_tx_forward(struct nb_tx *tx, struct nb_shared *slot)
{
    push(tx, &(struct nb_tx_item){.data = slot->buf, .shared = slot, .mhandle = tx->forward_mhandle});
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
