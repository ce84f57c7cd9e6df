/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule that the test adds (star.c), driven as NCCL drives the plugin. Results must be right. */
#include "abi/process.h"
#include "base/context.h"
#include "nibble/nccl_net.h"
#include "star.h"
#include "tests/harness/lib/suite.h"

#define INT4_NMSE 0.0070 /* see tests/harness/results.c */

static int open_star(struct hx_node *node, const struct hx_comm_cfg *cfg, struct hx_lib **lib,
                     struct hx_comm **comm)
{
    nb_process_context()->schedule = &star_schedule;
    return sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, cfg, lib, comm);
}

static const char *const env_raw[] = {"NIBBLE_RS=raw", NULL};

/* Run all functions, one after the other, in windows that cut blocks anywhere. Run them twice, so that the
 * second all-gather has an earlier one to differ from. */
static int exact_node(struct hx_node *node, void *arg)
{
    static const size_t counts[] = {1, 31, 4095, 33333, 150001};
    static const size_t chunks[] = {0, 4096, HX_CHUNK_NCCL, 1536};
    struct hx_comm_cfg cfg = {.channels = 3, .buff_size = 128 << 10, .poison = true};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (open_star(node, &cfg, &lib, &comm))
        return 1;
    for (int n = 0; n < 30; n++) {
        struct sx_spec spec = {.func = (enum hx_func)(HX_REDUCE_SCATTER + n % 3),
                               .type = n & 1 ? ncclFloat32 : ncclInt32,
                               .count = counts[n / 3 % 5],
                               .chunk = chunks[n % 4],
                               .fill = HX_FILL_EXACT,
                               .in_place = n / 2 & 1,
                               .seed = (uint64_t)(n % 15)};
        const unsigned long before = star_windows;
        uint64_t hash;

        if (sx_do(node, comm, &spec, &hash))
            return 1;
        HX_CHECK(star_windows > before, "%s took another schedule", sx_describe(&spec));
        if (spec.func != HX_REDUCE_SCATTER)
            HX_CHECK(hx_all_equal(node, hash), "%s: results differ between nodes", sx_describe(&spec));
    }
    return sx_close(lib, comm, false);
}

HX_CASE(exact_2, sx_job("star, 2 nodes", 2, exact_node, NULL, env_raw))
HX_CASE(exact_5, sx_job("star, 5 nodes", 5, exact_node, NULL, env_raw))

/* One credit: each ring holds one message. */
static int one_credit(void)
{
    static const char *const env[] = {"NIBBLE_RS=raw", "NIBBLE_CREDITS=1", "NIBBLE_UNIT_BYTES=4096", NULL};

    return sx_job("star, one credit", 4, exact_node, NULL, env);
}

static int int4_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = ncclFloat32,
                           .count = 100000,
                           .fill = HX_FILL_NORMAL,
                           .seed = 3,
                           .max_nmse = 2 * INT4_NMSE};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (open_star(node, &cfg, &lib, &comm) || sx_do(node, comm, &spec, NULL))
        return 1;
    return sx_close(lib, comm, false);
}

static int int4(void)
{
    static const char *const env[] = {"NIBBLE_RS=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", NULL};

    return sx_job("star, quantized", 4, int4_node, NULL, env);
}

HX_MAIN({"exact-2", exact_2, 0}, {"exact-5", exact_5, HX_CASE_SLOW}, {"one-credit", one_credit, 0},
        {"int4", int4, 0})
