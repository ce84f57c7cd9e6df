/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's tables of one-sided operations between ranks, ncclRmaPlugin_v14 (NCCL 2.30) to v16 (2.32), as nibble
 * declares them. Layouts were read in the debug information of NCCL 2.30.7, 2.31.2 and 2.32.3. NCCL looks the
 * tables up in the net plugin's file, newest first.
 *
 * Memory is registered by all ranks of a group in the same order. A put names its source and its destination
 * by this rank's handles of two registrations, and by offsets.
 */
#ifndef NIBBLE_NCCL_RMA_H
#define NIBBLE_NCCL_RMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_net.h"
#include "nibble/nccl_types.h"

/* Versions of which the plugin exports a table, for X(version). */
#define NB_RMA_VERSIONS(X) X(14) X(15) X(16)

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_GIN_PROXY_VERSION 100 /* netDeviceVersion of NCCL_NET_DEVICE_GIN_PROXY */

/* What a signal does to its 64-bit word. */
#define NCCL_NET_SIGNAL_OP_INC 1 /* add 1 */
#define NCCL_NET_SIGNAL_OP_ADD 2 /* add its value */

typedef struct {
    int nContexts;
    int trafficClass;
    int rankStride; /* advice: only ranks that differ by a multiple of it exchange operations */
} ncclRmaConfig_v14_t;

typedef struct {
    bool flushesAllPutsOnAnySignal; /* a signal of any rank shows that all received puts are visible */
} ncclRmaProperties_v16_t;

typedef ncclResult_t ncclRmaInit_v14(void **ctx, uint64_t commId, ncclDebugLogger_t logger);
typedef ncclResult_t ncclRmaListen_v14(void *ctx, int dev, void *handle, void **listenComm);
/* NCCL 2.30.7 passes the net table's ctx. */
typedef ncclResult_t ncclRmaConnect_v14(void *ctx, void *handles[], int nranks, int rank, void *listenComm,
                                        void **collComm);
typedef ncclResult_t ncclRmaCreateContext_v14(void *collComm, ncclRmaConfig_v14_t *config, void **rmaCtx);
typedef ncclResult_t ncclRmaRegMrSym_v14(void *collComm, void *data, size_t size, int type, uint64_t flags,
                                         void **mhandle);
typedef ncclResult_t ncclRmaRegMrSymDmaBuf_v14(void *collComm, void *data, size_t size, int type,
                                               uint64_t offset, int fd, uint64_t flags, void **mhandle);
typedef ncclResult_t ncclRmaDeregMrSym_v14(void *collComm, void *mhandle);
typedef ncclResult_t ncclRmaClose_v14(void *comm);
typedef ncclResult_t ncclRmaPut_v14(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
                                    uint64_t dstOff, void *dstMhandle, uint32_t rank, void **request);
/* A strong signal shows all puts before it, and another one its own put. */
typedef ncclResult_t ncclRmaPutSignal_v14(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle,
                                          size_t size, uint64_t dstOff, void *dstMhandle, uint32_t rank,
                                          uint64_t signalOff, void *signalMhandle, uint64_t signalValue,
                                          uint32_t signalOp, bool isStrongSignal, void **request);
typedef ncclResult_t ncclRmaGet_v14(void *rmaCtx, int context, uint64_t remoteOff, void *remoteMhandle,
                                    size_t size, uint64_t localOff, void *localMhandle, uint32_t rank,
                                    void **request);
/* v15: flags, which permit a plugin to gather operations. They ask for nothing. */
typedef ncclResult_t ncclRmaPut_v15(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
                                    uint64_t dstOff, void *dstMhandle, uint32_t rank, uint32_t flags,
                                    void **request);
typedef ncclResult_t ncclRmaPutSignal_v15(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle,
                                          size_t size, uint64_t dstOff, void *dstMhandle, uint32_t rank,
                                          uint64_t signalOff, void *signalMhandle, uint64_t signalValue,
                                          uint32_t signalOp, bool isStrongSignal, uint32_t flags,
                                          void **request);
typedef ncclResult_t ncclRmaGet_v15(void *rmaCtx, int context, uint64_t remoteOff, void *remoteMhandle,
                                    size_t size, uint64_t localOff, void *localMhandle, uint32_t rank,
                                    uint32_t flags, void **request);
typedef ncclResult_t ncclRmaFlush_v14(void *rmaCtx, int context, void *mhandle, uint32_t rank,
                                      void **request);
