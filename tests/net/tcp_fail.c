/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: errors and ends. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/tcp/internal.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_net *net;
static struct pair p;
static const int stream_counts[] = {1, 4};

/* Check that every call on a failed comm returns the error at once, without another log line. */
static void check_sticky_send(void *send, int err)
{
    int warned = warnings();
    void *req = &req;

    ck_assert_int_eq(net->ops->isend(send, "x", 1, 0, NULL, &req), err);
    ck_assert_ptr_null(req);
    ck_assert_int_eq(warnings(), warned);
}

static void check_sticky_recv(void *recv, int err)
{
    int warned = warnings(), tag = 0;
    void *req = &req, *data = &data;
    size_t size = 1;

    ck_assert_int_eq(net->ops->irecv(recv, 1, &data, &size, &tag, NULL, &req), err);
    ck_assert_ptr_null(req);
    ck_assert_int_eq(net->ops->iflush(recv, 1, &data, &size, NULL, &req), err);
    ck_assert_int_eq(warnings(), warned);
}

START_TEST(too_long)
{
    uint8_t buf[2000], dst[1000];
    void *sreq, *rreq, *before_s, *before_r;
    int done, rc = 0;
    int64_t end;

    net = pair_up(&p, stream_counts[_i]);
    memset(buf, 1, sizeof(buf));
    memset(dst, 0x77, sizeof(dst));
    before_r = post_recv(p.recv, dst + 500, 10, 0);
    before_s = post_send(p.send, buf, 10, 0);
    rreq = post_recv(p.recv, dst, 499, 0);
    sreq = post_send(p.send, buf, 500, 0);
    ck_assert_int_eq(wait_req(rreq, NULL, 5000), -EMSGSIZE);
    ck_assert_int_eq(net->ops->test(rreq, &done, NULL), -EMSGSIZE);
    /* A request that was complete before stays complete. */
    ck_assert_int_eq(wait_req(before_r, NULL, 0), 0);
    ck_assert_int_eq(wait_req(before_s, NULL, 0), 0);
    for (int i = 0; i < 500; i++)
        ck_assert_uint_eq(dst[i], 0x77);
    check_sticky_recv(p.recv, -EMSGSIZE);
    /* The sender had handed it all to the kernel. It learns of the error in its next calls. */
    rc = wait_req(sreq, NULL, 1000);
    ck_assert_int_eq(rc, 0);
    for (end = patient_ms() + 5000; rc == 0;) {
        void *req = NULL;

        rc = net->ops->isend(p.send, buf, 1, 0, NULL, &req);
        if (rc == 0 && req)
            rc = wait_req(req, NULL, 1000);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(rc, -EMSGSIZE);
    check_sticky_send(p.send, -EMSGSIZE);
    ck_assert_int_eq(warnings(), 2);
    ck_assert_ptr_nonnull(strstr(last_warning(), "500"));
    ck_assert_ptr_nonnull(strstr(last_warning(), "499"));
    pair_down(&p);
}
END_TEST

/* The same while the sender is stuck in a message that does not fit into the sockets. */
START_TEST(too_long_stuck)
{
    size_t size = 64 << 20;
    uint8_t *buf = calloc(1, size);
    void *sreq, *rreq;

    net = pair_up(&p, stream_counts[_i]);
    sreq = post_send(p.send, buf, size, 0);
    ck_assert_int_eq(wait_req(sreq, NULL, 50), -ETIME);
    rreq = post_recv(p.recv, buf, size - 1, 0);
    ck_assert_int_eq(wait_req(rreq, NULL, 5000), -EMSGSIZE);
    ck_assert_int_eq(wait_req(sreq, NULL, 5000), -EMSGSIZE);
    check_sticky_send(p.send, -EMSGSIZE);
    pair_down(&p);
    free(buf);
}
END_TEST

START_TEST(damaged_header)
{
    uint8_t junk[NB_TCP_FRAME_BYTES] = {1, 2, 3};
    void *rreq, *rreq2, *sreq;
    int rc = 0, done = 0;
    int64_t end = patient_ms() + 5000;

    net = pair_up(&p, stream_counts[_i]);
    rreq = post_recv(p.recv, junk, sizeof(junk), 0);
    rreq2 = post_recv(p.recv, junk, sizeof(junk), 0);
    ck_assert_int_eq(send(((struct nb_tcp_send *)p.send)->stream[0].fd, junk, sizeof(junk), 0), sizeof(junk));
    ck_assert_int_eq(wait_req(rreq, NULL, 5000), -EPROTO);
    ck_assert_int_eq(net->ops->test(rreq2, &done, NULL), -EPROTO);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), net->ops->peer_name(p.recv)));
    check_sticky_recv(p.recv, -EPROTO);
    while (rc == 0) {
        rc = net->ops->isend(p.send, junk, 1, 0, NULL, &sreq);
        if (rc == 0 && sreq)
            rc = wait_req(sreq, NULL, 1000);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(rc, -EPROTO);
    pair_down(&p);
}
END_TEST

