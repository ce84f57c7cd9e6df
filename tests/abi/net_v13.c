/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v13 and ncclCollNetPlugin_v13, which do not exist in NCCL: a wider railId, and a priority for
 * isend. */
#include "tests/abi/net_v13.h"

#include "abi/api.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v13_t, NB_API_PROPERTIES_V9, .maxMultiRequestSize = 1,
                      .railId = NCCL_NET_ID_UNDEF, .planeId = NCCL_NET_ID_UNDEF)

static ncclResult_t net_isend(void *send_comm, void *data, size_t size, int tag, int priority, void *mhandle,
                              void *profiler_event, void **request)
{
    (void)priority; /* all messages are alike */
    return nb_api_net_isend(send_comm, data, size, tag, mhandle, profiler_event, request);
}

NB_EXPORT const ncclNet_v13_t ncclNetPlugin_v13 = {
    NB_API_NET_V8,
    .init = nb_api_net_init,
    .listen = nb_api_net_listen,
    .connect = nb_api_net_connect,
    .isend = net_isend,
    .irecv = nb_api_net_irecv,
    .finalize = nb_api_net_finalize,
};

NB_EXPORT const ncclCollNet_v13_t ncclCollNetPlugin_v13 = {NB_API_COLL_V11};
