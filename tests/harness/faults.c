/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults made on purpose while a communicator is in use: late, dead and stopped nodes, misuse, early closing.
 * Every case says what each node must see. No node may hang, and no healthy communicator may fail.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

#define PEER_TIMEOUT_S 3 /* NIBBLE_PEER_TIMEOUT of these jobs */
static const char *const env_short[] = {"NIBBLE_PEER_TIMEOUT=3", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG,
                                        "NIBBLE_LATE_REPORT=2",  "NIBBLE_CONNECT_TIMEOUT=" HX_LONG,
                                        "NIBBLE_RS=raw",         NULL};
/* For cases where closing must not wait for its limit. */
static const char *const env_close[] = {"NIBBLE_PEER_TIMEOUT=3", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG,
                                        "NIBBLE_RS=raw", NULL};

/* ---- a late node is healthy ---- */

static int late_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    double late_s = *(double *)arg;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        struct sx_spec spec = {.func = (enum hx_func)func,
                               .type = ncclFloat32,
                               .count = 100003,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)func};

        if (node->rank == 1 + func % 2 && (func == 0 || !hx_quick())) {
            char name[16];

            snprintf(name, sizeof name, "node %d", node->rank);
            hx_where("%.0f s late", late_s);
            hx_sleep(late_s);
            hx_where("late until node 0 says so");
            while (!hx_log_count_of(node, 0, "late", name))
                hx_sleep(0.02);
        }
        late_s = late_s < 2 * PEER_TIMEOUT_S ? late_s : PEER_TIMEOUT_S + 1;
        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
    return sx_close(lib, comm, false);
}

/* A node is late by several times the limit on signs of life. */
static int late(void)
{
    double late_s = hx_quick() ? 5 : 4 * PEER_TIMEOUT_S;

    return sx_job("late", 3, late_node, &late_s, env_short);
}

static int late_120(void)
{
    static const char *const env[] = {"NIBBLE_RS=raw", NULL};
    double late_s = 120;

    return sx_job("late by 120 s", 3, late_node, &late_s, env);
}

/* ---- a node dies or stops in the middle of two operations ---- */

struct end {
    enum hx_func func;
    bool stop; /* SIGSTOP instead of SIGKILL */
};

/* Runs on NCCL's thread of the node that ends: it has not received the first operation, and without this node
 * the other nodes cannot end the second. */
static void end_here(struct hx_op *op, void *arg)
{
    const struct end *end = arg;

    (void)op;
    hx_where("about to end");
    raise(end->stop ? SIGSTOP : SIGKILL);
}

/* Check that a call of the plugin itself gives the error, instead of the proxy's stored error. */
static int refused_at_once(struct hx_lib *lib, struct hx_comm *comm)
{
    void *req = NULL;
    size_t size;
    char *region = hx_comm_region(comm, &size);

    HX_CHECK(hx_coll_iallreduce(lib, hx_comm_plugin(comm), region, region + size / 2, 16, ncclFloat32,
                                ncclSum, hx_comm_mhandle(comm, false), hx_comm_mhandle(comm, true),
                                &req) != ncclSuccess &&
                 !req,
             "the next operation was taken");
    return 0;
}

