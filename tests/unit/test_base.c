/* SPDX-License-Identifier: Apache-2.0 */
/* The small tools of plugin/base: log, clock, wake, fault, random. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "base/random.h"
#include "base/wake.h"
#include "environment.h"

/* ---- log ------------------------------------------------------------------------------------------ */

static struct {
    int calls;
    ncclDebugLogLevel level;
    unsigned long flags;
    const char *file;
    int line;
    char text[4096];
} seen;

__attribute__((format(printf, 5, 6))) static void see(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                                      int line, const char *fmt, ...)
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
    NB_INFO(NCCL_INIT | NCCL_NET, "%s", "100%s %n"); /* text with percent signs is only text */
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
    NB_WARN("%s", text);
    size_t len = strlen(seen.text);
    ck_assert_uint_lt(len, 1100);
    ck_assert_str_eq(seen.text + len - 4, "x...");
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

/* ---- clock and random ----------------------------------------------------------------------------- */

START_TEST(clock_goes_forward)
{
    uint64_t before = nb_now_ns();
    usleep(2000);
    uint64_t after = nb_now_ns();
    ck_assert_uint_ge(after - before, 2 * NB_NS_PER_MS);
    ck_assert_uint_lt(after - before, 60 * NB_NS_PER_S);
}
END_TEST

START_TEST(tokens_differ)
{
    uint8_t tokens[64][NB_TOKEN_BYTES];
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(nb_random_token(tokens[i]), 0);
        for (int j = 0; j < i; j++)
            ck_assert_int_ne(memcmp(tokens[i], tokens[j], NB_TOKEN_BYTES), 0);
    }
    /* More than the kernel gives out at once without being interruptible; ends in something written. */
    static uint8_t large[4096];
    ck_assert_int_eq(nb_random(large, sizeof(large)), 0);
    int nonzero = 0;
    for (size_t i = sizeof(large) - 64; i < sizeof(large); i++)
        nonzero += large[i] != 0;
    ck_assert_int_gt(nonzero, 0);
    ck_assert_int_eq(nb_random(NULL, 0), 0);
}
END_TEST

/* ---- wake ----------------------------------------------------------------------------------------- */

static int readable(const struct nb_wake *wake, int timeout_ms)
{
    struct pollfd p = {.fd = nb_wake_fd(wake), .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

START_TEST(signals_coincide_until_drained)
{
    struct nb_wake wake;
    ck_assert_int_eq(nb_wake_init(&wake), 0);
    ck_assert(!readable(&wake, 0));
    ck_assert_int_eq(nb_wake_drain(&wake), 0);
    nb_wake_signal(&wake);
    nb_wake_signal(&wake);
    ck_assert(readable(&wake, 0));
    ck_assert_int_eq(nb_wake_drain(&wake), 1);
    ck_assert(!readable(&wake, 0));
    nb_wake_signal(&wake);
    ck_assert(readable(&wake, 0));
    nb_wake_destroy(&wake);
    nb_wake_destroy(&wake);
    ck_assert_int_eq(wake.fd, -1);
}
END_TEST

#define PRODUCERS 3
#define ITEMS 20000
static struct nb_wake shared_wake;
static atomic_int made;

static void *produce(void *arg)
{
    (void)arg;
    for (int i = 0; i < ITEMS; i++) {
        atomic_fetch_add(&made, 1);
        nb_wake_signal(&shared_wake);
    }
    return NULL;
}

/* The sleeper waits without a timeout to speak of: one lost signal and it sleeps until the test fails. */
START_TEST(no_signal_is_lost)
{
    pthread_t threads[PRODUCERS];
    ck_assert_int_eq(nb_wake_init(&shared_wake), 0);
    for (int i = 0; i < PRODUCERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, produce, NULL), 0);
    while (atomic_load(&made) < PRODUCERS * ITEMS) {
        ck_assert_msg(readable(&shared_wake, 10000), "asleep with %d of %d made", atomic_load(&made),
                      PRODUCERS * ITEMS);
        nb_wake_drain(&shared_wake);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    nb_wake_destroy(&shared_wake);
}
END_TEST

/* ---- fault ---------------------------------------------------------------------------------------- */

static void check_faults(const char *list, const char *yes, const char *no)
{
    setenv("NIBBLE_FAULT", list, 1);
    ck_assert_int_eq(nb_params_acquire(), 0);
    seen.calls = 0;
    nb_log_set(see);
    if (yes) {
        ck_assert_msg(nb_fault(yes) == 1, "%s is in '%s'", yes, list);
        ck_assert_int_eq(seen.calls, 1);
    }
    ck_assert_msg(nb_fault(no) == 0, "%s is not in '%s'", no, list);
    ck_assert_int_eq(seen.calls, yes ? 1 : 0);
    nb_params_release();
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
    TCase *tc = tcase_create("base");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, log_goes_through_the_given_function);
    tcase_add_test(tc, log_shortens_long_lines);
    tcase_add_test(tc, log_without_function_warns_on_stderr_only);
    tcase_add_test(tc, clock_goes_forward);
    tcase_add_test(tc, tokens_differ);
    tcase_add_test(tc, signals_coincide_until_drained);
    tcase_add_test(tc, no_signal_is_lost);
    tcase_add_test(tc, faults_are_found_by_whole_names);
    Suite *suite = suite_create("base");
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
