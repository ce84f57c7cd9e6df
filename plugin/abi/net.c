/* SPDX-License-Identifier: Apache-2.0 */
/* The point-to-point half over the open transport, without table versions. See api.h. */
#include <errno.h>
#include <limits.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/result.h"
#include "base/log.h"
#include "net/transport.h"
#include "nibble/nccl_net.h"

_Static_assert(NB_NET_HANDLE_BYTES <= NCCL_NET_HANDLE_MAXSIZE, "handles must fit into NCCL's");
_Static_assert(NB_MEM_HOST == NCCL_PTR_HOST && NB_MEM_CUDA == NCCL_PTR_CUDA &&
                   NB_MEM_DMABUF == NCCL_PTR_DMABUF,
               "memory kinds are passed through");

/* Get the transport, or return: NCCL called a function before init. */
#define NB_TRANSPORT(net) \
    struct nb_net *net = nb_process_transport(); \
    if (!(net)) \
    return ncclInternalError

/* ---- Devices, also of the CollNet half ------------------------------------------------------------ */

ncclResult_t nb_api_devices(int *ndev)
{
    NB_REQUIRE(ndev);
    *ndev = 0;
    return nb_result(nb_process_devices(ndev));
}

/* ---- Init --------------------------------------------------------------------------------------------- */

ncclResult_t nb_api_net_init_for_good(ncclDebugLogger_t logger)
{
    return nb_result_init(nb_process_init_for_good(NB_HALF_NET, logger));
}

ncclResult_t nb_api_net_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                             ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    (void)profiler; /* nibble has no events of its own */
    NB_REQUIRE(ctx);
    struct nb_init *made = NULL;
    int traffic_class = config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF;
    int err = nb_process_init(NB_HALF_NET, comm_id, traffic_class, logger, &made);
    if (!err)
        *ctx = made;
    return nb_result_init(err);
}

ncclResult_t nb_api_net_finalize(void *ctx)
{
    NB_REQUIRE(ctx);
    return nb_result(nb_process_finalize(NB_HALF_NET, ctx));
}

/* ---- Connections ---------------------------------------------------------------------------------- */

ncclResult_t nb_api_net_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    (void)ctx;
    NB_REQUIRE(handle);
    NB_REQUIRE(listen_comm);
    NB_TRANSPORT(net);
    *listen_comm = NULL;
    NB_UNLESS_STOPPED();
    int err = net->ops->listen(net, dev, handle, listen_comm);
    if (!err && net->ops->allow_deltas)
        err = net->ops->allow_deltas(*listen_comm, handle);
    if (!err)
        nb_process_count(1);
    return nb_result(err);
}

ncclResult_t nb_api_net_connect_with(int dev, int traffic_class, void *handle, void **send_comm)
{
    NB_REQUIRE(handle);
    NB_REQUIRE(send_comm);
    NB_TRANSPORT(net);
    *send_comm = NULL;
    NB_UNLESS_STOPPED();
    const struct nb_net_conn_cfg cfg = {
        .streams = 0, .traffic_class = traffic_class, .deltas = NB_DELTAS_BY_CONTENT};
    int err = net->ops->connect(net, dev, &cfg, handle, send_comm);
    if (!err && *send_comm)
        nb_process_count(1);
    return nb_result(err);
}

/* The device handle of connect and accept stays as it is: this is a host transport. */

ncclResult_t nb_api_net_connect(void *ctx, int dev, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v11_t **send_dev_comm)
{
    (void)send_dev_comm;
    const struct nb_init *init = ctx;
    return nb_api_net_connect_with(dev, init ? init->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle,
                                   send_comm);
}

ncclResult_t nb_api_net_accept(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **recv_dev_comm)
{
    (void)recv_dev_comm;
    NB_REQUIRE(listen_comm);
    NB_REQUIRE(recv_comm);
    NB_TRANSPORT(net);
    *recv_comm = NULL;
    int err = net->ops->accept(listen_comm, recv_comm);
    if (!err && *recv_comm)
        nb_process_count(1);
    return nb_result(err);
}

/* Closing NULL is allowed, as with free. */
static ncclResult_t close_with(void *comm, int (*close)(void *))
{
    int err = close(comm);
    nb_process_count(-1);
    return nb_result(err);
}

ncclResult_t nb_api_net_close_send(void *send_comm)
{
    if (!send_comm)
        return ncclSuccess;
    NB_TRANSPORT(net);
    return close_with(send_comm, net->ops->close_send);
}

ncclResult_t nb_api_net_close_recv(void *recv_comm)
{
    if (!recv_comm)
        return ncclSuccess;
    NB_TRANSPORT(net);
    return close_with(recv_comm, net->ops->close_recv);
}

