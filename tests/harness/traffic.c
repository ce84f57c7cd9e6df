/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several things at a time: operations in flight behind each other, communicators on different threads, a
 * network that is slower than the nodes, and point-to-point traffic.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/pipeline.h"
#include "lib/suite.h"

static const char *const env_raw[] = {"NIBBLE_RS=raw", NULL};

/* ---- several operations, communicators, threads ---- */

static int queue_node(struct hx_node *node, void *arg)
{
    enum { N = 24 };
    struct hx_comm_cfg cfg = {.channels = 4,
                              .buff_size = 64 << 10,
                              .gpu_delay_us = 40,
                              .poison = true,
                              .stall_every = 50,
                              .stall_ms = 20};
    struct sx_run run[N];
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    /* Two logical communicators, a parent and its split child, use one collComm. Their operations alternate,
     * with different shapes and channel counts, in an order that is the same on all nodes. */
    for (int i = 0; i < N; i++) {
        struct sx_spec spec = {.func = (enum hx_func)(i / 2 % 3),
                               .type = i & 1 ? ncclFloat32 : ncclInt64,
                               .count = i & 1 ? 17000 : 333 + (size_t)i * 100,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)i,
                               .channels = i & 1 ? 4 : 1,
                               .chunk = i & 1 ? 0 : 1024,
                               .in_place = i / 3 & 1};

        sx_prepare(node, &spec, &run[i]);
        HX_CHECK(hx_post(comm, &run[i].op) == ncclSuccess, "post failed");
        if (i % 8 == 7)
            hx_sleep(0.02 * node->rank);
    }
    for (int i = 0; i < N; i++) {
        hx_where("operation %d of %d in flight: %s", i, N, sx_describe(&run[i].spec));
        HX_CHECK(hx_wait(comm, &run[i].op, 0) == ncclSuccess, "operation %d failed", i);
        if (sx_check(node, &run[i]))
            return 1;
        sx_free(&run[i]);
    }
    return sx_close(lib, comm, false);
}

HX_CASE(queue, sx_job("queue", 3, queue_node, NULL, env_raw))

struct second {
    struct hx_node *node;
    struct hx_comm *comm;
    int rc;
};

static void *second_main(void *arg)
{
    struct second *s = arg;

    for (int i = 0; i < 12 && !s->rc; i++) {
        struct sx_spec spec = {.func = (enum hx_func)(i % 3),
                               .type = ncclFloat32,
                               .count = 9001,
                               .fill = HX_FILL_EXACT,
                               .seed = 1000 + (uint64_t)i};

        s->rc = sx_do(s->node, s->comm, &spec, NULL);
    }
    return NULL;
}

static int two_comms_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10},
                       cfg2 = {.channels = 8, .buff_size = 64 << 10};
    struct second second = {.node = node};
    struct hx_lib *lib;
    struct hx_comm *comm;
    pthread_t thread;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    HX_CHECK(hx_comm_open(node, lib, &cfg2, &second.comm, NULL) == ncclSuccess, "second communicator");
    HX_CHECK(pthread_create(&thread, NULL, second_main, &second) == 0, "thread");
    for (int i = 0; i < 12; i++) {
        struct sx_spec spec = {.func = (enum hx_func)((i + node->nnodes) % 3),
                               .type = ncclBfloat16,
                               .count = 30001,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)i};

        if (sx_do(node, comm, &spec, NULL))
            return 1;
        hx_sleep(1e-3 * ((i * 7 + node->rank * 3) % 5));
    }
    pthread_join(thread, NULL);
    if (second.rc)
        return 1;
    HX_CHECK(hx_comm_close(second.comm) == ncclSuccess, "close of the second communicator");
    return sx_close(lib, comm, false);
}

HX_CASE(two_comms, sx_job("two communicators", 3, two_comms_node, NULL, env_raw))

/* ---- a separate network with a rate limit ---- */

#define SLOW_MBPS 50
#define SLOW_BURST 100e3 /* bytes that pass at once, see netns.c */

/* Return the bytes that this node has sent over its link. */
static double link_sent(void)
{
    FILE *f = fopen("/proc/self/net/dev", "re");
    unsigned long long sent = 0;
    char line[512];

    while (f && fgets(line, sizeof line, f))
        sscanf(line, " hx0: %*u %*u %*u %*u %*u %*u %*u %*u %llu", &sent);
    if (f)
        fclose(f);
    return (double)sent;
}