typedef ncclResult_t ncclRmaTest_v14(void *collComm, void *request, int *done);
typedef ncclResult_t ncclRmaProgress_v14(void *rmaCtx);
typedef ncclResult_t ncclRmaQueryLastError_v14(void *rmaCtx, bool *hasError);
typedef ncclResult_t ncclRmaGetProperties_v16(void *collComm, ncclRmaProperties_v16_t *props);

typedef struct {
    const char *name;
    ncclRmaInit_v14 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v12 *getProperties;
    ncclRmaListen_v14 *listen;
    ncclRmaConnect_v14 *connect;
    ncclRmaCreateContext_v14 *createContext;
    ncclRmaRegMrSym_v14 *regMrSym;
    ncclRmaRegMrSymDmaBuf_v14 *regMrSymDmaBuf;
    ncclRmaDeregMrSym_v14 *deregMrSym;
    ncclRmaClose_v14 *destroyContext;
    ncclRmaClose_v14 *closeColl;
    ncclRmaClose_v14 *closeListen;
    ncclRmaPut_v14 *iput;
    ncclRmaPutSignal_v14 *iputSignal;
    ncclRmaGet_v14 *iget;
    ncclRmaFlush_v14 *iflush;
    ncclRmaTest_v14 *test;
    ncclRmaProgress_v14 *rmaProgress;
    ncclRmaQueryLastError_v14 *queryLastError;
    ncclNetFinalize_v11 *finalize;
} ncclRma_v14_t;

typedef struct {
    const char *name;
    ncclRmaInit_v14 *init;
    ncclNetDevices_v8 *devices;
    ncclNetGetProperties_v12 *getProperties;
    ncclRmaListen_v14 *listen;
    ncclRmaConnect_v14 *connect;
    ncclRmaCreateContext_v14 *createContext;
    ncclRmaRegMrSym_v14 *regMrSym;
    ncclRmaRegMrSymDmaBuf_v14 *regMrSymDmaBuf;
    ncclRmaDeregMrSym_v14 *deregMrSym;
    ncclRmaClose_v14 *destroyContext;
    ncclRmaClose_v14 *closeColl;
    ncclRmaClose_v14 *closeListen;
    ncclRmaPut_v15 *iput;
    ncclRmaPutSignal_v15 *iputSignal;
    ncclRmaGet_v15 *iget;
    ncclRmaFlush_v14 *iflush;
    ncclRmaTest_v14 *test;
    ncclRmaProgress_v14 *rmaProgress;
    ncclRmaQueryLastError_v14 *queryLastError;
    ncclNetFinalize_v11 *finalize;
} ncclRma_v15_t;

typedef struct {
    const char *name;
    ncclRmaInit_v14 *init;
    ncclNetDevices_v8 *devices;
    ncclRmaGetProperties_v16 *getRmaProperties;
    ncclNetGetProperties_v12 *getProperties;
    ncclRmaListen_v14 *listen;
    ncclRmaConnect_v14 *connect;
    ncclRmaCreateContext_v14 *createContext;
    ncclRmaRegMrSym_v14 *regMrSym;
    ncclRmaRegMrSymDmaBuf_v14 *regMrSymDmaBuf;
    ncclRmaDeregMrSym_v14 *deregMrSym;
    ncclRmaClose_v14 *destroyContext;
    ncclRmaClose_v14 *closeColl;
    ncclRmaClose_v14 *closeListen;
    ncclRmaPut_v15 *iput;
    ncclRmaPutSignal_v15 *iputSignal;
    ncclRmaGet_v15 *iget;
    ncclRmaFlush_v14 *iflush;
    ncclRmaTest_v14 *test;
    ncclRmaProgress_v14 *rmaProgress;
    ncclRmaQueryLastError_v14 *queryLastError;
    ncclNetFinalize_v11 *finalize;
} ncclRma_v16_t;

#ifndef __cplusplus
/* Layouts of 64-bit platforms. */
_Static_assert(sizeof(ncclRma_v14_t) == 168 && sizeof(ncclRma_v15_t) == 168 && sizeof(ncclRma_v16_t) == 176 &&
                   offsetof(ncclRma_v16_t, iput) == 112 && offsetof(ncclRma_v16_t, finalize) == 168 &&
                   sizeof(ncclRmaConfig_v14_t) == 12,
               "NCCL's layout");
#endif

#ifdef __cplusplus
}
#endif

#endif
