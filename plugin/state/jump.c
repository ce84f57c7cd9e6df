/* SPDX-License-Identifier: Apache-2.0 */
/* The usual level of a quantity, and steps far above it. See jump.h. */
#include "state/jump.h"

#include <math.h>

#define FOLLOW 0.25f

int nb_jump_steady(const struct nb_jump *jump)
{
    return jump->seen >= NB_JUMP_STEADY;
}

static int above(struct nb_jump *jump, float now, float far)
{
    int jumped = nb_jump_steady(jump) && now > jump->usual + far;

    jump->usual = jump->seen ? jump->usual + FOLLOW * (now - jump->usual) : now;
    if (jump->seen < NB_JUMP_STEADY)
        jump->seen++;
    return jumped;
}

int nb_jump_weights(struct nb_jump *jump, uint64_t values, uint64_t bits)
{
    return values && above(jump, (float)((double)bits / (double)values), NB_JUMP_BITS);
}

int nb_jump_gradients(struct nb_jump *jump, double energy)
{
    return energy > 0 && isfinite(energy) && above(jump, (float)log2(energy), NB_JUMP_SPIKE);
}
