/* SPDX-License-Identifier: Apache-2.0 */
/* The current GPU of a thread. */
#include "base/gpu.h"

#include <dlfcn.h>

#include "base/context.h"

int nb_current_gpu(struct nb_context *ctx)
{
    int (*get_device)(int *);
    void *lib;
    int device = -1;

    if (ctx->current_gpu)
        return ctx->current_gpu(ctx);
    lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); /* a job that uses CUDA has it open */
    if (!lib)
        return -1;
    *(void **)&get_device = dlsym(lib, "cuCtxGetDevice");
    if (!get_device || get_device(&device) != 0)
        device = -1;
    dlclose(lib);
    return device;
}
