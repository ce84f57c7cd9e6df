/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gathers of weights that change from step to step. Every node must end with exactly the owners' bytes at
 * every step, however the plugin sends them. Where weights move a little, the plugin must send fewer bytes
 * than raw.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

enum content {
    WALK_BF16, /* every value moves by -1, 0 or 1 in the last place */
    WALK_FP32, /* the low bits of every value change */
    WALK_FP8,  /* one value in eight moves by one */
    UNCHANGED,
    NEW_EACH_STEP, /* random bytes */
    JUMPS,         /* a walk that new values replace entirely every third step, as a loaded checkpoint does */
};

/* Advance a node's block by one step. Every node that follows the block computes the same. */
static void advance(unsigned char *w, size_t bytes, enum content kind, int slot, int rank, int step)
{
    uint64_t rng = hx_seed((uint64_t)slot * 100 + (uint64_t)rank, (uint64_t)step, 0x77616c6b);

    if (step == 0 || kind == NEW_EACH_STEP || (kind == JUMPS && step % 3 == 0)) {
        if (kind == WALK_BF16 || kind == JUMPS)
            hx_fill(ncclBfloat16, w, bytes / 2, rng, HX_FILL_NORMAL);
        else if (kind == WALK_FP32)
            hx_fill(ncclFloat32, w, bytes / 4, rng, HX_FILL_NORMAL);
        else
            hx_fill(ncclUint8, w, bytes, rng, HX_FILL_BITS);
        return;
    }
    if (kind == WALK_BF16 || kind == JUMPS) {
        for (size_t i = 0; i + 2 <= bytes; i += 2) {
            uint16_t v;

            memcpy(&v, w + i, 2);
            v = (uint16_t)(v + hx_rand_below(&rng, 3) - 1);
            memcpy(w + i, &v, 2);
        }
    } else if (kind == WALK_FP32) {
        for (size_t i = 0; i + 4 <= bytes; i += 4) {
            uint32_t v;

            memcpy(&v, w + i, 4);
            v += (uint32_t)hx_rand_below(&rng, 4001) - 2000;
            memcpy(w + i, &v, 4);
        }
    } else if (kind == WALK_FP8) {
        for (size_t i = 0; i < bytes; i++) {
            if (hx_rand_below(&rng, 8) == 0)
                w[i]++;
        }
    }
}

struct plan {
    int steps, nslots;
    struct {
        enum content kind;
        size_t bytes; /* a rank's block */
    } slot[6];
    int channels;
    bool in_place, delays;
    double least_ratio; /* bytes before coding over bytes after it, of all gathers after the first. 0:
                           unchecked */
};

static double summary_ratio(void)
{
    char line[2048];
    const char *at;

    hx_log_first("all_gather ops=", line, sizeof line);
    at = strstr(line, "all_gather ops=");
    at = at ? strstr(at, "ratio=") : NULL;
    return at ? strtod(at + 6, NULL) : 0;
}

static int weights_node(struct hx_node *node, void *arg)
{
    const struct plan *plan = arg;
    struct hx_comm_cfg cfg = {
        .channels = plan->channels, .buff_size = 256 << 10, .gpu_delay_us = plan->delays ? 200 : 0};
    unsigned char *w[6][HX_MAX_NODES], *result = NULL;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int s = 0; s < plan->nslots; s++) {
        for (int r = 0; r < node->nnodes; r++)
            w[s][r] = calloc(1, plan->slot[s].bytes); /* some kinds leave a last odd byte unchanged */
    }
    for (int step = 0; step < plan->steps; step++) {
        for (int s = 0; s < plan->nslots; s++) {
            size_t bytes = plan->slot[s].bytes;
            struct hx_op op = {.func = HX_ALL_GATHER, .type = ncclInt8, .count = bytes};
            ncclResult_t ret;

            for (int r = 0; r < node->nnodes; r++)
                advance(w[s][r], bytes, plan->slot[s].kind, s, r, step);
            result = realloc(result, bytes * (size_t)node->nnodes);
            memset(result, 0xEE, bytes * (size_t)node->nnodes);
            op.send = w[s][node->rank];
            op.recv = result;
            if (plan->in_place && (step + s) % 2) {
                op.send = result + bytes * (size_t)node->rank;
                memcpy(result + bytes * (size_t)node->rank, w[s][node->rank], bytes);
            }
            hx_where("step %d, slot %d: %zu bytes a rank", step, s, bytes);
            ret = hx_run(comm, &op);
            HX_CHECK(ret == ncclSuccess, "step %d, slot %d: result %d", step, s, (int)ret);
            for (int r = 0; r < node->nnodes; r++) {
                long bad = hx_first_difference(ncclUint8, w[s][r], result + bytes * (size_t)r, bytes);

                HX_CHECK(bad < 0, "step %d, slot %d: byte %ld of node %d's block is wrong", step, s, bad, r);
            }
            if (plan->least_ratio > 0) /* a training step between two gathers: confirmations have arrived */
                hx_settle(node);
            if (plan->delays)
                hx_sleep(1e-3 * (double)((step * 5 + s + node->rank * 7) % 9));
        }
    }
    for (int s = 0; s < plan->nslots; s++) {
        for (int r = 0; r < node->nnodes; r++)
            free(w[s][r]);
    }
    free(result);
    if (sx_close(lib, comm, false))
        return 1;
    if (plan->least_ratio > 0) {
        double ratio = summary_ratio();

        HX_CHECK(ratio >= plan->least_ratio, "only %.2f times fewer bytes than raw, should be %.2f", ratio,
                 plan->least_ratio);
        *(double *)hx_scratch(node, node->rank) = ratio;
    }
    return 0;
}

