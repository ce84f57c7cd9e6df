/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine does about operations that are handed back to NCCL (policy/handback.h): it watches which
 * signatures go raw, and carries notes between this node's desk and node 0 as control messages. For the
 * engine thread, but for open and close.
 */
#ifndef NIBBLE_COLL_HANDBACK_VOTE_H
#define NIBBLE_COLL_HANDBACK_VOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/wire.h"
#include "policy/handback.h"

struct nb_coll_comm;
struct nb_handback_desk;
struct nb_peer;

struct nb_handback_vote {          /* of each communicator */
    struct nb_handback_desk *desk; /* NULL: nothing is ever handed back */
    bool failed;                   /* the desk has been told */
    unsigned signatures;
    struct {
        enum nb_func func;
        uint64_t bytes;
        uint64_t raw; /* operations in a row that went raw */
    } seen[NB_HANDBACK_SIGNATURES];
};

/* Where settings, NCCL's version and the group allow it, find the desk. Before the engine has the
 * communicator. */
void nb_handback_vote_open(struct nb_coll_comm *comm);
/* Callers wait no longer, and every further call takes CollNet. Also of what was never opened. */
void nb_handback_vote_close(struct nb_coll_comm *comm);

/* It is decided what becomes of an operation of `bytes` bytes, as NCCL's tuner is told; for_good: not only because
 * too little of the job has been seen yet. */
void nb_handback_vote_saw(struct nb_coll_comm *comm, enum nb_func func, uint64_t bytes, bool raw,
                          bool for_good);
/* Handle a message of the kinds NB_CTL_HAND_*. 0, or < 0 when the communicator has failed. */
int nb_handback_vote_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);
/* Now and then: 0, or < 0 when the communicator has failed. */
int nb_handback_vote_tick(struct nb_coll_comm *comm);
/* The communicator has failed: so do callers that wait. */
void nb_handback_vote_fail(struct nb_coll_comm *comm);

#endif
