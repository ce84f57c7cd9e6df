/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of flow share: tasks, cursors, and the state of each part. Private to this room. */
#ifndef NIBBLE_COLL_FLOW_INTERNAL_H
#define NIBBLE_COLL_FLOW_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/row.h"
#include "coll/comm/comm.h"
#include "coll/comm/op.h"
#include "coll/comm/ring.h"
#include "coll/comm/wire.h"
#include "coll/decide/decide.h"
#include "coll/flow/flow.h"
#include "coll/schedule/schedule.h"
#include "device/device.h"
#include "device/host/host.h"
#include "nibble/nccl_types.h"
#include "policy/records/records.h"
#include "state/feedback.h"
#include "state/reference.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_coll_stats;
struct nb_ctl;
struct nb_msg;
struct nb_op;
struct nb_op_info;
struct nb_peer;
struct nb_queue;
struct nb_rx;
struct nb_segment;
struct nb_task;

/* ---- tasks ------------------------------------------------------------------------------------------- */

/*
 * Tasks: what the engine has the device do with a segment, one step after the other (an all-reduce's: sum,
 * encode, decode). A device that does its work later (device/device.h) has the steps of many tasks in flight
 * at a time; with one that does it at once a task is over before nb_task_run returns.
 *
 * The life of a task: nb_task_new; fill it in; nb_task_ask its first step of the device, which may have no
 * room for it (then nb_task_drop: nothing has happened, the segment is tried again later); now take what the
 * segment needs (message heads, buffers); nb_task_run. From then on the window counts it, and is not finished
 * before the task is over.
 *
 * Which steps a task goes through (enum nb_step; with ? if need be):
 *
 *     before a sum (operation.c)  PICK
 *     contribution (send.c)       ENCODE or COPY; in shadow mode ENCODE into nowhere, then COPY
 *     sum (reduce.c)              SUM, LOOK?; where it goes on ENCODE or COPY; where this node takes it as others
 *                                 do, DECODE
 *     result (receive.c)           DECODE; or SUM, LOOK?, with the own values, for the owner of a reduce-scatter's
 *                                 block
 *     before it (gather_send.c)   PICK
 *     own block (gather_send.c)        COMPARE, SOURCE?, or HASH; NOTE?; DELTA_ENCODE, ENCODE or COPY; UPDATE_REF or STORE_REF; OWN; LOOK?:
 *                                 see there
 *     others' (gather_receive.c)     HASH_REF; DELTA_DECODE, LOAD_REF or DECODE; HASH; RETRANSMIT?; STORE_REF?: see there
 *
 * A step is asked for (nb_task_ask), then in flight, refused (no room: asked for again), or done; `next` says
 * what comes after it.
 *
 * What keeps tasks apart that are in flight together: segments of windows are disjoint, and so are their
 * places in buffers, which are reserved in order and given back when the task that uses them is over;
 * residuals are held (state/feedback.h); areas that are few (sums in flight, the scratch of shadow mode) are
 * taken and given back.
 *
 * All functions are for the engine thread (nb_task_abandon: with progress_lock held).
 */

#define NB_TASKS 64u /* of a communicator: as many as a device usefully has in flight */

enum { NB_TASK_OVER = 0, NB_TASK_MORE = 1 };

/* What is done with values; which of them a task goes through, and in which order, is up to its `next`. */
enum nb_step {
    NB_STEP_SUM,    /* sources (of `exact` ones plain), then own: into values */
    NB_STEP_ENCODE, /* values as msg.codec into body */
    NB_STEP_COPY,   /* values, or what is at `from`, into body */
    NB_STEP_DECODE, /* body, as msg tells: into values */
    NB_STEP_PROVE,  /* at values of the own block (decide/decide.h) */
    NB_STEP_PICK,   /* a look before anything is sent: what `ask` asks */
    /* all-gathers */
    NB_STEP_COMPARE,      /* values with ref: into seen */
    NB_STEP_HASH,         /* of values: into seen.hash */
    NB_STEP_HASH_REF,     /* of ref: into seen.hash */
    NB_STEP_SOURCE,       /* a part of values, with what is kept there: as range tells */
    NB_STEP_NOTE,         /* likewise, to know it again */
    NB_STEP_DELTA_ENCODE, /* values - ref into body */
    NB_STEP_DELTA_DECODE, /* ref + body into values */
    NB_STEP_UPDATE_REF,   /* ref + body into ref */
    NB_STEP_STORE_REF,    /* values into ref */
    NB_STEP_LOAD_REF,     /* ref into values */
    NB_STEP_OWN,          /* values into recv */
    NB_STEP_RETRANSMIT,   /* wait for raw bytes of the segment, a part at `from` into values (flow.h) */
};

