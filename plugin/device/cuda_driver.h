/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver as nibble uses it: one table of functions, filled by dlopen of libcuda.so.1, so that one
 * build runs with any driver of CUDA 12 and later and loads where there is none. Types and numbers are those
 * of the driver's interface (tests/device/test_cuda_driver.c compares them with cuda.h where that is
 * installed); names of functions carry the version of their signature. Tests put a table of their own in its
 * place.
 */
#ifndef NIBBLE_DEVICE_CUDA_DRIVER_H
#define NIBBLE_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int nb_cu_result; /* CUresult: 0 is success */
typedef int nb_cu_device;
typedef void *nb_cu_context, *nb_cu_module, *nb_cu_function, *nb_cu_stream, *nb_cu_event;
typedef uint64_t nb_cu_ptr;

enum {
    NB_CU_OUT_OF_MEMORY = 2,
    NB_CU_NOT_INITIALIZED = 3,
    NB_CU_NO_DEVICE = 100,

    NB_CU_ATTR_MULTIPROCESSORS = 16,
    NB_CU_ATTR_UNIFIED_ADDRESSING = 41,
    NB_CU_ATTR_CAPABILITY_MAJOR = 75,
    NB_CU_ATTR_VIRTUAL_MEMORY = 102,

    NB_CU_HOST_PORTABLE = 1,
    NB_CU_HOST_DEVICEMAP = 2,
    NB_CU_STREAM_NON_BLOCKING = 1,
    NB_CU_EVENT_DISABLE_TIMING = 2,
    NB_CU_CAPTURE_NONE = 0,
    NB_CU_CAPTURE_MODE_RELAXED = 2,

    NB_CU_POINTER_MEMORY_TYPE = 2,
    NB_CU_POINTER_DEVICE_POINTER = 3,
    NB_CU_POINTER_RANGE_START = 11,
    NB_CU_POINTER_RANGE_SIZE = 12,

    NB_CU_FUNC_LOCAL_BYTES = 3,
    NB_CU_LAUNCH_MEM_SYNC_DOMAIN = 10,
    NB_CU_LAUNCH_DOMAIN_REMOTE = 1,

    NB_CU_ALLOC_PINNED = 1,
    NB_CU_LOCATION_DEVICE = 1,
    NB_CU_ACCESS_READWRITE = 3,
    NB_CU_GRANULARITY_RECOMMENDED = 1,
};

struct nb_cu_launch_attr { /* CUlaunchAttribute */
    int id;
    char pad[4];
    union {
        char pad[64];
        int mem_sync_domain;
    } value;
};

struct nb_cu_launch_config { /* CUlaunchConfig */
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    nb_cu_stream stream;
    struct nb_cu_launch_attr *attrs;
    unsigned nattrs;
};

struct nb_cu_location { /* CUmemLocation */
    int type, id;
};

