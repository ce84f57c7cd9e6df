/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: its devices, their properties, and the choice of NIBBLE_NET=auto. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "fake_verbs.h"
#include "net/verbs/internal.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

static struct nb_net *net;

/* Return "name:port name:port ..." of all devices. */
static const char *names(void)
{
    static char text[512];
    struct nb_net_props p;
    int n = 0;

    text[0] = '\0';
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(net->ops->properties(net, i, &p), 0);
        sprintf(text + strlen(text), "%s%s", i ? " " : "", p.name);
    }
    return text;
}

/* ---- properties ---- */

START_TEST(properties)
{
    struct nb_net_props p;
    int n = 0;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(net->ops->properties(net, 0, &p), 0);
    ck_assert_str_eq(p.name, "fake0");
    ck_assert_str_eq(p.pci_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    ck_assert_uint_eq(p.guid, 0x1000);
    ck_assert_int_eq(p.speed_mbps, 100000); /* EDR, four lanes */
    ck_assert_int_eq(p.rate_mbps, 100000);
    ck_assert_int_eq(p.port, 1);
    ck_assert_int_eq(p.mem_support, NB_MEM_HOST);
    ck_assert_int_eq(p.max_recvs, 8);
    ck_assert_uint_gt(p.max_bytes, (size_t)1 << 37);
    ck_assert_int_eq(net->ops->properties(net, 2, &p), -EINVAL);
    ck_assert_int_eq(net->ops->properties(net, -1, &p), -EINVAL);
    net_down();
}
END_TEST

START_TEST(more_ports_than_devices)
{
    int n = 0;

    fake.devices = 1;
    fake.device[0].ports = NB_NET_MAX_DEVS + 2;
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, NB_NET_MAX_DEVS);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_msg(strstr(last_warning(), "fake0:65 and those after it are left out") != NULL, "%s",
                  last_warning());
    net_down();
}
END_TEST

START_TEST(speeds)
{
    static const struct {
        uint8_t speed, width;
        uint64_t query;
        const char *setting;
        int mbps;
    } cases[] = {
        {1, 2, 0, NULL, 10000},
        {4, 2, 0, NULL, 40000},
        {16, 2, 0, NULL, 56000},
        {64, 2, 0, NULL, 200000},
        {128, 2, 0, NULL, 400000},
        {128, 1, 0, NULL, 100000},
        {64, 16, 0, NULL, 100000},
        {128, 2, 8000, NULL, 800000},
        {128, 2, 8000, "NCCL_IB_QUERY_PORT_SPEED=0", 400000},
    };
    struct nb_net_props p;

    fake.device[0].port[0].speed = cases[_i].speed;
    fake.device[0].port[0].width = cases[_i].width;
    fake.port_speed = cases[_i].query;
    net = net_up(cases[_i].setting, NULL);
    ck_assert_int_eq(net->ops->properties(net, 0, &p), 0);
    ck_assert_int_eq(p.speed_mbps, cases[_i].mbps);
    net_down();
}
END_TEST

START_TEST(gpu_memory)
{
    struct nb_net_props p;

    fake.peermem = _i & 1;
    fake.dmabuf = _i & 2;
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->properties(net, 0, &p), 0);
    ck_assert_int_eq(p.mem_support, NB_MEM_HOST | (_i & 1 ? NB_MEM_CUDA : 0) | (_i & 2 ? NB_MEM_DMABUF : 0));
    net_down();
}
END_TEST

/* Messages are sent from two places where the adapter gathers. */
START_TEST(parts)
{
    static uint8_t bytes[2 * 4096];
    const struct fake_entry *e;
    struct nb_net_part part[2];
    struct nb_net_props props;
    struct pair p;
    void *req[2];
    int most = 1;

    fake.device[0].max_sge = _i + 1;
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->properties(net, 0, &props), 0);
    ck_assert_int_eq(props.parts, _i);
    pair_open(&p, 1);
    for (int i = 0; (e = fake_log(FAKE_CREATE_QP, -1, i)); i++)
        most = (int)e->cap.max_send_sge > most ? (int)e->cap.max_send_sge : most;
    ck_assert_int_eq(most, _i + 1);
    for (int i = 0; i < 2; i++)
        part[i] = (struct nb_net_part){bytes + 5000 * i, 10, mh(p.send, bytes, sizeof(bytes))};
    ck_assert_int_eq(net->ops->isend_parts(p.send, part, 0, &req[0]), _i ? 0 : -EOPNOTSUPP);
    ck_assert_int_eq(warnings(), !_i);
    if (_i)
        ck_assert_int_eq(wait_all((void *[]){post_recv(p.recv, bytes + 6000, 20, 0), req[0]}, 2, 5000), 0);
    part[1].data = bytes + 10; /* one place */
    req[0] = post_recv(p.recv, bytes + 6000, 20, 0);
    ck_assert_int_eq(net->ops->isend_parts(p.send, part, 0, &req[1]), 0);
    ck_assert_int_eq(wait_all(req, 2, 5000), 0);
    pair_close(&p);
    net_down();
}
END_TEST

