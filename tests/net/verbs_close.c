/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: how connections end, and how their owners sleep. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "fake_verbs.h"
#include "net/verbs/internal.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

#define SIZE 5000
#define IN_TIME_MS 2000
#define NO_WAIT_MS 900 /* less than the transport's wait, where it waits, for its peer's last data */

static struct nb_net *net;
static struct pair p;
static uint8_t src[SIZE], dst[SIZE];

/* ---- closing ---- */

/* Close the sender or the receiver with requests in flight on both sides. The other side must learn of it
 * without a warning. Return the time that closing took. */
static int64_t close_with_unfinished(bool sender)
{
    void *r[3], *s[3];
    int64_t begin, took;

    net = pair_up(&p, 1);
    for (int i = 0; i < 3; i++) {
        r[i] = post_recv(p.recv, dst, SIZE, i);
        s[i] = post_send(p.send, src, SIZE, i + 10);
    }
    mh(p.send, src, SIZE);
    begin = now_ms();
    ck_assert_int_eq(sender ? net->ops->close_send(p.send) : net->ops->close_recv(p.recv), 0);
    took = now_ms() - begin;
    if (sender) {
        ck_assert_int_eq(wait_req(r[0], NULL, IN_TIME_MS), -ECONNRESET);
        failed_recv(net, p.recv, -ECONNRESET);
    } else {
        ck_assert_int_eq(wait_req(s[0], NULL, IN_TIME_MS), -ECONNRESET);
        failed_send(net, p.send, -ECONNRESET);
    }
    ck_assert_int_eq(warnings(), 0);
    /* The closed side's registrations go with the last comm of the adapter. */
    ck_assert_int_eq(sender ? net->ops->close_recv(p.recv) : net->ops->close_send(p.send), 0);
    ck_assert_int_eq(net->ops->close_listen(p.listen), 0);
    net_down();
    return took;
}

START_TEST(close_unfinished)
{
    int64_t took = NO_WAIT_MS;

    /* One of several tries must be fast, since other processes may run on this processor in between. */
    for (int i = 0; i < 10 && took >= NO_WAIT_MS; i++)
        took = close_with_unfinished(_i == 0);
    ck_assert_int_lt(took, NO_WAIT_MS);
}
END_TEST

/* A receiver that leaves gives back the memory of its receives first, and may then take long to close. The
 * adapter refuses the sender's writes meanwhile, which is not a failure. */
START_TEST(leave)
{
    void *handle, *r = NULL, *s, *data = dst;
    size_t size = SIZE;
    int tag = 0;

    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_HOST, &handle), 0);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r), 0);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r), 0);
    ck_assert_int_eq(wait_req(post_send(p.send, src, SIZE, 0), NULL, IN_TIME_MS), 0);
    net->ops->leave(p.recv);
    ck_assert_int_eq(net->ops->dereg_mr(p.recv, handle), 0);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -ECONNRESET);
    failed_send(net, p.send, -ECONNRESET);
    failed_recv(net, p.recv, -ECANCELED);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -ECANCELED);
    pair_down(&p);
}
END_TEST

/* A receiver that leaves gives back the two places of a message whose writes are under way. They do not land
 * in what comes to lie there. */
START_TEST(leave_with_parts)
{
    static uint8_t head[64];
    struct nb_net_part part[2] = {{head, sizeof(head), NULL}, {dst, SIZE, NULL}}, sent[2];
    void *r, *s;

    fake.peermem = true;
    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, head, sizeof(head), NB_MEM_HOST, &part[0].mhandle), 0);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_CUDA, &part[1].mhandle), 0);
    ck_assert_int_eq(net->ops->irecv_parts(p.recv, part, 0, &r), 0);
    sent[0] = (struct nb_net_part){src, 60, mh(p.send, src, SIZE)};
    sent[1] = (struct nb_net_part){src + 60, SIZE - 60, mh(p.send, src, SIZE)};
    fake.shuffle = true; /* writes begin when a queue is polled */
    memset(src, 1, SIZE);
    ck_assert_int_eq(net->ops->isend_parts(p.send, sent, 0, &s), 0);
    ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_WRITE), 1);
    net->ops->leave(p.recv);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(net->ops->dereg_mr(p.recv, part[i].mhandle), 0);
    memset(head, 2, sizeof(head));
    memset(dst, 2, SIZE);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -ECONNRESET);
    ck_assert(head[0] == 2 && head[59] == 2 && dst[0] == 2 && dst[SIZE - 61] == 2);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    pair_down(&p);
}
END_TEST

