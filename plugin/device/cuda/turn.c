/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's half of launches: which kernels may end, when waiting work has no kernel, and the watchdog.
 * launch.c explains the states of a launch. The functions here never call the driver.
 */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdbool.h>
#include <time.h>

#include "base/log.h"

/* Time that work waits for a launch beside NCCL's, before it gets a kernel of its own. It is long where there
 * are captured launches: a replay may have begun whose codec kernel has not, and both kernels could then run
 * on the same ring at once. */
#define ORPHAN_NS INT64_C(500000)
#define ORPHAN_CAPTURED_NS INT64_C(5000000000)
#define DRAIN_NS INT64_C(5000000000)
/* Time that our kernel runs on for open windows after NCCL's has ended. It is short, since the job's stream
 * waits for our kernel where both are in one graph. A kernel of its own does the rest of the work. After a
 * capture that kernel comes late (ORPHAN_CAPTURED_NS). */
#define LINGER_NS INT64_C(5000000)
#define LINGER_CAPTURED_NS INT64_C(1000000000)
/* Time without open work after which a launch without a mark counts as done. It is long because a node may
 * wait for another of its GPUs, which saves a checkpoint. */
#define FORGOTTEN_NS INT64_C(600000000000)
#define ALONE_NS INT64_C(1000000) /* time without work after which a kernel of its own ends */
/* Time without a kernel that runs after which this processor does waiting work. */
#define ESCAPE_NS INT64_C(50000000)

static void give_blocks(struct nb_launches *l, _Atomic unsigned *taken)
{
    nb_gpus_give_blocks(l->ctx->gpus, l->cuda->ordinal, atomic_exchange(taken, 0));
}

/* ---- The engine's turn; under the lock of struct nb_gpu ------------------------------------------------ */

static int take_mark(struct nb_launches *l, unsigned place)
{
    if (!__atomic_load_n(&l->mark[place], __ATOMIC_ACQUIRE))
        return 0;
    l->mark[place] =
        0; /* only a replay sets a captured one again, and it waits for the end of this one's kernel */
    return 1;
}

/* Return whether the engine has served all operations up to this launch, so that its kernel may end. */
static bool is_served(struct nb_launches *l, struct nb_beside *b)
{
    if (!atomic_load_explicit(&b->posted, memory_order_acquire) || !b->counts || l->begun < b->upto)
        return false;
    if (!b->served)
        b->served = l->turn;
    return l->idle > b->served;
}

/* Return whether work for a launch without a mark is over: GPU or communicator have failed, NCCL has given
 * the operation up (ncclCommAbort), or the launch has been without open work for long. */
static bool is_forgotten(struct nb_launches *l, const struct nb_beside *b)
{
    const int64_t since = l->busy_ns > b->forked_ns ? l->busy_ns : b->forked_ns;

    if (!b->marks && (l->given_up || atomic_load(&l->ring->failed)))
        return true;
    if (b->marks || l->now - since < FORGOTTEN_NS)
        return false;
    NB_INFO(
        NCCL_NET,
        "cuda: GPU %d: a launch of NCCL's had no work for %d s, and its codec kernel ends. %llu operations "
        "handed over, %llu begun",
        l->cuda->ordinal, (int)(FORGOTTEN_NS / (int64_t)NB_NS_PER_S), (unsigned long long)b->upto,
        (unsigned long long)l->begun);
    return true;
}

/* Return whether all kernels launched before this place's were told to end, so that this one is next. */
static bool is_next(const struct nb_launches *l, const struct nb_beside *b)
{
    return atomic_load(&l->captured) == 0 && l->told + l->due == b->number;
}

static bool may_end(const struct nb_launches *l, const struct nb_beside *b)
{
    const int64_t linger = atomic_load(&l->captured) ? LINGER_CAPTURED_NS : LINGER_NS;

    return l->idle > b->marked || l->now - b->marked_ns > linger;
}

/* Return the state that follows. *ends: the place's kernel is told to end. */
static int next_state(struct nb_launches *l, unsigned place, int state, bool *ends)
{
    struct nb_beside *b = &l->beside[place];

    *ends = false;
    switch (state) {
    case NB_BESIDE_OPEN:
        if (b->marks && take_mark(l, place))
            return NB_BESIDE_MARKED;
        *ends = (is_next(l, b) && is_served(l, b)) || is_forgotten(l, b);
        return !*ends ? state : b->marks ? NB_BESIDE_TOLD : NB_BESIDE_FREE;
    case NB_BESIDE_TOLD: return take_mark(l, place) ? NB_BESIDE_FREE : state;
    case NB_BESIDE_MARKED: *ends = may_end(l, b); return *ends ? NB_BESIDE_FREE : state;
    default: return state;
    }
}

