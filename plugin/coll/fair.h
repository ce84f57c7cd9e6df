/* SPDX-License-Identifier: Apache-2.0 */
/* How a node's peers share its link. For the engine thread. */
#ifndef NIBBLE_COLL_FAIR_H
#define NIBBLE_COLL_FAIR_H

#include <stdint.h>

#include "coll/link.h"

struct nb_coll_comm;

/* How far rings of one class may be ahead of the last of them (fair.c). */
struct nb_fair {
    int bounded;    /* 0: nothing is held back */
    uint64_t most;  /* bytes up to which a peer may be given something */
    uint64_t lead;  /* bytes that a peer may be ahead of the last */
    uint64_t noted; /* what the last had had at handshake_ns (0: nothing is to be sent), for that */
    int64_t handshake_ns;
    int64_t until_ns; /* then another look may find that one is stuck, for which others wait */
};

/* See how far the peers' rings of a class have got, before something is sent. */
void nb_fair_look(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns);
/* 1 when the transport may be given something more of this ring, whose class `f` is of. */
static inline int nb_fair_allows(const struct nb_fair *f, const struct nb_tx *tx)
{
    return tx->cls == NB_CLASS_CONTROL || !f->bounded || !nb_tx_is_fair(tx) ||
           tx->had + tx->under_way <= f->most;
}

#endif
