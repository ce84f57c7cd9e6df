/* SPDX-License-Identifier: Apache-2.0 */
/* Any transport: messages of all sizes and orders arrive whole, in order and once. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "tests/suite.h"
#include "util.h"

int data_divisor = 1;
int data_counts = 4;

static struct nb_net *net;

/* Loop index of most tests: sockets, or queue pairs, of a connection. */
static const int stream_counts[] = {1, 5, 16, 2};

START_TEST(odd_sizes)
{
    static const size_t all_sizes[] = {0,      1,       39,     40,    41,      4095,   8191,   8192,
                                       8193,   16384,   65535,  65536, 65537,   131073, 262144, 262145,
                                       524289, 1048576, 999983, 0,     4194304, 7,      6000001};
    enum { N = sizeof(all_sizes) / sizeof(all_sizes[0]) };
    size_t sizes[N];
    void *sreq[N], *rreq[N], *src[N], *dst[N];
    struct pair p;

    /* A quick run shortens the largest messages, too. */
    for (int i = 0; i < N; i++)
        sizes[i] = data_divisor > 1 ? all_sizes[i] % 500000 : all_sizes[i];
    net = pair_up(&p, stream_counts[_i]);
    for (int round = 0; round < (data_divisor > 1 ? 2 : 3); round++) {
        for (int i = 0; i < N; i++) {
            src[i] = malloc(sizes[i] + 1);
            dst[i] = calloc(1, sizes[i] + 101);
            fill_bytes(src[i], sizes[i], (unsigned)(i + round * 100));
            memset((char *)dst[i] + sizes[i], 0x5a, 101);
        }
        for (int i = 0; i < N; i++) {
            /* The receive is larger than the message. In round 1 it comes after the send, else before. */
            if (round != 1)
                rreq[i] = post_recv(p.recv, dst[i], sizes[i] + 100, i);
            sreq[i] = post_send(p.send, src[i], sizes[i], i);
        }
        for (int i = 0; round == 1 && i < N; i++)
            rreq[i] = post_recv(p.recv, dst[i], sizes[i] + 100, i);
        for (int i = 0; i < N; i++) {
            size_t got = 12345;
            int64_t end = patient_ms() + 20000;
            int rc, done = 0;

            while ((rc = wait_req(rreq[i], &got, 0)) == -ETIME) {
                /* The sender must advance, too: test any of its remaining requests. */
                for (int k = 0; k < N; k++) {
                    if (!sreq[k])
                        continue;
                    ck_assert_int_eq(net->ops->test(sreq[k], &done, NULL), 0);
                    if (done)
                        sreq[k] = NULL;
                }
                ck_assert_int_lt(patient_ms(), end);
            }
            ck_assert_int_eq(rc, 0);
            ck_assert_uint_eq(got, sizes[i]);
            ck_assert_msg(check_bytes(dst[i], sizes[i], (unsigned)(i + round * 100)), "message %d", i);
            for (int k = 0; k < 101; k++)
                ck_assert_uint_eq(((uint8_t *)dst[i])[sizes[i] + (size_t)k], 0x5a);
        }
        ck_assert_int_eq(wait_all(sreq, N, 10000), 0);
        for (int i = 0; i < N; i++) {
            free(src[i]);
            free(dst[i]);
        }
    }
    ck_assert_uint_eq(net->ops->wire_bytes(p.send), net->ops->wire_bytes(p.recv));
    pair_close(&p);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

/* A peer that runs in its own thread. */
struct flow {
    void *comm;
    int messages, window;
    size_t max_size;
    unsigned seed;
    int rc;
};

static size_t size_of_message(const struct flow *f, int i)
{
    unsigned h = (f->seed + (unsigned)i) * 2654435761u;

    return (h >> 8) % (f->max_size + 1);
}

static void *flow_send(void *arg)
{
    struct flow *f = arg;
    void **req = calloc((size_t)f->window, sizeof(*req));
    uint8_t *buf = calloc((size_t)f->window, f->max_size + 1);
    void *handle = mh(f->comm, buf, f->max_size * (size_t)f->window);

    for (int i = 0; i < f->messages && !f->rc; i++) {
        int k = i % f->window;
        size_t n = size_of_message(f, i);

        if (req[k])
            f->rc = wait_req(req[k], NULL, 20000);
        fill_bytes(buf + (size_t)k * f->max_size, n, f->seed + (unsigned)i);
        if (!f->rc)
            f->rc = net->ops->isend(f->comm, buf + (size_t)k * f->max_size, n, i % 3, handle, &req[k]);
        if (!f->rc && !req[k])
            f->rc = -EAGAIN; /* cannot happen with so few requests */
    }
    if (!f->rc)
        f->rc = wait_all(req, f->window < f->messages ? f->window : f->messages, 20000);
    free(buf);
    free(req);
    return NULL;
}

static void *flow_recv(void *arg)
{
    struct flow *f = arg;
    void **req = calloc((size_t)f->window, sizeof(*req));
    uint8_t *buf = calloc((size_t)f->window, f->max_size + 1);
    void *handle = mh(f->comm, buf, f->max_size * (size_t)f->window);

    for (int i = 0; i < f->messages + f->window && !f->rc; i++) {
        int k = i % f->window;
        void *at = buf + (size_t)k * f->max_size;
        int tag = i % 3;

        if (i >= f->window && i - f->window < f->messages) {
            size_t got = 0, n = size_of_message(f, i - f->window);

            f->rc = wait_req(req[k], &got, 20000);
            if (!f->rc && (got != n || !check_bytes(at, n, f->seed + (unsigned)(i - f->window))))
                f->rc = -EILSEQ;
            req[k] = NULL;
        }
        /* "Later" where the transport's queues are short. */
        while (!f->rc && i < f->messages && !req[k]) {
            f->rc = net->ops->irecv(f->comm, 1, &at, &f->max_size, &tag, &handle, &req[k]);
            if (!req[k])
                sched_yield();
        }
    }
    free(buf);
    free(req);
    return NULL;
}

static void run_flows(int streams, int messages, int window, size_t max_size, bool both_ways)
{
    struct pair p, q;
    struct flow f[4];
    pthread_t t[4];
    int n = both_ways ? 4 : 2;

    pair_open(&p, streams);
    pair_open(&q, streams);
    for (int i = 0; i < n; i++)
        f[i] = (struct flow){
            .messages = messages, .window = window, .max_size = max_size, .seed = (unsigned)(i / 2) * 1000};
    f[0].comm = p.send;
    f[1].comm = p.recv;
    f[2].comm = q.send;
    f[3].comm = q.recv;
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, i % 2 ? flow_recv : flow_send, &f[i]), 0);
    for (int i = 0; i < n; i++) {
        pthread_join(t[i], NULL);
        ck_assert_msg(f[i].rc == 0, "flow %d: %s; %s", i, strerror(-f[i].rc), last_warning());
    }
    pair_close(&p);
    pair_close(&q);
}

