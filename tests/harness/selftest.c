/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the harness itself on the fake table. The right table must pass in every shape, and the harness
 * must notice each faulty table for the right reason.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "lib/fake_table.h"
#include "lib/suite.h"

struct shape {
    int channels;
    size_t buff_size, chunk;
    unsigned gpu_delay_us;
    bool flush;
    int rounds;
};

static int all_functions(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclInt8, ncclFloat64, ncclFloat8e4m3};
    static const size_t counts[] = {1, 31, 4095, 70001};
    const struct shape *shape = arg;
    struct hx_comm_cfg cfg = {.channels = shape->channels,
                              .buff_size = shape->buff_size,
                              .chunk = shape->chunk,
                              .gpu_delay_us = shape->gpu_delay_us,
                              .flush = shape->flush,
                              .poison = true};
    struct hx_lib *lib = hx_lib_static(NULL, fake_table(), 12);
    struct hx_comm *comm;
    struct hx_counts n;
    const char *stage;

    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess, "bring-up failed in %s", stage);
    for (int round = 0; round < shape->rounds; round++) {
        for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
            struct sx_spec spec = {.func = (enum hx_func)func,
                                   .type = types[(round + func) % 5],
                                   .count = counts[round % 4],
                                   .op = (ncclRedOp_t)(round / 4 % 2 * 2),
                                   .fill = HX_FILL_EXACT,
                                   .in_place = round & 1,
                                   .seed = (uint64_t)round,
                                   .channels = round % 3 == 2 ? 1 + round % shape->channels : 0};
            uint64_t hash;

            if (sx_do(node, comm, &spec, &hash))
                return 1;
            if (func != HX_REDUCE_SCATTER)
                HX_CHECK(hx_all_equal(node, hash), "results differ between nodes");
        }
        hx_sleep(2e-3);
    }
    hx_comm_counts(comm, &n);
    HX_CHECK(n.calls > 0 && n.tests > 0, "nothing was called");
    HX_CHECK(n.sleeps >= (uint64_t)shape->rounds, "the proxy slept only %llu times",
             (unsigned long long)n.sleeps);
    HX_CHECK(!shape->flush || n.flushes > 0, "nothing was flushed");
    HX_CHECK(hx_comm_close(comm) == ncclSuccess, "close failed");
    hx_lib_close(lib);
    return 0;
}

static int run_shape(int nnodes, struct shape shape)
{
    struct hx_job job = {.name = "right", .nnodes = nnodes, .fn = all_functions, .arg = &shape};
    int rc;

    fake_prepare(FAKE_RIGHT);
    rc = hx_job_run(&job, NULL);
    fake_release();
    return rc;
}

HX_CASE(right_2, run_shape(2, (struct shape){.channels = 2, .buff_size = 64 << 10, .rounds = 12}))
HX_CASE(right_3_flush,
        run_shape(3, (struct shape){.channels = 8, .buff_size = 64 << 10, .rounds = 9, .flush = true}))
HX_CASE(right_5_groups,
        run_shape(5, (struct shape){.channels = 12, .buff_size = 64 << 10, .chunk = 4096, .rounds = 9}))
HX_CASE(right_8_groups, run_shape(8, (struct shape){.channels = 16, .buff_size = 128 << 10, .rounds = 5}))

HX_CASE(right_delays,
        run_shape(3, (struct shape){.channels = 4, .buff_size = 32 << 10, .rounds = 8, .gpu_delay_us = 300}))

/* Several operations in flight on one communicator, posted without waiting. */
static int queue_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 32 << 10, .gpu_delay_us = 50};
    struct hx_lib *lib = hx_lib_static(NULL, fake_table(), 12);
    struct sx_run run[12];
    struct hx_comm *comm;

    (void)arg;
    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, NULL) == ncclSuccess, "bring-up failed");
    for (int i = 0; i < 12; i++) {
        struct sx_spec spec = {.func = (enum hx_func)(i % 3),
                               .type = ncclFloat32,
                               .count = 5000 + (size_t)i * 999,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)i,
                               .channels = 1 + i % 4};

        sx_prepare(node, &spec, &run[i]);
        HX_CHECK(hx_post(comm, &run[i].op) == ncclSuccess, "post failed");
    }
    for (int i = 0; i < 12; i++) {
        HX_CHECK(hx_wait(comm, &run[i].op, HX_SOON_S) == ncclSuccess, "operation %d failed", i);
        if (sx_check(node, &run[i]))
            return 1;
        sx_free(&run[i]);
    }
    HX_CHECK(hx_comm_close(comm) == ncclSuccess, "close failed");
    hx_lib_close(lib);
    return 0;
}

