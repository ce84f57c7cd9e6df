/* SPDX-License-Identifier: Apache-2.0 */
/* What a run does to gradients and weights on their way. The plugin is told through its settings (runs.c). */
#ifndef NIBBLE_TRAIN_METHOD_H
#define NIBBLE_TRAIN_METHOD_H

#include "nibble/codec.h"

enum nbt_gradients { NBT_GRADIENTS_RAW, NBT_GRADIENTS_INT4 };

enum nbt_weights {
    NBT_WEIGHTS_RAW,
    NBT_WEIGHTS_EXACT, /* coded differences, bit-exact */
    NBT_WEIGHTS_DELTA4 /* bounded differences; a node keeps its own block exact */
};

struct nbt_method {
    enum nbt_gradients gradients;
    enum nb_ef_mode feedback; /* of int4 */
    enum nbt_weights weights;
};

/* 1 when gathered weights differ from what their owners have. */
static inline int nbt_weights_lossy(enum nbt_weights weights)
{
    return weights == NBT_WEIGHTS_DELTA4;
}

#endif
