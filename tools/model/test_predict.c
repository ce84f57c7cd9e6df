/* SPDX-License-Identifier: Apache-2.0 */
/* Check the model's times where they are known: when only the link counts, only latency, only the codec. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model.h"
#include "tests/suite.h"

#define MIB 1048576.0

/* Return a machine with a link of 1 GB/s and free resources otherwise. */
static struct nb_cost_machine only_link(void)
{
    return (struct nb_cost_machine){.link = 1e9, .cores = 1e9};
}

static double seconds(const struct nb_cost_machine *f, const struct nb_cost_op *op)
{
    struct nm_result r;

    ck_assert(nm_predict(f, op, &r));
    return r.seconds;
}

static void near(double got, double want, double part)
{
    ck_assert_msg(fabs(got - want) <= part * want, "%g, not %g", got, want);
}

/* An operation that fits in flight takes the time of its bytes, whatever the function and the schedule. */
START_TEST(link_only)
{
    const struct nb_cost_machine f = only_link();

    for (int func = 0; func < NB_FUNC_COUNT; func++)
        for (int n = 2; n <= 16; n *= 2) {
            struct nb_cost_op op = nb_cost_op_make((enum nb_func)func, n, 32 * MIB, 2, 0.25);
            const double ideal = (n - 1.0) / n * 32 * MIB * 0.25 / 1e9 * (func == NB_FUNC_ALL_REDUCE ? 2 : 1);
            struct nm_result r;
            op.chunk = 524288; /* x 8 channels x 8 steps: the whole operation */
            op.credits = 10000;
            op.unit = 16384; /* so many messages that their order does not matter */
            ck_assert(nm_predict(&f, &op, &r));
            near(r.ideal, ideal, 1e-9);
            near(r.seconds, ideal, 0.15);
            op.ratio = 1;
            near(seconds(&f, &op), 4 * ideal, 0.15);
        }
}
END_TEST

/* An operation far larger than the bytes in flight. When blocks go straight, one owner's link works at a
 * time, N times the ideal. In two hops only the owner's own idle time is lost, N / (N - 1). */
START_TEST(window_walk)
{
    const struct nb_cost_machine f = only_link();

    for (int n = 4; n <= 8; n *= 2) {
        struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_GATHER, n, 1024 * MIB, 2, 0.25);
        const double ideal = (n - 1.0) / n * 1024 * MIB * 0.25 / 1e9;
        op.chunk = 16384;
        near(seconds(&f, &op), n * ideal, 0.02);
        op.schedule = NB_COST_TWO_HOP;
        near(seconds(&f, &op), n / (n - 1.0) * ideal, 0.05);
        op.func = NB_FUNC_REDUCE_SCATTER;
        near(seconds(&f, &op), n / (n - 1.0) * ideal, 0.05);
        /* With eight bits from the reducer to the owner, the owner's link takes twice as long. */
        op.ratio_again = 0.5;
        ck_assert_double_gt(seconds(&f, &op), 1.8 * ideal);
        /* An all-reduce uses all nodes at once, however many bytes are in flight. */
        op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, n, 1024 * MIB, 2, 0.25);
        near(seconds(&f, &op), 2 * ideal, 0.03);
    }
}
END_TEST

/* Reduce-scatter: with more memory for coded units the walk runs further ahead. */
START_TEST(run_ahead)
{
    const struct nb_cost_machine f = only_link();
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_REDUCE_SCATTER, 4, 256 * MIB, 2, 0.25);
    double few, many, most;

    op.credits = 8;
    few = seconds(&f, &op);
    op.credits = 64;
    many = seconds(&f, &op);
    op.credits = 100000;
    most = seconds(&f, &op);
    ck_assert_double_gt(few, 1.03 * many); /* nibble-scale: 1.04 times */
    ck_assert_double_ge(many, most);
    ck_assert_double_ge(most, 0.75 * 256 * MIB * 0.25 / 1e9);
    /* Memory becomes free by units: windows as large as all of it do not hold it up. */
    op.bytes = 64 * MIB;
    op.credits = 32;
    op.chunk = 65536;
    few = seconds(&f, &op);
    op.chunk = 524288;
    ck_assert_double_le(seconds(&f, &op), 1.05 * few);
}
END_TEST

