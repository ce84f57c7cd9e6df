/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that calls the driver in the engine's stead. A driver call may wait until the GPU is idle (another
 * thread loads a kernel for the first time, or frees memory, and holds the context's lock meanwhile), and the GPU
 * may wait for the engine: so once a communicator is connected neither the engine's thread nor NCCL's proxy calls
 * the driver, and nobody waits for the thread that does.
 *
 * Threads: nb_caller_ask from any thread, and it does not wait; start and stop as one object's life.
 */
#ifndef NIBBLE_DEVICE_CUDA_CALLER_H
#define NIBBLE_DEVICE_CUDA_CALLER_H

#include <pthread.h>

#include "base/clock.h"

enum { /* what can be asked for */
       NB_CALLER_LAUNCH = 1,
       NB_CALLER_GROW = 2,
};

struct nb_caller {
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
 * WARN; then nb_caller_stop is not called. */
int nb_caller_start(struct nb_caller *caller, void (*work)(void *arg, unsigned wanted), void *arg);
void nb_caller_ask(struct nb_caller *caller, unsigned wanted);
/* End it, in bounded time of that clock: 1; or 0 when the driver holds it up: then it still uses `caller` and
 * what `arg` leads to. Never started: 1. */
int nb_caller_stop(struct nb_caller *caller, const struct nb_clock *clock);

#endif
