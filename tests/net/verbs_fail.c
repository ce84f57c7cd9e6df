/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: every fault is an error that names peer and cause, on both sides, in
 * time, and without leaving anything behind. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "fake_verbs.h"
#include "net/verbs/internal.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

#define SIZE 5000
#define IN_TIME_MS 2000 /* the transport waits 100 ms for a peer's last words, 1000 ms for its last data */

static struct nb_net *net;
static struct pair p;
static uint8_t src[SIZE], dst[SIZE];

/* ---- completion errors ---- */

static const enum ibv_wc_status statuses[] = {
    IBV_WC_LOC_LEN_ERR,  IBV_WC_LOC_QP_OP_ERR,    IBV_WC_LOC_PROT_ERR,      IBV_WC_WR_FLUSH_ERR,
    IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR,   IBV_WC_REM_INV_REQ_ERR,   IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR,   IBV_WC_RETRY_EXC_ERR,    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR,
    IBV_WC_FATAL_ERR,    IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR,
};
enum { STATUSES = sizeof(statuses) / sizeof(statuses[0]) };

/* Check that the side that saw the fault logs everything, and the other side the peer's message. */
static void check_report(enum ibv_wc_status status, const char *from)
{
    const char *line = logged(nb_verbs_status_name(status));

    has(line, "fake0");
    has(line, from);
    has(line, "127.0.0.1<");
    has(line, "vendor error 0x77");
    has(line, "::ffff:10.77.0.1");
    has(line, nb_verbs_status_hint(status));
    has(logged("the peer reports: "), nb_verbs_status_name(status));
    ck_assert_int_eq(warnings(), 2);
}

START_TEST(send_status)
{
    int err = nb_verbs_status_errno(statuses[_i]);
    void *r, *s;

    net = pair_up(&p, 2);
    r = post_recv(p.recv, dst, SIZE, 0);
    fake_fail_wc(FAKE_SENDER, 1, statuses[_i], 0x77);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), err);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), err);
    check_report(statuses[_i], " to ");
    failed_send(net, p.send, err);
    failed_recv(net, p.recv, err);
    ck_assert_int_eq(warnings(), 2);
    pair_down(&p);
}
END_TEST

/* The write that clears a receive. */
START_TEST(clear_status)
{
    int err = nb_verbs_status_errno(statuses[_i]);
    void *r, *s, *data = dst, *handle;
    size_t size = SIZE;
    int tag = 0;

    net = pair_up(&p, 1);
    handle = mh(p.recv, dst, SIZE);
    s = post_send(p.send, src, SIZE, 0);
    fake_fail_wc(FAKE_SENDER, 1, statuses[_i], 0x77);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r), 0);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), err);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), err);
    check_report(statuses[_i], " from ");
    pair_down(&p);
}
END_TEST

/* The receiver's adapter reports an error of an incoming message. */
START_TEST(receive_status)
{
    int err = nb_verbs_status_errno(statuses[_i]);
    void *r, *s;

    net = pair_up(&p, 3);
    r = post_recv(p.recv, dst, SIZE, 0);
    fake_fail_wc(FAKE_RECEIVER, 1, statuses[_i], 0x77);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), err);
    /* The sender's adapter had its acknowledgement. */
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
    if (net->ops->isend(p.send, src, SIZE, 0, mh(p.send, src, SIZE), &s) == 0)
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), err);
    failed_send(net, p.send, err);
    check_report(statuses[_i], " from ");
    pair_down(&p);
}
END_TEST

/* A request that was complete before an error still tests done, with its sizes. */
START_TEST(done_before)
{
    size_t got = 0;
    void *r[2], *s;
    int done = 0;

    net = pair_up(&p, 1);
    r[0] = post_recv(p.recv, dst, SIZE, 0);
    r[1] = post_recv(p.recv, dst, SIZE, 0);
    s = post_send(p.send, src, 700, 0);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
    fake_fail_wc(FAKE_RECEIVER, 1, IBV_WC_GENERAL_ERR, 0);
    post_send(p.send, src, 800, 0);
    ck_assert_int_eq(wait_req(r[1], NULL, IN_TIME_MS), -EIO);
    ck_assert_int_eq(net->ops->test(r[0], &done, &got), 0);
    ck_assert_int_eq(done, 1);
    ck_assert_uint_eq(got, 700);
    pair_down(&p);
}
END_TEST