/* Only latency: eight calls are in flight. nibble-scale finds 4, 12, 7 and 16 ms for 64 MiB,
 * and 1, 2, 4 and 2 for one MiB. Two hops and the grid are predicted to take 8 ms for 64 MiB. */
START_TEST(latency_only)
{
    const struct nb_cost_machine f = {.link = 1e30, .latency = 1e-3, .cores = 1};
    static const struct {
        enum nb_func func;
        enum nb_cost_schedule schedule;
        int hops, all;
    } cases[] = {{NB_FUNC_ALL_GATHER, NB_COST_DIRECT, 1, 4},
                 {NB_FUNC_ALL_GATHER, NB_COST_TWO_HOP, 2, 12},
                 {NB_FUNC_ALL_GATHER, NB_COST_TWO_LEVEL, 4, 7},
                 {NB_FUNC_ALL_REDUCE, NB_COST_DIRECT, 2, 16}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct nb_cost_op op = nb_cost_op_make(cases[i].func, 4, 64 * MIB, 2, 1); /* 64 calls of 1 MiB */
        op.schedule = cases[i].schedule;
        op.credits = 1000;
        const double off = cases[i].schedule == NB_COST_DIRECT ? 0.001 : 0.34;
        near(seconds(&f, &op), 1e-3 * cases[i].all, off);
        op.bytes = MIB;
        near(seconds(&f, &op), 1e-3 * cases[i].hops, off);
    }
}
END_TEST

/* Two-level all-reduces: four hops come in any case, in each of NCCL's turns. Two rows finish the 256
 * segments of a column by turns, as many as a row has credits, and each turn costs a hop. nibble-scale finds
 * 32, 35 and 4 ms. A single finisher for a column waits for no other. */
START_TEST(latency_of_turns)
{
    const struct nb_cost_machine f = {.link = 1e30, .latency = 1e-3, .cores = 1};
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, 4, 64 * MIB, 2, 1);

    op.schedule = NB_COST_TWO_LEVEL;
    near(seconds(&f, &op), 8 * 4e-3, 0.001);
    op.credits = 8;
    near(seconds(&f, &op), (64 * 4 / 8 + 3) * 1e-3, 0.001);
    op.bytes = MIB;
    near(seconds(&f, &op), 4e-3, 0.001);
    op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, 64, 64 * MIB, 2, 1);
    op.schedule = NB_COST_TWO_LEVEL;
    near(seconds(&f, &op), 8 * 4e-3, 0.001);
}
END_TEST

/* Only the codec counts: its bytes at its speed. Half the processors take twice the time. */
START_TEST(codec_only)
{
    struct nb_cost_machine f = {.link = 1e30, .cores = 1, .speed = {1e9, 0, 0, 0, 0, 0}};
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_REDUCE_SCATTER, 4, 32 * MIB, 2, 0.25);

    op.chunk = 524288; /* the whole operation is in flight */
    near(seconds(&f, &op), 0.75 * 32 * MIB / 1e9, 0.02);
    f.cores = 0.5;
    near(seconds(&f, &op), 2 * 0.75 * 32 * MIB / 1e9, 0.02);
    op.coded = false; /* raw operations skip the encoder */
    op.ratio = 1;
    ck_assert_double_lt(seconds(&f, &op), 1e-3);
}
END_TEST

/* A node that gathers differences encodes its own block, and copies it into the reference and the result. It
 * decodes the other blocks, and copies them into theirs. */
START_TEST(differences)
{
    const struct nb_cost_machine f = {
        .link = 1e30, .cores = 1, .copy = 1e10, .speed = {.ulp_encode = 1e9, .ulp_decode = 4e8}};
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_GATHER, 4, 64 * MIB, 2, 0.19);
    struct nm_result r;

    for (int s = 0; s < NB_COST_TWO_LEVEL; s++) {
        op.schedule = (enum nb_cost_schedule)s;
        ck_assert(nm_predict(&f, &op, &r));
        near(r.cpu * r.seconds, 16 * MIB * (1 / 1e9 + 2 / 1e10) + 48 * MIB * (1 / 4e8 + 1 / 1e10), 0.001);
    }
}
END_TEST

