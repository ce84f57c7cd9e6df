/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: the address by which a connection finds its peer: GIDs over Ethernet,
 * LIDs over InfiniBand. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "fake_verbs.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

static struct nb_net *net;
static struct pair p;

static void ip4(union ibv_gid *g, int a, int b, int c, int d)
{
    memset(g, 0, sizeof(*g));
    g->raw[10] = g->raw[11] = 0xff;
    g->raw[12] = (uint8_t)a;
    g->raw[13] = (uint8_t)b;
    g->raw[14] = (uint8_t)c;
    g->raw[15] = (uint8_t)d;
}

static void ip6(union ibv_gid *g, int first, int second, int last)
{
    memset(g, 0, sizeof(*g));
    g->raw[0] = (uint8_t)first;
    g->raw[1] = (uint8_t)second;
    g->raw[15] = (uint8_t)last;
}

/* 0, 1: fe80 v1, v2. 2, 3: 10.77.0.1 v1, v2. 4: 192.168.3.1 v2. 5: fd00::1 v2 */
static const struct {
    const char *a, *b, *c;
    int index;
} gids[] = {
    {NULL, NULL, NULL, 3},
    {"NCCL_IB_GID_INDEX=1", NULL, NULL, 1},
    {"NCCL_IB_ROCE_VERSION_NUM=1", NULL, NULL, 2},
    {"NCCL_IB_ROCE_VERSION_NUM=2", NULL, NULL, 3},
    {"NCCL_IB_ADDR_FAMILY=AF_INET6", NULL, NULL, 5},
    {"NCCL_IB_ADDR_RANGE=192.168.0.0/16", NULL, NULL, 4},
    {"NCCL_IB_ADDR_RANGE=10.77.0.0/24", "NCCL_IB_ROCE_VERSION_NUM=1", NULL, 2},
    {"NCCL_IB_ADDR_RANGE=172.16.0.0/12", NULL, NULL, 0},
    {"NCCL_IB_ADDR_FAMILY=AF_INET6", "NCCL_IB_ADDR_RANGE=fd00::/8", NULL, 5},
    {"NCCL_IB_ADDR_FAMILY=AF_INET6", "NCCL_IB_ADDR_RANGE=fd80::/9", NULL, 0},
    {"NCCL_IB_GID_INDEX=4", "NCCL_IB_ADDR_FAMILY=AF_INET6", NULL, 4},
};

START_TEST(roce_gid)
{
    struct fake_port *port = &fake.device[0].port[0];

    port->gids = 6;
    ip4(&port->gid[4], 192, 168, 3, 1);
    ip6(&port->gid[5], 0xfd, 0, 1);
    port->gid_type[4] = port->gid_type[5] = "RoCE v2";
    net = gids[_i].a ? net_up(gids[_i].a, gids[_i].b, NULL) : net_up(NULL, NULL);
    fake_forget();
    pair_open(&p, 1);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.sgid_index, gids[_i].index);
    ck_assert_mem_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.dgid.raw, port->gid[gids[_i].index].raw, 16);
    pair_down(&p);
}
END_TEST

/* A container's kernel refuses the types of indices outside the container. */
START_TEST(hidden_gid)
{
    fake.device[0].port[0].gid_type[2] = NULL;
    net = net_up(NULL, NULL);
    fake_forget();
    pair_open(&p, 1);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.sgid_index, 3);
    pair_down(&p);
}
END_TEST

START_TEST(gid_out_of_table)
{
    int rc = 0;

    net = net_up("NCCL_IB_GID_INDEX=77", NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    for (int64_t end = patient_ms() + 5000; !rc && !p.send && patient_ms() < end;)
        rc = net->ops->connect(net, 0, NULL, p.handle, &p.send);
    ck_assert_int_eq(rc, -EINVAL);
    ck_assert_ptr_nonnull(logged("GID 77 cannot be read"));
    pair_down(&p);
}
END_TEST

/* InfiniBand: by LID within a subnet, with a global header where the port asks for it or the subnets differ,
 * and by the routable LID (FLID) where there is one. */
START_TEST(infiniband)
{
    struct fake_port *port = &fake.device[0].port[0];
    const struct ibv_qp_attr *a;

    port->link = IBV_LINK_LAYER_INFINIBAND;
    port->lid = 0x123;
    if (_i == 1)
        port->flags = IBV_QPF_GRH_REQUIRED;
    if (_i >= 2) {
        port->gid[1].raw[4] = 0x0a; /* an FLID in the second GID */
        port->gid[1].raw[5] = 0x0b;
    }
    net = net_up(_i == 3 ? "NCCL_IB_ROUTABLE_FLID_GID_INDEX=2" : "NCCL_IB_ROUTABLE_FLID_GID_INDEX=1", NULL);
    fake_forget();
    pair_open(&p, 1);
    a = modified(IBV_QPS_RTR, SENDER);
    ck_assert_int_eq(a->ah_attr.dlid, 0x123);
    ck_assert_int_eq(a->ah_attr.is_global, _i == 1);
    ck_assert_int_eq(a->ah_attr.grh.sgid_index, _i == 2 ? 1 : 0);
    ck_assert_int_eq(a->ah_attr.grh.traffic_class, 0);
    exchange(&p, 1000);
    pair_down(&p);
}
END_TEST

/* Two adapters in different subnets of one fabric. */
START_TEST(infiniband_subnets)
{
    const struct ibv_qp_attr *a;

    for (int i = 0; i < 2; i++) {
        struct fake_port *port = &fake.device[i].port[0];

        port->link = IBV_LINK_LAYER_INFINIBAND;
        port->lid = (uint16_t)(0x100 + i);
        port->gid[1].raw[4] = 0x0c;
        port->gid[1].raw[5] = (uint8_t)i;
        port->gid[1].raw[7] = (uint8_t)i; /* the subnet */
    }
    net = net_up(NULL, NULL);
    fake_forget();
    ck_assert_int_eq(net->ops->listen(net, 1, p.handle, &p.listen), 0);
    for (int64_t end = patient_ms() + 5000; (!p.send || !p.recv) && patient_ms() < end;) {
        if (!p.send)
            ck_assert_int_eq(net->ops->connect(net, 0, NULL, p.handle, &p.send), 0);
        if (!p.recv)
            ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
    }
    a = modified(IBV_QPS_RTR, SENDER);
    ck_assert_int_eq(a->ah_attr.is_global, 1);
    ck_assert_int_eq(a->ah_attr.dlid, 0x0c01);
    ck_assert_int_eq(a->ah_attr.grh.sgid_index, 1);
    pair_down(&p);
}
END_TEST

SUITE_MAIN("net/verbs_gid", FIXTURE(verbs_before, verbs_after), LOOP(roce_gid, 0, COUNT(gids)),
           TEST(hidden_gid), TEST(gid_out_of_table), LOOP(infiniband, 0, 4), TEST(infiniband_subnets))