static int queue(void)
{
    struct hx_job job = {.name = "queue", .nnodes = 3, .fn = queue_node};
    int rc;

    fake_prepare(FAKE_RIGHT);
    rc = hx_job_run(&job, NULL);
    fake_release();
    return rc;
}

/* ---- the harness must notice faulty tables ---- */

struct faulty {
    enum hx_func func;
    bool hangs;
};

static int faulty_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 32 << 10, .poison = true};
    struct sx_spec spec = {.type = ncclFloat32, .count = 40000, .fill = HX_FILL_EXACT, .seed = 7};
    struct hx_lib *lib = hx_lib_static(NULL, fake_table(), 12);
    const struct faulty *faulty = arg;
    struct hx_comm *comm;
    struct sx_run run;
    ncclResult_t ret;

    spec.func = faulty->func;
    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, NULL) == ncclSuccess, "bring-up failed");
    sx_prepare(node, &spec, &run);
    hx_where("%s", sx_describe(&spec));
    hx_barrier(node);
    if (faulty->hangs)
        hx_deadline(node, 1);
    ret = hx_run(comm, &run.op);
    HX_CHECK(ret == ncclSuccess, "%s: result %d", sx_describe(&spec), (int)ret);
    if (sx_check(node, &run))
        return 1;
    sx_free(&run);
    ret = hx_comm_close(comm);
    HX_CHECK(ret == ncclSuccess, "close: %d", (int)ret);
    hx_lib_close(lib);
    return 0;
}

enum verdict { FAILS, HANGS, STALLS }; /* stalls: one node fails and leaves the other node waiting */

/* Run a faulty table. It must fail with `text` in some node's failure, or hang. */
static int must_notice(enum fake_bug bug, enum hx_func func, enum verdict verdict, const char *text)
{
    struct faulty faulty = {func, verdict != FAILS};
    struct hx_job job = {.name = "meant to fail", .nnodes = 2, .fn = faulty_node, .arg = &faulty};
    struct hx_report *rep;
    int rc, found = 0;

    fake_prepare(bug);
    rc = hx_job_run(&job, &rep);
    fake_release();
    for (int r = 0; r < 2; r++)
        found |= verdict == HANGS ? rep->node[r].hung && strstr(rep->node[r].where, text) != NULL
                                  : strstr(rep->node[r].failure, text) != NULL;
    hx_report_free(rep);
    if (rc != 1 || !found)
        return hx_fail("a faulty table was not noticed (result %d)", rc);
    return 0;
}

HX_CASE(notices_wrong_bit, must_notice(FAKE_WRONG_BIT, HX_ALL_GATHER, FAILS, "is wrong") ||
                               must_notice(FAKE_WRONG_BIT, HX_ALL_REDUCE, FAILS, "should be"))
HX_CASE(notices_early_done, must_notice(FAKE_EARLY_DONE, HX_ALL_REDUCE, FAILS, "should be"))
HX_CASE(notices_lost_window, must_notice(FAKE_LOST, HX_REDUCE_SCATTER, HANGS, "reduce-scatter of 40000"))
HX_CASE(notices_null_for_ever, must_notice(FAKE_NULL_FOREVER, HX_ALL_GATHER, HANGS, "all-gather of 40000"))

/* A trap that a more lenient loop would miss: while the plugin refuses a call, the proxy tests no request of
 * its group. */
HX_CASE(notices_pool_freed_in_test, must_notice(FAKE_POOL, HX_ALL_GATHER, HANGS, "all-gather of 40000"))
HX_CASE(notices_missing_request,
        must_notice(FAKE_NO_REQUEST, HX_REDUCE_SCATTER, HANGS, "reduce-scatter of 40000"))
HX_CASE(notices_overrun, must_notice(FAKE_OVERRUN, HX_ALL_GATHER, FAILS, "outside of the region"))
HX_CASE(notices_wrong_place, must_notice(FAKE_WRONG_PLACE, HX_REDUCE_SCATTER, FAILS, "should be"))
HX_CASE(notices_padding, must_notice(FAKE_READS_PADDING, HX_ALL_REDUCE, FAILS, "should be"))
HX_CASE(notices_error, must_notice(FAKE_ERROR, HX_ALL_GATHER, STALLS, "result 6"))
HX_CASE(notices_crash, must_notice(FAKE_CRASH, HX_ALL_GATHER, HANGS, "all-gather of 40000"))

