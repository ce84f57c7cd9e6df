/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the collective engine. The parts:
 *
 *   request.c   what NCCL's proxy thread calls: checks a window, puts it into the ring, reads flags
 *   connect.c   listen, the mesh of connections, the vote
 *   engine.c    the progress thread: a list of communicators, sleep and wake
 *   comm.c      one communicator's progress: order of work, signs of life, errors, farewell
 *   link.c      message rings over transport connections: buffers, credits, completion
 *   direct.c    a schedule: which piece of a window goes to whom (struct nb_schedule_ops is the seam)
 *   send.c      encodes pieces and queues them
 *   receive.c   takes arrived messages: reduces, decodes, answers
 *
 * Threads: the ring of windows has one producer at a time (submit_lock) and the engine thread as consumer.
 * All other fields of a communicator belong to the engine thread once connect has handed it over;
 * progress_lock is held while it works, so that statistics can be read and close can wait.
 *
 * Why nothing can wait in a circle: NCCL calls windows in the same order on every node, so every connection
 * carries messages in that order, first in, first out. Buffers are never shared between peers or classes
 * (except that an all-gather's unit is kept once for all its receivers, in the same order). So the oldest
 * unfinished piece of the whole group always finds a buffer at its sender and a credit at its receiver; by
 * induction everything moves.
 */
#ifndef NIBBLE_COLL_INTERNAL_H
#define NIBBLE_COLL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/wake.h"
#include "coll/coll.h"
#include "coll/stats.h"
#include "coll/wire.h"
#include "device/device.h"
#include "net/transport.h"
#include "policy/align.h"
#include "policy/policy.h"
#include "policy/record.h"
#include "policy/walk.h"
#include "state/feedback.h"
#include "state/reference.h"

#define NB_WINDOWS 256u /* NCCL has at most 8 steps x 8 groups in flight: never runs out */
#define NB_OPS 512u     /* more than windows, so that an operation outlives its last window */
#define NB_MAX_NODES 4096
/* Shorter pieces (slivers that a window boundary cuts off) are not worth a quantizer's header. */
#define NB_MIN_CODED_VALUES 64u

/* ---- operations and windows ------------------------------------------------------------------------ */

struct nb_op {
    uint64_t opno;
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t redop;
    size_t value;       /* bytes of a value */
    uint64_t block;     /* bytes per rank (all-reduce: bytes of the window) */
    /* From here on the engine thread's. */
    int begun;
    enum nb_codec codec;
    enum nb_dtype dtype;
    struct nb_ef_slot *ef;
    uint64_t ef_base; /* all-reduce: index of the window's first value in the slot, a multiple of NB_GROUP */
    int picked;            /* all-gather: the reference was chosen */
    enum nb_ref_outcome outcome;
    struct nb_ref *ref;
    const struct nb_ref *like; /* all-gather: what the content was matched with, also where it cannot be used yet */
    int feedback_settled;  /* reduce-scatter: ef was decided, at the first encoding */
    int64_t record_slot;   /* reduce-scatter: identity by the record, -1: none */
    int changed;           /* all-gather: the own block differs from the time before */
};

enum { NB_REQ_FREE = 0, NB_REQ_ACTIVE, NB_REQ_DONE };

/* A window handed over by NCCL: the request object. */
struct nb_coll_req {
    uint32_t magic;
    _Atomic int state;
    struct nb_coll_comm *comm;
    uint64_t seq;          /* windows of a communicator are numbered from 0 */
    struct nb_op *op;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t off, bytes;   /* range in the operation's vector (all-reduce: 0, length) */
    uint64_t part_off; /* reduce-scatter: where recv points; all-gather: where send points (vector offsets) */
    size_t size;           /* reported by test */
    /* engine thread */
    uint64_t rx_left;      /* bytes still to be delivered here */
    int tx_left;           /* peers whose pieces are not all encoded */
    /* all-reduce: place in NCCL's region (NB_WALK_SLOTS: not there), set when it is handed over; then the
     * first `sure` bytes certainly are values and those from `most` on certainly are not */
    unsigned slot;
    uint64_t at, sure, most;
};
#define NB_REQ_MAGIC 0x4e425251u

/* A piece: at most a wire unit, one owner. Offsets are in the coordinates of nb_coll_req.off. */
struct nb_piece {
    uint64_t off;
    uint32_t len;
    int owner;      /* rank that reduces it (all-gather: that holds it) */
    uint64_t first; /* index of its first value in the owner's block (all-reduce: in the window) */
    /* All-reduce: what this node knows of its values. How a window is cut does not depend on it, since it may
     * differ between nodes; messages say how much of a piece they carry. */
    uint32_t most;  /* bytes from here on are padding (else len) */
    int sure;       /* all bytes before are values, so they may be coded */
};

/* The seam between "which piece goes where" and "how it gets there". Pieces of a window are enumerated in the
 * same order on every node; `from` is where the search starts. 1 and *piece, or 0 when there is none left. */
struct nb_schedule_ops {
    const char *name;
    /* Called once, when the engine takes the window up: bytes to be delivered here. */
    uint64_t (*begin)(struct nb_coll_comm *comm, struct nb_coll_req *win);
    /* Next piece this node sends to `peer` as CONTRIB. */
    int (*next_send)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_piece *piece);
    /* Next piece this node reduces. */
    int (*next_reduce)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_piece *piece);
    /* Next piece that `owner` reduces or, in an all-gather, holds. */
    int (*next_owned)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                      struct nb_piece *piece);
    /* The piece that starts at `off`. */
    int (*piece_at)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                    struct nb_piece *piece);
};
extern const struct nb_schedule_ops nb_schedule_direct;