/* ---- selection ---- */

/* Make four adapters. The last has two ports. */
static void four(void)
{
    static const char *const name[] = {"mlx5_0", "mlx5_1", "mlx5_10", "bnxt_re0"};

    fake.devices = 4;
    for (int i = 0; i < 4; i++) {
        if (i > 1)
            fake.device[i] = fake.device[1];
        fake.device[i].name = name[i];
        fake.device[i].pci = NULL;
    }
    fake.device[3].ports = 2;
    fake.device[3].port[1] = fake.device[3].port[0];
}

static const struct {
    const char *hca, *names;
} filters[] = {
    {NULL, "mlx5_0 mlx5_1 mlx5_10 bnxt_re0 bnxt_re0:2"},
    {"NCCL_IB_HCA=mlx5", "mlx5_0 mlx5_1 mlx5_10"},
    {"NCCL_IB_HCA=mlx5_1", "mlx5_1 mlx5_10"},
    {"NCCL_IB_HCA==mlx5_1", "mlx5_1"},
    {"NCCL_IB_HCA==mlx5_1,bnxt_re0:1", "mlx5_1 bnxt_re0"},
    {"NCCL_IB_HCA=bnxt_re0:2", "bnxt_re0:2"},
    {"NCCL_IB_HCA=^mlx5", "bnxt_re0 bnxt_re0:2"},
    {"NCCL_IB_HCA=^mlx5_1", "mlx5_0 bnxt_re0 bnxt_re0:2"},
    {"NCCL_IB_HCA=^=mlx5_1", "mlx5_0 mlx5_10 bnxt_re0 bnxt_re0:2"},
    {"NCCL_IB_HCA=^=mlx5_1,bnxt_re0:2", "mlx5_0 mlx5_10 bnxt_re0"},
    {"NCCL_IB_HCA==mlx5_0:1:3:0,mlx5_10:", "mlx5_0 mlx5_10"},
};

START_TEST(filter)
{
    four();
    net = net_up(filters[_i].hca, NULL);
    ck_assert_str_eq(names(), filters[_i].names);
    net_down();
}
END_TEST

/* Ports that are down are left out, unless the setting names them exactly, as ports that all nodes have. */
START_TEST(down_ports)
{
    four();
    fake.device[1].port[0].down = true;
    net = net_up(_i ? "NCCL_IB_HCA==mlx5_0,mlx5_1" : "NCCL_IB_HCA=mlx5", NULL);
    ck_assert_str_eq(names(), _i ? "mlx5_0 mlx5_1" : "mlx5_0 mlx5_10");
    ck_assert_int_eq(warnings(), _i);
    net_down();
}
END_TEST

