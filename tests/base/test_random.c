/* SPDX-License-Identifier: Apache-2.0 */
/* Random tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "tests/suite.h"

START_TEST(tokens_differ)
{
    uint8_t tokens[64][NB_TOKEN_BYTES];
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(nb_random_token(tokens[i]), 0);
        for (int j = 0; j < i; j++)
            ck_assert_int_ne(memcmp(tokens[i], tokens[j], NB_TOKEN_BYTES), 0);
    }
    /* More bytes than the kernel returns in one uninterruptible call. The end must be written too. */
    static uint8_t large[4096];
    ck_assert_int_eq(nb_random(large, sizeof(large)), 0);
    int nonzero = 0;
    for (size_t i = sizeof(large) - 64; i < sizeof(large); i++)
        nonzero += large[i] != 0;
    ck_assert_int_gt(nonzero, 0);
    ck_assert_int_eq(nb_random(NULL, 0), 0);
}
END_TEST

SUITE_MAIN("base/random", TEST(tokens_differ))
