/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides on operations: codec and residual, from the settings, the reckoning, the operation's record and the
 * values so far (policy/, state/). For the engine thread, unless a comment says otherwise.
 */
#ifndef NIBBLE_COLL_DECIDE_DECIDE_H
#define NIBBLE_COLL_DECIDE_DECIDE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/slab.h"
#include "nibble/codec.h"
#include "policy/job/job.h"
#include "policy/reckon/reckon.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"
#include "state/feedback.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_coll_stats;
struct nb_ctl;
struct nb_grid;
struct nb_kept_evidence;
struct nb_op;
struct nb_op_info;
struct nb_peer;
struct nb_proof;
struct nb_proofs;
struct nb_work;

/* ---- reckoning --------------------------------------------------------------------------------------- */

/*
 * The facts of a node's link and codec, which nodes exchange when they vote (connect/vote.c), and the size
 * from which coding pays with the slowest of them (policy/reckon/reckon.c). For the thread that connects.
 */

/* Return the rate of this node's link in Mbit/s: NIBBLE_LINK_MBPS or the transport's. 0: unknown. */
uint32_t nb_facts_rate(const struct nb_coll_comm *comm);

/* Return the facts of this node: its codec, and the nominal rate of the communicator's network device or
 * NIBBLE_LINK_MBPS. */
struct nb_reckon_facts nb_facts_of_node(const struct nb_coll_comm *comm);

/* Return NCCL's buffer of a channel in MiB, from NCCL_BUFFSIZE. It is at least 1. */
uint32_t nb_facts_buffer(void);

/* Call when all nodes have voted. Reckon for a communicator whose nodes form `grid`, with these settings and
 * the facts of the slowest node. Any thread. */
void nb_facts_reckon(const struct nb_params *params, const struct nb_grid *grid,
                     const struct nb_reckon_facts *slowest, struct nb_reckoning *out);

/* At close, log for each reckoned sum whether this node's measurements agree with the reckoning. */
void nb_facts_log_seen(const struct nb_coll_comm *comm, const struct nb_coll_stats *stats);

/* Log one line: the outcome for sums that settings leave to the reckoning, and its cause. */
void nb_facts_log(const struct nb_coll_comm *comm);

/* ---- proofs ------------------------------------------------------------------------------------------ */

/*
 * Proofs. policy/recognise/recognise.h judges by values whether sums move weights. It gets values of the sum
 * of every reduce-scatter that may be coded, and values of the own block of every all-gather of that size, at
 * the positions of codec/pick.h.
 *
 * Proofs are reported in the order of operations, also when operations overlap: a sum when all windows up to
 * its last one are done, changed weights when all earlier operations are done. A decision waits for weights
 * of earlier operations (nb_proof_pending) and is therefore independent of timing. In training it never
 * waits: weights that are gathered after a change were computed from earlier sums.
 */

void nb_proofs_init(struct nb_proofs *proofs);
/* Call when the communicator is closed and has no operation in flight. */
void nb_proofs_destroy(struct nb_coll_comm *comm);

/* Return true when the device can show values. Operations on other devices have no proof. */
int nb_proof_possible(const struct nb_coll_comm *comm);

/* Begin to collect values of the sum of a reduce-scatter that may be coded. Windows of the own block alone
 * may be done before the decision. nb_proof_decided passes on the decision with its keys. */
void nb_proof_sum(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);
void nb_proof_decided(struct nb_op *op, const uint64_t key[NB_CAUSAL_NAMES]);
/* nb_proof_window_done: call when a window and all earlier ones are done, before NCCL is told.
 * nb_proof_advance: call when the oldest open window has changed. */
void nb_proof_window_done(struct nb_coll_comm *comm, const struct nb_coll_req *win);
void nb_proof_advance(struct nb_coll_comm *comm);

/* Collect values of an all-gather's own block. Call when a segment of it has been sent, for the first and for
 * each later one. */
void nb_proof_weights(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);

/* Have the device show `bytes` bytes of values at `off` of the operation's vector, with its function `pick`
 * (device/device.h). The operation has a proof. Call nb_proof_picked when the device has shown them. After an
 * error the proof stays incomplete. */
ssize_t nb_proof_pick(struct nb_coll_comm *comm, const struct nb_op *op, struct nb_work *work, uint64_t off,
                      const void *values, size_t bytes);
void nb_proof_picked(struct nb_op *op, ssize_t result);

/* Call when the own block of an all-gather has been sent. */
void nb_proof_gathered(struct nb_coll_comm *comm, struct nb_op *op, int changed);
/* Return true while weights that were gathered before operation `opno` are still unreported. */
int nb_proof_pending(const struct nb_coll_comm *comm, uint64_t opno);

