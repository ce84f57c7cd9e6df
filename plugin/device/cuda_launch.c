/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the codec kernel runs.
 *
 * Where CUDA_DEVICE_MAX_CONNECTIONS is 1 (Megatron sets it) a GPU has one hardware queue: a kernel launched when a
 * window arrives can sit behind a wait for the very collective that needs it. So the kernel is *resident* beside
 * NCCL's: forked off NCCL's stream right before NCCL's launch (it can start when NCCL's can, and stands before it
 * in a single queue), and joined to it right after. Captured, both become a branch of the graph and come back with
 * every replay.
 *
 *     NCCL's stream   ... E | NCCL's kernel | M | J ...        E, J events; M: a word in pinned memory is set
 *     our stream        wait E | codec kernel | J
 *
 * When it may end. NCCL's kernel has ended (M is seen) and the communicator has nothing open: all of its windows
 * are finished and no operation is half handed over. What NCCL's proxy hands over after its kernel has ended are
 * windows that only contribute, of operations whose length the engine knows; so there is nothing left. Where the
 * Coll events show that nothing of a launch comes to us it ends at once.
 *
 * Which one ends. Kernels of a ring are numbered as they run, and one is told to end for every launch that needs none
 * any more. NCCL runs the kernels of a communicator (and of its children that share its resources) one after the other, on
 * whatever streams and from whatever graphs, and ours ends before the launch is joined: so kernels that are beside
 * NCCL's never run at once on one ring, and run in the order of the launches they are beside. Each replay of a
 * captured launch sets its mark once.
 *
 * Work without a launch beside it (bytes that a peer asks for after the operation) gets a kernel of its own after
 * a moment. Where graphs were captured that is seconds, since nothing tells that a replay has begun: one that begins
 * right then would run its kernel beside this one on the same ring, which nothing prevents. That is also how
 * NB_LAUNCH_BATCH works, which is safe only where there is more than one hardware queue.
 *
 * None of the statements about queues and graphs could be tried without a GPU.
 */
#include "device/cuda_launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "device/cuda_gpu.h"

#define PLACES (NB_LAUNCH_OPEN + NB_LAUNCH_CAPTURED)
/* Work waits so long for a launch beside NCCL's. Where there are captured ones, a replay may have begun whose kernel of
 * ours has not, and a kernel of its own could then run at the same time on the same ring: so it is long. */
#define ORPHAN_NS INT64_C(500000)
#define ORPHAN_CAPTURED_NS INT64_C(5000000000)
#define DRAIN_NS INT64_C(5000000000)
#define MAX_GPUS 64

enum {
    FREE = 0,
    MADE,     /* launched, not yet ended by NCCL's side */
    OPEN,     /* its mark is to come */
    NOTHING,  /* the same, but nothing comes to us: it ends in its turn */
    TOLD,     /* it was told to end; its mark is to come, then the place is free */
    MARKED,   /* NCCL's kernel has ended; the communicator's turn is to come */
    CAPTURED, /* for ever: its mark may come again */
};

static _Atomic int told[MAX_GPUS];

void nb_launch_told(int gpu, int by)
{
    if (gpu >= 0 && gpu < MAX_GPUS)
        atomic_fetch_add(&told[gpu], by);
}

/* ---- The choice ---------------------------------------------------------------------------------------- */

static int set_to(const char *name, const char *value)
{
    const char *v = getenv(name);
    return v && strcmp(v, value) == 0;
}

