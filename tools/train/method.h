/* SPDX-License-Identifier: Apache-2.0 */
/* A run's treatment of gradients and weights on their way. The plugin learns it through its settings
 * (runs.c). */
#ifndef NIBBLE_TRAIN_METHOD_H
#define NIBBLE_TRAIN_METHOD_H

#include "nibble/codec.h"

enum nbt_gradients { NBT_GRADIENTS_RAW, NBT_GRADIENTS_INT4 };

enum nbt_weights {
    NBT_WEIGHTS_RAW,
    NBT_WEIGHTS_EXACT, /* coded differences, bit-exact */
    NBT_WEIGHTS_DELTA4 /* bounded differences, and a node keeps its own block exact */
};

struct nbt_method {
    enum nbt_gradients gradients;
    enum nb_ef_mode feedback; /* feedback of int4 */
    enum nbt_weights weights;
    int all_reduce; /* gradients go by all-reduce, as in DDP. Each node keeps its block of the result */
    int finer;      /* sums that nodes pass on have more than 4 bits */
};

/* Return 1 when gathered weights differ from their owners' weights. */
static inline int nbt_weights_lossy(enum nbt_weights weights)
{
    return weights == NBT_WEIGHTS_DELTA4;
}

#endif
