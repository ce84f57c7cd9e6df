/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: owners that sleep, and the pace. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_net *net;
static const int stream_counts[] = {1, 4};

/* Until it is set, the other side is idle and sleep_for counts its wake-ups. */
static atomic_int other_side_moves;
static unsigned woken;

static void *send_later(void *arg)
{
    static uint8_t buf[100000];
    struct pair *p = arg;
    void *req;
    int rc;

    usleep(300000);
    atomic_store(&other_side_moves, 1);
    rc = net->ops->isend(p->send, buf, sizeof(buf), 0, NULL, &req);
    if (rc == 0 && req)
        rc = wait_req(req, NULL, 5000);
    return (void *)(intptr_t)rc;
}

/* Sleep in poll until the request is done. Return -ETIME without a wake-up for a minute. */
static int sleep_for(void *comm, int is_send, void *req)
{
    for (woken = 0;;) {
        struct pollfd fds[32];
        int done, rc = net->ops->test(req, &done, NULL), n;

        if (rc || done)
            return rc;
        n = net->ops->poll_fds(comm, is_send, fds, 32);
        if (n < 0)
            continue;
        ck_assert_int_gt(n, 0);
        if (poll(fds, (nfds_t)n, 60000) == 0)
            return -ETIME;
        woken += !atomic_load(&other_side_moves);
    }
}

START_TEST(poll_wakes_receiver)
{
    static uint8_t dst[100000];
    struct pair p;
    pthread_t t;
    void *ret;

    net = pair_up(&p, stream_counts[_i]);
    atomic_store(&other_side_moves, 0);
    ck_assert_int_eq(pthread_create(&t, NULL, send_later, &p), 0);
    ck_assert_int_eq(sleep_for(p.recv, 0, post_recv(p.recv, dst, sizeof(dst), 0)), 0);
    ck_assert_uint_lt(woken, 100); /* it slept */
    pthread_join(t, &ret);
    ck_assert_int_eq((int)(intptr_t)ret, 0);
    pair_down(&p);
}
END_TEST

/* Messages already read ahead, or waiting for their tag, must wake the owner. */
START_TEST(poll_read_ahead)
{
    enum { N = 100 };
    uint8_t src[40], dst[40];
    void *s[N];
    struct pair p;

    net = pair_up(&p, stream_counts[_i]);
    for (int i = 0; i < N; i++)
        s[i] = post_send(p.send, src, sizeof(src), i % 2);
    ck_assert_int_eq(wait_all(s, N, 5000), 0);
    for (int i = 0; i < N; i += 2) {
        void *odd = post_recv(p.recv, dst, sizeof(dst), 1), *even = post_recv(p.recv, dst, sizeof(dst), 0);

        ck_assert_int_eq(sleep_for(p.recv, 0, odd), 0);
        ck_assert_int_eq(sleep_for(p.recv, 0, even), 0);
    }
    pair_down(&p);
}
END_TEST

static void *recv_later(void *arg)
{
    size_t size = 32 << 20;
    uint8_t *buf = malloc(size);
    struct pair *p = arg;
    void *req = NULL;
    int tag = 0, rc;

    usleep(300000);
    atomic_store(&other_side_moves, 1);
    rc = net->ops->irecv(p->recv, 1, (void **)&buf, &size, &tag, NULL, &req);
    if (rc == 0 && req)
        rc = wait_req(req, NULL, 10000);
    free(buf);
    return (void *)(intptr_t)rc;
}

START_TEST(poll_wakes_sender)
{
    size_t size = 32 << 20;
    uint8_t *src = calloc(1, size);
    struct pollfd fds[32];
    struct pair p;
    pthread_t t;
    void *ret;

    net = pair_up(&p, stream_counts[_i]);
    ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 32), 0);
    atomic_store(&other_side_moves, 0);
    ck_assert_int_eq(pthread_create(&t, NULL, recv_later, &p), 0);
    ck_assert_int_eq(sleep_for(p.send, 1, post_send(p.send, src, size, 0)), 0);
    /* Until then it could fill buffers of the kernel, some of them several times over while these grow. */
    ck_assert_uint_lt(woken, 1000);
    pthread_join(t, &ret);
    ck_assert_int_eq((int)(intptr_t)ret, 0);
    ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 32), 0);
    pair_down(&p);
    free(src);
}
END_TEST