/* What has arrived in GPU memory can be flushed after its sender's end: the flush is asked for before the
 * receiver sees the end, or after, and the sender has closed (0), died (1), or the flush fails (2). */
static void flush_at_the_end(int kind, bool before)
{
    const int failed = kind == 2 ? -ECONNRESET : 0;
    void *r, *s, *gpu, *flush = NULL, *late = NULL, *data = dst;
    size_t size = SIZE;
    int tag = 0;

    fake.peermem = true;
    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_CUDA, &gpu), 0);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &gpu, &r), 0);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), 0);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
    if (kind == 2)
        fake_fail_wc(FAKE_SENDER, 1, IBV_WC_LOC_PROT_ERR, 0x77);
    if (before)
        ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &flush), 0);
    if (kind == 1) {
        shutdown(((struct nb_verbs_comm *)p.send)->fd, SHUT_RDWR);
    } else {
        pair_close(&(struct pair){.send = p.send});
        p.send = NULL;
    }
    ((struct nb_verbs_comm *)p.recv)->eof =
        true; /* as read from the socket, but without a look at completions */
    ((struct nb_verbs_comm *)p.recv)->fin = kind != 1;
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &gpu, &late), -ECONNRESET);
    if (!before)
        ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &flush), 0);
    ck_assert_ptr_nonnull(flush);
    ck_assert_int_eq(wait_req(flush, NULL, IN_TIME_MS), failed);
    ck_assert_int_eq(warnings(), kind > 0);
    ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &flush), failed);
    if (!failed)
        ck_assert_int_eq(wait_req(flush, NULL, IN_TIME_MS), 0);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &gpu, &late), -ECONNRESET);
    net->ops->dereg_mr(p.recv, gpu);
    pair_down(&p);
}

START_TEST(flush_after_the_end)
{
    flush_at_the_end(_i / 2, _i % 2);
}
END_TEST

/* Complete sends arrive, whichever side closes and whenever the receiver looks. */
START_TEST(close_drains)
{
    void *r[8], *s[8];

    fake.shuffle = _i;
    net = net_up("NCCL_IB_SPLIT_DATA_ON_QPS=1", NULL);
    pair_open(&p, 4);
    fill_bytes(src, SIZE, 6);
    for (int i = 0; i < 8; i++) {
        r[i] = post_recv(p.recv, dst, SIZE, 0);
        s[i] = post_send(p.send, src, SIZE, 0);
    }
    for (int64_t end = patient_ms() + 5000; patient_ms() < end;) {
        int rc = wait_all(s, 8, 0);

        ck_assert(rc == 0 || rc == -ETIME);
        if (rc == 0)
            break;
    }
    mh(p.recv, dst, SIZE);
    ck_assert_int_eq(net->ops->close_send(p.send), 0);
    p.send = NULL;
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(wait_req(r[i], NULL, IN_TIME_MS), 0);
    ck_assert(check_bytes(dst, SIZE, 6));
    ck_assert_int_eq(wait_req(post_recv(p.recv, dst, SIZE, 0), NULL, IN_TIME_MS), -ECONNRESET);
    failed_recv(net, p.recv, -ECONNRESET);
    ck_assert_int_eq(warnings(), 0);
    pair_down(&p);
}
END_TEST

