/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases that only occur where device work is late (late.c). First, ends with work in flight: NCCL frees its
 * buffer, closes, or the device itself fails. From then on the buffer must stay untouched, all nodes must
 * hear of the end, and every wait must end. Second, operations whose work must not overlap.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/suite.h"

static const char *const env_raw[] = {"NIBBLE_RS=raw", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG, NULL};

/* ---- NCCL frees its buffer while device work reads and writes it ---- */

#define BLOCK 65536
#define WINDOWS 2

static int freed_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2};
    void *req[WINDOWS] = {NULL};
    struct hx_lib *lib;
    struct hx_comm *comm;
    double t;
    char *mem;

    (void)arg;
    setenv("NB_LATE", node->rank == 0 ? "slow" : "thread", 1);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    mem = mmap(NULL, 8 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HX_CHECK(mem != MAP_FAILED, "no memory");
    hx_barrier(node);
    for (size_t w = 0; w < WINDOWS; w++)
        HX_CHECK(hx_coll_ireducescatter(lib, hx_comm_plugin(comm), mem + w * BLOCK, BLOCK,
                                        hx_comm_mhandle(comm, false), mem + 4 * BLOCK, BLOCK, w * BLOCK,
                                        BLOCK, ncclFloat32, ncclSum, hx_comm_mhandle(comm, true),
                                        &req[w]) == ncclSuccess &&
                     req[w],
                 "post");
    hx_settle(node); /* node 0's engine waits for its device */
    if (node->rank == 0) {
        t = hx_now();
        HX_CHECK(hx_coll_dereg_mr(lib, hx_comm_plugin(comm), hx_comm_mhandle(comm, false)) == ncclSuccess,
                 "deregMr");
        munmap(mem, 8 * BLOCK);
        *(double *)hx_scratch(node, 0) = hx_now() - t;
        HX_CHECK(hx_now() - t < HX_SOON_S, "deregMr took %.1f s", hx_now() - t);
    }
    hx_sleep(1.5); /* an access by work in flight would end this process */
    hx_comm_abort(comm);
    hx_lib_close(lib);
    return 0;
}

static int freed(void)
{
    struct hx_job job = {
        .name = "freed-with-work-in-flight", .nnodes = 2, .fn = freed_node, .env = env_raw, .seed = 1};

    /* On a busy machine the engine may not have begun by then. A piece of work takes 0.1 s, and deregMr waits
     * for the rest of it. */
    for (int tries = 0; tries < 20; tries++) {
        struct hx_report *report = NULL;
        int rc = hx_job_run(&job, &report);
        double waited = 0;

        if (report)
            memcpy(&waited, report->node[0].scratch, sizeof waited);
        hx_report_free(report);
        if (rc || waited > 0.05)
            return rc;
    }
    return hx_fail("nothing was in flight in 20 tries");
}

/* ---- close ---- */

static int stuck_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct sx_spec spec = {
        .func = *(enum hx_func *)arg, .type = ncclFloat32, .count = 300007, .fill = HX_FILL_BITS};
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;
    double t;

    setenv("NB_LATE", "stuck", 1);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    hx_barrier(node);
    sx_prepare(node, &spec, &run);
    HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
    HX_CHECK(hx_wait(comm, &run.op, 0.5) == HX_TIMEOUT, "an operation ended whose work is never done");
    hx_barrier(node);
    t = hx_now();
    hx_comm_abort(comm);
    HX_CHECK(hx_now() - t < HX_SOON_S, "closing took %.1f s", hx_now() - t);
    hx_lib_close(lib);
    sx_free(&run);
    return 0;
}

