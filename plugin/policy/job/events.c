/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's profiler events, independent of table versions. CollApi is a user's call, which is kept
 * until Coll, the launch, names it as its parent. The two together make an operation record of
 * policy/records/records.h.
 *
 * NCCL hands back the handle of a user's call much later, for a captured graph at every replay. Sometimes it
 * hands back a value that is not a handle. So a handle is not a pointer but an index with a generation, which
 * a look-up checks. Calls that run at once share a ring. Captured calls are kept until the communicator ends.
 *
 * Any thread may call all functions, and a CUDA host callback may call nb_events_launch. They make no CUDA
 * calls and do not wait.
 */
#include "policy/job/job.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "base/nccl_names.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"

/* A user's call. It is written once, then `gen`. A ring entry may be overwritten during a read, and `gen`
 * shows it. */
struct call {
    _Atomic uint64_t gen;  /* 0: never used, or being written */
    _Atomic uint64_t what; /* function, type, captured, caller */
    _Atomic uint64_t count;
};

struct nb_events {
    struct nb_context *ctx;
    const struct nb_launch_observer *launches; /* NULL: no observer */
    struct nb_queue *queue;
    struct nb_job *job;
    int device, nnodes, nranks;
    uint32_t node;    /* own node's number, from 1. 0: unknown */
    unsigned reports; /* NB_REPORTS bits */
    uint32_t salt;    /* sets apart handles of different communicators */
    uint64_t comm_id;
    _Atomic int named;      /* enum nb_caller: the word of the communicator's name. 0: none */
    _Atomic uint64_t heads; /* bit H: a node may have H heads. 0: more heads than bits */
    struct call *ring;
    _Atomic uint64_t ring_next;
    _Atomic(struct call *) block[NB_EVENTS_BLOCKS];
    _Atomic uint64_t kept_next;
    pthread_mutex_t grow;                       /* captured calls: not locked in callbacks */
    _Atomic uint64_t expected[NB_FUNC_COUNT];   /* sequence number of the next launch that is not captured */
    _Atomic uint32_t unlaunched[NB_FUNC_COUNT]; /* uncaptured calls since the last launch */
    _Atomic int64_t
        pending[NB_FUNC_COUNT]; /* uncaptured calls without a launch event. Too high rather than too low */
    atomic_bool elsewhere; /* the tuner's tables said that no operation of the last launch reaches CollNet */
    atomic_bool misled;    /* NCCL has taken CollNet where the tuner's table had another algorithm first */
    atomic_bool bypassed, put[NB_PAST_COUNT]; /* 1: already logged */
    _Atomic uint64_t past[NB_PAST_WAYS][NB_PAST_COUNT];
    _Atomic uint64_t n_calls, n_calls_dropped, n_launches, n_recorded, n_elsewhere, n_orphans,
        n_contradictions, n_missing, n_unqueued;
};

#define MAX_HEADS 63

static void add(_Atomic uint64_t *n, uint64_t by)
{
    atomic_fetch_add_explicit(n, by, memory_order_relaxed);
}

/* ---- NCCL's words ------------------------------------------------------------------------------------ */

static int func_of(const char *s)
{
    if (!s)
        return -1;
    if (strcmp(s, "AllReduce") == 0)
        return NB_FUNC_ALL_REDUCE;
    if (strcmp(s, "AllGather") == 0)
        return NB_FUNC_ALL_GATHER;
    if (strcmp(s, "ReduceScatter") == 0)
        return NB_FUNC_REDUCE_SCATTER;
    return -1;
}

static int type_of(const char *s)
{
    static const char *const names[ncclNumTypes] = {
        "Int8",    "Uint8",   "Int32",   "Uint32",   "Int64",      "Uint64",
        "Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2",
    };

    if (!s || strncmp(s, "nccl", 4) != 0)
        return -1;
    for (int t = 0; t < ncclNumTypes; t++)
        if (strcmp(s + 4, names[t]) == 0)
            return t;
    return -1;
}

/* Return 1 when the operation reaches the CollNet calls of a head. *chain is 1 when only some of its channels
 * do. NVLS does so only between nodes. NVLS_TREE, ring and further algorithms never do. */
