/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec threads (NIBBLE_HOST_THREADS) under a job. Results must have the same bits with any number of
 * threads, an abort during an operation must leave no access to NCCL's buffer, and a process that cannot
 * start threads must work without them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

#define OPS 9

/* Run sums with feedback, all-reduces, and all-gathers of which every second one travels as deltas. */
static int bits_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 256 << 10};
    uint64_t *hash = hx_scratch(node, node->rank);
    char line[2048] = "", want[32];
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int i = 0; i < OPS; i++) {
        static const enum hx_func func[] = {HX_REDUCE_SCATTER, HX_ALL_REDUCE, HX_ALL_GATHER};
        struct sx_spec spec = {.func = func[i % 3],
                               .type = i % 2 ? ncclFloat32 : ncclBfloat16,
                               .count = 100021,
                               .fill = HX_FILL_NORMAL,
                               .seed = i % 3 == 2 ? 7 : (uint64_t)i,
                               .max_nmse = i % 3 == 2 ? 0 : 0.05};
        if (sx_do(node, comm, &spec, &hash[i]))
            return 1;
    }
    if (sx_close(lib, comm, false))
        return 1;
    snprintf(want, sizeof(want), "threads=%u", *(unsigned *)arg);
    hx_log_first("time busy_s=", line, sizeof line);
    HX_CHECK(strstr(line, want), "no %s in the summary: %s", want, line);
    return 0;
}

static int same_bits(void)
{
    static const unsigned counts[] = {0, 1, 2, 7};
    uint64_t first[3][OPS];

    for (unsigned k = 0; k < 4; k++) {
        char threads[40];
        const char *const env[] = {"NIBBLE_EF_IDENTITY=signature", "NIBBLE_MIN_BYTES=0", threads, NULL};
        unsigned count = counts[k];
        struct hx_job job = {
            .name = "same-bits", .nnodes = 3, .fn = bits_node, .arg = &count, .env = env, .seed = 5};
        struct hx_report *rep;
        int rc;

        snprintf(threads, sizeof(threads), "NIBBLE_HOST_THREADS=%u", count);
        rc = hx_job_run(&job, &rep);
        for (int r = 0; r < 3 && rc == 0; r++) {
            if (k == 0)
                memcpy(first[r], rep->node[r].scratch, sizeof first[r]);
            else if (memcmp(first[r], rep->node[r].scratch, sizeof first[r]) != 0)
                rc = hx_fail("node %d: other bits with %u codec threads", r, count);
        }
        hx_report_free(rep);
        if (rc)
            return rc;
    }
    return 0;
}

/* NCCL aborts while tasks are in flight, at another moment each time, and frees its buffer. */
static int aborted_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 1 << 20};
    struct sx_spec spec = {.func = *(enum hx_func *)arg,
                           .type = ncclFloat32,
                           .count = 2000003,
                           .fill = HX_FILL_NORMAL,
                           .max_nmse = 0.05};
    const char *stage = "?";
    struct hx_lib *lib;
    uint64_t rng = hx_seed(node->seed, (uint64_t)node->rank, 1);

    lib = hx_lib_open(NULL, 0);
    HX_CHECK(lib, "the plugin does not load");
    for (int round = 0; round < 4; round++) {
        struct hx_comm *comm;
        struct sx_run run;
        double t;

        HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess, "%s failed", stage);
        sx_prepare(node, &spec, &run);
        hx_barrier(node);
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
        hx_sleep(1e-4 * (double)(hx_rand(&rng) % 100));
        t = hx_now();
        hx_comm_abort(comm);
        HX_CHECK(hx_now() - t < HX_SOON_S, "aborting took %.1f s", hx_now() - t);
        sx_free(&run);
        hx_barrier(node);
    }
    hx_lib_close(lib);
    return 0;
}

static int aborted(void)
{
    static const char *const env[] = {"NIBBLE_EF_IDENTITY=signature", "NIBBLE_HOST_THREADS=3",
                                      "NIBBLE_CLOSE_TIMEOUT=" HX_LONG, NULL};

    for (enum hx_func func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        int rc = sx_job("aborted", 2, aborted_node, &func, env);
        if (rc)
            return rc;
    }
    return 0;
}

static int none_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2};
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = ncclFloat32,
                           .count = 100003,
                           .fill = HX_FILL_NORMAL,
                           .max_nmse = 0.05};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (node->rank == 1)
        setenv("NIBBLE_FAULT", "codec-thread", 1);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    HX_CHECK(hx_log_count("cannot start codec thread 1", NULL) == (node->rank == 1), "threads of node %d",
             node->rank);
    if (sx_do(node, comm, &spec, NULL))
        return 1;
    return sx_close(lib, comm, false);
}

HX_CASE(none_to_be_had,
        sx_job("none-to-be-had", 2, none_node, NULL, HX_ENV("NIBBLE_MIN_BYTES=0", "NIBBLE_HOST_THREADS=2")))

HX_MAIN({"same-bits", same_bits, 0}, {"aborted", aborted, 0}, {"none-to-be-had", none_to_be_had, 0})
