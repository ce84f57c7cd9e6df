/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's table over the model. The table below has the time of each call. See model.h for the sources.
 * Calls work for the context that the thread has made current.
 */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LAUNCH_FAILED 719
#define MODULE ((nb_cu_module)0x2345)
#define KERNEL ((nb_cu_function)0x3456)
#define MEMORY ((size_t)80 << 30)

/* Resources of the codec kernel on a multiprocessor: kernels.h, and the compiler's report for sm_90. */
#define CODEC_REGISTERS 128u

unsigned model_fails;

enum takes {
    NOTHING, /* leaves the GPU alone: calls about the thread, or a library's */
    LOCK,    /* the context's lock, for a moment */
    DRAIN,   /* ... and until the GPU is idle */
};

static void called(const char *name, enum takes takes)
{
    if (takes == NOTHING && strncmp(name, "cuCtx", 5) && strncmp(name, "cuThread", 8))
        return;
    if (!model_self())
        return;
    model_call(name, takes != NOTHING);
    if (takes == DRAIN)
        model_drain(model_current_gpu(), name);
}

static nb_cu_result mInit(unsigned flags)
{
    (void)flags;
    return 0;
}

static nb_cu_result mDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

static nb_cu_result mGetErrorString(nb_cu_result error, const char **text)
{
    *text = error == NB_CU_OUT_OF_MEMORY ? "out of memory" : "an error of the model's";
    return 0;
}

static nb_cu_result mDeviceGetCount(int *n)
{
    *n = MODEL_GPUS;
    return 0;
}

static nb_cu_result mDeviceGet(nb_cu_device *d, int ordinal)
{
    *d = ordinal;
    return ordinal < MODEL_GPUS ? 0 : NB_CU_NO_DEVICE;
}

static nb_cu_result mDeviceGetName(char *name, int cap, nb_cu_device d)
{
    snprintf(name, (size_t)cap, "model GPU %d", d);
    return 0;
}

static nb_cu_result mDeviceGetAttribute(int *value, int attribute, nb_cu_device d)
{
    (void)d;
    *value = attribute == NB_CU_ATTR_MULTIPROCESSORS    ? (int)model.sms
             : attribute == NB_CU_ATTR_CAPABILITY_MAJOR ? 9
             : attribute == NB_CU_ATTR_BLOCK_SHARED     ? 232448
                                                        : 1;
    return 0;
}

static nb_cu_result mDevicePrimaryCtxRetain(nb_cu_context *context, nb_cu_device d)
{
    *context = model_context(d);
    return 0;
}

static nb_cu_result mDevicePrimaryCtxRelease_v2(nb_cu_device d)
{
    (void)d;
    return 0;
}

static nb_cu_result mCtxPushCurrent_v2(nb_cu_context context)
{
    struct model_contexts *c = model_contexts();
    if (c->depth == 16)
        model_wrong("too many contexts");
    called("cuCtxPushCurrent", NOTHING);
    c->gpu[c->depth++] = model_gpu_number(context);
    return 0;
}

static nb_cu_result mCtxPopCurrent_v2(nb_cu_context *context)
{
    struct model_contexts *c = model_contexts();
    if (!c->depth)
        model_wrong("no context to pop");
    *context = model_context(c->gpu[--c->depth]);
    return 0;
}

static nb_cu_result mCtxGetStreamPriorityRange(int *least, int *most)
{
    *least = 0;
    *most = -5;
    return 0;
}

static nb_cu_result mThreadExchangeStreamCaptureMode(int *mode)
{
    struct model_contexts *c = model_contexts();
    const int old = c->mode;
    c->mode = *mode;
    *mode = old;
    return 0;
}

static nb_cu_result mModuleLoadData(nb_cu_module *module, const void *image)
{
    (void)image;
    called("cuModuleLoadData", DRAIN);
    *module = MODULE;
    return 0;
}

static nb_cu_result mModuleUnload(nb_cu_module module)
{
    (void)module;
    called("cuModuleUnload", DRAIN);
    return 0;
}

static nb_cu_result mModuleGetFunction(nb_cu_function *f, nb_cu_module module, const char *name)
{
    (void)module;
    (void)name;
    called("cuModuleGetFunction", LOCK);
    *f = KERNEL;
    return 0;
}

static nb_cu_result mFuncGetAttribute(int *value, int attribute, nb_cu_function f)
{
    (void)f;
    called("cuFuncGetAttribute", DRAIN);
    *value = attribute == NB_CU_FUNC_MOST_THREADS ? (int)(NB_GPU_TEAMS * NB_GPU_THREADS) : 0;
    return 0;
}

static nb_cu_result mFuncSetAttribute(nb_cu_function f, int attribute, int value)
{
    (void)attribute;
    (void)f;
    (void)value;
    called("cuFuncSetAttribute", LOCK);
    return 0;
}

