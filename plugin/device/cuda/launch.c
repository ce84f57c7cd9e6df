/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel of a communicator runs: beside NCCL's own kernels, or for a batch of work. "Ours" and
 * "our" name nibble's codec kernel and its streams.
 *
 * Threads: NCCL's launching threads call nb_launches_fork, _join and _posted, any number at once. The driver
 * thread (thread.c) calls nb_launches_alone. Functions that call the driver take the lock of this struct. One
 * thread at a time calls the other functions, with the lock of struct nb_gpu. gpu.c has the order of the two
 * locks.
 *
 * A kernel that is launched when a window arrives can sit behind a wait for the very collective that needs
 * it. So the kernel is *resident* beside NCCL's. One call of the driver submits both: the fork begins a
 * capture of NCCL's stream, NCCL's launch goes into it, the join adds ours, ends the capture and launches the
 * graph.
 *
 *     NCCL's stream    ... { E | NCCL's kernel | M | J } ...
 *     our stream           { wait E | codec kernel | J }
 *                          fork                   join        posted
 *
 * { } is the capture. E and J are events, M sets the mark, a word in pinned memory. Before the join nothing
 * of the launch is on the GPU. After it both kernels are, and neither needs another call of the driver. So
 * another thread may load kernels, free memory or page-lock some at any moment: whatever it waits for makes
 * progress. No other order has this property, and each of them was seen to stop
 * (docs/results/2026-11-26-gpu-h100.md). The capture has a price: it is open for some microseconds, in which
 * a synchronization of the whole device on another thread fails, and NCCL's launch with it.
 *
 * The launch *follows* NCCL's in a call of its own (BEHIND) where NCCL's stream cannot be captured safely (a
 * blocking or legacy stream), and with NIBBLE_GPU_LAUNCH=behind. Then M stands in a third stream behind an
 * event of NCCL's, and nothing is joined. A thread that loads, frees or page-locks between the two launches
 * can stop both.
 *
 * In a graph of the job, ours becomes a branch as above, and returns with every replay.
 *
 * When our kernel may end:
 *   - Its operations are served. The engine has begun as many operations as NCCL has handed over up to this
 *     launch, and has no open work. All-reduces cannot be counted: their windows do not tell which is last.
 *   - NCCL's kernel has ended (M is seen) and the engine has no open work, or LINGER_NS have passed. After
 *     its kernel has ended, NCCL's proxy hands over only windows that contribute. With a late peer these may
 *     stay open for long, and the job's stream would wait for that peer. Their work gets a kernel of its own.
 *   - Without a mark: the communicator has failed, NCCL has given its windows up, or FORGOTTEN_NS have passed
 *     since the last open work.
 * A waiting M holds up the kernels behind it where the job has one hardware queue. There a launch without
 * all-reduces has no mark.
 *
 * Which kernel ends. Kernels of a ring are numbered in the order of their runs, and one is told to end for
 * every launch that is done. NCCL runs the kernels of a communicator (and of its children that share its
 * resources) one after the other, on whatever streams and from whatever graphs. Ours end within their graph,
 * so they run one after the other, too. Those on our own stream (BEHIND, and kernels of their own) run in its
 * order. A capture waits for them before it begins, and they for graphs. So no two kernels are ever on one
 * ring at once. Each replay of a captured launch sets its mark once.
 *
 * The states of a launch's place. "Ends" means that one more kernel is told to end (`due`).
 *
 *   state     meaning                               event                        next      ends
 *   FREE      without a launch                      fork                         MADE
 *                                                   fork, in the job's capture   CAPTURED
 *   MADE      NCCL's is about to be launched        join                         OPEN
 *                                                   join, NCCL's launch failed   FREE
 *   OPEN      both are launched                     mark                         MARKED
 *                                                   served, its turn             TOLD      yes
 *   TOLD      ours was told, the mark is to come    mark, or there is none       FREE
 *   MARKED    NCCL's kernel has ended               idle, or LINGER_NS           FREE      yes
 *   CAPTURED  in a graph of the job                 mark, then the same two      CAPTURED  yes
 *
 *   fork, join    NCCL's launching threads (nb_launches_fork ...)
 *   mark          the GPU has set it, and the engine's turn has seen it
 *   its turn      all kernels launched before it were told to end, and none is captured (then the order is
 *                 unknown, and it waits for its mark)
 *   idle          the engine had no open work at some turn after the one that saw the mark
 *
 * The engine's turn (turn.c) makes the changes of OPEN and later states. A bit in `waiting` says whether a
 * captured place's mark was seen.
 *
 * Work without a launch beside it (bytes that a peer requests after the operation, the first operation of a
 * child) gets a kernel of its own after a moment. The driver thread launches it, since the engine's thread
 * never calls the driver. After a capture of the job's that moment is seconds long, since no event reports
 * the beginning of a replay. A replay that begins right then would run its kernel beside this one on the same
 * ring, which nibble cannot prevent. NB_LAUNCH_BATCH works the same way.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

