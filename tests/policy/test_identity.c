/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose error: compare the identity module with the truth on the traces of all frameworks, and print a table.
 *
 * The promises: a buffer with its own address or signature is fed from the end of the warm-up, blocks of
 * equal size from step 50. The module never adds another buffer's error where the evidence can decide, and
 * adds one in at most one of a thousand operations where layers are left out or frozen in turn. The same
 * checker must find out a decider that is wrong on purpose.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/identity/identity.h"
#include "replay.h"
#include "tests/suite.h"

#define LAYERS 24u

static const unsigned orderly[] = {0, V_EVAL, V_CHECKPOINT, V_BATCH, V_EVAL | V_CHECKPOINT | V_BATCH};
static const unsigned adverse[] = {V_DROP, V_DROP | V_EVAL, V_LISA, V_LISA | V_EVAL | V_CHECKPOINT,
                                   V_PREFETCH | V_DROP};

static struct outcome run(enum framework f, unsigned variants, uint32_t steps, const struct replay *how)
{
    struct trace trace;
    struct outcome o;

    trace_make(&trace, f, variants, LAYERS, steps, 5);
    o = replay(&trace, how);
    free(trace.event);
    printf("  %-18s %-26s %6.1f %%  %8.3f %%  %5d\n", framework_name(f), variants_name(variants),
           100.0 * (double)o.fed / (double)o.gradients, 100.0 * (double)o.misapplied / (double)o.gradients,
           o.first);
    return o;
}

/* With NB_TEST_QUICK every fifth pair of a framework and a variant, all frameworks and all variants. */
static int is_left_out(unsigned framework, unsigned variant)
{
    return getenv("NB_TEST_QUICK") && (framework + variant) % 5;
}

static const struct replay plain = {.known = NB_PROFILE_GROUPS, .ahead = 40, .seed = 9};

static void head(const char *title)
{
    printf("\n%s\n  %-18s %-26s %8s  %10s  %s\n", title, "framework", "variant", "fed back", "misapplied",
           "first step");
}

/* Return the least share fed after the warm-up. The rest are steps of a sudden spike, and after a checkpoint
 * inside the node (HSDP) the steps until the module finds the usual run of gathers again. */
static double least_fed(enum framework f)
{
    return f == F_HSDP || f == F_OUTER ? 0.96 : 0.98;
}

static void check_orderly(enum framework f, unsigned variants)
{
    struct outcome o = run(f, variants, 200, &plain);
    int stable = f == F_DDP || f == F_MEGATRON || f == F_MEGATRON_OVERLAP || f == F_MEGATRON_PIPELINE;

    ck_assert_uint_eq(o.misapplied + o.early, 0);
    ck_assert_uint_eq(o.others, 0);
    ck_assert_uint_eq(o.decided[NB_ID_FULL], 0);
    ck_assert(o.gradients > 0 && (double)o.fed >= least_fed(f) * (double)o.gradients);
    ck_assert_int_gt(o.first, 0);
    /* DDP makes its buckets anew after the first step. Outer steps come only every fifth step. */
    ck_assert_int_le(o.first, stable ? 15 : 50);
}

START_TEST(test_orderly)
{
    head("orderly jobs");
    for (int f = 0; f < F_COUNT; f++)
        for (unsigned v = 0; v < sizeof(orderly) / sizeof(orderly[0]); v++)
            if (!is_left_out((unsigned)f, v))
                check_orderly((enum framework)f, orderly[v]);
    check_orderly(F_FSDP1, V_PREFETCH);
    check_orderly(F_FSDP2, V_PREFETCH);
}
END_TEST

START_TEST(test_micro_batches)
{
    head("gradient accumulation, ramp-up");
    for (int f = 0; f < F_COUNT; f++)
        check_orderly((enum framework)f, V_ACCUMULATE);
    check_orderly(F_MEGATRON_PIPELINE, V_RAMP);
    check_orderly(F_MEGATRON_PIPELINE, V_RAMP | V_EVAL | V_CHECKPOINT);
}
END_TEST

