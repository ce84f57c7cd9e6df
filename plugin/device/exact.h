/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of plain values, for everything that is not quantized. Integers wrap as unsigned arithmetic does
 * in C (as NCCL's do). FP32, FP16 and BF16 are reduced in FP32, FP64 in FP64, in the order given, and rounded
 * once at the end; minimum and maximum ignore a NaN beside a number, as fmin and fmax do. Pure functions, for
 * any thread.
 */
#ifndef NIBBLE_DEVICE_EXACT_H
#define NIBBLE_DEVICE_EXACT_H

#include <stddef.h>

#include "nibble/nccl_types.h"

/* dst[i] = sources[0][i] op ... op sources[nsources-1][i] op own[i] for i < n. `own` may be NULL and may
 * equal dst. Any alignment. 0; -EINVAL for what nb_exact_supported (base/nccl_names.h) denies, and where
 * there is neither a source nor `own`. */
int nb_exact_reduce(ncclDataType_t type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                    const void *own, size_t n, void *dst);

#endif
