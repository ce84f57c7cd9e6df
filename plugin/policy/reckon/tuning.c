/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When NCCL should take CollNet. Every rank of a communicator decides for itself, and ranks that choose
 * differently hang. The answer is therefore a pure function of facts that all ranks share: function, size,
 * ranks, nodes, and settings that the nodes compare before a communicator is connected. Records, budgets and
 * history do not influence it.
 */
#include "policy/reckon/reckon.h"

#include "base/minmax.h"
#include "base/params.h"
#include "policy/rules/rules.h"

int nb_tuning_pays(const struct nb_tuning *t, ncclFunc_t func, size_t bytes)
{
    const struct nb_params *p = t->params;
    /* NIBBLE_AG=raw serves to try CollNet without codecs. off leaves gathers to NCCL. */
    struct nb_facts facts = {.params = p,
                             .type = ncclFloat32,
                             .redop = ncclSum,
                             .bytes = bytes,
                             .recorded = t->records,
                             .carried = true};

    if (!p->enable || !p->tuner || t->nnodes < 2 || t->nranks < t->nnodes ||
        bytes < (uint64_t)p->tuner_min_bytes)
        return 0;
    switch (func) {
    case ncclFuncReduceScatter: facts.func = NB_FUNC_REDUCE_SCATTER; break;
    case ncclFuncAllGather: facts.func = NB_FUNC_ALL_GATHER; break;
    case ncclFuncAllReduce: facts.func = NB_FUNC_ALL_REDUCE; break;
    default: return 0;
    }
    /* The engine judges a reduce-scatter or all-gather by the part of one head. */
    if (func != ncclFuncAllReduce)
        facts.bytes /= t->nranks / t->nnodes;
    return nb_decide(&facts, NB_STAGE_CALL).reason == NB_CODED;
}

/* Return the lowest valid entry of a row, or -1 in a row without one. */
static float best_of(const float *row, int protos)
{
    float best = NCCL_ALGO_PROTO_IGNORE;

    for (int p = 0; p < protos; p++)
        if (row[p] >= 0 && (best < 0 || row[p] < best))
            best = row[p];
    return best;
}

bool nb_tuning_costs(const struct nb_tuning *t, ncclFunc_t func, size_t bytes, float *table, int algos,
                     int protos)
{
    int algo = NCCL_ALGO_COLLNET_DIRECT;
    float *row, others = NCCL_ALGO_PROTO_IGNORE, own;

    if (algos <= NCCL_ALGO_COLLNET_DIRECT || protos <= NCCL_PROTO_SIMPLE || !nb_tuning_pays(t, func, bytes))
        return false;
    row = table + algo * protos;
    if (best_of(row, protos) < 0) {
        if (t->params->force_collnet && t->nranks == t->nnodes)
            row[NCCL_PROTO_SIMPLE] = 0;
        else if (algos > NCCL_ALGO_NVLS)
            algo = NCCL_ALGO_NVLS; /* the other way to the CollNet calls */
        row = table + algo * protos;
    }
    own = best_of(row, protos);
    if (own < 0)
        return false;
    for (int a = 0; a < algos; a++) {
        float best = best_of(table + a * protos, protos);
        if (a != algo && best >= 0 && (others < 0 || best < others))
            others = best;
    }
    if (others < 0 || own < others)
        return false;
    for (int p = 0; p < protos; p++)
        if (row[p] >= 0 && row[p] >= others)
            row[p] = others / 2;
    return true;
}

bool nb_tuning_reaches(const float *table, int algos, int protos)
{
    float collnet = NCCL_ALGO_PROTO_IGNORE, others = NCCL_ALGO_PROTO_IGNORE;

    for (int a = 0; a < algos; a++) {
        const float best = best_of(table + a * protos, protos);
        const bool reaches =
            a == NCCL_ALGO_COLLNET_DIRECT || a == NCCL_ALGO_COLLNET_CHAIN || a == NCCL_ALGO_NVLS;
        float *const of = reaches ? &collnet : &others;
        if (best >= 0 && (*of < 0 || best < *of))
            *of = best;
    }
    return others < 0 || (collnet >= 0 && collnet <= others);
}

size_t nb_tuning_chunk(const struct nb_tuning *t, size_t bytes, int algo, int proto, int channels,
                       size_t chunk)
{
    const struct nb_params *p = t->params;
    size_t least = (size_t)p->tuner_chunk_bytes;

    if (!p->enable || t->nnodes < 2 || algo != NCCL_ALGO_COLLNET_DIRECT || proto != NCCL_PROTO_SIMPLE)
        return chunk;
    /* NCCL cuts an operation into 64 chunks a channel or more, of which eight are in flight. Between distant
     * nodes each turn costs a round trip, so all of the operation goes in flight that the buffers hold. */
    if (p->link_rtt_us > 0 && channels > 0 && t->nranks >= t->nnodes)
        least = nb_max64(
            least, (uint64_t)nb_reckon_chunk((double)bytes / (double)(t->nranks / t->nnodes), channels));
    return chunk < least ? least : chunk;
}
