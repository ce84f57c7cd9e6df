/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of training jobs with known truth: the calls that frameworks make, their order, their memory, and
 * the data at the places where identity and classification look.
 *
 * The data model. A profile has the log2 rms of 256 groups. It is the sum of a part common to all layers, a
 * part of the layer, and noise of the step. The noise has such a variance that an operation correlates 0.55
 * to 0.77 with the average of its own layer's past and at most 0.37 with another layer's (test_profiles
 * checks that). The layer's part turns slowly. The noise is nine times as strong at the start and calms down
 * within twenty steps. A step may shift all groups by a power of two (loss scale) and double its noise
 * (spike). Samples have 64 to 256 values. Weights move by 1e-3 of their size a step, gradients are new every
 * time (correlation 0.2), activations and logits are unrelated.
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
       V_EVAL = 1,        /* forward passes without gradients every 10 steps, with a summed metric */
       V_CHECKPOINT = 2,  /* optimizer state is gathered every 25 steps */
       V_BATCH = 4,       /* from the middle on memory has another layout */
       V_DROP = 8,        /* LayerDrop: every layer is left out with 10 %. Frameworks that reduce gradients
                             of all layers send zeros for its parts */
       V_LISA = 16,       /* only 2 layers have gradients and change, chosen anew every 20 steps. Elsewhere
                             all other gradients are zeros */
       V_ACCUMULATE = 32, /* 4 micro-batches a step */
       V_RAMP = 64,       /* the number of micro-batches grows: pipelines run in another order */
       V_PREFETCH = 128,  /* gathers run one unit ahead, also in the forward pass and for left-out layers */
};

/* Content of a sum that is not a gradient: weights (averaged parameters), state of an optimizer, activations
 * (new every time), statistics (nearly the same every time), squares of the gradients of `truth`, and sums
 * too small to matter. */
enum content { C_GRADIENT, C_WEIGHTS, C_STATE, C_ACTIVATION, C_STATISTIC, C_SQUARES, C_SCALAR };

struct event {
    struct nb_identity_call call;
    enum content content;
    int64_t unit;   /* true buffer. For gathers the content that the engine would recognize. -1: new
                       content */
    uint32_t truth; /* unit, even where the engine does not recognize it */
    int changed;
    uint32_t step;
    uint64_t version; /* version of the weights */
    uint8_t zeros;    /* gradients: bit k means that the k-th eighth of the vector is zero */
};
#define ZERO_PROFILE (-150.0f) /* profile of a group of zeros */

struct trace {
    struct event *event;
    size_t n, cap;
    uint32_t steps;
};

/* Make the trace of a job with `layers` equal layers. The caller frees trace->event. */
void trace_make(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                uint32_t steps, uint64_t seed);
/* Make the same trace with tensors of 1/shrink of the size. */
void trace_make_small(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                      uint32_t steps, uint64_t seed, unsigned shrink);
const char *framework_name(enum framework framework);
/* Return the name of a combination of variants, in static memory, valid until the next call. */
const char *variants_name(unsigned variants);

/* Write the profile of `unit` at `step`, with the noise of this one operation. */
void model_profile(uint32_t unit, uint32_t step, uint64_t noise_seed, float out[NB_PROFILE_GROUPS]);
/* Write the profile of a gradient, with its zero parts. */
void model_gradient(const struct event *event, uint64_t noise_seed, float out[NB_PROFILE_GROUPS]);
/* Write samples of an operation. */
void model_samples(const struct event *event, uint64_t noise_seed, float *out, unsigned n);

/* Return the first step from which on 95 % of the sums are fed, in each step or in all together, for eight
 * steps with sums. `asked` and `fed` count the sums of each of `steps` steps. -1: there is none. */
int trace_first_fed(const uint32_t *asked, const uint32_t *fed, uint32_t steps);

/* Random numbers for tests: splitmix64. */
uint64_t rnd(uint64_t *state);
float rnd_unit(uint64_t *state);   /* [0, 1) */
float rnd_normal(uint64_t *state); /* nearly N(0, 1): a sum of four */

#endif