/* Devices come by bus number, in any order of the library. Devices without a place come last. */
START_TEST(pci_order)
{
    static const char *const pci[] = {"/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", NULL,
                                      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1",
                                      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"};

    four();
    fake.device[3].ports = 1;
    for (int i = 0; i < 4; i++)
        fake.device[i].pci = pci[i];
    net = net_up(_i ? "NCCL_IB_DEVICE_PCI_ORDER=0" : "NCCL_IB_DEVICE_PCI_ORDER=1", NULL);
    ck_assert_str_eq(names(), _i ? "mlx5_0 mlx5_1 mlx5_10 bnxt_re0" : "bnxt_re0 mlx5_10 mlx5_0 mlx5_1");
    net_down();
}
END_TEST

/* Two functions and a virtual function of one card share a place, and get their own ports there. */
START_TEST(one_card)
{
    static const char *const pci[] = {"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
                                      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1",
                                      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:02.3",
                                      "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0"};
    static const int merged[] = {1, 2, 3, 1}, apart[] = {1, 2, 1, 1};
    struct nb_net_props p;

    four();
    fake.device[3].ports = 1;
    for (int i = 0; i < 4; i++)
        fake.device[i].pci = pci[i];
    net = net_up(_i ? "NCCL_IB_MERGE_VFS=0" : "NCCL_IB_MERGE_VFS=1", NULL);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(net->ops->properties(net, i, &p), 0);
        ck_assert_int_eq(p.port, _i ? apart[i] : merged[i]);
        if (i == 2)
            ck_assert_str_eq(p.pci_path, _i ? "/sys/devices/pci0000:00/0000:00:01.0/0000:01:02.0"
                                            : "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    }
    net_down();
}
END_TEST

/* One adapter that cannot be opened, or queried, leaves the other adapters usable. */
START_TEST(broken_adapter)
{
    static const char *const calls[] = {"open_device", "query_device", "query_port"};

    fake_fail_call(calls[_i], 1, EACCES);
    net = net_up(NULL, NULL);
    ck_assert_str_eq(names(), "fake1");
    ck_assert_ptr_nonnull(logged(strerror(EACCES)));
    net_down();
}
END_TEST

/* ---- registrations ---- */

START_TEST(cache)
{
    static uint8_t memory[10 * 4096] __attribute__((aligned(4096)));
    void *a, *b, *c, *d;
    struct pair p;
    int base;

    fake.peermem = true;
    net = net_up("NCCL_GDR_FLUSH_DISABLE=1", NULL);
    pair_open(&p, 1);
    base = fake_counts().mrs;
    ck_assert_int_eq(net->ops->reg_mr(p.send, memory + 100, 4 * 4096, NB_MEM_HOST, &a), 0);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, memory + 4096, 4096, NB_MEM_HOST, &b), 0);
    ck_assert_ptr_eq(a, b); /* inside the first, on another comm of the adapter */
    ck_assert_int_eq(net->ops->reg_mr(p.recv, memory + 4096, 6 * 4096, NB_MEM_HOST, &c), 0);
    ck_assert_ptr_ne(a, c);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, memory + 4096, 4096, NB_MEM_CUDA, &d), 0);
    ck_assert_ptr_ne(a, d);
    ck_assert_int_eq(fake_counts().mrs, base + 3);
    ck_assert_uint_eq(((struct nb_verbs_mr *)a)->bytes, 5 * 4096); /* whole pages */
    ck_assert_int_eq(net->ops->dereg_mr(p.send, a), 0);
    ck_assert_int_eq(fake_counts().mrs, base + 3);
    ck_assert_int_eq(net->ops->dereg_mr(p.send, b), 0);
    ck_assert_int_eq(fake_counts().mrs, base + 2);
    ck_assert_int_eq(net->ops->dereg_mr(p.send, c), 0);
    ck_assert_int_eq(net->ops->dereg_mr(p.send, d), 0);
    ck_assert_int_eq(fake_counts().mrs, base);
    /* Many, in any order. */
    for (int round = 0; round < 20; round++) {
        void *m[9];

        for (int i = 0; i < 9; i++)
            ck_assert_int_eq(
                net->ops->reg_mr(p.send, memory + (i * 7 + round) % 9 * 4096, 4096, NB_MEM_HOST, &m[i]), 0);
        ck_assert_int_eq(fake_counts().mrs, base + 9);
        for (int i = 0; i < 9; i++)
            ck_assert_int_eq(net->ops->dereg_mr(p.recv, m[(i * 4 + round) % 9]), 0);
    }
    ck_assert_int_eq(fake_counts().mrs, base);
    pair_down(&p);
}
END_TEST

START_TEST(dmabuf)
{
    static uint8_t memory[3 * 4096] __attribute__((aligned(4096)));
    const struct fake_entry *e;
    struct pair p;
    void *m;

    fake.dmabuf = true;
    net = pair_up(&p, 1);
    fake_forget();
    ck_assert_int_eq(net->ops->reg_mr_dmabuf(p.recv, memory + 4096, 5000, NB_MEM_CUDA, 8192, 33, &m), 0);
    e = fake_log(FAKE_REG, -1, 0);
    ck_assert_int_eq(e->fd, 33);
    ck_assert_uint_eq(e->offset, 8192);
    ck_assert_uint_eq(e->addr, (uint64_t)(uintptr_t)memory + 4096);
    ck_assert_uint_eq(e->length, 8192);
    ck_assert(e->access & IBV_ACCESS_RELAXED_ORDERING);
    ck_assert_int_eq(net->ops->dereg_mr(p.recv, m), 0);
    ck_assert_int_eq(net->ops->reg_mr_dmabuf(p.recv, memory, 5000, NB_MEM_CUDA, 0, -1, &m), -EINVAL);
    pair_down(&p);
    /* A driver without DMA-BUF. */
    fake.dmabuf = false;
    net = pair_up(&p, 1);
    ck_assert_int_eq(net->ops->reg_mr_dmabuf(p.recv, memory, 5000, NB_MEM_CUDA, 0, 33, &m), -EINVAL);
    ck_assert_ptr_nonnull(strstr(last_warning(), "not supported"));
    pair_down(&p);
}
END_TEST

