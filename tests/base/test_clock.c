/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/suite.h"

START_TEST(clock_goes_forward)
{
    uint64_t before = nb_now_ns();
    usleep(2000);
    uint64_t after = nb_now_ns();
    ck_assert_uint_ge(after - before, 2 * NB_NS_PER_MS);
    ck_assert_uint_lt(after - before, 60 * NB_NS_PER_S);
}
END_TEST

SUITE_MAIN("base/clock", TEST(clock_goes_forward))
