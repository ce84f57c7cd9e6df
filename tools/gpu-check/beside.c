/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find out which driver calls wait beside a kernel that does not end, and which order of launching the
 * codec's kernel and NCCL's survives while another thread of the job loads a kernel, frees memory or
 * page-locks some between the two. The model of the driver (tests/gpu/model.h) assumes each of these answers.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tools/gpu-check/experiment.h"

#define ENOUGH 0.3   /* seconds: a call that takes longer counts as waiting */
#define SETTLES 0.02 /* seconds from a call's begin to the place where it waits */
#define HOLD 0.002   /* as plugin/device's: NCCL's launch may follow ours by so much */
#define STUCK 2.0
#define SOME ((size_t)2 << 20)
#define STREAMS 40u /* more than the hardware queues */
#define WAITING 4u

/* ---- Calls on threads of their own ------------------------------------------------------------------- */

struct call {
    int (*what)(void);
    pthread_t thread;
    double took;   /* seconds */
    unsigned turn; /* position in the order of returns */
    _Atomic int begun, ended;
};

static _Atomic unsigned turns;

static void *call_main(void *argument)
{
    struct call *c = argument;
    double begun;

    CU(CtxSetCurrent(context));
    begun = now();
    atomic_store(&c->begun, 1);
    nb_cu_check(c->what(), "a call beside a kernel that waits");
    c->turn = atomic_fetch_add(&turns, 1);
    c->took = now() - begun;
    atomic_store(&c->ended, 1);
    return NULL;
}

static void start(struct call *c, int (*what)(void))
{
    memset(c, 0, sizeof(*c));
    c->what = what;
    if (pthread_create(&c->thread, NULL, call_main, c)) {
        result("failed", "beside a kernel", "no thread");
        nb_cu_check(1, "pthread_create");
    }
    while (!atomic_load(&c->begun))
        nap();
}

static bool ends(const struct call *c, double seconds)
{
    const double end = now() + seconds;

    while (!atomic_load(&c->ended) && now() < end)
        nap();
    return atomic_load(&c->ended);
}

/* Objects of the calls, created anew before each call while the GPU is idle. */
static uint64_t memory, mapped, unmapped;
static unsigned long long handle;
static size_t granule;
static void *pages;
static CUstream other, loading, busy;
static CUevent some_event;
static unsigned late; /* kernels nb_late used */

static const struct nb_cu_kind on_device = {.type = NB_CU_PINNED, .location = NB_CU_ON_DEVICE};
static const struct nb_cu_may writable = {NB_CU_ON_DEVICE, 0, NB_CU_READ_WRITE};

/* Objects of calls that were never made stay until the process ends. */
static void prepare_call(void)
{
    unsigned long long spare;

    if (!other) {
        other = stream(greatest);
        loading = stream(least);
        busy = stream(least);
        some_event = event();
        CU(MemGetAllocationGranularity(&granule, &on_device, 0));
    }
    CU(MemAlloc_v2(&memory, SOME));
    CU(MemHostAlloc(&pages, SOME, NB_CU_HOST_MAPPED));
    CU(MemAddressReserve(&mapped, granule, 0, 0, 0));
    CU(MemCreate(&spare, granule, &on_device, 0));
    CU(MemMap(mapped, granule, 0, spare, 0));
    CU(MemSetAccess(mapped, granule, &writable, 1));
    CU(MemAddressReserve(&unmapped, granule, 0, 0, 0));
    CU(MemCreate(&handle, granule, &on_device, 0));
}

static int load_kernel(void)
{
    char name[32];
    CUfunction f;
    int ret;

    snprintf(name, sizeof(name), "nb_late%u%u", late / 8, late % 8);
    late = (late + 1) % NB_LATE;
    ret = nb_cu.ModuleGetFunction(&f, kernels, name);
    return ret ? ret : nb_cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, loading, (void *[]){&board_gpu}, NULL);
}

static int free_memory(void)
{
    return nb_cu.MemFree_v2(memory);
}

static int allocate(void)
{
    return nb_cu.MemAlloc_v2(&memory, SOME);
}

static int lock_pages(void)
{
    return nb_cu.MemHostAlloc(&pages, SOME, NB_CU_HOST_MAPPED);
}

