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
 * An operation is a collective call of the job, from its first window to its last. Threads of NCCL create
 * operations in a ring when they submit windows (request.c). The engine thread owns the members from `begun`
 * on.
 */

#define NB_OPS 512u /* more than windows, so that an operation outlives its last window */

struct nb_op {
    uint64_t opno;
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t redop;
    size_t value;   /* bytes of a value */
    uint64_t block; /* bytes per rank. All-reduce: bytes of the window */
    /* For the engine thread. */
    int begun;
    struct nb_proof *proof; /* values for the operation's proof (decide/proof.c), or NULL */
    int sought;             /* all-gather: a proof was begun, or refused */
    const struct nb_schedule_ops *schedule;
    enum nb_codec codec;     /* all-gather: ULP, DELTA4 or raw */
    struct nb_op_info *info; /* NULL: an all-reduce window without a certain record */
    uint64_t ef_base;        /* all-reduce: index of the window's first value in the residual */
    int picked;              /* all-gather: the reference was chosen */
    enum nb_ref_outcome outcome;
    struct nb_ref *ref;
    struct nb_ref *like; /* all-gather: the reference that the content resembles, usable or not */
    int lossy;           /* all-gather: deltas may lose bits */
    int changed;         /* all-gather: the own block has changed since the last time */
    uint64_t gathered;   /* all-gather: bytes of the own block that were sent */
    /* Two-hop all-gather, with a bit for each owner: segments of its block are to be kept as a reference, and
     * some could not be kept here. */
    uint64_t *keep, *lost;
    uint64_t moved_values,
        moved_bits; /* all-gather: values that were sent as deltas, and the bits of these deltas */
};

/* ---- windows ----------------------------------------------------------------------------------------- */

/*
 * A window is done when its account is empty: all bytes are delivered here, all send cursors have passed it,
 * and its tasks have ended.
 */

#define NB_WINDOWS 256u /* NCCL has at most 8 steps x 8 groups in flight */

enum { NB_REQ_FREE = 0, NB_REQ_ACTIVE, NB_REQ_DONE };

/* A window that NCCL has handed over. It is the request object of `test`. */
struct nb_coll_req {
    uint32_t magic;
    _Atomic int state;
    struct nb_coll_comm *comm;
    uint64_t seq; /* number of the window, from 0 */
    struct nb_op *op;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t off, bytes; /* range in the operation's vector. All-reduce: 0 and the length */
    uint64_t part_off;   /* offset in the vector, of recv for a reduce-scatter, of send for an all-gather */
    size_t size;         /* reported by test */
    /* For the engine thread. */
    uint64_t rx_left;         /* bytes that are still to be delivered here */
    int tx_left;              /* cursors of the peers and of the first hop that have not passed it */
    unsigned tasks_in_flight; /* tasks in flight */
    uint64_t after_gather;    /* 1 + the last window of the last all-gather before this window, or 0 */
    /* All-reduce: the window's slot in NCCL's buffer (NB_WALK_SLOTS: unknown), set when NCCL hands it over.
     * The first `sure` bytes are certainly values, and the bytes from `most` on are certainly padding. */
    unsigned slot;
    uint64_t at, sure, most;
};
#define NB_REQ_MAGIC 0x4e425251u

/* ---- segments ---------------------------------------------------------------------------------------- */

/* A segment is a part of a window: at most a wire unit, of one owner. Offsets count as in nb_coll_req.off. */
struct nb_segment {
    uint64_t off;
    uint32_t len;
    int owner;       /* rank that reduces it. All-gather: rank that holds it */
    int relay;       /* all-gather: its relay. Sums: the node that finishes. -1: the owner, or no relay */
    uint64_t first;  /* index of its first value in the owner's block. All-reduce: in the window */
    uint64_t number; /* all-reduce: segments before it in the window */
    /* All-reduce: this node's knowledge about the values. Nodes may know different things, so the cut of a
     * window does not depend on it. Messages say how many bytes of a segment they carry. */
    uint32_t most; /* bytes from here on are padding. Other operations: len */
    int sure;      /* all bytes before `most` are certainly values, and may be coded */
};

/* Return the node that finishes the sum of a segment. */
static inline int nb_segment_finisher(const struct nb_segment *segment)
{
    return segment->relay >= 0 ? segment->relay : segment->owner;
}

/* ---- submitted windows ------------------------------------------------------------------------------- */

/* Where NCCL's threads submit windows (request.c), and NCCL's registered buffer. */

struct nb_submit {
    pthread_mutex_t lock; /* guards the members, and the order of nb_coll_comm.submitted */
    struct nb_op *ops;    /* [NB_OPS] */
    uint64_t next_opno;
    struct nb_op *open_op; /* the operation whose next window must start at open_off, or NULL */
    uint64_t open_off;
    struct {
        void *base;
        size_t size;
        unsigned refs;
    } region[2]; /* NCCL's buffer in host memory, and in device memory */
};

#endif
