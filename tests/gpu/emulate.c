/* SPDX-License-Identifier: Apache-2.0 */
/* Run threads and blocks and their barriers on a CPU. See emulate.h. */
#include "tests/gpu/emulate.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef NB_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#include "tests/gpu/emulate_target.h" /* first: it replaces nvcc's definitions */

#include "kernels/kernel.cuh"
#include "tests/gpu/fiber.h"

#define COPIES 512u /* unfinished background copies of a thread */

struct thread {
    struct nb_emulated self;
    struct nb_fiber fiber;
    uint32_t meetings; /* number of its warp's meetings so far */
    struct {
        void *to;
        const void *from;
        uint32_t bytes, group;
    } copy[COPIES];
    uint32_t copies, group; /* background copies, and groups of them */
};

/* Says whether a thread may run. It is apart from the rest of the thread, which is large, because each switch
 * looks at the turns of all threads. */
struct turn {
    const uint32_t *waits; /* the thread waits until this differs from `seen`, NULL: it may run */
    uint32_t seen;
    int done;
};

struct warp {
    uint32_t arrived, meetings;
    uint32_t value[2][32];
};

struct block {
    struct nb_shared shared;
    struct turn turn[NB_THREADS];
    struct thread thread[NB_THREADS];
    struct warp warp[NB_WARPS];
    uint32_t arrived, barriers, left;
};

static _Thread_local struct machine {
    const struct nb_gpu_launch *launch;
    struct block **block;
    unsigned blocks;
    unsigned running; /* threads */
    int alone;        /* one block in this thread of the operating system, the other blocks have their own
                         threads */
    unsigned at;      /* running thread: block * NB_THREADS + thread */
    uint64_t seed;
    struct nb_fiber main;
} machine;

_Thread_local struct nb_emulated *nb_emulated;

void nb_emulate_fail(const char *what)
{
    fprintf(stderr, "emulated kernel, block %u thread %u: %s\n", nb_emulated->block, nb_emulated->thread,
            what);
    abort();
}

static NB_UNSEEN struct thread *thread_at(unsigned at)
{
    return &machine.block[at / NB_THREADS]->thread[at % NB_THREADS];
}

static NB_UNSEEN struct turn *turn_at(unsigned at)
{
    return &machine.block[at / NB_THREADS]->turn[at % NB_THREADS];
}

static NB_UNSEEN int may_run(const struct turn *t)
{
    return !t->done && !(t->waits && *t->waits == t->seen);
}

/* Give the next thread its turn: mostly the next thread of the block, now and then a thread of another block.
 * Skip waiting threads, because a turn would only cost them a switch. */
static NB_UNSEEN void yield(void)
{
    unsigned total = machine.blocks * NB_THREADS, from = machine.at, to = from, tried = 0;
    machine.seed = machine.seed * 6364136223846793005u + 1442695040888963407u;
    if (machine.blocks > 1 && machine.seed >> 58 == 0)
        to = (unsigned)((machine.seed >> 20) % machine.blocks) * NB_THREADS + to % NB_THREADS;
    do {
        if (tried++ == total)
            nb_emulate_fail("every thread waits for another");
        to = to + 1 == total ? 0 : to + 1;
    } while (!may_run(turn_at(to)));
    if (to == from)
        return;
    machine.at = to;
    nb_emulated = &thread_at(to)->self;
    nb_fiber_switch(&thread_at(from)->fiber, &thread_at(to)->fiber);
}

/* Wait until *what differs from `seen`. */
static NB_UNSEEN void wait_for(const uint32_t *what, uint32_t seen)
{
    struct turn *t = turn_at(machine.at);
    t->waits = what;
    t->seen = seen;
    while (*what == seen)
        yield();
    t->waits = NULL;
}

void nb_emulate_pause(void)
{
    if (machine.alone && nb_emulated->thread % 32 == 0)
        sched_yield();
    yield();
}

void nb_emulate_barrier(void)
{
    struct block *b = machine.block[machine.at / NB_THREADS];
    uint32_t mine = b->barriers;
    if (b->left)
        nb_emulate_fail("a barrier that some threads of the block have not met");
    if (++b->arrived == NB_THREADS) {
        b->arrived = 0;
        b->barriers++;
        return;
    }
    wait_for(&b->barriers, mine);
}

const uint32_t *nb_emulate_warp(uint32_t value)
{
    struct thread *t = thread_at(machine.at);
    struct warp *w = &machine.block[machine.at / NB_THREADS]->warp[t->self.thread / 32];
    uint32_t mine = t->meetings++;
    if (mine != w->meetings)
        nb_emulate_fail("a warp operation that some threads of the warp have not met");
    w->value[mine % 2][t->self.thread % 32] = value;
    if (++w->arrived == 32) {
        w->arrived = 0;
        w->meetings++;
    } else {
        wait_for(&w->meetings, mine);
    }
    return w->value[mine % 2];
}

