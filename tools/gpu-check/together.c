/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find out whether NCCL's launch can be captured and launched together with the codec's kernel, as two roots
 * of one graph: do both start, at which cost, also while another thread loads kernels, frees memory and
 * page-locks some all the time, and does a kernel of another stream run beside an operation that waits? The
 * same for the codec's kernel launched before NCCL's and behind it. Also: which calls of other threads hold
 * up a launch, and how many launches fit behind a kernel that waits.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu-check/experiment.h"

#define OPERATIONS 200u
#define TEASED 400u
#define CODEC_BLOCKS 33u
#define MANY 1400u
#define STOPPED 1.5 /* seconds without a window */

enum way { GRAPH, GRAPH_ANEW, GRAPH_PRIORITY, MARKED, JOINED, BEFORE, BEHIND, ALONE, WAYS };
static const char *const ways[] = {"one graph, updated",
                                   "one graph, instantiated anew",
                                   "one graph, priorities",
                                   "one graph, a mark behind the operation",
                                   "one graph, captured with a mark and a join",
                                   "before, ended by count",
                                   "behind, ended by count",
                                   "the operation alone"};

static CUstream nccl, own, third;
static CUevent forked, joined;
#define EXECS 32u
static CUgraphExec execs[EXECS];
static _Atomic int stop, holding, teasing_over;
static _Atomic unsigned served; /* operations */
static unsigned hazards, anew;

static double cost[5][TEASED]; /* seconds, see submit() */

/* A thread that launches one operation after the other, as a job's does. */
static struct launcher {
    enum way way;
    unsigned n;
    _Atomic unsigned at;
    _Atomic int ended;
} job;

/* Play the engine: pass windows on and end the codec's kernel by the count of windows or by the mark. */
static void *engine(void *argument)
{
    struct nb_lane *lane = &board->lane[0];

    (void)argument;
    while (!atomic_load(&stop)) {
        lane->posted = lane->request;
        __sync_synchronize();
        if (!atomic_load(&holding)) {
            lane->acked = lane->done;
            lane->told = job.way == MARKED || job.way == JOINED ? board->behind : lane->done / NB_WINDOWS;
        }
        atomic_store(&served, lane->told);
    }
    return NULL;
}

/* The same without a codec's kernel. */
static void *engine_alone(void *argument)
{
    struct nb_lane *lane = &board->lane[0];

    (void)argument;
    while (!atomic_load(&stop)) {
        if (!atomic_load(&holding))
            lane->acked = lane->request;
        atomic_store(&served, lane->acked / NB_WINDOWS);
    }
    return NULL;
}

static void launch_operation(CUstream s)
{
    unsigned lane = 0;
    uint64_t seq = counters;
    launch(operation, 1, 512, s, (void *[]){&board_gpu, &lane, &seq, &limit_ns});
}

static void launch_codec(CUstream s, unsigned number)
{
    unsigned lane = 0;
    launch(codec, CODEC_BLOCKS, 128, s, (void *[]){&board_gpu, &lane, &number, &limit_ns});
}

/* Launch operation `number` with the codec's kernel. Costs: 0 all, 1 capture, 2 add a node, 3 update or
 * instantiate, 4 launch the graph. */
