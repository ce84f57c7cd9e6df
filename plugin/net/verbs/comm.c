/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that both directions of verbs connections share: making, closing, posting, failing.
 *
 * A connection goes one way, and the receiver drives it. irecv writes addresses, keys and sizes of a group of
 * receives as a grant into a table in the sender's memory ("clear to send"). The sender matches its queued
 * sends with the open grants, by tag, in order. It writes each message straight to its destination, on one
 * queue pair or cut into pieces over all of them. The last write of a piece carries an immediate that names
 * the grant, the entry, and the number of pieces. The protocol therefore needs no order between queue pairs.
 *
 * The queues cannot overflow. The receiver has a receive work request for every message that it has granted,
 * on every queue pair, and the sender has one for every grant. Each post counts the send queue's free places
 * first and waits its turn.
 *
 * The TCP socket over which the two sides have met stays open. Over it a side learns that its peer has closed
 * (and how many messages the peer knows to be complete), that it has failed (and why), or that its process
 * has died, long before the network's retries end.
 *
 * Threads: one thread at a time uses a connection. Locks protect state that devices share. The transport has
 * no threads of its own: the connection that checks first reads asynchronous events.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp/tcp.h"

#define WR_BATCH 16

/* ---- making ---- */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Make our tables, on pages of their own, which fork's protection can mark without touching other data. The
 * adapter writes to them in strict order, since this side reads them while further writes are in flight. */
