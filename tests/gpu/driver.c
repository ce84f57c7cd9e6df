/* SPDX-License-Identifier: Apache-2.0 */
/* See driver.h. Types and numbers come from the driver's interface, version 12 and later. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

#define MULTIPROCESSOR_COUNT 16 /* CU_DEVICE_ATTRIBUTE_ */
#define CAPABILITY_MAJOR 75
#define BLOCK_SHARED 97  /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
#define MOST_THREADS 0   /* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
#define DYNAMIC_SHARED 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
#define MEM_ATTACH_GLOBAL 1u
#define HOST_PORTABLE_MAPPED 3u

static struct {
    CUresult (*Init)(unsigned);
    CUresult (*GetErrorString)(CUresult, const char **);
    CUresult (*DeviceGetCount)(int *);
    CUresult (*DeviceGet)(CUdevice *, int);
    CUresult (*DeviceGetName)(char *, int, CUdevice);
    CUresult (*DeviceGetAttribute)(int *, int, CUdevice);
    CUresult (*DevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*DevicePrimaryCtxRelease_v2)(CUdevice);
    CUresult (*CtxSetCurrent)(CUcontext);
    CUresult (*CtxSynchronize)(void);
    CUresult (*ModuleLoadData)(CUmodule *, const void *);
    CUresult (*ModuleGetFunction)(CUfunction *, CUmodule, const char *);
    CUresult (*FuncGetAttribute)(int *, int, CUfunction);
    CUresult (*FuncSetAttribute)(CUfunction, int, int);
    CUresult (*MemAlloc_v2)(uint64_t *, size_t);
    CUresult (*MemAllocManaged)(uint64_t *, size_t, unsigned);
    CUresult (*MemHostAlloc)(void **, size_t, unsigned);
    CUresult (*MemFree_v2)(uint64_t);
    CUresult (*MemsetD8_v2)(uint64_t, unsigned char, size_t);
    CUresult (*MemcpyHtoD_v2)(uint64_t, const void *, size_t);
    CUresult (*MemcpyDtoH_v2)(void *, uint64_t, size_t);
    CUresult (*MemcpyDtoDAsync_v2)(uint64_t, uint64_t, size_t, CUstream);
    CUresult (*LaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream, void **, void **);
    CUresult (*EventCreate)(CUevent *, unsigned);
    CUresult (*EventRecord)(CUevent, CUstream);
    CUresult (*EventSynchronize)(CUevent);
    CUresult (*EventElapsedTime)(float *, CUevent, CUevent);
} cu;

static const struct {
    const char *name;
    void *at;
} symbols[] = {
#define SYMBOL(x) \
    { \
        "cu" #x, &cu.x \
    }
    SYMBOL(Init),
    SYMBOL(GetErrorString),
    SYMBOL(DeviceGetCount),
    SYMBOL(DeviceGet),
    SYMBOL(DeviceGetName),
    SYMBOL(DeviceGetAttribute),
    SYMBOL(DevicePrimaryCtxRetain),
    SYMBOL(DevicePrimaryCtxRelease_v2),
    SYMBOL(CtxSetCurrent),
    SYMBOL(CtxSynchronize),
    SYMBOL(ModuleLoadData),
    SYMBOL(ModuleGetFunction),
    SYMBOL(FuncGetAttribute),
    SYMBOL(FuncSetAttribute),
    SYMBOL(MemAlloc_v2),
    SYMBOL(MemAllocManaged),
    SYMBOL(MemHostAlloc),
    SYMBOL(MemFree_v2),
    SYMBOL(MemsetD8_v2),
    SYMBOL(MemcpyHtoD_v2),
    SYMBOL(MemcpyDtoH_v2),
    SYMBOL(MemcpyDtoDAsync_v2),
    SYMBOL(LaunchKernel),
    SYMBOL(EventCreate),
    SYMBOL(EventRecord),
    SYMBOL(EventSynchronize),
    SYMBOL(EventElapsedTime),
};

static void *library;
static CUdevice device;
static CUfunction kernel;
static CUevent begun, ended;
static char device_name[128];
static int multiprocessors, major;
unsigned driver_teams = NB_GPU_TEAMS;

static void check(CUresult result, const char *what)
{
    const char *text = "unknown error";
    if (result == 0)
        return;
    cu.GetErrorString(result, &text);
    fprintf(stderr, "%s: %s (%d)\n", what, text, result);
    exit(1);
}

#define CHECK(call) check(call, #call)

