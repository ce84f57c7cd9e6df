/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclRmaPlugin_v14 (NCCL 2.30), v15 (2.31: flags of operations) and v16 (2.32: properties of a group):
 * NCCL's one-sided operations between nodes over puts.h, where NIBBLE_RMA=1 asks for it. By these tables go
 * the parts between nodes of all-gathers and all-to-alls by copy engines, puts and signals of the user, and
 * the GPU's puts where NCCL's thread carries them out.
 *
 * Where nibble does not offer the tables, init fails, which makes NCCL go on to its own. NCCL would drop the
 * ctx of a table without devices, and so never finalize it (ncclRmaPluginInit in plugin/rma.cc, 2.30.7).
 */
#include "nibble/nccl_rma.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/puts.h"
#include "abi/result.h"
#include "abi/tables.h"
#include "base/context.h"
#include "base/log.h"
#include "net/transport.h"

static ncclResult_t init(void **ctx, uint64_t comm_id, ncclDebugLogger_t logger)
{
    NB_REQUIRE(ctx);
    struct nb_init *made = NULL;
    char why[256];
    int err = nb_process_init(NB_HALF_RMA, comm_id, NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, &made);
    if (err)
        return nb_result_init(err);
    struct nb_context *context = nb_process_context();
    if (!context->params->rma) {
        NB_INFO(NCCL_INIT | NCCL_NET, "one-sided operations are left to NCCL's own table (NIBBLE_RMA=0)");
        err = -ENOTSUP;
    } else {
        err = nb_puts_available(context, why, sizeof(why));
        if (err)
            NB_WARN("one-sided operations are left to NCCL's own table, despite NIBBLE_RMA=1: %s", why);
    }
    if (err) {
        nb_process_finalize(NB_HALF_RMA, made);
        return ncclInvalidUsage;
    }
    *ctx = made;
    return ncclSuccess;
}

static ncclResult_t finalize(void *ctx)
{
    NB_REQUIRE(ctx);
    return nb_result(nb_process_finalize(NB_HALF_RMA, ctx));
}

/* The net table's, except for what this one does for GPU memory. */
static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t *props)
{
    ncclResult_t ret = ncclNetPlugin_v12.getProperties(dev, props);

    if (ret == ncclSuccess) {
        props->ptrSupport = NCCL_PTR_HOST | NCCL_PTR_CUDA;
        props->netDeviceType = NCCL_NET_DEVICE_GIN_PROXY;
        props->netDeviceVersion = NCCL_GIN_PROXY_VERSION;
    }
    return ret;
}

static ncclResult_t get_rma_properties(void *comm, ncclRmaProperties_v16_t *props)
{
    NB_REQUIRE(comm);
    NB_REQUIRE(props);
    *props = (ncclRmaProperties_v16_t){.flushesAllPutsOnAnySignal = false};
    return ncclSuccess;
}

/* ---- The group -------------------------------------------------------------------------------------- */

static ncclResult_t listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    NB_REQUIRE(handle);
    NB_REQUIRE(listen_comm);
    struct nb_puts_listener *l = NULL;
    *listen_comm = NULL;
    if (!nb_process_transport())
        return ncclInternalError;
    NB_UNLESS_STOPPED();
    int err = nb_puts_listen(nb_process_context(), nb_process_comm_id(ctx), dev, handle, &l);
    if (!err)
        nb_process_count(1);
    *listen_comm = l;
    return nb_result(err);
}

static ncclResult_t close_listen(void *listen_comm)
{
    if (!listen_comm)
        return ncclSuccess;
    nb_puts_close_listen(listen_comm);
    nb_process_count(-1);
    return ncclSuccess;
}

/* ctx is the net table's in NCCL 2.30.7. */
static ncclResult_t connect(void *ctx, void *handles[], int nranks, int rank, void *listen_comm,
                            void **coll_comm)
{
    (void)ctx;
    NB_REQUIRE(handles);
    NB_REQUIRE(listen_comm);
    NB_REQUIRE(coll_comm);
    struct nb_puts *puts = NULL;
    *coll_comm = NULL;
    NB_UNLESS_STOPPED();
    int err = nb_puts_open(listen_comm, handles, nranks, rank, &puts);
    if (!err)
        nb_process_count(1);
    *coll_comm = puts;
    return nb_result(err);
}

