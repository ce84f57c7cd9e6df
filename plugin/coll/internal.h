/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the collective engine. The parts:
 *
 *   request.c   what NCCL's proxy thread calls: checks a window, puts it into the ring, reads flags
 *   grid.c      who is connected with whom
 *   connect.c   listen and connect, with mesh.c: connections and greetings, and vote.c: the vote, the group's token
 *   engine.c    the progress thread: a list of communicators, sleep and wake
 *   comm.c      one communicator's progress: order of work, signs of life, errors, farewell
 *   control.c   control messages, also between nodes that are not connected
 *   link.c      message rings over transport connections: buffers, credits, completion
 *   watch.c     which receive rings may have got something
 *   fair.c      how the peers share this node's link
 *   schedule.c  which schedule an operation takes (struct nb_schedule_ops is the seam between them and the rest)
 *   direct.c    a schedule: every piece goes straight to where it is needed
 *   cut.c       what the next three share: the cut of a window, and
 *   forward.c   how a message is sent on
 *   two_hop_gather.c   a schedule of all-gathers: pieces are scattered, and forwarded by who gets them
 *   two_hop_reduce.c   a schedule of reduce-scatters: pieces are summed by others on the way to their owner
 *   two_level.c the schedule of grids: along rows and columns
 *   task.c      what the device does with a piece, step by step, many at a time
 *   send.c      encodes pieces and queues them
 *   gather.c    what is sent of an all-gather's own block
 *   receive.c   finds the window of an arrived message; results
 *   take_gather.c   blocks of all-gathers that arrive
 *   reduce.c    sums of what arrives from all, and what becomes of them
 *   operation.c what an operation is: its record, and which bytes of an all-reduce are values
 *   decision.c  what is done with it: codec, error slot
 *   report.c    the summary at close
 *
 * Threads: the ring of windows has one producer at a time (submit_lock) and the engine thread as consumer.
 * All other fields of a communicator belong to the engine thread once connect has handed it over;
 * progress_lock is held while it works, so that statistics can be read and close can wait.
 *
 * Why nothing can wait in a circle: NCCL calls windows in the same order on every node, so every connection
 * carries messages in that order, first in, first out. Buffers are never shared between peers or classes
 * (except that an all-gather's unit is kept once for all its receivers, in the same order). What a node does for
 * others (sums, forwards) it does in the order of windows, too, with one cursor for all of it, and queues what
 * comes of it as RESULT, which nobody passes on (two_level.c tells how it is on a grid). So the oldest unfinished
 * piece of the whole group always finds a buffer at its sender and a credit at its receiver; by induction
 * everything moves. That a peer may have to wait for
 * others of its class (fair.c) does not change this: it waits for a bounded time only. What a receiver needs out of
 * this order (bytes it has to ask for again) comes as CONTROL, which is always read.
 */
#ifndef NIBBLE_COLL_INTERNAL_H
#define NIBBLE_COLL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/wake.h"
#include "coll/coll.h"
#include "coll/grid.h"
#include "coll/link.h"
#include "coll/stats.h"
#include "coll/wire.h"
#include "device/device.h"
#include "net/transport.h"
#include "policy/align.h"
#include "policy/comm_rules.h"
#include "policy/job.h"
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

/*
 * What is known of an operation when its first window comes, and what is decided of it when the first of its pieces
 * is encoded: in the order of operations, so that what the gathers before it have shown is known by then, however
 * far NCCL or a peer is ahead.
 */
struct nb_facts {
    struct nb_job_call call;
    uint64_t number;     /* of its announcement; 0: see nb_job_reduce */
    int announced;
    uint64_t opno;
    struct nb_evidence evidence;
    /* reductions */
    ncclRedOp_t redop;
    enum nb_dtype dtype; /* all-gather: where the codec is DELTA4 or INT8 */
    int64_t vouched;     /* identity by the record of a tool or test, -1: none */
    uint64_t values;     /* a block of the error state */
    uint32_t blocks;
    uint64_t geometry;
    enum nb_reason reason;
    enum nb_codec codec; /* eligible for; once settled: to be used */
    int settled;
    struct nb_verdict verdict; /* from here on: once settled */
    int wants_slot;            /* key names the slot, which is still in use by the operation before */
    struct nb_ef_key key;
    int fresh;
    struct nb_ef_slot *ef;
    struct nb_sig_report *report;
};

struct nb_schedule_ops;

struct nb_op {
    uint64_t opno;
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t redop;
    size_t value;       /* bytes of a value */
    uint64_t block;     /* bytes per rank (all-reduce: bytes of the window) */
    /* From here on the engine thread's. */
    int begun;
    const struct nb_schedule_ops *schedule;
    enum nb_codec codec;   /* all-gather: ULP, DELTA4, INT8 or raw */
    struct nb_facts *facts; /* NULL: an all-reduce window of which nothing is certain */
    uint64_t ef_base; /* all-reduce: index of the window's first value in the slot */
    int picked;            /* all-gather: the reference was chosen */
    enum nb_ref_outcome outcome;
    struct nb_ref *ref;
    struct nb_ref *like;   /* all-gather: what the content was matched with, also where it cannot be used yet */
    int lossy;             /* all-gather: differences may be bounded ones */
    int changed;           /* all-gather: the own block differs from the time before */
    uint64_t gathered;     /* all-gather: bytes of the own block that are sent */
    /* Two-hop all-gather: a bit for each node: some of its block said KEEP; some of it could not be kept here. */
    uint64_t *keep, *lost;
    uint64_t moved_values, moved_bits; /* all-gather: values sent as differences, and what these took */
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
    int tx_left;           /* send cursors (one a peer, and the scatter cursor) that have not passed it */
    unsigned works;        /* tasks under way (task.h) */
    uint64_t after_gather; /* two levels: number of the first window behind the last all-gather's before this; 0: none */
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
    int relay;      /* rank through which it goes from its owner (all-gather) or to it, if there is one; else -1 */
    uint64_t first; /* index of its first value in the owner's block (all-reduce: in the window) */
    uint64_t number; /* all-reduce: pieces before it in the window */
    /* All-reduce: what this node knows of its values. How a window is cut does not depend on it, since it may
     * differ between nodes; messages say how much of a piece they carry. */
    uint32_t most;  /* bytes from here on are padding (else len) */
    int sure;       /* all bytes before are values, so they may be coded */
};

/* The seam between "which piece goes where" and "how it gets there". Pieces of a window are enumerated in the
 * same order on every node; `from` is where the search starts. 1 and *piece, or 0 when there is none left. */
struct nb_schedule_ops {
    const char *name;
    uint16_t flags; /* those of NB_MSG_WAY that every data message of an operation has */
    /* Called once, when the engine takes the window up: bytes to be delivered here. */
    uint64_t (*begin)(struct nb_coll_comm *comm, struct nb_coll_req *win);
    /* Next piece this node sends to `peer` as CONTRIB. */
    int (*next_send)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_piece *piece);
    /* Next piece this node works on for others: reduces, or (two-hop all-gather) forwards. */
    int (*next_reduce)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_piece *piece);
    /* Next piece that `owner` reduces or, in an all-gather, holds. */
    int (*next_owned)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                      struct nb_piece *piece);
    /* Next piece that this node gets from `peer` as RESULT. */
    int (*next_result)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                       struct nb_piece *piece);
    /* The piece that starts at `off`. */
    int (*piece_at)(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                    struct nb_piece *piece);
};
extern const struct nb_schedule_ops nb_schedule_direct, nb_schedule_two_hop_gather, nb_schedule_two_hop_reduce,
    nb_schedule_two_level;

