/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator, which all rooms of the engine share: who its nodes are, the rings to its peers, its windows and
 * operations, and the error that it has failed with. Rooms above keep their own state behind a pointer that only they
 * look into. The other headers of this room are sections of this one that stand alone.
 *
 * The rooms, each of which uses those below it:
 *
 *     connect    listen, mesh, handshake, vote; making and closing a communicator
 *     (coll)     the engine and its rounds, and the calls of NCCL that hand windows over
 *     report     metrics, summary, hang report
 *     watch      heartbeats, late peers, lost connections, aborts, graceful shutdown
 *     flow       a window's way: operation, tasks, sending, receiving, sums, forwards, retransmission
 *     schedule   which segment of a window goes where, and who confirms it
 *     decide     what becomes of an operation: its codec and its residual
 *     comm       this one
 *
 * Threads: the ring of windows has one producer at a time (submit.lock) and the engine thread as consumer.
 * All other fields of a communicator belong to the engine thread once connect has handed it over.
 * progress_lock is held while it works, so that statistics can be read. Close waits for closing.detached.
 *
 * Why no two nodes deadlock: NCCL calls windows in the same order on every node, so every connection carries messages in
 * that order, first in, first out. Peers and classes never share buffers, except that an all-gather's unit is kept
 * once for all its receivers, in the same order. What a node does for others (sums, forwards) it does in the order of
 * windows, too (flow/forward.c). The messages that come of it are of class RESULT, and nobody passes these on
 * (schedule/two_level.c tells how it is on a grid). So the oldest unfinished segment of the whole group always finds a
 * buffer at its sender and a credit at its receiver, and by induction everything moves. A peer may have to wait for
 * others of its class (ring.c), but for a bounded time. A receiver asks for bytes out of this order (raw bytes of an
 * all-gather) on CONTROL, which is always read.
 */
#ifndef NIBBLE_COLL_COMM_COMM_H
#define NIBBLE_COLL_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/context.h"
#include "base/minmax.h"
#include "base/turn_lock.h"
#include "coll/comm/grid.h"
#include "coll/comm/node.h"
#include "coll/comm/op.h"
#include "coll/comm/ring.h"
#include "coll/comm/stats.h"
#include "coll/comm/wire.h"
#include "device/device.h"
#include "net/transport.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"
#include "state/reference.h"

struct nb_coll_comm;
struct nb_engine;
struct nb_op;
struct nb_peer;

/* ---- peers ------------------------------------------------------------------------------------------- */

/* Another node of the group: its rings, where it is connected with this one, and what each module keeps for
 * it. */

struct nb_peer_life {             /* of each peer */
    int64_t received_ns, sent_ns; /* when something came last, and a heartbeat was sent */
    int bye, bye_acked,
        our_bye_acked;     /* it has said BYE, which this node has acknowledged; it has acknowledged ours */
    uint64_t bye_count[2]; /* messages it has sent as CONTRIB and RESULT */
    int lost;              /* with this error a connection with it has ended, before it said BYE; 0: none */
    uint64_t confirmed;    /* one more than the newest all-gather that it has confirmed; 0: none */
    int quiet; /* as its last heartbeat said: the rank of a neighbor that it hears nothing of; < 0: none */
    int64_t quiet_ms; /* for so long */
};

/* What of its block is arriving. */
struct nb_peer_gather {
    uint64_t seq; /* receive cursor over windows: its CONTRIB messages */
    /* The all-gather whose segments arrive from their owner itself (direct). */
    uint64_t op, bytes, delivered; /* its number; bytes taken, and delivered */
    int open, keep, kept;          /* some of it has been taken; was to be kept; could be */
    uint64_t next_op;              /* all-gathers before this operation number have arrived whole */
    unsigned tasks; /* in flight with segments of this peer's block, all of operation task_op */
    uint64_t task_op;
};

