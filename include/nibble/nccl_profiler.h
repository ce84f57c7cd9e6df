/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks up in a profiler plugin: ncclProfiler_vN (without "Plugin" in the name), N from
 * 4 (NCCL 2.27) to 7 (2.31). Names and layouts are NCCL's, the declarations are our own. Assertions at the
 * end check sizes and offsets. Each description of v5, v6 and v7 begins with the description of the version
 * before.
 *
 *  - init writes the mask of wanted events into a variable that all communicators of the process share. When
 *    init fails NCCL may still deliver events, with a NULL context.
 *  - startEvent should always write *event: otherwise NCCL keeps the value of an earlier event.
 *  - A CollApi event (v5 and later) starts and stops inside the user's call. The Coll event that names it as
 *    its parent follows when NCCL launches the operation. At every launch of a captured graph it follows
 *    again, then from a CUDA host callback.
 *  - Texts ("AllReduce", "ncclFloat32", "COLLNET_DIRECT", "SIMPLE") are NCCL's constants.
 */
#ifndef NIBBLE_NCCL_PROFILER_H
#define NIBBLE_NCCL_PROFILER_H

/* The versions of this table, for code that iterates over them. */
#define NB_PROFILER_VERSIONS(X) X(4) X(5) X(6) X(7)
#define NB_PROFILER_OLDEST 4
#define NB_PROFILER_NEWEST 7

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nibble/nccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Events, bits of the mask. */
enum {
    ncclProfileGroup = 1 << 0,
    ncclProfileColl = 1 << 1, /* an operation is launched */
    ncclProfileP2p = 1 << 2,
    ncclProfileProxyOp = 1 << 3,
    ncclProfileProxyStep = 1 << 4,
    ncclProfileProxyCtrl = 1 << 5,
    ncclProfileKernelCh = 1 << 6,
    ncclProfileNetPlugin = 1 << 7,
    ncclProfileGroupApi = 1 << 8,
    ncclProfileCollApi = 1 << 9, /* the user calls a collective */
    ncclProfileP2pApi = 1 << 10,
    ncclProfileKernelLaunch = 1 << 11,
    ncclProfileCeColl = 1 << 12,
    ncclProfileCeSync = 1 << 13,
    ncclProfileCeBatch = 1 << 14,
    ncclProfileKernelPhase = 1 << 15
};

/* Numbers of state changes. nibble ignores all of them. */
typedef int ncclProfilerEventState_v4_t;
typedef int ncclProfilerEventState_v5_t;
typedef int ncclProfilerEventState_v6_t;
typedef int ncclProfilerEventState_v7_t;

/* ---- Descriptions of events ------------------------------------------------------------------------ */

struct nb_prof_group_api {
    bool graphCaptured;
    int groupDepth;
};

struct nb_prof_coll_api {
    const char *func;
    size_t count;
    const char *datatype; /* the caller's, also of an all-gather */
    int root;
    void *stream;
    bool graphCaptured;
};

struct nb_prof_coll_api_v7 {
    const char *func;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    bool graphCaptured;
    uint64_t userTag; /* the caller's, from the configuration of the call */
};

struct nb_prof_p2p_api {
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    bool graphCaptured;
};

struct nb_prof_p2p_api_v7 {
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    bool graphCaptured;
    uint64_t userTag;
};

struct nb_prof_kernel_launch {
    void *stream;
};

/* All-gathers and broadcasts appear as ncclInt8 with a count of bytes. nChannels is 0 for CollNet. */
struct nb_prof_coll_v4 {
    uint64_t seqNumber; /* of the function on this communicator; not advanced by captured operations */
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
};

struct nb_prof_coll_v5 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
    void *parentGroup;
};

/* An operation that a kernel for symmetric memory carries out has isSymColl, the kernel's full name in
 * kernelVariant, and a part of that name as its algorithm. kernelVariant is NULL for other operations. */
struct nb_prof_coll_v7 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
    void *parentGroup;
    const char *kernelVariant;
    bool isSymColl;
    uint64_t userTag;
};

struct nb_prof_p2p_v4 {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
};

struct nb_prof_p2p_v5 {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
    void *parentGroup;
};

struct nb_prof_p2p_v7 {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
    void *parentGroup;
    uint64_t userTag;
};

