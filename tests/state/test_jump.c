/* SPDX-License-Identifier: Apache-2.0 */
/* Detect weights and gradients that moved too far. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "state/jump.h"
#include "tests/suite.h"

START_TEST(jump_of_weights)
{
    struct nb_jump j = {0};

    /* At first no movement is usual, whatever comes. */
    ck_assert(!nb_jump_weights(&j, 100, 1600) && !nb_jump_weights(&j, 100, 200));
    ck_assert(!nb_jump_steady(&j));
    for (int i = 0; i < 20; i++)
        ck_assert(!nb_jump_weights(&j, 100, 250 + 50 * (uint64_t)(i % 3)));
    ck_assert(nb_jump_steady(&j));
    ck_assert(!nb_jump_weights(&j, 100, 500));
    ck_assert(nb_jump_weights(&j, 100, 850)); /* a checkpoint */
    ck_assert(!nb_jump_weights(&j, 100, 300));
    for (int i = 0; i < 20; i++)
        nb_jump_weights(&j, 100, 300);
    ck_assert(!nb_jump_weights(&j, 0, 0));
    /* A lasting pace becomes usual. */
    int jumps = 0;
    for (int i = 0; i < 20; i++)
        jumps += nb_jump_weights(&j, 100, 1000);
    ck_assert_int_ge(jumps, 1);
    ck_assert_int_le(jumps, 4);
}
END_TEST

START_TEST(jump_of_gradients)
{
    struct nb_jump j = {0};

    for (int i = 0; i < 10; i++)
        ck_assert(!nb_jump_gradients(&j, i % 2 ? 1e-6 : 3e-6));
    ck_assert(!nb_jump_gradients(&j, 0) && !nb_jump_gradients(&j, INFINITY) && !nb_jump_gradients(&j, NAN));
    ck_assert(!nb_jump_gradients(&j, 9 * 2e-6)); /* three times the norm */
    ck_assert(nb_jump_gradients(&j, 900 * 2e-6));
    ck_assert(!nb_jump_gradients(&j, 2e-6));
}
END_TEST

SUITE_MAIN("state/jump", TEST(jump_of_weights), TEST(jump_of_gradients))