/* ---- kill switch ------------------------------------------------------------------------------------- */

/* The kill switch switches the compression of a running job off and on again, as the word in the file of
 * NIBBLE_CONTROL says. */

/* Pass on a change of the file. Return 0, or < 0 when the communicator has failed. */
int nb_kill_switch_tick(struct nb_coll_comm *comm);
/* Handle a message of kind NB_CTL_SWITCH_ASK, _SWITCH or _SWITCHED from `peer`. Return 0, or < 0 when the
 * communicator has failed. */
int nb_kill_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* ---- decisions --------------------------------------------------------------------------------------- */

/*
 * Decisions on operations, in their order.
 *
 *     new -----------> sampled ----------> decided --------------------> settled
 *     (first window)   (its values)        (before the first segment is    (holds its residual; segments
 *                                          encoded: codec, residual)     wait until then)
 *
 * All-gathers are settled when they are new. Where their codec depends on the segment, flow/gather_send.c
 * chooses it.
 */

/* Counts of the operations of one signature, for the summary. */
#define NB_SIG_REPORTS 128u /* signatures at most */
struct nb_sig_report {
    int others; /* stands for all signatures that found the table full */
    enum nb_func func;
    ncclDataType_t type;
    uint64_t count;
    uint32_t nranks;
    uint64_t ops, coded;
    uint64_t reason[NB_RAW_REASON_COUNT];
    struct nb_class_decision gradient;     /* the last decision */
    uint64_t identity[NB_ID_REASON_COUNT]; /* coded operations by reason */
    uint64_t with_feedback;
    struct nb_encode_stats encode;
    double recent_nmse; /* moving average over measured segments with 4 bits */
    unsigned measured;  /* number of measured segments, up to a limit */
    /* Energies at sampled positions, moving averages: of a coded contribution, of the coded sum on the second
     * hop, and of the complete sum. sum_nmse: error of the complete sums, which is larger than recent_nmse
     * where contributions cancel. */
    double recent_own2, recent_hop2, recent_sum2, sum_nmse;
    unsigned sums;              /* number of sampled sums, up to a limit */
    double hop_nmse;            /* moving average: error of sums on the second hop over their energy */
    int passed_on;              /* hop_nmse has a value */
    int fallen_back;            /* 8 bits from now on */
    uint64_t bytes, wire_bytes; /* encoded segments, before and after (shadow mode: as if sent) */
};

struct nb_proofs {
    struct nb_proof *free;           /* spare proofs */
    struct nb_proof *waiting, **end; /* proofs with weights that wait for earlier operations, in order */
};

struct nb_kill_switch { /* kill switch of a communicator */
    int asked;          /* last word of this node's file that this node sent to node 0 (1: off) */
    uint32_t epoch;     /* number of the change in force */
    uint32_t answers;   /* node 0: nodes that have switched */
    uint64_t last_op;   /* node 0: the last operation from which a node switched */
};

/* State of a communicator. Private to this folder, except for tests. */
struct nb_decisions {
    struct nb_feedback *feedback;
    struct nb_job *job;      /* the calls of this GPU's process, and its knowledge from them */
    uint64_t job_comm;       /* this communicator's number in the job, for operations without a record */
    struct nb_op_info *info; /* [NB_OPS], a ring */
    uint64_t infos_used;
    struct nb_kept_evidence *spare; /* spare evidence, for later operations */
    int has_anchor;
    uint32_t anchor;                                      /* the gathered block whose change marks a step */
    struct nb_slab reports;                               /* of struct nb_sig_report */
    unsigned reported;                                    /* signatures */
    int off;                                              /* the kill switch is on: code no operation */
    uint64_t reasons[NB_FUNC_COUNT][NB_RAW_REASON_COUNT]; /* operations that were sent raw */
    struct nb_proofs proofs;
    struct nb_kill_switch kill_switch;
};

/* Create comm->decisions for a communicator whose rank, device and label are set. Return 0 or -ENOMEM.
 * nb_decisions_destroy also accepts a half-created or missing state. */
int nb_decisions_init(struct nb_coll_comm *comm);
void nb_decisions_destroy(struct nb_coll_comm *comm);

/* nb_decisions_progress: continue to empty residuals, which is work of the device. Return 1 when some was
 * done, else 0, or < 0 when the communicator has failed. nb_decisions_at_work: return true while such work is
 * left. Engine thread, or with progress_lock. */
int nb_decisions_progress(struct nb_coll_comm *comm);
bool nb_decisions_at_work(const struct nb_decisions *decisions);

/* Return whether all nodes know that a reduction of `bytes` bytes (the whole vector) is raw. Type, reduction,
 * size, settings and the reckoning tell them. Engine thread. */
