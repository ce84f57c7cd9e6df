/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of an operation: its codec and its residual, from settings, the reckoning, the operation's
 * record and the values seen so far (policy/, state/). For the engine thread, but where it says otherwise.
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
struct nb_kept_evidence;
struct nb_op;
struct nb_op_info;
struct nb_peer;
struct nb_proof;
struct nb_proofs;
struct nb_work;

/* ---- what pays --------------------------------------------------------------------------------------- */

/*
 * What a node's link and codec are, which nodes tell each other when they vote (connect/vote.c), and what
 * follows from the slowest of them: from which size on sums are coded (policy/reckon/reckon.c). For the
 * thread that connects.
 */

/* Of this node: the nominal rate of the communicator's network device, or what NIBBLE_LINK_MBPS says; its
 * codec. */
struct nb_reckon_facts nb_facts_of_node(const struct nb_coll_comm *comm);

/* Return what the settings make alike on all nodes of a communicator of `nodes` nodes. Any thread. */
struct nb_reckon_group nb_facts_group(const struct nb_params *params, int nodes);

/* All nodes have voted, and these are the slowest's: reckon. */
void nb_facts_settle(struct nb_coll_comm *comm, const struct nb_reckon_facts *slowest);

/* At close, for each sum that was left to the reckoning: whether what was reckoned came true, by what this
 * node saw. */
void nb_facts_log_seen(const struct nb_coll_comm *comm, const struct nb_coll_stats *stats);

/* One line: what follows for sums that settings leave to the reckoning, and why. */
void nb_facts_log(const struct nb_coll_comm *comm);

/* ---- evidence of sums and weights -------------------------------------------------------------------- */

/*
 * Values of what is delivered, by which policy/recognise/causal.c judges whether sums move weights: of the
 * sum of every reduce-scatter that might be coded, and of the own block of every all-gather of that size, at
 * the positions of codec/pick.h.
 *
 * They are told in the order of operations, however these overlap: a sum when all windows up to its last one
 * are finished; weights that have changed when all operations before theirs are. An operation that is decided
 * on waits for such weights before it (nb_proof_pending), so that decisions do not depend on who was first.
 * In training it never waits: what is gathered after a change of the weights was computed from the sums
 * before.
 *
 * For the engine thread.
 */

void nb_proofs_init(struct nb_proofs *proofs);
/* The communicator is closed, and no operation is in flight. */
void nb_proofs_destroy(struct nb_coll_comm *comm);

/* 1 when the device can show values; where it cannot, no operation has a proof. */
int nb_proof_possible(const struct nb_coll_comm *comm);

/* A reduce-scatter that might be coded begins: look at its sum; windows of the own block alone may be
 * finished before anything is decided. Then: it was decided on, with these keys. */
void nb_proof_sum(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);
void nb_proof_decided(struct nb_op *op, const uint64_t key[NB_CAUSAL_NAMES]);
/* A window is finished here, NCCL does not know it yet, and so are all before it; then: the oldest that is
 * not finished is another one. */
void nb_proof_window_done(struct nb_coll_comm *comm, const struct nb_coll_req *win);
void nb_proof_advance(struct nb_coll_comm *comm);

/* The first segment of an all-gather's own block, in whatever order, has been sent. */
void nb_proof_weights(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);

/* Have the device look at `bytes` bytes of values of an operation with a proof, which lie at `off` of its whole
 * vector, as `pick` of device/device.h. looked: it has; an error shows nothing, so that the proof will not be
 * complete. */
ssize_t nb_proof_pick(struct nb_coll_comm *comm, const struct nb_op *op, struct nb_work *work, uint64_t off,
                      const void *values, size_t bytes);
void nb_proof_picked(struct nb_op *op, ssize_t result);

/* All of an all-gather's own block has been sent. changed: it differs from the last time, or that is not
 * known. */