static int slow_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 256 << 10, .poison = true};
    double seconds[2], sent[2];
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        struct sx_spec spec = {
            .func = (enum hx_func)func, .type = ncclInt32, .count = 60007, .fill = HX_FILL_EXACT, .seed = 3};

        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
    /* With 4 bits instead of 32 the same reduce-scatter must send fewer bytes, over a network of limited
     * rate. The test only prints the time, since other work on the machine makes it longer. */
    for (int coded = 0; coded < 2; coded++) {
        struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                               .type = coded ? ncclFloat32 : ncclInt32,
                               .count = 500007,
                               .fill = coded ? HX_FILL_NORMAL : HX_FILL_EXACT,
                               .max_nmse = coded ? 0.03 : 0};
        struct sx_run run;

        sx_prepare(node, &spec, &run);
        hx_barrier(node);
        sent[coded] = link_sent();
        HX_CHECK(hx_run(comm, &run.op) == ncclSuccess, "%s failed", sx_describe(&spec));
        seconds[coded] = hx_op_seconds(node, &run.op);
        sent[coded] = link_sent() - sent[coded];
        if (sx_check(node, &run))
            return 1;
        sx_free(&run);
    }
    HX_CHECK(sent[0] > 4e6 && sent[1] < 0.2 * sent[0], "int4 sends %.0f bytes, raw %.0f", sent[1], sent[0]);
    for (int coded = 0; coded < 2; coded++)
        HX_CHECK(seconds[coded] > (sent[coded] - SLOW_BURST) * 8e-6 / SLOW_MBPS,
                 "%.0f bytes took only %.3f s: no limit", sent[coded], seconds[coded]);
    memcpy(hx_scratch(node, node->rank), seconds, sizeof seconds);
    return sx_close(lib, comm, false);
}

static int slow_network(void)
{
    struct hx_job job = {
        .name = "slow network", .nnodes = 3, .fn = slow_node, .netns = true, .rate_mbps = SLOW_MBPS};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);
    const double *s = (const double *)(const void *)rep->node[0].scratch;

    if (rc == 0)
        printf("        6 MB reduce-scatter over 50 Mbit/s: raw %.3f s, int4 %.3f s\n", s[0], s[1]);
    hx_report_free(rep);
    return rc;
}

/* ---- point-to-point ---- */

static int p2p_node(struct hx_node *node, void *arg)
{
    static const size_t bytes[] = {0, 1, 511, 65536, 1000003, 5000001};
    struct hx_p2p_cfg cfg = {.streams = *(int *)arg, .slot = 128 << 10, .flush = true};
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    struct hx_p2p *p2p;
    struct hx_ctx ctx;
    int peer = node->rank ^ 1;

    HX_CHECK(lib && hx_init(lib, 77, &ctx) == ncclSuccess, "init");
    HX_CHECK(hx_p2p_open(node, lib, &ctx, peer, &cfg, &p2p) == ncclSuccess, "p2p connection");
    for (size_t k = 0; k < sizeof bytes / sizeof bytes[0]; k++) {
        size_t out = bytes[k], in = bytes[(k * 5 + 2) % 6];
        unsigned char *send, *recv, *want;

        if (node->rank & 1) {
            size_t t = out;
            out = in;
            in = t;
        }
        send = malloc(out + 1);
        recv = malloc(in + 1);
        want = malloc(in + 1);
        hx_fill(ncclUint8, send, out, hx_seed(k, (uint64_t)node->rank, 1), HX_FILL_BITS);
        hx_fill(ncclUint8, want, in, hx_seed(k, (uint64_t)peer, 1), HX_FILL_BITS);
        recv[in] = 0x5a;
        hx_where("p2p: %zu bytes out, %zu in", out, in);
        HX_CHECK(hx_p2p_run(p2p, send, out, recv, in, HX_SOON_S) == ncclSuccess,
                 "p2p of %zu and %zu bytes failed", out, in);
        HX_CHECK(memcmp(recv, want, in) == 0 && recv[in] == 0x5a, "p2p of %zu bytes: wrong data", in);
        free(send);
        free(recv);
        free(want);
    }
    HX_CHECK(hx_p2p_close(p2p) == ncclSuccess, "p2p close");
    HX_CHECK(hx_finalize(lib, &ctx) == ncclSuccess, "finalize");
    hx_lib_close(lib);
    HX_CHECK(hx_log_warns() == 0, "WARN lines were logged");
    return 0;
}

