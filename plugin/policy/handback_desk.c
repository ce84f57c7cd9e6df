/* SPDX-License-Identifier: Apache-2.0 */
/* See handback_desk.h. */
#include "policy/handback_desk.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/context.h"
#include "policy/handback_shared.h"

#define SLACK 16u    /* calls that need not wait while a vote is under way */
#define PERIOD 1024u /* calls that are NCCL's before the first is looked at again */
#define LONGEST (1u << 20)

struct nb_handback_desks {
    pthread_mutex_t lock;
    struct nb_handback_desk *list;
};

struct nb_handback_desk {
    struct nb_handback_desks *desks;
    uint64_t comm_id;
    int gpu;
    struct nb_handback_desk *next; /* under the list's lock */
    int refs;                      /* under the list's lock */

    struct nb_handback_config config; /* slack and periods */
    struct nb_handback_share share;
    struct nb_handback_shared *_Atomic node; /* share.at, once all else is ready; NULL: not joined */
    unsigned rank;                           /* of the node's */
    int head;                                /* of the node's; -1: none */
    atomic_uint_fast64_t handed_back, waited;

    pthread_mutex_t lock; /* what comes before the other: */
    bool attached, stopped, failed, joined;
    uint64_t group;
    int number, nnodes; /* of the node */
};

int nb_handback_desks_open(struct nb_context *ctx)
{
    struct nb_handback_desks *desks = calloc(1, sizeof(*desks));

    if (!desks)
        return -ENOMEM;
    pthread_mutex_init(&desks->lock, NULL);
    ctx->desks = desks;
    return 0;
}

void nb_handback_desks_close(struct nb_context *ctx)
{
    if (!ctx->desks)
        return;
    pthread_mutex_destroy(&ctx->desks->lock);
    free(ctx->desks);
    ctx->desks = NULL;
}

static struct nb_handback_desk *make(struct nb_handback_desks *desks, uint64_t comm_id, int gpu)
{
    struct nb_handback_desk *desk = calloc(1, sizeof(*desk));

    if (!desk)
        return NULL;
    desk->desks = desks;
    desk->comm_id = comm_id;
    desk->gpu = gpu;
    desk->config =
        (struct nb_handback_config){.nnodes = 2, .slack = SLACK, .period = PERIOD, .longest = LONGEST};
    desk->head = -1;
    pthread_mutex_init(&desk->lock, NULL);
    return desk;
}

struct nb_handback_desk *nb_handback_desk_get(struct nb_context *ctx, uint64_t comm_id, int gpu)
{
    struct nb_handback_desks *desks = ctx->desks;
    struct nb_handback_desk *desk;

    if (!comm_id)
        return NULL;
    pthread_mutex_lock(&desks->lock);
    for (desk = desks->list; desk; desk = desk->next)
        if (desk->comm_id == comm_id && desk->gpu == gpu)
            break;
    if (!desk) {
        desk = make(desks, comm_id, gpu);
        if (desk) {
            desk->next = desks->list;
            desks->list = desk;
        }
    }
    if (desk)
        desk->refs++;
    pthread_mutex_unlock(&desks->lock);
    return desk;
}

void nb_handback_desk_put(struct nb_handback_desk *desk)
{
    bool last;

    if (!desk)
        return;
    pthread_mutex_lock(&desk->desks->lock);
    last = --desk->refs == 0;
    if (last) {
        struct nb_handback_desk **at = &desk->desks->list;
        while (*at != desk)
            at = &(*at)->next;
        *at = desk->next;
    }
    if (last)
        nb_handback_share_close(&desk->share); /* with the list's lock: others of this process may share it */
    pthread_mutex_unlock(&desk->desks->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&desk->lock);
    free(desk);
}

/* What the ranks of the node share, locked; NULL: nothing yet. */
static struct nb_handback_shared *enter(struct nb_handback_desk *desk)
{
    struct nb_handback_shared *s = atomic_load_explicit(&desk->node, memory_order_acquire);

    if (s)
        nb_handback_shared_lock(s);
    return s;
}

/* ---- callers ------------------------------------------------------------------------------------------- */

void nb_handback_desk_tune(struct nb_handback_desk *desk, uint64_t slack, uint64_t period, uint64_t longest)
{
    desk->config.slack = slack;
    desk->config.period = period;
    desk->config.longest = longest;
}

