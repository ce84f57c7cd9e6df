/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantized all-reduces. They need an operation record, which says which bytes of the padded chunks are
 * values and which residual belongs to them. NCCL's profiler events make the record in a job, and here the
 * test makes it. So this program links the plugin's sources instead of loading the plugin.
 *
 * Bounds: every contribution except the own is quantized once, with at most 0.7 % of its energy as error (see
 * results.c). The sum is quantized once more on its way back to all nodes, by a node that quantizes the sum
 * of N contributions. That sum has the sum of their energies.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "coll/coll.h"
#include "lib/suite.h"
#include "policy/records/records.h"

#define INT4_NMSE 0.0070

static const char *const env_plain[] = {"NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", NULL};
static const char *const env_feedback[] = {"NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=full", NULL};

static int push(struct hx_comm *comm, const struct sx_spec *spec, size_t chunk, int64_t slot)
{
    struct nb_record r = {.func = spec->func == HX_ALL_REDUCE ? NB_FUNC_ALL_REDUCE : NB_FUNC_REDUCE_SCATTER,
                          .type = spec->type,
                          .flags = NB_RECORD_API,
                          .bytes = spec->count * hx_type_size(spec->type),
                          .slot = slot,
                          .chunk = (uint32_t)(spec->chunk ? spec->chunk : chunk),
                          .heads = 1 << 1,
                          .head = 0};

    HX_CHECK(nb_record_push(hx_comm_plugin(comm), &r) == 0, "a record was refused");
    return 0;
}

/* ---- sizes of any remainder, padding full of NaN and 1e30 ---- */

static int padded_node(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    static const size_t counts[] = {1, 31, 1000, 4095, 40001, 150001};
    static const size_t chunks[] = {0, 4096, 1536};
    int channels = *(int *)arg, n = 0;
    struct hx_comm_cfg cfg = {.channels = channels, .buff_size = 128 << 10, .poison = true};
    const char *second = getenv("NIBBLE_SECOND_HOP");
    /* Of the error of an int4 code: that of the result. */
    const double again = !second || strcmp(second, "int6") == 0 ? 0.1
                         : strcmp(second, "int8") == 0          ? 0.02
                                                                : 1;
    double bound = INT4_NMSE * ((node->nnodes - 1.0) / node->nnodes + again), rounding;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    for (int t = 0; t < 3; t++) {
        /* Each twice, since two kinds of padding alternate. */
        for (size_t kk = 0; kk < 2 * sizeof counts / sizeof counts[0]; kk++, n++) {
            size_t k = kk / 2;
            struct sx_spec spec = {.func = HX_ALL_REDUCE,
                                   .type = types[t],
                                   .count = counts[k],
                                   .fill = HX_FILL_NORMAL,
                                   .seed = (uint64_t)n,
                                   .in_place = n & 1,
                                   .chunk = chunks[n / 2 % 3],
                                   .channels = n / 2 % 4 == 3 ? 1 : 0};
            struct sx_run run;
            ncclResult_t ret;

            rounding = types[t] == ncclFloat32 ? 1e-13 : types[t] == ncclFloat16 ? 1e-6 : 1.6e-5;
            spec.max_nmse = (k >= 4 ? bound : 4 * bound) + rounding; /* few values: one sample of the noise */
            sx_prepare(node, &spec, &run);
            if (push(comm, &spec, (size_t)(128 << 10) / HX_STEPS, -1))
                return 1;
            hx_where("%s", sx_describe(&spec));
            ret = hx_run(comm, &run.op);
            HX_CHECK(ret == ncclSuccess, "%s: result %d", sx_describe(&spec), (int)ret);
            if (sx_check(node, &run))
                return 1;
            if (k >= 4)
                HX_CHECK(run.nmse > bound / 4, "%s: error %.3g: this was not coded in 4 bits",
                         sx_describe(&spec), run.nmse);
            HX_CHECK(hx_all_equal(node, hx_hash(run.recv, spec.count * hx_type_size(spec.type))),
                     "%s: not the same bits on all nodes", sx_describe(&spec));
            sx_free(&run);
        }
    }
    return sx_close(lib, comm, false);
}

static int padded_two_level(void)
{
    static const char *const env[] = {"NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off",
                                      "NIBBLE_SCHEDULE=two-level", NULL};
    int channels = 3;

    return sx_job("padded, two levels", hx_quick() ? 4 : 6, padded_node, &channels, env);
}

static int padded(int nnodes, int channels)
{
    return sx_job("padded", nnodes, padded_node, &channels, env_plain);
}

HX_CASE(finer_result,
        sx_job("finer result", 2, padded_node, &(int){2},
               HX_ENV("NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", "NIBBLE_SECOND_HOP=int8")))

HX_CASE(padded_2, padded(2, 2))
HX_CASE(padded_3, padded(3, 8))
HX_CASE(padded_5, padded(5, 12))

/* ---- feedback: the mean of repeated all-reduces approaches the true sum ---- */

struct next_record {
    struct hx_comm *comm;
    const struct sx_spec *spec;
    int64_t slot;
};

static int push_next(void *arg)
{
    const struct next_record *next = arg;

    return push(next->comm, next->spec, (size_t)(256 << 10) / HX_STEPS, next->slot);
}

