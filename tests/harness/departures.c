/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that leave while other nodes are late, and NCCL's teardown after an abort. The test posts windows
 * itself while the proxy sleeps, each exactly when the case needs it.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/suite.h"

#define MAX_WINDOWS 6

/* Post `n` windows of reduce-scatter, one for each rank block. This node waits `late_s` before window
 * `late_window`. */
static int post(struct hx_lib *lib, struct hx_comm *comm, char *send, char *recv, size_t block, int n,
                int late_window, double late_s, void **req)
{
    for (int w = 0; w < n; w++) {
        ncclResult_t r;
        if (w == late_window)
            hx_sleep(late_s);
        r = hx_coll_ireducescatter(lib, hx_comm_plugin(comm), send + w * block, block,
                                   hx_comm_mhandle(comm, false), recv + w * block, block, w * block, block,
                                   ncclFloat32, ncclSum, hx_comm_mhandle(comm, true), &req[w]);
        HX_CHECK(r == ncclSuccess && req[w], "window %d: result %d, request %p", w, r, req[w]);
    }
    return 0;
}

static int finish(struct hx_lib *lib, int n, void **req)
{
    for (int w = 0; w < n; w++) {
        for (int done = 0; !done; hx_sleep(0.001)) {
            ncclResult_t r = hx_coll_test(lib, req[w], &done, NULL);
            HX_CHECK(r == ncclSuccess, "window %d: result %d", w, r);
        }
    }
    return 0;
}

/* Check each block's sum: every node adds rank + 1, so the sum is n (n + 1) / 2. */
static int check_sum(struct hx_node *node, const char *recv, size_t block)
{
    float want = (float)(node->nnodes * (node->nnodes + 1) / 2), got;

    for (size_t i = 0; i < block / sizeof(float); i++) {
        memcpy(&got, recv + (size_t)node->rank * block + i * sizeof(float), sizeof(float));
        HX_CHECK(got == want, "value %zu is %g instead of %g", i, (double)got, (double)want);
    }
    return 0;
}

static void fill(struct hx_node *node, char *send, size_t bytes)
{
    float v = (float)(node->rank + 1);

    for (size_t at = 0; at < bytes; at += sizeof(float))
        memcpy(send + at, &v, sizeof(float));
}

struct lateness {
    size_t block;
    int late_rank, late_window;
};

/* Finished nodes leave. The last node is late with a window for which another node still waits. */
static int leaving_node(struct hx_node *node, void *arg)
{
    const struct lateness *late = arg;
    struct hx_comm_cfg cfg = {.channels = 2};
    void *req[MAX_WINDOWS] = {NULL};
    struct hx_lib *lib;
    struct hx_comm *comm;
    char *region;
    size_t size;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    region = hx_comm_region(comm, &size);
    fill(node, region, late->block * (size_t)node->nnodes);
    hx_barrier(node);
    if (post(lib, comm, region, region + size / 2, late->block, node->nnodes,
             node->rank == late->late_rank ? late->late_window : -1, 4.0, req) ||
        finish(lib, node->nnodes, req) || check_sum(node, region + size / 2, late->block))
        return 1;
    return sx_close(lib, comm, true); /* a close that reached its limit logs it */
}

/* Node 0 has its block and leaves. Node 2 is late for node 1, which must not blame node 0. */
HX_CASE(left_in_order,
        sx_job("left-in-order", 3, leaving_node, &((struct lateness){65536, 2, 1}), HX_ENV("NIBBLE_RS=raw")))

/* The same where node 0's row and column still need segments that it forwards. */
HX_CASE(left_in_order_two_level,
        sx_job("left-in-order, two levels", 6, leaving_node, &((struct lateness){65536, 5, 3}),
               HX_ENV("NIBBLE_RS=raw", "NIBBLE_SCHEDULE=two-level")))

/* Node 0's close times out while node 1 is late. The kernel holds the bytes that node 0 sent, and node 1 must
 * still use them. */
HX_CASE(left_before_taken, sx_job("left-before-taken", 2, leaving_node, &((struct lateness){262144, 1, 1}),
                                  HX_ENV("NIBBLE_RS=raw", "NIBBLE_CREDITS=1", "NIBBLE_UNIT_BYTES=65536",
                                         "NIBBLE_CLOSE_TIMEOUT=1")))

/* ncclCommAbort: NCCL frees its buffer after the first deregMr, before closeColl. The plugin must not write a
 * late peer's data to the freed buffer. */
