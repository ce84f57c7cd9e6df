/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: the kernel's limit on unsent bytes, for a connection that needs to know which bytes have
 * left, and sends that wait for other sends. */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp/internal.h"
#include "tests/suite.h"
#include "util.h"

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

#define FIRST 262144
#define SEGMENT 65536 /* the kernel looks at the limit when it begins a new segment */

static int limit_of(int fd)
{
    int limit = -1;
    socklen_t len = sizeof(limit);

    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &len), 0);
    return limit;
}

static void open_with(struct pair *p, int lazy, int shallow)
{
    struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1, .lazy = lazy, .shallow = shallow};

    pair_open_as(p, &cfg);
}

/* Sockets of a paced device keep few unsent bytes, and the kernel paces them, too. Those of urgent messages
 * are free. */
START_TEST(paced_device)
{
    for (int streams = 1; streams <= 4; streams += 3)
        for (int urgent = 0; urgent < 2; urgent++) {
            struct nb_net_conn_cfg cfg = {.streams = streams, .traffic_class = -1, .urgent = urgent};
            const unsigned most = streams == 1 ? 50000000 : 15625000; /* 5 / 4 of a share */
            struct pair p;

            net_up("NIBBLE_TCP_PACE_MBPS=400", NULL);
            pair_open_as(&p, &cfg);
            for (int i = 0; i < streams; i++) {
                const int fd = ((struct nb_tcp_send *)p.send)->stream[i].fd;
                unsigned rate = 0;
                socklen_t len = sizeof(rate);

                ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len), 0);
                ck_assert_uint_eq(rate, urgent ? UINT32_MAX : most);
                ck_assert_int_eq(limit_of(fd) == FIRST, !urgent);
            }
            pair_exchange(&p, 1 << 20);
            pair_close(&p);
            net_down();
        }
}
END_TEST

/* The peer takes no messages: the kernel holds the bytes for which the peer's kernel lacks room. Then all
 * messages arrive. */
START_TEST(nobody_reads)
{
    enum { MESSAGES = 64, BYTES = 1 << 20 };
    struct nb_net *net = net_up(NULL, NULL);
    uint8_t *data = malloc(BYTES), *got = malloc(BYTES);
    void *reqs[MESSAGES];
    struct pair p;
    int unsent = 0, fd;

    open_with(&p, 0, 1);
    fd = ((struct nb_tcp_send *)p.send)->stream[0].fd;
    ck_assert_int_eq(limit_of(fd), FIRST);
    fill_bytes(data, BYTES, 7);
    for (int i = 0; i < MESSAGES; i++)
        reqs[i] = post_send(p.send, data, BYTES, 0);
    for (int i = 0, done = 0; i < 200; i++) { /* until progress ends */
        ck_assert_int_eq(net->ops->test(reqs[MESSAGES - 1], &done, NULL), 0);
        ck_assert(!done);
        usleep(1000);
    }
    ck_assert_int_eq(ioctl(fd, SIOCOUTQNSD, &unsent), 0);
    ck_assert_int_gt(unsent, 0);
    ck_assert_int_le(unsent, FIRST + SEGMENT);
    for (int i = 0; i < MESSAGES; i++) {
        void *both[2] = {reqs[i], NULL};

        memset(got, 0, BYTES);
        both[1] = post_recv(p.recv, got, BYTES, 0);
        ck_assert_int_eq(wait_all(both, 2, 20000), 0);
        ck_assert(check_bytes(got, BYTES, 7));
    }
    pair_down(&p);
    free(data);
    free(got);
}
END_TEST

/* NCCL's own connections keep the kernel's default. */
START_TEST(only_where_it_is_wanted)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct pair p;

    net_up(NULL, NULL);
    open_with(&p, 0, 0);
    ck_assert_int_eq(limit_of(((struct nb_tcp_send *)p.send)->stream[0].fd), limit_of(fd));
    ck_assert_int_eq(((struct nb_tcp_send *)p.send)->stream[0].unsent.limit, 0);
    close(fd);
    pair_down(&p);
}
END_TEST

/* The time that the transport gets. */
static int64_t now_ns = 1000000000;

/* Longer than the period over which a stream's speed is measured. */
static void wait_period(void)
{
    now_ns += 5000000;
}

