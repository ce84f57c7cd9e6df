/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a communicator fails. The first error wins, is logged once, and stays: every later call on the
 * communicator returns it. Failing only records; at the end of the same round the peers are told (abort.c),
 * and only then do NCCL's calls return it, so that a process that ends at once has told its peers.
 *
 * What is recorded is the cause as its first witness, the author, has found it: a node that hears of it from
 * another passes it on as it is.
 *
 * The end of a connection explains little: its peer may have died, or it may have failed for a reason that it
 * has told, and closed. So that is noted only (nb_comm_suspect), and explained (loss.c) before it counts.
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
    _Atomic int error; /* the first, negative errno; 0: none */
    _Atomic int shown; /* what NCCL's calls return: the same once the peers are told; or, earlier, that they
                             * have given up on the engine (stuck.h). Any thread */
    int author;        /* the node that found the cause */
    char text[NB_CTL_TEXT]; /* and what it says */
    int64_t suspect_ns;     /* a connection has ended (nb_peer_life.lost): since when; 0: none */
    int64_t told_ns;        /* since when the peers are being told; 0: not yet */
    int untold;             /* to so many it has not left yet */
};

/* Record the failure `err` (negative errno); the caller has logged why. The peers are sent `why`. Returns the
 * error in force: `err`, or that of an earlier failure. */
int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why);
/* As above, logging the formatted text first; an error after the first is neither logged nor recorded. */
int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* ABORT has come from `via`: log and record what its author says. */
int nb_comm_told(struct nb_coll_comm *comm, const struct nb_peer *via, const struct nb_ctl *abort);
/* A connection with the peer has ended with `err`, which the communicator will not survive, without a
 * graceful shutdown. Returns `err`. */
int nb_comm_suspect(struct nb_coll_comm *comm, struct nb_peer *peer, int err);
/* The calls of NCCL's have given up on this node's engine (stuck.h), which goes on: the communicator has
 * failed, and NCCL's memory must not be touched any more. 0, or the error. */
int nb_comm_given_up(struct nb_coll_comm *comm);
/* True when the peer takes no more messages of the class but the operation needs it to: then the communicator
 * has failed. */
bool nb_peer_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                  const struct nb_op *op);

#endif
