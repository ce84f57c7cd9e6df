/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs transport, over the fake stack: the effect of each of NCCL's variables on the verbs calls. The list
 * has all variables that the transport honours, with the test that shows the effect (here, in verbs_dev.c: D,
 * or in verbs_gid.c: G). bad_value has each except names of files and adapters.
 *   NCCL_IB_ADAPTIVE_ROUTING    adaptive_routing     NCCL_IB_PKEY                    pkey
 *   NCCL_IB_ADDR_FAMILY         roce_gid (G)         NCCL_IB_QPS_PER_CONNECTION      queue_pairs
 *   NCCL_IB_ADDR_RANGE          roce_gid (G)         NCCL_IB_QUERY_PORT_SPEED        speeds (D)
 *   NCCL_IB_AR_THRESHOLD        adaptive_routing     NCCL_IB_RETRY_CNT               retry_cnt
 *   NCCL_IB_DEVICE_PCI_ORDER    pci_order (D)        NCCL_IB_RETURN_ASYNC_EVENTS     return_async_events
 *   NCCL_IB_DISABLE             automatic (D)        NCCL_IB_ROCE_VERSION_NUM        roce_gid (G)
 *   NCCL_IB_FIFO_TC             fifo_traffic_class   NCCL_IB_ROUTABLE_FLID_GID_INDEX infiniband (G)
 *   NCCL_IB_GID_INDEX           roce_gid (G)         NCCL_IB_SL                      service_level
 *   NCCL_IB_HCA                 filter (D)           NCCL_IB_SPLIT_DATA_ON_QPS       whole_or_split
 *   NCCL_IB_MERGE_VFS           one_card (D)         NCCL_IB_TC                      traffic_class
 *   NCCL_IB_MQP_RETRY_ALL       modify_retries       NCCL_IB_TIMEOUT                 timeout
 *   NCCL_IB_MQP_RETRY_CNT       modify_retries       NCCL_IB_USE_INLINE              inline_clears
 *   NCCL_IB_MQP_RETRY_SLEEP_MSEC modify_sleep        NCCL_GDR_FLUSH_DISABLE          flush
 *   NCCL_IB_PCI_RELAXED_ORDERING relaxed_ordering    NCCL_IBVERBS_LIB                library_name (D)
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_verbs.h"
#include "net/verbs/internal.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

#define SIZE 100000

static struct nb_net *net;
static struct pair p;
static uint8_t dst[SIZE];

/* Make a connection with one more setting, and close it. */
static void connect_once(const char *setting, int traffic_class)
{
    struct nb_net_conn_cfg cfg = {.traffic_class = traffic_class};

    net = net_up(setting, NULL);
    fake_forget();
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    for (int64_t end = patient_ms() + 5000; (!p.send || !p.recv) && patient_ms() < end;) {
        if (!p.send)
            ck_assert_int_eq(net->ops->connect(net, 0, &cfg, p.handle, &p.send), 0);
        if (!p.recv)
            ck_assert_int_eq(net->ops->accept(p.listen, &p.recv), 0);
    }
    exchange(&p, 1000);
    pair_down(&p);
}

/* ---- queue pairs ---- */

START_TEST(defaults)
{
    connect_once(NULL, -1);
    ck_assert_int_eq(fake_logged(FAKE_CREATE_QP, -1), 2);
    for (int i = RECEIVER; i <= SENDER; i++) {
        ck_assert_int_eq(modified(IBV_QPS_INIT, i)->pkey_index, 0);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->path_mtu, IBV_MTU_4096);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->min_rnr_timer, 12);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->ah_attr.is_global, 1);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->ah_attr.grh.hop_limit, 255);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->ah_attr.grh.sgid_index, 3); /* IPv4, RoCE v2 */
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->ah_attr.grh.traffic_class, 0);
        ck_assert_int_eq(modified(IBV_QPS_RTR, i)->ah_attr.sl, 0);
        ck_assert_int_eq(modified(IBV_QPS_RTS, i)->timeout, 20);
        ck_assert_int_eq(modified(IBV_QPS_RTS, i)->retry_cnt, 7);
        ck_assert_int_eq(modified(IBV_QPS_RTS, i)->rnr_retry, 7);
        ck_assert_uint_eq(fake_log(FAKE_CREATE_QP, -1, i)->cap.max_inline_data, 0);
    }
    ck_assert_int_eq(fake_counts().fork_inits, 1);
}
END_TEST

