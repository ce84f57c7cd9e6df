/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that works once a second beside the engine and may never return from a call, such as reading or
 * writing a file on a dead mount. Ending it takes a bounded time: a thread that is still inside such a call
 * is left behind, and releases its resources when the call returns.
 */
#ifndef NIBBLE_BASE_PERIODIC_H
#define NIBBLE_BASE_PERIODIC_H

#include <stdbool.h>
#include <stdint.h>

struct nb_periodic;

struct nb_periodic_work {
    const char *thread;         /* its name, a constant of at most 15 characters */
    void (*turn)(void *arg);    /* on the new thread, once a second, the first time at once */
    void (*last)(void *arg);    /* on the same thread, after the last turn; may be NULL */
    void (*release)(void *arg); /* on any thread, after the last call of the functions above */
    void *arg;
};

/* Begin a thread. It logs as `label` and takes no signals. Return 0 and *periodic thread, or a positive
 * errno. The caller then still owns `arg`. */
int nb_periodic_begin(const struct nb_periodic_work *work, const char *label, struct nb_periodic **periodic);

/* Return the turns begun plus the turns ended so far: an odd number while a turn is under way. Any thread.
 * Never blocks. */
uint64_t nb_periodic_turns(const struct nb_periodic *periodic);

/* Patience, here and below: `seconds` during which the thread waits for something. While it runs, or would if
 * a busy machine had a processor for it, the wait is up to ten times as long. Its state is read from /proc,
 * which does not block. */

/* Wait until `turns` turns have ended. Return false when the patience has ended first. */
bool nb_periodic_await(struct nb_periodic *periodic, uint64_t turns, int seconds);

/* End the thread and free its object. Return true when `arg` has been released. Return false when the thread
 * has outlasted the patience: it is left behind, and releases `arg` itself when its call returns. */
bool nb_periodic_end(struct nb_periodic *periodic, int seconds);

#endif