struct nb_task {
    struct nb_work work;
    struct nb_task *link; /* the next that is free, or in flight */
    int in_flight;        /* the step at hand is in flight */
    ssize_t result;       /* of the step at hand */
    enum nb_step step;
    /* The step at hand is done with `result`: NB_TASK_MORE with another step set, NB_TASK_OVER, or < 0 when
     * the communicator has failed. */
    int (*next)(struct nb_coll_comm *comm, struct nb_task *task, ssize_t result);

    /* Of NB_STEP_PICK, as a function of the device's table. */
    ssize_t (*ask)(struct nb_coll_comm *comm, struct nb_task *task);

    struct nb_coll_req *win;
    struct nb_op *op;
    struct nb_segment segment;
    uint64_t delivers; /* bytes of the window that are delivered when it is over */

    struct nb_msg msg;
    uint8_t *buf; /* the message: msg, then body */
    uint8_t *body;
    uint8_t *values;
    const uint8_t *from;
    uint32_t bytes; /* of values */
    enum nb_dtype dtype;
    size_t value;            /* bytes of one */
    uint64_t first;          /* its number in the rank block */
    struct nb_ef_slot *slot; /* the residual that this task holds, or NULL: then `ef` is not set */
    struct nb_ef ef;
    struct nb_encode_stats stats;
    int counted; /* stats are wanted */

    struct nb_source *sources; /* [nnodes] */
    const void **plain;        /* [nnodes] */
    size_t nsources;
    int exact;
    const uint8_t *own;

    /* all-gathers */
    uint8_t *ref; /* of the segment, or NULL */
    uint8_t *recv;
    enum nb_codec with; /* NB_STEP_DELTA_ENCODE: the codec that is tried */
    enum nb_ulp_width width;
    struct nb_delta4_stats delta4;
    struct nb_compared seen;
    bool source_noted; /* it is to be asked whether what was noted of the segment is of these values */
    struct nb_ref_range range;
    bool resent;           /* raw bytes were asked for */
    int shadowed;          /* what would have been sent is counted */
    struct nb_peer *owner; /* of the block */
    uint32_t got;          /* raw bytes that have come */
    uint32_t part;         /* so many more are at `from`, in a slot that the task holds */
    unsigned retries;      /* so often they were damaged */

    /* Where the message goes, or came from. */
    struct nb_peer *peer;
    struct nb_tx *tx;
    uint64_t item;          /* number in tx */
    struct nb_shared *unit; /* shared by several */
    struct nb_rx *rx;
    unsigned at; /* its slot in rx */
};

struct nb_tasks {
    struct nb_task *all, *free, *run; /* [NB_TASKS]; those to be had; those in flight */
    struct nb_source *sources;        /* of all tasks */
    const void **plain;
};

/* True when a task can be had; when some are in flight. */
static inline bool nb_tasks_to_be_had(const struct nb_tasks *tasks)
{
    return tasks->free != NULL;
}
static inline bool nb_tasks_under_way(const struct nb_tasks *tasks)
{
    return tasks->run != NULL;
}

/* A task of `win` for a segment, with value and first as they are in sums, and no slot, buffers, reference or
 * delivery; the rest is not set. NULL: all are in flight. */
struct nb_task *nb_task_new(struct nb_coll_comm *comm, struct nb_coll_req *win,
                            const struct nb_segment *segment);
/* Of one that has not been run: release what it holds and give it back. */
void nb_task_drop(struct nb_coll_comm *comm, struct nb_task *task);
/* Ask the device for the step at hand: 1, or 0 when it has no room. */
int nb_task_ask(struct nb_coll_comm *comm, struct nb_task *task);
/* Go on as far as it goes after an ask, whatever it gave. 1, or < 0 when the communicator failed. */
int nb_task_run(struct nb_coll_comm *comm, struct nb_task *task);