START_TEST(timeout)
{
    connect_once("NCCL_IB_TIMEOUT=14", -1);
    ck_assert_int_eq(modified(IBV_QPS_RTS, RECEIVER)->timeout, 14);
    ck_assert_int_eq(modified(IBV_QPS_RTS, SENDER)->timeout, 14);
}
END_TEST

START_TEST(retry_cnt)
{
    connect_once("NCCL_IB_RETRY_CNT=3", -1);
    ck_assert_int_eq(modified(IBV_QPS_RTS, RECEIVER)->retry_cnt, 3);
    ck_assert_int_eq(modified(IBV_QPS_RTS, SENDER)->retry_cnt, 3);
}
END_TEST

START_TEST(pkey)
{
    connect_once("NCCL_IB_PKEY=5", -1);
    ck_assert_int_eq(modified(IBV_QPS_INIT, RECEIVER)->pkey_index, 5);
    ck_assert_int_eq(modified(IBV_QPS_INIT, SENDER)->pkey_index, 5);
}
END_TEST

START_TEST(service_level)
{
    connect_once("NCCL_IB_SL=6", 9);
    ck_assert_int_eq(modified(IBV_QPS_RTR, RECEIVER)->ah_attr.sl, 6);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.sl, 6);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.traffic_class, 9);
}
END_TEST

START_TEST(traffic_class)
{
    connect_once("NCCL_IB_TC=106", 9);
    ck_assert_int_eq(modified(IBV_QPS_RTR, RECEIVER)->ah_attr.grh.traffic_class, 106);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.traffic_class, 106);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.sl, 9); /* the communicator's, as NCCL has it */
}
END_TEST

START_TEST(fifo_traffic_class)
{
    connect_once("NCCL_IB_FIFO_TC=41", 9);
    ck_assert_int_eq(modified(IBV_QPS_RTR, RECEIVER)->ah_attr.grh.traffic_class, 41);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->ah_attr.grh.traffic_class, 9);
}
END_TEST

START_TEST(mtu)
{
    fake.device[0].port[0].mtu = IBV_MTU_1024;
    connect_once(NULL, -1);
    ck_assert_int_eq(modified(IBV_QPS_RTR, SENDER)->path_mtu, IBV_MTU_1024);
}
END_TEST

START_TEST(inline_clears)
{
    const struct fake_entry *e;

    connect_once("NCCL_IB_USE_INLINE=1", -1);
    ck_assert_uint_eq(fake_log(FAKE_CREATE_QP, -1, SENDER)->cap.max_inline_data +
                          fake_log(FAKE_CREATE_QP, -1, RECEIVER)->cap.max_inline_data,
                      NB_VERBS_GRANT_USED(NB_NET_MAX_RECVS));
    e = fake_log(FAKE_POST, -1, 0);
    ck_assert_ptr_nonnull(e);
    ck_assert_uint_eq(e->bytes, NB_VERBS_GRANT_USED(1));
    ck_assert(e->flags & IBV_SEND_INLINE);
    fake_reset();
    connect_once("NCCL_IB_USE_INLINE=0", -1);
    ck_assert(!(fake_log(FAKE_POST, -1, 0)->flags & IBV_SEND_INLINE));
}
END_TEST

START_TEST(queue_pairs)
{
    connect_once("NCCL_IB_QPS_PER_CONNECTION=4", -1);
    ck_assert_int_eq(fake_logged(FAKE_CREATE_QP, -1), 8);
}
END_TEST

