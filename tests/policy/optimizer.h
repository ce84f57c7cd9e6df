/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard of weights that is trained: FP32 masters that an optimizer moves by the sums it is given, and what
 * is gathered of them, rounded to BF16. The loss behind the gradients is a noisy quadratic bowl whose centre
 * wanders, so that successive gradients have something in common, as in training.
 */
#ifndef NIBBLE_TESTS_POLICY_OPTIMIZER_H
#define NIBBLE_TESTS_POLICY_OPTIMIZER_H

#include <stdint.h>

enum optimizer { OPT_ADAMW, OPT_SGD, OPT_LION, OPT_ADAFACTOR, OPT_COUNT };

#define SHARD 4096u /* values at most: those at the positions that are looked at */

struct shard {
    enum optimizer optimizer;
    float rate; /* of change: of a weight's size, in one step */
    uint64_t seed;
    unsigned steps, values;
    float centre[SHARD], master[SHARD], first[SHARD], second[SHARD], sum[SHARD];
};

/* Weights of size 0.02. */
void shard_open(struct shard *shard, enum optimizer optimizer, float rate, unsigned values, uint64_t seed);
/* The gradient of the next step, into shard->sum: at the weights that are gathered. coherence: share of its
 * energy that is not noise. */
void shard_gradient(struct shard *shard, float coherence);
/* The optimizer's step with shard->sum, weight decay included. */
void shard_step(struct shard *shard);
/* What is gathered: bit patterns of BF16; and what a sum is: of FP32. */
void shard_weights(const struct shard *shard, uint32_t *raw);
void shard_bits(const float *values, unsigned n, uint32_t *raw);

#endif
