/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v9 and ncclCollNetPlugin_v9 (NCCL 2.24): sizes are size_t, properties tell the largest
 * message. */
#include "abi/api.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v9_t, NB_API_PROPERTIES_V9)

static ncclResult_t net_listen(int dev, void *handle, void **listen_comm)
{
    return nb_api_net_listen(NULL, dev, handle, listen_comm);
}

static ncclResult_t coll_listen(int dev, void *handle, void **listen_comm)
{
    return nb_api_coll_listen(NULL, dev, handle, listen_comm);
}

static ncclResult_t net_connect(int dev, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v8_t **send_dev_comm)
{
    (void)send_dev_comm;
    return nb_api_net_connect_with(dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

static ncclResult_t net_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle,
                              void **request)
{
    return nb_api_net_isend(send_comm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **request)
{
    return nb_api_net_irecv(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

NB_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    NB_API_NET_V8,        .init = nb_api_net_init_for_good,
    .listen = net_listen, .connect = net_connect,
    .isend = net_isend,   .irecv = net_irecv,
};

NB_EXPORT const ncclCollNet_v9_t ncclCollNetPlugin_v9 = {
    NB_API_COLL_V9,
    .init = nb_api_coll_init_for_good,
    .listen = coll_listen,
};