/* Look at launches that are not captured by the job. */
static void look_at_open(struct nb_launches *l)
{
    unsigned left = atomic_load(&l->places);

    /* Operations of a child may begin before its launches are known. No launch counts them. */
    if (left == 0 && l->begun > atomic_load(&l->handed))
        l->begun = atomic_load(&l->handed);
    for (unsigned i = 0; i < NB_LAUNCH_OPEN && left; i++) {
        struct nb_beside *b = &l->beside[i];
        const int state = atomic_load_explicit(&b->state, memory_order_acquire);
        bool ends;
        left -= state != NB_BESIDE_FREE;
        if (state < NB_BESIDE_OPEN)
            continue;
        const int next = next_state(l, i, state, &ends);
        if (next == state)
            continue;
        if (ends) {
            l->due++;
            atomic_fetch_sub(&l->open, 1);
            give_blocks(l, &b->blocks);
        }
        if (next == NB_BESIDE_MARKED) {
            b->marked = l->turn;
            b->marked_ns = l->now;
        }
        if (state == NB_BESIDE_MARKED && l->idle > b->marked && atomic_load(&b->posted) && l->begun < b->upto)
            l->begun = b->upto; /* NCCL's kernel has ended, so all of them have begun and ended */
        atomic_store_explicit(&b->state, next, memory_order_release);
        if (next == NB_BESIDE_FREE)
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
            b->marked_ns = l->now;
        }
        if (*word & bit) {
            if (may_end(l, b)) {
                *word &= ~bit;
                l->due++;
            } else {
                waiting = 1;
            }
        }
    }
    return waiting;
}

/* Tell the due kernels to end, as far as the ring has room: for NB_GPU_STOPS kernels that were told and have
 * not ended. On a failed GPU tell all kernels to end at once, also kernels that were told to end at a later
 * descriptor: its memory may be gone. */
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
        l->due = 0; /* all are told */
}

/* Ask for a kernel for work that has none. */
static void ask_for_one(struct nb_launches *l)
{
    if (l->how == NB_LAUNCH_RESIDENT && !l->said) {
        l->said = 1;
        NB_INFO(NCCL_NET, "cuda: GPU %d: a kernel of its own for work outside of NCCL's launches",
                l->cuda->ordinal);
    }
    if (!atomic_exchange(&l->alone_asked, 1))
        nb_cuda_thread_ask(l->thread, NB_CUDA_THREAD_LAUNCH);
}

static void take_in_alone(struct nb_launches *l)
{
    const unsigned n = atomic_exchange(&l->alone_new, 0);

    if (!n)
        return;
    l->alone += n;
    l->alone_open += n;
    l->alone_turn = l->turn;
    l->worked_ns = l->now;
}

static void end_alone(struct nb_launches *l)
{
    l->due += l->alone_open;
    l->alone_open = 0;
    give_blocks(l, &l->alone_blocks);
}

/* Fail the ring when the GPU makes no progress for too long. `since`: the time of the last progress. */
static void watch(struct nb_launches *l, int64_t since, uint64_t started, uint64_t ended)
{
    const struct nb_ring *r = l->ring;
    const int64_t limit = l->ctx->params->gpu_timeout * (int64_t)NB_NS_PER_S;

    if (l->now - since < limit)
        return;
    NB_WARN("cuda: GPU %d: no work was finished for %lld s (NIBBLE_GPU_TIMEOUT): %s. %llu kernels launched "
            "outside captures, %llu begun, %llu ended, %llu told to end, first unfinished descriptor %llu of "
            "%llu (operation %u), %u works without a kernel",
            l->cuda->ordinal, (long long)l->ctx->params->gpu_timeout,
            started == ended ? "the codec kernel has not begun: the GPU is full, or its stream waits for "
                               "work that waits for nibble"
                             : "the codec kernel runs, but makes no progress",
            (unsigned long long)atomic_load(&l->launched), (unsigned long long)started,
            (unsigned long long)ended, (unsigned long long)l->told, (unsigned long long)r->oldest,
            (unsigned long long)r->published,
            r->oldest < r->published ? r->host->ring.desc[r->oldest % NB_GPU_RING].op : 0u,
            r->nwaiting + (r->aside.work != NULL));
    nb_ring_fail(l->ring, -ETIMEDOUT);
}

void nb_launches_begun(struct nb_launches *l)
{
    l->begun++;
}

void nb_launches_busy(struct nb_launches *l)
{
    l->busy_ns = nb_clock_ns(&l->ctx->clock);
}

void nb_launches_idle(struct nb_launches *l)
{
    l->idle = l->turn + 1;
    l->wanted = 0;
}

/* Return whether a running kernel takes new work: it was not told to end. */
static bool is_served_by_kernel(const struct nb_launches *l)
{
    const struct nb_gpu_ring *ring = &l->ring->host->ring;
    /* Read `ended` first: all kernels that had ended by then had begun. */
    const uint64_t ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);

    return __atomic_load_n(&ring->started, __ATOMIC_ACQUIRE) > ended && l->told <= ended;
}

