/* SPDX-License-Identifier: Apache-2.0 */
/* The progress engine: its list of communicators, and one round over them. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/engine.h"

#define SLEEP_NS (50 * (int64_t)NB_NS_PER_MS) /* the longest sleep with communicators: heartbeats are due */
/* The time, in us, of polling before a sleep while a device has work in flight and cannot wake the engine: a
 * segment takes microseconds. */
#define WORK_US 1000

struct nb_engine {
    struct nb_context *ctx;
    struct nb_coll_node node;
    const struct nb_runner *runner; /* NULL: stepped by the caller */
    pthread_mutex_t users_lock;
    int users; /* under users_lock */
    void *run; /* of the runner, while there are users */
    pthread_mutex_t lock;
    struct nb_coll_comm *added; /* under lock: communicators that wait for the engine thread */
    _Atomic int news;           /* `added` has changed */
    _Atomic int sleeping;
    _Atomic uint64_t steps;       /* steps made */
    _Atomic uint64_t stuck_at;    /* 1 + steps made when it was found stuck, or 0 */
    struct nb_coll_comm *running; /* for the engine thread */
};

/* ---- life -------------------------------------------------------------------------------------------- */

/* Kick the engine when a device has done work. For devices that are created after the runner has started, and
 * freed before it stops. */
static void work_done(struct nb_context *ctx)
{
    nb_engine_kick(ctx->engine);
}

int nb_engine_open(struct nb_context *ctx, const struct nb_runner *runner)
{
    struct nb_engine *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->ctx = ctx;
    e->runner = runner;
    nb_node_init(&e->node);
    pthread_mutex_init(&e->users_lock, NULL);
    pthread_mutex_init(&e->lock, NULL);
    ctx->engine = e;
    ctx->work_done = runner ? work_done : NULL;
    return 0;
}

