/* SPDX-License-Identifier: Apache-2.0 */
/* Work that finishes later, and fails. See device.h. */
#include "tests/sim/device.h"
#include "coll/flow/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm/comm.h"
#include "device/device.h"
#include "tests/device/call.h"
#include "tests/sim/fault.h"
#include "tests/sim/judge.h"
#include "tests/sim/memory.h"
#include "tests/sim/node.h"

#define RING 24 /* works in flight */
#define ALIGN 256

enum state { FREE, QUEUED, DONE };

/* One call, and its state. */
struct call {
    struct device_call what;
    struct late *device;
    enum state state;
    bool never; /* is it done */
    uint64_t id;
    ssize_t result;
};

struct late {
    struct asked_device asked; /* first */
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

static ssize_t ask(struct asked_device *dev, struct nb_work *work, const struct device_call *what)
{
    struct late *d = late_of(&dev->device);
    struct sim *s = d->sim;
    enum sim_fault_kind fault;
    bool stuck = false;
    int64_t takes;
    int at = 0;

    if (d->error)
        return d->error;
    if (sim_fault_device(s, d->node, d->comm, work != NULL, &fault)) {
        if (fault == SIM_BROKEN_DEVICE) {
            d->error = -EIO;
            NB_WARN("simulation: the device of node %d is broken", d->node);
            return d->error;
        }
        stuck = true;
    }
    if (!work || (!s->plan->late_device && !stuck))
        return device_call_perform(what);
    while (at < RING && d->ring[at].state != FREE)
        at++;
    if (at == RING)
        return -EAGAIN;
    d->ring[at].what = *what;
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
        c->result = device_call_perform(&c->what);
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
        if (d->ring[i].state == QUEUED && d->ring[i].what.kind == ZERO) /* state is compared at the end */
            d->ring[i].result = device_call_perform(&d->ring[i].what);
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
    if (!p)
        return NULL;
    at = p + sizeof(void *);
    at += ALIGN - (uintptr_t)at % ALIGN;
    memcpy(at - sizeof(void *), &p, sizeof(void *));
    if (place == NB_PLACE_STATE) /* a read before the first write must show */
        memset(at, 0xa5, bytes);
    return at;
}

static void late_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    const struct late *d = late_of(dev);
    const struct nb_coll_comm *comm = d->sim->node[d->node]->proxy[d->comm].coll;
    void *at;

    if (!p)
        return;
    /* sums in progress are not state */
    if (place == NB_PLACE_STATE && comm && p != comm->flow->reduce.partial)
        sim_judge_state(d->sim, d->node, d->comm, nb_hash64(p, bytes, 0));
    memcpy(&at, (char *)p - sizeof(void *), sizeof(void *));
    free(at);
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
    if (!ops.name) { /* the host answers the immediate calls */
        ops = *nb_host_device()->ops;
        ops.name = "simulated";
        ops.zeroes = false;
        ops.quiesce = late_quiesce;
        ops.failed = late_failed;
        ops.close = late_close;
        ops.alloc = late_alloc;
        ops.free = late_free;
        ops.poll = late_poll;
        ops.copy = device_call_copy;
        ops.zero = device_call_zero;
        ops.encode = device_call_encode;
        ops.decode = device_call_decode;
        ops.reduce = device_call_reduce;
        ops.reduce_exact = device_call_reduce_exact;
        ops.compare = device_call_compare;
        ops.similarity = device_call_similarity;
        ops.sample = device_call_sample;
        ops.sums = device_call_sums;
    }
    d->asked.device.ops = &ops;
    d->asked.ask = ask;
    d->sim = node->sim;
    d->node = node->number;
    d->comm = node->connecting;
    node->device[node->connecting] = &d->asked.device;
    sim_memory_enter(before);
    *dev = &d->asked.device;
    return 0;
}
