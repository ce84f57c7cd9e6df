/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel runs; see cuda_launch.h.
 *
 * Where CUDA_DEVICE_MAX_CONNECTIONS is 1 (Megatron sets it) a GPU has one hardware queue: a kernel launched
 * when a window arrives can sit behind a wait for the very collective that needs it. So the kernel is
 * *resident* beside NCCL's: forked off NCCL's stream before NCCL's launch (it can start when NCCL's can),
 * launched right after it, and joined. Not launched before: a launch of NCCL's may have to wait until nothing
 * runs on the GPU, and then both would wait for ever (seen on a GPU with NCCL's first one,
 * docs/results/2026-11-22-gpu-h100.md). Captured, both become a branch of the graph and come back with every
 * replay.
 *
 *     NCCL's stream   ... E | NCCL's kernel | M | J ...        E, J events; M: a word in pinned memory (the mark) is set
 *     our stream        wait E | codec kernel | J
 *
 * When it may end. NCCL's kernel has ended (M is seen) and the communicator is idle: all of its windows are
 * finished and no operation is half handed over. What NCCL's proxy hands over after its kernel has ended are
 * windows that only contribute, of operations whose length the engine knows; so there is nothing left. Where
 * the Coll events show that nothing of a launch comes to the engine (it is unused) it ends at once.
 *
 * Which one ends. Kernels of a ring are numbered in the order they run, and one is told to end for every
 * launch that needs none any more. NCCL runs the kernels of a communicator (and of its children that share
 * its resources) one after the other, on whatever streams and from whatever graphs, and ours ends before the
 * launch is joined: so kernels that are beside NCCL's never run at once on one ring, and run in the order of
 * the launches they are beside. Each replay of a captured launch sets its mark once.
 *
 * The states of a launch's place. "Ends" means that one more kernel is told to end (`due`).
 *
 *   state     meaning                                         event              next      ends
 *   FREE      nothing is launched here                        fork               MADE
 *                                                             fork, capturing    CAPTURED
 *   MADE      forked; NCCL's is about to be launched          join               OPEN
 *   OPEN      both are launched; the mark is to come          unused             NOTHING
 *                                                             mark               MARKED
 *   NOTHING   as OPEN, and nothing comes to the engine        mark               FREE      yes
 *                                                             its turn to end    TOLD      yes
 *   TOLD      as NOTHING, but ours was told to end            mark               FREE
 *   MARKED    NCCL's kernel has ended                         idle               FREE      yes
 *   CAPTURED  in a graph: its mark comes with every replay    mark, then idle    CAPTURED  yes
 *
 *   fork, join, unused    NCCL's launching threads (nb_launches_fork ...)
 *   mark                  the GPU has set it; seen in the engine's turn
 *   its turn to end       all kernels launched before it were told to end, and none is captured (then the
 *                         order is not known, and it waits for its mark)
 *   idle                  the engine had nothing open at some turn after the one in which the mark was seen
 *
 * `transition` below has those of the engine's turn. The three others are single compare-and-swaps, which do
 * nothing in another state. Whether a captured place's mark was seen is a bit in `waiting`.
 *
 * Work without a launch beside it (bytes that a peer requests after the operation) gets a kernel of its own
 * after a moment. Where graphs were captured that is seconds, since nothing reports that a replay has begun:
 * one that begins right then would run its kernel beside this one on the same ring, which nothing prevents.
 * That is also how NB_LAUNCH_BATCH works, which is safe only where there is more than one hardware queue.
 *
 * With one hardware queue the mark and the join stand in it, and later launches of the job behind them (seen
 * on a GPU).
 */
#include "device/cuda_launch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

#define PLACES (NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED)
/* Work waits so long for a launch beside NCCL's. Where there are captured ones, a replay may have begun whose
 * kernel of ours has not, and a kernel of its own could then run at the same time on the same ring: so it is
 * long. */
#define ORPHAN_NS INT64_C(500000)
#define ORPHAN_CAPTURED_NS INT64_C(5000000000)
#define DRAIN_NS INT64_C(5000000000)

/* See the table above. The engine's turn skips those before OPEN. */
enum state { FREE = 0, MADE, OPEN, NOTHING, TOLD, MARKED, CAPTURED, STATES };

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
                     struct nb_ring *ring, nb_cu_function kernel, int multiprocessors)
{
    const int64_t blocks = ctx->params->gpu_blocks;
    int ret = 0;