/* Faster links are never slower. */
START_TEST(shape)
{
    struct nb_cost_machine f = {.link = 1e9,
                                .latency = 2e-5,
                                .message = 1e-6,
                                .cores = 1,
                                .copy = 1e10,
                                .speed = {8e9, 4e9, 13e9, 12e9, 2e9, 3e9}};

    for (int func = 0; func < NB_FUNC_COUNT; func++)
        for (int s = 0; s < NB_COST_SCHEDULES; s++) {
            double before = INFINITY;
            for (double gbps = 1; gbps <= 800; gbps *= 2) {
                struct nb_cost_op op = nb_cost_op_make((enum nb_func)func, 64, 64 * MIB, 2, 0.268);
                op.schedule = (enum nb_cost_schedule)s;
                f.link = gbps * 1e9 / 8;
                ck_assert_double_le(seconds(&f, &op), before * 1.0001);
                before = seconds(&f, &op);
            }
        }
}
END_TEST

START_TEST(needs)
{
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, 1024, 64 * MIB, 2, 0.268);
    struct nm_needs need;

    nm_needs(&op, 0, 0, &need);
    ck_assert_double_eq(need.connections, 1023);
    near(need.feedback, 32 * MIB * 33 / 32, 1e-9);
    op.schedule = NB_COST_TWO_LEVEL;
    nm_needs(&op, 0, 0, &need);
    ck_assert_double_eq(need.connections, 63 + 15); /* 16 rows of 64 */
    ck_assert_double_eq(need.staging, (4 * 78 + 2) * op.credits * op.unit);
    op.func = NB_FUNC_ALL_GATHER;
    nm_needs(&op, 0, 1e9, &need);
    ck_assert_double_eq(need.references, 1e9);
    op.nodes = 1021; /* a prime */
    nm_needs(&op, 0, 0, &need);
    ck_assert_double_eq(need.connections, 1020);
}
END_TEST

START_TEST(rows_and_columns)
{
    static const int of[][2] = {{2, 0},   {4, 2},    {7, 0},     {8, 4},      {16, 8},
                                {31, 0},  {32, 16},  {128, 16},  {36, 12},    {64, 16},
                                {101, 0}, {256, 32}, {1024, 64}, {4096, 128}, {262, 0}};
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_REDUCE_SCATTER, 36, 64 * MIB, 2, 0.268), straight;
    struct nb_cost_machine f = only_link();

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        ck_assert_msg(nm_group(of[i][0]) == of[i][1], "%d nodes: rows of %d, not %d", of[i][0],
                      nm_group(of[i][0]), of[i][1]);
    ck_assert_int_eq(nm_columns(&op), 0); /* direct */
    op.schedule = NB_COST_TWO_LEVEL;
    ck_assert_int_eq(nm_columns(&op), 12);
    op.group = 6;
    ck_assert_int_eq(nm_columns(&op), 6);
    /* No grid: direct. */
    op.group = 5;
    ck_assert_int_eq(nm_columns(&op), 0);
    straight = op;
    straight.schedule = NB_COST_DIRECT;
    ck_assert_double_eq(seconds(&f, &op), seconds(&f, &straight));
}
END_TEST

/* Bytes of the ideal that a node sends on a grid when the whole operation is in flight: the rows' sums with 8
 * bits, and the idle direction of the owner's link during one block of N. */
START_TEST(grid_bytes)
{
    const struct nb_cost_machine f = only_link();

    for (int n = 8; n <= 32; n *= 2) {
        const double k = nm_group(n), h = n / k, block = 32 * MIB * 0.25 / n / 1e9;
        struct nb_cost_op op = nb_cost_op_make(NB_FUNC_REDUCE_SCATTER, n, 32 * MIB, 2, 0.25);
        op.schedule = NB_COST_TWO_LEVEL;
        op.chunk = 524288;
        op.credits = 1000;
        /* Add the time in which the block's owner does not send. */
        near(seconds(&f, &op), block * (h * (k - 1) + 2 * (h - 1) + k / (k - 1)), 0.1);
        op.func = NB_FUNC_ALL_GATHER;
        /* The owner's row sends more than other rows, and rows do so one after the other (nibble-scale: 1.03
         * to 1.08 times this). */
        near(seconds(&f, &op), block * n * fmax(1, (h + k - 3) / (k - 1)), 0.12);
        op.func = NB_FUNC_ALL_REDUCE;
        near(seconds(&f, &op), block * (h * (k - 1) + 2 * (h - 1) + n - 1), 0.03);
        /* Raw sums of rows are as large as their contributions. */
        op.coded = false;
        op.ratio = 1;
        near(seconds(&f, &op), 4 * block * (h * (k - 1) + (h - 1) + n - 1), 0.03);
    }
}
END_TEST