bool nb_op_is_known_raw(const struct nb_coll_comm *comm, const struct nb_op *op, uint64_t bytes);
/* Begin the facts of an operation whose whole vector has `bytes` bytes. `record` may be NULL. */
struct nb_op_info *nb_op_info_new(struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_record *record, uint64_t bytes);
/* Return 1 when policy wants a sample, else 0. The sample is taken from the first `bytes` bytes of a
 * reduction's values or of an all-gather's own block. */
int nb_op_info_wants_sample(struct nb_coll_comm *comm, struct nb_op_info *f, uint64_t bytes);
/* Have the device take the sample, or the sums, with its functions of these names. Pass the results to
 * nb_op_info_sampled, which returns 1 when policy wants sums, too, and to nb_op_info_summed. Until then
 * `values` must stay readable, and the facts must stay. */
int nb_op_info_sample(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work,
                      const void *values);
int nb_op_info_sampled(struct nb_op_info *f, unsigned samples);
int nb_op_info_sums(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work,
                    const void *values);
void nb_op_info_summed(struct nb_op_info *f, unsigned groups);
/* Decide on a reduction before its first segment is encoded, if it is undecided. Return 1, or 0 when the
 * operation has to wait for proofs or for the operation that holds its residual. */
int nb_op_settle(struct nb_coll_comm *comm, struct nb_op *op);
/* Set the shape of a reduction's residual: values of a block, blocks, and a number for the geometry. */
void nb_op_info_shape(struct nb_op_info *f, uint64_t values, uint32_t blocks, uint64_t geometry);
/* nb_op_info_codec: return the codec of an all-gather that settings, type and size allow. nb_op_info_dtype:
 * return the type as which its values are read, for coded types. */
enum nb_codec nb_op_info_codec(const struct nb_op_info *f);
enum nb_dtype nb_op_info_dtype(const struct nb_op_info *f);
/* Return the call of the operation. */
const struct nb_job_call *nb_op_info_call(const struct nb_op_info *f);
/* Return the residual of a settled reduction, or NULL, and the operation that holds it. */
struct nb_residual *nb_op_info_residual(const struct nb_op_info *f, uint64_t *opno);
/* Hops of a settled reduction's segment. */
enum nb_hop {
    NB_HOP_CONTRIBUTION, /* this node's own values */
    NB_HOP_SUM,          /* a sum that this node passes on (NIBBLE_SECOND_HOP) */
    NB_HOP_ROW           /* the sum of a row of the grid, which the next node codes once more */
};
/* Return the codec of a settled reduction for a segment of `values` values. sure: all of them belong to the
 * operation. */
enum nb_codec nb_op_segment_codec(const struct nb_op *op, bool sure, uint64_t values, enum nb_hop hop);
/* Return the codec of an all-gather whose content was sampled. */
enum nb_codec nb_op_gather_codec(struct nb_coll_comm *comm, struct nb_op *op);
/* Count an operation that is sent raw for reason `why`. */
void nb_decisions_count_raw(struct nb_coll_comm *comm, enum nb_func func, enum nb_raw_reason why);
/* Count an encoded segment of a settled operation. */
void nb_op_encoded(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_encode_stats *stats,
                   size_t bytes, size_t coded);
/* Energies at the same positions of a segment. */
struct nb_sum_energies {
    double own2;    /* this node's values */
    double others2; /* the sum of all other nodes' values */
    double sum2;    /* the complete sum */
    /* The sum of the others came coded in one message (two-hop and two-level reduce-scatters). */
    bool others_coded;
};
/* nb_op_wants_energies: return whether the error of the operation's sums is still to be judged. nb_op_summed:
 * judge it by these energies. */
bool nb_op_wants_energies(const struct nb_op *op);
void nb_op_summed(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_sum_energies *energies);
/* Note the error with which this node has coded a complete sum for its second hop. */
void nb_op_passed_on(const struct nb_op *op, const struct nb_encode_stats *stats);
/* Call when the own block of an all-gather has been sent whole. */
void nb_op_gathered(struct nb_coll_comm *comm, struct nb_op *op);

/* Return the counts of the i-th signature, i from 0, or NULL. */
const struct nb_sig_report *nb_decisions_report(const struct nb_decisions *decisions, unsigned i);

/* nb_decisions_kill_switch: set the kill switch for the next decision and later ones. nb_decisions_off: read
 * it. */
void nb_decisions_kill_switch(struct nb_coll_comm *comm, int off);
static inline int nb_decisions_off(const struct nb_decisions *decisions)
{
    return decisions->off;
}
/* Call when a task that used a residual has ended. */
void nb_decisions_release_residual(struct nb_coll_comm *comm, struct nb_residual *residual);

#endif