/* ---- calls that fail while data moves ---- */

static const struct {
    const char *call;
    int err;
    bool sender;
    const char *text;
} posts[] = {
    {"post_send", ENOMEM, true, "cannot be posted"}, {"post_send", EIO, false, "cannot be posted"},
    {"poll_cq", EIO, true, "completion queue"},      {"post_recv", ENOMEM, false, "receive request"},
    {"req_notify_cq", EIO, true, "cannot wait for"}, {"post_recv", EIO, true, "receive request"},
};

START_TEST(call_fails)
{
    void *r = NULL, *s = NULL, *data = dst, *handle;
    struct pollfd fds[3];
    size_t size = SIZE;
    int tag = 0, rc = 0, done;

    net = pair_up(&p, 1);
    handle = mh(p.recv, dst, SIZE);
    mh(p.send, src, SIZE);
    if (posts[_i].sender && strcmp(posts[_i].call, "req_notify_cq") != 0)
        ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r), 0);
    if (strcmp(posts[_i].call, "post_recv") == 0 && !posts[_i].sender) {
        /* The receiver posts the next request, once it has seen the message. */
        ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r), 0);
        s = post_send(p.send, src, SIZE, 0);
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
        fake_fail_call(posts[_i].call, 1, posts[_i].err);
        rc = wait_req(r, NULL, IN_TIME_MS);
        ck_assert_int_eq(rc, 0); /* the message was whole */
        failed_recv(net, p.recv, -posts[_i].err);
    } else {
        fake_fail_call(posts[_i].call, 1, posts[_i].err);
        if (posts[_i].sender)
            rc = net->ops->isend(p.send, src, SIZE, 0, mh(p.send, src, SIZE), &s);
        else
            rc = net->ops->irecv(p.recv, 1, &data, &size, &tag, &handle, &r);
        if (!rc && strcmp(posts[_i].call, "req_notify_cq") == 0) {
            ck_assert_int_eq(net->ops->poll_fds(p.send, 1, fds, 3), -1);
            rc = net->ops->test(s, &done, NULL);
        }
        ck_assert_int_eq(rc, -posts[_i].err);
    }
    has(logged(posts[_i].text), "127.0.0.1<");
    pair_down(&p);
}
END_TEST

/* ---- connecting ---- */

/* Drive both sides until each has a comm or an error. */
static void connect_both(int *send_rc, int *recv_rc)
{
    int64_t end = patient_ms() + 5000;

    memset(&p, 0, sizeof(p));
    *send_rc = *recv_rc = 0;
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    while ((!p.send && !*send_rc) || (!p.recv && !*recv_rc)) {
        if (!p.send && !*send_rc)
            *send_rc = net->ops->connect(net, 0, NULL, p.handle, &p.send);
        if (!p.recv && !*recv_rc)
            *recv_rc = net->ops->accept(p.listen, &p.recv);
        if ((*send_rc && !p.recv) || patient_ms() > end)
            break; /* accept has no peer left to wait for */
    }
}

static const struct {
    const char *call;
    int nth;
} making[] = {
    {"alloc_pd", 1},  {"create_comp_channel", 1}, {"create_comp_channel", 2},
    {"create_cq", 1}, {"create_cq", 2},           {"reg_mr", 1},
    {"reg_mr", 2},    {"create_qp", 1},           {"create_qp", 2},
    {"modify_qp", 1}, {"modify_qp", 2},           {"modify_qp", 3},
    {"modify_qp", 4}, {"modify_qp", 5},           {"modify_qp", 6},
    {"post_recv", 1},
};

