/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The point-to-point tables, ncclNetPlugin_v8 to _v12, over the transport in force. Functions carry the number of
 * the first version that has their signature; later tables reuse them.
 */
#include <errno.h>
#include <limits.h>

#include "abi/instance.h"
#include "abi/properties.h"
#include "abi/result.h"
#include "base/log.h"
#include "net/transport.h"
#include "nibble/nccl_net.h"

_Static_assert(NB_NET_HANDLE_BYTES <= NCCL_NET_HANDLE_MAXSIZE, "handles must fit into NCCL's");
_Static_assert(NB_MEM_HOST == NCCL_PTR_HOST && NB_MEM_CUDA == NCCL_PTR_CUDA && NB_MEM_DMABUF == NCCL_PTR_DMABUF,
               "memory kinds are passed through");

/* The transport, or return: NCCL called a function that has no meaning before init. */
#define NB_TRANSPORT(ops) \
    const struct nb_net_ops *ops = nb_instance_transport(); \
    if (!(ops)) \
    return ncclInternalError

/* ---- Init and devices ----------------------------------------------------------------------------- */

static ncclResult_t net_init_v8(ncclDebugLogger_t logger)
{
    return nb_result_init(nb_instance_enter_for_good(NB_HALF_NET, logger));
}

static ncclResult_t net_init_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    (void)profiler; /* no events of our own */
    return net_init_v8(logger);
}

static ncclResult_t net_init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                                 ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    (void)profiler;
    NB_REQUIRE(ctx);
    struct nb_context *made = NULL;
    int traffic_class = config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF;
    int err = nb_instance_enter(NB_HALF_NET, comm_id, traffic_class, logger, &made);
    if (!err)
        *ctx = made;
    return nb_result_init(err);
}

static ncclResult_t net_finalize_v11(void *ctx)
{
    NB_REQUIRE(ctx);
    return nb_result(nb_instance_leave(NB_HALF_NET, ctx));
}

/* ---- Connections ---------------------------------------------------------------------------------- */

static ncclResult_t net_listen_v8(int dev, void *handle, void **listen_comm)
{
    NB_REQUIRE(handle);
    NB_REQUIRE(listen_comm);
    NB_TRANSPORT(ops);
    *listen_comm = NULL;
    int err = ops->listen(dev, handle, listen_comm);
    if (!err)
        nb_instance_count(1);
    return nb_result(err);
}

static ncclResult_t net_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
    (void)ctx;
    return net_listen_v8(dev, handle, listen_comm);
}

static ncclResult_t net_connect(int dev, int traffic_class, void *handle, void **send_comm)
{
    NB_REQUIRE(handle);
    NB_REQUIRE(send_comm);
    NB_TRANSPORT(ops);
    *send_comm = NULL;
    const struct nb_net_conn_cfg cfg = {.streams = 0, .traffic_class = traffic_class};
    int err = ops->connect(dev, &cfg, handle, send_comm);
    if (!err && *send_comm)
        nb_instance_count(1);
    return nb_result(err);
}

/* The device handle of connect and accept stays as it is: this is a host transport. */