static int unlock_pages(void)
{
    return nb_cu.MemFreeHost(pages);
}

static int map(void)
{
    int ret = nb_cu.MemMap(unmapped, granule, 0, handle, 0);
    return ret ? ret : nb_cu.MemSetAccess(unmapped, granule, &writable, 1);
}

static int create(void)
{
    return nb_cu.MemCreate(&handle, granule, &on_device, 0);
}

static int unmap(void)
{
    return nb_cu.MemUnmap(mapped, granule);
}

static int ask_pointer(void)
{
    unsigned type;
    return nb_cu.PointerGetAttribute(&type, NB_CU_MEMORY_TYPE, memory);
}

static int push_context(void)
{
    return nb_cu.CtxPushCurrent_v2(context);
}

static int record(void)
{
    return nb_cu.EventRecord(some_event, other);
}

static int wait_event(void)
{
    return nb_cu.StreamWaitEvent(other, some_event, 0);
}

static int query(void)
{
    return nb_cu.StreamQuery(loading) == NB_CU_NOT_READY ? 0 : nb_cu.StreamQuery(other);
}

static int launch_loaded(void)
{
    return nb_cu.LaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, other, (void *[]){&board_gpu}, NULL);
}

static int set_word(void)
{
    return nb_cu.MemsetD32Async(memory, 1, 1, other);
}

static int make_stream(void)
{
    CUstream s;
    return nb_cu.StreamCreateWithPriority(&s, NB_CU_STREAM_NON_BLOCKING, least);
}

static int load_module(void)
{
    CUmodule m;
    return nb_cu.ModuleLoadData(&m, nb_launch_image);
}

/* ---- What waits beside a kernel that waits ------------------------------------------------------------ */

static void hold_gpu(void)
{
    const double end = now() + WAIT_SECONDS;

    memset((void *)(uintptr_t)board, 0, sizeof(*board));
    launch(hold, 1, 1, busy, (void *[]){&board_gpu, &limit_ns});
    while (!board->holds && now() < end)
        nap();
}

static void let_go(void)
{
    CUstream all[] = {busy, loading, other};

    board->flag = 1;
    if (!drained(all, 3, WAIT_SECONDS))
        give_up(all, 3);
}

/* Make one call while a kernel waits and (`loads`) another thread loads one. */
static void ask(const char *name, int (*what)(void), bool loads)
{
    struct call load, call;
    char text[160], row[96];

    prepare_call();
    hold_gpu();
    if (loads) {
        start(&load, load_kernel);
        if (ends(&load, SETTLES)) {
            let_go();
            pthread_join(load.thread, NULL);
            result("measured", "another thread loads a kernel", "it did not wait for one that runs");
            return;
        }
    }
    start(&call, what);
    const bool waits = !ends(&call, ENOUGH);
    let_go();
    pthread_join(call.thread, NULL);
    if (loads)
        pthread_join(load.thread, NULL);
    if (waits)
        snprintf(text, sizeof(text), "waits (%.1f ms, until that had ended)", call.took * 1e3);
    else
        snprintf(text, sizeof(text), "returned after %.2f ms", call.took * 1e3);
    snprintf(row, sizeof(row), "beside a %s that waits, %s", loads ? "load" : "kernel", name);
    result("measured", row, text);
}

static void ask_all(void)
{
    static const struct {
        const char *name;
        int (*what)(void);
        bool alone, loading;
    } calls[] = {
        {"a kernel is loaded", load_kernel, true, false},
        {"cuMemFree", free_memory, true, true},
        {"cuMemHostAlloc", lock_pages, true, false},
        {"cuMemFreeHost", unlock_pages, true, false},
        {"cuModuleLoadData", load_module, true, false},
        {"cuMemAlloc", allocate, true, true},
        {"cuMemCreate", create, true, true},
        {"cuMemMap", map, true, true},
        {"cuMemUnmap", unmap, true, true},
        {"cuLaunchKernel", launch_loaded, true, true},
        {"cuEventRecord", record, true, true},
        {"cuStreamWaitEvent", wait_event, true, true},
        {"cuMemsetD32Async", set_word, true, true},
        {"cuPointerGetAttribute", ask_pointer, true, true},
        {"cuStreamCreate", make_stream, true, true},
        {"cuStreamQuery", query, true, true},
        {"cuCtxPushCurrent", push_context, true, true},
    };

    for (int loads = 1; loads >= 0; loads--)
        for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++)
            if (loads ? calls[i].loading : calls[i].alone)
                ask(calls[i].name, calls[i].what, loads);
}