/* Slow address resolution is tried again, as often as the setting says, and only for its own error. */
START_TEST(modify_retries)
{
    static const struct {
        const char *a, *b;
        int err, fails;
        bool works;
    } cases[] = {
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=1", NULL, ETIMEDOUT, 3, true},
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=1", "NCCL_IB_MQP_RETRY_CNT=2", ETIMEDOUT, 3, false},
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=1", NULL, EINVAL, 1, false},
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=1", "NCCL_IB_MQP_RETRY_ALL=1", EINVAL, 1, true},
    };
    int64_t end = patient_ms() + 5000;
    int rc = 0, arc = 0;

    net = net_up(cases[_i].a, cases[_i].b, NULL);
    for (int i = 0; i < cases[_i].fails; i++)
        fake_fail_call("modify_qp", 3 + i, cases[_i].err);
    ck_assert_int_eq(net->ops->listen(net, 0, p.handle, &p.listen), 0);
    while ((!p.send || !p.recv) && !rc && !arc && patient_ms() < end) {
        if (!p.send)
            rc = net->ops->connect(net, 0, NULL, p.handle, &p.send);
        if (!p.recv)
            arc = net->ops->accept(p.listen, &p.recv);
    }
    if (cases[_i].works) {
        ck_assert_msg(rc == 0 && arc == 0, "%s", last_warning());
        exchange(&p, 100);
    } else {
        ck_assert(rc != 0 || arc != 0);
    }
    pair_down(&p);
}
END_TEST

/* Return the time that connecting takes with this setting when `tries` calls fail. */
static int64_t connect_retrying(const char *setting, int tries)
{
    int64_t begin, took;

    net = net_up(setting, NULL);
    for (int i = 0; i < tries; i++)
        fake_fail_call("modify_qp", 3 + i, ETIMEDOUT);
    begin = now_ms();
    pair_open(&p, 1);
    took = now_ms() - begin;
    pair_down(&p);
    return took;
}

/* The wait grows with each try: the setting once, twice, ... It must never be shorter. In one of several runs
 * it must not be much longer, since other processes may run on this processor. */
START_TEST(modify_sleep)
{
    static const struct {
        const char *setting;
        int tries, least_ms, most_ms;
    } cases[] = {
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=1", 7, 28, 2800}, /* the default would take these */
        {"NCCL_IB_MQP_RETRY_SLEEP_MSEC=150", 2, 450, 5000},
        {NULL, 2, 300, 5000},
    };
    int64_t took = cases[_i].most_ms;

    for (int i = 0; i < 10 && took >= cases[_i].most_ms; i++) {
        took = connect_retrying(cases[_i].setting, cases[_i].tries);
        ck_assert_int_ge(took, cases[_i].least_ms - 20); /* the transport's clock is a coarse one */
    }
    ck_assert_int_lt(took, cases[_i].most_ms);
}
END_TEST

/* ---- how messages travel ---- */

START_TEST(whole_or_split)
{
    const uint8_t *to = NULL;

    net = net_up("NCCL_IB_QPS_PER_CONNECTION=4",
                 _i ? "NCCL_IB_SPLIT_DATA_ON_QPS=1" : "NCCL_IB_SPLIT_DATA_ON_QPS=0", NULL);
    pair_open(&p, 0);
    fake_forget();
    for (int k = 0; k < 4; k++)
        to = exchange(&p, SIZE);
    if (_i) {
        /* 4 clears, and 4 times 4 pieces, which begin at multiples of 128 bytes */
        ck_assert_int_eq(fake_logged(FAKE_POST, -1), 4 + 16);
        for (int k = 0; k < 5; k++) {
            const struct fake_entry *e = fake_log(FAKE_POST, -1, k);

            if (k > 0)
                ck_assert_uint_eq((e->remote - (uint64_t)(uintptr_t)to) % 128, 0);
            if (k > 1)
                ck_assert_uint_ne(e->qpn, fake_log(FAKE_POST, -1, k - 1)->qpn);
        }
    } else {
        /* each message on one queue pair, the next message on the next */
        ck_assert_int_eq(fake_logged(FAKE_POST, -1), 4 + 4);
        for (int k = 1; k < 8; k += 2) {
            ck_assert_uint_eq(fake_log(FAKE_POST, -1, k)->bytes, SIZE);
            for (int j = 1; j < k; j += 2)
                ck_assert_uint_ne(fake_log(FAKE_POST, -1, k)->qpn, fake_log(FAKE_POST, -1, j)->qpn);
        }
    }
    pair_down(&p);
}
END_TEST

