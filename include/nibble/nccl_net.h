/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks up in a network plugin: ncclNetPlugin_vN (point-to-point, mandatory) and
 * ncclCollNetPlugin_vN (collectives between nodes), N from 8 (NCCL 2.20) to 12 (2.30).
 *
 * Names and layouts are NCCL's, the declarations are our own. A function whose signature did not change
 * between versions has one type here, named after the first version that has it. Assertions at the end check
 * sizes and offsets. Contracts that the declarations do not show:
 *
 *  - connect and accept never block. They succeed with *comm == NULL until the connection stands, and NCCL
 *    calls them again with the same handle or listen comm.
 *  - isend, irecv and the collective i* calls may succeed with *request == NULL. NCCL then repeats the call.
 *  - test: sizes may be NULL. For a grouped receive it has one entry a message.
 *  - From v11 on NCCL calls init for every communicator and passes the ctx that it returned. Before v11 NCCL
 *    calls init once a load.
 */
#ifndef NIBBLE_NCCL_NET_H
#define NIBBLE_NCCL_NET_H

/* The versions of these tables, for code that iterates over them. */
#define NB_NET_VERSIONS(X) X(8) X(9) X(10) X(11) X(12)
#define NB_NET_OLDEST 8
#define NB_NET_NEWEST 12

#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The code that moves the data: this plugin's host code, or device code that NCCL's kernels call. */
typedef enum {
    NCCL_NET_DEVICE_HOST = 0,
    NCCL_NET_DEVICE_UNPACK = 1,
    NCCL_NET_DEVICE_GIN_PROXY = 2 /* of a table of one-sided operations: NCCL's thread calls it for the GPU */
} ncclNetDeviceType;
#define NCCL_NET_DEVICE_INVALID_VERSION 0

/* connect and accept of device transports fill it in. */
typedef struct {
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
} ncclNetDeviceHandle_v8_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v9_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v11_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v12_t;

/* ---- Properties ----------------------------------------------------------------------------------- */

#define NCCL_NET_MAX_DEVS_PER_NIC_V9 4
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8
#define NCCL_NET_ID_UNDEF (-1)

/* The physical devices of a virtual device. A physical device lists itself. */
typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v10_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v11_t;

typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

typedef struct {
    char *name;    /* by which NCCL recognises a device in both tables */
    char *pciPath; /* in /sys; NULL when there is none */
    uint64_t guid; /* of the NIC; devices with the same one share its bandwidth */
    int ptrSupport;
    int regIsGlobal; /* a registration holds for all comms, so NCCL may cache it */
    int speed;       /* Mbit/s */
    int port;
    float latency; /* microseconds; 0: NCCL assumes its own figure */
    int maxComms;
    int maxRecvs; /* messages in one grouped receive */
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush; /* NCCL flushes every receive */
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v9_t vProps;
    size_t maxP2pBytes;  /* one message */
    size_t maxCollBytes; /* one window of a collective */
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v11_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v12_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId; /* NCCL_NET_ID_UNDEF: unknown */
    int16_t planeId;
} ncclNetProperties_v12_t;

/* ---- Arguments ------------------------------------------------------------------------------------ */

#define NCCL_NET_TRAFFIC_CLASS_UNDEF (-1)

typedef struct {
    int trafficClass;
} ncclNetCommConfig_v10_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v11_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v12_t;

/* Advice: the connections that NCCL is about to make. */
typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;
typedef ncclNetCommAttr_v11_t ncclNetCommAttr_v12_t;

typedef struct {
    ncclNetCommAttr_v11_t sendCommAttr;
    ncclNetCommAttr_v11_t recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} ncclNetAttr_v11_t;
typedef ncclNetAttr_v11_t ncclNetAttr_v12_t;

/* A part of a collective's buffer; NCCL passes exactly one. */
typedef struct {
    void *mhandle;
    void *address;
    uint32_t size;
} ncclNetSGE_v8_t;

typedef struct {
    void *mhandle;
    void *address;
    size_t size;
} ncclNetSGE_v9_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v10_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v11_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v12_t;