static ncclResult_t close_coll(void *coll_comm)
{
    if (!coll_comm)
        return ncclSuccess;
    nb_puts_close(coll_comm);
    nb_process_count(-1);
    return ncclSuccess;
}

/* Contexts of a group share its connections, which keep the order of each context's operations. So a context
 * is its group. */
static ncclResult_t create_context(void *coll_comm, ncclRmaConfig_v14_t *config, void **rma_ctx)
{
    NB_REQUIRE(coll_comm);
    NB_REQUIRE(rma_ctx);
    /* NCCL 2.30.7 passes its own mark of an unset class, INT_MIN. */
    nb_puts_set_traffic_class(coll_comm, config && config->trafficClass >= 0 ? config->trafficClass
                                                                             : NCCL_NET_TRAFFIC_CLASS_UNDEF);
    *rma_ctx = coll_comm;
    return ncclSuccess;
}

static ncclResult_t destroy_context(void *rma_ctx)
{
    (void)rma_ctx;
    return ncclSuccess;
}

static ncclResult_t reg_mr(void *coll_comm, void *data, size_t size, int type, uint64_t flags, void **mhandle)
{
    (void)flags; /* signals are in order and add to whatever their words have */
    NB_REQUIRE(coll_comm);
    NB_REQUIRE(mhandle);
    struct nb_puts_memory *m = NULL;
    *mhandle = NULL;
    if (!data || (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA)) {
        NB_WARN("puts: cannot register %zu bytes of memory of type %d at %p", size, type, data);
        return ncclInternalError;
    }
    int err = nb_puts_register(coll_comm, data, size, type == NCCL_PTR_CUDA, &m);
    *mhandle = m;
    return nb_result(err);
}

/* NCCL calls it where the properties have NCCL_PTR_DMABUF. */
static ncclResult_t reg_mr_dma_buf(void *coll_comm, void *data, size_t size, int type, uint64_t offset,
                                   int fd, uint64_t flags, void **mhandle)
{
    (void)offset;
    (void)fd;
    return reg_mr(coll_comm, data, size, type, flags, mhandle);
}

static ncclResult_t dereg_mr(void *coll_comm, void *mhandle)
{
    NB_REQUIRE(coll_comm);
    return nb_result(nb_puts_deregister(coll_comm, mhandle));
}

/* ---- Operations ------------------------------------------------------------------------------------- */

/* Return the result of a call that moves data. On a group's first error make it known to the tuner. NCCL's
 * thread for puts ends with the error and keeps it: ncclCommGetAsyncError does not look at it in 2.30.7,
 * 2.31.2 and 2.32.3. */
static ncclResult_t moving(const struct nb_puts *puts, int err)
{
    if (err < 0 && err != -EINVAL && nb_process_fail(nb_puts_comm_id(puts)))
        NB_ALERT(
            "comm 0x%" PRIx64 ": one-sided operations have failed: %s. NCCL does not tell the framework, so "
            "a gather by copy engines waits for ever. The communicator's next sum returns an error. Without "
            "one the framework's own timeout ends the job",
            nb_puts_comm_id(puts), strerror(-err));
    return nb_result(err);
}

static int rank_of(uint32_t rank)
{
    return rank <= INT32_MAX ? (int)rank : -1;
}

/* Begin an operation by nb_puts_put or nb_puts_get. */
static ncclResult_t begin(int (*how)(struct nb_puts *, const struct nb_put *, struct nb_puts_request **),
                          void *rma_ctx, const struct nb_put *put, void **request)
{
    NB_REQUIRE(rma_ctx);
    NB_REQUIRE(request);
    struct nb_puts_request *made = NULL;
    int err = how(rma_ctx, put, &made);
    *request = made;
    return moving(rma_ctx, err);
}

static ncclResult_t iput(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                         uint64_t to_at, void *to, uint32_t rank, uint32_t flags, void **request)
{
    (void)context;
    (void)flags;
    return begin(
        nb_puts_put, rma_ctx,
        &(struct nb_put){
            .from = from, .to = to, .from_at = from_at, .to_at = to_at, .size = size, .rank = rank_of(rank)},
        request);
}