static const struct {
    const char *a, *b;
    int link;
    size_t size;
    int writes;
} adaptive[] = {
    {NULL, NULL, IBV_LINK_LAYER_ETHERNET, SIZE, 0},
    {NULL, NULL, IBV_LINK_LAYER_INFINIBAND, SIZE, 1},
    {NULL, NULL, IBV_LINK_LAYER_INFINIBAND, 8192, 0},
    {NULL, NULL, IBV_LINK_LAYER_INFINIBAND, 8193, 1},
    {"NCCL_IB_ADAPTIVE_ROUTING=1", NULL, IBV_LINK_LAYER_ETHERNET, SIZE, 1},
    {"NCCL_IB_ADAPTIVE_ROUTING=0", NULL, IBV_LINK_LAYER_INFINIBAND, SIZE, 0},
    {"NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=100", IBV_LINK_LAYER_ETHERNET, 101, 1},
    {"NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=100", IBV_LINK_LAYER_ETHERNET, 100, 0},
};

START_TEST(adaptive_routing)
{
    fake.device[0].port[0].link = adaptive[_i].link;
    net = adaptive[_i].a ? net_up(adaptive[_i].a, adaptive[_i].b, NULL) : net_up(NULL, NULL);
    pair_open(&p, 1);
    fake_forget();
    exchange(&p, adaptive[_i].size);
    /* The data comes first, without an immediate. A write with only the length follows. */
    ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_WRITE), adaptive[_i].writes);
    ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_WRITE_WITH_IMM), 2);
    ck_assert_uint_eq(fake_log(FAKE_POST, IBV_WR_RDMA_WRITE_WITH_IMM, 1)->bytes,
                      adaptive[_i].writes ? 8 : adaptive[_i].size);
    pair_down(&p);
}
END_TEST

/* ---- memory ---- */

START_TEST(relaxed_ordering)
{
    static const struct {
        const char *setting;
        bool old, relaxed;
    } cases[] = {
        {NULL, false, true},
        {"NCCL_IB_PCI_RELAXED_ORDERING=0", false, false},
        {"NCCL_IB_PCI_RELAXED_ORDERING=1", false, true},
        {NULL, true, false},
    };
    const struct fake_entry *e;
    void *m;

    fake.no_iova2 = cases[_i].old;
    net = net_up(cases[_i].setting, NULL);
    pair_open(&p, 1);
    /* The tables of the connection itself are written in order, always. */
    for (int i = 0; i < 2; i++)
        ck_assert(!(fake_log(FAKE_REG, -1, i)->access & IBV_ACCESS_RELAXED_ORDERING));
    fake_forget();
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_HOST, &m), 0);
    e = fake_log(FAKE_REG, -1, 0);
    ck_assert_int_eq(!!(e->access & IBV_ACCESS_RELAXED_ORDERING), cases[_i].relaxed);
    ck_assert_int_eq(e->iova2, cases[_i].relaxed);
    ck_assert(e->access & IBV_ACCESS_REMOTE_WRITE && e->access & IBV_ACCESS_REMOTE_READ);
    ck_assert_int_eq(net->ops->dereg_mr(p.recv, m), 0);
    pair_down(&p);
}
END_TEST

/* A read of this adapter itself flushes GPU memory, unless switched off. Host memory is never flushed. */
START_TEST(flush)
{
    size_t size = SIZE;
    void *data = dst, *gpu, *host, *req = NULL;

    fake.peermem = true;
    net = net_up(_i ? "NCCL_GDR_FLUSH_DISABLE=1" : "NCCL_GDR_FLUSH_DISABLE=0", NULL);
    fake_forget();
    pair_open(&p, 1);
    ck_assert_int_eq(fake_logged(FAKE_CREATE_QP, -1), 3);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_CUDA, &gpu), 0);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_HOST, &host), 0);
    ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &host, &req), 0);
    ck_assert_ptr_null(req);
    ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &req), 0);
    if (_i) {
        ck_assert_ptr_null(req);
        ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_READ), 0);
    } else {
        ck_assert_ptr_nonnull(req);
        ck_assert_int_eq(wait_req(req, NULL, 2000), 0);
        ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_READ), 1);
        ck_assert_uint_eq(fake_log(FAKE_POST, IBV_WR_RDMA_READ, 0)->bytes, 1);
        ck_assert_uint_eq(fake_log(FAKE_POST, IBV_WR_RDMA_READ, 0)->remote, (uint64_t)(uintptr_t)dst);
        size = 0;
        ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &req), 0);
        ck_assert_ptr_null(req);
        /* More at once than the queue holds, and after the peer's FIN. */
        size = SIZE;
        pair_close(&(struct pair){.send = p.send});
        p.send = NULL;
        for (int i = 0; i < 600; i++) {
            ck_assert_int_eq(net->ops->iflush(p.recv, 1, &data, &size, &gpu, &req), 0);
            ck_assert_ptr_nonnull(req);
            if (i % 300 == 299)
                ck_assert_int_eq(wait_req(req, NULL, 2000), 0);
        }
    }
    net->ops->dereg_mr(p.recv, gpu);
    net->ops->dereg_mr(p.recv, host);
    pair_down(&p);
}
END_TEST

