/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that move a verbs connection forward, and the descriptors that its owner may sleep on. One thread
 * at a time. */
#include "net/verbs/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"

#define WC_BATCH 16
/* How long to wait for the peer's own reason after a work request has failed because of the peer. */
#define LAST_WORDS_MS 100
/* How long the last messages of a peer that has closed in order may still be in flight. */
#define LAST_DATA_MS 1000

/* ---- the socket to the peer ---- */

/* Read the socket to the peer. */
static void read_socket(struct nb_verbs_comm *c, int64_t now)
{
    struct nb_verbs_control k;
    ssize_t n;

    while (!c->eof && c->fd >= 0) {
        n = recv(c->fd, c->heard + c->received_bytes, sizeof(c->heard) - c->received_bytes, MSG_DONTWAIT);
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
        c->received_bytes += (unsigned)n;
        if (c->received_bytes < sizeof(c->heard))
            return;
        c->received_bytes = 0;
        if (nb_verbs_control_get(c->heard, &k) != 0 || k.kind == NB_VERBS_READY) {
            nb_verbs_fail(c, -EPROTO, "the peer's socket carries bytes of another protocol");
            return;
        }
        if (k.kind == NB_VERBS_FIN) {
            /* The peer's last message. The socket may stay open for a while. */
            c->fin = c->eof = true;
            c->fin_count = k.count;
            c->eof_ms = now;
        } else {
            nb_verbs_fail(c, -k.error, "the peer reports: %s", k.reason);
            return;
        }
    }
}

/* ---- errors ---- */

static void fail_wc(struct nb_verbs_comm *c, const struct ibv_wc *wc)
{
    char local[INET6_ADDRSTRLEN], remote[INET6_ADDRSTRLEN];

    nb_verbs_gid_name(c->gid.raw, local);
    nb_verbs_gid_name(c->peer_meta.gid, remote);
    nb_verbs_fail(c, nb_verbs_status_errno(wc->status),
                  "%s (status %d, vendor error 0x%x) on queue pair %u, GID %s, peer's GID %s. Hint: %s",
                  nb_verbs_status_name(wc->status), (int)wc->status, wc->vendor_err, wc->qp_num, local,
                  remote, nb_verbs_status_hint(wc->status));
}

static void bad_wc(struct nb_verbs_comm *c, const struct ibv_wc *wc, int64_t now)
{
    if (c->err || c->failing)
        return;
    /* A peer that closes or fails takes its queue pairs away. Its message on the socket then names the cause,
     * and this completion is only the consequence. */
    if (nb_verbs_status_local(wc->status)) {
        fail_wc(c, wc);
        return;
    }
    c->failing = true;
    c->failing_ms = now;
    c->failing_wc = *wc;
}

/* Handle a peer that has closed, after all its earlier completions were taken. */
static void closed_by_peer(struct nb_verbs_comm *c, int64_t now)
{
    if (c->fin && c->fin_count >= c->messages && c->direction->all_received)
        c->direction->all_received(c);
    if (c->unfinished == 0 || c->err || !c->direction->needs_peer(c))
        return;
    if (!c->is_send && c->fin && c->fin_count > c->messages && now - c->eof_ms < LAST_DATA_MS)
        return;
    if (c->fin && !c->is_send && c->fin_count > c->messages)
        nb_verbs_fail(c, -ECONNRESET, "the peer has closed after %llu messages, of which %llu have arrived",
                      (unsigned long long)c->fin_count, (unsigned long long)c->messages);
    else if (c->fin)
        c->err = -ECONNRESET; /* in order: the caller decides whether to log it */
    else
        nb_verbs_fail(c, -ECONNRESET, "the peer's process has ended");
}

int nb_verbs_check(struct nb_verbs_comm *c)
{
    if (!c->err && atomic_load_explicit(&c->hca->fatal, memory_order_relaxed))
        nb_verbs_fail(c, -EIO, "the adapter is lost (%s)", nb_verbs_event_name(IBV_EVENT_DEVICE_FATAL));
    if (!c->err && atomic_load_explicit(&c->async, memory_order_relaxed))
        nb_verbs_fail(c, -EIO, "the adapter reports: %s (see dmesg)",
                      nb_verbs_event_name((enum ibv_event_type)(atomic_load(&c->async) - 1)));
    if (!c->err && c->eof) {
        if (c->fin)
            c->err = -ECONNRESET;
        else
            nb_verbs_fail(c, -ECONNRESET, "the peer's process has ended");
    }
    return c->err;
}

/* ---- asynchronous events ---- */

/* Return the connection that has this queue pair or completion queue. */
static struct nb_verbs_comm *find_comm(struct nb_verbs_hca *h, const struct ibv_qp *qp,
                                       const struct ibv_cq *cq)
{
    for (struct nb_verbs_comm *c = h->comms; c; c = c->next) {
        if (cq && c->cq == cq)
            return c;
        for (int i = 0; qp && i < c->nqps; i++)
            if (c->qp[i].qp == qp)
                return c;
        if (qp && c->flush_qp == qp)
            return c;
    }
    return NULL;
}