static void submit(enum way way, unsigned number)
{
    const double begun = now();
    double t = begun;

    if (way == ALONE) {
        launch_operation(nccl);
    } else if (way == BEFORE || way == BEHIND) {
        CU(EventRecord(forked, nccl));
        CU(StreamWaitEvent(own, forked, 0));
        if (way == BEFORE)
            launch_codec(own, number);
        launch_operation(nccl);
        if (way == BEHIND)
            launch_codec(own, number);
    } else {
        unsigned lane = 0;
        CUgraph graph;
        CUnode node;
        CU(StreamBeginCapture_v2(nccl, NB_CU_CAPTURE_RELAXED));
        if (way == JOINED) {
            CU(EventRecord(forked, nccl));
            CU(StreamWaitEvent(own, forked, 0));
        }
        launch_operation(nccl);
        if (way == JOINED) {
            launch_codec(own, number);
            CU(EventRecord(joined, own));
        }
        if (way == JOINED || way == MARKED)
            CU(MemsetD32Async(board_gpu + offsetof(struct nb_board, behind), number + 1, 1, nccl));
        if (way == JOINED)
            CU(StreamWaitEvent(nccl, joined, 0));
        CU(StreamEndCapture(nccl, &graph));
        cost[1][number] = now() - t;
        t = now();
        const struct nb_cu_node ours = {.f = codec,
                                        .grid = {CODEC_BLOCKS, 1, 1},
                                        .block = {128, 1, 1},
                                        .arguments = (void *[]){&board_gpu, &lane, &number, &limit_ns}};
        if (way != JOINED)
            CU(GraphAddKernelNode_v2(&node, graph, NULL, 0, &ours));
        if (way == GRAPH_PRIORITY) {
            int value[16] = {greatest};
            CU(GraphKernelNodeSetAttribute(node, NB_CU_PRIORITY, value));
        }
        cost[2][number] = now() - t;
        t = now();
        struct nb_cu_update update;
        CUgraphExec *exec = &execs[way == GRAPH_ANEW ? number % EXECS : 0];
        if (way == GRAPH_ANEW && *exec) {
            CU(GraphExecDestroy(*exec));
            *exec = NULL;
        }
        if (!*exec || nb_cu.GraphExecUpdate_v2(*exec, graph, &update)) {
            anew++;
            CU(GraphInstantiateWithFlags(exec, graph, 0));
        }
        cost[3][number] = now() - t;
        t = now();
        CU(GraphLaunch(*exec, nccl));
        cost[4][number] = now() - t;
        CU(GraphDestroy(graph));
    }
    cost[0][number] = now() - begun;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Return the median of a cost in microseconds. */
static double middle(unsigned which, unsigned n)
{
    qsort(cost[which], n, sizeof(double), by_size);
    return cost[which][n / 2] * 1e6;
}

static void start_over(void)
{
    memset((void *)(uintptr_t)board, 0, sizeof(*board));
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));
    memset(cost, 0, sizeof(cost));
    atomic_store(&stop, 0);
    atomic_store(&holding, 0);
    atomic_store(&served, 0);
    memset(execs, 0, sizeof(execs));
    anew = 0;
}

/* Load, free and page-lock at random times until told to end. */
static void *tease(void *argument)
{
    unsigned seed = 7, late = 0;

    (void)argument;
    CU(CtxSetCurrent(context));
    while (!atomic_load(&teasing_over)) {
        const double end = now() + (rand_r(&seed) % 300) * 1e-6;
        uint64_t memory;
        void *pages;
        while (now() < end)
            ;
        switch (rand_r(&seed) % 4) {
        case 0:
            CU(MemAlloc_v2(&memory, 4 << 20));
            CU(MemFree_v2(memory));
            break;
        case 1:
            CU(MemHostAlloc(&pages, 1 << 20, NB_CU_HOST_MAPPED));
            CU(MemFreeHost(pages));
            break;
        case 2: CU(StreamSynchronize(third)); break;
        default: /* a fresh module each time: its kernel's first launch loads it */
            if (late < 60) {
                CUmodule m;
                CUfunction f;
                late++;
                CU(ModuleLoadData(&m, nb_launch_image));
                CU(ModuleGetFunction(&f, m, "nb_late00"));
                launch(f, 1, 1, third, (void *[]){&board_gpu});
            }
        }
        hazards++;
    }
    return NULL;
}

static void *launcher(void *argument)
{
    (void)argument;
    CU(CtxSetCurrent(context));
    for (unsigned i = 0; i < job.n; i++) {
        submit(job.way, i);
        atomic_store(&job.at, i + 1);
        if (i % 8 == 7)
            while (atomic_load(&served) < i + 1 && !board->release)
                ;
    }
    atomic_store(&job.ended, 1);
    return NULL;
}

