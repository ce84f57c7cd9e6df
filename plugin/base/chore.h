/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chore: what is done once a second beside the engine and may not return, such as reading or writing a file
 * that lies on a mount which no longer answers. It has a thread of its own. Ending it takes a bounded time:
 * a thread that is still inside such a call is left behind, and releases what it has when the call returns.
 */
#ifndef NIBBLE_BASE_CHORE_H
#define NIBBLE_BASE_CHORE_H

#include <stdbool.h>
#include <stdint.h>

struct nb_chore;

struct nb_chore_work {
    const char *thread;         /* its name, 15 characters at most; a constant */
    void (*turn)(void *arg);    /* once a second, the first at once; on the chore's thread */
    void (*last)(void *arg);    /* after the last turn, on the same thread; NULL: nothing */
    void (*release)(void *arg); /* when none of these will be called any more; on any thread */
    void *arg;
};

/* Begin. The thread logs as `label` and takes no signals. 0 and *chore, or a positive errno: then `arg` is
 * the caller's still. */
int nb_chore_begin(const struct nb_chore_work *work, const char *label, struct nb_chore **chore);

/* Turns begun and ended so far: odd while one is under way. Any thread; never blocks. */
uint64_t nb_chore_looks(const struct nb_chore *chore);

/* Patience, here and below: `seconds` in which the thread waits for something. While it runs, or would if a busy
 * machine had a processor for it, up to ten times as long is waited. Its state is read from /proc, which does not
 * block. */

/* Wait until `turns` turns have ended: false when the patience has. */
bool nb_chore_await(struct nb_chore *chore, uint64_t turns, int seconds);

/* End it, and free it: true when `arg` has been released. False when the thread has not ended before the patience:
 * it is left behind, and releases `arg` itself when its call returns. */
bool nb_chore_end(struct nb_chore *chore, int seconds);

#endif
