/* SPDX-License-Identifier: Apache-2.0 */
/* One node while it trains, and the parts of its loop: node.c, checks.c. */
#ifndef NIBBLE_TRAIN_WORKER_H
#define NIBBLE_TRAIN_WORKER_H

#include "job.h"

struct nbt_worker {
    const struct nbt_settings *s;
    const struct nbt_run *run;
    struct hx_node *node;
    struct nbt_board *board;
    struct nbt_progress *progress;
    struct nbt_exchange x;
    struct nbt_model *model;
    struct nbt_usage usage;
    size_t first, n; /* own shard within the parameters: [first, first + n). n < block where padding begins */
    size_t updates;  /* number of the optimizer's steps */
    float scale;     /* loss scale with FP16 gradients, else 1 */
    size_t since;    /* steps since the scale changed */
    uint8_t *tokens; /* batch x (context + 1) */
    float *params;   /* the model's weights: the gathered BF16 weights */
    float *params_exact;      /* the owners' own weights where gathers are lossy, else NULL */
    float *grad;              /* nodes * block, zeros behind params */
    void *send, *recv;        /* gradients in grad_type: nodes * block, block */
    uint16_t *weights;        /* nodes * block, gathered */
    float *master, *before;   /* block: FP32 weights of the shard, and before the last step */
    float *delivered, *exact; /* block: summed gradient */
    struct nbt_moments mom, mom_exact;
    float *u, *u_exact; /* block: direction of the update */
    double last_valid;
};

/* Wait for all nodes. Return -EPIPE when a node has ended before it came here. Its own report has the
 * reason. */
int nbt_meet(struct nbt_worker *w);
/* Return the sum over the nodes of a number on the board, given node 0's. */
double nbt_over_nodes(const struct nbt_worker *w, const double *first);
/* Send the own shard, receive the other shards, and check them. `where` is a step, for messages. */
int nbt_gather(struct nbt_worker *w, size_t where);
/* Write the mean loss over the held-out text to the board. The nodes share the batches. */
void nbt_validate(struct nbt_worker *w);

/* checks.c: compute the exact sum of the shard's gradients over all nodes, from the board, unscaled. */
void nbt_exact_sum(struct nbt_worker *w);
/* checks.c: require that gathered weights equal the weights that their owners sent, or, where gathers are
 * lossy, are the same bits on all receivers. Count differences. Return a negative value when a node has
 * ended. */
int nbt_check_weights(struct nbt_worker *w, size_t where);
/* checks.c: measure how far this step's update is off. Call before and after the gather, with a meeting of
 * all nodes in between. */
void nbt_probe(struct nbt_worker *w);
void nbt_probe_collect(struct nbt_worker *w);

#endif
