/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of the plugin with quantized values, driven as NCCL drives it. Errors must stay within a bound, the
 * bits must be the same in another run and on every node, and a NaN or an infinity must stay at its own
 * place. The last cases check which schedule the plugin chooses.
 *
 * Bounds. int4 encodes groups of 32 values with a step of 1/8 of the group's largest value, which is 2.4
 * sigma on average for Gaussian values. The noise is step^2/12, 0.78 % of the energy. It is less, 0.62 %,
 * because the codec transforms a group whose largest value becomes smaller that way. A sum has the own
 * contribution exactly and the noise of the other contributions added incoherently. So the error relative to
 * the energy of all contributions is (N-1)/N of 0.62 %.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

#define INT4_NMSE 0.0070 /* between the codec's noise and its noise without the transform */

static const char *const env_int4[] = {"NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", NULL};

/* ---- int4 ---- */

static int int4_node(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    static const size_t counts[] = {31, 4095, 200003};
    int channels = *(int *)arg, n = 0;
    struct hx_comm_cfg cfg = {.channels = channels, .buff_size = 256 << 10};
    const char *schedule = getenv("NIBBLE_SCHEDULE");
    bool two_hop = schedule && strcmp(schedule, "two-hop") == 0;
    bool two_level = schedule && strcmp(schedule, "two-level") == 0;
    /* In two hops all contributions are coded except the owner's and the summing node's, and then their sum
     * is. In two levels the contributions of the summing node of every row, here of two rows, are raw. Codes
     * of 8 bits add a negligible error. */
    double bound = INT4_NMSE *
                   (two_level ? 2 * node->nnodes - 4
                    : two_hop ? 2 * node->nnodes - 3
                              : node->nnodes - 1) /
                   node->nnodes;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int t = 0; t < 3; t++) {
        for (int k = 0; k < 3; k++, n++) {
            struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                                   .type = types[t],
                                   .count = counts[k],
                                   .fill = HX_FILL_NORMAL,
                                   .seed = (uint64_t)n,
                                   .in_place = n & 1,
                                   .chunk = n % 3 == 1 ? 12288 : 0};
            /* With few values, one sample of the noise may be well above its mean. */
            spec.max_nmse = (k == 2 ? bound : 3 * INT4_NMSE) + sx_rounding_nmse(types[t]);
            struct sx_run run;
            ncclResult_t ret;

            sx_prepare(node, &spec, &run);
            hx_where("%s", sx_describe(&spec));
            ret = hx_run(comm, &run.op);
            HX_CHECK(ret == ncclSuccess, "%s: result %d", sx_describe(&spec), (int)ret);
            if (sx_check(node, &run))
                return 1;
            if (k == 2) {
                HX_CHECK(run.nmse > bound / 4, "%s: error %.3g: this was not coded in 4 bits",
                         sx_describe(&spec), run.nmse);
                ((double *)hx_scratch(node, node->rank))[t] = run.nmse;
            }
            sx_free(&run);
        }
    }
    return sx_close(lib, comm, false);
}

static int int4(int nnodes, int channels, const char *const *env)
{
    struct hx_job job = {
        .name = "int4", .nnodes = nnodes, .fn = int4_node, .arg = &channels, .env = env, .seed = 1};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);
    const double *found = (const double *)(const void *)rep->node[0].scratch;

    if (rc == 0)
        printf("        int4, %d nodes: %.3f %% (fp32) %.3f %% (bf16) %.3f %% (fp16) of the energy\n", nnodes,
               100 * found[0], 100 * found[1], 100 * found[2]);
    hx_report_free(rep);
    return rc;
}

HX_CASE(int4_2, int4(2, 2, env_int4))
HX_CASE(int4_3, int4(3, 8, env_int4))

HX_CASE(int4_8,
        int4(8, 12,
             HX_ENV("NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", "NIBBLE_SCHEDULE=direct")))

HX_CASE(int4_two_hop,
        int4(4, 3,
             HX_ENV("NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", "NIBBLE_SCHEDULE=two-hop")))

static const char *const env_int4_grid[] = {"NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off",
                                            "NIBBLE_SCHEDULE=two-level", NULL};

