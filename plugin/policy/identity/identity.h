/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffer identity: find the operations of a job that carry the same gradient buffer, step after step, so that
 * the error that one of them leaves may be added to the next. A wrong match is worse than no match, because
 * an error of another layer is noise. So an operation gets a tracked buffer only when the evidence agrees.
 * Otherwise it goes without feedback.
 *
 * The evidence, in this order:
 *
 *  - Bucket: DDP's reducer has a buffer a bucket as long as it lives. Each buffer is a tracked buffer,
 *    whatever else the job does.
 *  - Address: every operation of a signature (communicator, function, type, count) comes from a buffer that
 *    is used exactly once a step (DDP, Megatron). Each buffer is a tracked buffer.
 *  - Weights: FSDP sends gradients from recycled memory, but content identifies the weight blocks of its
 *    all-gathers. Gradients come in the reverse of the order in which their weights were gathered: a stack.
 *  - Place: otherwise the k-th operation of its signature in the step, where steps look alike. A signature
 *    that occurs once a step is the simplest case. The all-gathers inside the node, which come here too, tell
 *    where a pass of HSDP begins and how long it is. HSDP's all-reduces themselves do not tell this.
 *  - Turn: a script may call all-reduces that the user has named (outer steps), with much other traffic in
 *    between. They come in cycles, and a buffer is a place in the cycle (turns.c).
 *  - Content: where a signature has several tracked buffers, weight block and place are only predictions, and
 *    the data have to agree. The profile of the operation (log2 of the rms of groups at fixed positions),
 *    less the mean profile of the signature's tracked buffers, must correlate with the tracked buffer's
 *    moving average, clearly better than with any other tracked buffer's. With the mean, profiles of
 *    different layers would look alike. A single tracked buffer's content has a veto when it is suddenly
 *    unlike all before.
 *
 * A step ends when the weights changed: an all-gather's content differs from the time before. Without such
 * gathers a step is a pass (a run of gathers inside the node, then reductions), or the time between two calls
 * of the rarest large reduction.
 *
 * The module is pure: it does no input or output, takes no locks and reads no clock. Its tables take memory
 * as they are used. Without memory an operation goes without feedback, or older entries are forgotten. The
 * caller serializes the calls. Nodes need not agree, because each node's residuals are its own.
 */
#ifndef NIBBLE_POLICY_IDENTITY_H
#define NIBBLE_POLICY_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/nccl_types.h"

struct nb_identity;

#define NB_PROFILE_GROUPS 256u
/* A profile with fewer known groups cannot tell layers apart. Measured: 16 fail, 64 are marginal. */
#define NB_PROFILE_LEAST 96u
/* The value of a group of zeros. This value, or any below, is no evidence for a buffer. */
#define NB_PROFILE_ZERO (-149.5f)

/* Reasons why an operation has a tracked buffer or has none. */
enum nb_identity_reason {
    NB_ID_ADDRESS = 0, /* tracked buffer: its buffer is used once a step */
    NB_ID_SINGLE,      /* tracked buffer: its signature belongs to one buffer */
    NB_ID_VERIFIED,    /* tracked buffer: predicted, and its content agrees */
    NB_ID_CERTAIN,     /* tracked buffer: predicted, and such predictions came true. Content is no evidence */
    NB_ID_TURN,        /* tracked buffer: a named sum comes in its turn in a cycle of them */
    NB_ID_FOUND,       /* tracked buffer: its content is unmistakable, without or against a prediction */
    NB_ID_LEARNING,    /* none yet: too few steps or profiles */
    NB_ID_UNPREDICTED, /* none: there is no evidence on its buffer */
    NB_ID_MISMATCH,    /* none: its content does not agree with the prediction */
    NB_ID_SHARED,     /* the weights show that the tracked buffer stands for several buffers: do not use it */
    NB_ID_NO_PROFILE, /* none: several buffers are possible and there is no usable profile */
    NB_ID_SMALL,      /* none: such small operations are never quantized */
    NB_ID_FULL,       /* none: a pool is full, or the call was not announced */
    NB_ID_REASON_COUNT
};
const char *nb_identity_reason_text(enum nb_identity_reason reason);

