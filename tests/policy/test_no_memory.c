/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of decisions grow with use. Without memory for that, fewer operations are coded or fed, and all
 * of them correctly. The program is linked with --wrap for calloc and for the functions of identity, so that
 * only allocations inside these functions fail.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "policy/recognise/recognise.h"
#include "policy/records/records.h"
#include "replay.h"
#include "tests/suite.h"

static int inside;
static unsigned granted, refused; /* allocations that still succeed, and failed ones */

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    if (inside && granted == 0) {
        refused++;
        return NULL;
    }
    granted -= (unsigned)inside;
    return __real_calloc(n, bytes);
}

#define INSIDE(type, name, declared, given) \
    type __real_##name declared; \
    type __wrap_##name declared; \
    type __wrap_##name declared \
    { \
        type result; \
        inside = 1; \
        result = __real_##name given; \
        inside = 0; \
        return result; \
    }

INSIDE(uint64_t, nb_identity_call, (struct nb_identity * id, const struct nb_identity_call *call), (id, call))
INSIDE(struct nb_identity_decision, nb_identity_reduce,
       (struct nb_identity * id, uint64_t call, const struct nb_profile *profile, uint64_t geometry),
       (id, call, profile, geometry))
void __real_nb_identity_gather(struct nb_identity *id, uint64_t call, int64_t unit, int changed,
                               const float *samples, unsigned n);
void __wrap_nb_identity_gather(struct nb_identity *id, uint64_t call, int64_t unit, int changed,
                               const float *samples, unsigned n);
void __wrap_nb_identity_gather(struct nb_identity *id, uint64_t call, int64_t unit, int changed,
                               const float *samples, unsigned n)
{
    inside = 1;
    __real_nb_identity_gather(id, call, unit, changed, samples, n);
    inside = 0;
}

static const unsigned grants[] = {0, 1, 2, 3, 4, 6, 8};
#define GRANTS (sizeof(grants) / sizeof(grants[0]))

static struct outcome feed(const struct trace *trace, enum framework f, unsigned ahead, unsigned grant)
{
    const struct replay how = {.known = NB_PROFILE_GROUPS, .ahead = ahead, .seed = 9};
    struct outcome o;

    granted = grant;
    refused = 0;
    o = replay(trace, &how);
    printf("  %-14s %3u calls ahead: %5.1f %% fed, %u refusals\n", framework_name(f), ahead,
           100.0 * (double)o.fed / (double)o.gradients, refused);
    ck_assert_uint_eq(o.misapplied + o.early + o.others, 0);
    return o;
}

START_TEST(feeds_less)
{
    static const enum framework frameworks[] = {F_DDP, F_FSDP2, F_HSDP, F_MEGATRON};

    for (unsigned f = 0; f < sizeof(frameworks) / sizeof(frameworks[0]); f++) {
        struct trace trace;
        uint64_t all;

        trace_make(&trace, frameworks[f], 0, 24, 80, 5);
        all = feed(&trace, frameworks[f], 40, UINT_MAX).fed;
        ck_assert_uint_eq(refused, 0);
        ck_assert_uint_gt(all, 0);
        for (unsigned i = 0; i < GRANTS; i++)
            ck_assert_uint_le(feed(&trace, frameworks[f], 40, grants[i]).fed, all);
        ck_assert_uint_eq(feed(&trace, frameworks[f], 40, 0).fed, 0); /* without memory for slots */
        ck_assert_uint_gt(refused, 0);
        feed(&trace, frameworks[f], 400, 1);
        free(trace.event);
    }
}
END_TEST

START_TEST(proves_less)
{
    struct trace trace;

    trace_make(&trace, F_DDP, V_EVAL, 24, 180, 5);
    for (unsigned i = 0; i <= GRANTS; i++) {
        struct nb_classify *c = nb_classify_create(&(struct nb_classify_config){.warmup_steps = WARMUP});
        uint64_t coded = 0, wrong = 0;

        ck_assert_ptr_nonnull(c);
        granted = i < GRANTS ? grants[i] : UINT_MAX;
        refused = 0;
        for (size_t k = 0; k < trace.n; k++) {
            const struct event *e = &trace.event[k];
            const struct nb_class_op op = {.comm = e->call.comm,
                                           .nranks = 8,
                                           .func = e->call.func,
                                           .type = e->call.type,
                                           .op = ncclSum,
                                           .count = e->call.count,
                                           .send = e->call.send,
                                           .caller = e->call.bucket ? NB_CALLER_BUCKET : NB_CALLER_UNKNOWN};
            struct nb_class_decision d;
            float samples[256];

            model_samples(e, k, samples, 256);
            inside = 1;
            d = nb_classify_reduce(c, &op, samples, 256);
            inside = 0;
            if (d.kind == NB_CLASS_GRADIENT && !d.warmup && op.count >= 1024) {
                coded += e->content == C_GRADIENT;
                wrong += e->content != C_GRADIENT || e->step < WARMUP - 4;
            }
        }
        nb_classify_destroy(c);
        printf("  DDP: %llu coded, %u refusals\n", (unsigned long long)coded, refused);
        ck_assert_uint_eq(wrong, 0);
        ck_assert(i > 0 || (coded == 0 && refused > 0));
        ck_assert(i < GRANTS || (coded > 0 && refused == 0));
    }
    free(trace.event);
}
END_TEST

START_TEST(records_are_not_guessed)
{
    for (int without = 0; without < 2; without++) {
        struct nb_align *al = nb_align_create();

        ck_assert_ptr_nonnull(al);
        granted = without ? 1 : UINT_MAX;
        refused = 0;
        inside = 1;
        for (uint64_t i = 1; i <= NB_QUEUE_RECORDS; i++) {
            ck_assert_uint_gt(nb_align_room(al), 0);
            nb_align_add(
                al, &(struct nb_record){.func = NB_FUNC_REDUCE_SCATTER, .type = ncclFloat32, .bytes = 4 * i});
        }
        inside = 0;
        ck_assert_int_eq(refused > 0, without);
        for (uint64_t i = 1; i <= NB_QUEUE_RECORDS; i++) {
            const struct nb_seen seen = {NB_FUNC_REDUCE_SCATTER, ncclFloat32, 4 * i};
            struct nb_record r;

            ck_assert_int_eq(nb_align_begin(al, &seen, &r), without ? NB_ALIGN_DOUBT : NB_ALIGN_CERTAIN);
            ck_assert(without || r.bytes == 4 * i);
        }
        nb_align_destroy(al);
    }
}
END_TEST

SUITE_MAIN("policy/no_memory", TEST(feeds_less), TEST(proves_less), TEST(records_are_not_guessed))