/* ---- jobs ---- */

static int ends_badly(struct hx_node *node, void *arg)
{
    (void)arg;
    hx_where("the place");
    if (node->rank == 1)
        raise(SIGKILL);
    hx_barrier(node); /* the dead node counts as arrived */
    return 0;
}

static int jobs(void)
{
    struct hx_job job = {.name = "meant to fail", .nnodes = 3, .fn = ends_badly};
    struct hx_report *rep;

    HX_CHECK(hx_job_run(&job, &rep) == 1 && strstr(rep->reason, "node 1 ended by signal 9 at \"the place\""),
             "a killed node was not reported");
    hx_report_free(rep);
    job.name = "node 1 dies";
    job.dies = 1u << 1;
    HX_CHECK(hx_job_run(&job, &rep) == 0, "a node that was meant to die counted as a failure");
    hx_report_free(rep);
    job.name = "meant to fail";
    job.dies = 3;
    HX_CHECK(hx_job_run(&job, &rep) == 1, "a node that was meant to die and did not was not reported");
    hx_report_free(rep);
    return 0;
}

static int talks(struct hx_node *node, void *arg)
{
    int all[HX_MAX_NODES], mine = node->rank * 3, got;
    const char *v = getenv("HX_TEST_VALUE");

    (void)arg;
    for (int round = 0; round < 50; round++) {
        mine += round;
        hx_allgather(node, &mine, sizeof mine, all);
        for (int r = 0; r < node->nnodes; r++)
            HX_CHECK(all[r] - r * 3 == mine - node->rank * 3, "allgather mixed something up");
    }
    for (int round = 0; round < 20; round++) {
        HX_CHECK(hx_put(node, (node->rank + 1) % node->nnodes, &node->rank, sizeof(int), HX_SOON_S) == 0,
                 "put");
        HX_CHECK(hx_get(node, (node->rank + node->nnodes - 1) % node->nnodes, &got, sizeof got, HX_SOON_S) ==
                     0,
                 "get");
        HX_CHECK(got == (node->rank + node->nnodes - 1) % node->nnodes, "a message went astray");
    }
    HX_CHECK(hx_all_equal(node, 5) && !hx_all_equal(node, (uint64_t)node->rank), "hash comparison");
    HX_CHECK(v && strcmp(v, node->rank == 2 ? "own" : "all") == 0, "environment is %s", v ? v : "unset");
    hx_logger()(NCCL_LOG_WARN, 0, "f", 1, "line with\nbreak %d", node->rank);
    hx_logger()(NCCL_LOG_INFO, 0, "f", 1, "some info");
    HX_CHECK(hx_log_warns() == 1 && hx_log_count("W line with break", NULL) == 1, "log capture");
    memset(hx_scratch(node, node->rank), node->rank + 1, 10);
    return 0;
}

static int exchange(void)
{
    static const char *const env[] = {"HX_TEST_VALUE=all", NULL}, *const env2[] = {"HX_TEST_VALUE=own", NULL};
    struct hx_job job = {.name = "exchange", .nnodes = 4, .fn = talks, .env = env, .node_env[2] = env2};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    HX_CHECK(rc == 0, "exchange failed");
    HX_CHECK(hx_report_has(rep, 3, "W ", "break 3") && !hx_report_has(rep, 3, "break 2", NULL) &&
                 hx_report_has(rep, -1, "break 2", NULL),
             "log in the report");
    HX_CHECK(rep->node[2].scratch[9] == 3 && rep->node[2].scratch[10] == 0 && rep->node[0].warns == 1,
             "scratch");
    hx_report_free(rep);
    return 0;
}

/* ---- data ---- */

