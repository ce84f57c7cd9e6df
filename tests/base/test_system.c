/* SPDX-License-Identifier: Apache-2.0 */
/* Names of processes: processes with the same number in two containers of one host have different names. And
 * random tokens. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

static char (*name)[NB_PROCESS_NAME]; /* of two containers, shared with them */

/* Let the first process of a new process namespace write its name. It stays until the test kills its parent,
 * whose number this function returns: the kernel may give the number of a vanished namespace to the next one.
 * Return -1 where the system makes no namespaces. */
static pid_t contain(char *said)
{
    int status = -1;
    const pid_t outer = fork();

    if (outer == 0) {
        if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
            _exit(1);
        const pid_t inner = fork();
        if (inner == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            nb_process_name(said);
            for (;;)
                pause();
        }
        while (inner > 0 && !said[0])
            usleep(1000);
        raise(SIGSTOP);
        _exit(2);
    }
    return waitpid(outer, &status, WUNTRACED) == outer && WIFSTOPPED(status) ? outer : -1;
}

static void end(pid_t outer)
{
    if (outer < 0)
        return;
    kill(outer, SIGKILL);
    waitpid(outer, NULL, 0);
}

START_TEST(containers)
{
    ck_assert_int_eq(strncmp(name[0], "1-", 2), 0);
    ck_assert_int_eq(strncmp(name[1], "1-", 2), 0);
    ck_assert_uint_eq(strlen(name[0]), 10);
    ck_assert_str_ne(name[0], name[1]);
}
END_TEST

START_TEST(own)
{
    char one[NB_PROCESS_NAME], again[NB_PROCESS_NAME];

    nb_process_name(one);
    nb_process_name(again);
    ck_assert_str_eq(one, again);
    ck_assert_int_eq(atoi(one), getpid());
    ck_assert(strlen(one) == strspn(one, "0123456789") || strlen(strchr(one, '-')) == 9);
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

/* Takes the place of the C library's. */
static int getrandom_error;

ssize_t getrandom(void *buf, size_t bytes, unsigned flags)
{
    if (!getrandom_error)
        return syscall(SYS_getrandom, buf, bytes, flags);
    errno = getrandom_error;
    return -1;
}

START_TEST(random_denied)
{
    static const int errors[] = {EPERM, ENOSYS};
    uint8_t token[NB_TOKEN_BYTES];

    nb_log_set(capture_log);
    for (int i = 0; i < 2; i++) {
        capture_reset();
        getrandom_error = errors[i];
        ck_assert_int_eq(nb_random_token(token), -errors[i]);
        getrandom_error = 0;
        ck_assert_int_eq(capture_warned(), 1);
        ck_assert_msg(capture_has("getrandom: ") && capture_has("allow this system call"), "%s",
                      capture_text);
    }
    nb_log_set(NULL);
}
END_TEST

int main(void)
{
    pid_t first, second;

    name = mmap(NULL, 2 * sizeof(*name), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (name == MAP_FAILED)
        return EXIT_FAILURE;
    first = contain(name[0]);
    second = contain(name[1]);
    end(first);
    end(second);
    const int contained = first >= 0 && second >= 0;
    if (SUITE("base/system", TEST(own), TEST(tokens_differ), TEST(random_denied),
              contained ? TEST(containers) : (void)0))
        return EXIT_FAILURE;
    if (contained)
        return EXIT_SUCCESS;
    printf("SKIP: no process namespaces can be made here; names of containers were not compared\n");
    return 77;
}
