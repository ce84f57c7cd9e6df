/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator, which all folders of the engine share: its nodes, the rings to its peers, its windows and
 * operations, and the error with which it has failed. Folders above keep their own state behind a pointer.
 * The other headers of this folder are parts of this one that stand alone.
 *
 * The folders of the engine. Each uses the folders below it:
 *
 *     connect    listen, mesh, handshake, vote. Creating and closing a communicator
 *     (coll)     the engine and its rounds, and the calls of NCCL that hand windows over
 *     report     metrics, summary, hang report
 *     watch      heartbeats, late peers, lost connections, aborts, graceful shutdown
 *     flow       the way of a window: operation, tasks, sending, receiving, sums, forwards, retransmission
 *     schedule   where each segment of a window goes, and which node confirms it
 *     decide     codec and residual of an operation
 *     comm       this folder
 *
 * Threads: the ring of windows has one producer at a time (submit.lock) and the engine thread as consumer.
 * All other fields belong to the engine thread once connect has handed the communicator over. The engine
 * thread holds progress_lock while it works, so that other threads can read statistics. Close waits for
 * closing.detached.
 *
 * Nodes do not deadlock. NCCL calls windows in the same order on every node. So every connection carries
 * messages in that order, first in, first out. Peers and classes have buffers of their own, except that an
 * all-gather's unit is kept once for all its receivers, in the same order. A node works for other nodes
 * (sums, forwards) in the order of windows, too (flow/forward.c). It sends these messages with class RESULT,
 * and they end at their receiver (schedule/two_level.c explains grids). So the oldest unfinished segment of
 * the group always finds a buffer at its sender and a credit at its receiver, and by induction everything
 * moves. A peer may wait for slower peers of its class (ring.c), for a bounded time. Requests for raw bytes
 * of an all-gather are outside this order: they travel as CONTROL, which every node always reads.
 */
#ifndef NIBBLE_COLL_COMM_COMM_H
#define NIBBLE_COLL_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/context.h"
#include "base/minmax.h"
#include "base/sync.h"
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

struct nb_peer_life {                  /* heartbeats, FIN and loss of a peer */
    int64_t received_ns, sent_ns;      /* the last arrival of any message, the last heartbeat sent */
    int fin, fin_acked, our_fin_acked; /* FIN has arrived, was acknowledged, the peer has acknowledged ours */
    uint64_t fin_count[2];             /* messages that the peer has sent as CONTRIB and as RESULT */
    int lost;                          /* the error with which a connection has ended before FIN, or 0 */
    uint64_t confirmed;                /* 1 + the newest all-gather that the peer has confirmed, or 0 */
    int quiet;                         /* the silent neighbor that its last heartbeat reports, or < 0 */
    int64_t quiet_ms;                  /* time of that neighbor's silence */
};

/* The block of an all-gather that is arriving from a peer. */
struct nb_peer_gather {
    uint64_t seq; /* the window of the peer's next CONTRIB message */
    /* Direct schedule: the operation that its segments belong to. */
    uint64_t op, bytes, delivered; /* number of the operation, bytes taken, and bytes delivered */
    int open, keep, kept;          /* some bytes were taken, they are to be kept, all of them could be kept */
    uint64_t next_op;              /* every all-gather before this operation has arrived */
    unsigned tasks;                /* tasks in flight with its segments, all of operation task_op */
    uint64_t task_op;
};

struct nb_peer {
    int rank;
    char name[112]; /* "node 3 (host, address)" */
    int linked;     /* this node is connected with the peer: the rings below exist */
    int gone;       /* the exchange is over: the peer has sent FIN, or this node is closing */
    struct nb_tx tx[NB_CLASS_COUNT];
    struct nb_rx rx[NB_CLASS_COUNT];
    struct nb_peer_life life;
    struct nb_peer_gather gather;
    struct nb_peer_flow *flow; /* private to flow */
};

/* ---- closing ----------------------------------------------------------------------------------------- */

/*
 * The messages between the thread that closes a communicator and the engine. They need no progress_lock,
 * which the engine holds while it works, perhaps for ever (stuck.c).
 */

struct nb_closing {
    bool unfinished;      /* operations are open, so peers must not wait for them. Written before `asked` */
    _Atomic bool asked;   /* asks the engine to end the communicator */
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t cond;  /* on CLOCK_MONOTONIC */
    bool detached;        /* the engine has let go of the communicator */
};

/* ---- failing ----------------------------------------------------------------------------------------- */