/* The failing side must log the peer and the reason, the other side that the peer refuses. */
START_TEST(connect_fails)
{
    int fds = open_fds(), send_rc, recv_rc;
    const char *line;

    net = net_up(NULL, NULL);
    fake_fail_call(making[_i].call, making[_i].nth, ENOSPC);
    connect_both(&send_rc, &recv_rc);
    ck_assert_msg(send_rc == -ENOSPC || recv_rc == -ENOSPC, "%d %d", send_rc, recv_rc);
    if (recv_rc == -ENOSPC) {
        ck_assert_int_ne(send_rc, 0);
        ck_assert_ptr_nonnull(
            logged(strcmp(making[_i].call, "post_recv") == 0 ? "receive request" : "refuses"));
    }
    line = logged(send_rc == -ENOSPC ? "connecting from fake0 to " : "a connection from ");
    has(line, "127.0.0.1<");
    has(line, strerror(ENOSPC));
    pair_down(&p);
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

/* The kernel must ask for the peer's address first. */
START_TEST(address_not_resolved)
{
    net = net_up("NCCL_IB_MQP_RETRY_SLEEP_MSEC=10", NULL);
    fake_fail_call("modify_qp", 3, ETIMEDOUT);
    fake_fail_call("modify_qp", 4, ETIMEDOUT);
    pair_open(&p, 1);
    ck_assert_int_eq(warnings(), 0);
    pair_down(&p);
}
END_TEST

START_TEST(other_transport)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *listen, *comm = NULL, *other = NULL;
    int64_t end = patient_ms() + 5000;
    struct nb_net *tcp, *from, *to;
    int rc = 0;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(nb_net_tcp.init(net_context(), &tcp), 0);
    to = _i == 0 ? net : tcp;
    from = _i == 0 ? tcp : net;
    ck_assert_int_eq(to->ops->listen(to, 0, handle, &listen), 0);
    while ((!rc || times_logged("set NIBBLE_NET alike on all nodes") < 2) && patient_ms() < end) {
        if (!rc)
            rc = from->ops->connect(from, 0, NULL, handle, &comm);
        ck_assert_int_eq(to->ops->accept(listen, &other), 0); /* for which it is a stranger */
    }
    ck_assert_int_eq(rc, -EPROTO);
    ck_assert_ptr_null(comm);
    ck_assert_ptr_null(other);
    ck_assert_int_eq(times_logged("set NIBBLE_NET alike on all nodes"), 2);
    to->ops->close_listen(listen);
    nb_net_tcp.fini(tcp);
    net_down();
}
END_TEST

/* Takes the place of the C library's. The first introduction gets this version. 0: its own. */
static uint32_t first_version;

ssize_t send(int fd, const void *data, size_t size, int flags)
{
    uint8_t meta[NB_VERBS_META_BYTES];

    if (first_version && size == sizeof(meta)) {
        memcpy(meta, data, size);
        nb_put32(meta + 4, first_version);
        first_version = 0;
        data = meta;
    }
    return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

/* A sender of the release before would take the two places of a message for two receives. */
START_TEST(older_release)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *listen, *comm = NULL, *other = NULL;
    int64_t end = patient_ms() + 5000;
    int rc = 0, arc = 0;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    first_version = NB_VERBS_WIRE_VERSION - 1;
    while ((!rc || !arc) && patient_ms() < end) {
        if (!rc)
            rc = net->ops->connect(net, 0, NULL, handle, &comm);
        if (!arc)
            arc = net->ops->accept(listen, &other);
    }
    ck_assert(!comm && !other);
    ck_assert_int_eq(rc, -ECONNREFUSED);
    ck_assert_int_eq(arc, -EPROTO);
    has(logged("install the same release on all nodes"), "has version 1 of the protocol, this node 2");
    has(logged("refuses the connection"), "another version of the protocol");
    ck_assert_int_eq(net->ops->close_listen(listen), 0);
    net_down();
}
END_TEST

START_TEST(other_network)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *listen, *comm = NULL, *other = NULL;
    int64_t end = patient_ms() + 5000;
    int rc = 0, arc = 0;

    fake.device[1].port[0].link = IBV_LINK_LAYER_INFINIBAND;
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 1, handle, &listen), 0);
    while ((!rc || !arc) && patient_ms() < end) {
        if (!rc)
            rc = net->ops->connect(net, 0, NULL, handle, &comm);
        if (!arc)
            arc = net->ops->accept(listen, &other);
    }
    ck_assert_int_eq(rc, -ECONNREFUSED);
    ck_assert_int_eq(arc, -EPROTO);
    has(logged("choose ports of one network with NCCL_IB_HCA"), "fake1 is InfiniBand, but fake0 of ");
    ck_assert_ptr_nonnull(logged("refuses the connection"));
    net->ops->close_listen(listen);
    net_down();
}
END_TEST

