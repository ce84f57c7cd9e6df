/* SPDX-License-Identifier: Apache-2.0 */
/* The results and log lines that NCCL, and with it the user, gets for each kind of failure. */
#include <errno.h>
#include <stdlib.h>

#include "abi/result.h"
#include "abi/tables.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

START_TEST(errors_become_what_nccl_documents)
{
    ck_assert_int_eq(nb_result(0), ncclSuccess);
    ck_assert_int_eq(nb_result(17), ncclSuccess); /* a length */
    ck_assert_int_eq(nb_result(-EINVAL), ncclInternalError);
    ck_assert_int_eq(nb_result(-ENOTSUP), ncclInternalError);
    ck_assert_int_eq(nb_result(-EMSGSIZE), ncclInvalidUsage);
    static const int remote[] = {ECONNRESET,   ECONNREFUSED, ECONNABORTED, ENOTCONN, EPIPE, ETIMEDOUT,
                                 EHOSTUNREACH, ENETUNREACH,  ENETDOWN,     EBADMSG,  EPROTO};
    for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
        ck_assert_msg(nb_result(-remote[i]) == ncclRemoteError, "%s", strerror(remote[i]));
    static const int local[] = {ENOMEM, EIO, EMFILE, ENODEV, EACCES, EADDRINUSE};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        ck_assert_msg(nb_result(-local[i]) == ncclSystemError, "%s", strerror(local[i]));
}
END_TEST

START_TEST(during_init_an_invalid_value_is_the_users)
{
    ck_assert_int_eq(nb_result_init(0), ncclSuccess);
    ck_assert_int_eq(nb_result_init(-EINVAL), ncclInvalidUsage);
    ck_assert_int_eq(nb_result_init(-ENOMEM), ncclSystemError);
}
END_TEST

/* NCCL 2.27 and older drop errors of the progress thread. The plugin says so once, even where NCCL shows no
 * warnings. */
START_TEST(dropped_errors_are_told_of)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NIBBLE_NET", "tcp", 1);
    nb_log_set(capture_log);
    ck_assert_int_eq(nb_result_moving(-EIO), ncclSystemError);
    ck_assert_int_eq(capture_warnings, 0);
    ck_assert_int_eq(ncclNetPlugin_v10.init(capture_log, NULL), ncclSuccess);
    capture_reset();
    ck_assert_int_eq(nb_result_moving(3), ncclSuccess);
    ck_assert_int_eq(nb_result(-EIO), ncclSystemError);
    ck_assert_int_eq(capture_warnings, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(nb_result_moving(-ECONNRESET), ncclRemoteError);
    ck_assert_int_eq(capture_warnings, 1);
    ck_assert(capture_has("does not pass a plugin's error on"));
    capture_reset();
}
END_TEST

static ncclResult_t takes_pointer(void *mhandle)
{
    NB_REQUIRE(mhandle);
    return ncclSuccess;
}

START_TEST(missing_arguments_are_named)
{
    int here;
    nb_log_set(capture_log);
    ck_assert_int_eq(takes_pointer(&here), ncclSuccess);
    ck_assert_int_eq(capture_warnings, 0);
    ck_assert_int_eq(takes_pointer(NULL), ncclInternalError);
    ck_assert(capture_has("takes_pointer: NCCL passed NULL for mhandle"));
    capture_reset();
}
END_TEST

SUITE_MAIN("result", TEST(errors_become_what_nccl_documents), TEST(during_init_an_invalid_value_is_the_users),
           TEST(dropped_errors_are_told_of), TEST(missing_arguments_are_named))