/* ---- links ----------------------------------------------------------------------------------------- */

/* Receive side of one class from one peer: a ring of slots, filled in order, freed in order. */
struct nb_rx {
    void *conn;
    void *mhandle;
    uint8_t *mem;
    size_t slot;     /* bytes a slot */
    unsigned slots;  /* credits */
    unsigned window; /* receives posted at once */
    void **req;
    size_t *len;
    uint64_t posted, arrived, taken; /* counters; slot = counter % slots */
    int closed;      /* nothing more arrives; what has arrived may still be taken */
    int parsed;      /* head below is that of slot `taken` */
    struct nb_msg head;
    int head_bytes;
};

struct nb_shared;

struct nb_tx_item {
    const void *data;
    size_t len;
    void *req;
    struct nb_shared *shared; /* not NULL: data is the shared unit's */
};

/* Send side: items in order; each has a buffer of its own at mem + (number % slots) * slot. */
struct nb_tx {
    void *conn;
    void *mhandle;
    void *shared_mhandle;
    uint8_t *mem;
    size_t slot;
    unsigned slots;
    struct nb_tx_item *item;
    uint64_t queued, sent, done;
    int closed;      /* the peer takes nothing more: what is pushed is dropped */
};

/* A unit that goes to every peer, kept until the last has taken it. */
struct nb_shared {
    uint8_t *buf;
    size_t len;
    int left;       /* peers that have not finished sending it */
    uint64_t opno, off;
};

struct nb_pool { /* ring of shared units */
    uint8_t *mem;
    size_t slot;
    unsigned slots;
    struct nb_shared *unit;
    uint64_t head, tail;
};

struct nb_peer {
    int rank;
    char name[112]; /* "node 3 (host, address)" */
    struct nb_tx tx[NB_CLASS_COUNT];
    struct nb_rx rx[NB_CLASS_COUNT];
    /* send cursor over windows */
    uint64_t tx_seq, tx_off;
    int tx_started;     /* tx_off belongs to tx_seq */
    uint64_t gather_next; /* next shared all-gather unit to queue */
    /* receive cursors over windows */
    uint64_t rx_seq, result_seq;
    /* the all-gather that is arriving */
    uint64_t gather_op, gather_bytes;
    int gather_open, gather_keep, gather_kept;
    uint64_t gathers_done;  /* all-gathers before this operation number have arrived whole */
    uint64_t result_off;    /* of the window result_win: where the next result must begin or lie behind */
    uint64_t result_win;
    int asked_raw;      /* the head of CONTRIB waits for its raw bytes */
    struct { uint64_t opno, off; uint32_t len; } ask[64]; /* raw bytes that this peer asked us for */
    unsigned nask;
    /* life */
    int64_t heard_ns, told_ns;
    int bye, bye_acked, our_bye_acked;
    int gone; /* nothing more is exchanged with it; it said BYE before, or this node is closing */
    uint64_t bye_count[2];
};

/* ---- communicator ---------------------------------------------------------------------------------- */

enum { NB_COMM_RUNNING = 0, NB_COMM_CLOSING, NB_COMM_CLOSED };

struct nb_engine;

struct nb_coll_comm {
    uint32_t magic;
    int dev, nranks, rank;
    uint64_t comm_id;
    uint32_t token;
    char label[64];                /* for messages: "comm 0x... node r/n" */
    const struct nb_net_ops *net;
    const struct nb_device_ops *device;
    const struct nb_schedule_ops *schedule;
    struct nb_engine *engine;
    struct nb_coll_comm *engine_next; /* the engine's list */
    size_t unit;                   /* bytes of a wire unit before coding */
    size_t unit_slot;              /* bytes of a buffer that holds any coded unit with its header */
    size_t staging;                /* taken from the budget */

    /* submit side */
    pthread_mutex_t submit_lock;
    struct nb_coll_req *win;       /* [NB_WINDOWS] */
    struct nb_op *ops;             /* [NB_OPS] */
    _Atomic uint64_t submitted;    /* windows handed over */
    _Atomic uint64_t finished;     /* windows done */
    uint64_t next_opno;
    struct nb_op *open_op;         /* whose next window must start at open_off; NULL: none */
    uint64_t open_off;
    struct {
        void *base;
        size_t size;
        unsigned refs;
    } region[2]; /* NCCL's buffer in host memory, in device memory */

