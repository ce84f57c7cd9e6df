/* SPDX-License-Identifier: Apache-2.0 */
/* What both directions of a verbs connection share: making and closing, progress, errors, sleeping. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp_int.h"
#include "net/verbs_int.h"

#define WC_BATCH 16
/* A work request that fails because of the peer: how long the peer's own word about it is waited for. */
#define LAST_WORDS_MS 100
/* A peer that has closed in order: how long its last messages may still be on their way. */
#define LAST_DATA_MS 1000

struct nb_verbs_block {
    struct nb_verbs_block *next;
    max_align_t data[];
};

void *nb_verbs_block_new(struct nb_verbs_comm *c, size_t bytes)
{
    struct nb_verbs_block *b = calloc(1, sizeof(*b) + bytes);

    if (!b)
        return NULL;
    b->next = c->blocks;
    c->blocks = b;
    return b->data;
}

/* ---- making ---- */

static void names(struct nb_verbs_comm *c)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);

    memset(&a, 0, sizeof(a));
    getpeername(c->fd, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->peer, sizeof(c->peer));
    memset(&a, 0, sizeof(a));
    len = sizeof(a);
    getsockname(c->fd, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->local, sizeof(c->local));
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Our own tables: pages of their own, which fork's protection can mark without hitting anything else, and
 * writes in strict order, since they are read while others are on their way. */
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
        nb_verbs_api->reg_mr(c->hca->pd, p, c->mem_bytes,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (c->mem_mr)
        return 0;
    NB_WARN("verbs: %s: registering %zu bytes for a connection with %s failed: %s (ulimit -l must be "
            "unlimited where "
            "the job is started)",
            c->dev->name, c->mem_bytes, c->peer, strerror(errno));
    return errno ? -errno : -EIO;
}

/* LID and MTU as they are now: subnet managers and administrators change them. */
static int look_at_port(struct nb_verbs_comm *c)
{
    struct ibv_port_attr a;

    memset(&a, 0, sizeof(a));
    if (nb_verbs_api->query_port(c->hca->context, (uint8_t)c->dev->port, &a) != 0 ||
        a.state != IBV_PORT_ACTIVE) {
        NB_WARN("verbs: %s: port %d is not active, no connection with %s can be made over it", c->dev->name,
                c->dev->port, c->peer);
        return -ENETDOWN;
    }
    c->meta.mtu = (uint8_t)a.active_mtu;
    c->meta.lid = a.lid;
    return 0;
}

