/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of plain values, for everything that is not quantized. Integers wrap as in C's unsigned
 * arithmetic (NCCL's behaviour). FP32, FP16 and BF16 are reduced in FP32, FP64 in FP64, in the order
 * given, and rounded once at the end; minimum and maximum ignore a NaN beside a number, as fmin and fmax do.
 */
#ifndef NIBBLE_DEVICE_EXACT_H
#define NIBBLE_DEVICE_EXACT_H

#include <stddef.h>

#include "nibble/nccl_types.h"

/* Bytes of one value; 0 for an unknown type. */
size_t nb_nccl_type_size(ncclDataType_t type);
const char *nb_nccl_type_name(ncclDataType_t type);

/* 1 when nb_exact_reduce handles it. */
int nb_exact_supported(ncclDataType_t type, ncclRedOp_t op);

/* dst[i] = sources[0][i] op ... op sources[nsources-1][i] op own[i]. `own` may be NULL and may equal dst. No
 * alignment is needed. -EINVAL for what nb_exact_supported denies. */
int nb_exact_reduce(ncclDataType_t type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                    const void *own, size_t n, void *dst);

#endif
