/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CollNet half over the collective engine, without table versions. See api.h.
 *
 * Init and devices must not fail on one node alone, since NCCL would then run without CollNet there and with
 * it elsewhere. Instead connect declines a communicator that cannot be served, on all nodes at once.
 */
#include <errno.h>
#include <limits.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/result.h"
#include "base/log.h"
#include "coll/coll.h"
#include "nibble/nccl_net.h"

/* ---- Init ----------------------------------------------------------------------------------------- */

ncclResult_t nb_api_coll_init_for_good(ncclDebugLogger_t logger)
{
    return nb_result_init(nb_process_init_for_good(NB_HALF_COLLNET, logger));
}

ncclResult_t nb_api_coll_init(void **ctx, uint64_t comm_id, ncclDebugLogger_t logger)
{
    NB_REQUIRE(ctx);
    struct nb_init *made = NULL;
    int err = nb_process_init(NB_HALF_COLLNET, comm_id, NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, &made);
    if (!err)
        *ctx = made;
    return nb_result_init(err);
}

ncclResult_t nb_api_coll_finalize(void *ctx)
{
    NB_REQUIRE(ctx);
    return nb_result(nb_process_finalize(NB_HALF_COLLNET, ctx));
}

/* ---- Groups --------------------------------------------------------------------------------------- */

ncclResult_t nb_api_coll_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    const struct nb_init *init = ctx;
    NB_REQUIRE(handle);
    NB_REQUIRE(listen_comm);
    if (!nb_process_transport())
        return ncclInternalError;
    *listen_comm = NULL;
    struct nb_coll_listen *made = NULL;
    int err = nb_coll_listen(nb_process_context(), dev, init ? init->comm_id : 0, handle, &made);
    if (err)
        return nb_result(err);
    nb_process_count(1);
    *listen_comm = made;
    return ncclSuccess;
}

ncclResult_t nb_api_coll_connect(void *handles[], int nranks, int rank, void *listen_comm, void **coll_comm)
{
    NB_REQUIRE(listen_comm);
    NB_REQUIRE(coll_comm);
    *coll_comm = NULL;
    struct nb_coll_comm *made = NULL;
    int err = nb_coll_connect(handles, nranks, rank, listen_comm, &made); /* checks its arguments */
    if (err) {
        nb_process_count(-1); /* NCCL drops the listener now, and the engine has freed it */
        return nb_result(err);
    }
    nb_process_count(1);
    *coll_comm = made;
    return ncclSuccess;
}

ncclResult_t nb_api_coll_reduce_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    NB_REQUIRE(supported);
    *supported = nb_coll_reduce_support(type, op);
    return ncclSuccess;
}

/* Closing NULL is allowed, as with free. */
ncclResult_t nb_api_coll_close(void *coll_comm)
{
    if (!coll_comm)
        return ncclSuccess;
    int err = nb_coll_close(coll_comm);
    if (err != -ETIMEDOUT) /* after a timeout the communicator and its context stay as they are */
        nb_process_count(-1);
    return nb_result(err);
}

ncclResult_t nb_api_coll_close_listen(void *listen_comm)
{
    if (!listen_comm)
        return ncclSuccess;
    int err = nb_coll_close_listen(listen_comm);
    nb_process_count(-1);
    return nb_result(err);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

ncclResult_t nb_api_coll_reg_mr(void *coll_comm, void *data, size_t size, int type, void **mhandle)
{
    return nb_api_coll_reg_mr_dma_buf(coll_comm, data, size, type, 0, -1, mhandle);
}

ncclResult_t nb_api_coll_reg_mr_dma_buf(void *coll_comm, void *data, size_t size, int type, uint64_t offset,
                                        int fd, void **mhandle)
{
    NB_REQUIRE(coll_comm);
    NB_REQUIRE(mhandle);
    *mhandle = NULL;
    return nb_result(nb_coll_reg_mr_dmabuf(coll_comm, data, size, type, offset, fd, mhandle));
}

ncclResult_t nb_api_coll_dereg_mr(void *coll_comm, void *mhandle)
{
    NB_REQUIRE(coll_comm);
    return nb_result(nb_coll_dereg_mr(coll_comm, mhandle));
}

/* ---- Operations ----------------------------------------------------------------------------------- */

ncclResult_t nb_api_coll_iallreduce(void *coll_comm, void *send_data, void *recv_data, size_t count,
                                    ncclDataType_t type, ncclRedOp_t op, void *send_mhandle,
                                    void *recv_mhandle, void **request)
{
    (void)send_mhandle;
    (void)recv_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    NB_UNLESS_STOPPED();
    struct nb_coll_req *made = NULL;
    int err = nb_coll_iallreduce(coll_comm, send_data, recv_data, count, type, op, &made);
    *request = err ? NULL : made;
    return nb_result_moving(err);
}

static ncclResult_t check_parts(const char *function, int nparts, const void *parts)
{
    if (nparts == 1 && parts)
        return ncclSuccess;
    NB_WARN("%s with %d buffers, only one is supported", function, parts ? nparts : 0);
    return ncclInternalError;
}

ncclResult_t nb_api_coll_iallgather(void *coll_comm, void *send_data, int nrecv, ncclNetSGE_v9_t *recv,
                                    size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                    void *send_mhandle, void **request)
{
    (void)send_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    NB_UNLESS_STOPPED();
    ncclResult_t res = check_parts("iallgather", nrecv, recv);
    if (res != ncclSuccess)
        return res;
    struct nb_coll_req *made = NULL;
    int err = nb_coll_iallgather(coll_comm, send_data, recv->address, recv->size, bytes_per_rank,
                                 window_offset, window_bytes, &made);
    *request = err ? NULL : made;
    return nb_result_moving(err);
}

ncclResult_t nb_api_coll_ireducescatter(void *coll_comm, int nsend, ncclNetSGE_v9_t *send, void *recv_data,
                                        size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                        ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle,
                                        void **request)
{
    (void)recv_mhandle;
    NB_REQUIRE(request);
    *request = NULL;
    NB_REQUIRE(coll_comm);
    NB_UNLESS_STOPPED();
    ncclResult_t res = check_parts("ireducescatter", nsend, send);
    if (res != ncclSuccess)
        return res;
    struct nb_coll_req *made = NULL;
    int err = nb_coll_ireducescatter(coll_comm, send->address, send->size, recv_data, bytes_per_rank,
                                     window_offset, window_bytes, type, op, &made);
    *request = err ? NULL : made;
    return nb_result_moving(err);
}

ncclResult_t nb_api_coll_iflush(void *coll_comm, void *data, int size, void *mhandle, void **request)
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
    return nb_result_moving(err);
}

ncclResult_t nb_api_coll_test(void *request, int *done, int *size)
{
    NB_REQUIRE(request);
    NB_REQUIRE(done);
    *done = 0;
    size_t wide = 0;
    int err = nb_coll_test(request, done, &wide);
    if (size && !err && *done)
        *size = wide > INT_MAX ? INT_MAX : (int)wide;
    return nb_result_moving(err);
}
