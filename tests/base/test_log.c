/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: the function that gets them, their length, their beginning. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/suite.h"

static struct {
    int calls;
    ncclDebugLogLevel level;
    unsigned long flags;
    const char *file;
    int line;
    char text[4096];
} seen;

__attribute__((format(printf, 5, 6))) static void see(ncclDebugLogLevel level, unsigned long flags,
                                                      const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(seen.text, sizeof(seen.text), fmt, ap);
    va_end(ap);
    seen.calls++;
    seen.level = level;
    seen.flags = flags;
    seen.file = file;
    seen.line = line;
}

START_TEST(log_goes_through_the_given_function)
{
    nb_log_set(see);
    NB_WARN("lost %s after %d %%", "10.0.0.1<5>", 3);
    int line = __LINE__ - 1;
    ck_assert_int_eq(seen.calls, 1);
    ck_assert_int_eq(seen.level, NCCL_LOG_WARN);
    ck_assert_int_eq(seen.line, line);
    ck_assert_str_eq(seen.file, __FILE__);
    ck_assert_str_eq(seen.text, "NET/nibble : lost 10.0.0.1<5> after 3 %");
    NB_INFO(NCCL_INIT | NCCL_NET, "%s", "100%s %n"); /* percent signs are plain text */
    ck_assert_int_eq(seen.level, NCCL_LOG_INFO);
    ck_assert_uint_eq(seen.flags, NCCL_INIT | NCCL_NET);
    ck_assert_str_eq(seen.text, "NET/nibble : 100%s %n");
    NB_TRACE(NCCL_NET, "t");
    ck_assert_int_eq(seen.level, NCCL_LOG_TRACE);
}
END_TEST

START_TEST(log_shortens_long_lines)
{
    char text[3000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    nb_log_set(see);
    NB_WARN("value %s: the reason", text);
    size_t len = strlen(seen.text);
    ck_assert_uint_lt(len, 1100);
    ck_assert_uint_gt(len, 900);
    ck_assert_ptr_nonnull(strstr(seen.text, "value xx"));
    ck_assert_ptr_nonnull(strstr(seen.text, "xx...xx"));
    ck_assert_str_eq(seen.text + len - 14, "xx: the reason");
}
END_TEST

START_TEST(log_without_function_warns_on_stderr_only)
{
    char path[] = "/tmp/nibble-log-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    int saved = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    nb_log_set(see);
    nb_log_set(NULL);
    NB_INFO(NCCL_NET, "dropped");
    NB_WARN("told %d", 7);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    char text[256] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    ck_assert_int_gt(n, 0);
    ck_assert_str_eq(text, "NET/nibble : told 7\n");
    ck_assert_int_eq(seen.calls, 0);
    close(fd);
}
END_TEST

START_TEST(log_begins_with_the_label)
{
    static char label[] = "node 7";

    nb_log_set(see);
    ck_assert_ptr_null(nb_log_label(label));
    NB_WARN("lost");
    ck_assert_str_eq(seen.text, "NET/nibble : node 7: lost");
    label[0] = 0; /* like a context without a label */
    NB_WARN("lost");
    ck_assert_str_eq(seen.text, "NET/nibble : lost");
    ck_assert_ptr_eq(nb_log_label(NULL), label);
    NB_WARN("lost");
    ck_assert_str_eq(seen.text, "NET/nibble : lost");
}
END_TEST

START_TEST(log_mildly)
{
    nb_log_set(see);
    nb_log_mildly(true);
    NB_WARN("cannot, and need not");
    ck_assert_int_eq(seen.level, NCCL_LOG_INFO);
    NB_TRACE(NCCL_NET, "t");
    ck_assert_int_eq(seen.level, NCCL_LOG_TRACE);
    NB_ALERT("must");
    ck_assert_int_eq(seen.level, NCCL_LOG_WARN);
    nb_log_mildly(false);
    NB_WARN("cannot");
    ck_assert_int_eq(seen.level, NCCL_LOG_WARN);
}
END_TEST

SUITE_MAIN("base/log", TEST(log_goes_through_the_given_function), TEST(log_shortens_long_lines),
           TEST(log_without_function_warns_on_stderr_only), TEST(log_begins_with_the_label), TEST(log_mildly))
