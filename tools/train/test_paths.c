/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bars for every path that a sum may take by default, on 2 to 16 nodes. A small model trains with exact sums.
 * Emulated nodes (nibble/emulate.h) sum the same gradients on each path, and Adam's update from their sums is
 * compared with the update from the exact ones, as nibble-train does. Since all paths get the same gradients,
 * few steps tell their errors apart.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adamw.h"
#include "fidelity.h"
#include "nibble/emulate.h"
#include "tests/suite.h"
#include "text.h"

#define STEPS 40
#define FIRST 20 /* first compared step: Adam's moments cover some twenty */
#define MOST_NODES 16
#define PATHS (sizeof path / sizeof *path)

/* 1 - cos of every class is at most OFF. In classes of thousands of values it is at most OTHERS times that of
 * direct reduce-scatters. No update is shorter than the exact one by more than SHORTER of its norm. */
#define OFF 0.0015
#define OTHERS 1.5
#define SHORTER 0.02

static const struct nbt_config config = {.layers = 1, .width = 32, .heads = 1, .context = 32, .batch = 3};
static const struct nbt_adamw adam = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f};

#define CODED "NIBBLE_RS=int4", "NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0", "NIBBLE_WARMUP_STEPS=0"

static const struct {
    const char *name, *settings[6];
    enum nb_emulate_func func;
    int least; /* nodes */
} path[] = {
    {"direct reduce-scatter", {CODED, "NIBBLE_SCHEDULE=direct"}, NB_EMULATE_REDUCE_SCATTER, 2},
    {"two-hop reduce-scatter", {CODED, "NIBBLE_SCHEDULE=two-hop"}, NB_EMULATE_REDUCE_SCATTER, 3},
    {"two-level reduce-scatter", {CODED, "NIBBLE_SCHEDULE=two-level"}, NB_EMULATE_REDUCE_SCATTER, 4},
    {"all-reduce", {CODED, "NIBBLE_SCHEDULE=direct"}, NB_EMULATE_ALL_REDUCE, 2},
    {"two-level all-reduce", {CODED, "NIBBLE_SCHEDULE=two-level"}, NB_EMULATE_ALL_REDUCE, 4},
};

/* Sums, and Adam's state for them. */
struct arm {
    struct nb_emulation *nodes; /* NULL: exact sums */
    float *sum, *update;
    struct nbt_moments moments;
    struct nbt_fidelity fidelity;
};

static struct nbt_layout lay;
static size_t values; /* of a gradient and its padding, a multiple of the nodes */

static float *vector(void)
{
    float *v = calloc(values, sizeof *v);

    ck_assert_ptr_nonnull(v);
    return v;
}

static struct arm arm_open(const char *const *settings, int nodes)
{
    const struct nb_emulate_config c = {
        .size = sizeof c, .nodes = nodes, .channels = 2, .buffer_bytes = 262144, .settings = settings};
    struct arm a = {.sum = vector(), .update = vector(), .moments = {vector(), vector()}};

    if (settings)
        ck_assert_int_eq(nb_emulate_open(&c, &a.nodes), 0);
    return a;
}

static void arm_close(struct arm *a)
{
    nb_emulate_close(a->nodes);
    free(a->sum);
    free(a->update);
    free(a->moments.m);
    free(a->moments.v);
}

static void sum_exactly(struct arm *a, int nodes, float *const *gradient)
{
    for (size_t i = 0; i < values; i++) {
        double sum = 0;

        for (int n = 0; n < nodes; n++)
            sum += (double)gradient[n][i];
        a->sum[i] = (float)sum;
    }
}

static void sum_on(struct arm *a, size_t p, int nodes, float *const *gradient, float *scratch)
{
    const size_t block = values / (size_t)nodes;
    const bool scatter = path[p].func == NB_EMULATE_REDUCE_SCATTER;
    const void *send[MOST_NODES];
    void *recv[MOST_NODES];

    for (int n = 0; n < nodes; n++) {
        send[n] = gradient[n];
        recv[n] = scatter ? a->sum + (size_t)n * block : n ? scratch + (size_t)n * values : a->sum;
    }
    ck_assert_int_eq(scatter ? nb_emulate_reduce_scatter(a->nodes, NB_F32, block, send, recv, 0)
                             : nb_emulate_all_reduce(a->nodes, NB_F32, values, send, recv, 0),
                     0);
}

/* Compute an arm's update. Sums become means, which are clipped. */
static void update(struct arm *a, size_t step, int nodes)
{
    const float mean = 1.0f / (float)nodes;
    double squares = 0;

    for (size_t i = 0; i < values; i++)
        squares += (double)(mean * a->sum[i]) * (double)(mean * a->sum[i]);
    nbt_adamw_direction(&adam, step, lay.params, a->sum, mean * nbt_clip_factor(squares), a->moments,
                        a->update);
}

