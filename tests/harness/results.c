/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of the plugin without quantization, driven as NCCL drives it: every type, operation and size,
 * shapes that cut blocks anywhere, large operations. Results must be exact where the plugin promises it, and
 * otherwise within rounding.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/suite.h"

static const char *const env_raw[] = {"NIBBLE_RS=raw", NULL};
static const char *const env_raw_grid[] = {"NIBBLE_RS=raw", "NIBBLE_AG=raw", "NIBBLE_SCHEDULE=two-level",
                                           NULL};

static const char *const env_raw_two_hop[] = {"NIBBLE_RS=raw", "NIBBLE_AG=raw", "NIBBLE_SCHEDULE=two-hop",
                                              NULL};

/* ---- every type, operation and size, exactly ---- */

static int exact_node(struct hx_node *node, void *arg)
{
    static const size_t counts[] = {1, 31, 4095, 65537};
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10, .poison = true};
    size_t ncounts = hx_quick() ? 3 : 4;
    struct hx_lib *lib;
    struct hx_comm *comm;
    int n = 0;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int type = 0; type < ncclNumTypes; type++) {
        for (int op = 0; op < 4; op++) {
            int supported = 0;

            HX_CHECK(hx_coll_reduce_support(lib, (ncclDataType_t)type, (ncclRedOp_t)op, &supported) ==
                         ncclSuccess,
                     "reduceSupport failed");
            HX_CHECK(supported || type >= ncclFloat8e4m3, "reductions of %s are not supported",
                     hx_type_name((ncclDataType_t)type));
            for (size_t k = 0; k < ncounts && supported; k++, n++) {
                struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                                       .type = (ncclDataType_t)type,
                                       .op = (ncclRedOp_t)op,
                                       .count = counts[k],
                                       .seed = (uint64_t)n,
                                       .fill = op == ncclSum ? HX_FILL_EXACT : HX_FILL_POW2,
                                       .in_place = n & 1};
                uint64_t hash;

                if (sx_do(node, comm, &spec, NULL))
                    return 1;
                spec.func = HX_ALL_REDUCE;
                if (sx_do(node, comm, &spec, &hash))
                    return 1;
                if (op == 0) {
                    spec.func = HX_ALL_GATHER;
                    spec.fill = HX_FILL_BITS;
                    if (sx_do(node, comm, &spec, NULL))
                        return 1;
                }
            }
        }
    }
    return sx_close(lib, comm, false);
}

HX_CASE(exact_types, sx_job("every type exactly", 2, exact_node, NULL, env_raw))

/* Sums of rows are rounded once more on the way. Values of the pow2 and exact fills stay exact. */
HX_CASE(exact_types_two_level, sx_job("every type exactly, two levels", 6, exact_node, NULL, env_raw_grid))
HX_CASE(exact_types_two_hop, sx_job("every type exactly, two hops", 4, exact_node, NULL, env_raw_two_hop))
HX_CASE(exact_types_3, sx_job("every type exactly", 3, exact_node, NULL, env_raw))

/* ---- shapes: nodes, channels, chunks that cut blocks anywhere ---- */

static int shapes_node(struct hx_node *node, void *arg)
{
    static const size_t counts[] = {1, 31, 4095, 33333, 150001};
    static const size_t chunks[] = {0, 4096, HX_CHUNK_NCCL, 1536};
    int channels = *(int *)arg;
    struct hx_comm_cfg cfg = {
        .channels = channels, .buff_size = 128 << 10, .poison = true, .flush = channels == 8};
    struct hx_lib *lib;
    struct hx_comm *comm;
    int n = 0;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++, n++) {
            struct sx_spec spec = {.func = (enum hx_func)func,
                                   .type = n & 1 ? ncclFloat32 : ncclInt32,
                                   .count = counts[k],
                                   .chunk = chunks[n % 4],
                                   .fill = HX_FILL_EXACT,
                                   .in_place = n / 2 & 1,
                                   .seed = (uint64_t)n,
                                   .channels = n % 5 == 4 ? 1 + n % channels : 0};
            uint64_t hash;

            if (sx_do(node, comm, &spec, &hash))
                return 1;
            if (func != HX_REDUCE_SCATTER)
                HX_CHECK(hx_all_equal(node, hash), "%s: results differ between nodes", sx_describe(&spec));
        }
    }
    return sx_close(lib, comm, false);
}

static int shapes(int nnodes, int channels)
{
    return sx_job("shapes", nnodes, shapes_node, &channels, env_raw);
}