static int ending_node(struct hx_node *node, void *arg)
{
    struct end *end = arg;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 64 << 10, .gpu_delay_us = 2000};
    struct sx_spec spec = {.func = end->func, .type = ncclFloat32, .count = 200003, .fill = HX_FILL_EXACT};
    int victim = 1, survivor0 = 0;
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run first, run;
    ncclResult_t ret;
    double t;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    sx_prepare(node, &spec, &first);
    sx_prepare(node, &spec, &run);
    if (node->rank == victim) {
        run.op.on_start = end_here;
        run.op.on_start_arg = end;
    }
    hx_barrier(node);
    t = hx_now();
    HX_CHECK(hx_post(comm, &first.op) == ncclSuccess && hx_post(comm, &run.op) == ncclSuccess, "post");
    /* Node 0 continues a stopped victim after the other nodes have given up. */
    hx_where("waiting for the error");
    ret = hx_wait(comm, &run.op, node->rank == victim ? 0 : HX_SOON_S);
    HX_CHECK(ret != HX_TIMEOUT, "no error %.0f s after the end of node %d", hx_now() - t, victim);
    HX_CHECK(ret != ncclSuccess, "the operation was done without node %d", victim);
    hx_wait(comm, &first.op, 0);
    if (node->rank != victim)
        HX_CHECK(hx_log_count("W ", "node 1") > 0, "no WARN line names node %d", victim);
    else /* stopped, and resumed: what it received in the meantime has the cause */
        HX_CHECK(hx_log_count("W ", "lost node") == 0 &&
                     hx_log_count("W ", "no sign of life from node 1") > 0,
                 "node %d does not know why it was given up", victim);
    if (refused_at_once(lib, comm))
        return 1;
    t = hx_now();
    hx_comm_close(comm);
    HX_CHECK(hx_now() - t < HX_SOON_S, "closing a failed communicator took %.1f s", hx_now() - t);
    if (end->stop && node->rank == survivor0) {
        hx_sleep(1.0);
        kill(hx_pid(node, victim), SIGCONT);
    }
    sx_free(&first);
    sx_free(&run);
    hx_lib_close(lib);
    return 0;
}

static int ends_among(int nnodes, const char *const *env, enum hx_func func, bool stop)
{
    struct end end = {func, stop};
    struct hx_job job = {.name = stop ? "stopped node" : "killed node",
                         .nnodes = nnodes,
                         .fn = ending_node,
                         .arg = &end,
                         .env = env,
                         .dies = stop ? 0 : 1u << 1};

    return hx_job_run(&job, NULL);
}

static int ends(enum hx_func func, bool stop)
{
    return ends_among(3, env_close, func, stop);
}

/* Nodes that have no connection with the victim must fail, too. */
static int killed_two_level(void)
{
    static const char *const env[] = {"NIBBLE_PEER_TIMEOUT=3", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG,
                                      "NIBBLE_RS=raw", "NIBBLE_SCHEDULE=two-level", NULL};

    return ends_among(6, env, HX_REDUCE_SCATTER, false) || ends_among(6, env, HX_ALL_GATHER, false);
}

HX_CASE(stopped_two_level, ends_among(6,
                                      HX_ENV("NIBBLE_PEER_TIMEOUT=3", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG,
                                             "NIBBLE_RS=raw", "NIBBLE_SCHEDULE=two-level"),
                                      HX_ALL_REDUCE, true))

HX_CASE(killed_rs, ends(HX_REDUCE_SCATTER, false))
HX_CASE(killed_ag, ends(HX_ALL_GATHER, false))
HX_CASE(killed_ar, ends(HX_ALL_REDUCE, false))
HX_CASE(stopped, ends(HX_ALL_GATHER, true))

/* ---- misuse ---- */

static int refused(ncclResult_t ret, void **request, const char *what)
{
    HX_CHECK(ret != ncclSuccess, "%s was accepted", what);
    HX_CHECK(!request || !*request, "%s: an error with a request", what);
    return 0;
}

static int misuse_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct sx_spec spec = {.func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 5000, .fill = HX_FILL_EXACT};
    void *req = NULL, *mh = NULL, *smh, *rmh, *comm, *other = NULL;
    size_t size, bpr = 4096;
    struct hx_props props;
    struct hx_lib *lib;
    struct hx_comm *c;
    int done, n = node->nnodes, bad = 0;
    char *region, *user;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &c))
        return 1;
    comm = hx_comm_plugin(c);
    region = hx_comm_region(c, &size);
    smh = hx_comm_mhandle(c, false);
    rmh = hx_comm_mhandle(c, true);

#define REFUSED(call, what) bad |= (req = NULL, refused(call, &req, what))
#define RS(comm_, send, sbytes, recv, bpr_, off, bytes, type) \
    hx_coll_ireducescatter(lib, comm_, send, sbytes, smh, recv, bpr_, off, bytes, type, ncclSum, rmh, &req)
#define AG(send, recv, rbytes, bpr_, off, bytes) \
    hx_coll_iallgather(lib, comm, send, recv, rbytes, rmh, bpr_, off, bytes, smh, &req)