/* ---- Functions of both tables --------------------------------------------------------------------- */

typedef ncclResult_t ncclNetDevices_v8(int *ndev);
typedef ncclResult_t ncclNetGetProperties_v8(int dev, ncclNetProperties_v8_t *props);
typedef ncclResult_t ncclNetGetProperties_v9(int dev, ncclNetProperties_v9_t *props);
typedef ncclResult_t ncclNetGetProperties_v11(int dev, ncclNetProperties_v11_t *props);
typedef ncclResult_t ncclNetGetProperties_v12(int dev, ncclNetProperties_v12_t *props);
typedef ncclResult_t ncclNetListen_v8(int dev, void *handle, void **listenComm);
typedef ncclResult_t ncclNetListen_v11(void *ctx, int dev, void *handle, void **listenComm);
typedef ncclResult_t ncclNetRegMr_v8(void *comm, void *data, size_t size, int type, void **mhandle);
typedef ncclResult_t ncclNetRegMrDmaBuf_v8(void *comm, void *data, size_t size, int type, uint64_t offset,
                                           int fd, void **mhandle);
typedef ncclResult_t ncclNetDeregMr_v8(void *comm, void *mhandle);
typedef ncclResult_t ncclNetTest_v8(void *request, int *done, int *sizes);
typedef ncclResult_t ncclNetClose_v8(void *comm);
typedef ncclResult_t ncclNetMakeVDevice_v9(int *dev, ncclNetVDeviceProps_v9_t *props);
typedef ncclResult_t ncclNetMakeVDevice_v12(int *dev, ncclNetVDeviceProps_v12_t *props);
typedef ncclResult_t ncclNetFinalize_v11(void *ctx);

/* ---- Point-to-point ------------------------------------------------------------------------------- */

typedef ncclResult_t ncclNetInit_v8(ncclDebugLogger_t logger);
typedef ncclResult_t ncclNetInit_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler);
typedef ncclResult_t ncclNetInit_v11(void **ctx, uint64_t commId, ncclNetCommConfig_v11_t *config,
                                     ncclDebugLogger_t logger, ncclProfilerCallback_t profiler);
typedef ncclResult_t ncclNetConnect_v8(int dev, void *handle, void **sendComm,
                                       ncclNetDeviceHandle_v8_t **sendDevComm);
typedef ncclResult_t ncclNetConnect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle,
                                        void **sendComm, ncclNetDeviceHandle_v10_t **sendDevComm);
typedef ncclResult_t ncclNetConnect_v11(void *ctx, int dev, void *handle, void **sendComm,
                                        ncclNetDeviceHandle_v11_t **sendDevComm);
typedef ncclResult_t ncclNetAccept_v8(void *listenComm, void **recvComm,
                                      ncclNetDeviceHandle_v8_t **recvDevComm);
typedef ncclResult_t ncclNetIsend_v8(void *sendComm, void *data, int size, int tag, void *mhandle,
                                     void **request);
typedef ncclResult_t ncclNetIsend_v9(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                                     void **request);
typedef ncclResult_t ncclNetIsend_v10(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                                      void *profilerEvent, void **request);
typedef ncclResult_t ncclNetIrecv_v8(void *recvComm, int n, void **data, int *sizes, int *tags,
                                     void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                                     void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                                      void **mhandles, void **profilerEvents, void **request);
typedef ncclResult_t ncclNetIflush_v8(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                                      void **request);
typedef ncclResult_t ncclNetGetDeviceMr_v8(void *comm, void *mhandle, void **devMhandle);
typedef ncclResult_t ncclNetIrecvConsumed_v8(void *recvComm, int n, void *request);
typedef ncclResult_t ncclNetSetAttr_v11(void *ctx, ncclNetAttr_v11_t *attr);

typedef struct {
    const char *name;
    ncclNetInit_v8 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v8 *getProperties;
    ncclNetListen_v8 *listen;
    ncclNetConnect_v8 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v8 *isend;
    ncclNetIrecv_v8 *irecv;
    ncclNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeSend;
    ncclNetClose_v8 *closeRecv;
    ncclNetClose_v8 *closeListen;
    ncclNetGetDeviceMr_v8 *getDeviceMr;
    ncclNetIrecvConsumed_v8 *irecvConsumed;
} ncclNet_v8_t;