static int mean_node(struct hx_node *node, void *arg)
{
    enum { ROUNDS = 120 };
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10, .poison = true};
    struct sx_spec spec = {
        .func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 30011, .fill = HX_FILL_NORMAL, .seed = 11};
    struct next_record next;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    next = (struct next_record){comm, &spec, *(int64_t *)arg};
    if (sx_mean_error(node, comm, &spec, ROUNDS, push_next, &next, (double *)hx_scratch(node, node->rank)))
        return 1;
    return sx_close(lib, comm, false);
}

/* Return whether every node measured the error of its codes. A node that owns all blocks would measure
 * zero. */
static bool all_measured(const struct hx_report *rep, int nnodes)
{
    for (int r = 0; r < nnodes; r++)
        if (!hx_report_has(rep, r, "feedback ops=", "nmse=0.0") ||
            hx_report_has(rep, r, "feedback ops=", "nmse=0.00000"))
            return false;
    return true;
}

static int feedback(int nnodes, const char *const *env)
{
    double error[2];

    for (int with = 0; with < 2; with++) {
        int64_t slot = with ? 5 : -1;
        struct hx_job job = {.name = "feedback", .nnodes = nnodes, .fn = mean_node, .arg = &slot, .env = env};
        struct hx_report *rep;
        int rc = hx_job_run(&job, &rep);

        error[with] = *(double *)(void *)rep->node[0].scratch;
        if (rc == 0 && !all_measured(rep, nnodes))
            rc = hx_fail("a node has measured no error");
        hx_report_free(rep);
        if (rc)
            return rc;
    }
    printf("        all-reduce: error of the mean %.3g without a slot, %.3g with (%.0f times less)\n",
           error[0], error[1], error[0] / error[1]);
    HX_CHECK(error[0] > 0.02 && error[0] / error[1] >= 20, "feedback brings the mean only %.1f times closer",
             error[0] / error[1]);
    return 0;
}

HX_CASE(feedback_direct, feedback(3, env_feedback))

HX_CASE(feedback_two_level,
        feedback(hx_quick() ? 4 : 6, HX_ENV("NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=full",
                                            "NIBBLE_SCHEDULE=two-level")))

/* ---- wrong and missing records, and records of other operations ---- */

static int wrong_records_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .poison = true};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    for (int round = 0; round < 12; round++) {
        struct sx_spec spec = {.func = HX_ALL_REDUCE,
                               .type = ncclFloat32,
                               .count = 30001,
                               .fill = HX_FILL_EXACT,
                               .seed = (uint64_t)round};
        struct sx_spec rec = spec;

        /* All nodes have the same wrong record: the operation must run raw, and so exactly. */
        switch (round % 6) {
        case 0: rec.type = ncclBfloat16; break;
        case 1: rec.type = ncclInt32; break;
        case 2:
            rec.chunk = 4096; /* a window would hold 16 of these */
            break;
        case 3:
            rec.func = HX_REDUCE_SCATTER; /* of an operation that never comes */
            break;
        default: break; /* no record */
        }
        if (round % 6 < 4 && push(comm, &rec, (size_t)(128 << 10) / HX_STEPS, 7))
            return 1;
        if (sx_do(node, comm, &spec, NULL))
            return 1;
        /* The operation after it has the right record and must be quantized. */
        spec.fill = HX_FILL_NORMAL;
        spec.max_nmse = 0.03;
        if (push(comm, &spec, (size_t)(128 << 10) / HX_STEPS, -1))
            return 1;
        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
    return sx_close(lib, comm, false);
}

HX_CASE(wrong_records, sx_job("wrong records", 3, wrong_records_node, NULL, env_plain))

/* One node lost a record that the other nodes have. The job must end with a right result or an error on every
 * node, without a hang. */
static int lost_record_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .poison = true};
    struct sx_spec spec = {.func = HX_ALL_REDUCE,
                           .type = ncclFloat32,
                           .count = 50001,
                           .fill = HX_FILL_NORMAL,
                           .seed = 3,
                           .max_nmse = 0.03};
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;
    ncclResult_t ret;

    (void)arg;
    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    sx_prepare(node, &spec, &run);
    if (node->rank != 1 && push(comm, &spec, (size_t)(128 << 10) / HX_STEPS, -1))
        return 1;
    hx_where("all-reduce of which node 1 has no record");
    HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
    ret = hx_wait(comm, &run.op, HX_SOON_S);
    HX_CHECK(ret != HX_TIMEOUT, "hangs when one node has no record");
    if (ret == ncclSuccess && sx_check(node, &run))
        return 1;
    HX_CHECK(hx_all_equal(node, ret == ncclSuccess), "an error on some nodes only");
    *(int *)hx_scratch(node, node->rank) = (int)ret;
    hx_comm_close(comm);
    hx_lib_close(lib);
    sx_free(&run);
    return 0;
}

static int lost_record(void)
{
    struct hx_job job = {.name = "lost record", .nnodes = 3, .fn = lost_record_node, .env = env_plain};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0)
        printf("        one node without the record: %s\n",
               *(int *)(void *)rep->node[0].scratch == ncclSuccess ? "right results"
                                                                   : "an error on all nodes");
    hx_report_free(rep);
    return rc;
}

HX_MAIN({"padded-2-nodes", padded_2, 0}, {"padded-3-nodes", padded_3, 0}, {"finer-result", finer_result, 0},
        {"padded-5-nodes-two-groups", padded_5, HX_CASE_FULL}, {"feedback", feedback_direct, 0},
        {"padded-two-level", padded_two_level, HX_CASE_SLOW},
        {"feedback-two-level", feedback_two_level, HX_CASE_SLOW}, {"wrong-records", wrong_records, 0},
        {"lost-record", lost_record, 0})