/*
 * How a communicator fails. The first error wins. It is logged once, and every later call on the communicator
 * returns it. nb_comm_fail only records the error. At the end of the same round watch/failure.c sends ABORT
 * to the peers. Only then do NCCL's calls return the error. So the peers know the cause even if the process
 * exits at once.
 *
 * The record is the cause as its author, the node that found it, describes it. Other nodes pass it on
 * unchanged.
 *
 * The end of a connection explains little. The peer may have died. Or it may have failed for a reason that it
 * has sent, and then closed. So nb_comm_suspect only notes the end, and watch/failure.c explains it before it
 * counts.
 *
 * For the engine thread, and for threads that hold progress_lock.
 */

struct nb_failure {
    _Atomic int error; /* the first error, a negative errno, or 0 */
    /* The result of NCCL's calls: the error after ABORT was sent to the peers, or -ETIMEDOUT when the calls
     * have given up on the engine (stuck.c). Any thread. */
    _Atomic int shown;
    int author;             /* the node that found the cause */
    char text[NB_CTL_TEXT]; /* its description */
    int64_t suspect_ns;     /* when a connection was lost (nb_peer_life.lost), or 0 */
    int64_t abort_ns;       /* when ABORT was queued, or 0 */
    int aborts_left;        /* peers for which ABORT has not left yet */
};

/* Record the failure `err` (negative errno), which the caller has logged, and send `why` to the peers. Return
 * the error in force: `err`, or the error of an earlier failure. */
int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why);
/* Do the same, but log the formatted text first. Errors after the first are dropped. */
int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Handle an ABORT from `via`: log and record its author's description. */
int nb_comm_abort_received(struct nb_coll_comm *comm, const struct nb_peer *via, const struct nb_ctl *abort);
/* Note that a connection with the peer has ended with `err` and without a FIN. Return `err`. */
int nb_comm_suspect(struct nb_coll_comm *comm, struct nb_peer *peer, int err);
/* Fail the communicator if NCCL's calls have given up on this node's engine (stuck.c): from then on the
 * engine must leave NCCL's memory alone. Return 0 or the error. */
int nb_comm_given_up(struct nb_coll_comm *comm);
/* Fail the communicator if the peer has stopped taking messages of the class, which the operation needs.
 * Return true in that case. */
bool nb_peer_has_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                      const struct nb_op *op);

/* ---- the communicator -------------------------------------------------------------------------------- */

#define NB_MAX_NODES 4096

/* The engine as NCCL's calls have last seen it (stuck.c). */
struct nb_stuck {
    _Atomic int64_t checked_ms; /* time of the last check, of nb_clock_ms */
    _Atomic int64_t waited_ms;  /* time for which the engine had made no step */
    _Atomic uint64_t steps;     /* the steps that it had made */
};

enum { NB_COMM_RUNNING = 0, NB_COMM_CLOSING, NB_COMM_CLOSED };

struct nb_coll_comm {
    uint32_t magic;
    struct nb_context *ctx;    /* the node's context. Lent, outlives the communicator */
    struct nb_coll_node *node; /* shared by the node's communicators */
    int dev, nnodes, rank;     /* net device, nodes of the group, this node's rank */
    int gpu;                   /* CUDA ordinal of its GPU, or -1 */
    uint64_t comm_id;
    uint32_t token;
    char label[64];           /* for the log: "comm 0x... node r/n" */
    struct nb_comm_info info; /* properties of NCCL's communicator. Set by connect */
    char traits[192];         /* the same as a rule of NIBBLE_COMMS */
    struct nb_comm_rules rules;
    struct nb_reckoning
        reckoning; /* when coding sums pays, from the facts of all nodes (decide/reckoning.c) */
    const struct nb_net_ops *net;
    struct nb_device *device;
    int device_error;    /* negative errno of opening the wanted device, or 0. An error is a no at the vote */
    size_t unit;         /* bytes of a wire unit before coding */
    size_t buffer_bytes; /* bytes of a buffer that holds any coded unit with its header */
    int shadow;          /* NIBBLE_SHADOW: send everything raw and run the codecs beside it */
    int fault_ref;       /* for tests: counts references and damages every third */
    struct nb_grid grid;
    struct nb_peer *peer;       /* [nnodes]. The own entry is unused */
    struct nb_peer **neighbors; /* [nneighbors] the connected nodes, by rank */
    struct nb_peer **sends_to;  /* [nneighbors] the same, in the order of sending (connect/setup.c) */
    int nneighbors;
    struct nb_refs *refs;
    struct nb_coll_stats stats;

    /* Windows, numbered from 0. The ring has one producer at a time, under submit.lock. */
    struct nb_coll_req *win;    /* [NB_WINDOWS] */
    _Atomic int asked;          /* NCCL has asked for a window that is not done, since the last step */
    int64_t asked_ns;           /* time of the last step at which it had, or nothing was open */
    _Atomic uint64_t submitted; /* handed over by NCCL */
    _Atomic uint64_t finished;  /* done */
    uint64_t begun;             /* dequeued by the engine */
    uint64_t oldest;            /* the oldest open window: all earlier windows are done */
    int64_t moved_ns;           /* time of the last progress of a window */
    int64_t busy_since_ns;      /* time since which a window has been open */
    unsigned gathering;     /* tasks with segments of own blocks of all-gathers. Decisions wait for them */
    unsigned confirms_open; /* all-gathers that this node's row has to confirm (schedule/confirm.c) */
    struct nb_queue *queue; /* records of operations. Any thread pushes */
    size_t staging_bytes;   /* memory of the rings, part of the budget */