/* Headers that are well formed but contradict every sender's rules, on a connection made by hand. */
START_TEST(absurd_headers)
{
    static const struct nb_tcp_frame bad[] = {
        {.seq = 5000000, .size = 4, .len = 4, .kind = NB_TCP_DATA},    /* far ahead */
        {.seq = 0xffffffff, .size = 4, .len = 4, .kind = NB_TCP_DATA}, /* the header before the first */
        {.seq = 0, .tag = EIO, .kind = NB_TCP_ERROR},                  /* wrong direction */
    };
    struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION, .streams = 1, .conn_id = "hand"};
    uint8_t b[NB_TCP_HELLO_BYTES], dst[16];
    struct nb_tcp_handle h;
    void *rreq;
    int fd;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    ck_assert_int_eq(nb_tcp_handle_get(p.handle, &h), 0);
    memcpy(hello.token, h.token, sizeof(h.token));
    nb_tcp_hello_put(b, &hello);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&h.addr, nb_tcp_addr_len(&h.addr)), 0);
    ck_assert_int_eq(write(fd, b, NB_TCP_HELLO_BYTES), NB_TCP_HELLO_BYTES);
    while (!p.recv)
        ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
    rreq = post_recv(p.recv, dst, sizeof(dst), 0);
    nb_tcp_frame_put(b, &bad[_i], nb_tcp_frame_key(hello.conn_id));
    ck_assert_int_eq(write(fd, b, NB_TCP_FRAME_BYTES), NB_TCP_FRAME_BYTES);
    ck_assert_int_eq(wait_req(rreq, NULL, 2000), -EPROTO);
    ck_assert_int_eq(warnings(), 1);
    close(fd);
    pair_down(&p);
}
END_TEST

/* Parts of one message that disagree, or exceed the message. */
START_TEST(absurd_parts)
{
    static const struct nb_tcp_frame second[] = {
        {.seq = 0, .size = 9, .offset = 4, .len = 4, .kind = NB_TCP_DATA},
        {.seq = 0, .tag = 1, .size = 8, .offset = 4, .len = 4, .kind = NB_TCP_DATA},
        {.seq = 0, .size = 8, .offset = 0, .len = 8, .kind = NB_TCP_DATA},
    };
    struct nb_tcp_frame first = {.seq = 0, .size = 8, .len = 4, .kind = NB_TCP_DATA};
    uint8_t b[2 * NB_TCP_FRAME_BYTES + 4], dst[16];
    struct nb_tcp_send *s;
    void *rreq;

    net = pair_up(&p, 1);
    s = p.send;
    rreq = post_recv(p.recv, dst, sizeof(dst), 0);
    memset(b, 0, sizeof(b));
    nb_tcp_frame_put(b, &first, s->c.key);
    nb_tcp_frame_put(b + NB_TCP_FRAME_BYTES + 4, &second[_i], s->c.key);
    ck_assert_int_eq(send(s->stream[0].fd, b, sizeof(b), 0), sizeof(b));
    ck_assert_int_eq(wait_req(rreq, NULL, 2000), -EPROTO);
    pair_down(&p);
}
END_TEST

