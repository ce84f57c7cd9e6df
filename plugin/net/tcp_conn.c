/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making connections: one listening socket a listen comm; a connection is complete when all its sockets have
 * said hello. Nothing here blocks: connect and accept do what can be done now and are called again.
 *
 * Strangers (port scanners, health checks, other jobs) reach the port too. A socket that has not yet proved
 * to know the token from the handle has a place in a table of fixed size and a deadline; it is closed without
 * an answer when it says anything else, says nothing, or when the table is full and it is the oldest.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp_int.h"

#define STRANGERS_MAX 128      /* sockets without a valid hello */
#define STRANGER_MS 5000       /* time for the hello */
#define ACCEPTS_A_CALL 256     /* so that a flood cannot hold accept */
#define REFUSED_MS 5000        /* how long connect tries again where nobody listens */
#define RETRY_MS 50
#define BACKLOG 4096           /* the kernel cuts it to net.core.somaxconn */

static int random_bytes(void *p, size_t n)
{
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);

        if (got < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        p = (char *)p + got;
        n -= (size_t)got;
    }
    return 0;
}

/* Options of every data socket. No TCP_USER_TIMEOUT: Linux ends a connection by it when the receiver keeps
 * its window closed for that long, however alive it is, and a peer may be minutes late with its receives. */
