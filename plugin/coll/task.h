/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: what the engine has the device do with a piece, one step after the other (an all-reduce's: sum, code, decode).
 * A device that does its work later (device/device.h) has the steps of many tasks in flight at a time; with one that
 * does it at once a task is over before nb_task_run returns.
 *
 * The life of a task: nb_task_new; fill it in; nb_task_ask its first step of the device, which may have no room for it
 * (then nb_task_drop: nothing has happened, the piece is tried again later); now take what the piece needs (message
 * heads, buffers); nb_task_run. From then on the window counts it, and is not finished before the task is over.
 *
 * What keeps tasks apart that are in flight together: pieces of windows are disjoint, and so are their places in
 * buffers, which are reserved in order and given back when the task that uses them is over; carried errors are held
 * (state/feedback.h); areas that are few (sums under way, the scratch of shadow mode) are taken and given back.
 *
 * All functions are for the engine thread (nb_task_abandon: with progress_lock held).
 */
#ifndef NIBBLE_COLL_TASK_H
#define NIBBLE_COLL_TASK_H

#include "coll/internal.h"

#define NB_TASKS 64u    /* of a communicator: as many as a device usefully has in flight */
#define NB_PARTIALS 4u  /* sums under way to their owners */

enum { NB_TASK_OVER = 0, NB_TASK_MORE = 1 };

/* What is done with values; which of them a task goes through, and in which order, is up to its `next`. */
enum nb_step {
    NB_STEP_SUM,  /* sources (of `exact` ones plain), then own: into values */
    NB_STEP_CODE, /* values as msg.codec into body */
    NB_STEP_COPY, /* values, or what is at `from`, into body */
    NB_STEP_SHOW, /* body, as msg tells: into values */
    /* all-gathers */
    NB_STEP_DIFFER,  /* values - ref into body */
    NB_STEP_ADD,     /* ref + body into values */
    NB_STEP_LEARN,   /* ref + body into ref */
    NB_STEP_STORE,   /* values into ref */
    NB_STEP_RECALL,  /* ref into values */
    NB_STEP_OWN,     /* values into recv */
    NB_STEP_ASK,     /* wait for raw bytes of the piece (take_gather.c) */
};

struct nb_task {
    struct nb_work work;
    struct nb_task *link; /* the next that is free, or under way */
    int flying;           /* the step at hand is in flight */
    ssize_t result;       /* of the step at hand */
    enum nb_step step;
    /* The step at hand is done with `result`: NB_TASK_MORE with another step set, NB_TASK_OVER, or < 0 when the
     * communicator has failed. */
    int (*next)(struct nb_coll_comm *comm, struct nb_task *task, ssize_t result);

    struct nb_coll_req *win;
    struct nb_op *op;
    struct nb_piece piece;
    uint64_t delivers; /* bytes of the window that are delivered when it is over */

    struct nb_msg msg;
    uint8_t *buf;      /* the message: msg, then body */
    uint8_t *body;
    uint8_t *values;
    const uint8_t *from;
    uint32_t bytes;    /* of values */
    enum nb_dtype dtype;
    size_t value;      /* bytes of one */
    uint64_t first;    /* its number in the rank block */
    struct nb_ef_slot *slot; /* the carried error that this task holds, or NULL: then `ef` is not set */
    struct nb_ef ef;
    struct nb_encode_stats stats;
    int counted;       /* stats are wanted */

    struct nb_source *sources; /* [nranks] */
    const void **plain;        /* [nranks] */
    size_t nsources;
    int exact;
    const uint8_t *own;

    /* all-gathers */
    uint8_t *ref;      /* of the piece, or NULL */
    uint8_t *recv;
    enum nb_codec with; /* NB_STEP_DIFFER: the codec that is tried */
    enum nb_ulp_width width;
    struct nb_delta4_stats delta4;
    int shadowed;      /* what would have been sent is counted */
    struct nb_peer *owner; /* of the block */
    uint32_t got;      /* raw bytes that have come */

    /* Where the message goes, or came from. */
    struct nb_peer *peer;
    struct nb_tx *tx;
    uint64_t item;             /* number in tx */
    struct nb_shared *unit;    /* shared by several */
    struct nb_rx *rx;
    unsigned at;               /* its slot in rx */
};

/* A task of `win` for a piece, with value and first as they are in sums, and no slot, buffers, reference or delivery;
 * the rest is not set. NULL: all are under way. */
struct nb_task *nb_task_new(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece);
/* Of one that has not been run: release what it holds and give it back. */
void nb_task_drop(struct nb_coll_comm *comm, struct nb_task *task);
/* Ask the device for the step at hand: 1, or 0 when it has no room. */
int nb_task_ask(struct nb_coll_comm *comm, struct nb_task *task);
/* Go on as far as it goes after an ask, whatever it gave. 1, or < 0 when the communicator failed. */
int nb_task_run(struct nb_coll_comm *comm, struct nb_task *task);
/* Look after all that are under way: 1 something moved, 0, or < 0. */
int nb_tasks_progress(struct nb_coll_comm *comm);
/* The communicator has failed or is closed: when this returns no task touches memory any more. */
void nb_tasks_abandon(struct nb_coll_comm *comm);

/* Make memory for tasks: 0 or -ENOMEM. free: also of what was half made. */
int nb_tasks_create(struct nb_coll_comm *comm);
void nb_tasks_destroy(struct nb_coll_comm *comm);

/* The task reads the message at the head of `rx`: keep its slot, and take it. Let go of it. */
void nb_task_hold_head(struct nb_task *task, struct nb_peer *peer, struct nb_rx *rx);
void nb_task_release_head(struct nb_task *task);
/* receive.c: the task, set up but for its next function, makes of the message at the head of the peer's RESULT ring what
 * its piece delivers: 1, 0 when the device has no room (the task is dropped), or < 0 when the communicator failed. */
int nb_take_result(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_task *task);

/* Hold the error of block `block` (all-reduce: of the window) of the settled operation, where it carries one on: 1, or
 * 0 when it is not to be had yet. */
int nb_task_hold_error(struct nb_task *task, uint32_t block);
/* Let go of it, if it is held. */
void nb_task_release_error(struct nb_coll_comm *comm, struct nb_task *task);

#endif