int driver_open(void)
{
    CUcontext context;
    CUmodule module;
    int count = 0, shared = 0, threads = 0;

    if (!nb_gpu_image_bytes) {
        printf("skipped: built without nvcc\n");
        return 77;
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("skipped: no CUDA driver (%s)\n", dlerror());
        return 77;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
        void *f = dlsym(library, symbols[i].name);
        if (!f) {
            printf("skipped: this CUDA driver has no %s\n", symbols[i].name);
            return 77;
        }
        *(void **)symbols[i].at = f;
    }
    CUresult result = cu.Init(0);
    if (result || cu.DeviceGetCount(&count) || count == 0) {
        printf("skipped: no CUDA device (cuInit gives %d)\n", result);
        return 77;
    }
    CHECK(cu.DeviceGet(&device, 0));
    CHECK(cu.DeviceGetName(device_name, sizeof(device_name), device));
    CHECK(cu.DeviceGetAttribute(&multiprocessors, MULTIPROCESSOR_COUNT, device));
    CHECK(cu.DeviceGetAttribute(&major, CAPABILITY_MAJOR, device));
    CHECK(cu.DevicePrimaryCtxRetain(&context, device));
    CHECK(cu.CtxSetCurrent(context));
    CHECK(cu.ModuleLoadData(&module, nb_gpu_image));
    CHECK(cu.ModuleGetFunction(&kernel, module, NB_GPU_KERNEL));
    CHECK(cu.DeviceGetAttribute(&shared, BLOCK_SHARED, device));
    if (driver_teams * NB_GPU_TEAM_SHARED > (unsigned)shared)
        driver_teams = (unsigned)shared / NB_GPU_TEAM_SHARED;
    CHECK(cu.FuncGetAttribute(&threads, MOST_THREADS, kernel));
    if (driver_teams > (unsigned)threads / NB_GPU_THREADS)
        driver_teams = (unsigned)threads / NB_GPU_THREADS;
    CHECK(cu.FuncSetAttribute(kernel, DYNAMIC_SHARED, (int)(driver_teams * NB_GPU_TEAM_SHARED)));
    CHECK(cu.EventCreate(&begun, 0));
    CHECK(cu.EventCreate(&ended, 0));
    return 0;
}

void driver_close(void)
{
    CHECK(cu.DevicePrimaryCtxRelease_v2(device));
    dlclose(library);
}

const char *driver_device(void)
{
    return device_name;
}

unsigned driver_multiprocessors(void)
{
    return (unsigned)multiprocessors;
}

int driver_major(void)
{
    return major;
}

uint64_t driver_alloc(size_t bytes)
{
    uint64_t p;
    CHECK(cu.MemAlloc_v2(&p, bytes ? bytes : 1));
    CHECK(cu.MemsetD8_v2(p, 0, bytes ? bytes : 1));
    return p;
}

void *driver_alloc_managed(size_t bytes)
{
    uint64_t p;
    CHECK(cu.MemAllocManaged(&p, bytes ? bytes : 1, MEM_ATTACH_GLOBAL));
    CHECK(cu.MemsetD8_v2(p, 0, bytes ? bytes : 1));
    CHECK(cu.CtxSynchronize());
    return (void *)(uintptr_t)p;
}

void *driver_alloc_pinned(size_t bytes)
{
    void *p;
    CHECK(cu.MemHostAlloc(&p, bytes ? bytes : 1, HOST_PORTABLE_MAPPED));
    memset(p, 0, bytes);
    return p;
}

void driver_free(uint64_t address)
{
    CHECK(cu.MemFree_v2(address));
}

void driver_write(uint64_t to, const void *from, size_t bytes)
{
    CHECK(cu.MemcpyHtoD_v2(to, from, bytes));
}

void driver_read(void *to, uint64_t from, size_t bytes)
{
    CHECK(cu.MemcpyDtoH_v2(to, from, bytes));
}

void driver_copy(uint64_t to, uint64_t from, size_t bytes)
{
    CHECK(cu.MemcpyDtoDAsync_v2(to, from, bytes, NULL));
}

void driver_launch(const struct nb_gpu_launch *launch, unsigned blocks)
{
    struct nb_gpu_launch argument = *launch;
    void *arguments[] = {&argument};
    CHECK(cu.LaunchKernel(kernel, blocks, 1, 1, NB_GPU_THREADS, driver_teams, 1,
                          driver_teams * NB_GPU_TEAM_SHARED, NULL, arguments, NULL));
}

void driver_wait(void)
{
    CHECK(cu.CtxSynchronize());
}

void driver_start(void)
{
    CHECK(cu.EventRecord(begun, NULL));
}

double driver_stop(void)
{
    float milliseconds;
    CHECK(cu.EventRecord(ended, NULL));
    CHECK(cu.EventSynchronize(ended));
    CHECK(cu.EventElapsedTime(&milliseconds, begun, ended));
    return milliseconds * 1e-3;
}