/* The share of another desk of this communicator in this process. With the list's lock. */
static const struct nb_handback_share *find_share(const struct nb_handback_desk *desk)
{
    for (const struct nb_handback_desk *d = desk->desks->list; d; d = d->next)
        if (d->comm_id == desk->comm_id && d->share.at)
            return &d->share;
    return NULL;
}

/* Without any lock of this process while another one may hold the file's. */
static int make_share(struct nb_handback_desk *desk, unsigned ranks, enum nb_handback_place place)
{
    const bool maps = place == NB_HANDBACK_MACHINE && ranks > 1;
    struct nb_handback_share share;
    int ret = maps ? nb_handback_share_map(&share, desk->comm_id, ranks, &desk->config, &desk->rank) : 0;

    pthread_mutex_lock(&desk->desks->lock);
    if (!maps)
        ret = nb_handback_share_make(&share, ranks > 1 ? find_share(desk) : NULL, ranks, &desk->config,
                                     &desk->rank);
    if (!ret)
        desk->share = share;
    pthread_mutex_unlock(&desk->desks->lock);
    return ret;
}

/* What has come before it is made up for. */
static void publish(struct nb_handback_desk *desk)
{
    struct nb_handback_shared *s = desk->share.at;

    pthread_mutex_lock(&desk->lock);
    nb_handback_shared_lock(s);
    if (desk->attached)
        desk->head = nb_handback_shared_attach(s, desk->group, desk->number, desk->nnodes);
    if (desk->stopped)
        nb_handback_stop(&s->machine);
    if (desk->failed)
        nb_handback_fail(&s->machine);
    nb_handback_shared_unlock(s);
    atomic_store_explicit(&desk->node, s, memory_order_release);
    pthread_mutex_unlock(&desk->lock);
}

/* With the desk's lock: what is seen here does not stand for one rank, or one group. */
static void stop(struct nb_handback_desk *desk)
{
    struct nb_handback_shared *s = enter(desk);

    desk->stopped = true;
    if (!s)
        return;
    nb_handback_stop(&s->machine);
    nb_handback_shared_unlock(s);
}

int nb_handback_desk_join(struct nb_handback_desk *desk, unsigned ranks, enum nb_handback_place place)
{
    bool again;
    int ret;

    if (ranks < 1 || ranks > NB_HANDBACK_RANKS)
        return -ERANGE;
    pthread_mutex_lock(&desk->lock);
    again = desk->joined;
    desk->joined = true;
    if (again)
        stop(desk);
    pthread_mutex_unlock(&desk->lock);
    if (again)
        return 0;
    ret = make_share(desk, ranks, place);
    if (!ret)
        publish(desk);
    return ret;
}

enum nb_handback_answer nb_handback_desk_ask(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes)
{
    struct nb_handback_shared *s = enter(desk);
    enum nb_handback_answer answer;

    if (!s)
        return NB_HANDBACK_COLLNET;
    answer = nb_handback_call(&s->machine, desk->rank, func, bytes);
    nb_handback_shared_unlock(s);
    if (answer == NB_HANDBACK_NCCL)
        atomic_fetch_add_explicit(&desk->handed_back, 1, memory_order_relaxed);
    return answer;
}

static struct timespec until(int64_t patience_ns)
{
    struct timespec t;
    int64_t ns;

    clock_gettime(CLOCK_MONOTONIC, &t);
    ns = t.tv_nsec + patience_ns;
    t.tv_sec += (time_t)(ns / (int64_t)NB_NS_PER_S);
    t.tv_nsec = (long)(ns % (int64_t)NB_NS_PER_S);
    return t;
}

