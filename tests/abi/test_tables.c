/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built plugin as NCCL sees it: opened with dlopen, used through its exported tables only. The tests
 * drive every difference between table versions through all versions. Other tests cover the engine.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/nccl_profiler.h"
#include "nibble/nccl_rma.h"
#include "nibble/nccl_tuner.h"
#include "plugin_fixture.h"
#include "tests/suite.h"

/* ---- Exported symbols ----------------------------------------------------------------------------- */

#define ALL_SET(t, ...) \
    do { \
        const void *const members[] = {__VA_ARGS__}; \
        for (size_t i_ = 0; i_ < sizeof(members) / sizeof(members[0]); i_++) \
            ck_assert_msg(members[i_], #t ": function %zu is missing", i_); \
    } while (0)
#define F(f) (const void *)(uintptr_t)(t->f)
#define COMMON \
    F(init), F(devices), F(getProperties), F(listen), F(connect), F(regMr), F(deregMr), F(iflush), F(test), \
        F(closeListen)
#define CHECK_NET(v) \
    do { \
        const ncclNet_v##v##_t *t = NET(v); \
        ck_assert_msg(t, "ncclNetPlugin_v" #v " is missing"); \
        ck_assert_str_eq(t->name, "nibble"); \
        ALL_SET(net v##v, COMMON, F(accept), F(isend), F(irecv), F(closeSend), F(closeRecv)); \
        ck_assert(!t->getDeviceMr && !t->irecvConsumed); \
    } while (0)
#define CHECK_COLLNET(v) \
    do { \
        const ncclCollNet_v##v##_t *t = COLLNET(v); \
        ck_assert_msg(t, "ncclCollNetPlugin_v" #v " is missing"); \
        ck_assert_str_eq(t->name, "nibble"); \
        ALL_SET(collnet v##v, COMMON, F(reduceSupport), F(iallreduce), F(iallgather), F(ireducescatter), \
                F(closeColl)); \
    } while (0)

START_TEST(all_tables_are_complete)
{
    CHECK_NET(8);
    CHECK_NET(9);
    CHECK_NET(10);
    CHECK_NET(11);
    CHECK_NET(12);
    CHECK_COLLNET(8);
    CHECK_COLLNET(9);
    CHECK_COLLNET(10);
    CHECK_COLLNET(11);
    CHECK_COLLNET(12);
    ck_assert(NET(9)->makeVDevice == NULL && NET(12)->makeVDevice == NULL);
    ck_assert(NET(11)->finalize && NET(12)->finalize && COLLNET(11)->finalize && COLLNET(12)->finalize);
}
END_TEST

#define CHECK_RMA(v) \
    do { \
        const ncclRma_v##v##_t *t = table("ncclRmaPlugin", v); \
        ck_assert_msg(t, "ncclRmaPlugin_v" #v " is missing"); \
        ck_assert_str_eq(t->name, "nibble"); \
        ALL_SET(rma v##v, F(init), F(devices), F(getProperties), F(listen), F(connect), F(createContext), \
                F(regMrSym), F(regMrSymDmaBuf), F(deregMrSym), F(destroyContext), F(closeColl), \
                F(closeListen), F(iput), F(iputSignal), F(iget), F(iflush), F(test), F(rmaProgress), \
                F(queryLastError), F(finalize)); \
    } while (0)

START_TEST(all_tables_of_one_sided_operations_are_complete)
{
    CHECK_RMA(14);
    CHECK_RMA(15);
    CHECK_RMA(16);
    ck_assert(((const ncclRma_v16_t *)table("ncclRmaPlugin", 16))->getRmaProperties);
}
END_TEST

/* NCCL takes the first table that it finds, newest first. Each release must find both halves in the same
 * version, which must be its newest. */
START_TEST(every_release_finds_its_newest_version)
{
    static const struct {
        const char *release;
        int newest;
    } releases[] = {{"2.20", 8},  {"2.23", 8},  {"2.24", 9},  {"2.26", 10},
                    {"2.27", 10}, {"2.28", 11}, {"2.30", 12}, {"2.32", 12}};
    for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
        int net = 0;
        int coll = 0;
        for (int v = releases[i].newest; v >= 5 && !net; v--)
            net = table("ncclNetPlugin", v) ? v : 0;
        for (int v = releases[i].newest; v >= 5 && !coll; v--)
            coll = table("ncclCollNetPlugin", v) ? v : 0;
        ck_assert_msg(net == releases[i].newest && coll == net, "NCCL %s finds net v%d and CollNet v%d",
                      releases[i].release, net, coll);
    }
}
END_TEST

/* ---- Init and finalize ---------------------------------------------------------------------------- */

START_TEST(one_banner_and_the_halves_end_in_any_order)
{
    setenv("NIBBLE_CREDITS", "7", 1);
    init_v12();
    ck_assert(capture_has("transport tcp"));
    ck_assert(capture_has("NIBBLE_CREDITS=7"));
    ck_assert_int_eq(capture_warnings, 0);
    capture_reset();
    void *second = NULL;
    ncclNetCommConfig_v12_t config = {.trafficClass = 3};
    ok(NET(12)->init(&second, 99, &config, capture_log, NULL));
    ck_assert(!capture_has("transport tcp"));
    ck_assert_ptr_ne(second, net_ctx);
    ok(NET(12)->finalize(net_ctx));
    ok(NET(12)->finalize(second));
    int ndev = 0;
    ok(COLLNET(12)->devices(&ndev)); /* NCCL finalizes the net half first: the CollNet half must live on */
    ck_assert_int_ge(ndev, 1);
    ok(COLLNET(12)->finalize(coll_ctx));
    ck_assert_int_eq(capture_warnings, 0);

    ck_assert_int_ne(COLLNET(12)->devices(&ndev), ncclSuccess);
    ck_assert_int_eq(ndev, 0);
    setenv("NIBBLE_CREDITS", "8", 1); /* the next init reads the environment anew */
    capture_reset();
    init_v12();
    ck_assert(capture_has("NIBBLE_CREDITS=8"));
    ok(NET(12)->finalize(net_ctx));
    ok(COLLNET(12)->finalize(coll_ctx));
}
END_TEST

START_TEST(finalize_of_the_wrong_context_is_refused)
{
    init_v12();
    ck_assert_int_eq(NET(12)->finalize(coll_ctx), ncclInternalError);
    ck_assert_int_eq(COLLNET(12)->finalize(net_ctx), ncclInternalError);
    ck_assert_int_eq(NET(12)->finalize(NULL), ncclInternalError);
    ok(NET(12)->finalize(net_ctx));
    ck_assert_int_eq(NET(12)->finalize(net_ctx), ncclInternalError);
    ok(COLLNET(12)->finalize(coll_ctx));
}
END_TEST

/* An init that fails on one node alone makes NCCL end the job or hang. All nodes decline instead
 * (tests/harness/bringup). */
START_TEST(a_bad_setting_fails_no_init_but_stops_the_job)
{
    ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    void *net = NULL, *coll = NULL, *listener = NULL;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    int n = 0, m = 0;
    setenv("NIBBLE_UNIT_BYTES", "many", 1);
    setenv("NIBBLE_UNIT_BITES", "4096", 1);
    setenv("NIBBLE_GRAD", "nonsense", 1);
    ok(NET(12)->init(&net, 1, &config, capture_log, NULL));
    ok(COLLNET(12)->init(&coll, 1, capture_log));
    ck_assert_msg(capture_has("NIBBLE_UNIT_BYTES=many: it must be an integer from 4096 to 4194304"), "%s",
                  capture_text);
    ck_assert(capture_has("did you mean NIBBLE_UNIT_BYTES?"));
    ck_assert(capture_has("NIBBLE_GRAD: rule \"nonsense\""));
    ok(NET(12)->devices(&n));
    ok(COLLNET(12)->devices(&m));
    ck_assert(n == m && n > 0);
    /* NCCL would go on without CollNet. All connections fail, so that the job stops. */
    ck_assert_int_eq(NET(12)->listen(net, 0, handle, &listener), ncclInvalidUsage);
    ck_assert_ptr_null(listener);
    ck_assert(capture_has("the job stops, since NIBBLE_REQUIRE has settings"));
    ok(NET(12)->finalize(net));
    ok(COLLNET(12)->finalize(coll));
    setenv("NIBBLE_REQUIRE", "none", 1);
    ok(NET(12)->init(&net, 1, &config, capture_log, NULL));
    ok(NET(12)->listen(net, 0, handle, &listener));
    ok(NET(12)->closeListen(listener));
    ok(NET(12)->finalize(net));
    unsetenv("NIBBLE_REQUIRE");
    unsetenv("NIBBLE_UNIT_BITES");
    unsetenv("NIBBLE_GRAD");
    setenv("NIBBLE_UNIT_BYTES", "4096", 1);
    capture_reset();
    ok(NET(9)->init(capture_log)); /* the next init reads the environment anew */
    ck_assert(!capture_has("NIBBLE_UNIT_BYTES=many"));
}
END_TEST

/* Connections that NCCL left open keep their resources alive. */
START_TEST(finalize_with_an_open_connection_is_survived)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listener = NULL;
    init_v12();
    ok(NET(12)->listen(net_ctx, 0, handle, &listener));
    ok(NET(12)->finalize(net_ctx));
    ok(COLLNET(12)->finalize(coll_ctx));
    ck_assert(capture_has("1 connections are still open"));
    ok(NET(12)->closeListen(listener));
    capture_reset();
    init_v12();
    ck_assert(capture_has("transport tcp")); /* started anew */
    ok(NET(12)->finalize(net_ctx));
    ok(COLLNET(12)->finalize(coll_ctx));
}
END_TEST

/* ---- Devices -------------------------------------------------------------------------------------- */

#define SAME_DEVICE(a, b) \
    do { \
        ck_assert_str_eq((a).name, (b).name); \
        ck_assert(((a).pciPath == NULL) == ((b).pciPath == NULL)); \
        if ((a).pciPath) \
            ck_assert_str_eq((a).pciPath, (b).pciPath); \
        ck_assert((a).guid == (b).guid && (a).ptrSupport == (b).ptrSupport && (a).speed == (b).speed); \
        ck_assert((a).port == (b).port && (a).maxComms == (b).maxComms && (a).maxRecvs == (b).maxRecvs); \
        ck_assert((a).regIsGlobal == (b).regIsGlobal && (a).netDeviceType == (b).netDeviceType); \
        ck_assert((a).netDeviceVersion == (b).netDeviceVersion && (a).latency == (b).latency); \
    } while (0)

/* Once with the NIC as one device, once with the NIC shown four times. */
START_TEST(both_halves_show_the_same_devices_in_every_version)
{
    if (_i)
        setenv("NIBBLE_DEVS_PER_NIC", "4", 1);
    init_v12();
    int ndev = 0;
    int ncoll = 0;
    for (int v = 0; v < 5; v++) {
        ok((v == 0   ? NET(8)->devices
            : v == 1 ? NET(9)->devices
            : v == 2 ? NET(10)->devices
            : v == 3 ? NET(11)->devices
                     : NET(12)->devices)(&ndev));
        ok((v == 0   ? COLLNET(8)->devices
            : v == 1 ? COLLNET(9)->devices
            : v == 2 ? COLLNET(10)->devices
            : v == 3 ? COLLNET(11)->devices
                     : COLLNET(12)->devices)(&ncoll));
        ck_assert_int_eq(ndev, _i ? 4 : 1);
        ck_assert_int_eq(ndev, ncoll);
    }
    for (int d = 0; d < ndev; d++) {
        ncclNetProperties_v12_t n12, c12;
        ncclNetProperties_v11_t n11, c11;
        ncclNetProperties_v9_t n10, c9;
        ncclNetProperties_v8_t n8, c8;
        ok(NET(12)->getProperties(d, &n12));
        ok(COLLNET(12)->getProperties(d, &c12));
        ok(NET(11)->getProperties(d, &n11));
        ok(COLLNET(11)->getProperties(d, &c11));
        ok(NET(10)->getProperties(d, &n10));
        ok(COLLNET(9)->getProperties(d, &c9));
        ok(NET(8)->getProperties(d, &n8));
        ok(COLLNET(8)->getProperties(d, &c8));
        SAME_DEVICE(n12, c12);
        SAME_DEVICE(n12, n11);
        SAME_DEVICE(n12, c11);
        SAME_DEVICE(n12, n10);
        SAME_DEVICE(n12, c9);
        SAME_DEVICE(n12, n8);
        SAME_DEVICE(n12, c8);
        ck_assert_int_eq(n12.ptrSupport, NCCL_PTR_HOST);
        ck_assert_int_eq(n12.regIsGlobal, 0);
        ck_assert_int_eq(n12.netDeviceType, NCCL_NET_DEVICE_HOST);
        ck_assert_int_gt(n12.speed, 0);
        ck_assert(n12.maxRecvs >= 1 && n12.maxRecvs <= 8);
        ck_assert_int_gt(n12.maxComms, 0);
        ck_assert(n12.vProps.ndevs == 1 && n12.vProps.devs[0] == d && n11.vProps.devs[0] == d &&
                  c9.vProps.devs[0] == d);
        ck_assert(n12.maxP2pBytes > 0 && n12.maxP2pBytes <= NCCL_MAX_NET_SIZE_BYTES);
        ck_assert(n12.maxCollBytes > 0 && n12.maxCollBytes <= NCCL_MAX_NET_SIZE_BYTES);
        ck_assert(n11.maxCollBytes == n12.maxCollBytes && c9.maxCollBytes == n12.maxCollBytes);
        ck_assert(n11.maxP2pBytes == n12.maxP2pBytes && n10.maxP2pBytes == n12.maxP2pBytes);
        ck_assert(n12.railId == NCCL_NET_ID_UNDEF && n12.planeId == NCCL_NET_ID_UNDEF);
        ck_assert_int_eq(n12.maxMultiRequestSize, 1);
        ncclNetProperties_v12_t first;
        ok(NET(12)->getProperties(0, &first)); /* NCCL uses these two to share the link */
        ck_assert(first.guid == n12.guid && first.port == n12.port);
        ck_assert(d == 0 || strcmp(first.name, n12.name) != 0);
    }
    ncclNetProperties_v12_t props;
    ck_assert_int_eq(capture_warnings, 0);
    ck_assert_int_eq(NET(12)->getProperties(ndev, &props), ncclInternalError);
    ck_assert_int_eq(COLLNET(12)->getProperties(-1, &props), ncclInternalError);
    ck_assert_int_eq(capture_warnings, 2);
}
END_TEST

START_TEST(largest_window_is_made_of_whole_units)
{
    setenv("NIBBLE_UNIT_BYTES", "12288", 1);
    init_v12();
    ncclNetProperties_v12_t props;
    ok(COLLNET(12)->getProperties(0, &props));
    ck_assert_uint_eq(props.maxCollBytes % 12288, 0);
    ck_assert_uint_gt(props.maxCollBytes, 512u << 20);
}
END_TEST

/* ---- NULL arguments ------------------------------------------------------------------------------- */

/* Require that the call returns `want`, logs it, and writes NULL to *request where it has one. */
#define REFUSED(call) \
    do { \
        int before_ = capture_warnings; \
        ncclResult_t res_ = (call); \
        ck_assert_msg(res_ == ncclInternalError || res_ == ncclInvalidArgument, #call " gave %d", res_); \
        ck_assert_msg(capture_warnings > before_, #call " said nothing"); \
    } while (0)
#define REFUSED_REQUEST(call) \
    do { \
        request = &request; \
        REFUSED(call); \
        ck_assert_msg(request == NULL, #call " left a request"); \
    } while (0)

START_TEST(net_survives_null)
{
    init_v12();
    const ncclNet_v12_t *n = NET(12);
    const ncclNet_v8_t *n8 = NET(8);
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    char byte = 0;
    void *data[1] = {&byte};
    size_t sizes[1] = {1};
    int int_sizes[1] = {1};
    int tags[1] = {0};
    void *mhandles[1] = {NULL};
    void *request;
    void *out;
    int done;
    void *listener = NULL;
    void *sender = NULL;

    REFUSED(n->init(NULL, 0, NULL, capture_log, NULL));
    REFUSED(n->devices(NULL));
    REFUSED(n->getProperties(0, NULL));
    REFUSED(n8->getProperties(0, NULL));
    REFUSED(n->listen(net_ctx, 0, NULL, &listener));
    REFUSED(n->listen(net_ctx, 0, handle, NULL));
    REFUSED(n->connect(net_ctx, 0, NULL, &sender, NULL));
    REFUSED(n->connect(net_ctx, 0, handle, NULL, NULL));
    REFUSED(n->accept(NULL, &out, NULL));
    REFUSED(n->regMr(NULL, &byte, 1, NCCL_PTR_HOST, &out));
    REFUSED(n->regMrDmaBuf(NULL, &byte, 1, NCCL_PTR_CUDA, 0, -1, &out));
    REFUSED(n->deregMr(NULL, &byte));
    REFUSED_REQUEST(n->isend(NULL, &byte, 1, 0, NULL, NULL, &request));
    REFUSED_REQUEST(n8->isend(NULL, &byte, 1, 0, NULL, &request));
    REFUSED_REQUEST(n8->isend(&byte, &byte, -1, 0, NULL, &request));
    REFUSED_REQUEST(n->irecv(NULL, 1, data, sizes, tags, mhandles, NULL, &request));
    REFUSED_REQUEST(n8->irecv(NULL, 1, data, int_sizes, tags, mhandles, &request));
    REFUSED_REQUEST(n->iflush(NULL, 1, data, int_sizes, mhandles, &request));
    REFUSED(n->test(NULL, &done, NULL));

    /* Pass a real comm, so that the call looks at the other arguments. */
    ok(n->listen(net_ctx, 0, handle, &listener));
    REFUSED(n->accept(listener, NULL, NULL));
    void *receiver = NULL;
    for (int i = 0; i < 100000 && !(sender && receiver); i++) {
        if (!sender)
            ok(n->connect(net_ctx, 0, handle, &sender, NULL));
        if (!receiver)
            ok(n->accept(listener, &receiver, NULL));
    }
    ck_assert(sender && receiver);
    REFUSED(n->regMr(sender, &byte, 1, NCCL_PTR_HOST, NULL));
    REFUSED(n->regMr(sender, &byte, 1, 99, &out));
    REFUSED(n->isend(sender, &byte, 1, 0, NULL, NULL, NULL));
    REFUSED_REQUEST(n->isend(sender, NULL, 1, 0, NULL, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 0, data, sizes, tags, mhandles, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 9, data, sizes, tags, mhandles, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 1, NULL, sizes, tags, mhandles, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 1, data, NULL, tags, mhandles, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 1, data, sizes, NULL, mhandles, NULL, &request));
    REFUSED_REQUEST(n->irecv(receiver, 1, data, sizes, tags, NULL, NULL, &request));
    REFUSED(n->irecv(receiver, 1, data, sizes, tags, mhandles, NULL, NULL));
    int_sizes[0] = -1;
    REFUSED_REQUEST(n8->irecv(receiver, 1, data, int_sizes, tags, mhandles, &request));
    REFUSED_REQUEST(n->iflush(receiver, 1, data, int_sizes, mhandles, &request));

    ok(n->closeSend(NULL));
    ok(n->closeRecv(NULL));
    ok(n->closeListen(NULL));
    ok(n->closeSend(sender));
    ok(n->closeRecv(receiver));
    ok(n->closeListen(listener));
    ok(n->finalize(net_ctx));
    ok(COLLNET(12)->finalize(coll_ctx));
}
END_TEST

START_TEST(collnet_survives_null)
{
    init_v12();
    const ncclCollNet_v12_t *c = COLLNET(12);
    const ncclCollNet_v8_t *c8 = COLLNET(8);
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *handles[2] = {handle, NULL};
    float value = 0.0f;
    ncclNetSGE_v9_t part = {.address = &value, .size = 4};
    ncclNetSGE_v8_t part8 = {.address = &value, .size = 4};
    void *request;
    void *out;
    int n;
    void *listener = NULL;

    REFUSED(c->init(NULL, 0, capture_log));
    REFUSED(c->devices(NULL));
    REFUSED(c->getProperties(0, NULL));
    REFUSED(c->listen(coll_ctx, 0, NULL, &listener));
    REFUSED(c->listen(coll_ctx, 0, handle, NULL));
    REFUSED(c->connect(NULL, 2, 0, &value, &out));
    REFUSED(c->connect(handles, 2, 0, NULL, &out));
    REFUSED(c->connect(handles, 2, 0, &value, NULL));
    REFUSED(c->connect(handles, 2, 0, &value, &out)); /* the second handle is NULL */
    REFUSED(c->connect(handles, 1, 1, &value, &out));
    REFUSED(c->connect(handles, 0, 0, &value, &out));
    REFUSED(c->reduceSupport(ncclFloat32, ncclSum, NULL));
    REFUSED(c->regMr(NULL, &value, 4, NCCL_PTR_HOST, &out));
    REFUSED(c->regMr(&value, &value, 4, NCCL_PTR_HOST, NULL));
    REFUSED(c->regMrDmaBuf(NULL, &value, 4, NCCL_PTR_CUDA, 0, -1, &out));
    REFUSED(c->deregMr(NULL, &value));
    REFUSED_REQUEST(c->iallreduce(NULL, &value, &value, 1, ncclFloat32, ncclSum, NULL, NULL, &request));
    REFUSED_REQUEST(c8->iallreduce(NULL, &value, &value, 1, ncclFloat32, ncclSum, NULL, NULL, &request));
    REFUSED_REQUEST(c8->iallreduce(&value, &value, &value, -1, ncclFloat32, ncclSum, NULL, NULL, &request));
    REFUSED_REQUEST(c->iallgather(NULL, &value, 1, &part, 4, 0, 4, NULL, &request));
    REFUSED_REQUEST(c8->iallgather(NULL, &value, 1, &part8, 4, 0, 4, NULL, &request));
    REFUSED_REQUEST(c->iallgather(&value, &value, 1, NULL, 4, 0, 4, NULL, &request));
    REFUSED_REQUEST(c->iallgather(&value, &value, 2, &part, 4, 0, 4, NULL, &request));
    REFUSED_REQUEST(c->ireducescatter(NULL, 1, &part, &value, 4, 0, 4, ncclFloat32, ncclSum, NULL, &request));
    REFUSED_REQUEST(
        c8->ireducescatter(NULL, 1, &part8, &value, 4, 0, 4, ncclFloat32, ncclSum, NULL, &request));
    REFUSED_REQUEST(
        c->ireducescatter(&value, 1, NULL, &value, 4, 0, 4, ncclFloat32, ncclSum, NULL, &request));
    REFUSED_REQUEST(
        c8->ireducescatter(&value, 0, &part8, &value, 4, 0, 4, ncclFloat32, ncclSum, NULL, &request));
    REFUSED_REQUEST(c->iflush(NULL, &value, 4, NULL, &request));
    REFUSED_REQUEST(c->iflush(&value, &value, -4, NULL, &request));
    REFUSED(c->iallreduce(&value, &value, &value, 1, ncclFloat32, ncclSum, NULL, NULL, NULL));
    REFUSED(c->test(NULL, &n, NULL));
    REFUSED(c->test(&value, NULL, NULL));
    ok(c->closeColl(NULL));
    ok(c->closeListen(NULL));

    ok(c->listen(coll_ctx, 0, handle, &listener));
    ck_assert_ptr_nonnull(listener);
    ok(c->closeListen(listener));
    ok(NET(12)->finalize(net_ctx));
    ok(c->finalize(coll_ctx));
}
END_TEST

START_TEST(nothing_works_before_init)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *out = NULL;
    int n = 5;
    ck_assert_int_eq(NET(12)->devices(&n), ncclInternalError);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(NET(8)->listen(0, handle, &out), ncclInternalError);
    ck_assert_int_eq(NET(8)->connect(0, handle, &out, NULL), ncclInternalError);
    ck_assert_int_eq(COLLNET(8)->listen(0, handle, &out), ncclInternalError);
    ncclNetProperties_v12_t props;
    ck_assert_int_eq(COLLNET(12)->getProperties(0, &props), ncclInternalError);
}
END_TEST

/* ---- Profiler and tuner: each alone, without logger, context or the other tables ------------------- */

START_TEST(tuner_alone)
{
    float table[7][3];
    void *ctx = &ctx;
    int channels = 9;
    const ncclTuner_v4_t *t4 = table_of("ncclTunerPlugin_v4");
    const ncclTuner_v5_t *t5 = table_of("ncclTunerPlugin_v5");
    const ncclTuner_v6_t *t6 = table_of("ncclTunerPlugin_v6");

    ck_assert(t4 && t5 && t6);
    ck_assert_str_eq(t4->name, "nibble");
    ck_assert(t4->init && t4->getCollInfo && t4->destroy && t5->init && t5->getCollInfo && t5->finalize &&
              t6->init && t6->getCollInfo && t6->finalize && t6->getChunkSize);
    for (int i = 0; i < 21; i++)
        (&table[0][0])[i] = (float)i;
    ok(t6->init(&ctx, 1, 16, 2, NULL, NULL, NULL));
    for (int k = 0; k < 2; k++) {
        size_t chunk = 4096;
        ok(t6->getCollInfo(k ? ctx : NULL, ncclFuncAllGather, 1 << 26, 1, (float **)table, 7, 3, 0,
                           &channels));
        ok(t6->getChunkSize(k ? ctx : NULL, ncclFuncAllGather, 1 << 26, 2, 2, 8, &chunk));
        ck_assert_uint_eq(chunk, 4096);
    }
    for (int i = 0; i < 21; i++)
        ck_assert((&table[0][0])[i] == (float)i);
    ck_assert_int_eq(channels, 9);
    ok(t6->finalize(ctx));
    ok(t5->finalize(NULL));
    ok(t4->destroy(NULL));
}
END_TEST

START_TEST(profiler_alone)
{
    const ncclProfiler_v4_t *p4 = table_of("ncclProfiler_v4");
    const ncclProfiler_v5_t *p5 = table_of("ncclProfiler_v5");
    const ncclProfiler_v6_t *p6 = table_of("ncclProfiler_v6");
    const ncclProfiler_v7_t *p7 = table_of("ncclProfiler_v7");
    ncclProfilerEventDescr_v7_t d = {.type = ncclProfileCollApi};
    void *ctx = NULL, *handle = &d;
    int mask = 0;

    ck_assert(p4 && p5 && p6 && p7);
    ck_assert_str_eq(p7->name, "nibble");
    ck_assert(p4->init && p4->startEvent && p4->stopEvent && p4->recordEventState && p4->finalize);
    ok(p7->startEvent(NULL, &handle, &d));
    ck_assert_ptr_null(handle);
    ok(p7->init(&ctx, 7, &mask, NULL, 2, 2, 0, NULL));
    ck_assert_ptr_nonnull(ctx);
    ck_assert_int_eq(mask,
                     ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch | ncclProfileCeColl);
    d.collApi.func = "AllReduce";
    d.collApi.datatype = "ncclFloat32";
    d.collApi.count = 5;
    ok(p7->startEvent(ctx, &handle, &d));
    ck_assert_ptr_nonnull(handle);
    ok(p7->recordEventState(handle, 0, NULL));
    ok(p7->stopEvent(handle));
    d.parentObj = handle;
    d.type = ncclProfileColl;
    memset(&d.coll, 0, sizeof(d.coll)); /* without any text */
    ok(p7->startEvent(ctx, &handle, &d));
    ck_assert_ptr_null(handle);
    ok(p7->finalize(ctx));
    ok(p6->finalize(NULL));
    ok(p5->finalize(NULL));
    ok(p4->finalize(NULL));
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE(
        "abi/tables", FIXTURE(setup, NULL), TEST(all_tables_are_complete),
        TEST(all_tables_of_one_sided_operations_are_complete), TEST(every_release_finds_its_newest_version),
        TEST(one_banner_and_the_halves_end_in_any_order), TEST(finalize_of_the_wrong_context_is_refused),
        TEST(a_bad_setting_fails_no_init_but_stops_the_job),
        LOOP(both_halves_show_the_same_devices_in_every_version, 0, 2),
        TEST(largest_window_is_made_of_whole_units), TEST(net_survives_null), TEST(collnet_survives_null),
        TEST(nothing_works_before_init), TEST(finalize_with_an_open_connection_is_survived),
        TEST(tuner_alone), TEST(profiler_alone));
}
