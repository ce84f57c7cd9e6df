/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of frameworks with a model in a step: which collectives, in which order, from which memory. From
 * the sources of PyTorch (torch/nn/parallel, torch/distributed/fsdp), DeepSpeed (runtime/zero) and
 * Megatron-LM (core/distributed).
 */
#ifndef NIBBLE_TESTS_JOBS_PARALLEL_H
#define NIBBLE_TESTS_JOBS_PARALLEL_H

#include "model.h"

/* ---- replicas: DDP ------------------------------------------------------------------------------------- */

/* One bucket for each unit, at a permanent address. In the order of backward passes: from the last. */
struct ddp {
    struct comm *comm;
    struct model *model;
    ncclDataType_t type;
    enum nb_caller caller; /* PyTorch's reducer at first */
    int unproved;          /* another caller: the plugin need not recognise gradients */
    address bucket[UNITS_MOST];
};
struct ddp ddp_open(struct job *job, struct comm *comm, struct model *model);
/* Run the backward pass of the step's last micro-batch, of `micro_batches`. Buckets are reduced as they
 * fill. */
void ddp_backward(struct ddp *ddp, int micro_batches);

/* ---- shards: FSDP -------------------------------------------------------------------------------------- */

struct fsdp {
    struct comm *comm;
    struct model *model;
    ncclDataType_t param, grad; /* as they travel: BF16, FP32 */
    int version;     /* 1, or 2: gathers are in place, and a unit's gather comes before the reduce-scatter
                        of the unit before */
    int keep;        /* keep gathered weights after the forward pass */
    int prefetch;    /* gather the next unit before this unit runs */
    unsigned skip;   /* units that do not run in this step (LayerDrop), by bit */
    unsigned frozen; /* units without a gradient, by bit */
    struct comm *replicas; /* HSDP: `comm` is inside the node, and this is between nodes. Else NULL */
    address shard[UNITS_MOST], full[UNITS_MOST], grads[UNITS_MOST];
};
struct fsdp fsdp_open(struct job *job, struct comm *comm, struct model *model, int version);
void fsdp_forward(struct fsdp *fsdp);
void fsdp_backward(struct fsdp *fsdp);
/* Update the trained units, and free the gradients. */
void fsdp_update(struct fsdp *fsdp);
/* The same, where the job has updated the weights by itself. */
void fsdp_updated(struct fsdp *fsdp);
/* Free the weights after a forward pass without a backward pass. */
void fsdp_release(struct fsdp *fsdp);
/* pass: forwards and backwards. step: a pass and the update. forward_only: a forward pass by itself. */
void fsdp_pass(struct fsdp *fsdp);
void fsdp_step(struct fsdp *fsdp);
void fsdp_forward_only(struct fsdp *fsdp);
/* Run one unit forwards, or backwards with its reduce-scatter. */
void fsdp_run_unit(struct fsdp *fsdp, int unit, int backwards);
/* Run a backward pass whose contributions `fill` writes to unit.g. gradients: they count as such, else they
 * have to stay exact. */
typedef void (*unit_fill)(void *arg, struct unit *unit, int number);
void fsdp_backward_by(struct fsdp *fsdp, unit_fill fill, void *arg, int gradients);

/* ---- ZeRO, distributed optimizer ----------------------------------------------------------------------- */

/* Return units a to b - 1 in one vector. interleaved: rank by rank, as the shards of each rank lie. The
 * values stay until the next call with the same `of`, and the caller does not free them. */
enum { OF_WEIGHTS, OF_NODE_0, OF_NODE_1 };
const float *model_vector(struct model *model, int a, int b, int of, int interleaved);
size_t model_size(const struct model *model, int a, int b);

/* DeepSpeed's stages 1 and 2: all-reduce gradients in fresh buckets of `group` units each, and gather the
 * updated parameters as one flat vector. */
void zero12_reduce(struct comm *comm, struct model *model, int group, const truth *buffers);
void zero12_gather(struct comm *comm, struct model *model, address flat);
/* Stage 3: `gathered` units in a gather, `reduced` in a reduce-scatter. */
void zero3_gather(struct comm *comm, struct model *model, int gathered, int backwards);
void zero3_reduce(struct comm *comm, struct model *model, int reduced, const truth *buffers);

/* Megatron: one bucket for each unit in permanent buffers, reduce-scatter and gathers in place. */
struct distopt {
    struct comm *comm;
    struct model *model;
    address grad[UNITS_MOST], param[UNITS_MOST];
};
struct distopt distopt_open(struct job *job, struct comm *comm, struct model *model);
void distopt_reduce(struct distopt *d);
void distopt_gather(struct distopt *d);

/* ---- parts of layers: tensor parallelism --------------------------------------------------------------- */

struct tensor_parallel {
    struct job *job;
    struct comm *comm;
    int layers;
    size_t n, width; /* values of an activation: tokens times width */
    ncclDataType_t type;
    int fixed;    /* always in the same buffers (static memory of an engine, CUDA graphs), else from the
                  allocator */
    int sequence; /* sequence parallelism: gathers before and reduce-scatters after a layer instead of
                     all-reduces */
    uint64_t random;
    address at[2 * UNITS_MOST];
    float *value[NODES], *whole;
};
struct tensor_parallel tensor_parallel_open(struct job *job, struct comm *comm, int layers, size_t n,
                                            int fixed);
void tensor_parallel_forward(struct tensor_parallel *t);
void tensor_parallel_backward(struct tensor_parallel *t);

#endif