/* What happened to the operations of one signature, for the summary. */
#define NB_SIG_REPORTS 128u
struct nb_sig_report {
    enum nb_func func;
    ncclDataType_t type;
    uint64_t count;
    uint32_t nranks;
    uint64_t ops, coded;
    uint64_t reason[NB_REASON_COUNT];
    struct nb_class_decision gradient;         /* the last */
    uint64_t identity[NB_ID_REASON_COUNT];     /* of the coded ones */
    uint64_t with_feedback;
    struct nb_encode_stats encode;
    double recent_nmse;         /* moving average over measured pieces of 4 bits */
    unsigned measured;          /* so many of them, up to a limit */
    int fallen_back;            /* 8 bits from now on */
    uint64_t bytes, wire_bytes; /* encoded pieces, before and after (in shadow mode: as they would be) */
};

/* ---- peers ---------------------------------------------------------------------------------------- */

struct nb_task;

/* Raw bytes of the own block that a node asked for. */
struct nb_ask {
    uint64_t opno, off;
    uint32_t len;
    int rank;
};
#define NB_ASKS 4u /* of one node at a time: it has one, the rest is slack */

/* Two levels: nodes of this row that have taken over the blocks of this column. */
struct nb_confirms {
    uint64_t opno;
    uint32_t nodes; /* 0: nothing is known yet */
    uint64_t rows[2], lost[2]; /* a bit for each owner, by its row: something was to be kept; some node could not */
};

