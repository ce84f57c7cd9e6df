/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How may the codec's kernel be launched beside NCCL's? Questions to this machine's GPU, each with one
 * hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it) and with the default:
 *
 *  - beside (beside.c, first): behind NCCL's launch or before it, while another thread of the job loads a
 *    kernel or frees memory in between. Also: the driver calls that wait for a waiting kernel, or for such
 *    a load.
 *  - per batch: an operation's kernel waits on a stream, another stream waits for that operation's end, and
 *    another thread launches on a stream of high priority. Does it start before the operation ends?
 *  - forked and joined: the codec's kernel starts after an event of the launch stream, and the launch
 *    stream waits for it after the operation: eagerly, on one stream for all communicators, and captured
 *    and replayed. Four communicators, with other kernels filling the GPU.
 *
 *     launches           all, in a process each; lines "result STATUS NAME: DETAIL" and one "verdict"
 *     launches --child   the last two, in this process; --beside: the first
 *     launches --together   both kernels as one graph, beside the other orders (together.c)
 *
 * All kernels and processes end: kernels watch a flag and a clock, the parent watches its children.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/gpu-check/experiment.h"

#define CHILD_SECONDS 60.0
#define ROUNDS 10u
#define MANY 40u /* streams that wait, more than the hardware queues */

/* A child's answer is ANSWER and these bits. */
#define BATCH_STARTS 1
#define EAGER_PASSES 2
#define CAPTURED_PASSES 4

/* ---- per batch -------------------------------------------------------------------------------------- */

static void *launch_mark(void *argument)
{
    CU(CtxSetCurrent(context));
    launch(mark, 1, 1, argument, (void *[]){&board_gpu});
    return NULL;
}

/* Return whether a kernel launched by another thread starts while an operation runs and `waiting` streams
 * wait. */
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

/* Play the engine: pass windows on and take them back, and report completed launches. */
static void *engine(void *argument)
{
    (void)argument;
    while (!engine_stops) {
        for (unsigned i = 0; i < NB_LANES; i++) {
            struct nb_lane *lane = &board->lane[i];
            lane->posted = lane->request;
            __sync_synchronize();
            lane->acked = lane->done;
            lane->end = lane->done / NB_WINDOWS;
        }
        sched_yield();
    }
    return NULL;
}

/* Launch an operation of communicator i with the codec's kernel beside it. */
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
        /* Blocks of half a millisecond take every place on every multiprocessor, several times over. */
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

static const char *connections(void)
{
    return getenv("CUDA_DEVICE_MAX_CONNECTIONS") ? "one connection" : "default connections";
}

static int child(void)
{
    pthread_t thread;
    int answer = 0;
    const int status = prepare(connections());

    if (status)
        return status;
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

/* Run this program as a child with `option`. Return its exit status, or -1 when it had to be ended. */
static int run(const char *option, const char *connections_of_child)
{
    const char *self = "/proc/self/exe";
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
        setenv("CUDA_MODULE_LOADING", strcmp(option, "--beside") ? "EAGER" : "LAZY", 1);
        unsetenv("CUDA_LAUNCH_BLOCKING");
        execl(self, self, option, (char *)NULL);
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
    int one, many, both;

    if (argc == 2 && !strcmp(argv[1], "--child"))
        return child();
    if (argc == 2 && !strcmp(argv[1], "--beside"))
        return beside(connections(), getenv("CUDA_DEVICE_MAX_CONNECTIONS") != NULL);
    if (argc == 2 && !strcmp(argv[1], "--together"))
        return together(connections());
    if (argc != 1) {
        fprintf(stderr, "usage: launches\n");
        return 2;
    }
    both = run("--beside", NULL);
    if (both == 77)
        return 77;
    if (run("--beside", "1") < ANSWER)
        both = -1;
    one = run("--child", "1");
    many = run("--child", NULL);
    if (one < ANSWER || many < ANSWER || both < ANSWER) { /* failed, killed, or -1 */
        printf("verdict launching: not known, an experiment did not end (%d with one connection, "
               "%d by default, %d beside)\n",
               one, many, both);
        return 1;
    }
    bool joined = (one & many & EAGER_PASSES) != 0, captured = (one & many & CAPTURED_PASSES) != 0;
    printf("verdict launching: per batch %s with one connection and %s by default; forked and joined %s; "
           "captured %s; so: %s; while another thread loads or frees, behind NCCL's launch %s, before it %s: "
           "%s\n",
           one & BATCH_STARTS ? "starts" : "does not start",
           many & BATCH_STARTS ? "starts" : "does not start", joined ? "works" : "does not work",
           captured ? "works" : "does not work",
           joined && captured ? "resident kernel, forked and joined"
           : joined           ? "resident kernel, forked and joined, host codec under capture"
           : one & BATCH_STARTS && many & BATCH_STARTS ? "launch per batch"
           : many & BATCH_STARTS ? "launch per batch by default, host codec with one connection"
                                 : "host codec",
           both & BEHIND_GOES ? "goes through" : "stops", both & BEFORE_GOES ? "goes through" : "stops",
           both & BEHIND_GOES ? "NIBBLE_GPU_LAUNCH=behind would do" : "NIBBLE_GPU_LAUNCH=together");
    return joined && captured ? 0 : 1;
}
