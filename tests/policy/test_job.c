/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence of the job's calls between profiler and engine: numbering, loss, and operations without
 * announcement. */
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "codec/pick.h"
#include "policy/job/job.h"
#include "tests/suite.h"

static struct nb_context node, *const ctx = &node;

#define GPU 5
#define BLOCK (1u << 18) /* values of a rank */

static struct nb_job_call call_to(uint64_t comm, uint64_t count, uint64_t at)
{
    return (struct nb_job_call){.comm = comm,
                                .nranks = 4,
                                .func = NB_FUNC_REDUCE_SCATTER,
                                .type = ncclFloat32,
                                .count = count,
                                .send = at,
                                .recv = at + 1,
                                .passes = 1};
}

static struct nb_evidence evidence(unsigned seed)
{
    struct nb_evidence ev = {.samples = NB_CLASSIFY_SAMPLES, .groups = NB_PROFILE_GROUPS, .span = 8192};

    srand(seed + 1); /* seeds 0 and 1 are one */
    for (unsigned i = 0; i < NB_CLASSIFY_SAMPLES; i++)
        ev.sample[i] = (float)(rand() % 2001 - 1000) * 0.37f;
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
        ev.profile[i] = (float)(rand() % 1000) / 100.0f;
    return ev;
}

START_TEST(listens_while_a_group_is_there)
{
    struct nb_job *job = nb_job_get(ctx, GPU), *other = nb_job_get(ctx, GPU + 1);
    struct nb_job_call c = call_to(1, 4096, 0x1000);
    struct nb_job_counts n;

    ck_assert_ptr_ne(job, other);
    ck_assert_ptr_eq(nb_job_get(ctx, GPU), job);
    nb_job_put(job);
    ck_assert_uint_eq(nb_job_announce(job, &c), 0);
    nb_job_forget(job, 1); /* an unknown communicator is not an error */
    ck_assert_int_eq(nb_job_attach(job), 0);
    ck_assert_uint_eq(nb_job_announce(job, &c), 1);
    ck_assert_uint_eq(nb_job_announce(job, &c), 2);
    ck_assert_uint_eq(nb_job_announce(other, &c), 0);
    nb_job_detach(job);
    ck_assert_uint_eq(nb_job_announce(job, &c), 0);
    nb_job_get_counts(job, &n);
    ck_assert_uint_eq(n.calls, 2);
    nb_job_put(job);
    nb_job_put(other);
}
END_TEST

/* A buffer that comes once a step, between changing gathers, gets a slot, announced or not. One of several
 * calls gets a slot only when its number is known. */
static int64_t last_slot(int announced, int known)
{
    struct nb_job *job = nb_job_get(ctx, GPU);
    struct nb_job_call reduce = call_to(1, 1 << 20, 0x1000), gather = reduce;
    struct nb_decision v = {.identity = {.tracked = -1}};
    static float block[NB_PICKS], sums[NB_PICKS];
    static uint32_t raw[NB_PICKS];
    const unsigned picks = nb_picks_of(BLOCK);
    unsigned noise = 5; /* new in every step */
    size_t width;

    for (unsigned i = 0; i < picks; i++)
        block[i] = 1.0f + (float)(rand() % 1000);
    gather.func = NB_FUNC_ALL_GATHER;
    gather.send = gather.recv = 0x9000;
    ck_assert_int_eq(nb_job_attach(job), 0);
    for (unsigned step = 0; step < 60; step++) {
        struct nb_evidence ev = evidence(step), weights = evidence(1000);
        uint64_t g = announced ? nb_job_announce(job, &gather) : 0;
        uint64_t r = announced ? nb_job_announce(job, &reduce) : 0;
        weights.sample[3] += (float)step;
        nb_job_gather(job, g, announced, &gather, &weights, 7, 1);
        if (nb_job_shard(job, &gather, BLOCK * 4, &width)) {
            ck_assert_uint_eq(width, 4);
            for (unsigned i = 0; i < picks; i++) { /* weights that move against the earlier sums */
                block[i] -= 0.01f * sums[i];
                memcpy(&raw[i], &block[i], 4);
            }
            nb_job_weights(job, &gather, BLOCK * 4, raw);
        }
        v = nb_job_reduce(job, known ? r : 0, announced, &reduce, ncclSum, &ev, 0);
        for (unsigned i = 0; i < picks; i++) {
            sums[i] = (float)(rand_r(&noise) % 2001) * 1e-3f - 1.0f;
            memcpy(&raw[i], &sums[i], 4);
        }
        nb_job_sum(job, &reduce, v.gradient.key, raw, picks);
    }
    ck_assert_int_eq(v.gradient.kind, NB_CLASS_GRADIENT);
    ck_assert_int_eq(v.gradient.reason, NB_WHY_MOVES);
    nb_job_forget(job, 1);
    nb_job_detach(job);
    nb_job_put(job);
    return v.identity.tracked;
}

