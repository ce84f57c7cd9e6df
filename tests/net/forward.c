/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `forward` over a small plugin of every table version: the calls that reach the plugin, their
 * results, and the plugin's failures. The harness shows that the engine runs over it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "fake_plugin.h"
#include "net/transport.h"
#include "nibble/nccl_net.h"
#include "open.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/suite.h"

static struct nb_context context;
static struct nb_net *net;
static struct fake_notes *notes;
static void *fake;
static char path[4096];

static void point_at(int version)
{
    const char *top = getenv("NB_BUILDDIR");

    snprintf(path, sizeof(path), "%s/tests/net/.libs/fake_v%d.so", top ? top : ".", version);
    fake = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(fake, "%s", dlerror());
    notes = dlsym(fake, "fake_notes");
    ck_assert_ptr_nonnull(notes);
    setenv("NIBBLE_NET", "forward", 1);
    setenv("NIBBLE_NET_FORWARD", path, 1);
    capture_reset();
    nb_log_set(capture_log);
}

static int open_transport(void)
{
    int err = context_up(&context);

    net = err ? NULL : context.net;
    return err;
}

static void up(int version)
{
    point_at(version);
    ck_assert_int_eq(open_transport(), 0);
}

static void down(void)
{
    context_down(&context);
    dlclose(fake);
}

struct ends {
    void *listen, *send, *recv;
};

static void join(struct ends *e, int dev, int traffic_class)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = traffic_class};
    uint8_t handle[NB_NET_HANDLE_BYTES];
    int tries = 0;

    memset(e, 0, sizeof(*e));
    ck_assert_int_eq(net->ops->listen(net, dev, handle, &e->listen), 0);
    ck_assert_int_eq(net->ops->accept(e->listen, &e->recv), 0);
    ck_assert_ptr_null(e->recv);
    for (; !e->send; tries++)
        ck_assert_int_eq(net->ops->connect(net, dev, &cfg, handle, &e->send), 0);
    ck_assert_int_eq(tries, 3); /* the plugin counts in the handle */
    ck_assert_int_eq(net->ops->accept(e->listen, &e->recv), 0);
    ck_assert_ptr_nonnull(e->recv);
}

static void part(struct ends *e)
{
    ck_assert_int_eq(net->ops->close_send(e->send), 0);
    ck_assert_int_eq(net->ops->close_recv(e->recv), 0);
    ck_assert_int_eq(net->ops->close_listen(e->listen), 0);
}

/* ---- tests ---- */

START_TEST(the_newest_table_is_taken_and_initialised)
{
    up(_i);
    ck_assert_str_eq(net->ops->name, "forward");
    ck_assert_int_eq(notes->inits, 1);
    char label[64];
    snprintf(label, sizeof(label), "fake_v%d.so, v%d)", _i, _i);
    ck_assert_msg(capture_has(label), "%s", capture_text);
    snprintf(label, sizeof(label), "INFO fake plugin v%d, starting\n", _i); /* its own line, unchanged */
    ck_assert_msg(capture_has(label), "%s", capture_text);
    if (_i >= 10)
        ck_assert(notes->had_profiler);
    if (_i >= 11) {
        ck_assert_int_eq(notes->init_classes[0], -1);
        ck_assert(notes->comm_id != 0);
    }
    down();
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

START_TEST(devices_are_the_plugins)
{
    struct nb_net_props p;
    int n = 0;

    setenv("NIBBLE_DEVS_PER_NIC", "3", 1);
    up(_i);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 6);
    for (int i = 0; i < n; i++) {
        int nic = i % 2;
        char name[16];

        snprintf(name, sizeof(name), i < 2 ? "fake%d" : "fake%d#%d", nic, i / 2);
        ck_assert_int_eq(net->ops->properties(net, i, &p), 0);
        ck_assert_str_eq(p.name, name);
        ck_assert_str_eq(p.pci_path, nic ? "" : "/sys/devices/fake");
        ck_assert_uint_eq(p.guid, 0xabc0u + (unsigned)nic);
        ck_assert_int_eq(p.mem_support, NB_MEM_HOST | NB_MEM_CUDA);
        ck_assert_int_eq(p.speed_mbps, 25000 * (nic + 1));
        ck_assert_int_eq(p.rate_mbps, 25000 * (nic + 1) / 3); /* shared by three devices */
        ck_assert_int_eq(p.port, nic + 1);
        ck_assert(p.latency_us == 1.5f && p.max_comms == 77 && p.max_recvs == 8);
        ck_assert_int_eq(p.force_flush, _i >= 9);
        if (_i >= 9)
            ck_assert_uint_eq(p.max_bytes, 1 << 20);
        else
            ck_assert(p.max_bytes > (1u << 30) && p.max_bytes <= INT_MAX);
    }
    ck_assert_int_eq(net->ops->properties(net, 6, &p), -EINVAL);
    ck_assert_int_eq(net->ops->properties(net, -1, &p), -EINVAL);
    context_down(&context);
    notes->max_bytes = (size_t)1 << 40; /* more than test() can report */
    ck_assert_int_eq(open_transport(), 0);
    ck_assert_int_eq(net->ops->properties(net, 0, &p), 0);
    ck_assert(p.max_bytes <= INT_MAX && p.max_bytes > (1u << 30));
    down();
}
END_TEST