/* The receiver has everything and closes before its last acknowledgements have come through. */
START_TEST(acknowledged_by_goodbye)
{
    void *r[2], *s[3];

    fake.lose_acks = true;
    net = pair_up(&p, 1);
    for (int i = 0; i < 2; i++) {
        r[i] = post_recv(p.recv, dst, SIZE, 0);
        s[i] = post_send(p.send, src, SIZE, 0);
    }
    s[2] = _i ? post_send(p.send, src, SIZE, 0) : NULL;
    ck_assert_int_eq(wait_all(r, 2, IN_TIME_MS), 0);
    ck_assert_int_eq(wait_req(s[0], NULL, 50), -ETIME);
    ck_assert_int_eq(net->ops->close_recv(p.recv), 0);
    p.recv = NULL;
    ck_assert_int_eq(wait_req(s[0], NULL, IN_TIME_MS), 0);
    ck_assert_int_eq(wait_req(s[1], NULL, IN_TIME_MS), 0);
    if (_i)
        ck_assert_int_eq(wait_req(s[2], NULL, IN_TIME_MS), -ECONNRESET);
    ck_assert_int_eq(warnings(), 0);
    pair_down(&p);
}
END_TEST

START_TEST(peer_dies)
{
    void *r, *s;

    net = pair_up(&p, 1);
    r = post_recv(p.recv, dst, SIZE, 0);
    s = post_send(p.send, src, SIZE, 5);
    /* Do as the kernel does for a process that ends. */
    shutdown(((struct nb_verbs_comm *)(_i ? p.recv : p.send))->fd, SHUT_RDWR);
    if (_i)
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -ECONNRESET);
    else
        ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -ECONNRESET);
    has(last_warning(), "process has ended");
    has(last_warning(), "127.0.0.1<");
    pair_down(&p);
}
END_TEST

START_TEST(nonsense_from_peer)
{
    char junk[NB_VERBS_CONTROL_BYTES];
    void *r;

    net = pair_up(&p, 1);
    r = post_recv(p.recv, dst, SIZE, 0);
    memset(junk, 'x', sizeof(junk));
    ck_assert_int_eq(send(((struct nb_verbs_comm *)p.send)->fd, junk, sizeof(junk), 0), (int)sizeof(junk));
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -EPROTO);
    pair_down(&p);
}
END_TEST

