/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences of all functions and types, with the least credit and small units. Every node keeps its
 * own time: it posts late, fills and drains slots with delays, and now and then leaves a slot alone for long.
 * The test tries to refute that waits form no circle: every job must end, and every result must be right.
 *
 * The sequence depends only on the job's seed and is the same on all nodes. Delays depend on the rank, too. A
 * failure prints the seed. NB_STRESS_SEED=<n> runs one seed, NB_STRESS_SECONDS=<s> changes the time for all
 * jobs together.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

struct plan {
    double seconds;
    bool int4;
    const char *schedule; /* value of NIBBLE_SCHEDULE */
};

/* Draw an operation. `gather` asks for an all-gather, so that every batch has one and shows the schedule. */
static void draw(uint64_t *rng, struct sx_spec *s, const struct plan *plan, int channels, bool gather)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt32,
                                           ncclInt8,    ncclFloat64,  ncclFloat32, ncclUint64};
    static const size_t chunks[] = {0, 0, 512, 4096, 1536};

    memset(s, 0, sizeof *s);
    s->func = (enum hx_func)hx_rand_below(rng, 3);
    if (gather)
        s->func = HX_ALL_GATHER;
    s->type = types[hx_rand_below(rng, sizeof types / sizeof types[0])];
    s->op = hx_rand_below(rng, 4) ? ncclSum : ncclMax;
    s->count = 1 + hx_rand_below(rng, hx_rand_below(rng, 3) ? 3000 : 40000);
    s->channels = hx_rand_below(rng, 3) ? 0 : 1 + (int)hx_rand_below(rng, (uint64_t)channels);
    s->chunk = chunks[hx_rand_below(rng, 5)];
    s->in_place = hx_rand_below(rng, 2);
    s->fill = s->func == HX_ALL_GATHER ? HX_FILL_BITS : HX_FILL_EXACT;
    s->seed = hx_rand(rng);
    /* Repeated contents travel as deltas, or as a header alone. */
    if (s->func == HX_ALL_GATHER && hx_rand_below(rng, 2)) {
        s->seed = hx_rand_below(rng, 3);
        s->count = 4000 + 1000 * (size_t)s->seed;
        s->type = ncclBfloat16;
    }
    /* Quantized sums cannot be exact. */
    if (plan->int4 && s->func == HX_REDUCE_SCATTER && s->op == ncclSum &&
        (s->type == ncclFloat32 || s->type == ncclBfloat16 || s->type == ncclFloat16)) {
        s->fill = HX_FILL_NORMAL;
        s->max_nmse = 0.05;
    }
}

/* Return 1 when the summary counts all-gathers of this kind, 0 when the count is 0, -1 without a count. */
static int went(const char *line, const char *key)
{
    const char *at = strstr(line, "all_gather ops=");

    at = at ? strstr(at, key) : NULL;
    return at ? strtol(at + strlen(key), NULL, 10) > 0 : -1;
}

static int stress_node(struct hx_node *node, void *arg)
{
    enum { BATCH = 6 };
    const struct plan *plan = arg;
    uint64_t common = hx_seed(node->seed, 1, 2), own = hx_seed(node->seed, 3, (uint64_t)node->rank + 4);
    struct hx_comm_cfg cfg = {.buff_size = 32u << 10, .poison = true, .idle_us = 100};
    double begin = hx_now();
    struct sx_run run[BATCH];
    struct hx_lib *lib;
    struct hx_comm *comm;
    int total = 0;
    char go_on = 1, all[HX_MAX_NODES], line[2048] = "";

    cfg.channels = 1 + (int)hx_rand_below(&common, 12);
    cfg.flush = hx_rand_below(&common, 2);
    cfg.gpu_delay_us = (unsigned)hx_rand_below(&own, 3) * 150;
    cfg.stall_every = 40 + (unsigned)hx_rand_below(&own, 100);
    cfg.stall_ms = (unsigned)hx_rand_below(&own, 30);
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    while (go_on) {
        for (int i = 0; i < BATCH; i++) {
            struct sx_spec spec;

            draw(&common, &spec, plan, cfg.channels, i == 0);
            sx_prepare(node, &spec, &run[i]);
        }
        for (int i = 0; i < BATCH; i++) {
            if (hx_rand_below(&own, 3) == 0)
                hx_sleep(1e-6 * (double)hx_rand_below(&own, 20000));
            HX_CHECK(hx_post(comm, &run[i].op) == ncclSuccess, "post");
            if (hx_rand_below(&own, 3) == 0) { /* sometimes wait before the next one */
                hx_where("operation %d: %s", total + i, sx_describe(&run[i].spec));
                hx_wait(comm, &run[i].op, 0);
            }
        }
        for (int i = 0; i < BATCH; i++, total++) {
            ncclResult_t ret;

            hx_where("operation %d: %s", total, sx_describe(&run[i].spec));
            ret = hx_wait(comm, &run[i].op, 0);
            HX_CHECK(ret == ncclSuccess, "operation %d: %s: result %d", total, sx_describe(&run[i].spec),
                     (int)ret);
            if (sx_check(node, &run[i]))
                return 1;
            sx_free(&run[i]);
        }
        go_on = hx_now() - begin < plan->seconds;
        hx_allgather(node, &go_on, 1, all);
        go_on = all[0];
    }
    *(int *)hx_scratch(node, node->rank) = total;
    if (sx_close(lib, comm, false))
        return 1;
    hx_log_first("all_gather ops=", line, sizeof line);
    HX_CHECK(went(line, "two_hop=") == (strcmp(plan->schedule, "two-hop") == 0) &&
                 went(line, "two_level=") == (strcmp(plan->schedule, "two-level") == 0),
             "not the schedule that was asked for: %s", line);
    return 0;
}

