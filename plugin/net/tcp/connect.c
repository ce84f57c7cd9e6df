/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How TCP connections are made: connect.c is the connecting side, listen.c the accepting one.
 *
 * Both sides offer two sets of functions. The functions of the transport's table make connections with the
 * message protocol (send.c, recv.c). The other set hands the sockets to the caller once the peer has shown
 * the token, for transports that only want sockets.
 *
 * The connecting side. connect never blocks: it does all it can now, and the caller calls it again with the
 * same handle, which holds the number of the connect in progress. Each socket of the connection advances on
 * its own:
 *
 *               socket(), connect()                 writable, no error: hello sent
 *      RETRY ------------------------> CONNECTING ---------------------------------> READY
 *        ^                                 |
 *        +---------------------------------+  an error that may pass (may_retry); again RETRY_MS later
 *
 * The connection is made when all sockets are READY. It fails, and all its sockets are closed, on any other
 * error, when NIBBLE_CONNECT_TIMEOUT is over, or when the handle is of another version or transport. In the
 * last case it fails only after READY, so that the peer's log states the reason, too. abandon and fini end a
 * connect in any state.
 */
#include "net/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "net/tcp/internal.h"

#define REFUSED_MS 1000 /* how long connect tries again where the port refuses */
#define RETRY_MS 50

enum sock_state { SOCK_RETRY, SOCK_CONNECTING, SOCK_READY };

/* A connect in progress. The caller's handle holds only `id`, so that foreign bytes cannot become a
 * pointer. */
struct nb_tcp_connecting {
    struct nb_tcp_connecting *next;
    uint64_t id;
    struct nb_tcp_dev *dev;
    enum nb_tcp_use use;
    struct nb_tcp_handle h;
    char peer[64];
    uint8_t conn_id[16];
    int streams;
    int traffic_class;
    int64_t begun, retry_at;
    int last_err; /* of the failed attempts */
    struct {
        int fd;
        enum sock_state state;
    } sock[NB_TCP_MAX_STREAMS];
};

static void connecting_add(struct nb_tcp *tcp, struct nb_tcp_connecting *k)
{
    pthread_mutex_lock(&tcp->lock);
    k->id = ++tcp->last_id;
    k->next = tcp->connecting;
    tcp->connecting = k;
    pthread_mutex_unlock(&tcp->lock);
}

static struct nb_tcp_connecting *connecting_find(struct nb_tcp *tcp, uint64_t id)
{
    struct nb_tcp_connecting *k;

    pthread_mutex_lock(&tcp->lock);
    for (k = tcp->connecting; k && k->id != id; k = k->next)
        ;
    pthread_mutex_unlock(&tcp->lock);
    return k;
}

static void connecting_free(struct nb_tcp_connecting *k, bool close_fds)
{
    struct nb_tcp *tcp = k->dev->tcp;

    pthread_mutex_lock(&tcp->lock);
    for (struct nb_tcp_connecting **p = &tcp->connecting; *p; p = &(*p)->next) {
        if (*p == k) {
            *p = k->next;
            break;
        }
    }
    pthread_mutex_unlock(&tcp->lock);
    for (int i = 0; i < k->streams && close_fds; i++) {
        if (k->sock[i].fd >= 0)
            close(k->sock[i].fd);
    }
    free(k);
}

void nb_tcp_abandon_all(struct nb_tcp *tcp)
{
    while (tcp->connecting)
        connecting_free(tcp->connecting, true);
}

static int default_streams(const struct nb_tcp_dev *d)
{
    if (d->tcp->conf.streams > 0)
        return d->tcp->conf.streams;
    return d->nif.speed_mbps > 50000 ? 4 : d->nif.speed_mbps > 10000 ? 2 : 1;
}

