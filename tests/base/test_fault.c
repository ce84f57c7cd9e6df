/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand. */
#include <stdlib.h>

#include "base/context.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/suite.h"

static void check_faults(const char *list, const char *yes, const char *no)
{
    struct nb_context ctx = {0};

    setenv("NIBBLE_FAULT", list, 1);
    ck_assert_int_eq(nb_params_read(&ctx.params), 0);
    capture_reset();
    nb_log_set(capture_log);
    if (yes) {
        ck_assert_msg(nb_fault(&ctx, yes) == 1, "%s is in '%s'", yes, list);
        ck_assert_int_eq(capture_infos, 1);
    }
    ck_assert_msg(nb_fault(&ctx, no) == 0, "%s is not in '%s'", no, list);
    ck_assert_int_eq(capture_infos, yes ? 1 : 0);
    nb_params_free(ctx.params);
}

START_TEST(faults_are_found_by_whole_names)
{
    check_faults("", NULL, "connect");
    check_faults("connect", "connect", "connec");
    check_faults("connect", "connect", "connect2");
    check_faults("alloc,connect", "connect", "loc");
    check_faults("alloc,connect,hash", "alloc", "");
    check_faults(",,hash,", "hash", "alloc,connect");
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE("base/fault", TEST(faults_are_found_by_whole_names));
}
