/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for what may not return; see chore.h. */
#include "base/chore.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

struct nb_chore {
    struct nb_chore_work work;
    char label[64];
    _Atomic uint64_t looks;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;           /* one of these has changed: */
    bool stop, ended, left_behind; /* who left it behind does not free it */
};

static void free_chore(struct nb_chore *c)
{
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static struct timespec in_seconds(int seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += seconds;
    return t;
}

/* Wait for a change: false when `until` has passed. With the lock. */
static bool wait_for(struct nb_chore *c, struct timespec until)
{
    return pthread_cond_timedwait(&c->cond, &c->lock, &until) != ETIMEDOUT;
}

static void *thread_main(void *arg)
{
    struct nb_chore *c = arg;
    bool left_behind;

    nb_log_label(c->label);
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        struct timespec next;

        pthread_mutex_unlock(&c->lock);
        atomic_fetch_add(&c->looks, 1);
        c->work.turn(c->work.arg);
        atomic_fetch_add(&c->looks, 1);
        pthread_mutex_lock(&c->lock);
        pthread_cond_broadcast(&c->cond);
        next = in_seconds(1);
        while (!c->stop && wait_for(c, next))
            ;
    }
    pthread_mutex_unlock(&c->lock);
    if (c->work.last)
        c->work.last(c->work.arg);
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    left_behind = c->left_behind;
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
    if (left_behind) {
        c->work.release(c->work.arg);
        free_chore(c);
    }
    return NULL;
}

int nb_chore_begin(const struct nb_chore_work *work, const char *label, struct nb_chore **chore)
{
    struct nb_chore *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    sigset_t all, old;
    int err;

    if (!c)
        return ENOMEM;
    c->work = *work;
    snprintf(c->label, sizeof(c->label), "%s", label);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->cond, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); /* signals are the application's business */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&c->thread, NULL, thread_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        free_chore(c);
        return err;
    }
    pthread_setname_np(c->thread, work->thread);
    *chore = c;
    return 0;
}

uint64_t nb_chore_looks(const struct nb_chore *chore)
{
    return atomic_load_explicit(&chore->looks, memory_order_relaxed);
}

bool nb_chore_await(struct nb_chore *chore, uint64_t turns, int seconds)
{
    const struct timespec until = in_seconds(seconds);
    bool done;

    pthread_mutex_lock(&chore->lock);
    while (atomic_load(&chore->looks) < 2 * turns && wait_for(chore, until))
        ;
    done = atomic_load(&chore->looks) >= 2 * turns;
    pthread_mutex_unlock(&chore->lock);
    return done;
}

bool nb_chore_end(struct nb_chore *chore, int seconds)
{
    const struct timespec until = in_seconds(seconds);
    bool ended;

    pthread_mutex_lock(&chore->lock);
    chore->stop = true;
    pthread_cond_broadcast(&chore->cond);
    while (!chore->ended && wait_for(chore, until))
        ;
    ended = chore->ended;
    chore->left_behind = !ended;
    if (!ended)
        pthread_detach(chore->thread);
    pthread_mutex_unlock(&chore->lock);
    if (!ended)
        return false;
    pthread_join(chore->thread, NULL);
    chore->work.release(chore->work.arg);
    free_chore(chore);
    return true;
}
