/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov, Hutter 2019) on one node's shard of the flat FP32 master weights, and the schedule of
 * the learning rate.
 */
#ifndef NIBBLE_TRAIN_ADAMW_H
#define NIBBLE_TRAIN_ADAMW_H

#include <stddef.h>

#include "model.h"

struct nbt_adamw {
    float beta1, beta2, eps, decay;
};

/* Moments of a run of parameters. Both start as zeros. */
struct nbt_moments {
    float *m, *v;
};

/* Return the learning rate of `step`, which counts from 0: a linear warm-up over `warmup` steps to `peak`,
 * then a cosine down to a tenth of it at `steps`. */
float nbt_learning_rate(size_t step, size_t steps, size_t warmup, float peak);

/* Return the factor that clips a gradient with this sum of squares to norm 1, or 1 for a shorter gradient. */
float nbt_clip_factor(double sum_of_squares);

/* Advance both moments by the gradient factor * g, for n values. Store the direction of the update, mhat /
 * (sqrt(vhat) + eps), in u. `step` counts from 0. */
void nbt_adamw_direction(const struct nbt_adamw *opt, size_t step, size_t n, const float *g, float factor,
                         struct nbt_moments mom, float *u);

/* Compute w -= rate * (u + decay * w) for the values [first, first + n) of the flat buffer. w and u point at
 * value `first`. Only matrices, embeddings and the head decay. */
void nbt_adamw_apply(const struct nbt_adamw *opt, const struct nbt_layout *lay, size_t first, size_t n,
                     float rate, const float *u, float *w);

#endif
