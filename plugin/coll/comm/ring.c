/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections. The message buffers of a receive ring are the credits of
 * its peer and class: an untaken message keeps its message buffer, and the transport's back-pressure stops
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

/* Sends in flight at once. NCCL has at most this number on a connection, so plugins (transport `forward`) may
 * refuse more. */
#define SENDS_MAX ((uint64_t)NCCL_NET_MAX_REQUESTS)

/* Return 0 when the end of a connection is in order: its peer has sent FIN, or this node is closing and has
 * finished with the connection. */
static int link_error(struct nb_coll_comm *comm, struct nb_peer *peer, int err)
{
    if (!nb_peer_needed(comm, peer))
        return 0;
    return nb_comm_suspect(comm, peer, err);
}

/* The peer has stopped taking messages. Drop the queued ones, and release shared units. */
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

/* Note the end of the exchange with a peer that has left: all its messages have arrived, or can never arrive.
 * Its connections end in any order: bytes may still lie in the kernel behind a connection that is already
 * closed in the other direction. */
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
    /* Drop messages that a peer has not taken before it left in the middle of an operation. A window would
     * wait for them for ever, instead of failing for lack of the peer's values (watch/heartbeat.c). */
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

static int send_item(struct nb_coll_comm *comm, struct nb_tx *tx, struct nb_tx_item *it)
{
    const size_t head = it->shared ? it->shared->head : it->head, len = item_bytes(it);
    uint8_t *data = (uint8_t *)(uintptr_t)it->data, *body = (uint8_t *)(uintptr_t)it->body;
    const struct nb_net_part part[2] = {
        {data, head, it->mhandle},
        {body ? body : data + head, len - head, body ? tx->body_mhandle : it->mhandle}};

    /* The receiver's memory may be in two parts although this node's is not. */
    if (comm->net->isend_parts && tx->cls != NB_CLASS_CONTROL)
        return comm->net->isend_parts(tx->conn, part, 0, &it->req);
    return comm->net->isend(tx->conn, it->data, len, 0, it->mhandle, &it->req);
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
        ret = send_item(comm, tx, it);
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

int nb_tx_check(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx)
{
    int err;

    if (peer->gone || tx->closed || tx->done < tx->queued || !comm->net->lost)
        return 0;
    err = comm->net->lost(tx->conn);
    return err ? tx_error(comm, peer, tx, err) : 0;
}

/* Flush payloads that have landed in the device's memory. One flush is for all of them, and the next one for
 * those that land meanwhile. Return how many messages have arrived, or an error. */
static int flush(struct nb_coll_comm *comm, struct nb_rx *rx)
{
    const uint64_t before = rx->arrived;
    int ret, done;

    while (rx->arrived < rx->landed) {
        if (!rx->flush) {
            void *data = NULL;
            size_t size = 0;
            rx->flushing = rx->landed;
            for (uint64_t i = rx->arrived; i < rx->landed; i++) {
                if (!rx->len[i % rx->buffers])
                    continue; /* the header is all */
                data = rx->bodies + (i % rx->buffers) * rx->body_bytes;
                size = rx->len[i % rx->buffers];
            }
            ret = size ? comm->net->iflush(rx->conn, 1, &data, &size, &rx->body_mhandle, &rx->flush) : 0;
            if (ret)
                return ret;
        }
        done = !rx->flush;
        ret = done ? 0 : comm->net->test(rx->flush, &done, NULL);
        if (ret)
            return ret;
        if (!done)
            break;
        rx->flush = NULL;
        rx->arrived = rx->flushing;
    }
    return rx->arrived > before;
}

/* Take over the completed receives, in order. Return whether one has arrived, or the error of the first
 * incomplete one. */
static int harvest(struct nb_coll_comm *comm, struct nb_rx *rx)
{
    int moved = 0, ret = 0, done = 1, flushed;

    while (rx->landed < rx->posted && done && !ret) {
        unsigned at = (unsigned)(rx->landed % rx->buffers);
        done = 0;
        ret = comm->net->test(rx->req[at], &done, &rx->len[at]);
        if (ret || !done)
            break;
        rx->req[at] = NULL;
        rx->landed++;
        moved = 1;
    }
    if (!rx->bodies) {
        rx->arrived = rx->landed;
    } else {
        flushed = flush(comm, rx);
        if (flushed < 0)
            return flushed;
        if (rx->arrived < rx->landed) /* an error of a later receive comes again */
            return flushed;
        moved = flushed;
    }
    if (!ret && !done)
        rx->quiet = rx->watched;
    return ret ? ret : moved;
}

int nb_rx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx)
{
    int moved, ret;

    if (peer->gone || rx->closed)
        return 0;
    moved = rx->quiet ? 0 : harvest(comm, rx);
    if (moved < 0)
        return rx_error(comm, peer, rx, moved);
    while (rx->freed < rx->taken && !rx->held[rx->freed % rx->buffers] &&
           (!rx->shared || rx->shared[rx->freed % rx->buffers].left == 0))
        rx->freed++;
    while (rx->posted - rx->freed < rx->buffers && rx->posted - rx->landed < rx->window) {
        unsigned at = (unsigned)(rx->posted % rx->buffers);
        void *data = rx->mem + at * rx->buffer_bytes, *mh = rx->mhandle;
        size_t size = rx->buffer_bytes;
        int tag = 0;
        if (rx->bodies)
            ret = comm->net->irecv_parts(
                rx->conn,
                (const struct nb_net_part[2]){
                    {data, size, mh}, {rx->bodies + at * rx->body_bytes, rx->body_bytes, rx->body_mhandle}},
                0, &rx->req[at]);
        else
            ret = comm->net->irecv(rx->conn, 1, &data, &size, &tag, &mh, &rx->req[at]);
        if (ret) { /* the transport read up to the connection's end for the receives posted before */
            const int last = harvest(comm, rx);
            if (last >= 0 && rx->arrived < rx->landed) /* a flush first. The error comes again */
                return moved | last;
            return rx_error(comm, peer, rx, ret);
        }
        if (!rx->req[at])
            break;
        rx->posted++;
        rx->quiet = 0; /* the transport may have read ahead for this receive */
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
                                  .body = shared ? shared->body : nb_tx_body(tx),
                                  .shared = shared,
                                  .mhandle = shared ? tx->shared_mhandle : tx->mhandle});
    return number;
}