/* Run n operations on a launching thread of their own. Return whether all went through. */
static bool operations(enum way way, unsigned n, bool teased)
{
    pthread_t engines, launching, teasing;
    char name[96], text[256];
    CUstream all[] = {nccl, own, third};

    start_over();
    hazards = 0;
    job.way = way;
    job.n = n;
    atomic_store(&job.at, 0);
    atomic_store(&job.ended, 0);
    atomic_store(&teasing_over, 0);
    if (pthread_create(&engines, NULL, way == ALONE ? engine_alone : engine, NULL))
        return false;
    const double begun = now();
    if (pthread_create(&launching, NULL, launcher, NULL) ||
        (teased && pthread_create(&teasing, NULL, tease, NULL)))
        return false;
    double moved = now();
    unsigned last = 0;
    bool through = true;
    while (atomic_load(&served) < n) {
        if (atomic_load(&served) != last) {
            last = atomic_load(&served);
            moved = now();
        }
        if (now() - moved > STOPPED) {
            through = false;
            break;
        }
        nap();
    }
    const double took = now() - begun;
    if (!through)
        board->release = 1;
    atomic_store(&teasing_over, 1);
    if (teased)
        pthread_join(teasing, NULL);
    if (!through) {
        job.n = 0;
    }
    pthread_join(launching, NULL);
    const bool rest = drained(all, 3, WAIT_SECONDS);
    if (!rest)
        give_up(all, 3);
    atomic_store(&stop, 1);
    pthread_join(engines, NULL);
    snprintf(name, sizeof(name), "%s%s", ways[way], teased ? ", beside loads, frees and waits" : "");
    if (!through)
        snprintf(text, sizeof(text), "stops at operation %u of %u after %u calls of the other thread", last,
                 n, hazards);
    else
        snprintf(
            text, sizeof(text),
            "%u operations, %.1f us each; submitting takes %.1f us (capture %.1f, node %.1f, update %.1f, "
            "launch %.1f; %u instantiated)%s; %u calls beside",
            n, took * 1e6 / n, middle(0, n), middle(1, n), middle(2, n), middle(3, n), middle(4, n), anew,
            rest ? "" : "; streams did not come to rest", hazards);
    result(through ? "measured" : "failed", name, text);
    return through;
}

/* Return whether a kernel of another stream runs beside an operation whose peer is late. `recorded`: the job
 * records an event behind it, as PyTorch does behind every collective. */
static bool overlaps(enum way way, bool recorded)
{
    pthread_t engines;
    char name[96], text[160];
    CUstream all[] = {nccl, own, third};

    start_over();
    job.way = way;
    atomic_store(&holding, 1);
    if (pthread_create(&engines, NULL, way == ALONE ? engine_alone : engine, NULL))
        return false;
    submit(way, 0);
    if (recorded)
        CU(EventRecord(joined, nccl));
    double begun = now();
    while (!board->lane[0].request && now() - begun < 1.0)
        nap();
    const bool started = board->lane[0].request != 0;
    begun = now();
    launch(mark, 1, 1, third, (void *[]){&board_gpu});
    while (!board->marks && now() - begun < 0.5)
        nap();
    const bool beside = board->marks != 0;
    const double took = now() - begun;
    const bool codec_runs = way == ALONE || board->lane[0].done != 0;
    atomic_store(&holding, 0);
    const bool rest = drained(all, 3, WAIT_SECONDS);
    if (!rest)
        give_up(all, 3);
    atomic_store(&stop, 1);
    pthread_join(engines, NULL);
    snprintf(name, sizeof(name), "%s, a kernel beside an operation that waits%s", ways[way],
             recorded ? " and an event" : "");
    snprintf(text, sizeof(text), "%s%s%s", !started ? "the operation did not start; " : "",
             codec_runs ? "" : "the codec did not start; ",
             beside ? "it ran" : "it did not run until the operation had ended");
    if (beside) {
        const size_t at = strlen(text);
        snprintf(text + at, sizeof(text) - at, ", after %.2f ms", took * 1e3);
    }
    result(started && codec_runs && rest ? "measured" : "failed", name, text);
    return beside && rest && codec_runs;
}

/* ---- Launches beside waits of other threads ------------------------------------------------------------ */

static uint64_t target;
static void *pageable;

static int synchronize_context(void)
{
    return nb_cu.CtxSynchronize();
}

static int synchronize_stream(void)
{
    return nb_cu.StreamSynchronize(third);
}

