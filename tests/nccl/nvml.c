/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1 for NCCL's host code: two GPUs. Numbers of results are NVML's. */
#include <stddef.h>
#include <stdint.h>
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
