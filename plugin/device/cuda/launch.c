/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel of a communicator runs: beside NCCL's own kernels, or for a batch of work. "Ours" and
 * "our" name nibble's codec kernel and its streams.
 *
 * Threads: NCCL's launching threads call nb_launches_fork, _join, _posted and _unused, any number at once.
 * The driver thread (thread.c) calls nb_launches_alone. Functions that call the driver take the lock of this
 * struct. _join and _unused do so only without `first`, after a capture of a graph, or when NCCL's launches
 * stall. One thread at a time calls the other functions, with the lock of struct nb_gpu. gpu.c has the order
 * of the two locks.
 *
 * A kernel that is launched when a window arrives can sit behind a wait for the very collective that needs
 * it. So the kernel is *resident* beside NCCL's. It is forked off NCCL's stream before NCCL's launch, and
 * launched in one of two orders. With `first` 0, the default, it is launched behind NCCL's, and kernel and
 * mark are submitted at the join: only this order was seen to work on a GPU. With NIBBLE_GPU_LAUNCH=before,
 * which was only modelled, it is launched before NCCL's, in this order of calls:
 *
 *     NCCL's stream    ... E |                      | NCCL's kernel |             | B ...
 *     our stream             | wait E, codec kernel |               |             |
 *     stream of marks        |                      |               |             | wait B, M
 *                       fork                   join                 NCCL starts   posted
 *                                                                   its proxy
 *
 * E and B are events. M sets the mark, a word in pinned memory.
 *
 * Between NCCL's launch and its hand-over to its proxy the launching thread calls no driver, as NCCL itself
 * does not there (ncclLaunchKernelAfter_NoCuda). A call may have to wait for another thread of the job that
 * loads a kernel or frees memory, which waits for NCCL's kernel, which waits for the proxy. Our kernel is
 * launched before and all else after. So whatever another thread does at any moment in between waits only for
 * kernels that make progress.
 *
 * A kernel that another thread loads between our launch and NCCL's waits for ours, and NCCL's launch waits
 * for that thread. A launch of NCCL's may also wait by itself until the GPU is idle (seen with its first one,
 * docs/results/2026-11-22-gpu-h100.md). So ours *leaves* where NCCL's launch does not return: the engine has
 * the driver thread launch another kernel, which then waits in the driver behind NCCL's, and tells ours to
 * end (LEFT). NCCL's goes on, and the new one next. Where the new one comes before NCCL's it is AHEAD like
 * the first. Where the driver serves its callers in the order of their calls, a thread of the job can load
 * any number of kernels at any moment. Where it does not, a thread that loads several in a row can still get
 * between the two and stop both. Where NCCL's launches always wait for ours (STALLS in a row), the launching
 * thread launches ours behind them. That order was seen to work on a GPU, and there one load in between stops
 * both.
 *
 * In NCCL's stream nibble only records two events, which delay no work: NCCL or the job can synchronise with
 * that stream (as ncclCommAbort does) without waiting for ours. All waits stand in our streams. With few
 * hardware queues these are the job's queues, too, so there codecs run on the CPU (observer.c).
 *
 * Captured, both become branches of the graph and return with every replay, submitted by one call. There mark
 * and join are in NCCL's stream, since every branch of a graph has to be joined:
 *
 *     NCCL's stream   ... E | NCCL's kernel | M | J ...
 *     our stream        wait E | codec kernel | J
 *
 * When our kernel may end. NCCL's kernel has ended (M is seen) and the communicator is idle: all of its
 * windows are finished and no operation is half handed over. After its kernel has ended, NCCL's proxy hands
 * over only windows that contribute, of operations whose length the engine knows. So no work is left. With a
 * late peer windows may stay open for long, and whatever waits for the GPU would wait for that peer. So our
 * kernel ends LINGER_NS after M even with open windows, and the remaining work gets a kernel of its own.
 * Where the Coll events show that no operation of a launch comes to the engine (it is unused) it ends at
 * once. M may still have to be submitted, when the driver holds up the launching thread, maybe for a thread
 * that waits for the codec kernel. Then ours ends LEAVE_NS after the communicator had open work, or LINGER_NS
 * after it began where no work came.
 *
 * Which kernel ends. Kernels of a ring are numbered in the order of their runs, and one is told to end for
 * every launch that is done. NCCL runs the kernels of a communicator (and of its children that share its
 * resources) one after the other, on whatever streams and from whatever graphs. Our kernels, which are on one
 * stream, run in the order of the launches beside them. Captured ones are on other streams, but they end
 * before their launch is joined. From the first capture on the others are launched behind NCCL's and joined,
 * too, and the first capture waits until those before it have ended. So kernels beside NCCL's never run at
 * once on one ring. Each replay of a captured launch sets its mark once.
 *
 * The states of a launch's place. "Ends" means that one more kernel is told to end (`due`).
 *
 *   state     meaning                                         event              next      ends
 *   FREE      without a launch                                fork               AHEAD
 *                                                             fork, after a      MADE
 *                                                             capture or STALLS,
 *                                                             or not `first`
 *                                                             fork, capturing    CAPTURED
 *   MADE      forked, and NCCL's is about to be launched      join               OPEN
 *   AHEAD     ours is launched, NCCL's is about to be         join               OPEN
 *                                                             HOLD_NS, its turn  LEFT      yes
 *   LEFT      as AHEAD, but ours was told to end              join               LATE
 *                                                             launched again     AHEAD
 *   LATE      NCCL's is launched, ours has to be again        launched again     OPEN
 *                                                             mark               FREE
 *   OPEN      both are launched, and the mark is to come      unused             NOTHING
 *                                                             mark               MARKED
 *                                                             unmarked, and long TOLD      yes
 *                                                             idle, its turn
 *   NOTHING   as OPEN, without work for the engine            mark               FREE      yes
 *                                                             its turn to end    TOLD      yes
 *   TOLD      as NOTHING, but ours was told to end            mark               FREE
 *   MARKED    NCCL's kernel has ended                         idle, or LINGER_NS FREE      yes
 *   SPARE     launched again, and not needed                  its turn to end    FREE      yes
 *   CAPTURED  in a graph: its mark comes with every replay    the same two       CAPTURED  yes
 *
 *   fork, join, unused    NCCL's launching threads (nb_launches_fork ...)
 *   mark                  the GPU has set it, and the engine's turn has seen it
 *   its turn (to end)     all kernels launched before it were told to end, and none is captured (then the
 *                         order is unknown, and it waits for its mark)
 *   idle                  the engine had no open work at some turn after the one that saw the mark
 *
 * `transition` in turn.c has those of the engine's turn. The others are single compare-and-swaps, without
 * effect in another state. A bit in `waiting` says whether a captured place's mark was seen.
 *
 * Work without a launch beside it (bytes that a peer requests after the operation, the first operation of a
 * child) gets a kernel of its own after a moment. The driver thread launches it, since the engine's thread
 * never calls the driver. After a capture that moment is seconds long, since no event reports the beginning
 * of a replay. A replay that begins right then would run its kernel beside this one on the same ring, which
 * nibble cannot prevent. NB_LAUNCH_BATCH works the same way.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

