/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run gpu-check's launching experiments (tools/gpu-check/launches.c) over the model of the driver, for --dry.
 * The program is the same, but its table of driver calls, its threads and its clock belong to the model. Its
 * output repeats the model's assumptions (model.h). The environment reverses some of them:
 * NB_MODEL_RECORDS_BLOCK (A3), NB_MODEL_FREE (A7: freeing waits for no work), NB_MODEL_UNLOCKED (A6: a load
 * holds no lock), NB_MODEL_UNFAIR (A12).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_inside.h"
#include "model_program.h"
#include "tools/gpu-check/experiment.h"

#undef main /* the main of the other files is experiments_main */

struct nb_cu nb_cu;
const unsigned char nb_launch_image[1] = {0};
const size_t nb_launch_image_bytes = 1;

/* ---- Kernels of launch.cu ------------------------------------------------------------------------------ */

enum { HOLD, MARK, FILL, OPERATION, RESIDENT, CODEC, NLATE };

static struct kind {
    char name[16];
    int loaded[MODEL_GPUS];
} kinds[NLATE + NB_LATE] = {{"nb_hold", {0}},      {"nb_mark", {0}},     {"nb_fill", {0}},
                            {"nb_operation", {0}}, {"nb_resident", {0}}, {"nb_codec", {0}}};

struct run { /* a launch, or all replays of a captured launch */
    struct model_kernel kernel;
    uint64_t limit; /* its arguments after the board's */
    unsigned lane, number;
    uint32_t *counter;
    int64_t begun; /* 0: waiting */
    uint32_t first, window;
};

static bool over(struct run *r)
{
    if (!r->begun)
        r->begun = model_now();
    if (board->release)
        return true;
    if ((uint64_t)(model_now() - r->begun) < r->limit)
        return false;
    board->late = 1;
    return true;
}

static int hold_done(struct run *r)
{
    board->holds = 1;
    return board->flag || over(r);
}

static int operation_done(struct run *r)
{
    struct nb_lane *lane = &board->lane[r->lane];

    if (!r->begun)
        r->first = *r->counter;
    while (r->window == 0 || (int32_t)(lane->acked - (r->first + r->window)) >= 0) {
        if (r->window == NB_WINDOWS) {
            *r->counter = r->first + NB_WINDOWS;
            return 1;
        }
        lane->request = r->first + ++r->window;
    }
    return over(r);
}

static int resident_done(struct run *r)
{
    struct nb_lane *lane = &board->lane[r->lane];

    if (!r->begun) {
        r->number = *r->counter;
        r->window = r->number * NB_WINDOWS;
    }
    if ((int32_t)(lane->posted - r->window) > 0)
        lane->done = r->window = lane->posted;
    const bool late = over(r), ends = (int32_t)(lane->end - r->number) > 0;
    if (ends)
        *r->counter = r->number + 1;
    return late || ends;
}

static int codec_done(struct run *r)
{
    struct nb_lane *lane = &board->lane[r->lane];

    if (lane->posted != lane->done)
        lane->done = lane->posted;
    return lane->told > r->number || over(r);
}

static int is_done(void *run)
{
    struct run *r = run;
    int done = 1;

    switch ((int)((const struct kind *)(const void *)r->kernel.name - kinds)) {
    case HOLD: done = hold_done(r); break;
    case OPERATION: done = operation_done(r); break;
    case RESIDENT: done = resident_done(r); break;
    case CODEC: done = codec_done(r); break;
    default: board->marks = 1;
    }
    if (done) /* a replay may follow */
        r->begun = r->window = 0;
    return done;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

struct timed_event {
    nb_cu_event event;
    unsigned flags;
};

static int unlocked, free_frees;

static int xDevicePrimaryCtxRetain(CUcontext *context_out, int device)
{
    return model_driver.DevicePrimaryCtxRetain((nb_cu_context *)(void *)context_out, device);
}

static int xCtxSetCurrent(CUcontext c)
{
    (void)c;
    model_current(0);
    return 0;
}

static int xCtxPushCurrent_v2(CUcontext c)
{
    return model_driver.CtxPushCurrent_v2(c);
}

static int xModuleLoadData(CUmodule *m, const void *image)
{
    return model_driver.ModuleLoadData((nb_cu_module *)(void *)m, image);
}

static int xModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
    nb_cu_function unused;
    (void)m;
    model_driver.ModuleGetFunction(&unused, NULL, name);
    for (struct kind *k = kinds; k < kinds + sizeof(kinds) / sizeof(*kinds); k++) {
        if (strcmp(k->name, name))
            continue;
        *f = (CUfunction)(void *)k;
        return 0;
    }
    return 500; /* "not found" */
}

