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

/* Time that work waits for a launch beside NCCL's. It is long where there are captured launches: a replay may
 * have begun before its kernel of ours, and another kernel could then run at the same time on the same
 * ring. */
#define ORPHAN_NS INT64_C(500000)
#define ORPHAN_CAPTURED_NS INT64_C(5000000000)
#define DRAIN_NS INT64_C(5000000000)
#define LINGER_NS INT64_C(1000000000)
#define ALONE_NS INT64_C(1000000) /* time without work after which a kernel of its own ends */
#define HOLD_NS INT64_C(2000000)  /* maximum time of NCCL's launch after ours */
/* Maximum time from the end of all work to the calls that follow NCCL's launch. */
#define LEAVE_NS INT64_C(50000000)

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

enum event { NONE, MARK, DUE, EVENTS }; /* DUE: its turn to end, or idle, or NCCL's launch does not return */

/* Effect of the engine's turn on a place. `ends`: its kernel is told to end. */
static const struct transition {
    int next;
    bool ends;
} transition[NB_BESIDE_STATES][EVENTS] = {
    [NB_BESIDE_AHEAD] = {[NONE] = {NB_BESIDE_AHEAD, false},
                         [MARK] = {NB_BESIDE_AHEAD, false},
                         [DUE] = {NB_BESIDE_LEFT, true}},
    [NB_BESIDE_LATE] =
        {[NONE] = {NB_BESIDE_LATE, false}, [MARK] = {NB_BESIDE_FREE, false}, [DUE] = {NB_BESIDE_LATE, false}},
    [NB_BESIDE_OPEN] = {[NONE] = {NB_BESIDE_OPEN, false},
                        [MARK] = {NB_BESIDE_MARKED, false},
                        [DUE] = {NB_BESIDE_TOLD, true}},
    [NB_BESIDE_NOTHING] = {[NONE] = {NB_BESIDE_NOTHING, false},
                           [MARK] = {NB_BESIDE_FREE, true},
                           [DUE] = {NB_BESIDE_TOLD, true}},
    [NB_BESIDE_TOLD] =
        {[NONE] = {NB_BESIDE_TOLD, false}, [MARK] = {NB_BESIDE_FREE, false}, [DUE] = {NB_BESIDE_TOLD, false}},
    [NB_BESIDE_MARKED] = {[NONE] = {NB_BESIDE_MARKED, false},
                          [MARK] = {NB_BESIDE_MARKED, false},
                          [DUE] = {NB_BESIDE_FREE, true}},
    [NB_BESIDE_SPARE] = {[NONE] = {NB_BESIDE_SPARE, false},
                         [MARK] = {NB_BESIDE_SPARE, false},
                         [DUE] = {NB_BESIDE_FREE, true}},
};

/* Return whether all kernels launched before this place's were told to end, so that this one is next. */
static bool is_next(const struct nb_launches *l, const struct nb_beside *b)
{
    return atomic_load(&l->captured) == 0 && l->told + l->due == b->number;
}

/* Return whether a kernel without work may leave. No mark will report that NCCL's kernel has ended before
 * another thread gets on, and that thread may wait for ours. */
static bool may_leave(struct nb_launches *l, struct nb_beside *b)
{
    const uint64_t started = __atomic_load_n(&l->ring->host->ring.started, __ATOMIC_ACQUIRE);

    if (!atomic_load(&b->unmarked) || !is_next(l, b) || started <= b->number)
        return false;
    if (!b->begun_ns)
        b->begun_ns = l->now;
    return l->busy_ns > b->begun_ns ? l->now - l->busy_ns > LEAVE_NS : l->now - b->begun_ns > LINGER_NS;
}

/* Handle a launch of NCCL's that does not return: ask for another kernel of ours. Return true when that had
 * time to get into the driver behind NCCL's, so that this one may leave. */
static bool stalls(struct nb_launches *l, struct nb_beside *b)
{
    if (l->now - b->forked_ns < HOLD_NS / 2 || !is_next(l, b))
        return false;
    if (b->asked_ns)
        return l->now - b->asked_ns > HOLD_NS / 2;
    b->asked_ns = l->now;
    atomic_store(&b->wanted, 1);
    nb_cuda_thread_ask(l->thread, NB_CUDA_THREAD_LAUNCH);
    return false;
}

static enum event event_of(struct nb_launches *l, unsigned place, int state)
{
    struct nb_beside *b = &l->beside[place];