START_TEST(connections_carry_device_and_traffic_class)
{
    struct ends a, b, c;

    setenv("NIBBLE_DEVS_PER_NIC", "2", 1);
    up(_i);
    join(&a, 3, 106); /* the second appearance of the second NIC */
    ck_assert_int_eq(notes->last_dev, 1);
    if (_i >= 10)
        ck_assert_int_eq(notes->connect_class, 106);
    join(&b, 2, -1);
    ck_assert_int_eq(notes->last_dev, 0);
    if (_i >= 10)
        ck_assert_int_eq(notes->connect_class, -1);
    join(&c, 0, 106);
    if (_i >= 10)
        ck_assert_int_eq(notes->connect_class, 106);
    if (_i >= 11) {
        ck_assert_int_eq(notes->listen_class, -1);
        ck_assert_int_eq(notes->inits, 2); /* one context for each class, used again */
    } else {
        ck_assert_int_eq(notes->inits, 1);
    }
    part(&a);
    part(&b);
    part(&c);
    ck_assert_int_eq(notes->open_comms, 0);
    context_down(&context);
    ck_assert_int_eq(notes->finalizes, _i >= 11 ? 2 : 0);
    ck_assert_int_eq(capture_warnings, 0);

    ck_assert_int_eq(open_transport(), 0); /* and open it again */
    join(&a, 0, 7);
    part(&a);
    down();
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

START_TEST(more_traffic_classes_than_contexts)
{
    struct ends e;

    up(_i);
    for (int tc = 0; tc < 20; tc++) {
        join(&e, 0, tc);
        if (_i >= 11)
            ck_assert_int_eq(notes->connect_class, tc < 15 ? tc : -1);
        part(&e);
    }
    context_down(&context);
    ck_assert_int_eq(notes->finalizes, _i >= 11 ? 16 : 0);
    dlclose(fake);
}
END_TEST

START_TEST(messages_pass)
{
    static char sent[3][300], got[3][300];
    void *data[3] = {got[0], got[1], got[2]}, *mh[3] = {NULL}, *req[3], *recv = NULL, *flush = NULL;
    size_t sizes[3] = {300, 300, 300}, came[NB_NET_MAX_RECVS];
    const int tags[3] = {5, 6, 7};
    struct pollfd fds[4];
    struct ends e;
    int done = 0;

    up(_i);
    join(&e, 0, -1);
    ck_assert_int_eq(net->ops->reg_mr(e.recv, got, sizeof(got), NB_MEM_HOST, &mh[0]), 0);
    ck_assert_ptr_nonnull(mh[0]);
    ck_assert_int_eq(notes->reg_type, NB_MEM_HOST);
    ck_assert_int_eq(net->ops->poll_fds(e.recv, 0, fds, 4), 0); /* no request in flight: sleep */
    notes->refuse = 2;
    ck_assert_int_eq(net->ops->irecv(e.recv, 3, data, sizes, tags, mh, &recv), 0);
    ck_assert_ptr_null(recv);
    ck_assert_int_eq(net->ops->isend(e.send, sent[0], 1, 5, NULL, &req[0]), 0);
    ck_assert_ptr_null(req[0]);
    ck_assert_int_eq(net->ops->poll_fds(e.send, 1, fds, 4), 0);
    ck_assert_uint_eq(net->ops->wire_bytes(e.send), 0);

    ck_assert_int_eq(net->ops->irecv(e.recv, 3, data, sizes, tags, mh, &recv), 0);
    ck_assert_ptr_nonnull(recv);
    ck_assert(notes->recv_n == 3 && notes->recv_sizes[2] == 300 && notes->recv_tags[1] == 6);
    ck_assert_int_eq(net->ops->test(recv, &done, came), 0);
    ck_assert_int_eq(done, 0);
    /* in flight, without a descriptor to sleep on */
    ck_assert_int_eq(net->ops->poll_fds(e.recv, 0, fds, 4), -1);
    for (int i = 0; i < 3; i++) {
        memset(sent[i], 'a' + i, sizeof(sent[i]));
        ck_assert_int_eq(net->ops->isend(e.send, sent[i], 100u * (unsigned)i, tags[i], NULL, &req[i]), 0);
        ck_assert_ptr_nonnull(req[i]);
        ck_assert_uint_eq(notes->send_size, 100u * (unsigned)i);
    }
    ck_assert_uint_eq(net->ops->wire_bytes(e.send), 300);
    for (int i = 0; i < 3; i++) {
        came[0] = 9999;
        ck_assert_int_eq(net->ops->test(req[i], &done, came), 0);
        ck_assert_int_eq(done, 1);
        ck_assert_uint_eq(came[0], 100u * (unsigned)i);
    }
    ck_assert_int_eq(net->ops->poll_fds(e.send, 1, fds, 4), 0);
    came[3] = 4242;
    ck_assert_int_eq(net->ops->test(recv, &done, came), 0);
    ck_assert_int_eq(done, 1);
    ck_assert(came[0] == 0 && came[1] == 100 && came[2] == 200 && came[3] == 4242);
    ck_assert(got[1][99] == 'b' && got[1][100] == 0 && got[2][199] == 'c' && got[0][0] == 0);

    sizes[1] = (size_t)INT_MAX + 5; /* only a bound, for a flush */
    ck_assert_int_eq(net->ops->iflush(e.recv, 2, data, sizes, mh, &flush), 0);
    ck_assert(notes->flush_sizes[0] == 300 && notes->flush_sizes[1] == INT_MAX);
    ck_assert_int_eq(net->ops->test(flush, &done, NULL), 0);
    ck_assert_int_eq(done, 1);
    ck_assert_int_eq(net->ops->dereg_mr(e.recv, mh[0]), 0);
    ck_assert_int_eq(notes->open_mrs, 0);
    ck_assert_int_eq(notes->optional, 0);
    ck_assert(strlen(net->ops->peer_name(e.send)) > 0);
    for (int i = 0; i < 200; i++) { /* more than one batch of requests, all open at once */
        static void *many[200];

        ck_assert_int_eq(net->ops->isend(e.send, sent[0], 1, 50, NULL, &many[i]), 0);
        for (int k = 0; k < i; k++)
            ck_assert_ptr_ne(many[k], many[i]);
        if (i == 199)
            for (int k = 0; k < 200; k++) {
                void *one[1] = {got[0]}, *r = NULL;
                size_t cap = 10;
                const int tag = 50;

                ck_assert_int_eq(net->ops->test(many[k], &done, NULL), 0);
                ck_assert_int_eq(net->ops->irecv(e.recv, 1, one, &cap, &tag, mh, &r), 0);
                ck_assert_int_eq(net->ops->test(r, &done, NULL), 0);
                ck_assert_int_eq(done, 1);
            }
    }
    part(&e);
    down();
    ck_assert_int_eq(capture_warnings, 0);
}
END_TEST

START_TEST(dmabuf)
{
    char mem[16];
    void *mh = NULL;
    struct ends e;

    up(_i);
    join(&e, 0, -1);
    if (_i == 8) { /* its table lacks the function */
        ck_assert_int_lt(net->ops->reg_mr_dmabuf(e.send, mem, 16, NB_MEM_CUDA, 64, 3, &mh), 0);
        ck_assert(capture_has("regMrDmaBuf"));
    } else {
        ck_assert_int_eq(net->ops->reg_mr_dmabuf(e.send, mem, 16, NB_MEM_CUDA, 64, 3, &mh), 0);
        ck_assert(notes->reg_type == NB_MEM_CUDA && notes->reg_offset == 64 && notes->reg_fd == 3);
        ck_assert_int_eq(net->ops->dereg_mr(e.send, mh), 0);
    }
    part(&e);
    down();
}
END_TEST

/* An error stays, is logged once, and fails unfinished requests. Finished requests still test done. */
START_TEST(errors_stay)
{
    static const struct {
        int result, err, warns;
    } kinds[] = {{1, -EIO, 1},    {2, -EIO, 1},      {3, -EINVAL, 1},
                 {4, -EINVAL, 1}, {5, -EMSGSIZE, 1}, {6, -ECONNRESET, 0}};
    char buf[8] = "";
    void *a, *b, *data[1] = {buf}, *mh[1] = {NULL}, *r;
    size_t size = 8;
    const int tag = 1;
    int done = 0;

    up(_i);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct ends e;

        join(&e, 0, -1);
        capture_reset();
        ck_assert_int_eq(net->ops->irecv(e.recv, 1, data, &size, &tag, mh, &a), 0);
        ck_assert_int_eq(net->ops->irecv(e.recv, 1, data, &size, &tag, mh, &b), 0);
        notes->fail_test = kinds[k].result;
        ck_assert_int_eq(net->ops->test(a, &done, NULL), kinds[k].err);
        ck_assert_int_eq(done, 0);
        ck_assert_int_eq(capture_warnings, kinds[k].warns);
        ck_assert(capture_has("test of a receive"));
        ck_assert(capture_has(net->ops->peer_name(e.recv)));
        notes->fail_test = 0;
        ck_assert_int_eq(net->ops->test(a, &done, NULL), kinds[k].err);
        /* it is unfinished, and will stay so */
        ck_assert_int_eq(net->ops->test(b, &done, NULL), kinds[k].err);
        ck_assert_int_eq(net->ops->irecv(e.recv, 1, data, &size, &tag, mh, &r), kinds[k].err);
        ck_assert_ptr_null(r);
        ck_assert_int_eq(net->ops->iflush(e.recv, 1, data, &size, mh, &r), kinds[k].err);
        ck_assert_int_eq(net->ops->poll_fds(e.recv, 0, NULL, 0), -1);
        ck_assert_int_eq(net->ops->isend(e.send, buf, 3, 1, NULL, &r), 0); /* the other comm lives */
        ck_assert_int_eq(net->ops->test(r, &done, NULL), 0);
        ck_assert_int_eq(net->ops->test(b, &done, NULL), 0); /* a finished request tests done */
        ck_assert_int_eq(done, 1);
        ck_assert_int_eq(capture_warnings, kinds[k].warns);
        part(&e);
    }
    struct ends e;
    join(&e, 0, -1);
    capture_reset();
    notes->fail_isend = 2;
    ck_assert_int_eq(net->ops->isend(e.send, buf, 3, 1, NULL, &r), -EIO);
    ck_assert_ptr_null(r);
    notes->fail_isend = 0;
    ck_assert_int_eq(net->ops->isend(e.send, buf, 3, 1, NULL, &r), -EIO);
    notes->fail_irecv = 2;
    ck_assert_int_eq(net->ops->irecv(e.recv, 1, data, &size, &tag, mh, &r), -EIO);
    notes->fail_reg = 3;
    ck_assert_int_eq(net->ops->reg_mr(e.recv, buf, 8, NB_MEM_HOST, &mh[0]), -EINVAL);
    ck_assert_int_eq(capture_warnings, 3);
    part(&e);
    uint8_t handle[NB_NET_HANDLE_BYTES] = {0};
    void *comm = NULL;
    notes->fail_listen = 2;
    ck_assert_int_eq(net->ops->listen(net, 0, handle, &comm), -EIO);
    notes->fail_connect = 6;
    ck_assert_int_eq(net->ops->connect(net, 0, NULL, handle, &comm), -ECONNRESET);
    ck_assert_ptr_null(comm);
    down();
}
END_TEST

