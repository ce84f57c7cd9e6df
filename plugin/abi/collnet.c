/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CollNet tables, ncclCollNetPlugin_v8 to _v12, over the collective engine. Functions carry the number of
 * the first version that has their signature; later tables reuse them.
 *
 * Init and devices must not fail on one node alone, since NCCL would then run without CollNet there and with it
 * elsewhere; a communicator that cannot be served is declined by connect, on all nodes at once.
 */
#include <limits.h>

#include "abi/instance.h"
#include "abi/properties.h"
#include "abi/result.h"
#include "base/log.h"
#include "coll/coll.h"
#include "nibble/nccl_net.h"

/* ---- Init ----------------------------------------------------------------------------------------- */

static ncclResult_t coll_init_v8(ncclDebugLogger_t logger)
{
    return nb_result_init(nb_instance_enter_for_good(NB_HALF_COLLNET, logger));
}

static ncclResult_t coll_init_v11(void **ctx, uint64_t comm_id, ncclDebugLogger_t logger)
{
    NB_REQUIRE(ctx);
    struct nb_context *made = NULL;
    int err = nb_instance_enter(NB_HALF_COLLNET, comm_id, NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, &made);
    if (!err)
        *ctx = made;
    return nb_result_init(err);
}

static ncclResult_t coll_finalize_v11(void *ctx)
{
    NB_REQUIRE(ctx);
    return nb_result(nb_instance_leave(NB_HALF_COLLNET, ctx));
}

/* ---- Groups --------------------------------------------------------------------------------------- */

static ncclResult_t coll_listen(int dev, uint64_t comm_id, void *handle, void **listen_comm)
{
    NB_REQUIRE(handle);
    NB_REQUIRE(listen_comm);
    if (!nb_instance_transport())
        return ncclInternalError;
    *listen_comm = NULL;
    struct nb_coll_listen *made = NULL;
    int err = nb_coll_listen(dev, comm_id, handle, &made);
    if (err)
        return nb_result(err);
    nb_instance_count(1);
    *listen_comm = made;
    return ncclSuccess;
}

static ncclResult_t coll_listen_v8(int dev, void *handle, void **listen_comm)
{
    return coll_listen(dev, 0, handle, listen_comm);
}

static ncclResult_t coll_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
    const struct nb_context *context = ctx;
    return coll_listen(dev, context ? context->comm_id : 0, handle, listen_comm);
}

static ncclResult_t coll_connect_v8(void *handles[], int nranks, int rank, void *listen_comm, void **coll_comm)
{
    NB_REQUIRE(handles);
    NB_REQUIRE(listen_comm);
    NB_REQUIRE(coll_comm);
    *coll_comm = NULL;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        NB_WARN("connect of rank %d in a group of %d", rank, nranks);
        return ncclInternalError;
    }
    for (int i = 0; i < nranks; i++)
        NB_REQUIRE(handles[i]);
    struct nb_coll_comm *made = NULL;
    int err = nb_coll_connect(handles, nranks, rank, listen_comm, &made);
    if (err) {
        nb_instance_count(-1); /* NCCL forgets the listener now, so the engine has freed it */
        return nb_result(err);
    }
    nb_instance_count(1);
    *coll_comm = made;
    return ncclSuccess;
}

static ncclResult_t coll_reduce_support_v8(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    NB_REQUIRE(supported);
    *supported = nb_coll_reduce_support(type, op);
    return ncclSuccess;
}

/* Closing nothing is allowed, as with free. */
static ncclResult_t coll_close_v8(void *coll_comm)
{
    if (!coll_comm)
        return ncclSuccess;
    int err = nb_coll_close(coll_comm);
    nb_instance_count(-1);
    return nb_result(err);
}

