/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard of weights in training. An optimizer moves its FP32 masters by the sums that it gets. All-gathers
 * deliver the masters rounded to BF16. The loss behind the gradients is a noisy quadratic bowl whose centre
 * wanders, so that successive gradients correlate, as in training.
 */
#ifndef NIBBLE_TESTS_POLICY_OPTIMIZER_H
#define NIBBLE_TESTS_POLICY_OPTIMIZER_H

#include <stdint.h>

enum optimizer { OPT_ADAMW, OPT_SGD, OPT_LION, OPT_ADAFACTOR, OPT_COUNT };

#define SHARD 4096u /* largest number of values: the values at the sampled positions */

struct shard {
    enum optimizer optimizer;
    float rate; /* change of a weight in one step, relative to its size */
    uint64_t seed;
    unsigned steps, values;
    float centre[SHARD], master[SHARD], first[SHARD], second[SHARD], sum[SHARD];
};

/* Start with weights of size 0.02. */
void shard_open(struct shard *shard, enum optimizer optimizer, float rate, unsigned values, uint64_t seed);
/* Write the gradient of the next step into shard->sum, at the gathered weights. `coherence` is the share of
 * its energy that is signal. The rest is noise. */
void shard_gradient(struct shard *shard, float coherence);
/* Apply the optimizer's step with shard->sum, weight decay included. */
void shard_step(struct shard *shard);
/* Write bit patterns: the gathered weights as BF16, and a sum as FP32. */
void shard_weights(const struct shard *shard, uint32_t *raw);
void shard_bits(const float *values, unsigned n, uint32_t *raw);

#endif
