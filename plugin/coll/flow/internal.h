/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of flow share: tasks, messages, cursors, and the state of each part. Private to
 * this folder. */
#ifndef NIBBLE_COLL_FLOW_INTERNAL_H
#define NIBBLE_COLL_FLOW_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/pick.h"
#include "codec/row.h"
#include "coll/comm/comm.h"
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
 * A task is the work of the device on one segment, one step after the other: for an all-reduce sum, encode,
 * decode. A device that works asynchronously (device/device.h) has the steps of many tasks in flight at a
 * time. With a device that works at once a task has ended when nb_task_run returns.
 *
 * The life of a task: call nb_task_new and fill the task in. Ask the device for its first step with
 * nb_task_ask. If the device has no room, call nb_task_drop and try the segment again later. Otherwise take
 * the message heads and buffers that the segment needs, and call nb_task_run. From then on the window counts
 * the task, and stays open until the task has ended.
 *
 * The steps of each kind of task (enum nb_step, ? marks optional steps):
 *
 *     before a sum (operation.c)     PICK
 *     contribution (send.c)          ENCODE or COPY. In shadow mode ENCODE into scratch, then COPY
 *     sum (reduce.c)                 LOOK_OWN?, SUM, LOOK_SUM?, PROVE?. ENCODE or COPY where it goes on, DECODE
 *                                    where this node takes it as other nodes do
 *     result (receive.c)             LOOK_OWN?, DECODE, LOOK_SUM?. For the owner of a reduce-scatter's block
 *                                    LOOK_OWN?, SUM with its own values, LOOK_SUM?, PROVE?
 *     before a block (gather_send.c) PICK
 *     own block (gather_send.c)      COMPARE, SOURCE?, or HASH. NOTE?. DELTA_ENCODE, ENCODE or COPY.
 *                                    UPDATE_REF or STORE_REF. OWN. PROVE?
 *     other blocks                   HASH_REF. DELTA_DECODE, LOAD_REF or DECODE. HASH. RETRANSMIT?.
 *       (gather_receive.c)           STORE_REF?
 *
 * A step is requested (nb_task_ask). Then it is in flight, refused for lack of room and requested again, or
 * done. `next` decides which step follows.
 *
 * Tasks in flight do not collide. Segments of windows are disjoint, and so are their places in buffers, which
 * are reserved in order and given back when the task ends. Residuals are held (state/feedback.h). Scarce
 * areas (sums in flight, the scratch of shadow mode) are taken and given back.
 *
 * All functions are for the engine thread. nb_tasks_abandon is for the holder of progress_lock.
 */

#define NB_TASKS 64u /* tasks in flight of a communicator: as many as a device can use */

enum { NB_TASK_OVER = 0, NB_TASK_MORE = 1 };

/* Steps. The `next` of a task chooses them and their order. */
enum nb_step {
    NB_STEP_SUM,      /* sum of the sources (only plain ones where `exact`), then of own, into values */
    NB_STEP_LOOK_OWN, /* sample of own, to compare its energy with that of the sum */
    NB_STEP_LOOK_SUM, /* the same positions of the sum */
    NB_STEP_ENCODE,   /* values as msg.codec into body */
    NB_STEP_COPY,     /* values, or the bytes at `from`, into body */
    NB_STEP_DECODE,   /* body into values, by the header msg */
    NB_STEP_PROVE,    /* show the device values for the proof of the operation (decide.h) */
    NB_STEP_PICK,     /* before a sum or a block: the question of `ask` */
    /* all-gathers */
    NB_STEP_COMPARE,      /* compare values with ref, into seen */
    NB_STEP_HASH,         /* hash of values, into seen.hash */
    NB_STEP_HASH_REF,     /* hash of ref, into seen.hash */
    NB_STEP_SOURCE,       /* compare a part of values with the sample kept there, as range says */
    NB_STEP_NOTE,         /* keep a sample of a part of values, as range says */
    NB_STEP_DELTA_ENCODE, /* values - ref into body */
    NB_STEP_DELTA_DECODE, /* ref + body into values */
    NB_STEP_UPDATE_REF,   /* ref + body into ref */
    NB_STEP_STORE_REF,    /* values into ref */
    NB_STEP_LOAD_REF,     /* ref into values */
    NB_STEP_OWN,          /* values into recv */
    NB_STEP_RETRANSMIT,   /* wait for raw bytes of the segment and copy a part, at `from`, into values */
};