static int freed_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2};
    const size_t block = 65536;
    void *req[MAX_WINDOWS] = {NULL};
    struct hx_lib *lib;
    struct hx_comm *comm;
    char *mem;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    mem = mmap(NULL, 8 * block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HX_CHECK(mem != MAP_FAILED, "no memory");
    hx_barrier(node);
    if (node->rank == 0) {
        if (post(lib, comm, mem, mem + 4 * block, block, 2, -1, 0, req))
            return 1;
        HX_CHECK(hx_coll_dereg_mr(lib, hx_comm_plugin(comm), hx_comm_mhandle(comm, false)) == ncclSuccess,
                 "deregMr");
        munmap(mem, 8 * block);
    } else { /* late: node 0 may have reported its end, so the plugin may refuse these */
        hx_sleep(0.5);
        for (size_t w = 0; w < 2; w++)
            hx_coll_ireducescatter(lib, hx_comm_plugin(comm), mem + w * block, block,
                                   hx_comm_mhandle(comm, false), mem + 4 * block, block, w * block, block,
                                   ncclFloat32, ncclSum, hx_comm_mhandle(comm, true), &req[w]);
    }
    hx_sleep(1.0);
    hx_comm_abort(comm);
    hx_lib_close(lib);
    return 0;
}

HX_CASE(freed_after_dereg, sx_job("freed-after-dereg", 2, freed_node, NULL, HX_ENV("NIBBLE_RS=raw")))

/* ncclCommAbort between two windows of an operation: the first is finished, the second has not come. The
 * other node must hear of it at once instead of waiting for this node. */
static int half_way_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2};
    const size_t block = 65536;
    struct hx_lib *lib;
    struct hx_comm *comm;
    void *req[MAX_WINDOWS] = {NULL};
    char *region;
    size_t size;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    region = hx_comm_region(comm, &size);
    fill(node, region, 2 * block);
    hx_barrier(node);
    if (node->rank == 1) { /* its part of node 0's block finishes when staged */
        double begun;

        if (post(lib, comm, region, region + size / 2, block, 1, -1, 0, req) || finish(lib, 1, req))
            return 1;
        begun = hx_now();
        hx_comm_abort(comm);
        HX_CHECK(hx_now() - begun < HX_SOON_S, "closing took %.1f s, as if there were something to wait for",
                 hx_now() - begun);
        HX_CHECK(hx_log_warns() == 0, "closing warned");
    } else {
        hx_where("waiting for the end of node 1");
        while (!hx_log_warns())
            hx_sleep(1e-3);
        HX_CHECK(hx_log_count("node 1", "has failed: ") == 1, "the end of node 1 was not told");
        hx_comm_abort(comm);
    }
    hx_lib_close(lib);
    return 0;
}

HX_CASE(left_half_way, sx_job("left-half-way", 2, half_way_node, NULL,
                              HX_ENV("NIBBLE_RS=raw", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG)))

/* A failing node says why. Another node sees its closed connections late, after all their messages. It must
 * report that reason, and not the loss of the first node, which would hide a third node as the cause. */
static void stop(int pid)
{
    char path[64], line[256] = "", *state;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    kill(pid, SIGSTOP);
    do {
        FILE *f = fopen(path, "re");

        if (!f || !fgets(line, sizeof line, f))
            line[0] = 0;
        if (f)
            fclose(f);
        state = strrchr(line, ')');
        hx_sleep(1e-3);
    } while (state && state[2] != 'T');
}

static void begun(struct hx_op *op, void *arg)
{
    (void)op;
    atomic_store((atomic_bool *)arg, true);
}

static int said_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2};
    struct sx_spec spec = {.func = HX_ALL_GATHER, .type = ncclFloat32, .count = 300007, .fill = HX_FILL_BITS};
    atomic_bool posted = false;
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    sx_prepare(node, &spec, &run);
    hx_barrier(node);
    if (node->rank == 0) { /* NCCL gives up: it closes with unfinished requests */
        run.op.on_start = begun;
        run.op.on_start_arg = &posted;
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
        while (!atomic_load(&posted))
            hx_sleep(1e-3);
        stop(hx_pid(node, 1));
        hx_comm_abort(comm);
        kill(hx_pid(node, 1), SIGCONT);
    } else {
        hx_where("waiting for the end of node 0");
        while (!hx_log_warns())
            hx_sleep(1e-3);
        HX_CHECK(hx_log_count("W ", "lost node 0") == 0 && hx_log_count("node 0", "has failed: ") == 1,
                 "node 0 is said to be lost");
        hx_comm_abort(comm);
    }
    sx_free(&run);
    hx_lib_close(lib);
    return 0;
}

HX_CASE(said_before_lost, sx_job("said-before-lost", 2, said_node, NULL, HX_ENV("NIBBLE_RS=raw")))

HX_MAIN({"left-half-way", left_half_way, 0}, {"said-before-lost", said_before_lost, 0},
        {"left-in-order", left_in_order, 0}, {"left-in-order-two-level", left_in_order_two_level, 0},
        {"left-before-taken", left_before_taken, 0}, {"freed-after-dereg", freed_after_dereg, 0})
