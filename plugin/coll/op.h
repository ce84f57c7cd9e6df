/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation: what a collective call of the job is on this node, from its first window to its last. A ring
 * of them is made by those who submit windows (request.c); all but the first members are the engine thread's.
 */
#ifndef NIBBLE_COLL_OP_H
#define NIBBLE_COLL_OP_H

#include <stddef.h>
#include <stdint.h>

#include "coll/schedule.h"
#include "coll/wire.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"
#include "state/reference.h"

struct nb_op_info;
struct nb_witness;

#define NB_OPS 512u /* more than windows (window.h), so that an operation outlives its last window */
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
    struct nb_witness *witness; /* witness.h; NULL: none */
    int sought;                 /* all-gather: a witness was sought */
    const struct nb_schedule_ops *schedule;
    enum nb_codec codec;     /* all-gather: ULP, DELTA4, INT8 or raw */
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

/* 1 when the operation's own block goes to relays (scatter.c). */
static inline int nb_is_scattered(const struct nb_op *op)
{
    return op->func == NB_FUNC_ALL_GATHER && op->schedule->next_scatter;
}

#endif
