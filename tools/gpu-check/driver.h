/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver's functions for the launching experiments, opened at run time: streams, events, graphs,
 * pinned memory. Names are the driver's without "cu". Functions return the driver's result, 0 for success.
 */
#ifndef NIBBLE_TOOLS_GPU_CHECK_DRIVER_H
#define NIBBLE_TOOLS_GPU_CHECK_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUnode;

#define NB_CU_NOT_READY 600
#define NB_CU_STREAM_NON_BLOCKING 1u
#define NB_CU_EVENT_DISABLE_TIMING 2u
#define NB_CU_CAPTURE_RELAXED 2
#define NB_CU_HOST_MAPPED 2u
#define NB_CU_MEMORY_TYPE 2      /* CU_POINTER_ATTRIBUTE_ */
#define NB_CU_PINNED 1           /* CU_MEM_ALLOCATION_TYPE_ */
#define NB_CU_ON_DEVICE 1        /* CU_MEM_LOCATION_TYPE_ */
#define NB_CU_READ_WRITE 3       /* CU_MEM_ACCESS_FLAGS_PROT_ */
#define NB_CU_PRIORITY 8         /* CU_LAUNCH_ATTRIBUTE_ */
#define NB_CU_MULTIPROCESSORS 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */

struct nb_cu_kind { /* CUmemAllocationProp */
    int type, handles, location, device;
    void *attributes;
    unsigned char flags[8];
};

struct nb_cu_may { /* CUmemAccessDesc */
    int location, device, flags;
};

struct nb_cu_node { /* CUDA_KERNEL_NODE_PARAMS, second version */
    CUfunction f;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
    void *kernel;
    CUcontext context;
};

struct nb_cu_update { /* CUgraphExecUpdateResultInfo */
    int result;
    CUnode at, from;
};

/* X(function, arguments): every entry point, so that the table and the look-up cannot differ. */
#define NB_CU_CALLS(X) \
    X(Init, (unsigned)) \
    X(GetErrorString, (int, const char **)) \
    X(DriverGetVersion, (int *)) \
    X(DeviceGetCount, (int *)) \
    X(DeviceGet, (int *, int)) \
    X(DeviceGetName, (char *, int, int)) \
    X(DeviceGetAttribute, (int *, int, int)) \
    X(DevicePrimaryCtxRetain, (CUcontext *, int)) \
    X(CtxSetCurrent, (CUcontext)) \
    X(CtxPushCurrent_v2, (CUcontext)) \
    X(PointerGetAttribute, (void *, int, uint64_t)) \
    X(CtxGetStreamPriorityRange, (int *, int *)) \
    X(ModuleLoadData, (CUmodule *, const void *)) \
    X(ModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(MemHostAlloc, (void **, size_t, unsigned)) \
    X(MemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned)) \
    X(MemAlloc_v2, (uint64_t *, size_t)) \
    X(MemsetD8_v2, (uint64_t, unsigned char, size_t)) \
    X(MemsetD32Async, (uint64_t, unsigned, size_t, CUstream)) \
    X(MemFree_v2, (uint64_t)) \
    X(MemFreeHost, (void *)) \
    X(MemGetAllocationGranularity, (size_t *, const struct nb_cu_kind *, int)) \
    X(MemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, unsigned long long)) \
    X(MemCreate, (unsigned long long *, size_t, const struct nb_cu_kind *, unsigned long long)) \
    X(MemMap, (uint64_t, size_t, size_t, unsigned long long, unsigned long long)) \
    X(MemUnmap, (uint64_t, size_t)) \
    X(MemSetAccess, (uint64_t, size_t, const struct nb_cu_may *, size_t)) \
    X(StreamCreateWithPriority, (CUstream *, unsigned, int)) \
    X(StreamWaitEvent, (CUstream, CUevent, unsigned)) \
    X(StreamQuery, (CUstream)) \
    X(StreamBeginCapture_v2, (CUstream, int)) \
    X(StreamEndCapture, (CUstream, CUgraph *)) \
    X(GraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(GraphUpload, (CUgraphExec, CUstream)) \
    X(GraphLaunch, (CUgraphExec, CUstream)) \
    X(GraphAddKernelNode_v2, (CUnode *, CUgraph, const CUnode *, size_t, const struct nb_cu_node *)) \
    X(GraphKernelNodeSetAttribute, (CUnode, int, const void *)) \
    X(GraphGetNodes, (CUgraph, CUnode *, size_t *)) \
    X(GraphExecUpdate_v2, (CUgraphExec, CUgraph, struct nb_cu_update *)) \
    X(GraphExecDestroy, (CUgraphExec)) \
    X(GraphDestroy, (CUgraph)) \
    X(CtxSynchronize, (void)) \
    X(StreamSynchronize, (CUstream)) \
    X(MemcpyHtoD_v2, (uint64_t, const void *, size_t)) \
    X(EventCreate, (CUevent *, unsigned)) \
    X(EventRecord, (CUevent, CUstream)) \
    X(EventSynchronize, (CUevent)) \
    X(LaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                     CUstream, void **, void **))

struct nb_cu {
#define X(name, arguments) int(*name) arguments;
    NB_CU_CALLS(X)
#undef X
};

extern struct nb_cu nb_cu;
extern const unsigned char nb_launch_image[];
extern const size_t nb_launch_image_bytes;

/* Open the driver and initialise it. Return 0, or 77 after a line that names the missing part. */
int nb_cu_open(void);

/* Leave the program with a message if a call failed. */
void nb_cu_check(int result, const char *what);
#define CU(call) nb_cu_check(nb_cu.call, #call)

#endif
