/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronous copies between GPU memory and pinned host memory, for transports that cannot access GPU memory
 * themselves. They run on a stream of their own, so that they do not wait for the kernels of NCCL and the
 * job.
 *
 * Threads: one at a time for each copier.
 */
#include "device/cuda/cuda.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda/driver.h"

struct nb_cuda_copier {
    struct nb_cuda_context cuda;
    nb_cu_stream stream;
};

static int make_stream(struct nb_cuda_copier *c)
{
    const struct nb_cuda *cu = c->cuda.cu;
    int ret, mode, least = 0, most = 0;

    ret = nb_cuda_enter(&c->cuda, &mode);
    if (ret)
        return ret;
    ret = NB_CU(cu, "priorities of streams", CtxGetStreamPriorityRange(&least, &most));
    if (!ret)
        ret = NB_CU(cu, "stream for copies",
                    StreamCreateWithPriority(&c->stream, NB_CU_STREAM_NON_BLOCKING, most));
    nb_cuda_leave(&c->cuda, mode);
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
    ret = nb_cuda_context_open(&c->cuda, gpu, why, sizeof(why));
    if (ret == -ENODEV)
        NB_WARN("cuda: GPU memory cannot be copied: %s", why);
    if (!ret) {
        ret = make_stream(c);
        if (ret)
            nb_cuda_context_close(&c->cuda);
    }
    if (ret) {
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
    if (!nb_cuda_enter(&c->cuda, &mode)) {
        NB_CU(c->cuda.cu, "freeing the stream for copies", StreamDestroy_v2(c->stream));
        nb_cuda_leave(&c->cuda, mode);
    }
    nb_cuda_context_close(&c->cuda);
    free(c);
}

void *nb_copier_pinned(struct nb_cuda_copier *c, size_t bytes)
{
    return nb_cuda_pinned(&c->cuda, bytes);
}

void nb_copier_unpin(struct nb_cuda_copier *c, void *p)
{
    nb_cuda_unpin(&c->cuda, p);
}

int nb_copier_copy(struct nb_cuda_copier *c, void *dst, const void *src, size_t bytes)
{
    int ret, mode;

    if (!bytes)
        return 0;
    ret = nb_cuda_enter(&c->cuda, &mode);
    if (ret)
        return ret;
    ret = NB_CU(c->cuda.cu, "copying GPU memory",
                MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, c->stream));
    if (!ret)
        ret = NB_CU(c->cuda.cu, "copying GPU memory", StreamSynchronize(c->stream));
    nb_cuda_leave(&c->cuda, mode);
    return ret;
}
