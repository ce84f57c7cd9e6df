/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what the trainer measures with: the direction of an update, means and their confidence, lists of
 * events, values in the types that travel, and the codes of others, whose error on normally distributed
 * values is known.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "fidelity.h"
#include "rivals.h"
#include "rng.h"
#include "stats.h"
#include "tests/suite.h"
#include "values.h"

static const struct nbt_config small = {.layers = 2, .width = 64, .heads = 2, .context = 64, .batch = 1};

/* ---- fidelity ---- */

START_TEST(angle_and_norm)
{
    struct nbt_layout lay;
    struct nbt_usage usage = {.total = 1};
    struct nbt_fidelity_sums sums[2];
    struct nbt_fidelity f = {0};
    ck_assert_int_eq(nbt_layout_make(&small, &lay), 0);
    memset(usage.steps, 0, sizeof usage.steps);
    usage.steps['a'] = 1;
    float *a = calloc(lay.params, sizeof *a), *b = calloc(lay.params, sizeof *b);
    /* Matrices: 45 degrees, the coded one sqrt(2) longer. Everything else equal, the rare rows opposite. */
    for (int k = 0; k < lay.tensors; k++) {
        const struct nbt_tensor *t = &lay.tensor[k];
        for (size_t i = t->offset; i < t->offset + t->rows * t->cols; i++) {
            const int rare = t->by_token && (i - t->offset) / t->cols != 'a';
            b[i] = t->cls == NBT_MATRIX ? (float)(i % 2) : 1;
            a[i] = t->cls == NBT_MATRIX ? 1 : rare ? -b[i] : b[i];
        }
    }
    /* Two shards, cut inside a row. */
    const size_t cut = 1001;
    nbt_fidelity_measure(&lay, &usage, 0, cut, a, b, a, b, &sums[0]);
    nbt_fidelity_measure(&lay, &usage, cut, lay.params - cut, a + cut, b + cut, a + cut, b + cut, &sums[1]);
    nbt_fidelity_add(&f, sums, 2);
    nbt_fidelity_add(&f, sums, 2);
    nbt_fidelity_finish(&f);
    ck_assert_uint_eq(f.instants, 2);
    ck_assert_double_eq_tol(f.off[NBT_MATRIX], 1 - sqrt(0.5), 1e-9);
    ck_assert_double_eq_tol(f.ratio[NBT_MATRIX], sqrt(2), 1e-9);
    ck_assert_double_eq_tol(f.nmse[NBT_MATRIX], 1, 1e-9);
    for (int c = NBT_EMBED; c < NBT_CLASSES; c++) {
        ck_assert_double_eq_tol(f.off[c], 0, 1e-9);
        ck_assert_double_eq_tol(f.ratio[c], 1, 1e-9);
    }
    ck_assert_double_eq_tol(f.off[NBT_RARE_EMBED], 2, 1e-9);
    ck_assert_double_eq_tol(f.off[NBT_RARE_HEAD], 2, 1e-9);
    free(a);
    free(b);
}
END_TEST

/* ---- statistics ---- */

START_TEST(confidence)
{
    const double x[] = {1, 2, 3, 4};
    struct nbt_stats s = nbt_stats(x, 4);
    ck_assert_double_eq_tol(s.mean, 2.5, 1e-12);
    ck_assert_double_eq_tol(s.worst, 4, 1e-12);
    ck_assert_double_eq_tol(s.half, 3.182 * sqrt(5.0 / 3 / 4), 1e-9); /* t(3) x standard error */
    s = nbt_stats(x, 1);
    ck_assert_double_eq_tol(s.mean, 1, 1e-12);
    ck_assert(isnan(s.half));
    ck_assert(isnan(nbt_stats(x, 0).mean));
    ck_assert(isnan(nbt_student(0)));
    ck_assert_double_eq_tol(nbt_student(9), 2.262, 1e-9);
    ck_assert_double_eq_tol(nbt_student(40), 2.0211, 2e-3);
    ck_assert_double_eq_tol(nbt_student(1000000), 1.96, 1e-4);
}
END_TEST

/* In 95 of 100 cases the interval holds the truth. */
START_TEST(confidence_holds)
{
    struct nbt_rng rng = nbt_rng_seed(5, 0, 0);
    int held = 0;
    for (int k = 0; k < 4000; k++) {
        double x[10];
        for (int i = 0; i < 10; i++)
            x[i] = 7 + 3 * nbt_rng_normal(&rng);
        const struct nbt_stats s = nbt_stats(x, 10);
        held += fabs(s.mean - 7) <= s.half;
    }
    ck_assert_int_gt(held, 3740);
    ck_assert_int_lt(held, 3860);
}
END_TEST

