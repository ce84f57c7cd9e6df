/* SPDX-License-Identifier: Apache-2.0 */
/* What comms of the TCP transport share: sockets and their options, names, lock, memory of requests. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp_int.h"

int64_t nb_tcp_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                     const uint8_t conn_id[16])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int rc;

    c->is_send = is_send;
    c->dev = dev;
    c->nstreams = n;
    c->key = nb_tcp_frame_key(conn_id);
    c->event_fd = -1;
    memset(&a, 0, sizeof(a));
    getpeername(fd0, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->peer, sizeof(c->peer));
    memset(&a, 0, sizeof(a));
    len = sizeof(a);
    getsockname(fd0, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->local, sizeof(c->local));
    rc = pthread_mutex_init(&c->lock, NULL);
    if (rc)
        return -rc;
    rc = pthread_cond_init(&c->idle, NULL);
    if (rc)
        pthread_mutex_destroy(&c->lock);
    return -rc;
}

void nb_tcp_comm_fini(struct nb_tcp_comm *c)
{
    if (c->event_fd >= 0)
        close(c->event_fd);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->lock);
}

void *nb_tcp_block_new(struct nb_tcp_block **chain, size_t bytes)
{
    struct nb_tcp_block *b = calloc(1, sizeof(*b) + bytes);

    if (!b)
        return NULL;
    b->next = *chain;
    *chain = b;
    return b->data;
}

void nb_tcp_blocks_free(struct nb_tcp_block *chain)
{
    while (chain) {
        struct nb_tcp_block *next = chain->next;

        free(chain);
        chain = next;
    }
}

int nb_tcp_random(void *p, size_t n)
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
void nb_tcp_tune(int fd, bool before_connect)
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

int nb_tcp_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

    if (fd >= 0)
        return fd;
    fd = -errno;
    NB_WARN("tcp: no socket: %s%s", strerror(-fd),
            fd == -EMFILE || fd == -ENFILE ? " (raise the limit of open files, ulimit -n)" : "");
    return fd;
}
