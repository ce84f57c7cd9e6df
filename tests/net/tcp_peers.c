/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: connections made in spite of strangers, damage and impatience. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "net/tcp/internal.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_net *net;

/* ---- raw sockets that play a peer ---- */

static int raw_connect(const void *handle)
{
    struct nb_tcp_handle h;
    int fd;

    ck_assert_int_eq(nb_tcp_handle_get(handle, &h), 0);
    fd = socket(h.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&h.addr, nb_tcp_addr_len(&h.addr)), 0);
    return fd;
}

static void raw_hello(uint8_t b[NB_TCP_HELLO_BYTES], const void *handle, uint32_t version, uint16_t stream,
                      uint16_t streams)
{
    struct nb_tcp_hello hello = {.version = version, .stream = stream, .streams = streams, .conn_id = "raw"};
    struct nb_tcp_handle h;

    ck_assert_int_eq(nb_tcp_handle_get(handle, &h), 0);
    memcpy(hello.token, h.token, sizeof(hello.token));
    nb_tcp_hello_put(b, &hello);
}

/* Return 0 when the other side has closed the socket. */
static ssize_t recv_end(int fd)
{
    char c;

    return recv(fd, &c, 1, MSG_DONTWAIT);
}

START_TEST(version_on_both_sides)
{
    uint8_t handle[NB_NET_HANDLE_BYTES], b[NB_TCP_HELLO_BYTES];
    void *listen, *send = NULL, *recv = NULL;
    struct nb_tcp_handle h;
    int fd[3], rc = 0;
    int64_t end = patient_ms() + 5000;
    char next[32];

    snprintf(next, sizeof(next), "version %d", NB_TCP_WIRE_VERSION + 1);
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    /* Connections with the token of another version, or of another transport, are a stranger's: a peer of
     * the job would not have taken the handle. */
    for (int i = 0; i < 3; i++) {
        fd[i] = raw_connect(handle);
        raw_hello(b, handle, NB_TCP_WIRE_VERSION + (i == 0), 0, i == 2 ? NB_TCP_MAX_STREAMS + 1 : 1);
        if (i == 1) {
            struct nb_tcp_hello other;
            ck_assert_int_eq(nb_tcp_hello_get(b, &other), 0);
            other.use = NB_TCP_FOR_VERBS;
            nb_tcp_hello_put(b, &other);
        }
        ck_assert_int_eq(write(fd[i], b, sizeof(b)), sizeof(b));
    }
    while (times_logged("with this listener's token") == 0 || recv_end(fd[2]) != 0) {
        ck_assert_int_eq(net->ops->accept(listen, &recv), 0);
        ck_assert_ptr_null(recv);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), next));
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    /* Connect to such a peer: it must hear this node before this node gives up. */
    nb_tcp_handle_get(handle, &h);
    h.version++;
    nb_tcp_handle_put(handle, &h);
    while ((rc = net->ops->connect(net, 0, NULL, handle, &send)) == 0) {
        ck_assert_ptr_null(send);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(rc, -EPROTO);
    ck_assert_ptr_nonnull(strstr(last_warning(), next));
    while (!recv) {
        ck_assert_int_eq(net->ops->accept(listen, &recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    net->ops->close_recv(recv);
    net->ops->close_listen(listen);
    net_down();
}
END_TEST

/* Takes the place of the C library's. */
static int accept_error, accept_errors; /* the error, and how often it comes */

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    if (accept_errors > 0) {
        accept_errors--;
        errno = accept_error;
        return -1;
    }
    return (int)syscall(SYS_accept4, fd, addr, len, flags);
}

/* An error of one connection hides no other one. A filter that refuses the system call is reported. */
START_TEST(accept_denied)
{
    static const int errors[] = {EPERM, ECONNABORTED, EHOSTUNREACH};
    struct pair p = {0};

    net = net_up(NULL, NULL);
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        accept_error = errors[i];
        accept_errors = 20;
        pair_open(&p, 1);
        pair_close(&p);
    }
    ck_assert_int_eq(warnings(), 0);
    accept_error = EPERM;
    accept_errors = 1 << 30;
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), -EPERM);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), "allow the system call accept4"));
    accept_errors = 0;
    net->ops->close_listen(p.listen);
    net_down();
}
END_TEST

/* The transport's clock is ahead by this. */
static int64_t ahead_ns;

static uint64_t shifted_ns(void *arg)
{
    (void)arg;
    return nb_now_ns() + (uint64_t)ahead_ns;
}

