/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_driver.h. */
#include "fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_calls.h"
#include "fake_stream.h"

#define CONTEXT ((nb_cu_context)0x1234)
#define MODULE ((nb_cu_module)0x2345)
#define KERNEL ((nb_cu_function)0x3456)

struct fake_settings fake;

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, fail_at, alive;
static nb_cu_result fail_code;
static const char *failed;
_Thread_local int fake_depth, fake_mode;
static _Thread_local int serves;

void fake_wrong(const char *what)
{
    fprintf(stderr, "fake driver: %s\n", what);
    abort();
}

void fake_fail(long nth, nb_cu_result code)
{
    pthread_mutex_lock(&fake_lock);
    calls = 0;
    fail_at = nth;
    fail_code = code;
    failed = NULL;
    pthread_mutex_unlock(&fake_lock);
}

long fake_calls(void)
{
    pthread_mutex_lock(&fake_lock);
    long n = calls;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

const char *fake_failed(void)
{
    pthread_mutex_lock(&fake_lock);
    const char *name = failed;
    pthread_mutex_unlock(&fake_lock);
    return name;
}

long fake_alive(void)
{
    pthread_mutex_lock(&fake_lock);
    long n = alive;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

void fake_forget(void)
{
    pthread_mutex_lock(&fake_lock);
    alive = 0;
    pthread_mutex_unlock(&fake_lock);
    fake_forget_memory();
}

void fake_serves(int yes)
{
    serves = yes;
}

nb_cu_result fake_called(const char *name)
{
    nb_cu_result ret = 0;

    if (serves) {
        fprintf(stderr, "fake driver: %s on a thread that serves\n", name);
        abort();
    }

    pthread_mutex_lock(&fake_lock);
    if (++calls == fail_at) {
        failed = name;
        ret = fail_code;
    }
    pthread_mutex_unlock(&fake_lock);
    return ret;
}

void fake_count(long by)
{
    pthread_mutex_lock(&fake_lock);
    alive += by;
    if (alive < 0)
        fake_wrong("something was freed twice");
    pthread_mutex_unlock(&fake_lock);
}

/* ---- The table: device and context --------------------------------------------------------------------- */

static nb_cu_result fInit(unsigned flags)
{
    (void)flags;
    CALL("cuInit");
    return 0;
}

static nb_cu_result fDriverGetVersion(int *version)
{
    CALL("cuDriverGetVersion");
    *version = fake.version ? fake.version : 13000;
    return 0;
}

static nb_cu_result fGetErrorString(nb_cu_result error, const char **text)
{
    *text = error == NB_CU_OUT_OF_MEMORY ? "out of memory" : "a fault of the test's";
    return 0;
}

static nb_cu_result fDeviceGetCount(int *n)
{
    CALL("cuDeviceGetCount");
    *n = 4;
    return 0;
}

static nb_cu_result fDeviceGet(nb_cu_device *d, int ordinal)
{
    CALL("cuDeviceGet");
    *d = ordinal;
    return 0;
}

static nb_cu_result fDeviceGetName(char *name, int cap, nb_cu_device d)
{
    CALL("cuDeviceGetName");
    snprintf(name, (size_t)cap, "fake GPU %d", d);
    return 0;
}

static nb_cu_result fDeviceGetAttribute(int *value, int attribute, nb_cu_device d)
{
    (void)d;
    CALL("cuDeviceGetAttribute");
    switch (attribute) {
    case NB_CU_ATTR_MULTIPROCESSORS: *value = fake.multiprocessors ? fake.multiprocessors : 8; break;
    case NB_CU_ATTR_CAPABILITY_MAJOR: *value = fake.major ? fake.major : 9; break;
    case NB_CU_ATTR_BLOCK_SHARED: *value = 232448; break;
    case NB_CU_ATTR_VIRTUAL_MEMORY: *value = !fake.no_virtual_memory; break;
    case NB_CU_ATTR_DMABUF: *value = !fake.no_dmabuf; break;
    default: *value = 1;
    }
    return 0;
}

static nb_cu_result fDevicePrimaryCtxRetain(nb_cu_context *context, nb_cu_device d)
{
    (void)d;
    CALL("cuDevicePrimaryCtxRetain");
    *context = CONTEXT;
    fake_count(1);
    return 0;
}

static nb_cu_result fDevicePrimaryCtxRelease_v2(nb_cu_device d)
{
    (void)d;
    fake_count(-1);
    CALL("cuDevicePrimaryCtxRelease");
    return 0;
}

static nb_cu_result fCtxPushCurrent_v2(nb_cu_context context)
{
    CALL("cuCtxPushCurrent");
    if (context != CONTEXT)
        fake_wrong("another context");
    fake_depth++;
    return 0;
}

static nb_cu_result fCtxPopCurrent_v2(nb_cu_context *context)
{
    if (fake_depth == 0)
        fake_wrong("no context to pop");
    fake_depth--;
    *context = CONTEXT;
    CALL("cuCtxPopCurrent");
    return 0;
}

static nb_cu_result fCtxGetStreamPriorityRange(int *least, int *most)
{
    CALL_IN_CONTEXT("cuCtxGetStreamPriorityRange");
    *least = 0;
    *most = -5;
    return 0;
}

static nb_cu_result fThreadExchangeStreamCaptureMode(int *mode)
{
    int old = fake_mode;
    CALL("cuThreadExchangeStreamCaptureMode");
    fake_mode = *mode;
    *mode = old;
    return 0;
}

static nb_cu_result fModuleLoadData(nb_cu_module *module, const void *image)
{
    CALL_IN_CONTEXT("cuModuleLoadData");
    if (image != fake_driver.image)
        fake_wrong("another image");
    *module = MODULE;
    fake_count(1);
    return 0;
}

static nb_cu_result fModuleUnload(nb_cu_module module)
{
    if (module != MODULE)
        fake_wrong("another module");
    fake_count(-1);
    CALL_IN_CONTEXT("cuModuleUnload");
    return 0;
}

static nb_cu_result fModuleGetFunction(nb_cu_function *f, nb_cu_module module, const char *name)
{
    CALL_IN_CONTEXT("cuModuleGetFunction");
    if (module != MODULE || strcmp(name, NB_GPU_KERNEL) != 0)
        fake_wrong("no such kernel");
    *f = KERNEL;
    return 0;
}

static nb_cu_result fFuncGetAttribute(int *value, int attribute, nb_cu_function f)
{
    CALL_IN_CONTEXT("cuFuncGetAttribute");
    if (f != KERNEL)
        fake_wrong("no such kernel");
    *value = attribute == NB_CU_FUNC_MOST_THREADS ? (int)(NB_GPU_TEAMS * NB_GPU_THREADS) : 0;
    return 0;
}

static unsigned allowed_shared; /* dynamic shared memory of the kernel */

static nb_cu_result fFuncSetAttribute(nb_cu_function f, int attribute, int value)
{
    CALL_IN_CONTEXT("cuFuncSetAttribute");
    if (f != KERNEL || attribute != NB_CU_FUNC_DYNAMIC_SHARED || value < (int)NB_GPU_TEAM_SHARED ||
        value > 232448)
        fake_wrong("an attribute of the kernel that it does not need");
    allowed_shared = (unsigned)value;
    return 0;
}

/* ---- Streams and events -------------------------------------------------------------------------------- */

static nb_cu_result fStreamCreateWithPriority(nb_cu_stream *stream, unsigned flags, int priority)
{
    CALL_IN_CONTEXT("cuStreamCreateWithPriority");
    if (flags != NB_CU_STREAM_NON_BLOCKING || priority != -5)
        fake_wrong("a stream that waits for others, or of low priority");
    *stream = fake_make_stream();
    fake_count(1);
    return 0;
}

static nb_cu_result fStreamDestroy_v2(nb_cu_stream stream)
{
    fake_end_stream(stream);
    fake_count(-1);
    CALL_IN_CONTEXT("cuStreamDestroy");
    return 0;
}

static nb_cu_result fStreamSynchronize(nb_cu_stream stream)
{
    CALL_IN_CONTEXT("cuStreamSynchronize");
    if (fake.waiting)
        fake.waiting();
    fake_wait(stream);
    return 0;
}

static nb_cu_result fStreamWaitEvent(nb_cu_stream stream, nb_cu_event event, unsigned flags)
{
    struct fake_stream *s = stream;
    struct fake_event *e = event;

    (void)flags;
    CALL_IN_CONTEXT("cuStreamWaitEvent");
    pthread_mutex_lock(&fake_lock);
    if (e->destroyed)
        fake_wrong("a stream would wait for an event that is destroyed");
    if (e->capture && fake_graph_of(e->capture)) { /* the stream joins the capture */
        if (s->capture && s->capture != e->capture)
            fake_wrong("a stream that would be in two captures");
        s->capture = e->capture;
    } else if (s->capture) {
        fake_wrong("a captured stream that waits for what is not captured");
    }
    fake_put(s, &(struct fake_item){.kind = WAIT, .event = e, .value = e->recorded});
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fStreamGetFlags(nb_cu_stream stream, unsigned *flags)
{
    (void)stream;
    CALL_IN_CONTEXT("cuStreamGetFlags");
    *flags = fake.blocking ? 0 : NB_CU_STREAM_NON_BLOCKING;
    return 0;
}

static nb_cu_result fStreamBeginCapture_v2(nb_cu_stream stream, int mode)
{
    CALL_IN_CONTEXT("cuStreamBeginCapture");
    if (mode != NB_CU_CAPTURE_MODE_RELAXED || fake.blocking)
        fake_wrong("a capture that forbids calls of other threads");
    fake_capture(stream);
    return 0;
}

static nb_cu_result fStreamEndCapture(nb_cu_stream stream, nb_cu_graph *graph)
{
    CALL_IN_CONTEXT("cuStreamEndCapture");
    *graph = fake_capture_try_end(stream);
    if (!*graph)
        return 904; /* CUDA_ERROR_STREAM_CAPTURE_UNJOINED */
    if (fake.invalidated) {
        fake_graph_free(*graph);
        *graph = NULL;
        return 901;
    }
    fake_count(1);
    return 0;
}

static nb_cu_result fGraphDestroy(nb_cu_graph graph)
{
    fake_graph_free(graph);
    fake_count(-1);
    CALL_IN_CONTEXT("cuGraphDestroy");
    return 0;
}

/* An executable graph: it holds the graph that its next launch runs. */
static nb_cu_result fGraphInstantiateWithFlags(nb_cu_graph_exec *exec, nb_cu_graph graph,
                                               unsigned long long flags)
{
    nb_cu_graph *e;

    (void)flags;
    CALL_IN_CONTEXT("cuGraphInstantiate");
    e = malloc(sizeof(*e));
    if (!e)
        abort();
    fake_hold(graph);
    *e = graph;
    *exec = e;
    fake_count(1);
    return 0;
}

static nb_cu_result fGraphExecUpdate_v2(nb_cu_graph_exec exec, nb_cu_graph graph,
                                        struct nb_cu_graph_update *update)
{
    nb_cu_graph *e = exec;

    (void)update;
    CALL_IN_CONTEXT("cuGraphExecUpdate");
    if (fake.no_update)
        return 910;
    fake_hold(graph);
    fake_graph_free(*e);
    *e = graph;
    return 0;
}

static nb_cu_result fGraphLaunch(nb_cu_graph_exec exec, nb_cu_stream stream)
{
    nb_cu_graph *e = exec;

    CALL_IN_CONTEXT("cuGraphLaunch");
    fake_hold(*e);
    pthread_mutex_lock(&fake_lock);
    fake_put(stream, &(struct fake_item){.kind = GRAPH, .graph = *e});
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fGraphExecDestroy(nb_cu_graph_exec exec)
{
    nb_cu_graph *e = exec;

    fake_graph_free(*e);
    free(e);
    fake_count(-1);
    CALL_IN_CONTEXT("cuGraphExecDestroy");
    return 0;
}

static nb_cu_result fStreamGetCaptureInfo_v2(nb_cu_stream stream, int *state, uint64_t *id, void *graph,
                                             void *nodes, size_t *n)
{
    struct fake_stream *s = stream;

    (void)graph;
    (void)nodes;
    (void)n;
    CALL_IN_CONTEXT("cuStreamGetCaptureInfo");
    pthread_mutex_lock(&fake_lock);
    *state = !s->capture ? NB_CU_CAPTURE_NONE : fake.invalidated ? NB_CU_CAPTURE_INVALIDATED : 1;
    *id = s->capture;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fEventCreate(nb_cu_event *event, unsigned flags)
{
    (void)flags;
    CALL_IN_CONTEXT("cuEventCreate");
    *event = fake_make_event();
    fake_count(1);
    return 0;
}

static nb_cu_result fEventDestroy_v2(nb_cu_event event)
{
    fake_end_event(event);
    fake_count(-1);
    CALL_IN_CONTEXT("cuEventDestroy");
    return 0;
}

static nb_cu_result fEventRecord(nb_cu_event event, nb_cu_stream stream)
{
    struct fake_stream *s = stream;
    struct fake_event *e = event;

    CALL_IN_CONTEXT("cuEventRecord");
    pthread_mutex_lock(&fake_lock);
    if (e->destroyed)
        fake_wrong("an event was recorded that is destroyed");
    e->capture = s->capture;
    fake_put(s, &(struct fake_item){.kind = RECORD, .event = e, .value = ++e->recorded});
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fLaunchKernelEx(const struct nb_cu_launch_config *config, nb_cu_function f,
                                    void **arguments, void **extra)
{
    struct fake_item it = {.kind = LAUNCH, .blocks = config->grid_x * config->block_y};

    CALL_IN_CONTEXT("cuLaunchKernelEx");
    if (f != KERNEL || extra || config->block_x != NB_GPU_THREADS || config->block_y > NB_GPU_TEAMS ||
        config->shared_bytes != config->block_y * NB_GPU_TEAM_SHARED ||
        config->shared_bytes > allowed_shared || it.blocks < 2 || config->nattrs != 1 ||
        config->attrs->id != NB_CU_LAUNCH_MEM_SYNC_DOMAIN)
        fake_wrong("a launch in another form");
    memcpy(&it.launch, arguments[0], sizeof(it.launch));
    pthread_mutex_lock(&fake_lock);
    fake_put(config->stream, &it);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result set_memory(nb_cu_ptr at, uint32_t pattern, size_t bytes, nb_cu_stream stream)
{
    pthread_mutex_lock(&fake_lock);
    fake_put(stream,
             &(struct fake_item){
                 .kind = SET, .at = (unsigned char *)(uintptr_t)at, .pattern = pattern, .bytes = bytes});
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fMemcpyAsync(nb_cu_ptr dst, nb_cu_ptr src, size_t bytes, nb_cu_stream stream)
{
    CALL_IN_CONTEXT("cuMemcpyAsync");
    pthread_mutex_lock(&fake_lock);
    fake_put(stream, &(struct fake_item){.kind = COPY,
                                         .at = (unsigned char *)(uintptr_t)dst,
                                         .from = (const unsigned char *)(uintptr_t)src,
                                         .bytes = bytes});
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static nb_cu_result fMemsetD8Async(nb_cu_ptr at, unsigned char v, size_t n, nb_cu_stream stream)
{
    CALL_IN_CONTEXT("cuMemsetD8Async");
    if (fake.waiting)
        fake.waiting();
    return set_memory(at, v, n, stream);
}

static nb_cu_result fMemsetD32Async(nb_cu_ptr at, unsigned v, size_t n, nb_cu_stream stream)
{
    CALL_IN_CONTEXT("cuMemsetD32Async");
    if (n != 1)
        fake_wrong("more than a word");
    return set_memory(at, v, 4, stream);
}

const struct nb_cuda fake_driver = {
#define FAKE(name, args) .name = f##name,
    NB_CU_FUNCTIONS(FAKE)
#undef FAKE
        .image = "fake",
    .image_cuda = 13000,
};