/* ---- NIBBLE_NET=auto ---- */

enum world {
    NO_LIBRARY,
    NOT_A_LIBRARY,
    NO_KERNEL,
    NO_DEVICES,
    DOWN,
    FILTERED,
    DOWN_AND_FILTERED,
    DISABLED,
    WORKS
};

static const struct {
    enum world world;
    const char *line;
    bool warn;
    const char *setting;
} worlds[] = {
    {NO_LIBRARY, "libnosuchverbs.so.1: cannot open shared object file", false, NULL},
    {NOT_A_LIBRARY, "libibverbs has no ibv_fork_init", false, NULL},
    {NO_KERNEL, "libibverbs finds no RDMA device", false, NULL},
    {NO_DEVICES, "libibverbs finds no RDMA device", false, NULL},
    {DOWN, "no active RDMA port: fake0:1, fake1:1 down", true, NULL},
    {FILTERED, "NCCL_IB_HCA==mlx5_7 matches no RDMA port: there is fake0:1, fake1:1", true,
     "NCCL_IB_HCA==mlx5_7"},
    {DOWN_AND_FILTERED, "not in NCCL_IB_HCA==fake0", true, "NCCL_IB_HCA==fake0"},
    {DISABLED, "NCCL_IB_DISABLE=1", false, "NCCL_IB_DISABLE=1"},
    {WORKS, NULL, false, NULL},
};

/* One line must say the choice and its reason, and the job runs on. */
START_TEST(automatic)
{
    struct nb_net *other;
    enum world w = worlds[_i].world;

    if (w == NO_LIBRARY || w == NOT_A_LIBRARY) {
        fake_end();
        nb_verbs_lib_names[0] = w == NO_LIBRARY ? "libnosuchverbs.so" : "libm.so.6";
        nb_verbs_lib_names[1] = w == NO_LIBRARY ? "libnosuchverbs.so.1" : "libm.so.6";
    }
    fake.no_kernel = w == NO_KERNEL;
    if (w == NO_DEVICES)
        fake.devices = 0;
    fake.device[0].port[0].down = fake.device[1].port[0].down = w == DOWN;
    if (w == DOWN_AND_FILTERED)
        fake.device[0].port[0].down = true;
    net_transport = "auto";
    net = net_up(worlds[_i].setting, NULL);
    ck_assert_str_eq(net->ops->name, w == WORKS ? "verbs" : "tcp");
    ck_assert_int_eq(times_logged(w == WORKS ? "transport verbs: " : "transport tcp: "), 1);
    ck_assert_int_eq(warnings(), worlds[_i].warn);
    if (worlds[_i].line)
        ck_assert_msg(strstr(logged("transport tcp: "), worlds[_i].line), "%s", logged("transport tcp: "));
    net_down();
    if (w == WORKS)
        return;
    /* When the setting names it, it is an error with the same reason. */
    setenv("NIBBLE_NET", "verbs", 1);
    if (worlds[_i].setting) {
        char *s = strdup(worlds[_i].setting), *eq = strchr(s, '=');

        *eq = '\0';
        setenv(s, eq + 1, 1);
        free(s);
    }
    capture_log();
    ck_assert_int_eq(net_open(&other), -ENODEV);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_msg(strstr(last_warning(), worlds[_i].line), "%s", last_warning());
}
END_TEST

