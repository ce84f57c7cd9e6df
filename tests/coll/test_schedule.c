/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of an operation: the rule of NIBBLE_SCHEDULE=auto, and the settings that force a schedule. */
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/params.h"
#include "coll/comm/comm.h"
#include "coll/schedule/cut.h"
#include "coll/schedule/schedule.h"
#include "tests/suite.h"

static struct nb_context node;        /* with default settings unless the test reads some */
static struct nb_reckoning reckoning; /* empty unless the test fills it: everything is coded */
static int shadow;

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

/* Return the schedule of an operation of `nodes` blocks, in windows of `window` bytes. */
static const char *chosen(enum nb_func func, ncclDataType_t type, ncclRedOp_t redop, int nodes,
                          uint64_t block, uint64_t window)
{
    static struct nb_coll_comm comm;
    struct nb_op op = {.func = func, .type = type, .redop = redop, .value = 2, .block = block};
    struct nb_coll_req win = {.comm = &comm, .op = &op, .bytes = window};
    const struct nb_schedule_ops *s;

    comm.ctx = &node;
    comm.reckoning = reckoning;
    comm.shadow = shadow;
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
    /* Four nodes, 64 MiB: two hops until all bytes are in flight. */
    ck_assert_str_eq(gather(4, 16 * MIB, 256 * KIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 4 * MIB), "two-hop");
    ck_assert_str_eq(gather(4, 16 * MIB, 8 * MIB), "direct");
    /* Eight nodes: two hops even then. */
    ck_assert_str_eq(gather(8, 4 * MIB, 4 * MIB), "two-hop");
    /* Small operations whose bytes are all in flight. */
    ck_assert_str_eq(gather(4, 64 * KIB, 256 * KIB), "direct");
    ck_assert_str_eq(gather(8, 64 * KIB, 512 * KIB), "direct");
    /* Segments would be too short. */
    ck_assert_str_eq(gather(61, 16 * MIB, 256 * KIB), "direct");
    ck_assert_str_eq(gather(2, 16 * MIB, 1 * MIB), "direct");
}
END_TEST

START_TEST(sums)
{
    /* Two hops of 6 bits only have to be the faster way: their sums are no further off. */
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(4, 16 * MIB, 8 * MIB), "direct");
    ck_assert_str_eq(sum(3, 64 * MIB, 1 * MIB), "two-hop"); /* nibble-scale: 61 ms, direct 77, at 10 Gbit/s */
    ck_assert_str_eq(sum(5, 40 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(5, 40 * MIB, 16 * MIB), "direct");
    ck_assert_str_eq(sum(8, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(8, 1 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(sum(2, 16 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_ALL_REDUCE, ncclBfloat16, ncclSum, 8, 64 * MIB, MIB), "direct");
}
END_TEST

/* Check how node `rank` of the grid cuts the parts of a window that go through other nodes. */
static void cut(struct nb_grid grid, int rank, uint64_t block, uint64_t off, uint64_t bytes)
{
    static struct nb_coll_comm comm;
    const int nodes = grid.rows * grid.columns;
    const uint64_t least = grid.rows > 1 ? 64 * KIB : 16 * KIB, end = off + bytes;
    struct nb_op op = {.func = NB_FUNC_ALL_GATHER, .value = 2, .block = block};
    struct nb_coll_req win = {.comm = &comm, .op = &op, .off = off, .bytes = bytes};
    struct nb_segment s, found;
    uint64_t from[32], beg = off;

    comm.ctx = &node;
    comm.nnodes = nodes;
    comm.rank = rank;
    comm.grid = grid;
    comm.unit = 128 * KIB;
    for (int c = 0; c < grid.columns; c++)
        from[c] = off;
    for (uint64_t at = off; at < end; at += s.len) {
        ck_assert(nb_cut_segment_at(&comm, &win, at, &s));
        ck_assert(s.off == at && s.len > 0 && s.len <= comm.unit);
        ck_assert_int_eq(s.owner, (int)(at / block));
        ck_assert(s.relay != s.owner && nb_grid_same_row(grid, s.relay, s.owner));
        if (at % block == 0)
            beg = at;
        /* Only the last segment of a part may be short. Segments of the least length are at most as many as
         * the ways. */
        if (at + s.len < nb_min64(end, (uint64_t)(s.owner + 1) * block)) {
            ck_assert_uint_ge(s.len, least);
            ck_assert((at - beg) / s.len < (uint64_t)grid.columns - 1 || s.len > least);
        }
        /* The node of its column finds this segment, and no earlier one. */
        if (s.owner == rank)
            continue;
        ck_assert(nb_cut_through(&comm, &win, s.relay, from[s.relay % grid.columns], &found));
        ck_assert_msg(found.off == at && found.relay == s.relay,
                      "block %llu, %llu bytes at %llu: %llu, not %llu", (unsigned long long)block,
                      (unsigned long long)bytes, (unsigned long long)off, (unsigned long long)found.off,
                      (unsigned long long)at);
        from[s.relay % grid.columns] = at + s.len;
    }
    for (int c = 0; c < grid.columns; c++)
        ck_assert(!nb_cut_through(&comm, &win, c, from[c], &found));
}

START_TEST(pieces)
{
    static const struct nb_grid grids[] = {{.rows = 1, .columns = 3},
                                           {.rows = 1, .columns = 8},
                                           {.rows = 2, .columns = 16},
                                           {.rows = 4, .columns = 8}};
    static const uint64_t blocks[] = {512, 3000, 40 * KIB, 64 * KIB, 200 * KIB, 333336, 1 * MIB, 5 * MIB};
    static const uint64_t windows[] = {1000, 64 * KIB, 256 * KIB, 1 * MIB};

    for (size_t g = 0; g < sizeof(grids) / sizeof(grids[0]); g++)
        for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++)
            for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
                const int nodes = grids[g].rows * grids[g].columns;
                const uint64_t all = blocks[b] * (uint64_t)nodes, step = nb_max64(windows[w], all / 20);
                for (uint64_t off = 0; off < all; off += step / windows[w] * windows[w])
                    cut(grids[g], (int)(off / 7 % (uint64_t)nodes), blocks[b], off,
                        nb_min64(windows[w], all - off));
            }
}
END_TEST

/* Raw operations go the faster way, even where coded sums would need a gain of half. */
static void raw_takes_the_faster(ncclDataType_t type, ncclRedOp_t redop)
{
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 4, 16 * MIB, 4 * MIB), "two-hop");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 3, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 8, 4 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 4, 8 * MIB, 4 * MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 8, 1 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, type, redop, 2, 16 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(chosen(NB_FUNC_ALL_REDUCE, type, redop, 4, 16 * MIB, 4 * MIB), "direct");
}