static void tune(int fd, bool before_connect)
{
    static const int on = 1, idle = 30, interval = 10, count = 6;

    if (before_connect) {
        /* Only before the handshake can these decide the window scale; accepted sockets inherit the
         * listener's. */
        if (nb_tcp_conf.sndbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &nb_tcp_conf.sndbuf, sizeof(int));
        if (nb_tcp_conf.rcvbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &nb_tcp_conf.rcvbuf, sizeof(int));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* Finds a dead host behind an idle connection in about 90 s; the peer's kernel answers, so the peer's
     * process may sleep as long as it likes. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static int tcp_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

    if (fd >= 0)
        return fd;
    fd = -errno;
    NB_WARN("tcp: no socket: %s%s", strerror(-fd),
            fd == -EMFILE || fd == -ENFILE ? " (raise the limit of open files, ulimit -n)" : "");
    return fd;
}

/* ---- listen ---- */

/* A socket whose hello is not complete. */
struct stranger {
    int fd;
    unsigned have;
    int64_t deadline;
    char peer[64];
    uint8_t hello[NB_TCP_HELLO_BYTES];
};

/* A connection of which some sockets have come. */
struct half_conn {
    struct half_conn *next;
    uint8_t conn_id[16];
    int fd[NB_TCP_MAX_STREAMS];
    int streams, present;
    int64_t deadline;
    char peer[64];
};

struct nb_tcp_listen {
    struct nb_tcp_dev *dev;
    int fd;
    int err; /* sticky */
    uint8_t token[NB_TCP_TOKEN_BYTES];
    char local[64];
    int nstrangers;
    unsigned dropped;
    struct stranger stranger[STRANGERS_MAX]; /* oldest first */
    struct half_conn *half, **half_end;
};

int nb_tcp_listen(int dev, void *handle, void **listen_comm)
{
    struct nb_tcp_dev *d = nb_tcp_device(dev);
    struct nb_tcp_handle h = {.version = NB_TCP_WIRE_VERSION};
    socklen_t len = sizeof(h.addr);
    struct nb_tcp_listen *l;
    int rc;

    *listen_comm = NULL;
    if (!d)
        return -EINVAL;
    l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->dev = d;
    l->half_end = &l->half;
    rc = random_bytes(l->token, sizeof(l->token));
    if (rc)
        goto err_free;
    rc = l->fd = tcp_socket(d->nif.addr.ss_family);
    if (rc < 0)
        goto err_free;
    tune(l->fd, true);
    if (bind(l->fd, (const struct sockaddr *)&d->nif.addr, nb_tcp_addr_len(&d->nif.addr)) != 0 ||
        listen(l->fd, BACKLOG) != 0 || getsockname(l->fd, (struct sockaddr *)&h.addr, &len) != 0) {
        rc = -errno;
        nb_tcp_addr_name(&d->nif.addr, l->local, sizeof(l->local));
        NB_WARN("tcp: cannot listen on %s (%s): %s", d->nif.name, l->local, strerror(-rc));
        goto err_close;
    }
    nb_tcp_addr_name(&h.addr, l->local, sizeof(l->local));
    memcpy(h.token, l->token, sizeof(h.token));
    nb_tcp_handle_put(handle, &h);
    *listen_comm = l;
    return 0;
err_close:
    close(l->fd);
err_free:
    free(l);
    return rc;
}

static void remove_stranger(struct nb_tcp_listen *l, int i)
{
    l->nstrangers--;
    memmove(&l->stranger[i], &l->stranger[i + 1], (size_t)(l->nstrangers - i) * sizeof(l->stranger[0]));
}

/* Close and forget. One line a listen comm is enough: a scanner would fill the log. */
static void drop_stranger(struct nb_tcp_listen *l, int i, const char *why)
{
    if (l->dropped++ == 0)
        NB_INFO(NCCL_NET, "tcp: dropped a stranger's connection from %s to %s: %s (more are not reported)",
                l->stranger[i].peer, l->local, why);
    close(l->stranger[i].fd);
    remove_stranger(l, i);
}

static void free_half(struct nb_tcp_listen *l, struct half_conn **at, bool close_fds)
{
    struct half_conn *h = *at;

    *at = h->next;
    if (!h->next)
        l->half_end = at;
    for (int i = 0; i < h->streams && close_fds; i++) {
        if (h->fd[i] >= 0)
            close(h->fd[i]);
    }
    free(h);
}

/* A socket with a good hello joins its connection. */
static int join_half(struct nb_tcp_listen *l, int i, const struct nb_tcp_hello *hello, int64_t now)
{
    struct half_conn *h = l->half;

    while (h && memcmp(h->conn_id, hello->conn_id, sizeof(h->conn_id)) != 0)
        h = h->next;
    if (!h) {
        h = calloc(1, sizeof(*h));
        if (!h)
            return -ENOMEM;
        memcpy(h->conn_id, hello->conn_id, sizeof(h->conn_id));
        memcpy(h->peer, l->stranger[i].peer, sizeof(h->peer));
        h->streams = hello->streams;
        h->deadline = now + nb_tcp_conf.connect_ms;
        for (int k = 0; k < h->streams; k++)
            h->fd[k] = -1;
        *l->half_end = h;
        l->half_end = &h->next;
    }
    if (hello->streams != h->streams || h->fd[hello->stream] >= 0) {
        drop_stranger(l, i, "a hello that contradicts an earlier one");
        return 0;
    }
    h->fd[hello->stream] = l->stranger[i].fd;
    h->present++;
    remove_stranger(l, i);
    return 0;
}

/* Read what the i-th stranger has said. True when it left the table. */
static bool hear_stranger(struct nb_tcp_listen *l, int i, int64_t now)
{
    struct stranger *s = &l->stranger[i];
    struct nb_tcp_hello hello;
    ssize_t n;
    int rc;

    do
        n = recv(s->fd, s->hello + s->have, sizeof(s->hello) - s->have, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
        drop_stranger(l, i, n == 0 ? "it hung up before its hello" : strerror(errno));
        return true;
    }
    if (n > 0)
        s->have += (unsigned)n;
    if (s->have < sizeof(s->hello)) {
        if (now < s->deadline)
            return false;
        drop_stranger(l, i, "no hello in time");
        return true;
    }
    rc = nb_tcp_hello_get(s->hello, &hello);
    if (rc == -EINVAL || !nb_tcp_token_equal(hello.token, l->token)) {
        drop_stranger(l, i, rc == -EINVAL ? "it does not speak this protocol" : "wrong token: it looks for "
                      "another process");
        return true;
    }
    /* From here on it is one of our peers, so what is wrong is the job's business. */
    if (rc == -EPROTO) {
        NB_WARN("tcp: %s connects to %s with version %u of the protocol, this node has %u: install the same "
                "release on all nodes", s->peer, l->local, hello.version, NB_TCP_WIRE_VERSION);
        l->err = -EPROTO;
    } else if (rc) {
        NB_WARN("tcp: the hello from %s to %s makes no sense (stream %u of %u)", s->peer, l->local,
                hello.stream, hello.streams);
        l->err = -EPROTO;
    } else {
        l->err = join_half(l, i, &hello, now);
        return true;
    }
    close(s->fd);
    remove_stranger(l, i);
    return true;
}

static void take_sockets(struct nb_tcp_listen *l, int64_t now)
{
    for (int i = 0; i < ACCEPTS_A_CALL; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        struct stranger *s;
        int fd;

        memset(&a, 0, sizeof(a));
        fd = accept4(l->fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Most errors are those of the connection that was about to be accepted. */
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return;
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                l->err = -errno;
                NB_WARN("tcp: cannot accept on %s: %s%s", l->local, strerror(-l->err),
                        l->err == -EMFILE ? " (raise the limit of open files, ulimit -n)" : "");
                return;
            }
            if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) {
                l->err = -errno;
                return;
            }
            continue;
        }
        if (l->nstrangers == STRANGERS_MAX)
            drop_stranger(l, 0, "too many connections without a hello");
        s = &l->stranger[l->nstrangers++];
        s->fd = fd;
        s->have = 0;
        s->deadline = now + STRANGER_MS;
        nb_tcp_addr_name(&a, s->peer, sizeof(s->peer));
        /* Its hello is usually here already: then it does not even use its place. */
        hear_stranger(l, l->nstrangers - 1, now);
        if (l->err)
            return;
    }
}

