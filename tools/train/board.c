/* SPDX-License-Identifier: Apache-2.0 */
/* Where the areas of a board lie. */
#include <math.h>

#include "job.h"

static size_t round_up(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

static size_t vector_bytes(const struct nbt_settings *s)
{
    return round_up((size_t)s->nodes * s->block * sizeof(float));
}

static size_t head_bytes(const struct nbt_settings *s)
{
    return round_up(sizeof(struct nbt_board) + s->steps * sizeof(struct nbt_step));
}

size_t nbt_board_bytes(const struct nbt_settings *s)
{
    return head_bytes(s) + ((size_t)s->nodes + 1) * vector_bytes(s) +
           nbt_exchange_shared_bytes(s->nodes, s->block);
}

void *nbt_board_grads(const struct nbt_settings *s, struct nbt_board *b, int rank)
{
    return (char *)b + head_bytes(s) + (size_t)rank * vector_bytes(s);
}

uint16_t *nbt_board_weights(const struct nbt_settings *s, struct nbt_board *b)
{
    return nbt_board_grads(s, b, s->nodes);
}

void *nbt_board_exchange(const struct nbt_settings *s, struct nbt_board *b)
{
    return nbt_board_grads(s, b, s->nodes + 1);
}

double nbt_board_weight_error(const struct nbt_settings *s, const struct nbt_board *b)
{
    double error = 0, rounding = 0;
    for (int r = 0; r < s->nodes; r++) {
        error += b->node[r].weight_error2;
        rounding += b->node[r].rounding2;
    }
    return rounding > 0 ? sqrt(error / rounding) : 0;
}