    /* The engine, and the thread that closes. */
    struct nb_engine *engine;
    bool engine_held;                  /* nb_engine_acquire succeeded */
    struct nb_coll_comm *engine_next;  /* the next in the engine's list */
    struct nb_turn_lock progress_lock; /* the engine thread keeps it while it works on the communicator */
    int state;                         /* NB_COMM_RUNNING ... */
    bool drained;                      /* FIN was sent */
    bool works_open;                   /* the device had work in flight after the last round */
    int device_waits;                  /* the device may finish work without waking the engine */

    /* One file owns each of these and alone changes it. */
    struct nb_submit submit;
    struct nb_failure failure;
    struct nb_closing closing;
    struct nb_stuck stuck;
    struct nb_arrivals arrivals;
    struct nb_fair fair[NB_CLASS_COUNT]; /* CONTROL is exempt */

    /* State of the folders above, private to them. */
    struct nb_decisions *decisions; /* decide */
    struct nb_confirms *confirms;   /* schedule */
    struct nb_flow *flow;
    struct nb_watch *watch;
};
#define NB_COMM_MAGIC 0x4e42434du

/* Return true when the nodes form a grid: then every operation goes in two levels. */
static inline int nb_on_grid(const struct nb_coll_comm *comm)
{
    return comm->grid.rows > 1;
}

/* Return the i-th neighbor in the order of sending. */
static inline struct nb_peer *nb_next_neighbor(const struct nb_coll_comm *comm, int i)
{
    return comm->sends_to[i];
}

/* While this node closes, return true when the peer may still request raw bytes of an all-gather, of this
 * node or through it, or has to confirm an all-gather. */
static inline bool nb_peer_may_ask(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.fin && (nb_refs_unconfirmed(comm->refs) || comm->confirms_open);
}

/* Return true when this node still needs the peer's connections: it runs, or it closes and the peer may
 * ask. */
static inline bool nb_peer_needed(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return !peer->life.fin &&
           (comm->state == NB_COMM_RUNNING || (!comm->drained && nb_peer_may_ask(comm, peer)));
}

static inline struct nb_coll_req *nb_window(const struct nb_coll_comm *comm, uint64_t seq)
{
    return &comm->win[seq % NB_WINDOWS];
}

/* Return the error that the communicator has failed with, or 0. Any thread. */
static inline int nb_comm_failed(const struct nb_coll_comm *comm)
{
    return atomic_load(&comm->failure.error);
}

/* Return the result of NCCL's calls: 0, or the error after ABORT was sent to the peers. Any thread. */
static inline int nb_comm_shown_error(const struct nb_coll_comm *comm)
{
    return atomic_load(&comm->failure.shown);
}

/* ---- names of nodes ---------------------------------------------------------------------------------- */

/* A list of nodes for the log: "node 3 (host, address), nor node 4, 7, 8 and 2 more". Begin with {.first =
 * -1}. */

struct nb_name_list {
    int first; /* rank of the first node, or -1 for an empty list */
    int more;  /* nodes after the first */
    char text[160];
};

/* Add a node: the first by its name, a few more by their ranks. */
void nb_name_list_add(struct nb_name_list *list, const struct nb_peer *peer);
/* Complete the text. */
void nb_name_list_end(struct nb_name_list *list);

/* ---- control messages -------------------------------------------------------------------------------- */

/*
 * Control messages. Nodes of a grid that are not connected send them through a relay that is connected with
 * both (grid.h). For an owner and a receiver of its block the relay is always the same node: the node in the
 * owner's column and the receiver's row. For the engine thread.
 */

/* Queue a control message for `peer`, which may be two connections away. Drop it if the peer has left. Return
 * 0, or < 0 when the communicator has failed because the first hop has not taken earlier messages. */
int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what);
/* Return the first hop of a control message to node `to`. */
struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to);
/* Queue `ctl`, which names its sender and receiver, on the connection with `hop`. Return 0 or < 0. */
int nb_control_put(struct nb_coll_comm *comm, struct nb_peer *hop, const struct nb_ctl *ctl);
/* Return true when a message from `via` may have come along its route. */
bool nb_control_came_along_route(const struct nb_coll_comm *comm, const struct nb_peer *via,
                                 const struct nb_ctl *ctl);

#endif
