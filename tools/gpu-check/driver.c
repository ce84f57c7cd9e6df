/* SPDX-License-Identifier: Apache-2.0 */
/* See driver.h. */
#include "tools/gpu-check/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct nb_cu nb_cu;

int nb_cu_open(void)
{
    static const struct {
        const char *name;
        void *at;
    } calls[] = {
#define X(call, arguments) {"cu" #call, &nb_cu.call},
        NB_CU_CALLS(X)
#undef X
    };
    int count = 0, result;

    if (!nb_launch_image_bytes) {
        printf("skipped: built without nvcc\n");
        return 77;
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("skipped: no CUDA driver (%s)\n", dlerror());
        return 77;
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        void *f = dlsym(library, calls[i].name);
        if (!f) {
            printf("skipped: this CUDA driver has no %s\n", calls[i].name);
            return 77;
        }
        *(void **)calls[i].at = f;
    }
    result = nb_cu.Init(0);
    if (result || nb_cu.DeviceGetCount(&count) || count == 0) {
        printf("skipped: no CUDA device (cuInit gives %d)\n", result);
        return 77;
    }
    return 0;
}

void nb_cu_check(int result, const char *what)
{
    const char *text = "unknown error";
    if (result == 0)
        return;
    nb_cu.GetErrorString(result, &text);
    printf("%s: %s (%d)\n", what, text, result);
    fflush(stdout);
    /* Kernels may still wait: skip destructors, the driver ends the kernels with the process. */
    _exit(1);
}
