/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections. A receive ring's message buffers are the credits of its
 * peer and class: what has not been taken keeps its message buffer, and the transport's back-pressure stops
 * the sender. A send ring owns the bytes until the transport has taken them.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"

/* ---- rings ------------------------------------------------------------------------------------------- */

/* Sends in flight at once. NCCL never has more on a connection, so that plugins (transport `forward`) need
 * not take more, and some fail the one that is too many. */
#define SENDS_MAX ((uint64_t)NCCL_NET_MAX_REQUESTS)

/* 0: the end of a connection is in order: its peer has sent FIN, or this node is closing and needs
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
        if (tx->item[tx->done % tx->buffers].shared)
            tx->item[tx->done % tx->buffers].shared->left--;
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

    if (!peer->life.fin)
        peer->gone = comm->state != NB_COMM_RUNNING;
    else if (!closed_any(peer))
        return;
    else if ((c->closed || c->arrived >= peer->life.fin_count[0]) &&
             (r->closed || r->arrived >= peer->life.fin_count[1]))
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
        struct nb_tx_item *it = &tx->item[tx->sent % tx->buffers];
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
        struct nb_tx_item *it = &tx->item[tx->done % tx->buffers];
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
        unsigned at = (unsigned)(rx->arrived % rx->buffers);
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
    while (rx->freed < rx->taken && !rx->held[rx->freed % rx->buffers] &&
           (!rx->shared || rx->shared[rx->freed % rx->buffers].left == 0))
        rx->freed++;
    while (rx->posted - rx->freed < rx->buffers && rx->posted - rx->arrived < rx->window) {
        unsigned at = (unsigned)(rx->posted % rx->buffers);
        void *data = rx->mem + at * rx->buffer_bytes, *mh = rx->mhandle;
        size_t size = rx->buffer_bytes;
        int tag = 0;
        ret = comm->net->irecv(rx->conn, 1, &data, &size, &tag, &mh, &rx->req[at]);
        if (ret)
            return rx_error(comm, peer, rx, ret);
        if (!rx->req[at])
            break;
        rx->posted++;
        rx->quiet = 0; /* what the transport had read ahead may be for this one */
    }
    if (peer->life.fin && !peer->gone)
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
    tx->item[tx->queued % tx->buffers] = *item;
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

    push(tx, &(struct nb_tx_item){.data = shared ? shared->buf
                                                 : tx->mem + (number % tx->buffers) * tx->buffer_bytes,
                                  .shared = shared,
                                  .mhandle = shared ? tx->shared_mhandle : tx->mhandle});
    return number;
}

void nb_tx_ready(struct nb_tx *tx, uint64_t number, size_t len)
{
    struct nb_tx_item *it = &tx->item[number % tx->buffers];

    if (tx->closed) /* let go of, and nothing is queued any more */
        return;
    it->len = len;
    it->ready = 1;
}

void nb_tx_forward(struct nb_tx *tx, struct nb_shared *buffer)
{
    push(tx, &(struct nb_tx_item){.data = buffer->buf, .shared = buffer, .mhandle = tx->forward_mhandle});
}

const uint8_t *nb_rx_head(struct nb_coll_comm *comm, struct nb_peer *peer, enum nb_class cls)
{
    struct nb_rx *rx = &peer->rx[cls];
    const uint8_t *buffer;

    if (rx->taken == rx->arrived)
        return NULL;
    buffer = rx->mem + (rx->taken % rx->buffers) * rx->buffer_bytes;
    if (cls != NB_CLASS_CONTROL && !rx->parsed) {
        const char *why = "";
        size_t len = rx->len[rx->taken % rx->buffers];
        rx->head_bytes = nb_msg_parse(buffer, len, comm->token, comm->unit, &rx->head, &why);
        if (rx->head_bytes < 0) {
            nb_comm_error(comm, -EBADMSG, "malformed message of %zu bytes from %s: %s", len, peer->name, why);
            return NULL;
        }
        rx->parsed = 1;
    }
    return buffer;
}

void nb_rx_take(struct nb_rx *rx)
{
    rx->parsed = 0;
    rx->taken++;
}

/* ---- sharing the link -------------------------------------------------------------------------------- */

/*
 * How a node's peers share its link. A sum waits for every node's contribution, and an operation for its last
 * byte: it does not help a peer to get its bytes before the others get theirs, it hurts. Left to the network,
 * some connections run far ahead (they are older, or their receivers are less busy), and in the end the few
 * that are behind have the links to themselves while all the others are idle. So a peer gets nothing new
 * while it is more than a few milliseconds ahead of the one that is most behind. This is for transports that
 * let bytes pile up in the host (`early` in net/transport.h).
 *
 * The bookkeeping is that of start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each ring counts
 * the bytes that its peer has had; a ring that has nothing to send counts as level with the last, so that it
 * neither saves up a claim nor holds up anybody. Here the order is not that of a scheduler of the link: it
 * only bounds the lead.
 *
 * Nobody waits for ever because of this: the last one itself is always allowed, and one that has not moved
 * for some time (its node is late, or it waits itself for what is held back) does not count until it moves.
 * Values that go straight to a reduce-scatter's owners are left out (`apart` in ring.h). NCCL walks over the
 * blocks one after the other, so that the owners do not need them at the same time; while one owner gets its
 * block from all others at once, each of these has but a part of its link for it, and the rest is for the
 * owners behind. Held back, it would be idle (docs/scale.md).
 *
 * The counts of the two classes are independent, as their rings are (comm.h tells why these must be).
 */

