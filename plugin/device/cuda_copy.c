/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_copy.h. */
#include "device/cuda_copy.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda_gpu.h"

struct nb_cuda_copier {
    struct nb_gpu gpu; /* of which only the driver and the context are used */
    nb_cu_stream stream;
};

static int make_stream(struct nb_cuda_copier *c)
{
    const struct nb_cuda *cu = c->gpu.cu;
    int ret, mode, least = 0, most = 0;

    ret = nb_gpu_enter(&c->gpu, &mode);
    if (ret)
        return ret;
    ret = NB_CU(cu, "priorities of streams", CtxGetStreamPriorityRange(&least, &most));
    if (!ret)
        ret = NB_CU(cu, "stream for copies",
                    StreamCreateWithPriority(&c->stream, NB_CU_STREAM_NON_BLOCKING, most));
    nb_gpu_leave(&c->gpu, mode);
    return ret;
}

int nb_copier_open(int gpu, struct nb_cuda_copier **out)
{
    struct nb_cuda_copier *c = calloc(1, sizeof(*c));
    char why[256];
    int ret;

    if (!c) {
        NB_WARN("cuda: out of memory");
        return -ENOMEM;
    }
    ret = nb_cuda_open(&c->gpu.cu, why, sizeof(why));
    if (ret) {
        NB_WARN("cuda: GPU memory cannot be copied: %s", why);
        free(c);
        return ret;
    }
    c->gpu.ordinal = gpu;
    ret = NB_CU(c->gpu.cu, "finding the GPU", DeviceGet(&c->gpu.device, gpu));
    if (!ret)
        ret = NB_CU(c->gpu.cu, "the GPU's context", DevicePrimaryCtxRetain(&c->gpu.context, c->gpu.device));
    if (!ret) {
        ret = make_stream(c);
        if (ret)
            NB_CU(c->gpu.cu, "giving back the GPU's context", DevicePrimaryCtxRelease_v2(c->gpu.device));
    }
    if (ret) {
        nb_cuda_close();
        free(c);
        return ret;
    }
    *out = c;
    return 0;
}

void nb_copier_close(struct nb_cuda_copier *c)
{
    int mode;

    if (!c)
        return;
    if (!nb_gpu_enter(&c->gpu, &mode)) {
        NB_CU(c->gpu.cu, "freeing the stream for copies", StreamDestroy_v2(c->stream));
        nb_gpu_leave(&c->gpu, mode);
    }
    NB_CU(c->gpu.cu, "giving back the GPU's context", DevicePrimaryCtxRelease_v2(c->gpu.device));
    nb_cuda_close();
    free(c);
}

void *nb_copier_pinned(struct nb_cuda_copier *c, size_t bytes)
{
    return nb_gpu_pinned(&c->gpu, bytes);
}

void nb_copier_unpin(struct nb_cuda_copier *c, void *p)
{
    nb_gpu_unpin(&c->gpu, p);
}

int nb_copier_copy(struct nb_cuda_copier *c, void *dst, const void *src, size_t bytes)
{
    int ret, mode;

    if (!bytes)
        return 0;
    ret = nb_gpu_enter(&c->gpu, &mode);
    if (ret)
        return ret;
    ret =
        NB_CU(c->gpu.cu, "copying GPU memory", MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, c->stream));
    if (!ret)
        ret = NB_CU(c->gpu.cu, "copying GPU memory", StreamSynchronize(c->stream));
    nb_gpu_leave(&c->gpu, mode);
    return ret;
}