static ncclResult_t net_connect_v8(int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v8_t **send_dev_comm)
{
    (void)send_dev_comm;
    return net_connect(dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

static ncclResult_t net_connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                    ncclNetDeviceHandle_v10_t **send_dev_comm)
{
    (void)send_dev_comm;
    return net_connect(dev, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

static ncclResult_t net_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
                                    ncclNetDeviceHandle_v11_t **send_dev_comm)
{
    (void)send_dev_comm;
    const struct nb_context *context = ctx;
    return net_connect(dev, context ? context->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

static ncclResult_t net_accept_v8(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **recv_dev_comm)
{
    (void)recv_dev_comm;
    NB_REQUIRE(listen_comm);
    NB_REQUIRE(recv_comm);
    NB_TRANSPORT(ops);
    *recv_comm = NULL;
    int err = ops->accept(listen_comm, recv_comm);
    if (!err && *recv_comm)
        nb_instance_count(1);
    return nb_result(err);
}

/* Closing nothing is allowed, as with free. */
static ncclResult_t net_close(void *comm, int (*close)(void *))
{
    int err = close(comm);
    nb_instance_count(-1);
    return nb_result(err);
}

static ncclResult_t net_close_send_v8(void *send_comm)
{
    if (!send_comm)
        return ncclSuccess;
    NB_TRANSPORT(ops);
    return net_close(send_comm, ops->close_send);
}

static ncclResult_t net_close_recv_v8(void *recv_comm)
{
    if (!recv_comm)
        return ncclSuccess;
    NB_TRANSPORT(ops);
    return net_close(recv_comm, ops->close_recv);
}

static ncclResult_t net_close_listen_v8(void *listen_comm)
{
    if (!listen_comm)
        return ncclSuccess;
    NB_TRANSPORT(ops);
    return net_close(listen_comm, ops->close_listen);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static ncclResult_t net_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
    NB_REQUIRE(comm);
    NB_REQUIRE(mhandle);
    NB_TRANSPORT(ops);
    *mhandle = NULL;
    if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA) {
        NB_WARN("regMr of memory of unknown kind %d", type);
        return ncclInternalError;
    }
    return nb_result(ops->reg_mr(comm, data, size, (enum nb_mem)type, mhandle));
}

static ncclResult_t net_reg_mr_dma_buf_v8(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                          void **mhandle)
{
    NB_REQUIRE(comm);
    NB_REQUIRE(mhandle);
    NB_TRANSPORT(ops);
    *mhandle = NULL;
    if (!ops->reg_mr_dmabuf) {
        NB_WARN("regMrDmaBuf, although transport %s does not offer it", ops->name);
        return ncclInternalError;
    }
    return nb_result(ops->reg_mr_dmabuf(comm, data, size, (enum nb_mem)type, offset, fd, mhandle));
}

static ncclResult_t net_dereg_mr_v8(void *comm, void *mhandle)
{
    NB_REQUIRE(comm);
    NB_TRANSPORT(ops);
    return nb_result(ops->dereg_mr(comm, mhandle));
}

/* ---- Messages ------------------------------------------------------------------------------------- */

static ncclResult_t net_isend_v9(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(send_comm);
    NB_TRANSPORT(ops);
    if (size > 0)
        NB_REQUIRE(data);
    return nb_result(ops->isend(send_comm, data, size, tag, mhandle, request));
}

static ncclResult_t net_isend_v8(void *send_comm, void *data, int size, int tag, void *mhandle, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    if (size < 0) {
        NB_WARN("isend of %d bytes", size);
        return ncclInternalError;
    }
    return net_isend_v9(send_comm, data, (size_t)size, tag, mhandle, request);
}

static ncclResult_t net_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle,
                                  void *profiler_event, void **request)
{
    (void)profiler_event;
    return net_isend_v9(send_comm, data, size, tag, mhandle, request);
}

static ncclResult_t net_check_group(const char *function, int n)
{
    if (n >= 1 && n <= NB_NET_MAX_RECVS)
        return ncclSuccess;
    NB_WARN("%s of %d messages, 1 to %d are allowed", function, n, NB_NET_MAX_RECVS);
    return ncclInternalError;
}

static ncclResult_t net_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                 void **request)
{
    NB_REQUIRE(request);
    /* NCCL may have left NCCL_NET_OPTIONAL_RECV_COMPLETION here. That is an offer to leave out what the transport
     * does anyway, so it is only cleared away. */
    *request = NULL;
    NB_REQUIRE(recv_comm);
    NB_REQUIRE(data);
    NB_REQUIRE(sizes);
    NB_REQUIRE(tags);
    NB_REQUIRE(mhandles);
    NB_TRANSPORT(ops);
    ncclResult_t res = net_check_group("irecv", n);
    if (res != ncclSuccess)
        return res;
    return nb_result(ops->irecv(recv_comm, n, data, sizes, tags, mhandles, request));
}

/* n sizes as size_t. */
static ncclResult_t net_widen(const char *function, int n, const int *sizes, size_t *wide)
{
    ncclResult_t res = net_check_group(function, n);
    for (int i = 0; i < n && res == ncclSuccess; i++) {
        if (sizes[i] < 0) {
            NB_WARN("%s of %d bytes", function, sizes[i]);
            res = ncclInternalError;
        }
        wide[i] = (size_t)sizes[i];
    }
    return res;
}

static ncclResult_t net_irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                                 void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(sizes);
    size_t wide[NB_NET_MAX_RECVS];
    ncclResult_t res = net_widen("irecv", n, sizes, wide);
    if (res != ncclSuccess)
        return res;
    return net_irecv_v9(recv_comm, n, data, wide, tags, mhandles, request);
}