    l->ctx = ctx;
    l->cuda = cuda;
    l->ring = ring;
    l->kernel = kernel;
    /* A quarter of the places that the GPU has for it, one a multiprocessor: NCCL's and the job's kernels
     * need theirs. One more, which only carries descriptors. */
    l->blocks = 1 + (unsigned)(blocks ? blocks : (multiprocessors + 3) / 4);
    l->stream = make_stream(l, &ret);
    for (unsigned i = 0; l->how == NB_LAUNCH_RESIDENT && i < NB_LAUNCH_STREAMS; i++)
        l->captured_stream[i] = make_stream(l, &ret);
    l->before = make_event(l, &ret);
    for (unsigned i = 0; i < sizeof(l->event) / sizeof(*l->event); i++)
        l->event[i] = make_event(l, &ret);
    if (ret)
        return ret;
    l->mark = nb_cuda_pinned(l->cuda, PLACES * sizeof(*l->mark));
    l->beside = calloc(PLACES, sizeof(*l->beside));
    if (!l->mark || !l->beside)
        return -ENOMEM;
    /* The driver may load code for its first memset, which waits for what runs on the GPU: now, when nothing
     * of ours does. */
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
    for (unsigned i = 0; i < NB_LAUNCH_STREAMS; i++)
        if (l->captured_stream[i])
            NB_CU(cu, "freeing the kernel's stream", StreamDestroy_v2(l->captured_stream[i]));
    if (l->before)
        NB_CU(cu, "freeing an event", EventDestroy_v2(l->before));
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

static int launch(struct nb_launches *l, nb_cu_stream stream)
{
    struct nb_gpu_launch argument = {.state = l->ring->state, .ring = (uintptr_t)&l->ring->host->ring};
    void *arguments[] = {&argument};
    /* NCCL's kernels are in the remote domain of memory order. In another, our writes over PCIe would slow
     * the fences of the job's kernels. */
    struct nb_cu_launch_attr domain = {.id = NB_CU_LAUNCH_MEM_SYNC_DOMAIN,
                                       .value = {.mem_sync_domain = NB_CU_LAUNCH_DOMAIN_REMOTE}};
    struct nb_cu_launch_config config = {.grid_x = l->blocks,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .block_x = NB_GPU_THREADS,
                                         .block_y = 1,
                                         .block_z = 1,
                                         .stream = stream,
                                         .attrs = &domain,
                                         .nattrs = 1};
    int ret =
        NB_CU(l->cuda->cu, "launching the codec kernel", LaunchKernelEx(&config, l->kernel, arguments, NULL));

    if (!ret)
        atomic_fetch_add(&l->launched, 1);
    return ret;
}

/* Our stream for a capture: the one that takes part in it, else one that takes part in none. */
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

/* A place for a launch, or -1. */
static int find_place(struct nb_launches *l, int capturing)
{
    unsigned n;

    if (capturing) {
        n = atomic_load(&l->captured);
        return n < NB_LAUNCH_CAPTURED ? (int)(NB_LAUNCH_OPEN + n) : -1;
    }
    for (unsigned i = 0; i < NB_LAUNCH_OPEN; i++) {
        n = (l->cursor + i) % NB_LAUNCH_OPEN;
        if (atomic_load_explicit(&l->beside[n].state, memory_order_acquire) == FREE) {
            l->cursor = n + 1;
            return (int)n;
        }
    }
    return -1;
}

/* Fork: 0 and the place, or a negative errno after a WARN; then nothing runs. */
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
    ours = stream_for(l, capturing != NB_CU_CAPTURE_NONE, id);
    if (!ours)
        return -EIO;
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
    l->mark[*place] = 0;
    if (capturing != NB_CU_CAPTURE_NONE) {
        atomic_fetch_add(&l->captured, 1);
        atomic_store_explicit(&b->state, CAPTURED, memory_order_release);
    } else {
        atomic_fetch_add(&l->open, 1);
        atomic_fetch_add(&l->places, 1);
        atomic_store_explicit(&b->state, MADE, memory_order_release);
    }
    return 0;
}

/* ---- NCCL's launching threads -------------------------------------------------------------------------- */

/* A ticket is gen << 32 | place + 1. */
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

void nb_launches_join(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int ret, mode, made = MADE;

    pthread_mutex_lock(&l->lock);
    b = place_of(l, ticket, &place);
    if (b) {
        ret = nb_cuda_enter(l->cuda, &mode);
        if (!ret) {
            b->number = atomic_load(&l->launched);
            ret = launch(l, b->ours);
            if (!ret)
                ret = NB_CU(l->cuda->cu, "the end of the codec kernel", EventRecord(b->event, b->ours));
            if (!ret)
                ret = NB_CU(l->cuda->cu, "behind NCCL's kernel",
                            MemsetD32Async((uintptr_t)&l->mark[place], 1, 1, b->stream));
            if (!ret)
                ret = NB_CU(l->cuda->cu, "joining the codec kernel", StreamWaitEvent(b->stream, b->event, 0));
            nb_cuda_leave(l->cuda, mode);
        }
        atomic_compare_exchange_strong(&b->state, &made, OPEN);
        if (ret) /* the mark may never come; the engine's next turn ends all kernels and fails what needs them */
            atomic_store(&l->ring->failed, ret);
    }
    pthread_mutex_unlock(&l->lock);
}

