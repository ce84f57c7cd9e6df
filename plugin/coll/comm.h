/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator, and what the parts of the engine share of it. The parts:
 *
 *   request.c   what NCCL's proxy thread calls: checks a window, puts it into the ring, reads flags
 *   region.c    NCCL's registrations of its own buffer
 *   grid.c      who is connected with whom
 *   connect.c   listen and connect in steps, with mesh.c: connections and hellos, handshake.c: messages on
 *               them, ballot.c: what nodes tell each other then, vote.c: the vote, the group's token, and
 *               reason.c: why there is no group
 *   close.c     the end of a communicator
 *   stuck.c     an engine that makes no steps
 *   setup.c     making and freeing its object, with staging.c: memory of messages, its registration
 *   engine.c    a node's progress: a list of communicators, and one round over them; engine_thread.c: the
 *               thread that makes the rounds, its sleep and wake-up
 *   node.c      what the communicators of a node share
 *   progress.c  one communicator's progress: order of work, heartbeats; shutdown.c: its graceful end
 *   facts.c     what nodes tell each other of link and codec, and what follows for sums
 *   fail.c      the first error is recorded; loss.c: why a connection has ended; abort.c: the peers are told
 *   name_list.c nodes in one line of the log
 *   late.c      whom the oldest unfinished window waits for; chain.c: and whom that one waits for, and so on
 *   window.c    what is left to do of a window
 *   pace.c      whether this processor is the limit
 *   control_send.c  control messages and their routes, also between nodes that are not connected
 *   control.c   reading and relaying them
 *   kill_switch.c  compression is switched off and on; control_file.c: the file that says so
 *   confirm.c   confirmations of all-gathers on a grid
 *   retransmit.c  raw bytes that a receiver asks for again
 *   link.c      message rings over transport connections: buffers, credits, completion
 *   watch.c     which receive rings may have got something
 *   fair.c      how the peers share this node's link
 *   schedule.c  which schedule an operation takes (struct nb_schedule_ops is the seam between them and the
 *               rest)
 *   direct.c    a schedule: every segment goes straight to where it is needed
 *   cut.c       the cut of a window that the next three share
 *   two_hop_gather.c   a schedule of all-gathers: segments are scattered, and forwarded by who gets them
 *   two_hop_reduce.c   a schedule of reduce-scatters: segments are summed by others on the way to their owner
 *   two_level.c the schedule of grids: along rows and columns
 *   cursor.c    the order in which windows and segments are worked on
 *   scatter.c   sending segments to those who forward them
 *   forward.c   forwarding them
 *   task.c      what the device does with a segment, step by step, many at a time
 *   send.c      encodes segments and queues them
 *   gather.c    what is sent of an all-gather's own block
 *   message.c   messages against operations and windows
 *   payload.c   their check values
 *   receive.c   looks at what has arrived
 *   result.c    results of sums that arrive
 *   take_gather.c   blocks of all-gathers that arrive
 *   reduce.c    sums of what arrives from all, and what becomes of them
 *   operation.c what an operation is: its record, and which bytes of an all-reduce are values
 *   decision.c  what is done with it: codec, error slot
 *   figures.c   what a communicator has done so far; report.c: the summary at close
 *   monitor.c   the thread that writes them while the job runs: metrics.c; and waits.c: what it waits for
 *
 * Threads: the ring of windows has one producer at a time (submit.lock) and the engine thread as consumer.
 * All other fields of a communicator belong to the engine thread once connect has handed it over;
 * progress_lock is held while it works, so that statistics can be read; close waits for closing.detached.
 *
 * Why no two nodes deadlock: NCCL calls windows in the same order on every node, so every connection
 * carries messages in that order, first in, first out. Buffers are never shared between peers or classes
 * (except that an all-gather's unit is kept once for all its receivers, in the same order). What a node does
 * for others (sums, forwards) it does in the order of windows, too (forward.h), and queues what comes of it
 * as RESULT, which nobody passes on (two_level.c tells how it is on a grid). So the oldest unfinished
 * segment of the whole group always finds a buffer at its sender and a credit at its receiver; by induction
 * everything moves. That a peer may have to wait for
 * others of its class (fair.c) does not change this: it waits for a bounded time only. What a receiver needs
 * out of this order (bytes it has to ask for again) comes as CONTROL, which is always read.
 */
#ifndef NIBBLE_COLL_COMM_H
#define NIBBLE_COLL_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/context.h"
#include "base/minmax.h"
#include "base/turn_lock.h"
#include "coll/closing.h"
#include "coll/coll.h"
#include "coll/confirm.h"
#include "coll/cursor.h"
#include "coll/decision.h"
#include "coll/fail.h"
#include "coll/fair.h"
#include "coll/forward.h"
#include "coll/gather.h"
#include "coll/gather_notes.h"
#include "coll/grid.h"
#include "coll/kill_switch.h"
#include "coll/link.h"
#include "coll/message.h"
#include "coll/node.h"
#include "coll/op.h"
#include "coll/operation.h"
#include "coll/pace.h"
#include "coll/peer.h"
#include "coll/progress.h"
#include "coll/reduce.h"
#include "coll/schedule.h"
#include "coll/segment.h"
#include "coll/send.h"
#include "coll/staging.h"
#include "coll/stats.h"
#include "coll/stuck.h"
#include "coll/submit.h"
#include "coll/task.h"
#include "coll/watch.h"
#include "coll/window.h"
#include "coll/wire.h"
#include "coll/witness.h"
#include "device/device.h"
#include "net/transport.h"
#include "policy/comm_rules.h"
#include "policy/reckon.h"
#include "state/reference.h"

struct nb_engine;

#define NB_MAX_NODES 4096

struct nb_coll_comm {
    uint32_t magic;
    struct nb_context *ctx;    /* the node that this is a communicator of; lent, outlives it */
    struct nb_coll_node *node; /* what the node's communicators share */
    int dev, nnodes, rank;     /* net device; nodes of the group; which of them this is */
    int gpu;                   /* CUDA ordinal of the GPU that it is of, -1: none */
    uint64_t comm_id;
    uint32_t token;
    char label[64];           /* for messages: "comm 0x... node r/n" */
    struct nb_comm_info info; /* what is known of NCCL's communicator; set by connect */
    char traits[192];         /* the same as a rule of NIBBLE_COMMS */
    struct nb_comm_rules rules;
    struct nb_reckoning reckoning; /* of sums, by what the nodes have told each other; facts.h */
    const struct nb_net_ops *net;
    struct nb_device *device;
    int device_error; /* the one wanted could not be made: a no at the vote */
    size_t unit;      /* bytes of a wire unit before coding */
    size_t unit_slot; /* bytes of a buffer that holds any coded unit with its header */
    int shadow;       /* NIBBLE_SHADOW: everything is sent raw, codecs run beside it */
    int fault_ref;    /* for tests: damage every third reference before use; counts them */
    struct nb_grid grid;
    struct nb_peer *peer;       /* [nnodes]; own entry unused */
    struct nb_peer **neighbors; /* [nneighbors] those that this node is connected with, by rank */
    struct nb_peer **sends_to;  /* and in the order in which they are sent to (setup.c) */
    int nneighbors;
    struct nb_refs *refs;
    struct nb_coll_stats stats;

    /* Windows, numbered from 0. The ring has one producer at a time, under submit.lock. */
    struct nb_coll_req *win;    /* [NB_WINDOWS] */
    _Atomic uint64_t submitted; /* handed over */
    _Atomic uint64_t finished;  /* how many are done */
    uint64_t begun;             /* dequeued by the engine */
    bool taken_up;        /* the next after those: its operation has begun, and its values are looked at */
    uint64_t oldest;      /* none before this is unfinished */
    uint64_t gathers_end; /* the first behind the last all-gather's that was dequeued */

    /* The engine, and whoever closes. */
    struct nb_engine *engine;
    bool engine_held;                  /* a reference to it was taken */
    struct nb_coll_comm *engine_next;  /* the engine's list */
    struct nb_turn_lock progress_lock; /* held while the engine, its keeper, works on this communicator */
    int state;                         /* NB_COMM_RUNNING ... */
    bool works_open;                   /* after its last progress the device had work of it */
    int device_waits; /* the device may get on with something that nobody wakes the engine for */

    /* What each module keeps, and only it changes. */
    struct nb_staging staging;
    struct nb_submit submit;
    struct nb_failure failure;
    struct nb_closing closing;
    struct nb_stuck stuck;
    struct nb_life life;
    struct nb_pace pace;
    struct nb_watch watch;
    struct nb_fair fair[NB_CLASS_COUNT]; /* but CONTROL is never held back */
    struct nb_tasks tasks;
    struct nb_records records;
    struct nb_witnesses witnesses;
    struct nb_decisions decisions;
    struct nb_kill_switch kill_switch;
    struct nb_scratch scratch;
    struct nb_gather gather;
    struct nb_cursor scatter;
    struct nb_reduce reduce;
    struct nb_forward forward;
    struct nb_gather_notes notes;
    struct nb_retransmits retransmits;
    struct nb_confirms confirms;
};
#define NB_COMM_MAGIC 0x4e42434du

/* 1 when the nodes are connected in rows and columns, and every operation goes in two levels. */
static inline int nb_on_grid(const struct nb_coll_comm *comm)
{
    return comm->grid.rows > 1;
}

/* The i-th of the nodes that this one is connected with, in the order in which they are sent to. */
static inline struct nb_peer *nb_next_neighbor(const struct nb_coll_comm *comm, int i)
{
    return comm->sends_to[i];
}

/* Something that is queued for the peer has not left. */
static inline bool nb_peer_has_not_taken(const struct nb_peer *peer)
{
    return peer->raw.n || peer->tx[NB_CLASS_CONTRIB].done < peer->tx[NB_CLASS_CONTRIB].queued ||
           peer->tx[NB_CLASS_RESULT].done < peer->tx[NB_CLASS_RESULT].queued;
}

/* When this node closes: some all-gather is not confirmed yet, so that the peer may ask about it, through
 * this node as well, or has to confirm it. */
static inline bool nb_peer_may_ask(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.bye && (nb_refs_unconfirmed(comm->refs) || nb_confirms_wait(&comm->confirms));
}

/* Whether the peer's connections must not end yet: this node runs, or closes and may be asked by it. */
static inline bool nb_peer_needed(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.bye &&
           (comm->state == NB_COMM_RUNNING || (!comm->life.drained && nb_peer_may_ask(comm, peer)));
}

static inline struct nb_coll_req *nb_window(const struct nb_coll_comm *comm, uint64_t seq)
{
    return &comm->win[seq % NB_WINDOWS];
}

/* The error that the communicator has failed with, a negative errno, or 0. Any thread. */
static inline int nb_comm_failed(const struct nb_coll_comm *comm)
{
    return atomic_load(&comm->failure.error);
}

/* What calls of NCCL's return: 0, or the error once the peers have been told of it. Any thread. */
static inline int nb_comm_shown_error(const struct nb_coll_comm *comm)
{
    return atomic_load(&comm->failure.shown);
}

#endif
