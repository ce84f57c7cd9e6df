/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver as nibble uses it: one table of functions, filled by dlopen of libcuda.so.1. One build
 * therefore runs with any driver of CUDA 12 and later, and also loads without one. Types and numbers are
 * those of the driver's interface. tests/device/test_cuda_driver.c compares them with cuda.h where that is
 * installed. Names of functions carry the version of their signature. Tests put a table of their own in its
 * place.
 *
 * This file also opens a GPU's primary context, which the job and NCCL use too, and allocates pinned memory
 * in it.
 *
 * Threads: any thread. One object's open and close exclude its other functions.
 */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "config.h"
#include "kernels/kernels.h"

_Static_assert(sizeof(struct nb_cu_launch_attr) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct nb_cu_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(struct nb_cu_alloc_prop) == 32, "CUmemAllocationProp");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nb_cuda driver;
static const struct nb_cuda *override;
static int refs;

/* Fill the table. Return 0, or -ENODEV and `why`. */
static int load(char *why, size_t cap)
{
    static const struct {
        const char *name;
        size_t at;
    } symbols[] = {
#define NB_CU_SYMBOL(name, args) {"cu" #name, offsetof(struct nb_cuda, name)},
        NB_CU_FUNCTIONS(NB_CU_SYMBOL)
#undef NB_CU_SYMBOL
    };
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!lib) {
        snprintf(why, cap, "no CUDA driver (%s)", dlerror());
        return -ENODEV;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f) {
            snprintf(why, cap, "this CUDA driver is too old: it has no %s", symbols[i].name);
            dlclose(lib);
            return -ENODEV;
        }
        memcpy((char *)&driver + symbols[i].at, &f, sizeof(f));
    }
    driver.library = lib;
    driver.image = nb_gpu_image_bytes ? nb_gpu_image : NULL;
#ifdef NB_NVCC_VERSION
    driver.image_cuda = NB_NVCC_VERSION;
#endif
    return 0;
}

static void unload(void)
{
    if (driver.library)
        dlclose(driver.library);
    memset(&driver, 0, sizeof(driver));
}

/* Check that this build has kernels and this machine a GPU. */
static int probe(const struct nb_cuda *cu, char *why, size_t cap)
{
    const char *text = "unknown error";
    int count = 0, version = 0;
    nb_cu_result result;

    if (!cu->image) {
        snprintf(why, cap, "this nibble was built without nvcc");
        return -ENODEV;
    }
    result = cu->Init(0);

    if (!result)
        result = cu->DeviceGetCount(&count);
    if (!result)
        result = cu->DriverGetVersion(&version);
    if (result) {
        cu->GetErrorString(result, &text);
        snprintf(why, cap, "the CUDA driver says: %s (error %d)", text, result);
        return -ENODEV;
    }
    if (count == 0) {
        snprintf(why, cap, "the CUDA driver shows no GPU");
        return -ENODEV;
    }
    /* Machine code runs on every driver of its CUDA's major version and later ones (CUDA Compatibility,
     * "minor version compatibility"). */
    if (version / 1000 < cu->image_cuda / 1000) {
        snprintf(
            why, cap,
            "the kernels of this nibble were compiled by CUDA %d.%d, and the driver is one of CUDA %d.%d. "
            "Remedy: a newer driver, or a build with CUDA %d",
            cu->image_cuda / 1000, cu->image_cuda % 1000 / 10, version / 1000, version % 1000 / 10,
            version / 1000);
        return -ENODEV;
    }
    return 0;
}