/* A port that goes down after init, or is down and counts because the setting names it. */
START_TEST(connect_over_down_port)
{
    int send_rc, recv_rc, n = 0;

    fake.device[0].port[0].down = _i;
    net = net_up("NCCL_IB_HCA==fake0,fake1", NULL);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 2);
    fake_port_set(0, 1, false);
    connect_both(&send_rc, &recv_rc);
    ck_assert_int_eq(send_rc, -ENETDOWN);
    has(logged("port 1 is not active"), "fake0");
    has(logged("port 1 is not active"), "127.0.0.1<");
    fake_port_set(0, 1, true);
    pair_close(&p);
    pair_open(&p, 1);
    pair_down(&p);
}
END_TEST

START_TEST(nobody_accepts)
{
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *listen, *comm = NULL;
    int64_t begin = patient_ms();
    int rc = 0;

    net = net_up("NIBBLE_CONNECT_TIMEOUT=1", NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    while (!rc && !comm && patient_ms() < begin + 5000)
        rc = net->ops->connect(net, 0, NULL, handle, &comm);
    ck_assert_int_eq(rc, -ETIMEDOUT);
    has(last_warning(), "the peer sends no answer");
    net->ops->close_listen(listen);
    net_down();
}
END_TEST

/* A connect is given up half-way, by the caller or with the transport. */
START_TEST(abandoned)
{
    int fds = open_fds();
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *listen, *comm = NULL, *other = NULL;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &listen), 0);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(net->ops->connect(net, 0, NULL, handle, &comm), 0);
        ck_assert_ptr_null(comm);
    }
    if (_i == 0)
        net->ops->abandon(net, handle);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(net->ops->accept(listen, &other), 0);
    ck_assert_ptr_null(other);
    net->ops->close_listen(listen);
    net_down();
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

/* ---- registration ---- */

START_TEST(registration)
{
    void *m = &p;

    net = pair_up(&p, 1);
    fake_fail_call("reg_mr_iova2", 1, ENOMEM);
    ck_assert_int_eq(net->ops->reg_mr(p.send, src, SIZE, NB_MEM_HOST, &m), -ENOMEM);
    ck_assert_ptr_null(m);
    has(last_warning(), "ulimit -l");
    has(last_warning(), "fake0");
    /* The connection still works. */
    ck_assert_int_eq(net->ops->reg_mr(p.send, src, SIZE, NB_MEM_HOST, &m), 0);
    ck_assert_int_eq(net->ops->dereg_mr(p.send, m), 0);
    ck_assert_int_eq(net->ops->dereg_mr(p.send, m), -EINVAL);
    ck_assert_int_eq(net->ops->reg_mr(p.send, src, SIZE, NB_MEM_CUDA, &m), -EINVAL);
    has(last_warning(), "nvidia_peermem");
    ck_assert_int_eq(net->ops->reg_mr(p.send, NULL, SIZE, NB_MEM_HOST, &m), -EINVAL);
    ck_assert_int_eq(net->ops->reg_mr(p.send, src, 0, NB_MEM_HOST, &m), -EINVAL);
    pair_down(&p);
}
END_TEST

START_TEST(unregistered)
{
    void *req = NULL, *data = dst, *none = NULL;
    size_t size = SIZE;
    int tag = 0;

    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->isend(p.send, src, SIZE, 0, NULL, &req), -EINVAL);
    ck_assert_int_eq(net->ops->irecv(p.recv, 1, &data, &size, &tag, &none, &req), -EINVAL);
    has(last_warning(), "not registered");
    pair_down(&p);
}
END_TEST

/* ---- asynchronous events ---- */

static const enum ibv_event_type fatal_events[] = {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                                   IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_CQ_ERR,
                                                   IBV_EVENT_DEVICE_FATAL};