static int connecting_new(struct nb_tcp_dev *d, enum nb_tcp_use use, const struct nb_net_conn_cfg *cfg,
                          void *handle, struct nb_tcp_connecting **out)
{
    struct nb_tcp_connecting *k = calloc(1, sizeof(*k));
    int rc;

    if (!k)
        return -ENOMEM;
    rc = nb_tcp_handle_get(handle, &k->h);
    if (rc == -EINVAL || k->h.addr.ss_family == AF_UNSPEC) {
        NB_WARN("tcp: the handle given to connect is not one of this transport: do all nodes run the same "
                "plugin with the same NIBBLE_NET?");
        free(k);
        return -EINVAL;
    }
    nb_tcp_addr_name(&k->h.addr, k->peer, sizeof(k->peer));
    rc = nb_random(k->conn_id, sizeof(k->conn_id));
    if (rc) {
        free(k);
        return rc;
    }
    k->dev = d;
    k->use = use;
    k->traffic_class = cfg ? cfg->traffic_class : -1;
    k->streams = cfg && cfg->settable && d->tcp->conf.stated > 0 ? d->tcp->conf.stated
                 : cfg && cfg->streams > 0                       ? cfg->streams
                                                                 : default_streams(d);
    if (k->streams > NB_TCP_MAX_STREAMS)
        k->streams = NB_TCP_MAX_STREAMS;
    if (k->h.version != NB_TCP_WIRE_VERSION || k->h.use != (uint32_t)use)
        k->streams = 1; /* enough to inform the accepting side */
    if (k->h.addr.ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        /* The scope of a link-local address is a number of the host that uses the address, not of the host
         * that it names. */
        memcpy(&a, &k->h.addr, sizeof(a));
        a.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr) ? d->nif.index : 0;
        memcpy(&k->h.addr, &a, sizeof(a));
    }
    k->begun = nb_clock_ms(d->tcp->clock);
    for (int i = 0; i < k->streams; i++)
        k->sock[i].fd = -1;
    connecting_add(d->tcp, k);
    nb_tcp_handle_set_state(handle, k->id);
    *out = k;
    return 0;
}

/* Return whether a socket is connected to itself. That can happen when a local connect reaches a port whose
 * listener is closed. */
static bool is_self(int fd)
{
    struct sockaddr_storage a, b;
    socklen_t la = sizeof(a), lb = sizeof(b);

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    return getsockname(fd, (struct sockaddr *)&a, &la) == 0 &&
           getpeername(fd, (struct sockaddr *)&b, &lb) == 0 && la == lb && memcmp(&a, &b, la) == 0;
}

static int say_hello(struct nb_tcp_connecting *k, int i)
{
    struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION,
                                 .stream = (uint16_t)i,
                                 .streams = (uint16_t)k->streams,
                                 .use = (uint32_t)k->use};
    uint8_t b[NB_TCP_HELLO_BYTES];
    ssize_t n;

    memcpy(hello.token, k->h.token, sizeof(hello.token));
    memcpy(hello.conn_id, k->conn_id, sizeof(hello.conn_id));
    nb_tcp_hello_put(b, &hello);
    do
        n = send(k->sock[i].fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof(b))
        return 0;
    return n < 0 ? -errno : -EIO; /* an empty socket buffer always has room for this */
}

/* Take one step with one socket. Return 0 or the error of this attempt. */
static int step_socket(struct nb_tcp_connecting *k, int i, int64_t now)
{
    struct pollfd p = {.events = POLLOUT};
    int fd = k->sock[i].fd, err = 0;
    socklen_t len = sizeof(err);

    if (k->sock[i].state == SOCK_RETRY) {
        if (now < k->retry_at)
            return 0;
        fd = nb_tcp_socket(k->h.addr.ss_family);
        if (fd < 0)
            return fd;
        nb_tcp_tune(&k->dev->tcp->conf, fd, true);
        if (k->traffic_class >= 0) {
            bool v6 = k->h.addr.ss_family == AF_INET6;

            setsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, &k->traffic_class,
                       sizeof(int));
        }
        k->sock[i].fd = fd;
        k->sock[i].state = SOCK_CONNECTING;
        if (connect(fd, (const struct sockaddr *)&k->h.addr, nb_tcp_addr_len(&k->h.addr)) != 0 &&
            errno != EINPROGRESS && errno != EINTR)
            return -errno;
    }
    p.fd = fd;
    if (poll(&p, 1, 0) <= 0)
        return 0;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        return -errno;
    if (err)
        return -err;
    if (is_self(fd))
        return -ECONNREFUSED;
    err = say_hello(k, i);
    if (err == 0)
        k->sock[i].state = SOCK_READY;
    return err;
}

