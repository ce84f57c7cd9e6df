/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that calls the driver in the engine's stead. A driver call may wait until the GPU is idle (another
 * thread loads a kernel for the first time, or frees memory, and holds the context's lock meanwhile), and the GPU
 * may wait for the engine: so once a communicator is connected neither the engine's thread nor NCCL's proxy calls
 * the driver, and nobody waits for the thread that does.
 *
 * Threads: nb_cuda_thread_ask from any thread, and it does not wait; start and stop as one object's life.
 */
#ifndef NIBBLE_DEVICE_CUDA_THREAD_H
#define NIBBLE_DEVICE_CUDA_THREAD_H

#include <pthread.h>

#include "base/clock.h"

enum { /* what can be asked for */
       NB_CUDA_THREAD_LAUNCH = 1,
       NB_CUDA_THREAD_GROW = 2,
};

struct nb_cuda_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    unsigned wanted; /* bits; under lock, as are the following */
    int stop, ended;
    int started;
    void (*work)(void *arg, unsigned wanted);
    void *arg;
};

/* Start it; `work` is called on it with what was asked for since the last time. 0, or a negative errno after a
 * WARN; then nb_cuda_thread_stop is not called. */
int nb_cuda_thread_start(struct nb_cuda_thread *thread, void (*work)(void *arg, unsigned wanted), void *arg);
void nb_cuda_thread_ask(struct nb_cuda_thread *thread, unsigned wanted);
/* End it, in bounded time of that clock: 1; or 0 when the driver holds it up: then it still uses `thread` and
 * what `arg` leads to. Never started: 1. */
int nb_cuda_thread_stop(struct nb_cuda_thread *thread, const struct nb_clock *clock);

#endif
