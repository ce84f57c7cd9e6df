/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose error: which operations of a job are the same gradient buffer, step after step, so that the error one
 * of them leaves behind may be added to the next. A wrong answer is worse than none (an error of another
 * layer is noise), so an operation gets a tracked buffer only when the evidence agrees; else it goes without
 * feedback.
 *
 * The evidence, in this order:
 *
 * - Bucket: DDP's reducer has a buffer a bucket as long as it lives: a tracked buffer a buffer, whatever else
 * the job does.
 * - Address: every operation of a signature (communicator, function, type, count) comes from a buffer that is
 *   used exactly once a step (DDP, Megatron): a tracked buffer a buffer.
 * - Unit: FSDP sends gradients from recycled memory, but its all-gathers are recognised by content, and
 *   gradients come in the reverse of the order in which their weights were gathered: a stack.
 * - Place: else the k-th operation of its signature in the step, where steps look alike; a signature that
 *   occurs once a step is the simplest case. HSDP's all-reduces tell nothing themselves, but the all-gathers
 *   inside the node, which come here too, tell where a pass begins and how long it is.
 * - Content: where a signature has several tracked buffers, weight block and place are only predictions, and
 * the data have to
 *   agree. The profile of the operation (log2 of the rms of groups at fixed positions), less the mean profile
 *   of the signature's tracked buffers, must correlate with the tracked buffer's moving average, clearly better than with any
 *   other tracked buffer's. (Before the mean is taken out, profiles of different layers look alike.) Where there is
 *   only one tracked buffer, the content has a veto when it is suddenly unlike what it always was.
 *
 * What a step is: the weights changed (an all-gather's content differs from the time before); without such
 * gathers, a pass (a run of gathers inside the node, then reductions), or as often as the rarest large
 * reduction comes.
 *
 * The module is pure: no input or output, no locks, no clock. Its tables take memory as they are used; where
 * there is none an operation goes without feedback, or something older is forgotten. The caller serialises.
 * Nodes need not agree: what a node carries is its own affair.
 */
#ifndef NIBBLE_POLICY_IDENTITY_H
#define NIBBLE_POLICY_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/nccl_types.h"

struct nb_identity;

#define NB_PROFILE_GROUPS 256u
/* A profile with fewer known groups cannot tell layers apart (measured: 16 fail, 64 are marginal). */
#define NB_PROFILE_LEAST 96u
/* The value of a group of zeros, or any below: it says nothing about whose gradient this is. */
#define NB_PROFILE_ZERO (-149.5f)

/* Why an operation has a tracked buffer or none. */
enum nb_identity_reason {
    NB_ID_ADDRESS = 0, /* tracked buffer: its buffer is used once a step */
    NB_ID_SINGLE,      /* tracked buffer: its signature belongs to one buffer */
    NB_ID_VERIFIED,    /* tracked buffer: predicted, and its content agrees */
    NB_ID_CERTAIN, /* tracked buffer: predicted, and such predictions came true; its content says nothing */
    NB_ID_FOUND,   /* tracked buffer: not predicted or predicted otherwise, but its content is unmistakable */
    NB_ID_LEARNING,    /* none yet: too few steps or profiles */
    NB_ID_UNPREDICTED, /* none: nothing says which buffer it is */
    NB_ID_MISMATCH,    /* none: its content does not agree with the prediction */
    NB_ID_SHARED,      /* none: the weights show that several buffers were taken for one */
    NB_ID_NO_PROFILE,  /* none: several buffers come into question and there is no usable profile */
    NB_ID_SMALL,       /* none: so few elements are never quantized */
    NB_ID_FULL,        /* none: a pool is used up, or the call was not announced */
    NB_ID_REASON_COUNT
};
const char *nb_identity_reason_text(enum nb_identity_reason reason);

struct nb_identity_config {
    unsigned signatures; /* pool sizes; 0: the default */
    unsigned buffers;
    unsigned keys;  /* (signature, addresses) */
    unsigned calls; /* announced and not begun yet */
    /* Did predictions of this buffer (nb_identity_decision.predicted) come true of late, as far as anything
     * but content shows? Asked of the reduction that is being decided. NULL: nothing shows it. */
    int (*certain)(void *arg, uint64_t buffer);
    void *arg;
    /* For tests: skip verification by content. Never set this otherwise. */
    int trust_prediction;
};

/* NULL when memory is short. `config` may be NULL. */
struct nb_identity *nb_identity_create(const struct nb_identity_config *config);
void nb_identity_destroy(struct nb_identity *id);

/* A call of the job, in the order of the calls: all communicators of the process, single-node ones too. */
struct nb_identity_call {
    uint64_t comm; /* any number that tells communicators apart */
    enum nb_func func;
    ncclDataType_t type;
    uint64_t
        count; /* elements of the whole vector: for reduce-scatter and all-gather, of all ranks together */
    uint64_t send, recv; /* addresses */
    int passes;          /* 1: reaches the network, will begin; 0: stays inside the node */
    int bucket;          /* an all-reduce that DDP's reducer calls */
};
/* Returns the call's number, to be given to the functions below when its first window comes. */
uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *call);

/* An all-gather that passes has begun. weight block: number (below 2^31) by which its content is known on its
 * communicator, the same whenever the same weights are gathered; -1 when unknown or new. changed: its content
 * differs from the time before. */
void nb_identity_gather(struct nb_identity *id, uint64_t call, int64_t weight_block, int changed);

/* Profile of an operation: value[i] is log2 of the rms of the i-th of 256 groups at fixed positions. Only the
 * first `known` are valid: the decision falls at the first window, which may cover the beginning of the
 * vector only. `span`: number of leading elements over which the 256 positions are spread; profiles of
 * different spans are not compared. */
struct nb_profile {
    const float *value;
    unsigned known;
    uint64_t span;
};

struct nb_identity_decision {
    int64_t tracked; /* number of the tracked buffer, -1: no feedback */
    uint64_t
        buffer; /* whom the tracked buffer is given to, never 0: numbers of tracked buffers come again for others. 0: no tracked buffer */
    uint64_t predicted; /* likewise, the one that was predicted, whether given or not; 0: none */
    /* 1: what the tracked buffer holds is not this buffer's last error (new, another geometry, older than 8
     * steps, learned anew): empty it before use. */
    int empty;
    enum nb_identity_reason reason;
    float score, second; /* of the tracked buffer and of the best other one, where compared; else 0 */
    uint64_t passes;     /* in which its signature was called so far; 0: unknown */
};

/* A reduction that passes has begun. `profile` may be NULL; `geometry` is any number that changes when
 * positions of the vector map to other elements than the last time. */
struct nb_identity_decision nb_identity_reduce(struct nb_identity *id, uint64_t call,
                                               const struct nb_profile *profile, uint64_t geometry);

/* A communicator was destroyed: forget it and free its tracked buffers (their numbers may come again, with
 * empty = 1).
 */
void nb_identity_forget(struct nb_identity *id, uint64_t comm);

struct nb_identity_stats {
    uint64_t decided[NB_ID_REASON_COUNT];
    uint64_t steps;
    uint64_t lost_calls; /* began after their announcement was overwritten */
    uint64_t emptied;
    uint64_t buffers;
};
void nb_identity_get_stats(const struct nb_identity *id, struct nb_identity_stats *stats);

#endif