static int copy_pageable(void)
{
    return nb_cu.MemcpyHtoD_v2(target, pageable, (size_t)8 << 20);
}

static CUgraph some_graph;

static int instantiate(void)
{
    CUgraphExec e;
    return nb_cu.GraphInstantiateWithFlags(&e, some_graph, 0);
}

struct waiting {
    int (*what)(void);
    _Atomic int begun, ended;
};

static void *wait_main(void *argument)
{
    struct waiting *w = argument;
    CU(CtxSetCurrent(context));
    atomic_store(&w->begun, 1);
    nb_cu_check(w->what(), "a call beside a kernel that waits");
    atomic_store(&w->ended, 1);
    return NULL;
}

static bool within(_Atomic int *flag, double seconds)
{
    const double end = now() + seconds;
    while (!atomic_load(flag) && now() < end)
        nap();
    return atomic_load(flag);
}

static int launch_graph_of_two(void)
{
    submit(GRAPH, 0);
    return 0;
}

static int launch_marked(void)
{
    return nb_cu.LaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, own, (void *[]){&board_gpu}, NULL);
}

/* A kernel waits on `third`. Another thread makes a call. Does a launch go through meanwhile? */
static void beside_waits(void)
{
    static const struct {
        const char *name;
        int (*what)(void);
    } calls[] = {{"cuCtxSynchronize", synchronize_context},
                 {"cuStreamSynchronize", synchronize_stream},
                 {"a pageable copy", copy_pageable},
                 {"cuGraphInstantiate", instantiate}};
    CUstream all[] = {nccl, own, third};

    CU(MemAlloc_v2(&target, (size_t)8 << 20));
    pageable = calloc(8, 1 << 20);
    CU(StreamBeginCapture_v2(own, NB_CU_CAPTURE_RELAXED));
    launch(mark, 1, 1, own, (void *[]){&board_gpu});
    CU(StreamEndCapture(own, &some_graph));
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        for (int graph = 0; graph < 2; graph++) {
            struct waiting call = {.what = calls[i].what};
            struct waiting launching = {.what = graph ? launch_graph_of_two : launch_marked};
            pthread_t a, b;
            char name[128], text[128];
            start_over();
            atomic_store(&stop, 1);
            launch(hold, 1, 1, third, (void *[]){&board_gpu, &limit_ns});
            const double begun = now();
            while (!board->holds && now() - begun < WAIT_SECONDS)
                nap();
            if (pthread_create(&a, NULL, wait_main, &call))
                return;
            const bool returned = within(&call.ended, 0.05);
            if (pthread_create(&b, NULL, wait_main, &launching))
                return;
            const bool passed = within(&launching.ended, 0.3);
            board->flag = 1;
            board->release = 1;
            pthread_join(a, NULL);
            pthread_join(b, NULL);
            if (!drained(all, 3, WAIT_SECONDS))
                give_up(all, 3);
            snprintf(name, sizeof(name), "%s beside %s of another thread", graph ? "one graph" : "a launch",
                     calls[i].name);
            snprintf(text, sizeof(text), "the call %s a kernel that waits; the launch %s",
                     returned ? "does not wait for" : "waits for", passed ? "goes through" : "waits, too");
            result("measured", name, text);
        }
    }
}

/* ---- Calls of another thread beside an open capture ---------------------------------------------------- */

static int launch_legacy(void)
{
    return nb_cu.LaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&board_gpu}, NULL);
}

static int allocate_and_free(void)
{
    uint64_t m;
    const int ret = nb_cu.MemAlloc_v2(&m, 4 << 20);
    return ret ? ret : nb_cu.MemFree_v2(m);
}

static int lock_and_free(void)
{
    void *pages;
    const int ret = nb_cu.MemHostAlloc(&pages, 1 << 20, NB_CU_HOST_MAPPED);
    return ret ? ret : nb_cu.MemFreeHost(pages);
}

static int load_module(void)
{
    CUmodule m;
    CUfunction f;
    int ret = nb_cu.ModuleLoadData(&m, nb_launch_image);
    if (!ret)
        ret = nb_cu.ModuleGetFunction(&f, m, "nb_late01");
    return ret ? ret : nb_cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, third, (void *[]){&board_gpu}, NULL);
}

