/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport outside the plugin, behind everything that stands on transports: the promises of
 * docs/adding.md. Two contexts are two nodes here, each unaware of the other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "loopback.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

static struct nb_params params[2];
static struct nb_context node[2];

/* A connection from node 0 to node 1. */
struct pair {
    void *listen, *send, *recv;
    uint8_t handle[NB_NET_HANDLE_BYTES];
};

static const struct nb_net_ops *ops;

static void setup(void)
{
    capture_reset();
    nb_log_set(capture_log);
    for (int i = 0; i < 2; i++) {
        params[i] = *nb_params_defaults();
        params[i].devs_per_nic = 1 + i;
        memset(&node[i], 0, sizeof(node[i]));
        node[i].params = &params[i];
        ck_assert_int_eq(nb_net_open_with(&node[i], &loopback_ops), 0);
    }
    ops = node[0].net->ops;
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        nb_net_close(&node[i]);
        ck_assert_ptr_null(node[i].net);
    }
    ck_assert_int_eq(loopback_open_objects(), 0);
    nb_log_set(NULL);
}

static void pair_open(struct pair *p)
{
    struct nb_net *from = node[0].net, *to = node[1].net;

    memset(p, 0, sizeof(*p));
    ck_assert_int_eq(to->ops->listen(to, 1, p->handle, &p->listen), 0);
    ck_assert_int_eq(to->ops->accept(p->listen, &p->recv), 0);
    ck_assert_ptr_null(p->recv); /* no node has connected */
    ck_assert_int_eq(from->ops->connect(from, 0, NULL, p->handle, &p->send), 0);
    ck_assert_ptr_nonnull(p->send);
    ck_assert_int_eq(to->ops->accept(p->listen, &p->recv), 0);
    ck_assert_ptr_nonnull(p->recv);
}

static void pair_close(struct pair *p)
{
    ck_assert_int_eq(ops->close_send(p->send), 0);
    ck_assert_int_eq(ops->close_recv(p->recv), 0);
    ck_assert_int_eq(ops->close_listen(p->listen), 0);
}

static void *post(struct pair *p, const void *data, size_t size, int tag)
{
    void *req = NULL;

    ck_assert_int_eq(ops->isend(p->send, data, size, tag, NULL, &req), 0);
    ck_assert_ptr_nonnull(req);
    return req;
}

static void *take(struct pair *p, void *data, size_t size, int tag)
{
    void *req = NULL;

    ck_assert_int_eq(ops->irecv(p->recv, 1, &data, &size, &tag, NULL, &req), 0);
    ck_assert_ptr_nonnull(req);
    return req;
}

/* Return whether a request is done, or its error. */
static int tested(void *req, size_t *sizes)
{
    int done = -1, err = ops->test(req, &done, sizes);

    return err ? err : done;
}

/* Each context has the list of devices that its own settings ask for. */
START_TEST(devices)
{
    struct nb_net_props props;
    void *comm;
    char handle[NB_NET_HANDLE_BYTES];
    int n = 0;

    for (int i = 0; i < 2; i++) {
        struct nb_net *net = node[i].net;

        ck_assert_str_eq(net->ops->name, "loopback");
        ck_assert_ptr_eq(net->ctx, &node[i]);
        ck_assert_int_eq(net->ops->devices(net, &n), 0);
        ck_assert_int_eq(n, 1 + i);
        ck_assert_int_eq(net->ops->properties(net, i, &props), 0);
        ck_assert_str_eq(props.name, i ? "memory0#1" : "memory0");
        ck_assert_int_eq(net->ops->listen(net, 1 + i, handle, &comm), -EINVAL);
    }
    ck_assert_int_eq(
        node[0].net->ops->connect(node[0].net, 0, NULL, memset(handle, 0, sizeof(handle)), &comm), -EINVAL);
}
END_TEST

/* Send or receive first, of any size. They match by tag, and in order within a tag. */
START_TEST(messages)
{
    static uint8_t big[1 << 20], got[1 << 20];
    char text[3][8] = {"?", "?", "?"};
    struct pair p;
    void *s[3], *r[3];
    size_t size = 77;

    pair_open(&p);
    s[0] = post(&p, "one", 4, 5);
    s[1] = post(&p, "two", 4, 6);
    s[2] = post(&p, "three", 6, 5);
    ck_assert_int_eq(tested(s[0], NULL), 0);
    ck_assert_int_eq(ops->poll_fds(p.send, 1, NULL, 0), -1);
    r[0] = take(&p, text[0], 8, 6);
    r[1] = take(&p, text[1], 8, 5);
    r[2] = take(&p, text[2], 8, 5);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(tested(s[i], &size), 1);
        ck_assert_uint_eq(size, i == 2 ? 6 : 4);
        ck_assert_int_eq(tested(r[i], &size), 1);
        ck_assert_uint_eq(size, i == 2 ? 6 : 4);
    }
    ck_assert_str_eq(text[0], "two");
    ck_assert_str_eq(text[1], "one");
    ck_assert_str_eq(text[2], "three");

    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (uint8_t)(i * 31 >> 3);
    r[0] = take(&p, got, sizeof(got), 0);
    r[1] = take(&p, NULL, 0, 0);
    ck_assert_int_eq(tested(r[0], NULL), 0);
    s[0] = post(&p, big, sizeof(big), 0);
    s[1] = post(&p, NULL, 0, 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tested(r[i], &size), 1);
        ck_assert_uint_eq(size, i ? 0 : sizeof(big));
        ck_assert_int_eq(tested(s[i], NULL), 1);
    }
    ck_assert(memcmp(big, got, sizeof(big)) == 0);
    ck_assert_uint_eq(ops->wire_bytes(p.send), sizeof(big) + 14);
    ck_assert_uint_eq(ops->wire_bytes(p.recv), sizeof(big) + 14);
    ck_assert_int_eq(ops->poll_fds(p.send, 1, NULL, 0), 0);
    ck_assert(strlen(ops->peer_name(p.send)) > 0);
    pair_close(&p);
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