static void judge(const struct arm *a, size_t p, int nodes, const struct nbt_fidelity *direct)
{
    struct nb_emulate_figures f = {.size = sizeof f};

    ck_assert_int_eq(nb_emulate_figures(a->nodes, NB_EMULATE_ALL_NODES, path[p].func, &f), 0);
    ck_assert_msg(f.coded == f.operations && f.with_feedback == f.coded, "%s: %lu of %lu sums coded, %lu fed",
                  path[p].name, (unsigned long)f.coded, (unsigned long)f.operations,
                  (unsigned long)f.with_feedback);
    ck_assert_msg((f.two_hop > 0) == !strncmp(path[p].name, "two-hop", 7) &&
                      (f.two_level > 0) == !strncmp(path[p].name, "two-level", 9),
                  "%s: another schedule", path[p].name);
    for (int c = 0; c < NBT_CLASSES; c++) {
        const bool large = c == NBT_MATRIX || c == NBT_EMBED || c == NBT_HEAD;
        const double most = direct && large && OTHERS * direct->off[c] < OFF ? OTHERS * direct->off[c] : OFF;

        ck_assert_msg(a->fidelity.off[c] <= most && a->fidelity.ratio[c] >= 1 - SHORTER,
                      "%s, %d nodes, %s: 1 - cos %.5f (at most %.5f), norm ratio %.4f (at least %.2f)",
                      path[p].name, nodes, nbt_fid_class_name(c), a->fidelity.off[c], most,
                      a->fidelity.ratio[c], 1 - SHORTER);
        if (getenv("NB_VERBOSE"))
            printf("%2d nodes, %-24s %-10s 1 - cos %.5f, norm ratio %.4f\n", nodes, path[p].name,
                   nbt_fid_class_name(c), a->fidelity.off[c], a->fidelity.ratio[c]);
    }
}

START_TEST(bars)
{
    const int nodes = 2 << _i;
    const char *const srcdir = getenv("NB_SRCDIR");
    char place[4096];
    const char *const from = place;
    uint8_t tokens[3][33], seen[NBT_VOCAB];
    struct nbt_usage usage = {.total = 0};
    struct nbt_fidelity_sums sums;
    struct nbt_text text;
    struct nbt_model *model;
    float *weights, *gradient[MOST_NODES], *scratch;
    struct arm exact, arm[PATHS] = {{.nodes = NULL}};

    if (nodes > 4 && getenv("NB_SANITIZE")) /* it takes too long */
        return;
    snprintf(place, sizeof place, "%s/plugin/coll", srcdir ? srcdir : ".");
    ck_assert_int_eq(nbt_text_load(&from, 1, 1 << 20, &text), 0);
    ck_assert_int_eq(nbt_layout_make(&config, &lay), 0);
    values = (lay.params + 512 * MOST_NODES - 1) / (512 * MOST_NODES) * (512 * MOST_NODES);
    model = nbt_model_new(&lay, nbt_kernels_get(NULL));
    weights = vector();
    scratch = calloc((size_t)nodes * values, sizeof *scratch);
    ck_assert(model && scratch);
    nbt_init_params(&lay, 1, weights);
    for (int n = 0; n < nodes; n++)
        gradient[n] = vector();
    exact = arm_open(NULL, nodes);
    for (size_t p = 0; p < PATHS; p++)
        if (nodes >= path[p].least)
            arm[p] = arm_open(path[p].settings, nodes);
    for (size_t step = 0; step < STEPS; step++) {
        memset(seen, 0, sizeof seen);
        for (int n = 0; n < nodes; n++) {
            for (size_t k = 0; k < config.batch; k++) {
                memcpy(tokens[k], nbt_text_sample(&text, 1, step, n, k, config.context), sizeof tokens[k]);
                for (size_t i = 0; i < sizeof tokens[k]; i++)
                    seen[tokens[k][i]] = 1;
            }
            nbt_model_run(model, weights, tokens[0], gradient[n]);
        }
        nbt_usage_step(&usage, seen);
        sum_exactly(&exact, nodes, gradient);
        update(&exact, step, nodes);
        for (size_t p = 0; p < PATHS; p++) {
            if (nodes < path[p].least)
                continue;
            sum_on(&arm[p], p, nodes, gradient, scratch);
            update(&arm[p], step, nodes);
            if (step < FIRST)
                continue;
            nbt_fidelity_measure(&lay, &usage, 0, lay.params, arm[p].update, exact.update, arm[p].sum,
                                 exact.sum, &sums);
            nbt_fidelity_add(&arm[p].fidelity, &sums, 1);
        }
        nbt_adamw_apply(&adam, &lay, 0, lay.params, nbt_learning_rate(step, STEPS, 10, 0.003f), exact.update,
                        weights);
    }
    for (size_t p = 0; p < PATHS; p++) {
        if (nodes < path[p].least)
            continue;
        nbt_fidelity_finish(&arm[p].fidelity);
        judge(&arm[p], p, nodes, p ? &arm[0].fidelity : NULL);
        if (p)
            arm_close(&arm[p]);
    }
    arm_close(&arm[0]);
    arm_close(&exact);
    for (int n = 0; n < nodes; n++)
        free(gradient[n]);
    free(weights);
    free(scratch);
    nbt_model_free(model);
    nbt_text_free(&text);
}

SUITE_MAIN("paths", LOOP(bars, 0, 4))