/* Return the default machine of nibble-scale. */
static struct nb_cost_machine of_nibble_scale(void)
{
    const double fast = 1e11;

    return (struct nb_cost_machine){.link = 25e9 / 8,
                                    .latency = 1e-5,
                                    .message = 2e-6,
                                    .copy = fast,
                                    .cores = 1,
                                    .speed = {fast, fast, fast, fast, fast, fast}};
}

/* Times of nibble-scale, which runs the engine itself (docs/scale.md): reduce-scatters and all-gathers of 64
 * MiB, windows of 8 x 128K, 25 Gbit/s, 10 us a hop, 2 us a message, codecs of 100 GB/s. Milliseconds by
 * schedule. */
START_TEST(simulated)
{
    static const struct {
        int nodes;
        double sum[NB_COST_SCHEDULES], gather[NB_COST_SCHEDULES];
    } rows[] = {
        {4, {10.40, 6.26, 9.39}, {8.50, 4.22, 4.46}},   {8, {13.75, 6.82, 8.18}, {14.52, 5.02, 4.94}},
        {16, {15.48, 6.59, 7.31}, {19.29, 5.39, 5.42}}, {24, {15.15, 8.67, 6.96}, {22.59, 8.60, 5.05}},
        {32, {15.83, 9.29, 6.81}, {22.27, 9.29, 5.53}}, {64, {16.22, 17.15, 7.24}, {23.00, 17.29, 5.56}}};
    const struct nb_cost_machine f = of_nibble_scale();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int s = 0; s < NB_COST_SCHEDULES; s++) {
            struct nb_cost_op op =
                nb_cost_op_make(NB_FUNC_REDUCE_SCATTER, rows[i].nodes, 64 * MIB, 2, 0.2685);
            op.schedule = (enum nb_cost_schedule)s;
            op.feedback = true;
            op.credits = rows[i].nodes == 64 && s != NB_COST_TWO_LEVEL ? 32 : 48;
            op.bytes = floor(op.bytes / op.nodes / 4) * op.nodes * 4;
            near(seconds(&f, &op), 1e-3 * rows[i].sum[s], s == NB_COST_DIRECT ? 0.35 : 0.15);
            op.func = NB_FUNC_ALL_GATHER;
            op.ratio = 0.1905;
            near(seconds(&f, &op), 1e-3 * rows[i].gather[s], 0.15);
        }
}
END_TEST

/* The same for all-reduces that are too short for their stages to fill one another's waits. */
START_TEST(simulated_short)
{
    static const struct {
        int nodes;
        enum nb_cost_schedule schedule;
        double mib, ms;
    } rows[] = {{8, NB_COST_DIRECT, 1, 0.209},     {16, NB_COST_DIRECT, 4, 0.731},
                {20, NB_COST_TWO_LEVEL, 1, 0.281}, {32, NB_COST_TWO_LEVEL, 1, 0.276},
                {32, NB_COST_TWO_LEVEL, 4, 0.774}, {64, NB_COST_TWO_LEVEL, 0.25, 0.303},
                {64, NB_COST_TWO_LEVEL, 1, 0.311}, {64, NB_COST_TWO_LEVEL, 4, 0.861},
                {64, NB_COST_TWO_LEVEL, 16, 3.32}};
    const struct nb_cost_machine f = of_nibble_scale();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct nb_cost_op op =
            nb_cost_op_make(NB_FUNC_ALL_REDUCE, rows[i].nodes, rows[i].mib * MIB, 2, 0.2685);
        op.schedule = rows[i].schedule;
        op.feedback = true;
        near(seconds(&f, &op), 1e-3 * rows[i].ms, 0.05);
    }
}
END_TEST

/* An operation far larger than the bytes in flight. A node of the owner's row receives contributions and
 * rows' sums. A node of another row sends contributions and its row's sum. A gather's blocks go at the rate
 * of a link, except the owner's. */
