/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When NCCL should take CollNet. Every rank of a communicator asks for itself, and ranks that choose
 * differently hang; so the answer is a pure function of what all ranks share: function, size, ranks, nodes,
 * and settings that the nodes compare before a communicator is connected. It knows nothing of records,
 * budgets or history.
 */
#ifndef NIBBLE_POLICY_TUNING_H
#define NIBBLE_POLICY_TUNING_H

#include <stdbool.h>
#include <stddef.h>

#include "nibble/nccl_tuner.h"

struct nb_params;

struct nb_tuning {
    const struct nb_params *params;
    size_t nranks, nnodes;
    int records; /* this NCCL tells the users' calls (2.28 and later): all-reduces can be coded */
};

/* 1 when coding this operation of `bytes` bytes (the whole vector over all ranks) pays by the settings. */
int nb_tuning_pays(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes);

/* Lower CollNet's entry of table[algos][protos] below all others when it pays: true when it was not so before. Entries
 * of -1 stay as they are (but see NIBBLE_FORCE_COLLNET). */
bool nb_tuning_costs(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes, float *table, int algos,
                     int protos);

/* The chunk for an operation for which NCCL chose `chunk`. NVLS has buffers of its own chunk and would
 * overrun them, so only CollNet-direct is ever raised. */
size_t nb_tuning_chunk(const struct nb_tuning *tuning, int algo, int proto, size_t chunk);

#endif
