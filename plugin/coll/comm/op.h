/* SPDX-License-Identifier: Apache-2.0 */
/* Operations, the windows in which NCCL hands them over, and the segments that a window is cut into. */
#ifndef NIBBLE_COLL_COMM_OP_H
#define NIBBLE_COLL_COMM_OP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/comm/wire.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"
#include "state/reference.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_op;
struct nb_op_info;
struct nb_schedule_ops;
struct nb_proof;

/* ---- operations -------------------------------------------------------------------------------------- */

/*
 * An operation: what a collective call of the job is on this node, from its first window to its last. A ring
 * of them is made by those who submit windows (request.c); all but the first members are the engine thread's.
 */

#define NB_OPS 512u /* more than windows (op.h), so that an operation outlives its last window */
/* Shorter segments (slivers that a window boundary cuts off) are not worth a quantizer's header. */
#define NB_MIN_CODED_VALUES 64u

struct nb_op {
    uint64_t opno;
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t redop;
    size_t value;   /* bytes of a value */
    uint64_t block; /* bytes per rank (all-reduce: bytes of the window) */
    /* From here on the engine thread's. */
    int begun;
    struct nb_proof *proof; /* decide/decide.h; NULL: none */
    int sought;             /* all-gather: a proof was sought */
    const struct nb_schedule_ops *schedule;
    enum nb_codec codec;     /* all-gather: ULP, DELTA4 or raw */
    struct nb_op_info *info; /* NULL: an all-reduce window of which nothing is certain */
    uint64_t ef_base;        /* all-reduce: index of the window's first value in the slot */
    int picked;              /* all-gather: the reference was chosen */
    enum nb_ref_outcome outcome;
    struct nb_ref *ref;
    struct nb_ref *like; /* all-gather: what the content was matched with, also where it cannot be used yet */
    int lossy;           /* all-gather: differences may be bounded ones */
    int changed;         /* all-gather: the own block differs from the time before */
    uint64_t gathered;   /* all-gather: bytes of the own block that are sent */
    /* Two-hop all-gather: a bit for each node: some of its block said KEEP; some of it could not be kept
     * here. */
    uint64_t *keep, *lost;
    uint64_t moved_values, moved_bits; /* all-gather: values sent as differences, and what these took */
};

/* ---- windows ----------------------------------------------------------------------------------------- */

/*
 * The account of a window: bytes still to be delivered here, send cursors that have not passed it, tasks in
 * flight. It is finished when nothing is left. For the engine thread.
 */

#define NB_WINDOWS 256u /* NCCL has at most 8 steps x 8 groups in flight: never runs out */

enum { NB_REQ_FREE = 0, NB_REQ_ACTIVE, NB_REQ_DONE };

/* A window handed over by NCCL: the request object. */
struct nb_coll_req {
    uint32_t magic;
    _Atomic int state;
    struct nb_coll_comm *comm;
    uint64_t seq; /* windows of a communicator are numbered from 0 */
    struct nb_op *op;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t off, bytes; /* range in the operation's vector (all-reduce: 0, length) */
    uint64_t part_off; /* reduce-scatter: where recv points; all-gather: where send points (vector offsets) */
    size_t size;       /* reported by test */
    /* engine thread */
    uint64_t rx_left; /* bytes still to be delivered here */
    int tx_left;      /* send cursors (one a peer, and the first-hop cursor) that have not passed it */
    unsigned tasks_in_flight; /* tasks in flight (flow/internal.h) */
    uint64_t after_gather; /* number of the first window behind the last all-gather's before this; 0: none */
    /* all-reduce: place in NCCL's region (NB_WALK_SLOTS: not there), set when it is handed over; then the
     * first `sure` bytes certainly are values and those from `most` on certainly are not */
    unsigned slot;
    uint64_t at, sure, most;
};
#define NB_REQ_MAGIC 0x4e425251u

/* ---- segments ---------------------------------------------------------------------------------------- */

/* What a window is cut into. */

/* A segment: at most a wire unit, one owner. Offsets are in the coordinates of nb_coll_req.off. */
struct nb_segment {
    uint64_t off;
    uint32_t len;
    int owner; /* rank that reduces it (all-gather: that holds it) */
    int relay; /* rank through which it goes from its owner (all-gather), or that finishes its sum; -1: the owner, or
                     * none */
    uint64_t first;  /* index of its first value in the owner's block (all-reduce: in the window) */
    uint64_t number; /* all-reduce: segments before it in the window */
    /* All-reduce: what this node knows of its values. How a window is cut does not depend on it, since it may
     * differ between nodes; messages say how much of a segment they carry. */
    uint32_t most; /* bytes from here on are padding (else len) */
    int sure;      /* all bytes before are values, so they may be coded */
};

/* The node that finishes the sum of a segment. */
static inline int nb_segment_finisher(const struct nb_segment *segment)
{
    return segment->relay >= 0 ? segment->relay : segment->owner;
}

/* ---- what NCCL has handed over ----------------------------------------------------------------------- */

/* The side of a communicator that NCCL's threads submit windows to (request.c), with NCCL's registered
 * buffer. */

struct nb_submit {
    pthread_mutex_t lock; /* guards what is here, and the order of nb_coll_comm.submitted */
    struct nb_op *ops;    /* [NB_OPS] */
    uint64_t next_opno;
    struct nb_op *open_op; /* whose next window must start at open_off; NULL: none */
    uint64_t open_off;
    struct {
        void *base;
        size_t size;
        unsigned refs;
    } region[2]; /* NCCL's buffer in host memory, in device memory */
};

#endif