    _Atomic int error;             /* sticky, negative errno */

    /* engine thread */
    pthread_mutex_t progress_lock;
    pthread_cond_t closed_cond;
    int state;
    struct nb_peer *peer;          /* [nranks]; own entry unused */
    struct nb_pool gather, result; /* shared units of all-gathers (CONTRIB) and of all-reduces (RESULT) */
    uint64_t begun;                /* windows taken up */
    uint64_t oldest;               /* no window before this is unfinished */
    uint64_t red_seq, red_off;     /* reduce cursor */
    int red_started;
    struct nb_source *sources;     /* [nranks], scratch */
    const void **plain;            /* [nranks], scratch */
    struct nb_feedback *feedback;
    struct nb_refs *refs;
    struct nb_signatures *signatures;
    struct nb_queue *queue;        /* records of this communicator and its children, any thread */
    struct nb_align *align;        /* which of them is whose */
    struct nb_walk walk;           /* the all-reduce whose windows are coming in */
    struct {
        ncclDataType_t type;
        ncclRedOp_t op;
        int known;                 /* its record is certain; `extent` is set */
        struct nb_extent extent;
        uint64_t heads_told;       /* as the record has them */
        struct nb_ef_slot *ef;
        enum nb_codec codec;
    } ar;
    struct { uint64_t told, left; } heads[4]; /* heads that lengths of operations have left over */
    unsigned said;                 /* bit: why a record was not used has been said */
    struct nb_coll_stats stats;
    uint64_t reasons[NB_FUNC_COUNT][NB_REASON_COUNT];
    int64_t tick_ns, late_ns, moved_ns, close_deadline_ns;
    int drained;                   /* BYE was sent */
    int fault_ref;                 /* for tests: damage every third reference before use; counts them */
    int detached;                  /* the engine has let go of it */
};
#define NB_COMM_MAGIC 0x4e42434du

static inline struct nb_coll_req *nb_window(const struct nb_coll_comm *comm, uint64_t seq)
{
    return &comm->win[seq % NB_WINDOWS];
}

/* ---- functions between the parts ------------------------------------------------------------------- */

/* comm.c */
/* Make the communicator fail with `err`; the caller has logged why. `why` goes to the peers. Returns err. */
int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why);
/* As above, logging the formatted text first. */
int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* One round: 1 when something moved, 0 when not, -1 when it has closed and the engine must let go of it. */
int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns);
/* Descriptors to sleep on; -1 when it must be polled. */
int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max);
/* Account for delivered bytes and for peers done with; finishes the window when nothing is left. */
void nb_window_received(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);
void nb_window_sent(struct nb_coll_comm *comm, struct nb_coll_req *win);
void nb_comm_log_summary(struct nb_coll_comm *comm);

/* operation.c: settle what is known of the operation that a window begins or continues; in window order. */
void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win);
/* Error state of block `block` (all-reduce: of the window) of an operation that has a slot. */
void nb_op_feedback(const struct nb_op *op, uint32_t block, struct nb_ef *ef);
/* A reduce-scatter's error slot is decided when its first piece is encoded: in the order of operations, so that
 * what counts as a step does not depend on how far NCCL or a peer is ahead. */
void nb_op_settle_feedback(struct nb_coll_comm *comm, struct nb_op *op);

/* link.c; functions return > 0 when something moved, 0, or a negative errno. */
int nb_tx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx);
int nb_rx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx);
/* Buffer for the next item, or NULL when all are in use. */
static inline void *nb_tx_buffer(struct nb_tx *tx)
{
    return tx->queued - tx->done < tx->slots ? tx->mem + (tx->queued % tx->slots) * tx->slot : NULL;
}
void nb_tx_push(struct nb_tx *tx, const void *data, size_t len, struct nb_shared *shared);
/* Oldest arrived message or NULL; data messages are parsed and checked once (an error fails the
 * communicator). */
const uint8_t *nb_rx_head(struct nb_coll_comm *comm, struct nb_peer *peer, enum nb_class cls);
void nb_rx_take(struct nb_rx *rx);
/* Queue a control message; the communicator fails when the peer has not taken the ones before. */
int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what);

/* send.c, receive.c: > 0 moved, 0 not, < 0 failed */
int nb_send_progress(struct nb_coll_comm *comm);
int nb_resend_progress(struct nb_coll_comm *comm, struct nb_peer *peer);
int nb_receive_progress(struct nb_coll_comm *comm);

/* engine.c */
struct nb_engine *nb_engine_acquire(void);
void nb_engine_release(struct nb_engine *engine);
void nb_engine_add(struct nb_engine *engine, struct nb_coll_comm *comm);
/* Wake the thread when it sleeps. Cheap otherwise; any thread. */
void nb_engine_kick(struct nb_engine *engine);
/* Make the thread look at once. */
void nb_engine_wake(struct nb_engine *engine);

#endif