/* The run owns the memory: experiments leave it to the end of the process. */
static int xMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    model_call("cuMemHostAlloc", 1);
    model_drain(0, "cuMemHostAlloc");
    *p = model_keep(bytes);
    return 0;
}

static int xMemFreeHost(void *p)
{
    (void)p;
    model_call("cuMemFreeHost", 1);
    model_drain(0, "cuMemFreeHost");
    return 0;
}

static int xMemAlloc_v2(uint64_t *at, size_t bytes)
{
    model_call("cuMemAlloc", 1);
    *at = (uintptr_t)model_keep(bytes);
    return 0;
}

static int xMemFree_v2(uint64_t at)
{
    (void)at;
    if (free_frees)
        model_call("cuMemFree", 0);
    else
        model_free();
    return 0;
}

static int xMemsetD8_v2(uint64_t at, unsigned char v, size_t n)
{
    model_call("cuMemsetD8", 1);
    memset((void *)(uintptr_t)at, v, n);
    return 0;
}

static int xMemsetD32Async(uint64_t at, unsigned v, size_t n, CUstream s)
{
    return model_driver.MemsetD32Async(at, v, n, s);
}

static int xMemGetAllocationGranularity(size_t *g, const struct nb_cu_kind *p, int how)
{
    (void)p;
    return model_driver.MemGetAllocationGranularity(g, NULL, how);
}

static int xMemCreate(unsigned long long *h, size_t n, const struct nb_cu_kind *p, unsigned long long flags)
{
    (void)p;
    return model_driver.MemCreate(h, n, NULL, flags);
}

static int xMemSetAccess(uint64_t at, size_t n, const struct nb_cu_may *a, size_t count)
{
    (void)a;
    return model_driver.MemSetAccess(at, n, NULL, count);
}

static int xStreamCreateWithPriority(CUstream *s, unsigned flags, int priority)
{
    return model_driver.StreamCreateWithPriority((nb_cu_stream *)(void *)s, flags, priority);
}

static int xStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    return model_driver.StreamWaitEvent(s, ((struct timed_event *)(void *)e)->event, flags);
}

static int xStreamQuery(CUstream s)
{
    model_call("cuStreamQuery", 0);
    return model_done(&((struct stream *)(void *)s)->last) ? 0 : NB_CU_NOT_READY;
}

static int xStreamBeginCapture_v2(CUstream s, int mode)
{
    (void)mode;
    model_capture(s);
    return 0;
}

static int xStreamEndCapture(CUstream s, CUgraph *g)
{
    *g = (CUgraph)(void *)model_capture_end(s);
    return 0;
}

static int xGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags)
{
    (void)flags;
    *e = (CUgraphExec)(void *)g;
    return 0;
}

static int xGraphUpload(CUgraphExec e, CUstream s)
{
    (void)e;
    (void)s;
    return 0;
}

static int xEventCreate(CUevent *e, unsigned flags)
{
    struct timed_event *made = model_keep(sizeof(*made));
    made->event = model_event();
    made->flags = flags;
    *e = (CUevent)(void *)made;
    return 0;
}

static int xEventRecord(CUevent e, CUstream s)
{
    struct timed_event *t = (struct timed_event *)(void *)e;
    struct stream *on = (struct stream *)(void *)s;

    if (!(t->flags & NB_CU_EVENT_DISABLE_TIMING)) /* the GPU writes the time, so the event stands in the
                                                     queue */
        model_put(on, model_new_op(on, OP_RECORD));
    return model_driver.EventRecord(t->event, s);
}

static int xGraphLaunch(CUgraphExec e, CUstream s)
{
    model_replay((struct model_graph *)(void *)e, s);
    return 0;
}