START_TEST(test_adverse)
{
    static const enum framework shard[] = {F_FSDP1, F_FSDP2, F_FSDP2_KEEP, F_HSDP, F_ZERO3};

    head("layers left out or frozen in turn");
    for (unsigned f = 0; f < sizeof(shard) / sizeof(shard[0]); f++)
        for (unsigned v = 0; v < sizeof(adverse) / sizeof(adverse[0]); v++) {
            struct outcome o;

            if (is_left_out(f, v))
                continue;
            o = run(shard[f], adverse[v], 600, &plain);
            ck_assert_uint_le(o.misapplied * 1000, o.gradients);
        }
}
END_TEST

/* Where the framework reduces gradients of all layers, the gradients of frozen and left-out layers are zeros.
 * No gradient gets another's error, and all gradients that are not zero are fed. */
START_TEST(test_zeros)
{
    static const enum framework whole[] = {
        F_DDP, F_MEGATRON, F_MEGATRON_OVERLAP, F_MEGATRON_PIPELINE, F_ZERO1, F_ZERO2, F_OUTER};

    head("gradients that are zeros in turn");
    for (unsigned f = 0; f < sizeof(whole) / sizeof(whole[0]); f++)
        for (unsigned v = 0; v < sizeof(adverse) / sizeof(adverse[0]); v++) {
            struct outcome o;

            if (is_left_out(f, v))
                continue;
            o = run(whole[f], adverse[v], 600, &plain);
            ck_assert_uint_eq(o.misapplied, 0);
            ck_assert_uint_eq(o.others, 0);
        }
}
END_TEST

/* Gathers give enough evidence for FSDP under LayerDrop: nearly all gradients are fed. */
START_TEST(test_layer_drop)
{
    static const enum framework shard[] = {F_FSDP1, F_FSDP2, F_FSDP2_KEEP};

    head("LayerDrop under FSDP");
    for (unsigned f = 0; f < 3; f++) {
        struct outcome o = run(shard[f], V_DROP, 200, &plain);
        ck_assert((double)o.fed >= 0.98 * (double)o.gradients);
        ck_assert_int_le(o.first, 50);
    }
}
END_TEST

/* At the end of every seventh step come the squares of a layer's gradients. Their profile looks like the
 * layer's own. They still get no slot, and leave no trace in the layer. */
START_TEST(test_squares)
{
    static const enum framework shard[] = {F_FSDP1, F_FSDP2, F_FSDP2_KEEP};
    struct trace plain_trace, trace;
    struct outcome o;

    head("squares of gradients beside them");
    for (unsigned f = 0; f < 3; f++) {
        trace_make(&plain_trace, shard[f], 0, 6, 200, 5);
        trace = plain_trace;
        trace.event = calloc(plain_trace.n + plain_trace.steps, sizeof(*trace.event));
        ck_assert_ptr_nonnull(trace.event);
        trace.n = 0;
        for (size_t i = 0, layer = 0; i < plain_trace.n; i++) {
            const struct event *e = &plain_trace.event[i];
            trace.event[trace.n++] = *e;
            if (e->content == C_GRADIENT && e->unit == 3)
                layer = i;
            if (e->step % 7 || (i + 1 < plain_trace.n && e[1].step == e->step))
                continue;
            trace.event[trace.n] = plain_trace.event[layer];
            trace.event[trace.n].unit = -1;
            trace.event[trace.n++].content = C_SQUARES;
        }
        o = replay(&trace, &plain);
        printf("  %-18s %-26s %6.1f %%  %8.3f %%  %5d\n", framework_name(shard[f]), "squares",
               100.0 * (double)o.fed / (double)o.gradients,
               100.0 * (double)o.misapplied / (double)o.gradients, o.first);
        ck_assert_uint_eq(o.others, 0);
        ck_assert_uint_eq(o.misapplied, 0);
        ck_assert(o.fed * 10 > o.gradients * 9);
        free(plain_trace.event);
        free(trace.event);
    }
}
END_TEST