struct nb_task {
    struct nb_work work;
    struct nb_task *link; /* the next free one, or the next in flight */
    int in_flight;        /* 1 while the step is in flight */
    ssize_t result;       /* of the step */
    enum nb_step step;
    /* Called when the step is done with `result`. Return NB_TASK_MORE with another step set, NB_TASK_OVER, or
     * < 0 when the communicator has failed. */
    int (*next)(struct nb_coll_comm *comm, struct nb_task *task, ssize_t result);

    /* NB_STEP_PICK: queries the device, like a function of its table */
    ssize_t (*ask)(struct nb_coll_comm *comm, struct nb_task *task);

    struct nb_coll_req *win;
    struct nb_op *op;
    struct nb_segment segment;
    uint64_t delivers; /* bytes of the window that the task delivers when it ends */

    struct nb_msg msg;
    uint8_t *buf;     /* the message's header */
    uint8_t *payload; /* where the body is to be made. NULL: behind the header */
    uint8_t *body;
    uint8_t *values;
    const uint8_t *from;
    uint32_t bytes; /* length of the values in bytes */
    enum nb_dtype dtype;
    size_t value;                 /* bytes of a value */
    uint64_t first;               /* number of its first value in the rank block */
    struct nb_residual *residual; /* the residual that the task holds. With NULL `ef` is unset */
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
    enum nb_codec with; /* NB_STEP_DELTA_ENCODE: the codec to try */
    enum nb_ulp_width width;
    struct nb_delta4_stats delta4;
    struct nb_compared seen;
    bool source_noted; /* compare the sample that was kept of the segment */
    struct nb_ref_range range;
    bool resent;           /* raw bytes were requested */
    int shadowed;          /* shadow mode: the coded form is counted */
    struct nb_peer *owner; /* owner of the block */
    uint32_t got;          /* raw bytes that have arrived */
    uint32_t part;         /* bytes at `from`, in a message buffer that the task holds */
    unsigned retries;      /* how often the raw bytes were damaged */

    /* The message's destination or origin. */
    struct nb_peer *peer;
    struct nb_tx *tx;
    uint64_t item;          /* its number in tx */
    struct nb_shared *unit; /* the shared buffer. NULL: the ring's own buffer */
    struct nb_rx *rx;
    unsigned at; /* message buffer in rx */
};

struct nb_tasks {
    struct nb_task *all, *free, *run; /* [NB_TASKS], the list of free tasks, the list of tasks in flight */
    struct nb_source *sources;        /* sources of all tasks */
    const void **plain;
};

/* Return true when a task is free, and when a task is in flight. */
static inline bool nb_tasks_to_be_had(const struct nb_tasks *tasks)
{
    return tasks->free != NULL;
}
static inline bool nb_tasks_under_way(const struct nb_tasks *tasks)
{
    return tasks->run != NULL;
}

/* Take a free task for a segment of `win`. value and first are set as for sums. The task has no buffers,
 * message buffer, reference or delivery. The other members are unset. Return NULL when all tasks are in
 * flight. */
struct nb_task *nb_task_new(struct nb_coll_comm *comm, struct nb_coll_req *win,
                            const struct nb_segment *segment);