static int xLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                         unsigned tz, unsigned shared, CUstream s, void **a, void **more)
{
    struct kind *k = (struct kind *)(void *)f;
    struct run *r = model_keep(sizeof(*r));
    const int which = (int)(k - kinds);

    (void)y, (void)z, (void)ty, (void)tz, (void)more;
    r->kernel = (struct model_kernel){.name = k->name,
                                      .blocks = x,
                                      .threads = threads,
                                      .registers = 32,
                                      .shared = shared,
                                      .done = is_done,
                                      .argument = r,
                                      .loaded = k->loaded,
                                      .aside = which == FILL};
    if (which >= OPERATION && which <= CODEC) {
        r->lane = *(unsigned *)a[1];
        if (which == CODEC)
            r->number = *(unsigned *)a[2];
        else
            r->counter = (uint32_t *)(uintptr_t) * (uint64_t *)a[2];
        r->limit = *(uint64_t *)a[3];
    } else if (which == HOLD || which == FILL) {
        r->limit = *(uint64_t *)a[1];
    }
    if (which == FILL) /* blocks that come and go */
        r->kernel.ns = (int64_t)r->limit + 1;
    if (unlocked && !k->loaded[0] && !model.eager) {
        model_synchronize_device();
        k->loaded[0] = 1;
    }
    model_launch(s, &r->kernel);
    return 0;
}

int nb_cu_open(void)
{
    nb_cu.Init = model_driver.Init;
    nb_cu.GetErrorString = model_driver.GetErrorString;
    nb_cu.DriverGetVersion = model_driver.DriverGetVersion;
    nb_cu.DeviceGetCount = model_driver.DeviceGetCount;
    nb_cu.DeviceGet = model_driver.DeviceGet;
    nb_cu.DeviceGetName = model_driver.DeviceGetName;
    nb_cu.DeviceGetAttribute = model_driver.DeviceGetAttribute;
    nb_cu.CtxGetStreamPriorityRange = model_driver.CtxGetStreamPriorityRange;
    nb_cu.MemHostGetDevicePointer_v2 = model_driver.MemHostGetDevicePointer_v2;
    nb_cu.MemAddressReserve = model_driver.MemAddressReserve;
    nb_cu.MemMap = model_driver.MemMap;
    nb_cu.MemUnmap = model_driver.MemUnmap;
    nb_cu.PointerGetAttribute = model_driver.PointerGetAttribute;
#define OWN(call) nb_cu.call = x##call
    OWN(DevicePrimaryCtxRetain);
    OWN(CtxSetCurrent);
    OWN(CtxPushCurrent_v2);
    OWN(ModuleLoadData);
    OWN(ModuleGetFunction);
    OWN(MemHostAlloc);
    OWN(MemFreeHost);
    OWN(MemAlloc_v2);
    OWN(MemFree_v2);
    OWN(MemsetD8_v2);
    OWN(MemsetD32Async);
    OWN(MemGetAllocationGranularity);
    OWN(MemCreate);
    OWN(MemSetAccess);
    OWN(StreamCreateWithPriority);
    OWN(StreamWaitEvent);
    OWN(StreamQuery);
    OWN(StreamBeginCapture_v2);
    OWN(StreamEndCapture);
    OWN(GraphInstantiateWithFlags);
    OWN(GraphUpload);
    OWN(GraphLaunch);
    OWN(EventCreate);
    OWN(EventRecord);
    OWN(LaunchKernel);
#undef OWN
    for (unsigned i = 0; i < NB_LATE; i++)
        snprintf(kinds[NLATE + i].name, sizeof(kinds[0].name), "nb_late%u%u", i / 8 % 10, i % 8);
    return 0;
}

void nb_cu_check(int ret, const char *what)
{
    if (!ret)
        return;
    printf("%s: error %d\n", what, ret);
    fflush(stdout);
    _exit(1);
}

int main(int argc, char **argv)
{
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *loading = getenv("CUDA_MODULE_LOADING");
    const struct model_settings settings = {.seed = 1,
                                            .queues = queues ? (unsigned)strtoul(queues, NULL, 10) : 8,
                                            .eager = loading && !strcmp(loading, "EAGER"),
                                            .unfair = getenv("NB_MODEL_UNFAIR") != NULL,
                                            .records_block = getenv("NB_MODEL_RECORDS_BLOCK") != NULL,
                                            .patience = 60 * MODEL_SECOND};

    if (argc < 2) /* the parent, which never calls the driver */
        return experiments_main(argc, argv);
    unlocked = getenv("NB_MODEL_UNLOCKED") != NULL;
    free_frees = getenv("NB_MODEL_FREE") != NULL;
    return model_program(&settings, experiments_main, argc, argv);
}