#define AR(send, recv, count, type, op) \
    hx_coll_iallreduce(lib, comm, send, recv, count, type, op, smh, rmh, &req)
    char *recv = region + size / 2;
    REFUSED(RS(NULL, region, 64, recv, bpr, 0, 64, ncclFloat32), "reduce-scatter on NULL");
    REFUSED(RS(comm, NULL, 64, recv, bpr, 0, 64, ncclFloat32), "reduce-scatter from NULL");
    REFUSED(RS(comm, region, 64, NULL, bpr, bpr * (size_t)node->rank, 64, ncclFloat32),
            "reduce-scatter to NULL");
    REFUSED(RS(comm, region, 64, recv, bpr, (size_t)n * bpr - 32, 64, ncclFloat32),
            "a window beyond the vector");
    REFUSED(RS(comm, region, 64, recv, bpr, (size_t)-64, 64, ncclFloat32), "a window before the vector");
    REFUSED(RS(comm, region, 62, recv, bpr, 0, 62, ncclFloat32), "a window that cuts a value");
    REFUSED(RS(comm, region, 64, recv, 4098, 0, 64, ncclFloat32), "a block that cuts a value");
    REFUSED(RS(comm, region, 64, recv, 0, 0, 64, ncclFloat32), "blocks of 0 bytes");
    REFUSED(RS(comm, region, 64, recv, (size_t)-1 / 2, 0, 64, ncclInt8), "blocks of 2^63 bytes");
    REFUSED(RS(comm, region, 64, recv, bpr, 0, 64, (ncclDataType_t)99), "type 99");
    REFUSED(RS(comm, region, 64, recv, bpr, 0, 64, (ncclDataType_t)-1), "type -1");
    REFUSED(RS(comm, region, 32, recv, bpr, 0, 64, ncclFloat32), "less data than the window has");
    REFUSED(AG(region, NULL, 64, bpr, 0, 64), "all-gather to NULL");
    REFUSED(AG(NULL, recv, 64, bpr, bpr * (size_t)node->rank, 64), "all-gather of a NULL block");
    REFUSED(AG(region, recv, 64, bpr, (size_t)n * bpr, 64), "all-gather beyond the vector");
    REFUSED(AG(region, recv, 32, bpr, 0, 64), "all-gather into too little memory");
    REFUSED(AR(region, NULL, 16, ncclFloat32, ncclSum), "all-reduce to NULL");
    REFUSED(AR(NULL, recv, 16, ncclFloat32, ncclSum), "all-reduce from NULL");
    REFUSED(AR(region, recv, (size_t)-4, ncclFloat32, ncclSum), "a negative count");
    REFUSED(AR(region, recv, (size_t)1 << 62, ncclFloat64, ncclSum), "2^62 values");
    REFUSED(AR(region, recv, 16, ncclFloat32, (ncclRedOp_t)77), "operation 77");
    bad |= refused(hx_coll_test(lib, NULL, &done, NULL), NULL, "test of NULL");
    bad |= refused(hx_coll_reg_mr(lib, comm, NULL, 4096, NCCL_PTR_HOST, &mh), &mh, "regMr of NULL");
    bad |= refused(hx_coll_reg_mr(lib, comm, region, 0, NCCL_PTR_HOST, &mh), &mh, "regMr of nothing");
    bad |= refused(hx_coll_reg_mr(lib, NULL, region, size, NCCL_PTR_HOST, &mh), &mh, "regMr on NULL");
    bad |= refused(hx_coll_dereg_mr(lib, comm, &bad), NULL, "deregMr of a foreign pointer");
    bad |= refused(hx_coll_properties(lib, -1, &props), NULL, "properties of device -1");
    bad |= refused(hx_coll_properties(lib, 4096, &props), NULL, "properties of device 4096");
    bad |= refused(hx_net_properties(lib, -1, &props), NULL, "net properties of device -1");
    {
        unsigned char handle[HX_HANDLE_BYTES];
        struct hx_ctx ctx = *hx_comm_ctx(c);

        bad |= refused(hx_coll_listen(lib, &ctx, 4096, handle, &other), &other, "listen on device 4096");
        bad |= refused(hx_coll_listen(lib, &ctx, 0, NULL, &other), &other, "listen without a handle");
        bad |= refused(hx_net_listen(lib, &ctx, -1, handle, &other), &other, "net listen on device -1");
    }
    if (bad)
        return 1;

    /* The plugin must refuse user buffers of any size quietly, also beside NCCL's own region. */
    user = malloc(size);
    for (int k = 0; k < 2; k++) {
        mh = NULL;
        HX_CHECK(hx_coll_reg_mr(lib, comm, user, k ? size : size / 3, NCCL_PTR_HOST, &mh) != ncclSuccess,
                 "a user buffer of %s size was registered", k ? "the region's" : "another");
    }
    free(user);
    /* After all these calls the communicator must work. */
    if (hx_async_error(c) != ncclSuccess || sx_do(node, c, &spec, NULL))
        return 1;
    return sx_close(lib, c, true);
}