/* ---- a peer in another process ---- */

/* Fork a peer that connects to the listener as sender and then does `work`. The parent gets its recv comm. */
static pid_t fork_sender(int streams, void (*work)(void *send))
{
    struct nb_net_conn_cfg cfg = {.streams = streams, .traffic_class = -1};
    int64_t end = patient_ms() + 5000;
    pid_t pid;

    memset(&p, 0, sizeof(p));
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        void *send = NULL;

        net->ops->close_listen(p.listen);
        while (!send) {
            if (net->ops->connect(net, 0, &cfg, p.handle, &send))
                _exit(1);
        }
        work(send);
        _exit(0);
    }
    while (!p.recv) {
        ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    return pid;
}

static void send_half_then_hang(void *send)
{
    static uint8_t buf[32 << 20];
    void *req;
    int done;

    net->ops->isend(send, buf, sizeof(buf), 0, NULL, &req);
    for (;;)
        net->ops->test(req, &done, NULL);
}

START_TEST(killed_inside_message)
{
    uint8_t *dst = malloc(32 << 20);
    int rc, done, status;
    int64_t begin, end;
    void *rreq, *later;
    pid_t pid;

    /* So slow that part of the message must still be missing when the peer dies: 26 s. */
    net = net_up("NIBBLE_TCP_PACE_MBPS=10", NULL);
    pid = fork_sender(stream_counts[_i], send_half_then_hang);
    rreq = post_recv(p.recv, dst, 32 << 20, 0);
    later = post_recv(p.recv, dst, 1, 0);
    /* Wait until some of it is here. */
    for (end = patient_ms() + 5000; net->ops->wire_bytes(p.recv) < 1000;) {
        ck_assert_int_eq(net->ops->test(rreq, &done, NULL), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    begin = patient_ms();
    while ((rc = net->ops->test(rreq, &done, NULL)) == 0) {
        ck_assert_int_eq(done, 0);
        ck_assert_int_lt(patient_ms() - begin, 2000);
    }
    ck_assert_int_eq(rc, -ECONNRESET);
    ck_assert_int_eq(net->ops->test(later, &done, NULL), -ECONNRESET);
    check_sticky_recv(p.recv, -ECONNRESET);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), net->ops->peer_name(p.recv)));
    ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, NULL, 0), -1);
    pair_down(&p);
    free(dst);
}
END_TEST

static void send_one_then_hang(void *send)
{
    void *req;
    int done = 0;

    net->ops->isend(send, "hello", 5, 0, NULL, &req);
    while (!done)
        net->ops->test(req, &done, NULL);
    for (;;)
        pause();
}

/* Wait until the kernel has bytes for this comm. */
static void await_bytes(const struct nb_tcp_recv *r)
{
    struct pollfd fds[NB_TCP_MAX_STREAMS];

    for (int i = 0; i < r->c.nstreams; i++)
        fds[i] = (struct pollfd){.fd = r->stream[i].fd, .events = POLLIN};
    ck_assert_int_gt(poll(fds, (nfds_t)r->c.nstreams, 60000), 0);
}

/* The peer is killed between messages: its sent messages arrive, and the next receive fails, with one
 * line. */
START_TEST(killed_between)
{
    char dst[8] = "";
    void *r1, *r2;
    int status;
    pid_t pid;

    net = net_up(NULL, NULL);
    pid = fork_sender(stream_counts[_i], send_one_then_hang);
    await_bytes(p.recv);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    r1 = post_recv(p.recv, dst, 5, 0);
    r2 = post_recv(p.recv, dst, 5, 0);
    ck_assert_int_eq(wait_req(r2, NULL, 5000), -ECONNRESET);
    ck_assert_int_eq(wait_req(r1, NULL, 0), 0);
    ck_assert_str_eq(dst, "hello");
    ck_assert_int_eq(warnings(), 1);
    pair_down(&p);
}
END_TEST

