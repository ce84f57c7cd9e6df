/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a step: the exact sum, the weights that must arrive, the direction of the update. */
#include <math.h>
#include <string.h>

#include "values.h"
#include "worker.h"

/* Sum exactly the values that the nodes handed to the exchange. Where gathers are lossy, sum the gradients
 * that the owners' own weights would have given. */
void nbt_exact_sum(struct nbt_worker *w)
{
    const struct nbt_settings *s = w->s;
    const size_t size = nb_dtype_size(s->grad_type);
    for (size_t i0 = 0; i0 < w->n; i0 += 1024) {
        const size_t c = w->n - i0 < 1024 ? w->n - i0 : 1024;
        double sum[1024] = {0};
        float part[1024];
        for (int r = 0; r < s->nodes; r++) {
            const char *from = nbt_board_grads(s, w->board, r);
            nbt_widen(s->grad_type, from + (w->first + i0) * size, c, part);
            for (size_t i = 0; i < c; i++)
                sum[i] += (double)part[i];
        }
        for (size_t i = 0; i < c; i++)
            w->exact[i0 + i] = (float)sum[i];
    }
}

/* Measure each block on one receiver: all receivers have the same bits. */
static void weight_error(struct nbt_worker *w, const uint16_t *want)
{
    const struct nbt_settings *s = w->s;
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    const size_t first = (size_t)((w->node->rank + 1) % s->nodes) * s->block;
    for (size_t i0 = 0; i0 < s->block; i0 += 1024) {
        const size_t c = s->block - i0 < 1024 ? s->block - i0 : 1024;
        float got[1024], truth[1024];
        nbt_from_bf16(w->weights + first + i0, c, got);
        nbt_from_bf16(want + first + i0, c, truth);
        for (size_t i = 0; i < c; i++)
            mine->weight_error2 += ((double)got[i] - (double)truth[i]) * ((double)got[i] - (double)truth[i]);
        nbt_from_bf16(want + w->first + i0, c, truth);
        for (size_t i = 0; i < c; i++) {
            const double d = (double)truth[i] - (double)w->master[i0 + i];
            mine->rounding2 += d * d;
        }
    }
}

int nbt_check_weights(struct nbt_worker *w, size_t where)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block;
    const int lossy = nbt_weights_lossy(w->run->method.weights), me = w->node->rank;
    const uint16_t *want = nbt_board_weights(s, w->board);
    struct nbt_node_board *mine = &w->board->node[me];
    uint64_t bad = 0;
    if (!lossy && memcmp(w->weights, want, all * sizeof *want) != 0) {
        size_t at = 0;
        while (w->weights[at] == want[at])
            at++;
        hx_fail("step %zu: gathered weight %zu (of node %zu) is %04x, its owner sent %04x", where, at,
                at / s->block, w->weights[at], want[at]);
        bad = 1;
    }
    if (lossy)
        weight_error(w, want);
    for (int r = 0; r < s->nodes; r++)
        mine->hash[r] = nb_hash64(w->weights + (size_t)r * s->block, s->block * sizeof *w->weights, where);
    const int rc = nbt_meet(w);
    if (rc)
        return rc;
    /* The owner of a lossy block has better values than the receivers, which must agree. */
    for (int r = 0; r < s->nodes; r++)
        for (int q = 0; q < s->nodes; q++)
            if (!lossy || (q != r && me != r))
                bad += w->board->node[q].hash[r] != mine->hash[r];
    if (bad)
        __atomic_fetch_add(&w->board->weight_errors, bad, __ATOMIC_RELAXED);
    if (me == 0)
        w->board->weight_checks++;
    return 0; /* the run fails by its count. Going on shows whether it is one step or all */
}

void nbt_probe(struct nbt_worker *w)
{
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    nbt_fidelity_measure(&w->s->lay, &w->usage, w->first, w->n, w->u, w->u_exact, w->delivered, w->exact,
                         &mine->fidelity);
}

void nbt_probe_collect(struct nbt_worker *w)
{
    struct nbt_fidelity_sums sums[NBT_MAX_NODES];
    if (w->node->rank != 0)
        return;
    for (int r = 0; r < w->s->nodes; r++)
        sums[r] = w->board->node[r].fidelity;
    nbt_fidelity_add(&w->board->fidelity, sums, w->s->nodes);
}