struct nb_peer {
    int rank;
    char name[112]; /* "node 3 (host, address)" */
    int linked;     /* this node is connected with it: the rings below exist */
    struct nb_tx tx[NB_CLASS_COUNT];
    struct nb_rx rx[NB_CLASS_COUNT];
    /* send cursor over windows */
    uint64_t tx_seq, tx_off;
    int tx_started;     /* tx_off belongs to tx_seq */
    uint64_t gather_next; /* next shared all-gather unit to queue */
    /* receive cursors over windows */
    uint64_t rx_seq, result_seq;
    /* the all-gather whose pieces of this peer's block are arriving (direct) */
    uint64_t gather_op, gather_bytes, gather_done; /* bytes taken, and delivered */
    int gather_open, gather_keep, gather_kept;
    uint64_t gathers_done;  /* all-gathers before this operation number have arrived whole */
    unsigned gather_tasks;  /* under way with pieces of this peer's block, all of operation gather_task_op */
    uint64_t gather_task_op;
    uint64_t result_off;    /* of the window result_win: where the next result must begin or lie behind */
    uint64_t result_win;
    struct nb_task *asked;  /* waits for raw bytes of this peer's block; one at a time */
    struct nb_ask *ask; /* [NB_ASKS or NB_GRID_MOST] raw bytes that it, or nodes behind it, asked us for */
    unsigned nask;
    struct nb_shared resend; /* the answer */
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
    char traits[192];              /* as a rule of NIBBLE_COMMS */
    struct nb_comm_rules rules;
    const struct nb_net_ops *net;
    struct nb_device *device;
    int device_error;              /* the one wanted could not be made: a no at the vote */
    int tasks_open;                /* engine thread only: after its last progress some were under way */
    int device_waits;              /* the device may get on with something that nobody wakes the engine for */
    struct nb_engine *engine;
    struct nb_coll_comm *engine_next; /* the engine's list */
    size_t unit;                   /* bytes of a wire unit before coding */
    size_t unit_slot;              /* bytes of a buffer that holds any coded unit with its header */
    size_t staging;                /* taken from the budget */
    uint8_t *arrivals;             /* memory of all rings that are forwarded from, one after the other by rank */
    size_t arrivals_bytes;
    unsigned op_words;             /* words of nb_op.keep and .lost */
    uint64_t *op_bits;             /* [NB_OPS][2][op_words] */

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
    struct nb_grid grid;
    struct nb_peer *peer;          /* [nranks]; own entry unused */
    struct nb_peer **near;         /* [nnear] those that this node is connected with, by rank */
    int nnear, behind;             /* behind: the first of them with a higher rank, where sending begins */
    struct nb_fair fair[NB_CLASS_COUNT]; /* but CONTROL is never held back */
    struct nb_pool gather, result; /* shared units of all-gathers (CONTRIB) and of all-reduces (RESULT) */
    uint64_t begun;                /* windows taken up */
    uint64_t oldest;               /* no window before this is unfinished */
    uint64_t red_seq, red_off;     /* cursor over what this node reduces or, in two hops, forwards */
    int red_started;
    /* Two levels: cursor over what this node forwards along its row, own results of all-reduces included: the next of
     * these; and the number of the first window behind the last all-gather's that was taken up. */
    uint64_t forward_seq, forward_off;
    int forward_started;
    uint64_t emit_next, gathers_end;
    uint64_t scatter_seq, scatter_off; /* cursor over own pieces of two-hop all-gathers: encoded in order */
    int scatter_started;
    struct nb_task *task, *task_free, *task_run; /* all; those to be had; those under way */
    struct nb_source *sources;     /* of all tasks */
    const void **plain;
    uint8_t *partial;              /* [NB_PARTIALS] sums of pieces on their way to their owners */
    unsigned partials;             /* bit: is in use */
    unsigned gather_tasks;         /* under way with pieces of the own block */
    struct nb_feedback *feedback;
    struct nb_refs *refs;
    struct nb_job *job;            /* what this GPU's process calls, and what follows from it */
    uint64_t job_comm;             /* this communicator's number there, for operations without a record */
    struct nb_facts *facts;        /* [NB_OPS], a ring */
    uint64_t facts_used;
    int has_anchor;
    uint32_t anchor;               /* the gathered block whose change marks a step */
    struct nb_sig_report *report;  /* [NB_SIG_REPORTS] */
    unsigned reports;
    int shadow;                    /* NIBBLE_SHADOW: everything is sent raw, codecs run beside it */
    int off;                       /* compression is switched off for the time being */
    struct {
        int asked;                 /* what this node's file said last (1: off), as told to node 0 */
        uint32_t epoch;            /* of the state in force */
        uint32_t answers;          /* node 0: nodes that have switched */
        uint64_t last_op;          /* node 0: the last operation from which a node switched */
    } sw;
    uint8_t *scratch;              /* shadow mode, what is not sent: a coded unit, and one of an all-gather */
    int scratch_used;              /* the first, by a task */
    struct nb_queue *queue;        /* records of this communicator and its children, any thread */
    struct nb_align *align;        /* which of them is whose */
    struct nb_walk walk;           /* the all-reduce whose windows are coming in */
    struct {
        ncclDataType_t type;
        ncclRedOp_t op;
        int known;                 /* its record is certain; `extent` is set */
        struct nb_extent extent;
        uint64_t heads_told;       /* as the record has them */
        struct nb_facts *facts;
    } ar;
    struct { uint64_t told, left; } heads[4]; /* heads that lengths of operations have left over */
    unsigned said;                 /* bit: why a record was not used has been said */
    struct nb_coll_stats stats;
    uint64_t reasons[NB_FUNC_COUNT][NB_REASON_COUNT];
    int64_t tick_ns, late_ns, moved_ns, close_deadline_ns;
    int watch;                     /* the epoll set of watch.c, or -1 */
    int64_t busy_since_ns;         /* while some window is unfinished */
    int pace_told;                 /* it was said that this processor is the limit */
    struct nb_confirms *confirms;  /* [NB_OPS], where there is more than one row */
    unsigned confirms_open;        /* which wait for some of the row */
    int drained;                   /* BYE was sent */
    int fault_ref;                 /* for tests: damage every third reference before use; counts them */
    int detached;                  /* the engine has let go of it */
};
#define NB_COMM_MAGIC 0x4e42434du

