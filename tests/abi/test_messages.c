/* SPDX-License-Identifier: Apache-2.0 */
/* Point-to-point messages through every version of the built plugin's tables. */
#include <stdlib.h>
#include <string.h>

#include "plugin_fixture.h"
#include "tests/suite.h"

#define BYTES 100000

static void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 7 + seed + (i >> 8));
}

/* One table version in the form that the loop below needs. */
struct driver {
    int version;
    ncclResult_t (*init)(void);
    ncclResult_t (*listen)(void *handle, void **comm);
    ncclResult_t (*connect)(void *handle, void **comm);
    ncclResult_t (*accept)(void *listener, void **comm);
    ncclResult_t (*reg)(void *comm, void *data, size_t size, void **mhandle);
    ncclResult_t (*send)(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
    ncclResult_t (*recv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                         void **request);
    ncclResult_t (*test)(void *request, int *done, int *sizes);
    void (*finish)(void *sender, void *receiver, void *listener);
};

#define DRIVER(v, do_init, do_listen, do_connect, do_send, do_recv, do_finalize) \
    static ncclResult_t init_##v(void) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        return do_init; \
    } \
    static ncclResult_t listen_##v(void *handle, void **comm) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        return do_listen; \
    } \
    static ncclResult_t connect_##v(void *handle, void **comm) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        return do_connect; \
    } \
    static ncclResult_t accept_##v(void *listener, void **comm) \
    { \
        return NET(v)->accept(listener, comm, NULL); \
    } \
    static ncclResult_t reg_##v(void *comm, void *data, size_t size, void **mhandle) \
    { \
        return NET(v)->regMr(comm, data, size, NCCL_PTR_HOST, mhandle); \
    } \
    static ncclResult_t send_##v(void *comm, void *data, size_t size, int tag, void *mhandle, \
                                 void **request) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        return do_send; \
    } \
    static ncclResult_t recv_##v(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, \
                                 void **request) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        int ints[8]; \
        for (int i = 0; i < n; i++) \
            ints[i] = (int)sizes[i]; \
        (void)ints; \
        return do_recv; \
    } \
    static ncclResult_t test_##v(void *request, int *done, int *sizes) \
    { \
        return NET(v)->test(request, done, sizes); \
    } \
    static void finish_##v(void *sender, void *receiver, void *listener) \
    { \
        const ncclNet_v##v##_t *t = NET(v); \
        ok(t->closeSend(sender)); \
        ok(t->closeRecv(receiver)); \
        ok(t->closeListen(listener)); \
        ok(do_finalize); \
    } \
    static const struct driver driver_##v = {v,       init_##v, listen_##v, connect_##v, accept_##v, \
                                             reg_##v, send_##v, recv_##v,   test_##v,    finish_##v}

static int message_dev;
static ncclNetCommConfig_v10_t no_config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

/* clang-format off: one line an argument */
DRIVER(8, t->init(capture_log), t->listen(message_dev, handle, comm),
       t->connect(message_dev, handle, comm, NULL), t->isend(comm, data, (int)size, tag, mhandle, request),
       t->irecv(comm, n, data, ints, tags, mhandles, request), ncclSuccess);
DRIVER(9, t->init(capture_log), t->listen(message_dev, handle, comm),
       t->connect(message_dev, handle, comm, NULL), t->isend(comm, data, size, tag, mhandle, request),
       t->irecv(comm, n, data, sizes, tags, mhandles, request), ncclSuccess);
DRIVER(10, t->init(capture_log, NULL), t->listen(message_dev, handle, comm),
       t->connect(message_dev, &no_config, handle, comm, NULL),
       t->isend(comm, data, size, tag, mhandle, NULL, request),
       t->irecv(comm, n, data, sizes, tags, mhandles, NULL, request), ncclSuccess);
DRIVER(11, t->init(&net_ctx, 7, &no_config, capture_log, NULL), t->listen(net_ctx, message_dev, handle, comm),
       t->connect(net_ctx, message_dev, handle, comm, NULL),
       t->isend(comm, data, size, tag, mhandle, NULL, request),
       t->irecv(comm, n, data, sizes, tags, mhandles, NULL, request), t->finalize(net_ctx));