/* Give back a task that has not run, with everything that it holds. */
void nb_task_drop(struct nb_coll_comm *comm, struct nb_task *task);
/* Ask the device for the step. Return 1, or 0 when it has no room. */
int nb_task_ask(struct nb_coll_comm *comm, struct nb_task *task);
/* Continue after any result of nb_task_ask. Return 1, or < 0 when the communicator has failed. */
int nb_task_run(struct nb_coll_comm *comm, struct nb_task *task);

/* Begin the last step of a task whose `values` are a segment of the own block, of a sum or of a gathered
 * block. Return NB_TASK_MORE when the operation has a proof, which has to see the values. */
static inline int nb_task_prove(struct nb_task *task)
{
    if (!task->op->proof)
        return NB_TASK_OVER;
    task->step = NB_STEP_PROVE;
    return NB_TASK_MORE;
}
/* Return where a body goes whose header has `header` bytes. */
static inline uint8_t *nb_task_body(const struct nb_task *task, size_t header)
{
    return task->payload ? task->payload : task->buf + header;
}
/* Take the message at the head of `rx` and hold its message buffer for the task. release: give the message
 * buffer back. */
void nb_task_hold_head(struct nb_task *task, struct nb_peer *peer, struct nb_rx *rx);
static inline void nb_task_release_head(struct nb_task *task)
{
    task->rx->held[task->at]--;
}
/* All-gathers: return the place of the task's segment in its owner's block. */
static inline uint64_t nb_task_place_in_block(const struct nb_task *task)
{
    return task->msg.offset - (uint64_t)task->owner->rank * task->op->block;
}

/* Hold the residual of block `block` (all-reduce: of the window), if the settled operation has one. Return 1,
 * or 0 when another operation holds it. */
int nb_task_hold_error(struct nb_task *task, uint32_t block);
/* Release the residual, if the task holds one. */
void nb_task_release_error(struct nb_coll_comm *comm, struct nb_task *task);

/* ---- messages ---------------------------------------------------------------------------------------- */

/* Data messages: their headers, the window that a message belongs to, and whether the message fits it. */

/* Fill in the header of a message of the segment, except its codec and the fields that depend on the
 * codec. */
void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op,
                     const struct nb_segment *segment, struct nb_msg *msg);
/* Count `copies` messages of `len` bytes each for the summary. */
void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len,
                   uint64_t copies);

/* Find the window of message `m` and, in *segment, its segment. Search from *seq, which moves past windows
 * that ended before the message. Return NULL when NCCL has not posted the window here yet, or when the
 * message does not fit, which fails the communicator. */
struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_segment *segment);
/* Return true when the message carries the segment. A message of an all-reduce carries the bytes that its
 * sender takes for values: all bytes, the first bytes, or 0 bytes. */
int nb_msg_carries(const struct nb_op *op, const struct nb_segment *segment, const struct nb_msg *m);
/* Check that the operation has the same schedule, or type, at the sender. All nodes choose the schedule from
 * the same facts. Return 0, or < 0 when the communicator has failed. */
int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m);
int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                      const struct nb_msg *m);

/* ---- check values of payloads ------------------------------------------------------------------------ */

/*
 * Check values of payloads, the coded bytes behind the header of a data message. The author computes the
 * value when it has made the bytes. The node that decodes, sums or copies them compares it, and a relay
 * passes it on unchanged. So the comparison finds damage wherever it happened, in a relay's memory, too.
 *
 * NIBBLE_PAYLOAD_CHECK says which payloads have a check value. on: all. coded: coded payloads, since codecs
 * cost much more than the check, and raw payloads do not. A message with a reference part carries a hash of
 * its contents instead (gather_receive.c compares it). Each message says whether it has a check value, so
 * nodes may differ. Devices without `check` (device/device.h), such as a GPU, make and read payloads without
 * this processor: such payloads have no check value.
 */

/* Give a message its check value, where NIBBLE_PAYLOAD_CHECK and the device allow one. The message is
 * complete otherwise, and its payload is at `body`. */