    if (state == NB_BESIDE_AHEAD)
        return stalls(l, b) ? DUE : NONE;
    if (state != NB_BESIDE_MARKED && state != NB_BESIDE_SPARE && take_mark(l, place))
        return MARK;
    if ((state == NB_BESIDE_NOTHING || state == NB_BESIDE_SPARE) && is_next(l, b))
        return DUE;
    if (state == NB_BESIDE_OPEN && may_leave(l, b))
        return DUE;
    if (state == NB_BESIDE_MARKED && (l->idle > b->marked || l->now - b->marked_ns > LINGER_NS))
        return DUE;
    return NONE;
}

/* Tell a place's kernel to end. */
static void end_one(struct nb_launches *l, unsigned blocks)
{
    l->due++;
    atomic_fetch_sub(&l->open, 1);
    nb_gpus_give_blocks(l->ctx->gpus, l->cuda->ordinal, blocks);
}

/* Change an AHEAD or LATE place. Other threads leave these states, too, and the first change decides. */
static void look_at_shared(struct nb_launches *l, unsigned place, int state, enum event event)
{
    struct nb_beside *b = &l->beside[place];
    const struct transition *t = &transition[state][event];
    unsigned blocks;
    int was = state;

    if (t->next == state)
        return;
    blocks = t->ends ? atomic_exchange(&b->blocks, 0) : 0; /* before another launch can have some */
    if (!atomic_compare_exchange_strong(&b->state, &was, t->next)) {
        if (t->ends)
            atomic_store(&b->blocks, blocks);
        if (event == MARK)
            __atomic_store_n(&l->mark[place], 1, __ATOMIC_RELEASE);
        return;
    }
    if (t->ends)
        end_one(l, blocks);
    if (t->next == NB_BESIDE_FREE) {
        atomic_fetch_sub(&l->late, 1);
        atomic_fetch_sub(&l->places, 1);
    }
}

/* Look at launches that are not captured. */
static void look_at_open(struct nb_launches *l)
{
    unsigned left = atomic_load(&l->places);

    for (unsigned i = 0; i < NB_LAUNCH_OPEN && left; i++) {
        struct nb_beside *b = &l->beside[i];
        const int state = atomic_load_explicit(&b->state, memory_order_acquire);
        left -= state != NB_BESIDE_FREE;
        if (state < NB_BESIDE_AHEAD)
            continue;
        const enum event event = event_of(l, i, state);
        if (state < NB_BESIDE_OPEN) {
            look_at_shared(l, i, state, event);
            continue;
        }
        const struct transition *t = &transition[state][event];
        if (t->ends)
            end_one(l, atomic_exchange(&b->blocks, 0));
        if (t->next == state)
            continue;
        if (t->next == NB_BESIDE_MARKED) {
            b->marked = l->turn;
            b->marked_ns = l->now;
        }
        atomic_store_explicit(&b->state, t->next, memory_order_release);
        if (t->next == NB_BESIDE_FREE)
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
            if (l->idle > b->marked || l->now - b->marked_ns > LINGER_NS) {
                *word &= ~bit;
                l->due++;
            } else {
                waiting = 1;
            }
        }
    }
    return waiting;
}

/* Tell the due kernels to end, up to the ring's capacity for those that have not begun. A failed GPU ends all
 * of them, also those that were told to end later, before they begin with more work: its memory may be
 * gone. */
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
            "%llu (operation %u)",
            l->cuda->ordinal, (long long)l->ctx->params->gpu_timeout,
            started == ended ? "the codec kernel has not begun: the GPU is full, or its stream waits for "
                               "work that waits for nibble"
                             : "the codec kernel runs, but makes no progress",
            (unsigned long long)atomic_load(&l->launched), (unsigned long long)started,
            (unsigned long long)ended, (unsigned long long)l->told, (unsigned long long)r->oldest,
            (unsigned long long)r->published, r->host->ring.desc[r->oldest % NB_GPU_RING].op);
    nb_ring_fail(l->ring, -ETIMEDOUT);
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

int nb_launches_ready(struct nb_launches *l)
{
    const uint64_t ended = __atomic_load_n(&l->ring->host->ring.ended, __ATOMIC_ACQUIRE);
    const uint64_t started = __atomic_load_n(&l->ring->host->ring.started, __ATOMIC_ACQUIRE);

    if (atomic_load(&l->ring->failed) || (started > ended && l->told <= ended)) {
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
        /* Without a kernel: every kernel that was told to end has ended. One that was told, but has not
         * ended, does only the work from before it was told, and `published` may have grown since. */
        const int nobody = started <= ended && l->told <= ended && l->due == 0 &&
                           atomic_load(&l->open) == 0 && atomic_load(&l->late) == 0 && !waiting &&
                           !l->alone_open;
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
    tell(l);
    return work || waiting || l->wanted || l->alone_open || l->due || started != ended || l->told > ended ||
           atomic_load(&l->open) || atomic_load(&l->late);
}
