/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for calls that may never return. See periodic.h. */
#include "base/periodic.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum {
    SLICE_MS = 50,     /* of waiting */
    MOST_PATIENCE = 10 /* factor of the patience while the thread keeps running */
};

struct nb_periodic {
    struct nb_periodic_work work;
    char label[64];
    _Atomic long tid; /* the thread's number for the kernel; 0: it has not begun yet */
    _Atomic uint64_t looks;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;           /* signals a change of one of these: */
    bool stop, ended, left_behind; /* left_behind: the thread frees the periodic thread */
};

static void free_periodic(struct nb_periodic *c)
{
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static struct timespec in_ms(int64_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Return whether the thread runs, or would if it had a processor. The kernel reports its state behind its
 * name. */
static bool wants_processor(const struct nb_periodic *c)
{
    const long tid = atomic_load(&c->tid);
    char path[64], text[128];
    const char *name_ends;
    ssize_t n;
    int fd;

    if (!tid)
        return true;
    snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", tid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    name_ends = strrchr(text, ')');
    return name_ends && strncmp(name_ends, ") R", 3) == 0;
}

/* Wait for a change. Return false when `until` has passed. The caller holds the lock. */
static bool wait_for(struct nb_periodic *c, struct timespec until)
{
    return pthread_cond_timedwait(&c->cond, &c->lock, &until) != ETIMEDOUT;
}

static void *thread_main(void *arg)
{
    struct nb_periodic *c = arg;
    bool left_behind;

    atomic_store(&c->tid, syscall(SYS_gettid));
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
        next = in_ms(1000);
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
        free_periodic(c);
    }
    return NULL;
}

int nb_periodic_begin(const struct nb_periodic_work *work, const char *label, struct nb_periodic **periodic)
{
    struct nb_periodic *c = calloc(1, sizeof(*c));
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
        free_periodic(c);
        return err;
    }
    pthread_setname_np(c->thread, work->thread);
    *periodic = c;
    return 0;
}

static bool has_ended(const struct nb_periodic *c, uint64_t unused)
{
    (void)unused;
    return c->ended;
}

static bool has_looked(const struct nb_periodic *c, uint64_t turns)
{
    return atomic_load(&c->looks) >= 2 * turns;
}

/* Wait until done(c, value), with the patience of periodic.h. The caller holds the lock. */
static bool await(struct nb_periodic *c, bool (*done)(const struct nb_periodic *, uint64_t), uint64_t value,
                  int seconds)
{
    const int64_t patience = 1000 * (int64_t)seconds;

    for (int64_t all = 0, idle = 0; idle < patience && all < MOST_PATIENCE * patience; all += SLICE_MS) {
        const struct timespec until = in_ms(SLICE_MS);

        while (!done(c, value) && wait_for(c, until))
            ;
        if (done(c, value))
            return true;
        if (!wants_processor(c))
            idle += SLICE_MS;
    }
    return false;
}

uint64_t nb_periodic_turns(const struct nb_periodic *periodic)
{
    return atomic_load_explicit(&periodic->looks, memory_order_relaxed);
}

bool nb_periodic_await(struct nb_periodic *periodic, uint64_t turns, int seconds)
{
    bool done;

    pthread_mutex_lock(&periodic->lock);
    done = await(periodic, has_looked, turns, seconds);
    pthread_mutex_unlock(&periodic->lock);
    return done;
}

bool nb_periodic_end(struct nb_periodic *periodic, int seconds)
{
    bool ended;

    pthread_mutex_lock(&periodic->lock);
    periodic->stop = true;
    pthread_cond_broadcast(&periodic->cond);
    ended = await(periodic, has_ended, 0, seconds);
    periodic->left_behind = !ended;
    if (!ended)
        pthread_detach(periodic->thread);
    pthread_mutex_unlock(&periodic->lock);
    if (!ended)
        return false;
    pthread_join(periodic->thread, NULL);
    periodic->work.release(periodic->work.arg);
    free_periodic(periodic);
    return true;
}