/* Return whether the peer's address is of another family than this device's, and the system reaches no
 * address of that family. */
static bool is_other_family(const struct nb_tcp_connecting *k, int err)
{
    return (err == -ENETUNREACH || err == -EADDRNOTAVAIL || err == -EAFNOSUPPORT) &&
           k->h.addr.ss_family != k->dev->nif.addr.ss_family;
}

/* Return whether the peer's address is also this device's. */
static bool is_own_address(const struct nb_tcp_connecting *k)
{
    struct sockaddr_storage peer = k->h.addr, own = k->dev->nif.addr;
    char a[64], b[64];

    if (peer.ss_family != own.ss_family)
        return false;
    nb_tcp_addr_name(&peer, a, sizeof(a));
    nb_tcp_addr_name(&own, b, sizeof(b));
    return strcspn(a, "<") == strcspn(b, "<") && strncmp(a, b, strcspn(a, "<")) == 0;
}

/* Return whether another attempt is worth it after `err`. */
static bool may_retry(const struct nb_tcp_connecting *k, int err, int64_t now)
{
    const int connect_ms = k->dev->tcp->conf.connect_ms;

    if (is_other_family(k, err))
        return false;
    switch (-err) {
    case ECONNREFUSED: /* the listener existed before its handle, but a full backlog can refuse, too */
    case ECONNRESET:
    case EPIPE: return now - k->begun < REFUSED_MS && now - k->begun < connect_ms;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EAGAIN: return now - k->begun < connect_ms;
    default: return false;
    }
}

static const char *advice(const struct nb_tcp_connecting *k, int err)
{
    switch (-err) {
    case EAFNOSUPPORT:
        return " (one node has an IPv4 address, the other an IPv6 address: give all nodes the same with "
               "NCCL_SOCKET_FAMILY or NCCL_SOCKET_IFNAME)";
    case ECONNREFUSED:
        if (is_own_address(k))
            return " (the address is this node's, too: if the peer is another host, this is a bridge or a "
                   "management adapter with one address on all hosts: leave it out with "
                   "NCCL_SOCKET_IFNAME=^NAME)";
        return " (is the peer still running? does a firewall reject the port?)";
    case ETIMEDOUT:
        return " (does a firewall drop the port? is this the right interface? see NCCL_SOCKET_IFNAME)";
    case EHOSTUNREACH:
    case ENETUNREACH:
        return " (no route: do the nodes use interfaces of one network? see NCCL_SOCKET_IFNAME)";
    case EADDRNOTAVAIL: return " (no free local port: widen net.ipv4.ip_local_port_range)";
    default: return "";
    }
}

