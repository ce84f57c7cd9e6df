/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of watch share: chains of waits, times, and the state of the room. Private to this room. */
#ifndef NIBBLE_COLL_WATCH_INTERNAL_H
#define NIBBLE_COLL_WATCH_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/watch/watch.h"

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

/* ---- times ------------------------------------------------------------------------------------------- */

/* Heartbeats are sent so long after each other, in ns: by this node, and by its peers as far as it knows
 * (their NIBBLE_PEER_TIMEOUT is the same: a setting that nodes must agree on). */
int64_t nb_control_alive_ns(const struct nb_coll_comm *comm);

/* After so long, in ns, the next one of a peer is overdue. */
int64_t nb_control_overdue_ns(const struct nb_coll_comm *comm);

/* So long, in ns, the end of a connection is doubted to be the cause of a failure: others may know more. */
int64_t nb_control_doubt_ns(const struct nb_coll_comm *comm);

/* ---- whom the oldest window waits for ---------------------------------------------------------------- */

/*
 * Whom the oldest unfinished window waits for. For the engine thread, and for others that hold progress_lock;
 * nothing is changed.
 */

/* Names of all such peers, with commas; what does not fit is left out. */
void nb_late_names(const struct nb_coll_comm *comm, char *buf, size_t cap);

/* ---- and whom that one waits for --------------------------------------------------------------------- */

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

struct nb_chain_report {   /* of each peer */
    struct nb_chain chain; /* as its last heartbeat said */
    int64_t at_ns;         /* which has come then */
};

/* Look whom this node waits for; before heartbeats are sent, and before it says who is to blame. */
void nb_chain_update(struct nb_coll_comm *comm, int64_t now_ns);
/* True when this node waits for the neighbor, which waits for nobody. */
bool nb_chain_ends_at(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* A heartbeat of `peer` has come: 0, or < 0 when the communicator has failed. */
int nb_chain_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *alive);

/* ---- state ------------------------------------------------------------------------------------------- */

/* What watch keeps of a communicator. */
struct nb_watch {
    int64_t tick_ns, late_ns; /* last look at heartbeats; last report of late peers */
    int64_t close_deadline_ns;
    const struct nb_peer
        *quiet; /* the neighbor that nothing has been heard of for longest, too long; or NULL */
    struct nb_chain_life chain;
    _Atomic uint64_t late_reports;     /* so often; any thread reads it */
    bool hurries;                      /* nb_shutdown_hurry was called */
    struct nb_chain_report reported[]; /* [nnodes] whom a peer waits for */
};

#endif
