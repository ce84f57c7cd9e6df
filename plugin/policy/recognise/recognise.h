/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classification: decide which sums are gradients and may therefore be carried at 4 bits.
 *
 * Jobs also average parameters and sum activations and statistics. 4 bits would ruin these sums. A signature
 * is the communicator, the function, the type and the elements of the whole vector. The calls of DDP's
 * reducer have a signature of their own. Every signature stays raw until there is positive evidence:
 *
 *  - A reduce-scatter is a gradient when the weights that are gathered on the same communicator follow its
 *    sums (policy/recognise/causal.c). The proof is of the buffer at hand, not of its signature. ZeRO-3
 *    groups tensors differently for the two operations, so that no weights of the reduce-scatter's size are
 *    gathered.
 *    Then the evidence is that nearly all further gathers of the communicator are weights and that a step
 *    reduces no more elements than it gathers as weights.
 *  - An all-reduce is a gradient when DDP's reducer calls it (policy/records/caller.c): it is a bucket of
 *    gradients. It is one, too, when it sums the result of a reduce-scatter just before
 *    it (HSDP), or when a step reduces exactly the elements that it then gathers (ZeRO-1 and 2). The place of
 *    a buffer in the step is no evidence: activations of tensor parallelism, parameters and statistics also
 *    come once a step.
 *  - The user's word (NIBBLE_GRAD) counts before the framework's (the tag of a call, the name of its
 *    communicator), and that before all evidence.
 *  - Values of one sign (squares, counts) and integers (histograms, counts) rule a sum out. Its own samples
 *    show them, or the samples of its signature's last calls. No sum of a signature
 *    is a gradient while their content hardly changes from call to call (weights, moving averages,
 *    codebooks). For buckets only the call's own samples count.
 *
 * Samples identify weights: the same block comes again and again with a correlation of 0.999 or more, and has
 * changed a little at least three times. An unchanged block is not enough, because recomputed activations are
 * gathered twice. Gradients correlate up to 0.998 in the first thirty steps and -0.2 to 0.4 later.
 * Classification therefore decides after fifty calls with samples, and quantizes only after the
 * communicator's warm-up steps.
 *
 * The module is pure: it does no input or output and takes no locks. Its tables take memory as they are used.
 * Without memory a proof fails or older entries are forgotten. The caller serializes the calls.
 */
#ifndef NIBBLE_POLICY_RECOGNISE_H
#define NIBBLE_POLICY_RECOGNISE_H

#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/nccl_types.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"

struct nb_classify;

#define NB_CLASSIFY_SAMPLES 64u /* kept of the samples that the caller passes */
#define NB_CLASSIFY_CALLS 50u   /* calls with samples before a decision */

#define NB_CAUSAL_KEYS 2u /* keys of a sum */
/* Names of a sum: its keys, then the name of the buffer that identity predicted, whether or not content
 * agreed. */
enum { NB_CAUSAL_GUESS = NB_CAUSAL_KEYS, NB_CAUSAL_NAMES };

enum nb_class_kind { NB_CLASS_UNKNOWN = 0, NB_CLASS_GRADIENT, NB_CLASS_OTHER };

enum nb_class_reason {
    NB_WHY_YOUNG = 0,   /* too few calls or steps */
    NB_WHY_NO_EVIDENCE, /* enough calls, but no evidence of a gradient */
    NB_WHY_MOVES,       /* the gathered weights follow its sums */
    NB_WHY_SUM,         /* the step's reductions add up to the weights gathered */
    NB_WHY_AFTER_RS,    /* sums the result of a reduce-scatter */
    NB_WHY_BUCKET,      /* DDP's reducer sums it */
    NB_WHY_STEADY,      /* never: its content hardly changes */
    NB_WHY_ONE_SIGN,    /* never: hardly any value has the other sign */
    NB_WHY_INTEGERS,    /* never: its values are integers */
    NB_WHY_HOOK,        /* a hook in Python sums it for DDP's reducer: it may be anything */
    NB_WHY_USER_YES,    /* NIBBLE_GRAD */
    NB_WHY_USER_NO,
    NB_WHY_SAID_YES, /* the tag of the call, or the name of its communicator */
    NB_WHY_SAID_NO,
    NB_WHY_TYPE,   /* not a sum of FP32, BF16 or FP16 */
    NB_WHY_UNSEEN, /* as NO_EVIDENCE: a reduce-scatter on a communicator without visible gathers */
    NB_WHY_COUNT
};
const char *nb_class_reason_text(enum nb_class_reason reason);