void nb_tx_ready(struct nb_tx *tx, uint64_t number, size_t head, size_t len)
{
    struct nb_tx_item *it = &tx->item[number % tx->buffers];

    if (tx->closed) /* the queue was dropped */
        return;
    it->head = head;
    it->len = len;
    it->ready = 1;
}

void nb_tx_forward(struct nb_tx *tx, struct nb_shared *buffer)
{
    push(tx,
         &(struct nb_tx_item){
             .data = buffer->buf, .body = buffer->body, .shared = buffer, .mhandle = tx->forward_mhandle});
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
        if (rx->bodies)
            len += nb_msg_header_at(buffer); /* it was told without the header */
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
 * Fairness: how a node's peers share its link. A sum waits for every node's contribution, and an operation
 * for its last byte. So a peer is no faster when its bytes arrive before other peers get theirs. Without
 * fairness some connections run far ahead, because they are older or their receivers are less busy. In the
 * end the slow ones have the link to themselves, while the other links are idle. So a peer gets no new
 * message while it is more than a few milliseconds ahead of the slowest peer. This is for transports that let
 * bytes pile up in the host (`early` in net/transport.h).
 *
 * The bookkeeping is taken from start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Each ring
 * counts the bytes that its peer has received. An empty ring counts as level with the slowest ring, so that
 * it saves up no claim and holds up no other ring. The counts only bound the lead, while in the paper they
 * schedule the link. Here the network schedules the link.
 *
 * Waiting is bounded: the slowest ring may always send. A ring that has not moved for some time is stuck: its
 * node is late, or waits itself for a peer that is held back. Such a ring does not count until it moves.
 *
 * Values that go straight to a reduce-scatter's owners are left out (`apart` in ring.h). NCCL walks over the
 * blocks one after the other, so the owners need them at different times. While one owner gets its block from
 * all other nodes, each of these has only a part of its link for it. The rest is for the next owners, and
 * fairness would leave it idle (docs/scale.md).
 *
 * The counts of the two classes are independent, as their rings have to be (comm.h).
 */

#define LEAD_MIN 131072u /* a ring would run empty between two updates with a smaller lead */
#define LEAD_NS (4 * (int64_t)NB_NS_PER_MS)
#define STUCK_NS (20 * (int64_t)NB_NS_PER_MS)
#define STUCK_MOST_NS ((int64_t)NB_NS_PER_S) /* for rings whose single messages take long */

/* Return the time from which a ring with messages counts as stuck: it has then not moved for four times the
 * time of its last message. */
static int64_t stuck_ns(struct nb_tx *tx, int64_t now_ns)
{
    int64_t patience;

    if (tx->moved_ns == 0) { /* it was empty */
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

/* Set the lead to the bytes of the slowest ring in LEAD_NS. It stays while all rings stand still, and over a
 * pause. */
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

/* All rings are empty. Let them start level the next time. */
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
    if (least == UINT64_MAX) /* all rings are stuck */
        return;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_tx *tx = &comm->neighbors[i]->tx[cls];
        if (tx->moved_ns == 0 && tx->had < least)
            tx->had = least;
    }
    adapt_lead(f, least, now_ns);
    f->most = least + f->lead;
}

/* ---- arrivals ---------------------------------------------------------------------------------------- */

/*
 * The rings that may have received something. With 64 nodes a round that asks every connection spends 189
 * system calls, most of them in vain, and longer than its work. So one epoll set (epoll(7), edge-triggered)
 * reports all sockets with arrivals in one call. A ring whose transport was empty is asked again when the set
 * reports it, or when a receive is posted.
 *
 * The engine still sleeps on the descriptors of the transport's poll_fds (progress.c). A ring whose transport
 * has no such descriptor is asked in every round.
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
            /* The end of a connection lies behind bytes that are read first, and is reported only once. */
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
