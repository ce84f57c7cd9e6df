/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of Check's interface that the codecs' tests use, for places without Check: cross-built programs
 * under an emulator (tests/codec/test-aarch64.sh). Tests run in one process, one after the other, and the
 * first failure ends it. ONLY, a comma-separated list in the environment, names the tests to run.
 */
#ifndef NIBBLE_TESTS_CODEC_EMULATED_CHECK_H
#define NIBBLE_TESTS_CODEC_EMULATED_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void TFun(int);
typedef struct {
    const char *name;
    unsigned ran;
} Suite, TCase, SRunner;
enum { CK_ENV };

#define START_TEST(test) \
    static const char test##_name[] = #test; \
    static void test##_fn(int _i __attribute__((unused)))
#define END_TEST

#define ck_assert_msg(condition, ...) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, "" __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            exit(1); \
        } \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, " ")
#define ck_compare(type, format, a, op, b) \
    do { \
        const type ck_a = (a), ck_b = (b); \
        ck_assert_msg(ck_a op ck_b, "%" format ", %" format, ck_a, ck_b); \
    } while (0)
#define ck_assert_int_eq(a, b) ck_compare(intmax_t, "jd", a, ==, b)
#define ck_assert_int_ne(a, b) ck_compare(intmax_t, "jd", a, !=, b)
#define ck_assert_int_ge(a, b) ck_compare(intmax_t, "jd", a, >=, b)
#define ck_assert_int_gt(a, b) ck_compare(intmax_t, "jd", a, >, b)
#define ck_assert_int_le(a, b) ck_compare(intmax_t, "jd", a, <=, b)
#define ck_assert_int_lt(a, b) ck_compare(intmax_t, "jd", a, <, b)
#define ck_assert_uint_eq(a, b) ck_compare(uintmax_t, "ju", a, ==, b)
#define ck_assert_uint_ne(a, b) ck_compare(uintmax_t, "ju", a, !=, b)
#define ck_assert_uint_gt(a, b) ck_compare(uintmax_t, "ju", a, >, b)
#define ck_assert_uint_le(a, b) ck_compare(uintmax_t, "ju", a, <=, b)
#define ck_assert_uint_lt(a, b) ck_compare(uintmax_t, "ju", a, <, b)
#define ck_assert_double_ge(a, b) ck_compare(double, "g", a, >=, b)
#define ck_assert_double_gt(a, b) ck_compare(double, "g", a, >, b)
#define ck_assert_double_le(a, b) ck_compare(double, "g", a, <=, b)
#define ck_assert_float_eq_tol(a, b, t) \
    ck_compare(double, "g", fabs((double)(a) - (double)(b)), <, (double)(t))
#define ck_assert_ptr_nonnull(p) ck_assert((p) != NULL)
#define ck_assert_str_eq(a, b) ck_assert_msg(!strcmp(a, b), "%s, %s", a, b)

static inline bool ck_wanted(const char *name)
{
    const char *only = getenv("ONLY");
    const size_t length = strlen(name);

    for (const char *p = only; p && (p = strstr(p, name)); p += length)
        if ((p == only || p[-1] == ',') && (!p[length] || p[length] == ','))
            return true;
    return !only || !*only;
}

/* Return how many names of the list match no test. A program without tests is a mistake too. */
static inline unsigned ck_missing(unsigned ran)
{
    const char *only = getenv("ONLY");
    unsigned names = 1;

    for (const char *p = only; p && *p; p++)
        names += *p == ',';
    return only && *only ? names - ran : ran == 0;
}

static inline unsigned ck_run(const char *name, TFun *test, int from, int to)
{
    if (!ck_wanted(name))
        return 0;
    for (int i = from; i < to; i++)
        test(i);
    printf("%s passed\n", name);
    return 1;
}

static Suite ck_suite;

#define suite_create(title) (ck_suite.name = (title), &ck_suite)
#define tcase_create(title) ((void)(title), &ck_suite)
#define srunner_create(suite) (suite)
#define tcase_set_timeout(t, seconds) ((void)(t))
#define tcase_add_loop_test(t, test, from, to) ((void)((t)->ran += ck_run(test##_name, test##_fn, from, to)))
#define tcase_add_test(t, test) tcase_add_loop_test(t, test, 0, 1)
#define suite_add_tcase(s, t) ((void)(s), (void)(t))
#define srunner_run_all(r, mode) ((void)printf("%s: %u tests passed\n", (r)->name, (r)->ran))
#define srunner_ntests_failed(r) (ck_missing((r)->ran))
#define srunner_free(r) ((void)(r))

#endif
