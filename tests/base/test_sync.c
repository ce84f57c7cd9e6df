/* SPDX-License-Identifier: Apache-2.0 */
/* Wake-ups between threads, and a lock whose holder makes way for waiting threads. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/sync.h"
#include "tests/suite.h"

/* ---- wake-ups --------------------------------------------------------------------------------------- */

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

/* ---- the lock --------------------------------------------------------------------------------------- */

#define ASKS 40
#define ROUNDS_EACH 200          /* of the holder while a thread waits: two on an idle machine */
#define MINUTES (10 * 60 * 1000) /* more than any machine needs */

static struct nb_turn_lock lock;
static atomic_int end, inside;
static atomic_uint rounds;

static void work(void)
{
    ck_assert_int_eq(atomic_fetch_add(&inside, 1), 0);
    for (volatile int i = 0; i < 300000; i++) /* a good part of a millisecond */
        ;
    ck_assert_int_eq(atomic_fetch_sub(&inside, 1), 1);
}

static void *keeper(void *arg)
{
    (void)arg;
    while (!atomic_load(&end)) {
        nb_turn_lock_keep(&lock);
        work();
        nb_turn_lock_give(&lock);
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/* With an ordinary lock, a holder that takes it again at once lets another thread in only by chance. */
START_TEST(a_busy_keeper_lets_others_in)
{
    unsigned waited = 0;
    pthread_t thread;

    nb_turn_lock_init(&lock);
    atomic_store(&end, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, keeper, NULL), 0);
    while (atomic_load(&rounds) < 3)
        ;
    for (int i = 0; i < ASKS; i++) {
        const unsigned before = atomic_load(&rounds);
        if (i % 4 == 3)
            nb_turn_lock_take(&lock);
        else
            ck_assert(nb_turn_lock_ask(&lock, MINUTES));
        waited += atomic_load(&rounds) - before;
        work();
        nb_turn_lock_give(&lock);
        while (atomic_load(&rounds) < before + 2) /* the holder itself goes on too */
            ;
    }
    atomic_store(&end, 1);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(atomic_load(&lock.asking), 0);
    ck_assert_uint_le(waited, ASKS * ROUNDS_EACH);
    nb_turn_lock_destroy(&lock);
}
END_TEST

static void *ask_briefly(void *arg)
{
    *(bool *)arg = nb_turn_lock_ask(&lock, 20);
    return NULL;
}

START_TEST(who_asks_in_vain_goes_away)
{
    pthread_t thread;
    bool got = true;

    nb_turn_lock_init(&lock);
    nb_turn_lock_keep(&lock);
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_briefly, &got), 0);
    pthread_join(thread, NULL);
    ck_assert(!got);
    ck_assert_uint_eq(atomic_load(&lock.asking), 0);
    nb_turn_lock_give(&lock);
    ck_assert(nb_turn_lock_ask(&lock, 0));
    nb_turn_lock_give(&lock);
    nb_turn_lock_destroy(&lock);
}
END_TEST

/* The system may stop a waiting thread in the middle of its request: the holder does not wait for it. */
START_TEST(the_keeper_waits_for_a_moment_only)
{
    nb_turn_lock_init(&lock);
    atomic_store(&lock.asking, 1);
    for (int i = 0; i < 10; i++) {
        nb_turn_lock_keep(&lock);
        nb_turn_lock_give(&lock);
    }
    nb_turn_lock_destroy(&lock);
}
END_TEST

SUITE_MAIN("base/sync", TEST(signals_coincide_until_drained), TEST(no_signal_is_lost),
           TEST(a_busy_keeper_lets_others_in), TEST(who_asks_in_vain_goes_away),
           TEST(the_keeper_waits_for_a_moment_only))
