/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_stack.h. */
#include "torch_stack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*inner_fn)(void *arg);
typedef void (*outer_fn)(inner_fn inner, void *arg);

static outer_fn known[TORCH_PYTHON + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    static const char *const symbol[] = {
        [TORCH_BUCKET] = "_ZN4c10d7Reducer17all_reduce_bucketERNS0_6BucketE",
        [TORCH_USED] = "_ZN4c10d7Reducer25all_reduce_local_used_mapEv",
        [TORCH_ENGINE] = "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
        [TORCH_PYTHON] = "PyObject_Call",
    };
    void *module = dlopen(TORCH_MODULE, RTLD_NOW | RTLD_LOCAL);

    for (unsigned i = 0; module && i < sizeof(symbol) / sizeof(symbol[0]); i++) {
        void *found = dlsym(module, symbol[i]);
        memcpy(&known[i], &found, sizeof(found));
    }
    if (!module || !known[TORCH_BUCKET]) {
        fprintf(stderr, "%s: %s\n", TORCH_MODULE, module ? "lacks a function" : dlerror());
        exit(2);
    }
}

struct call {
    const enum torch_function *function;
    unsigned n;
    inner_fn inner;
    void *arg;
};

static void below(void *arg)
{
    struct call *c = arg;

    if (!c->n) {
        c->inner(c->arg);
        return;
    }
    c->n--;
    known[*c->function++](below, c);
}

void torch_call(const enum torch_function *function, unsigned n, inner_fn inner, void *arg)
{
    struct call c = {function, n, inner, arg};

    pthread_once(&once, load);
    below(&c);
}