struct nb_prof_proxy_op {
    pid_t pid;
    uint8_t channelId;
    int peer;
    int nSteps;
    int chunkSize;
    int isSend;
};

struct nb_prof_kernel_ch {
    uint8_t channelId;
    uint64_t pTimer;
};

struct nb_prof_net_plugin {
    int64_t id;
    void *data;
};

struct nb_prof_ce_coll {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    const char *syncStrategy;
    bool intraBatchSync;
    uint32_t batchSize;
    uint32_t numBatches;
    uint32_t ceSeqNum;
    void *stream;
};

struct nb_prof_ce_coll_v7 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    const char *syncStrategy;
    bool intraBatchSync;
    uint32_t batchSize;
    uint32_t numBatches;
    uint32_t ceSeqNum;
    void *stream;
    uint64_t userTag;
};

struct nb_prof_kernel_phase {
    uint8_t channelId;
    uint8_t phaseId;
    const char *phaseName;
    uint64_t pTimer;
};

typedef struct {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct nb_prof_coll_v4 coll;
        struct nb_prof_p2p_v4 p2p;
        struct nb_prof_proxy_op proxyOp;
        struct {
            int step;
        } proxyStep;
        struct nb_prof_kernel_ch kernelCh;
        struct nb_prof_net_plugin netPlugin;
    };
} ncclProfilerEventDescr_v4_t;

typedef struct {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct nb_prof_group_api groupApi;
        struct nb_prof_coll_api collApi;
        struct nb_prof_p2p_api p2pApi;
        struct nb_prof_kernel_launch kernelLaunch;
        struct nb_prof_coll_v5 coll;
        struct nb_prof_p2p_v5 p2p;
        struct nb_prof_proxy_op proxyOp;
        struct {
            int step;
        } proxyStep;
        struct nb_prof_kernel_ch kernelCh;
        struct nb_prof_net_plugin netPlugin;
    };
} ncclProfilerEventDescr_v5_t;

typedef struct {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct nb_prof_group_api groupApi;
        struct nb_prof_coll_api collApi;
        struct nb_prof_p2p_api p2pApi;
        struct nb_prof_kernel_launch kernelLaunch;
        struct nb_prof_coll_v5 coll;
        struct nb_prof_p2p_v5 p2p;
        struct nb_prof_proxy_op proxyOp;
        struct {
            int step;
        } proxyStep;
        struct nb_prof_kernel_ch kernelCh;
        struct nb_prof_net_plugin netPlugin;
        struct nb_prof_ce_coll ceColl;
        struct {
            bool isComplete;
            int nRanks;
        } ceCollSync;
        struct {
            int numOps;
            size_t totalBytes;
            bool useIntraSync;
        } ceCollBatch;
    };
} ncclProfilerEventDescr_v6_t;

typedef struct {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct nb_prof_group_api groupApi;
        struct nb_prof_coll_api_v7 collApi;
        struct nb_prof_p2p_api_v7 p2pApi;
        struct nb_prof_kernel_launch kernelLaunch;
        struct nb_prof_coll_v7 coll;
        struct nb_prof_p2p_v7 p2p;
        struct nb_prof_proxy_op proxyOp;
        struct {
            int step;
        } proxyStep;
        struct nb_prof_kernel_ch kernelCh;
        struct nb_prof_net_plugin netPlugin;
        struct nb_prof_ce_coll_v7 ceColl;
        struct {
            bool isComplete;
            int nRanks;
        } ceCollSync;
        struct {
            int numOps;
            size_t totalBytes;
            bool useIntraSync;
        } ceCollBatch;
        struct nb_prof_kernel_phase kernelPhase;
    };
} ncclProfilerEventDescr_v7_t;

/* What comes with a state change; same size in all versions. */
typedef union {
    struct {
        size_t transSize;
    } proxyStep;
    struct {
        int appendedProxyOps;
    } proxyCtrl;
    struct {
        void *data;
    } netPlugin;
    struct {
        uint64_t pTimer;
    } kernelCh;
} ncclProfilerEventStateArgs_v4_t;
typedef ncclProfilerEventStateArgs_v4_t ncclProfilerEventStateArgs_v5_t;
typedef ncclProfilerEventStateArgs_v4_t ncclProfilerEventStateArgs_v6_t;
typedef ncclProfilerEventStateArgs_v4_t ncclProfilerEventStateArgs_v7_t;

