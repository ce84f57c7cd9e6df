/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main function of a test program on Check:
 *     SUITE_MAIN("name", TEST(one), LOOP(each, 0, 4), FIXTURE(setup, teardown), TEST(two))
 * A fixture holds for the tests after it. A program with work of its own before or after its tests writes
 * main itself and takes SUITE for the exit status.
 */
#ifndef NIBBLE_TESTS_SUITE_H
#define NIBBLE_TESTS_SUITE_H

#include <check.h>

/* Check writes a message at each assertion that holds, to name the last one if the test crashes. That is a
 * system call, and the parent takes ever longer to read them: in loops it took more time than the test
 * itself. So each thread of a test says a line only once: a crash is after the line that Check names, maybe
 * in a later round of its loop. */
#ifdef CHECK_MAJOR_VERSION
static inline void suite_passed(const char *file, int line)
{
    static _Thread_local unsigned char said[256];
    const unsigned at = (unsigned)line / 8 % sizeof(said), bit = 1u << line % 8;

    if (said[at] & bit)
        return;
    said[at] |= (unsigned char)bit;
    _mark_point(file, line);
}
#define _mark_point(file, line) suite_passed(file, line)
#endif

static const char *suite_name;
static Suite *suite;
static TCase *suite_case;

static inline void suite_new_case(void)
{
    suite_case = tcase_create(suite_name);
    tcase_set_timeout(suite_case, 3600);
    suite_add_tcase(suite, suite_case);
}

static inline void suite_open(const char *name)
{
    suite_name = name;
    suite = suite_create(name);
    suite_new_case();
}

/* Run the tests. Return the exit status of the program. */
static inline int suite_close(void)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner) != 0;
    srunner_free(runner);
    return failed;
}

#define TEST(test) tcase_add_test(suite_case, test)
#define LOOP(test, from, to) tcase_add_loop_test(suite_case, test, from, to)
#define FIXTURE(setup, teardown) (suite_new_case(), tcase_add_checked_fixture(suite_case, setup, teardown))
#define SUITE(name, ...) (suite_open(name), __VA_ARGS__, suite_close())
#define SUITE_MAIN(name, ...) \
    int main(void) \
    { \
        return SUITE(name, __VA_ARGS__); \
    }

#endif
