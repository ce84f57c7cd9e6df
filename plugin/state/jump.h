/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps out of the ordinary, after which residuals do harm.
 *
 * Weights that jump: from step to step they move by a few units in the last place, and the cost of their
 * differences on the wire changes slowly. When a checkpoint is loaded, or training goes back before a spike,
 * all of them are elsewhere at once. The residuals then belong to gradients at other weights and to an
 * optimizer state that is gone.
 *
 * Gradients that spike: the job clips them, but their residuals stay unclipped. The bound of the codec (a
 * fifth of a tile's own norm) limits the part that comes back at once. Groups that are zero for a while, such
 * as rows of an embedding, would still bring it back many steps later, larger than all their own values.
 *
 * Pure functions, with one state a block of weights or a buffer of gradients, all zero at first. The usual
 * level follows every value, so that a new pace (another learning rate) is out of the ordinary a few times
 * only.
 */
#ifndef NIBBLE_STATE_JUMP_H
#define NIBBLE_STATE_JUMP_H

#include <stdint.h>

#define NB_JUMP_BITS 3.0f  /* bits a value more than usual: differences eight times as large */
#define NB_JUMP_SPIKE 4.0f /* powers of two above the usual energy: four times the norm */
#define NB_JUMP_STEADY 4u  /* values before there is a usual level */

struct nb_jump {
    float usual;   /* moving average */
    uint32_t seen; /* number of values, up to NB_JUMP_STEADY */
};

/* Note that the block has changed, and that its differences took `bits` for `values` values. Return 1 when it
 * jumped. */
int nb_jump_weights(struct nb_jump *jump, uint64_t values, uint64_t bits);

/* Note the energy of the buffer's gradients: the sum of squares, always of the same values. Return 1 when
 * they spiked. */
int nb_jump_gradients(struct nb_jump *jump, double energy);

/* Return 1 when there is a usual level. */
int nb_jump_steady(const struct nb_jump *jump);

#endif
