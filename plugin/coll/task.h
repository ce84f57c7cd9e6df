/* SPDX-License-Identifier: Apache-2.0 */
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
 *     result (result.c)           DECODE; or SUM, LOOK?, with the own values, for the owner of a reduce-scatter's
 *                                 block
 *     before it (gather_pick.c)   PICK
 *     own block (gather.c)        COMPARE, SOURCE?, or HASH; NOTE?; DELTA_ENCODE, ENCODE or COPY; UPDATE_REF or STORE_REF; OWN; LOOK?:
 *                                 see there
 *     others' (take_gather.c)     HASH_REF; DELTA_DECODE, LOAD_REF or DECODE; HASH; RETRANSMIT?; STORE_REF?: see there
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
#ifndef NIBBLE_COLL_TASK_H
#define NIBBLE_COLL_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/op.h"
#include "coll/peer.h"
#include "coll/segment.h"
#include "device/device.h"
#include "state/feedback.h"
#include "state/reference.h"

struct nb_coll_comm;
struct nb_coll_req;

#define NB_TASKS 64u /* of a communicator: as many as a device usefully has in flight */

enum { NB_TASK_OVER = 0, NB_TASK_MORE = 1 };

/* What is done with values; which of them a task goes through, and in which order, is up to its `next`. */
enum nb_step {
    NB_STEP_SUM,    /* sources (of `exact` ones plain), then own: into values */
    NB_STEP_ENCODE, /* values as msg.codec into body */
    NB_STEP_COPY,   /* values, or what is at `from`, into body */
    NB_STEP_DECODE, /* body, as msg tells: into values */
    NB_STEP_LOOK,   /* at values of the own block (witness.h) */
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
    NB_STEP_RETRANSMIT,   /* wait for raw bytes of the segment, a part at `from` into values (retransmit.h) */
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
/* Look after all that are in flight: 1 something moved, 0, or < 0. */
int nb_tasks_progress(struct nb_coll_comm *comm);
/* True while the device has some work of the communicator's: a task's, of residuals that are emptied, or of answers to who
 * asks for raw bytes. */
bool nb_works_under_way(const struct nb_coll_comm *comm);
/* The communicator has failed or is closed: 0, no work touches memory any more; or -ETIMEDOUT, some work on
 * the device does not end, so that what it may touch has to stay. */
int nb_tasks_abandon(struct nb_coll_comm *comm);

/* Make memory for tasks: 0 or -ENOMEM. free: also of what was half made. */
int nb_tasks_create(struct nb_coll_comm *comm);
void nb_tasks_destroy(struct nb_coll_comm *comm);

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

#endif