START_TEST(many_small)
{
    net = net_up(NULL, NULL);
    run_flows(stream_counts[_i], 20000 / data_divisor, 64, 2000, false);
    run_flows(stream_counts[_i], 3000 / data_divisor, 32, 40960, false);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

START_TEST(large_both_ways)
{
    net = net_up(NULL, NULL);
    run_flows(stream_counts[_i], 60 / data_divisor, 8, 3 << 20, true);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

START_TEST(grouped)
{
    enum { N = 8 };
    static const int tags[N] = {7, 3, 100, -5, 3, 0, 2000000000, 7};
    /* Messages of one tag match receives of that tag in order. Different tags come in any order. */
    static const int order[N] = {6, 0, 5, 1, 3, 7, 4, 2};
    uint8_t *src[N], *dst[N];
    void *data[N], *handle[N], *rreq, *sreq[N];
    size_t caps[N], got[N], n[N];
    struct pair p;

    net = pair_up(&p, stream_counts[_i]);
    for (int size = 0; size < 3; size++) {
        for (int i = 0; i < N; i++) {
            n[i] = size == 0 ? (size_t)i * 5 : size == 1 ? 3000 + (size_t)i : 300000 + (size_t)i * 1111;
            caps[i] = n[i] + 20000;
            data[i] = dst[i] = malloc(caps[i]);
            src[i] = malloc(n[i] + 1);
            fill_bytes(src[i], n[i], (unsigned)i);
        }
        for (int i = 0; i < N; i++)
            handle[i] = mh(p.recv, data[i], caps[i]);
        ck_assert_int_eq(net->ops->irecv(p.recv, N, data, caps, tags, handle, &rreq), 0);
        for (int i = 0; i < N; i++)
            sreq[i] = post_send(p.send, src[order[i]], n[order[i]], tags[order[i]]);
        for (int64_t end = patient_ms() + 10000; patient_ms() < end;) {
            int rc = wait_req(rreq, got, 0);

            ck_assert(rc == 0 || rc == -ETIME);
            if (rc == 0)
                break;
            wait_all(sreq, N, 0);
        }
        for (int i = 0; i < N; i++) {
            ck_assert_uint_eq(got[i], n[i]);
            ck_assert_msg(check_bytes(dst[i], n[i], (unsigned)i), "receive %d", i);
        }
        ck_assert_int_eq(wait_all(sreq, N, 10000), 0);
        for (int i = 0; i < N; i++) {
            free(src[i]);
            free(dst[i]);
        }
    }
    pair_close(&p);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

/* A message arrives whose tag has no receive yet. In a stream of bytes it holds back later messages. Where
 * receivers drive the transport it holds back no message. */
START_TEST(tag_waits)
{
    uint8_t a[100], b[100], ra[100], rb[100];
    void *rreq_b, *rreq_a, *s[2];
    struct pair p;

    net = pair_up(&p, 2);
    fill_bytes(a, 100, 1);
    fill_bytes(b, 100, 2);
    rreq_b = post_recv(p.recv, rb, 100, 22);
    s[0] = post_send(p.send, a, 100, 11);
    s[1] = post_send(p.send, b, 100, 22);
    if (strcmp(net_transport, "tcp") == 0) {
        ck_assert_int_eq(wait_all(s, 2, 5000), 0);
        ck_assert_int_eq(wait_req(rreq_b, NULL, 100), -ETIME);
        rreq_a = post_recv(p.recv, ra, 100, 11);
        ck_assert_int_eq(wait_req(rreq_b, NULL, 5000), 0);
    } else {
        ck_assert_int_eq(wait_req(s[1], NULL, 5000), 0);
        ck_assert_int_eq(wait_req(rreq_b, NULL, 5000), 0);
        ck_assert_int_eq(wait_req(s[0], NULL, 100), -ETIME);
        rreq_a = post_recv(p.recv, ra, 100, 11);
        ck_assert_int_eq(wait_req(s[0], NULL, 5000), 0);
    }
    ck_assert_int_eq(wait_req(rreq_a, NULL, 5000), 0);
    ck_assert(check_bytes(ra, 100, 1) && check_bytes(rb, 100, 2));
    pair_down(&p);
}
END_TEST

/* The transport must accept 32 requests of 8 receives each, and as many sends. Sends must not block without
 * receives. */
START_TEST(many_requests)
{
    enum { GROUPS = 32, N = 8, SIZE = 100000 };
    static uint8_t src[SIZE], dst[GROUPS * N][SIZE];
    static void *sreq[GROUPS * N];
    void *rreq[GROUPS];
    struct pair p;
    int64_t begin;

    net = pair_up(&p, stream_counts[_i]);
    fill_bytes(src, SIZE, 9);
    begin = now_ms();
    for (int i = 0; i < GROUPS * N; i++)
        sreq[i] = post_send(p.send, src, SIZE, i % N);
    ck_assert_int_lt(now_ms() - begin, 60000);
    for (int g = 0; g < GROUPS; g++) {
        void *data[N], *handle[N];
        size_t sizes[N];
        int tags[N];

        for (int i = 0; i < N; i++) {
            data[i] = dst[g * N + i];
            handle[i] = mh(p.recv, dst[g * N + i], SIZE);
            sizes[i] = SIZE;
            tags[i] = i;
        }
        ck_assert_int_eq(net->ops->irecv(p.recv, N, data, sizes, tags, handle, &rreq[g]), 0);
        ck_assert_ptr_nonnull(rreq[g]);
    }
    for (int64_t end = patient_ms() + 20000; patient_ms() < end;) {
        int a = wait_all(sreq, GROUPS * N, 0), b = wait_all(rreq, GROUPS, 0);

        ck_assert(a == 0 || a == -ETIME);
        ck_assert(b == 0 || b == -ETIME);
        if (a == 0 && b == 0)
            break;
    }
    for (int i = 0; i < GROUPS; i++)
        ck_assert_ptr_null(rreq[i]);
    for (int i = 0; i < GROUPS * N; i++)
        ck_assert(check_bytes(dst[i], SIZE, 9));
    pair_close(&p);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

int data_tests(const char *name, int what)
{
    suite_open(name);
    FIXTURE(net_before, net_after);
    LOOP(many_small, 0, data_counts);
    LOOP(large_both_ways, 0, data_counts);
    if (what == DATA_ALL) {
        LOOP(odd_sizes, 0, data_counts);
        LOOP(grouped, 0, data_counts);
        TEST(tag_waits);
        LOOP(many_requests, 0, data_counts);
    }
    return suite_close();
}
