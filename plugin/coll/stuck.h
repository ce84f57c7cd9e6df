/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Noticing that the engine of this node makes no steps: its thread hangs in a call that does not return (a
 * driver, a page of memory that does not come back, a debugger). Then nobody fails this node's communicators,
 * so the calls of NCCL's threads do, and leave what the engine may be using as it is.
 *
 * Lateness is no error: the limit is twice NIBBLE_PEER_TIMEOUT, at least a minute, and of the time between
 * two looks no more than a quarter of it counts, so that a process that was stopped as a whole finds nothing
 * when it goes on.
 *
 * Any thread.
 */
#ifndef NIBBLE_COLL_STUCK_H
#define NIBBLE_COLL_STUCK_H

#include <stdatomic.h>
#include <stdint.h>

struct nb_coll_comm;

struct nb_stuck {              /* of each communicator */
    _Atomic int64_t looked_ms; /* when the engine was last looked at, on the clock of nb_clock_ms */
    _Atomic int64_t waited_ms; /* for so long it had not made a step */
    _Atomic uint64_t steps;    /* that it had made */
};

/* Look at the engine, at most once a second. 0, or -ETIMEDOUT when it has not made a step for too long, which
 * is logged once and fails the calls on the communicator. 0 again when it goes on. */
int nb_stuck_look(struct nb_coll_comm *comm);
/* Take comm->progress_lock: 0, or -ETIMEDOUT when the engine holds it and is stuck. */
int nb_stuck_lock(struct nb_coll_comm *comm);

#endif