int nb_launches_ready(struct nb_launches *l)
{
    nb_ring_serve(l->ring, is_served_by_kernel(l));
    if (atomic_load(&l->ring->failed) || l->escapes || l->ring->served) {
        l->wanted = 0;
        return 1;
    }
    if (!l->wanted)
        l->wanted_ns = nb_clock_ns(&l->ctx->clock);
    l->wanted = 1;
    return 0;
}

int nb_launches_drain(struct nb_launches *l)
{
    const int64_t limit = nb_clock_ns(&l->ctx->clock) + DRAIN_NS;
    const struct timespec pause = {0, 100000};
    uint64_t ended;

    l->due += atomic_exchange(&l->open, 0);
    for (unsigned i = 0; l->beside && i < NB_LAUNCH_OPEN; i++)
        give_blocks(l, &l->beside[i].blocks);
    for (;;) {
        take_in_alone(l);
        end_alone(l);
        tell(l);
        ended = __atomic_load_n(&l->ring->host->ring.ended, __ATOMIC_ACQUIRE);
        /* Replays count as ended, too. A replay that is in flight now is an error of the job's. */
        if (l->due == 0 && __atomic_load_n(&l->ring->host->ring.started, __ATOMIC_ACQUIRE) <= ended &&
            ended >= atomic_load(&l->launched) && (l->told <= ended || atomic_load(&l->ring->failed)))
            return 1;
        if (nb_clock_ns(&l->ctx->clock) > limit)
            return 0;
        nanosleep(&pause, NULL);
    }
}

/* Have this processor do waiting work once it, or a window that would bring some, has had no kernel for too
 * long. This ends when a kernel begins. */
static void escape(struct nb_launches *l)
{
    const bool possible = nb_escape_possible(l->escape);
    const bool wants = l->ring->nwaiting || l->ring->aside.work || l->wanted;

    if (l->ring->served || !possible)
        l->escapes = false;
    if (l->ring->served || !wants)
        l->stalled_ns = 0;
    else if (!l->stalled_ns)
        l->stalled_ns = l->now;
    else if (possible && l->now - l->stalled_ns > ESCAPE_NS)
        l->escapes = true;
    if (l->escapes && !l->escape_said) {
        l->escape_said = true;
        NB_INFO(NCCL_NET,
                "cuda: GPU %d: no codec kernel has taken work for %d ms. Until one does, this processor "
                "codes the values, and the adapter carries them",
                l->cuda->ordinal, (int)(ESCAPE_NS / 1000000));
    }
    nb_escape_turn(l->escape, l->ring, l->escapes);
}

int nb_launches_turn(struct nb_launches *l)
{
    struct nb_gpu_ring *ring = &l->ring->host->ring;
    const unsigned work = nb_ring_sweep(l->ring);
    int waiting;
    uint64_t started, ended;

    l->turn++;
    l->now = nb_clock_ns(&l->ctx->clock);
    take_in_alone(l);
    look_at_open(l);
    waiting = look_at_captured(l);
    /* Read `ended` first: all kernels that had ended by then had begun. */
    ended = __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE);
    started = __atomic_load_n(&ring->started, __ATOMIC_ACQUIRE);
    if (atomic_load(&l->ring->failed)) {
        if (work)
            nb_ring_fail(l->ring, atomic_load(&l->ring->failed));
    } else if (work || l->wanted) {
        /* There is no kernel only when every kernel that was told to end has ended. A kernel that was told
         * but runs on does only the work from before it was told, and `published` may have grown since. */
        const int nobody = started <= ended && l->told <= ended && l->due == 0 &&
                           atomic_load(&l->open) == 0 && !waiting && !l->alone_open;
        if (!nobody)
            l->orphan_ns = 0;
        else if (l->how == NB_LAUNCH_BATCH ||
                 (l->orphan_ns &&
                  l->now - l->orphan_ns > (atomic_load(&l->captured) ? ORPHAN_CAPTURED_NS : ORPHAN_NS)))
            ask_for_one(l);
        else if (!l->orphan_ns)
            l->orphan_ns = l->now;
        watch(l, work ? l->ring->moved_ns : l->wanted_ns, started, ended);
    } else {
        l->orphan_ns = 0;
    }
    if (work)
        l->worked_ns = l->now;
    if (l->alone_open && !l->wanted && !work && (l->idle > l->alone_turn || l->now - l->worked_ns > ALONE_NS))
        end_alone(l);
    /* Work that has waited belongs to the kernel that runs now, also where that kernel is told to end in this
     * turn. */
    nb_ring_serve(l->ring, is_served_by_kernel(l));
    tell(l);
    nb_ring_serve(l->ring, is_served_by_kernel(l));
    escape(l);
    return work || waiting || l->wanted || l->alone_open || l->due || started != ended || l->told > ended ||
           atomic_load(&l->open);
}
