/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net and CollNet tables of NCCL, versions 8 to 12, declared a second time and independently of the
 * plugin's own headers. If the plugin has a field in the wrong place, the harness sees it as NCCL would.
 *
 * Differences between versions: 8 has int sizes and counts, and 32-bit SGEs. 9 has size_t, forceFlush,
 * virtual devices and the two maximum sizes. 10 adds a profiler callback, a config for connect and profiler
 * handles. 11 adds a context for each communicator, finalize, setNetAttr and the multi-request size. 12
 * allows eight devices in a virtual NIC and adds the ids of rail and plane.
 */
#ifndef NIBBLE_TESTS_HARNESS_ABI_H
#define NIBBLE_TESTS_HARNESS_ABI_H

#include "nibble/nccl_types.h"

typedef ncclResult_t (*hx_prof_cb)(void **event, int type, void *parent, int64_t plugin_id, void *ext);

struct hx_config { /* ncclNetCommConfig, v10 and later */
    int traffic_class;
};

struct hx_props_v8 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global, speed, port;
    float latency;
    int max_comms, max_recvs, device_type, device_version;
};

#define HX_PROPS_9(NDEVS) \
    char *name, *pci_path; \
    uint64_t guid; \
    int ptr_support, reg_is_global, force_flush, speed, port; \
    float latency; \
    int max_comms, max_recvs, device_type, device_version; \
    struct { \
        int ndevs, devs[NDEVS]; \
    } vprops; \
    size_t max_p2p_bytes, max_coll_bytes;

struct hx_props_v9 { /* and 10 */
    HX_PROPS_9(4)
};
struct hx_props_v11 {
    HX_PROPS_9(4)
    int max_multi_request;
};
struct hx_props_v12 {
    HX_PROPS_9(8)
    int max_multi_request;
    int16_t rail_id, plane_id;
};

struct hx_sge_v8 {
    void *mhandle, *address;
    uint32_t size;
};
struct hx_sge_v9 { /* to 12 */
    void *mhandle, *address;
    size_t size;
};

#define HX_COMMA , /* inside a macro argument */

/* Members common to all versions, with their varying types as arguments. CTX is "void *ctx," or empty. SIZE
 * is the type of sizes. PH1 and PH2 are the profiler handles of isend and irecv. */
#define HX_NET_HEAD(PROPS, CTX) \
    ncclResult_t (*devices)(int *); \
    ncclResult_t (*getProperties)(int, PROPS *); \
    ncclResult_t (*listen)(CTX int, void *, void **);
#define HX_NET_BODY(SIZE, PH1, PH2) \
    ncclResult_t (*accept)(void *, void **, void **); \
    ncclResult_t (*regMr)(void *, void *, size_t, int, void **); \
    ncclResult_t (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **); \
    ncclResult_t (*deregMr)(void *, void *); \
    ncclResult_t (*isend)(void *, void *, SIZE, int, void *, PH1 void **); \
    ncclResult_t (*irecv)(void *, int, void **, SIZE *, int *, void **, PH2 void **); \
    ncclResult_t (*iflush)(void *, int, void **, int *, void **, void **); \
    ncclResult_t (*test)(void *, int *, int *); \
    ncclResult_t (*closeSend)(void *); \
    ncclResult_t (*closeRecv)(void *); \
    ncclResult_t (*closeListen)(void *); \
    ncclResult_t (*getDeviceMr)(void *, void *, void **); \
    ncclResult_t (*irecvConsumed)(void *, int, void *);

struct hx_net_v8 {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t);
    HX_NET_HEAD(struct hx_props_v8, )
    ncclResult_t (*connect)(int, void *, void **, void **);
    HX_NET_BODY(int, , )
};
struct hx_net_v9 {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t);
    HX_NET_HEAD(struct hx_props_v9, )
    ncclResult_t (*connect)(int, void *, void **, void **);
    HX_NET_BODY(size_t, , )
    ncclResult_t (*makeVDevice)(int *, void *);
};
struct hx_net_v10 {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t, hx_prof_cb);
    HX_NET_HEAD(struct hx_props_v9, )
    ncclResult_t (*connect)(int, struct hx_config *, void *, void **, void **);
    HX_NET_BODY(size_t, void *HX_COMMA, void **HX_COMMA)
    ncclResult_t (*makeVDevice)(int *, void *);
};
#define HX_NET_11(PROPS) \
    const char *name; \
    ncclResult_t (*init)(void **, uint64_t, struct hx_config *, ncclDebugLogger_t, hx_prof_cb); \
    HX_NET_HEAD(PROPS, void *HX_COMMA) \
    ncclResult_t (*connect)(void *, int, void *, void **, void **); \
    HX_NET_BODY(size_t, void *HX_COMMA, void **HX_COMMA) \
    ncclResult_t (*makeVDevice)(int *, void *); \
    ncclResult_t (*finalize)(void *); \
    ncclResult_t (*setNetAttr)(void *, void *);
struct hx_net_v11 {
    HX_NET_11(struct hx_props_v11)
};
struct hx_net_v12 {
    HX_NET_11(struct hx_props_v12)
};

#define HX_COLL_BODY(COUNT, SGE) \
    ncclResult_t (*connect)(void *[], int, int, void *, void **); \
    ncclResult_t (*reduceSupport)(ncclDataType_t, ncclRedOp_t, int *); \
    ncclResult_t (*regMr)(void *, void *, size_t, int, void **); \
    ncclResult_t (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **); \
    ncclResult_t (*deregMr)(void *, void *); \
    ncclResult_t (*iallreduce)(void *, void *, void *, COUNT, ncclDataType_t, ncclRedOp_t, void *, void *, \
                               void **); \
    ncclResult_t (*iallgather)(void *, void *, int, SGE *, size_t, size_t, size_t, void *, void **); \
    ncclResult_t (*ireducescatter)(void *, int, SGE *, void *, size_t, size_t, size_t, ncclDataType_t, \
                                   ncclRedOp_t, void *, void **); \
    ncclResult_t (*iflush)(void *, void *, int, void *, void **); \
    ncclResult_t (*test)(void *, int *, int *); \
    ncclResult_t (*closeColl)(void *); \
    ncclResult_t (*closeListen)(void *);

struct hx_coll_v8 {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t);
    HX_NET_HEAD(struct hx_props_v8, )
    HX_COLL_BODY(int, struct hx_sge_v8)
};
struct hx_coll_v9 { /* and 10 */
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t);
    HX_NET_HEAD(struct hx_props_v9, )
    HX_COLL_BODY(size_t, struct hx_sge_v9)
    ncclResult_t (*makeVDevice)(int *, void *);
};
#define HX_COLL_11(PROPS) \
    const char *name; \
    ncclResult_t (*init)(void **, uint64_t, ncclDebugLogger_t); \
    HX_NET_HEAD(PROPS, void *HX_COMMA) \
    HX_COLL_BODY(size_t, struct hx_sge_v9) \
    ncclResult_t (*makeVDevice)(int *, void *); \
    ncclResult_t (*finalize)(void *);
struct hx_coll_v11 {
    HX_COLL_11(struct hx_props_v11)
};
struct hx_coll_v12 {
    HX_COLL_11(struct hx_props_v12)
};

#endif