void nb_payload_seal(struct nb_coll_comm *comm, struct nb_msg *msg, const uint8_t *body);
/* Compare the check value of a message from `from` that node `author` made. Return 0, or < 0 when it differs:
 * then the communicator has failed. */
int nb_payload_verify(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                      const struct nb_msg *msg, const uint8_t *body);
/* Return true when the hash of kept raw bytes has to be compared, too. */
bool nb_payload_compares_kept(const struct nb_coll_comm *comm);

/* Handle damage found by a hash. damaged: fail the communicator with a text that names both ends. mended:
 * count and log it, since the bytes come again. */
int nb_payload_damaged(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                       const struct nb_msg *msg);
void nb_payload_damage_mended(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                              const struct nb_msg *msg);

/* Deliver a segment of an all-reduce from the head of the peer's RESULT ring. The bytes behind its values are
 * padding. Return 1, 0 when it has to wait, or < 0 when the communicator has failed. */
int nb_result_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                      const struct nb_segment *segment);

/* ---- receiving all-gathers --------------------------------------------------------------------------- */

/* Take the head of the peer's CONTRIB ring if it belongs to an all-gather that is delivered as it arrives.
 * Return 1, 0 when the head has to wait, or < 0 when the communicator has failed. */
int nb_gather_receive(struct nb_coll_comm *comm, struct nb_peer *peer);
/* Deliver a segment of `owner`'s block to `win` from the head of `rx`, a ring of `from`. can_take: return 1
 * when that is possible now. take: return 1, or < 0 when the communicator has failed. */
int nb_gather_can_take(const struct nb_coll_comm *comm, const struct nb_peer *owner, const struct nb_msg *m);
int nb_gather_take(struct nb_coll_comm *comm, struct nb_peer *owner, struct nb_peer *from,
                   struct nb_coll_req *win, const struct nb_segment *segment, struct nb_rx *rx);

/* Return true when the operation's own block goes to relays. */
static inline int nb_has_first_hop(const struct nb_op *op)
{
    return op->func == NB_FUNC_ALL_GATHER && op->schedule->next_first_hop;
}

/* ---- first hop --------------------------------------------------------------------------------------- */

/* Send the next segments of own blocks to their relays. Return 1 when something moved, 0, or < 0 when the
 * communicator has failed. */
int nb_first_hop_progress(struct nb_coll_comm *comm);

/* ---- cursors ----------------------------------------------------------------------------------------- */

/* A cursor walks over the windows of a communicator and their segments, in order. Sums, forwards, the first
 * hop and the sending to each peer have a cursor each. */

struct nb_cursor {
    uint64_t seq; /* number of its window */
    uint64_t off; /* where the search for the next segment begins. Set when `started` */
    bool started; /* the cursor has begun with the window */
};

/* Return the window of the cursor, begun, or NULL when the cursor has passed all dequeued windows. Skip
 * windows that are done without it. */
struct nb_coll_req *nb_cursor_window(const struct nb_coll_comm *comm, struct nb_cursor *cursor);
/* Return the first window that the cursor has not passed. */
uint64_t nb_cursor_reached(const struct nb_coll_comm *comm, const struct nb_cursor *cursor);
/* Return where the cursor will search in `win`, which it has not passed. */
uint64_t nb_cursor_place(const struct nb_cursor *cursor, const struct nb_coll_req *win);

/* Pass the window: all its segments for this cursor are done. */
static inline void nb_cursor_pass(struct nb_cursor *cursor)
{
    cursor->seq++;
    cursor->started = false;
}

/* ---- the account of a window ------------------------------------------------------------------------- */

/* Count `bytes` bytes as delivered. */
void nb_window_received(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);

/* Count a send cursor that has passed the window. */
void nb_window_sent(struct nb_coll_comm *comm, struct nb_coll_req *win);

/* Count a task of the window that has ended and delivered `bytes` bytes. */
void nb_window_task_done(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);