static int make_cq(struct nb_verbs_comm *c)
{
    /* Messages go over all queue pairs, what clears them over the first, and a flush over its own. */
    uint64_t want = (uint64_t)c->nqps * (c->is_send ? c->send_depth : c->recv_depth) +
                    2 * (uint64_t)(c->is_send ? c->recv_depth : c->send_depth);
    int cqe =
        want > (uint64_t)c->hca->attr.max_cqe && c->hca->attr.max_cqe > 0 ? c->hca->attr.max_cqe : (int)want;
    int flags;

    errno = 0;
    c->channel = nb_verbs_api->create_comp_channel(c->hca->context);
    if (c->channel)
        c->cq = nb_verbs_api->create_cq(c->hca->context, cqe, c, c->channel, 0);
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

int nb_verbs_comm_init(struct nb_verbs_comm *c, struct nb_verbs_dev *dev, bool is_send, int nqps, int fd,
                       size_t mem_bytes)
{
    unsigned max_wr = dev->hca->attr.max_qp_wr > 0 ? (unsigned)dev->hca->attr.max_qp_wr : NB_VERBS_SEND_DEPTH;
    int err = 0, rc;

    c->is_send = is_send;
    c->dev = dev;
    c->hca = dev->hca;
    c->fd = fd;
    names(c);
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
            nb_verbs_api->destroy_qp(c->qp[i].qp);
    if (c->cq) {
        struct ibv_cq *cq;
        void *context;

        /* Events that nobody has fetched would hold up the end of their queue. */
        while (nb_verbs_api->get_cq_event(c->channel, &cq, &context) == 0)
            nb_verbs_api->ack_cq_events(cq, 1);
        nb_verbs_api->destroy_cq(c->cq);
    }
    if (c->channel)
        nb_verbs_api->destroy_comp_channel(c->channel);
    if (c->mem_mr)
        nb_verbs_api->dereg_mr(c->mem_mr);
    free(c->mem);
    if (c->have_pd)
        nb_verbs_pd_put(h);
    if (c->fd >= 0)
        close(c->fd);
    free(c->qp);
    while (c->blocks) {
        struct nb_verbs_block *b = c->blocks;

        c->blocks = b->next;
        free(b);
    }
}

/* ---- the socket to the peer ---- */

static void tell(struct nb_verbs_comm *c, const struct nb_verbs_control *what)
{
    uint8_t b[NB_VERBS_CONTROL_BYTES];

    if (c->fd < 0 || c->eof)
        return;
    nb_verbs_control_put(b, what);
    /* An idle socket always has room for this; when it has not, the peer has more to complain about. */
    if (send(c->fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

/* Reads what the peer says. */
static void listen_to_peer(struct nb_verbs_comm *c, int64_t now)
{
    struct nb_verbs_control k;
    ssize_t n;

    while (!c->eof && c->fd >= 0) {
        n = recv(c->fd, c->heard + c->heard_bytes, sizeof(c->heard) - c->heard_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0 && errno != ECONNRESET && errno != EPIPE) {
            nb_verbs_fail(c, -errno, "lost the peer's host: %s", strerror(errno));
            return;
        }
        if (n <= 0) {
            c->eof = true;
            c->eof_ms = now;
            return;
        }
        c->heard_bytes += (unsigned)n;
        if (c->heard_bytes < sizeof(c->heard))
            return;
        c->heard_bytes = 0;
        if (nb_verbs_control_get(c->heard, &k) != 0 || k.kind == NB_VERBS_READY) {
            nb_verbs_fail(c, -EPROTO, "what the peer says over its socket is not this protocol's");
            return;
        }
        if (k.kind == NB_VERBS_BYE) {
            /* The last word. The socket may stay open for a while. */
            c->bye = c->eof = true;
            c->bye_count = k.count;
            c->eof_ms = now;
        } else {
            nb_verbs_fail(c, -k.error, "the peer reports: %s", k.reason);
            return;
        }
    }
}

void nb_verbs_close(struct nb_verbs_comm *c, uint64_t count)
{
    struct nb_verbs_control k = {.kind = NB_VERBS_BYE, .count = count};
    char b[64];

    if (!c->err)
        tell(c, &k);
    /* Unread bytes would turn the end of the connection into a reset, which could overtake the goodbye. */
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

static void fail_wc(struct nb_verbs_comm *c, const struct ibv_wc *wc)
{
    char local[INET6_ADDRSTRLEN], remote[INET6_ADDRSTRLEN];

    nb_verbs_gid_name(c->gid.raw, local);
    nb_verbs_gid_name(c->peer_meta.gid, remote);
    nb_verbs_fail(c, nb_verbs_status_errno(wc->status),
                  "%s (status %d, vendor error 0x%x) on queue pair %u; GID %s, the peer's %s. Hint: %s",
                  nb_verbs_status_name(wc->status), (int)wc->status, wc->vendor_err, wc->qp_num, local,
                  remote, nb_verbs_status_hint(wc->status));
}

static void bad_wc(struct nb_verbs_comm *c, const struct ibv_wc *wc, int64_t now)
{
    if (c->err || c->failing)
        return;
    /* A peer that closes, or fails, takes its queue pairs away: what it says on its socket is the cause, and
     * this only the consequence. */
    if (nb_verbs_status_local(wc->status)) {
        fail_wc(c, wc);
        return;
    }
    c->failing = true;
    c->failing_ms = now;
    c->failing_wc = *wc;
}

/* The peer has closed, and all that it sent before has been taken. */
static void closed_by_peer(struct nb_verbs_comm *c, int64_t now)
{
    if (c->is_send && c->bye && c->bye_count >= c->messages)
        nb_verbs_send_all_received((struct nb_verbs_send *)c);
    if (c->unfinished == 0 || c->err)
        return;
    if (!c->is_send && ((struct nb_verbs_recv *)c)->slots_out == 0)
        return; /* only flushes, which need no peer */
    if (!c->is_send && c->bye && c->bye_count > c->messages && now - c->eof_ms < LAST_DATA_MS)
        return;
    if (c->bye && !c->is_send && c->bye_count > c->messages)
        nb_verbs_fail(c, -ECONNRESET, "the peer has closed after %llu messages, of which %llu have come",
                      (unsigned long long)c->bye_count, (unsigned long long)c->messages);
    else if (c->bye)
        c->err = -ECONNRESET; /* in order: the caller knows whether it is worth a line */
    else
        nb_verbs_fail(c, -ECONNRESET, "the peer's process has ended");
}

int nb_verbs_check(struct nb_verbs_comm *c)
{
    if (!c->err && atomic_load_explicit(&c->hca->fatal, memory_order_relaxed))
        nb_verbs_fail(c, -EIO, "the adapter is lost (%s)", nb_verbs_event_name(IBV_EVENT_DEVICE_FATAL));
    if (!c->err && atomic_load_explicit(&c->async, memory_order_relaxed))
        nb_verbs_fail(c, -EIO, "%s, reported by the adapter; see dmesg",
                      nb_verbs_event_name((enum ibv_event_type)(atomic_load(&c->async) - 1)));
    if (!c->err && c->eof) {
        if (c->bye)
            c->err = -ECONNRESET;
        else
            nb_verbs_fail(c, -ECONNRESET, "the peer's process has ended");
    }
    return c->err;
}

/* ---- progress ---- */

int nb_verbs_post(struct nb_verbs_comm *c, struct nb_verbs_qp *q, struct ibv_send_wr *wr, unsigned places)
{
    struct ibv_send_wr *bad = NULL;
    int rc = ibv_post_send(q->qp, wr, &bad);

    if (rc) {
        rc = rc > 0 ? rc : errno;
        nb_verbs_fail(c, -rc, "a request cannot be posted on queue pair %u: %s (%u of %u places were free)",
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
            struct ibv_recv_wr wr[WC_BATCH], *bad = NULL;
            unsigned n = least(q->owed, WC_BATCH);
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

static bool take_completions(struct nb_verbs_comm *c, int64_t *now)
{
    struct ibv_wc wc[WC_BATCH];
    bool moved = false;
    int n;

    do {
        n = ibv_poll_cq(c->cq, WC_BATCH, wc);
        if (n < 0) {
            nb_verbs_fail(c, -EIO, "the completion queue cannot be read");
            break;
        }
        for (int i = 0; i < n && !c->err; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                *now = *now ? *now : nb_tcp_now_ms();
                bad_wc(c, &wc[i], *now);
            } else if (NB_VERBS_WR_QP(wc[i].wr_id) < (unsigned)c->nqps + 1) {
                if (c->is_send)
                    nb_verbs_send_wc((struct nb_verbs_send *)c, &wc[i]);
                else
                    nb_verbs_recv_wc((struct nb_verbs_recv *)c, &wc[i]);
            }
        }
        if (n > 0 && !c->err) {
            moved = true;
            nb_verbs_repost(c);
        }
    } while (n == WC_BATCH && !c->err);
    return moved;
}

/* What is looked at only now and then. */
static void slow_checks(struct nb_verbs_comm *c, int64_t now)
{
    c->checked_ms = now;
    nb_verbs_async(c->hca);
    listen_to_peer(c, now);
    if (!c->err && c->failing && now - c->failing_ms >= LAST_WORDS_MS && !c->eof)
        fail_wc(c, &c->failing_wc);
}

bool nb_verbs_progress(struct nb_verbs_comm *c)
{
    int64_t now = 0;
    bool moved;

    if (c->err)
        return false;
    moved = take_completions(c, &now);
    if (!c->err && c->is_send)
        nb_verbs_send_push((struct nb_verbs_send *)c);
    if (moved || c->err)
        return moved;
    now = nb_tcp_now_ms();
    /* Here the completions have been looked at once more since the end was seen. */
    if (c->eof)
        closed_by_peer(c, now);
    if (!c->err && now != c->checked_ms)
        slow_checks(c, now);
    if (atomic_load_explicit(&c->hca->fatal, memory_order_relaxed) ||
        atomic_load_explicit(&c->async, memory_order_relaxed))
        nb_verbs_check(c);
    return false;
}

/* ---- requests ---- */

void nb_verbs_done(struct nb_verbs_req_head *h)
{
    h->done = true;
    h->comm->unfinished--;
    h->comm->done_untested++;
}

int nb_verbs_test(void *request, int *done, size_t *sizes)
{
    struct nb_verbs_req_head *h = request;
    struct nb_verbs_comm *c = h->comm;

    *done = 0;
    if (!h->done)
        nb_verbs_progress(c);
    if (!h->done)
        return c->err;
    *done = 1;
    c->done_untested--;
    if (h->kind == NB_VERBS_SEND_REQ) {
        struct nb_verbs_sreq *q = request;

        if (sizes)
            sizes[0] = q->size;
        nb_verbs_sreq_free(q);
    } else {
        struct nb_verbs_rreq *q = request;

        for (int i = 0; sizes && h->kind == NB_VERBS_RECV_REQ && i < q->n; i++)
            sizes[i] = q->size[i];
        nb_verbs_rreq_free(q);
    }
    return 0;
}

/* ---- sleeping ---- */

int nb_verbs_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    struct nb_verbs_comm *c = comm;
    struct ibv_cq *cq;
    void *context;
    int n = 0;

    (void)is_send;
    if (c->err || c->done_untested > 0 || max < 3)
        return -1;
    if (c->unfinished == 0)
        return 0;
    if (c->armed && nb_verbs_api->get_cq_event(c->channel, &cq, &context) == 0) {
        nb_verbs_api->ack_cq_events(cq, 1);
        c->armed = false;
    }
    if (!c->armed) {
        int rc = ibv_req_notify_cq(c->cq, 0);

        if (rc) {
            nb_verbs_fail(c, -EIO, "completions cannot be waited for: %s", strerror(rc > 0 ? rc : errno));
            return -1;
        }
        c->armed = true;
    }
    /* What came before the arming makes nothing readable, and the socket may have spoken: look once more. */
    c->checked_ms = 0;
    nb_verbs_progress(c);
    if (c->eof && !c->err)
        nb_verbs_progress(c);
    if (c->err || c->done_untested > 0)
        return -1;
    if (c->unfinished == 0)
        return 0;
    /* Waiting for the last data, or the last words, of a peer has an end. */
    if (c->eof || c->failing)
        return -1;
    fds[n++] = (struct pollfd){.fd = c->channel->fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = c->fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = c->hca->context->async_fd, .events = POLLIN};
    return n;
}