/* Find out whether an event recorded behind a waiting kernel holds up another stream's kernel. */
static void ask_event(const char *name, unsigned flags)
{
    char text[160];
    CUevent e;
    double begun;

    if (!other)
        prepare_call();
    CU(EventCreate(&e, flags));
    hold_gpu();
    CU(EventRecord(e, busy));
    begun = now();
    launch(mark, 1, 1, other, (void *[]){&board_gpu});
    while (!board->marks && now() - begun < ENOUGH)
        nap();
    const bool started = board->marks != 0;
    let_go();
    snprintf(text, sizeof(text), started ? "it started, after %.2f ms" : "it did not start (waited %.1f ms)",
             (now() - begun) * 1e3);
    result("measured", name, text);
}

/* Find the streams that a stream waiting for an event holds up: they share its hardware queue. */
static void ask_queues(void)
{
    static CUstream all[STREAMS];
    char text[200];
    size_t at = 0;
    unsigned held = 0;
    CUevent e = event();

    for (unsigned i = 0; i < STREAMS; i++)
        all[i] = stream(least);
    hold_gpu();
    CU(EventRecord(e, busy));
    CU(StreamWaitEvent(all[0], e, 0));
    launch(mark, 1, 1, all[0], (void *[]){&board_gpu});
    for (unsigned i = 1; i < STREAMS; i++) {
        board->marks = 0;
        launch(mark, 1, 1, all[i], (void *[]){&board_gpu});
        const double end = now() + SETTLES;
        while (!board->marks && now() < end)
            nap();
        if (board->marks)
            continue;
        held++;
        if (at < sizeof(text))
            at += (size_t)snprintf(text + at, sizeof(text) - at, " %u", i);
    }
    board->flag = 1;
    if (!drained(all, STREAMS, WAIT_SECONDS))
        give_up(all, STREAMS);
    let_go();
    char line[256];
    snprintf(line, sizeof(line), "%u of %u%s%s", held, STREAMS - 1,
             held ? ", in the order in which they were made:" : "", held ? text : "");
    result("measured", "streams held up by the first, which waits", line);
}

/* Find out whether calls that wait for a load return in the order in which they were made. */
static void ask_turns(void)
{
    struct call load, waiting[WAITING];
    unsigned in_order = 0, rounds = 0;
    char text[80];

    for (; rounds < 4; rounds++) {
        bool ordered = true;
        prepare_call();
        hold_gpu();
        start(&load, load_kernel);
        ends(&load, SETTLES);
        for (unsigned i = 0; i < WAITING; i++) {
            start(&waiting[i], launch_loaded);
            ends(&waiting[i], SETTLES / 2);
        }
        let_go();
        pthread_join(load.thread, NULL);
        for (unsigned i = 0; i < WAITING; i++)
            pthread_join(waiting[i].thread, NULL);
        for (unsigned i = 1; i < WAITING; i++)
            ordered = ordered && waiting[i].turn > waiting[i - 1].turn;
        in_order += ordered;
    }
    snprintf(text, sizeof(text), "in the order in which they came, %u of %u times", in_order, rounds);
    result("measured", "launches of several threads behind a load that waits", text);
}

/* ---- The two orders ------------------------------------------------------------------------------------ */

static struct {
    CUstream nccl, own;
    CUevent forked;
    bool before;
    _Atomic int middle, go, launched;
} order;

static void launch_codec(unsigned number)
{
    unsigned lane = 0;
    launch(codec, 1, 32, order.own, (void *[]){&board_gpu, &lane, &number, &limit_ns});
}