#define SETTLE_NS INT64_C(5000000000) /* maximum wait of a capture */
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

/* Return the budget of blocks, one a multiprocessor, of all communicators of a GPU whose link has this rate
 * (0: unknown). At most a quarter leaves room for three of NCCL's kernels with 32 channels, or four with 24.
 * A slow link needs less, and each block takes a multiprocessor from the job. On an H100 a block encodes 3.6
 * GB/s of BF16 gradients with feedback and sums 3.0 of them in pieces of 1 MiB (docs/gpu.md). At 4.3 bits a
 * value a gigabit is 0.47 GB/s of values, encoded and summed: 0.29 blocks. Half as many again absorb smaller
 * pieces. The first team of the first block only carries. */
static unsigned blocks_for(int multiprocessors, uint32_t mbps)
{
    const unsigned quarter = (unsigned)multiprocessors / 4,
                   wanted = 1 + (unsigned)((mbps * UINT64_C(45) + 99999) / 100000);
    const unsigned blocks = mbps && wanted < quarter ? wanted : quarter;

    return blocks < NB_GPUS_LEAST ? NB_GPUS_LEAST : blocks;
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
    l->blocks = blocks_for(multiprocessors, l->mbps);
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
    /* The driver may load code for its first memset, and the load waits for all kernels on the GPU. Let it
     * load now, before any kernel of nibble's. */
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
    for (unsigned i = 0; i < 2; i++)
        if (l->exec[i])
            NB_CU(cu, "freeing a graph", GraphExecDestroy(l->exec[i]));
    nb_cuda_unpin(l->cuda, l->mark);
    nb_launches_forget(l);
}

void nb_launches_forget(struct nb_launches *l)
{
    free(l->beside);
    l->beside = NULL;
}

/* ---- Launching; under the lock of struct nb_launches, entered ------------------------------------------ */

/* Launch a kernel. *taken: its blocks of the GPU's budget, to be given back when it is told to end. The
 * caller counts it (`launched`), unless it is `captured` in a graph of the job. */
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
    return ret;
}

/* Count a kernel of our own stream where its launch has succeeded. Return `ret`. */
static int count_own(struct nb_launches *l, int ret)
{
    if (!ret) {
        atomic_fetch_add(&l->launched, 1);
        l->owns++;
    }
    return ret;
}

/* Return our stream for a capture: the stream that takes part in it, else a stream outside all captures.
 * `id`: the job's capture, 0: our own. */