DRIVER(12, t->init(&net_ctx, 7, &no_config, capture_log, NULL), t->listen(net_ctx, message_dev, handle, comm),
       t->connect(net_ctx, message_dev, handle, comm, NULL),
       t->isend(comm, data, size, tag, mhandle, NULL, request),
       t->irecv(comm, n, data, sizes, tags, mhandles, NULL, request), t->finalize(net_ctx));
/* clang-format on */

static const struct driver *const drivers[] = {&driver_8, &driver_9, &driver_10, &driver_11, &driver_12};

#define NDRIVERS ((int)(sizeof(drivers) / sizeof(drivers[0])))

START_TEST(messages_pass_through_every_version)
{
    const struct driver *d = drivers[_i % NDRIVERS];
    if (_i >= NDRIVERS) { /* again, on the last of the devices that one NIC appears as */
        setenv("NIBBLE_DEVS_PER_NIC", "4", 1);
        message_dev = 3;
    }
    static unsigned char sent[2][BYTES], got[2][BYTES];
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listener = NULL;
    void *sender = NULL;
    void *receiver = NULL;
    ok(d->init());
    ok(d->listen(handle, &listener));
    for (int i = 0; i < 1000000 && !(sender && receiver); i++) {
        if (!sender)
            ok(d->connect(handle, &sender));
        if (!receiver)
            ok(d->accept(listener, &receiver));
    }
    ck_assert_msg(sender && receiver, "v%d does not connect", d->version);

    void *mh_sent = NULL;
    void *mh_got[2] = {NULL, NULL};
    ok(d->reg(sender, sent, sizeof(sent), &mh_sent));
    ok(d->reg(receiver, got[0], BYTES, &mh_got[0]));
    ok(d->reg(receiver, got[1], BYTES, &mh_got[1]));
    fill(sent[0], BYTES, 1);
    fill(sent[1], BYTES, 2);

    /* Post a grouped receive. Its sizes must fill exactly two entries, and it is longer than the message. */
    void *data[2] = {got[0], got[1]};
    size_t sizes[2] = {BYTES, BYTES};
    int tags[2] = {10, 20};
    void *recv_req = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION; /* a marker, not a request */
    void *send_req[2] = {NULL, NULL};
    int recv_sizes[3] = {-7, -7, -7};
    int send_size[2] = {-7, -7};
    int recv_done = 0;
    int send_done = 0;
    int recv_posted = 0;
    for (int i = 0; i < 10000000 && !(recv_done && send_done); i++) {
        if (!recv_posted) {
            ok(d->recv(receiver, 2, data, sizes, tags, mh_got, &recv_req));
            recv_posted = recv_req != NULL;
        } else if (!recv_done) {
            ok(d->test(recv_req, &recv_done, recv_sizes));
        }
        if (!send_req[0])
            ok(d->send(sender, sent[0], BYTES - 1, 10, mh_sent, &send_req[0]));
        else if (!send_req[1])
            ok(d->send(sender, sent[1], 4096, 20, mh_sent, &send_req[1]));
        else if (send_done == 0)
            ok(d->test(send_req[1], &send_done, send_size));
    }
    ck_assert(recv_done && send_done);
    ck_assert(recv_sizes[0] == BYTES - 1 && recv_sizes[1] == 4096 && recv_sizes[2] == -7);
    ck_assert(send_size[0] == 4096 && send_size[1] == -7);
    ck_assert(memcmp(got[0], sent[0], BYTES - 1) == 0 && got[0][BYTES - 1] == 0);
    ck_assert(memcmp(got[1], sent[1], 4096) == 0 && got[1][4096] == 0);
    for (send_done = 0; !send_done;)
        ok(d->test(send_req[0], &send_done, NULL)); /* sizes may be NULL */

    d->finish(sender, receiver, listener);
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE("abi/messages", FIXTURE(setup, NULL),
                 LOOP(messages_pass_through_every_version, 0, 2 * NDRIVERS));
}