static int launch_third(void)
{
    return nb_cu.LaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, third, (void *[]){&board_gpu}, NULL);
}

static int query_third(void)
{
    const int ret = nb_cu.StreamQuery(third);
    return ret == NB_CU_NOT_READY ? 0 : ret;
}

static CUevent timed;
static CUstream captured;

/* Record on the stream that another thread captures. What a query of the event gives is seen later. */
static int record_captured(void)
{
    return nb_cu.EventRecord(timed, captured);
}

static int record_third(void)
{
    return nb_cu.EventRecord(timed, third);
}

struct asked {
    int (*what)(void);
    int got;
};

static void *ask_main(void *argument)
{
    struct asked *a = argument;
    CU(CtxSetCurrent(context));
    a->got = a->what();
    return NULL;
}

static void beside_captures(void)
{
    static const struct {
        const char *name;
        int (*what)(void);
    } calls[] = {{"cuCtxSynchronize", synchronize_context},
                 {"cuStreamSynchronize", synchronize_stream},
                 {"cuStreamQuery", query_third},
                 {"cuEventRecord", record_third},
                 {"cuEventRecord on the captured stream", record_captured},
                 {"a launch", launch_third},
                 {"a launch on the legacy stream", launch_legacy},
                 {"a pageable copy", copy_pageable},
                 {"cuMemAlloc and cuMemFree", allocate_and_free},
                 {"cuMemHostAlloc and cuMemFreeHost", lock_and_free},
                 {"a module's load and first launch", load_module},
                 {"cuGraphInstantiate", instantiate}};
    CUstream blocking, all[] = {nccl, own, third};

    timed = event();
    CU(StreamCreateWithPriority(&blocking, 0, least));
    for (int way = 0; way < 3; way++) {
        CUstream s = way == 2 ? blocking : nccl;
        for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
            struct asked asked = {calls[i].what, -1};
            pthread_t a;
            CUgraph graph = NULL;
            char name[160], text[128];
            captured = s;
            CU(StreamBeginCapture_v2(s, way == 1 ? 1 : NB_CU_CAPTURE_RELAXED));
            if (pthread_create(&a, NULL, ask_main, &asked))
                return;
            pthread_join(a, NULL);
            const int launched =
                nb_cu.LaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&board_gpu}, NULL);
            const int ended = nb_cu.StreamEndCapture(s, &graph);
            size_t nodes = 0;
            if (!ended && graph)
                nb_cu.GraphGetNodes(graph, NULL, &nodes);
            snprintf(name, sizeof(name), "%s of another thread beside %s capture", calls[i].name,
                     way == 0   ? "a relaxed"
                     : way == 1 ? "a thread-local"
                                : "a blocking stream's relaxed");
            snprintf(text, sizeof(text),
                     "the call gives %d, the captured launch %d, the end of capture %d, %zu nodes%s",
                     asked.got, launched, ended, nodes,
                     calls[i].what != record_captured     ? ""
                     : nb_cu.EventSynchronize(timed) == 0 ? "; the event can be waited for"
                                                          : "; no wait for the event");
            result("measured", name, text);
        }
    }
    if (!drained(all, 3, WAIT_SECONDS))
        give_up(all, 3);
}

static _Atomic unsigned queued;

static void *queue_main(void *argument)
{
    CUstream s = argument;
    CU(CtxSetCurrent(context));
    for (unsigned i = 0; i < MANY && !board->flag; i++) {
        launch(mark, 1, 1, s, (void *[]){&board_gpu});
        atomic_store(&queued, i + 1);
    }
    return NULL;
}