/* A task has all that it is for, and its `values` are a segment of the own block, of a sum or of what is gathered: look
 * at them (NB_TASK_MORE) where the operation has a proof (decide.h). */
static inline int nb_task_prove(struct nb_task *task)
{
    if (!task->op->proof)
        return NB_TASK_OVER;
    task->step = NB_STEP_PROVE;
    return NB_TASK_MORE;
}
/* The task reads the message at the head of `rx`: keep its slot, and take it. Let go of it. */
void nb_task_hold_head(struct nb_task *task, struct nb_peer *peer, struct nb_rx *rx);
static inline void nb_task_release_head(struct nb_task *task)
{
    task->rx->held[task->at]--;
}
/* All-gathers: where the task's segment begins in its owner's block. */
static inline uint64_t nb_task_place_in_block(const struct nb_task *task)
{
    return task->msg.offset - (uint64_t)task->owner->rank * task->op->block;
}

/* Hold the error of block `block` (all-reduce: of the window) of the settled operation, where it carries one
 * on: 1, or 0 when it is not to be had yet. */
int nb_task_hold_error(struct nb_task *task, uint32_t block);
/* Let go of it, if it is held. */
void nb_task_release_error(struct nb_coll_comm *comm, struct nb_task *task);

/* ---- messages against operations --------------------------------------------------------------------- */

/* Data messages against operations and windows: what a message begins with, which window holds one that has
 * arrived, and whether it fits there. For the engine thread. */

/* Fill in what every message of the segment begins with; its codec and what follows from that is the
 * caller's. */
void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op,
                     const struct nb_segment *segment, struct nb_msg *msg);
/* Count `copies` messages of `len` bytes each for the summary. */
void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len,
                   uint64_t copies);

/* The window that holds message `m`, starting from *seq, which moves past windows that ended before it;
 * *segment is the window's segment that it carries. NULL: NCCL has not posted it here yet, or (after an
 * error) it does not fit. */
struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_segment *segment);
/* 1 when the message is that of the segment. Of an all-reduce's it carries what its sender takes for values,
 * from the start: all of it, a part, or nothing. */
int nb_msg_carries(const struct nb_op *op, const struct nb_segment *segment, const struct nb_msg *m);
/* 0, or < 0 when the communicator has failed because the operation has another schedule there, or another
 * type. Which schedule an operation takes follows from what all nodes know. */
int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m);
int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                      const struct nb_msg *m);

/* ---- check values of payloads ------------------------------------------------------------------------ */

/*
 * Check values of payloads: the coded bytes behind the header of a data message. Their author computes the
 * value right after it has made them, whoever decodes, sums or copies them compares it, and who only forwards
 * them sends it on as it came: so damage is found wherever it happened, in a relay's memory, too.
 *
 * NIBBLE_PAYLOAD_CHECK says which payloads are given one: auto those of a codec, whose work costs much more;
 * on raw ones, too. Messages with a reference part need none: they carry a hash of the bytes that they stand
 * for (gather_receive.c compares it). A message says itself whether it has one, so nodes need not agree. Where
 * the device has no `check` (device/device.h), as a GPU, which makes and reads payloads without this
 * processor, they are neither given one nor compared.
 *
 * For the engine thread.
 */

/* `msg` is complete but for its check, and its payload is at `body`: give it one if it is to have one. */
void nb_payload_seal(struct nb_coll_comm *comm, struct nb_msg *msg, const uint8_t *body);
/* Compare the check of a message that came from `from`, if it has one; node `author` made it. 0, or < 0 when
 * it does not fit: the communicator has failed. */
int nb_payload_verify(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                      const struct nb_msg *msg, const uint8_t *body);
/* True when the hash of raw bytes that are to be kept is to be compared, too. */
bool nb_payload_compares_kept(const struct nb_coll_comm *comm);

/* Damage that is found otherwise: fail the communicator with a text that names both ends; or count and log
 * it, since the bytes can be had again. */
