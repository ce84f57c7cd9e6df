/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's functions and data types: numbers, names, sizes, and the reductions that nibble supports. */
#ifndef NIBBLE_BASE_NCCL_NAMES_H
#define NIBBLE_BASE_NCCL_NAMES_H

#include <stddef.h>

#include "nibble/nccl_types.h"

/* The collective functions that the plugin serves. The numbers travel in messages (docs/messages.md): never
 * change them. */
enum nb_func { NB_FUNC_REDUCE_SCATTER = 0, NB_FUNC_ALL_GATHER = 1, NB_FUNC_ALL_REDUCE = 2, NB_FUNC_COUNT };

/* Collectives that NCCL may carry out past CollNet: those above, and all-to-all. */
enum { NB_PAST_ALL_TO_ALL = NB_FUNC_COUNT, NB_PAST_COUNT };
/* How it does: with copy engines, or with kernels for symmetric memory. */
enum nb_past_way { NB_PAST_COPIES, NB_PAST_KERNELS, NB_PAST_WAYS };

/* Return the name for log lines and settings, "unknown" for any other value. Static storage. Any thread. */
const char *nb_func_name(enum nb_func func);

/* Return the bytes of one value, 0 for an unknown type. */
size_t nb_nccl_type_size(ncclDataType_t type);
/* Return the name for log lines, "unknown type" for any other value. Static storage. */
const char *nb_nccl_type_name(ncclDataType_t type);

/* Return 1 when nibble reduces raw values of this type by this operation, on the CPU (device/host/exact.c)
 * and on a GPU alike. */
int nb_exact_supported(ncclDataType_t type, ncclRedOp_t op);

#endif
