/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions behind NCCL's tables, without versions: both halves, the profiler and the tuner. They have
 * the signatures of the newest table. The file of a version (net_v12.c, tuner_v6.c, profiler_v7.c ...) fills
 * its table with them. Where a version's signature differs, its file has a static function that converts.
 * docs/adding.md says how to add a version.
 *
 * NCCL calls all of them, and they check their arguments. A NULL that NCCL must not pass, a call outside
 * init..finalize and a value out of range are ncclInternalError after a WARN line. Other results are those of
 * nb_result.
 */
#ifndef NIBBLE_ABI_API_H
#define NIBBLE_ABI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/process.h"
#include "abi/profiler_next.h"
#include "abi/result.h"
#include "nibble/nccl_net.h"
#include "nibble/nccl_profiler.h"
#include "nibble/nccl_tuner.h"

/* Make a table visible to NCCL. All other symbols are hidden. */
#define NB_EXPORT __attribute__((visibility("default")))

/* ---- Devices, the same for both halves ----------------------------------------------------------------- */

ncclResult_t nb_api_devices(int *ndev);

/* Define a version's getProperties: *props = (TYPE){FIELDS}, where FIELDS may use `info` and `dev`. The
 * strings in the properties live as long as the library. */
#define NB_API_GET_PROPERTIES(TYPE, ...) \
    static ncclResult_t get_properties(int dev, TYPE *props) \
    { \
        NB_REQUIRE(props); \
        const struct nb_device_info *info = nb_process_device(dev); \
        if (!info) \
            return ncclInternalError; \
        *props = (TYPE){__VA_ARGS__}; \
        return ncclSuccess; \
    }

/* Fields since v8. NCCL's structs lack const, but NCCL only reads the strings. */
#define NB_API_PROPERTIES_V8 \
    .name = (char *)(uintptr_t)info->net.name, \
    .pciPath = info->net.pci_path[0] ? (char *)(uintptr_t)info->net.pci_path : NULL, .guid = info->net.guid, \
    .ptrSupport = info->mem_support, .regIsGlobal = 0, /* a registration belongs to its comm */ \
        .speed = info->net.speed_mbps, .port = info->net.port, .latency = info->net.latency_us, \
    .maxComms = info->net.max_comms, .maxRecvs = info->net.max_recvs, .netDeviceType = NCCL_NET_DEVICE_HOST, \
    .netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION
/* Since v9. */
#define NB_API_PROPERTIES_V9 \
    NB_API_PROPERTIES_V8, .forceFlush = info->net.force_flush, .vProps = {.ndevs = 1, .devs = {dev}}, \
                          .maxP2pBytes = info->net.max_bytes, .maxCollBytes = info->max_coll_bytes

/* ---- Point-to-point ------------------------------------------------------------------------------------ */

ncclResult_t nb_api_net_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                             ncclDebugLogger_t logger, ncclProfilerCallback_t profiler);
/* For tables without finalize (before v11). */
ncclResult_t nb_api_net_init_for_good(ncclDebugLogger_t logger);
ncclResult_t nb_api_net_finalize(void *ctx);
/* ctx may be NULL. */
ncclResult_t nb_api_net_listen(void *ctx, int dev, void *handle, void **listen_comm);
ncclResult_t nb_api_net_connect(void *ctx, int dev, void *handle, void **send_comm,
                                ncclNetDeviceHandle_v11_t **send_dev_comm);
/* Connect for tables that pass the traffic class in another way. NCCL_NET_TRAFFIC_CLASS_UNDEF: the
 * transport's default. */
ncclResult_t nb_api_net_connect_with(int dev, int traffic_class, void *handle, void **send_comm);
ncclResult_t nb_api_net_accept(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **recv_dev_comm);
ncclResult_t nb_api_net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t nb_api_net_reg_mr_dma_buf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                       void **mhandle);
ncclResult_t nb_api_net_dereg_mr(void *comm, void *mhandle);
ncclResult_t nb_api_net_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle,
                              void *profiler_event, void **request);
ncclResult_t nb_api_net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **profiler_events, void **request);
ncclResult_t nb_api_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles,
                               void **request);
ncclResult_t nb_api_net_test(void *request, int *done, int *sizes);
/* Closing NULL is allowed, as with free. */
ncclResult_t nb_api_net_close_send(void *send_comm);
ncclResult_t nb_api_net_close_recv(void *recv_comm);
ncclResult_t nb_api_net_close_listen(void *listen_comm);

/* Convert n sizes (1 to NB_NET_MAX_RECVS) from int to size_t, for tables with int sizes. `function` is for
 * the WARN line. */
ncclResult_t nb_api_widen(const char *function, int n, const int *sizes, size_t *wide);

/* The members that have been the same since v8. getDeviceMr, irecvConsumed, makeVDevice and setNetAttr stay
 * NULL, which NCCL takes as "not offered": the first two belong to device transports, makeVDevice to virtual
 * devices, and setNetAttr only gives advice. */
#define NB_API_NET_V8 \
    .name = "nibble", .devices = nb_api_devices, .getProperties = get_properties, \
    .accept = nb_api_net_accept, .regMr = nb_api_net_reg_mr, .regMrDmaBuf = nb_api_net_reg_mr_dma_buf, \
    .deregMr = nb_api_net_dereg_mr, .iflush = nb_api_net_iflush, .test = nb_api_net_test, \
    .closeSend = nb_api_net_close_send, .closeRecv = nb_api_net_close_recv, \
    .closeListen = nb_api_net_close_listen