void nb_proof_gathered(struct nb_coll_comm *comm, struct nb_op *op, int changed);
/* 1 when weights that were gathered before operation `opno` are not told yet. */
int nb_proof_pending(const struct nb_coll_comm *comm, uint64_t opno);

/* ---- kill switch ------------------------------------------------------------------------------------- */

/*
 * The kill switch: takes compression out of a running job, and puts it back, by the word in the
 * NIBBLE_CONTROL file. All functions belong to the engine thread.
 */

/* Pass on what the file says, where that is news to the communicator. 0, or < 0 when the communicator has
 * failed. */
int nb_kill_switch_tick(struct nb_coll_comm *comm);
/* Handle a message of the kinds NB_CTL_SWITCH_ASK, _SWITCH and _SWITCHED from `peer`. 0, or < 0 when the
 * communicator has failed. */
int nb_kill_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

/* ---- decisions --------------------------------------------------------------------------------------- */

/*
 * What is done with an operation: its codec, and which residual it continues; in the order of operations. For
 * the engine thread.
 *
 * The facts of an operation:
 *
 *     new -----------> looked at -------> decided --------------------> settled
 *     (first window)   (its values)       (first segment is encoded:      (the error slot that it wants is its own;
 *                                          codec, wanted error slot)     until then its segments wait)
 *
 * An all-gather's are settled when they are new; where its codec is chosen segment by segment,
 * flow/gather_send.c does.
 */

/* What happened to the operations of one signature, for the summary. */
#define NB_SIG_REPORTS 128u /* signatures at most */
struct nb_sig_report {
    int others; /* it is shared by signatures that found no place */
    enum nb_func func;
    ncclDataType_t type;
    uint64_t count;
    uint32_t nranks;
    uint64_t ops, coded;
    uint64_t reason[NB_REASON_COUNT];
    struct nb_class_decision gradient;     /* the last */
    uint64_t identity[NB_ID_REASON_COUNT]; /* of the coded ones */
    uint64_t with_feedback;
    struct nb_encode_stats encode;
    double recent_nmse;         /* moving average over measured segments of 4 bits */
    unsigned measured;          /* so many of them, up to a limit */
    int fallen_back;            /* 8 bits from now on */
    uint64_t bytes, wire_bytes; /* encoded segments, before and after (in shadow mode: as they would be) */
};

struct nb_proofs {
    struct nb_proof *free;           /* to be used again */
    struct nb_proof *waiting, **end; /* weights whose turn has not come, in the order of operations */
};

struct nb_kill_switch { /* of each communicator */
    int asked;          /* what this node's file said last (1: off), as told to node 0 */
    uint32_t epoch;     /* of the state in force */
    uint32_t answers;   /* node 0: nodes that have switched */
    uint64_t last_op;   /* node 0: the last operation from which a node switched */
};

/* The state of a communicator's decisions; decision.c's own. */
struct nb_decisions {
    struct nb_feedback *feedback;
    struct nb_job *job;      /* what this GPU's process calls, and what follows from it */
    uint64_t job_comm;       /* this communicator's number there, for operations without a record */
    struct nb_op_info *info; /* [NB_OPS], a ring */
    uint64_t infos_used;
    struct nb_kept_evidence *spare; /* of operations that are decided, for those to come */
    int has_anchor;
    uint32_t anchor;        /* the gathered block whose change marks a step */
    struct nb_slab reports; /* of struct nb_sig_report */
    unsigned reported;      /* signatures */
    int off;                /* the kill switch is on: nothing is coded for the time being */
    uint64_t reasons[NB_FUNC_COUNT][NB_REASON_COUNT]; /* operations that were sent raw */
    struct nb_proofs proofs;
    struct nb_kill_switch kill_switch;
};

/* Make the state of a communicator whose rank, device and label are set: 0 or -ENOMEM. destroy: also of what
 * was half made. */
int nb_decisions_init(struct nb_coll_comm *comm);
void nb_decisions_destroy(struct nb_coll_comm *comm);

