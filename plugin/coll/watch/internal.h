/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of waits, times, and the state of the folder. Private to it. */
#ifndef NIBBLE_COLL_WATCH_INTERNAL_H
#define NIBBLE_COLL_WATCH_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/comm/comm.h"
#include "coll/watch/watch.h"

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

/* ---- times ------------------------------------------------------------------------------------------- */

/* Return the interval of heartbeats, in ns. NIBBLE_PEER_TIMEOUT is the same on all nodes, so peers have the
 * same interval. */
int64_t nb_control_alive_ns(const struct nb_coll_comm *comm);

/* Return the time after which a heartbeat of a peer is overdue, in ns. */
int64_t nb_control_overdue_ns(const struct nb_coll_comm *comm);

/* Return the time, in ns, for which the end of a connection may have another cause: other nodes may know
 * more. */
int64_t nb_control_doubt_ns(const struct nb_coll_comm *comm);

/* ---- late peers -------------------------------------------------------------------------------------- */

/* Write the names of the peers that the oldest open window waits for, with commas, as many as fit. Also for
 * threads that hold progress_lock. */
void nb_late_names(const struct nb_coll_comm *comm, char *buf, size_t cap);

/* ---- chains of waits --------------------------------------------------------------------------------- */

/*
 * The end of a chain of waits. This node waits for a neighbor, which waits for a node that this one may not
 * be connected with, and so on. At the end is a node that waits for no node: its device works, its NCCL has
 * not called yet, or it is silent. A heartbeat carries its sender's finding, so each node reads its
 * neighbors' findings only:
 *
 *     neighbors that it waits for        its finding
 *     no neighbor, or its device works   NONE
 *     one that finds NONE, or is silent  END: this neighbor, 1 step away
 *     one that finds END                 END: the same node, one step more. The nearest is taken
 *     one that finds END: this node      MUTUAL: this neighbor, 1 step away. Each waits for the other (a
 *                                        connection that passes no data). Passed on likewise
 *     any other                          LOST: it waits, for an unknown node
 *
 * A finding is as old as one heartbeat for each step. In a circle of waits an old finding could circulate for
 * ever: it is dropped after NB_CHAIN_STEPS. Findings explain a delay in the log. No decision rests on them.
 */

#define NB_CHAIN_STEPS 16u

/* A finding, in the numbers of the wire. Later ones are better. */
enum nb_chain_kind {
    NB_CHAIN_UNKNOWN = 0, /* unknown */
    NB_CHAIN_NONE = 1,    /* its sender waits for no node */
    NB_CHAIN_LOST = 2,
    NB_CHAIN_MUTUAL = 3,
    NB_CHAIN_END = 4,
    NB_CHAIN_COUNT
};

struct nb_chain {
    enum nb_chain_kind kind;
    int end;                   /* MUTUAL and END: rank of the node at the end */
    unsigned steps;            /* number of waits in between, from 1, or 0 */
    const struct nb_peer *via; /* the neighbor that reported it, or is the end. NULL in a peer's report */
};

struct nb_chain_life {     /* findings of a communicator */
    int64_t since_ns;      /* time since which it waits. 0: it does not */
    struct nb_chain found; /* the last finding */
};

struct nb_chain_report {   /* a report of a peer */
    struct nb_chain chain; /* in its last heartbeat */
    int64_t at_ns;         /* arrival of that heartbeat */
};

/* Find out for which node this one waits. Call it before heartbeats are sent, and before the log names a
 * culprit. */
void nb_chain_update(struct nb_coll_comm *comm, int64_t now_ns);
/* Return true when this node waits for the neighbor, which waits for no node. */
bool nb_chain_ends_at(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* Take the finding from a heartbeat of `peer`. Return 0, or < 0 when the communicator has failed. */
int nb_chain_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *alive);

/* ---- state ------------------------------------------------------------------------------------------- */

/* The state of a communicator's watch. */
struct nb_watch {
    int64_t tick_ns, late_ns; /* the last check of heartbeats, and the last report of late peers */
    int64_t checked_ns;       /* the last check of the sending connections */
    int64_t close_deadline_ns;
    const struct nb_peer
        *quiet; /* the neighbor that has been silent for longest, longer than allowed, or NULL */
    struct nb_chain_life chain;
    _Atomic uint64_t late_reports;     /* number of reports of late peers. Any thread reads it */
    bool hurries;                      /* nb_shutdown_hurry was called */
    struct nb_chain_report reported[]; /* [nnodes] the waits that peers report */
};

#endif