/* ---- events ---- */

START_TEST(event_lists)
{
    static const char *const wrong[] = {"spike@3",
                                        "spike30",
                                        "spike30@",
                                        "spike-1@3",
                                        "spike30@x",
                                        "lunch@3",
                                        "eval3@4",
                                        "eval@3x",
                                        "eval@3;",
                                        "eval@-3",
                                        "spike0@3",
                                        "spikenan@3",
                                        "spike1e9@3",
                                        "eval",
                                        "@3",
                                        "eval@",
                                        "eval@99999999999999999999999"};
    struct nbt_events e = {0};
    FILE *nowhere = fopen("/dev/null", "w");
    char name[48];
    ck_assert_ptr_nonnull(nowhere);
    ck_assert_int_eq(nbt_events_parse("spike30@100,eval@120", &e, nowhere), 0);
    ck_assert_int_eq(nbt_events_parse("checkpoint@41,overflow@7,skip@8,restart@9,spike2.5@0", &e, nowhere),
                     0);
    ck_assert_uint_eq(e.count, 7);
    ck_assert_ptr_eq(nbt_event_at(&e, NBT_EVENT_SPIKE, 100), &e.event[0]);
    ck_assert_double_eq(e.event[0].factor, 30);
    ck_assert_ptr_null(nbt_event_at(&e, NBT_EVENT_EVAL, 100));
    ck_assert_ptr_nonnull(nbt_event_at(&e, NBT_EVENT_RESTART, 9));
    ck_assert_int_eq(nbt_events_save(&e, 20), 1);
    ck_assert_int_eq(nbt_events_save(&e, 21), 0);
    nbt_event_name(&e.event[6], name, sizeof name);
    ck_assert_str_eq(name, "spike2.5@0");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct nbt_events none = {0};
        ck_assert_msg(nbt_events_parse(wrong[i], &none, nowhere) != 0, "\"%s\" was taken", wrong[i]);
    }
    for (int i = 0; i < NBT_EVENTS_MAX - 7; i++)
        ck_assert_int_eq(nbt_events_parse("skip@5", &e, nowhere), 0);
    ck_assert_int_ne(nbt_events_parse("skip@5", &e, nowhere), 0);
    fclose(nowhere);
}
END_TEST

/* ---- values ---- */

START_TEST(types)
{
    const float x[] = {0, -1.5f, 65504, 65520, 1e-7f, INFINITY, 1 + 0x1p-11f, -3e-8f};
    const float half[] = {0, -1.5f, 65504, INFINITY, 0x1p-23f, INFINITY, 1, -0x1p-24f};
    float back[8];
    uint16_t coded[8];
    nbt_narrow(NB_F16, x, 8, coded);
    nbt_widen(NB_F16, coded, 8, back);
    for (int i = 0; i < 8; i++)
        ck_assert_msg(back[i] == half[i], "value %d: %g instead of %g", i, (double)back[i], (double)half[i]);
    nbt_narrow(NB_BF16, x, 8, coded);
    nbt_widen(NB_BF16, coded, 8, back);
    ck_assert_float_eq(back[3], 65536);
    ck_assert_float_eq(back[6], 1);
}
END_TEST

/* ---- rivals ---- */

static float *normal_values(size_t n, uint64_t seed)
{
    struct nbt_rng rng = nbt_rng_seed(seed, 1, 2);
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)nbt_rng_normal(&rng);
    return x;
}

static double nmse(const float *x, const float *y, size_t n)
{
    double noise = 0, signal = 0;
    for (size_t i = 0; i < n; i++) {
        noise += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
        signal += (double)x[i] * (double)x[i];
    }
    return noise / signal;
}

/* Random rounding of transformed groups of 128 to 15 levels: 0.0275 on normal values, and right on average.
 */
