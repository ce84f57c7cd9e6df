/* SPDX-License-Identifier: Apache-2.0 */
/* See tcp_sock.h. */
#include "net/tcp_sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "net/tcp_if.h"

void nb_tcp_names(int fd, char *local, char *peer, size_t cap)
{
    struct sockaddr_storage a;
    socklen_t len;

    if (local) {
        memset(&a, 0, sizeof(a));
        len = sizeof(a);
        getsockname(fd, (struct sockaddr *)&a, &len);
        nb_tcp_addr_name(&a, local, cap);
    }
    if (peer) {
        memset(&a, 0, sizeof(a));
        len = sizeof(a);
        getpeername(fd, (struct sockaddr *)&a, &len);
        nb_tcp_addr_name(&a, peer, cap);
    }
}

/* Options of every data socket. No TCP_USER_TIMEOUT: Linux ends a connection by it when the receiver keeps
 * its window closed for that long, however alive it is, and a peer may be minutes late with its receives. */
void nb_tcp_tune(const struct nb_tcp_conf *conf, int fd, bool before_connect)
{
    static const int on = 1, idle = 30, interval = 10, count = 6;

    if (before_connect) {
        /* Only before the handshake can these decide the window scale; accepted sockets inherit the
         * listener's. */
        if (conf->sndbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &conf->sndbuf, sizeof(int));
        if (conf->rcvbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &conf->rcvbuf, sizeof(int));
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