/* The receiver dies while the sender is stuck. */
START_TEST(receiver_gone)
{
    size_t size = 64 << 20;
    uint8_t *buf = calloc(1, size);
    void *a, *b;
    int done;

    net = pair_up(&p, stream_counts[_i]);
    a = post_send(p.send, buf, size, 0);
    b = post_send(p.send, buf, 10, 0);
    ck_assert_int_eq(wait_req(a, NULL, 50), -ETIME);
    net->ops->close_recv(p.recv);
    p.recv = NULL;
    ck_assert_int_eq(wait_req(a, NULL, 5000), -ECONNRESET);
    ck_assert_int_eq(net->ops->test(b, &done, NULL), -ECONNRESET);
    check_sticky_send(p.send, -ECONNRESET);
    ck_assert_int_eq(warnings(), 1);
    pair_down(&p);
    free(buf);
}
END_TEST

/* ---- errors of the system ---- */

/* Take the places of the C library's functions. While `broken` is set, the kernel has given up all sockets
 * with that error: one call reports it, and after it reads show the end of the stream. */
static int broken, reports;

static ssize_t broken_result(ssize_t otherwise)
{
    if (reports++)
        return otherwise;
    errno = broken;
    return -1;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    if (!broken)
        return syscall(SYS_sendmsg, fd, m, flags);
    if (reports)
        errno = EPIPE;
    return broken_result(-1);
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
    return broken ? broken_result(0) : syscall(SYS_recvfrom, fd, buf, len, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    return broken ? broken_result(0) : syscall(SYS_recvmsg, fd, m, flags);
}

/* All errors of an established connection: of its timers, of its route, of a reset, of ICMP messages
 * (icmp_err_convert in the kernel), of an administrator. */
static const struct {
    int err;
    bool cut;
} given_up[] = {{ETIMEDOUT, true},     {EHOSTUNREACH, true}, {ENETUNREACH, true}, {EHOSTDOWN, true},
                {ENETDOWN, true},      {ENONET, true},       {ECONNRESET, false}, {ECONNABORTED, false},
                {ECONNREFUSED, false}, {ENOPROTOOPT, false}, {EOPNOTSUPP, false}, {EPROTO, false},
                {EACCES, false},       {EPERM, false},       {EMSGSIZE, false}};
#define GIVEN_UP (int)(sizeof(given_up) / sizeof(given_up[0]))

/* The error must reach the caller and the log, whichever call of the transport receives it first. */
START_TEST(system_gives_up)
{
    enum { WRITES, READS_BACK, CHECKS, RECEIVES, WAYS };
    const int err = given_up[_i].err;
    size_t size = 64 << 20;
    uint8_t *buf = calloc(1, size);

    for (int way = 0; way < WAYS; way++) {
        void *req = NULL, *recv_req = NULL;
        int rc = 0;

        net = pair_up(&p, 1);
        if (way == READS_BACK) { /* more than the sockets take, so that the test only reads */
            req = post_send(p.send, buf, size, 0);
            ck_assert_int_eq(wait_req(req, NULL, 50), -ETIME);
            ((struct nb_tcp_send *)p.send)->stream[0].count = 0;
            ((struct nb_tcp_send *)p.send)->queue = NULL;
        } else if (way == RECEIVES) {
            recv_req = post_recv(p.recv, buf, 1, 0);
        }
        ((struct nb_tcp_send *)p.send)->peeked = 1; /* so that isend only writes */
        broken = err;
        reports = 0;
        if (way == WRITES)
            rc = net->ops->isend(p.send, buf, size, 0, NULL, &req);
        else if (way == CHECKS)
            rc = net->ops->lost(p.send);
        else
            rc = wait_req(way == RECEIVES ? recv_req : req, NULL, 1000);
        ck_assert_int_eq(rc, -err);
        if (way != CHECKS && !(way == WRITES && err == ECONNRESET)) {
            ck_assert_int_eq(warnings(), 1);
            ck_assert_msg(strstr(last_warning(), strerror(err)) != NULL, "%s", last_warning());
            ck_assert_int_eq(strstr(last_warning(), ": host down or network cut") != NULL, given_up[_i].cut);
        }
        broken = 0;
        pair_down(&p);
    }
    free(buf);
}
END_TEST

/* ---- closing ---- */

/* The receiver closes in order before it has read everything. Its kernel answers with a reset, but that is
 * not a failure: only a sender that sends more learns of it. */
START_TEST(close_with_unread)
{
    int64_t end = patient_ms() + 5000;
    int rc = 0, fd;

    net = pair_up(&p, stream_counts[_i]);
    fd = ((struct nb_tcp_send *)p.send)->stream[0].fd;
    ck_assert_int_eq(wait_req(post_send(p.send, "alive", 5, 0), NULL, 5000), 0);
    net->ops->close_recv(p.recv);
    p.recv = NULL;
    ck_assert_int_ge(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 60000), 1);
    while (rc == 0) {
        void *req = NULL;

        rc = net->ops->isend(p.send, "alive", 5, 0, NULL, &req);
        if (rc == 0 && req)
            rc = wait_req(req, NULL, 1000);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(rc, -ECONNRESET);
    check_sticky_send(p.send, -ECONNRESET);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    ck_assert_ptr_nonnull(logged("has closed the connection"));
    pair_down(&p);
}
END_TEST

START_TEST(close_in_order)
{
    enum { SIZE = 700000 };
    static uint8_t src[SIZE], dst[SIZE];
    void *s[3], *r[3], *more;
    struct pollfd fds[32];

    net = pair_up(&p, stream_counts[_i]);
    fill_bytes(src, SIZE, 4);
    for (int i = 0; i < 3; i++)
        s[i] = post_send(p.send, src, i == 1 ? SIZE : 10, 0);
    ck_assert_int_eq(wait_all(s, 3, 5000), 0);
    ck_assert_int_eq(net->ops->close_send(p.send), 0);
    p.send = NULL;
    ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 32), 0);
    for (int i = 0; i < 3; i++)
        r[i] = post_recv(p.recv, dst, i == 1 ? SIZE : 10, 0);
    more = post_recv(p.recv, dst, 10, 0);
    ck_assert_int_eq(wait_req(more, NULL, 5000), -ECONNRESET);
    ck_assert_int_eq(wait_all(r, 3, 0), 0);
    ck_assert(check_bytes(dst, SIZE, 4)); /* all three began with the same bytes */
    check_sticky_recv(p.recv, -ECONNRESET);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    pair_down(&p);
}
END_TEST