static int stuck(void)
{
    for (enum hx_func func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        int rc = sx_job("closed-with-work-in-flight", 2, stuck_node, &func, env_raw);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- the device fails ---- */

static int failing_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct sx_spec spec = {
        .func = *(enum hx_func *)arg, .type = ncclFloat32, .count = 300007, .fill = HX_FILL_EXACT};
    ncclResult_t ret;
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;
    double t;

    setenv("NB_LATE", node->rank == 1 ? "fail=3" : "thread", 1);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    sx_prepare(node, &spec, &run);
    hx_barrier(node);
    HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
    ret = hx_wait(comm, &run.op, HX_SOON_S);
    HX_CHECK(ret != HX_TIMEOUT, "no error after the device of node 1 failed");
    HX_CHECK(ret != ncclSuccess, "right results of a device that failed");
    if (node->rank == 1)
        HX_CHECK(hx_log_count("W ", strerror(EIO)) > 0, "no WARN line says what failed");
    else
        HX_CHECK(hx_log_count("W ", "node 1") > 0, "no WARN line names node 1");
    hx_barrier(node); /* so that each node sees its own end before it hears of another end */
    t = hx_now();
    hx_comm_close(comm);
    HX_CHECK(hx_now() - t < HX_SOON_S, "closing took %.1f s", hx_now() - t);
    hx_lib_close(lib);
    sx_free(&run);
    return 0;
}

static int failing(void)
{
    for (enum hx_func func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        int rc = sx_job("device-fails", 3, failing_node, &func, env_raw);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- operations that follow each other closely and carry the same error ---- */

#define ROUNDS 24

/* Post operations without waiting, as many as NCCL may have in flight, and leave the hash of all results. */
static int rounds_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 1, .buff_size = 64 << 10};
    const size_t block = 16384, all = block * (size_t)node->nnodes;
    uint64_t hash[ROUNDS];
    void *req[ROUNDS];
    float *send = malloc(all), *recv = malloc(ROUNDS * all);
    struct hx_lib *lib;
    struct hx_comm *comm;

    setenv("NB_LATE", arg, 1);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    hx_fill(ncclFloat32, send, all / 4, 77 + (uint64_t)node->rank, HX_FILL_NORMAL);
    hx_barrier(node);
    for (size_t i = 0; i < ROUNDS; i++) {
        HX_CHECK(hx_coll_ireducescatter(lib, hx_comm_plugin(comm), send, all, hx_comm_mhandle(comm, false),
                                        recv + i * all / 4, block, 0, all, ncclFloat32, ncclSum,
                                        hx_comm_mhandle(comm, true), &req[i]) == ncclSuccess &&
                     req[i],
                 "post of round %zu", i);
    }
    for (size_t i = 0; i < ROUNDS; i++) {
        for (int done = 0; !done; hx_sleep(0.0002))
            HX_CHECK(hx_coll_test(lib, req[i], &done, NULL) == ncclSuccess, "round %zu", i);
        hash[i] = hx_hash(recv + i * all / 4, block);
    }
    HX_CHECK(hash[0] != hash[1], "no error was carried on");
    memcpy(hx_scratch(node, node->rank), hash, sizeof hash);
    hx_barrier(node);
    free(send);
    free(recv);
    return sx_close(lib, comm, false);
}

static int rounds_hash(const char *late, unsigned char *scratch)
{
    static const char *const env[] = {"NIBBLE_EF=full", "NIBBLE_EF_IDENTITY=signature", "NIBBLE_RS=int4",
                                      "NIBBLE_MIN_BYTES=0", NULL};
    struct hx_job job = {.name = late, .nnodes = 2, .fn = rounds_node, .env = env};
    struct hx_report *rep;
    int rc;

    job.arg = (void *)(uintptr_t)late;
    rc = hx_job_run(&job, &rep);
    for (int n = 0; n < 2; n++)
        memcpy(scratch + n * ROUNDS * 8, rep->node[n].scratch, ROUNDS * 8);
    hx_report_free(rep);
    return rc;
}

/* Each round adds the error that the round before has left. The results must have the same bits as a run that
 * waits for each round. */
static int errors_in_order(void)
{
    unsigned char at_once[2 * ROUNDS * 8], polled[2 * ROUNDS * 8], thread[2 * ROUNDS * 8];

    if (rounds_hash("sync", at_once) || rounds_hash("poll", polled) || rounds_hash("thread", thread))
        return 1;
    HX_CHECK(memcmp(at_once, polled, sizeof polled) == 0 && memcmp(at_once, thread, sizeof thread) == 0,
             "results depend on when work is done");
    return 0;
}

/* ---- the device is absent ---- */

static int none_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    const char *stage = "?";
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    setenv("NB_LATE", node->rank == 1 ? "none" : "thread", 1);
    lib = hx_lib_open(NULL, 0);
    HX_CHECK(lib, "dlopen");
    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) != ncclSuccess,
             "connected with a node without its device");
    HX_CHECK(strcmp(stage, "connect") == 0, "failed in %s", stage);
    HX_CHECK(hx_log_count("W ", "cannot use its device") > 0, "no WARN line says why");
    hx_lib_close(lib);
    return 0;
}

HX_CASE(none, sx_job("no-device", 3, none_node, NULL, env_raw))

static const struct hx_case cases[] = {
    {"freed-with-work-in-flight", freed, 0},
    {"closed-with-work-in-flight", stuck, 0},
    {"device-fails", failing, 0},
    {"errors-in-order", errors_in_order, 0},
    {"no-device", none, 0},
};

int main(int argc, char **argv)
{
    setenv("NB_PLUGIN", LATE_PLUGIN, 1);
    return hx_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