/* ---- pace ---- */

/* Move one message on each of two connections, and sleep without progress. Return the time that it took, and
 * count the wake-ups. */
static int64_t move_two(struct pair p[2], const uint8_t *src, uint8_t *dst[2], size_t size, unsigned *wakes)
{
    int64_t begin = now_ms();
    void *s[2], *r[2];

    *wakes = 0;
    for (int i = 0; i < 2; i++)
        r[i] = post_recv(p[i].recv, dst[i], size, 0);
    for (int i = 0; i < 2; i++)
        s[i] = post_send(p[i].send, src, size, 0);
    while (s[0] || s[1] || r[0] || r[1]) {
        struct pollfd fds[128];
        int n = 0, spin = 0;

        for (int i = 0; i < 2; i++) {
            int done, k;

            ck_assert_int_eq(s[i] ? net->ops->test(s[i], &done, NULL) : (done = 1, 0), 0);
            s[i] = done ? NULL : s[i];
            ck_assert_int_eq(r[i] ? net->ops->test(r[i], &done, NULL) : (done = 1, 0), 0);
            r[i] = done ? NULL : r[i];
            k = net->ops->poll_fds(p[i].send, 1, fds + n, 32);
            spin |= k < 0;
            n += k > 0 ? k : 0;
            k = net->ops->poll_fds(p[i].recv, 0, fds + n, 32);
            spin |= k < 0;
            n += k > 0 ? k : 0;
        }
        ++*wakes;
        if (!spin && n > 0)
            ck_assert_int_gt(poll(fds, (nfds_t)n, 60000), 0);
    }
    return now_ms() - begin;
}

/* Two connections of one device share its rate, and the pace wakes a sender that sleeps. They must not be
 * faster than 1.3 times the rate, and must sleep in between. They must not be much slower than the rate and
 * the busy machine allow: the test also measures the time without a pace. */
START_TEST(pace)
{
    enum { MBPS = 400, TRIES = 8 };
    size_t size = 10 << 20; /* 2 x 10 MiB at 50 MB/s: 0.42 s */
    uint8_t *src = calloc(1, size), *dst[2] = {malloc(size), malloc(size)};
    int64_t took = 0, freely = 0, least = (int64_t)(2.0 * (double)size * 8 / (MBPS * 1e3));
    bool slow = true;

    for (int i = 0; i < TRIES && slow; i++) {
        for (int paced = 0; paced < 2; paced++) {
            struct pair p[2];
            unsigned wakes;
            int64_t ms;

            net = net_up(paced ? "NIBBLE_TCP_PACE_MBPS=400" : NULL, NULL);
            for (int k = 0; k < 2; k++)
                pair_open(&p[k], stream_counts[_i]);
            ms = move_two(p, src, dst, size, &wakes);
            *(paced ? &took : &freely) = ms;
            if (paced)
                ck_assert_uint_lt(
                    wakes,
                    4000); /* about 1100 by the pace's steps. A sender that never sleeps counts 14000 and
                              more */
            for (int k = 0; k < 2; k++)
                pair_close(&p[k]);
            net_down();
        }
        ck_assert_msg(took >= least * 10 / 13, "%lld ms, %lld are allowed", (long long)took,
                      (long long)least);
        slow = took > least * 3 + 300 + 5 * freely;
    }
    ck_assert_msg(!slow, "%lld ms, %lld are enough, and %lld without a pace", (long long)took,
                  (long long)least, (long long)freely);
    for (int k = 0; k < 2; k++)
        free(dst[k]);
    free(src);
}
END_TEST

static uint64_t standing_still(void *arg)
{
    return *(uint64_t *)arg;
}