int nb_handback_desk_call(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes,
                          int64_t patience_ns, bool *nccl)
{
    struct nb_handback_shared *s = enter(desk);
    enum nb_handback_answer answer;
    struct timespec end;
    bool waits = false;
    int ret = 0;

    *nccl = false;
    if (!s)
        return 0;
    while ((answer = nb_handback_call(&s->machine, desk->rank, func, bytes)) == NB_HANDBACK_WAIT && !ret) {
        if (!waits) {
            end = until(patience_ns);
            waits = true;
            atomic_fetch_add_explicit(&desk->waited, 1, memory_order_relaxed);
        }
        ret = nb_handback_shared_wait(s, &end);
    }
    if (answer == NB_HANDBACK_WAIT) /* nobody can say what the others answer: no answer */
        s->overdue = true;
    nb_handback_shared_unlock(s);
    *nccl = answer == NB_HANDBACK_NCCL;
    if (*nccl)
        atomic_fetch_add_explicit(&desk->handed_back, 1, memory_order_relaxed);
    return answer == NB_HANDBACK_WAIT ? -ETIMEDOUT : 0;
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

void nb_handback_desk_attach(struct nb_handback_desk *desk, uint64_t group, int node, int nnodes)
{
    struct nb_handback_shared *s;

    pthread_mutex_lock(&desk->lock);
    if (desk->attached) {
        stop(desk);
    } else {
        desk->attached = true;
        desk->group = group;
        desk->number = node;
        desk->nnodes = nnodes;
        s = enter(desk);
        if (s) {
            desk->head = nb_handback_shared_attach(s, group, node, nnodes);
            nb_handback_shared_unlock(s);
        }
    }
    pthread_mutex_unlock(&desk->lock);
}

bool nb_handback_desk_looks(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes)
{
    struct nb_handback_shared *s = enter(desk);
    bool looks;

    if (!s)
        return true;
    looks = nb_handback_is_back(&s->machine, func, bytes);
    nb_handback_shared_unlock(s);
    return looks;
}

void nb_handback_desk_verdict(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes, bool raw,
                              struct nb_handback_out *out)
{
    struct nb_handback_shared *s = enter(desk);

    out->n = 0;
    if (!s)
        return;
    nb_handback_shared_leads(s, desk->head); /* which settles the heads, once all ranks have joined */
    if (desk->head >= 0 && s->has_leader)
        nb_handback_verdict(&s->machine, (unsigned)desk->head, func, bytes, raw, out);
    nb_handback_shared_unlock(s);
}

/* What another head than the leader, or one whose tuner is not ours, answers: no. */
static int decline(const struct nb_handback_note *note, struct nb_handback_out *out)
{
    out->n = 0;
    switch (note->kind) {
    case NB_HANDBACK_TELL: return 0;
    case NB_HANDBACK_SET: return note->call == NB_HANDBACK_NONE ? 0 : -EPROTO;
    case NB_HANDBACK_ASK:
        out->n = 1;
        out->sent[0].to = 0;
        out->sent[0].note = *note;
        out->sent[0].note.kind = NB_HANDBACK_FAR;
        out->sent[0].note.call = NB_HANDBACK_NONE;
        return 0;
    default: return -EPROTO;
    }
}

int nb_handback_desk_receive(struct nb_handback_desk *desk, int from, const struct nb_handback_note *note,
                             struct nb_handback_out *out)
{
    struct nb_handback_shared *s = enter(desk);
    int ret;

    if (!s)
        return decline(note, out);
    if (nb_handback_shared_leads(s, desk->head)) {
        ret = nb_handback_receive(&s->machine, from, note, out);
        nb_handback_shared_wake(s);
    } else {
        ret = decline(note, out);
    }
    nb_handback_shared_unlock(s);
    return ret;
}

void nb_handback_desk_fail(struct nb_handback_desk *desk)
{
    struct nb_handback_shared *s;

    pthread_mutex_lock(&desk->lock);
    desk->failed = true;
    s = enter(desk);
    if (s) {
        nb_handback_fail(&s->machine);
        nb_handback_shared_wake(s);
        nb_handback_shared_unlock(s);
    }
    pthread_mutex_unlock(&desk->lock);
}

bool nb_handback_desk_overdue(struct nb_handback_desk *desk)
{
    struct nb_handback_shared *s = enter(desk);
    bool overdue = s && s->overdue;

    if (s)
        nb_handback_shared_unlock(s);
    return overdue;
}

void nb_handback_desk_count(struct nb_handback_desk *desk, struct nb_handback_counts *counts)
{
    counts->handed_back = atomic_load_explicit(&desk->handed_back, memory_order_relaxed);
    counts->waited = atomic_load_explicit(&desk->waited, memory_order_relaxed);
}
