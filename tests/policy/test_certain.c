/* SPDX-License-Identifier: Apache-2.0 */
/* Slots where the order of gathers predicts the buffer (policy/identity/identity.h): the certificates of the
 * weights, objections of the content, and how the module learns content anew. */
#include <stdlib.h>
#include <string.h>

#include "policy/identity/identity.h"
#include "tests/suite.h"
#include "trace.h"

static int always(void *arg, uint64_t buffer)
{
    (void)arg;
    (void)buffer;
    return 1;
}

static void gather_version(struct nb_identity *id, unsigned unit, const float *samples, unsigned n)
{
    const struct nb_identity_call c = {1, NB_FUNC_ALL_GATHER, ncclFloat32, 65536, unit, unit, 1, 0, 0};

    nb_identity_gather(id, nb_identity_call(id, &c), unit, 1, samples, n);
}

static void gather(struct nb_identity *id, unsigned unit)
{
    gather_version(id, unit, NULL, 0);
}

/* `looks`: the block whose gradient the content resembles. */
static struct nb_identity_decision gradient(struct nb_identity *id, unsigned unit, unsigned looks,
                                            unsigned step)
{
    static uint64_t calls; /* numbers recycled memory, in an order of its own */
    const uint64_t memory = 0x10000 * (1 + ++calls % 5);
    const struct nb_identity_call c = {
        1, NB_FUNC_REDUCE_SCATTER, ncclFloat32, 65536, memory, memory + 0x100000, 1, 0, 0};
    float value[NB_PROFILE_GROUPS];
    const struct nb_profile profile = {value, NB_PROFILE_GROUPS, 65536};

    model_profile(looks, step, step * 100 + unit, value);
    return nb_identity_reduce(id, nb_identity_call(id, &c), &profile, 0);
}

/* Predictions are certain as the weights show, but a block is left out and the one below comes in its place.
 * Content that resembles another block's gets no slot, even while some block, perhaps the predicted one, is
 * nearly unknown. */
START_TEST(test_certain)
{
    struct nb_identity *id = nb_identity_create(&(struct nb_identity_config){.certain = always});
    int64_t slot[4] = {-1, -1, -1, -1};

    for (unsigned step = 0; step < 50; step++) {
        const unsigned units = step < 40 ? 3 : 4; /* the last is new */
        const unsigned missing = step == 45 ? 2 : step == 46 ? 3 : 9;
        for (unsigned u = 0; u < units; u++)
            gather(id, u);
        for (unsigned u = units; u-- > 0;) {
            struct nb_identity_decision d;
            if (u == missing)
                continue;
            d = gradient(id, u, u, step);
            if (u + 1 == missing) /* the prediction names the missing one */
                ck_assert_msg(d.tracked < 0 || d.tracked == slot[u], "step %u: the slot of block %u", step,
                              missing);
            else if (step >= 30 && step < 45)
                ck_assert_int_ge(d.tracked, 0);
            if (u == 3 && step < 45) {
                ck_assert_int_eq(d.reason, NB_ID_CERTAIN);
                ck_assert_int_eq(d.empty, step == 40);
            }
            if (step < 45)
                slot[u] = d.tracked;
            for (unsigned k = 0; k < units && d.tracked >= 0; k++)
                ck_assert_msg(k == u || slot[k] != d.tracked,
                              "step %u: block %u has the slot of block %u, %s", step, u, k,
                              nb_identity_reason_text(d.reason));
        }
    }
    nb_identity_destroy(id);
}
END_TEST

/* A sum that is no gradient comes in a certain block's place. Content that resembles another block's gets no
 * slot in the rest of this pass, where certain predictions are in doubt. */