/* ---- beginning an operation -------------------------------------------------------------------------- */

/* The begin of an operation: its record if that is certain, and which bytes of an all-reduce's window are
 * values (policy/records/walk.c). */

/* Records of the communicator's operations, and the all-reduce whose windows are arriving from NCCL. Private
 * to operation.c. */
struct nb_records {
    struct nb_align *align; /* matches records with operations */
    struct nb_walk walk;    /* places of the all-reduce whose windows are arriving */
    struct {
        ncclDataType_t type;
        ncclRedOp_t op;
        int known; /* its record is certain, and `extent` is set */
        struct nb_extent extent;
        uint64_t heads_told; /* from the record */
        struct nb_op_info *info;
    } ar;
    struct {
        uint64_t told, left;
    } heads[4];    /* heads that lengths of operations still allow */
    unsigned said; /* bits: reasons for ignoring a record that were logged */
};

/* Find the record of the operation that a window begins or continues, in window order. For the first window
 * of a reduction a task samples values: leave the window alone until the task has ended. Needs a free
 * task. */
void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win);

/* ---- sending ----------------------------------------------------------------------------------------- */

struct nb_peer_send { /* of a peer */
    struct nb_cursor cursor;
    uint64_t gather_next; /* the next shared unit of an all-gather to queue */
};

/* Shadow mode: coded units are written here and counted instead of sent. */
struct nb_scratch {
    uint8_t *mem; /* a message buffer for a contribution, and one for an all-gather */
    int used;     /* a task uses the first buffer */
};

/* ---- picking a reference ----------------------------------------------------------------------------- */

/* Before an all-gather sends the first segment of the own block, a task samples values of the block, by which
 * policy distinguishes weights, and picks the reference that is most like the block (state/reference.h).
 * Other work continues meanwhile, but other segments of the own block wait. */

#define NB_NEAR_SAMPLES 256u

/* The pick in progress. */
struct nb_gather_pick {
    enum nb_pick_step {
        NB_PICK_LOOK,  /* sample values for policy */
        NB_PICK_ALIKE, /* compare with one buffer, as `search` asks */
        NB_PICK_OWN,   /* NIBBLE_AG=delta4: sample the block, then the buffer that was found */
        NB_PICK_REF,
    } step;
    struct nb_ref_search search;
    const void *there; /* the buffer that `search` compares with */
    struct nb_similarity near;
    float sample[2][NB_NEAR_SAMPLES];
};

/* ---- sending all-gathers ----------------------------------------------------------------------------- */

struct nb_gather {
    struct nb_pool units; /* units that go to every peer (send.c) */
    struct nb_gather_pick pick;
};

/* Send a segment of the own block, as deltas where there is a reference, and deliver it here. Call it once
 * for each segment, in order. The message goes into the next buffer of `tx` or into `unit`. can_send: return
 * 1 when that is possible now. Before an operation's first segment it picks the reference. send: return 1, or
 * < 0 when the communicator has failed. */
int nb_gather_can_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment);
int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                   struct nb_tx *tx, struct nb_shared *unit);

/* ---- sums -------------------------------------------------------------------------------------------- */

#define NB_PARTIALS 4u /* sums on their way to their owners */

/* Samples of a sum and of this node's part of it. Every few sums one task takes them: where contributions
 * cancel, the sum has much less energy than they have, and their coding errors are large beside it. */
struct nb_look {
    struct nb_task *task; /* the task that takes samples, or NULL */
    enum nb_step then;    /* its step after LOOK_OWN */
    unsigned turn;        /* counts sums */
    unsigned picks;
    uint32_t own[NB_PICKS], sum[NB_PICKS];
};

#define NB_PARKED 256u /* segments that are parked, at most */

struct nb_held_message { /* taken from its ring. Its buffer is held */
    struct nb_msg msg;
    const uint8_t *body;
};

