/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand between PyTorch and gloo. Preloaded into a process of PyTorch, ProcessGroupGloo::allreduce reports
 * the call to this plugin's profiler, on the caller's thread, as NCCL does below ProcessGroupNCCL, which has
 * the same callers. It then continues with gloo. The file keeps the callers in the order of calls, for
 * tests/policy/torch-caller.sh.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/process.h"
#include "abi/tables.h"
#include "base/context.h"
#include "events.h"
#include "policy/records/records.h"

#define ALLREDUCE \
    "_ZN4c10d16ProcessGroupGloo9allreduceERSt6vectorIN2at6TensorESaIS3_EERKNS_16AllreduceOptionsE"
#define MOST 4096u
#define COUNT ((size_t)1 << 22) /* reported number of elements, always large enough to matter */

/* The function returns an object through memory of the caller. */
typedef void *(*allreduce_fn)(void *result, void *group, void *tensors, const void *options);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ev_comm comm;
static struct nb_queue *queue;
static enum nb_caller callers[MOST];
static unsigned calls;

static int no_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return -1;
}

static void die(const char *what)
{
    fprintf(stderr, "torch_gloo: %s\n", what);
    abort();
}

static void begin(void)
{
    struct nb_context *ctx = nb_process_context();

    if (!ctx)
        die("no memory");
    ctx->current_gpu = no_gpu;
    queue = nb_queue_get(ctx, 7, -1);
    if (!queue || nb_queue_attach(queue, 2))
        die("no queue of records");
    ev_open(&NB_NEWEST_PROFILER, &comm, 7, 2, 2, 0);
}

/* Keep the caller that the plugin's record of the call names. */
static void tell(void)
{
    struct ev_op op = {.func = EV_ALL_REDUCE, .type = "ncclFloat32", .type_bytes = 4, .count = COUNT};
    struct nb_record record;

    pthread_mutex_lock(&lock);
    if (!queue)
        begin();
    op.send = op.recv = &op;
    ev_call(&NB_NEWEST_PROFILER, &comm, &op);
    ev_launch(&NB_NEWEST_PROFILER, &comm, &op, 1);
    if (nb_queue_take(queue, &record, 1) != 1 || !(record.flags & NB_RECORD_API))
        die("no record of a call");
    if (calls < MOST)
        callers[calls++] = record.caller;
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) void *torch_gloo_allreduce(void *result, void *group, void *tensors,
                                                                  const void *options) __asm__(ALLREDUCE);
void *torch_gloo_allreduce(void *result, void *group, void *tensors, const void *options)
{
    /* Python loaded it only for its own module, so that RTLD_NEXT does not find it. */
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    void *next = torch ? dlsym(torch, ALLREDUCE) : NULL;
    allreduce_fn go_on;

    if (!next)
        die("this PyTorch has no ProcessGroupGloo::allreduce of these arguments");
    memcpy(&go_on, &next, sizeof(next));
    dlclose(torch);
    tell();
    return go_on(result, group, tensors, options);
}

/* Write the callers since the last question (enum nb_caller), at most `most`. Return their number. */
__attribute__((visibility("default"))) unsigned torch_gloo_callers(int *out, unsigned most);
unsigned torch_gloo_callers(int *out, unsigned most)
{
    unsigned n;

    pthread_mutex_lock(&lock);
    n = calls < most ? calls : most;
    for (unsigned i = 0; i < n; i++)
        out[i] = (int)callers[i];
    calls = 0;
    pthread_mutex_unlock(&lock);
    return n;
}