START_TEST(grouped_receives)
{
    static const int tags[NB_NET_MAX_RECVS] = {8, 7, 6, 5, 4, 3, 2, 1};
    char got[NB_NET_MAX_RECVS][4] = {{0}};
    void *data[NB_NET_MAX_RECVS], *group, *sent[NB_NET_MAX_RECVS];
    size_t caps[NB_NET_MAX_RECVS], sizes[NB_NET_MAX_RECVS];
    struct pair p;

    pair_open(&p);
    for (int i = 0; i < NB_NET_MAX_RECVS; i++) {
        data[i] = got[i];
        caps[i] = 4;
    }
    ck_assert_int_eq(ops->irecv(p.recv, NB_NET_MAX_RECVS + 1, data, caps, tags, NULL, &group), -EINVAL);
    for (int i = 0; i < 3; i++) /* some before the group, the rest after it */
        sent[i] = post(&p, &"abcdefgh"[i], 1, tags[i]);
    ck_assert_int_eq(ops->irecv(p.recv, NB_NET_MAX_RECVS, data, caps, tags, NULL, &group), 0);
    for (int i = NB_NET_MAX_RECVS - 1; i >= 3; i--) {
        ck_assert_int_eq(tested(group, sizes), 0);
        sent[i] = post(&p, &"abcdefgh"[i], 1, tags[i]);
    }
    ck_assert_int_eq(tested(group, sizes), 1);
    for (int i = 0; i < NB_NET_MAX_RECVS; i++) {
        ck_assert_int_eq(tested(sent[i], NULL), 1);
        ck_assert_uint_eq(sizes[i], 1);
        ck_assert_int_eq(got[i][0], 'a' + i);
    }
    pair_close(&p);
}
END_TEST

START_TEST(too_long)
{
    struct pair p;
    void *s, *r, *before;
    char to[4];

    pair_open(&p);
    before = post(&p, "abc", 3, 0);
    r = take(&p, to, 4, 0);
    ck_assert_int_eq(tested(r, NULL), 1);
    r = take(&p, to, 4, 0);
    s = post(&p, "too long", 8, 0);
    for (int i = 0; i < 2; i++) { /* sticky */
        ck_assert_int_eq(tested(r, NULL), -EMSGSIZE);
        ck_assert_int_eq(tested(s, NULL), -EMSGSIZE);
    }
    ck_assert_int_eq(tested(before, NULL), 1); /* a request that completed before the error still tests
                                                  done */
    ck_assert_int_eq(capture_warnings, 1);
    pair_close(&p);
}
END_TEST

/* Either end may close first, with or without requests in flight, and the other end learns of it. */
START_TEST(closing)
{
    struct pair p;
    void *s, *r, *req;
    char to[4];

    pair_open(&p);
    s = post(&p, "abc", 3, 0);
    r = take(&p, to, 4, 0);
    ck_assert_int_eq(tested(s, NULL), 1);
    ck_assert_int_eq(ops->close_send(p.send), 0);
    ck_assert_int_eq(tested(r, NULL), 1); /* sent messages have arrived */
    r = take(&p, to, 4, 0);
    ck_assert_int_eq(tested(r, NULL), -ECONNRESET);
    ck_assert_int_eq(capture_warnings, 0); /* a graceful shutdown is not a failure of the transport */
    ck_assert_int_eq(ops->close_recv(p.recv), 0);
    ck_assert_int_eq(ops->close_listen(p.listen), 0);

    pair_open(&p);
    s = post(&p, "abc", 3, 0);
    ck_assert_int_eq(ops->close_recv(p.recv), 0);
    ck_assert_int_eq(tested(s, NULL), -ECONNRESET);
    ck_assert_int_eq(ops->isend(p.send, "abc", 3, 0, NULL, &req), -ECONNRESET);
    ck_assert_ptr_null(req);
    ck_assert_int_eq(ops->close_send(p.send), 0);

    /* The connection was never accepted, and the listener is gone. */
    ck_assert_int_eq(node[0].net->ops->connect(node[0].net, 0, NULL, p.handle, &p.send), 0);
    s = post(&p, "abc", 3, 0);
    ck_assert_int_eq(ops->close_listen(p.listen), 0);
    ck_assert_int_eq(tested(s, NULL), -ECONNRESET);
    ck_assert_int_eq(ops->close_send(p.send), 0);
    ck_assert_int_eq(node[0].net->ops->connect(node[0].net, 0, NULL, p.handle, &p.send), -ECONNREFUSED);
    ck_assert_int_eq(ops->close_send(NULL), 0);
}
END_TEST

SUITE_MAIN("loopback", FIXTURE(setup, teardown), TEST(devices), TEST(messages), TEST(grouped_receives),
           TEST(too_long), TEST(closing))
