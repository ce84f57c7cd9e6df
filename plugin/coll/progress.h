/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One communicator's progress: the order of work in a round, heartbeats, failure, graceful shutdown. For the
 * engine thread.
 *
 *     RUNNING --close--> CLOSING: what this node owes is drained --> BYE sent --all have acknowledged, and
 *     were--> CLOSED
 *        |                  |                                                       acknowledged; or the deadline
 *      error: ABORT sent  error: ABORT sent, closed when it has left, or after a second
 *      nothing moves      ---------------------------------------------------------------------------------------> CLOSED
 */
#ifndef NIBBLE_COLL_PROGRESS_H
#define NIBBLE_COLL_PROGRESS_H

#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>

#include "coll/chain.h"

struct nb_coll_comm;

enum { NB_COMM_RUNNING = 0, NB_COMM_CLOSING, NB_COMM_CLOSED };

struct nb_peer_life {             /* of each peer */
    int64_t received_ns, sent_ns; /* when something came last, and a heartbeat was sent */
    int bye, bye_acked,
        our_bye_acked;     /* it has said BYE, which this node has acknowledged; it has acknowledged ours */
    uint64_t bye_count[2]; /* messages it has sent as CONTRIB and RESULT */
    int lost;              /* with this error a connection with it has ended, before it said BYE; 0: none */
    uint64_t confirmed;    /* one more than the newest all-gather that it has confirmed; 0: none */
    int quiet; /* as its last heartbeat said: the rank of a neighbor that it hears nothing of; < 0: none */
    int64_t quiet_ms;          /* for so long */
    struct nb_chain_told told; /* whom it waits for */
};

struct nb_life {
    int64_t tick_ns, late_ns; /* last look at heartbeats; last report of late peers */
    int64_t close_deadline_ns;
    const struct nb_peer
        *quiet; /* the neighbor that nothing has been heard of for longest, too long; or NULL */
    struct nb_chain_life chain;
    int drained;                   /* BYE was sent */
    _Atomic uint64_t late_reports; /* so often; any thread reads it */
    int hurries; /* who closes makes the rounds and time may stand still meanwhile: ABORT is tried once */
};

/* All nodes are connected: time begins to count. */
void nb_comm_begin(struct nb_coll_comm *comm);
/* One round: 1 when something moved, 0 when not, -1 when it has closed and the engine must let go of it. */
int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns);
/* Descriptors to sleep on; -1 when it must be polled. */
int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max);

#endif
