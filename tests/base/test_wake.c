/* SPDX-License-Identifier: Apache-2.0 */
/* Wake-ups between threads. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/wake.h"
#include "tests/suite.h"

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

/* The sleeper waits with a very long timeout: after one lost signal it sleeps until the test fails. */
START_TEST(no_signal_is_lost)
{
    pthread_t threads[PRODUCERS];
    ck_assert_int_eq(nb_wake_init(&shared_wake), 0);
    for (int i = 0; i < PRODUCERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, produce, NULL), 0);
    while (atomic_load(&made) < PRODUCERS * ITEMS) {
        ck_assert_msg(readable(&shared_wake, 60000), "asleep with %d of %d made", atomic_load(&made),
                      PRODUCERS * ITEMS);
        nb_wake_drain(&shared_wake);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    nb_wake_destroy(&shared_wake);
}
END_TEST

SUITE_MAIN("base/wake", TEST(signals_coincide_until_drained), TEST(no_signal_is_lost))
