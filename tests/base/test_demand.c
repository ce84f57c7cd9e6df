/* SPDX-License-Identifier: Apache-2.0 */
/* NIBBLE_REQUIRE: its words, which demands are met, and that the log names the first unmet demand once. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/context.h"
#include "base/demand.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

static struct nb_params params;
static struct nb_context ctx;
static FILE *aside; /* the program's real stderr, set aside during a test */
static int stderr_fd;

static void setup(void)
{
    params = *nb_params_defaults();
    ctx = (struct nb_context){.params = &params};
    capture_reset();
    nb_log_set(capture_log);
    unsetenv("NCCL_DEBUG");
    fflush(stderr);
    stderr_fd = dup(2);
    aside = tmpfile();
    ck_assert(stderr_fd >= 0 && aside && dup2(fileno(aside), 2) == 2);
}

static void teardown(void)
{
    dup2(stderr_fd, 2);
    close(stderr_fd);
    fclose(aside);
    nb_log_set(NULL);
}

static long stderr_bytes(void)
{
    fflush(stderr);
    return lseek(fileno(aside), 0, SEEK_END);
}

START_TEST(words_are_checked)
{
    static const char *const good[] = {"none", "settings", "collnet,tuner",
                                       "settings,collnet,all-reduce,tuner"};
    static const char *const bad[] = {"",          "colnet",        "settings,",
                                      ",settings", "none,settings", "settings collnet"};
    char error[256];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        ck_assert_msg(nb_demand_check(good[i], error, sizeof(error)) == 0, "%s", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(nb_demand_check(bad[i], error, sizeof(error)) == -EINVAL, "%s", bad[i]);
        ck_assert(strstr(error, "NIBBLE_REQUIRE: "));
    }
}
END_TEST

START_TEST(the_default_demands_good_settings_and_no_more)
{
    ck_assert(nb_demands(&params, NB_DEMAND_SETTINGS));
    ck_assert(!nb_demands(&params, NB_DEMAND_COLLNET));
    params.require = "none";
    ck_assert(!nb_demands(&params, NB_DEMAND_SETTINGS));
    params.require = "collnet,tuner";
    ck_assert(nb_demands(&params, NB_DEMAND_COLLNET) && nb_demands(&params, NB_DEMAND_TUNER));
    ck_assert(!nb_demands(&params, NB_DEMAND_SETTINGS) && !nb_demands(&params, NB_DEMAND_ALL_REDUCE));
}
END_TEST

START_TEST(an_unmet_demand_is_told_once_and_also_to_stderr)
{
    nb_demand_fails(&ctx, NB_DEMAND_COLLNET, "a reason");
    ck_assert(!nb_demand_unmet(&ctx)); /* not in NIBBLE_REQUIRE */
    ck_assert_int_eq(capture_warnings, 0);
    params.require = "collnet";
    nb_demand_fails(&ctx, NB_DEMAND_COLLNET, "a reason");
    nb_demand_fails(&ctx, NB_DEMAND_COLLNET, "another");
    ck_assert(nb_demand_unmet(&ctx));
    ck_assert_int_eq(capture_warnings, 1);
    ck_assert(capture_has("the job stops, since NIBBLE_REQUIRE has collnet: a reason"));
    ck_assert_int_gt(stderr_bytes(), 0);
}
END_TEST

START_TEST(an_alert_is_there_once_where_warnings_are_shown)
{
    const long before = stderr_bytes();

    setenv("NCCL_DEBUG", "WARN", 1);
    NB_ALERT("shown by NCCL");
    ck_assert_int_eq(stderr_bytes(), before);
    setenv("NCCL_DEBUG", "VERSION", 1);
    NB_ALERT("not shown by NCCL");
    ck_assert_int_gt(stderr_bytes(), before);
    ck_assert_int_eq(capture_warnings, 2);
}
END_TEST

SUITE_MAIN("demand", FIXTURE(setup, teardown), TEST(words_are_checked),
           TEST(the_default_demands_good_settings_and_no_more),
           TEST(an_unmet_demand_is_told_once_and_also_to_stderr),
           TEST(an_alert_is_there_once_where_warnings_are_shown))
