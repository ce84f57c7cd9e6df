/* SPDX-License-Identifier: Apache-2.0 */
/* A lock with a keeper. See turn_lock.h. */
#include "base/turn_lock.h"

#include <stdint.h>
#include <time.h>

#define STEP_NS 50000l /* between two tries of a waiting thread */
#define ASIDE 20       /* most steps that the keeper waits in a round */

static void pause_a_step(void)
{
    const struct timespec step = {.tv_nsec = STEP_NS};

    nanosleep(&step, NULL);
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void nb_turn_lock_init(struct nb_turn_lock *lock)
{
    pthread_mutex_init(&lock->mutex, NULL);
    atomic_init(&lock->asking, 0);
}

void nb_turn_lock_destroy(struct nb_turn_lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void nb_turn_lock_keep(struct nb_turn_lock *lock)
{
    for (int i = 0; i < ASIDE && atomic_load_explicit(&lock->asking, memory_order_relaxed); i++)
        pause_a_step();
    pthread_mutex_lock(&lock->mutex);
}

void nb_turn_lock_take(struct nb_turn_lock *lock)
{
    atomic_fetch_add_explicit(&lock->asking, 1, memory_order_relaxed);
    pthread_mutex_lock(&lock->mutex);
    atomic_fetch_sub_explicit(&lock->asking, 1, memory_order_relaxed);
}

bool nb_turn_lock_ask(struct nb_turn_lock *lock, int ms)
{
    const int64_t until = now_ns() + (int64_t)ms * 1000000;
    bool mine = pthread_mutex_trylock(&lock->mutex) == 0;

    if (mine)
        return true;
    atomic_fetch_add_explicit(&lock->asking, 1, memory_order_relaxed);
    do {
        pause_a_step();
        mine = pthread_mutex_trylock(&lock->mutex) == 0;
    } while (!mine && now_ns() < until);
    atomic_fetch_sub_explicit(&lock->asking, 1, memory_order_relaxed);
    return mine;
}

void nb_turn_lock_give(struct nb_turn_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
