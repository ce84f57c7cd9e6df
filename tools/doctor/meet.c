/* SPDX-License-Identifier: Apache-2.0 */
/* See meet.h. A connection begins with a hello. Frames follow: a length of four bytes and as many bytes. */
#include "meet.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

#define MAGIC 0x31434f4442424e00ull /* includes the version of the frames */
#define HELLO 32
#define MOST_BYTES (64u << 20) /* of a frame */
#define RETRY_MS 100

static uint64_t after(double seconds)
{
    return nb_now_ns() + (uint64_t)(1e9 * seconds);
}

/* Return the milliseconds until `end`, 0 when it is over. */
static int left(uint64_t end)
{
    const uint64_t now = nb_now_ns();

    return now >= end ? 0 : (int)((end - now) / NB_NS_PER_MS) + 1;
}

/* Read all bytes until `end`. Bytes that are ready are read even later. */
static bool get(int fd, void *buf, size_t len, uint64_t end)
{
    char *at = buf;

    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, left(end)) <= 0)
            return false;
        const ssize_t n = recv(fd, at, len, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static bool put(int fd, const void *buf, size_t len, uint64_t end)
{
    const char *at = buf;

    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, left(end)) <= 0)
            return false;
        const ssize_t n = send(fd, at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static bool put_frame(int fd, const void *data, size_t len, uint64_t end)
{
    uint8_t head[4];

    nb_put32(head, (uint32_t)len);
    return put(fd, head, sizeof(head), end) && put(fd, data, len, end);
}

static bool get_frame(int fd, struct blob *b, uint64_t end)
{
    uint8_t head[4];

    *b = (struct blob){0};
    if (!get(fd, head, sizeof(head), end))
        return false;
    b->len = nb_get32(head);
    b->data = b->len <= MOST_BYTES ? malloc(b->len + 1) : NULL;
    if (!b->data || !get(fd, b->data, b->len, end)) {
        free(b->data);
        *b = (struct blob){0};
        return false;
    }
    b->data[b->len] = '\0'; /* text needs an end */
    return true;
}

/* Use small segments: nodes must be able to report a path that carries less than the interfaces' MTU. Send
 * each at once: barriers of nibble-perf would otherwise wait for delayed acknowledgements. */
static void keep_small(int fd)
{
    const int bytes = 536, on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof(bytes));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* ---- Node 0 ---- */

static int listen_at(int port, char *why, size_t cap)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    char service[16];
    int fd = -1, one = 1, off = 0;

    snprintf(service, sizeof(service), "%d", port);
    if (getaddrinfo(NULL, service, &hints, &list) == 0) {
        /* IPv6 first: it takes IPv4, too. */
        for (int family = AF_INET6; fd < 0; family = AF_INET) {
            for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
                if (a->ai_family != family)
                    continue;
                fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
                if (fd >= 0 && family == AF_INET6)
                    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
                if (fd >= 0) {
                    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
                    keep_small(fd);
                }
                if (fd >= 0 && (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, MOST_NODES))) {
                    close(fd);
                    fd = -1;
                }
            }
            if (family == AF_INET)
                break;
        }
        freeaddrinfo(list);
    }
    if (fd < 0)
        snprintf(why, cap, "node 0 cannot listen at port %d: %s (--port)", port, strerror(errno));
    return fd;
}

/* Accept a node's connection, and close a stranger's. */
static void take(struct meet *m, const struct place *place, int listener)
{
    const int fd = accept(listener, NULL, NULL);
    uint8_t hello[HELLO];

    if (fd < 0)
        return;
    if (get(fd, hello, sizeof(hello), after(1)) && nb_get64(hello) == MAGIC &&
        nb_get64(hello + 8) == place->key && nb_get32(hello + 16) == (uint32_t)m->nodes) {
        const uint32_t rank = nb_get32(hello + 20);
        if (rank > 0 && rank < (uint32_t)m->nodes && m->fd[rank] < 0) {
            m->fd[rank] = fd;
            return;
        }
    }
    close(fd);
}