static nb_cu_stream stream_for(struct nb_launches *l, uint64_t id)
{
    int free = -1;

    for (int i = 0; i < (int)NB_LAUNCH_STREAMS; i++) {
        uint64_t of = 0;
        int state = 0;
        if (NB_CU(l->cuda->cu, "state of a stream",
                  StreamGetCaptureInfo_v2(l->captured_stream[i], &state, &of, NULL, NULL, NULL)))
            return NULL;
        if (state != NB_CU_CAPTURE_NONE && id && of == id)
            return l->captured_stream[i];
        if (state == NB_CU_CAPTURE_NONE && free < 0)
            free = i;
    }
    if (free < 0) {
        NB_WARN("cuda: more than %u captures of graphs at once", NB_LAUNCH_STREAMS);
        return NULL;
    }
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
    /* the first free place, since the engine looks through them in every turn */
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

/* Fork our stream off NCCL's, which is being captured. */
static int fork_off(struct nb_launches *l, nb_cu_stream stream, nb_cu_stream ours)
{
    int ret = NB_CU(l->cuda->cu, "before NCCL's kernel", EventRecord(l->before, stream));

    return ret ? ret : NB_CU(l->cuda->cu, "before NCCL's kernel", StreamWaitEvent(ours, l->before, 0));
}

/* Return whether NCCL's launch on this stream can be captured. Launches and copies of other threads on the
 * legacy stream would fail beside the capture of a blocking stream. */
static bool capturable(struct nb_launches *l, nb_cu_stream stream)
{
    unsigned flags = 0;

    return l->together && !NB_CU(l->cuda->cu, "NCCL's stream", StreamGetFlags(stream, &flags)) &&
           flags == NB_CU_STREAM_NON_BLOCKING;
}

/* Begin our capture of NCCL's stream. It comes after all kernels on our own stream. */
static int begin_capture(struct nb_launches *l, nb_cu_stream stream, nb_cu_stream ours)
{
    const struct nb_cuda *cu = l->cuda->cu;
    nb_cu_graph none = NULL;
    int ret = 0;

    if (l->owns != l->followed) {
        ret = NB_CU(cu, "after a codec kernel", EventRecord(l->behind, l->stream));
        if (!ret)
            ret = NB_CU(cu, "after a codec kernel", StreamWaitEvent(stream, l->behind, 0));
        l->followed = l->owns;
    }
    if (!ret)
        ret = NB_CU(cu, "NCCL's launch", StreamBeginCapture_v2(stream, NB_CU_CAPTURE_MODE_RELAXED));
    if (ret)
        return ret;
    ret = fork_off(l, stream, ours);
    if (ret && !cu->StreamEndCapture(stream, &none) && none)
        cu->GraphDestroy(none);
    return ret;
}

/* Fork. Return 0 and the place, or a negative errno without a kernel: -ENOMSG where NCCL's kernel needs no
 * codecs, others after a WARN. */
static int fork_beside(struct nb_launches *l, nb_cu_stream stream, bool sums, bool eager, int *place)
{
    const struct nb_cuda *cu = l->cuda->cu;
    nb_cu_stream ours = l->stream;
    uint64_t id = 0;
    int ret, capturing = 0;

    ret = NB_CU(cu, "NCCL's stream", StreamGetCaptureInfo_v2(stream, &capturing, &id, NULL, NULL, NULL));
    if (ret)
        return ret;
    const bool captured = capturing != NB_CU_CAPTURE_NONE;
    if (!captured && !eager)
        return -ENOMSG;
    *place = find_place(l, captured);
    if (*place < 0) {
        NB_WARN("cuda: GPU %d: no place for another %s launch beside NCCL's", l->cuda->ordinal,
                captured ? "captured" : "open");
        return -ENOSPC;
    }
    if (captured && atomic_load(&l->captured) == 0 && settle_before_capture(l))
        return -EBUSY;
    const bool together =
        !captured && capturable(l, stream) && (ours = stream_for(l, 0)) && !begin_capture(l, stream, ours);
    if (!together)
        ours = captured ? stream_for(l, id) : l->stream;
    if (!ours)
        return -EIO;
    ret = together ? 0 : fork_off(l, stream, ours);
    if (ret)
        return ret;
    struct nb_beside *b = &l->beside[*place];
    b->event = l->event[l->next_event++ % (sizeof(l->event) / sizeof(*l->event))];
    b->stream = stream;
    b->ours = ours;
    b->gen++;
    b->together = together;
    b->marks = captured || sums || l->queues >= NB_LAUNCH_QUEUES;
    b->served = 0;
    b->forked_ns = nb_clock_ns(&l->ctx->clock);
    atomic_store(&b->posted, 0);
    l->mark[*place] = 0;
    if (captured) {
        atomic_fetch_add(&l->captured, 1);
        atomic_store_explicit(&b->state, NB_BESIDE_CAPTURED, memory_order_release);
        return 0;
    }
    atomic_fetch_add(&l->open, 1);
    atomic_fetch_add(&l->places, 1);
    atomic_store_explicit(&b->state, NB_BESIDE_MADE, memory_order_release);
    return 0;
}

/* Submit the mark behind NCCL's kernel, without joining it to NCCL's stream. */
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

/* Launch ours beside NCCL's kernel in the same capture, with the mark, and join it. Join even where the
 * launch has failed, since a capture cannot end without the join. */
static int launch_joined(struct nb_launches *l, struct nb_beside *b, uint32_t *mark, int captured)
{
    const struct nb_cuda *cu = l->cuda->cu;
    const int failed = launch(l, b->ours, captured, &b->blocks);
    int ret = NB_CU(cu, "the end of the codec kernel", EventRecord(b->event, b->ours));

    if (!ret && b->marks)
        ret = NB_CU(cu, "behind NCCL's kernel", MemsetD32Async((uintptr_t)mark, 1, 1, b->stream));
    if (!ret)
        ret = NB_CU(cu, "joining the codec kernel", StreamWaitEvent(b->stream, b->event, 0));
    return failed ? failed : ret;
}

/* Launch the graph of both kernels. Update an executable graph, even one that still runs, since a new one
 * costs fifty times as much. */
static int launch_graph(struct nb_launches *l, const struct nb_beside *b, nb_cu_graph graph)
{
    const struct nb_cuda *cu = l->cuda->cu;
    nb_cu_graph_exec *exec = &l->exec[b->marks];
    struct nb_cu_graph_update update = {0};
    int ret = 0;

    if (!*exec || cu->GraphExecUpdate_v2(*exec, graph, &update)) {
        if (*exec)
            NB_CU(cu, "freeing a graph", GraphExecDestroy(*exec));
        *exec = NULL;
        ret = NB_CU(cu, "both kernels", GraphInstantiateWithFlags(exec, graph, 0));
    }
    return ret ? ret : NB_CU(cu, "launching both kernels", GraphLaunch(*exec, b->stream));
}

/* End our capture, and launch its graph. Return 0, -ECANCELED where NCCL's launch has failed with the
 * capture, or another negative errno. */
static int launch_together(struct nb_launches *l, struct nb_beside *b, uint32_t *mark)
{
    const struct nb_cuda *cu = l->cuda->cu;
    nb_cu_graph graph = NULL;
    uint64_t id = 0;
    int state = 0, failed, ret;

    if (!NB_CU(cu, "NCCL's stream", StreamGetCaptureInfo_v2(b->stream, &state, &id, NULL, NULL, NULL)) &&
        state == NB_CU_CAPTURE_INVALIDATED) {
        cu->StreamEndCapture(b->stream, &graph);
        NB_WARN(
            "cuda: GPU %d: another thread synchronized the whole device (cudaDeviceSynchronize) at the "
            "moment of NCCL's launch, which has failed for that reason (error 901, the other call's 900). "
            "Remedy: synchronize streams instead, or NIBBLE_GPU_LAUNCH=behind",
            l->cuda->ordinal);
        return -ECANCELED;
    }
    failed = launch_joined(l, b, mark, 0);
    ret = NB_CU(cu, "NCCL's launch", StreamEndCapture(b->stream, &graph));
    if (!ret)
        ret = launch_graph(l, b, graph);
    if (!ret && !failed)
        atomic_fetch_add(&l->launched, 1);
    if (graph)
        NB_CU(cu, "freeing a graph", GraphDestroy(graph));
    return failed ? failed : ret;
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

uint64_t nb_launches_fork(struct nb_launches *l, nb_cu_stream stream, bool sums, bool eager)
{
    uint64_t ticket = 0;
    int mode, place = -1;

    if (l->how != NB_LAUNCH_RESIDENT || atomic_load(&l->ring->failed) || nb_cuda_enter(l->cuda, &mode))
        return 0;
    pthread_mutex_lock(&l->lock);
    if (!fork_beside(l, stream, sums, eager, &place))
        ticket = (uint64_t)l->beside[place].gen << 32 | ((uint64_t)place + 1);
    pthread_mutex_unlock(&l->lock);
    nb_cuda_leave(l->cuda, mode);
    return ticket;
}

/* Launch ours. Entered, under lock. */
static int launch_beside(struct nb_launches *l, struct nb_beside *b, uint32_t *mark)
{
    if (atomic_load(&b->state) == NB_BESIDE_CAPTURED)
        return launch_joined(l, b, mark, 1);
    b->number = atomic_load(&l->launched);
    if (b->together)
        return launch_together(l, b, mark);
    if (atomic_load(&l->captured) == 0)
        return count_own(l, launch(l, l->stream, 0, &b->blocks));
    return count_own(l, launch_joined(l, b, mark, 0));
}

void nb_launches_join(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int ret, mode, made = NB_BESIDE_MADE;

    pthread_mutex_lock(&l->lock);
    b = place_of(l, ticket, &place);
    if (!b) {
        pthread_mutex_unlock(&l->lock);
        return;
    }
    ret = nb_cuda_enter(l->cuda, &mode);
    if (!ret) {
        ret = launch_beside(l, b, &l->mark[place]);
        nb_cuda_leave(l->cuda, mode);
    }
    if (ret == -ECANCELED) { /* NCCL's launch has failed, so NCCL hands no operation over */
        nb_gpus_give_blocks(l->ctx->gpus, l->cuda->ordinal, atomic_exchange(&b->blocks, 0));
        atomic_fetch_sub(&l->open, 1);
        atomic_fetch_sub(&l->places, 1);
        atomic_store_explicit(&b->state, NB_BESIDE_FREE, memory_order_release);
    } else {
        if (ret) /* the mark may never come. The engine's next turn ends all kernels and fails their work */
            atomic_store(&l->ring->failed, ret);
        atomic_compare_exchange_strong(&b->state, &made, NB_BESIDE_OPEN);
    }
    pthread_mutex_unlock(&l->lock);
}

void nb_launches_posted(struct nb_launches *l, uint64_t ticket, bool counts)
{
    struct nb_beside *b;
    unsigned place;
    int ret = 0, mode;

    pthread_mutex_lock(&l->lock);
    b = place_of(l, ticket, &place);
    if (b && atomic_load(&b->state) != NB_BESIDE_CAPTURED) {
        if (!b->together && b->marks && atomic_load(&l->captured) == 0 && !nb_cuda_enter(l->cuda, &mode)) {
            ret = submit_mark(l, b, &l->mark[place]);
            nb_cuda_leave(l->cuda, mode);
        }
        b->counts = counts;
        b->upto = atomic_load(&l->handed);
        atomic_store_explicit(&b->posted, 1, memory_order_release);
    }
    if (ret)
        atomic_store(&l->ring->failed, ret);
    pthread_mutex_unlock(&l->lock);
}

void nb_launches_handed(struct nb_launches *l)
{
    atomic_fetch_add(&l->handed, 1);
}

/* ---- The driver thread --------------------------------------------------------------------------------- */

void nb_launches_alone(struct nb_launches *l)
{
    const struct nb_gpu_ring *ring = &l->ring->host->ring;
    _Atomic unsigned blocks = 0;
    int ret = 0, mode;

    pthread_mutex_lock(&l->lock);
    /* Another thread may have launched a kernel meanwhile, or a kernel in a graph has still to end: the
     * engine asks again. */
    const bool one = !atomic_load(&l->ring->failed) && atomic_load(&l->alone_asked) &&
                     atomic_load(&l->open) == 0 &&
                     __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE) >= atomic_load(&l->launched);
    if (one && !(ret = nb_cuda_enter(l->cuda, &mode))) {
        ret = count_own(l, launch(l, l->stream, 0, &blocks));
        nb_cuda_leave(l->cuda, mode);
        atomic_fetch_add(&l->alone_blocks, atomic_load(&blocks));
        if (!ret)
            atomic_fetch_add(&l->alone_new, 1);
    }
    if (ret) /* the engine's next turn fails its work */
        atomic_store(&l->ring->failed, ret);
    atomic_store(&l->alone_asked, 0);
    pthread_mutex_unlock(&l->lock);
}