#define SETTLE_NS INT64_C(5000000000) /* maximum wait of a capture */
#define STALLS 8u                     /* stalls in a row after which ours is launched behind NCCL's */
#define PLACES (NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED)

/* ---- Life ---------------------------------------------------------------------------------------------- */

static nb_cu_stream make_stream(struct nb_launches *l, int *ret)
{
    nb_cu_stream s = NULL;
    int least = 0, most = 0;

    if (!*ret)
        *ret = NB_CU(l->cuda->cu, "priorities of streams", CtxGetStreamPriorityRange(&least, &most));
    if (!*ret)
        *ret = NB_CU(l->cuda->cu, "stream for the codec kernel",
                     StreamCreateWithPriority(&s, NB_CU_STREAM_NON_BLOCKING, most));
    return *ret ? NULL : s;
}

static nb_cu_event make_event(struct nb_launches *l, int *ret)
{
    nb_cu_event e = NULL;

    if (!*ret)
        *ret = NB_CU(l->cuda->cu, "event for the codec kernel", EventCreate(&e, NB_CU_EVENT_DISABLE_TIMING));
    return *ret ? NULL : e;
}

int nb_launches_open(struct nb_launches *l, const struct nb_context *ctx, const struct nb_cuda_context *cuda,
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors, unsigned teams)
{
    int ret = 0;

    l->ctx = ctx;
    l->cuda = cuda;
    l->ring = ring;
    l->kernel = kernel;
    l->teams = teams;
    /* All communicators of the GPU together have a quarter of its multiprocessors, one block each. That leaves
     * room for three of NCCL's kernels with 32 channels, or four with 24. The first team of the first block only
     * carries. */
    l->blocks = (unsigned)multiprocessors / 4;
    if (l->blocks < NB_GPUS_LEAST)
        l->blocks = NB_GPUS_LEAST;
    l->stream = make_stream(l, &ret);
    if (l->how == NB_LAUNCH_RESIDENT)
        l->marks = make_stream(l, &ret);
    for (unsigned i = 0; l->how == NB_LAUNCH_RESIDENT && i < NB_LAUNCH_STREAMS; i++)
        l->captured_stream[i] = make_stream(l, &ret);
    l->before = make_event(l, &ret);
    l->behind = make_event(l, &ret);
    for (unsigned i = 0; i < sizeof(l->event) / sizeof(*l->event); i++)
        l->event[i] = make_event(l, &ret);
    if (ret)
        return ret;
    l->mark = nb_cuda_pinned(l->cuda, PLACES * sizeof(*l->mark));
    l->beside = calloc(PLACES, sizeof(*l->beside));
    if (!l->mark || !l->beside)
        return -ENOMEM;
    /* The driver may load code for its first memset, which waits for all kernels on the GPU. It does so now,
     * before any kernel of nibble's. */
    ret = NB_CU(cuda->cu, "the first mark", MemsetD32Async((uintptr_t)l->mark, 0, 1, l->stream));
    return ret ? ret : NB_CU(cuda->cu, "the first mark", StreamSynchronize(l->stream));
}

