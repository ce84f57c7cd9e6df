/* SPDX-License-Identifier: Apache-2.0 */
/* The next profiler. See profiler_next.h. */
#include "abi/profiler_next.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/next.h"
#include "base/log.h"

#define RING 65536u      /* pairs of events that are reused */
#define LASTING 1048576u /* pairs of events that stay */
#define CONTEXTS 65536u  /* communicators at a time */

struct pair {
    void *own, *other;
    bool passes; /* of contexts: the next profiler's init succeeded */
};

static struct {
    pthread_mutex_t lock; /* guards the fields that init and finalize change */
    bool tried;
    struct nb_next_table of; /* constant after the first look */
    struct pair *contexts, *events;
    unsigned context; /* start of the search for a free one */
    atomic_uint next, lasting;
    int mask; /* the next profiler's. Its init writes it, and it may write it later */
    _Atomic(int *) nccl_mask;
    atomic_int own_mask, known_mask; /* nibble's mask, and the next profiler's as part of NCCL's */
} chain = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Reserve memory that the kernel provides as it is touched. */
static struct pair *area(size_t n)
{
    void *p = mmap(NULL, n * sizeof(struct pair), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static struct pair *in(struct pair *begin, size_t n, const void *p)
{
    return begin && (const struct pair *)p >= begin && (const struct pair *)p < begin + n
               ? (struct pair *)(uintptr_t)p
               : NULL;
}

static struct pair *context_of(const void *p)
{
    return in(chain.contexts, CONTEXTS, p);
}

static struct pair *event_of(const void *p)
{
    return in(chain.events, RING + LASTING, p);
}

static struct pair *new_event(bool lasts)
{
    if (lasts && atomic_load(&chain.lasting) < LASTING) {
        const unsigned i = atomic_fetch_add(&chain.lasting, 1);
        if (i < LASTING)
            return &chain.events[RING + i];
    }
    return &chain.events[atomic_fetch_add(&chain.next, 1) % RING];
}

/* ---- Its table ----------------------------------------------------------------------------------------- */

static const ncclProfiler_v4_t *v4(void)
{
    return chain.of.version == 4 ? chain.of.table : NULL;
}

/* Each description begins with the one of the version before, so that a table of v5 and later reads its part
 * of the newest. */
static const ncclProfiler_v7_t *v5(void)
{
    return chain.of.version >= 5 ? chain.of.table : NULL;
}
_Static_assert(sizeof(ncclProfilerEventDescr_v5_t) == sizeof(ncclProfilerEventDescr_v6_t),
               "not passed on as they are");

/* Find the table at the first init in the process: NCCL calls one version. */
static void look(int version)
{
    if (chain.tried)
        return;
    chain.tried = true;
    chain.of = nb_next_find(NB_NEXT_PROFILER, version);
    if (!chain.of.table)
        return;
    chain.contexts = area(CONTEXTS);
    chain.events = area(RING + LASTING);
    if (!chain.contexts || !chain.events) {
        NB_WARN("NIBBLE_PROFILER_NEXT: no memory, so that nothing is passed on");
        chain.of.table = NULL;
        chain.contexts = NULL;
        return;
    }
    NB_INFO(NCCL_INIT | NCCL_PROFILE, "profiler: %s (%s, v%d) gets its events through nibble", chain.of.name,
            chain.of.file, chain.of.version);
}

/* Return whether NCCL reports events of this type to a profiler with this mask. Events need their parent's
 * type in it. */
static bool asked_for(uint64_t type, int mask)
{
    const int net = ncclProfileNetPlugin, step = ncclProfileProxyStep | net, op = ncclProfileProxyOp | step;
    const int work = op | ncclProfileKernelCh,
              engine = ncclProfileCeColl | ncclProfileCeSync | ncclProfileCeBatch;
    int of;

    static const int bits[] = {[4] = 8, [5] = 12, [6] = 15, [7] = 16};
    _Static_assert(sizeof(bits) / sizeof(bits[0]) == NB_PROFILER_NEWEST + 1, "a version without a mask");
    if (type >> bits[chain.of.version])
        return false;
    mask &= (1 << bits[chain.of.version]) - 1;
    switch (type) {
    case ncclProfileGroupApi:
        of = ncclProfileGroupApi | ncclProfileP2pApi | ncclProfileCollApi | ncclProfileKernelLaunch |
             ncclProfileGroup | ncclProfileColl | ncclProfileP2p | work | engine;
        break;
    case ncclProfileCollApi: of = ncclProfileCollApi | ncclProfileColl | work | engine; break;
    case ncclProfileP2pApi: of = ncclProfileP2pApi | ncclProfileP2p | work; break;
    case ncclProfileGroup: of = ncclProfileGroup | ncclProfileColl | ncclProfileP2p | work; break;
    case ncclProfileColl: of = ncclProfileColl | work; break;
    case ncclProfileP2p: of = ncclProfileP2p | work; break;
    case ncclProfileProxyOp: of = op; break;
    case ncclProfileProxyStep: of = step; break;
    case ncclProfileCeColl: of = engine; break;
    default: of = (int)type; break;
    }
    return mask & of;
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

/* Call with the lock. */
static struct pair *new_context(void)
{
    for (unsigned i = 0; i < CONTEXTS; i++) {
        struct pair *p = &chain.contexts[(chain.context + i) % CONTEXTS];
        if (!p->own && !p->passes) {
            chain.context = (chain.context + i + 1) % CONTEXTS;
            return p;
        }
    }
    return NULL;
}

static int now_mask(void)
{
    return __atomic_load_n(&chain.mask, __ATOMIC_RELAXED);
}

/* Pass on a change of the next profiler's mask while the job runs. NCCL knows it as a part of nibble's. */
static void publish_mask(void)
{
    int *mask = atomic_load_explicit(&chain.nccl_mask, memory_order_relaxed);
    const int now = now_mask();

    if (!mask || atomic_load_explicit(&chain.known_mask, memory_order_relaxed) == now)
        return;
    atomic_store(&chain.known_mask, now);
    __atomic_store_n(mask, now | atomic_load(&chain.own_mask), __ATOMIC_RELAXED);
}

static void begin(struct pair *p, const struct nb_prof_setting *s)
{
    ncclResult_t result;

    if (v4())
        result =
            v4()->init(&p->other, &chain.mask, s->name, s->comm_id, s->nnodes, s->nranks, s->rank, s->logger);
    else
        result =
            v5()->init(&p->other, s->comm_id, &chain.mask, s->name, s->nnodes, s->nranks, s->rank, s->logger);
    p->passes = result == ncclSuccess;
    if (result != ncclSuccess)
        NB_WARN(
            "profiler: init of %s (%s) gave result %d for communicator 0x%llx, whose events it does not get",
            chain.of.name, chain.of.file, (int)result, (unsigned long long)s->comm_id);
}

void *nb_prof_next_init(const struct nb_prof_setting *s, void *own, int own_mask)
{
    struct pair *p = NULL;
    void *context = own;

    pthread_mutex_lock(&chain.lock);
    look(s->version);
    if (chain.of.table) {
        p = new_context();
        context = p;
    }
    if (p) {
        p->own = own;
        begin(p, s);
        if (!own && !p->passes) /* without a user: free again */
            context = NULL;
    }
    atomic_store(&chain.own_mask, own_mask);
    atomic_store(&chain.nccl_mask, s->mask);
    if (s->mask && context) {
        atomic_store(&chain.known_mask, now_mask());
        __atomic_store_n(s->mask, own_mask | now_mask(), __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&chain.lock);
    return context;
}

ncclResult_t nb_prof_next_finalize(void *context)
{
    struct pair *p = context_of(context);
    ncclResult_t result = ncclSuccess;

    if (!p)
        return result;
    if (p->passes && p->other)
        result = v4() ? v4()->finalize(p->other) : v5()->finalize(p->other);
    pthread_mutex_lock(&chain.lock);
    *p = (struct pair){0};
    pthread_mutex_unlock(&chain.lock);
    return result;
}

void *nb_prof_next_own(void *context)
{
    const struct pair *p = context_of(context);

    return p ? p->own : context;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

void *nb_prof_next_own_event(void *handle)
{
    const struct pair *p = event_of(handle);

    if (!chain.of.table)
        return handle;
    return p ? p->own : NULL;
}

union description {
    ncclProfilerEventDescr_v4_t v4;
    ncclProfilerEventDescr_v7_t v7;
};

static ncclProfilerEventDescr_v4_t older(const ncclProfilerEventDescr_v7_t *d)
{
    ncclProfilerEventDescr_v4_t e = {.type = (uint8_t)d->type, .parentObj = d->parentObj, .rank = d->rank};

    switch (d->type) {
    case ncclProfileColl:
        e.parentObj = d->coll.parentGroup; /* v4 has no calls */
        e.coll = (struct nb_prof_coll_v4){.seqNumber = d->coll.seqNumber,
                                          .func = d->coll.func,
                                          .sendBuff = d->coll.sendBuff,
                                          .recvBuff = d->coll.recvBuff,
                                          .count = d->coll.count,
                                          .root = d->coll.root,
                                          .datatype = d->coll.datatype,
                                          .nChannels = d->coll.nChannels,
                                          .nWarps = d->coll.nWarps,
                                          .algo = d->coll.algo,
                                          .proto = d->coll.proto};
        break;
    case ncclProfileP2p:
        e.parentObj = d->p2p.parentGroup;
        e.p2p = (struct nb_prof_p2p_v4){.func = d->p2p.func,
                                        .buff = d->p2p.buff,
                                        .datatype = d->p2p.datatype,
                                        .count = d->p2p.count,
                                        .peer = d->p2p.peer,
                                        .nChannels = d->p2p.nChannels};
        break;
    case ncclProfileProxyOp: e.proxyOp = d->proxyOp; break;
    case ncclProfileProxyStep: e.proxyStep.step = d->proxyStep.step; break;
    case ncclProfileKernelCh: e.kernelCh = d->kernelCh; break;
    case ncclProfileNetPlugin: e.netPlugin = d->netPlugin; break;
    default: break;
    }
    return e;
}

/* Return whether this is a proxy's operation for another process. Its context and parent then belong to that
 * process. */
static bool is_foreign(uint64_t type, const struct nb_prof_proxy_op *op)
{
    return type == ncclProfileProxyOp && op->pid != getpid();
}

/* Replace nibble's parent and context by the next profiler's. Return false when it gets no events of this
 * communicator. */
static bool translate(void **parent, void **context)
{
    const struct pair *c = context_of(*context), *p = event_of(*parent);

    if (c && !c->passes)
        return false;
    if (c)
        *context = c->other;
    if (p)
        *parent = p->other;
    return true;
}

static ncclResult_t pass(void *context, void **handle, int version, const void *description)
{
    union description d;
    bool foreign;

    if (version == 4) {
        d.v4 = *(const ncclProfilerEventDescr_v4_t *)description;
        foreign = is_foreign(d.v4.type, &d.v4.proxyOp);
        if (!asked_for(d.v4.type, now_mask()) || (!foreign && !translate(&d.v4.parentObj, &context)))
            return ncclSuccess;
        return v4()->startEvent(context, handle, &d.v4);
    }
    memcpy(&d.v7, description,
           version >= 7 ? sizeof(ncclProfilerEventDescr_v7_t) : sizeof(ncclProfilerEventDescr_v6_t));
    foreign = is_foreign(d.v7.type, &d.v7.proxyOp);
    if (!asked_for(d.v7.type, now_mask()) || (!foreign && !translate(&d.v7.parentObj, &context)))
        return ncclSuccess;
    if (v4()) {
        d.v4 = older(&d.v7);
        return v4()->startEvent(context, handle, &d.v4);
    }
    return v5()->startEvent(context, handle, &d.v7);
}

ncclResult_t nb_prof_next_start(void *context, void **handle, void *own, int version, const void *description,
                                bool lasts)
{
    ncclResult_t result = ncclSuccess;
    void *other = NULL, *made = own;

    if (chain.of.table && description) {
        publish_mask();
        result = pass(context, &other, version, description);
        made = other;
        if (own) {
            struct pair *p = new_event(lasts);
            *p = (struct pair){.own = own, .other = other};
            made = p;
        }
    }
    if (handle)
        *handle = made;
    return result;
}

ncclResult_t nb_prof_next_stop(void *handle)
{
    const struct pair *p = event_of(handle);

    if (p)
        handle = p->other;
    if (!chain.of.table || !handle)
        return ncclSuccess;
    return v4() ? v4()->stopEvent(handle) : v5()->stopEvent(handle);
}

ncclResult_t nb_prof_next_state(void *handle, int state, ncclProfilerEventStateArgs_v4_t *args)
{
    const struct pair *p = event_of(handle);

    if (p)
        handle = p->other;
    if (!chain.of.table || !handle)
        return ncclSuccess;
    return v4() ? v4()->recordEventState(handle, state, args) : v5()->recordEventState(handle, state, args);
}
