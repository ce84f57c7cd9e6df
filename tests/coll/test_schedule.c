/* SPDX-License-Identifier: Apache-2.0 */
/* Which schedule an operation takes: the rule of NIBBLE_SCHEDULE=auto, and what forces one. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/params.h"
#include "coll/comm.h"

static struct nb_context node; /* with default settings, where the test reads none */

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

/* An operation of `nodes` blocks, in windows of `window` bytes. */
static const char *chosen(enum nb_func func, ncclDataType_t type, ncclRedOp_t redop, int nodes,
                          uint64_t block, uint64_t window)
{
    static struct nb_coll_comm comm;
    struct nb_op op = {.func = func, .type = type, .redop = redop, .value = 2, .block = block};
    struct nb_coll_req win = {.comm = &comm, .op = &op, .bytes = window};
    const struct nb_schedule_ops *s;

    comm.ctx = &node;
    comm.nnodes = nodes;
    comm.grid = nb_grid_choose(nodes, node.params->schedule, node.params->group);
    s = nb_schedule_choose(&comm, &win);
    return s == &nb_schedule_direct ? "direct" : s->name;
}

static const char *gather(int nodes, uint64_t block, uint64_t window)
{
    return chosen(NB_FUNC_ALL_GATHER, ncclInt8, ncclSum, nodes, block, window);
}

static const char *sum(int nodes, uint64_t block, uint64_t window)
{
    return chosen(NB_FUNC_REDUCE_SCATTER, ncclBfloat16, ncclSum, nodes, block, window);
}

START_TEST(gathers)
{
    /* Four nodes, 64 MiB: two hops until all of it is in flight. */
    ck_assert_str_eq(gather(4, 16 * MIB, 256 * KIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 4 * MIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 8 * MIB), "direct");
    /* Eight nodes: not even then. */
    ck_assert_str_eq(gather(8, 4 * MIB, 4 * MIB), "two-hop");
    /* Small operations, of which everything is in flight. */
    ck_assert_str_eq(gather(4, 64 * KIB, 256 * KIB), "direct");
    ck_assert_str_eq(gather(8, 64 * KIB, 512 * KIB), "direct");
    /* Segments that would be too short. */
    ck_assert_str_eq(gather(61, 16 * MIB, 256 * KIB), "direct");
    ck_assert_str_eq(gather(2, 16 * MIB, 1 * MIB), "direct");
}
END_TEST

START_TEST(sums)
{
    /* A second rounding has to be worth it. */
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(4, 16 * MIB, 4 * MIB), "direct");
    ck_assert_str_eq(sum(8, 8 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(8, 1 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(sum(2, 16 * MIB, 1 * MIB), "direct");
    /* What has no quantizer is summed exactly. */
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, ncclBfloat16, ncclMax, 8, 64 * MIB, MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, ncclInt32, ncclSum, 8, 64 * MIB, MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_ALL_REDUCE, ncclBfloat16, ncclSum, 8, 64 * MIB, MIB), "direct");
}
END_TEST

/* Settings are read once by a process: one for each test. */
START_TEST(forced)
{
    static const struct {
        const char *word, *gather, *sum;
    } ways[] = {{"direct", "direct", "direct"}, {"two-hop", "two-hop", "two-hop"}};

    ck_assert_int_eq(setenv("NIBBLE_SCHEDULE", ways[_i].word, 1), 0);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(gather(4, 16 * MIB, 1 * MIB), ways[_i].gather);
    ck_assert_str_eq(gather(4, 64 * KIB, 256 * KIB), ways[_i].gather);
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), ways[_i].sum);
    ck_assert_str_eq(sum(8, 1 * MIB, 1 * MIB), ways[_i].sum);
    ck_assert_str_eq(gather(2, 16 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, ncclBfloat16, ncclMax, 8, 64 * MIB, MIB), "direct");
}
END_TEST

/* On a grid there is no other way, for whatever operation. */
START_TEST(grids)
{
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(gather(64, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(64, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(32, 64 * MIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(30, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(61, 64 * MIB, 1 * MIB), "two-hop"); /* a prime has none */
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, ncclInt32, ncclMax, 64, 64 * MIB, MIB), "two-level");
    ck_assert_str_eq(chosen(NB_FUNC_ALL_REDUCE, ncclBfloat16, ncclSum, 64, 64 * MIB, MIB), "two-level");
}
END_TEST

START_TEST(forced_grid)
{
    ck_assert_int_eq(setenv("NIBBLE_SCHEDULE", "two-level", 1), 0);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(sum(4, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(gather(8, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(gather(3, 64 * KIB, 256 * KIB), "direct");
    ck_assert_str_eq(sum(7, 16 * MIB, 1 * MIB), "two-hop");
}
END_TEST

START_TEST(eight_bits_on_the_second_hop)
{
    ck_assert_int_eq(setenv("NIBBLE_RS_SECOND", "int8", 1), 0);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(sum(8, 32 * MIB, 1 * MIB), "two-hop");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll/schedule");
    TCase *c = tcase_create("schedule");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(c, 3600);
    node.params = nb_params_defaults();
    tcase_add_test(c, gathers);
    tcase_add_test(c, sums);
    tcase_add_loop_test(c, forced, 0, 2);
    tcase_add_test(c, eight_bits_on_the_second_hop);
    tcase_add_test(c, grids);
    tcase_add_test(c, forced_grid);
    suite_add_tcase(suite, c);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