struct nb_classify_config {
    unsigned warmup_steps;             /* steps of a communicator that stay raw */
    const struct nb_grad_rules *rules; /* copied. NULL: no rules */
    unsigned signatures;               /* size of the table. 0: the default */
};

struct nb_classify *nb_classify_create(const struct nb_classify_config *config);
void nb_classify_destroy(struct nb_classify *c);

struct nb_class_op {
    uint64_t comm;
    uint32_t nranks;
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t op;
    uint64_t count; /* elements of the whole vector */
    uint64_t send;
    uint64_t passes;       /* steps, or passes of steps, in which its signature came. 0: unknown */
    uint64_t cycles;       /* of named sums on its communicator. 0: unknown */
    uint64_t buffer;       /* the buffer that it probably continues, any number. 0: unknown */
    uint64_t predicted;    /* the buffer that order or address predicts, whatever its content. 0: unknown */
    int found;             /* 1: only its content identified the buffer */
    int unlike;            /* 1: its content is unlike the predicted buffer's */
    int linked;            /* all-reduce: 1: it sums the result of a reduce-scatter */
    enum nb_caller caller; /* of a sum */
};

/* Note that the all-gather `op` begins. `samples` are n values, ideally 256, at fixed positions of this
 * node's block, as floats. A gather of bytes may come with the type of its values, or as ncclInt8 with bytes
 * as count. */
void nb_classify_gather(struct nb_classify *c, const struct nb_class_op *op, const float *samples,
                        unsigned n);

struct nb_class_decision {
    enum nb_class_kind kind; /* a gradient may be quantized */
    enum nb_class_reason reason;
    int changed;                   /* kind or reason differ from the previous call: worth a log line */
    int warmup;                    /* 1: a gradient, but raw because the communicator is in its warm-up */
    uint64_t step;                 /* of the communicator */
    uint64_t key[NB_CAUSAL_NAMES]; /* reduce-scatter: for nb_classify_sum */
    int shared;                    /* the weights show that op->buffer stands for several buffers */
};

/* Decide on the reduction `op`, which begins. `samples` are as above, of this node's own contribution. Return
 * the decision for this operation. */
struct nb_class_decision nb_classify_reduce(struct nb_classify *c, const struct nb_class_op *op,
                                            const float *samples, unsigned n);

/* Return 1 when the weights show that predictions of op->predicted have come true of late. Then content has a
 * veto only where it is unmistakably another buffer's. */
int nb_classify_certain(struct nb_classify *c, const struct nb_class_op *op);

/* Note the delivered sum of a reduce-scatter that nb_classify_reduce decided on. Call it in the order of
 * operations, before the gathers that follow. `key` is the decision's, `raw` has the sum's values at the
 * `picks` positions (codec/pick.h). */
void nb_classify_sum(struct nb_classify *c, const struct nb_class_op *op, const uint64_t key[NB_CAUSAL_NAMES],
                     const uint32_t *raw, unsigned picks);
/* Return the number of values of a gathered rank's block of `bytes` bytes when it is a shard of a field, and
 * store their width in bytes at *width. `type` is as for nb_classify_gather. Return 0 for other blocks. */
uint64_t nb_classify_shard(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                           size_t *width);
/* Note such a gathered block, in the order of operations. `raw` has its values at the positions. */
void nb_classify_weights(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                         const uint32_t *raw);

/* Write one line on the decision, with the rule for NIBBLE_GRAD that would change it. Return as snprintf. */
int nb_classify_text(const struct nb_class_op *op, const struct nb_class_decision *d, char *buf, size_t cap);

/* Forget a communicator that was destroyed. */
void nb_classify_forget(struct nb_classify *c, uint64_t comm);

#endif
