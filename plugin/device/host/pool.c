/* SPDX-License-Identifier: Apache-2.0 */
/* Codec threads. */
#include "device/host/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "device/device.h"
#include "device/host/host.h"

#define LOOKS_BETWEEN_CLOCKS 64u /* while polling, since the clock costs more than a look */

struct nb_host_pool {
    const struct nb_context *ctx;

    pthread_mutex_t users_lock; /* of the next members */
    unsigned users, threads;
    pid_t pid; /* of the process that made the workers */
    pthread_t thread[NB_POOL_MOST];
    struct nb_cpus allowed,
        near; /* of all users so far, and of NCCL's buffers: empty where that makes no difference */

    pthread_mutex_t lock; /* of the queue and the next members */
    pthread_cond_t news;
    struct nb_pool_job *head, **tail;
    unsigned asleep; /* workers */
    bool waking;     /* one of them was woken, but has not looked yet */
    bool stop;

    /* For readers without the lock. */
    _Atomic unsigned queued;
    _Atomic uint64_t given, ended;
};

/* ---- workers ----------------------------------------------------------------------------------------- */

/* Poll an empty queue for a while, without the lock: the next job may come within microseconds, and waking a
 * thread takes several. */
static void poll_a_while(struct nb_host_pool *pool)
{
    const uint64_t until = nb_now_ns() + NB_SPIN_US * NB_NS_PER_US;

    do {
        for (unsigned i = 0; i < LOOKS_BETWEEN_CLOCKS; i++) {
            if (atomic_load_explicit(&pool->queued, memory_order_relaxed))
                return;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
    } while (nb_now_ns() < until);
}

static void sleep_until_news(struct nb_host_pool *pool)
{
    pool->asleep++;
    pthread_cond_wait(&pool->news, &pool->lock);
    pool->asleep--;
    pool->waking = false;
}

/* Return whether the caller is to wake a worker, after it has released the lock. Workers are woken one at a
 * time: each that finds more jobs than it takes wakes the next. A submitter therefore pays for at most
 * one. */
static bool wakes_one(struct nb_host_pool *pool)
{
    if (!pool->head || !pool->asleep || pool->waking)
        return false;
    pool->waking = true;
    return true;
}

static struct nb_pool_job *take(struct nb_host_pool *pool)
{
    struct nb_pool_job *job = pool->head;

    pool->head = job->next;
    if (!pool->head)
        pool->tail = &pool->head;
    atomic_fetch_sub_explicit(&pool->queued, 1, memory_order_relaxed);
    return job;
}

static void *worker(void *arg)
{
    struct nb_host_pool *pool = arg;
    bool polled = true;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        if (pool->head) {
            struct nb_pool_job *job = take(pool);
            const bool wakes = wakes_one(pool);
            pthread_mutex_unlock(&pool->lock);
            if (wakes)
                pthread_cond_signal(&pool->news);
            job->run(job);
            atomic_fetch_add_explicit(&pool->ended, 1, memory_order_relaxed);
            polled = false;
            pthread_mutex_lock(&pool->lock);
        } else if (!polled) {
            pthread_mutex_unlock(&pool->lock);
            poll_a_while(pool);
            polled = true;
            pthread_mutex_lock(&pool->lock);
        } else {
            sleep_until_news(pool);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- the CPUs of workers, with users_lock held --------------------------------------------------------- */

/* Place the workers. Where the system refuses they stay on the CPUs of the threads that made them. */
static void place(struct nb_host_pool *pool)
{
    struct nb_cpus cpus = pool->allowed;

    if (!nb_cpus_intersect(&cpus, &pool->near))
        cpus = pool->allowed;
    for (unsigned i = 0; i < pool->threads && nb_cpus_count(&cpus); i++)
        pthread_setaffinity_np(pool->thread[i], sizeof(cpus), &cpus.set);
}

void nb_pool_prefer_near(struct nb_host_pool *pool, const void *at)
{
    struct nb_cpus cpus;

    if (nb_pool_is_orphan(pool) || !nb_cores_near(pool->ctx->root ? pool->ctx->root : "", at, &cpus))
        return;
    pthread_mutex_lock(&pool->users_lock);
    nb_cpus_add(&pool->near, &cpus);
    place(pool);
    pthread_mutex_unlock(&pool->users_lock);
}

/* ---- life -------------------------------------------------------------------------------------------- */

int nb_host_pool_open(struct nb_context *ctx)
{
    struct nb_host_pool *pool = calloc(1, sizeof(*pool));

    if (!pool) {
        NB_WARN("out of memory");
        return -ENOMEM;
    }
    pool->ctx = ctx;
    pool->tail = &pool->head;
    pthread_mutex_init(&pool->users_lock, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->news, NULL);
    ctx->host_pool = pool;
    return 0;
}

void nb_host_pool_close(struct nb_context *ctx)
{
    struct nb_host_pool *pool = ctx->host_pool;

    if (!pool)
        return;
    ctx->host_pool = NULL;
    if (pool->users) /* of communicators that a stuck engine has kept, with their workers */
        return;
    pthread_mutex_destroy(&pool->users_lock);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->news);
    free(pool);
}

/* Add a worker. Return false, after a log line, when the system refuses a thread. */
static bool add_worker(struct nb_host_pool *pool)
{
    sigset_t all, old;
    int err;

    /* Signals belong to the application. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = nb_fault(pool->ctx, "codec-thread")
              ? EAGAIN
              : pthread_create(&pool->thread[pool->threads], NULL, worker, pool);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        NB_INFO(NCCL_INIT, "device: cannot start codec thread %u: %s", pool->threads + 1, strerror(err));
        return false;
    }
    pthread_setname_np(pool->thread[pool->threads], "nibble-codec");
    pool->threads++;
    return true;
}

static void end_workers(struct nb_host_pool *pool)
{
    if (nb_pool_is_orphan(pool)) /* the child has no workers, and the parent's may have held the lock at
                                    the fork */
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->news);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pool->threads = 0;
    pool->stop = pool->waking = false;
}

unsigned nb_pool_acquire(struct nb_host_pool *pool, unsigned threads, const struct nb_cpus *cpus)
{
    unsigned have;

    pthread_mutex_lock(&pool->users_lock);
    if (pool->users == 0) {
        pool->pid = getpid();
        memset(&pool->allowed, 0, sizeof(pool->allowed));
        memset(&pool->near, 0, sizeof(pool->near));
    }
    nb_cpus_add(&pool->allowed, cpus);
    while (!nb_pool_is_orphan(pool) && pool->threads < threads && pool->threads < NB_POOL_MOST &&
           add_worker(pool))
        ;
    have = nb_pool_is_orphan(pool) ? 0 : pool->threads;
    if (have) {
        pool->users++;
        place(pool);
    }
    pthread_mutex_unlock(&pool->users_lock);
    return have;
}

void nb_pool_release(struct nb_host_pool *pool)
{
    pthread_mutex_lock(&pool->users_lock);
    if (--pool->users == 0)
        end_workers(pool);
    pthread_mutex_unlock(&pool->users_lock);
}

bool nb_pool_is_orphan(const struct nb_host_pool *pool)
{
    return pool->pid != getpid();
}

/* ---- the queue --------------------------------------------------------------------------------------- */

void nb_pool_submit(struct nb_host_pool *pool, struct nb_pool_job *job)
{
    bool wakes;

    job->next = NULL;
    pthread_mutex_lock(&pool->lock);
    *pool->tail = job;
    pool->tail = &job->next;
    atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->given, 1, memory_order_relaxed);
    wakes = wakes_one(pool);
    pthread_mutex_unlock(&pool->lock);
    if (wakes)
        pthread_cond_signal(&pool->news);
}

void nb_pool_cancel(struct nb_host_pool *pool, const void *owner, void (*cancelled)(struct nb_pool_job *job))
{
    pthread_mutex_lock(&pool->lock);
    for (struct nb_pool_job **at = &pool->head; *at;) {
        struct nb_pool_job *job = *at;
        if (job->owner != owner) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        atomic_fetch_sub_explicit(&pool->queued, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&pool->given, 1, memory_order_relaxed);
        cancelled(job);
    }
    pool->tail = &pool->head;
    while (*pool->tail)
        pool->tail = &(*pool->tail)->next;
    pthread_mutex_unlock(&pool->lock);
}

uint64_t nb_host_pool_works(const struct nb_context *ctx)
{
    return atomic_load_explicit(&ctx->host_pool->given, memory_order_relaxed);
}

uint64_t nb_pool_ended(const struct nb_host_pool *pool)
{
    return atomic_load_explicit(&pool->ended, memory_order_relaxed);
}
