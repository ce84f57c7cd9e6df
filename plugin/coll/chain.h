/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the end of a chain of waits: this node waits for a neighbor, which waits for a node that this one may
 * not be connected with, and so on to one that waits for nobody: its device is at work, its NCCL has not called
 * yet, or nothing is heard of it. Heartbeats tell what their writer has found, so each node needs to look at its
 * neighbors only:
 *
 *     all neighbors that it waits for    what it says
 *     none, or its device is at work     NONE
 *     one says NONE, or is silent        END: that one, 1 step away
 *     one says END                       END: the same node, one step more; the nearest is taken
 *     one says END: this node            MUTUAL: that one, since neither gets on without the other (a connection
 *                                        that passes nothing), 1 step away; passed on likewise
 *     nothing of these                   LOST: it waits, and cannot tell for whom
 *
 * What is told is as old as a heartbeat for each step. In a circle of waits something old could be passed on for
 * ever: it is dropped after NB_CHAIN_STEPS. So this explains; nothing is decided by it.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_CHAIN_H
#define NIBBLE_COLL_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

#define NB_CHAIN_STEPS 16u

/* What a heartbeat says; numbers are those of the wire. The nearer to the end of the list, the better. */
enum nb_chain_kind {
    NB_CHAIN_UNTOLD = 0, /* nothing */
    NB_CHAIN_NONE = 1,   /* its writer waits for no node */
    NB_CHAIN_LOST = 2,
    NB_CHAIN_MUTUAL = 3,
    NB_CHAIN_END = 4,
    NB_CHAIN_COUNT
};

struct nb_chain {
    enum nb_chain_kind kind;
    int end;        /* MUTUAL and END: rank of the node at the end */
    unsigned steps; /* so many waits away, from 1; else 0 */
    const struct nb_peer
        *via; /* the neighbor that has told it, or is the end; NULL in what a peer has told */
};

struct nb_chain_life {     /* of a communicator */
    int64_t since_ns;      /* it has waited since then; 0: it does not */
    struct nb_chain found; /* for whom, when it last looked */
};

struct nb_chain_told {     /* of each peer */
    struct nb_chain chain; /* as its last heartbeat said */
    int64_t at_ns;         /* which has come then */
};

/* Look whom this node waits for; before heartbeats are sent, and before it says who is to blame. */
void nb_chain_look(struct nb_coll_comm *comm, int64_t now_ns);
/* True when this node waits for the neighbor, which waits for nobody. */
bool nb_chain_ends_at(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* A heartbeat of `peer` has come: 0, or < 0 when the communicator has failed. */
int nb_chain_told(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *alive);

#endif
