/* SPDX-License-Identifier: Apache-2.0 */
/* A context's current GPU, and its failures on demand. */
#include "base/context.h"

#include <dlfcn.h>
#include <string.h>

#include "base/log.h"

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

int nb_fault(const struct nb_context *ctx, const char *where)
{
    size_t len = strlen(where);
    for (const char *at = ctx->params->fault; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, where, n) == 0) {
            NB_INFO(NCCL_INIT | NCCL_NET, "fault injected: %s (NIBBLE_FAULT)", where);
            return 1;
        }
        at += n;
    }
    return 0;
}