START_TEST(sdp4bit_gradients)
{
    enum { TIMES = 80 };
    struct nbt_layout lay;
    ck_assert_int_eq(nbt_layout_make(&small, &lay), 0);
    const size_t n = lay.params;
    float *g = normal_values(n, 3), *arrives = malloc(n * sizeof *arrives), *mean = calloc(n, sizeof *mean);
    struct nbt_rival *r = nbt_rival_new(NBT_GRADIENTS_SDP4BIT, &lay, n, 9);
    ck_assert_uint_eq(nbt_rival_gradients(r, g, arrives), n / 2 + n / 128 * 4);
    const double once = nmse(g, arrives, n);
    ck_assert_double_eq_tol(once, 0.0275, 0.0006);
    for (int k = 0; k < TIMES; k++) {
        nbt_rival_gradients(r, g, arrives);
        for (size_t i = 0; i < n; i++)
            mean[i] += arrives[i] / TIMES;
    }
    ck_assert_double_lt(nmse(g, mean, n), 1.3 * once / TIMES);
    nbt_rival_free(r);
    free(g);
    free(arrives);
    free(mean);
}
END_TEST

/* 16 levels, nearest, clamped, in groups as long as a matrix' shorter side; vectors as they are; what is left
 * over is sent later, and forgotten every 1024 steps. */
START_TEST(loco_gradients)
{
    enum { TIMES = 80 };
    struct nbt_layout lay;
    ck_assert_int_eq(nbt_layout_make(&small, &lay), 0);
    const size_t n = lay.params;
    const struct nbt_tensor *norm = &lay.tensor[lay.lnf_gain], *head = &lay.tensor[lay.head];
    float *g = normal_values(n, 4), *arrives = malloc(n * sizeof *arrives),
          *first = malloc(n * sizeof *first);
    float *mean = calloc(n, sizeof *mean);
    struct nbt_rival *r = nbt_rival_new(NBT_GRADIENTS_LOCO, &lay, n, 0);
    nbt_rival_gradients(r, g, first);
    ck_assert_mem_eq(g + norm->offset, first + norm->offset, norm->cols * sizeof *g);
    /* One group by hand: a row of the head, 64 values. */
    float max = 0;
    for (size_t i = 0; i < 64; i++)
        max = fmaxf(max, fabsf(g[head->offset + i]));
    for (size_t i = 0; i < 64; i++) {
        const float level = fminf(rintf(g[head->offset + i] / (max / 8)), 7);
        ck_assert_float_eq_tol(first[head->offset + i], level * (max / 8), 1e-6f);
    }
    for (int k = 0; k < TIMES; k++) {
        nbt_rival_gradients(r, g, arrives);
        for (size_t i = 0; i < n; i++)
            mean[i] += arrives[i] / TIMES;
    }
    const double once = nmse(g + head->offset, first + head->offset, 256 * 64);
    ck_assert_double_gt(once, 0.005);
    ck_assert_double_lt(once, 0.02);
    ck_assert_double_lt(nmse(g + head->offset, mean + head->offset, 256 * 64), once / 20);
    for (int k = TIMES + 1; k <= 1024; k++) { /* the last of these is call 1025: like the first */
        if (k == 1024)
            ck_assert_int_ne(memcmp(arrives, first, n * sizeof *first), 0);
        nbt_rival_gradients(r, g, arrives);
    }
    ck_assert_mem_eq(arrives, first, n * sizeof *first);
    nbt_rival_free(r);
    free(g);
    free(arrives);
    free(first);
    free(mean);
}
END_TEST

/* Differences in groups of 2048, random rounding: 0.045 of the differences' energy where BF16 does not round.
 */
START_TEST(sdp4bit_weights)
{
    enum { N = 65536 };
    float *d = normal_values(N, 5), *got = malloc(N * sizeof *got);
    uint16_t *before = calloc(N, sizeof *before), *now = malloc(N * sizeof *now);
    nbt_to_bf16(d, N, now); /* the weights were zero: nothing is lost in subtraction and addition */
    nbt_from_bf16(now, N, d);
    ck_assert_uint_eq(nbt_rival_weights(now, before, N, 1, before), N / 2 + N / 2048 * 4);
    nbt_from_bf16(before, N, got);
    ck_assert_double_eq_tol(nmse(d, got, N), 0.0453, 0.003);
    /* The rest is a difference in turn. */
    for (int k = 0; k < 4; k++)
        nbt_rival_weights(now, before, N, 2 + (uint64_t)k, before);
    nbt_from_bf16(before, N, got);
    ck_assert_double_lt(nmse(d, got, N), 1e-5);
    free(d);
    free(got);
    free(before);
    free(now);
}
END_TEST

SUITE_MAIN("train-measures", TEST(angle_and_norm), TEST(confidence), TEST(confidence_holds),
           TEST(event_lists), TEST(types), TEST(sdp4bit_gradients), TEST(loco_gradients),
           TEST(sdp4bit_weights))
