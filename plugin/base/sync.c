/* SPDX-License-Identifier: Apache-2.0 */
/* Wake-ups, and a lock with a keeper. See sync.h. */
#include "base/sync.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- wake-ups: an eventfd with a flag in front of it that saves most system calls ------------------- */

int nb_wake_init(struct nb_wake *wake)
{
    atomic_init(&wake->pending, 0);
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return wake->fd < 0 ? -errno : 0;
}

void nb_wake_destroy(struct nb_wake *wake)
{
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = -1;
}

void nb_wake_signal(struct nb_wake *wake)
{
    if (atomic_exchange_explicit(&wake->pending, 1, memory_order_acq_rel))
        return;
    uint64_t one = 1;
    /* The counter is at most 2 and cannot overflow, so only an interruption can fail the write. */
    while (write(wake->fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

int nb_wake_drain(struct nb_wake *wake)
{
    /* Clear first the descriptor, then the flag. The other way round, a signal between the two would leave
     * the flag set and the descriptor empty, and no later signal would ever arrive. */
    uint64_t count;
    while (read(wake->fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
    return atomic_exchange_explicit(&wake->pending, 0, memory_order_acq_rel);
}

/* ---- the lock with a keeper ------------------------------------------------------------------------- */

#define STEP_NS 50000l /* between two tries of a waiting thread */
#define ASIDE 20       /* most steps that the keeper waits in a round */

static void pause_a_step(void)
{
    const struct timespec step = {.tv_nsec = STEP_NS};

    nanosleep(&step, NULL);
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
    const uint64_t until = nb_now_ns() + (uint64_t)ms * NB_NS_PER_MS;
    bool mine = pthread_mutex_trylock(&lock->mutex) == 0;

    if (mine)
        return true;
    atomic_fetch_add_explicit(&lock->asking, 1, memory_order_relaxed);
    do {
        pause_a_step();
        mine = pthread_mutex_trylock(&lock->mutex) == 0;
    } while (!mine && nb_now_ns() < until);
    atomic_fetch_sub_explicit(&lock->asking, 1, memory_order_relaxed);
    return mine;
}

void nb_turn_lock_give(struct nb_turn_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