static int shapes_two_level(void)
{
    int channels = 5;

    return sx_job("shapes, two levels", hx_quick() ? 6 : 9, shapes_node, &channels, env_raw_grid);
}

/* Rows within sites, whose ranks do not follow each other. */
static int shapes_sites(void)
{
    static const char *const env[] = {"NIBBLE_RS=raw", "NIBBLE_AG=raw", NULL};
    static const char *const site[][2] = {{"NIBBLE_SITE=a"}, {"NIBBLE_SITE=b"}};
    static const char *const of = "abbbabaa";
    int channels = 5;
    struct hx_job job = {
        .name = "shapes, sites", .nnodes = 8, .fn = shapes_node, .arg = &channels, .env = env, .seed = 1};

    for (int r = 0; r < job.nnodes; r++)
        job.node_env[r] = site[of[r] - 'a'];
    return hx_job_run(&job, NULL);
}

HX_CASE(shapes_2_2, shapes(2, 2))
HX_CASE(shapes_3_8, shapes(3, 8))
HX_CASE(shapes_4_4, shapes(4, 4))
HX_CASE(shapes_5_12, shapes(5, 12))
HX_CASE(shapes_8_16, shapes(8, 16))
HX_CASE(shapes_8_2, shapes(8, 2))
HX_CASE(shapes_2_16, shapes(2, 16))

/* ---- one large operation of each kind ---- */

static int large_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .poison = true};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        struct sx_spec spec = {.func = (enum hx_func)func,
                               .type = ncclBfloat16,
                               .count = 1000003,
                               .fill = func == HX_ALL_GATHER ? HX_FILL_BITS : HX_FILL_EXACT,
                               .seed = 3};

        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
    return sx_close(lib, comm, false);
}

HX_CASE(large, sx_job("large", 3, large_node, NULL, env_raw))
HX_CASE(large_two_level, sx_job("large, two levels", 8, large_node, NULL, env_raw_grid))

/* ---- raw sums of ordinary values: only rounding ---- */

static int rounding_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 256 << 10, .poison = true};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int type = ncclFloat16; type < ncclNumTypes; type++) {
        int supported = 0;

        HX_CHECK(hx_coll_reduce_support(lib, (ncclDataType_t)type, ncclSum, &supported) == ncclSuccess,
                 "reduceSupport failed");
        for (int func = 0; func < 2 && supported; func++) {
            struct sx_spec spec = {.func = func ? HX_ALL_REDUCE : HX_REDUCE_SCATTER,
                                   .type = (ncclDataType_t)type,
                                   .count = 20011,
                                   .fill = HX_FILL_NORMAL,
                                   .seed = (uint64_t)type,
                                   .max_nmse = sx_rounding_nmse((ncclDataType_t)type)};
            uint64_t hash, again;

            if (sx_do(node, comm, &spec, &hash) || sx_do(node, comm, &spec, &again))
                return 1;
            HX_CHECK(hash == again, "%s: not the same bits the second time", sx_describe(&spec));
            if (func)
                HX_CHECK(hx_all_equal(node, hash), "%s: results differ between nodes", sx_describe(&spec));
        }
    }
    return sx_close(lib, comm, false);
}

HX_CASE(rounding, sx_job("rounding", 4, rounding_node, NULL, env_raw))

HX_MAIN({"exact-types-2-nodes", exact_types, 0}, {"exact-types-3-nodes", exact_types_3, HX_CASE_FULL},
        {"shapes-2-nodes-2-channels", shapes_2_2, 0}, {"shapes-3-nodes-8-channels", shapes_3_8, 0},
        {"shapes-4-nodes-4-channels", shapes_4_4, HX_CASE_FULL},
        {"shapes-5-nodes-12-channels", shapes_5_12, HX_CASE_FULL},
        {"shapes-8-nodes-16-channels", shapes_8_16, HX_CASE_FULL},
        {"shapes-8-nodes-2-channels", shapes_8_2, HX_CASE_FULL},
        {"shapes-2-nodes-16-channels", shapes_2_16, HX_CASE_FULL}, {"large", large, HX_CASE_FULL},
        {"rounding", rounding, 0}, {"exact-types-two-hop", exact_types_two_hop, 0},
        {"exact-types-two-level", exact_types_two_level, 0}, {"shapes-two-level", shapes_two_level, 0},
        {"shapes-sites", shapes_sites, HX_CASE_SLOW}, {"large-two-level", large_two_level, HX_CASE_FULL})