static ncclResult_t coll_close_listen_v8(void *listen_comm)
{
    if (!listen_comm)
        return ncclSuccess;
    int err = nb_coll_close_listen(listen_comm);
    nb_instance_count(-1);
    return nb_result(err);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static ncclResult_t coll_reg_mr_v8(void *coll_comm, void *data, size_t size, int type, void **mhandle)
{
    NB_REQUIRE(coll_comm);
    NB_REQUIRE(mhandle);
    *mhandle = NULL;
    return nb_result(nb_coll_reg_mr(coll_comm, data, size, type, mhandle));
}

static ncclResult_t coll_reg_mr_dma_buf_v8(void *coll_comm, void *data, size_t size, int type, uint64_t offset,
                                           int fd, void **mhandle)
{
    /* The engine's kernel reads and writes NCCL's memory; the transport never sees it, so it needs no DMA-BUF. */
    (void)offset;
    (void)fd;
    return coll_reg_mr_v8(coll_comm, data, size, type, mhandle);
}

static ncclResult_t coll_dereg_mr_v8(void *coll_comm, void *mhandle)
{
    NB_REQUIRE(coll_comm);
    return nb_result(nb_coll_dereg_mr(coll_comm, mhandle));
}

/* ---- Operations ----------------------------------------------------------------------------------- */

static ncclResult_t coll_iallreduce_v9(void *coll_comm, void *send_data, void *recv_data, size_t count,
                                       ncclDataType_t type, ncclRedOp_t op, void *send_mhandle, void *recv_mhandle,
                                       void **request)
{
    (void)send_mhandle;
    (void)recv_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    struct nb_coll_req *made = NULL;
    int err = nb_coll_iallreduce(coll_comm, send_data, recv_data, count, type, op, &made);
    *request = err ? NULL : made;
    return nb_result(err);
}

static ncclResult_t coll_iallreduce_v8(void *coll_comm, void *send_data, void *recv_data, int count,
                                       ncclDataType_t type, ncclRedOp_t op, void *send_mhandle, void *recv_mhandle,
                                       void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    if (count < 0) {
        NB_WARN("iallreduce of %d values", count);
        return ncclInternalError;
    }
    return coll_iallreduce_v9(coll_comm, send_data, recv_data, (size_t)count, type, op, send_mhandle, recv_mhandle,
                              request);
}

static ncclResult_t coll_check_parts(const char *function, int nparts, const void *parts)
{
    if (nparts == 1 && parts)
        return ncclSuccess;
    NB_WARN("%s with %d buffers, only one is supported", function, parts ? nparts : 0);
    return ncclInternalError;
}

static ncclResult_t coll_iallgather_v9(void *coll_comm, void *send_data, int nrecv, ncclNetSGE_v9_t *recv,
                                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                       void *send_mhandle, void **request)
{
    (void)send_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    ncclResult_t res = coll_check_parts("iallgather", nrecv, recv);
    if (res != ncclSuccess)
        return res;
    struct nb_coll_req *made = NULL;
    int err = nb_coll_iallgather(coll_comm, send_data, recv->address, recv->size, bytes_per_rank, window_offset,
                                 window_bytes, &made);
    *request = err ? NULL : made;
    return nb_result(err);
}

static ncclResult_t coll_iallgather_v8(void *coll_comm, void *send_data, int nrecv, ncclNetSGE_v8_t *recv,
                                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                       void *send_mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    ncclResult_t res = coll_check_parts("iallgather", nrecv, recv);
    if (res != ncclSuccess)
        return res;
    ncclNetSGE_v9_t wide = {.mhandle = recv->mhandle, .address = recv->address, .size = recv->size};
    return coll_iallgather_v9(coll_comm, send_data, nrecv, &wide, bytes_per_rank, window_offset, window_bytes,
                              send_mhandle, request);
}

static ncclResult_t coll_ireducescatter_v9(void *coll_comm, int nsend, ncclNetSGE_v9_t *send, void *recv_data,
                                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                           ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle, void **request)
{
    (void)recv_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    ncclResult_t res = coll_check_parts("ireducescatter", nsend, send);
    if (res != ncclSuccess)
        return res;
    struct nb_coll_req *made = NULL;
    int err = nb_coll_ireducescatter(coll_comm, send->address, send->size, recv_data, bytes_per_rank, window_offset,
                                     window_bytes, type, op, &made);
    *request = err ? NULL : made;
    return nb_result(err);
}

static ncclResult_t coll_ireducescatter_v8(void *coll_comm, int nsend, ncclNetSGE_v8_t *send, void *recv_data,
                                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                           ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    ncclResult_t res = coll_check_parts("ireducescatter", nsend, send);
    if (res != ncclSuccess)
        return res;
    ncclNetSGE_v9_t wide = {.mhandle = send->mhandle, .address = send->address, .size = send->size};
    return coll_ireducescatter_v9(coll_comm, nsend, &wide, recv_data, bytes_per_rank, window_offset, window_bytes,
                                  type, op, recv_mhandle, request);
}

static ncclResult_t coll_iflush_v8(void *coll_comm, void *data, int size, void *mhandle, void **request)
{
    (void)mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    if (size < 0) {
        NB_WARN("iflush of %d bytes", size);
        return ncclInternalError;
    }
    struct nb_coll_req *made = NULL;
    int err = nb_coll_iflush(coll_comm, data, (size_t)size, &made);
    *request = err ? NULL : made;
    return nb_result(err);
}

static ncclResult_t coll_test_v8(void *request, int *done, int *size)
{
    NB_REQUIRE(request);
    NB_REQUIRE(done);
    *done = 0;
    size_t wide = 0;
    int err = nb_coll_test(request, done, &wide);
    if (size && !err && *done)
        *size = wide > INT_MAX ? INT_MAX : (int)wide;
    return nb_result(err);
}

/* ---- Tables --------------------------------------------------------------------------------------- */

#define NB_COLL_COMMON \
    .name = "nibble", .devices = nb_abi_devices_v8, .connect = coll_connect_v8, \
    .reduceSupport = coll_reduce_support_v8, .regMr = coll_reg_mr_v8, .regMrDmaBuf = coll_reg_mr_dma_buf_v8, \
    .deregMr = coll_dereg_mr_v8, .iflush = coll_iflush_v8, .test = coll_test_v8, .closeColl = coll_close_v8, \
    .closeListen = coll_close_listen_v8

#define NB_COLL_COMMON_V9 \
    NB_COLL_COMMON, .iallreduce = coll_iallreduce_v9, .iallgather = coll_iallgather_v9, \
                    .ireducescatter = coll_ireducescatter_v9

NB_EXPORT const ncclCollNet_v8_t ncclCollNetPlugin_v8 = {
    NB_COLL_COMMON,
    .init = coll_init_v8,
    .getProperties = nb_abi_properties_v8,
    .listen = coll_listen_v8,
    .iallreduce = coll_iallreduce_v8,
    .iallgather = coll_iallgather_v8,
    .ireducescatter = coll_ireducescatter_v8,
};

NB_EXPORT const ncclCollNet_v9_t ncclCollNetPlugin_v9 = {
    NB_COLL_COMMON_V9,
    .init = coll_init_v8,
    .getProperties = nb_abi_properties_v9,
    .listen = coll_listen_v8,
};

NB_EXPORT const ncclCollNet_v10_t ncclCollNetPlugin_v10 = {
    NB_COLL_COMMON_V9,
    .init = coll_init_v8,
    .getProperties = nb_abi_properties_v9,
    .listen = coll_listen_v8,
};

NB_EXPORT const ncclCollNet_v11_t ncclCollNetPlugin_v11 = {
    NB_COLL_COMMON_V9,
    .init = coll_init_v11,
    .getProperties = nb_abi_properties_v11,
    .listen = coll_listen_v11,
    .finalize = coll_finalize_v11,
};

NB_EXPORT const ncclCollNet_v12_t ncclCollNetPlugin_v12 = {
    NB_COLL_COMMON_V9,
    .init = coll_init_v11,
    .getProperties = nb_abi_properties_v12,
    .listen = coll_listen_v11,
    .finalize = coll_finalize_v11,
};