void nb_launches_close(struct nb_launches *l)
{
    const struct nb_cuda *cu;

    if (!l->cuda)
        return;
    cu = l->cuda->cu;
    if (l->stream)
        NB_CU(cu, "the end of the codec kernel", StreamSynchronize(l->stream));
    if (l->stream)
        NB_CU(cu, "freeing the kernel's stream", StreamDestroy_v2(l->stream));
    if (l->marks)
        NB_CU(cu, "freeing the marks' stream", StreamDestroy_v2(l->marks));
    for (unsigned i = 0; i < NB_LAUNCH_STREAMS; i++)
        if (l->captured_stream[i])
            NB_CU(cu, "freeing the kernel's stream", StreamDestroy_v2(l->captured_stream[i]));
    if (l->before)
        NB_CU(cu, "freeing an event", EventDestroy_v2(l->before));
    if (l->behind)
        NB_CU(cu, "freeing an event", EventDestroy_v2(l->behind));
    for (unsigned i = 0; i < sizeof(l->event) / sizeof(*l->event); i++)
        if (l->event[i])
            NB_CU(cu, "freeing an event", EventDestroy_v2(l->event[i]));
    nb_cuda_unpin(l->cuda, l->mark);
    nb_launches_forget(l);
}

void nb_launches_forget(struct nb_launches *l)
{
    free(l->beside);
    l->beside = NULL;
}

/* ---- Launching; under the lock of struct nb_launches, entered ------------------------------------------ */