int nb_payload_damaged(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                       const struct nb_msg *msg);
void nb_payload_damage_mended(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                              const struct nb_msg *msg);

/* ---- results ----------------------------------------------------------------------------------------- */

/* Results of sums that arrive on a RESULT ring. For the engine thread; all return 1, 0 when it has to wait,
 * or < 0 when the communicator has failed. */

/* Deliver a segment of an all-reduce from the message at the head of the peer's RESULT ring. What lies behind
 * its values is padding. */
int nb_result_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                      const struct nb_segment *segment);

/* ---- receiving all-gathers --------------------------------------------------------------------------- */

/* The receiving half of all-gathers. For the engine thread. */

/* Take the head of the peer's CONTRIB ring, if it is of an all-gather that is delivered as it arrives: 1, 0
 * not now, or < 0 when the communicator has failed. */
int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer);
/* Deliver a segment of `owner`'s block to `win`, from the message at the head of `rx`, a ring of `from`.
 * can_take: 1 when that can be done now. take: 1, or < 0 when the communicator has failed. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m);
int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_peer *from,
                   struct nb_coll_req *win, const struct nb_segment *segment, struct nb_rx *rx);

/* 1 when the operation's own block goes to relays (gather_send.c). */
static inline int nb_has_first_hop(const struct nb_op *op)
{
    return op->func == NB_FUNC_ALL_GATHER && op->schedule->next_first_hop;
}

/* ---- to those who forward ---------------------------------------------------------------------------- */

/* The sending of an all-gather's own block where each segment goes to one node, which forwards it. For the
 * engine thread. */

/* Send the next own segments to the nodes that forward them: 1 moved, 0 not, < 0 when the communicator has
 * failed. */
int nb_first_hop_progress(struct nb_coll_comm *comm);

/* ---- cursors ----------------------------------------------------------------------------------------- */

/*
 * A cursor over the windows of a communicator, in their order, and over the segments of each. Sums, forwards
 * and the sending to each peer have one. For the engine thread.
 */

struct nb_cursor {
    uint64_t seq; /* number of the window it is at */
    uint64_t off; /* where the next segment may begin; valid once started */
    bool started; /* it has looked at the window */
};

/* The window that the cursor is at, started; NULL: it has passed all that the engine has dequeued. Windows
 * that are finished without it are passed. */
struct nb_coll_req *nb_cursor_window(const struct nb_coll_comm *comm, struct nb_cursor *cursor);
/* Number of the first window that the cursor has not passed. */
uint64_t nb_cursor_reached(const struct nb_coll_comm *comm, const struct nb_cursor *cursor);
/* Where the cursor will look for segments in `win`, which it has not passed. */
uint64_t nb_cursor_place(const struct nb_cursor *cursor, const struct nb_coll_req *win);

/* The window has no segment left for it. */
static inline void nb_cursor_pass(struct nb_cursor *cursor)
{
    cursor->seq++;
    cursor->started = false;
}

/* ---- the account of a window ------------------------------------------------------------------------- */

/* `bytes` bytes have been delivered. */
void nb_window_received(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);

/* A send cursor has passed the window. */
void nb_window_sent(struct nb_coll_comm *comm, struct nb_coll_req *win);

/* A task of the window is over, which delivered `bytes` bytes. */
void nb_window_task_done(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);

/* ---- whether the processor is the limit -------------------------------------------------------------- */

/* Whether this node's processor is what operations wait for. For the engine thread. */

/* ---- beginning an operation -------------------------------------------------------------------------- */

/*
 * What the engine finds out when it dequeues the first window of an operation: its record, if that is
 * certain, and of every window of an all-reduce the bytes that are values (policy/records/walk.c). For the engine
 * thread.
 */

/* Records of the communicator's operations, and the all-reduce whose windows are coming in; operation.c's
 * own. */
struct nb_records {
    struct nb_align *align; /* which of them is whose */
    struct nb_walk walk;    /* the all-reduce whose windows are coming in */
    struct {
        ncclDataType_t type;
        ncclRedOp_t op;
        int known; /* its record is certain; `extent` is set */
        struct nb_extent extent;
        uint64_t heads_told; /* as the record has them */
        struct nb_op_info *info;
    } ar;
    struct {
        uint64_t told, left;
    } heads[4];    /* heads that lengths of operations have left over */
    unsigned said; /* bit: why a record was not used has been said */
};