START_TEST(grid_walk)
{
    const struct nb_cost_machine f = only_link();

    for (int n = 8; n <= 16; n *= 2) {
        const double k = nm_group(n), h = n / k, block = 1024 * MIB * 0.25 / n / 1e9;
        struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_GATHER, n, 1024 * MIB, 2, 0.25);
        op.schedule = NB_COST_TWO_LEVEL;
        op.chunk = 16384;
        near(seconds(&f, &op), n * block, 0.1);
        op.func = NB_FUNC_REDUCE_SCATTER;
        near(seconds(&f, &op), n * block * fmax(k, k - 2 + 2 * (h - 1)) / (k - 1), 0.15);
    }
}
END_TEST

/* Many nodes: one owner's link limits the direct schedule, but not a grid's. */
START_TEST(grid_pays)
{
    struct nb_cost_machine f = {.link = 1.25e8,
                                .latency = 2e-5,
                                .message = 2e-6,
                                .cores = 1,
                                .copy = 1.6e10,
                                .speed = {7.3e9, 3.5e9, 13.7e9, 11.7e9, 1.8e9, 3.0e9}};

    for (int n = 32; n <= 256; n *= 2)
        for (int func = NB_FUNC_REDUCE_SCATTER; func <= NB_FUNC_ALL_GATHER; func++) {
            struct nb_cost_op op = nb_cost_op_make((enum nb_func)func, n, n * MIB, 2, 0.268);
            struct nm_needs few, many;
            double direct, before;
            direct = seconds(&f, &op);
            nm_needs(&op, 0, 0, &many);
            op.schedule = NB_COST_TWO_LEVEL;
            nm_needs(&op, 0, 0, &few);
            before = seconds(&f, &op);
            if (func == NB_FUNC_ALL_GATHER)
                ck_assert_double_lt(before, 0.75 * direct);
            ck_assert_double_lt(few.staging, many.staging);
            op.bytes *= 2; /* more bytes take longer, */
            ck_assert_double_gt(seconds(&f, &op), 1.5 * before);
            op.bytes /= 2;
            f.latency *= 10; /* longer ways too */
            ck_assert_double_ge(seconds(&f, &op), before);
            f.latency /= 10;
        }
}
END_TEST

START_TEST(nonsense)
{
    struct nb_cost_machine f = only_link();
    struct nb_cost_op op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, 1, MIB, 2, 1);
    struct nm_result r;

    ck_assert(!nm_predict(&f, &op, &r));
    op.nodes = 2;
    op.bytes = 0;
    ck_assert(!nm_predict(&f, &op, &r));
    op.bytes = MIB;
    f.link = 0;
    ck_assert(!nm_predict(&f, &op, &r));
}
END_TEST

/* Medians over rounds, and files with other content. */
START_TEST(samples)
{
    char path[] = "/tmp/nibble-model-XXXXXX";
    const int fd = mkstemp(path);
    struct nm_sample *s;
    FILE *out = fdopen(fd, "w");

    ck_assert_ptr_nonnull(out);
    fputs("set,tool,schedule,nodes,mbps,op,type,bytes,channels,chunk,round,seconds,wire_ratio,cpu,busy,link_"
          "bytes,nmse\n",
          out);
    for (int i = 0; i < 5; i++)
        fprintf(out, "main,coded,direct,4,500,all_reduce,bfloat16,1048576,8,131072,%d,%g,0.268,1,,,\n", i + 1,
                i == 2 ? 9.0 : 0.1 * (i + 1));
    fprintf(out, "main,openmpi,,4,500,all_reduce,bfloat16,1048576,,,1,0.25,,1.5,,,\n");
    fflush(out);
    ck_assert_int_eq(nm_read_bench(path, &s), 2);
    ck_assert_double_eq_tol(s[0].seconds, 0.4, 1e-9); /* median of 0.1 0.2 9 0.4 0.5 */
    ck_assert_int_eq(s[0].nodes, 4);
    ck_assert_str_eq(s[1].tool, "openmpi");
    free(s);
    fputs("main,coded\n", out);
    fclose(out);
    ck_assert_int_lt(nm_read_bench(path, &s), 0);
    unlink(path);
    ck_assert_int_lt(nm_read_bench(path, &s), 0);
}
END_TEST

SUITE_MAIN("model", TEST(link_only), TEST(window_walk), TEST(run_ahead), TEST(latency_only),
           TEST(latency_of_turns), TEST(codec_only), TEST(differences), TEST(shape), TEST(needs),
           TEST(rows_and_columns), TEST(grid_bytes), TEST(simulated), TEST(simulated_short), TEST(grid_walk),
           TEST(grid_pays), TEST(nonsense), TEST(samples))