START_TEST(close_with_requests)
{
    size_t size = 64 << 20;
    uint8_t *buf = calloc(1, size);
    int64_t begin;

    net = net_up(NULL, NULL);
    for (int order = 0; order < 2; order++) {
        pair_open(&p, stream_counts[_i]);
        for (int i = 0; i < 5; i++) {
            post_send(p.send, buf, size, 0);
            post_recv(p.recv, buf, size, 1);
        }
        begin = now_ms();
        if (order == 0) {
            net->ops->close_send(p.send);
            p.send = NULL;
        } else {
            net->ops->close_recv(p.recv);
            p.recv = NULL;
        }
        pair_close(&p);
        ck_assert_int_lt(now_ms() - begin, 3000);
    }
    net_down();
    free(buf);
}
END_TEST

SUITE_MAIN("net/tcp_fail", LOOP(too_long, 0, 2), LOOP(too_long_stuck, 0, 2), LOOP(damaged_header, 0, 2),
           LOOP(absurd_headers, 0, 3), LOOP(absurd_parts, 0, 3), LOOP(killed_inside_message, 0, 2),
           LOOP(killed_between, 0, 2), LOOP(receiver_gone, 0, 2), LOOP(system_gives_up, 0, GIVEN_UP),
           LOOP(close_with_unread, 0, 2), LOOP(close_in_order, 0, 2), LOOP(close_with_requests, 0, 2))