/* Urgent messages leave although the rate is used up, and other messages wait. The clock of the rate stands
 * still. */
START_TEST(urgent_beside_the_pace)
{
    const struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1, .lazy = 1},
                                 urgent_cfg = {.streams = 1, .traffic_class = -1, .lazy = 1, .urgent = 1};
    enum { SIZE = 1 << 20, SMALL = 20000 };
    uint8_t *src = calloc(1, SIZE), *dst = malloc(SIZE);
    struct pair bulk, late, urgent;
    void *send, *recv, *send_late, *recv_late;
    uint64_t now;
    int done;

    net = net_up("NIBBLE_TCP_PACE_MBPS=1", NULL);
    pair_open_as(&bulk, &cfg);
    pair_open_as(&late, &cfg);
    pair_open_as(&urgent, &urgent_cfg);
    now = (uint64_t)nb_clock_ns(&net->ctx->clock);
    net->ctx->clock = (struct nb_clock){standing_still, &now};
    send = post_send(bulk.send, src, SIZE, 0);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(net->ops->test(send, &done, NULL), 0);
    ck_assert(!done);
    recv_late = post_recv(late.recv, dst, SMALL, 0);
    send_late = post_send(late.send, src, SMALL, 0);
    recv = post_recv(urgent.recv, dst + SMALL, SMALL, 0);
    send = post_send(urgent.send, src, SMALL, 0);
    for (done = 0; !done;)
        ck_assert_int_eq(net->ops->test(send, &done, NULL), 0);
    for (done = 0; !done;)
        ck_assert_int_eq(net->ops->test(recv, &done, NULL), 0);
    ck_assert_int_eq(net->ops->test(send_late, &done, NULL), 0);
    ck_assert(!done);
    ck_assert_int_eq(net->ops->test(recv_late, &done, NULL), 0);
    ck_assert(!done);
    /* It counts all the same: urgent bytes use up the rate, too. */
    now += 100 * NB_NS_PER_MS; /* 12500 bytes */
    ck_assert_int_eq(net->ops->test(send_late, &done, NULL), 0);
    ck_assert(!done);
    now += 1000 * NB_NS_PER_MS;
    for (done = 0; !done;)
        ck_assert_int_eq(net->ops->test(send_late, &done, NULL), 0);
    pair_close(&bulk);
    pair_close(&late);
    pair_close(&urgent);
    net->ctx->clock = (struct nb_clock){0};
    net_down();
    free(src);
    free(dst);
}
END_TEST

/* The owner of many connections watches one descriptor of each, which is readable when messages come. With
 * several sockets there is no such descriptor. */
START_TEST(watched)
{
    static uint8_t data[1000];
    struct pollfd fds = {.events = POLLIN};
    struct pair p;
    void *reqs[2];

    net = pair_up(&p, stream_counts[_i]);
    fds.fd = net->ops->watch_fd(p.recv);
    if (stream_counts[_i] > 1) {
        ck_assert_int_eq(fds.fd, -1);
    } else {
        reqs[0] = post_recv(p.recv, data, sizeof(data), 0);
        ck_assert_int_eq(wait_req(reqs[0], NULL, 20), -ETIME);
        ck_assert_int_eq(poll(&fds, 1, 0), 0);
        reqs[1] = post_send(p.send, data, sizeof(data), 0);
        ck_assert_int_eq(poll(&fds, 1, 60000), 1);
        ck_assert_int_eq(wait_all(reqs, 2, 5000), 0);
        ck_assert_int_eq(poll(&fds, 1, 0), 0);
    }
    pair_down(&p);
}
END_TEST

SUITE_MAIN("net/tcp_sleep", LOOP(poll_wakes_receiver, 0, 2), LOOP(poll_read_ahead, 0, 2),
           LOOP(poll_wakes_sender, 0, 2), LOOP(watched, 0, 2), LOOP(pace, 0, 2), TEST(urgent_beside_the_pace))