struct nb_peer {
    int rank;
    char name[112]; /* "node 3 (host, address)" */
    int linked;     /* this node is connected with it: the rings below exist */
    int gone;       /* nothing more is exchanged with it; it said BYE before, or this node is closing */
    struct nb_tx tx[NB_CLASS_COUNT];
    struct nb_rx rx[NB_CLASS_COUNT];
    struct nb_peer_life life;
    struct nb_peer_gather gather;
    struct nb_peer_flow *flow; /* what flow keeps of it */
};

/* ---- closing ----------------------------------------------------------------------------------------- */

/*
 * What who closes a communicator and the engine tell each other. Neither waits for the other with
 * progress_lock: the engine holds it while it works, perhaps for ever (engine.h).
 */

struct nb_closing {
    bool unfinished;      /* written before `asked`: operations are, so that peers must not wait for them */
    _Atomic bool asked;   /* the engine shall end it */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t cond;  /* on CLOCK_MONOTONIC */
    bool detached;        /* the engine has let go of it */
};

/* ---- failing ----------------------------------------------------------------------------------------- */

/*
 * How a communicator fails. The first error wins, is logged once, and stays: every later call on the
 * communicator returns it. Failing only records; at the end of the same round the peers are told (watch/failure.c),
 * and only then do NCCL's calls return it, so that a process that ends at once has told its peers.
 *
 * What is recorded is the cause as its author has found it: a node that hears of it from
 * another passes it on as it is.
 *
 * The end of a connection explains little: its peer may have died, or it may have failed for a reason that it
 * has told, and closed. So that is noted only (nb_comm_suspect), and explained (watch/failure.c) before it counts.
 *
 * For the engine thread, and for others that hold progress_lock.
 */

struct nb_failure {
    _Atomic int error; /* the first, negative errno; 0: none */
    _Atomic int shown; /* what NCCL's calls return: the same once the peers are told; or, earlier, that they
                             * have given up on the engine (engine.h). Any thread */
    int author;        /* the node that found the cause */
    char text[NB_CTL_TEXT]; /* and what it says */
    int64_t suspect_ns;     /* a connection has ended (nb_peer_life.lost): since when; 0: none */
    int64_t abort_ns;       /* since when the peers are being told; 0: not yet */
    int aborts_left;        /* to so many it has not left yet */
};

/* Record the failure `err` (negative errno); the caller has logged why. The peers are sent `why`. Returns the
 * error in force: `err`, or that of an earlier failure. */
int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why);
/* As above, logging the formatted text first; an error after the first is neither logged nor recorded. */
int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* ABORT has come from `via`: log and record what its author says. */
int nb_comm_abort_received(struct nb_coll_comm *comm, const struct nb_peer *via, const struct nb_ctl *abort);
/* A connection with the peer has ended with `err`, which the communicator will not survive, without a
 * graceful shutdown. Returns `err`. */
int nb_comm_suspect(struct nb_coll_comm *comm, struct nb_peer *peer, int err);
/* The calls of NCCL's have given up on this node's engine (engine.h), which goes on: the communicator has
 * failed, and NCCL's memory must not be touched any more. 0, or the error. */
int nb_comm_given_up(struct nb_coll_comm *comm);
/* True when the peer takes no more messages of the class but the operation needs it to: then the communicator
 * has failed. */
bool nb_peer_has_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                      const struct nb_op *op);

/* ---- the communicator -------------------------------------------------------------------------------- */

#define NB_MAX_NODES 4096

/* What the calls of NCCL have seen of the engine (stuck.c). */
struct nb_stuck {
    _Atomic int64_t checked_ms; /* when the engine was last looked at, on the clock of nb_clock_ms */
    _Atomic int64_t waited_ms;  /* for so long it had not made a step */
    _Atomic uint64_t steps;     /* that it had made */
};

