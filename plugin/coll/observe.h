/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports what the engine decided about each operation to tests that know what the operation really was.
 * Nothing else uses it; without an observer it costs one load.
 */
#ifndef NIBBLE_COLL_OBSERVE_H
#define NIBBLE_COLL_OBSERVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
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
    enum nb_codec codec; /* as decided; segments may still be sent raw */
    int class_kind, class_reason, warmup; /* struct nb_class_decision; kind -1: not classified */
    int64_t slot;                         /* struct nb_identity_decision, -1: none */
    int empty, id_reason;                 /* of the same; reason -1: not identified */
    int fed;                              /* a residual is carried in that slot */
};

/* Called on the engine thread, once an operation, in the order of operations of a communicator, when the
 * decisions on it are final. */
typedef void (*nb_observer_fn)(void *arg, const struct nb_observation *what);

/* Whom a node reports to. */
struct nb_observer {
    _Atomic(nb_observer_fn) fn; /* NULL: nobody */
    _Atomic(void *) arg;
};

static inline bool nb_observed(const struct nb_observer *observer)
{
    return atomic_load_explicit(&observer->fn, memory_order_relaxed) != NULL;
}

/* Report, if there is an observer. */
void nb_observe_tell(const struct nb_observer *observer, const struct nb_observation *what);

/* Set whom a node reports to or, with fn NULL, end it, while the node has no operation in flight. */
void nb_observe(struct nb_observer *observer, nb_observer_fn fn, void *arg);

#endif