void nb_emulate_async(void *to, const void *from, unsigned bytes)
{
    struct thread *t = thread_at(machine.at);
    if (t->copies == COPIES)
        nb_emulate_fail("too many background copies");
    t->copy[t->copies].to = to;
    t->copy[t->copies].from = from;
    t->copy[t->copies].bytes = bytes;
    t->copy[t->copies++].group = t->group;
}

void nb_emulate_async_end(void)
{
    thread_at(machine.at)->group++;
}

void nb_emulate_async_wait(unsigned but)
{
    struct thread *t = thread_at(machine.at);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->copies; i++)
        if (t->copy[i].group + but < t->group)
            memcpy(t->copy[i].to, t->copy[i].from, t->copy[i].bytes);
        else
            t->copy[kept++] = t->copy[i];
    t->copies = kept;
}

/* Run one launch after the other in a fiber. Between launches the fiber sleeps in the switch. */
static NB_UNSEEN void run_thread(void)
{
    struct thread *t = thread_at(machine.at);
    struct block *b = machine.block[machine.at / NB_THREADS];
    for (;;) {
        nb_work(machine.launch, &b->shared);
        turn_at(machine.at)->done = 1;
        b->left++;
        if (--machine.running)
            yield();
        else
            nb_fiber_switch(&t->fiber, &machine.main);
    }
}

static struct block *open_block(unsigned number, unsigned blocks)
{
    struct block *block = aligned_alloc(64, (sizeof(*block) + 63) & ~(size_t)63);
    if (!block)
        abort();
    memset(block, 0, sizeof(*block));
    for (unsigned i = 0; i < NB_THREADS; i++) {
        struct thread *t = &block->thread[i];
        t->self = (struct nb_emulated){i, number, blocks};
        nb_fiber_open(&t->fiber, run_thread);
    }
    return block;
}

static void close_block(struct block *block)
{
    for (unsigned i = 0; i < NB_THREADS; i++)
        nb_fiber_close(&block->thread[i].fiber);
    free(block);
}

static NB_UNSEEN void run_machine(const struct nb_gpu_launch *launch, uint64_t seed)
{
    machine.launch = launch;
    machine.running = machine.blocks * NB_THREADS;
    machine.seed = seed;
    for (unsigned b = 0; b < machine.blocks; b++) {
        struct block *block = machine.block[b];
        memset(&block->shared, 0xa5, sizeof(block->shared)); /* a GPU does not zero it */
        block->left = 0;
        for (unsigned i = 0; i < NB_THREADS; i++)
            block->turn[i].done = 0;
    }
    /* Start with any thread: a thread that always came first could do without a barrier after its
     * preparations. */
    machine.at = (unsigned)((seed * 2654435761u >> 16) % machine.running);
    nb_emulated = &thread_at(machine.at)->self;
    nb_fiber_switch(&machine.main, &thread_at(machine.at)->fiber);
    nb_emulated = NULL;
}

/* Blocks of this thread's launches. To open one takes longer than a launch, since each of its threads has a
 * stack. */
static _Thread_local struct block *kept[NB_EMULATE_BLOCKS];

/* Make a kept block as good as new, but for its threads, which sleep between launches. */
static void renew_block(struct block *block, unsigned blocks)
{
    memset(block->warp, 0, sizeof(block->warp));
    block->arrived = block->barriers = 0;
    for (unsigned i = 0; i < NB_THREADS; i++) {
        struct thread *t = &block->thread[i];
        t->self.blocks = blocks;
        t->meetings = t->copies = t->group = 0;
        block->turn[i] = (struct turn){0};
    }
}

void nb_emulate_run(const struct nb_gpu_launch *launch, unsigned blocks, uint64_t seed)
{
    if (blocks > NB_EMULATE_BLOCKS)
        abort();
    machine.blocks = blocks;
    machine.alone = 0;
    machine.block = kept;
    for (unsigned b = 0; b < blocks; b++)
        if (kept[b])
            renew_block(kept[b], blocks);
        else
            kept[b] = open_block(b, blocks);
    run_machine(launch, seed);
}

void nb_emulate_end(void)
{
    for (unsigned b = 0; b < NB_EMULATE_BLOCKS; b++) {
        if (kept[b])
            close_block(kept[b]);
        kept[b] = NULL;
    }
}

/* ---- A block in a thread of its own */

struct nb_emulated_block {
    struct block *block;
};

struct nb_emulated_block *nb_emulate_open(unsigned number, unsigned blocks)
{
    struct nb_emulated_block *b = malloc(sizeof(*b));
    if (!b)
        abort();
    b->block = open_block(number, blocks);
    return b;
}

void nb_emulate_block(struct nb_emulated_block *b, const struct nb_gpu_launch *launch, uint64_t seed)
{
    machine.blocks = 1;
    machine.alone = 1;
    machine.block = &b->block;
    run_machine(launch, seed);
}

