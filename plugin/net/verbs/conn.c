/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How verbs connections are made, as in struct nb_net_ops. The two sides meet over TCP, with the TCP
 * transport's handles, tokens and time limits. Then each side sends the other its queue pairs. No call
 * blocks: connect and accept do the steps that are possible now, and the caller calls them again.
 *
 *     stage          ends when                                     then, connecting    then, accepting
 *     DIAL           there is a socket; queue pairs are made       SEND_META           -
 *     SEND_META      META is written                               RECEIVE_META        RECEIVE_READY
 *     RECEIVE_META   META is read (accepting: queue pairs made)    JOIN                JOIN
 *     JOIN           the queue pairs are connected (RTS)           SEND_READY          SEND_META
 *     SEND_READY     CONTROL ready is written                      made                -
 *     RECEIVE_READY  CONTROL ready is read                         -                   made
 *
 * The connecting side begins with DIAL. The accepting side already has a socket and begins with RECEIVE_META.
 * Any stage fails by an error of its step, by the peer's refusal, and after NIBBLE_CONNECT_TIMEOUT. The side
 * that fails sends a META with the reason (refuse), which saves the peer the wait.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp/tcp.h"

#define OOB_DEVICE 0 /* the TCP interface over which both sides meet, chosen by NCCL's rules */

/* A message that is partly sent or received. */
struct transfer {
    uint8_t buf[NB_VERBS_META_BYTES];
    size_t at, len;
};

enum stage { DIAL, SEND_META, RECEIVE_META, JOIN, SEND_READY, RECEIVE_READY };

/* A connection in the making, on either side. */
struct nb_verbs_connecting {
    struct nb_verbs *verbs;
    struct nb_verbs_connecting *next;
    uint64_t id; /* connecting side: the number in the handle */
    struct nb_verbs_dev *dev;
    enum stage stage;
    bool is_send;
    int fd;
    int qps, traffic_class;
    int64_t begun, retry_at;
    int retries, joined;                 /* queue pairs that are ready */
    uint8_t handle[NB_NET_HANDLE_BYTES]; /* the TCP transport's own copy */
    struct transfer io;
    struct nb_verbs_meta peer_meta;
    union {
        struct nb_verbs_comm *comm;
        struct nb_verbs_send *send;
        struct nb_verbs_recv *recv;
    };
    char peer[64];
};

struct nb_verbs_listen {
    struct nb_verbs *verbs;
    struct nb_verbs_dev *dev;
    void *tcp;
    struct nb_verbs_connecting *half;
};

/* ---- transfers ---- */

/* Send the rest of a message. Return 1 when all of it is sent, 0 when the caller must call again, or a
 * negative errno. */
