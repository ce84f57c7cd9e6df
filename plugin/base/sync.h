/* SPDX-License-Identifier: Apache-2.0 */
/* How threads wait for each other: a wake-up through a descriptor, and a lock that lets waiting threads
 * in. */
#ifndef NIBBLE_BASE_SYNC_H
#define NIBBLE_BASE_SYNC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/*
 * Wakes one sleeping thread from any number of other threads, through a descriptor that fits into poll.
 *
 * The sleeper polls nb_wake_fd for POLLIN, calls nb_wake_drain, and only then looks for work. A producer
 * makes its work visible before nb_wake_signal. The sleeper then misses no work. Signals that were not
 * drained yet coincide, so that signalling an awake thread costs one atomic operation and no system call.
 */
struct nb_wake {
    int fd;
    atomic_int pending; /* there is an undrained signal */
};

/* Return 0 or a negative errno. On failure fd is -1. */
int nb_wake_init(struct nb_wake *wake);
/* Destroy the object, which all threads have stopped using. May be called after a failed init, and twice. */
void nb_wake_destroy(struct nb_wake *wake);
/* Signal the sleeper. Any thread. Never blocks. */
void nb_wake_signal(struct nb_wake *wake);
/* Clear the signal, on the sleeping thread only. Return 1 when there was one. Never blocks. */
int nb_wake_drain(struct nb_wake *wake);

static inline int nb_wake_fd(const struct nb_wake *wake)
{
    return wake->fd;
}

/*
 * A lock that one thread, its keeper, holds nearly all the time, while other threads want it now and then:
 * the engine works on a communicator with the lock held, releases it and takes it again at once. A mutex
 * wakes a waiting thread but does not wait for it to run, so that the thread may wait for as long as the
 * keeper is busy. Here the keeper checks whether a thread asks, and then steps aside for a moment. Without
 * such a thread that costs one load in each round.
 *
 * Time limits are by CLOCK_MONOTONIC. The lock needs no newer function than pthread_mutex_trylock.
 */
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
