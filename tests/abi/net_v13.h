/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version that NCCL does not have, as the example of how to add one (docs/adding.md): v12 with two changes.
 * Properties have a wider railId, and isend has a priority. For a real version these declarations go to
 * include/nibble/nccl_net.h.
 */
#ifndef NIBBLE_TESTS_ABI_NET_V13_H
#define NIBBLE_TESTS_ABI_NET_V13_H

#include "nibble/nccl_net.h"

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
    int64_t railId; /* int16_t in v12 */
    int16_t planeId;
} ncclNetProperties_v13_t;

typedef ncclResult_t ncclNetGetProperties_v13(int dev, ncclNetProperties_v13_t *props);
typedef ncclResult_t ncclNetIsend_v13(void *sendComm, void *data, size_t size, int tag, int priority,
                                      void *mhandle, void *profilerEvent, void **request);

typedef struct {
    const char *name;
    ncclNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v13 *getProperties;
    ncclNetListen_v11 *listen;
    ncclNetConnect_v11 *connect;
    ncclNetAccept_v8 *accept;
    ncclNetRegMr_v8 *regMr;
    ncclNetRegMrDmaBuf_v8 *regMrDmaBuf;
    ncclNetDeregMr_v8 *deregMr;
    ncclNetIsend_v13 *isend;
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
} ncclNet_v13_t;

typedef struct {
    const char *name;
    ncclCollNetInit_v11 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v13 *getProperties;
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
} ncclCollNet_v13_t;

extern const ncclNet_v13_t ncclNetPlugin_v13;
extern const ncclCollNet_v13_t ncclCollNetPlugin_v13;

#endif
