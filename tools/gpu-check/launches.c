/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How may the codec's kernel be launched beside NCCL's? Two questions to the GPU at hand, each with one
 * hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it) and with the default:
 *
 *  - per batch: an operation's kernel waits on a stream, another stream waits for that operation's end, and
 *    another thread launches on a stream of high priority. Does it start before the operation ends?
 *  - forked and joined: the codec's kernel starts after an event of the launch stream, and the launch stream
 *    waits for it after the operation: eagerly, on one stream for all communicators, and captured and
 *    replayed; four communicators, with other kernels filling the GPU.
 *
 *     launches          both, in a process each; lines "result STATUS NAME: DETAIL" and one "verdict"
 *     launches --child  this process only
 *
 * No kernel and no process can wait for ever: kernels watch a flag and a clock, the parent its children.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/gpu-check/driver.h"
#include "tools/gpu-check/launch.h"

#define KERNEL_SECONDS 10u /* a kernel's own limit */
#define WAIT_SECONDS 6.0   /* after which the host releases all kernels */
#define CHILD_SECONDS 60.0
#define ROUNDS 10u
#define MANY 40u /* streams that wait, more than there are hardware queues */

/* A child's answer is 64 and these. */
#define ANSWER 64
#define BATCH_STARTS 1
#define EAGER_PASSES 2
#define CAPTURED_PASSES 4

static CUcontext context;
static CUfunction hold, mark, fill, operation, resident;
static struct nb_board *board;
static uint64_t board_gpu, counters, limit_ns = KERNEL_SECONDS * 1000000000ull;
static int processors, least, greatest;
static const char *connections;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 200000}, NULL);
}

static void result(const char *status, const char *name, const char *detail)
{
    printf("result %s %s, %s: %s\n", status, name, connections, detail);
    fflush(stdout);
}

static CUstream stream(int priority)
{
    CUstream s;
    CU(StreamCreateWithPriority(&s, NB_CU_STREAM_NON_BLOCKING, priority));
    return s;
}

static CUevent event(void)
{
    CUevent e;
    CU(EventCreate(&e, NB_CU_EVENT_DISABLE_TIMING));
    return e;
}

static void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **arguments)
{
    CU(LaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, arguments, NULL));
}

/* Whether all streams are empty within the time; asks, never blocks. */
static bool drained(CUstream *streams, unsigned n, double seconds)
{
    double end = now() + seconds;
    for (unsigned i = 0; i < n; i++) {
        int r;
        while ((r = nb_cu.StreamQuery(streams[i])) == NB_CU_NOT_READY) {
            if (now() > end)
                return false;
            nap();
        }
        nb_cu_check(r, "StreamQuery");
    }
    return true;
}

/* Let everything go and wait for it; a process whose GPU does not come to rest even then is of no further
 * use. */
static void give_up(CUstream *streams, unsigned n)
{
    board->release = 1;
    board->quiet = 1;
    if (!drained(streams, n, KERNEL_SECONDS + 5.0)) {
        result("failed", "release", "kernels did not return after their release");
        _exit(1);
    }
}

static void prepare(void)
{
    CUmodule module;
    int device;
    char name[128];
    void *pinned;

    CU(DeviceGet(&device, 0));
    CU(DeviceGetName(name, sizeof(name), device));
    CU(DeviceGetAttribute(&processors, NB_CU_MULTIPROCESSORS, device));
    CU(DevicePrimaryCtxRetain(&context, device));
    CU(CtxSetCurrent(context));
    CU(CtxGetStreamPriorityRange(&least, &greatest));
    CU(ModuleLoadData(&module, nb_launch_image));
    CU(ModuleGetFunction(&hold, module, "nb_hold"));
    CU(ModuleGetFunction(&mark, module, "nb_mark"));
    CU(ModuleGetFunction(&fill, module, "nb_fill"));
    CU(ModuleGetFunction(&operation, module, "nb_operation"));
    CU(ModuleGetFunction(&resident, module, "nb_resident"));
    CU(MemHostAlloc(&pinned, sizeof(*board), NB_CU_HOST_MAPPED));
    board = pinned;
    memset(pinned, 0, sizeof(*board));
    CU(MemHostGetDevicePointer_v2(&board_gpu, pinned, 0));
    CU(MemAlloc_v2(&counters, 2 * NB_LANES * sizeof(uint32_t)));
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));

    /* First launches load code, which may wait for the whole device: all of them now, released beforehand. */
    uint64_t no_time = 0;
    unsigned lane = 0;
    uint64_t counter = counters;
    CUstream s = stream(least);
    board->release = 1;
    launch(hold, 1, 32, s, (void *[]){&board_gpu, &no_time});
    launch(mark, 1, 1, s, (void *[]){&board_gpu});
    launch(fill, 1, 512, s, (void *[]){&board_gpu, &no_time});
    launch(operation, 1, 32, s, (void *[]){&board_gpu, &lane, &counter, &no_time});
    launch(resident, 1, 32, s, (void *[]){&board_gpu, &lane, &counter, &no_time});
    if (!drained(&s, 1, WAIT_SECONDS)) {
        result("failed", "first launches", "kernels that had nothing to wait for did not return");
        _exit(1);
    }
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));
    memset(pinned, 0, sizeof(*board));
    printf("%s, %d multiprocessors, priorities %d to %d, %s\n", name, processors, least, greatest,
           connections);
}

