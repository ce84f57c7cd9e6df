/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's types that cross the plugin boundary: results, data types, operations, functions and logging. The
 * names and numbers are NCCL's (2.20 to 2.30); newer values were only ever appended.
 */
#ifndef NIBBLE_NCCL_TYPES_H
#define NIBBLE_NCCL_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,   /* the kernel, a library or the hardware failed */
    ncclInternalError = 3, /* NCCL or the plugin broke the contract between them */
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5, /* the user's mistake, e.g. sizes or settings that differ between ranks */
    ncclRemoteError = 6,  /* a peer or the network to it was lost */
    ncclInProgress = 7,
    ncclTimeout = 8,
    ncclNumResults = 9
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10, /* since 2.24 */
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

/* NCCL never passes ncclAvg or a user-made operation to a plugin: they arrive as ncclSum. */
typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

/* Functions as the tuner and the profiler number them. */
typedef enum {
    ncclFuncBroadcast = 0,
    ncclFuncReduce = 1,
    ncclFuncAllGather = 2,
    ncclFuncReduceScatter = 3,
    ncclFuncAllReduce = 4,
    ncclFuncSendRecv = 5,
    ncclFuncSend = 6,
    ncclFuncRecv = 7,
    ncclFuncAlltoAll = 8,
    ncclFuncScatter = 9,
    ncclFuncGather = 10,
    ncclFuncAllGatherV = 11,
    ncclFuncPutSignal = 12,
    ncclFuncSignal = 13,
    ncclFuncWaitSignal = 14,
    ncclNumFuncs = 15
} ncclFunc_t;

typedef enum {
    NCCL_LOG_NONE = 0,
    NCCL_LOG_VERSION = 1,
    NCCL_LOG_WARN = 2,
    NCCL_LOG_INFO = 3,
    NCCL_LOG_ABORT = 4,
    NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Subsystems, or'ed into the logger's `flags`; NCCL_DEBUG_SUBSYS selects among them. */
typedef enum {
    NCCL_INIT = 0x1,
    NCCL_COLL = 0x2,
    NCCL_P2P = 0x4,
    NCCL_SHM = 0x8,
    NCCL_NET = 0x10,
    NCCL_GRAPH = 0x20,
    NCCL_TUNING = 0x40,
    NCCL_ENV = 0x80,
    NCCL_ALLOC = 0x100,
    NCCL_CALL = 0x200,
    NCCL_PROXY = 0x400,
    NCCL_NVLS = 0x800,
    NCCL_BOOTSTRAP = 0x1000,
    NCCL_REG = 0x2000,
    NCCL_PROFILE = 0x4000,
    NCCL_RAS = 0x8000,
    NCCL_DESTROY = 0x10000,
    NCCL_ALLOC_HOST = 0x20000,
    NCCL_ALL = ~0
} ncclDebugLogSubSys;

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                                  const char *fmt, ...);

/* What a network plugin may report to NCCL's profiler about its own events (v10 and later); nibble does
 * not. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **event, int type, void *parent, int64_t plugin_id,
                                               void *data);

#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4

#define NCCL_NET_HANDLE_MAXSIZE 128
#define NCCL_NET_MAX_REQUESTS 32 /* requests in flight on one p2p comm, each of up to maxRecvs messages */
#define NCCL_MAX_NET_SIZE_BYTES (1024LL * 1024 * 1024 * 1024) /* largest maxP2pBytes and maxCollBytes */

/* Found in *request on entry of irecv (v9 and later) when NCCL does not care how many bytes arrived. */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1

#ifdef __cplusplus
}
#endif
#endif