struct nb_cu_alloc_prop { /* CUmemAllocationProp */
    int type, handle_types;
    struct nb_cu_location location;
    void *win32;
    unsigned char compression, gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

struct nb_cu_access { /* CUmemAccessDesc */
    struct nb_cu_location location;
    int flags;
};

/* name without "cu", arguments */
#define NB_CU_FUNCTIONS(F) \
    F(Init, (unsigned)) \
    F(DriverGetVersion, (int *)) \
    F(GetErrorString, (nb_cu_result, const char **)) \
    F(DeviceGetCount, (int *)) \
    F(DeviceGet, (nb_cu_device *, int)) \
    F(DeviceGetName, (char *, int, nb_cu_device)) \
    F(DeviceGetAttribute, (int *, int, nb_cu_device)) \
    F(DevicePrimaryCtxRetain, (nb_cu_context *, nb_cu_device)) \
    F(DevicePrimaryCtxRelease_v2, (nb_cu_device)) \
    F(CtxPushCurrent_v2, (nb_cu_context)) \
    F(CtxPopCurrent_v2, (nb_cu_context *)) \
    F(CtxGetStreamPriorityRange, (int *, int *)) \
    F(ThreadExchangeStreamCaptureMode, (int *)) \
    F(ModuleLoadData, (nb_cu_module *, const void *)) \
    F(ModuleUnload, (nb_cu_module)) \
    F(ModuleGetFunction, (nb_cu_function *, nb_cu_module, const char *)) \
    F(FuncGetAttribute, (int *, int, nb_cu_function)) \
    F(StreamCreateWithPriority, (nb_cu_stream *, unsigned, int)) \
    F(StreamDestroy_v2, (nb_cu_stream)) \
    F(StreamSynchronize, (nb_cu_stream)) \
    F(StreamWaitEvent, (nb_cu_stream, nb_cu_event, unsigned)) \
    F(StreamIsCapturing, (nb_cu_stream, int *)) \
    F(StreamGetCaptureInfo_v2, (nb_cu_stream, int *, uint64_t *, void *, void *, size_t *)) \
    F(EventCreate, (nb_cu_event *, unsigned)) \
    F(EventDestroy_v2, (nb_cu_event)) \
    F(EventRecord, (nb_cu_event, nb_cu_stream)) \
    F(LaunchKernelEx, (const struct nb_cu_launch_config *, nb_cu_function, void **, void **)) \
    F(MemHostAlloc, (void **, size_t, unsigned)) \
    F(MemFreeHost, (void *)) \
    F(MemHostGetDevicePointer_v2, (nb_cu_ptr *, void *, unsigned)) \
    F(MemAlloc_v2, (nb_cu_ptr *, size_t)) \
    F(MemFree_v2, (nb_cu_ptr)) \
    F(MemGetInfo_v2, (size_t *, size_t *)) \
    F(MemcpyAsync, (nb_cu_ptr, nb_cu_ptr, size_t, nb_cu_stream)) \
    F(MemsetD8Async, (nb_cu_ptr, unsigned char, size_t, nb_cu_stream)) \
    F(MemsetD32Async, (nb_cu_ptr, unsigned, size_t, nb_cu_stream)) \
    F(MemGetAllocationGranularity, (size_t *, const struct nb_cu_alloc_prop *, int)) \
    F(MemAddressReserve, (nb_cu_ptr *, size_t, size_t, nb_cu_ptr, unsigned long long)) \
    F(MemAddressFree, (nb_cu_ptr, size_t)) \
    F(MemCreate, (unsigned long long *, size_t, const struct nb_cu_alloc_prop *, unsigned long long)) \
    F(MemRelease, (unsigned long long)) \
    F(MemMap, (nb_cu_ptr, size_t, size_t, unsigned long long, unsigned long long)) \
    F(MemUnmap, (nb_cu_ptr, size_t)) \
    F(MemSetAccess, (nb_cu_ptr, size_t, const struct nb_cu_access *, size_t)) \
    F(PointerGetAttribute, (void *, int, nb_cu_ptr))

struct nb_cuda {
#define NB_CU_MEMBER(name, args) nb_cu_result(*name) args;
    NB_CU_FUNCTIONS(NB_CU_MEMBER)
#undef NB_CU_MEMBER
    const void *image; /* the kernels, for ModuleLoadData; NULL: built without nvcc */
    void *library;     /* NULL in a test's table */
};

/* The driver, opened and initialised; one reference. 0, or -ENODEV where there is no driver, no GPU or no
 * function that is needed: `why` (of `cap` bytes) then says so, and nothing is logged. Any thread. */
int nb_cuda_open(const struct nb_cuda **cu, char *why, size_t cap);
void nb_cuda_close(void);

/* For tests: the table that nb_cuda_open gives (NULL: the driver's, as usual). Not while it is open. */
void nb_cuda_override(const struct nb_cuda *table);

/* 0 for success; else -ENOMEM or -EIO after a WARN that names the call, CUDA's error and what it was for. */
int nb_cuda_check(const struct nb_cuda *cu, nb_cu_result result, const char *call, const char *what);
#define NB_CU(cu, what, call) nb_cuda_check((cu), (cu)->call, "cu" #call, (what))

#endif
