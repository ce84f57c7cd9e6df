/* SPDX-License-Identifier: Apache-2.0 */
/* See handback_desk.h. */
#include "policy/handback_desk.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/context.h"

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

    pthread_mutex_t lock;
    pthread_cond_t news;
    struct nb_handback machine;
    int callers;
    bool attached, overdue;
    struct nb_handback_counts counts;
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
    const struct nb_handback_config config = {
        .rank = -1, .nnodes = 2, .slack = SLACK, .period = PERIOD, .longest = LONGEST};
    struct nb_handback_desk *desk = calloc(1, sizeof(*desk));
    pthread_condattr_t attr;

    if (!desk)
        return NULL;
    desk->desks = desks;
    desk->comm_id = comm_id;
    desk->gpu = gpu;
    nb_handback_init(&desk->machine, &config);
    pthread_mutex_init(&desk->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&desk->news, &attr);
    pthread_condattr_destroy(&attr);
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
    pthread_mutex_unlock(&desk->desks->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&desk->lock);
    pthread_cond_destroy(&desk->news);
    free(desk);
}

/* ---- callers ------------------------------------------------------------------------------------------- */

void nb_handback_desk_join(struct nb_handback_desk *desk)
{
    pthread_mutex_lock(&desk->lock);
    desk->callers++;
    pthread_mutex_unlock(&desk->lock);
}

void nb_handback_desk_tune(struct nb_handback_desk *desk, uint64_t slack, uint64_t period, uint64_t longest)
{
    pthread_mutex_lock(&desk->lock);
    desk->machine.config.slack = slack;
    desk->machine.config.period = period;
    desk->machine.config.longest = longest;
    pthread_mutex_unlock(&desk->lock);
}

enum nb_handback_answer nb_handback_desk_ask(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes)
{
    enum nb_handback_answer answer;

    pthread_mutex_lock(&desk->lock);
    answer = nb_handback_call(&desk->machine, func, bytes);
    desk->counts.handed_back += answer == NB_HANDBACK_NCCL;
    pthread_mutex_unlock(&desk->lock);
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
    enum nb_handback_answer answer;
    struct timespec end;
    bool waits = false;
    int ret = 0;

    pthread_mutex_lock(&desk->lock);
    while ((answer = nb_handback_call(&desk->machine, func, bytes)) == NB_HANDBACK_WAIT && !ret) {
        if (!waits) {
            end = until(patience_ns);
            waits = true;
            desk->counts.waited++;
        }
        ret = pthread_cond_timedwait(&desk->news, &desk->lock, &end);
    }
    if (answer == NB_HANDBACK_WAIT) /* nobody can say what the others answer: no answer */
        desk->overdue = true;
    else if (answer == NB_HANDBACK_NCCL)
        desk->counts.handed_back++;
    pthread_mutex_unlock(&desk->lock);
    *nccl = answer == NB_HANDBACK_NCCL;
    return answer == NB_HANDBACK_WAIT ? -ETIMEDOUT : 0;
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

void nb_handback_desk_attach(struct nb_handback_desk *desk, int rank, int nnodes)
{
    pthread_mutex_lock(&desk->lock);
    if (desk->attached || desk->machine.failed) { /* a second group under one name: who counts what? */
        nb_handback_fail(&desk->machine);
    } else {
        desk->attached = true;
        desk->machine.config.rank = rank;
        desk->machine.config.nnodes = nnodes;
    }
    pthread_mutex_unlock(&desk->lock);
}

bool nb_handback_desk_looks(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes)
{
    bool looks;

    pthread_mutex_lock(&desk->lock);
    looks = nb_handback_is_back(&desk->machine, func, bytes);
    pthread_mutex_unlock(&desk->lock);
    return looks;
}

void nb_handback_desk_verdict(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes, bool raw,
                              struct nb_handback_out *out)
{
    pthread_mutex_lock(&desk->lock);
    nb_handback_verdict(&desk->machine, func, bytes, raw && desk->callers == 1, out);
    pthread_mutex_unlock(&desk->lock);
}

int nb_handback_desk_receive(struct nb_handback_desk *desk, int from, const struct nb_handback_note *note,
                             struct nb_handback_out *out)
{
    int ret;

    pthread_mutex_lock(&desk->lock);
    ret = nb_handback_receive(&desk->machine, from, note, out);
    pthread_cond_broadcast(&desk->news);
    pthread_mutex_unlock(&desk->lock);
    return ret;
}

void nb_handback_desk_fail(struct nb_handback_desk *desk)
{
    pthread_mutex_lock(&desk->lock);
    nb_handback_fail(&desk->machine);
    pthread_cond_broadcast(&desk->news);
    pthread_mutex_unlock(&desk->lock);
}

bool nb_handback_desk_overdue(struct nb_handback_desk *desk)
{
    bool overdue;

    pthread_mutex_lock(&desk->lock);
    overdue = desk->overdue;
    pthread_mutex_unlock(&desk->lock);
    return overdue;
}

void nb_handback_desk_count(struct nb_handback_desk *desk, struct nb_handback_counts *counts)
{
    pthread_mutex_lock(&desk->lock);
    *counts = desk->counts;
    pthread_mutex_unlock(&desk->lock);
}
