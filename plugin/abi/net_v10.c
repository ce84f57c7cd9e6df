/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v10 and ncclCollNetPlugin_v10 (NCCL 2.26): a traffic class for connect, events of the
 * profiler. */
#include "abi/api.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v10_t, NB_API_PROPERTIES_V9)

static ncclResult_t net_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    (void)profiler; /* nibble has no events of its own */
    return nb_api_net_init_for_good(logger);
}

static ncclResult_t net_listen(int dev, void *handle, void **listen_comm)
{
    return nb_api_net_listen(NULL, dev, handle, listen_comm);
}

static ncclResult_t coll_listen(int dev, void *handle, void **listen_comm)
{
    return nb_api_coll_listen(NULL, dev, handle, listen_comm);
}

static ncclResult_t net_connect(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v10_t **send_dev_comm)
{
    (void)send_dev_comm;
    return nb_api_net_connect_with(dev, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle,
                                   send_comm);
}

NB_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    NB_API_NET_V8,          .init = net_init,          .listen = net_listen,
    .connect = net_connect, .isend = nb_api_net_isend, .irecv = nb_api_net_irecv,
};

NB_EXPORT const ncclCollNet_v10_t ncclCollNetPlugin_v10 = {
    NB_API_COLL_V9,
    .init = nb_api_coll_init_for_good,
    .listen = coll_listen,
};