/* All causes that make an operation certainly raw. */
START_TEST(raw_sums)
{
    static const char *const why[][2] = {{"NIBBLE_RS", "raw"}, {"NIBBLE_MIN_BYTES", "1000000000"}};

    if (_i < 2) {
        ck_assert_str_eq(sum(4, 16 * MIB, 4 * MIB), "direct");
        ck_assert_int_eq(setenv(why[_i][0], why[_i][1], 1), 0);
        ck_assert_int_eq(nb_params_read(&node.params), 0);
        raw_takes_the_faster(ncclBfloat16, ncclSum);
        return;
    }
    raw_takes_the_faster(ncclBfloat16, ncclMax);
    raw_takes_the_faster(ncclInt32, ncclSum);
    raw_takes_the_faster(ncclFloat64, ncclProd);
}
END_TEST

/* The reckoning decides. Operations that a setting forces are still coded, and shadow mode acts as if they
 * were. */
START_TEST(reckoned_raw)
{
    const uint64_t bytes = 64 * MIB;

    reckoning.of[NB_FUNC_REDUCE_SCATTER][0].from = bytes;
    ck_assert_str_eq(sum(4, bytes / 4, 4 * MIB), "direct");
    reckoning.of[NB_FUNC_REDUCE_SCATTER][0].from = bytes + 1;
    ck_assert_str_eq(sum(4, bytes / 4, 4 * MIB), "two-hop");
    shadow = 1;
    ck_assert_str_eq(sum(4, bytes / 4, 4 * MIB), "direct");
    shadow = 0;
    ck_assert_int_eq(setenv("NIBBLE_RS", "int4", 1), 0);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(sum(4, bytes / 4, 4 * MIB), "direct");
}
END_TEST

/* A process reads settings once, so each test has its own process. */
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
    ck_assert_str_eq(chosen(NB_FUNC_REDUCE_SCATTER, ncclBfloat16, ncclMax, 8, 64 * MIB, MIB), ways[_i].sum);
}
END_TEST

/* A grid has one way for all operations. */
START_TEST(grids)
{
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(gather(64, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(64, 64 * KIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(32, 64 * MIB, 256 * KIB), "two-level");
    ck_assert_str_eq(sum(30, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(61, 64 * MIB, 1 * MIB), "two-hop"); /* a prime has no grid */
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

START_TEST(bits_of_the_second_hop)
{
    ck_assert_int_eq(setenv("NIBBLE_SECOND_HOP", "int4", 1), 0);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), "two-hop");
    ck_assert_str_eq(sum(4, 16 * MIB, 4 * MIB), "direct");
    ck_assert_str_eq(sum(8, 8 * MIB, 1 * MIB), "two-hop");
    ck_assert_int_eq(setenv("NIBBLE_SECOND_HOP", "int8", 1), 0);
    nb_params_free(node.params);
    ck_assert_int_eq(nb_params_read(&node.params), 0);
    ck_assert_str_eq(sum(4, 16 * MIB, 1 * MIB), "direct");
    ck_assert_str_eq(sum(8, 32 * MIB, 1 * MIB), "two-hop");
}
END_TEST

int main(void)
{
    node.params = nb_params_defaults();
    return SUITE("coll/schedule", TEST(gathers), TEST(sums), TEST(pieces), LOOP(raw_sums, 0, 3),
                 TEST(reckoned_raw), LOOP(forced, 0, 2), TEST(bits_of_the_second_hop), TEST(grids),
                 TEST(forced_grid));
}