/* All signals are strong: they come after the puts before them. */
static ncclResult_t iput_signal(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                                uint64_t to_at, void *to, uint32_t rank, uint64_t signal_at, void *signal,
                                uint64_t value, uint32_t op, bool strong, uint32_t flags, void **request)
{
    (void)context;
    (void)strong;
    (void)flags;
    NB_REQUIRE(signal);
    NB_REQUIRE(request);
    *request = NULL;
    if (op != NCCL_NET_SIGNAL_OP_INC && op != NCCL_NET_SIGNAL_OP_ADD) {
        NB_WARN("puts: a signal with the unknown operation %u", op);
        return ncclInternalError;
    }
    return begin(nb_puts_put, rma_ctx,
                 &(struct nb_put){.from = from,
                                  .to = to,
                                  .from_at = from_at,
                                  .to_at = to_at,
                                  .size = to ? size : 0,
                                  .rank = rank_of(rank),
                                  .signal = signal,
                                  .signal_at = signal_at,
                                  .add = op == NCCL_NET_SIGNAL_OP_INC ? 1 : value},
                 request);
}

static ncclResult_t iget(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                         uint64_t to_at, void *to, uint32_t rank, uint32_t flags, void **request)
{
    (void)context;
    (void)flags;
    return begin(
        nb_puts_get, rma_ctx,
        &(struct nb_put){
            .from = from, .to = to, .from_at = from_at, .to_at = to_at, .size = size, .rank = rank_of(rank)},
        request);
}

static ncclResult_t iflush(void *rma_ctx, int context, void *mhandle, uint32_t rank, void **request)
{
    (void)context;
    (void)mhandle;
    (void)rank;
    NB_REQUIRE(rma_ctx);
    NB_REQUIRE(request);
    struct nb_puts_request *made = NULL;
    int err = nb_puts_flush(rma_ctx, &made);
    *request = made;
    return moving(rma_ctx, err);
}

static ncclResult_t test(void *coll_comm, void *request, int *done)
{
    NB_REQUIRE(coll_comm);
    NB_REQUIRE(request);
    NB_REQUIRE(done);
    return moving(coll_comm, nb_puts_test(coll_comm, request, done));
}

static ncclResult_t progress(void *rma_ctx)
{
    NB_REQUIRE(rma_ctx);
    return moving(rma_ctx, nb_puts_progress(rma_ctx));
}

static ncclResult_t query_last_error(void *rma_ctx, bool *has_error)
{
    NB_REQUIRE(rma_ctx);
    NB_REQUIRE(has_error);
    *has_error = nb_puts_error(rma_ctx) != 0;
    return ncclSuccess;
}

/* ---- v14: operations without flags ------------------------------------------------------------------ */

static ncclResult_t iput_v14(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                             uint64_t to_at, void *to, uint32_t rank, void **request)
{
    return iput(rma_ctx, context, from_at, from, size, to_at, to, rank, 0, request);
}

static ncclResult_t iput_signal_v14(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                                    uint64_t to_at, void *to, uint32_t rank, uint64_t signal_at, void *signal,
                                    uint64_t value, uint32_t op, bool strong, void **request)
{
    return iput_signal(rma_ctx, context, from_at, from, size, to_at, to, rank, signal_at, signal, value, op,
                       strong, 0, request);
}

static ncclResult_t iget_v14(void *rma_ctx, int context, uint64_t from_at, void *from, size_t size,
                             uint64_t to_at, void *to, uint32_t rank, void **request)
{
    return iget(rma_ctx, context, from_at, from, size, to_at, to, rank, 0, request);
}

/* ---- The tables ------------------------------------------------------------------------------------- */

#define RMA_V14 \
    .name = "nibble", .init = init, .devices = nb_api_devices, .getProperties = get_properties, \
    .listen = listen, .connect = connect, .createContext = create_context, .regMrSym = reg_mr, \
    .regMrSymDmaBuf = reg_mr_dma_buf, .deregMrSym = dereg_mr, .destroyContext = destroy_context, \
    .closeColl = close_coll, .closeListen = close_listen, .iflush = iflush, .test = test, \
    .rmaProgress = progress, .queryLastError = query_last_error, .finalize = finalize
#define RMA_V15 RMA_V14, .iput = iput, .iputSignal = iput_signal, .iget = iget

NB_EXPORT const ncclRma_v14_t ncclRmaPlugin_v14 = {RMA_V14, .iput = iput_v14, .iputSignal = iput_signal_v14,
                                                   .iget = iget_v14};

NB_EXPORT const ncclRma_v15_t ncclRmaPlugin_v15 = {RMA_V15};

NB_EXPORT const ncclRma_v16_t ncclRmaPlugin_v16 = {RMA_V15, .getRmaProperties = get_rma_properties};