#ifdef NB_TSAN
static void end_order(void);
#endif

void nb_emulate_close(struct nb_emulated_block *b)
{
#ifdef NB_TSAN
    end_order(); /* another thread may free the memory that the helpers touched once this thread has ended */
#endif
    close_block(b->block);
    free(b);
}

#ifdef NB_TSAN
/* ---- The order of accesses, told to the thread sanitizer, which ignores fences
 *
 * By the rules of C11 and of the GPU, a fence before a relaxed store publishes everything before the *fence*,
 * and a fence after a relaxed load acquires everything that the store published. A thread therefore has
 * helpers that the sanitizer takes for threads. It stores in the name of a helper that knows what the thread
 * knew at its last fence. It loads in the name of a helper that passes its knowledge to the thread at the
 * next fence. Each thread has one pair for flags between blocks and one pair for the host's flags (scope 1),
 * for which only fences of system scope count. The sanitizer sees all threads of a block as one thread. */
static _Thread_local struct {
    void *self, *stores[2], *loads[2];
    char published[2], taken[2]; /* their addresses stand for the knowledge that is handed over */
} order;

static NB_UNSEEN void need_order(void)
{
    if (order.self)
        return;
    order.self = __tsan_get_current_fiber();
    for (int scope = 0; scope < 2; scope++) {
        order.stores[scope] = __tsan_create_fiber(0);
        order.loads[scope] = __tsan_create_fiber(0);
    }
}

static NB_UNSEEN void become(void *who);

static NB_UNSEEN void end_order(void)
{
    for (int scope = 0; scope < 2 && order.self; scope++) {
        become(order.stores[scope]);
        __tsan_release(&order.taken[scope]);
        become(order.loads[scope]);
        __tsan_release(&order.taken[scope]);
        become(order.self);
        __tsan_acquire(&order.taken[scope]);
        __tsan_destroy_fiber(order.stores[scope]);
        __tsan_destroy_fiber(order.loads[scope]);
    }
    order.self = NULL;
}

static NB_UNSEEN void become(void *who)
{
    __tsan_switch_to_fiber(who, __tsan_switch_to_fiber_no_sync);
}

/* Access memory as the sanitizer sees it. Enter and leave the function in the name of the same helper. */
static __attribute__((noinline)) uint64_t seen_get(const void *p, unsigned bytes)
{
    return bytes == 8 ? __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED)
                      : __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) void seen_put(void *p, unsigned bytes, uint64_t v)
{
    if (bytes == 8)
        __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)p, (uint32_t)v, __ATOMIC_RELEASE);
}

static __attribute__((noinline)) uint64_t seen_change(void *p, unsigned bytes, uint64_t v, int take)
{
    if (bytes == 8)
        return __atomic_fetch_add((uint64_t *)p, v, __ATOMIC_RELEASE);
    return take ? __atomic_fetch_or((uint32_t *)p, (uint32_t)v, __ATOMIC_RELEASE)
                : __atomic_fetch_add((uint32_t *)p, (uint32_t)v, __ATOMIC_RELEASE);
}

NB_UNSEEN uint64_t nb_emulate_get(const void *p, unsigned bytes, int scope)
{
    need_order();
    uint64_t v = seen_get(p, bytes);
    become(order.loads[scope]);
    __tsan_acquire((void *)(uintptr_t)p);
    become(order.self);
    return v;
}

NB_UNSEEN void nb_emulate_put(void *p, unsigned bytes, uint64_t v, int scope)
{
    need_order();
    become(order.stores[scope]);
    seen_put(p, bytes, v);
    become(order.self);
}

/* Add, or take the bits in. Return the earlier value. */
NB_UNSEEN uint64_t nb_emulate_change(void *p, unsigned bytes, uint64_t v, int take)
{
    need_order();
    become(order.stores[0]);
    uint64_t old = seen_change(p, bytes, v, take);
    become(order.loads[0]);
    __tsan_acquire(p); /* the same access also reads */
    become(order.self);
    return old;
}

NB_UNSEEN void nb_emulate_fence(int sys)
{
    need_order();
    for (int scope = 0; scope <= sys; scope++) {
        become(order.loads[scope]);
        __tsan_release(&order.taken[scope]);
        become(order.self);
        __tsan_acquire(&order.taken[scope]);
    }
    for (int scope = 0; scope <= sys; scope++) {
        __tsan_release(&order.published[scope]);
        become(order.stores[scope]);
        __tsan_acquire(&order.published[scope]);
        become(order.self);
    }
}
#endif

/* ---- Conversions as the hardware makes them */

uint32_t nb_emulate_round(int f16, float f)
{
    if (f != f)
        return 0x7fff;
    return f16 ? nb_f32_to_f16(f) : nb_f32_to_bf16(f);
}

float nb_emulate_from_f16(uint32_t v)
{
    return nb_f16_to_f32((uint16_t)v);
}
