/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is a gradient: which sums may be carried at 4 bits. A sum of floats is not one by itself: parameters
 * are averaged, activations and statistics are summed too, and 4 bits would ruin them. So every signature
 * (communicator, function, type, elements of the whole vector; DDP's reducer's apart) is raw until there is positive evidence:
 *
 * - A reduce-scatter, when the weights that are gathered on the same communicator follow its sums
 *   (policy/recognise/causal.c): proved for the buffer at hand, not for its signature; or, where no weights of its size
 *   are gathered (ZeRO-3, which groups tensors differently), when nearly all that the communicator gathers
 *   besides are weights and a step reduces no more than that.
 * - An all-reduce, when DDP's reducer calls it (policy/records/caller.c): then it is a bucket of gradients, whatever its content;
 *   when it sums the very result of a reduce-scatter just before it (HSDP); or when all that is reduced in a step is all
 *   that is then gathered (ZeRO-1 and 2). Nothing is made of the place that a buffer has in the step: activations of
 *   tensor parallelism, parameters and statistics come once a step, too.
 * - Never, when its own content hardly changes from call to call: weights, moving averages, codebooks; when
 *   its values have one sign: squares, counts; when they are integers: histograms, counts.
 *
 * Weights are known by samples: the same block comes again and again with a correlation of 0.999 or more, and
 * has changed a little at least three times. (Unchanged is not enough: recomputed activations are gathered
 * twice.) Gradients correlate up to 0.998 in the first thirty steps and -0.2 to 0.4 later, hence nothing is
 * decided before fifty calls with samples, nor quantized in the communicator's warm-up steps.
 *
 * The module is pure: no input or output, no locks. Its tables take memory as they are used; where there is none, nothing is proved, or
 * something older is forgotten. The caller serialises.
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

#define NB_CLASSIFY_SAMPLES 64u /* kept of the samples given */
#define NB_CLASSIFY_CALLS 50u   /* with samples before a decision */

#define NB_CAUSAL_KEYS 2u /* of a sum */
/* What a sum is told with: its keys; and the name of the buffer that identity predicted, whether content
 * agreed or not. */
enum { NB_CAUSAL_GUESS = NB_CAUSAL_KEYS, NB_CAUSAL_NAMES };

enum nb_class_kind { NB_CLASS_UNKNOWN = 0, NB_CLASS_GRADIENT, NB_CLASS_OTHER };

enum nb_class_reason {
    NB_WHY_YOUNG = 0,   /* too few calls or steps */
    NB_WHY_NO_EVIDENCE, /* enough calls, but nothing says that it is a gradient */
    NB_WHY_MOVES,       /* the weights that are gathered follow its sums */
    NB_WHY_SUM,         /* the step's reductions add up to the weights gathered */
    NB_WHY_AFTER_RS,    /* sums the result of a reduce-scatter */
    NB_WHY_BUCKET,      /* DDP's reducer sums it */
    NB_WHY_STEADY,      /* never: its content hardly changes */
    NB_WHY_ONE_SIGN,    /* never: hardly a value has the other sign */
    NB_WHY_INTEGERS,    /* never: its values are integers */
    NB_WHY_HOOK,        /* a hook in Python, for DDP's reducer, sums it: it may be anything */
    NB_WHY_BLIND,       /* the device cannot show its sums, so nothing can be proved */
    NB_WHY_USER_YES,    /* NIBBLE_GRAD */
    NB_WHY_USER_NO,
    NB_WHY_TYPE,   /* not a sum of FP32, BF16 or FP16 */
    NB_WHY_UNSEEN, /* as NO_EVIDENCE: a reduce-scatter of whose communicator no gather is seen */
    NB_WHY_COUNT
};
const char *nb_class_reason_text(enum nb_class_reason reason);

struct nb_classify_config {
    unsigned warmup_steps;             /* steps of a communicator that stay raw */
    const struct nb_grad_rules *rules; /* copied; NULL: none */
    unsigned signatures, samples;      /* pool sizes; 0: the defaults */
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
    uint64_t send, recv;
    uint64_t passes;    /* steps, or passes of them, that its signature came in; 0: unknown */
    uint64_t buffer;    /* which buffer it is thought to continue, any number; 0: unknown */
    uint64_t predicted; /* likewise, which one order or address predicts, whatever its content looks like */
    int found;          /* the buffer by its content alone */
    enum nb_caller caller; /* of an all-reduce */
    int blind;             /* reduce-scatter: its sum will not be told (nb_classify_sum) */
};

/* A call of the job in call order, all communicators, single-node ones too; it must precede the functions
 * below for the same operation. Notes the buffers of reduce-scatters, and that the process lives. */
void nb_classify_call(struct nb_classify *c, const struct nb_class_op *op);

/* An all-gather of `op` begins; samples: n values (at best 256) at fixed places of this node's block, as
 * floats. Gathers of bytes may be given as what they hold, or as ncclInt8 with bytes as count. */
void nb_classify_gather(struct nb_classify *c, const struct nb_class_op *op, const float *samples,
                        unsigned n);

struct nb_class_decision {
    enum nb_class_kind kind; /* gradient: may be quantized */
    enum nb_class_reason reason;
    int changed;   /* kind or reason is not what it was at the call before: worth a log line */
    int warmup;    /* 1: a gradient, but the communicator is in its warm-up: raw */
    uint64_t step; /* of the communicator */
    uint64_t key[NB_CAUSAL_NAMES]; /* reduce-scatter: for nb_classify_sum */
    int shared; /* what it is thought to continue is several buffers, as the weights show */
};

/* A reduction of `op` begins; samples as above, of its own contribution. What to do with this very operation.
 */
struct nb_class_decision nb_classify_reduce(struct nb_classify *c, const struct nb_class_op *op,
                                            const float *samples, unsigned n);

/* Do the weights show that predictions of op->predicted have come true of late? Then content has a veto only
 * where it is unmistakably another buffer's. */
int nb_classify_certain(struct nb_classify *c, const struct nb_class_op *op);

/* The sum of a reduce-scatter that was decided on has been delivered here; in the order of operations, before
 * the gathers that follow. key: as decided. raw: its values at the `picks` positions (codec/pick.h). */
void nb_classify_sum(struct nb_classify *c, const struct nb_class_op *op, const uint64_t key[NB_CAUSAL_NAMES],
                     const uint32_t *raw, unsigned picks);
/* A rank's block of `bytes` bytes that is gathered, of a type as for nb_classify_gather: the number of values it has as a shard whose sums are
 * looked at, and their width in bytes. 0: it is none. */
uint64_t nb_classify_shard(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                           size_t *width);
/* Such a block has been gathered: its values at the positions; in the order of operations. */
void nb_classify_weights(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                         const uint32_t *raw);

/* One line on the decision, and the rule for NIBBLE_GRAD that would change it. Returns as snprintf. */
int nb_classify_text(const struct nb_class_op *op, const struct nb_class_decision *d, char *buf, size_t cap);

/* A communicator was destroyed. */
void nb_classify_forget(struct nb_classify *c, uint64_t comm);

#endif