static int reaches_collnet(const char *algo, int nnodes, int *chain)
{
    *chain = 0;
    if (!algo || nnodes < 2)
        return 0;
    if (strcmp(algo, "COLLNET_DIRECT") == 0 || strcmp(algo, "NVLS") == 0)
        return 1;
    return *chain = strcmp(algo, "COLLNET_CHAIN") == 0;
}

/* ---- handles ----------------------------------------------------------------------------------------- */

/* Bits 63..32 generation, 31 captured, 30..24 salt, 23..4 index, 3..0 a mark that aligned pointers lack. */
#define MARK 0xbu

static void *make_handle(const struct nb_events *ev, uint64_t gen, int captured, uint64_t index)
{
    uint64_t h =
        (gen & 0xffffffffu) << 32 | (uint64_t)captured << 31 | (uint64_t)ev->salt << 24 | index << 4 | MARK;
    return (void *)(uintptr_t)h;
}

static struct call *kept(struct nb_events *ev, uint64_t index)
{
    struct call *block = atomic_load_explicit(&ev->block[index / NB_EVENTS_BLOCK], memory_order_acquire);
    return block ? &block[index % NB_EVENTS_BLOCK] : NULL;
}

struct known { /* a call that a look-up found */
    int func, type, captured;
    enum nb_caller caller;
    uint64_t count;
};

static int look_up(struct nb_events *ev, const void *handle, struct known *out)
{
    uint64_t h = (uintptr_t)handle, gen = h >> 32, index = h >> 4 & 0xfffff, what;
    int captured = (int)(h >> 31 & 1);
    struct call *c;

    if ((h & 0xf) != MARK || (h >> 24 & 0x7f) != ev->salt || gen == 0 ||
        index >= (captured ? NB_EVENTS_BLOCK * NB_EVENTS_BLOCKS : NB_EVENTS_RING))
        return 0;
    c = captured ? kept(ev, index) : &ev->ring[index];
    if (!c || atomic_load_explicit(&c->gen, memory_order_acquire) != gen)
        return 0;
    what = atomic_load_explicit(&c->what, memory_order_relaxed);
    out->count = atomic_load_explicit(&c->count, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&c->gen, memory_order_relaxed) != gen)
        return 0;
    out->func = (int)(what & 0xff);
    out->type = (int)(what >> 8 & 0xff);
    out->captured = (int)(what >> 16 & 1);
    out->caller = (enum nb_caller)(what >> 17 & 0x7);
    return 1;
}

/* ---- operations that bypass the plugin ---------------------------------------------------------------- */

static const char *const way_name[NB_PAST_WAYS] = {"copy engines", "kernels for symmetric memory"};

static const char *past_name(int func)
{
    return func == NB_PAST_ALL_TO_ALL ? "all_to_all" : nb_func_name((enum nb_func)func);
}

static void count_past(struct nb_events *ev, enum nb_past_way way, int func, uint64_t n)
{
    add(&ev->past[way][func], n);
    add(&ev->ctx->p2p.past[way][func], n);
}

/* Count `n` operations and warn once. NCCL 2.30 takes such operations out before it chooses an algorithm
 * (enqueue.cc, scheduler/symmetric_sched.cc). */
static void bypass(struct nb_events *ev, int func, uint64_t n, enum nb_past_way way, const char *remedy)
{
    count_past(ev, way, func, n);
    if (atomic_exchange_explicit(&ev->bypassed, true, memory_order_relaxed))
        return;
    NB_WARN(
        "comm 0x%llx: NCCL carries out %s with %s, past CollNet: they are not compressed. The remedy is %sto "
        "register no windows: NCCL_WIN_ENABLE=0, or the framework's switch (symmetric memory, user buffers)",
        (unsigned long long)ev->comm_id, past_name(func), way_name[way], remedy);
}

/* Count calls without a launch event of an operation: before 2.31 NCCL launches kernels for symmetric memory
 * without one. Groups have many calls before the first launch. */