HX_CASE(int4_two_level, int4(4, 3, env_int4_grid))
HX_CASE(int4_two_level_8, int4(8, 4, env_int4_grid))

/* The same sequence in two fresh jobs, error feedback included, must give the same bits. */
static int repeat_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .gpu_delay_us = *(unsigned *)arg};
    uint64_t *hash = hx_scratch(node, node->rank);
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int i = 0; i < 6; i++) {
        struct sx_spec spec = {.func = i % 3 == 2 ? HX_ALL_REDUCE : HX_REDUCE_SCATTER,
                               .type = ncclFloat32,
                               .count = 50021,
                               .fill = HX_FILL_NORMAL,
                               .seed = (uint64_t)i,
                               .max_nmse = 0.05};

        if (sx_do(node, comm, &spec, &hash[i]))
            return 1;
    }
    return sx_close(lib, comm, false);
}

static int repeatable(const char *schedule)
{
    const char *const env[] = {"NIBBLE_EF=full", "NIBBLE_EF_IDENTITY=signature", "NIBBLE_MIN_BYTES=0",
                               schedule, NULL};
    uint64_t first[HX_MAX_NODES][6];
    unsigned delay[2] = {0, 300};

    for (int run = 0; run < 2; run++) {
        struct hx_job job = {
            .name = "repeatable", .nnodes = 4, .fn = repeat_node, .arg = &delay[run], .env = env, .seed = 5};
        struct hx_report *rep;
        int rc = hx_job_run(&job, &rep);

        for (int r = 0; r < 4 && rc == 0; r++) {
            if (run == 0)
                memcpy(first[r], rep->node[r].scratch, sizeof first[r]);
            else if (memcmp(first[r], rep->node[r].scratch, sizeof first[r]) != 0)
                rc = hx_fail("node %d: other bits when the timing was different", r);
        }
        hx_report_free(rep);
        if (rc)
            return rc;
    }
    return 0;
}

HX_CASE(repeatable_direct, repeatable("NIBBLE_SCHEDULE=direct"))
HX_CASE(repeatable_two_hop, repeatable("NIBBLE_SCHEDULE=two-hop"))
HX_CASE(repeatable_two_level, repeatable("NIBBLE_SCHEDULE=two-level"))

/* ---- NaN and infinities ---- */

struct foreign {
    int rank;  /* whose contribution */
    size_t at; /* index in every block */
    double value;
};

static int foreign_node(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    const struct foreign foreign[] = {{0, 7, (double)NAN},          {1, 900, (double)INFINITY},
                                      {1, 5000, -(double)INFINITY}, {2, 5001, (double)NAN},
                                      {2, 12287, (double)INFINITY}, {0, 29990, (double)NAN}};
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int t = 0; t < 3; t++) {
        struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                               .type = types[t],
                               .count = 30011,
                               .fill = HX_FILL_NORMAL,
                               .seed = (uint64_t)t};
        struct sx_run run;
        double err = 0, energy = 0;
        char *x;

        sx_prepare(node, &spec, &run);
        for (size_t k = 0; k < sizeof foreign / sizeof foreign[0]; k++) {
            for (int b = 0; b < node->nnodes && foreign[k].rank == node->rank; b++)
                hx_store(spec.type, run.send, (size_t)b * spec.count + foreign[k].at, foreign[k].value);
        }
        hx_where("%s with NaN and infinity", sx_describe(&spec));
        HX_CHECK(hx_run(comm, &run.op) == ncclSuccess, "%s failed", sx_describe(&spec));
        for (size_t k = 0; k < sizeof foreign / sizeof foreign[0]; k++) {
            double got = hx_load(spec.type, run.recv, foreign[k].at);

            HX_CHECK(isnan(foreign[k].value) ? isnan(got) : got == foreign[k].value,
                     "%s: value %zu is %g instead of %g", hx_type_name(spec.type), foreign[k].at, got,
                     foreign[k].value);
            hx_store(spec.type, run.recv, foreign[k].at, 0);
        }
        double *sum = calloc(spec.count, sizeof *sum);
        x = malloc(spec.count * hx_type_size(spec.type));
        for (int r = 0; r < node->nnodes; r++) {
            sx_block(&spec, r, node->rank, x);
            energy += hx_add(spec.type, x, spec.count, sum);
        }
        for (size_t k = 0; k < sizeof foreign / sizeof foreign[0]; k++)
            sum[foreign[k].at] = 0;
        for (size_t i = 0; i < spec.count; i++) {
            double got = hx_load(spec.type, run.recv, i);

            HX_CHECK(isfinite(got), "%s: value %zu became %g", hx_type_name(spec.type), i, got);
            err += (got - sum[i]) * (got - sum[i]);
        }
        HX_CHECK(err <= 1.3 * INT4_NMSE * energy, "%s: error %.3g beside foreign values",
                 hx_type_name(spec.type), err / energy);
        free(sum);
        free(x);
        sx_free(&run);
    }
    return sx_close(lib, comm, false);
}

