/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a communicator. The engine thread counts, tests and tools linked with the library read, and the
 * summary at close prints them.
 */
#ifndef NIBBLE_COLL_COMM_STATS_H
#define NIBBLE_COLL_COMM_STATS_H

#include <stdint.h>

#include "coll/comm/wire.h"
#include "nibble/codec.h"

struct nb_coll_comm;

#define NB_COLL_RECORD_OUTCOMES 5

struct nb_func_stats {
    uint64_t ops;             /* operations begun */
    uint64_t two_hop_ops;     /* operations with the two-hop schedule */
    uint64_t two_level_ops;   /* operations with the two-level schedule */
    uint64_t windows;         /* calls from NCCL */
    uint64_t sent_bytes;      /* values sent to peers, before coding */
    uint64_t wire_bytes;      /* bytes sent for them, headers included */
    uint64_t would_be_bytes;  /* all-gather in shadow mode: bytes that coding would send */
    uint64_t coded_ops;       /* operations quantized or sent as deltas, at least in part */
    uint64_t units;           /* messages */
    uint64_t raw_units;       /* messages with raw bytes */
    uint64_t unchanged_units; /* all-gather: messages of a header only */
};

struct nb_coll_stats {
    struct nb_func_stats func[NB_FUNC_COUNT];
    struct nb_encode_stats encode;  /* quantized contributions (noise2/signal2 is their NMSE) */
    uint64_t feedback_ops;          /* quantized operations with error feedback */
    uint64_t weight_jumps;          /* gathers of weights far from the earlier weights, which drop all
                                       residuals */
    uint64_t feedback_dropped;      /* residuals that these dropped */
    uint64_t feedback_resets;       /* residuals dropped after a value that is not finite */
    uint64_t no_feedback_ambiguous; /* quantized operations without feedback, as their residual was
                                       uncertain */
    uint64_t no_feedback_budget;
    uint64_t references, ref_hits, ref_new, ref_unconfirmed,
        ref_budget; /* all-gather: owner's choices, per operation */
    /* All-gathers with NIBBLE_AG=delta4: operations, messages with bounded deltas, their runs of 256 values,
     * and the lossy ones among these runs. */
    uint64_t gathers_bounded, bounded_units, bounded_runs, bounded_lossy_runs;
    /* operations by enum nb_alignment: the certainty of their record */
    uint64_t records[NB_COLL_RECORD_OUTCOMES];
    uint64_t records_wrong; /* records that an operation contradicted only at its end */
    uint64_t resends;       /* messages that a receiver asked for again as raw bytes */
    /* Payloads with a compared check value or hash, their bytes, and the damaged ones. */
    uint64_t payload_checked, payload_checked_bytes, payload_damaged;
    uint64_t control_bytes;
    uint64_t feedback_bytes, reference_bytes; /* memory in use */
    uint64_t unanswered; /* 1 while a receiver still owes a confirmation for a gather of this node's block */
    /* Time in which some window was open, and the part of it in which this processor coded, decoded, summed
     * or copied, without the GPU's work. Bytes of values of that work. */
    uint64_t busy_ns, worked_ns, worked_bytes;
    uint64_t device_bytes; /* bytes of values of the GPU's completed work of the same kinds */
    unsigned workers; /* codec threads whose time counts in `worked_ns`. 0: the engine thread does the work */
};

/* Return the share of the busy time in which this processor or its codec threads work, rather than the links.
 * Return 0 without work. */
static inline double nb_stats_codec_share(const struct nb_coll_stats *s)
{
    return s->busy_ns ? (double)s->worked_ns / ((double)s->busy_ns * (s->workers ? s->workers : 1)) : 0;
}

#endif