int nb_launch_choose(enum nb_launching *how, int *one_queue, int gpu, char *why, size_t cap)
{
    const int wish = nb_params()->gpu_launch; /* auto, resident, batch */
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    int tells = gpu < 0 || (gpu < MAX_GPUS && atomic_load(&told[gpu]) > 0); /* -1: too early to know */

    *one_queue = set_to("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    if (blocking && *blocking && strcmp(blocking, "0") != 0) {
        snprintf(why, cap, "CUDA_LAUNCH_BLOCKING is set: a kernel beside NCCL's would be waited for before NCCL's begins");
        return -ENOTSUP;
    }
    if (wish == 1 && !tells) {
        snprintf(why, cap, "NIBBLE_GPU_LAUNCH=resident, but NCCL tells no KernelLaunch events (before 2.28, or another profiler)");
        return -ENOTSUP;
    }
    *how = wish == 2 || !tells ? NB_LAUNCH_BATCH : NB_LAUNCH_RESIDENT;
    if (*how == NB_LAUNCH_BATCH && *one_queue) {
        snprintf(why, cap,
                 "CUDA_DEVICE_MAX_CONNECTIONS=1 leaves one hardware queue, in which a kernel launched for a batch could wait for "
                 "the operation that needs it, and %s",
                 wish == 2 ? "NIBBLE_GPU_LAUNCH=batch" : "NCCL tells no KernelLaunch events (before 2.28, or another profiler)");
        return -ENOTSUP;
    }
    return 0;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static nb_cu_stream make_stream(struct nb_gpu *g, int *ret)
{
    nb_cu_stream s = NULL;
    int least = 0, most = 0;

    if (!*ret)
        *ret = NB_CU(g->cu, "priorities of streams", CtxGetStreamPriorityRange(&least, &most));
    if (!*ret)
        *ret = NB_CU(g->cu, "stream for the codec kernel",
                     StreamCreateWithPriority(&s, NB_CU_STREAM_NON_BLOCKING, most));
    return *ret ? NULL : s;
}

static nb_cu_event make_event(struct nb_gpu *g, int *ret)
{
    nb_cu_event e = NULL;

    if (!*ret)
        *ret = NB_CU(g->cu, "event for the codec kernel", EventCreate(&e, NB_CU_EVENT_DISABLE_TIMING));
    return *ret ? NULL : e;
}

int nb_launch_open(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    int64_t blocks = nb_params()->gpu_blocks;
    int ret = 0;

    /* A quarter of the places that the GPU has for it, one a multiprocessor: NCCL's and the job's kernels need
     * theirs. One more, which only carries descriptors. */
    l->blocks = 1 + (unsigned)(blocks ? blocks : (g->multiprocessors + 3) / 4);
    l->stream = make_stream(g, &ret);
    for (unsigned i = 0; l->how == NB_LAUNCH_RESIDENT && i < NB_LAUNCH_STREAMS; i++)
        l->captured_stream[i] = make_stream(g, &ret);
    l->before = make_event(g, &ret);
    for (unsigned i = 0; i < sizeof(l->event) / sizeof(*l->event); i++)
        l->event[i] = make_event(g, &ret);
    if (ret)
        return ret;
    l->mark = nb_gpu_pinned(g, PLACES * sizeof(*l->mark));
    l->beside = calloc(PLACES, sizeof(*l->beside));
    return l->mark && l->beside ? 0 : -ENOMEM;
}

void nb_launch_close(struct nb_gpu *g)
{
    const struct nb_cuda *cu = g->cu;
    struct nb_launches *l = &g->launches;

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
    nb_gpu_unpin(g, l->mark);
    free(l->beside);
    memset(l, 0, sizeof(*l));
}

/* ---- Launching; under launch_lock, entered ------------------------------------------------------------- */

static int launch(struct nb_gpu *g, nb_cu_stream stream)
{
    struct nb_gpu_launch argument = {.state = g->ring.state, .ring = (uintptr_t)&g->ring.host->ring};
    void *arguments[] = {&argument};
    /* NCCL's kernels are in the remote domain of memory order. In another, our writes over PCIe would slow the
     * fences of the job's kernels. */
    struct nb_cu_launch_attr domain = {.id = NB_CU_LAUNCH_MEM_SYNC_DOMAIN,
                                       .value = {.mem_sync_domain = NB_CU_LAUNCH_DOMAIN_REMOTE}};
    struct nb_cu_launch_config config = {.grid_x = g->launches.blocks,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .block_x = NB_GPU_THREADS,
                                         .block_y = 1,
                                         .block_z = 1,
                                         .stream = stream,
                                         .attrs = &domain,
                                         .nattrs = 1};
    int ret = NB_CU(g->cu, "launching the codec kernel", LaunchKernelEx(&config, g->kernel, arguments, NULL));

    if (!ret)
        atomic_fetch_add(&g->launches.launched, 1);
    return ret;
}

/* Our stream for a capture: the one that takes part in it, else one that takes part in none. */
static nb_cu_stream stream_for(struct nb_gpu *g, int capturing, uint64_t id)
{
    struct nb_launches *l = &g->launches;
    int free = -1, busy;

    if (!capturing)
        return l->stream;
    for (int i = 0; i < (int)NB_LAUNCH_STREAMS; i++) {
        busy = 0;
        if (NB_CU(g->cu, "state of a stream", StreamIsCapturing(l->captured_stream[i], &busy)))
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
static int find_place(struct nb_gpu *g, int capturing)
{
    struct nb_launches *l = &g->launches;
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
static int fork_beside(struct nb_gpu *g, nb_cu_stream stream, int *place)
{
    const struct nb_cuda *cu = g->cu;
    struct nb_launches *l = &g->launches;
    nb_cu_stream ours;
    uint64_t id = 0, number;
    int ret, capturing = 0;

    ret = NB_CU(cu, "NCCL's stream", StreamGetCaptureInfo_v2(stream, &capturing, &id, NULL, NULL, NULL));
    if (ret)
        return ret;
    *place = find_place(g, capturing != NB_CU_CAPTURE_NONE);
    if (*place < 0) {
        NB_WARN("cuda: GPU %d: no place for another %s launch beside NCCL's", g->ordinal, capturing ? "captured" : "open");
        return -ENOSPC;
    }
    ours = stream_for(g, capturing != NB_CU_CAPTURE_NONE, id);
    if (!ours)
        return -EIO;
    number = atomic_load(&l->launched);
    ret = NB_CU(cu, "before NCCL's kernel", EventRecord(l->before, stream));
    if (!ret)
        ret = NB_CU(cu, "before NCCL's kernel", StreamWaitEvent(ours, l->before, 0));
    if (!ret)
        ret = launch(g, ours);
    if (ret)
        return ret;
    struct nb_beside *b = &l->beside[*place];
    b->event = l->event[l->next_event++ % (sizeof(l->event) / sizeof(*l->event))];
    b->stream = stream;
    b->number = number;
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
    /* It runs now, or will: an error from here on is the GPU's. */
    if (NB_CU(cu, "the end of the codec kernel", EventRecord(b->event, ours)))
        atomic_store(&g->failed, -EIO);
    return 0;
}

uint64_t nb_launch_begin(int gpu, uint64_t comm_id, int nnodes, void *stream)
{
    struct nb_gpu *g;
    uint64_t number = 0;
    int mode, place = -1;

    if (nnodes < 2)
        return 0;
    g = nb_gpu_find(gpu, comm_id, nnodes);
    if (!g)
        return 0;
    if (g->launches.how == NB_LAUNCH_RESIDENT && !atomic_load(&g->failed) && !nb_gpu_enter(g, &mode)) {
        pthread_mutex_lock(&g->launch_lock);
        if (!fork_beside(g, stream, &place))
            number = (uint64_t)g->serial << 48 | (uint64_t)g->launches.beside[place].gen << 32 | ((uint64_t)place + 1);
        pthread_mutex_unlock(&g->launch_lock);
        nb_gpu_leave(g, mode);
    }
    nb_gpu_unfind();
    return number;
}

static struct nb_beside *place_of(struct nb_gpu *g, uint64_t number, unsigned *place)
{
    struct nb_beside *b;

    *place = (unsigned)(number & 0xffffffffu) - 1;
    if (*place >= PLACES)
        return NULL;
    b = &g->launches.beside[*place];
    return b->gen == (uint16_t)(number >> 32) ? b : NULL;
}

void nb_launch_end(uint64_t number)
{
    struct nb_gpu *g = number ? nb_gpu_find_serial((uint16_t)(number >> 48)) : NULL;
    struct nb_beside *b;
    unsigned place;
    int ret, mode, made = MADE;

    if (!g)
        return;
    pthread_mutex_lock(&g->launch_lock);
    b = place_of(g, number, &place);
    if (b) {
        ret = nb_gpu_enter(g, &mode);
        if (!ret) {
            ret = NB_CU(g->cu, "behind NCCL's kernel",
                        MemsetD32Async((uintptr_t)&g->launches.mark[place], 1, 1, b->stream));
            if (!ret)
                ret = NB_CU(g->cu, "joining the codec kernel", StreamWaitEvent(b->stream, b->event, 0));
            nb_gpu_leave(g, mode);
        }
        atomic_compare_exchange_strong(&b->state, &made, OPEN);
        if (ret) /* the mark may never come; the engine's next turn ends all kernels and fails what needs them */
            atomic_store(&g->failed, ret);
    }
    pthread_mutex_unlock(&g->launch_lock);
    nb_gpu_unfind();
}

void nb_launch_nothing(uint64_t number)
{
    struct nb_gpu *g = number ? nb_gpu_find_serial((uint16_t)(number >> 48)) : NULL;
    struct nb_beside *b;
    unsigned place;
    int open = OPEN;

    if (!g)
        return;
    pthread_mutex_lock(&g->launch_lock);
    b = place_of(g, number, &place);
    if (b) /* the engine tells it to end */
        atomic_compare_exchange_strong(&b->state, &open, NOTHING);
    pthread_mutex_unlock(&g->launch_lock);
    nb_gpu_unfind();
}

/* ---- The engine's turn; under lock --------------------------------------------------------------------- */

static int take_mark(struct nb_launches *l, unsigned place)
{
    if (!__atomic_load_n(&l->mark[place], __ATOMIC_ACQUIRE))
        return 0;
    l->mark[place] = 0; /* a captured one is set again only by a replay, which waits for the end of this one's kernel */
    return 1;
}

/* Launches that are not captured. One for which nothing comes may end before NCCL's kernel has, but only after all
 * kernels before it were told to: with captured ones among them that is not known, and it waits for its mark. */
static void look_at_open(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;

    for (unsigned i = 0; i < NB_LAUNCH_OPEN && atomic_load(&l->places); i++) {
        struct nb_beside *b = &l->beside[i];
        int state = atomic_load_explicit(&b->state, memory_order_acquire), marked, end;
        if (state < OPEN)
            continue;
        marked = state != MARKED && take_mark(l, i);
        end = (state == NOTHING && (marked || (atomic_load(&l->captured) == 0 && l->told + l->due == b->number))) ||
              (state == MARKED && g->idle > b->marked);
        if (end) {
            l->due++;
            atomic_fetch_sub(&l->open, 1);
        }
        if (marked && state == OPEN) {
            b->marked = g->turn;
            atomic_store(&b->state, MARKED);
        } else if (marked || (end && state == MARKED)) {
            atomic_store_explicit(&b->state, FREE, memory_order_release);
            atomic_fetch_sub(&l->places, 1);
        } else if (end) {
            atomic_store(&b->state, TOLD);
        }
    }
}

static int look_at_captured(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    unsigned n = atomic_load(&l->captured);
    int waiting = 0;

    for (unsigned i = 0; i < n; i++) {
        struct nb_beside *b = &l->beside[NB_LAUNCH_OPEN + i];
        uint64_t bit = UINT64_C(1) << (i % 64), *word = &l->waiting[i / 64];
        if (!(*word & bit) && take_mark(l, NB_LAUNCH_OPEN + i)) {
            *word |= bit;
            b->marked = g->turn;
        }
        if (*word & bit) {
            if (g->idle > b->marked) {
                *word &= ~bit;
                l->due++;
            } else {
                waiting = 1;
            }
        }
    }
    return waiting;
}

/* Tell kernels to end, as many as are due; no more than the ring holds for those that have not begun. A GPU that has
 * failed ends all of them, also those that were told to end later, before they begin with anything more: what they
 * would work on may be gone. */
static void tell(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    struct nb_gpu_ring *ring = &g->ring.host->ring;
    const uint64_t ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);
    const int failed = atomic_load(&g->failed) != 0;

    for (uint64_t k = ended; failed && k < l->told; k++)
        __atomic_store_n(&ring->stop[k % NB_GPU_STOPS], 0, __ATOMIC_RELEASE);
    while ((l->due || failed) && l->told - ended < NB_GPU_STOPS) {
        __atomic_store_n(&ring->stop[l->told % NB_GPU_STOPS], failed ? 0 : g->ring.published, __ATOMIC_RELAXED);
        __atomic_store_n(&ring->stops, ++l->told, __ATOMIC_RELEASE);
        l->due -= l->due > 0;
    }
    if (failed)
        l->due = 0; /* all are */
}

/* Work, and no kernel that would do it. */
static void launch_alone(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    int ret, mode;

    if (l->how == NB_LAUNCH_RESIDENT && !l->said) {
        l->said = 1;
        NB_INFO(NCCL_NET, "cuda: GPU %d: a kernel of its own for work outside of NCCL's launches", g->ordinal);
    }
    if (pthread_mutex_trylock(&g->launch_lock))
        return; /* somebody is launching: see what comes of it */
    if (atomic_load(&l->open)) { /* somebody just has */
        pthread_mutex_unlock(&g->launch_lock);
        return;
    }
    ret = nb_gpu_enter(g, &mode);
    if (!ret) {
        ret = launch(g, l->stream);
        nb_gpu_leave(g, mode);
    }
    pthread_mutex_unlock(&g->launch_lock);
    if (ret) {
        nb_gpu_fail(g, ret);
        return;
    }
    l->alone++;
    l->due++;
}

static void watch(struct nb_gpu *g, int64_t now, uint64_t started, uint64_t ended)
{
    const struct nb_launches *l = &g->launches;
    const struct nb_ring *r = &g->ring;
    const int64_t limit = nb_params()->gpu_timeout * (int64_t)NB_NS_PER_S;

    if (now - r->moved_ns < limit)
        return;
    NB_WARN("cuda: GPU %d: no work was finished for %lld s (NIBBLE_GPU_TIMEOUT): %s; %llu kernels launched and not captured, "
            "%llu begun, %llu ended, %llu told to end, descriptor %llu of %llu (operation %u) is waited for%s",
            g->ordinal, (long long)nb_params()->gpu_timeout,
            started == ended ? "the codec kernel has not begun: the GPU is full, or its stream waits for something that waits for us"
                             : "the codec kernel runs, but does not get on",
            (unsigned long long)atomic_load(&l->launched), (unsigned long long)started, (unsigned long long)ended,
            (unsigned long long)l->told, (unsigned long long)r->oldest, (unsigned long long)r->published,
            r->host->ring.desc[r->oldest % NB_GPU_RING].op,
            l->one_queue ? "; CUDA_DEVICE_MAX_CONNECTIONS is 1" : "");
    nb_gpu_fail(g, -ETIMEDOUT);
}

int nb_launch_drain(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    const int64_t limit = (int64_t)nb_now_ns() + DRAIN_NS;
    const struct timespec pause = {0, 100000};
    uint64_t ended;

    l->due += atomic_exchange(&l->open, 0);
    for (;;) {
        tell(g);
        ended = __atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE);
        /* Replays count as ended, too; one that is under way now is an error of the job's. */
        if (l->due == 0 && __atomic_load_n(&g->ring.host->ring.started, __ATOMIC_ACQUIRE) <= ended &&
            ended >= atomic_load(&l->launched) && (l->told <= ended || atomic_load(&g->failed)))
            return 1;
        if ((int64_t)nb_now_ns() > limit)
            return 0;
        nanosleep(&pause, NULL);
    }
}

int nb_launch_turn(struct nb_gpu *g)
{
    struct nb_launches *l = &g->launches;
    struct nb_gpu_ring *ring = &g->ring.host->ring;
    const unsigned work = nb_ring_sweep(g);
    int waiting;
    uint64_t started, ended;

    g->turn++;
    look_at_open(g);
    waiting = look_at_captured(g);
    /* `ended` first: of what has ended by then, all had begun. */
    ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);
    started = __atomic_load_n(&ring->started, __ATOMIC_ACQUIRE);
    if (atomic_load(&g->failed)) {
        if (work)
            nb_gpu_fail(g, atomic_load(&g->failed));
    } else if (work) {
        const int64_t now = (int64_t)nb_now_ns();
        /* Every kernel that was told to end has: nobody will come. One that was told, but has not ended, does all
         * that was handed over before it was told, and `published` may have grown since. */
        const int nobody = started <= ended && l->told <= ended && l->due == 0 && atomic_load(&l->open) == 0 && !waiting;
        if (!nobody)
            l->orphan_ns = 0;
        else if (l->how == NB_LAUNCH_BATCH || (l->orphan_ns && now - l->orphan_ns > (atomic_load(&l->captured) ? ORPHAN_CAPTURED_NS : ORPHAN_NS)))
            launch_alone(g);
        else if (!l->orphan_ns)
            l->orphan_ns = now;
        watch(g, now, started, ended);
    } else {
        l->orphan_ns = 0;
    }
    tell(g);
    return work || waiting || l->due || started != ended || l->told > ended || atomic_load(&l->open);
}