/* The first window may show only a part of the vector. */
START_TEST(test_partial_profiles)
{
    static const unsigned known[] = {256, 128, 96, 64, 0};

    for (unsigned k = 0; k < 5; k++) {
        struct replay how = plain;
        struct outcome o;
        char title[80];

        how.known = known[k];
        snprintf(title, sizeof(title), "profiles of %u groups", known[k]);
        head(title);
        o = run(F_FSDP2, V_EVAL, 200, &how);
        ck_assert_uint_eq(o.misapplied, 0);
        if (known[k] >= NB_PROFILE_LEAST)
            ck_assert((double)o.fed >= 0.98 * (double)o.gradients);
        else /* the embedding alone, which has its own signature */
            ck_assert((double)o.fed < 0.05 * (double)o.gradients);
        o = run(F_HSDP, V_LISA | V_EVAL, 600, &how);
        ck_assert_uint_le(o.misapplied * 1000, o.gradients);
        o = run(F_DDP, V_EVAL, 200, &how); /* addresses need no profiles */
        ck_assert_uint_eq(o.misapplied, 0);
        ck_assert((double)o.fed >= 0.98 * (double)o.gradients);
    }
}
END_TEST

/* Jobs of few layers. Their recycled memory may look like separate buffers for a while. */
START_TEST(test_few_layers)
{
    static const unsigned layers[] = {4, 8, 12};

    head("few layers");
    for (int f = 0; f < F_COUNT; f++)
        for (unsigned l = 0; l < 3; l++) {
            struct trace trace;
            struct outcome o;

            if (getenv("NB_TEST_QUICK") && ((unsigned)f + l) % 3)
                continue;
            trace_make_small(&trace, (enum framework)f, V_EVAL | V_BATCH, layers[l], 200, 5, 64);
            o = replay(&trace, &plain);
            free(trace.event);
            printf("  %-18s %2u layers: %6.1f %% fed back, %.3f %% misapplied, from step %d\n",
                   framework_name((enum framework)f), layers[l], 100.0 * (double)o.fed / (double)o.gradients,
                   100.0 * (double)o.misapplied / (double)o.gradients, o.first);
            ck_assert_uint_eq(o.misapplied + o.early, 0);
            ck_assert_uint_eq(o.others, 0);
            ck_assert((double)o.fed >= 0.9 * (double)o.gradients);
        }
}
END_TEST

/* Communicators run beside each other: the engine sees their operations in any order. */
START_TEST(test_beside)
{
    static const enum framework several[] = {F_HSDP, F_OUTER};

    head("communicators beside each other");
    for (unsigned f = 0; f < 2; f++)
        for (unsigned v = 0; v < sizeof(orderly) / sizeof(orderly[0]); v++) {
            struct replay how = plain;
            struct outcome o;

            how.ahead = 12;
            how.beside = 1;
            o = run(several[f], orderly[v], 200, &how);
            ck_assert_uint_eq(o.misapplied + o.early, 0);
            ck_assert_uint_eq(o.others, 0);
            ck_assert((double)o.fed >= 0.95 * (double)o.gradients);
        }
}
END_TEST

/* Decisions do not depend on how far the job runs ahead. */
START_TEST(test_run_ahead)
{
    static const unsigned ahead[] = {0, 3, 2000};

    for (unsigned i = 0; i < 3; i++) {
        struct trace trace;
        struct replay how = plain;
        struct outcome a, b;

        trace_make(&trace, i ? F_HSDP : F_FSDP2, V_EVAL, LAYERS, 120, 5);
        a = replay(&trace, &how);
        how.ahead = ahead[i];
        b = replay(&trace, &how);
        free(trace.event);
        ck_assert_uint_eq(a.fed, b.fed);
        ck_assert_uint_eq(a.misapplied, b.misapplied);
        ck_assert(memcmp(a.decided, b.decided, sizeof(a.decided)) == 0);
    }
}
END_TEST

/* ---- negative controls -------------------------------------------------------------------------------- */