/* The transport tries NCCL_IBVERBS_LIB first, and the usual names after it. */
START_TEST(library_name)
{
    fake_end();
    nb_verbs_lib_names[0] = nb_verbs_lib_names[1] = "libnosuchverbs.so";
    net_transport = "auto";
    net = net_up("NCCL_IBVERBS_LIB=libm.so.6", NULL);
    ck_assert_str_eq(net->ops->name, "tcp");
    net_down();
    if (access("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", F_OK) != 0)
        return;
    net = net_up("NCCL_IBVERBS_LIB=/usr/lib/x86_64-linux-gnu/libibverbs.so.1", NULL);
    ck_assert(strcmp(net->ops->name, "verbs") == 0 || logged("no RDMA device") ||
              logged("no active RDMA port"));
    net_down();
}
END_TEST

/* Any adapters of this machine must be taken, or left with a reason, and the same a second time. */
START_TEST(this_machine)
{
    fake_end();
    net_transport = "auto";
    for (int i = 0; i < 2; i++) {
        int n = 0;

        net = net_up(NULL, NULL);
        ck_assert_int_eq(net->ops->devices(net, &n), 0);
        ck_assert_int_ge(n, 1);
        ck_assert_int_eq(times_logged("transport "), 1);
        net_down();
    }
}
END_TEST

/* Each context has its own adapters, settings and registrations. */
START_TEST(two_contexts)
{
    struct nb_params params = *nb_params_defaults();
    struct nb_context second = {.params = &params};
    uint8_t handle[NB_NET_HANDLE_BYTES], sent[100] = "there", got[100] = "";
    void *listen, *send = NULL, *recv = NULL, *mr[2], *req[2], *to = got;
    const struct nb_net_ops *ops;
    size_t size = sizeof(got);
    int tag = 0, contexts;
    struct pair p;

    net = net_up(NULL, NULL);
    ops = net->ops;
    contexts = fake_counts().contexts;
    setenv("NCCL_IB_HCA", "fake1", 1);
    params.devs_per_nic = 3;
    ck_assert_int_eq(nb_net_open_with(&second, &nb_net_verbs), 0);
    unsetenv("NCCL_IB_HCA");
    ck_assert_str_eq(names(), "fake0 fake1");
    ck_assert_int_eq(second.net->ops->devices(second.net, &tag), 0);
    ck_assert_int_eq(tag, 3);
    ck_assert_int_eq(ops->listen(net, 1, handle, &listen), 0);
    for (int64_t end = patient_ms() + 60000; !send || !recv;) {
        if (!send)
            ck_assert_int_eq(ops->connect(second.net, 0, NULL, handle, &send), 0);
        if (!recv)
            ck_assert_int_eq(ops->accept(listen, &recv), 0);
        ck_assert_int_lt(patient_ms(), end);
    }
    ck_assert_int_eq(ops->reg_mr(send, sent, sizeof(sent), NB_MEM_HOST, &mr[0]), 0);
    ck_assert_int_eq(ops->reg_mr(recv, got, sizeof(got), NB_MEM_HOST, &mr[1]), 0);
    ck_assert_int_eq(ops->irecv(recv, 1, &to, &size, &tag, &mr[1], &req[1]), 0);
    ck_assert_int_eq(ops->isend(send, sent, sizeof(sent), tag, mr[0], &req[0]), 0);
    ck_assert_int_eq(wait_all(req, 2, 60000), 0);
    ck_assert_str_eq((char *)got, "there");
    ck_assert_int_eq(ops->dereg_mr(send, mr[0]), 0);
    ck_assert_int_eq(ops->dereg_mr(recv, mr[1]), 0);
    ck_assert_int_eq(ops->close_send(send), 0);
    ck_assert_int_eq(ops->close_recv(recv), 0);
    ck_assert_int_eq(ops->close_listen(listen), 0);
    nb_net_close(&second);
    ck_assert_int_eq(fake_counts().contexts, contexts);
    pair_open(&p, 1); /* the first transport lives on */
    pair_close(&p);
    ck_assert_int_eq(warnings(), 0);
    net_down();
}
END_TEST

SUITE_MAIN("net/verbs_dev", FIXTURE(verbs_before, verbs_after), TEST(properties),
           TEST(more_ports_than_devices), LOOP(speeds, 0, 9), LOOP(gpu_memory, 0, 4), LOOP(parts, 0, 2),
           LOOP(filter, 0, COUNT(filters)), LOOP(down_ports, 0, 2), LOOP(pci_order, 0, 2),
           LOOP(one_card, 0, 2), LOOP(broken_adapter, 0, 3), TEST(cache), TEST(dmabuf),
           LOOP(automatic, 0, COUNT(worlds)), TEST(library_name), TEST(this_machine), TEST(two_contexts))