/* A segment that this node finishes on a grid. Its row has contributed, its column has not. */
struct nb_parked {
    struct nb_coll_req *win;
    uint64_t off;
    struct nb_held_message *held; /* [nneighbors], where the neighbor is in the row */
};

struct nb_reduce {
    struct nb_cursor cursor;      /* over the segments that this node sums or parks */
    struct nb_parked *parked;     /* [parking], in order */
    struct nb_held_message *held; /* of all of them */
    unsigned parking;             /* places. 0: no grid */
    uint64_t came, left;          /* numbers of segments that were parked, and summed then */
    struct nb_pool results;       /* results of all-reduces, which go to several peers */
    uint8_t *partial;             /* [NB_PARTIALS] sums on their way to their owners */
    unsigned partials;            /* bits: partials in use */
    unsigned passed_on;           /* counts coded sums that go on */
    struct nb_look look;
};

/* Put LOOK_OWN before the task's first step, SUM or DECODE, in some tasks. Its `own`, `exact` and `values` are set,
 * and its values are those of the complete sum. */
void nb_look_begin(struct nb_coll_comm *comm, struct nb_task *task);
/* Continue after LOOK_OWN or the first step. Return 1 when another step is set, else 0. */
int nb_look_next(struct nb_coll_comm *comm, struct nb_task *task, ssize_t result);
/* Evaluate the samples after LOOK_SUM. */
void nb_look_end(struct nb_coll_comm *comm, struct nb_task *task, ssize_t result);

/* Sum the next segment. Return 1 when something moved, 0 when it has to wait, or < 0 when the communicator
 * has failed. */
int nb_reduce_next(struct nb_coll_comm *comm);

/* Create the places of parked segments. Return 0 or -ENOMEM. destroy: free them. */
int nb_parking_create(struct nb_coll_comm *comm);
void nb_parking_destroy(struct nb_coll_comm *comm);
/* Return the first window that may have a sum for this node to begin. */
uint64_t nb_reduce_reached(const struct nb_coll_comm *comm);
/* Return true when a sum of the window needs `peer`'s contribution, which has not arrived. */
bool nb_reduce_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                         const struct nb_peer *peer);

/* ---- receiving --------------------------------------------------------------------------------------- */

struct nb_peer_results { /* results that a peer sends, in order */
    uint64_t seq;        /* window of the next result */
    uint64_t win;        /* window of the last result */
    uint64_t off;        /* the lowest place in `win` at which the next result may lie */
};

/* ---- forwarding -------------------------------------------------------------------------------------- */

/*
 * Forwarding, for schedules in which segments go through other nodes.
 *
 * Two cursors work for other nodes: sums (reduce.c) and forwards (forward.c), each in the order of windows.
 * Both put messages into RESULT rings, whose receivers expect the order of windows, too. So
 *
 *   - a forward waits until all sums of older windows are done,
 *   - a sum that leaves as RESULT waits until all older windows are forwarded. An all-reduce's sum waits for
 *     older all-gathers only: this cursor forwards the all-reduce's results, so it would wait for itself.
 *
 * Both wait for older windows only. So the cursor with the older window can always move. Nodes do not
 * deadlock: in the oldest open window of the group, sums wait for contributions only, and forwards for sums
 * and arrivals of the same window (comm/comm.h has the rest).
 */

struct nb_forward {
    struct nb_cursor
        cursor;         /* over the segments that this node forwards, with its own results of all-reduces: */
    uint64_t emit_next; /* number of the next result to forward (nb_reduce.results) */
};

/* Forward the next segment and deliver it here. Return 1 when something moved, 0, or < 0 when the
 * communicator has failed. */
int nb_forward_next(struct nb_coll_comm *comm);
/* Return true when a sum of the window may leave as RESULT, by the order above. */
bool nb_forward_lets_result_pass(struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* Return true when the next forward of the window has to come from `peer` and has not arrived. */
bool nb_forward_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer);