HX_CASE(foreign_values, sx_job("NaN and infinity", 3, foreign_node, NULL, env_int4))

/* ---- schedule that the plugin chooses for a reduce-scatter ---- */

/* Counts of a reduce-scatter of FP32, and whether it goes in two hops. Windows have at most 64 KiB. */
struct choice {
    size_t count;
    bool two_hop;
};

/* Check that the summary states how long operations took, and how much processor time they used. */
static int told_time(void)
{
    double busy = -1, worked = -1, share = -1, pace = -1;
    unsigned threads = 0;
    char line[2048] = "", *at;

    hx_log_first("time busy_s=", line, sizeof line);
    at = strstr(line, "time busy_s=");
    HX_CHECK(at && sscanf(at, "time busy_s=%lf processor_s=%lf share=%lf worked_gbps=%lf threads=%u", &busy,
                          &worked, &share, &pace, &threads) == 5,
             "no time in the summary: %s", line);
    HX_CHECK(busy > 0 && worked >= 0 && worked <= busy * (threads ? threads : 1) && share >= 0 &&
                 share <= 1 && pace > 0,
             "times: %s", line);
    return 0;
}

static int choice_node(struct hx_node *node, void *arg)
{
    const struct choice *choice = arg;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = ncclFloat32,
                           .count = choice->count,
                           .fill = HX_FILL_NORMAL,
                           .seed = 3,
                           .max_nmse = 3 * INT4_NMSE};
    char line[2048] = "", *at;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm) || sx_do(node, comm, &spec, NULL) || sx_close(lib, comm, false))
        return 1;
    hx_log_first("reduce_scatter ops=", line, sizeof line);
    at = strstr(line, "two_hop=");
    HX_CHECK(at, "no summary: %s", line);
    HX_CHECK(choice->two_hop == (at[strlen("two_hop=")] != '0'), "%zu values a node: %s", choice->count,
             line);
    return told_time();
}

static int choose(int nnodes, size_t count, const char *second, bool two_hop)
{
    const char *const env[] = {"NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", second, NULL};
    struct choice choice = {count, two_hop};

    return sx_job("choice", nnodes, choice_node, &choice, env);
}

/* Two hops where few owners receive at the same time. Nodes run ahead by the bytes that they stage, so that
 * takes blocks of 2 MiB with 8 nodes. With 8 bits on the second hop it takes larger blocks, since its bytes
 * take longer. Three nodes need larger blocks than these, too. */
static int choice(void)
{
    const char *int4 = "NIBBLE_SECOND_HOP=int4", *int8 = "NIBBLE_SECOND_HOP=int8";

    return choose(8, 65536, int4, false) || choose(8, 589824, int4, true) || choose(8, 589824, int8, false) ||
           choose(8, 1179648, int8, true) || choose(3, 262144, int4, false);
}

HX_MAIN({"int4-2-nodes", int4_2, 0}, {"int4-3-nodes", int4_3, HX_CASE_FULL},
        {"int4-8-nodes", int4_8, HX_CASE_FULL}, {"int4-two-hop", int4_two_hop, 0},
        {"int4-two-level", int4_two_level, 0}, {"int4-two-level-8-nodes", int4_two_level_8, HX_CASE_FULL},
        {"repeatable", repeatable_direct, 0}, {"repeatable-two-hop", repeatable_two_hop, 0},
        {"repeatable-two-level", repeatable_two_level, 0}, {"foreign-values", foreign_values, 0},
        {"choice", choice, HX_CASE_FULL})
