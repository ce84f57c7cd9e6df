/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training run: its settings, the memory that its nodes share beside the network, and its results.
 *
 * The launcher in main.c maps a board, forks the nodes through the proxy harness and reads the board
 * afterwards. The board is the control plane: loss and norms travel over it. The nodes compute from it every
 * quantity that judges the network, which are the exact sum of the gradients and the weights that must
 * arrive.
 */
#ifndef NIBBLE_TRAIN_JOB_H
#define NIBBLE_TRAIN_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "adamw.h"
#include "exchange.h"
#include "fidelity.h"
#include "model.h"
#include "progress.h"
#include "runs.h"
#include "tests/harness/lib/harness.h"
#include "text.h"

/* Settings of all runs. The launcher makes them, and they stay constant. */
struct nbt_settings {
    struct nbt_layout lay;
    struct nbt_text text;
    struct nbt_adamw opt;
    int nodes;
    size_t block;         /* values of a node's shard. nodes * block >= params, the rest is padding (zeros) */
    size_t steps, warmup; /* steps of optimization, and how many of them have a rising learning rate */
    size_t eval_every;    /* steps between validations. The last step always validates */
    size_t probe_from, probe_every; /* instants at which fidelity is measured */
    float rate;                     /* peak learning rate */
    uint64_t seed;
    enum nb_dtype grad_type;
    const struct nbt_exchange_ops *exchange;
    const char *plugin;
    enum nbt_fault fault;
    double deadline_s; /* time limit of a run */
};

struct nbt_step {            /* written by node 0 */
    double loss;             /* mean over nodes, before the step */
    double valid;            /* after the step, NaN without a measurement */
    double norm, norm_exact; /* norm of the averaged gradient before clipping: delivered, exact */
    double change;           /* rms(dW) / rms(W) of the FP32 weights */
    float rate;
    int skipped; /* the optimizer took no step */
};

struct nbt_node_board { /* one line a node, read after a barrier */
    _Alignas(64) double loss;
    double valid;
    uint64_t valid_batches;
    double norm2, norm2_exact;    /* sums of squares over the shard: delivered, exact */
    double change2, weight2;      /* sums of squares of the shard's step and of its weights */
    uint64_t hash[NBT_MAX_NODES]; /* hashes of the gathered weights, block by block */
    struct nbt_fidelity_sums fidelity;
    double weight_error2; /* sum over all steps: gathered minus owner's values, of one block */
    double rounding2;     /* ... the effect of rounding to BF16 in the own shard */
    double seconds_compute, seconds_rs, seconds_ag;
    uint64_t meetings; /* barriers reached */
};

struct nbt_board {
    struct nbt_node_board node[NBT_MAX_NODES];
    struct nbt_fidelity fidelity;
    size_t steps_done;
    double seconds;
    uint64_t weight_checks,
        weight_errors;      /* gathers after which nodes compared hashes, and failed comparisons on all
                               nodes */
    struct nbt_step step[]; /* one for each step, then the areas below */
};

/* Return the size of a board, and where its large areas lie. */
size_t nbt_board_bytes(const struct nbt_settings *s);
void *nbt_board_grads(const struct nbt_settings *s, struct nbt_board *b,
                      int rank); /* nodes * block of grad_type */
uint16_t *nbt_board_weights(const struct nbt_settings *s, struct nbt_board *b); /* nodes * block */
void *nbt_board_exchange(const struct nbt_settings *s, struct nbt_board *b);
/* Return the RMS error of gathered weights over the RMS error of rounding them to BF16, 0 where gathers are
 * exact. */
double nbt_board_weight_error(const struct nbt_settings *s, const struct nbt_board *b);

/* Start arguments of a node. */
struct nbt_launch {
    const struct nbt_settings *settings;
    const struct nbt_run *run;
    struct nbt_board *board;
    struct nbt_progress *progress;
};

/* Run the training loop of one node. This is an hx_node_fn with a struct nbt_launch. */
int nbt_node_main(struct hx_node *node, void *launch);

/* Outcome of a run as the report wants it. */
struct nbt_outcome {
    const struct nbt_run *run;
    struct nbt_board *board;
    struct nbt_traffic traffic; /* all nodes, whole run */
    int ok;                     /* the job ended as expected */
    char reason[512];           /* ... the reason where it did not */
    char story[2000];           /* how the plugin decided which operations to code, in node 0's words, ""
                                   without a decision */
};

#endif
