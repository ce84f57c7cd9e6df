/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accepting side, with one listening socket a listener. A connection is complete when all its sockets
 * have sent their hello. accept never blocks: it does all it can now, and the caller calls it again.
 *
 *      accept4()             hello with the token       all sockets are there
 *      ---------> stranger ----------------------> half_conn ------------------> handed over by nb_tcp_take
 *                     |                                |
 *                     | no hello in time, other bytes, | a socket hung up, or not all of them
 *                     | wrong token, hung up           | in time
 *                     v                                v
 *                   closed                     all sockets closed
 *
 * A hello with the token but of another version or transport, or with impossible fields, is a stranger's,
 * too. A node of the job that is unlike this one refuses this node's handle, and its own handle tells this
 * node, so that both report it (connect.c). The token alone is no proof: whoever has seen a hello on the wire
 * has it.
 *
 * Strangers (port scanners, health checks, other jobs) reach the port, too. A socket that has not yet shown
 * the token from the handle has a place in a table of fixed size. It is closed without an answer when it
 * sends other bytes, or when the table is full and it is the oldest. It gets CROWDED_MS first: peers send
 * their hello when they get to it, and in a large group hundreds of them connect in the same moment. While
 * all sockets in a full table are new, the others wait in the kernel's queue. Silence alone is no offence,
 * because a peer's process may be paused, or its hello lost on the way. A silent socket therefore has all the
 * time that its connect has.
 *
 * A hello that has been used before comes from a stranger that has seen it on the wire.
 */
#include "net/tcp/tcp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "net/tcp/internal.h"

#define STRANGERS_MAX 128  /* sockets without a valid hello */
#define CROWDED_MS 1000    /* time for the hello while other sockets wait for the place */
#define ACCEPTS_A_CALL 256 /* so that a flood cannot hold up accept */
#define BACKLOG 4096       /* the kernel cuts it to net.core.somaxconn */

/* A socket whose hello is not complete. */
struct stranger {
    int fd;
    unsigned have;
    int64_t since;
    char peer[64];
    uint8_t hello[NB_TCP_HELLO_BYTES];
};

/* A connection with some of its sockets. */
struct half_conn {
    struct half_conn *next;
    uint8_t conn_id[16];
    int fd[NB_TCP_MAX_STREAMS];
    int streams, present;
    int64_t deadline;
    char peer[64];
};

/* Connection ids that have arrived: a table by their first bytes, which are random, at most half full. */
struct ids {
    uint8_t (*id)[16]; /* all 0: free */
    size_t cap, n;
};

struct nb_tcp_listen {
    struct nb_tcp_dev *dev;
    enum nb_tcp_use use;
    int fd;
    int err; /* sticky */
    uint8_t token[NB_TCP_TOKEN_BYTES];
    char local[64];
    int nstrangers;
    uint64_t granted; /* bytes that each connection keeps for deltas; reserved until the first is accepted */
    bool unused;      /* they still are */
    unsigned dropped, unlike; /* strangers so far, and those of them with the token and another hello */
    struct stranger stranger[STRANGERS_MAX]; /* oldest first */
    struct half_conn *half, **half_end;
    struct ids used;
};

/* ---- connection ids --------------------------------------------------------------------------------- */

static bool is_none(const uint8_t id[16])
{
    static const uint8_t none[16];

    return memcmp(id, none, 16) == 0;
}

/* Return the place of an id in the table, or the free place for it. */
static uint8_t *ids_place(const struct ids *t, const uint8_t id[16])
{
    size_t at;

    memcpy(&at, id, sizeof(at));
    while (memcmp(t->id[at & (t->cap - 1)], id, 16) != 0 && !is_none(t->id[at & (t->cap - 1)]))
        at++;
    return t->id[at & (t->cap - 1)];
}

static bool ids_have(const struct ids *t, const uint8_t id[16])
{
    return t->cap && !is_none(id) && !is_none(ids_place(t, id));
}

static int ids_add(struct ids *t, const uint8_t id[16])
{
    if (is_none(id))
        return 0;
    if (2 * (t->n + 1) > t->cap) {
        struct ids more = {.cap = t->cap ? 2 * t->cap : 64, .n = t->n};

        more.id = calloc(more.cap, sizeof(*more.id));
        if (!more.id)
            return -ENOMEM;
        for (size_t i = 0; i < t->cap; i++)
            if (!is_none(t->id[i]))
                memcpy(ids_place(&more, t->id[i]), t->id[i], 16);
        free(t->id);
        *t = more;
    }
    memcpy(ids_place(t, id), id, 16);
    t->n++;
    return 0;
}

