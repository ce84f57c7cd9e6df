/* SPDX-License-Identifier: Apache-2.0 */
/* Time. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

START_TEST(clock_goes_forward)
{
    uint64_t before = nb_now_ns();
    usleep(2000);
    uint64_t after = nb_now_ns();
    ck_assert_uint_ge(after - before, 2 * NB_NS_PER_MS);
    ck_assert_uint_lt(after - before, 60 * NB_NS_PER_S);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/clock");
    TCase *t = tcase_create("clock");
    SRunner *runner;
    int failed;

    tcase_set_timeout(t, 3600);
    tcase_add_test(t, clock_goes_forward);
    suite_add_tcase(suite, t);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
