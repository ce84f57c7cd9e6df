/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level GPT: token and position embeddings, pre-LN blocks (causal attention, MLP with GELU), a final
 * LayerNorm and an untied head. All parameters lie in one flat FP32 buffer, tensor after tensor, which a
 * distributed optimizer shards. Matrices are stored [out][in].
 *
 * Keys have no bias: softmax does not see it, so its gradient is rounding noise, which Adam would turn into
 * full-size steps.
 */
#ifndef NIBBLE_TRAIN_MODEL_H
#define NIBBLE_TRAIN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

#define NBT_VOCAB 256u
#define NBT_MAX_LAYERS 16u

struct nbt_config {
    size_t layers, width, heads, context; /* width / heads and context are multiples of 32 */
    size_t batch;                         /* sequences of one micro-batch */
};

/* Class of a parameter. The report lists fidelity and codec errors by class. */
enum nbt_class { NBT_MATRIX, NBT_EMBED, NBT_NORM, NBT_BIAS, NBT_HEAD, NBT_CLASSES };
const char *nbt_class_name(enum nbt_class c);

/* One tensor: `rows` x `cols` values from `offset` of the flat buffer. by_token: row i belongs to byte i. */
struct nbt_tensor {
    char name[32];
    enum nbt_class cls;
    size_t offset, rows, cols;
    int by_token;
    float init_std; /* 0: init_value everywhere */
    float init_value;
};

struct nbt_layer_at { /* indices into the tensor table */
    int ln1_gain, ln1_shift, qkv, qv_bias, proj, proj_bias, ln2_gain, ln2_shift, fc1, fc1_bias, fc2, fc2_bias;
};

struct nbt_layout {
    struct nbt_config cfg;
    struct nbt_tensor tensor[8 + 12 * NBT_MAX_LAYERS];
    int tensors;
    size_t params; /* values in the flat buffer */
    int tok, pos, lnf_gain, lnf_shift, head;
    struct nbt_layer_at layer[NBT_MAX_LAYERS];
};

/* Lay the parameters out. Return 0, or -EINVAL for a shape that the kernels do not support. */
int nbt_layout_make(const struct nbt_config *cfg, struct nbt_layout *out);
/* Set the initial values of all parameters from a seed. */
void nbt_init_params(const struct nbt_layout *lay, uint64_t seed, float *params);

struct nbt_model; /* activations and scratch of one micro-batch, for one thread */

/* Create a model, or return NULL when out of memory. `lay` must outlive it. */
struct nbt_model *nbt_model_new(const struct nbt_layout *lay, const struct nbt_kernels *kern);
void nbt_model_free(struct nbt_model *m);

/* Return the mean loss (nats a byte) of batch x context predictions, from tokens[b * (context + 1) + t] with
 * the target at t + 1. Store its gradient in `grad` (params values) unless that is NULL. */
double nbt_model_run(struct nbt_model *m, const float *params, const uint8_t *tokens, float *grad);

#endif