int nb_cuda_open(const struct nb_cuda **cu, char *why, size_t cap)
{
    int ret = 0;

    why[0] = 0;
    pthread_mutex_lock(&lock);
    if (refs == 0) {
        if (!override)
            ret = load(why, cap);
        if (!ret)
            ret = probe(override ? override : &driver, why, cap);
        if (ret)
            unload();
    }
    if (!ret) {
        refs++;
        *cu = override ? override : &driver;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

void nb_cuda_close(void)
{
    pthread_mutex_lock(&lock);
    if (--refs == 0)
        unload();
    pthread_mutex_unlock(&lock);
}

void nb_cuda_override(const struct nb_cuda *table)
{
    override = table;
}

int nb_cuda_check(const struct nb_cuda *cu, nb_cu_result result, const char *call, const char *what)
{
    const char *text = "unknown error";
    int length = (int)strcspn(call, "(");

    if (!result)
        return 0;
    cu->GetErrorString(result, &text);
    NB_WARN("cuda: %.*s failed: %s (CUDA error %d), %s", length, call, text ? text : "unknown error", result,
            what);
    return result == NB_CU_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

int nb_cuda_context_open(struct nb_cuda_context *c, int ordinal, char *why, size_t cap)
{
    int ret = nb_cuda_open(&c->cu, why, cap);

    if (ret)
        return ret;
    c->ordinal = ordinal;
    ret = NB_CU(c->cu, "finding the GPU", DeviceGet(&c->device, ordinal));
    /* The runtime's context. It outlives nibble unless the job resets the device. */
    if (!ret)
        ret = NB_CU(c->cu, "the GPU's context", DevicePrimaryCtxRetain(&c->context, c->device));
    if (ret)
        nb_cuda_close();
    return ret;
}

void nb_cuda_context_close(struct nb_cuda_context *c)
{
    NB_CU(c->cu, "giving back the GPU's context", DevicePrimaryCtxRelease_v2(c->device));
    nb_cuda_close();
}

int nb_cuda_enter(const struct nb_cuda_context *c, int *mode)
{
    int ret = NB_CU(c->cu, "making the context current", CtxPushCurrent_v2(c->context));

    if (ret)
        return ret;
    *mode = NB_CU_CAPTURE_MODE_RELAXED;
    ret = NB_CU(c->cu, "relaxing the capture mode", ThreadExchangeStreamCaptureMode(mode));
    if (ret)
        c->cu->CtxPopCurrent_v2(&(nb_cu_context){NULL});
    return ret;
}

void nb_cuda_leave(const struct nb_cuda_context *c, int mode)
{
    nb_cu_context old;

    NB_CU(c->cu, "restoring the capture mode", ThreadExchangeStreamCaptureMode(&mode));
    NB_CU(c->cu, "restoring the context", CtxPopCurrent_v2(&old));
}

void *nb_cuda_pinned(const struct nb_cuda_context *c, size_t bytes)
{
    nb_cu_ptr seen = 0;
    void *p = NULL;
    int mode;

    if (nb_cuda_enter(c, &mode))
        return NULL;
    if (NB_CU(c->cu, "pinned memory", MemHostAlloc(&p, bytes, NB_CU_HOST_PORTABLE | NB_CU_HOST_DEVICEMAP))) {
        p = NULL;
    } else if (NB_CU(c->cu, "address of pinned memory", MemHostGetDevicePointer_v2(&seen, p, 0)) ||
               seen != (uintptr_t)p) {
        if (seen)
            NB_WARN("cuda: GPU %d sees pinned memory at another address than the CPU", c->ordinal);
        c->cu->MemFreeHost(p);
        p = NULL;
    }
    nb_cuda_leave(c, mode);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void nb_cuda_unpin(const struct nb_cuda_context *c, void *p)
{
    int mode;

    if (!p || nb_cuda_enter(c, &mode))
        return;
    NB_CU(c->cu, "freeing pinned memory", MemFreeHost(p));
    nb_cuda_leave(c, mode);
}

int nb_cuda_dmabuf(const struct nb_cuda_context *c, nb_cu_ptr at, size_t bytes)
{
    int mode, fd = -1, able = 0, ret = nb_cuda_enter(c, &mode);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (ret)
        return ret;
    ret = NB_CU(c->cu, "DMA-BUF", DeviceGetAttribute(&able, NB_CU_ATTR_DMABUF, c->device));
    if (!ret && !able)
        ret = -ENOTSUP;
    if (!ret) /* pages of the mapping, which is longer */
        ret = NB_CU(
            c->cu, "DMA-BUF",
            MemGetHandleForAddressRange(&fd, at, (bytes + page - 1) / page * page, NB_CU_HANDLE_DMABUF, 0));
    nb_cuda_leave(c, mode);
    return ret ? ret : fd;
}