/* How many launches fit behind a kernel that waits, and does the next one hold up other threads? */
static void fill_queue(void)
{
    CUstream all[] = {nccl, own, third};
    char text[160];
    pthread_t a, b;
    struct waiting launching = {.what = launch_marked};

    start_over();
    atomic_store(&stop, 1);
    atomic_store(&queued, 0);
    launch(hold, 1, 1, third, (void *[]){&board_gpu, &limit_ns});
    double begun = now();
    while (!board->holds && now() - begun < WAIT_SECONDS)
        nap();
    if (pthread_create(&a, NULL, queue_main, third))
        return;
    unsigned last = 0;
    for (begun = now(); atomic_load(&queued) < MANY && now() - begun < 0.2;) {
        nap();
        if (atomic_load(&queued) != last) {
            last = atomic_load(&queued);
            begun = now();
        }
    }
    last = atomic_load(&queued);
    bool passed = true;
    if (last < MANY) {
        if (pthread_create(&b, NULL, wait_main, &launching))
            return;
        passed = within(&launching.ended, 0.3);
    }
    board->flag = 1;
    pthread_join(a, NULL);
    if (last < MANY)
        pthread_join(b, NULL);
    if (!drained(all, 3, WAIT_SECONDS))
        give_up(all, 3);
    if (last < MANY)
        snprintf(text, sizeof(text),
                 "%u go, the next one waits; a launch of another thread on another stream %s", last,
                 passed ? "goes through" : "waits, too");
    else
        snprintf(text, sizeof(text), "all %u go", MANY);
    result("measured", "launches behind a kernel that waits", text);
}

/* May an executable graph get another kernel, and one of another shape? NCCL launches kernels of many
 * names. */
static void update_kernels(void)
{
    const uint64_t no_time = 0;
    uint32_t zero = 0;
    struct nb_cu_update update;
    CUgraphExec exec = NULL;
    CUstream all[] = {nccl, own, third};
    char text[160];
    int got[3] = {0};

    start_over();
    for (int i = 0; i < 4; i++) {
        CUgraph graph;
        CU(StreamBeginCapture_v2(nccl, NB_CU_CAPTURE_RELAXED));
        if (i == 0)
            launch(mark, 1, 1, nccl, (void *[]){&board_gpu});
        else if (i == 1)
            launch(fill, 4, 256, nccl, (void *[]){&board_gpu, (void *)&no_time});
        else if (i == 2)
            launch(codec, 1, 128, nccl, (void *[]){&board_gpu, &zero, &zero, (void *)&no_time});
        else
            CU(MemsetD32Async(board_gpu + offsetof(struct nb_board, behind), 1, 1, nccl));
        CU(StreamEndCapture(nccl, &graph));
        if (i == 0)
            CU(GraphInstantiateWithFlags(&exec, graph, 0));
        else
            got[i - 1] = nb_cu.GraphExecUpdate_v2(exec, graph, &update);
        CU(GraphLaunch(exec, nccl));
    }
    const bool rest = drained(all, 3, WAIT_SECONDS);
    snprintf(text, sizeof(text),
             "another kernel and shape gives %d, a third with other arguments %d, a memset in its place %d%s",
             got[0], got[1], got[2], rest ? "" : "; the stream did not come to rest");
    result("measured", "update of an executable graph", text);
}

int together(const char *connections)
{
    int answer = 0;
    const int status = prepare(connections);

    if (status)
        return status;
    nccl = stream(least);
    own = stream(greatest);
    third = stream(least);
    forked = event();
    joined = event();
    const enum way order[] = {ALONE, GRAPH, GRAPH_ANEW, GRAPH_PRIORITY, MARKED, JOINED, BEFORE, BEHIND};
    for (unsigned i = 0; i < WAYS; i++)
        operations(order[i], OPERATIONS, false);
    bool beside = true;
    for (unsigned i = 0; i < WAYS; i++) {
        const bool there = overlaps(order[i], false) && overlaps(order[i], true);
        if (order[i] == GRAPH)
            beside = there;
    }
    if (beside)
        answer |= TOGETHER_OVERLAPS;
    bool through = operations(GRAPH, TEASED, true);
    through = operations(GRAPH_ANEW, TEASED, true) && through;
    operations(MARKED, TEASED, true);
    operations(JOINED, TEASED, true);
    if (through)
        answer |= TOGETHER_STARTS;
    operations(ALONE, TEASED, true);
    operations(BEFORE, TEASED, true);
    operations(BEHIND, TEASED, true);
    update_kernels();
    beside_waits();
    beside_captures();
    fill_queue();
    return ANSWER | answer;
}