static int transfer_out(int fd, struct transfer *t)
{
    ssize_t n;

    while (t->at < t->len) {
        n = send(fd, t->buf + t->at, t->len - t->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
        t->at += (size_t)n;
    }
    return 1;
}

static int transfer_in(int fd, struct transfer *t)
{
    ssize_t n;

    while (t->at < t->len) {
        n = recv(fd, t->buf + t->at, t->len - t->at, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
        if (n == 0)
            return -ECONNRESET;
        t->at += (size_t)n;
    }
    return 1;
}

static void begin_transfer(struct nb_verbs_connecting *h, enum stage stage, size_t len)
{
    h->stage = stage;
    h->io.at = 0;
    h->io.len = len;
}

/* ---- steps that both sides take ---- */

static void half_free(struct nb_verbs_connecting *h)
{
    if (h->comm) {
        h->comm->err = h->comm->err ? h->comm->err : -ECANCELED; /* close without a FIN */
        if (h->is_send)
            nb_verbs_close_send(h->send);
        else
            nb_verbs_close_recv(h->recv);
    } else if (h->fd >= 0) {
        close(h->fd);
    }
    free(h);
}

/* Send the other side the reason why there is no connection. */
static void refuse(struct nb_verbs_connecting *h, int err, const char *reason)
{
    struct nb_verbs_meta m = {.version = NB_VERBS_WIRE_VERSION, .error = -err};

    snprintf(m.device, sizeof(m.device), "%.31s", h->dev->name);
    snprintf(m.reason, sizeof(m.reason), "%s", reason);
    nb_verbs_meta_put(h->io.buf, &m);
    begin_transfer(h, h->stage, NB_VERBS_META_BYTES);
    if (transfer_out(h->fd, &h->io) <= 0)
        return;
}

/* Make this side's comm. */
static int make_comm(struct nb_verbs_connecting *h)
{
    int rc = h->is_send ? nb_verbs_send_new(h->dev, h->qps, h->fd, &h->send)
                        : nb_verbs_recv_new(h->dev, h->qps, h->fd, &h->recv);

    if (rc) {
        refuse(h, rc, "that node could not make its queue pairs, see its log");
        return rc;
    }
    return 0;
}

static int put_meta(struct nb_verbs_connecting *h, int sl, int tc)
{
    h->comm->meta.sl = (uint8_t)sl;
    h->comm->meta.tc = (uint8_t)tc;
    nb_verbs_meta_put(h->io.buf, &h->comm->meta);
    begin_transfer(h, SEND_META, NB_VERBS_META_BYTES);
    return 0;
}

/* Receive and check the peer's META. Return 1 when it is there, 0 while it is not, or a negative errno. */
static int take_meta(struct nb_verbs_connecting *h)
{
    struct nb_verbs_meta *m = &h->peer_meta;
    int rc = transfer_in(h->fd, &h->io);

    if (rc <= 0)
        return rc;
    rc = nb_verbs_meta_get(h->io.buf, m);
    if (rc == -EPROTO) {
        NB_WARN("verbs: %s: %s has version %u of the protocol, this node %d: install the same release on all "
                "nodes",
                h->dev->name, h->peer, m->version, NB_VERBS_WIRE_VERSION);
        refuse(h, rc, "another version of the protocol");
        return rc;
    }
    if (rc) {
        NB_WARN("verbs: %s: %s sent invalid data about its queue pairs", h->dev->name, h->peer);
        return -EPROTO;
    }
    if (m->error) {
        NB_WARN("verbs: %s: %s (%s) refuses the connection: %s (%s)", h->dev->name, h->peer, m->device,
                m->reason, strerror(m->error));
        return -ECONNREFUSED;
    }
    if (m->link != h->dev->attr.link_layer) {
        NB_WARN("verbs: %s is %s, but %s of %s is %s: choose ports of one network with NCCL_IB_HCA",
                h->dev->name, nb_verbs_link_name(h->dev->attr.link_layer), m->device, h->peer,
                nb_verbs_link_name(m->link));
        refuse(h, -EPROTO, "that node's port is of another network (InfiniBand or RoCE)");
        return -EPROTO;
    }
    return 1;
}

/* Connect the queue pairs. Return 1 when all are ready, 0 when the caller must call again. */
static int join(struct nb_verbs_connecting *h, int64_t now)
{
    const struct nb_verbs_conf *conf = h->dev->hca->conf;
    struct nb_verbs_comm *c = h->comm;
    int rc = 0, total = c->nqps + (!h->is_send && h->recv->flush.qp ? 1 : 0);
    uint8_t tc = c->meta.tc;

    if (now < h->retry_at)
        return 0;
    /* Grants travel against the data and may have a traffic class of their own. */
    if (!h->is_send && conf->fifo_tc >= 0)
        tc = (uint8_t)conf->fifo_tc;
    for (; h->joined < total && !rc; h->joined += rc == 0) {
        int i = h->joined;

        if (i < c->nqps)
            rc = nb_verbs_qp_connect(c, c->qp[i].qp, c->peer_meta.qpn[i], &c->peer_meta, tc);
        else
            rc = nb_verbs_qp_connect(c, h->recv->flush.qp, h->recv->flush.qp->qp_num, &c->meta, c->meta.tc);
    }
    if (rc == -EAGAIN) {
        /* RoCE: the kernel is still asking for the peer's hardware address, or its link is still down. */
        if (h->retries++ < conf->mqp_retry_cnt) {
            h->retry_at = now + (int64_t)conf->mqp_retry_ms * h->retries;
            return 0;
        }
        NB_WARN("verbs: %s: no way to %s (%s) after %d attempts: its address is not resolved (ARP). Are both "
                "ports of one network?",
                h->dev->name, h->peer, c->peer_meta.device, h->retries);
        rc = -ETIMEDOUT;
    }
    if (rc) {
        refuse(h, rc, "that node could not connect its queue pairs, see its log");
        return rc;
    }
    return 1;
}

/* ---- connect ---- */

static struct nb_verbs_connecting *find_connecting(struct nb_verbs *v, uint64_t id)
{
    struct nb_verbs_connecting *h;

    pthread_mutex_lock(&v->lock);
    for (h = v->connecting; h && h->id != id; h = h->next)
        ;
    pthread_mutex_unlock(&v->lock);
    return h;
}

static void forget_connecting(struct nb_verbs_connecting *h)
{
    struct nb_verbs *v = h->verbs;

    pthread_mutex_lock(&v->lock);
    for (struct nb_verbs_connecting **p = &v->connecting; *p; p = &(*p)->next) {
        if (*p == h) {
            *p = h->next;
            break;
        }
    }
    pthread_mutex_unlock(&v->lock);
    if (h->stage == DIAL)
        nb_tcp_abandon(v->tcp, h->handle);
    half_free(h);
}

void nb_verbs_abandon_all(struct nb_verbs *v)
{
    while (v->connecting)
        forget_connecting(v->connecting);
}

static struct nb_verbs_connecting *new_connecting(struct nb_verbs *v, struct nb_verbs_dev *d,
                                                  const struct nb_net_conn_cfg *cfg, void *handle)
{
    struct nb_verbs_connecting *h = calloc(1, sizeof(*h));

    if (!h)
        return NULL;
    h->verbs = v;
    h->dev = d;
    h->is_send = true;
    h->fd = -1;
    h->qps = cfg && cfg->streams > 0 ? cfg->streams : v->conf.qps;
    if (h->qps > NB_VERBS_MAX_QPS)
        h->qps = NB_VERBS_MAX_QPS;
    h->traffic_class = cfg ? cfg->traffic_class : -1;
    h->begun = nb_clock_ms(v->clock);
    memcpy(h->handle, handle, sizeof(h->handle));
    pthread_mutex_lock(&v->lock);
    h->id = ++v->last_id;
    h->next = v->connecting;
    v->connecting = h;
    pthread_mutex_unlock(&v->lock);
    nb_tcp_handle_set_state(handle, h->id);
    return h;
}

static int dial(struct nb_verbs_connecting *h)
{
    const struct nb_verbs_conf *conf = h->dev->hca->conf;
    struct nb_net_conn_cfg one = {.streams = 1, .traffic_class = -1};
    int unset = h->traffic_class < 0, sl, tc, rc;
    struct nb_tcp_sockets made;

    rc = nb_tcp_dial((struct nb_tcp *)h->verbs->tcp, OOB_DEVICE, NB_TCP_FOR_VERBS, &one, h->handle, &made);
    if (rc <= 0)
        return rc;
    h->fd = made.fd[0];
    h->stage = SEND_META;
    rc = make_comm(h);
    if (h->comm)
        strcpy(h->peer, h->comm->peer);
    if (rc)
        return rc;
    sl = conf->sl >= 0 ? conf->sl : unset ? 0 : h->traffic_class;
    tc = conf->tc >= 0 ? conf->tc : unset ? 0 : h->traffic_class;
    return put_meta(h, sl, tc);
}

/* Advance a connect. Return 1 when the connection is made, 0 when the caller must call again. */
static int connect_step(struct nb_verbs_connecting *h, int64_t now)
{
    struct nb_verbs_control ready = {.kind = NB_VERBS_READY};
    int rc;

    if (h->stage == DIAL) {
        rc = dial(h);
        if (rc || h->stage == DIAL)
            return rc;
    }
    if (h->stage == SEND_META) {
        rc = transfer_out(h->fd, &h->io);
        if (rc <= 0)
            return rc;
        begin_transfer(h, RECEIVE_META, NB_VERBS_META_BYTES);
    }
    if (h->stage == RECEIVE_META) {
        rc = take_meta(h);
        if (rc <= 0)
            return rc;
        if (h->peer_meta.nqps != (unsigned)h->comm->nqps) {
            NB_WARN("verbs: %s: %s has %u queue pairs for a connection of %d", h->dev->name, h->peer,
                    h->peer_meta.nqps, h->comm->nqps);
            return -EPROTO;
        }
        h->comm->peer_meta = h->peer_meta;
        h->stage = JOIN;
    }
    if (h->stage == JOIN) {
        rc = join(h, now);
        if (rc <= 0)
            return rc;
        nb_verbs_send_start(h->send);
        if (h->comm->err)
            return h->comm->err;
        nb_verbs_control_put(h->io.buf, &ready);
        begin_transfer(h, SEND_READY, NB_VERBS_CONTROL_BYTES);
    }
    return transfer_out(h->fd, &h->io);
}

int nb_verbs_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                     void **send_comm)
{
    struct nb_verbs *v = (struct nb_verbs *)net;
    struct nb_verbs_dev *d = nb_verbs_device(v, dev);
    int64_t now = nb_clock_ms(v->clock);
    struct nb_tcp_handle given;
    struct nb_verbs_connecting *h = NULL;
    int rc;

    *send_comm = NULL;
    if (!d)
        return -EINVAL;
    rc = nb_tcp_handle_get(handle, &given);
    if (rc != -EINVAL && given.state != 0) {
        h = find_connecting(v, given.state);
        if (!h) {
            NB_WARN("verbs: connect was given a handle whose connection has been made or has failed");
            return -EINVAL;
        }
    }
    if (!h)
        h = new_connecting(v, d, cfg, handle);
    if (!h)
        return -ENOMEM;
    rc = connect_step(h, now);
    if (rc == 0 && now - h->begun < v->conf.connect_ms)
        return 0;
    if (rc <= 0) {
        if (h->stage > DIAL && rc != -ECONNREFUSED)
            NB_WARN("verbs: connecting from %s to %s failed after %.1f s: %s", d->name, h->peer,
                    (double)(now - h->begun) / 1000, rc ? strerror(-rc) : "the peer sends no answer");
        else if (rc == 0)
            NB_WARN("verbs: connecting from %s failed: no peer after %.1f s", d->name,
                    (double)(now - h->begun) / 1000);
        forget_connecting(h);
        return rc ? rc : -ETIMEDOUT;
    }
    NB_INFO(NCCL_NET, "verbs: connected %s %s to %s %s, %d queue pairs, MTU %d, GID %d", d->name,
            h->comm->local, h->comm->peer_meta.device, h->comm->peer, h->comm->nqps,
            128 << (h->comm->meta.mtu < h->peer_meta.mtu ? h->comm->meta.mtu : h->peer_meta.mtu),
            h->comm->gid_index);
    nb_verbs_comm_enlist(h->comm);
    *send_comm = h->send;
    h->send = NULL;
    h->fd = -1;
    forget_connecting(h);
    return 0;
}

void nb_verbs_abandon(struct nb_net *net, void *handle)
{
    struct nb_tcp_handle given;
    struct nb_verbs_connecting *h;

    if (nb_tcp_handle_get(handle, &given) == -EINVAL || !given.state)
        return;
    h = find_connecting((struct nb_verbs *)net, given.state);
    if (h)
        forget_connecting(h);
}

/* ---- listen and accept ---- */

int nb_verbs_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct nb_verbs *v = (struct nb_verbs *)net;
    struct nb_verbs_dev *d = nb_verbs_device(v, dev);
    struct nb_verbs_listen *l;
    int rc;

    *listen_comm = NULL;
    if (!d)
        return -EINVAL;
    l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->verbs = v;
    l->dev = d;
    rc = nb_tcp_listen_for((struct nb_tcp *)v->tcp, OOB_DEVICE, NB_TCP_FOR_VERBS, handle, &l->tcp);
    if (rc) {
        free(l);
        return rc;
    }
    *listen_comm = l;
    return 0;
}

