/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's primary context; see cuda_context.h. */
#include "device/cuda_context.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"

int nb_cuda_context_open(struct nb_cuda_context *c, int ordinal, char *why, size_t cap)
{
    int ret = nb_cuda_open(&c->cu, why, cap);

    if (ret)
        return ret;
    c->ordinal = ordinal;
    ret = NB_CU(c->cu, "finding the GPU", DeviceGet(&c->device, ordinal));
    /* The runtime's context; it outlives us unless the job resets the device. */
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