START_TEST(with_and_without_announcement)
{
    ck_assert_int_ge(last_slot(1, 1), 0);
    ck_assert_int_ge(last_slot(0, 0), 0);
    ck_assert_int_eq(last_slot(1, 0), -1);
}
END_TEST

/* Calls that the job overwrote before the engine looked are lost. The engine finds the calls after them. */
START_TEST(overwritten_calls)
{
    struct nb_job *job = nb_job_get(ctx, GPU);
    struct nb_job_call inner = call_to(2, 1 << 20, 0x5000), c = call_to(1, 1 << 20, 0x1000);
    struct nb_evidence ev = evidence(1);
    struct nb_job_counts n;
    struct nb_decision v;
    uint64_t first, last;

    inner.passes = 0;
    ck_assert_int_eq(nb_job_attach(job), 0);
    first = nb_job_announce(job, &c);
    for (unsigned i = 0; i < 3 * NB_JOB_CALLS; i++)
        nb_job_announce(job, &inner);
    last = nb_job_announce(job, &c);
    v = nb_job_reduce(job, first, 1, &c, ncclSum, &ev, 0);
    ck_assert_int_eq(v.identity.tracked, -1);
    ck_assert_int_eq(v.identity.reason, NB_ID_UNPREDICTED);
    nb_job_get_counts(job, &n);
    ck_assert_uint_eq(n.calls, 3 * NB_JOB_CALLS + 2);
    ck_assert_uint_eq(n.lost, 2 * NB_JOB_CALLS + 2);
    v = nb_job_reduce(job, last, 1, &c, ncclSum, &ev, 0);
    ck_assert_int_eq(v.identity.reason, NB_ID_LEARNING);
    v = nb_job_reduce(job, last + 1, 1, &c, ncclSum, &ev, 0); /* a number that was never given */
    ck_assert_int_eq(v.identity.tracked, -1);
    nb_job_detach(job);
    nb_job_put(job);
}
END_TEST

START_TEST(calls_of_records)
{
    struct nb_record r = {.func = NB_FUNC_ALL_GATHER,
                          .type = ncclInt8,
                          .api_type = ncclBfloat16,
                          .flags = NB_RECORD_API,
                          .bytes = 2048,
                          .comm = 9,
                          .nranks = 16,
                          .send = (void *)0x10,
                          .recv = (void *)0x20};
    struct nb_job_call c = nb_job_call_of(&r);

    ck_assert_uint_eq(c.count, 16 * 1024);
    ck_assert_int_eq(c.type, ncclBfloat16);
    ck_assert(c.comm == 9 && c.send == 0x10 && c.recv == 0x20 && c.passes);
    r.flags = 0; /* without the user's call the type is bytes */
    c = nb_job_call_of(&r);
    ck_assert_uint_eq(c.count, 16 * 2048);
    ck_assert_int_eq(c.type, ncclInt8);
    r = (struct nb_record){.func = NB_FUNC_ALL_REDUCE, .type = ncclFloat32, .bytes = 4000, .nranks = 16};
    ck_assert_uint_eq(nb_job_call_of(&r).count, 1000);
}
END_TEST

int main(void)
{
    node.params = nb_params_defaults();
    if (nb_jobs_open(&node))
        return 1;
    const int failed = SUITE("job", TEST(listens_while_a_group_is_there), TEST(with_and_without_announcement),
                             TEST(overwritten_calls), TEST(calls_of_records));
    nb_jobs_close(&node);
    return failed;
}
