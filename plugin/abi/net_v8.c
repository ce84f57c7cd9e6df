/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclNetPlugin_v8 and ncclCollNetPlugin_v8 (NCCL 2.20): sizes are ints, and init is called once a load,
 * without a context and without finalize.
 */
#include "abi/api.h"
#include "base/log.h"

NB_API_GET_PROPERTIES(ncclNetProperties_v8_t, NB_API_PROPERTIES_V8)

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

static ncclResult_t net_isend(void *send_comm, void *data, int size, int tag, void *mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    if (size < 0) {
        NB_WARN("isend of %d bytes", size);
        return ncclInternalError;
    }
    return nb_api_net_isend(send_comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static ncclResult_t net_irecv(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                              void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(sizes);
    size_t wide[NB_NET_MAX_RECVS];
    ncclResult_t res = nb_api_widen("irecv", n, sizes, wide);
    if (res != ncclSuccess)
        return res;
    return nb_api_net_irecv(recv_comm, n, data, wide, tags, mhandles, NULL, request);
}

static ncclResult_t coll_iallreduce(void *coll_comm, void *send_data, void *recv_data, int count,
                                    ncclDataType_t type, ncclRedOp_t op, void *send_mhandle,
                                    void *recv_mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    if (count < 0) {
        NB_WARN("iallreduce of %d values", count);
        return ncclInternalError;
    }
    return nb_api_coll_iallreduce(coll_comm, send_data, recv_data, (size_t)count, type, op, send_mhandle,
                                  recv_mhandle, request);
}

/* Return the one buffer in the layout of later versions. Any other number of buffers is refused, unread. */
static ncclNetSGE_v9_t widened(int n, const ncclNetSGE_v8_t *part)
{
    if (n != 1 || !part)
        return (ncclNetSGE_v9_t){0};
    return (ncclNetSGE_v9_t){.mhandle = part->mhandle, .address = part->address, .size = part->size};
}

static ncclResult_t coll_iallgather(void *coll_comm, void *send_data, int nrecv, ncclNetSGE_v8_t *recv,
                                    size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                    void *send_mhandle, void **request)
{
    ncclNetSGE_v9_t wide = widened(nrecv, recv);
    return nb_api_coll_iallgather(coll_comm, send_data, nrecv, recv ? &wide : NULL, bytes_per_rank,
                                  window_offset, window_bytes, send_mhandle, request);
}

static ncclResult_t coll_ireducescatter(void *coll_comm, int nsend, ncclNetSGE_v8_t *send, void *recv_data,
                                        size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                        ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle,
                                        void **request)
{
    ncclNetSGE_v9_t wide = widened(nsend, send);
    return nb_api_coll_ireducescatter(coll_comm, nsend, send ? &wide : NULL, recv_data, bytes_per_rank,
                                      window_offset, window_bytes, type, op, recv_mhandle, request);
}

NB_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    NB_API_NET_V8,        .init = nb_api_net_init_for_good,
    .listen = net_listen, .connect = net_connect,
    .isend = net_isend,   .irecv = net_irecv,
};

NB_EXPORT const ncclCollNet_v8_t ncclCollNetPlugin_v8 = {
    NB_API_COLL_V8,
    .init = nb_api_coll_init_for_good,
    .listen = coll_listen,
    .iallreduce = coll_iallreduce,
    .iallgather = coll_iallgather,
    .ireducescatter = coll_ireducescatter,
};
