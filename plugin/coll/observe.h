/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine decided about an operation, for tests that know what it really was. Nothing else uses it;
 * without an observer it costs one load.
 */
#ifndef NIBBLE_COLL_OBSERVE_H
#define NIBBLE_COLL_OBSERVE_H

#include <stdint.h>

#include "coll/wire.h"
#include "nibble/codec.h"

struct nb_coll_comm;

struct nb_observation {
    const struct nb_coll_comm *comm;
    uint64_t opno; /* of the operation's first window */
    enum nb_func func;
    int recorded;        /* its record was found */
    uint64_t call;       /* number of the announced call (nb_identity_call); UINT64_MAX: none */
    enum nb_codec codec; /* as decided; pieces may still go raw */
    int class_kind, class_reason, warmup; /* struct nb_class_decision; kind -1: not asked */
    int64_t slot;                         /* struct nb_identity_decision, -1: none */
    int empty, id_reason;                 /* of the same; reason -1: not asked */
    int fed;                              /* error is carried in that slot */
};

typedef void (*nb_observer)(void *arg, const struct nb_observation *what);

/* Set or, with NULL, remove the process's observer, while no communicator lives. It is called on engine
 * threads, once an operation, in their order on a communicator, when its decisions are final. */
void nb_observe(nb_observer observer, void *arg);

/* 1 when somebody wants to know. */
int nb_observed(void);
void nb_observe_tell(const struct nb_observation *what);

#endif