typedef struct {
    const char *name;
    ncclNetInit_v8 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v9 *getProperties;
    ncclNetListen_v8 *listen;
    ncclNetConnect_v8 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v9 *isend;
    ncclNetIrecv_v9 *irecv;
    ncclNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeSend;
    ncclNetClose_v8 *closeRecv;
    ncclNetClose_v8 *closeListen;
    ncclNetGetDeviceMr_v8 *getDeviceMr;
    ncclNetIrecvConsumed_v8 *irecvConsumed;
    ncclNetMakeVDevice_v9 *makeVDevice;
} ncclNet_v9_t;

typedef struct {
    const char *name;
    ncclNetInit_v10 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v9 *getProperties;
    ncclNetListen_v8 *listen;
    ncclNetConnect_v10 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v10 *isend;
    ncclNetIrecv_v10 *irecv;
    ncclNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeSend;
    ncclNetClose_v8 *closeRecv;
    ncclNetClose_v8 *closeListen;
    ncclNetGetDeviceMr_v8 *getDeviceMr;
    ncclNetIrecvConsumed_v8 *irecvConsumed;
    ncclNetMakeVDevice_v9 *makeVDevice;
} ncclNet_v10_t;

typedef struct {
    const char *name;
    ncclNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v11 *getProperties;
    ncclNetListen_v11 *listen;
    ncclNetConnect_v11 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v10 *isend;
    ncclNetIrecv_v10 *irecv;
    ncclNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeSend;
    ncclNetClose_v8 *closeRecv;
    ncclNetClose_v8 *closeListen;
    ncclNetGetDeviceMr_v8 *getDeviceMr;
    ncclNetIrecvConsumed_v8 *irecvConsumed;
    ncclNetMakeVDevice_v9 *makeVDevice;
    ncclNetFinalize_v11 *finalize;
    ncclNetSetAttr_v11 *setNetAttr;
} ncclNet_v11_t;

typedef struct {
    const char *name;
    ncclNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v12 *getProperties;
    ncclNetListen_v11 *listen;
    ncclNetConnect_v11 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v10 *isend;
    ncclNetIrecv_v10 *irecv;
    ncclNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeSend;
    ncclNetClose_v8 *closeRecv;
    ncclNetClose_v8 *closeListen;
    ncclNetGetDeviceMr_v8 *getDeviceMr;
    ncclNetIrecvConsumed_v8 *irecvConsumed;
    ncclNetMakeVDevice_v12 *makeVDevice;
    ncclNetFinalize_v11 *finalize;
    ncclNetSetAttr_v11 *setNetAttr;
} ncclNet_v12_t;

/* ---- Collectives ---------------------------------------------------------------------------------- */

typedef ncclResult_t ncclCollNetInit_v8(ncclDebugLogger_t logger);
typedef ncclResult_t ncclCollNetInit_v11(void **ctx, uint64_t commId, ncclDebugLogger_t logger);
typedef ncclResult_t ncclCollNetConnect_v8(void *handles[], int nranks, int rank, void *listenComm,
                                           void **collComm);