static int accept_step(struct nb_verbs_connecting *h, int64_t now)
{
    struct nb_verbs_control k;
    int rc;

    if (h->stage == RECEIVE_META) {
        rc = take_meta(h);
        if (rc <= 0)
            return rc;
        h->qps = (int)h->peer_meta.nqps;
        rc = make_comm(h);
        if (rc)
            return rc;
        h->comm->peer_meta = h->peer_meta;
        h->comm->meta.sl = h->peer_meta.sl;
        h->comm->meta.tc = h->peer_meta.tc;
        h->stage = JOIN;
    }
    if (h->stage == JOIN) {
        rc = join(h, now);
        if (rc <= 0)
            return rc;
        /* Start receiving before the peer may send: its first messages must find their receive requests. */
        rc = nb_verbs_recv_start(h->recv);
        if (rc)
            return rc;
        put_meta(h, h->peer_meta.sl, h->peer_meta.tc);
    }
    if (h->stage == SEND_META) {
        rc = transfer_out(h->fd, &h->io);
        if (rc <= 0)
            return rc;
        begin_transfer(h, RECEIVE_READY, NB_VERBS_CONTROL_BYTES);
    }
    rc = transfer_in(h->fd, &h->io);
    if (rc <= 0)
        return rc;
    /* A side that gives up sends a META, whose first bytes then stand here. */
    if (nb_verbs_control_get(h->io.buf, &k) == 0 && k.kind == NB_VERBS_READY)
        return 1;
    NB_WARN("verbs: %s: %s (%s) could not connect its queue pairs, see its log", h->dev->name, h->peer,
            h->peer_meta.device);
    return -ECONNREFUSED;
}

