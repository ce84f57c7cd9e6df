/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the tables that is the same, function for function, in both halves: the devices. */
#ifndef NIBBLE_ABI_PROPERTIES_H
#define NIBBLE_ABI_PROPERTIES_H

#include "nibble/nccl_net.h"

/* Makes a table visible to NCCL; everything else is hidden. */
#define NB_EXPORT __attribute__((visibility("default")))

/* The strings in the properties live as long as the library. */
ncclResult_t nb_abi_devices_v8(int *ndev);
ncclResult_t nb_abi_properties_v8(int dev, ncclNetProperties_v8_t *props);
ncclResult_t nb_abi_properties_v9(int dev, ncclNetProperties_v9_t *props);
ncclResult_t nb_abi_properties_v11(int dev, ncclNetProperties_v11_t *props);
ncclResult_t nb_abi_properties_v12(int dev, ncclNetProperties_v12_t *props);

#endif