static int stress(int nnodes, bool int4, const char *schedule, double share)
{
    const char *const env[] = {"NIBBLE_CREDITS=1",
                               "NIBBLE_UNIT_BYTES=4096",
                               "NIBBLE_MIN_BYTES=0",
                               int4 ? "NIBBLE_RS=int4" : "NIBBLE_RS=raw",
                               "NIBBLE_EF=full",
                               "NIBBLE_EF_IDENTITY=signature",
                               schedule,
                               NULL};
    const char *seconds = getenv("NB_STRESS_SECONDS"), *seed = getenv("NB_STRESS_SEED");
    double total = seconds ? strtod(seconds, NULL) : hx_quick() ? 16 : 50;
    struct plan plan = {share * total, int4, schedule + strlen("NIBBLE_SCHEDULE=")};
    struct hx_job job = {.name = int4 ? "stress int4" : "stress raw",
                         .nnodes = nnodes,
                         .fn = stress_node,
                         .arg = &plan,
                         .env = env};
    struct hx_report *rep;
    int rc;

    job.deadline_s = plan.seconds + HX_LIMIT_S;
    job.seed = seed ? strtoull(seed, NULL, 10) : 20261121 + (uint64_t)nnodes * 2 + int4;
    rc = hx_job_run(&job, &rep);
    printf("        %s, %s, %d nodes: %d operations, seed %llu\n", job.name, schedule, nnodes,
           *(int *)(void *)rep->node[0].scratch, (unsigned long long)job.seed);
    hx_report_free(rep);
    return rc;
}

HX_CASE(raw_2_direct, stress(2, false, "NIBBLE_SCHEDULE=direct", 0.10))
HX_CASE(raw_4_direct, stress(4, false, "NIBBLE_SCHEDULE=direct", 0.10))
HX_CASE(raw_4_two_hop, stress(4, false, "NIBBLE_SCHEDULE=two-hop", 0.15))
HX_CASE(raw_8_direct, stress(8, false, "NIBBLE_SCHEDULE=direct", 0.15))
HX_CASE(raw_8_two_hop, stress(8, false, "NIBBLE_SCHEDULE=two-hop", 0.20))
HX_CASE(int4_2_direct, stress(2, true, "NIBBLE_SCHEDULE=direct", 0.10))
HX_CASE(int4_3_direct, stress(3, true, "NIBBLE_SCHEDULE=direct", 0.12))
HX_CASE(int4_3_two_hop, stress(3, true, "NIBBLE_SCHEDULE=two-hop", 0.15))
HX_CASE(int4_5_direct, stress(5, true, "NIBBLE_SCHEDULE=direct", 0.12))
HX_CASE(int4_5_two_hop, stress(5, true, "NIBBLE_SCHEDULE=two-hop", 0.15))
HX_CASE(int4_7_direct, stress(7, true, "NIBBLE_SCHEDULE=direct", 0.12))
HX_CASE(int4_7_two_hop, stress(7, true, "NIBBLE_SCHEDULE=two-hop", 0.15))
HX_CASE(raw_4_two_level, stress(4, false, "NIBBLE_SCHEDULE=two-level", 0.10))
HX_CASE(raw_8_two_level, stress(8, false, "NIBBLE_SCHEDULE=two-level", 0.15))
HX_CASE(int4_4_two_level, stress(4, true, "NIBBLE_SCHEDULE=two-level", 0.12))
HX_CASE(int4_6_two_level, stress(6, true, "NIBBLE_SCHEDULE=two-level", 0.15))
HX_CASE(int4_9_two_level, stress(9, true, "NIBBLE_SCHEDULE=two-level", 0.20))

HX_MAIN({"raw-2-nodes-direct", raw_2_direct, 0}, {"raw-4-nodes-direct", raw_4_direct, 0},
        {"raw-4-nodes-two-hop", raw_4_two_hop, 0}, {"raw-8-nodes-direct", raw_8_direct, HX_CASE_FULL},
        {"raw-8-nodes-two-hop", raw_8_two_hop, HX_CASE_FULL},
        {"int4-2-nodes-direct", int4_2_direct, HX_CASE_FULL}, {"int4-3-nodes-direct", int4_3_direct, 0},
        {"int4-3-nodes-two-hop", int4_3_two_hop, 0}, {"int4-5-nodes-direct", int4_5_direct, HX_CASE_FULL},
        {"int4-5-nodes-two-hop", int4_5_two_hop, 0}, {"int4-7-nodes-direct", int4_7_direct, HX_CASE_FULL},
        {"int4-7-nodes-two-hop", int4_7_two_hop, HX_CASE_FULL},
        {"raw-4-nodes-two-level", raw_4_two_level, HX_CASE_FULL},
        {"raw-8-nodes-two-level", raw_8_two_level, 0},
        {"int4-4-nodes-two-level", int4_4_two_level, HX_CASE_FULL},
        {"int4-6-nodes-two-level", int4_6_two_level, 0},
        {"int4-9-nodes-two-level", int4_9_two_level, HX_CASE_FULL})
