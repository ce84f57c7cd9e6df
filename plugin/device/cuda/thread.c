/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A *driver thread*: a thread that calls the CUDA driver in the engine's stead. A driver call may wait until
 * the GPU is idle: another thread that loads a kernel for the first time, or frees memory, holds the
 * context's lock until then. And the GPU may wait for the engine. So once a communicator is connected, the
 * engine's thread and NCCL's proxy stay away from the driver, and no thread waits for the driver thread.
 *
 * Threads: any thread calls nb_cuda_thread_ask, which does not wait. One thread at a time calls start and
 * stop of an object.
 */
#include "device/cuda/gpu.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

#define STOP_NS INT64_C(5000000000)

static void *thread_main(void *arg)
{
    struct nb_cuda_thread *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        const unsigned wanted = c->wanted;
        if (c->stop)
            break;
        if (!wanted) {
            pthread_cond_wait(&c->asked, &c->lock);
            continue;
        }
        c->wanted = 0;
        pthread_mutex_unlock(&c->lock);
        c->work(c->arg, wanted);
        pthread_mutex_lock(&c->lock);
    }
    c->ended = 1;
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int nb_cuda_thread_start(struct nb_cuda_thread *c, void (*work)(void *arg, unsigned wanted), void *arg)
{
    sigset_t all, old;
    int err;

    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->asked, NULL);
    c->work = work;
    c->arg = arg;
    /* Signals belong to the application. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&c->thread, NULL, thread_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        NB_WARN("cuda: cannot start a thread that calls the driver: %s", strerror(err));
        pthread_cond_destroy(&c->asked);
        pthread_mutex_destroy(&c->lock);
        return -err;
    }
    c->started = 1;
    return 0;
}

void nb_cuda_thread_ask(struct nb_cuda_thread *c, unsigned wanted)
{
    pthread_mutex_lock(&c->lock);
    c->wanted |= wanted;
    pthread_cond_signal(&c->asked);
    pthread_mutex_unlock(&c->lock);
}

int nb_cuda_thread_stop(struct nb_cuda_thread *c, const struct nb_clock *clock)
{
    const int64_t limit = nb_clock_ns(clock) + STOP_NS;
    const struct timespec pause = {0, 100000};
    int ended;

    if (!c->started)
        return 1;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        pthread_cond_signal(&c->asked);
        ended = c->ended;
        pthread_mutex_unlock(&c->lock);
        if (ended)
            break;
        if (nb_clock_ns(clock) > limit)
            return 0;
        nanosleep(&pause, NULL);
    }
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->asked);
    pthread_mutex_destroy(&c->lock);
    c->started = 0;
    return 1;
}