void nb_launches_unused(struct nb_launches *l, uint64_t ticket)
{
    struct nb_beside *b;
    unsigned place;
    int open = OPEN;

    pthread_mutex_lock(&l->lock);
    b = place_of(l, ticket, &place);
    if (b) /* the engine tells it to end */
        atomic_compare_exchange_strong(&b->state, &open, NOTHING);
    pthread_mutex_unlock(&l->lock);
}

/* ---- The engine's turn; under the lock of struct nb_gpu ------------------------------------------------ */

static int take_mark(struct nb_launches *l, unsigned place)
{
    if (!__atomic_load_n(&l->mark[place], __ATOMIC_ACQUIRE))
        return 0;
    l->mark[place] =
        0; /* a captured one is set again only by a replay, which waits for the end of this one's kernel */
    return 1;
}

enum event { NONE, MARK, DUE, EVENTS }; /* DUE: its turn to end, or idle */

/* What the engine's turn makes of a place; `ends`: its kernel is told to end. */
static const struct transition {
    int next;
    bool ends;
} transition[STATES][EVENTS] = {
    [OPEN] = {[NONE] = {OPEN, false}, [MARK] = {MARKED, false}, [DUE] = {OPEN, false}},
    [NOTHING] = {[NONE] = {NOTHING, false}, [MARK] = {FREE, true}, [DUE] = {TOLD, true}},
    [TOLD] = {[NONE] = {TOLD, false}, [MARK] = {FREE, false}, [DUE] = {TOLD, false}},
    [MARKED] = {[NONE] = {MARKED, false}, [MARK] = {MARKED, false}, [DUE] = {FREE, true}},
};

static enum event event_of(struct nb_launches *l, unsigned place, int state)
{
    const struct nb_beside *b = &l->beside[place];

    if (state != MARKED && take_mark(l, place))
        return MARK;
    if (state == NOTHING && atomic_load(&l->captured) == 0 && l->told + l->due == b->number)
        return DUE;
    if (state == MARKED && l->idle > b->marked)
        return DUE;
    return NONE;
}

/* Launches that are not captured. */
static void look_at_open(struct nb_launches *l)
{
    for (unsigned i = 0; i < NB_LAUNCH_OPEN && atomic_load(&l->places); i++) {
        struct nb_beside *b = &l->beside[i];
        const int state = atomic_load_explicit(&b->state, memory_order_acquire);
        if (state < OPEN)
            continue;
        const struct transition *t = &transition[state][event_of(l, i, state)];
        if (t->ends) {
            l->due++;
            atomic_fetch_sub(&l->open, 1);
        }
        if (t->next == state)
            continue;
        if (t->next == MARKED)
            b->marked = l->turn;
        atomic_store_explicit(&b->state, t->next, memory_order_release);
        if (t->next == FREE)
            atomic_fetch_sub(&l->places, 1);
    }
}

static int look_at_captured(struct nb_launches *l)
{
    unsigned n = atomic_load(&l->captured);
    int waiting = 0;

    for (unsigned i = 0; i < n; i++) {
        struct nb_beside *b = &l->beside[NB_LAUNCH_OPEN + i];
        uint64_t bit = UINT64_C(1) << (i % 64), *word = &l->waiting[i / 64];
        if (!(*word & bit) && take_mark(l, NB_LAUNCH_OPEN + i)) {
            *word |= bit;
            b->marked = l->turn;
        }
        if (*word & bit) {
            if (l->idle > b->marked) {
                *word &= ~bit;
                l->due++;
            } else {
                waiting = 1;
            }
        }
    }
    return waiting;
}

/* Tell kernels to end, as many as are due; no more than the ring holds for those that have not begun. A GPU
 * that has failed ends all of them, also those that were told to end later, before they begin with anything
 * more: what they would work on may be gone. */
static void tell(struct nb_launches *l)
{
    struct nb_gpu_ring *ring = &l->ring->host->ring;
    const uint64_t ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);
    const int failed = atomic_load(&l->ring->failed) != 0;

    for (uint64_t k = ended; failed && k < l->told; k++)
        __atomic_store_n(&ring->stop[k % NB_GPU_STOPS], 0, __ATOMIC_RELEASE);
    while ((l->due || failed) && l->told - ended < NB_GPU_STOPS) {
        __atomic_store_n(&ring->stop[l->told % NB_GPU_STOPS], failed ? 0 : l->ring->published,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&ring->stops, ++l->told, __ATOMIC_RELEASE);
        l->due -= l->due > 0;
    }
    if (failed)
        l->due = 0; /* all are */
}

