/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a run as files, and what the codecs make of them.
 *
 * A folder of dumps holds layout.txt and, for each dumped step and node, step<S>-node<R>.bf16 and .f32: the
 * flat gradient buffer, padding included, as raw little-endian values.
 */
#ifndef NIBBLE_TRAIN_DUMP_H
#define NIBBLE_TRAIN_DUMP_H

#include <stddef.h>

#include "model.h"

/* Make the folder and write layout.txt. 0 or a negative errno value after a line on stderr. */
int nbt_dump_begin(const char *dir, const struct nbt_layout *lay, int nodes, size_t block);
/* Write the gradient of one node (nodes * block values). Results as above. */
int nbt_dump_step(const char *dir, int nodes, size_t block, size_t step, int rank, const float *grad);

/* Encode and decode every dump of the folder with int4 and int8, block by block as a reduce-scatter does,
 * without error feedback; print NMSE by class and bits a value. 0; 1 when int4 leaves its bound; 2 after an
 * error. */
int nbt_codec_report(const char *dir);

#endif