/* Residuals are emptied by work of the device: look after it. 1 some of it is done, 0, or < 0 when the communicator has
 * failed. at_work: while there is any. Engine thread, or with the communicator's progress_lock held. */
int nb_decisions_progress(struct nb_coll_comm *comm);
bool nb_decisions_at_work(const struct nb_decisions *decisions);

/* The codec that an operation has by its function, type, reduction and size, by settings and by the
 * reckoning: raw, with why, or what it may still be denied when it is known what it is. `bytes` are those of
 * the whole vector;
 * recorded: this node has a record of it, which counts for all-reduces only. Of all others all nodes know the
 * same. Engine thread. */
enum nb_codec nb_op_codec_allowed(const struct nb_coll_comm *comm, const struct nb_op *op, uint64_t bytes,
                                  int recorded, enum nb_reason *reason);
/* Facts of an operation that begins: `record` may be NULL, `bytes` are those of the whole vector here. */
struct nb_op_info *nb_op_info_new(struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_record *record, uint64_t bytes);
/* A look at the first `bytes` bytes of a reduction's values, or of the own block of an all-gather, begins: 1, or 0 when
 * nothing will be seen of them. */
int nb_op_info_wants_sample(struct nb_coll_comm *comm, struct nb_op_info *f, uint64_t bytes);
/* What it asks of the device, as the functions of its table that are called so; the results go to `sampled`, which returns
 * 1 when sums are asked for, too, and to `summed`. `values` may be read, and the operation's facts stay,
 * until then. */
int nb_op_info_sample(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work,
                      const void *values);
int nb_op_info_sampled(struct nb_op_info *f, unsigned samples);
int nb_op_info_sums(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work,
                    const void *values);
void nb_op_info_summed(struct nb_op_info *f, unsigned groups);
/* The first segment of a reduction is about to be encoded: decide, unless that is done. 1, or 0 when it has
 * to wait for work of the operation that used the same error before. */
int nb_op_settle(struct nb_coll_comm *comm, struct nb_op *op);
/* The shape of a reduction's error state: values in a block of it, blocks, and what else tells which value
 * lies where. */
void nb_op_info_shape(struct nb_op_info *f, uint64_t values, uint32_t blocks, uint64_t geometry);
/* All-gathers: the codec that settings, type and size allow. Types that are coded: how values are read. */
enum nb_codec nb_op_info_codec(const struct nb_op_info *f);
enum nb_dtype nb_op_info_dtype(const struct nb_op_info *f);
/* The call that it is. */
const struct nb_job_call *nb_op_info_call(const struct nb_op_info *f);
/* Settled reductions: the error slot that they carry on, or NULL, and the number of the operation that holds
 * it. */
struct nb_ef_slot *nb_op_info_slot(const struct nb_op_info *f, uint64_t *opno);
/* The codec of a settled reduction. */
enum nb_codec nb_op_codec(const struct nb_op *op);
/* An operation is sent raw, for this reason: count it for the summary. */
void nb_decisions_count_raw(struct nb_coll_comm *comm, enum nb_func func, enum nb_reason why);
/* A segment of a settled operation was encoded. */
void nb_op_encoded(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_encode_stats *stats,
                   size_t bytes, size_t coded);
/* The own block of an all-gather has been sent whole. */
void nb_op_gathered(struct nb_coll_comm *comm, struct nb_op *op);

/* What happened to the operations of the i-th signature, i from 0; NULL: there are no more. */
const struct nb_sig_report *nb_decisions_report(const struct nb_decisions *decisions, unsigned i);

/* The kill switch: from the next operation that is decided on; and whether it is on. */
void nb_decisions_kill_switch(struct nb_coll_comm *comm, int off);
static inline int nb_decisions_off(const struct nb_decisions *decisions)
{
    return decisions->off;
}
/* A task is done with an error slot. */
void nb_decisions_release_slot(struct nb_coll_comm *comm, struct nb_ef_slot *slot);

#endif
