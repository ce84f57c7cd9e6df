/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other people's 4-bit codes, for comparison: what would arrive if a vector were sent with them, and how many
 * bytes it would take. They follow the published programs in what decides the error (groups, levels,
 * rounding, which error is kept) and compute in FP32 on one thread; nothing here is fast.
 *
 *   LoCo (arXiv 2407.04480, as in DeepSpeed's all_to_all_loco_quant_reduce): a matrix is cut into groups as
 *     long as its shorter side; 16 levels, scale 8 / max |x|, round to nearest, clamp to -8..7, FP32 scales.
 *     Error e <- beta e + (1 - beta)(h - Q(h)) with beta 0.8, kept in 8 bits with the same groups, set to
 * zero every 1024 steps. Vectors (LayerNorm, biases) travel as they are. SDP4Bit (arXiv 2410.15526),
 * gradients: 32-point Hadamard transform, groups of 128, 15 levels, scale 7 / max |x|, random rounding, FP32
 * scales, no error kept. SDP4Bit, weights: difference between the new BF16 weights and those that everyone
 * has, groups of 2048, 15 levels, random rounding; added to the weights that everyone has, the owner
 * included.
 *
 * One object a node, one thread.
 */
#ifndef NIBBLE_TRAIN_RIVALS_H
#define NIBBLE_TRAIN_RIVALS_H

#include "method.h"
#include "model.h"

struct nbt_rival;

/* For gradients: vectors of `values` >= lay->params values. NULL when out of memory. */
struct nbt_rival *nbt_rival_new(enum nbt_gradients kind, const struct nbt_layout *lay, size_t values,
                                uint64_t seed);
void nbt_rival_free(struct nbt_rival *r);
/* What arrives of the whole vector g; one call a step. Returns the bytes on the wire of all of it. */
uint64_t nbt_rival_gradients(struct nbt_rival *r, const float *g, float *arrives);

/* What arrives of n new weights where `before` is what everyone has (all BF16); `arrives` may be either.
 * `seed` differs from call to call. Returns the bytes on the wire. */
uint64_t nbt_rival_weights(const uint16_t *now, const uint16_t *before, size_t n, uint64_t seed,
                           uint16_t *arrives);

#endif
