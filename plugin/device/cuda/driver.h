/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: the CUDA driver, a GPU's primary context, and the arena of GPU memory. */
#ifndef NIBBLE_DEVICE_CUDA_DRIVER_H
#define NIBBLE_DEVICE_CUDA_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- driver.c: the driver ------------------------------------------------------------------------------ */

typedef int nb_cu_result; /* CUresult: 0 is success */
typedef int nb_cu_device;
typedef void *nb_cu_context, *nb_cu_module, *nb_cu_function, *nb_cu_stream, *nb_cu_event, *nb_cu_graph,
    *nb_cu_graph_exec;
typedef uint64_t nb_cu_ptr;

enum {
    NB_CU_OUT_OF_MEMORY = 2,
    NB_CU_NOT_INITIALIZED = 3,
    NB_CU_NO_DEVICE = 100,

    NB_CU_ATTR_MULTIPROCESSORS = 16,
    NB_CU_ATTR_UNIFIED_ADDRESSING = 41,
    NB_CU_ATTR_CAPABILITY_MAJOR = 75,
    NB_CU_ATTR_BLOCK_SHARED = 97, /* shared memory of a block, at most: MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    NB_CU_ATTR_VIRTUAL_MEMORY = 102,
    NB_CU_ATTR_RDMA_OF_VIRTUAL_MEMORY = 110, /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
    NB_CU_ATTR_DMABUF = 124,

    NB_CU_HOST_PORTABLE = 1,
    NB_CU_HOST_DEVICEMAP = 2,
    NB_CU_STREAM_NON_BLOCKING = 1,
    NB_CU_EVENT_DISABLE_TIMING = 2,
    NB_CU_CAPTURE_NONE = 0,
    NB_CU_CAPTURE_INVALIDATED = 2,
    NB_CU_CAPTURE_MODE_RELAXED = 2,

    NB_CU_POINTER_MEMORY_TYPE = 2,
    NB_CU_POINTER_DEVICE_POINTER = 3,
    NB_CU_POINTER_RANGE_START = 11,
    NB_CU_POINTER_RANGE_SIZE = 12,

    NB_CU_FUNC_MOST_THREADS = 0, /* of a block */
    NB_CU_FUNC_LOCAL_BYTES = 3,
    NB_CU_FUNC_DYNAMIC_SHARED = 8, /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
    NB_CU_LAUNCH_MEM_SYNC_DOMAIN = 10,
    NB_CU_LAUNCH_DOMAIN_REMOTE = 1,

