/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rules of the GPU path over the model of the driver (gpu/model.h). The plugin's own code breaks each on
 * purpose, in a separate process that must end with the reason. Then the test keeps each rule, and the
 * process goes through.
 *
 *   - Once a communicator is connected, a call of the driver on the engine's thread or on NCCL's proxy fails
 *     the test.
 *   - A codec kernel is attached to the launches of a communicator only once an operation of it has come to
 *     the ring. The kernel of an unrelated communicator, captured in a graph, runs while another kernel has
 *     the ring.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "base/log.h"
#include "device/cuda/cuda.h"
#include "device/cuda/table.h"
#include "tests/gpu/model.h"

#define DATA 100u
#define PIPELINE 900u
#define REPLAYS 5

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            abort(); \
        } \
    } while (0)

static struct nb_context ctx;
static struct nb_device *dev;
static char *wire, *state;
static int connected, over;

static uint64_t model_clock(void *argument)
{
    (void)argument;
    return (uint64_t)model_now();
}

static void open_run(void)
{
    const struct model_settings settings = {.seed = 1, .eager = 1, .patience = 20 * MODEL_SECOND};

    ctx.clock.now_ns = model_clock;
    CHECK(nb_params_read(&ctx.params) == 0 && nb_gpus_open(&ctx) == 0);
    nb_cuda_override(&model_driver);
    model_open(&settings);
    connected = over = 0;
}

static void close_run(void)
{
    const char *said = model_run();

    model_none_forbidden();
    if (said)
        fprintf(stderr, "%s\n", said);
    CHECK(!said);
    model_close();
    nb_gpus_close(&ctx);
    nb_params_free(ctx.params);
    memset(&ctx, 0, sizeof(ctx));
}

static void connect_data(void)
{
    const struct nb_device_wish wish = {.gpu = 0, .nnodes = 2, .comm_id = DATA};
    char why[256];

    model_current(0);
    nb_launch_attached(&ctx, 0, 1);
    CHECK(nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why)) == 0);
    CHECK((wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096)) != NULL);
    CHECK((state = dev->ops->alloc(dev, NB_PLACE_STATE, 4096)) != NULL);
    model_connected(1);
    connected = 1;
}

static void disconnect(void)
{
    over = 1;
    model_connected(0);
    dev->ops->quiesce(dev);
    while (!dev->ops->failed(dev) && dev->ops->turn(dev, 0))
        model_sleep(MODEL_MS);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    dev->ops->free(dev, NB_PLACE_STATE, state, 4096);
    dev->ops->close(dev);
    nb_launch_attached(&ctx, 0, -1);
}

/* ---- Calls of the driver on threads that serve --------------------------------------------------------- */

static void registers(void *argument)
{
    static char page[4096];

    (void)argument;
    while (!connected)
        model_sleep(MODEL_MS);
    dev->ops->turn(dev, 0);
    dev->ops->region(dev, page, sizeof(page), -1, 0); /* asks the driver for the memory's owner */
    over = 1;
}

static void connects(void *argument)
{
    (void)argument;
    connect_data();
    while (!over)
        model_sleep(MODEL_MS);
    disconnect();
}

/* A thread of this name and role registers memory after connect. */
struct caller {
    const char *name;
    enum model_role role;
};

static void call_after_connect(const void *argument)
{
    const struct caller *c = argument;

    open_run();
    model_thread("the job", MODEL_JOB, connects, NULL);
    model_thread(c->name, c->role, registers, NULL);
    close_run();
}

/* ---- An unrelated communicator's launches -------------------------------------------------------------- */

static struct model_kernel data, pipeline;
static int served, attached;

static int data_done(void *argument)
{
    (void)argument;
    return served;
}