/* 1 when the nodes are connected in rows and columns, and every operation goes in two levels. */
static inline int nb_on_grid(const struct nb_coll_comm *comm)
{
    return comm->grid.rows > 1;
}

/* The i-th of the nodes that this one is connected with, counted from the first behind it: so load is spread over
 * receivers. */
static inline struct nb_peer *nb_near_behind(const struct nb_coll_comm *comm, int i)
{
    return comm->near[(comm->behind + i) % comm->nnear];
}

static inline uint64_t nb_min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t nb_max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

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
/* A task of the window is over. */
void nb_window_worked(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);

/* operation.c: find out what is known of the operation that a window begins or continues; in window order. */
void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win);

/* decision.c */
/* Facts of an operation that begins: `record` may be NULL, `bytes` are those of the whole vector here. */
struct nb_facts *nb_facts_new(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_record *record,
                              uint64_t bytes);
/* Look at the first `bytes` bytes of a reduction's values. */
void nb_facts_look(struct nb_coll_comm *comm, struct nb_facts *f, const void *values, uint64_t bytes);
/* Look at the first `bytes` bytes of the own block of an all-gather. */
void nb_facts_look_gather(struct nb_coll_comm *comm, struct nb_facts *f, const void *block, uint64_t bytes);
/* The first piece of a reduction is about to be encoded: decide, unless that is done. 1, or 0 when it has to wait for
 * work of the operation that used the same error before. */
int nb_op_settle(struct nb_coll_comm *comm, struct nb_op *op);
/* The codec of a settled reduction. */
static inline enum nb_codec nb_op_codec(const struct nb_op *op)
{
    return op->facts ? op->facts->codec : NB_CODEC_RAW;
}
/* A piece of a settled operation was encoded. */
void nb_op_encoded(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_encode_stats *stats, size_t bytes,
                   size_t coded);
/* The own block of an all-gather has been sent whole. */
void nb_op_gathered(struct nb_coll_comm *comm, struct nb_op *op);

/* report.c */
/* What will be compressed on this communicator, and why not the rest. */
void nb_comm_log_plan(struct nb_coll_comm *comm);
void nb_comm_log_summary(struct nb_coll_comm *comm);
/* All windows are finished: say so, once, if this node's processor is what they keep waiting for. */
void nb_comm_look_at_pace(struct nb_coll_comm *comm);