static int weights(const char *name, int nnodes, struct plan plan, const char *const *env)
{
    struct hx_job job = {.name = name, .nnodes = nnodes, .fn = weights_node, .arg = &plan, .env = env};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0 && plan.least_ratio > 0)
        printf("        %s: %.2f times fewer bytes than raw\n", name,
               *(double *)(void *)rep->node[0].scratch);
    hx_report_free(rep);
    return rc;
}

static const char *const env_exact[] = {"NIBBLE_AG=exact", NULL};

/* The first gather is raw, so its ratio is 1. With a later ratio of x the mean over S steps is S / (1 +
 * (S-1)/x). */
HX_CASE(
    walk_bf16,
    weights("bf16 walk", 3,
            (struct plan){
                .steps = 10, .nslots = 1, .channels = 2, .least_ratio = 3.0, .slot = {{WALK_BF16, 400006}}},
            env_exact))

HX_CASE(
    walk_fp32,
    weights("fp32 walk", 3,
            (struct plan){
                .steps = 8, .nslots = 1, .channels = 4, .least_ratio = 1.8, .slot = {{WALK_FP32, 300004}}},
            env_exact))

HX_CASE(walk_fp8,
        weights("8-bit walk", 2,
                (struct plan){
                    .steps = 8, .nslots = 1, .channels = 2, .least_ratio = 1.8, .slot = {{WALK_FP8, 200001}}},
                env_exact))

HX_CASE(
    unchanged,
    weights("unchanged", 3,
            (struct plan){
                .steps = 12, .nslots = 1, .channels = 2, .least_ratio = 5.0, .slot = {{UNCHANGED, 333333}}},
            env_exact))

HX_CASE(random_bytes, weights("random bytes", 3,
                              (struct plan){.steps = 6,
                                            .nslots = 1,
                                            .channels = 2,
                                            .least_ratio = 0.98,
                                            .slot = {{NEW_EACH_STEP, 250000}}},
                              env_exact))

/* Four contents of one size in turn, one of another size, one below the minimum size. */
HX_CASE(slots_of_one_size, weights("slots of one size", 3,
                                   (struct plan){.steps = 8,
                                                 .nslots = 6,
                                                 .channels = 8,
                                                 .in_place = true,
                                                 .slot = {{WALK_BF16, 120002},
                                                          {WALK_BF16, 120002},
                                                          {NEW_EACH_STEP, 120002},
                                                          {UNCHANGED, 120002},
                                                          {JUMPS, 90000},
                                                          {WALK_FP32, 501}}},
                                   env_exact))

HX_CASE(in_place, weights("in place", 2,
                          (struct plan){.steps = 8,
                                        .nslots = 2,
                                        .channels = 2,
                                        .in_place = true,
                                        .slot = {{WALK_BF16, 150002}, {JUMPS, 150002}}},
                          env_exact))

/* Nodes drift apart in time, with little credit and small units, so that confirmations and references get out
 * of step. */
HX_CASE(
    out_of_step,
    weights("out of step", 4,
            (struct plan){.steps = 8,
                          .nslots = 4,
                          .channels = 2,
                          .delays = true,
                          .slot = {{WALK_BF16, 50002}, {WALK_BF16, 50002}, {JUMPS, 30000}, {UNCHANGED, 777}}},
            HX_ENV("NIBBLE_AG=exact", "NIBBLE_CREDITS=1", "NIBBLE_UNIT_BYTES=4096", "NIBBLE_MIN_BYTES=0")))

/* Run the same in two hops, with one node's copies of references damaged now and then. The node asks for raw
 * pieces while newer pieces fill the rings behind them. */
static int out_of_step_forwarded(const char *name, int nnodes, const char *schedule)
{
    const char *const env[] = {"NIBBLE_AG=exact",    "NIBBLE_CREDITS=1", "NIBBLE_UNIT_BYTES=32768",
                               "NIBBLE_MIN_BYTES=0", schedule,           NULL};
    static const char *const fault[] = {"NIBBLE_FAULT=ref", NULL};
    struct plan plan = {
        .steps = 8,
        .nslots = 4,
        .channels = 2,
        .delays = true,
        .slot = {{WALK_BF16, 150002}, {WALK_BF16, 50002}, {JUMPS, 30000}, {UNCHANGED, 150777}}};
    struct hx_job job = {
        .name = name, .nnodes = nnodes, .fn = weights_node, .arg = &plan, .env = env, .node_env[1] = fault};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0 && hx_report_has(rep, 0, "references slots=", "resends=0 ") &&
        hx_report_has(rep, 2, "references slots=", "resends=0 "))
        rc = hx_fail("nobody sent anything again");
    hx_report_free(rep);
    return rc;
}