/* In every other step, return the slot of the operation before: an error left by a neighbor. */
static void neighbour(struct nb_identity_decision *d, const struct event *e, void *arg)
{
    int64_t *before = arg, own = d->tracked;

    if (own < 0)
        return;
    if (e->step % 2 && *before >= 0)
        d->tracked = *before;
    d->empty = 0;
    *before = own;
}

START_TEST(test_wrong_on_purpose)
{
    int64_t before = -1;
    struct replay wrong = plain;
    struct outcome o;

    head("wrong on purpose");
    wrong.tamper = neighbour;
    wrong.tamper_arg = &before;
    o = run(F_FSDP2, 0, 200, &wrong);
    ck_assert_uint_gt(o.misapplied * 10, o.gradients * 9);
}
END_TEST

/* ---- the data model -------------------------------------------------------------------------------------
 */

/* The profiles of the traces behave like measured profiles: they correlate 0.55 to 0.77 with their own past,
 * and at most 0.37 with another's. */
START_TEST(test_profiles)
{
    static float average[LAYERS][NB_PROFILE_GROUPS], now[LAYERS][NB_PROFILE_GROUPS], mean[NB_PROFILE_GROUPS];
    double own_least = 1.0, own_most = 0.0, other_most = 0.0, own_sum = 0.0;
    unsigned n = 0;

    for (unsigned step = 0; step < 100; step++) {
        memset(mean, 0, sizeof(mean));
        for (unsigned l = 0; l < LAYERS; l++) {
            model_profile(l, step, step * 1000 + l, now[l]);
            for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
                mean[i] += average[l][i] / LAYERS;
        }
        for (unsigned l = 0; l < LAYERS && step >= 40 && step % 10 == 0; l++) {
            double best = -1.0, own = 0.0;
            for (unsigned k = 0; k < LAYERS; k++) {
                double x = 0, y = 0, xx = 0, yy = 0, xy = 0, r;
                for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
                    double a = (double)now[l][i] - mean[i], b = (double)average[k][i] - mean[i];
                    x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
                }
                r = (xy - x * y / NB_PROFILE_GROUPS) /
                    sqrt((xx - x * x / NB_PROFILE_GROUPS) * (yy - y * y / NB_PROFILE_GROUPS));
                if (k == l)
                    own = r;
                else if (r > best)
                    best = r;
            }
            own_sum += own;
            n++;
            own_least = fmin(own_least, own);
            own_most = fmax(own_most, own);
            other_most = fmax(other_most, best);
        }
        for (unsigned l = 0; l < LAYERS; l++)
            for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
                average[l][i] = step ? 0.8f * average[l][i] + 0.2f * now[l][i] : now[l][i];
    }
    printf("\nmodel: own %.2f to %.2f (mean %.2f), best other up to %.2f\n", own_least, own_most, own_sum / n,
           other_most);
    ck_assert(own_least > 0.45 && own_most < 0.85);
    ck_assert(own_sum / n > 0.55 && own_sum / n < 0.77);
    ck_assert(other_most > 0.25 && other_most < 0.45);
}
END_TEST

/* ---- rules one by one ------------------------------------------------------------------------------------
 */

static struct nb_identity_decision reduce(struct nb_identity *id, const struct nb_identity_call *c,
                                          uint64_t geometry)
{
    return nb_identity_reduce(id, nb_identity_call(id, c), NULL, geometry);
}

static const struct nb_identity_call bucket0 = {
    7, NB_FUNC_ALL_REDUCE, ncclFloat32, 100000, 0x1000, 0x1000, 1, 0, 0};
static const struct nb_identity_call bucket1 = {
    7, NB_FUNC_ALL_REDUCE, ncclFloat32, 200000, 0x2000, 0x2000, 1, 0, 0};

/* Two models in turn, one of them not in every step, without other signs of steps. DDP's buckets have their
 * own slots from the first time on. These expire after a long absence. */
