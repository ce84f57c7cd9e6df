/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the CUDA driver; see cuda_driver.h. */
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/kernels.h"

_Static_assert(sizeof(struct nb_cu_launch_attr) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct nb_cu_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(struct nb_cu_alloc_prop) == 32, "CUmemAllocationProp");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nb_cuda driver;
static const struct nb_cuda *override;
static int refs;

/* Fill the table: 0, or -ENODEV and `why`. */
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
    return 0;
}

static void unload(void)
{
    if (driver.library)
        dlclose(driver.library);
    memset(&driver, 0, sizeof(driver));
}

/* There is something to work on. */
static int probe(const struct nb_cuda *cu, char *why, size_t cap)
{
    const char *text = "unknown error";
    int count = 0;
    nb_cu_result result;

    if (!cu->image) {
        snprintf(why, cap, "this nibble was built without nvcc");
        return -ENODEV;
    }
    result = cu->Init(0);

    if (!result)
        result = cu->DeviceGetCount(&count);
    if (result) {
        cu->GetErrorString(result, &text);
        snprintf(why, cap, "the CUDA driver says: %s (error %d)", text, result);
        return -ENODEV;
    }
    if (count == 0) {
        snprintf(why, cap, "the CUDA driver shows no GPU");
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
