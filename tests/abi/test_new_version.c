/* SPDX-License-Identifier: Apache-2.0 */
/* A new version of a table is one file over the version-free functions (docs/adding.md). A toy v13 works
 * beside the real versions. */
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "tests/abi/net_v13.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/suite.h"

#define BYTES 5000u

static const ncclNet_v13_t *const net = &ncclNetPlugin_v13;
static const ncclCollNet_v13_t *const coll = &ncclCollNetPlugin_v13;
static void *net_ctx, *coll_ctx;

static void setup(void)
{
    ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    capture_reset();
    ck_assert_int_eq(net->init(&net_ctx, 0x1234, &config, capture_log, NULL), ncclSuccess);
    ck_assert_int_eq(coll->init(&coll_ctx, 0x1234, capture_log), ncclSuccess);
}

static void teardown(void)
{
    ck_assert_int_eq(net->finalize(net_ctx), ncclSuccess);
    ck_assert_int_eq(coll->finalize(coll_ctx), ncclSuccess);
}

START_TEST(devices_are_those_of_the_other_versions)
{
    ncclNetProperties_v13_t props[2];
    ncclNetProperties_v12_t older;
    int n = 0;

    ck_assert_int_eq(net->devices(&n), ncclSuccess);
    ck_assert_int_ge(n, 1);
    ck_assert_int_eq(net->getProperties(0, &props[0]), ncclSuccess);
    ck_assert_int_eq(coll->getProperties(0, &props[1]), ncclSuccess);
    ck_assert_int_eq(ncclNetPlugin_v12.getProperties(0, &older), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        ck_assert_str_eq(props[i].name, older.name);
        ck_assert_int_eq(props[i].speed, older.speed);
        ck_assert_int_eq(props[i].ptrSupport, older.ptrSupport);
        ck_assert(props[i].maxP2pBytes == older.maxP2pBytes && props[i].maxCollBytes == older.maxCollBytes);
        ck_assert_int_eq(props[i].railId, NCCL_NET_ID_UNDEF);
    }
    ck_assert_int_eq(net->getProperties(n, &props[0]), ncclInternalError);
    ck_assert_int_eq(net->getProperties(0, NULL), ncclInternalError);
}
END_TEST

START_TEST(a_message_passes)
{
    static unsigned char sent[BYTES], got[BYTES];
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listener = NULL, *sender = NULL, *receiver = NULL, *mh_sent = NULL, *mh_got = NULL;
    void *send = NULL, *recv = NULL, *data[1] = {got};
    size_t size[1] = {BYTES};
    int tag[1] = {7}, sent_done = 0, got_done = 0, bytes = 0;

    memset(sent, 0x5a, sizeof(sent));
    ck_assert_int_eq(net->listen(net_ctx, 0, handle, &listener), ncclSuccess);
    while (!sender || !receiver) {
        if (!sender)
            ck_assert_int_eq(net->connect(net_ctx, 0, handle, &sender, NULL), ncclSuccess);
        if (!receiver)
            ck_assert_int_eq(net->accept(listener, &receiver, NULL), ncclSuccess);
    }
    ck_assert_int_eq(net->regMr(sender, sent, BYTES, NCCL_PTR_HOST, &mh_sent), ncclSuccess);
    ck_assert_int_eq(net->regMr(receiver, got, BYTES, NCCL_PTR_HOST, &mh_got), ncclSuccess);
    while (!recv)
        ck_assert_int_eq(net->irecv(receiver, 1, data, size, tag, &mh_got, NULL, &recv), ncclSuccess);
    while (!send)
        ck_assert_int_eq(net->isend(sender, sent, BYTES, 7, 3, mh_sent, NULL, &send), ncclSuccess);
    while (!sent_done || !got_done) {
        if (!sent_done)
            ck_assert_int_eq(net->test(send, &sent_done, NULL), ncclSuccess);
        if (!got_done)
            ck_assert_int_eq(net->test(recv, &got_done, &bytes), ncclSuccess);
    }
    ck_assert_int_eq(bytes, BYTES);
    ck_assert_int_eq(memcmp(sent, got, BYTES), 0);
    ck_assert_int_eq(net->deregMr(sender, mh_sent), ncclSuccess);
    ck_assert_int_eq(net->deregMr(receiver, mh_got), ncclSuccess);
    ck_assert_int_eq(net->closeSend(sender), ncclSuccess);
    ck_assert_int_eq(net->closeRecv(receiver), ncclSuccess);
    ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

START_TEST(the_collnet_half_listens)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listener = NULL;
    int supported = 0;

    ck_assert_int_eq(coll->reduceSupport(ncclFloat32, ncclSum, &supported), ncclSuccess);
    ck_assert_int_eq(supported, 1);
    ck_assert_int_eq(coll->listen(coll_ctx, 0, handle, &listener), ncclSuccess);
    ck_assert_int_eq(coll->closeListen(listener), ncclSuccess);
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE("abi/new_version", FIXTURE(setup, teardown), TEST(devices_are_those_of_the_other_versions),
                 TEST(a_message_passes), TEST(the_collnet_half_listens));
}