/* Connections whose maker has died or hangs. */
static void drop_dead_halves(struct nb_tcp_listen *l, int64_t now)
{
    for (struct half_conn **at = &l->half; *at;) {
        struct half_conn *h = *at;
        const char *why = now >= h->deadline ? "not all sockets came in time" : NULL;

        for (int i = 0; i < h->streams && !why && h->present < h->streams; i++) {
            char c;
            ssize_t n = h->fd[i] < 0 ? 1 : recv(h->fd[i], &c, 1, MSG_PEEK | MSG_DONTWAIT);

            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
                why = "it hung up";
        }
        if (!why) {
            at = &h->next;
            continue;
        }
        NB_WARN("tcp: dropped an unfinished connection from %s to %s with %d of %d sockets: %s", h->peer,
                l->local, h->present, h->streams, why);
        free_half(l, at, true);
    }
}

int nb_tcp_accept(void *listen_comm, void **recv_comm)
{
    struct nb_tcp_listen *l = listen_comm;
    int64_t now = nb_tcp_now_ms();
    struct nb_tcp_recv *r;

    *recv_comm = NULL;
    if (l->err)
        return l->err;
    for (int i = 0; i < l->nstrangers && !l->err;)
        i += !hear_stranger(l, i, now);
    if (!l->err)
        take_sockets(l, now);
    for (struct half_conn **at = &l->half; *at && !l->err; at = &(*at)->next) {
        struct half_conn *h = *at;

        if (h->present < h->streams)
            continue;
        for (int i = 0; i < h->streams; i++)
            tune(h->fd[i], false);
        l->err = nb_tcp_recv_new(l->dev, h->fd, h->streams, h->conn_id, &r);
        if (l->err)
            break;
        free_half(l, at, false);
        NB_INFO(NCCL_NET, "tcp: accepted %s from %s, %d sockets", r->c.local, r->c.peer, r->c.nstreams);
        *recv_comm = r;
        return 0;
    }
    if (!l->err)
        drop_dead_halves(l, now);
    return l->err;
}

int nb_tcp_close_listen(void *listen_comm)
{
    struct nb_tcp_listen *l = listen_comm;

    if (!l)
        return 0;
    while (l->nstrangers > 0) {
        close(l->stranger[l->nstrangers - 1].fd);
        l->nstrangers--;
    }
    while (l->half)
        free_half(l, &l->half, true);
    if (l->dropped > 1)
        NB_INFO(NCCL_NET, "tcp: %s dropped %u connections of strangers", l->local, l->dropped);
    close(l->fd);
    free(l);
    return 0;
}