static int receive(struct meet *m, const struct place *place, double seconds, char *why, size_t cap)
{
    const uint64_t end = after(seconds);
    const int listener = listen_at(place->port, why, cap);
    int here = 1;

    if (listener < 0)
        return -1;
    while (here < m->nodes && left(end) > 0) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        if (poll(&p, 1, left(end)) > 0)
            take(m, place, listener);
        here = 1;
        for (int i = 1; i < m->nodes; i++)
            here += m->fd[i] >= 0;
    }
    close(listener);
    return meet_say(m, "", 0);
}

/* ---- The others ---- */

static int dial(const struct place *place, const char **why)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[16];
    int fd = -1, err;

    snprintf(service, sizeof(service), "%d", place->port);
    err = getaddrinfo(place->root, service, &hints, &list);
    if (err) {
        *why = gai_strerror(err);
        return -1;
    }
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t len = sizeof(err);
        if (fd < 0)
            continue;
        keep_small(fd);
        err = connect(fd, a->ai_addr, a->ai_addrlen) ? errno : 0;
        if (err == EINPROGRESS &&
            (poll(&p, 1, 2000) <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len)))
            err = ETIMEDOUT;
        if (err) {
            *why = strerror(err);
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

static int come(struct meet *m, const struct place *place, double seconds, char *why, size_t cap)
{
    const uint64_t end = after(seconds);
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
    const char *cause = "no answer";
    uint8_t hello[HELLO] = {0};
    struct blob go = {0};

    nb_put64(hello, MAGIC);
    nb_put64(hello + 8, place->key);
    nb_put32(hello + 16, (uint32_t)m->nodes);
    nb_put32(hello + 20, (uint32_t)m->rank);
    while ((m->fd[0] = dial(place, &cause)) < 0 && left(end) > 0)
        nanosleep(&pause, NULL);
    if (m->fd[0] < 0) {
        snprintf(why, cap, "node 0 at %s, port %d, is not reached: %s", place->root, place->port, cause);
        return -1;
    }
    /* Node 0 may begin to wait only now. */
    if (!put(m->fd[0], hello, sizeof(hello), end) || meet_hear(m, &go, seconds + 2)) {
        snprintf(
            why, cap,
            "node 0 at %s, port %d, does not take this node: another job, --key or --nodes, or it has ended",
            place->root, place->port);
        return -1;
    }
    free(go.data);
    return 0;
}

/* ---- Both ---- */

int meet_open(struct meet *m, const struct place *place, double seconds, char *why, size_t cap)
{
    m->rank = place->rank;
    m->nodes = place->nodes;
    for (int i = 0; i < MOST_NODES; i++)
        m->fd[i] = -1;
    return m->rank == 0 ? receive(m, place, seconds, why, cap) : come(m, place, seconds, why, cap);
}

static void forget(struct meet *m, int node)
{
    if (m->fd[node] >= 0)
        close(m->fd[node]);
    m->fd[node] = -1;
}

int meet_gather(struct meet *m, const void *data, size_t len, double seconds)
{
    const uint64_t end = after(seconds);

    if (m->rank > 0)
        return put_frame(m->fd[0], data, len, end) ? 0 : -1;
    for (int i = 0; i < m->nodes; i++) {
        free(m->got[i].data);
        m->got[i] = (struct blob){0};
        if (i == 0) {
            m->got[0] = (struct blob){malloc(len + 1), len};
            if (!m->got[0].data)
                return -1;
            memcpy(m->got[0].data, data, len);
            m->got[0].data[len] = '\0';
        } else if (m->fd[i] >= 0 && !get_frame(m->fd[i], &m->got[i], end)) {
            forget(m, i);
        }
    }
    return 0;
}

int meet_say(struct meet *m, const void *data, size_t len)
{
    for (int i = 1; i < m->nodes; i++)
        if (m->fd[i] >= 0 && !put_frame(m->fd[i], data, len, after(5)))
            forget(m, i);
    return 0;
}

int meet_hear(struct meet *m, struct blob *said, double seconds)
{
    return get_frame(m->fd[0], said, after(seconds)) ? 0 : -1;
}

void meet_close(struct meet *m)
{
    for (int i = 0; i < m->nodes; i++) {
        forget(m, i);
        free(m->got[i].data);
        m->got[i] = (struct blob){0};
    }
}