static int make_tables(struct nb_verbs_comm *c, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p;

    c->mem_bytes = (bytes + page - 1) / page * page;
    if (posix_memalign(&p, page, c->mem_bytes) != 0)
        return -ENOMEM;
    memset(p, 0, c->mem_bytes);
    c->mem = p;
    errno = 0;
    c->mem_mr =
        c->hca->api->reg_mr(c->hca->pd, p, c->mem_bytes,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (c->mem_mr)
        return 0;
    NB_WARN("verbs: %s: registering %zu bytes for a connection with %s failed: %s (ulimit -l must be "
            "unlimited where the job is started)",
            c->dev->name, c->mem_bytes, c->peer, strerror(errno));
    return errno ? -errno : -EIO;
}

/* Read the current LID and MTU: subnet managers and administrators change them. */
static int look_at_port(struct nb_verbs_comm *c)
{
    struct ibv_port_attr a;

    memset(&a, 0, sizeof(a));
    if (c->hca->api->query_port(c->hca->context, (uint8_t)c->dev->port, &a) != 0 ||
        a.state != IBV_PORT_ACTIVE) {
        NB_WARN("verbs: %s: port %d is not active and cannot connect to %s", c->dev->name, c->dev->port,
                c->peer);
        return -ENETDOWN;
    }
    c->meta.mtu = (uint8_t)a.active_mtu;
    c->meta.lid = a.lid;
    return 0;
}

static int make_cq(struct nb_verbs_comm *c)
{
    /* Messages go over all queue pairs, grants over the first, and a flush over its own. */
    uint64_t want = (uint64_t)c->nqps * (c->is_send ? c->send_depth : c->recv_depth) +
                    2 * (uint64_t)(c->is_send ? c->recv_depth : c->send_depth);
    int cqe =
        want > (uint64_t)c->hca->attr.max_cqe && c->hca->attr.max_cqe > 0 ? c->hca->attr.max_cqe : (int)want;
    int flags;

    errno = 0;
    c->channel = c->hca->api->create_comp_channel(c->hca->context);
    if (c->channel)
        c->cq = c->hca->api->create_cq(c->hca->context, cqe, c, c->channel, 0);
    if (!c->cq) {
        int err = errno ? errno : EIO;

        NB_WARN("verbs: %s: no completion %s for a connection with %s: %s", c->dev->name,
                c->channel ? "queue" : "channel", c->peer, strerror(err));
        return -err;
    }
    flags = fcntl(c->channel->fd, F_GETFL);
    if (flags < 0 || fcntl(c->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return -errno;
    return 0;
}

int nb_verbs_comm_init(struct nb_verbs_comm *c, struct nb_verbs_dev *dev,
                       const struct nb_verbs_direction *direction, bool is_send, int nqps, int fd,
                       size_t mem_bytes, size_t req_size)
{
    unsigned max_wr = dev->hca->attr.max_qp_wr > 0 ? (unsigned)dev->hca->attr.max_qp_wr : NB_VERBS_SEND_DEPTH;
    int err = 0, rc;

    c->direction = direction;
    c->is_send = is_send;
    nb_net_reqs_init(&c->reqs, c, req_size, NB_VERBS_REQ_MAX);
    c->dev = dev;
    c->hca = dev->hca;
    c->fd = fd;
    nb_tcp_names(fd, c->local, c->peer, sizeof(c->peer));
    c->send_depth = least(is_send ? NB_VERBS_SEND_DEPTH : NB_VERBS_RECV_DEPTH, max_wr);
    c->recv_depth = least(NB_VERBS_RECV_DEPTH, max_wr);
    c->qp = calloc((size_t)nqps, sizeof(*c->qp));
    if (!c->qp)
        return -ENOMEM;
    if (!nb_verbs_pd_get(c->hca, &err)) {
        NB_WARN("verbs: %s: no protection domain: %s", dev->name, strerror(err));
        return -err;
    }
    c->have_pd = true;
    rc = look_at_port(c);
    rc = rc ? rc : nb_verbs_gid_choose(dev, &c->gid_index, &c->gid);
    c->nqps = nqps;
    rc = rc ? rc : make_cq(c);
    rc = rc ? rc : make_tables(c, mem_bytes);
    for (int i = 0; i < nqps && !rc; i++) {
        unsigned send = is_send || i == 0 ? c->send_depth : 1, recv = !is_send || i == 0 ? c->recv_depth : 1;

        c->qp[i].qp = nb_verbs_qp_new(c, send, recv, IBV_ACCESS_REMOTE_WRITE, &err);
        if (!c->qp[i].qp)
            return -err;
        c->qp[i].free = send;
        c->qp[i].owed = !is_send || i == 0 ? recv : 0;
        c->meta.qpn[i] = c->qp[i].qp->qp_num;
    }
    if (rc)
        return rc;
    c->meta.version = NB_VERBS_WIRE_VERSION;
    c->meta.nqps = (unsigned)nqps;
    c->meta.link = dev->attr.link_layer;
    c->meta.depth = c->recv_depth;
    c->meta.rkey = c->mem_mr->rkey;
    c->meta.addr = (uint64_t)(uintptr_t)c->mem;
    memcpy(c->meta.gid, c->gid.raw, 16);
    snprintf(c->meta.device, sizeof(c->meta.device), "%.31s", dev->name);
    return 0;
}

void nb_verbs_comm_enlist(struct nb_verbs_comm *c)
{
    struct nb_verbs_hca *h = c->hca;

    pthread_mutex_lock(&h->lock);
    c->next = h->comms;
    if (c->next)
        c->next->prev = c;
    h->comms = c;
    pthread_mutex_unlock(&h->lock);
}

void nb_verbs_comm_fini(struct nb_verbs_comm *c)
{
    struct nb_verbs_hca *h = c->hca;

    pthread_mutex_lock(&h->lock);
    if (c->prev)
        c->prev->next = c->next;
    else if (h->comms == c)
        h->comms = c->next;
    if (c->next)
        c->next->prev = c->prev;
    pthread_mutex_unlock(&h->lock);

    for (int i = 0; i < c->nqps; i++)
        if (c->qp[i].qp)
            nb_verbs_freed(h, "a queue pair", h->api->destroy_qp(c->qp[i].qp));
    if (c->cq) {
        struct ibv_cq *cq;
        void *context;

        /* Unread events would hold up the destruction of their queue. */
        while (c->hca->api->get_cq_event(c->channel, &cq, &context) == 0)
            c->hca->api->ack_cq_events(cq, 1);
        nb_verbs_freed(h, "a completion queue", h->api->destroy_cq(c->cq));
    }
    if (c->channel)
        nb_verbs_freed(h, "a completion channel", h->api->destroy_comp_channel(c->channel));
    /* The adapter may write to tables that are still registered. */
    if (!c->mem_mr || nb_verbs_freed(h, "a connection's tables", h->api->dereg_mr(c->mem_mr)))
        free(c->mem);
    if (c->have_pd)
        nb_verbs_pd_put(h);
    if (c->fd >= 0)
        close(c->fd);
    free(c->qp);
    nb_net_reqs_free(&c->reqs);
}

/* ---- the socket to the peer ---- */

static void tell(struct nb_verbs_comm *c, const struct nb_verbs_control *what)
{
    uint8_t b[NB_VERBS_CONTROL_BYTES];

    if (c->fd < 0 || c->eof)
        return;
    nb_verbs_control_put(b, what);
    /* An idle socket always has room for this. A socket without room has a peer with greater trouble. */
    if (send(c->fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

void nb_verbs_close(struct nb_verbs_comm *c, uint64_t count)
{
    struct nb_verbs_control k = {.kind = NB_VERBS_FIN, .count = count};
    char b[64];

    if (!c->err)
        tell(c, &k);
    /* Read all bytes first: unread bytes would turn the end of the connection into a reset, which could
     * overtake the FIN. */
    while (c->fd >= 0 && recv(c->fd, b, sizeof(b), MSG_DONTWAIT) > 0)
        ;
}

/* ---- errors ---- */

void nb_verbs_fail(struct nb_verbs_comm *c, int err, const char *fmt, ...)
{
    struct nb_verbs_control k = {.kind = NB_VERBS_ERROR, .error = -err};
    char text[768];
    va_list ap;

    if (c->err)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->err = err;
    NB_WARN("verbs: %s %s: %s %s (%s): %s", c->dev->name, c->local, c->is_send ? "to" : "from", c->peer,
            c->peer_meta.device[0] ? c->peer_meta.device : "?", text);
    snprintf(k.reason, sizeof(k.reason), "%.100s", text);
    tell(c, &k);
}

/* ---- posting ---- */

int nb_verbs_post(struct nb_verbs_comm *c, struct nb_verbs_qp *q, struct ibv_send_wr *wr, unsigned places)
{
    struct ibv_send_wr *bad = NULL;
    int rc = ibv_post_send(q->qp, wr, &bad);

    if (rc) {
        rc = rc > 0 ? rc : errno;
        nb_verbs_fail(c, -rc,
                      "a send request cannot be posted on queue pair %u: %s (%u of %u places were free)",
                      q->qp->qp_num, strerror(rc), q->free, c->send_depth);
        return -rc;
    }
    q->free -= places;
    return 0;
}

void nb_verbs_repost(struct nb_verbs_comm *c)
{
    for (int i = 0; i < c->nqps && !c->err; i++) {
        struct nb_verbs_qp *q = &c->qp[i];

        while (q->owed > 0) {
            struct ibv_recv_wr wr[WR_BATCH], *bad = NULL;
            unsigned n = least(q->owed, WR_BATCH);
            int rc;

            memset(wr, 0, n * sizeof(wr[0]));
            for (unsigned k = 0; k < n; k++) {
                wr[k].wr_id = NB_VERBS_WR_ID(0, 0, i);
                wr[k].next = k + 1 < n ? &wr[k + 1] : NULL;
            }
            rc = ibv_post_recv(q->qp, wr, &bad);
            if (rc) {
                rc = rc > 0 ? rc : errno;
                nb_verbs_fail(c, -rc, "a receive request cannot be posted on queue pair %u: %s",
                              q->qp->qp_num, strerror(rc));
                return;
            }
            q->owed -= n;
        }
    }
}