enum { NB_COMM_RUNNING = 0, NB_COMM_CLOSING, NB_COMM_CLOSED };

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
    struct nb_reckoning reckoning; /* of sums, by what the nodes have told each other; decide/decide.h */
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
    struct nb_peer **sends_to;  /* and in the order in which they are sent to (connect/setup.c) */
    int nneighbors;
    struct nb_refs *refs;
    struct nb_coll_stats stats;

    /* Windows, numbered from 0. The ring has one producer at a time, under submit.lock. */
    struct nb_coll_req *win;    /* [NB_WINDOWS] */
    _Atomic uint64_t submitted; /* handed over */
    _Atomic uint64_t finished;  /* how many are done */
    uint64_t begun;             /* dequeued by the engine */
    uint64_t oldest;            /* none before this is unfinished */
    int64_t moved_ns;           /* when a window last got on */
    int64_t busy_since_ns;      /* while some window is unfinished: since when */
    unsigned gathering; /* tasks with segments of own blocks of all-gathers: decisions wait for these */
    unsigned
        confirms_open; /* all-gathers that wait for others of the row to confirm them (schedule/confirm.c) */
    struct nb_queue *queue; /* records of this communicator and its children; pushed by any thread */
    size_t staging_bytes;   /* of the budget */

    /* The engine, and whoever closes. */
    struct nb_engine *engine;
    bool engine_held;                  /* a reference to it was taken */
    struct nb_coll_comm *engine_next;  /* the engine's list */
    struct nb_turn_lock progress_lock; /* held while the engine, its keeper, works on this communicator */
    int state;                         /* NB_COMM_RUNNING ... */
    bool drained;                      /* BYE was sent */
    bool works_open;                   /* after its last progress the device had work of it */
    int device_waits; /* the device may get on with something that nobody wakes the engine for */

    /* What a module keeps, and only it changes. */
    struct nb_submit submit;
    struct nb_failure failure;
    struct nb_closing closing;
    struct nb_stuck stuck;
    struct nb_arrivals arrivals;
    struct nb_fair fair[NB_CLASS_COUNT]; /* but CONTROL is never held back */

    /* What the rooms above keep. */
    struct nb_decisions *decisions; /* decide */
    struct nb_confirms *confirms;   /* schedule */
    struct nb_flow *flow;
    struct nb_watch *watch;
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

/* When this node closes: some all-gather is not confirmed yet, so that the peer may ask about it, through
 * this node as well, or has to confirm it. */
static inline bool nb_peer_may_ask(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.bye && (nb_refs_unconfirmed(comm->refs) || comm->confirms_open);
}

/* Whether the peer's connections must not end yet: this node runs, or closes and may be asked by it. */
static inline bool nb_peer_needed(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.bye &&
           (comm->state == NB_COMM_RUNNING || (!comm->drained && nb_peer_may_ask(comm, peer)));
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

/* ---- names of nodes ---------------------------------------------------------------------------------- */

/* Nodes in one line of the log: "node 3 (host, address), nor node 4, 7, 8 and 2 more". */

/* Begin with {.first = -1}. */
struct nb_name_list {
    int first; /* rank of the first; -1: there is none */
    int more;  /* behind it */
    char text[160];
};

/* Another node: the first by its name, a few by their ranks. */
void nb_name_list_add(struct nb_name_list *list, const struct nb_peer *peer);
/* No more: the text is complete. */
void nb_name_list_end(struct nb_name_list *list);

/* ---- control messages -------------------------------------------------------------------------------- */

/*
 * Sending control messages. Between nodes of a grid that are not connected they are relayed by one that is
 * connected with both (grid.h): for an owner and a receiver of its block always the same node, the one in the
 * owner's column and the receiver's row. For the engine thread.
 */

/* Queue a control message for `peer`, from which this node may be two connections away: 0, or < 0 when the
 * communicator has failed because the first on the route has not taken the ones before. To one that has left
 * nothing is sent. */
int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what);
/* The first node on the route of such a message. */
struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to);
/* Queue `ctl`, complete with sender and receiver, on the connection with `hop`. 0 or < 0. */
int nb_control_put(struct nb_coll_comm *comm, struct nb_peer *hop, const struct nb_ctl *ctl);
/* True when a message that came from `via` may have come along its route. */
bool nb_control_came_along_route(const struct nb_coll_comm *comm, const struct nb_peer *via,
                                 const struct nb_ctl *ctl);

#endif