START_TEST(closing_with_open_requests)
{
    char buf[8] = "";
    void *r[40], *data[1] = {buf}, *mh[1] = {NULL};
    size_t size = 8;
    const int tag = 1;
    struct ends e;

    up(_i);
    join(&e, 0, -1);
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(net->ops->irecv(e.recv, 1, data, &size, &tag, mh, &r[i]), 0);
    part(&e);
    ck_assert_int_eq(notes->open_comms, 0);
    down();
}
END_TEST

/* ---- targets that cannot be forwarded to ---- */

static void refused(int err, const char *said)
{
    ck_assert_int_eq(open_transport(), err);
    ck_assert_msg(capture_has(said), "%s", capture_text);
    ck_assert_int_ge(capture_warnings, 1);
}

START_TEST(bad_plugins)
{
    point_at(12);
    notes->fail_init = 2;
    refused(-EIO, "init of plugin fake");
    notes->fail_init = 5;
    refused(-EINVAL, "init of plugin fake");
    notes->fail_init = 0;
    notes->fail_devices = 2;
    refused(-EIO, "devices: a system error");
    ck_assert_int_eq(notes->finalizes, 1);
    notes->fail_devices = 0;

    capture_reset();
    setenv("NIBBLE_NET_FORWARD", "no-such-plugin", 1);
    refused(-ENOENT, "libnccl-net-no-such-plugin.so");
    setenv("NIBBLE_NET_FORWARD", "libm.so.6.so", 1);
    refused(-ENOENT, "libm.so.6.so");
    setenv("NIBBLE_NET_FORWARD", "/dev/null", 1);
    refused(-ENOENT, "/dev/null");
    unsetenv("NIBBLE_NET_FORWARD");
    capture_reset();
    refused(-EINVAL, "NIBBLE_NET=forward needs NIBBLE_NET_FORWARD");
    dlclose(fake);
}
END_TEST

