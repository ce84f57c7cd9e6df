/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a periodic thread: patience limits a wait, and the time that a busy machine takes away from the
 * thread does not count. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/periodic.h"
#include "tests/suite.h"

static int pipe_of[2];
static atomic_int turns, lasts, releases;

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Stay busy for longer than the patience, like a thread that has the processor a tenth of the time. */
static void spin(void *arg)
{
    const int64_t until = now_ms() + 2500;

    (void)arg;
    turns++;
    while (now_ms() < until)
        ;
}

static void wait_for_pipe(void *arg)
{
    char byte;

    (void)arg;
    turns++;
    while (read(pipe_of[0], &byte, 1) < 0)
        ;
}

static void last(void *arg)
{
    (void)arg;
    lasts++;
}

static void release(void *arg)
{
    (void)arg;
    releases++;
}

static struct nb_periodic *begin(void (*turn)(void *))
{
    const struct nb_periodic_work work = {"chore", turn, last, release, NULL};
    struct nb_periodic *periodic = NULL;

    turns = lasts = releases = 0;
    ck_assert_int_eq(nb_periodic_begin(&work, "test", &periodic), 0);
    while (nb_periodic_turns(periodic) == 0)
        usleep(1000);
    return periodic;
}

START_TEST(busy)
{
    struct nb_periodic *periodic = begin(spin);

    ck_assert(nb_periodic_end(periodic, 1));
    ck_assert_int_eq(turns, 1);
    ck_assert_int_eq(lasts, 1);
    ck_assert_int_eq(releases, 1);
}
END_TEST

START_TEST(waits)
{
    struct nb_periodic *periodic;

    ck_assert_int_eq(pipe(pipe_of), 0);
    periodic = begin(wait_for_pipe);
    ck_assert(!nb_periodic_end(periodic, 1));
    ck_assert_int_eq(lasts, 0);
    ck_assert_int_eq(releases, 0);
    ck_assert_int_eq(write(pipe_of[1], "x", 1), 1);
    while (!releases)
        usleep(1000);
    ck_assert_int_eq(turns, 1);
    ck_assert_int_eq(lasts, 1);
    ck_assert_int_eq(releases, 1);
}
END_TEST

SUITE_MAIN("chore", TEST(busy), TEST(waits))