/* Find out what is known of the operation that a window begins or continues; in window order. Of the first window of a
 * reduction the values are looked at, by a task of that window: nothing else may be done with it before that is over. A
 * task is to be had. */
void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win);

/* ---- sending ----------------------------------------------------------------------------------------- */

/* The sending half: contributions to sums, and all-gathers that go to every peer. For the engine thread. */

struct nb_peer_send { /* of each peer */
    struct nb_cursor cursor;
    uint64_t gather_next; /* next shared all-gather unit to queue */
};

/* Shadow mode: where coded units go that are counted and not sent. */
struct nb_scratch {
    uint8_t *mem; /* a unit's slot for a contribution, and one for an all-gather */
    int used;     /* the first, by a task */
};

/* ---- which reference --------------------------------------------------------------------------------- */

/*
 * What is looked at before an operation sends the first segment of its own block: values of it, by which policy tells
 * weights from others, and its likeness to the references that there are (state/reference.h), of which one is picked. A
 * task of its own (internal.h), so that nobody waits for a device that answers later; no segment of the own block is in
 * flight beside it.
 *
 * For the engine thread.
 */

#define NB_NEAR_SAMPLES 256u

/* The pick that is under way. */
struct nb_gather_pick {
    enum nb_pick_step {
        NB_PICK_LOOK,  /* at values, for policy */
        NB_PICK_ALIKE, /* is one slot, search's question, like it? */
        NB_PICK_OWN,   /* NIBBLE_AG=delta4: values of the block, and of the slot that was found */
        NB_PICK_REF,
    } step;
    struct nb_ref_search search;
    const void *there; /* what search asks about */
    struct nb_nearness near;
    float sample[2][NB_NEAR_SAMPLES];
};

/* ---- sending all-gathers ----------------------------------------------------------------------------- */

/* The sending half of all-gathers: what is sent of the own block. For the engine thread. */

struct nb_gather {
    struct nb_pool units; /* messages that are sent to every peer (send.c) */
    struct nb_gather_pick pick;
};

/* Send a segment of the own block, as differences where there is a reference, and deliver it to this node. In
 * the order of operations and segments, each once. Into the next buffer of `tx`, or into `unit`. can_send: 1
 * when that can be done now; an operation's first also picks the reference. send: 1, or < 0 when the
 * communicator has failed. */
int nb_gather_can_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment);
int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                   struct nb_tx *tx, struct nb_shared *unit);

/* ---- sums -------------------------------------------------------------------------------------------- */

/* Sums. For the engine thread. */

#define NB_PARTIALS 4u /* sums in flight to their owners */

struct nb_reduce {
    struct nb_cursor cursor; /* over what this node sums */
    struct nb_pool results;  /* messages with an all-reduce's results, which go to several peers */
    uint8_t *partial;        /* [NB_PARTIALS] sums of segments on their way to their owners */
    unsigned partials;       /* bit: is in use */
};

/* Sum the next segment: 1 moved, 0 not now, < 0 when the communicator has failed. */
int nb_reduce_next(struct nb_coll_comm *comm);

/* ---- receiving --------------------------------------------------------------------------------------- */

/* The receiving half: what has arrived is taken, summed, forwarded and delivered. For the engine thread. */

struct nb_peer_results { /* of each peer: its results, in their order */
    uint64_t seq;        /* cursor over windows */
    uint64_t win;        /* the window in which the last was, */
    uint64_t off;        /* and where the next must begin in it, or lie behind */
};

/* ---- forwarding -------------------------------------------------------------------------------------- */

/*
 * Forwarding, for schedules in which segments go through other nodes. For the engine thread.
 *
 * Order. Two cursors work for others: sums (reduce.c) and forwards (here), each in the order of windows. Both
 * put messages into RESULT rings, and these have to be in the order of windows, too: receivers take them in
 * that order. So
 *
 *   - nothing is forwarded before all sums of older windows are done;
 *   - a sum that leaves as RESULT waits until all older windows are forwarded, an all-reduce's until all
 *   older all-gathers
 *     are (its own results are forwarded by this cursor: it would wait for itself).
 *
 * Each of them waits for older windows only. So the cursor whose window is the older one never waits for the
 * other, and no two nodes deadlock: of the oldest window in the group that is not finished, sums wait for
 * contributions only, forwards for sums and arrivals of the same window (comm/comm.h tells the rest).
 */