static int p2p(void)
{
    for (int streams = 1; streams <= 8; streams += streams == 1 ? 2 : 5) {
        int rc = sx_job("p2p", 4, p2p_node, &streams, NULL);

        if (rc)
            return rc;
    }
    return 0;
}

/* ---- a pipeline's traffic beside collectives ---- */

struct beside {
    struct px_plan plan;
    size_t count;  /* values of a collective's block */
    bool measures; /* measure again with integer collectives, which are raw */
};

/* Run reduce-scatters and all-gathers one after the other until every node has finished its pipeline. */
static int collectives(struct hx_node *node, struct hx_comm *comm, struct px *px, size_t count, bool raw,
                       int *n)
{
    for (*n = 0;; ++*n) {
        struct sx_spec spec = {.func = *n & 1 ? HX_ALL_GATHER : HX_REDUCE_SCATTER,
                               .type = raw ? ncclInt32 : ncclFloat32,
                               .count = count,
                               .fill = raw ? HX_FILL_EXACT : HX_FILL_NORMAL,
                               .seed = 5,
                               .max_nmse = raw || *n & 1 ? 0 : 0.03};
        int done = px_done(px), all[HX_MAX_NODES], left = 0;

        hx_allgather(node, &done, sizeof done, all);
        for (int r = 0; r < node->nnodes; r++)
            left += !all[r];
        if (left == 0)
            return 0;
        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
}

static int pipeline_node(struct hx_node *node, void *arg)
{
    const struct beside *b = arg;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10, .poison = true};
    double seconds[2] = {0, 0};
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct hx_ctx ctx;
    struct px *px;
    int n;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    HX_CHECK(hx_init(lib, 78, &ctx) == ncclSuccess, "init");
    if (px_open(node, lib, &ctx, &b->plan, &px))
        return 1;
    /* Take the better of two times, since other work on the machine only ever makes a run slower. */
    for (int i = 0; i < (b->measures ? 4 : 1); i++) {
        int raw = i & 1;
        double t;

        do { /* until several collectives ran beside it: this thread may have come late */
            hx_barrier(node);
            if (px_start(px) || collectives(node, comm, px, b->count, raw, &n))
                return 1;
            t = px_join(px);
            if (t < 0)
                return 1;
        } while (n < 2);
        seconds[raw] = i < 2 || t < seconds[raw] ? t : seconds[raw];
    }
    memcpy(hx_scratch(node, node->rank), seconds, sizeof seconds);
    if (px_close(px))
        return 1;
    HX_CHECK(hx_finalize(lib, &ctx) == ncclSuccess, "finalize");
    return sx_close(lib, comm, false);
}

static int pipeline(void)
{
    struct beside b = {.plan = {.exchanges = 400, .most = 1 << 20, .seed = 3, .check = true}, .count = 30000};

    if (hx_quick())
        b.plan.exchanges = 120;

    return sx_job("pipeline", 3, pipeline_node, &b, NULL);
}

/* Where the network is the bottleneck, collectives of 4 bits must leave more of it to the pipeline than raw
 * collectives do. */
static int pipeline_slow(void)
{
    struct beside b = {.plan = {.exchanges = 60, .most = 128 << 10, .seed = 3, .check = true},
                       .count = 60000,
                       .measures = true};
    struct hx_job job = {.name = "pipeline, slow network",
                         .nnodes = 2,
                         .fn = pipeline_node,
                         .arg = &b,
                         .netns = true,
                         .rate_mbps = 50};
    bool slower = true;
    int rc = 0;

    /* One success in several tries suffices, since other work on the machine comes at any time. */
    for (int i = 0; i < 5 && slower && rc == 0; i++) {
        struct hx_report *rep;

        rc = hx_job_run(&job, &rep);
        if (rc == 0) {
            const double *s = (const double *)(const void *)rep->node[0].scratch;

            printf(
                "        pipeline over 50 Mbit/s: %.3f s beside coded collectives, %.3f s beside raw ones\n",
                s[0], s[1]);
            slower = s[0] > 1.05 * s[1];
        }
        hx_report_free(rep);
    }
    return rc == 0 && slower ? hx_fail("the pipeline is slower beside coded collectives") : rc;
}

HX_MAIN({"queue", queue, 0}, {"two-communicators", two_comms, 0},
        {"slow-network", slow_network, HX_CASE_FULL}, {"p2p", p2p, 0}, {"pipeline", pipeline, 0},
        {"pipeline-slow-network", pipeline_slow, HX_CASE_FULL})