/* switch.c */
/* Look at NIBBLE_CONTROL; once a second, on the engine thread. */
void nb_switch_look(int64_t now_ns);
/* Pass on what it says, where that is news. 0 or < 0 when the communicator failed. */
int nb_switch_tick(struct nb_coll_comm *comm);
/* A message of the three kinds about it. 0 or < 0. */
int nb_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* watch.c: begin (after connect; watches nothing where the transport has no descriptors for it), and end. */
void nb_watch_open(struct nb_coll_comm *comm);
void nb_watch_close(struct nb_coll_comm *comm);
/* Find the rings that have news. */
void nb_watch_look(struct nb_coll_comm *comm);
/* Let all be asked once, now and then: nothing is known to need it. */
void nb_watch_doubt(struct nb_coll_comm *comm);

/* fair.c: see how far the peers' rings of a class have got, before something is sent. */
void nb_fair_look(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns);
/* 1 when the transport may be given something more of this ring. */
static inline int nb_fair_allows(const struct nb_coll_comm *comm, const struct nb_tx *tx)
{
    const struct nb_fair *f = &comm->fair[tx->cls];
    return tx->cls == NB_CLASS_CONTROL || !f->bounded || tx->had + tx->under_way <= f->most;
}

/* control.c */
/* Queue a control message for `peer`, from which this node may be two connections away; the communicator fails when the
 * first on the way has not taken the ones before. */
int nb_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *what);
/* The first node on the way of such a message. */
struct nb_peer *nb_control_hop(const struct nb_coll_comm *comm, enum nb_ctl_kind kind, int to);
/* On a grid: all windows of an all-gather are finished; tell those whose blocks were to be kept. 0 or < 0. */
int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op);
/* Read, and pass on, what has come from a peer that this node is connected with: 1 moved, 0, or < 0 when the
 * communicator failed. */
int nb_control_read(struct nb_coll_comm *comm, struct nb_peer *peer);

/* direct.c: pieces of an all-reduce's window that is cut into so many shares, as in nb_schedule_ops: that at `off`; the next
 * whose number leaves `residue` when divided by `modulus`. Shares go round over the pieces; the owner that is set is the
 * share's number. */
int nb_stream_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, uint64_t off,
                    struct nb_piece *piece);
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus, int residue,
                   uint64_t from, struct nb_piece *piece);

/* schedule.c: the schedule of the operation that begins with this window. Depends on nothing but what is the same
 * on all nodes: settings, number of nodes, function, type, bytes per rank, length of the window. */
const struct nb_schedule_ops *nb_schedule_choose(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* send.c: count a message's copies for the summary. */
void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len, uint64_t copies);
/* What every message begins with. */
void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                     struct nb_msg *msg);
/* gather.c: send a piece of the own block, as differences where there is a reference, and deliver it to this node. In
 * the order of operations and pieces, each once. Into the next buffer of `tx`, or into `unit`. can_send: 1 when that can be
 * done now. send: 1, or < 0 when the communicator failed. */
int nb_gather_can_send(const struct nb_coll_comm *comm, const struct nb_op *op);
int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece, struct nb_tx *tx,
                   struct nb_shared *unit);

/* receive.c */
/* The window that holds message `m`, starting from *seq, which moves past windows that ended before it. NULL: NCCL
 * has not posted it here yet, or (after an error) it does not fit. */
struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_piece *piece);
/* 1 when the message is that of the piece. Of an all-reduce's it carries what its sender takes for values, from the
 * start: all of it, a part, or nothing. */
int nb_msg_carries(const struct nb_op *op, const struct nb_piece *piece, const struct nb_msg *m);
/* 0, or < 0 when the communicator has failed because the operation has another schedule there, or another type. */
int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m);
int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op, const struct nb_msg *m);

/* send.c, receive.c, take_gather.c, reduce.c: > 0 moved, 0 not, < 0 failed */
int nb_send_progress(struct nb_coll_comm *comm);
int nb_resend_progress(struct nb_coll_comm *comm, struct nb_peer *peer);
int nb_receive_progress(struct nb_coll_comm *comm);
/* The head of the peer's CONTRIB ring, if it is of an all-gather. */
int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer);
/* The next piece that this node works on for others, or sums for itself. */
int nb_reduce_next(struct nb_coll_comm *comm);
/* Raw bytes that this node asked `peer` for. */
int nb_receive_resend(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl, const uint8_t *data);