static int data(void)
{
    static const struct {
        ncclDataType_t type;
        double in, out;
        unsigned bits;
    } t[] = {{ncclFloat16, 1.0, 1.0, 0x3c00},
             {ncclFloat16, 65519.9, 65504, 0x7bff},
             {ncclFloat16, 65520, (double)__builtin_inff(), 0x7c00},
             {ncclFloat16, 5.9604644775390625e-8, 5.9604644775390625e-8, 1},
             {ncclFloat16, 2.98e-8, 0, 0},
             {ncclBfloat16, -1.00390625, -1.0, 0xbf80},      /* tie: to even */
             {ncclBfloat16, -1.01171875, -1.015625, 0xbf82}, /* tie: to even */
             {ncclBfloat16, 3.39e38, 3.3895313892515355e38, 0x7f7f},
             {ncclBfloat16, 3.4e38, (double)__builtin_inff(), 0x7f80},
             {ncclFloat8e4m3, 448, 448, 0x7e},
             {ncclFloat8e4m3, 0.001953125, 0.001953125, 1},
             {ncclFloat8e4m3, -13, -13, 0xd5},
             {ncclFloat8e5m2, 57344, 57344, 0x7b},
             {ncclFloat8e5m2, 1e9, (double)__builtin_inff(), 0x7c},
             {ncclFloat8e5m2, -0.0, -0.0, 0x80}};

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        uint16_t bits = 0;

        hx_store(t[i].type, &bits, 0, t[i].in);
        HX_CHECK(bits == t[i].bits, "%s %g is stored as %#x", hx_type_name(t[i].type), t[i].in, bits);
        HX_CHECK(hx_load(t[i].type, &bits, 0) == t[i].out, "%s %#x is loaded as %g", hx_type_name(t[i].type),
                 bits, hx_load(t[i].type, &bits, 0));
    }
    for (int type = ncclFloat16; type < ncclNumTypes;
         type++) { /* every pattern of the small types comes back */
        unsigned n = hx_type_size((ncclDataType_t)type) == 1 ? 256 : 65536;

        for (unsigned p = 0; hx_type_size((ncclDataType_t)type) <= 2 && p < n; p++) {
            uint16_t in = (uint16_t)p, out = 0;
            double v = hx_load((ncclDataType_t)type, &in, 0);

            hx_store((ncclDataType_t)type, &out, 0, v);
            HX_CHECK(v != v || in == out, "%s pattern %#x comes back as %#x",
                     hx_type_name((ncclDataType_t)type), in, out);
        }
    }
    int8_t a = 100, b = 100;
    hx_accumulate(ncclInt8, ncclSum, &a, &b, 1);
    HX_CHECK(a == -56, "int8 sums do not wrap");
    double ref[2] = {3, 4};
    float got[2] = {3, 4.5f};
    HX_CHECK(hx_nmse(ref, ncclFloat32, got, 2) == 0.01, "nmse is %g", hx_nmse(ref, ncclFloat32, got, 2));
    return 0;
}

static int namespace_node(struct hx_node *node, void *arg)
{
    char cmd[128];

    (void)arg;
    snprintf(cmd, sizeof cmd,
             "ping -c 1 -W 2 10.77.0.%d >/dev/null 2>&1 || ip route get 10.77.0.%d >/dev/null",
             (node->rank + 1) % node->nnodes + 1, (node->rank + 1) % node->nnodes + 1);
    HX_CHECK(system(cmd) == 0, "no way to the next node");
    HX_CHECK(system("tc qdisc show dev hx0 | grep -q tbf") == 0, "no rate limit");
    hx_barrier(node);
    return 0;
}

static int namespaces(void)
{
    struct hx_job job = {
        .name = "namespaces", .nnodes = 2, .fn = namespace_node, .netns = true, .rate_mbps = 500};

    return hx_job_run(&job, NULL);
}

HX_MAIN({"data", data, 0}, {"exchange", exchange, 0}, {"jobs", jobs, 0}, {"namespaces", namespaces, 0},
        {"right-2-nodes", right_2, 0}, {"right-3-nodes-flush", right_3_flush, 0},
        {"right-5-nodes-two-groups", right_5_groups, HX_CASE_FULL},
        {"right-8-nodes-two-groups", right_8_groups, HX_CASE_FULL}, {"right-with-delays", right_delays, 0},
        {"queue-of-operations", queue, 0}, {"notices-wrong-bit", notices_wrong_bit, 0},
        {"notices-early-done", notices_early_done, 0}, {"notices-lost-window", notices_lost_window, 0},
        {"notices-null-for-ever", notices_null_for_ever, 0},
        {"notices-pool-freed-in-test", notices_pool_freed_in_test, 0},
        {"notices-missing-request", notices_missing_request, 0}, {"notices-overrun", notices_overrun, 0},
        {"notices-wrong-place", notices_wrong_place, 0}, {"notices-padding", notices_padding, 0},
        {"notices-error", notices_error, 0}, {"notices-crash", notices_crash, 0})
