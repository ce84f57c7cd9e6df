/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock that one thread, its keeper, holds nearly all the time, and that others want now and then: the
 * engine works on a communicator with the lock held, lets go of it and takes it again at once. A mutex wakes
 * who waits for it, but does not wait for him to come, so that the others may wait for as long as the keeper
 * is busy. Here the keeper looks whether somebody asks, and if so steps aside for a moment: a load in each
 * round when nobody does.
 *
 * Limits of time are by CLOCK_MONOTONIC, and it needs nothing newer than pthread_mutex_trylock.
 */
#ifndef NIBBLE_BASE_TURN_LOCK_H
#define NIBBLE_BASE_TURN_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct nb_turn_lock {
    pthread_mutex_t mutex;
    atomic_uint asking; /* threads that wait for it, without the keeper */
};

void nb_turn_lock_init(struct nb_turn_lock *lock);
void nb_turn_lock_destroy(struct nb_turn_lock *lock);

/* Take it as the keeper: first lets those who ask have it, for a millisecond in all. One thread at a time. */
void nb_turn_lock_keep(struct nb_turn_lock *lock);
/* Take it as anybody else: waits without a limit, or up to `ms` milliseconds, then false. */
void nb_turn_lock_take(struct nb_turn_lock *lock);
bool nb_turn_lock_ask(struct nb_turn_lock *lock, int ms);
/* Give it back, whoever has it. */
void nb_turn_lock_give(struct nb_turn_lock *lock);

#endif
