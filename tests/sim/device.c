/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is done later, and goes wrong; see device.h. */
#include "sim/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm.h"
#include "device/device.h"
#include "sim/fault.h"
#include "sim/judge.h"
#include "sim/memory.h"
#include "sim/node.h"

#define RING 24 /* works in flight */
#define ALIGN 256

enum kind { COPY, ZERO, ENCODE, DECODE, REDUCE, REDUCE_EXACT };
enum state { FREE, QUEUED, DONE };

/* One call: what the function was given, and how it stands. */
struct call {
    struct late *device;
    enum state state;
    bool never; /* is it done */
    uint64_t id;
    enum kind kind;
    void *dst;
    const void *src, *own;
    size_t n, nsources;
    struct nb_encoding encoding;
    struct nb_decoding decoding;
    enum nb_dtype dtype;
    ncclDataType_t type;
    ncclRedOp_t redop;
    uint64_t first;
    const struct nb_source *sources;
    const void *const *plain;
    ssize_t result;
};

struct late {
    struct nb_device device;
    struct sim *sim;
    int node, comm;
    int error;
    uint64_t ids;
    struct call ring[RING];
};

static struct late *late_of(struct nb_device *dev)
{
    return (struct late *)dev;
}

static ssize_t perform(const struct call *c)
{
    struct nb_device *h = nb_host_device();

    switch (c->kind) {
    case COPY: return h->ops->copy(h, NULL, c->dst, c->src, c->n);
    case ZERO: memset(c->dst, 0, c->n); return 0;
    case ENCODE: return h->ops->encode(h, NULL, &c->encoding);
    case DECODE: return h->ops->decode(h, NULL, &c->decoding);
    case REDUCE:
        return h->ops->reduce(h, NULL, c->dtype, c->sources, c->nsources, c->own, c->n, c->first, c->dst);
    default:
        return h->ops->reduce_exact(h, NULL, c->type, c->redop, c->plain, c->nsources, c->own, c->n, c->dst);
    }
}

static ssize_t ask(struct nb_device *dev, struct nb_work *work, const struct call *what)
{
    struct late *d = late_of(dev);
    struct sim *s = d->sim;
    enum sim_fault_kind fault;
    bool stuck = false;
    int64_t takes;
    int at = 0;

    if (d->error)
        return d->error;
    if (sim_fault_device(s, d->node, d->comm, &fault)) {
        if (fault == SIM_BROKEN_DEVICE) {
            d->error = -EIO;
            NB_WARN("simulation: the device of node %d is broken", d->node);
            return d->error;
        }
        stuck = true;
    }
    if (!work || (!s->plan->late_device && !stuck))
        return perform(what);
    while (at < RING && d->ring[at].state != FREE)
        at++;
    if (at == RING)
        return -EAGAIN;
    d->ring[at] = *what;
    d->ring[at].device = d;
    d->ring[at].state = QUEUED;
    d->ring[at].id = work->id = ++d->ids;
    work->at = &d->ring[at];
    d->ring[at].never = stuck;
    if (stuck) { /* the device will notice */
        takes = s->node[d->node]->ctx.params->gpu_timeout * SIM_S;
    } else {
        takes = 500 + (int64_t)sim_below(s, 20000);
    }
    sim_queue_put(&s->queue, s->now + takes, SIM_WORK, -1, &d->ring[at]);
    return -EINPROGRESS;
}

void sim_device_event(struct sim *s, const struct sim_event *event)
{
    struct call *c = event->thing;
    struct late *d;

    (void)s;
    d = c->device;
    if (!d || c->state != QUEUED)
        return; /* its device has been stilled */
    if (c->never) {
        d->error = -ETIMEDOUT;
        int before = sim_enter(s, d->node);
        NB_WARN("simulation: the device of node %d has not finished a work in time", d->node);
        sim_enter(s, before);
    } else {
        int before = sim_memory_enter(d->node);
        c->result = perform(c);
        sim_memory_enter(before);
        c->state = DONE;
    }
    s->progress = s->now;
    sim_node_wake(s, d->node);
}