static void count_unlaunched(struct nb_events *ev, int func)
{
    const uint32_t n = 1 + atomic_fetch_add_explicit(&ev->unlaunched[func], 1, memory_order_relaxed);

    atomic_fetch_add_explicit(&ev->pending[func], 1, memory_order_relaxed);

    if (ev->nnodes < 2 || n < NB_EVENTS_UNLAUNCHED || ev->reports & NB_REPORTS_SYMMETRY)
        return;
    bypass(ev, func, n == NB_EVENTS_UNLAUNCHED ? n : 1, NB_PAST_KERNELS, "");
}

void nb_events_copy_engine(struct nb_events *ev, const char *name)
{
    const int func = name && strcmp(name, "AlltoAll") == 0 ? NB_PAST_ALL_TO_ALL : func_of(name);

    if (func < 0 || ev->nnodes < 2)
        return;
    if (func < NB_FUNC_COUNT)
        atomic_store_explicit(&ev->unlaunched[func], 0, memory_order_relaxed);
    if (func < NB_FUNC_COUNT && !ev->ctx->params->rma) {
        bypass(ev, func, 1, NB_PAST_COPIES, "NIBBLE_RMA=1 for gathers over TCP, or ");
        return;
    }
    count_past(ev, NB_PAST_COPIES, func, 1);
    if (ev->ctx->params->rma && !atomic_exchange_explicit(&ev->put[func], true, memory_order_relaxed))
        NB_INFO(NCCL_NET | NCCL_COLL,
                "comm 0x%llx: NCCL carries out %s with copy engines, past CollNet: bytes between nodes are "
                "nibble's puts (NIBBLE_RMA)",
                (unsigned long long)ev->comm_id, past_name(func));
}

/* Log, at close, the operations that went past CollNet. The summary of coll/ has the others. */
static void log_past(const struct nb_events *ev)
{
    for (int func = 0; func < NB_PAST_COUNT; func++) {
        const uint64_t copies = ev->past[NB_PAST_COPIES][func], kernels = ev->past[NB_PAST_KERNELS][func];
        if (copies || kernels)
            NB_INFO(NCCL_NET, "summary comm 0x%llx: past CollNet: %s copy_engines=%llu%s kernels=%llu",
                    (unsigned long long)ev->comm_id, past_name(func), (unsigned long long)copies,
                    copies && ev->ctx->params->rma ? " (nibble's puts between nodes)" : "",
                    (unsigned long long)kernels);
    }
}

/* ---- the user's call --------------------------------------------------------------------------------- */

static struct call *new_kept(struct nb_events *ev, uint64_t *index)
{
    struct call *c = NULL;

    pthread_mutex_lock(&ev->grow);
    *index = atomic_load_explicit(&ev->kept_next, memory_order_relaxed);
    if (*index < (uint64_t)NB_EVENTS_BLOCK * NB_EVENTS_BLOCKS) {
        _Atomic(struct call *) *block = &ev->block[*index / NB_EVENTS_BLOCK];
        if (!atomic_load_explicit(block, memory_order_relaxed))
            atomic_store_explicit(block, calloc(NB_EVENTS_BLOCK, sizeof(struct call)), memory_order_release);
        c = kept(ev, *index);
        if (c)
            atomic_store_explicit(&ev->kept_next, *index + 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&ev->grow);
    return c;
}

int nb_events_asks_caller(const struct nb_events *ev, const struct nb_events_call *call)
{
    const int type = type_of(call->type);
    enum nb_dtype dtype;

    return ev->nnodes > 1 && func_of(call->func) == NB_FUNC_ALL_REDUCE && type >= 0 &&
           !nb_policy_dtype((ncclDataType_t)type, &dtype) &&
           call->count * nb_nccl_type_size((ncclDataType_t)type) >= (uint64_t)ev->ctx->params->ar_min_bytes;
}

/* Return the caller, or the framework's word in its place. The word for gradients leaves DDP's reducer its
 * name, which also identifies the buffer. */
static enum nb_caller caller_of(struct nb_events *ev, const struct nb_events_call *call)
{
    const enum nb_caller said = call->tag == NB_TAG_GRADIENT ? NB_CALLER_SAYS_GRADIENT
                                : call->tag == NB_TAG_EXACT
                                    ? NB_CALLER_SAYS_EXACT
                                    : (enum nb_caller)atomic_load_explicit(&ev->named, memory_order_relaxed);