static int take_new(struct nb_verbs_listen *l, int64_t now)
{
    struct nb_tcp_sockets made;
    struct nb_verbs_connecting *h;
    int rc = nb_tcp_take(l->tcp, &made);

    if (rc <= 0)
        return rc;
    h = made.n == 1 ? calloc(1, sizeof(*h)) : NULL;
    if (!h) {
        nb_tcp_close_sockets(&made);
        return made.n == 1 ? -ENOMEM : -EPROTO;
    }
    h->verbs = l->verbs;
    h->dev = l->dev;
    h->fd = made.fd[0];
    h->begun = now;
    nb_tcp_names(h->fd, NULL, h->peer, sizeof(h->peer));
    begin_transfer(h, RECEIVE_META, NB_VERBS_META_BYTES);
    h->next = l->half;
    l->half = h;
    return 1;
}

int nb_verbs_accept(void *listen_comm, void **recv_comm)
{
    struct nb_verbs_listen *l = listen_comm;
    int64_t now = nb_clock_ms(l->verbs->clock);
    int rc;

    *recv_comm = NULL;
    do
        rc = take_new(l, now);
    while (rc > 0);
    if (rc)
        return rc;
    for (struct nb_verbs_connecting **at = &l->half; *at;) {
        struct nb_verbs_connecting *h = *at;

        rc = accept_step(h, now);
        if (rc == 0 && now - h->begun >= l->verbs->conf.connect_ms)
            rc = -ETIMEDOUT;
        if (rc == 0) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        if (rc < 0) {
            NB_WARN("verbs: %s: a connection from %s failed after %.1f s: %s", l->dev->name, h->peer,
                    (double)(now - h->begun) / 1000, rc == -ECONNRESET ? "the peer hung up" : strerror(-rc));
            half_free(h);
            /* Drop a peer that has gone away: it comes again, or other checks miss it. Our own errors would
             * recur, so return them. */
            if (rc == -ECONNRESET || rc == -EPIPE || rc == -ETIMEDOUT)
                continue;
            return rc;
        }
        NB_INFO(NCCL_NET, "verbs: accepted %s %s from %s %s, %d queue pairs", l->dev->name, h->comm->local,
                h->peer_meta.device, h->peer, h->comm->nqps);
        nb_verbs_comm_enlist(h->comm);
        *recv_comm = h->recv;
        h->recv = NULL;
        h->fd = -1;
        half_free(h);
        return 0;
    }
    return 0;
}

int nb_verbs_close_listen(void *listen_comm)
{
    struct nb_verbs_listen *l = listen_comm;

    if (!l)
        return 0;
    while (l->half) {
        struct nb_verbs_connecting *h = l->half;

        l->half = h->next;
        half_free(h);
    }
    nb_tcp_close_listen(l->tcp);
    free(l);
    return 0;
}