static ssize_t late_poll(struct nb_device *dev, struct nb_work *work)
{
    struct late *d = late_of(dev);
    struct call *c = work->at;

    if (c->id != work->id || c->state == FREE)
        return -ECANCELED;
    if (c->state == QUEUED)
        return d->error ? d->error : -EINPROGRESS;
    c->state = FREE;
    return c->result;
}

static void late_quiesce(struct nb_device *dev)
{
    struct late *d = late_of(dev);

    for (int i = 0; i < RING; i++) {
        if (d->ring[i].state == QUEUED)
            d->ring[i].result = -ECANCELED;
        if (d->ring[i].state == QUEUED)
            d->ring[i].state = DONE;
    }
}

static int late_failed(struct nb_device *dev)
{
    return late_of(dev)->error;
}

/* The object stays with the run, since events name it. */
static void late_close(struct nb_device *dev)
{
    late_quiesce(dev);
}

static void *late_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    char *p = calloc(1, bytes + ALIGN + sizeof(void *));
    char *at;

    (void)dev;
    (void)place;
    if (!p)
        return NULL;
    at = p + sizeof(void *);
    at += ALIGN - (uintptr_t)at % ALIGN;
    memcpy(at - sizeof(void *), &p, sizeof(void *));
    return at;
}

static void late_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    const struct late *d = late_of(dev);
    const struct nb_coll_comm *comm = d->sim->node[d->node]->proxy[d->comm].coll;
    void *at;

    if (!p)
        return;
    if (place == NB_PLACE_STATE && comm && p != comm->reduce.partial) /* sums under way are no state */
        sim_judge_state(d->sim, d->node, d->comm, nb_hash64(p, bytes, 0));
    memcpy(&at, (char *)p - sizeof(void *), sizeof(void *));
    free(at);
}

static int late_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    return (int)ask(dev, work, &(struct call){.kind = COPY, .dst = dst, .src = src, .n = bytes});
}

static int late_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    return (int)ask(dev, work, &(struct call){.kind = ZERO, .dst = dst, .n = bytes});
}

static ssize_t late_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    return ask(dev, work, &(struct call){.kind = ENCODE, .encoding = *e});
}

static int late_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d)
{
    return (int)ask(dev, work, &(struct call){.kind = DECODE, .decoding = *d});
}

static int late_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    return (int)ask(dev, work,
                    &(struct call){.kind = REDUCE,
                                   .dtype = type,
                                   .sources = sources,
                                   .nsources = nsources,
                                   .own = own,
                                   .n = n,
                                   .first = first,
                                   .dst = dst});
}

static int late_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    return (int)ask(dev, work,
                    &(struct call){.kind = REDUCE_EXACT,
                                   .type = type,
                                   .redop = op,
                                   .plain = sources,
                                   .nsources = nsources,
                                   .own = own,
                                   .n = n,
                                   .dst = dst});
}

int sim_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    static struct nb_device_ops ops;
    struct sim_node *node = (struct sim_node *)ctx; /* its first member */
    int before = sim_memory_enter(SIM_NOBODY);
    struct late *d = calloc(1, sizeof(*d));

    (void)wish;
    if (!d)
        abort();
    if (!ops.name) { /* what answers at once is the host's */
        ops = *nb_host_device()->ops;
        ops.name = "simulated";
        ops.quiesce = late_quiesce;
        ops.failed = late_failed;
        ops.close = late_close;
        ops.alloc = late_alloc;
        ops.free = late_free;
        ops.poll = late_poll;
        ops.copy = late_copy;
        ops.zero = late_zero;
        ops.encode = late_encode;
        ops.decode = late_decode;
        ops.reduce = late_reduce;
        ops.reduce_exact = late_reduce_exact;
    }
    d->device.ops = &ops;
    d->sim = node->sim;
    d->node = node->number;
    d->comm = node->connecting;
    node->device[node->connecting] = &d->device;
    sim_memory_enter(before);
    *dev = &d->device;
    return 0;
}