/* Launch a kernel. *taken: its blocks of the GPU's budget, to be given back when it is told to end. */
static int launch(struct nb_launches *l, nb_cu_stream stream, int captured, _Atomic unsigned *taken)
{
    const unsigned blocks = nb_gpus_take_blocks(l->ctx->gpus, l->cuda->ordinal, l->blocks, captured);
    struct nb_gpu_launch argument = {.state = l->ring->state, .ring = (uintptr_t)&l->ring->host->ring};
    void *arguments[] = {&argument};
    /* NCCL's kernels are in the remote domain of memory order. In another, our writes over PCIe would slow
     * the fences of the job's kernels. */
    struct nb_cu_launch_attr domain = {.id = NB_CU_LAUNCH_MEM_SYNC_DOMAIN,
                                       .value = {.mem_sync_domain = NB_CU_LAUNCH_DOMAIN_REMOTE}};
    struct nb_cu_launch_config config = {.grid_x = blocks,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .block_x = NB_GPU_THREADS,
                                         .block_y = l->teams,
                                         .block_z = 1,
                                         .shared_bytes = l->teams * NB_GPU_TEAM_SHARED,
                                         .stream = stream,
                                         .attrs = &domain,
                                         .nattrs = 1};
    int ret =
        NB_CU(l->cuda->cu, "launching the codec kernel", LaunchKernelEx(&config, l->kernel, arguments, NULL));

    atomic_store(taken, captured || ret ? 0 : blocks);
    if (ret && !captured)
        nb_gpus_give_blocks(l->ctx->gpus, l->cuda->ordinal, blocks);
    if (!ret)
        atomic_fetch_add(&l->launched, 1);
    return ret;
}

/* Return our stream for a capture: the one that takes part in it, else one outside all captures. */
static nb_cu_stream stream_for(struct nb_launches *l, int capturing, uint64_t id)
{
    int free = -1, busy;

    if (!capturing)
        return l->stream;
    for (int i = 0; i < (int)NB_LAUNCH_STREAMS; i++) {
        busy = 0;
        if (NB_CU(l->cuda->cu, "state of a stream", StreamIsCapturing(l->captured_stream[i], &busy)))
            return NULL;
        if (busy != NB_CU_CAPTURE_NONE && l->capture_id[i] == id)
            return l->captured_stream[i];
        if (busy == NB_CU_CAPTURE_NONE && free < 0)
            free = i;
    }
    if (free < 0) {
        NB_WARN("cuda: more than %u captures of graphs at once", NB_LAUNCH_STREAMS);
        return NULL;
    }
    l->capture_id[free] = id;
    return l->captured_stream[free];
}

/* Return a place for a launch, or -1. */
static int find_place(struct nb_launches *l, int capturing)
{
    unsigned n;

    if (capturing) {
        n = atomic_load(&l->captured);
        return n < NB_LAUNCH_CAPTURED ? (int)(NB_LAUNCH_OPEN + n) : -1;
    }
    /* The first free one, since the engine looks through them in every turn. */
    for (n = 0; n < NB_LAUNCH_OPEN; n++)
        if (atomic_load_explicit(&l->beside[n].state, memory_order_acquire) == NB_BESIDE_FREE)
            return (int)n;
    return -1;
}

/* Wait, in bounded time, until all earlier kernels have ended, since none may run when the first replay
 * begins. A capture is made once, and usually with the GPU idle. */