typedef ncclResult_t ncclCollNetReduceSupport_v8(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
typedef ncclResult_t ncclCollNetIallreduce_v8(void *collComm, void *sendData, void *recvData, int count,
                                              ncclDataType_t dataType, ncclRedOp_t redOp, void *sendMhandle,
                                              void *recvMhandle, void **request);
typedef ncclResult_t ncclCollNetIallreduce_v9(void *collComm, void *sendData, void *recvData, size_t count,
                                              ncclDataType_t dataType, ncclRedOp_t redOp, void *sendMhandle,
                                              void *recvMhandle, void **request);
/* Gather the window [windowOffset, windowOffset + windowBytes) of the vector of all ranks' blocks of
 * bytesPerRank. The call sends the window's part in the own block and receives the whole window. */
typedef ncclResult_t ncclCollNetIallgather_v8(void *collComm, void *sendData, int nRecvParts,
                                              ncclNetSGE_v8_t *recvParts, size_t bytesPerRank,
                                              size_t windowOffset, size_t windowBytes, void *sendMhandle,
                                              void **request);
typedef ncclResult_t ncclCollNetIallgather_v9(void *collComm, void *sendData, int nRecvParts,
                                              ncclNetSGE_v9_t *recvParts, size_t bytesPerRank,
                                              size_t windowOffset, size_t windowBytes, void *sendMhandle,
                                              void **request);
/* The reverse: the call sends the whole window and receives the reduced values of its part in the own
 * block. */
typedef ncclResult_t ncclCollNetIreducescatter_v8(void *collComm, int nSendParts, ncclNetSGE_v8_t *sendParts,
                                                  void *recvData, size_t bytesPerRank, size_t windowOffset,
                                                  size_t windowBytes, ncclDataType_t dataType,
                                                  ncclRedOp_t redOp, void *recvMhandle, void **request);
typedef ncclResult_t ncclCollNetIreducescatter_v9(void *collComm, int nSendParts, ncclNetSGE_v9_t *sendParts,
                                                  void *recvData, size_t bytesPerRank, size_t windowOffset,
                                                  size_t windowBytes, ncclDataType_t dataType,
                                                  ncclRedOp_t redOp, void *recvMhandle, void **request);
typedef ncclResult_t ncclCollNetIflush_v8(void *collComm, void *data, int size, void *mhandle,
                                          void **request);

typedef struct {
    const char *name;
    ncclCollNetInit_v8 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v8 *getProperties;
    ncclNetListen_v8 *listen;
    ncclCollNetConnect_v8 *connect;
    ncclCollNetReduceSupport_v8 *reduceSupport;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclCollNetIallreduce_v8 *iallreduce;
    ncclCollNetIallgather_v8 *iallgather;
    ncclCollNetIreducescatter_v8 *ireducescatter;
    ncclCollNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeColl;
    ncclNetClose_v8 *closeListen;
} ncclCollNet_v8_t;

typedef struct {
    const char *name;
    ncclCollNetInit_v8 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v9 *getProperties;
    ncclNetListen_v8 *listen;
    ncclCollNetConnect_v8 *connect;
    ncclCollNetReduceSupport_v8 *reduceSupport;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclCollNetIallreduce_v9 *iallreduce;
    ncclCollNetIallgather_v9 *iallgather;
    ncclCollNetIreducescatter_v9 *ireducescatter;
    ncclCollNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeColl;
    ncclNetClose_v8 *closeListen;
    ncclNetMakeVDevice_v9 *makeVDevice;
} ncclCollNet_v9_t;
typedef ncclCollNet_v9_t ncclCollNet_v10_t;

typedef struct {
    const char *name;
    ncclCollNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v11 *getProperties;
    ncclNetListen_v11 *listen;
    ncclCollNetConnect_v8 *connect;
    ncclCollNetReduceSupport_v8 *reduceSupport;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclCollNetIallreduce_v9 *iallreduce;
    ncclCollNetIallgather_v9 *iallgather;
    ncclCollNetIreducescatter_v9 *ireducescatter;
    ncclCollNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeColl;
    ncclNetClose_v8 *closeListen;
    ncclNetMakeVDevice_v9 *makeVDevice;
    ncclNetFinalize_v11 *finalize;
} ncclCollNet_v11_t;

typedef struct {
    const char *name;
    ncclCollNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v12 *getProperties;
    ncclNetListen_v11 *listen;
    ncclCollNetConnect_v8 *connect;
    ncclCollNetReduceSupport_v8 *reduceSupport;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclCollNetIallreduce_v9 *iallreduce;
    ncclCollNetIallgather_v9 *iallgather;
    ncclCollNetIreducescatter_v9 *ireducescatter;
    ncclCollNetIflush_v8 *iflush;
    ncclNetTest_v8 *test;
    ncclNetClose_v8 *closeColl;
    ncclNetClose_v8 *closeListen;
    ncclNetMakeVDevice_v12 *makeVDevice;
    ncclNetFinalize_v11 *finalize;
} ncclCollNet_v12_t;

/* ---- What the plugin exports ---------------------------------------------------------------------- */

extern const ncclNet_v8_t ncclNetPlugin_v8;
extern const ncclNet_v9_t ncclNetPlugin_v9;
extern const ncclNet_v10_t ncclNetPlugin_v10;
extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const ncclNet_v12_t ncclNetPlugin_v12;
extern const ncclCollNet_v8_t ncclCollNetPlugin_v8;
extern const ncclCollNet_v9_t ncclCollNetPlugin_v9;
extern const ncclCollNet_v10_t ncclCollNetPlugin_v10;
extern const ncclCollNet_v11_t ncclCollNetPlugin_v11;
extern const ncclCollNet_v12_t ncclCollNetPlugin_v12;

#ifdef __cplusplus
}
#endif