HX_CASE(misuse, sx_job("misuse", 2, misuse_node, NULL, env_short))

/* ---- closing ---- */

/* A node has finished its part early, because it has handed over its contributions, and closes at once. The
 * other nodes must get all of them. */
static int close_early_node(struct hx_node *node, void *arg)
{
    enum { OPS = 2 };
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 256 << 10};
    struct sx_run run[OPS];
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int i = 0; i < OPS; i++) {
        struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                               .type = ncclFloat32,
                               .count = 60007,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)i};

        sx_prepare(node, &spec, &run[i]);
    }
    /* Node 0 owns the first block: it finishes before the other nodes begin. */
    hx_sleep(0.7 * node->rank);
    for (int i = 0; i < OPS; i++)
        HX_CHECK(hx_post(comm, &run[i].op) == ncclSuccess, "post");
    for (int i = 0; i < OPS; i++) {
        hx_where("reduce-scatter %d before an early close", i);
        HX_CHECK(hx_wait(comm, &run[i].op, 0) == ncclSuccess, "reduce-scatter %d failed", i);
    }
    if (sx_close(lib, comm, false))
        return 1;
    for (int i = 0; i < OPS; i++) {
        if (sx_check(node, &run[i]))
            return 1;
        sx_free(&run[i]);
    }
    return 0;
}

HX_CASE(close_early, sx_job("close right after", 4, close_early_node, NULL, env_short))

static void say_begun(struct hx_op *op, void *arg)
{
    (void)op;
    atomic_store((atomic_bool *)arg, true);
}

static int close_unfinished_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct sx_spec spec = {.func = HX_ALL_GATHER, .type = ncclFloat32, .count = 300007, .fill = HX_FILL_BITS};
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;
    double t;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    hx_barrier(node);
    sx_prepare(node, &spec, &run);
    if (node->rank != 2) {
        atomic_bool begun = false;

        run.op.on_start = say_begun;
        run.op.on_start_arg = &begun;
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
        while (!atomic_load(&begun)) /* until requests are open: node 2 does not post */
            hx_sleep(1e-3);
    }
    hx_barrier(node);
    if (node->rank == 0 || node->rank == 2) {
        t = hx_now();
        hx_comm_abort(comm);
        HX_CHECK(hx_now() - t < HX_SOON_S, "closing with unfinished requests took %.1f s", hx_now() - t);
    } else {
        /* Node 1 still waits: it must get an error when the other nodes leave. */
        ncclResult_t ret = hx_wait(comm, &run.op, HX_SOON_S);

        HX_CHECK(ret != ncclSuccess && ret != HX_TIMEOUT, "the peers closed and the waiting node sees %d",
                 (int)ret);
        hx_comm_close(comm);
    }
    hx_lib_close(lib);
    sx_free(&run);
    return 0;
}

HX_CASE(close_unfinished, sx_job("close with unfinished requests", 3, close_unfinished_node, NULL, env_close))

HX_MAIN({"late-node", late, 0}, {"late-120s", late_120, HX_CASE_LONG},
        {"killed-in-reduce-scatter", killed_rs, HX_CASE_FULL}, {"killed-in-all-gather", killed_ag, 0},
        {"killed-in-all-reduce", killed_ar, HX_CASE_FULL}, {"stopped", stopped, 0},
        {"killed-two-level", killed_two_level, 0}, {"stopped-two-level", stopped_two_level, HX_CASE_FULL},
        {"misuse", misuse, 0}, {"close-right-after", close_early, 0},
        {"close-unfinished", close_unfinished, 0})