ncclResult_t nb_api_net_close_listen(void *listen_comm)
{
    if (!listen_comm)
        return ncclSuccess;
    NB_TRANSPORT(net);
    return close_with(listen_comm, net->ops->close_listen);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

ncclResult_t nb_api_net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
    NB_REQUIRE(comm);
    NB_REQUIRE(mhandle);
    NB_TRANSPORT(net);
    *mhandle = NULL;
    if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA) {
        NB_WARN("regMr of memory of unknown kind %d", type);
        return ncclInternalError;
    }
    return nb_result(net->ops->reg_mr(comm, data, size, (enum nb_mem)type, mhandle));
}

ncclResult_t nb_api_net_reg_mr_dma_buf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                       void **mhandle)
{
    NB_REQUIRE(comm);
    NB_REQUIRE(mhandle);
    NB_TRANSPORT(net);
    *mhandle = NULL;
    if (!net->ops->reg_mr_dmabuf) {
        NB_WARN("regMrDmaBuf, although transport %s does not offer it", net->ops->name);
        return ncclInternalError;
    }
    return nb_result(net->ops->reg_mr_dmabuf(comm, data, size, (enum nb_mem)type, offset, fd, mhandle));
}

ncclResult_t nb_api_net_dereg_mr(void *comm, void *mhandle)
{
    NB_REQUIRE(comm);
    NB_TRANSPORT(net);
    return nb_result(net->ops->dereg_mr(comm, mhandle));
}

/* ---- Messages ------------------------------------------------------------------------------------- */

ncclResult_t nb_api_net_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle,
                              void *profiler_event, void **request)
{
    (void)profiler_event;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(send_comm);
    NB_TRANSPORT(net);
    NB_UNLESS_STOPPED();
    if (size > 0)
        NB_REQUIRE(data);
    return nb_result_moving(net->ops->isend(send_comm, data, size, tag, mhandle, request));
}

static ncclResult_t check_group(const char *function, int n)
{
    if (n >= 1 && n <= NB_NET_MAX_RECVS)
        return ncclSuccess;
    NB_WARN("%s of %d messages, 1 to %d are allowed", function, n, NB_NET_MAX_RECVS);
    return ncclInternalError;
}

ncclResult_t nb_api_net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **profiler_events, void **request)
{
    (void)profiler_events;
    NB_REQUIRE(request);
    /* NCCL may have left NCCL_NET_OPTIONAL_RECV_COMPLETION here. It allows the transport to skip work that
     * the transport does in any case, so it is only cleared. */
    *request = NULL;
    NB_REQUIRE(recv_comm);
    NB_REQUIRE(data);
    NB_REQUIRE(sizes);
    NB_REQUIRE(tags);
    NB_REQUIRE(mhandles);
    NB_TRANSPORT(net);
    ncclResult_t res = check_group("irecv", n);
    if (res != ncclSuccess)
        return res;
    return nb_result_moving(net->ops->irecv(recv_comm, n, data, sizes, tags, mhandles, request));
}

/* Convert n sizes from int to size_t. */
ncclResult_t nb_api_widen(const char *function, int n, const int *sizes, size_t *wide)
{
    ncclResult_t res = check_group(function, n);
    for (int i = 0; i < n && res == ncclSuccess; i++) {
        if (sizes[i] < 0) {
            NB_WARN("%s of %d bytes", function, sizes[i]);
            res = ncclInternalError;
        }
        wide[i] = (size_t)sizes[i];
    }
    return res;
}

ncclResult_t nb_api_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles,
                               void **request)
{
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(recv_comm);
    NB_REQUIRE(data);
    NB_REQUIRE(sizes);
    NB_REQUIRE(mhandles);
    NB_TRANSPORT(net);
    size_t wide[NB_NET_MAX_RECVS];
    ncclResult_t res = nb_api_widen("iflush", n, sizes, wide);
    if (res != ncclSuccess)
        return res;
    return nb_result_moving(net->ops->iflush(recv_comm, n, data, wide, mhandles, request));
}

ncclResult_t nb_api_net_test(void *request, int *done, int *sizes)
{
    NB_REQUIRE(request);
    NB_REQUIRE(done);
    NB_TRANSPORT(net);
    *done = 0;
    if (!sizes)
        return nb_result_moving(net->ops->test(request, done, NULL));
    /* NCCL's array has as many entries as the request has messages. Only the transport knows their number:
     * write exactly the entries that it wrote. */
    size_t wide[NB_NET_MAX_RECVS];
    for (int i = 0; i < NB_NET_MAX_RECVS; i++)
        wide[i] = SIZE_MAX;
    int err = net->ops->test(request, done, wide);
    for (int i = 0; i < NB_NET_MAX_RECVS && !err && *done; i++) {
        if (wide[i] != SIZE_MAX)
            sizes[i] = wide[i] > INT_MAX ? INT_MAX : (int)wide[i];
    }
    return nb_result_moving(err);
}

/* For another nibble that forwards to this one. NCCL does not use it. */
NB_EXPORT const struct nb_forwarding_v1 nibbleForwarding_v1 = {.forwarded = nb_process_forwarded};
