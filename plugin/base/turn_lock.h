/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock that one thread, its keeper, holds nearly all the time, while other threads want it now and then:
 * the engine works on a communicator with the lock held, releases it and takes it again at once. A mutex
 * wakes a waiting thread but does not wait for it to run, so that the thread may wait for as long as the
 * keeper is busy. Here the keeper checks whether a thread asks, and then steps aside for a moment. Without
 * such a thread that costs one load in each round.
 *
 * Time limits are by CLOCK_MONOTONIC. The lock needs no newer function than pthread_mutex_trylock.
 */
#ifndef NIBBLE_BASE_TURN_LOCK_H
#define NIBBLE_BASE_TURN_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct nb_turn_lock {
    pthread_mutex_t mutex;
    atomic_uint asking; /* waiting threads, without the keeper */
};

void nb_turn_lock_init(struct nb_turn_lock *lock);
void nb_turn_lock_destroy(struct nb_turn_lock *lock);

/* Take the lock as the keeper. First let the threads that ask have it, for a millisecond in all. One thread
 * at a time. */
void nb_turn_lock_keep(struct nb_turn_lock *lock);
/* Take the lock as another thread: `take` waits without a limit, `ask` up to `ms` milliseconds and then
 * returns false. */
void nb_turn_lock_take(struct nb_turn_lock *lock);
bool nb_turn_lock_ask(struct nb_turn_lock *lock, int ms);
/* Release the lock, as the keeper or another thread. */
void nb_turn_lock_give(struct nb_turn_lock *lock);

#endif
