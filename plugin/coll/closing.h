/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What who closes a communicator and the engine tell each other. Neither waits for the other with
 * progress_lock: the engine holds it while it works, perhaps for ever (stuck.h).
 */
#ifndef NIBBLE_COLL_CLOSING_H
#define NIBBLE_COLL_CLOSING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct nb_closing {
    bool unfinished;      /* written before `asked`: operations are, so that peers must not wait for them */
    _Atomic bool asked;   /* the engine shall end it */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t cond;  /* on CLOCK_MONOTONIC */
    bool detached;        /* the engine has let go of it */
};

#endif