START_TEST(test_contradicted)
{
    struct nb_identity *id = nb_identity_create(&(struct nb_identity_config){.certain = always});

    for (unsigned step = 0; step < 60; step++) {
        const int odd = step == 55;
        for (unsigned u = 0; u < 3; u++)
            gather(id, u);
        for (unsigned u = 3; u-- > 0;) {
            const unsigned looks = odd && u ? u == 2 ? 100 : 0 : u;
            const struct nb_identity_decision d = gradient(id, u, looks, step);
            if (odd && u)
                ck_assert_msg(d.tracked < 0, "sum %u: %s", u, nb_identity_reason_text(d.reason));
            else if (step >= 30 && step < 45)
                ck_assert_int_ge(d.tracked, 0);
        }
    }
    nb_identity_destroy(id);
}
END_TEST

/* Profiles are equal, so content cannot decide. A block that once sends no gradient moves the blocks behind
 * it. The module then trusts no prediction for a long time. */
START_TEST(test_certain_alike)
{
    struct nb_identity *id = nb_identity_create(&(struct nb_identity_config){.certain = always});

    for (unsigned step = 0; step < 300; step++) {
        for (unsigned u = 0; u < 3; u++)
            gather(id, u);
        for (unsigned u = 3; u-- > 0;) {
            struct nb_identity_decision d;
            if (step == 45 && u == 2)
                continue;
            d = gradient(id, u, 0, step);
            if ((step >= 30 && step < 45) || step >= 260)
                ck_assert_int_eq(d.reason, NB_ID_CERTAIN);
            else if (step >= 47 && step < 200)
                ck_assert_int_lt(d.tracked, 0);
        }
    }
    nb_identity_destroy(id);
}
END_TEST

/* Without certificates, all gradients look different one day. They are soon known again, and no block gets
 * another's slot meanwhile. */
START_TEST(test_new_looks)
{
    struct nb_identity *id = nb_identity_create(NULL);
    int64_t slot[3] = {-1, -1, -1};

    for (unsigned step = 0; step < 120; step++) {
        for (unsigned u = 0; u < 3; u++)
            gather(id, u);
        for (unsigned u = 3; u-- > 0;) {
            const struct nb_identity_decision d = gradient(id, u, step < 60 ? u : u + 100, step);
            if ((step >= 30 && step < 60) || step >= 105)
                ck_assert_msg(d.tracked >= 0, "step %u, block %u: %s", step, u,
                              nb_identity_reason_text(d.reason));
            if (step < 60)
                slot[u] = d.tracked;
            ck_assert(d.tracked < 0 || slot[u] < 0 || d.tracked == slot[u]);
        }
    }
    nb_identity_destroy(id);
}
END_TEST

/* The first block's weights alternate with a snapshot of them that is like them (SVRG). Each has a gradient,
 * and one slot stands for both. Two samples that go back may have been rounded so. */
START_TEST(test_snapshot)
{
    struct nb_identity *id = nb_identity_create(&(struct nb_identity_config){.certain = always});
    float now[2][64] = {{0}}, snapshot[64];
    uint64_t seed = 5;
    unsigned given = 0;

    for (unsigned step = 0; step < 100; step++) {
        const unsigned change = step < 50 ? 64 : 2;
        for (unsigned i = 0; i < change; i++) {
            now[0][i] += rnd_normal(&seed);
            now[1][i] = (float)(step % 2);
        }
        if (step % 20 == 0)
            memcpy(snapshot, now[0], sizeof(snapshot));
        gather_version(id, 0, now[0], 64);
        gather_version(id, 1, now[1], change < 64 ? 64 : 0);
        for (unsigned u = 2; u-- > 0;) {
            const struct nb_identity_decision d = gradient(id, u, u, step);
            ck_assert(u == 1 || step < 10 || step >= 50 || d.tracked < 0 || d.reason == NB_ID_SHARED);
            ck_assert(u == 0 || d.reason != NB_ID_SHARED);
            given += d.tracked >= 0;
        }
        gather_version(id, 0, snapshot, 64);
        gradient(id, 0, 0, step);
    }
    ck_assert_uint_ge(given, 100);
    nb_identity_destroy(id);
}
END_TEST

SUITE_MAIN("certain", TEST(test_certain), TEST(test_contradicted), TEST(test_certain_alike),
           TEST(test_new_looks), TEST(test_snapshot))