static ncclResult_t net_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                  void **profiler_events, void **request)
{
    (void)profiler_events;
    return net_irecv_v9(recv_comm, n, data, sizes, tags, mhandles, request);
}

static ncclResult_t net_iflush_v8(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(recv_comm);
    NB_REQUIRE(data);
    NB_REQUIRE(sizes);
    NB_REQUIRE(mhandles);
    NB_TRANSPORT(ops);
    size_t wide[NB_NET_MAX_RECVS];
    ncclResult_t res = net_widen("iflush", n, sizes, wide);
    if (res != ncclSuccess)
        return res;
    return nb_result(ops->iflush(recv_comm, n, data, wide, mhandles, request));
}

static ncclResult_t net_test_v8(void *request, int *done, int *sizes)
{
    NB_REQUIRE(request);
    NB_REQUIRE(done);
    NB_TRANSPORT(ops);
    *done = 0;
    if (!sizes)
        return nb_result(ops->test(request, done, NULL));
    /* NCCL's array has as many entries as the request has messages, which only the transport knows: entries that
     * it leaves alone are left alone. */
    size_t wide[NB_NET_MAX_RECVS];
    for (int i = 0; i < NB_NET_MAX_RECVS; i++)
        wide[i] = SIZE_MAX;
    int err = ops->test(request, done, wide);
    for (int i = 0; i < NB_NET_MAX_RECVS && !err && *done; i++) {
        if (wide[i] != SIZE_MAX)
            sizes[i] = wide[i] > INT_MAX ? INT_MAX : (int)wide[i];
    }
    return nb_result(err);
}

/* ---- Tables --------------------------------------------------------------------------------------- */

/* getDeviceMr, irecvConsumed, makeVDevice and setNetAttr stay NULL, which NCCL takes as "not offered": the first
 * two belong to device transports, virtual devices are not made, and the advice is not needed. */

#define NB_NET_COMMON \
    .name = "nibble", .devices = nb_abi_devices_v8, .accept = net_accept_v8, .regMr = net_reg_mr_v8, \
    .regMrDmaBuf = net_reg_mr_dma_buf_v8, .deregMr = net_dereg_mr_v8, .iflush = net_iflush_v8, \
    .test = net_test_v8, .closeSend = net_close_send_v8, .closeRecv = net_close_recv_v8, \
    .closeListen = net_close_listen_v8

NB_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    NB_NET_COMMON,
    .init = net_init_v8,
    .getProperties = nb_abi_properties_v8,
    .listen = net_listen_v8,
    .connect = net_connect_v8,
    .isend = net_isend_v8,
    .irecv = net_irecv_v8,
};

NB_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    NB_NET_COMMON,
    .init = net_init_v8,
    .getProperties = nb_abi_properties_v9,
    .listen = net_listen_v8,
    .connect = net_connect_v8,
    .isend = net_isend_v9,
    .irecv = net_irecv_v9,
};

NB_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    NB_NET_COMMON,
    .init = net_init_v10,
    .getProperties = nb_abi_properties_v9,
    .listen = net_listen_v8,
    .connect = net_connect_v10,
    .isend = net_isend_v10,
    .irecv = net_irecv_v10,
};

NB_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    NB_NET_COMMON,
    .init = net_init_v11,
    .getProperties = nb_abi_properties_v11,
    .listen = net_listen_v11,
    .connect = net_connect_v11,
    .isend = net_isend_v10,
    .irecv = net_irecv_v10,
    .finalize = net_finalize_v11,
};

NB_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    NB_NET_COMMON,
    .init = net_init_v11,
    .getProperties = nb_abi_properties_v12,
    .listen = net_listen_v11,
    .connect = net_connect_v11,
    .isend = net_isend_v10,
    .irecv = net_irecv_v10,
    .finalize = net_finalize_v11,
};

/* Not NCCL's: for another nibble that forwards to this one. */
NB_EXPORT const struct nb_forwarding_v1 nibbleForwarding_v1 = {.forwarded = nb_net_forwarded};