static nb_cu_result mStreamCreateWithPriority(nb_cu_stream *stream, unsigned flags, int priority)
{
    called("cuStreamCreateWithPriority", LOCK);
    *stream = model_make_stream(model_current_gpu(), priority, flags != NB_CU_STREAM_NON_BLOCKING);
    return 0;
}

static nb_cu_result mStreamDestroy_v2(nb_cu_stream stream)
{
    (void)stream; /* its work goes on */
    called("cuStreamDestroy", LOCK);
    return 0;
}

static nb_cu_result mStreamSynchronize(nb_cu_stream stream)
{
    called("cuStreamSynchronize", LOCK);
    model_synchronize(stream);
    return 0;
}

static nb_cu_result mStreamWaitEvent(nb_cu_stream stream, nb_cu_event event, unsigned flags)
{
    (void)flags;
    model_stream_waits(stream, event);
    return 0;
}

static nb_cu_result mStreamGetFlags(nb_cu_stream stream, unsigned *flags)
{
    called("cuStreamGetFlags", LOCK);
    *flags = ((struct stream *)stream)->blocking ? 0 : NB_CU_STREAM_NON_BLOCKING;
    return 0;
}

static nb_cu_result mStreamBeginCapture_v2(nb_cu_stream stream, int mode)
{
    called("cuStreamBeginCapture", LOCK);
    if (mode != NB_CU_CAPTURE_MODE_RELAXED)
        model_wrong("a capture that forbids calls of other threads");
    model_capture(stream);
    return 0;
}

static nb_cu_result mStreamEndCapture(nb_cu_stream stream, nb_cu_graph *graph)
{
    called("cuStreamEndCapture", LOCK);
    *graph = model_capture_end(stream);
    return 0;
}

/* An executable graph: it names the graph that its next launch copies. */
static nb_cu_result mGraphInstantiateWithFlags(nb_cu_graph_exec *exec, nb_cu_graph graph,
                                               unsigned long long flags)
{
    nb_cu_graph *e = model_keep(sizeof(*e));

    (void)flags;
    called("cuGraphInstantiate", LOCK);
    *e = graph;
    *exec = e;
    return 0;
}

static nb_cu_result mGraphExecUpdate_v2(nb_cu_graph_exec exec, nb_cu_graph graph,
                                        struct nb_cu_graph_update *update)
{
    (void)update;
    called("cuGraphExecUpdate", LOCK);
    *(nb_cu_graph *)exec = graph;
    return 0;
}

static nb_cu_result mGraphLaunch(nb_cu_graph_exec exec, nb_cu_stream stream)
{
    model_replay(*(nb_cu_graph *)exec, stream);
    return 0;
}

static nb_cu_result mGraphExecDestroy(nb_cu_graph_exec exec)
{
    (void)exec;
    return 0;
}

static nb_cu_result mGraphDestroy(nb_cu_graph graph)
{
    (void)graph;
    return 0;
}

static nb_cu_result mStreamGetCaptureInfo_v2(nb_cu_stream stream, int *state, uint64_t *id, void *graph,
                                             void *nodes, size_t *n)
{
    (void)graph;
    (void)nodes;
    (void)n;
    called("cuStreamGetCaptureInfo", LOCK);
    *state = ((struct stream *)stream)->capture != NULL;
    *id = (uintptr_t)((struct stream *)stream)->capture;
    return 0;
}

static nb_cu_result mEventCreate(nb_cu_event *event, unsigned flags)
{
    if (!(flags & NB_CU_EVENT_DISABLE_TIMING))
        model_wrong("an event with timing blocks its queue when it is recorded (A3)");
    *event = model_event();
    return 0;
}

static nb_cu_result mEventDestroy_v2(nb_cu_event event)
{
    (void)event;
    return 0;
}

static nb_cu_result mEventRecord(nb_cu_event event, nb_cu_stream stream)
{
    model_record(event, stream);
    return 0;
}

static nb_cu_result mLaunchKernelEx(const struct nb_cu_launch_config *config, nb_cu_function f,
                                    void **arguments, void **extra)
{
    struct op *op;

    (void)f;
    (void)extra;
    called("cuLaunchKernelEx", LOCK);
    if (model_fails && --model_fails == 0)
        return LAUNCH_FAILED;
    op = model_new_op(config->stream, OP_KERNEL);
    memcpy(&op->launch, arguments[0], sizeof(op->launch));
    op->own = (struct model_kernel){.name = "codec kernel",
                                    .blocks = config->grid_x,
                                    .threads = config->block_x * config->block_y,
                                    .registers = CODEC_REGISTERS,
                                    .shared = config->shared_bytes,
                                    .what = "being told to end"};
    model_put(config->stream, op);
    return 0;
}

static nb_cu_result mMemsetD8Async(nb_cu_ptr at, unsigned char v, size_t n, nb_cu_stream stream)
{
    (void)at; /* GPU memory, which the model does not use */
    (void)v;
    (void)n;
    called("cuMemsetD8Async", LOCK);
    struct op *op = model_new_op(stream, OP_SET);
    static uint32_t nowhere;
    op->word = &nowhere;
    model_put(stream, op);
    return 0;
}