struct nb_forward {
    struct nb_cursor cursor; /* over what this node forwards, own results of all-reduces included: */
    uint64_t emit_next;      /* the number of the next of these (nb_reduce.results) */
};

/* Forward the next segment, and deliver it here: 1 moved, 0 not, < 0 when the communicator has failed. */
int nb_forward_next(struct nb_coll_comm *comm);
/* True when a sum of the window may leave as RESULT, by the order above. */
bool nb_forward_lets_result_pass(struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* True when the next segment of the window that is to be forwarded has to come from `peer`, and nothing has
 * arrived. */
bool nb_forward_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer);

/* ---- retransmission ---------------------------------------------------------------------------------- */

/*
 * Retransmit requests. A receiver of an all-gather that does not hold the reference a segment is coded
 * against, or finds another hash, asks the block's owner for the segment's raw bytes (RAW), a part at a time,
 * and gets them as DATA. Both are CONTROL messages, which are always read, so that this needs no place in the
 * order of data messages. A node has one request to an owner in flight at a time; other tasks of that owner's
 * block queue behind it.
 *
 * The device copies the bytes, and nobody waits for it: from the owner's reference, which is not written before the node
 * that asks has confirmed all of it, into the answer; and out of the ring of messages, whose slot is held meanwhile, to
 * where the block is wanted.
 *
 * For the engine thread.
 */

/* Raw bytes of the own block that a node asked for. */
struct nb_ask {
    uint64_t opno, off;
    uint32_t len;
    int rank;
};
#define NB_ASKS 4u /* of one node at a time: it has one, the rest is slack */

struct nb_peer_raw {         /* of each peer */
    struct nb_task *waiting; /* for raw bytes of this peer's block; one at a time asks */
    struct nb_ask *ask;      /* [most] raw bytes that it, or nodes behind it, asked this node for: so many */
    unsigned n, most;
    struct nb_shared answer; /* DATA on its way to it, or relayed to it; `left` is not 0 while it is in use */
    enum nb_answering {
        NB_ANSWER_NONE,
        NB_ANSWER_COPYING,
        NB_ANSWER_COPIED
    } answering;         /* the first of `ask` */
    struct nb_work work; /* while it is copied */
};

struct nb_retransmits {
    unsigned copying; /* answers */
};

/* The step of a task that waits for raw bytes of its segment, and asks for them when it is its turn: as the device's
 * functions, for the copy of a part that has come; -EAGAIN while there is none. copied: that is done; true when it was
 * the last part, else the step goes on, unless *error is < 0: the communicator has failed. */
ssize_t nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *task);
bool nb_retransmit_copied(struct nb_coll_comm *comm, struct nb_task *task, int *error);

struct nb_staging {
    uint8_t *arrivals; /* memory of all rings that are forwarded from, one after the other by rank */
    size_t arrivals_bytes;
};

/* ---- state ------------------------------------------------------------------------------------------- */

/* What flow keeps of each peer. */
struct nb_peer_flow {
    struct nb_peer_send send;
    struct nb_peer_results results;
    struct nb_peer_raw raw;
};

/* What flow keeps of a communicator. */
struct nb_flow {
    struct nb_peer_flow *peers; /* [nnodes] */
    bool taken_up;              /* the next window: its operation has begun, and its values are looked at */
    uint64_t gathers_end;       /* the first behind the last all-gather's that was dequeued */
    bool pace_told;             /* it was logged that this processor is the limit */
    struct nb_tasks tasks;
    struct nb_records records;
    struct nb_staging staging;
    struct nb_scratch scratch;
    struct nb_gather gather;
    struct nb_cursor first_hop;
    struct nb_reduce reduce;
    struct nb_forward forward;
    struct nb_retransmits retransmits;
};

#endif
