/* SPDX-License-Identifier: Apache-2.0 */
/* Two contexts in one process, each with its own TCP transport: settings, devices, clocks and connections. */
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/context.h"
#include "net/tcp/internal.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_params params[2];
static struct nb_context node[2];

static void setup(void)
{
    capture_log();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    for (int i = 0; i < 2; i++) {
        params[i] = *nb_params_defaults();
        params[i].tcp_streams = i ? 3 : 2;
        params[i].devs_per_nic = 1 + i;
        memset(&node[i], 0, sizeof(node[i]));
        node[i].params = &params[i];
        ck_assert_int_eq(nb_net_open_with(&node[i], &nb_net_tcp), 0);
    }
}

static void connect_as(struct pair *p, int from, int to, const struct nb_net_conn_cfg *cfg)
{
    struct nb_net *a = node[from].net, *b = node[to].net;
    int64_t end = patient_ms() + 60000;

    memset(p, 0, sizeof(*p));
    ck_assert_int_eq(b->ops->listen(b, 0, p->handle, &p->listen), 0);
    while (!p->send || !p->recv) {
        if (!p->send)
            ck_assert_int_eq(a->ops->connect(a, 0, cfg, p->handle, &p->send), 0);
        if (!p->recv)
            ck_assert_int_eq(b->ops->accept(p->listen, &p->recv), 0);
        ck_assert(patient_ms() < end);
    }
}

static void connect_to(struct pair *p, int from, int to)
{
    connect_as(p, from, to, NULL);
}

static void carry(struct pair *p)
{
    static uint8_t sent[300000], got[300000];
    const struct nb_net_ops *ops = node[1].net->ops;
    int64_t end = patient_ms() + 60000;
    void *data = got, *s, *r;
    size_t size = sizeof(got);
    int tag = 1, there = 0, gone = 0;

    fill_bytes(sent, sizeof(sent), 3);
    memset(got, 0, sizeof(got));
    ck_assert_int_eq(ops->isend(p->send, sent, sizeof(sent), tag, NULL, &s), 0);
    ck_assert_int_eq(ops->irecv(p->recv, 1, &data, &size, &tag, NULL, &r), 0);
    while (!there || !gone) {
        if (!gone)
            ck_assert_int_eq(ops->test(s, &gone, NULL), 0);
        if (!there)
            ck_assert_int_eq(ops->test(r, &there, NULL), 0);
        ck_assert(patient_ms() < end);
    }
    ck_assert(check_bytes(got, sizeof(got), 3));
}

static void close_both(struct pair *p)
{
    const struct nb_net_ops *ops = node[1].net->ops;

    ck_assert_int_eq(ops->close_send(p->send), 0);
    ck_assert_int_eq(ops->close_recv(p->recv), 0);
    ck_assert_int_eq(ops->close_listen(p->listen), 0);
}

START_TEST(settings_of_their_own)
{
    struct pair there, back;
    int n;

    setup();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(node[i].net->ops->devices(node[i].net, &n), 0);
        ck_assert_int_eq(n, 1 + i);
    }
    connect_to(&there, 0, 1);
    connect_to(&back, 1, 0);
    ck_assert_int_eq(((struct nb_tcp_send *)there.send)->c.nstreams, 2);
    ck_assert_int_eq(((struct nb_tcp_send *)back.send)->c.nstreams, 3);
    carry(&there);
    carry(&back);
    close_both(&there);
    close_both(&back);
    nb_net_close(&node[0]);
    connect_to(&there, 1, 1); /* the other transport lives on */
    carry(&there);
    close_both(&there);
    nb_net_close(&node[1]);
    ck_assert_int_eq(warnings(), 0);
}
END_TEST

static void must_be_controlled_by(const struct pair *p, const char *name)
{
    const int fd[] = {((struct nb_tcp_send *)p->send)->stream[0].fd,
                      ((struct nb_tcp_recv *)p->recv)->stream[0].fd};
    char text[16];

    for (int i = 0; i < 2; i++) {
        socklen_t len = sizeof(text);

        memset(text, 0, sizeof(text));
        ck_assert_int_eq(getsockopt(fd[i], IPPROTO_TCP, TCP_CONGESTION, text, &len), 0);
        ck_assert_str_eq(text, name);
    }
}