void nb_engine_close(struct nb_context *ctx)
{
    struct nb_engine *e = ctx->engine;

    if (!e)
        return;
    ctx->engine = NULL;
    ctx->work_done = NULL;
    if (e->users)
        return;
    nb_node_destroy(&e->node);
    pthread_mutex_destroy(&e->users_lock);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const struct nb_context *nb_engine_context(const struct nb_engine *engine)
{
    return engine->ctx;
}

struct nb_coll_node *nb_engine_node(struct nb_engine *engine)
{
    return &engine->node;
}

uint64_t nb_engine_steps(const struct nb_engine *engine)
{
    return atomic_load_explicit(&engine->steps, memory_order_relaxed);
}

const _Atomic uint64_t *nb_engine_step_count(const struct nb_engine *engine)
{
    return &engine->steps;
}

void nb_engine_call_stuck(struct nb_engine *engine, uint64_t steps)
{
    atomic_store(&engine->stuck_at, steps + 1);
}

bool nb_engine_is_stepped(const struct nb_engine *engine)
{
    return !engine->runner;
}

int nb_engine_acquire(struct nb_engine *e)
{
    int ret = 0;

    if (atomic_load(&e->stuck_at) == nb_engine_steps(e) + 1) {
        NB_WARN("engine: its thread, nibble-engine, hangs in a call that does not return");
        return -ETIMEDOUT;
    }
    pthread_mutex_lock(&e->users_lock);
    if (e->users == 0 && e->runner)
        ret = e->runner->start(e, &e->run);
    e->users += ret == 0;
    pthread_mutex_unlock(&e->users_lock);
    return ret;
}

void nb_engine_release(struct nb_engine *e)
{
    pthread_mutex_lock(&e->users_lock);
    if (--e->users == 0 && e->runner)
        e->runner->stop(e->run);
    pthread_mutex_unlock(&e->users_lock);
}

void nb_engine_add(struct nb_engine *e, struct nb_coll_comm *comm)
{
    pthread_mutex_lock(&e->lock);
    comm->engine_next = e->added;
    e->added = comm;
    atomic_store(&e->news, 1);
    pthread_mutex_unlock(&e->lock);
    nb_engine_wake(e);
}

/* ---- sleep and wake ---------------------------------------------------------------------------------- */

void nb_engine_kick(struct nb_engine *engine)
{
    /* Sequentially consistent, as are the store of the window's number before it and the two stores in
     * prepare_sleep and end_sleep. So either the last check before the sleep sees the new window, or this
     * function sees that the engine is asleep. */
    if (atomic_load(&engine->sleeping) && atomic_exchange(&engine->sleeping, 0))
        nb_engine_wake(engine);
}

void nb_engine_wake(struct nb_engine *engine)
{
    if (engine->runner)
        engine->runner->wake(engine->run);
}

/* Return true when there is news since the last step: a communicator or window was handed over, or a device
 * has done work. */
static bool has_news(struct nb_engine *e)
{
    for (struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next) {
        const struct nb_device_ops *ops = comm->device->ops;
        if (nb_comm_failed(comm))
            continue;
        if (atomic_load(&comm->submitted) != comm->begun || (ops->news && ops->news(comm->device)))
            return true;
    }
    return atomic_load(&e->news);
}

bool nb_engine_prepare_sleep(struct nb_engine *e)
{
    atomic_store(&e->sleeping, 1);
    return !has_news(e);
}

void nb_engine_end_sleep(struct nb_engine *e)
{
    atomic_store(&e->sleeping, 0);
}

int64_t nb_engine_patience_ns(const struct nb_engine *e)
{
    int64_t us = e->running ? NB_SPIN_US : 0;

    for (const struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next)
        if (comm->works_open && !comm->device->ops->news && !nb_comm_failed(comm) && us < WORK_US)
            us = WORK_US;
    return us * (int64_t)NB_NS_PER_US;
}

/* Return how long, at most `ns`, the engine may leave the communicator's links alone if they stay quiet.
 * After an error fairness is irrelevant. */
static int64_t idle_ns(const struct nb_coll_comm *comm, int64_t now_ns, int64_t ns)
{
    if (nb_comm_failed(comm) || comm->failure.suspect_ns)
        return ns;
    for (int c = 0; c < NB_CLASS_CONTROL; c++)
        if (comm->fair[c].bounded && comm->fair[c].until_ns - now_ns < ns)
            ns = comm->fair[c].until_ns - now_ns + 1;
    return ns > 0 ? ns : 0;
}

struct nb_engine_wait nb_engine_wait(struct nb_engine *e, int64_t now_ns, struct pollfd *fds, int max)
{
    struct nb_engine_wait wait = {.until_ns = INT64_MAX};
    int64_t most = SLEEP_NS;

    for (struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next) {
        int k = nb_comm_poll_fds(comm, fds ? fds + wait.nfds : NULL, max - wait.nfds);
        most = idle_ns(comm, now_ns, most);
        if (k < 0)
            wait.polled = true;
        else
            wait.nfds += k;
    }
    if (e->running)
        wait.until_ns = now_ns + most;
    return wait;
}

/* ---- one round --------------------------------------------------------------------------------------- */

static void take_added(struct nb_engine *e)
{
    if (!atomic_load(&e->news) || !atomic_exchange(&e->news, 0))
        return;
    pthread_mutex_lock(&e->lock);
    while (e->added) {
        struct nb_coll_comm *comm = e->added;
        e->added = comm->engine_next;
        comm->engine_next = e->running;
        e->running = comm;
    }
    pthread_mutex_unlock(&e->lock);
}

/* Unlink a closed communicator. From then on it belongs to the thread that closes it. */
static void detach(struct nb_coll_comm **link)
{
    struct nb_coll_comm *comm = *link;

    *link = comm->engine_next;
    pthread_mutex_lock(&comm->closing.lock);
    comm->closing.detached = true;
    pthread_cond_broadcast(&comm->closing.cond);
    pthread_mutex_unlock(&comm->closing.lock);
}

bool nb_engine_step(struct nb_engine *e, int64_t now_ns)
{
    const char *label = nb_log_label(e->ctx->label);
    bool moved = false;

    take_added(e);
    nb_control_file_update(&e->node.control, e->ctx->params->control, now_ns);
    for (struct nb_coll_comm **link = &e->running; *link;) {
        int ret = nb_comm_progress(*link, now_ns);
        if (ret < 0) {
            detach(link); /* wakes the thread that waits for it */
            moved = true;
            continue;
        }
        moved |= ret > 0;
        link = &(*link)->engine_next;
    }
    nb_log_label(label);
    atomic_fetch_add_explicit(&e->steps, 1, memory_order_release);
    return moved;
}
