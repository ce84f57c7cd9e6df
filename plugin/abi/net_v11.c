/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v11 and ncclCollNetPlugin_v11 (NCCL 2.28): init for every communicator, with a context, and
 * finalize. */
#include "abi/api.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v11_t, NB_API_PROPERTIES_V9, .maxMultiRequestSize = 1)

NB_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {NB_API_NET_V11};

NB_EXPORT const ncclCollNet_v11_t ncclCollNetPlugin_v11 = {NB_API_COLL_V11};