/* Collectives use one socket, or as many as NIBBLE_TCP_STREAMS states. The sockets of both ends have the
 * congestion control that NIBBLE_TCP_CONGESTION names. An unknown name leaves the system's, with a
 * warning. */
START_TEST(streams_of_collectives)
{
    const struct nb_net_conn_cfg cfg = {.streams = 1, .settable = 1, .traffic_class = -1, .lazy = 1};
    struct pair p;

    setup();
    nb_net_close(&node[0]);
    params[0].tcp_streams = 0;
    params[0].tcp_congestion = "no-such-thing";
    ck_assert_int_eq(nb_net_open_with(&node[0], &nb_net_tcp), 0);
    ck_assert_int_eq(warnings(), 1);
    connect_as(&p, 0, 1, &cfg);
    ck_assert_int_eq(((struct nb_tcp_send *)p.send)->c.nstreams, 1);
    carry(&p);
    close_both(&p);
    for (int i = 0; i < 2; i++) {
        nb_net_close(&node[i]);
        params[i].tcp_congestion = "reno"; /* every kernel has it */
        ck_assert_int_eq(nb_net_open_with(&node[i], &nb_net_tcp), 0);
    }
    connect_as(&p, 1, 0, &cfg);
    ck_assert_int_eq(((struct nb_tcp_send *)p.send)->c.nstreams, 3);
    must_be_controlled_by(&p, "reno");
    carry(&p);
    close_both(&p);
    nb_net_close(&node[0]);
    nb_net_close(&node[1]);
    ck_assert_int_eq(warnings(), 1);
}
END_TEST

/* A connect in progress belongs to the context in which it was begun, and ends with it. */
START_TEST(connects_of_their_own)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_net *a, *b;
    void *listen, *send;
    int before = open_fds();

    setup();
    a = node[0].net;
    b = node[1].net;
    ck_assert_int_eq(b->ops->listen(b, 0, handle, &listen), 0);
    ck_assert_int_eq(b->ops->close_listen(listen), 0);
    ck_assert_int_eq(a->ops->connect(a, 0, NULL, handle, &send), 0); /* refused, to be tried again */
    ck_assert_ptr_null(send);
    b->ops->abandon(b, handle); /* the connect is another context's */
    ck_assert_int_eq(a->ops->connect(a, 0, NULL, handle, &send), 0);
    ck_assert_int_eq(b->ops->connect(b, 0, NULL, handle, &send), -EINVAL);
    nb_net_close(&node[1]);
    ck_assert_int_eq(a->ops->connect(a, 0, NULL, handle, &send), 0);
    nb_net_close(&node[0]);
    ck_assert_int_eq(open_fds(), before);
}
END_TEST

static uint64_t told_ns;

static uint64_t told(void *arg)
{
    (void)arg;
    return told_ns;
}

/* Time limits follow the context's clock. Here the clock stands, and then leaps past
 * NIBBLE_CONNECT_TIMEOUT. */
START_TEST(a_clock_of_its_own)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_net *a, *b;
    void *listen, *send;

    setup();
    told_ns = NB_NS_PER_S;
    node[0].clock.now_ns = told;
    a = node[0].net;
    b = node[1].net;
    ck_assert_int_eq(b->ops->listen(b, 0, handle, &listen), 0);
    ck_assert_int_eq(b->ops->close_listen(listen), 0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(a->ops->connect(a, 0, NULL, handle, &send), 0);
    told_ns += (uint64_t)params[0].connect_timeout * NB_NS_PER_S;
    ck_assert_int_eq(a->ops->connect(a, 0, NULL, handle, &send), -ECONNREFUSED);
    nb_net_close(&node[0]);
    nb_net_close(&node[1]);
}
END_TEST

SUITE_MAIN("net/contexts", TEST(settings_of_their_own), TEST(streams_of_collectives),
           TEST(connects_of_their_own), TEST(a_clock_of_its_own))