/* ---- connect ---- */

enum sock_state { SOCK_RETRY, SOCK_CONNECTING, SOCK_READY };

/* A connect under way. The caller's handle holds only `id`, so bytes that are not ours cannot become a
 * pointer. */
struct connecting {
    struct connecting *next;
    uint64_t id;
    struct nb_tcp_dev *dev;
    struct nb_tcp_handle h;
    char peer[64];
    uint8_t conn_id[16];
    int streams;
    int traffic_class;
    int64_t begun, retry_at;
    int last_err; /* of the attempts that were given up */
    struct { int fd; enum sock_state state; } sock[NB_TCP_MAX_STREAMS];
};

static pthread_mutex_t connecting_lock = PTHREAD_MUTEX_INITIALIZER;
static struct connecting *connecting_list;
static uint64_t connecting_last_id;

static void connecting_add(struct connecting *k)
{
    pthread_mutex_lock(&connecting_lock);
    k->id = ++connecting_last_id;
    k->next = connecting_list;
    connecting_list = k;
    pthread_mutex_unlock(&connecting_lock);
}

static struct connecting *connecting_find(uint64_t id)
{
    struct connecting *k;

    pthread_mutex_lock(&connecting_lock);
    for (k = connecting_list; k && k->id != id; k = k->next)
        ;
    pthread_mutex_unlock(&connecting_lock);
    return k;
}

static void connecting_free(struct connecting *k, bool close_fds)
{
    pthread_mutex_lock(&connecting_lock);
    for (struct connecting **p = &connecting_list; *p; p = &(*p)->next) {
        if (*p == k) {
            *p = k->next;
            break;
        }
    }
    pthread_mutex_unlock(&connecting_lock);
    for (int i = 0; i < k->streams && close_fds; i++) {
        if (k->sock[i].fd >= 0)
            close(k->sock[i].fd);
    }
    free(k);
}

void nb_tcp_connect_abandon_all(void)
{
    while (connecting_list)
        connecting_free(connecting_list, true);
}

static int default_streams(const struct nb_tcp_dev *d)
{
    if (nb_tcp_conf.streams > 0)
        return nb_tcp_conf.streams;
    return d->nif.speed_mbps > 50000 ? 4 : d->nif.speed_mbps > 10000 ? 2 : 1;
}

static int connecting_new(struct nb_tcp_dev *d, const struct nb_net_conn_cfg *cfg, void *handle,
                          struct connecting **out)
{
    struct connecting *k = calloc(1, sizeof(*k));
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
    rc = random_bytes(k->conn_id, sizeof(k->conn_id));
    if (rc) {
        free(k);
        return rc;
    }
    k->dev = d;
    k->traffic_class = cfg ? cfg->traffic_class : -1;
    k->streams = cfg && cfg->streams > 0 ? cfg->streams : default_streams(d);
    if (k->streams > NB_TCP_MAX_STREAMS)
        k->streams = NB_TCP_MAX_STREAMS;
    if (k->h.version != NB_TCP_WIRE_VERSION)
        k->streams = 1; /* only to let the other side know, too */
    if (k->h.addr.ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        /* The scope of a link-local address is a number of the host that uses it, not of the one it names. */
        memcpy(&a, &k->h.addr, sizeof(a));
        a.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr) ? d->nif.index : 0;
        memcpy(&k->h.addr, &a, sizeof(a));
    }
    k->begun = nb_tcp_now_ms();
    for (int i = 0; i < k->streams; i++)
        k->sock[i].fd = -1;
    connecting_add(k);
    nb_tcp_handle_set_state(handle, k->id);
    *out = k;
    return 0;
}

/* A local connect to a port that nobody listens on any more can meet itself. */
static bool is_self(int fd)
{
    struct sockaddr_storage a, b;
    socklen_t la = sizeof(a), lb = sizeof(b);

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    return getsockname(fd, (struct sockaddr *)&a, &la) == 0 &&
           getpeername(fd, (struct sockaddr *)&b, &lb) == 0 && la == lb && memcmp(&a, &b, la) == 0;
}