START_TEST(test_buckets)
{
    struct nb_identity *id = nb_identity_create(NULL);
    struct nb_identity_call c = {1, NB_FUNC_ALL_REDUCE, ncclFloat32, 1 << 20, 0, 0, 1, 1, 0};
    int64_t slot[4] = {-1, -1, -1, -1};

    for (unsigned step = 0; step < 60; step++)
        for (unsigned b = 0; b < 4; b++) {
            const int long_away = b == 3 && step >= 20 && step < 40;
            struct nb_identity_decision d;
            if (long_away || (b == 2 && step % 3))
                continue;
            c.send = c.recv = 0x1000 * (b + 1);
            d = reduce(id, &c, 0);
            ck_assert_int_eq(d.reason, NB_ID_ADDRESS);
            ck_assert_int_ge(d.tracked, 0);
            ck_assert(slot[b] < 0 || slot[b] == d.tracked);
            for (unsigned k = 0; k < 4; k++)
                ck_assert(k == b || slot[k] != d.tracked);
            ck_assert_int_eq(d.empty, slot[b] < 0 || (b == 3 && step == 40));
            slot[b] = d.tracked;
        }
    /* Another caller's use of the same memory is not a bucket, and does not get its slot. */
    c.bucket = 0;
    ck_assert_int_eq(reduce(id, &c, 0).tracked, -1);
    nb_identity_destroy(id);
}
END_TEST

/* Sums that the user has named, from memory that is new each time: `sizes` are the sizes of a step, in units
 * of 100000 values. Make `steps` steps with 700 calls inside the node before each, and check that a sum has a
 * tracked buffer of its own from step `from` on, and none before. `slot` keeps them. */
static void outer_steps(struct nb_identity *id, const char *sizes, unsigned steps, unsigned from,
                        int64_t slot[64])
{
    static uint64_t memory;
    struct nb_identity_call sum = {7, NB_FUNC_ALL_REDUCE, ncclFloat32, 0, 0, 0, 1, 0, 1};
    struct nb_identity_call inner = {9, NB_FUNC_ALL_GATHER, ncclFloat32, 50000, 0, 0, 0, 0, 0};
    const unsigned n = (unsigned)strlen(sizes);

    for (unsigned k = 0; k < 64; k++)
        slot[k] = -1;
    for (unsigned step = 0; step < steps; step++) {
        for (unsigned k = 1; k <= 700; k++) { /* seven steps of FSDP */
            inner.func = k % 100 ? NB_FUNC_ALL_GATHER : NB_FUNC_REDUCE_SCATTER;
            nb_identity_call(id, &inner);
        }
        for (unsigned k = 0; k < n; k++) {
            struct nb_identity_decision d;
            sum.count = (uint64_t)(sizes[k] - '0') * 100000;
            sum.send = sum.recv = memory += 0x1000;
            d = reduce(id, &sum, 0);
            ck_assert_msg((d.tracked >= 0) == (step >= from), "%s: step %u, sum %u: %s", sizes, step, k,
                          nb_identity_reason_text(d.reason));
            if (step < from)
                continue;
            ck_assert_int_eq(d.reason, NB_ID_TURN);
            ck_assert_int_eq(d.empty, slot[k] < 0);
            ck_assert(slot[k] < 0 || slot[k] == d.tracked);
            for (unsigned other = 0; other < n; other++)
                ck_assert(other == k || slot[other] != d.tracked);
            slot[k] = d.tracked;
        }
    }
}

#define NEVER 1000u

START_TEST(test_turns)
{
    struct nb_identity *id = nb_identity_create(NULL);
    int64_t slot[64];

    outer_steps(id, "4112111211121", 40, 3, slot); /* an embedding and three layers, which repeat */
    nb_identity_forget(id, 7);
    outer_steps(id, "2223", 40, 3, slot); /* buckets of one size, and the rest */
    nb_identity_forget(id, 7);
    outer_steps(id, "3", 40, NEVER, slot); /* one buffer, or many in turn */
    nb_identity_forget(id, 7);
    outer_steps(id, "2222", 40, NEVER, slot); /* layers of one size */
    nb_identity_destroy(id);
}
END_TEST