/* The adapter copies from GPU memory with a read. It copies into GPU memory with a write and a read behind
 * it, which pushes the bytes to the GPU. Neither the peer's end nor the switch for
 * flushes prevents it. */
START_TEST(copy)
{
    static uint8_t src[SIZE];
    uint8_t *const near = src;
    void *gpu, *host, *req = NULL;

    fake.peermem = true;
    net = net_up(_i ? "NCCL_GDR_FLUSH_DISABLE=1" : "NCCL_GDR_FLUSH_DISABLE=0", NULL);
    pair_open(&p, 1);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, dst, SIZE, NB_MEM_CUDA, &gpu), 0);
    ck_assert_int_eq(net->ops->reg_mr(p.recv, src, SIZE, NB_MEM_HOST, &host), 0);
    ck_assert_int_eq(net->ops->icopy(p.recv, near, host, dst, NULL, 100, &req), -EINVAL);
    ck_assert_int_eq(net->ops->icopy(p.recv, near, host, dst, gpu, 0, &req), -EINVAL);
    for (int i = 0; i < 600; i++) {
        if (i == 300) {
            pair_close(&(struct pair){.send = p.send});
            p.send = NULL;
        }
        fake_forget();
        memset(dst, i, SIZE);
        memset(src, ~i, SIZE);
        ck_assert_int_eq(net->ops->icopy(p.recv, near + 7, host, dst + 3, gpu, 1000, &req), 0);
        ck_assert_ptr_nonnull(req);
        ck_assert_int_eq(wait_req(req, NULL, 2000), 0);
        ck_assert_mem_eq(near + 7, dst + 3, 1000);
        ck_assert_uint_eq(near[6], (uint8_t)~i);
        ck_assert_uint_eq(near[1007], (uint8_t)~i);
        ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_WRITE), 0);
        memset(src, i + 100, SIZE);
        ck_assert_int_eq(net->ops->icopy(p.recv, dst + 5, gpu, near, host, 999, &req), 0);
        ck_assert_ptr_nonnull(req);
        ck_assert_int_eq(wait_req(req, NULL, 2000), 0);
        ck_assert_mem_eq(near, dst + 5, 999);
        ck_assert_uint_eq(dst[4], (uint8_t)i);
        ck_assert_uint_eq(dst[5 + 999], (uint8_t)i);
        ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_WRITE), 1);
        ck_assert_int_eq(fake_logged(FAKE_POST, IBV_WR_RDMA_READ), 2);
        ck_assert_uint_eq(fake_log(FAKE_POST, IBV_WR_RDMA_READ, 1)->bytes, 1);
    }
    /* More at once than the queue holds. */
    void *held[600];
    int n = 0;
    for (int i = 0; i < 600; i++) {
        ck_assert_int_eq(net->ops->icopy(p.recv, dst, gpu, near, host, 10, &held[n]), 0);
        n += held[n] != NULL;
    }
    ck_assert_int_ge(n, 100);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(wait_req(held[i], NULL, 2000), 0);
    net->ops->dereg_mr(p.recv, gpu);
    net->ops->dereg_mr(p.recv, host);
    pair_down(&p);
}
END_TEST

/* ---- events ---- */