static void shift_time(void)
{
    ahead_ns = 0;
    net_context()->clock = (struct nb_clock){shifted_ns, NULL};
}

/* A peer's hello may come long after its connection: its process was paused, or packets were lost. */
START_TEST(late_hello)
{
    uint8_t handle[NB_NET_HANDLE_BYTES], b[NB_TCP_HELLO_BYTES];
    void *listen, *recv = NULL;
    int64_t end = patient_ms() + 20000;
    int fd;

    net = net_up(NULL, NULL);
    shift_time();
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    fd = raw_connect(handle);
    raw_hello(b, handle, NB_TCP_WIRE_VERSION, 0, 1);
    ck_assert_int_eq(write(fd, b, 10), 10);
    for (int s = 0; s < 100; s += 10) { /* within NIBBLE_CONNECT_TIMEOUT */
        ck_assert_int_eq(net->ops->accept(listen, &recv), 0);
        ck_assert_ptr_null(recv);
        ahead_ns += 10000000000;
    }
    ck_assert_int_eq(write(fd, b + 10, sizeof(b) - 10), sizeof(b) - 10);
    while (!recv) {
        ck_assert_int_eq(net->ops->accept(listen, &recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_ptr_null(logged("stranger"));
    close(fd);
    net->ops->close_recv(recv);
    net->ops->close_listen(listen);
    net_down();
}
END_TEST

/* A node that repeats a hello which it saw on the wire is a stranger. */
START_TEST(used_hello)
{
    uint8_t handle[NB_NET_HANDLE_BYTES], b[NB_TCP_HELLO_BYTES];
    void *listen, *recv[4] = {NULL};
    int64_t end = patient_ms() + 20000;
    int fd[4], accepted = 0;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    raw_hello(b, handle, NB_TCP_WIRE_VERSION, 0, 1);
    for (int i = 0; i < 4; i++) {
        fd[i] = raw_connect(handle);
        ck_assert_int_eq(write(fd[i], b, sizeof(b)), sizeof(b));
        while (accepted == 0) {
            ck_assert_int_eq(net->ops->accept(listen, &recv[0]), 0);
            accepted += recv[0] != NULL;
            ck_assert_int_lt(patient_ms(), end);
        }
    }
    while (!logged("used before")) {
        ck_assert_int_eq(net->ops->accept(listen, &recv[1]), 0);
        ck_assert_ptr_null(recv[1]);
        ck_assert_int_lt(patient_ms(), end);
    }
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(net->ops->accept(listen, &recv[1]), 0);
        ck_assert_ptr_null(recv[1]);
        usleep(100);
    }
    ck_assert_int_eq(warnings(), 0);
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    net->ops->close_recv(recv[0]);
    net->ops->close_listen(listen);
    net_down();
}
END_TEST

/* A connecting node must see that the listener has dropped its connection, before it sends a message. */
START_TEST(lost_before_acceptance)
{
    struct pair p = {0};
    int64_t end = patient_ms() + 20000;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    while (!p.send) {
        ck_assert_int_eq(net->ops->connect(net, 0, NULL, p.handle, &p.send), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(net->ops->lost(p.send), 0);
    net->ops->close_listen(p.listen);
    while (net->ops->lost(p.send) == 0)
        ck_assert_int_lt(patient_ms(), end);
    ck_assert_int_eq(net->ops->lost(p.send), -ECONNRESET);
    ck_assert_int_eq(warnings(), 0);
    net->ops->close_send(p.send);
    net_down();
}
END_TEST

/* All kinds of strangers come at once. A real peer connects among them and works. */
START_TEST(strangers)
{
    enum { SILENT = 300, RANDOM = 60, TOKEN = 30, GONE = 100, HTTP = 20, LORIS = 20, ALL = 530 };
    uint8_t handle[NB_NET_HANDLE_BYTES], b[NB_TCP_HELLO_BYTES];
    struct nb_net_conn_cfg cfg = {.streams = 4, .traffic_class = -1};
    int fd[ALL], n = 0, loris, fds = open_fds();
    void *extra = NULL;
    int64_t end;
    struct pair p = {0};

    net = net_up(NULL, NULL);
    shift_time();
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    memcpy(handle, p.handle, sizeof(handle));
    srand(7);
    for (int i = 0; i < RANDOM; i++) {
        uint8_t junk[300];

        for (size_t k = 0; k < sizeof(junk); k++)
            junk[k] = (uint8_t)rand();
        fd[n++] = raw_connect(handle);
        ck_assert_int_eq(write(fd[n - 1], junk, sizeof(junk)), sizeof(junk));
    }
    for (int i = 0; i < TOKEN; i++) {
        struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION + (uint32_t)i % 2, .streams = 1};

        memset(hello.token, i, sizeof(hello.token));
        nb_tcp_hello_put(b, &hello);
        fd[n++] = raw_connect(handle);
        ck_assert_int_eq(write(fd[n - 1], b, sizeof(b)), sizeof(b));
    }
    for (int i = 0; i < HTTP; i++) {
        fd[n++] = raw_connect(handle);
        ck_assert_int_eq(write(fd[n - 1], "GET / HTTP/1.0\r\n\r\n", 18), 18);
    }
    for (int i = 0; i < GONE; i++)
        close(raw_connect(handle));
    loris = n;
    raw_hello(b, handle, NB_TCP_WIRE_VERSION, 0, 1);
    for (int i = 0; i < LORIS; i++) {
        fd[n++] = raw_connect(handle);
        ck_assert_int_eq(write(fd[n - 1], b, 1), 1);
    }
    for (int i = 0; i < SILENT; i++) {
        fd[n++] = raw_connect(handle);
        if (i % 50 == 0) /* keep the kernel's queue from overflowing, which is not under test */
            ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
    }
    end = patient_ms() + 10000;
    while (!p.send || !p.recv) {
        if (!p.send)
            ck_assert_int_eq(net->ops->connect(net, 0, &cfg, p.handle, &p.send), 0);
        ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(((struct nb_tcp_recv *)p.recv)->c.nstreams, 4);
    pair_exchange(&p, 200000);
    /* Strangers beyond the table's size, and strangers with wrong bytes, are gone already. */
    ck_assert_int_le(open_fds(), fds + n + 128 + 24);
    /* The rest goes when its time is over, however busily it drips, without becoming a connection. */
    for (int i = 1; i <= 33; i++) {
        for (int k = 0; k < LORIS; k++)
            (void)!send(fd[loris + k], b + i % 60, 1, MSG_NOSIGNAL);
        ck_assert_int_eq(net->ops->accept(p.listen, &extra), 0);
        ck_assert_ptr_null(extra);
        ahead_ns += 4000000000;
    }
    ck_assert_int_le(open_fds(), fds + n + 24);
    ck_assert_int_eq(warnings(), 0);
    pair_exchange(&p, 100);
    for (int i = 0; i < n; i++)
        close(fd[i]);
    pair_down(&p);
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

/* Peers of a large group all connect at once, and send their hello only when they have dialled all nodes.
 * They are more than the places for sockets without a hello. The listener must keep all of them. */
START_TEST(crowd)
{
    enum { N = 300 };
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION, .streams = 1};
    struct nb_tcp_handle h;
    void *listen, *recv[N] = {NULL};
    int fd[N], accepted = 0, fds = open_fds();
    int64_t end = patient_ms() + 20000;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    ck_assert_int_eq(nb_tcp_handle_get(handle, &h), 0);
    memcpy(hello.token, h.token, sizeof(hello.token));
    for (int i = 0; i < N; i++)
        fd[i] = raw_connect(handle);
    /* The listener has looked, before any peer has sent its hello. */
    ck_assert_int_eq(net->ops->accept(listen, &recv[0]), 0);
    ck_assert_ptr_null(recv[0]);
    for (int i = N; i-- > 0;) {
        uint8_t b[NB_TCP_HELLO_BYTES];

        memcpy(hello.conn_id, &i, sizeof(i));
        nb_tcp_hello_put(b, &hello);
        ck_assert_int_eq(send(fd[i], b, sizeof(b), MSG_NOSIGNAL), sizeof(b));
    }
    while (accepted < N) {
        ck_assert_int_eq(net->ops->accept(listen, &recv[accepted]), 0);
        accepted += recv[accepted] != NULL;
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(warnings(), 0);
    for (int i = 0; i < N; i++) {
        net->ops->close_recv(recv[i]);
        close(fd[i]);
    }
    net->ops->close_listen(listen);
    net_down();
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

/* A peer of this version that makes a mistake is dropped with a line, without disturbing other peers. */
START_TEST(unfinished_peers)
{
    uint8_t b[NB_TCP_HELLO_BYTES];
    struct pair p = {0};
    void *none = NULL;
    int fd[3], fds = open_fds();
    int64_t end = patient_ms() + 5000;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    raw_hello(b, p.handle, NB_TCP_WIRE_VERSION, 0, 3);
    for (int i = 0; i < 2; i++) { /* the same socket number twice */
        fd[i] = raw_connect(p.handle);
        ck_assert_int_eq(write(fd[i], b, sizeof(b)), sizeof(b));
    }
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(net->ops->accept(p.listen, &none), 0);
        ck_assert_ptr_null(none);
    }
    close(fd[0]); /* and then it dies with 1 of 3 sockets there */
    close(fd[1]);
    while (warnings() == 0) {
        ck_assert_int_eq(net->ops->accept(p.listen, &none), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_ptr_nonnull(strstr(last_warning(), "1 of 3"));
    while (!p.send || !p.recv) {
        if (!p.send)
            ck_assert_int_eq(net->ops->connect(net, 0, NULL, p.handle, &p.send), 0);
        ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    pair_exchange(&p, 1000);
    pair_down(&p);
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

START_TEST(nobody_there)
{
    struct pair p = {0};
    int rc, fds = open_fds();
    int64_t begin = now_ms(), limit = patient_ms();

    net = net_up("NIBBLE_CONNECT_TIMEOUT=1", NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    ck_assert_int_eq(net->ops->close_listen(p.listen), 0);
    while ((rc = net->ops->connect(net, 0, NULL, p.handle, &p.send)) == 0 && !p.send)
        ck_assert_int_lt(patient_ms() - limit, 5000);
    ck_assert_int_eq(rc, -ECONNREFUSED);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), "the address is this node's, too"));
    ck_assert_int_ge(now_ms() - begin, 900);
    ck_assert_int_eq(open_fds(), fds);
    /* The handle's connect is over. */
    ck_assert_int_eq(net->ops->connect(net, 0, NULL, p.handle, &p.send), -EINVAL);
    net_down();
}
END_TEST

/* ---- leaks ---- */

START_TEST(cycles)
{
    int fds = open_fds();

    for (int i = 0; i < 100; i++) {
        uint8_t handle[NB_NET_HANDLE_BYTES];
        struct pair p, half = {0};
        void *listen, *send, *none;
        int64_t end = patient_ms() + 5000;

        net = net_up(i % 3 == 1 ? "NIBBLE_TCP_PACE_MBPS=8000" : NULL, NULL);
        pair_open(&p, 1 + i % 4);
        pair_exchange(&p, 10000);
        /* Objects that the test leaves alone: an unfinished connect (TEST-NET-1 does not answer, or is
         * unreachable at once, which is fine, too), */
        if (i % 10 == 0) {
            struct nb_tcp_handle h;

            memcpy(handle, p.handle, sizeof(handle));
            nb_tcp_handle_get(handle, &h);
            ((struct sockaddr_in *)&h.addr)->sin_addr.s_addr = htonl(0xc0000201);
            h.state = 0;
            nb_tcp_handle_put(handle, &h);
            ck_assert_int_eq(net->ops->connect(net, 0, NULL, handle, &send), 0);
            ck_assert_ptr_null(send);
        }
        /* a listener closed with a connection in its queue, */
        ck_assert_int_eq(net->ops->listen(net, 0, half.handle, &half.listen), 0);
        while (!half.send) {
            ck_assert_int_eq(net->ops->connect(net, 0, NULL, half.handle, &half.send), 0);
            ck_assert_int_lt(patient_ms(), end);
        }
        /* and a listener with a stranger and one of three sockets of a connection in its tables. */
        ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
        if (i % 10 == 0) {
            uint8_t b[NB_TCP_HELLO_BYTES];
            int a = raw_connect(handle), c = raw_connect(handle);

            raw_hello(b, handle, NB_TCP_WIRE_VERSION, 1, 3);
            ck_assert_int_eq(write(a, b, sizeof(b)), sizeof(b));
            for (int k = 0; k < 5; k++)
                ck_assert_int_eq(net->ops->accept(listen, &none), 0);
            close(a);
            close(c);
        }
        net->ops->close_listen(listen);
        pair_close(&half);
        pair_down(&p);
        ck_assert_msg(open_fds() == fds, "cycle %d: %d descriptors, %d before", i, open_fds(), fds);
        ck_assert_int_eq(helper_threads(), 0);
    }
}
END_TEST

SUITE_MAIN("net/tcp_peers", TEST(version_on_both_sides), TEST(accept_denied), TEST(late_hello),
           TEST(used_hello), TEST(lost_before_acceptance), TEST(strangers), TEST(crowd),
           TEST(unfinished_peers), TEST(nobody_there), TEST(cycles))