static int settle_before_capture(struct nb_launches *l)
{
    const int64_t limit = nb_clock_ns(&l->ctx->clock) + SETTLE_NS;
    const struct timespec pause = {0, 100000};

    while (__atomic_load_n(&l->ring->host->ring.ended, __ATOMIC_ACQUIRE) < atomic_load(&l->launched)) {
        if (nb_clock_ns(&l->ctx->clock) > limit) {
            NB_WARN("cuda: GPU %d: a graph is captured while an operation is under way. Codec kernels of "
                    "both could run at once, so the graph gets no codec kernels",
                    l->cuda->ordinal);
            return -EBUSY;
        }
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Assign a kernel (`number`, `blocks` of the budget) to a place whose own kernel has left or was about to.
 * Where the place has moved on without it the kernel gets `spare`, a free place, and ends at once. Under
 * lock. */
static void assign(struct nb_launches *l, struct nb_beside *b, struct nb_beside *spare, uint64_t number,
                   unsigned blocks)
{
    int state = atomic_load(&b->state);

    atomic_fetch_add(&l->open, 1);
    while (state == NB_BESIDE_LEFT || state == NB_BESIDE_LATE) {
        const int next = state == NB_BESIDE_LEFT ? NB_BESIDE_AHEAD : NB_BESIDE_OPEN;
        b->number = number;
        b->begun_ns = 0;
        /* If this one has to leave, too, launch no other before: the GPU must be idle for a moment. */
        b->forked_ns = b->asked_ns = nb_clock_ns(&l->ctx->clock);
        atomic_store(&b->blocks, blocks);
        if (atomic_compare_exchange_strong(&b->state, &state, next)) {
            if (next == NB_BESIDE_OPEN)
                atomic_fetch_sub(&l->late, 1);
            l->again++;
            return;
        }
        atomic_store(&b->blocks, 0);
    }
    spare->number = number;
    spare->gen++;
    atomic_store(&spare->blocks, blocks);
    atomic_fetch_add(&l->places, 1);
    l->again++;
    atomic_store_explicit(&spare->state, NB_BESIDE_SPARE, memory_order_release);
}

/* Launch our kernels for NCCL's that have come without one, or with `coming` also for those to come. Under
 * lock, entered. */
static int launch_late(struct nb_launches *l, bool coming)
{
    unsigned left = atomic_load(&l->places);
    int ret = 0, spare;

    if (!atomic_load(&l->late) && !coming)
        return 0;
    for (unsigned i = 0; i < NB_LAUNCH_OPEN && left && !ret; i++) {
        struct nb_beside *b = &l->beside[i];
        const int state = atomic_load(&b->state);
        left -= state != NB_BESIDE_FREE;
        if (state != NB_BESIDE_LATE && !(coming && atomic_exchange(&b->wanted, 0)))
            continue;
        if ((spare = find_place(l, 0)) < 0)
            continue; /* another kernel ends in the meantime */
        _Atomic unsigned blocks = 0;
        const uint64_t number = atomic_load(&l->launched);
        ret = launch(l, l->stream, 0, &blocks);
        if (!ret)
            assign(l, b, &l->beside[spare], number, atomic_load(&blocks));
    }
    return ret;
}

/* Fork. Return 0 and the place, or a negative errno after a WARN and without a kernel. */
static int fork_beside(struct nb_launches *l, nb_cu_stream stream, int *place)
{
    const struct nb_cuda *cu = l->cuda->cu;
    nb_cu_stream ours;
    uint64_t id = 0;
    int ret, capturing = 0;

    ret = NB_CU(cu, "NCCL's stream", StreamGetCaptureInfo_v2(stream, &capturing, &id, NULL, NULL, NULL));
    if (ret)
        return ret;
    *place = find_place(l, capturing != NB_CU_CAPTURE_NONE);
    if (*place < 0) {
        NB_WARN("cuda: GPU %d: no place for another %s launch beside NCCL's", l->cuda->ordinal,
                capturing ? "captured" : "open");
        return -ENOSPC;
    }
    if (capturing != NB_CU_CAPTURE_NONE && atomic_load(&l->captured) == 0 && settle_before_capture(l))
        return -EBUSY;
    ours = stream_for(l, capturing != NB_CU_CAPTURE_NONE, id);
    if (!ours)
        return -EIO;
    ret = launch_late(l, false); /* they must not stand behind this one's wait */
    if (!ret)
        ret = NB_CU(cu, "before NCCL's kernel", EventRecord(l->before, stream));
    if (!ret)
        ret = NB_CU(cu, "before NCCL's kernel", StreamWaitEvent(ours, l->before, 0));
    if (ret)
        return ret;
    struct nb_beside *b = &l->beside[*place];
    b->event = l->event[l->next_event++ % (sizeof(l->event) / sizeof(*l->event))];
    b->stream = stream;
    b->ours = ours;
    b->gen++;
    b->begun_ns = b->asked_ns = 0;
    atomic_store(&b->wanted, 0);
    l->mark[*place] = 0;
    if (capturing != NB_CU_CAPTURE_NONE) {
        atomic_store(&b->unmarked, 0);
        atomic_fetch_add(&l->captured, 1);
        atomic_store_explicit(&b->state, NB_BESIDE_CAPTURED, memory_order_release);
        return 0;
    }
    const int joins = atomic_load(&l->captured) > 0;
    const int ahead = l->first && !joins && atomic_load(&l->stalls) < STALLS;
    b->number = atomic_load(&l->launched);
    ret = ahead ? launch(l, ours, 0, &b->blocks) : 0;
    if (ret) { /* NCCL's kernel has none beside it, so that its work fails */
        atomic_store(&l->ring->failed, ret);
        return ret;
    }
    atomic_store(&b->unmarked, l->first && !joins);
    b->forked_ns = nb_clock_ns(&l->ctx->clock);
    atomic_fetch_add(&l->open, 1);
    atomic_fetch_add(&l->places, 1);
    atomic_store_explicit(&b->state, ahead ? NB_BESIDE_AHEAD : NB_BESIDE_MADE, memory_order_release);
    return 0;
}

/* ---- NCCL's launching threads -------------------------------------------------------------------------- */

/* Return the place of a ticket, gen << 32 | place + 1. */
static struct nb_beside *place_of(struct nb_launches *l, uint64_t ticket, unsigned *place)
{
    struct nb_beside *b;

    *place = (unsigned)(ticket & 0xffffffffu) - 1;
    if (*place >= PLACES)
        return NULL;
    b = &l->beside[*place];
    return b->gen == (uint16_t)(ticket >> 32) ? b : NULL;
}

uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream)
{
    uint64_t ticket = 0;
    int mode, place = -1;

    if (l->how != NB_LAUNCH_RESIDENT || atomic_load(&l->ring->failed) || nb_cuda_enter(l->cuda, &mode))
        return 0;
    pthread_mutex_lock(&l->lock);
    if (!fork_beside(l, stream, &place))
        ticket = (uint64_t)l->beside[place].gen << 32 | ((uint64_t)place + 1);
    pthread_mutex_unlock(&l->lock);
    nb_cuda_leave(l->cuda, mode);
    return ticket;
}

/* Launch ours beside NCCL's kernel on b->stream, with the mark behind it, and join it. For captures and all
 * later launches. Entered. */
static int launch_joined(struct nb_launches *l, struct nb_beside *b, uint32_t *mark, int captured)
{
    const struct nb_cuda *cu = l->cuda->cu;
    int ret = launch(l, b->ours, captured, &b->blocks);

    if (!ret)
        ret = NB_CU(cu, "the end of the codec kernel", EventRecord(b->event, b->ours));
    if (!ret)
        ret = NB_CU(cu, "behind NCCL's kernel", MemsetD32Async((uintptr_t)mark, 1, 1, b->stream));
    if (!ret)
        ret = NB_CU(cu, "joining the codec kernel", StreamWaitEvent(b->stream, b->event, 0));
    return ret;
}

/* Submit the mark without joining it to NCCL's stream. For launches before the first capture. Entered. */
static int submit_mark(struct nb_launches *l, const struct nb_beside *b, uint32_t *mark)
{
    const struct nb_cuda *cu = l->cuda->cu;
    int ret = NB_CU(cu, "behind NCCL's kernel", EventRecord(l->behind, b->stream));

    if (!ret)
        ret = NB_CU(cu, "behind NCCL's kernel", StreamWaitEvent(l->marks, l->behind, 0));
    if (!ret)
        ret = NB_CU(cu, "behind NCCL's kernel", MemsetD32Async((uintptr_t)mark, 1, 1, l->marks));
    return ret;
}

/* Note that NCCL's launch has returned, after ours was told to end. Return 0 when another of ours was
 * launched meanwhile. */
static int catch_up(struct nb_launches *l, struct nb_beside *b)
{
    int left = NB_BESIDE_LEFT;

    atomic_fetch_add(&l->late, 1); /* first, since the thread that finds the place LATE decrements it */
    if (!atomic_compare_exchange_strong(&b->state, &left, NB_BESIDE_LATE)) {
        atomic_fetch_sub(&l->late, 1);
        return 0;
    }
    if (atomic_fetch_add(&l->stalls, 1) == STALLS - 1)
        NB_INFO(
            NCCL_NET,
            "cuda: GPU %d: %u launches of NCCL's in a row waited for the end of nibble's kernels, which from "
            "now on are launched behind NCCL's",
            l->cuda->ordinal, STALLS);
    nb_cuda_thread_ask(l->thread, NB_CUDA_THREAD_LAUNCH);
    return 1;
}

/* Take no lock as long as ours are launched ahead: another thread may hold it while the driver holds up that
 * thread. The place is this thread's until its mark was submitted. */
void nb_launches_join(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int ret, mode, state, made = NB_BESIDE_MADE;

    b = place_of(l, ticket, &place);
    if (!b)
        return;
    do { /* at any moment the engine makes ours leave, and the driver thread launches another */
        state = NB_BESIDE_AHEAD;
        if (atomic_compare_exchange_strong(&b->state, &state, NB_BESIDE_OPEN)) {
            atomic_store(&l->stalls, 0);
            return;
        }
        if (state == NB_BESIDE_LEFT && catch_up(l, b))
            return;
    } while (state == NB_BESIDE_LEFT);
    pthread_mutex_lock(&l->lock);
    ret = nb_cuda_enter(l->cuda, &mode);
    if (!ret) {
        const int captured = state == NB_BESIDE_CAPTURED, unmarked = atomic_load(&b->unmarked);
        const int joins = captured || atomic_load(&l->captured) > 0;
        b->number = atomic_load(&l->launched);
        ret = unmarked || joins ? 0 : submit_mark(l, b, &l->mark[place]);
        if (!ret)
            ret = unmarked || !joins ? launch(l, b->ours, 0, &b->blocks)
                                     : launch_joined(l, b, &l->mark[place], captured);
        nb_cuda_leave(l->cuda, mode);
    }
    atomic_compare_exchange_strong(&b->state, &made, NB_BESIDE_OPEN);
    if (ret) /* the mark may never come. The engine's next turn ends all kernels and fails their work */
        atomic_store(&l->ring->failed, ret);
    pthread_mutex_unlock(&l->lock);
}

void nb_launches_posted(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int ret, mode;

    b = place_of(l, ticket, &place);
    if (!b || !atomic_load(&b->unmarked))
        return;
    pthread_mutex_lock(&l->lock);
    ret = nb_cuda_enter(l->cuda, &mode);
    if (!ret) {
        ret = launch_late(l, false); /* before this thread loads a kernel itself */
        if (!ret)
            ret = submit_mark(l, b, &l->mark[place]);
        nb_cuda_leave(l->cuda, mode);
    }
    atomic_store(&b->unmarked, 0);
    if (ret)
        atomic_store(&l->ring->failed, ret);
    pthread_mutex_unlock(&l->lock);
}

void nb_launches_unused(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int open = NB_BESIDE_OPEN;
    /* A submitted mark may have come, and the place may be another launch's. */
    const int marked = !l->first || atomic_load(&l->captured) > 0;

    if (marked)
        pthread_mutex_lock(&l->lock);
    b = place_of(l, ticket, &place);
    if (b) /* the engine tells it to end */
        atomic_compare_exchange_strong(&b->state, &open, NB_BESIDE_NOTHING);
    if (marked)
        pthread_mutex_unlock(&l->lock);
}

/* ---- The driver thread --------------------------------------------------------------------------------- */

void nb_launches_alone(struct nb_launches *l)
{
    _Atomic unsigned blocks = 0;
    int ret = 0, mode, one;

    pthread_mutex_lock(&l->lock);
    if (!atomic_load(&l->ring->failed) && !(ret = nb_cuda_enter(l->cuda, &mode))) {
        ret = launch_late(l, true);
        /* else another thread has just launched one */
        one = !ret && atomic_load(&l->alone_asked) && atomic_load(&l->open) == 0;
        if (one)
            ret = launch(l, l->stream, 0, &blocks);
        nb_cuda_leave(l->cuda, mode);
        atomic_fetch_add(&l->alone_blocks, atomic_load(&blocks));
        if (one && !ret)
            atomic_fetch_add(&l->alone_new, 1);
    }
    if (ret) /* the engine's next turn fails its work */
        atomic_store(&l->ring->failed, ret);
    atomic_store(&l->alone_asked, 0);
    pthread_mutex_unlock(&l->lock);
}