/* ---- per batch -------------------------------------------------------------------------------------- */

static void *launch_mark(void *argument)
{
    CU(CtxSetCurrent(context));
    launch(mark, 1, 1, argument, (void *[]){&board_gpu});
    return NULL;
}

/* Whether a kernel launched by another thread starts while an operation runs and `waiting` streams wait. */
static bool starts(const char *name, unsigned waiting)
{
    static CUstream all[MANY + 2];
    CUstream a = all[0] = stream(least), c = all[1] = stream(greatest);
    CUevent ended = event();
    pthread_t thread;
    char text[160];
    double begun, took;
    bool started;

    memset((void *)(uintptr_t)board, 0, sizeof(*board));
    launch(hold, 1, 1, a, (void *[]){&board_gpu, &limit_ns});
    CU(EventRecord(ended, a));
    for (unsigned i = 0; i < waiting; i++) {
        all[2 + i] = stream(least);
        CU(StreamWaitEvent(all[2 + i], ended, 0));
        launch(mark, 1, 1, all[2 + i], (void *[]){&board_gpu});
    }
    for (begun = now(); !board->holds && now() - begun < WAIT_SECONDS;)
        nap();
    if (!board->holds) {
        result("failed", name, "the operation's own kernel did not start");
        give_up(all, 2 + waiting);
        return false;
    }
    begun = now();
    if (pthread_create(&thread, NULL, launch_mark, c)) {
        result("failed", name, "no thread");
        _exit(1);
    }
    while (!board->marks && now() - begun < 2.0)
        nap();
    took = now() - begun;
    started = board->marks != 0;
    board->flag = 1;
    pthread_join(thread, NULL);
    if (!drained(all, 2 + waiting, WAIT_SECONDS)) {
        result("failed", name, "streams did not come to rest after the operation's end");
        give_up(all, 2 + waiting);
        return false;
    }
    if (started)
        snprintf(text, sizeof(text), "it started, after %.2f ms", took * 1e3);
    else
        snprintf(text, sizeof(text), "it did not start until the operation had ended (waited %.1f s)", took);
    result("measured", name, text);
    return started;
}

/* ---- forked and joined ------------------------------------------------------------------------------- */

static struct fork {
    CUstream launch, own;
    CUevent begin, end;
    CUgraphExec graph;
} forks[NB_LANES];

static _Atomic bool engine_stops;

/* The engine: hands windows over and takes them back, and says when nothing of a launch is left. */
static void *engine(void *argument)
{
    (void)argument;
    while (!engine_stops)
        for (unsigned i = 0; i < NB_LANES; i++) {
            struct nb_lane *lane = &board->lane[i];
            lane->posted = lane->request;
            __sync_synchronize();
            lane->acked = lane->done;
            lane->end = lane->done / NB_WINDOWS;
        }
    return NULL;
}

/* An operation of communicator i with the codec's kernel beside it. */
static void forked(unsigned i, CUstream own)
{
    struct fork *f = &forks[i];
    uint64_t seq = counters + i * sizeof(uint32_t), life = counters + (NB_LANES + i) * sizeof(uint32_t);

    CU(EventRecord(f->begin, f->launch));
    CU(StreamWaitEvent(own, f->begin, 0));
    launch(resident, 1, 512, own, (void *[]){&board_gpu, &i, &life, &limit_ns});
    launch(operation, 1, 512, f->launch, (void *[]){&board_gpu, &i, &seq, &limit_ns});
    CU(EventRecord(f->end, own));
    CU(StreamWaitEvent(f->launch, f->end, 0));
}

enum how { EAGER, EAGER_ONE_STREAM, CAPTURED };