/* ---- Tables ---------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, int *eActivationMask, const char *commName, uint64_t commHash,
                         int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
    ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v4_t *eDescr);
    ncclResult_t (*stopEvent)(void *eHandle);
    ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v4_t eState,
                                     ncclProfilerEventStateArgs_v4_t *eStateArgs);
    ncclResult_t (*finalize)(void *context);
} ncclProfiler_v4_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t commId, int *eActivationMask, const char *commName,
                         int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
    ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v5_t *eDescr);
    ncclResult_t (*stopEvent)(void *eHandle);
    ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v5_t eState,
                                     ncclProfilerEventStateArgs_v5_t *eStateArgs);
    ncclResult_t (*finalize)(void *context);
} ncclProfiler_v5_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t commId, int *eActivationMask, const char *commName,
                         int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
    ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v6_t *eDescr);
    ncclResult_t (*stopEvent)(void *eHandle);
    ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v6_t eState,
                                     ncclProfilerEventStateArgs_v6_t *eStateArgs);
    ncclResult_t (*finalize)(void *context);
} ncclProfiler_v6_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t commId, int *eActivationMask, const char *commName,
                         int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
    ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v7_t *eDescr);
    ncclResult_t (*stopEvent)(void *eHandle);
    ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v7_t eState,
                                     ncclProfilerEventStateArgs_v7_t *eStateArgs);
    ncclResult_t (*finalize)(void *context);
} ncclProfiler_v7_t;

/* ---- Layout ---------------------------------------------------------------------------------------- */

#if !defined(__cplusplus) && UINTPTR_MAX == UINT64_MAX
#define NB_PROF_AT(type, member, offset) \
    _Static_assert(offsetof(type, member) == (offset), #type "." #member " is not where NCCL has it")
#define NB_PROF_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " does not have NCCL's size")

NB_PROF_SIZE(ncclProfilerEventDescr_v4_t, 104);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, type, 0);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, parentObj, 8);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, rank, 16);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.seqNumber, 24);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.func, 32);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.sendBuff, 40);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.recvBuff, 48);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.count, 56);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.datatype, 72);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.nChannels, 80);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.algo, 88);
NB_PROF_AT(ncclProfilerEventDescr_v4_t, coll.proto, 96);

NB_PROF_SIZE(ncclProfilerEventDescr_v5_t, 112);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, parentObj, 8);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, rank, 16);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, collApi.func, 24);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, collApi.count, 32);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, collApi.datatype, 40);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, collApi.stream, 56);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, collApi.graphCaptured, 64);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, coll.seqNumber, 24);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, coll.count, 56);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, coll.datatype, 72);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, coll.algo, 88);
NB_PROF_AT(ncclProfilerEventDescr_v5_t, coll.parentGroup, 104);

NB_PROF_SIZE(ncclProfilerEventDescr_v6_t, 112);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, parentObj, 8);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, collApi.graphCaptured, 64);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, coll.count, 56);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, coll.algo, 88);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, coll.parentGroup, 104);
NB_PROF_AT(ncclProfilerEventDescr_v6_t, ceColl.stream, 104);

NB_PROF_SIZE(ncclProfilerEventDescr_v7_t, 136);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, parentObj, 8);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, collApi.graphCaptured, 64);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, collApi.userTag, 72);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, p2pApi.userTag, 64);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.count, 56);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.algo, 88);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.parentGroup, 104);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.kernelVariant, 112);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.isSymColl, 120);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, coll.userTag, 128);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, p2p.userTag, 72);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, ceColl.stream, 104);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, ceColl.userTag, 112);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, kernelPhase.phaseId, 25);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, kernelPhase.phaseName, 32);
NB_PROF_AT(ncclProfilerEventDescr_v7_t, kernelPhase.pTimer, 40);

NB_PROF_SIZE(ncclProfilerEventStateArgs_v4_t, 8);
NB_PROF_SIZE(ncclProfiler_v4_t, 48);
NB_PROF_SIZE(ncclProfiler_v5_t, 48);
NB_PROF_SIZE(ncclProfiler_v6_t, 48);
NB_PROF_SIZE(ncclProfiler_v7_t, 48);
#endif

#ifdef __cplusplus
}
#endif
#endif