START_TEST(cycles)
{
    int fds, threads;
    struct fake_counts c0, c;
    void *req[2];

    net = net_up(NULL, NULL);
    fds = open_fds();
    threads = helper_threads();
    c0 = fake_counts();
    for (int i = 0; i < 100; i++) {
        pair_open(&p, 1 + i % 3);
        if (i % 4) {
            req[0] = post_recv(p.recv, dst, SIZE, 0);
            req[1] = post_send(p.send, src, SIZE, i % 4 == 1);
            if (i % 4 > 1)
                ck_assert_int_eq(wait_all(req, 2, IN_TIME_MS), 0);
        }
        pair_close(&p);
    }
    c = fake_counts();
    ck_assert_int_eq(c.qps, c0.qps);
    ck_assert_int_eq(c.mrs, c0.mrs);
    ck_assert_int_eq(c.cqs, c0.cqs);
    ck_assert_int_eq(c.pds, c0.pds);
    ck_assert_int_eq(c.channels, c0.channels);
    ck_assert_int_eq(open_fds(), fds);
    ck_assert_int_eq(helper_threads(), threads);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

/* ---- sleeping ---- */

struct sleeper {
    void *comm, *handle;
    bool sends;
    int messages, late, rc;
};

/* Sleep on the comm's descriptors without work. A missing wake-up ends after 3 s and is counted. */
static void *sleep_and_move(void *arg)
{
    struct sleeper *s = arg;

    for (int i = 0; i < s->messages && !s->rc; i++) {
        void *req = NULL, *data = s->sends ? src : dst;
        size_t size = SIZE;
        int tag = 0, done = 0;

        s->rc = s->sends ? net->ops->isend(s->comm, src, SIZE, 0, s->handle, &req)
                         : net->ops->irecv(s->comm, 1, &data, &size, &tag, &s->handle, &req);
        while (!s->rc && !done) {
            struct pollfd fds[3];
            int n;

            s->rc = net->ops->test(req, &done, NULL);
            if (s->rc || done)
                break;
            n = net->ops->poll_fds(s->comm, s->sends, fds, 3);
            if (n > 0)
                s->late += poll(fds, (nfds_t)n, 60000) == 0;
        }
    }
    return NULL;
}

START_TEST(sleeping)
{
    struct sleeper a, b;
    pthread_t t[2];

    net = pair_up(&p, 2);
    a = (struct sleeper){.comm = p.send, .handle = mh(p.send, src, SIZE), .sends = true, .messages = 3000};
    b = (struct sleeper){.comm = p.recv, .handle = mh(p.recv, dst, SIZE), .messages = 3000};
    ck_assert_int_eq(pthread_create(&t[0], NULL, sleep_and_move, &a), 0);
    ck_assert_int_eq(pthread_create(&t[1], NULL, sleep_and_move, &b), 0);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    ck_assert_int_eq(a.rc, 0);
    ck_assert_int_eq(b.rc, 0);
    ck_assert_int_eq(a.late + b.late, 0);
    pair_down(&p);
}
END_TEST

/* Without requests in flight there is no wait. With waiting requests the descriptors are idle. An event makes
 * one of them ready. */
START_TEST(descriptors)
{
    struct pollfd fds[3];
    void *r, *s;

    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 3), 0);
    ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 3), 0);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 2), -1);
    ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 3), 3);
    ck_assert_int_eq(poll(fds, 3, 50), 0);
    r = post_recv(p.recv, dst, SIZE, 0); /* clears the send */
    ck_assert_int_eq(poll(fds, 3, 60000), 1);
    while (net->ops->poll_fds(p.send, 1, fds, 3) == 3) /* until it is done */
        ck_assert_int_eq(poll(fds, 3, 60000), 1);
    ck_assert_int_eq(wait_req(s, NULL, 0), 0);
    ck_assert_int_eq(wait_req(r, NULL, 100), 0);
    /* The peer's FIN and the adapter's events wake, too. */
    r = post_recv(p.recv, dst, SIZE, 0);
    ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 3), 3);
    ck_assert_int_eq(poll(fds, 3, 50), 0);
    if (_i) {
        fake_event(0, IBV_EVENT_QP_FATAL, 1);
        ck_assert_int_eq(poll(fds, 3, 60000), 1);
        ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 3), -1);
        ck_assert_int_eq(wait_req(r, NULL, 0), -EIO);
    } else {
        mh(p.recv, dst, SIZE);
        pair_close(&(struct pair){.send = p.send});
        p.send = NULL;
        ck_assert_int_ge(poll(fds, 3, 60000), 1);
        ck_assert_int_eq(net->ops->poll_fds(p.recv, 0, fds, 3), -1);
        ck_assert_int_eq(wait_req(r, NULL, 10), -ECONNRESET);
    }
    pair_down(&p);
}
END_TEST

static const char *const freeing[] = {"destroy_qp",           "destroy_cq", "dereg_mr",
                                      "destroy_comp_channel", "dealloc_pd", "close_device"};

/* Close with a call that fails twice. The first failure is a warning that names the adapter and the cause. */
START_TEST(cannot_free)
{
    net = pair_up(&p, 1);
    fake_fail_call(freeing[_i], 1, EBUSY);
    if (strcmp(freeing[_i], "close_device") != 0) /* the next one is another adapter's */
        fake_fail_call(freeing[_i], 2, EBUSY);
    pair_down(&p);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_msg(strstr(last_warning(), "verbs: fake") && strstr(last_warning(), ": freeing ") &&
                      strstr(last_warning(), strerror(EBUSY)),
                  "%s", last_warning());
}
END_TEST

SUITE_MAIN("net/verbs_close", FIXTURE(verbs_before, verbs_after), LOOP(close_unfinished, 0, 2), TEST(leave),
           TEST(leave_with_parts), LOOP(flush_after_the_end, 0, 6), LOOP(close_drains, 0, 2),
           LOOP(acknowledged_by_goodbye, 0, 2), LOOP(peer_dies, 0, 2), TEST(nonsense_from_peer), TEST(cycles),
           TEST(sleeping), LOOP(cannot_free, 0, 6), LOOP(descriptors, 0, 2))