/* Launch both kernels as NCCL's launching thread does, with the same calls between them. */
static int launch_both(void)
{
    unsigned lane = 0;
    uint64_t seq = counters;

    CU(EventRecord(order.forked, order.nccl));
    CU(StreamWaitEvent(order.own, order.forked, 0));
    if (order.before)
        launch_codec(0);
    else
        launch(operation, 1, 32, order.nccl, (void *[]){&board_gpu, &lane, &seq, &limit_ns});
    atomic_store(&order.middle, 1);
    while (!atomic_load(&order.go))
        nap();
    if (order.before)
        launch(operation, 1, 32, order.nccl, (void *[]){&board_gpu, &lane, &seq, &limit_ns});
    else
        launch_codec(0);
    atomic_store(&order.launched, 1);
    return 0;
}

static int launch_again(void)
{
    launch_codec(1);
    return 0;
}

/* Play the engine: pass windows both ways until the operation is complete. Return whether it completed. */
static bool serve(double seconds)
{
    struct nb_lane *lane = &board->lane[0];
    const double end = now() + seconds;

    while (lane->acked < NB_WINDOWS && now() < end) {
        lane->posted = lane->request;
        __sync_synchronize();
        lane->acked = lane->done;
        nap();
    }
    return lane->acked >= NB_WINDOWS;
}

/* Return whether an operation completes while another thread makes a call (NULL: no call) between the two
 * launches. */
static bool goes(const char *name, bool before, int (*what)(void))
{
    struct call launching, calling, again;
    bool left = false, through;
    char text[160];

    prepare_call();
    CUstream all[] = {order.nccl, order.own, loading};
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));
    memset((void *)(uintptr_t)board, 0, sizeof(*board));
    order.before = before;
    order.middle = order.go = order.launched = 0;
    start(&launching, launch_both);
    while (!atomic_load(&order.middle))
        nap();
    if (what) {
        start(&calling, what);
        ends(&calling, SETTLES);
    }
    const double begun = now();
    atomic_store(&order.go, 1);
    if (before) {
        while (!atomic_load(&order.launched) && now() - begun < HOLD / 2)
            nap();
        left = !atomic_load(&order.launched);
        if (left) { /* a call waits behind NCCL's launch, and then ours ends */
            start(&again, launch_again);
            ends(&again, HOLD / 2);
            board->lane[0].told = 1;
        }
    }
    through = serve(STUCK);
    board->lane[0].told = 2;
    through = through && drained(all, 3, STUCK);
    const double took = now() - begun;
    if (!through)
        give_up(all, 3);
    pthread_join(launching.thread, NULL);
    if (left)
        pthread_join(again.thread, NULL);
    if (what)
        pthread_join(calling.thread, NULL);
    if (!drained(all, 3, WAIT_SECONDS))
        give_up(all, 3);
    if (through)
        snprintf(text, sizeof(text), "goes through in %.1f ms%s", took * 1e3,
                 left ? ", ours left and came again" : "");
    else
        snprintf(text, sizeof(text), "stops (%u of %u windows after %.0f s)", board->lane[0].acked,
                 NB_WINDOWS, STUCK);
    result("measured", name, text);
    return through;
}

static int both_orders(void)
{
    static const struct {
        const char *name;
        int (*what)(void);
    } calls[] = {{"nothing between", NULL},
                 {"a kernel is loaded between", load_kernel},
                 {"cuMemFree between", free_memory},
                 {"cuMemHostAlloc between", lock_pages}};
    int answer = BEHIND_GOES | BEFORE_GOES;
    char name[96];

    order.nccl = stream(least);
    order.own = stream(greatest);
    order.forked = event();
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        for (int before = 0; before < 2; before++) {
            snprintf(name, sizeof(name), "codec kernel %s, %s", before ? "before NCCL's" : "behind NCCL's",
                     calls[i].name);
            if (!goes(name, before, calls[i].what))
                answer &= before ? ~BEFORE_GOES : ~BEHIND_GOES;
        }
    }
    return answer;
}

int beside(const char *connections, bool few)
{
    int answer = 0;
    const int status = prepare(connections);

    if (status)
        return status;
    if (!few)
        answer = both_orders();
    ask_event("a kernel of another stream, an event behind the one that waits", NB_CU_EVENT_DISABLE_TIMING);
    ask_event("the same, an event with timing", 0);
    ask_queues();
    if (few)
        return ANSWER;
    ask_turns();
    ask_all();
    return ANSWER | answer;
}