static void handle_event(struct nb_verbs_hca *h, const struct ibv_async_event *e)
{
    struct nb_verbs_comm *c = NULL;

    switch ((int)e->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        NB_WARN("verbs: %s: %s: all its connections end", h->name, nb_verbs_event_name(e->event_type));
        if (h->conf->return_async)
            atomic_store(&h->fatal, true);
        return;
    case IBV_EVENT_CQ_ERR: c = find_comm(h, NULL, e->element.cq); break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: c = find_comm(h, e->element.qp, NULL); break;
    case IBV_EVENT_PORT_ERR:
        NB_WARN("verbs: %s: port %d is down: its requests in flight fail when their retries end", h->name,
                e->element.port_num);
        return;
    case IBV_EVENT_COMM_EST: return;
    default: NB_INFO(NCCL_NET, "verbs: %s: %s", h->name, nb_verbs_event_name(e->event_type)); return;
    }
    if (c && h->conf->return_async) /* the connection's own next call reports it */
        atomic_store(&c->async, (int)e->event_type + 1);
    else
        NB_WARN("verbs: %s: %s%s", h->name, nb_verbs_event_name(e->event_type),
                c ? ", ignored (NCCL_IB_RETURN_ASYNC_EVENTS=0)" : " of no connection");
}

/* Read the available asynchronous events, without waiting. Log them and mark the connections that they
 * concern. */
static void read_events(struct nb_verbs_hca *h)
{
    struct ibv_async_event e;

    /* the holder of the lock reads the events */
    if (pthread_mutex_trylock(&h->lock) != 0)
        return;
    while (h->api->get_async_event(h->context, &e) == 0) {
        handle_event(h, &e);
        h->api->ack_async_event(&e);
    }
    pthread_mutex_unlock(&h->lock);
}

/* ---- progress ---- */

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
                *now = *now ? *now : nb_clock_ms(c->hca->clock);
                bad_wc(c, &wc[i], *now);
            } else if (NB_VERBS_WR_QP(wc[i].wr_id) < (unsigned)c->nqps + 1) {
                c->direction->completion(c, &wc[i]);
            }
        }
        if (n > 0 && !c->err) {
            moved = true;
            nb_verbs_repost(c);
        }
    } while (n == WC_BATCH && !c->err);
    return moved;
}

/* Take the completions of flushes on a connection whose peer has ended. */
static void take_flushes(struct nb_verbs_comm *c)
{
    struct ibv_wc wc;

    while (c->direction->flushes && c->direction->flushes(c) && ibv_poll_cq(c->cq, 1, &wc) == 1) {
        if (NB_VERBS_WR_QP(wc.wr_id) != (unsigned)c->nqps)
            continue;
        if (wc.status == IBV_WC_SUCCESS) {
            c->direction->completion(c, &wc);
            continue;
        }
        NB_WARN("verbs: %s: a flush failed: %s", c->dev->name, nb_verbs_status_name(wc.status));
        c->flush_failed = true;
    }
    if (atomic_load_explicit(&c->hca->fatal, memory_order_relaxed))
        c->flush_failed = true;
}

/* Read the sources that need a look only now and then. */
static void slow_checks(struct nb_verbs_comm *c, int64_t now)
{
    c->checked_ms = now;
    read_events(c->hca);
    read_socket(c, now);
    if (!c->err && c->failing && now - c->failing_ms >= LAST_WORDS_MS && !c->eof)
        fail_wc(c, &c->failing_wc);
}

bool nb_verbs_progress(struct nb_verbs_comm *c)
{
    int64_t now = 0;
    bool moved;

    if (nb_verbs_may_flush(c))
        take_flushes(c);
    if (c->err)
        return false;
    moved = take_completions(c, &now);
    if (!c->err && c->direction->push)
        c->direction->push(c);
    if (moved || c->err)
        return moved;
    now = nb_clock_ms(c->hca->clock);
    /* the completions were taken once more since the end was seen */
    if (c->eof)
        closed_by_peer(c, now);
    if (!c->err && now != c->checked_ms)
        slow_checks(c, now);
    if (atomic_load_explicit(&c->hca->fatal, memory_order_relaxed) ||
        atomic_load_explicit(&c->async, memory_order_relaxed))
        nb_verbs_check(c);
    return false;
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
    if (c->armed && c->hca->api->get_cq_event(c->channel, &cq, &context) == 0) {
        c->hca->api->ack_cq_events(cq, 1);
        c->armed = false;
    }
    if (!c->armed) {
        int rc = ibv_req_notify_cq(c->cq, 0);

        if (rc) {
            nb_verbs_fail(c, -EIO, "cannot wait for completions: %s", strerror(rc > 0 ? rc : errno));
            return -1;
        }
        c->armed = true;
    }
    /* Completions before the arming leave the channel unreadable, and the socket may have a message: check
     * once more. */
    c->checked_ms = 0;
    nb_verbs_progress(c);
    if (c->eof && !c->err)
        nb_verbs_progress(c);
    if (c->err || c->done_untested > 0)
        return -1;
    if (c->unfinished == 0)
        return 0;
    /* The wait for the last data or the last message of a peer is limited. */
    if (c->eof || c->failing)
        return -1;
    fds[n++] = (struct pollfd){.fd = c->channel->fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = c->fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = c->hca->context->async_fd, .events = POLLIN};
    return n;
}