START_TEST(fatal_event)
{
    bool all = fatal_events[_i] == IBV_EVENT_DEVICE_FATAL;
    struct pair q;
    void *r, *s, *rq;

    net = pair_up(&p, 1);
    pair_open(&q, 1);
    r = post_recv(p.recv, dst, SIZE, 0);
    rq = post_recv(q.recv, dst, SIZE, 0);
    fake_event(0, fatal_events[_i], 1); /* the first pair's: 0 is the sender's, 1 the receiver's */
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -EIO);
    has(logged(all ? "the adapter is lost" : "the adapter reports: "), "127.0.0.1<");
    has(logged(nb_verbs_event_name(fatal_events[_i])), "fake0");
    if (all) {
        ck_assert_int_eq(wait_req(rq, NULL, IN_TIME_MS), -EIO);
        failed_send(net, q.send, -EIO);
        failed_send(net, p.send, -EIO);
    } else {
        /* Other connections go on, and the peer hears of it. */
        s = post_send(q.send, src, SIZE, 0);
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
        ck_assert_int_eq(wait_req(rq, NULL, IN_TIME_MS), 0);
        s = NULL;
        if (net->ops->isend(p.send, src, SIZE, 7, mh(p.send, src, SIZE), &s) == 0)
            ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -EIO);
        ck_assert_ptr_nonnull(logged("the peer reports"));
    }
    pair_close(&p);
    pair_close(&q);
    net_down();
}
END_TEST

START_TEST(harmless_events)
{
    static const enum ibv_event_type types[] = {IBV_EVENT_PORT_ACTIVE,       IBV_EVENT_LID_CHANGE,
                                                IBV_EVENT_GID_CHANGE,        IBV_EVENT_SM_CHANGE,
                                                IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST};
    void *r, *s;

    net = pair_up(&p, 1);
    r = post_recv(p.recv, dst, SIZE, 0);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        fake_event(0, types[i], 1);
    ck_assert_int_eq(wait_req(r, NULL, 50), -ETIME);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), 0);
    ck_assert_int_eq(warnings(), 0);
    pair_down(&p);
}
END_TEST

START_TEST(port_down)
{
    void *r, *s;

    net = pair_up(&p, 1);
    r = post_recv(p.recv, dst, SIZE, 0);
    fill_bytes(src, SIZE, 4);
    fake_port_set(0, 1, false);
    s = post_send(p.send, src, SIZE, 0);
    ck_assert_int_eq(wait_req(s, NULL, 100), -ETIME);
    has(logged("is down"), "fake0: port 1");
    if (_i == 0) {
        fake_port_set(0, 1, true);
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), 0);
        ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), 0);
        ck_assert(check_bytes(dst, SIZE, 4));
    } else {
        fake_timeout();
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -ETIMEDOUT);
        has(logged("retries exceeded"), "127.0.0.1<");
        ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -ETIMEDOUT);
    }
    pair_down(&p);
}
END_TEST

/* ---- sizes ---- */

START_TEST(too_long)
{
    void *r, *s;

    net = pair_up(&p, 1);
    r = post_recv(p.recv, dst, SIZE - 1, 0);
    s = NULL;
    if (net->ops->isend(p.send, src, SIZE, 0, mh(p.send, src, SIZE), &s) == 0)
        ck_assert_int_eq(wait_req(s, NULL, IN_TIME_MS), -EMSGSIZE);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -EMSGSIZE);
    has(logged("has 5000 bytes but the peer's receive takes 4999"), "127.0.0.1<");
    pair_down(&p);
}
END_TEST

SUITE_MAIN("net/verbs_fail", FIXTURE(verbs_before, verbs_after), LOOP(send_status, 0, STATUSES),
           LOOP(clear_status, 0, STATUSES), LOOP(receive_status, 0, STATUSES), TEST(done_before),
           LOOP(call_fails, 0, COUNT(posts)), LOOP(connect_fails, 0, COUNT(making)),
           TEST(address_not_resolved), LOOP(other_transport, 0, 2), TEST(older_release), TEST(other_network),
           LOOP(connect_over_down_port, 0, 2), TEST(nobody_accepts), LOOP(abandoned, 0, 2),
           TEST(registration), TEST(unregistered), LOOP(fatal_event, 0, COUNT(fatal_events)),
           TEST(harmless_events), LOOP(port_down, 0, 2), TEST(too_long))