static nb_cu_result mMemsetD32Async(nb_cu_ptr at, unsigned v, size_t n, nb_cu_stream stream)
{
    if (n != 1)
        model_wrong("more than a word");
    model_set(stream, (uint32_t *)(uintptr_t)at, v);
    return 0;
}

static nb_cu_result mMemcpyAsync(nb_cu_ptr dst, nb_cu_ptr src, size_t bytes, nb_cu_stream stream)
{
    (void)dst;
    (void)src;
    (void)bytes;
    called("cuMemcpyAsync", LOCK);
    struct op *op = model_new_op(stream, OP_SET);
    static uint32_t nowhere;
    op->word = &nowhere;
    model_put(stream, op);
    return 0;
}

static nb_cu_result mMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    called("cuMemHostAlloc", DRAIN);
    *p = calloc(1, bytes);
    return *p ? 0 : NB_CU_OUT_OF_MEMORY;
}

static nb_cu_result mMemFreeHost(void *p)
{
    called("cuMemFreeHost", DRAIN);
    free(p);
    return 0;
}

static nb_cu_result mMemHostGetDevicePointer_v2(nb_cu_ptr *at, void *p, unsigned flags)
{
    (void)flags;
    *at = (uintptr_t)p;
    return 0;
}

static nb_cu_result mMemAlloc_v2(nb_cu_ptr *at, size_t bytes)
{
    (void)at;
    (void)bytes;
    model_wrong("cuMemAlloc where there is virtual memory");
}

static nb_cu_result mMemFree_v2(nb_cu_ptr at)
{
    (void)at;
    model_wrong("cuMemFree where there is virtual memory");
}

static nb_cu_result mMemGetInfo_v2(size_t *left, size_t *all)
{
    called("cuMemGetInfo", LOCK);
    *left = *all = MEMORY;
    return 0;
}

static nb_cu_result mMemGetAllocationGranularity(size_t *granularity, const struct nb_cu_alloc_prop *prop,
                                                 int option)
{
    (void)prop;
    (void)option;
    *granularity = (size_t)2 << 20;
    return 0;
}

static nb_cu_result mMemAddressReserve(nb_cu_ptr *at, size_t bytes, size_t align, nb_cu_ptr wish,
                                       unsigned long long flags)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    (void)align;
    (void)wish;
    (void)flags;
    called("cuMemAddressReserve", LOCK);
    if (p == MAP_FAILED)
        return NB_CU_OUT_OF_MEMORY;
    *at = (uintptr_t)p;
    return 0;
}

static nb_cu_result mMemAddressFree(nb_cu_ptr at, size_t bytes)
{
    called("cuMemAddressFree", LOCK);
    munmap((void *)(uintptr_t)at, bytes);
    return 0;
}

static nb_cu_result mMemCreate(unsigned long long *handle, size_t bytes, const struct nb_cu_alloc_prop *prop,
                               unsigned long long flags)
{
    (void)prop;
    (void)flags;
    called("cuMemCreate", LOCK);
    *handle = bytes;
    return 0;
}

static nb_cu_result mMemRelease(unsigned long long handle)
{
    (void)handle;
    called("cuMemRelease", LOCK);
    return 0;
}

static nb_cu_result mMemMap(nb_cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
                            unsigned long long flags)
{
    (void)at;
    (void)bytes;
    (void)offset;
    (void)handle;
    (void)flags;
    called("cuMemMap", LOCK);
    return 0;
}

static nb_cu_result mMemUnmap(nb_cu_ptr at, size_t bytes)
{
    (void)at;
    (void)bytes;
    called("cuMemUnmap", LOCK);
    return 0;
}

static nb_cu_result mMemSetAccess(nb_cu_ptr at, size_t bytes, const struct nb_cu_access *access, size_t n)
{
    (void)at;
    (void)bytes;
    (void)access;
    (void)n;
    called("cuMemSetAccess", LOCK);
    return 0;
}

static nb_cu_result mMemGetHandleForAddressRange(void *handle, nb_cu_ptr at, size_t bytes, int type,
                                                 unsigned long long flags)
{
    (void)handle;
    (void)at;
    (void)bytes;
    (void)type;
    (void)flags;
    called("cuMemGetHandleForAddressRange", LOCK);
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */
}

static nb_cu_result mPointerGetAttribute(void *out, int attribute, nb_cu_ptr at)
{
    called("cuPointerGetAttribute", LOCK);
    if (attribute == NB_CU_POINTER_MEMORY_TYPE)
        *(unsigned *)out = 1; /* the job's memory belongs to the CPU and is pinned */
    else
        *(nb_cu_ptr *)out = at;
    return 0;
}

const struct nb_cuda model_driver = {
#define MODEL(name, args) .name = m##name,
    NB_CU_FUNCTIONS(MODEL)
#undef MODEL
        .image = "model",
};