static int say_hello(struct connecting *k, int i)
{
    struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION, .stream = (uint16_t)i,
                                 .streams = (uint16_t)k->streams};
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

/* One step of one socket; 0 or the error of this attempt. */
static int step_socket(struct connecting *k, int i, int64_t now)
{
    struct pollfd p = {.events = POLLOUT};
    int fd = k->sock[i].fd, err = 0;
    socklen_t len = sizeof(err);

    if (k->sock[i].state == SOCK_RETRY) {
        if (now < k->retry_at)
            return 0;
        fd = tcp_socket(k->h.addr.ss_family);
        if (fd < 0)
            return fd;
        tune(fd, true);
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

/* Is another attempt worth it after `err`? */
static bool may_retry(const struct connecting *k, int err, int64_t now)
{
    switch (-err) {
    case ECONNREFUSED: /* the listener was there before its handle was; but a full backlog can refuse, too */
    case ECONNRESET:
    case EPIPE:
        return now - k->begun < REFUSED_MS && now - k->begun < nb_tcp_conf.connect_ms;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EAGAIN:
        return now - k->begun < nb_tcp_conf.connect_ms;
    default:
        return false;
    }
}

static const char *advice(int err)
{
    switch (-err) {
    case ECONNREFUSED:
        return " (is the peer still running? does a firewall reject the port?)";
    case ETIMEDOUT:
        return " (does a firewall drop the port? is this the right interface? see NCCL_SOCKET_IFNAME)";
    case EHOSTUNREACH:
    case ENETUNREACH:
        return " (no route: do the nodes use interfaces of one network? see NCCL_SOCKET_IFNAME)";
    case EADDRNOTAVAIL:
        return " (no free local port: widen net.ipv4.ip_local_port_range)";
    default:
        return "";
    }
}

int nb_tcp_connect(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm)
{
    struct nb_tcp_dev *d = nb_tcp_device(dev);
    int64_t now = nb_tcp_now_ms();
    struct connecting *k = NULL;
    struct nb_tcp_handle h;
    struct nb_tcp_send *s;
    int fds[NB_TCP_MAX_STREAMS], ready = 0, rc;

    *send_comm = NULL;
    if (!d)
        return -EINVAL;
    rc = nb_tcp_handle_get(handle, &h);
    if (rc != -EINVAL && h.state != 0) {
        k = connecting_find(h.state);
        if (!k || memcmp(k->h.token, h.token, sizeof(h.token)) != 0) {
            NB_WARN("tcp: connect was given a handle whose connection has been made or has failed");
            return -EINVAL;
        }
    }
    rc = k ? 0 : connecting_new(d, cfg, handle, &k);
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
        fds[i] = k->sock[i].fd;
        ready += k->sock[i].state == SOCK_READY;
    }
    if (ready < k->streams) {
        if (now - k->begun < nb_tcp_conf.connect_ms)
            return 0;
        rc = k->last_err ? k->last_err : -ETIMEDOUT;
        goto fail;
    }
    if (k->h.version != NB_TCP_WIRE_VERSION) {
        NB_WARN("tcp: %s listens with version %u of the protocol, this node has %u: install the same release "
                "on all nodes", k->peer, k->h.version, NB_TCP_WIRE_VERSION);
        connecting_free(k, true);
        return -EPROTO;
    }
    rc = nb_tcp_send_new(k->dev, fds, k->streams, k->conn_id, &s);
    if (rc)
        goto fail;
    NB_INFO(NCCL_NET, "tcp: connected %s to %s, %d sockets", s->c.local, s->c.peer, s->c.nstreams);
    connecting_free(k, false);
    *send_comm = s;
    return 0;
fail:
    NB_WARN("tcp: connecting from %s to %s failed after %.1f s: %s%s", k->dev->nif.name, k->peer,
            (double)(now - k->begun) / 1000, strerror(-rc), advice(rc));
    connecting_free(k, true);
    return rc;
}