/* A sum too many ends the cycle. It has to come three times anew, and twice as long as the last one held. */
START_TEST(test_turns_broken)
{
    struct nb_identity *id = nb_identity_create(NULL);
    int64_t slot[64], before[64];

    outer_steps(id, "2223", 10, 3, before);
    outer_steps(id, "5", 1, NEVER, slot);
    outer_steps(id, "2223", 40, 20, slot);
    nb_identity_destroy(id);
}
END_TEST

START_TEST(test_geometry_and_age)
{
    struct nb_identity *id = nb_identity_create(NULL);
    struct nb_identity_decision d = {.tracked = -1};
    int64_t slot;

    ck_assert_ptr_nonnull(id);
    for (int i = 0; i < 12; i++) {
        reduce(id, &bucket0, 1);
        d = reduce(id, &bucket1, 1);
    }
    slot = d.tracked;
    ck_assert_int_ge(slot, 0);
    ck_assert_int_eq(d.empty, 0);
    reduce(id, &bucket0, 1);
    d = reduce(id, &bucket1, 2); /* positions map differently */
    ck_assert_int_eq(d.tracked, slot);
    ck_assert_int_eq(d.empty, 1);
    reduce(id, &bucket0, 1);
    d = reduce(id, &bucket1, 2);
    ck_assert_int_eq(d.empty, 0);
    nb_identity_forget(id, 7);
    d = reduce(id, &bucket1, 2);
    ck_assert_int_eq(d.tracked, -1);
    nb_identity_destroy(id);
}
END_TEST

START_TEST(test_limits)
{
    struct nb_identity_config config = {.signatures = 4, .buffers = 2, .keys = 8, .calls = 16};
    struct nb_identity *id = nb_identity_create(&config);
    float bad[NB_PROFILE_GROUPS];
    struct nb_profile profile = {bad, NB_PROFILE_GROUPS, 100000};
    uint64_t n;

    ck_assert_ptr_nonnull(id);
    /* Never announced, begun twice, announced too long ago. */
    ck_assert_int_eq(nb_identity_reduce(id, 5, NULL, 0).reason, NB_ID_FULL);
    n = nb_identity_call(id, &bucket0);
    nb_identity_reduce(id, n, NULL, 0);
    ck_assert_int_eq(nb_identity_reduce(id, n, NULL, 0).reason, NB_ID_FULL);
    n = nb_identity_call(id, &bucket0);
    for (int i = 0; i < 20; i++)
        nb_identity_call(id, &bucket1);
    ck_assert_int_eq(nb_identity_reduce(id, n, NULL, 0).reason, NB_ID_FULL);
    /* More signatures, buffers and slots than the tables hold, and profiles of NaN. */
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
        bad[i] = i % 2 ? NAN : INFINITY;
    for (uint64_t i = 0; i < 3000; i++) {
        struct nb_identity_call c = bucket0;
        struct nb_identity_decision d;
        c.count += i % 7 * 5000;
        c.send = c.recv = 0x1000 * (i % 7 + 1);
        d = nb_identity_reduce(id, nb_identity_call(id, &c), &profile, 0);
        ck_assert_int_lt(d.tracked, 2);
        nb_identity_gather(id,
                           nb_identity_call(id, &(struct nb_identity_call){1, NB_FUNC_ALL_GATHER, ncclFloat32,
                                                                           4096, i, i, 1, 0, 0}),
                           (int64_t)i, (int)(i % 2), NULL, 0);
    }
    for (int r = 0; r < NB_ID_REASON_COUNT; r++)
        ck_assert_str_ne(nb_identity_reason_text((enum nb_identity_reason)r), "unknown");
    nb_identity_destroy(id);
}
END_TEST

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return SUITE("identity", TEST(test_profiles), TEST(test_orderly), TEST(test_micro_batches),
                 TEST(test_layer_drop), TEST(test_squares), TEST(test_adverse), TEST(test_zeros),
                 TEST(test_partial_profiles), TEST(test_few_layers), TEST(test_beside), TEST(test_run_ahead),
                 TEST(test_wrong_on_purpose), TEST(test_buckets), TEST(test_turns), TEST(test_turns_broken),
                 TEST(test_geometry_and_age), TEST(test_limits));
}