START_TEST(return_async_events)
{
    net = net_up("NCCL_IB_RETURN_ASYNC_EVENTS=0", NULL);
    pair_open(&p, 1);
    fake_event(0, _i ? IBV_EVENT_DEVICE_FATAL : IBV_EVENT_QP_FATAL, 0);
    ck_assert_int_eq(wait_req(post_recv(p.recv, dst, SIZE, 9), NULL, 50), -ETIME);
    exchange(&p, 1000);
    ck_assert_int_eq(warnings(), 1); /* logged, without a failure */
    pair_down(&p);
}
END_TEST

/* ---- bad values ---- */

static const struct {
    const char *name, *value;
} bad[] = {
    {"NCCL_IB_DISABLE", "2"},
    {"NCCL_IB_MERGE_VFS", "yes"},
    {"NCCL_IB_DEVICE_PCI_ORDER", "x"},
    {"NCCL_IB_PCI_RELAXED_ORDERING", "3"},
    {"NCCL_IB_ADAPTIVE_ROUTING", "7"},
    {"NCCL_IB_AR_THRESHOLD", "8k"},
    {"NCCL_IB_GID_INDEX", "-5"},
    {"NCCL_IB_ROUTABLE_FLID_GID_INDEX", "a"},
    {"NCCL_IB_ROCE_VERSION_NUM", "3"},
    {"NCCL_IB_ADDR_FAMILY", "IPv4"},
    {"NCCL_IB_ADDR_RANGE", "10.0.0.0"},
    {"NCCL_IB_ADDR_RANGE", "10.0.0.0/33"},
    {"NCCL_IB_ADDR_RANGE", "fd00::/8"},
    {"NCCL_IB_TIMEOUT", "32"},
    {"NCCL_IB_RETRY_CNT", "8"},
    {"NCCL_IB_PKEY", "-1"},
    {"NCCL_IB_USE_INLINE", "2"},
    {"NCCL_IB_SL", "16"},
    {"NCCL_IB_TC", "256"},
    {"NCCL_IB_FIFO_TC", "256"},
    {"NCCL_IB_QPS_PER_CONNECTION", "0"},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "2"},
    {"NCCL_IB_RETURN_ASYNC_EVENTS", "2"},
    {"NCCL_IB_QUERY_PORT_SPEED", "x"},
    {"NCCL_IB_MQP_RETRY_ALL", "2"},
    {"NCCL_IB_MQP_RETRY_CNT", "-1"},
    {"NCCL_IB_MQP_RETRY_SLEEP_MSEC", "-1"},
    {"NCCL_GDR_FLUSH_DISABLE", "2"},
};

START_TEST(bad_value)
{
    struct nb_net *other;

    net_up(NULL, NULL);
    net_close();
    capture_log();
    setenv(bad[_i].name, bad[_i].value, 1);
    for (int automatic = 0; automatic < 2; automatic++) {
        if (automatic)
            setenv("NIBBLE_NET", "auto", 1);
        ck_assert_int_eq(net_open(&other), -EINVAL);
        ck_assert_int_eq(warnings(), 1 + automatic);
        ck_assert_ptr_nonnull(strstr(last_warning(), bad[_i].name));
        ck_assert_ptr_nonnull(strstr(last_warning(), bad[_i].value));
    }
}
END_TEST

SUITE_MAIN("net/verbs_env", FIXTURE(verbs_before, verbs_after), TEST(defaults), TEST(timeout),
           TEST(retry_cnt), TEST(pkey), TEST(service_level), TEST(traffic_class), TEST(fifo_traffic_class),
           TEST(mtu), TEST(inline_clears), TEST(queue_pairs), LOOP(modify_retries, 0, 4),
           LOOP(modify_sleep, 0, 3), LOOP(whole_or_split, 0, 2), LOOP(adaptive_routing, 0, COUNT(adaptive)),
           LOOP(relaxed_ordering, 0, 4), LOOP(flush, 0, 2), LOOP(return_async_events, 0, 2),
           LOOP(relaxed_ordering, 0, 4), LOOP(copy, 0, 2), LOOP(return_async_events, 0, 2),
           LOOP(bad_value, 0, COUNT(bad)))