/* Work, and no kernel that would do it. */
static void launch_alone(struct nb_launches *l)
{
    int ret, mode;

    if (l->how == NB_LAUNCH_RESIDENT && !l->said) {
        l->said = 1;
        NB_INFO(NCCL_NET, "cuda: GPU %d: a kernel of its own for work outside of NCCL's launches",
                l->cuda->ordinal);
    }
    if (pthread_mutex_trylock(&l->lock))
        return;                  /* somebody is launching: see what comes of it */
    if (atomic_load(&l->open)) { /* somebody just has */
        pthread_mutex_unlock(&l->lock);
        return;
    }
    ret = nb_cuda_enter(l->cuda, &mode);
    if (!ret) {
        ret = launch(l, l->stream);
        nb_cuda_leave(l->cuda, mode);
    }
    pthread_mutex_unlock(&l->lock);
    if (ret) {
        nb_ring_fail(l->ring, ret);
        return;
    }
    l->alone++;
    l->due++;
}

static void watch(struct nb_launches *l, int64_t now, uint64_t started, uint64_t ended)
{
    const struct nb_ring *r = l->ring;
    const int64_t limit = l->ctx->params->gpu_timeout * (int64_t)NB_NS_PER_S;

    if (now - r->moved_ns < limit)
        return;
    NB_WARN(
        "cuda: GPU %d: no work was finished for %lld s (NIBBLE_GPU_TIMEOUT): %s; %llu kernels launched and "
        "not captured, "
        "%llu begun, %llu ended, %llu told to end, descriptor %llu of %llu (operation %u) is waited for%s",
        l->cuda->ordinal, (long long)l->ctx->params->gpu_timeout,
        started == ended ? "the codec kernel has not begun: the GPU is full, or its stream waits for "
                           "something that waits for us"
                         : "the codec kernel runs, but does not get on",
        (unsigned long long)atomic_load(&l->launched), (unsigned long long)started, (unsigned long long)ended,
        (unsigned long long)l->told, (unsigned long long)r->oldest, (unsigned long long)r->published,
        r->host->ring.desc[r->oldest % NB_GPU_RING].op,
        l->one_queue ? "; CUDA_DEVICE_MAX_CONNECTIONS is 1" : "");
    nb_ring_fail(l->ring, -ETIMEDOUT);
}

void nb_launches_idle(struct nb_launches *l)
{
    l->idle = l->turn + 1;
}

int nb_launches_drain(struct nb_launches *l)
{
    const int64_t limit = nb_clock_ns(&l->ctx->clock) + DRAIN_NS;
    const struct timespec pause = {0, 100000};
    uint64_t ended;

    l->due += atomic_exchange(&l->open, 0);
    for (;;) {
        tell(l);
        ended = __atomic_load_n(&l->ring->host->ring.ended, __ATOMIC_ACQUIRE);
        /* Replays count as ended, too; one that is in flight now is an error of the job's. */
        if (l->due == 0 && __atomic_load_n(&l->ring->host->ring.started, __ATOMIC_ACQUIRE) <= ended &&
            ended >= atomic_load(&l->launched) && (l->told <= ended || atomic_load(&l->ring->failed)))
            return 1;
        if (nb_clock_ns(&l->ctx->clock) > limit)
            return 0;
        nanosleep(&pause, NULL);
    }
}

int nb_launches_turn(struct nb_launches *l)
{
    struct nb_gpu_ring *ring = &l->ring->host->ring;
    const unsigned work = nb_ring_sweep(l->ring);
    int waiting;
    uint64_t started, ended;

    l->turn++;
    look_at_open(l);
    waiting = look_at_captured(l);
    /* `ended` first: of what has ended by then, all had begun. */
    ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);
    started = __atomic_load_n(&ring->started, __ATOMIC_ACQUIRE);
    if (atomic_load(&l->ring->failed)) {
        if (work)
            nb_ring_fail(l->ring, atomic_load(&l->ring->failed));
    } else if (work) {
        const int64_t now = nb_clock_ns(&l->ctx->clock);
        /* Every kernel that was told to end has: nobody will come. One that was told, but has not ended, does
         * all that was handed over before it was told, and `published` may have grown since. */
        const int nobody =
            started <= ended && l->told <= ended && l->due == 0 && atomic_load(&l->open) == 0 && !waiting;
        if (!nobody)
            l->orphan_ns = 0;
        else if (l->how == NB_LAUNCH_BATCH ||
                 (l->orphan_ns &&
                  now - l->orphan_ns > (atomic_load(&l->captured) ? ORPHAN_CAPTURED_NS : ORPHAN_NS)))
            launch_alone(l);
        else if (!l->orphan_ns)
            l->orphan_ns = now;
        watch(l, now, started, ended);
    } else {
        l->orphan_ns = 0;
    }
    tell(l);
    return work || waiting || l->due || started != ended || l->told > ended || atomic_load(&l->open);
}
