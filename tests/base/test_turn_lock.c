/* SPDX-License-Identifier: Apache-2.0 */
/* A lock whose holder makes way for waiting threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/turn_lock.h"
#include "tests/suite.h"

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

SUITE_MAIN("turn_lock", TEST(a_busy_keeper_lets_others_in), TEST(who_asks_in_vain_goes_away),
           TEST(the_keeper_waits_for_a_moment_only))