static bool fork_and_join(const char *name, enum how how)
{
    static uint32_t rounds_before;
    CUstream all[2 * NB_LANES + 1], filler = stream(least);
    uint64_t fill_ns = 500000;
    unsigned n = 0;
    char text[160];

    board->quiet = 0;
    for (unsigned i = 0; i < NB_LANES; i++) {
        all[n++] = forks[i].launch;
        all[n++] = forks[i].own;
    }
    all[n++] = filler;
    if (how == CAPTURED)
        for (unsigned i = 0; i < NB_LANES; i++) {
            CUgraph graph;
            CU(StreamBeginCapture_v2(forks[i].launch, NB_CU_CAPTURE_RELAXED));
            forked(i, forks[i].own);
            CU(StreamEndCapture(forks[i].launch, &graph));
            CU(GraphInstantiateWithFlags(&forks[i].graph, graph, 0));
            CU(GraphUpload(forks[i].graph, forks[i].launch));
        }
    double begun = now();
    for (unsigned round = 0; round < ROUNDS; round++) {
        /* Every place on every multiprocessor is taken, several times over, by blocks of half a
         * millisecond. */
        for (unsigned k = 0; k < 6; k++)
            launch(fill, (unsigned)processors * 4 * 4, 512, filler, (void *[]){&board_gpu, &fill_ns});
        for (unsigned i = 0; i < NB_LANES; i++)
            if (how == CAPTURED)
                CU(GraphLaunch(forks[i].graph, forks[i].launch));
            else
                forked(i, how == EAGER ? forks[i].own : forks[0].own);
    }
    bool ended = drained(all, n - 1, WAIT_SECONDS);
    double took = now() - begun;
    if (!ended) {
        snprintf(text, sizeof(text), "stuck: windows served %u %u %u %u of %u", board->lane[0].done,
                 board->lane[1].done, board->lane[2].done, board->lane[3].done,
                 (rounds_before + ROUNDS) * NB_WINDOWS);
        result("failed", name, text);
        give_up(all, n);
        return false;
    }
    board->quiet = 1;
    rounds_before += ROUNDS;
    bool right = drained(&filler, 1, WAIT_SECONDS) && !board->late;
    for (unsigned i = 0; i < NB_LANES; i++)
        right = right && board->lane[i].done == rounds_before * NB_WINDOWS;
    snprintf(text, sizeof(text), "%u operations of %u windows on %u communicators, %.1f ms an operation%s",
             ROUNDS, NB_WINDOWS, NB_LANES, took * 1e3 / ROUNDS,
             right ? "" : "; a kernel ended by its clock or windows are missing");
    result(right ? "passed" : "failed", name, text);
    return right;
}

static int child(void)
{
    const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    pthread_t thread;
    int answer = 0, status;

    connections = set ? "one connection" : "default connections";
    status = nb_cu_open();
    if (status)
        return status;
    prepare();
    starts("launch beside an operation, nothing waits", 0);
    bool batch = starts("launch per batch, one stream waits", 1);
    batch = starts("launch per batch, many streams wait", MANY) && batch;
    if (batch)
        answer |= BATCH_STARTS;

    memset((void *)(uintptr_t)board, 0, sizeof(*board));
    for (unsigned i = 0; i < NB_LANES; i++)
        forks[i] = (struct fork){stream(least), stream(greatest), event(), event(), NULL};
    if (pthread_create(&thread, NULL, engine, NULL)) {
        result("failed", "forked and joined", "no thread");
        return 1;
    }
    if (fork_and_join("forked and joined, eager", EAGER)) {
        bool one = fork_and_join("forked and joined, eager, one stream for all", EAGER_ONE_STREAM);
        if (one)
            answer |= EAGER_PASSES;
        if (!one)
            result("failed", "forked and joined, captured", "not tried after what got stuck");
        else if (fork_and_join("forked and joined, captured", CAPTURED))
            answer |= CAPTURED_PASSES;
    } else {
        result("failed", "forked and joined, captured", "not tried after what got stuck");
    }
    engine_stops = true;
    pthread_join(thread, NULL);
    return ANSWER | answer;
}

/* ---- the parent --------------------------------------------------------------------------------------- */

/* Run this program as a child; its exit status, or -1 when it had to be ended. */
static int run(const char *self, const char *connections_of_child)
{
    double end = now() + CHILD_SECONDS;
    int status;
    pid_t pid = fork();

    if (pid < 0) {
        perror("fork");
        return -1;
    }
    if (pid == 0) {
        if (connections_of_child)
            setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections_of_child, 1);
        else
            unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
        setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        unsetenv("CUDA_LAUNCH_BLOCKING");
        execl(self, self, "--child", (char *)NULL);
        perror(self);
        _exit(127);
    }
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (now() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            printf("result failed experiments: a child was ended after %.0f s\n", CHILD_SECONDS);
            return -1;
        }
        nap();
    }
}

int main(int argc, char **argv)
{
    int one, many;

    if (argc == 2 && !strcmp(argv[1], "--child"))
        return child();
    if (argc != 1) {
        fprintf(stderr, "usage: launches\n");
        return 2;
    }
    one = run("/proc/self/exe", "1");
    if (one == 77)
        return 77;
    many = run("/proc/self/exe", NULL);
    if (one < ANSWER || many < ANSWER) { /* failed, killed, or -1 */
        printf("verdict launching: not known, an experiment did not end (%d with one connection, "
               "%d by default)\n",
               one, many);
        return 1;
    }
    bool joined = (one & many & EAGER_PASSES) != 0, captured = (one & many & CAPTURED_PASSES) != 0;
    printf("verdict launching: per batch %s with one connection and %s by default; forked and joined %s; "
           "captured %s; so: %s\n",
           one & BATCH_STARTS ? "starts" : "does not start",
           many & BATCH_STARTS ? "starts" : "does not start", joined ? "works" : "does not work",
           captured ? "works" : "does not work",
           joined && captured ? "resident kernel, forked and joined"
           : joined           ? "resident kernel, forked and joined, host codec under capture"
           : one & BATCH_STARTS && many & BATCH_STARTS ? "launch per batch"
           : many & BATCH_STARTS ? "launch per batch by default, host codec with one connection"
                                 : "host codec");
    return joined && captured ? 0 : 1;
}