/* ---- retransmission ---------------------------------------------------------------------------------- */

/*
 * Retransmission. A receiver of an all-gather lacks the reference that a segment is coded against, or finds
 * another hash. It requests the raw bytes of the segment from the block's owner (RAW), a part at a time, and
 * gets them as DATA. Both are CONTROL messages, which every node always reads, so they are outside the order
 * of data messages. A node has one request to an owner in flight. Other tasks of that owner's block queue
 * behind it.
 *
 * The owner's device copies the bytes from the owner's reference into the answer. The reference stays as it
 * is until the asking node has confirmed it. The receiver's device copies them from the ring into place, and
 * the ring's message buffer is held meanwhile.
 */

/* A request for raw bytes of the own block. */
struct nb_ask {
    uint64_t opno, off;
    uint32_t len;
    int rank;
};
#define NB_ASKS 4u /* requests of a node at a time: it has one, and the rest is reserve */

struct nb_peer_raw {         /* for each peer */
    struct nb_task *waiting; /* tasks that wait for raw bytes of this peer's block. The first one asks */
    struct nb_ask *ask;      /* [most] n requests of the peer, or of nodes behind it */
    unsigned n, most;
    struct nb_shared answer; /* DATA for the peer. In use while `left` is above 0 */
    enum nb_answering {
        NB_ANSWER_NONE,
        NB_ANSWER_COPYING,
        NB_ANSWER_COPIED
    } answering;         /* state of the first of `ask` */
    struct nb_work work; /* the copy */
};

struct nb_retransmits {
    unsigned copying; /* answers that the device copies */
};

/* Await raw bytes: the step of a task that waits for them. It requests them when it is the task's turn. It
 * returns like the device's functions, for the copy of a part that has arrived, or -EAGAIN when no part has
 * arrived. copied: handle the end of the copy. Return true after the last part. Otherwise the step continues,
 * or *error is < 0 because the communicator has failed. */
ssize_t nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *task);
bool nb_retransmit_copied(struct nb_coll_comm *comm, struct nb_task *task, int *error);

struct nb_staging {
    uint8_t *arrivals; /* memory of all rings with forwarded messages, by rank */
    size_t arrivals_bytes;
    uint8_t *payload; /* memory of all payloads in the device's memory. NULL: they lie behind their headers */
    size_t payload_bytes, payload_used;
    bool refused; /* the transport could not register it */
};

/* ---- state ------------------------------------------------------------------------------------------- */

/* State of a peer. */
struct nb_peer_flow {
    struct nb_peer_send send;
    struct nb_peer_results results;
    struct nb_peer_raw raw;
};

/* Return the kinds of GPU memory (enum nb_mem) that the transport reaches. `parts`: 0 where it does not send
 * messages of two parts. */
int nb_adapter_kinds(const struct nb_coll_comm *comm, bool parts);

/* The transport's adapter as the device sees it: copies of one connection (adapter.c). */
struct nb_flow_adapter {
    struct nb_adapter adapter;
    const struct nb_net_ops *net;
    void *conn; /* receives from a neighbor. NULL: the device has no adapter */
    int kinds;  /* enum nb_mem of the GPU memory that it reaches */
};

/* State of a communicator. */
struct nb_flow {
    struct nb_peer_flow *peers; /* [nnodes] */
    bool taken_up;        /* the operation of the next window has begun, and a task samples its values */
    uint64_t gathers_end; /* 1 + the last window of the last dequeued all-gather */
    bool pace_told;       /* the log says that the processor is the limit */
    struct nb_tasks tasks;
    struct nb_records records;
    struct nb_staging staging;
    struct nb_flow_adapter adapter;
    struct nb_scratch scratch;
    struct nb_gather gather;
    struct nb_cursor first_hop;
    struct nb_reduce reduce;
    struct nb_forward forward;
    struct nb_retransmits retransmits;
};

#endif
