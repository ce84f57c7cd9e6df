/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences of all functions and types, with the least credit and small units, every node in its own
 * time: posting late, filling and draining slots with delays, now and then leaving one alone for long. The
 * proof of "nothing can wait in a circle" by trying: no job may hang, and every result must be right.
 *
 * The sequence depends on the job's seed only and is the same on all nodes; delays depend on the
 * rank, too. A failure prints the seed; NB_STRESS_SEED=<n> runs that one, NB_STRESS_SECONDS=<s> changes the
 * time for all jobs together.
 */
#include <stdlib.h>
#include <string.h>

#include "suite.h"

struct plan {
    double seconds;
    bool int4;
};

static void draw(uint64_t *rng, struct sx_spec *s, const struct plan *plan, int channels)
{
    static const ncclDataType_t types[] = { ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt32,
                                            ncclInt8,    ncclFloat64,  ncclFloat32, ncclUint64 };
    static const size_t chunks[] = { 0, 0, 512, 4096, 1536 };

    memset(s, 0, sizeof *s);
    s->func = (enum hx_func)hx_rand_below(rng, 3);
    s->type = types[hx_rand_below(rng, sizeof types / sizeof types[0])];
    s->op = hx_rand_below(rng, 4) ? ncclSum : ncclMax;
    s->count = 1 + hx_rand_below(rng, hx_rand_below(rng, 3) ? 3000 : 40000);
    s->channels = hx_rand_below(rng, 3) ? 0 : 1 + (int)hx_rand_below(rng, (uint64_t)channels);
    s->chunk = chunks[hx_rand_below(rng, 5)];
    s->in_place = hx_rand_below(rng, 2);
    s->fill = s->func == HX_ALL_GATHER ? HX_FILL_BITS : HX_FILL_EXACT;
    s->seed = hx_rand(rng);
    /* What is quantized cannot be exact. */
    if (plan->int4 && s->func == HX_REDUCE_SCATTER && s->op == ncclSum &&
        (s->type == ncclFloat32 || s->type == ncclBfloat16 || s->type == ncclFloat16)) {
        s->fill = HX_FILL_NORMAL;
        s->max_nmse = 0.05;
    }
}

static int stress_node(struct hx_node *node, void *arg)
{
    enum { BATCH = 6 };
    const struct plan *plan = arg;
    uint64_t common = hx_seed(node->seed, 1, 2), own = hx_seed(node->seed, 3, (uint64_t)node->rank + 4);
    struct hx_comm_cfg cfg = { .buff_size = 32u << 10, .poison = true, .idle_us = 100 };
    double begin = hx_now();
    struct sx_run run[BATCH];
    struct hx_lib *lib;
    struct hx_comm *comm;
    int total = 0;
    char go_on = 1, all[HX_MAX_NODES];

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

            draw(&common, &spec, plan, cfg.channels);
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
    return sx_close(lib, comm, false);
}

static int stress(int nnodes, bool int4, double share)
{
    static const char *const env_raw[] = { "NIBBLE_CREDITS=1", "NIBBLE_UNIT_BYTES=4096", "NIBBLE_RS=raw",
                                           "NIBBLE_AG_MIN_BYTES=0", NULL };
    static const char *const env_int4[] = { "NIBBLE_CREDITS=1",
                                            "NIBBLE_UNIT_BYTES=4096",
                                            "NIBBLE_RS=int4",
                                            "NIBBLE_RS_MIN_BYTES=0",
                                            "NIBBLE_AG_MIN_BYTES=0",
                                            "NIBBLE_EF=full",
                                            "NIBBLE_EF_IDENTITY=signature",
                                            NULL };
    const char *seconds = getenv("NB_STRESS_SECONDS"), *seed = getenv("NB_STRESS_SEED");
    double total = seconds ? strtod(seconds, NULL) : hx_quick() ? 16 : 50;
    struct plan plan = { share * total, int4 };
    struct hx_job job = { .name = int4 ? "stress int4" : "stress raw",
                          .nnodes = nnodes,
                          .fn = stress_node,
                          .arg = &plan,
                          .env = int4 ? env_int4 : env_raw };
    struct hx_report *rep;
    int rc;

    job.seed = seed ? strtoull(seed, NULL, 10) : 20261121 + (uint64_t)nnodes * 2 + int4;
    job.deadline_s = plan.seconds + (hx_quick() ? 90 : 30);
    rc = hx_job_run(&job, &rep);
    printf("        %s, %d nodes: %d operations, seed %llu\n", job.name, nnodes,
           *(int *)(void *)rep->node[0].scratch, (unsigned long long)job.seed);
    hx_report_free(rep);
    return rc;
}

static int raw_2(void)
{
    return stress(2, false, 0.12);
}

static int raw_4(void)
{
    return stress(4, false, 0.15);
}

static int raw_8(void)
{
    return stress(8, false, 0.2);
}

static int int4_2(void)
{
    return stress(2, true, 0.12);
}

static int int4_3(void)
{
    return stress(3, true, 0.15);
}

static int int4_5(void)
{
    return stress(5, true, 0.15);
}

static int int4_7(void)
{
    return stress(7, true, 0.15);
}

static const struct hx_case cases[] = {
    { "raw-2-nodes", raw_2, 0 },
    { "raw-4-nodes", raw_4, 0 },
    { "raw-8-nodes", raw_8, HX_CASE_FULL },
    { "int4-2-nodes", int4_2, HX_CASE_FULL },
    { "int4-3-nodes", int4_3, 0 },
    { "int4-5-nodes", int4_5, HX_CASE_FULL },
    { "int4-7-nodes", int4_7, HX_CASE_FULL },
};

int main(int argc, char **argv)
{
    return hx_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