/* take_gather.c: deliver a piece of `owner`'s block to `win`, from the message at the head of `rx`. can_take: 1 when that
 * can be done now. take: 1, or < 0 when the communicator failed. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m);
int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_coll_req *win,
                   const struct nb_piece *piece, struct nb_rx *rx);
/* The task waits for raw bytes, and asks for them when it is its turn: 0 when all have come, -EAGAIN, or another
 * error when the communicator failed. */
int nb_gather_ask(struct nb_coll_comm *comm, struct nb_task *task);

/* receive.c: deliver a piece of an all-reduce from the message at the head of `peer`'s RESULT ring: 1, 0 when that has to
 * wait, or < 0 when the communicator failed. */
int nb_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win, const struct nb_piece *piece);
/* reduce.c: 1 when node `r`, with which this one is connected, sends it something for its sum of the piece. */
int nb_contributes(const struct nb_coll_comm *comm, const struct nb_piece *piece, int r);
/* 1 when the peer takes nothing more but the operation needs it to: then the communicator has failed. */
int nb_peer_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls, const struct nb_op *op);

/* cut.c: as in nb_schedule_ops, for reduce-scatters and all-gathers that go in two hops or levels. */
int nb_cut_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                    struct nb_piece *piece);
/* Next piece of `owner`'s block. */
int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_piece *piece);
/* Next piece of another node's block that goes through the column of `node` (in two hops: through `node`). */
int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_piece *piece);
/* Next piece of this node's block that goes through it. */
int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                       struct nb_piece *piece);
/* Bytes of a reduce-scatter's window that end at this node: of its block, and what it sums for others. */
uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* forward.c: what has come from `from`, at the head of `rx`, goes on and is delivered, if it is the piece: 1, 0 not now,
 * or < 0 when the communicator failed. */
int nb_forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece, struct nb_peer *from,
               struct nb_rx *rx);
/* 1 when this node sends the piece on to `peer`: to the others of its row, and, if it has it of its owner, of its
 * column. */
int nb_forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                   const struct nb_peer *peer);
/* 1 when all these have room; 0, or < 0 when one of them has left. */
int nb_forward_room(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece);

/* two_hop_reduce.c: 1 moved, 0 not now, < 0 failed. The head of `peer`'s RESULT ring is a sum of all others' values:
 * add the own ones and deliver it. */
int nb_two_hop_sum(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                   const struct nb_piece *piece);

/* two_hop_gather.c, for all-gathers that are forwarded, also in two levels: 1 moved, 0 not, < 0 failed. */
static inline int nb_is_scattered(const struct nb_op *op)
{
    return op->func == NB_FUNC_ALL_GATHER && op->schedule->flags & NB_MSG_WAY;
}
/* The operation begins: get its bits for what becomes of each block. */
void nb_gather_take_notes(struct nb_coll_comm *comm, struct nb_op *op);
/* Next own pieces, to the nodes that forward them. */
int nb_two_hop_scatter(struct nb_coll_comm *comm);
/* Forward the piece at the head of its owner's CONTRIB ring to the others and deliver it here. */
int nb_two_hop_forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece);
/* A piece of `owner`'s block was delivered; kept: as its message wished. */
void nb_two_hop_note(struct nb_op *op, int owner, const struct nb_msg *m, int kept);
/* All windows up to and with `win` are finished: confirm blocks that end in it to their owners, or on a grid all if it is
 * the last. */
void nb_two_hop_finished(struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* two_level.c; the first is part of the schedule. */
/* Next piece that this node forwards along its row. */
int nb_two_level_next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_piece *piece);
/* Forward the next piece: 1 moved, 0 not, < 0 failed. */
int nb_two_level_forward(struct nb_coll_comm *comm);
/* 1 when the next piece from `from` on has to come from `peer`, and nothing has. */
int nb_two_level_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                           const struct nb_peer *peer);
/* 1 when what comes of a sum may be queued as RESULT. */
int nb_two_level_may_sum(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

/* engine.c */
struct nb_engine *nb_engine_acquire(void);
void nb_engine_release(struct nb_engine *engine);
void nb_engine_add(struct nb_engine *engine, struct nb_coll_comm *comm);
/* Wake the thread when it sleeps. Cheap otherwise; any thread. */
void nb_engine_kick(struct nb_engine *engine);
/* Make the thread look at once. */
void nb_engine_wake(struct nb_engine *engine);

#endif