/* All members of v11 and later. */
#define NB_API_NET_V11 \
    NB_API_NET_V8, .init = nb_api_net_init, .listen = nb_api_net_listen, .connect = nb_api_net_connect, \
                   .isend = nb_api_net_isend, .irecv = nb_api_net_irecv, .finalize = nb_api_net_finalize

/* ---- CollNet ------------------------------------------------------------------------------------------- */

ncclResult_t nb_api_coll_init(void **ctx, uint64_t comm_id, ncclDebugLogger_t logger);
/* For tables without finalize (before v11). */
ncclResult_t nb_api_coll_init_for_good(ncclDebugLogger_t logger);
ncclResult_t nb_api_coll_finalize(void *ctx);
/* ctx may be NULL. */
ncclResult_t nb_api_coll_listen(void *ctx, int dev, void *handle, void **listen_comm);
ncclResult_t nb_api_coll_connect(void *handles[], int nranks, int rank, void *listen_comm, void **coll_comm);
ncclResult_t nb_api_coll_reduce_support(ncclDataType_t type, ncclRedOp_t op, int *supported);
ncclResult_t nb_api_coll_reg_mr(void *coll_comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t nb_api_coll_reg_mr_dma_buf(void *coll_comm, void *data, size_t size, int type, uint64_t offset,
                                        int fd, void **mhandle);
ncclResult_t nb_api_coll_dereg_mr(void *coll_comm, void *mhandle);
ncclResult_t nb_api_coll_iallreduce(void *coll_comm, void *send_data, void *recv_data, size_t count,
                                    ncclDataType_t type, ncclRedOp_t op, void *send_mhandle,
                                    void *recv_mhandle, void **request);
ncclResult_t nb_api_coll_iallgather(void *coll_comm, void *send_data, int nrecv, ncclNetSGE_v9_t *recv,
                                    size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                    void *send_mhandle, void **request);
ncclResult_t nb_api_coll_ireducescatter(void *coll_comm, int nsend, ncclNetSGE_v9_t *send, void *recv_data,
                                        size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                        ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle,
                                        void **request);
ncclResult_t nb_api_coll_iflush(void *coll_comm, void *data, int size, void *mhandle, void **request);
ncclResult_t nb_api_coll_test(void *request, int *done, int *size);
/* Closing NULL is allowed, as with free. */
ncclResult_t nb_api_coll_close(void *coll_comm);
ncclResult_t nb_api_coll_close_listen(void *listen_comm);

/* The members that have been the same since v8, those since v9, and all members of v11 and later. */
#define NB_API_COLL_V8 \
    .name = "nibble", .devices = nb_api_devices, .getProperties = get_properties, \
    .connect = nb_api_coll_connect, .reduceSupport = nb_api_coll_reduce_support, \
    .regMr = nb_api_coll_reg_mr, .regMrDmaBuf = nb_api_coll_reg_mr_dma_buf, .deregMr = nb_api_coll_dereg_mr, \
    .iflush = nb_api_coll_iflush, .test = nb_api_coll_test, .closeColl = nb_api_coll_close, \
    .closeListen = nb_api_coll_close_listen
#define NB_API_COLL_V9 \
    NB_API_COLL_V8, .iallreduce = nb_api_coll_iallreduce, .iallgather = nb_api_coll_iallgather, \
                    .ireducescatter = nb_api_coll_ireducescatter
#define NB_API_COLL_V11 \
    NB_API_COLL_V9, .init = nb_api_coll_init, .listen = nb_api_coll_listen, .finalize = nb_api_coll_finalize

/* ---- Profiler. These functions never fail of themselves: the engine exchanges an operation without a record
 * raw. They pass on the results of the next profiler (profiler_next.h). */

ncclResult_t nb_api_prof_init(void **context, const struct nb_prof_setting *setting);

/* An event without its version. */
struct nb_api_event {
    int version; /* of the description, which is NCCL's */
    const void *description;
    uint64_t type;                       /* ncclProfile* */
    void *parent;                        /* handle of the event that contains this one */
    const struct nb_prof_coll_api *call; /* of ncclProfileCollApi */
    const struct nb_prof_coll_v5 *coll;  /* of ncclProfileColl */
    uint64_t tag;                        /* of ncclProfileCollApi: the user's (v7). 0: none */
    bool symmetric;                      /* of ncclProfileColl: by a kernel for symmetric memory (v7) */
    void *stream;                        /* of ncclProfileKernelLaunch */
};
/* event NULL: NCCL passed none. */
ncclResult_t nb_api_prof_start(void *context, void **handle, const struct nb_api_event *event);
ncclResult_t nb_api_prof_stop(void *handle);
ncclResult_t nb_api_prof_state(void *handle, ncclProfilerEventState_v4_t state,
                               ncclProfilerEventStateArgs_v4_t *args);
ncclResult_t nb_api_prof_finalize(void *context);

/* ---- Tuner. These functions never fail of themselves, since an error would fail the user's operation. They
 * pass on the results of the next tuner (tuner_next.h). */

/* `version` is the table's. Before 5 there are no comm_id, domains and constants. */
ncclResult_t nb_api_tuner_init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                               ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                               ncclTunerConstants_v5_t *constants, int version);
ncclResult_t nb_api_tuner_info(void *context, ncclFunc_t func, size_t bytes, int ops, float **table,
                               int algos, int protos, int registered, int *channels);
ncclResult_t nb_api_tuner_chunk(void *context, ncclFunc_t func, size_t bytes, int algo, int proto,
                                int channels, size_t *chunk);
ncclResult_t nb_api_tuner_finalize(void *context);

#endif
