/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1 for NCCL's host code: two GPUs. Numbers of results are NVML's. Also libgdrapi.so. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NOT_SUPPORTED 3
#define GPUS 2
#define REFUSES(name) \
    EXPORT int name(void); \
    EXPORT int name(void) \
    { \
        return NOT_SUPPORTED; \
    }
#define ACCEPTS(name) \
    EXPORT int name(void); \
    EXPORT int name(void) \
    { \
        return 0; \
    }

ACCEPTS(nvmlInit)
ACCEPTS(nvmlInit_v2)
ACCEPTS(nvmlShutdown)
REFUSES(nvmlDeviceGetNvLinkState)
REFUSES(nvmlDeviceGetNvLinkRemotePciInfo)
REFUSES(nvmlDeviceGetNvLinkCapability)
REFUSES(nvmlDeviceGetFieldValues)
REFUSES(nvmlDeviceGetGpuFabricInfoV)
REFUSES(nvmlDeviceGetPlatformInfo)
REFUSES(nvmlDeviceGetCurrPcieLinkGeneration)
REFUSES(nvmlDeviceGetCurrPcieLinkWidth)
REFUSES(nvmlDeviceGetMemoryErrorCounter)
REFUSES(nvmlDeviceGetName)
REFUSES(nvmlDeviceGetNvLinkRemoteDeviceType)
REFUSES(nvmlDeviceGetPciInfoExt)
REFUSES(nvmlDeviceGetPciInfo_v3)
REFUSES(nvmlDeviceGetPcieLinkMaxSpeed)
REFUSES(nvmlSystemGetConfComputeSettings)
REFUSES(nvmlSystemGetConfComputeState)
REFUSES(nvmlSystemGetDriverVersion)

EXPORT int nvmlDeviceGetCount_v2(unsigned *n);
EXPORT int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = GPUS;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    *device = (void *)(uintptr_t)(1 + i);
    return i < GPUS ? 0 : NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned i, void **device);
EXPORT int nvmlDeviceGetHandleByIndex(unsigned i, void **device)
{
    return nvmlDeviceGetHandleByIndex_v2(i, device);
}
EXPORT int nvmlDeviceGetCount(unsigned *n);
EXPORT int nvmlDeviceGetCount(unsigned *n)
{
    return nvmlDeviceGetCount_v2(n);
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus, void **device);
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus, void **device)
{
    return nvmlDeviceGetHandleByIndex_v2(strstr(bus, ":02:00") ? 1 : 0, device);
}

EXPORT int nvmlDeviceGetIndex(void *device, unsigned *i);
EXPORT int nvmlDeviceGetIndex(void *device, unsigned *i)
{
    *i = (unsigned)(uintptr_t)device - 1;
    return 0;
}

EXPORT const char *nvmlErrorString(int result);
EXPORT const char *nvmlErrorString(int result)
{
    return result ? "not supported" : "success";
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return 0;
}

EXPORT int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status);
EXPORT int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status)
{
    (void)a;
    (void)b;
    (void)what;
    *status = 0; /* over NVLink: the topology has heads for both GPUs. The runtime then denies access */
    return 0;
}

/* ---- GDRCopy: the processor already reaches the memory of emulated GPUs ----------------------------- */

struct pinned {
    unsigned long address;
    size_t size;
};

struct gdr_info {
    uint64_t address, mapped_size;
    uint32_t page_size;
    uint64_t cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, combines : 1;
};

EXPORT void *gdr_open(void);
EXPORT void *gdr_open(void)
{
    static int any;

    return &any;
}
ACCEPTS(gdr_close)
ACCEPTS(gdr_unmap)

EXPORT int gdr_pin_buffer(void *gdr, unsigned long address, size_t size, uint64_t token, uint32_t space,
                          struct pinned **handle);
EXPORT int gdr_pin_buffer(void *gdr, unsigned long address, size_t size, uint64_t token, uint32_t space,
                          struct pinned **handle)
{
    (void)gdr;
    (void)token;
    (void)space;
    *handle = malloc(sizeof(**handle));
    if (!*handle)
        return ENOMEM;
    **handle = (struct pinned){address, size};
    return 0;
}

EXPORT int gdr_pin_buffer_v2(void *gdr, unsigned long address, size_t size, uint32_t flags,
                             struct pinned **handle);
EXPORT int gdr_pin_buffer_v2(void *gdr, unsigned long address, size_t size, uint32_t flags,
                             struct pinned **handle)
{
    (void)flags;
    return gdr_pin_buffer(gdr, address, size, 0, 0, handle);
}

EXPORT int gdr_unpin_buffer(void *gdr, struct pinned *handle);
EXPORT int gdr_unpin_buffer(void *gdr, struct pinned *handle)
{
    (void)gdr;
    free(handle);
    return 0;
}

EXPORT int gdr_get_info(void *gdr, const struct pinned *handle, struct gdr_info *info);
EXPORT int gdr_get_info(void *gdr, const struct pinned *handle, struct gdr_info *info)
{
    (void)gdr;
    *info = (struct gdr_info){
        .address = handle->address, .mapped_size = handle->size, .page_size = 65536, .mapped = 1};
    return 0;
}

EXPORT int gdr_map(void *gdr, const struct pinned *handle, void **address, size_t size);
EXPORT int gdr_map(void *gdr, const struct pinned *handle, void **address, size_t size)
{
    (void)gdr;
    (void)size;
    *address = (void *)handle->address;
    return 0;
}

EXPORT void gdr_runtime_get_version(int *major, int *minor);
EXPORT void gdr_runtime_get_version(int *major, int *minor)
{
    *major = 2;
    *minor = 5;
}

EXPORT void gdr_driver_get_version(void *gdr, int *major, int *minor);
EXPORT void gdr_driver_get_version(void *gdr, int *major, int *minor)
{
    (void)gdr;
    gdr_runtime_get_version(major, minor);
}

EXPORT int gdr_copy_to_mapping(void *handle, void *to, const void *from, size_t size);
EXPORT int gdr_copy_to_mapping(void *handle, void *to, const void *from, size_t size)
{
    (void)handle;
    memcpy(to, from, size);
    return 0;
}

EXPORT int gdr_copy_from_mapping(void *handle, void *to, const void *from, size_t size);
EXPORT int gdr_copy_from_mapping(void *handle, void *to, const void *from, size_t size)
{
    return gdr_copy_to_mapping(handle, to, from, size);
}
