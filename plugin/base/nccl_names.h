/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and names of NCCL's data types, and which reductions of them nibble does. */
#ifndef NIBBLE_BASE_NCCL_NAMES_H
#define NIBBLE_BASE_NCCL_NAMES_H

#include <stddef.h>

#include "nibble/nccl_types.h"

/* Bytes of one value; 0 for an unknown type. */
size_t nb_nccl_type_size(ncclDataType_t type);
/* Name for log lines; "unknown type" for any other value. Static storage. */
const char *nb_nccl_type_name(ncclDataType_t type);

/* 1 when plain values of this type are reduced by this operation, on the CPU (device/host/exact.c) and on a GPU
 * alike. */
int nb_exact_supported(ncclDataType_t type, ncclRedOp_t op);

#endif