/* ---- listening -------------------------------------------------------------------------------------- */

int nb_tcp_listen_for(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, void *handle, void **listen_comm)
{
    struct nb_tcp_dev *d = nb_tcp_device(tcp, dev);
    struct nb_tcp_handle h = {.version = NB_TCP_WIRE_VERSION, .use = (uint32_t)use};
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
    l->use = use;
    l->half_end = &l->half;
    rc = nb_random(l->token, sizeof(l->token));
    if (rc)
        goto err_free;
    rc = l->fd = nb_tcp_socket(d->nif.addr.ss_family);
    if (rc < 0)
        goto err_free;
    nb_tcp_tune(&tcp->conf, l->fd, true);
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

int nb_tcp_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    return nb_tcp_listen_for((struct nb_tcp *)net, dev, NB_TCP_FOR_DATA, handle, listen_comm);
}

static void remove_stranger(struct nb_tcp_listen *l, int i)
{
    l->nstrangers--;
    memmove(&l->stranger[i], &l->stranger[i + 1], (size_t)(l->nstrangers - i) * sizeof(l->stranger[0]));
}

/* Close and forget a socket. Log one line per listener: a scanner would fill the log. */
static void drop_stranger(struct nb_tcp_listen *l, int i, const char *why)
{
    if (l->dropped++ == 0)
        NB_INFO(NCCL_NET, "tcp: dropped a stranger's connection from %s to %s: %s (more are not reported)",
                l->stranger[i].peer, l->local, why);
    close(l->stranger[i].fd);
    remove_stranger(l, i);
}

