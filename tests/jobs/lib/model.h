/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that trains: units (layers, FSDP units) of parameters, each in its own landscape. The loss is
 * quadratic about a point some distance away, with a curvature that differs from row to row. A micro-batch
 * sees its gradient under noise of heavy tails, whose scale differs between units (tenfold) and rows, and
 * wavers from step to step. So gradients agree at first and hardly later, each layer has its own profile, and
 * optimizers move the weights to where the loss is less. Weights are as in transformers: 0.02 rms.
 */
#ifndef NIBBLE_TESTS_JOBS_MODEL_H
#define NIBBLE_TESTS_JOBS_MODEL_H

#include "job.h"

#define UNITS_MOST 16
#define ROW 32u /* parameters of a row */

enum optimizer { ADAMW, SGD, LION, MUON, ADAFACTOR };

struct unit;

/* Source of a model's values other than this file: real training. It fills in w and g. */
struct model_source {
    const size_t *n;                                            /* parameters of each unit */
    void (*begin)(void *arg, struct unit *unit, int number);    /* weights at the start */
    void (*gradient)(void *arg, struct unit *unit, int number); /* of the next micro-batch */
    void (*update)(void *arg, struct unit *unit, int number);   /* the optimizer has moved it */
    void *arg;
};

struct model_settings {
    int units;    /* 0: 6 */
    size_t n;     /* parameters of a unit, a multiple of 256. 0: 24576 */
    size_t first; /* of the first (an embedding). 0: as the other units */
    enum optimizer optimizer;
    float lr;                          /* 0: 3e-4 of AdamW. Other optimizers have a rate of the same effect */
    int warmup;                        /* steps in which the rate rises from 0 */
    int alike;                         /* all units have one profile */
    float noise;                       /* of a micro-batch, times the usual. 0: 1 */
    const struct model_source *source; /* NULL: the landscape above */
};

struct unit {
    size_t n;
    truth buffer;         /* its gradient */
    float *w, *target;    /* parameters, and their values at the least loss */
    float *curve, *scale; /* of each row */
    float *m, *v;         /* optimizer's state */
    float *g[NODES];      /* gradient of each node */
    float *sum;           /* mean over nodes, of all micro-batches since the last update */
    uint64_t seed;
};

struct model {
    struct model_settings set;
    struct job *job;
    int units;
    struct unit unit[UNITS_MOST];
    int updates;
    uint64_t random;
    float *vector[1 + NODES]; /* parallel.c's */
};

/* Make a model. It lives until the job ends. */
struct model *model_new(struct job *job, const struct model_settings *settings);
/* Make the gradient of one micro-batch of a unit, in unit.g of both nodes. add: add it to the present
 * values. */
void model_gradient(struct model *model, int unit, int add);
/* unit.g has been reduced: add its mean to unit.sum, which the optimizer will use. */
void model_reduced(struct model *model, int unit);
/* Let the optimizer move the weights of a unit by its sum, and clear the sum. `model_update` does all
 * units. */
void model_update_unit(struct model *model, int unit);
void model_update(struct model *model);
/* Return the loss of this node's batch. */
float model_loss(struct model *model, int node);

/* ---- other values -------------------------------------------------------------------------------------- */

/* Make tables, before other calls. */
void values_open(void);
/* Return a value of mean 0 and variance 1 with tails as gradients have them (Student's t of 5 degrees). */
float noise(uint64_t *random);
uint64_t draw(uint64_t *random);
/* Return `n` values that the job keeps until it ends, zero at first. */
float *values(struct job *job, size_t n);
/* Make activations: hard swish of noise, with its own scale in each of `width` (up to 1024) channels. Some
 * scales are far larger. */
void activations(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out);
/* Make the values before the non-linearity: partial products of tensor parallel ranks, whose sum is the
 * activation. */
void partial_products(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out);

#endif