static void engine_main(void *argument)
{
    (void)argument;
    while (!connected)
        model_sleep(MODEL_MS);
    while (!over) {
        struct nb_work work;
        const int open = data.begun && !data.over && !served;
        if (open && dev->ops->ready(dev) && dev->ops->copy(dev, &work, state, wire, 64) == -EINPROGRESS) {
            while (dev->ops->poll(dev, &work) == -EINPROGRESS)
                model_sleep(20 * MODEL_US);
            served = 1;
        }
        dev->ops->turn(dev, open);
        model_sleep(20 * MODEL_US);
    }
}

/* Capture an NCCL launch of communicator `id`. Return the number of the codec kernel attached to it. */
static uint64_t captured(nb_cu_stream stream, uint64_t id, struct model_kernel *k, struct model_graph **graph)
{
    model_capture(stream);
    const uint64_t number = nb_launch_begin(&ctx, 0, id, 2, stream, true, true);
    model_launch(stream, k);
    nb_launch_end(&ctx, number);
    nb_launch_posted(&ctx, number, false);
    *graph = model_capture_end(stream);
    return number;
}

static void two_graphs(void *argument)
{
    struct model_graph *of_data, *of_pipeline;
    nb_cu_stream a, b;

    (void)argument;
    connect_data();
    a = model_stream(0);
    b = model_stream(0);
    data = (struct model_kernel){
        .name = "NCCL's kernel (data)", .blocks = 16, .threads = 640, .registers = 96, .done = data_done};
    pipeline = (struct model_kernel){
        .name = "NCCL's kernel (pipeline)", .blocks = 16, .threads = 640, .registers = 96, .ns = MODEL_MS};
    if (attached) /* falsely, as if an operation of it had come here */
        dev->ops->shares(dev, PIPELINE);
    CHECK(captured(a, DATA, &data, &of_data) != 0);
    CHECK((captured(b, PIPELINE, &pipeline, &of_pipeline) != 0) == attached);
    for (int i = 0; i < REPLAYS; i++) {
        served = 0;
        model_replay(of_pipeline, b);
        model_replay(of_data, a);
        model_synchronize(a);
        model_synchronize(b);
    }
    disconnect();
}

static void run_two_graphs(const void *argument)
{
    attached = *(const int *)argument;
    open_run();
    model_thread("the job", MODEL_JOB, two_graphs, NULL);
    model_thread("engine", MODEL_SERVES, engine_main, NULL);
    close_run();
}

/* ---- Separate processes -------------------------------------------------------------------------------- */

/* Require that `what` ends its process with `words`. */
static void breaks(void (*what)(const void *argument), const void *argument, const char *words)
{
    char said[4096];
    size_t n = 0;
    ssize_t got;
    int ends[2], status;

    fflush(NULL);
    CHECK(pipe(ends) == 0);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        what(argument);
        _exit(0);
    }
    close(ends[1]);
    while (n < sizeof(said) - 1 && (got = read(ends[0], said + n, sizeof(said) - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, words)) {
        fprintf(stderr, "status %d, not \"%s\": %s\n", status, words, said);
        abort();
    }
    printf("ended, as it has to: %.*s\n", (int)strcspn(said, "\n"), said);
}

int main(void)
{
#ifdef NB_TSAN
    printf("SKIP: the thread sanitizer does not follow contexts that are switched by hand\n");
    return 77;
#endif
    const struct caller engine = {"engine", MODEL_SERVES}, proxy = {"NCCL's proxy", MODEL_SERVES},
                        job = {"another thread of the job", MODEL_JOB};
    const int yes = 1, no = 0;

    setenv("NIBBLE_GPU_RESERVE_MB", "0", 1);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("CUDA_LAUNCH_BLOCKING");
    breaks(call_after_connect, &engine,
           "calls of the driver after connect, the first cuCtxPushCurrent on thread engine");
    breaks(call_after_connect, &proxy, "the first cuCtxPushCurrent on thread NCCL's proxy");
    call_after_connect(&job);
    breaks(run_two_graphs, &yes, "two codec kernels at once on one ring");
    run_two_graphs(&no);
    printf("and goes through where the rules are kept\n");
    return 0;
}
