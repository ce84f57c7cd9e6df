/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that trains: units (layers, FSDP units) of parameters in a landscape of its own. The loss is quadratic about
 * a point that lies some way off, with a curvature that differs from row to row; a micro-batch sees its gradient under
 * noise of heavy tails, whose scale differs between units (tenfold) and rows, and wavers from step to step. So
 * gradients agree at first and hardly later, layers have profiles of their own, and optimizers move the weights to
 * where the loss is less. Weights are as in transformers: 0.02 rms.
 */
#ifndef NIBBLE_TESTS_JOBS_MODEL_H
#define NIBBLE_TESTS_JOBS_MODEL_H

#include "job.h"

#define UNITS_MOST 16
#define ROW 32u /* parameters of a row */

enum optimizer { ADAMW, SGD, LION, MUON, ADAFACTOR };

struct unit;

/* Where a model's values come from, if they are not made here: real training's. It fills in w and g. */
struct model_source {
    const size_t *n;                                            /* parameters of each unit */
    void (*begin)(void *arg, struct unit *unit, int number);    /* weights at the start */
    void (*gradient)(void *arg, struct unit *unit, int number); /* of the next micro-batch */
    void (*update)(void *arg, struct unit *unit, int number);   /* the optimizer has moved it */
    void *arg;
};

struct model_settings {
    int units;    /* 0: 6 */
    size_t n;     /* parameters of a unit, a multiple of 256; 0: 24576 */
    size_t first; /* of the first (an embedding), 0: as the others */
    enum optimizer optimizer;
    float lr;    /* 0: 3e-4 of AdamW's; other optimizers have theirs of the same effect */
    int warmup;  /* steps in which the rate rises from 0 */
    int alike;   /* all units have one profile */
    float noise; /* of a micro-batch, times the usual; 0: 1 */
    const struct model_source *source; /* NULL: the landscape above */
};

struct unit {
    size_t n;
    truth buffer;         /* its gradient */
    float *w, *target;    /* parameters, and where the loss is least */
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

/* Lives until the job ends. */
struct model *model_new(struct job *job, const struct model_settings *settings);
/* Gradient of one micro-batch of a unit, into unit.g of both nodes. add: to what is there. */
void model_gradient(struct model *model, int unit, int add);
/* unit.g has been reduced: add its mean to unit.sum, which the optimizer will use. */
void model_reduced(struct model *model, int unit);
/* Let the optimizer move the weights of a unit by its sum, and clear that. `model_update` does all units. */
void model_update_unit(struct model *model, int unit);
void model_update(struct model *model);
/* The loss of this node's batch. */
float model_loss(struct model *model, int node);

/* ---- other values ---------------------------------------------------------------------------------------- */

/* Before any of them: make tables. */
void values_open(void);
/* A value of mean 0 and variance 1 with tails as gradients have them (Student's t of 5 degrees). */
float noise(uint64_t *random);
uint64_t draw(uint64_t *random);
/* `n` values that the job keeps until it ends, zero at first. */
float *values(struct job *job, size_t n);
/* Activations: hard swish of noise of a scale of its own for each of `width` (up to 1024)
 * channels, some of which are far larger. */
void activations(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out);
/* The same before the non-linearity: partial products of tensor parallel ranks, whose sum is the activation. */
void partial_products(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out);

#endif
