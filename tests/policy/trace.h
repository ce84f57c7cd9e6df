/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of training jobs with known truth: which calls frameworks make, in which order, from which memory,
 * and what the data look like where identity and classification look at them.
 *
 * The data model. Profiles (log2 rms of 256 groups): what all layers share + what is the layer's own + noise
 * of the step, of a variance that makes an operation correlate 0.55 to 0.77 with the average of its own
 * layer's past and at most 0.37 with another's (test_profiles checks that); the layer's own part turns
 * slowly; the noise is nine times as strong at the start and calms down within twenty steps; a step may shift
 * all by a power of two (loss scale) and double its noise (spike). Samples (64 to 256 values): weights move
 * by 1e-3 of their size a step, gradients are new every time (correlation 0.2), activations and logits are
 * unrelated.
 */
#ifndef NIBBLE_TESTS_IDENTITY_TRACE_H
#define NIBBLE_TESTS_IDENTITY_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "policy/identity/identity.h"

enum framework {
    F_DDP,
    F_FSDP1,
    F_FSDP2,
    F_FSDP2_KEEP,
    F_HSDP,
    F_MEGATRON,
    F_MEGATRON_OVERLAP,
    F_MEGATRON_PIPELINE,
    F_ZERO1,
    F_ZERO2,
    F_ZERO3,
    F_OUTER,
    F_COUNT
};

enum {                    /* variants, to be combined */
       V_EVAL = 1,        /* forward passes without gradients every 10 steps, with a metric that is summed */
       V_CHECKPOINT = 2,  /* optimizer state is gathered every 25 steps */
       V_BATCH = 4,       /* from the middle on memory is laid out otherwise */
       V_DROP = 8,        /* LayerDrop: every layer is left out with 10 %; where gradients of all layers are
                           * reduced whatever ran, parts of them are zeros */
       V_LISA = 16,       /* only 2 layers have gradients and change, chosen anew every 20 steps; or:
                           * all other gradients are zeros */
       V_ACCUMULATE = 32, /* 4 micro-batches a step */
       V_RAMP = 64,       /* number of micro-batches grows: pipelines run in another order */
       V_PREFETCH = 128,  /* gathers run one unit ahead, also in the forward pass, also of layers left out */
};

/* Of a sum that is no gradient: weights (parameters that are averaged), state of an optimizer, activations
 * (new every time), statistics (much alike every time), squares of the gradients of `truth`, and what is too
 * small to matter. */
enum content { C_GRADIENT, C_WEIGHTS, C_STATE, C_ACTIVATION, C_STATISTIC, C_SQUARES, C_SCALAR };

struct event {
    struct nb_identity_call call;
    enum content content;
    int64_t unit;   /* true buffer; of gathers, content that the engine would recognise; -1: new content */
    uint32_t truth; /* unit even where the engine does not recognise it */
    int changed;
    uint32_t step;
    uint64_t version; /* of the weights */
    uint8_t zeros;    /* gradients: bit k: the k-th eighth of the vector is zero */
};
#define ZERO_PROFILE (-150.0f) /* of a group of zeros */

struct trace {
    struct event *event;
    size_t n, cap;
    uint32_t steps;
};

/* A job of `layers` equal layers. The caller frees trace->event. */
void trace_make(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                uint32_t steps, uint64_t seed);
/* The same with tensors of 1/shrink of the size. */
void trace_make_small(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                      uint32_t steps, uint64_t seed, unsigned shrink);
const char *framework_name(enum framework framework);
/* Of a combination of variants; in static memory, until the next call. */
const char *variants_name(unsigned variants);

/* The profile of `unit` at `step`, with the noise of this very operation. */
void model_profile(uint32_t unit, uint32_t step, uint64_t noise_seed, float out[NB_PROFILE_GROUPS]);
/* Of a gradient, with the parts that are zero. */
void model_gradient(const struct event *event, uint64_t noise_seed, float out[NB_PROFILE_GROUPS]);
/* Samples of an operation. */
void model_samples(const struct event *event, uint64_t noise_seed, float *out, unsigned n);

/* Random numbers for tests: splitmix64. */
uint64_t rnd(uint64_t *state);
float rnd_unit(uint64_t *state);   /* [0, 1) */
float rnd_normal(uint64_t *state); /* N(0, 1), nearly: a sum of four */

#endif
