/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback reaches its aim: when the same gradient comes again and again, the running mean of the
 * results approaches the true sum like 1/n. Without feedback the same error would come every time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

#define ROUNDS 200

static int mean_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = *(ncclDataType_t *)arg,
                           .count = 30011,
                           .fill = HX_FILL_NORMAL,
                           .seed = 11};
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (hx_quick())
        spec.count = 6011;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    if (sx_mean_error(node, comm, &spec, ROUNDS, NULL, NULL, (double *)hx_scratch(node, node->rank)))
        return 1;
    return sx_close(lib, comm, false);
}

/* Return the relative error of the mean (root of the mean square over nodes), negative after a failure. */
static double error_of_mean(ncclDataType_t type, int nnodes, const char *const *env)
{
    struct hx_job job = {.name = env[0], .nnodes = nnodes, .fn = mean_node, .arg = &type, .env = env};
    struct hx_report *rep;
    double sum = 0;
    int rc = hx_job_run(&job, &rep);

    for (int r = 0; r < nnodes; r++) {
        double e = *(double *)(void *)rep->node[r].scratch;

        sum += e * e;
    }
    hx_report_free(rep);
    return rc ? -1 : sqrt(sum / nnodes);
}

static const char *const env_off[] = {"NIBBLE_EF=off", "NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", NULL};
static const char *const env_full[] = {"NIBBLE_EF=full", "NIBBLE_EF_IDENTITY=signature", "NIBBLE_RS=int4",
                                       "NIBBLE_MIN_BYTES=0", NULL};

static const char *const env_off_grid[] = {"NIBBLE_EF=off", "NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0",
                                           "NIBBLE_SCHEDULE=two-level", NULL};
static const char *const env_full_grid[] = {
    "NIBBLE_EF=full",     "NIBBLE_EF_IDENTITY=signature", "NIBBLE_RS=int4",
    "NIBBLE_MIN_BYTES=0", "NIBBLE_SCHEDULE=two-level",    NULL};

static int closer(ncclDataType_t type, bool grid, double least)
{
    int nnodes = !grid ? 3 : hx_quick() ? 4 : 6;
    double off = error_of_mean(type, nnodes, grid ? env_off_grid : env_off);
    double full = error_of_mean(type, nnodes, grid ? env_full_grid : env_full);

    if (off < 0 || full < 0)
        return 1;
    printf("        %s: error of the mean of %d rounds %.3g without feedback, %.3g with (%.0f times less)\n",
           hx_type_name(type), ROUNDS, off, full, off / full);
    HX_CHECK(off > 0.02, "without feedback the error is only %.3g: was anything quantized?", off);
    HX_CHECK(off / full >= least, "feedback brings the mean only %.1f times closer", off / full);
    return 0;
}

HX_CASE(fp32, closer(ncclFloat32, false, 20))

/* The results themselves are rounded to 8 bits of mantissa, the same error in every round. */
HX_CASE(bf16, closer(ncclBfloat16, false, 20))

/* All three encodings carry their errors on: contributions, sums of rows, finished sums. */
HX_CASE(fp32_two_level, closer(ncclFloat32, true, 20))

/* A NaN or an infinity must not stay in the carried error: the rounds after it are as good as before. */
static int nan_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = ncclFloat32,
                           .count = 30011,
                           .fill = HX_FILL_NORMAL,
                           .seed = 12,
                           .max_nmse = 0.03};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int round = 0; round < 12; round++) {
        struct sx_run run;
        ncclResult_t ret;

        sx_prepare(node, &spec, &run);
        for (int b = 0; b < node->nnodes && round == 5 && node->rank == 1; b++) {
            hx_store(spec.type, run.send, (size_t)b * spec.count + 100, (double)NAN);
            hx_store(spec.type, run.send, (size_t)b * spec.count + 9000, (double)INFINITY);
        }
        hx_where("round %d", round);
        ret = hx_run(comm, &run.op);
        HX_CHECK(ret == ncclSuccess, "round %d: result %d", round, (int)ret);
        if (round == 5) {
            HX_CHECK(isnan(hx_load(spec.type, run.recv, 100)) && isinf(hx_load(spec.type, run.recv, 9000)),
                     "NaN or infinity did not arrive");
        } else if (sx_check(node, &run)) {
            return hx_fail("round %d", round);
        }
        sx_free(&run);
    }
    return sx_close(lib, comm, false);
}

HX_CASE(nan_once, sx_job("NaN once", 3, nan_node, NULL, env_full))

HX_MAIN({"mean-fp32", fp32, 0}, {"mean-bf16", bf16, HX_CASE_FULL},
        {"mean-fp32-two-level", fp32_two_level, HX_CASE_FULL}, {"nan-once", nan_once, 0})