struct nb_identity_config {
    unsigned signatures; /* pool sizes. 0: the default */
    unsigned buffers;
    unsigned keys;  /* (signature, addresses) */
    unsigned calls; /* announced calls that have not begun yet */
    /* Return 1 when predictions of this buffer (nb_identity_decision.predicted) have come true of late by
     * evidence other than content. Identity asks it of the reduction that is being decided. NULL: there is no
     * such evidence. */
    int (*certain)(void *arg, uint64_t buffer);
    void *arg;
};

/* Create the state of identity. `config` may be NULL. Return NULL without memory. */
struct nb_identity *nb_identity_create(const struct nb_identity_config *config);
void nb_identity_destroy(struct nb_identity *id);

/* A call of the job. Calls come in call order, of all communicators of the process, also single-node ones. */
struct nb_identity_call {
    uint64_t comm; /* any number that tells communicators apart */
    enum nb_func func;
    ncclDataType_t type;
    uint64_t
        count; /* elements of the whole vector, of all ranks together for reduce-scatter and all-gather */
    uint64_t send, recv; /* addresses */
    int passes;          /* 1: reaches the network and will begin. 0: stays inside the node */
    int bucket;          /* an all-reduce that DDP's reducer calls */
    int named;           /* the user has named it as a gradient (NIBBLE_GRAD) */
};
/* Announce a call. Return its number, to be passed to the functions below when its first window comes. */
uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *call);

/* Note that an all-gather that passes has begun. `weight_block` is the number (below 2^31) of its content on
 * its communicator, the same whenever the same weights are gathered, or -1 when unknown or new. `changed` is
 * 1 when its content differs from the time before. `samples` are n values at fixed positions, at most 64. */
void nb_identity_gather(struct nb_identity *id, uint64_t call, int64_t weight_block, int changed,
                        const float *samples, unsigned n);

/* Profile of an operation: value[i] is log2 of the rms of the i-th of 256 groups at fixed positions. Only the
 * first `known` are valid, because the decision falls at the first window, which may cover only the beginning
 * of the vector. The 256 positions are spread over the first `span` elements. Profiles of different spans are
 * not compared. */
struct nb_profile {
    const float *value;
    unsigned known;
    uint64_t span;
};

struct nb_identity_decision {
    int64_t tracked; /* number of the tracked buffer, -1: no feedback */
    /* The name of the buffer that has the tracked buffer, never 0. Numbers of tracked buffers come again,
     * for other buffers. 0: no tracked buffer. */
    uint64_t buffer;
    uint64_t predicted; /* the predicted buffer, as above, whether given or not. 0: none */
    /* 1: empty the tracked buffer before use. It does not hold this buffer's last error: it is new, has
     * another geometry, is older than 8 steps, or is learned anew. */
    int empty;
    enum nb_identity_reason reason;
    uint64_t passes; /* passes in which its signature was called so far. 0: unknown */
    uint64_t cycles; /* of named sums on its communicator. 0: unknown */
    uint64_t parent; /* all-reduce: elements of the reduce-scatter whose result it sums. 0: of none */
};

/* Decide on a reduction that passes and has begun. `profile` may be NULL. `geometry` is any number that
 * changes when positions of the vector map to other elements than the last time. */
struct nb_identity_decision nb_identity_reduce(struct nb_identity *id, uint64_t call,
                                               const struct nb_profile *profile, uint64_t geometry);

/* Forget a communicator that was destroyed and free its tracked buffers. Their numbers may come again, with
 * empty = 1. */
void nb_identity_forget(struct nb_identity *id, uint64_t comm);

#endif
