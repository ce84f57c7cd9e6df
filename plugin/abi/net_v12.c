/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v12 and ncclCollNetPlugin_v12 (NCCL 2.30): properties tell rail and plane. */
#include "abi/api.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v12_t, NB_API_PROPERTIES_V9, .maxMultiRequestSize = 1,
                      .railId = NCCL_NET_ID_UNDEF, .planeId = NCCL_NET_ID_UNDEF)

NB_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {NB_API_NET_V11};

NB_EXPORT const ncclCollNet_v12_t ncclCollNetPlugin_v12 = {NB_API_COLL_V11};