    NB_CU_ALLOC_PINNED = 1,
    NB_CU_LOCATION_DEVICE = 1,
    NB_CU_ACCESS_READWRITE = 3,
    NB_CU_GRANULARITY_RECOMMENDED = 1,
    NB_CU_HANDLE_DMABUF = 1, /* of an address range */
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

struct nb_cu_graph_update { /* CUgraphExecUpdateResultInfo */
    int result;
    void *node, *from;
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
    F(FuncSetAttribute, (nb_cu_function, int, int)) \
    F(StreamCreateWithPriority, (nb_cu_stream *, unsigned, int)) \
    F(StreamDestroy_v2, (nb_cu_stream)) \
    F(StreamSynchronize, (nb_cu_stream)) \
    F(StreamWaitEvent, (nb_cu_stream, nb_cu_event, unsigned)) \
    F(StreamGetFlags, (nb_cu_stream, unsigned *)) \
    F(StreamGetCaptureInfo_v2, (nb_cu_stream, int *, uint64_t *, void *, void *, size_t *)) \
    F(StreamBeginCapture_v2, (nb_cu_stream, int)) \
    F(StreamEndCapture, (nb_cu_stream, nb_cu_graph *)) \
    F(GraphInstantiateWithFlags, (nb_cu_graph_exec *, nb_cu_graph, unsigned long long)) \
    F(GraphExecUpdate_v2, (nb_cu_graph_exec, nb_cu_graph, struct nb_cu_graph_update *)) \
    F(GraphLaunch, (nb_cu_graph_exec, nb_cu_stream)) \
    F(GraphExecDestroy, (nb_cu_graph_exec)) \
    F(GraphDestroy, (nb_cu_graph)) \
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
    F(MemGetHandleForAddressRange, (void *, nb_cu_ptr, size_t, int, unsigned long long)) \
    F(PointerGetAttribute, (void *, int, nb_cu_ptr))

struct nb_cuda {
#define NB_CU_MEMBER(name, args) nb_cu_result(*name) args;
    NB_CU_FUNCTIONS(NB_CU_MEMBER)
#undef NB_CU_MEMBER
    const void *image; /* the kernels, for ModuleLoadData. NULL: built without nvcc */
    int image_cuda;    /* version of the CUDA that compiled them, as DriverGetVersion's */
    void *library;     /* NULL in a test's table */
};

/* Open and initialise the driver, with one reference. Return 0, or -ENODEV where the driver, a GPU or a
 * required function is missing. `why` (of `cap` bytes) then has the reason, without a log line. Any
 * thread. */
int nb_cuda_open(const struct nb_cuda **cu, char *why, size_t cap);
void nb_cuda_close(void);

/* For tests: set the table that nb_cuda_open gives. NULL: the driver's. Not while it is open. */
void nb_cuda_override(const struct nb_cuda *table);

/* Return 0 for success, else -ENOMEM or -EIO after a WARN that names the call, CUDA's error and the
 * purpose. */
int nb_cuda_check(const struct nb_cuda *cu, nb_cu_result result, const char *call, const char *what);
#define NB_CU(cu, what, call) nb_cuda_check((cu), (cu)->call, "cu" #call, (what))

/* ---- driver.c: a GPU's primary context ----------------------------------------------------------------- */

struct nb_cuda_context {
    const struct nb_cuda *cu; /* the driver */
    int ordinal;              /* of the GPU */
    nb_cu_device device;
    nb_cu_context context;
};

/* Open the driver and retain the context of GPU `ordinal`. Return 0, -ENODEV without a usable driver (with
 * the reason in `why`, of `cap` bytes, and without a log line), or -ENOMEM or -EIO after a WARN. Close it
 * once after success, with no context current. */
int nb_cuda_context_open(struct nb_cuda_context *context, int ordinal, char *why, size_t cap);
void nb_cuda_context_close(struct nb_cuda_context *context);

/* Make the context current, in the relaxed capture mode: this thread may then make calls that a capture on
 * another thread would forbid. Return 0 and *mode, to be passed to leave, or -ENOMEM or -EIO after a WARN.
 * Leave only after success. */
int nb_cuda_enter(const struct nb_cuda_context *context, int *mode);
void nb_cuda_leave(const struct nb_cuda_context *context, int mode);

/* Return `bytes` of pinned memory, zeroed, that the GPU sees at the same address, or NULL after a WARN. The
 * caller frees it. The functions enter by themselves. */
void *nb_cuda_pinned(const struct nb_cuda_context *context, size_t bytes);
void nb_cuda_unpin(const struct nb_cuda_context *context, void *p); /* NULL is allowed */

/* Return a file descriptor for GPU memory (a DMA-BUF), which the caller closes, or a negative errno where
 * the GPU has none. `bytes` are rounded up to whole pages. It enters by itself. */
int nb_cuda_dmabuf(const struct nb_cuda_context *context, nb_cu_ptr at, size_t bytes);

/* ---- arena.c: GPU memory ------------------------------------------------------------------------------- */

struct nb_arena_block { /* a range of the arena, used or free, in the order of addresses */
    nb_cu_ptr at;
    size_t bytes;
    int used;
    struct nb_arena_block *next;
};

struct nb_arena_map { /* physical memory behind a part of the arena */
    nb_cu_ptr at;
    size_t bytes;
    unsigned long long handle; /* 0: from cuMemAlloc */
    bool whole;                /* of nb_arena_take_whole */
    struct nb_arena_map *next;
};

struct nb_arena {
    const struct nb_cuda_context *cuda;
    int virtual_memory; /* memory is mapped on demand, behind reserved addresses. 0: one cuMemAlloc */
    nb_cu_ptr base;
    size_t reserved, mapped, used, peak, granularity; /* bytes */
    size_t placed; /* bytes of addresses mapped or about to be, where several threads make it grow */
    bool told_full;
    bool for_adapters; /* all of it is memory that adapters can be given */
    /* Called with new memory before anybody gets it, entered and without the lock of the calls below. bytes
     * 0: it is gone again. NULL: nobody asks. */
    void (*made)(void *arg, nb_cu_ptr at, size_t bytes);
    void *made_arg;
    size_t keep;             /* bytes of the GPU's memory that the arena leaves to the job */
    uint64_t grown, refused; /* counters: growths, and allocations refused for lack of memory */
    struct nb_arena_block *blocks;
    struct nb_arena_map *maps;
};

/* Reserve addresses, and map the first part. `keep`: bytes of the GPU's memory that are left to the job.
 * `for_adapters`: adapters will be given the memory, where the GPU has such memory. Return 0, or a negative
 * errno after a WARN. Call nb_arena_close in either case. */
int nb_arena_open(struct nb_arena *arena, const struct nb_cuda_context *cuda, size_t keep, bool for_adapters);
void nb_arena_close(struct nb_arena *arena);

/* Free only the host's memory. Call it instead of nb_arena_close where the GPU's context cannot be
 * entered. */
void nb_arena_forget(struct nb_arena *arena);

/* Return the address of `bytes` of GPU memory, not zeroed, aligned to 256 bytes, or 0 without memory. `take`
 * grows the arena where it has to, with `lock` as in nb_arena_grow. `cut`, with the lock held, works without
 * the driver and without a context. */
nb_cu_ptr nb_arena_take(struct nb_arena *arena, size_t bytes, pthread_mutex_t *lock);
nb_cu_ptr nb_arena_cut(struct nb_arena *arena, size_t bytes);
/* Map `bytes` more. Return 0, or a negative errno after a log line. `lock` protects the arena from other
 * threads. nb_arena_grow holds it for the arena's lists only, never across a call of the driver. NULL: there
 * is no other thread. */
int nb_arena_grow(struct nb_arena *arena, size_t bytes, pthread_mutex_t *lock);
/* Return the address of `bytes` of GPU memory behind one mapping of its own, which adapters may be given,
 * or 0 where the GPU has no such memory, after a log line. `lock` as in nb_arena_grow. `give_whole`, with the
 * lock held: let the arena use it as other memory, or for the next take_whole. */
nb_cu_ptr nb_arena_take_whole(struct nb_arena *arena, size_t bytes, pthread_mutex_t *lock);
void nb_arena_give_whole(struct nb_arena *arena, nb_cu_ptr at);
/* Give back memory of nb_arena_take. It stays the arena's. */
void nb_arena_give(struct nb_arena *arena, nb_cu_ptr at);

#endif
