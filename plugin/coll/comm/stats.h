/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator did: counted by the engine thread, readable by tests and tools linked with the library,
 * and printed as one summary when the communicator closes.
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
    uint64_t two_hop_ops;     /* of these, in two hops */
    uint64_t two_level_ops;   /* of these, in two levels */
    uint64_t windows;         /* calls from NCCL */
    uint64_t sent_bytes;      /* values sent to peers, before coding */
    uint64_t wire_bytes;      /* the same as sent, headers included */
    uint64_t would_be_bytes;  /* all-gather in shadow mode: as they would be sent */
    uint64_t coded_ops;       /* operations that were quantized or sent as differences, in part at least */
    uint64_t units;           /* messages */
    uint64_t raw_units;       /* of these, sent as raw bytes */
    uint64_t unchanged_units; /* all-gather: sent as a header only */
};

struct nb_coll_stats {
    struct nb_func_stats func[NB_FUNC_COUNT];
    struct nb_encode_stats encode;  /* of quantized contributions (noise2/signal2 is their NMSE) */
    uint64_t feedback_ops;          /* quantized operations with error feedback */
    uint64_t weight_jumps;          /* gathers of weights far from those before: all errors dropped */
    uint64_t feedback_resets;       /* errors dropped because a non-finite value was seen */
    uint64_t no_feedback_ambiguous; /* quantized operations without feedback: residual not certain */
    uint64_t no_feedback_budget;
    uint64_t references, ref_hits, ref_new, ref_unconfirmed,
        ref_budget; /* all-gather: owner's choices, per operation */
    /* all-gathers with NIBBLE_AG=delta4: operations; units sent as bounded differences, their runs of 256
     * values, and those of which something was dropped */
    uint64_t gathers_bounded, bounded_units, bounded_runs, bounded_lossy_runs;
    /* operations by enum nb_alignment: how certain their record was */
    uint64_t records[NB_COLL_RECORD_OUTCOMES];
    uint64_t records_wrong; /* records that an operation contradicted only when it had ended */
    uint64_t resends;       /* units that a receiver asked for again as raw bytes */
    /* Payloads whose check, or hash, was compared, their bytes, and how many did not fit. */
    uint64_t payload_checked, payload_checked_bytes, payload_damaged;
    uint64_t control_bytes;
    uint64_t feedback_bytes, reference_bytes; /* memory in use */
    uint64_t unanswered; /* 1 while a receiver has not taken over a gather of this node's block */
    /* Time in which some window was unfinished; of it, time in which this processor coded, decoded, summed or
     * copied (not what a GPU did meanwhile), and bytes of values that went through that. */
    uint64_t busy_ns, worked_ns, worked_bytes;
    unsigned workers; /* threads that work of `worked_ns` beside the engine's; 0: its own does it */
};

/* Share of the busy time in which this processor, or its codec threads, work rather than the links; 0 where
 * nothing was done. */
static inline double nb_stats_codec_share(const struct nb_coll_stats *s)
{
    return s->busy_ns ? (double)s->worked_ns / ((double)s->busy_ns * (s->workers ? s->workers : 1)) : 0;
}

#endif