/* Close and forget a socket whose hello has the token and differs from that of a node like this one. */
__attribute__((format(printf, 3, 4))) static void drop_unlike(struct nb_tcp_listen *l, int i, const char *fmt,
                                                              ...)
{
    char why[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (l->unlike++ == 0)
        NB_WARN(
            "%s: dropped a connection from %s to %s with this listener's token: %s (more are not reported)",
            nb_tcp_use_name(l->use), l->stranger[i].peer, l->local, why);
    l->dropped++;
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

/* Add a socket with a good hello to its connection. */
static int join_half(struct nb_tcp_listen *l, int i, const struct nb_tcp_hello *hello, int64_t now)
{
    struct half_conn *h = l->half;

    if (ids_have(&l->used, hello->conn_id)) {
        drop_stranger(l, i, "a hello that was used before");
        return 0;
    }
    while (h && memcmp(h->conn_id, hello->conn_id, sizeof(h->conn_id)) != 0)
        h = h->next;
    if (!h) {
        h = calloc(1, sizeof(*h));
        if (!h)
            return -ENOMEM;
        memcpy(h->conn_id, hello->conn_id, sizeof(h->conn_id));
        memcpy(h->peer, l->stranger[i].peer, sizeof(h->peer));
        h->streams = hello->streams;
        h->deadline = now + l->dev->tcp->conf.connect_ms;
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

/* Read the bytes that the i-th stranger has sent. Return true when it left the table. */
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
        if (now - s->since < l->dev->tcp->conf.connect_ms)
            return false;
        drop_stranger(l, i, "no hello in time");
        return true;
    }
    rc = nb_tcp_hello_get(s->hello, &hello);
    if (rc == -EINVAL || !nb_tcp_token_equal(hello.token, l->token)) {
        drop_stranger(l, i,
                      rc == -EINVAL ? "it speaks another protocol" : "wrong token: it wants another process");
        return true;
    }
    if (rc == -EPROTO)
        drop_unlike(
            l, i,
            "it has version %u of the protocol, this node has %u: install the same release on all nodes",
            hello.version, NB_TCP_WIRE_VERSION);
    else if (rc)
        drop_unlike(l, i, "its hello is invalid (stream %u of %u)", hello.stream, hello.streams);
    else if (hello.use != (uint32_t)l->use)
        drop_unlike(l, i, "it uses the transport %s, this node %s: set NIBBLE_NET alike on all nodes",
                    nb_tcp_use_name(hello.use), nb_tcp_use_name(l->use));
    else
        l->err = join_half(l, i, &hello, now);
    return true;
}

static const char *accept_hint(int err)
{
    switch (err) {
    case EMFILE: return " (raise the limit of open files, ulimit -n)";
    case EPERM:
    case EACCES:
    case ENOSYS: return " (allow the system call accept4: a filter such as seccomp refuses it)";
    default: return "";
    }
}

static void take_sockets(struct nb_tcp_listen *l, int64_t now)
{
    int errors = 0;

    for (int i = 0; i < ACCEPTS_A_CALL; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        struct stranger *s;
        int fd;

        if (l->nstrangers == STRANGERS_MAX && now - l->stranger[0].since < CROWDED_MS)
            return;
        memset(&a, 0, sizeof(a));
        fd = accept4(l->fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return;
            /* Most errors belong to the connection that it was about to accept. Those of descriptors and
             * memory, and errors that keep coming, belong to this process. */
            if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS &&
                ++errors < ACCEPTS_A_CALL)
                continue;
            l->err = -errno;
            NB_WARN("tcp: cannot accept on %s: %s%s", l->local, strerror(-l->err), accept_hint(-l->err));
            return;
        }
        if (l->nstrangers == STRANGERS_MAX)
            drop_stranger(l, 0, "too many connections without a hello");
        s = &l->stranger[l->nstrangers++];
        s->fd = fd;
        s->have = 0;
        s->since = now;
        nb_tcp_addr_name(&a, s->peer, sizeof(s->peer));
        /* Its hello has usually arrived already. It then frees its place at once. */
        hear_stranger(l, l->nstrangers - 1, now);
        if (l->err)
            return;
    }
}

/* Drop connections whose peer has died or hangs. */
static void drop_dead_halves(struct nb_tcp_listen *l, int64_t now)
{
    for (struct half_conn **at = &l->half; *at;) {
        struct half_conn *h = *at;
        const char *why = now >= h->deadline ? "some sockets did not arrive in time" : NULL;

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

int nb_tcp_take(void *listen_comm, struct nb_tcp_sockets *out)
{
    struct nb_tcp_listen *l = listen_comm;
    int64_t now = nb_clock_ms(l->dev->tcp->clock);

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
        l->err = ids_add(&l->used, h->conn_id);
        if (l->err)
            return l->err;
        for (int i = 0; i < h->streams; i++)
            nb_tcp_tune(&l->dev->tcp->conf, h->fd[i], false);
        out->n = h->streams;
        memcpy(out->fd, h->fd, sizeof(out->fd));
        memcpy(out->conn_id, h->conn_id, sizeof(out->conn_id));
        free_half(l, at, false);
        return 1;
    }
    if (!l->err)
        drop_dead_halves(l, now);
    return l->err;
}

int nb_tcp_accept(void *listen_comm, void **recv_comm)
{
    struct nb_tcp_listen *l = listen_comm;
    struct nb_tcp_sockets made;
    struct nb_tcp_recv *r;
    int rc;

    *recv_comm = NULL;
    rc = nb_tcp_take(l, &made);
    if (rc <= 0)
        return rc;
    l->err = nb_tcp_recv_new(l->dev, made.fd, made.n, made.conn_id, &r);
    if (l->err) {
        nb_tcp_close_sockets(&made);
        return l->err;
    }
    r->granted = l->unused ? l->granted : l->granted ? nb_tcp_deltas_reserve_again(l->dev, l->granted) : 0;
    l->unused = false;
    NB_INFO(NCCL_NET, "tcp: accepted %s from %s, %d sockets", r->c.local, r->c.peer, r->c.nstreams);
    *recv_comm = r;
    return 0;
}

int nb_tcp_allow_deltas(void *listen_comm, void *handle)
{
    struct nb_tcp_listen *l = listen_comm;

    l->granted = nb_tcp_deltas_reserve(l->dev);
    l->unused = true;
    nb_tcp_handle_set_granted(handle, l->granted);
    return 0;
}

int nb_tcp_close_listen(void *listen_comm)
{
    struct nb_tcp_listen *l = listen_comm;

    if (!l)
        return 0;
    if (l->unused)
        nb_tcp_deltas_return(l->dev->tcp, l->granted);
    while (l->nstrangers > 0) {
        close(l->stranger[l->nstrangers - 1].fd);
        l->nstrangers--;
    }
    while (l->half)
        free_half(l, &l->half, true);
    if (l->dropped > 1)
        NB_INFO(NCCL_NET, "tcp: %s dropped %u connections of strangers", l->local, l->dropped);
    close(l->fd);
    free(l->used.id);
    free(l);
    return 0;
}