/* A NIC that fails here must still be shown: the number of devices must be the same on all nodes. */
START_TEST(devices_that_fail_are_shown)
{
    struct nb_net_props p;
    int n = 0;

    point_at(11);
    notes->fail_properties = 2;
    ck_assert_int_eq(open_transport(), 0);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(net->ops->properties(net, 1, &p), 0);
    ck_assert_str_eq(p.name, "forward1");
    ck_assert(capture_has("device 1 of transport forward does not report its properties"));
    notes->fail_properties = 0;
    context_down(&context);
    capture_reset();
    notes->device_type = 1; /* NCCL's kernels drive it */
    ck_assert_int_eq(open_transport(), 0);
    ck_assert(capture_has("cannot be forwarded"));
    notes->device_type = 0;
    down();
}
END_TEST

/* NIBBLE_NET_FORWARD alone suffices. NIBBLE_NET=tcp wins over it. */
START_TEST(choice)
{
    point_at(9);
    setenv("NIBBLE_NET", "auto", 1);
    ck_assert_int_eq(open_transport(), 0);
    ck_assert_str_eq(net->ops->name, "forward");
    ck_assert(capture_has("transport forward: NIBBLE_NET_FORWARD is set"));
    context_down(&context);
    setenv("NIBBLE_NET", "tcp", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ck_assert_int_eq(open_transport(), 0);
    ck_assert_str_eq(net->ops->name, "tcp");
    context_down(&context);
    setenv("NIBBLE_NET", "forward", 1); /* this very library is under another nibble */
    setenv("NIBBLE_DEVS_PER_NIC", "4", 1);
    int n = 0;
    memset(&context, 0, sizeof(context));
    ck_assert_int_eq(nb_params_read(&context.params), 0);
    context.forwarded_to = true;
    ck_assert_int_eq(nb_net_open(&context), 0);
    net = context.net;
    ck_assert_str_ne(net->ops->name, "forward");
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 1);
    context_down(&context);
    dlclose(fake);
}
END_TEST