#define LEAD_MIN 131072u /* below this a ring would run empty between two looks */
#define LEAD_NS (4 * (int64_t)NB_NS_PER_MS)
#define STUCK_NS (20 * (int64_t)NB_NS_PER_MS)
#define STUCK_MOST_NS ((int64_t)NB_NS_PER_S) /* of a ring whose single messages take long */

/* When a ring that has something to send will count as stuck: it has not moved for four times what its last
 * message took. */
static int64_t stuck_ns(struct nb_tx *tx, int64_t now_ns)
{
    int64_t patience;

    if (tx->moved_ns == 0) { /* it was idle */
        tx->moved_ns = now_ns;
        tx->took_ns = 0;
        tx->seen = tx->had;
    } else if (tx->had != tx->seen) {
        tx->took_ns = now_ns - tx->moved_ns;
        tx->moved_ns = now_ns;
        tx->seen = tx->had;
    }
    patience = 4 * tx->took_ns;
    patience = patience < STUCK_NS ? STUCK_NS : patience > STUCK_MOST_NS ? STUCK_MOST_NS : patience;
    return tx->moved_ns + patience;
}

/* How far the last one gets in LEAD_NS. What it was stays while nothing moves, and over a pause. */
static void adapt_lead(struct nb_fair *f, uint64_t least, int64_t now_ns)
{
    int64_t took = now_ns - f->noted_ns;

    if (f->noted_ns && least >= f->noted && took < LEAD_NS)
        return;
    if (f->noted_ns && least > f->noted)
        f->lead = (uint64_t)((double)(least - f->noted) * (double)LEAD_NS / (double)took);
    if (f->lead < LEAD_MIN)
        f->lead = LEAD_MIN;
    f->noted = least;
    f->noted_ns = now_ns;
}

/* Nothing is to be sent: all begin level the next time. */
static void rest(struct nb_coll_comm *comm, struct nb_fair *f, enum nb_class cls)
{
    for (int i = 0; f->noted_ns && i < comm->nneighbors; i++)
        comm->neighbors[i]->tx[cls].had = 0;
    f->bounded = 0;
    f->noted_ns = 0;
}

void nb_fair_update(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns)
{
    struct nb_fair *f = &comm->fair[cls];
    uint64_t least = UINT64_MAX;
    int busy = 0;

    if (!comm->net->early)
        return;
    f->until_ns = INT64_MAX;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_tx *tx = &comm->neighbors[i]->tx[cls];
        int64_t stuck;
        if (!nb_tx_is_fair(tx) || comm->neighbors[i]->gone) {
            tx->moved_ns = 0;
            continue;
        }
        busy++;
        stuck = stuck_ns(tx, now_ns);
        if (now_ns > stuck)
            continue;
        if (stuck < f->until_ns)
            f->until_ns = stuck;
        if (tx->had < least)
            least = tx->had;
    }
    if (busy == 0) {
        rest(comm, f, cls);
        return;
    }
    f->bounded = busy > 1 && least != UINT64_MAX;
    if (least == UINT64_MAX) /* all are stuck */
        return;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_tx *tx = &comm->neighbors[i]->tx[cls];
        if (tx->moved_ns == 0 && tx->had < least)
            tx->had = least;
    }
    adapt_lead(f, least, now_ns);
    f->most = least + f->lead;
}

/* ---- rings with news --------------------------------------------------------------------------------- */

/*
 * Which receive rings may have got something. A round of the engine that asked every connection of every peer
 * would spend a system call on each, most of them for nothing: with 64 nodes 189 of them, more than a round's
 * work takes. So one epoll set (epoll(7), edge-triggered) tells in one call which sockets have news; a ring
 * whose transport had nothing the last time is not asked again before it has, or before something is posted
 * to it.
 *
 * The engine still sleeps on what poll_fds of the transport says (progress.c). A ring whose transport has no
 * such descriptor is asked in every round.
 */

void nb_arrivals_open(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;

    comm->arrivals.fd = net->watch_fd ? epoll_create1(EPOLL_CLOEXEC) : -1;
    for (int i = 0; i < comm->nneighbors && comm->arrivals.fd >= 0; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = rx};
            int fd = net->watch_fd(rx->conn);
            rx->watched = fd >= 0 && epoll_ctl(comm->arrivals.fd, EPOLL_CTL_ADD, fd, &ev) == 0;
        }
    }
    if (net->watch_fd && comm->arrivals.fd < 0)
        NB_INFO(NCCL_NET, "%s: without an epoll set (%s) every connection is asked in every round",
                comm->label, strerror(errno));
}

void nb_arrivals_close(struct nb_coll_comm *comm)
{
    if (comm->arrivals.fd >= 0)
        close(comm->arrivals.fd);
    comm->arrivals.fd = -1;
}

void nb_arrivals_poll(struct nb_coll_comm *comm)
{
    struct epoll_event ev[64];
    int n = 64;

    while (comm->arrivals.fd >= 0 && n == 64) {
        n = epoll_wait(comm->arrivals.fd, ev, 64, 0);
        for (int i = 0; i < n; i++) {
            struct nb_rx *rx = ev[i].data.ptr;
            rx->quiet = 0;
            /* The end lies behind bytes that are read first, and will not be told of once more. */
            if (ev[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                rx->watched = 0;
        }
    }
}

void nb_arrivals_rescan(struct nb_coll_comm *comm)
{
    for (int i = 0; i < comm->nneighbors; i++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            comm->neighbors[i]->rx[c].quiet = 0;
}