/* NCCL exists on LP64 machines only. These are its layouts there. */
#if defined(__LP64__) && !defined(__cplusplus)
#define NB_ABI_AT(type, member, offset) \
    _Static_assert(offsetof(type, member) == (offset), #type "." #member " is not where NCCL has it")
#define NB_ABI_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " does not have NCCL's size")

NB_ABI_SIZE(ncclNetDeviceHandle_v8_t, 32);
NB_ABI_SIZE(ncclNetVDeviceProps_v9_t, 20);
NB_ABI_SIZE(ncclNetVDeviceProps_v12_t, 36);
NB_ABI_SIZE(ncclNetProperties_v8_t, 64);
NB_ABI_AT(ncclNetProperties_v8_t, speed, 32);
NB_ABI_AT(ncclNetProperties_v8_t, netDeviceVersion, 56);
NB_ABI_SIZE(ncclNetProperties_v9_t, 104);
NB_ABI_AT(ncclNetProperties_v9_t, speed, 36);
NB_ABI_AT(ncclNetProperties_v9_t, vProps, 64);
NB_ABI_AT(ncclNetProperties_v9_t, maxP2pBytes, 88);
NB_ABI_SIZE(ncclNetProperties_v11_t, 112);
NB_ABI_AT(ncclNetProperties_v11_t, maxMultiRequestSize, 104);
NB_ABI_SIZE(ncclNetProperties_v12_t, 128);
NB_ABI_AT(ncclNetProperties_v12_t, maxP2pBytes, 104);
NB_ABI_AT(ncclNetProperties_v12_t, railId, 124);
NB_ABI_AT(ncclNetProperties_v12_t, planeId, 126);
NB_ABI_SIZE(ncclNetAttr_v11_t, 44);
NB_ABI_SIZE(ncclNetSGE_v8_t, 24);
NB_ABI_SIZE(ncclNetSGE_v9_t, 24);
NB_ABI_SIZE(ncclNet_v8_t, 19 * sizeof(void *));
NB_ABI_SIZE(ncclNet_v9_t, 20 * sizeof(void *));
NB_ABI_SIZE(ncclNet_v10_t, 20 * sizeof(void *));
NB_ABI_SIZE(ncclNet_v11_t, 22 * sizeof(void *));
NB_ABI_SIZE(ncclNet_v12_t, 22 * sizeof(void *));
NB_ABI_AT(ncclNet_v12_t, irecv, 11 * sizeof(void *));
NB_ABI_AT(ncclNet_v12_t, finalize, 20 * sizeof(void *));
NB_ABI_SIZE(ncclCollNet_v8_t, 17 * sizeof(void *));
NB_ABI_SIZE(ncclCollNet_v9_t, 18 * sizeof(void *));
NB_ABI_SIZE(ncclCollNet_v11_t, 19 * sizeof(void *));
NB_ABI_SIZE(ncclCollNet_v12_t, 19 * sizeof(void *));
NB_ABI_AT(ncclCollNet_v12_t, ireducescatter, 12 * sizeof(void *));
NB_ABI_AT(ncclCollNet_v12_t, finalize, 18 * sizeof(void *));
#undef NB_ABI_AT
#undef NB_ABI_SIZE
#endif
#endif