/* Open the plugin file itself as NCCL does, with itself as the target. */
START_TEST(not_to_itself)
{
    void *lib = dlopen(environment_plugin(), RTLD_NOW | RTLD_LOCAL);
    ncclNetCommConfig_v12_t config = {.trafficClass = -1};
    const ncclNet_v12_t *table = lib ? dlsym(lib, "ncclNetPlugin_v12") : NULL;
    void *ctx = NULL;

    ck_assert_ptr_nonnull(table);
    capture_reset();
    setenv("NIBBLE_NET", "forward", 1);
    setenv("NIBBLE_NET_FORWARD", environment_plugin(), 1);
    ck_assert_int_ne(table->init(&ctx, 1, &config, capture_log, NULL), ncclSuccess);
    ck_assert_msg(capture_has("is nibble itself"), "%s", capture_text);
    dlclose(lib);
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE("forward", LOOP(the_newest_table_is_taken_and_initialised, 8, 13),
                 LOOP(devices_are_the_plugins, 8, 13),
                 LOOP(connections_carry_device_and_traffic_class, 8, 13),
                 LOOP(more_traffic_classes_than_contexts, 8, 13), LOOP(messages_pass, 8, 13),
                 LOOP(dmabuf, 8, 13), LOOP(errors_stay, 8, 13), LOOP(closing_with_open_requests, 8, 13),
                 TEST(bad_plugins), TEST(devices_that_fail_are_shown), TEST(choice), TEST(not_to_itself));
}