START_TEST(follows_the_speed)
{
    struct nb_tcp_unsent u = {0};
    int first, fd = socket(AF_INET, SOCK_STREAM, 0);

    nb_tcp_unsent_start(&u, fd);
    ck_assert_int_eq(limit_of(fd), FIRST);
    nb_tcp_unsent_wrote(&u, fd, 1000000000, 0, now_ns); /* it was not full: that proves no speed */
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 1000, 1, now_ns);
    ck_assert_int_eq(limit_of(fd), FIRST);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 1000, 1, now_ns); /* so much in a period: slow */
    ck_assert_int_eq(limit_of(fd), 65536);
    nb_tcp_unsent_wrote(&u, fd, 300000000, 0, now_ns);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 0, 1, now_ns);
    first = limit_of(fd);
    ck_assert_int_gt(first, FIRST);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 0, 1, now_ns); /* the peer took no bytes: that is not the link's speed */
    ck_assert_int_eq(limit_of(fd), first);
    wait_period();
    wait_period();
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, (size_t)first, 1,
                        now_ns); /* the kernel had run dry: it could have sent more */
    ck_assert_int_eq(limit_of(fd), first);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 1000, 1, now_ns);
    ck_assert_int_eq(limit_of(fd), 65536);
    wait_period();
    nb_tcp_unsent_idle(&u); /* the stream was idle: the next bytes begin a new measurement */
    nb_tcp_unsent_wrote(&u, fd, 1000, 1, now_ns);
    ck_assert_int_eq(limit_of(fd), 65536);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, (size_t)1 << 50, 0, now_ns); /* faster than any link */
    ck_assert_int_eq(limit_of(fd), 64 << 20);
    wait_period();
    nb_tcp_unsent_wrote(&u, fd, 1000, 0, now_ns); /* not full since */
    ck_assert_int_eq(limit_of(fd), 64 << 20);
    close(fd);
}
END_TEST

/* Messages wait until a send is tested, and then all go. */
START_TEST(lazy)
{
    enum { MESSAGES = 10, BYTES = 1000 };
    struct nb_net *net = net_up(NULL, NULL);
    static uint8_t data[MESSAGES][BYTES], got[MESSAGES][BYTES];
    void *reqs[2 * MESSAGES];
    struct pair p;
    int done;

    open_with(&p, 1, 0);
    for (int i = 0; i < MESSAGES; i++) {
        fill_bytes(data[i], BYTES, (unsigned)i);
        reqs[i] = post_send(p.send, data[i], BYTES, 0);
        reqs[MESSAGES + i] = post_recv(p.recv, got[i], BYTES, 0);
    }
    ck_assert_uint_eq(net->ops->wire_bytes(p.send), 0);
    ck_assert_int_eq(net->ops->test(reqs[0], &done, NULL), 0);
    ck_assert(done);
    ck_assert_uint_ge(net->ops->wire_bytes(p.send), MESSAGES * BYTES);
    reqs[0] = NULL;
    ck_assert_int_eq(wait_all(reqs, 2 * MESSAGES, 5000), 0);
    for (int i = 0; i < MESSAGES; i++)
        ck_assert(check_bytes(got[i], BYTES, (unsigned)i));
    pair_down(&p);
}
END_TEST

/* Write message `seq` as the sender would, on one of its streams. */
static void write_message(const struct pair *p, int stream, uint32_t seq, size_t size)
{
    const struct nb_tcp_send *s = p->send;
    const struct nb_tcp_frame f = {.seq = seq, .size = size, .len = (uint32_t)size, .kind = NB_TCP_DATA};
    uint8_t b[NB_TCP_FRAME_BYTES + 1000];

    nb_tcp_frame_put(b, &f, s->c.key);
    fill_bytes(b + NB_TCP_FRAME_BYTES, size, seq);
    ck_assert_int_eq(write(s->stream[stream].fd, b, NB_TCP_FRAME_BYTES + size),
                     (ssize_t)(NB_TCP_FRAME_BYTES + size));
}

/* A stream that waits for a lost packet stops the others only where receives have no order. An owner may
 * sleep until the oldest of them is done. */
START_TEST(late_stream)
{
    enum { MESSAGES = 40, BYTES = 1000 };
    static uint8_t got[MESSAGES][BYTES];
    struct nb_net *net;
    void *reqs[MESSAGES];
    struct pollfd fds[32];
    struct pair p;
    int done;

    net = pair_up(&p, 2);
    memset(got, 0, sizeof(got));
    if (_i)
        ck_assert_uint_ge(net->ops->ordered(p.recv), MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        reqs[i] = post_recv(p.recv, got[i], BYTES, 0);
    for (uint32_t i = 1; i < MESSAGES; i++)
        write_message(&p, 1, i, BYTES);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(net->ops->test(reqs[0], &done, NULL), 0);
        ck_assert(!done);
        usleep(1000);
    }
    for (unsigned i = 1; i < MESSAGES; i++)
        ck_assert(check_bytes(got[i], BYTES, i) == (_i == 1));
    ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 32), _i ? 2 : 1);
    write_message(&p, 0, 0, BYTES);
    ck_assert_int_eq(wait_all(reqs, MESSAGES, 5000), 0);
    for (unsigned i = 0; i < MESSAGES; i++)
        ck_assert(check_bytes(got[i], BYTES, i));
    ((struct nb_tcp_send *)p.send)->c.next_seq = MESSAGES;
    pair_exchange(&p, 1000); /* both ends go on */
    pair_down(&p);
}
END_TEST

SUITE_MAIN("net/tcp_unsent", TEST(paced_device), TEST(nobody_reads), TEST(only_where_it_is_wanted),
           TEST(follows_the_speed), TEST(lazy), LOOP(late_stream, 0, 2))
