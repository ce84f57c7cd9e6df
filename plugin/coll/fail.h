/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a communicator fails. The first error wins, is logged once, and stays: every later call on the
 * communicator returns it. Failing only records; the progress loop (progress.c) stops the work and sends
 * ABORT with the recorded text to the peers at the end of the same round.
 *
 * For the engine thread, and for others that hold progress_lock.
 */
#ifndef NIBBLE_COLL_FAIL_H
#define NIBBLE_COLL_FAIL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "coll/wire.h"

struct nb_coll_comm;
struct nb_op;
struct nb_peer;

struct nb_failure {
    _Atomic int error;      /* the first, negative errno; 0: none */
    char text[NB_CTL_TEXT]; /* for the peers */
    int reported;           /* they have been sent it */
};

/* Record the failure `err` (negative errno); the caller has logged why. The peers are sent `why`. Returns the
 * error in force: `err`, or that of an earlier failure. */
int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why);
/* As above, logging the formatted text first; an error after the first is neither logged nor recorded. */
int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* True when the peer takes no more messages of the class but the operation needs it to: then the communicator
 * has failed. */
bool nb_peer_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                  const struct nb_op *op);

#endif