HX_CASE(out_of_step_two_hop, out_of_step_forwarded("out of step in two hops", 5, "NIBBLE_SCHEDULE=two-hop"))

/* Node 1 asks owners in other rows for raw bytes, through nodes of its own row. */
HX_CASE(out_of_step_two_level,
        out_of_step_forwarded("out of step in two levels", hx_quick() ? 6 : 9, "NIBBLE_SCHEDULE=two-level"))

HX_CASE(
    walk_two_level,
    weights("bf16 walk in two levels", 6,
            (struct plan){
                .steps = 10, .nslots = 1, .channels = 2, .least_ratio = 3.0, .slot = {{WALK_BF16, 400006}}},
            HX_ENV("NIBBLE_AG=exact", "NIBBLE_SCHEDULE=two-level")))

/* One node lacks memory for references. Its row's confirmation says so, and all blocks arrive raw and
 * right. */
static int no_memory_on_one_two_level(void)
{
    static const char *const env[] = {"NIBBLE_AG=exact", "NIBBLE_SCHEDULE=two-level", NULL};
    static const char *const none[] = {"NIBBLE_REF_MAX_MB=0", NULL};
    struct plan plan = {
        .steps = 6, .nslots = 2, .channels = 2, .slot = {{WALK_BF16, 150002}, {JUMPS, 150002}}};
    struct hx_job job = {.name = "no memory on one node, two levels",
                         .nnodes = 6,
                         .fn = weights_node,
                         .arg = &plan,
                         .env = env,
                         .node_env[1] = none};

    return hx_job_run(&job, NULL);
}

HX_CASE(
    walk_two_hop,
    weights("bf16 walk in two hops", 4,
            (struct plan){
                .steps = 10, .nslots = 1, .channels = 2, .least_ratio = 3.0, .slot = {{WALK_BF16, 400006}}},
            HX_ENV("NIBBLE_AG=exact", "NIBBLE_SCHEDULE=two-hop")))

/* All nodes lack memory for references: all blocks arrive raw and right. */
HX_CASE(no_memory,
        weights("no memory", 2,
                (struct plan){.steps = 4, .nslots = 1, .channels = 2, .slot = {{WALK_BF16, 150002}}},
                HX_ENV("NIBBLE_AG=exact", "NIBBLE_REF_MAX_MB=0")))

/* One node lacks memory for references. The other nodes have it. */
static int no_memory_on_one(void)
{
    static const char *const none[] = {"NIBBLE_REF_MAX_MB=0", NULL};
    struct plan plan = {
        .steps = 6, .nslots = 2, .channels = 2, .slot = {{WALK_BF16, 150002}, {JUMPS, 150002}}};
    struct hx_job job = {.name = "no memory on one node",
                         .nnodes = 3,
                         .fn = weights_node,
                         .arg = &plan,
                         .env = env_exact,
                         .node_env[1] = none};

    return hx_job_run(&job, NULL);
}

/* A receiver whose copy of the reference differs now and then from the owner's cannot decode. It must get the
 * raw bytes. */
static int asks_for_raw(void)
{
    static const char *const fault[] = {"NIBBLE_FAULT=ref", NULL};
    struct plan plan = {
        .steps = 8, .nslots = 2, .channels = 4, .slot = {{WALK_BF16, 300002}, {UNCHANGED, 200000}}};
    struct hx_job job = {.name = "asks for raw bytes",
                         .nnodes = 3,
                         .fn = weights_node,
                         .arg = &plan,
                         .env = env_exact,
                         .node_env[1] = fault};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0 && (!hx_report_has(rep, -1, "references slots=", "resends=") ||
                    (hx_report_has(rep, 0, "references slots=", "resends=0 ") &&
                     hx_report_has(rep, 2, "references slots=", "resends=0 "))))
        rc = hx_fail("nobody sent anything again");
    hx_report_free(rep);
    return rc;
}

HX_MAIN({"walk-bf16", walk_bf16, 0}, {"walk-fp32", walk_fp32, HX_CASE_FULL}, {"walk-8-bit", walk_fp8, 0},
        {"unchanged", unchanged, 0}, {"random-bytes", random_bytes, HX_CASE_FULL},
        {"slots-of-one-size", slots_of_one_size, 0}, {"in-place", in_place, 0},
        {"out-of-step", out_of_step, 0}, {"out-of-step-two-hop", out_of_step_two_hop, HX_CASE_SLOW},
        {"walk-two-hop", walk_two_hop, HX_CASE_SLOW}, {"out-of-step-two-level", out_of_step_two_level, 0},
        {"walk-two-level", walk_two_level, HX_CASE_SLOW},
        {"no-memory-on-one-node-two-level", no_memory_on_one_two_level, HX_CASE_SLOW},
        {"asks-for-raw", asks_for_raw, 0}, {"no-memory", no_memory, HX_CASE_FULL},
        {"no-memory-on-one-node", no_memory_on_one, 0})