    return !said || (said == NB_CALLER_SAYS_GRADIENT && call->caller == NB_CALLER_BUCKET) ? call->caller
                                                                                          : said;
}

void *nb_events_call(struct nb_events *ev, const struct nb_events_call *call)
{
    int func = func_of(call->func), type = type_of(call->type);
    uint64_t index, gen = 1;
    struct call *c;

    if (func < 0 || type < 0)
        return NULL;
    add(&ev->n_calls, 1);
    if (!call->captured && call->count > 0)
        count_unlaunched(ev, func);
    if (call->captured) {
        c = new_kept(ev, &index);
        if (!c) {
            add(&ev->n_calls_dropped, 1);
            return NULL;
        }
    } else {
        uint64_t ticket = atomic_fetch_add_explicit(&ev->ring_next, 1, memory_order_relaxed);
        index = ticket % NB_EVENTS_RING;
        gen = (ticket / NB_EVENTS_RING + 1) & 0xffffffffu;
        if (gen == 0)
            return NULL;
        c = &ev->ring[index];
    }
    atomic_store_explicit(&c->gen, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&c->what,
                          (uint64_t)func | (uint64_t)type << 8 | (uint64_t)(call->captured != 0) << 16 |
                              (uint64_t)caller_of(ev, call) << 17,
                          memory_order_relaxed);
    atomic_store_explicit(&c->count, call->count, memory_order_relaxed);
    atomic_store_explicit(&c->gen, gen, memory_order_release);
    return make_handle(ev, gen, call->captured != 0, index);
}

/* ---- launches of kernels ------------------------------------------------------------------------------- */

/*
 * The last kernel that this thread launched. Operations that the thread reports next belong to that kernel,
 * until the first of them ends. NCCL ends them, and their Group, once its proxy has the kernel's work, in
 * hostStreamPlanTask. A CUDA callback reports operations of captured kernels. Its thread has not launched
 * them.
 *
 *     state     kernel begins          kernel ends     operation launched  operation ends      group ends
 *     IDLE      OPEN (1)               -               -                   -                   -
 *     OPEN      OPEN (1)               LAUNCHED: end() sums |= its (2)     -                   -
 *     LAUNCHED  posted() (3), OPEN (1) -               sums |= its (2)     IDLE: posted()      IDLE: posted()
 *
 *     (1) IDLE when the observer ignores this launch, and where the kernel can only send, receive and
 *         broadcast. Also where the tuner's tables give all outstanding calls an algorithm other than
 *         CollNet. Such a kernel runs without a codec kernel
 *     (2) only for an operation of the kernel's communicator that reaches CollNet
 *     (3) where the last kernel was of the same communicator
 */
static _Thread_local struct {
    enum { IDLE = 0, OPEN, LAUNCHED } state;
    uint64_t launch; /* the observer's number */
    struct nb_context *ctx;
    const struct nb_launch_observer *launches;
    struct nb_events *events;
    bool
        sums; /* an operation of the launch is an all-reduce that reaches CollNet, whose end is not counted */
} kernel;

#define KERNEL 0x7u /* marks, like MARK above */
#define OPERATION 0x3u
#define GROUP 0x5u

/* Return whether an uncaptured call of this function may be in the next launch. */
static bool may_have(struct nb_events *ev, int func)
{
    return atomic_load_explicit(&ev->pending[func], memory_order_relaxed) > 0;
}

void *nb_events_kernel(struct nb_events *ev, void *stream)
{
    const bool reaches = nb_queue_may_reach(ev->queue) || atomic_load(&ev->misled);
    const bool sums = reaches && may_have(ev, NB_FUNC_ALL_REDUCE);
    const bool eager =
        sums || (reaches && (may_have(ev, NB_FUNC_ALL_GATHER) || may_have(ev, NB_FUNC_REDUCE_SCATTER)));
    /* Captured calls count for good, since no event says when they are launched. */
    const bool any = eager || atomic_load_explicit(&ev->kept_next, memory_order_relaxed) > 0;
    const struct nb_launch_observer *to = any ? ev->launches : NULL;

    /* otherwise ev may be gone */
    if (kernel.state == LAUNCHED && kernel.events == ev && kernel.ctx == ev->ctx)
        kernel.launches->posted(kernel.ctx, kernel.launch, !kernel.sums);
    kernel.launch = to ? to->begin(ev->ctx, ev->device, ev->comm_id, ev->nnodes, stream, sums, eager) : 0;
    kernel.ctx = ev->ctx;
    kernel.launches = to;
    kernel.events = ev;
    kernel.sums = false;
    atomic_store_explicit(&ev->elsewhere, !reaches, memory_order_relaxed);
    kernel.state = kernel.launch ? OPEN : IDLE;
    return kernel.state == OPEN ? (void *)(uintptr_t)KERNEL : NULL;
}

void *nb_events_launched(void)
{
    return kernel.state != IDLE ? (void *)(uintptr_t)OPERATION : NULL;
}

void *nb_events_grouped(void)
{
    return kernel.state != IDLE ? (void *)(uintptr_t)GROUP : NULL;
}

void nb_events_stop(void *handle)
{
    if ((uintptr_t)handle == KERNEL && kernel.state == OPEN) {
        kernel.state = LAUNCHED;
        kernel.launches->end(kernel.ctx, kernel.launch);
    } else if (((uintptr_t)handle == OPERATION || (uintptr_t)handle == GROUP) && kernel.state == LAUNCHED) {
        kernel.state = IDLE;
        kernel.launches->posted(kernel.ctx, kernel.launch, !kernel.sums);
    }
}

/* ---- the launch -------------------------------------------------------------------------------------- */

/* Count the launches of this function without an event, by NCCL's numbers. Captured operations do not advance
 * the numbers: the next uncaptured one has the number that they show. */
static uint32_t missing_before(struct nb_events *ev, int func, uint64_t seq, int captured)
{
    uint64_t expected = atomic_load_explicit(&ev->expected[func], memory_order_relaxed);
    uint64_t missing = seq > expected ? seq - expected : 0;

    if (captured || seq + 1 == expected) { /* the latter: captured, but its call is unknown */
        if (missing)                       /* counted here already */
            atomic_store_explicit(&ev->expected[func], seq, memory_order_relaxed);
    } else {
        atomic_store_explicit(&ev->expected[func], seq + 1, memory_order_relaxed);
    }
    if (missing > UINT32_MAX)
        missing = UINT32_MAX;
    add(&ev->n_missing, missing);
    return (uint32_t)missing;
}

/* Return 1 when the launch and the call of one operation agree. An all-gather is launched as bytes. */
static int agree(const struct known *call, const struct nb_record *r, size_t count)
{
    if (call->func != (int)r->func)
        return 0;
    if (r->func == NB_FUNC_ALL_GATHER)
        return call->count * nb_nccl_type_size((ncclDataType_t)call->type) == r->bytes;
    return call->type == (int)r->type && call->count == count;
}

void nb_events_launch(struct nb_events *ev, const struct nb_events_op *op)
{
    int func = func_of(op->func), type = type_of(op->type), chain, known, reaches;
    struct nb_record r;
    struct known call = {-1, -1, 0, NB_CALLER_UNKNOWN, 0};
    struct nb_job_call call_of_job;
    uint32_t missing;
    int ret;

    add(&ev->n_launches, 1);
    if (func < 0) {
        add(&ev->n_elsewhere, 1);
        return;
    }
    atomic_store_explicit(&ev->unlaunched[func], 0, memory_order_relaxed);
    known = look_up(ev, op->call, &call);
    if (known && !call.captured) {
        const unsigned choice = nb_queue_choice(ev->queue);
        atomic_fetch_sub_explicit(&ev->pending[call.func], 1, memory_order_relaxed);
        if (!may_have(ev, NB_FUNC_ALL_REDUCE) && !may_have(ev, NB_FUNC_ALL_GATHER) &&
            !may_have(ev, NB_FUNC_REDUCE_SCATTER))
            nb_queue_all_launched(ev->queue, choice);
    }
    missing = missing_before(ev, func, op->seq, known && call.captured);
    if (type < 0) {
        if (missing && ev->nnodes > 1)
            nb_queue_missed(ev->queue, (enum nb_func)func, missing);
        add(&ev->n_elsewhere, 1);
        return;
    }
    reaches = reaches_collnet(op->algo, ev->nnodes, &chain) && !op->symmetric;
    if (reaches && known && !call.captured && atomic_load_explicit(&ev->elsewhere, memory_order_relaxed) &&
        !atomic_exchange(&ev->misled, true))
        NB_INFO(NCCL_INIT | NCCL_NET,
                "profiler: comm 0x%llx: NCCL carries out %s over %s, for which the tuner's table had another "
                "algorithm. Codec kernels begin beside all of its collectives from now on",
                (unsigned long long)ev->comm_id, op->func, op->algo);
    if (op->symmetric && ev->nnodes > 1)
        bypass(ev, func, 1, NB_PAST_KERNELS, "");
    if (reaches && func == NB_FUNC_ALL_REDUCE)
        kernel.sums |= kernel.events == ev;
    else if (reaches && ev->launches)
        ev->launches->handed(ev->ctx, ev->device, ev->comm_id);
    memset(&r, 0, sizeof(r));
    r.func = (enum nb_func)func;
    r.type = (ncclDataType_t)type;
    r.bytes = (uint64_t)op->count * nb_nccl_type_size(r.type);
    r.send = op->send;
    r.recv = op->recv;
    r.slot = -1;
    r.head = -1;
    r.missing[func] = missing;
    r.comm = ev->comm_id;
    r.nranks = (uint32_t)ev->nranks;
    r.source = ev->salt;
    r.node = ev->node;
    if (chain)
        r.flags |= NB_RECORD_CHAIN;
    if (known) {
        r.api_type = (ncclDataType_t)call.type;
        r.flags |= call.captured ? NB_RECORD_CAPTURED : 0;
        if (agree(&call, &r, op->count)) {
            r.flags |= NB_RECORD_API;
            r.caller = call.caller;
        } else {
            r.flags |= NB_RECORD_DOUBT;
            add(&ev->n_contradictions, (uint64_t)reaches);
        }
    } else if (ev->reports & NB_REPORTS_CALLS && reaches) {
        add(&ev->n_orphans, 1);
    }
    /* Announce operations inside the node, too: they show where a step begins, and how long it is. */
    call_of_job = nb_job_call_of(&r);
    call_of_job.passes = reaches;
    r.call = nb_job_announce(ev->job, &call_of_job);
    if (!reaches) {
        if (missing && ev->nnodes > 1)
            nb_queue_missed(ev->queue, (enum nb_func)func, missing);
        add(&ev->n_elsewhere, 1);
        return;
    }
    /* NCCL takes CollNet for these two functions only where every GPU of a node is a head. */
    if (func != NB_FUNC_ALL_REDUCE && ev->nranks % ev->nnodes == 0 && ev->nranks / ev->nnodes <= MAX_HEADS)
        atomic_store_explicit(&ev->heads, UINT64_C(1) << (ev->nranks / ev->nnodes), memory_order_relaxed);
    r.heads = atomic_load_explicit(&ev->heads, memory_order_relaxed);
    if (!r.heads)
        r.flags |= NB_RECORD_CHAIN;
    ret = nb_queue_push(ev->queue, &r);
    if (ret == -ENOTCONN) /* no group of its own: a child that shares its parent's, or not a head */
        ret = nb_queue_push_shared(ev->ctx, ev->device, ev->nnodes, &r);
    add(ret ? &ev->n_unqueued : &ev->n_recorded, 1);
}

/* ---- life -------------------------------------------------------------------------------------------- */

struct nb_events *nb_events_create(struct nb_context *ctx, const struct nb_launch_observer *launches,
                                   uint64_t comm_id, int nnodes, int nranks, int rank, unsigned reports)
{
    struct nb_events *ev = calloc(1, sizeof(*ev));
    int local;

    if (!ev)
        return NULL;
    ev->ctx = ctx;
    ev->launches = reports & NB_REPORTS_CALLS ? launches : NULL;
    ev->device = nb_current_gpu(ctx);
    ev->nnodes = nnodes > 0 ? nnodes : 1;
    ev->nranks = nranks > 0 ? nranks : 1;
    ev->reports = reports;
    ev->comm_id = comm_id;
    ev->salt = nb_count_profiler(ctx) & 0x7f;
    /* A node has at least one head and at most as many as ranks. With one rank a node the number is certain.
     * With different numbers of ranks a node has at most as many as the largest node can have. */
    local = ev->nranks - ev->nnodes + 1;
    if (ev->nranks % ev->nnodes == 0)
        local = ev->nranks / ev->nnodes;
    for (int h = 1; h <= local && local <= MAX_HEADS; h++)
        ev->heads |= UINT64_C(1) << h;
    /* NCCL numbers nodes by their first ranks. Only with one rank a node does the rank give our node's
     * number. */
    if (ev->nranks == ev->nnodes && rank >= 0)
        ev->node = (uint32_t)rank + 1;
    ev->ring = calloc(NB_EVENTS_RING, sizeof(*ev->ring));
    ev->queue = nb_queue_get(ctx, comm_id, ev->device);
    ev->job = nb_job_get(ctx, ev->device);
    if (!ev->ring || !ev->queue || !ev->job) {
        nb_queue_put(ev->queue);
        nb_job_put(ev->job);
        free(ev->ring);
        free(ev);
        return NULL;
    }
    pthread_mutex_init(&ev->grow, NULL);
    nb_queue_profiled(ev->queue, 1);
    if (ev->launches)
        ev->launches->attached(ctx, ev->device, 1);
    return ev;
}

void nb_events_name(struct nb_events *ev, const char *name)
{
    nb_queue_describe(ev->queue, (uint32_t)ev->nranks, name);
    if (name)
        atomic_store_explicit(&ev->named,
                              strstr(name, NB_NAME_EXACT)      ? NB_CALLER_SAYS_EXACT
                              : strstr(name, NB_NAME_GRADIENT) ? NB_CALLER_SAYS_GRADIENT
                                                               : NB_CALLER_UNKNOWN,
                              memory_order_relaxed);
}

void nb_events_destroy(struct nb_events *ev)
{
    struct nb_events_counts n;

    if (!ev)
        return;
    nb_events_get_counts(ev, &n);
    log_past(ev);
    if (n.launches)
        NB_INFO(NCCL_PROFILE,
                "profiler comm 0x%llx: calls=%llu dropped=%llu launches=%llu recorded=%llu elsewhere=%llu "
                "orphans=%llu contradictions=%llu missing=%llu unqueued=%llu",
                (unsigned long long)ev->comm_id, (unsigned long long)n.calls,
                (unsigned long long)n.calls_dropped, (unsigned long long)n.launches,
                (unsigned long long)n.recorded, (unsigned long long)n.elsewhere,
                (unsigned long long)n.orphans, (unsigned long long)n.contradictions,
                (unsigned long long)n.missing, (unsigned long long)n.unqueued);
    nb_queue_profiled(ev->queue, -1);
    if (ev->launches)
        ev->launches->attached(ev->ctx, ev->device, -1);
    nb_queue_put(ev->queue);
    nb_job_forget(ev->job, ev->comm_id);
    nb_job_put(ev->job);
    for (unsigned i = 0; i < NB_EVENTS_BLOCKS; i++)
        free(atomic_load(&ev->block[i]));
    pthread_mutex_destroy(&ev->grow);
    free(ev->ring);
    free(ev);
}

void nb_events_get_counts(struct nb_events *ev, struct nb_events_counts *out)
{
    out->calls = atomic_load(&ev->n_calls);
    out->calls_dropped = atomic_load(&ev->n_calls_dropped);
    out->launches = atomic_load(&ev->n_launches);
    out->recorded = atomic_load(&ev->n_recorded);
    out->elsewhere = atomic_load(&ev->n_elsewhere);
    out->orphans = atomic_load(&ev->n_orphans);
    out->contradictions = atomic_load(&ev->n_contradictions);
    out->missing = atomic_load(&ev->n_missing);
    out->unqueued = atomic_load(&ev->n_unqueued);
    out->bypassed = 0;
    for (int way = 0; way < NB_PAST_WAYS; way++)
        for (int past = 0; past < NB_PAST_COUNT; past++)
            out->bypassed += atomic_load(&ev->past[way][past]);
}