int nb_tcp_dial(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, const struct nb_net_conn_cfg *cfg,
                void *handle, struct nb_tcp_sockets *out)
{
    struct nb_tcp_dev *d = nb_tcp_device(tcp, dev);
    int64_t now = nb_clock_ms(tcp->clock);
    struct nb_tcp_connecting *k = NULL;
    struct nb_tcp_handle h;
    int ready = 0, rc;

    if (!d)
        return -EINVAL;
    rc = nb_tcp_handle_get(handle, &h);
    if (rc != -EINVAL && h.state != 0) {
        k = connecting_find(tcp, h.state);
        if (!k || memcmp(k->h.token, h.token, sizeof(h.token)) != 0) {
            NB_WARN("tcp: connect was given a handle whose connection has been made or has failed");
            return -EINVAL;
        }
    }
    rc = k ? 0 : connecting_new(d, use, cfg, handle, &k);
    if (rc)
        return rc;
    for (int i = 0; i < k->streams; i++) {
        if (k->sock[i].state != SOCK_READY)
            rc = step_socket(k, i, now);
        if (rc && may_retry(k, rc, now)) {
            if (k->sock[i].fd >= 0)
                close(k->sock[i].fd);
            k->sock[i].fd = -1;
            k->sock[i].state = SOCK_RETRY;
            k->retry_at = now + RETRY_MS;
            k->last_err = rc;
            rc = 0;
        }
        if (rc)
            goto fail;
        out->fd[i] = k->sock[i].fd;
        ready += k->sock[i].state == SOCK_READY;
    }
    if (ready < k->streams) {
        if (now - k->begun < tcp->conf.connect_ms)
            return 0;
        rc = k->last_err ? k->last_err : -ETIMEDOUT;
        goto fail;
    }
    if (k->h.version != NB_TCP_WIRE_VERSION) {
        NB_WARN("tcp: %s listens with version %u of the protocol, this node has %u: install the same release "
                "on all nodes",
                k->peer, k->h.version, NB_TCP_WIRE_VERSION);
        connecting_free(k, true);
        return -EPROTO;
    }
    if (k->h.use != (uint32_t)use) {
        NB_WARN("%s: %s uses the transport %s, this node %s: set NIBBLE_NET alike on all nodes",
                nb_tcp_use_name(use), k->peer, nb_tcp_use_name(k->h.use), nb_tcp_use_name(use));
        connecting_free(k, true);
        return -EPROTO;
    }
    out->n = k->streams;
    memcpy(out->conn_id, k->conn_id, sizeof(out->conn_id));
    connecting_free(k, false);
    return 1;
fail:
    if (is_other_family(k, rc))
        rc = -EAFNOSUPPORT;
    NB_WARN("tcp: connecting from %s to %s failed after %.1f s: %s%s", k->dev->nif.name, k->peer,
            (double)(now - k->begun) / 1000, strerror(-rc), advice(k, rc));
    connecting_free(k, true);
    return rc;
}

int nb_tcp_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                   void **send_comm)
{
    struct nb_tcp *tcp = (struct nb_tcp *)net;
    struct nb_tcp_sockets made;
    struct nb_tcp_handle h;
    struct nb_tcp_send *s;
    int rc;

    *send_comm = NULL;
    rc = nb_tcp_dial(tcp, dev, NB_TCP_FOR_DATA, cfg, handle, &made);
    if (rc <= 0)
        return rc;
    rc = nb_tcp_send_new(nb_tcp_device(tcp, dev), made.fd, made.n, made.conn_id, cfg, &s);
    if (rc) {
        NB_WARN("tcp: no memory for a connection of %d sockets", made.n);
        nb_tcp_close_sockets(&made);
        return rc;
    }
    if (cfg && cfg->deltas && !nb_tcp_handle_get(handle, &h))
        nb_tcp_deltas_start(s, (enum nb_net_deltas)cfg->deltas, h.granted);
    NB_INFO(NCCL_NET, "tcp: connected %s to %s, %d sockets", s->c.local, s->c.peer, s->c.nstreams);
    *send_comm = s;
    return 0;
}

void nb_tcp_close_sockets(const struct nb_tcp_sockets *sockets)
{
    for (int i = 0; i < sockets->n; i++)
        close(sockets->fd[i]);
}

void nb_tcp_abandon(struct nb_net *net, void *handle)
{
    struct nb_tcp_handle h;
    struct nb_tcp_connecting *k;

    if (nb_tcp_handle_get(handle, &h) == -EINVAL || !h.state)
        return;
    k = connecting_find((struct nb_tcp *)net, h.state);
    if (!k)
        return;
    if (k->last_err)
        NB_WARN("tcp: connecting from %s to %s was given up after %.1f s: %s%s", k->dev->nif.name, k->peer,
                (double)(nb_clock_ms(k->dev->tcp->clock) - k->begun) / 1000, strerror(-k->last_err),
                advice(k, k->last_err));
    connecting_free(k, true);
}

void nb_tcp_handle_name(const void *handle, char *name, size_t cap)
{
    struct nb_tcp_handle h;

    if (nb_tcp_handle_get(handle, &h) == -EINVAL)
        snprintf(name, cap, "a damaged handle");
    else
        nb_tcp_addr_name(&h.addr, name, cap);
}
