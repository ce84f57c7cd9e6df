/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner of NCCL's process: a thread that steps the engine. Where settings ask for them, it starts a
 * thread that reads the file of NIBBLE_CONTROL, and a thread that writes metrics and hang reports
 * (report/report.h). It polls while something moves and a little longer (NB_SPIN_US). Otherwise it sleeps in
 * ppoll(): on the descriptors of the transports, or for a short time where some events have no descriptor.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "base/sync.h"
#include "coll/comm/node.h"
#include "coll/engine.h"
#include "coll/report/report.h"

/* Sleeps without descriptors grow by an eighth while they are in vain: a short wait loses little time,
 * and a long wait costs little CPU. */
#define BLIND_US 50
#define BLIND_MOST_US 1000
#define MAX_FDS 16384

struct runner {
    struct nb_engine *engine;
    const struct nb_clock *clock;
    pthread_t thread;
    struct nb_wake wake;
    _Atomic int stop;
    struct pollfd *fds; /* [MAX_FDS]. The first descriptor is for `wake` */
    long blind_us;      /* length of the next sleep without descriptors */
};

/* Sleep until there may be news. Return true when some events have no descriptor. */
static bool nap(struct runner *r)
{
    struct nb_engine_wait wait = {0};
    int64_t now_ns = nb_clock_ns(r->clock);
    struct timespec ts = {0, 0};

    if (nb_engine_prepare_sleep(r->engine)) {
        r->fds[0] = (struct pollfd){.fd = nb_wake_fd(&r->wake), .events = POLLIN};
        wait = nb_engine_wait(r->engine, now_ns, r->fds + 1, MAX_FDS - 1);
        ts.tv_nsec = wait.polled ? r->blind_us * 1000 : (long)(wait.until_ns - now_ns);
        ppoll(r->fds, (nfds_t)wait.nfds + 1, wait.until_ns == INT64_MAX ? NULL : &ts, NULL);
        if (wait.polled && r->blind_us < BLIND_MOST_US)
            r->blind_us += r->blind_us / 8;
    }
    nb_engine_end_sleep(r->engine);
    nb_wake_drain(&r->wake);
    return wait.polled;
}

static void *thread_main(void *arg)
{
    struct runner *r = arg;
    int64_t idle_since = 0;

    r->blind_us = BLIND_US;
    while (!atomic_load(&r->stop)) {
        int64_t t = nb_clock_ns(r->clock);
        if (nb_engine_step(r->engine, t)) {
            idle_since = 0;
            r->blind_us = BLIND_US;
            continue;
        }
        if (!idle_since)
            idle_since = t;
        if (t - idle_since < nb_engine_patience_ns(r->engine)) {
            sched_yield();
            continue;
        }
        if (!nap(r))
            idle_since = 0;
    }
    return NULL;
}

static void free_runner(struct runner *r)
{
    nb_wake_destroy(&r->wake);
    free(r->fds);
    free(r);
}

static int start(struct nb_engine *engine, void **run)
{
    const struct nb_context *ctx = nb_engine_context(engine);
    struct runner *r = calloc(1, sizeof(*r));
    sigset_t all, old;
    int err;

    if (!r)
        return -ENOMEM;
    r->engine = engine;
    r->clock = &ctx->clock;
    r->wake.fd = -1;
    r->fds = calloc(MAX_FDS, sizeof(*r->fds));
    if (!r->fds || nb_wake_init(&r->wake)) {
        NB_WARN("engine: out of memory or descriptors");
        free_runner(r);
        return -ENOMEM;
    }
    nb_control_file_open(&nb_engine_node(engine)->control, ctx->params->control, ctx->label);
    /* Leave signals to the application. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&r->thread, NULL, thread_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        NB_WARN("engine: cannot start its thread: %s", strerror(err));
        nb_control_file_close(&nb_engine_node(engine)->control, ctx->params->control);
        free_runner(r);
        return -err;
    }
    pthread_setname_np(r->thread, "nibble-engine");
    if (!nb_engine_node(engine)->monitor_left_behind)
        nb_engine_node(engine)->monitor = nb_monitor_open(ctx, nb_engine_step_count(engine));
    *run = r;
    return 0;
}

static void stop(void *run)
{
    struct runner *r = run;

    atomic_store(&r->stop, 1);
    nb_wake_signal(&r->wake);
    pthread_join(r->thread, NULL);
    nb_control_file_close(&nb_engine_node(r->engine)->control, nb_engine_context(r->engine)->params->control);
    nb_engine_node(r->engine)->monitor_left_behind |= !nb_monitor_close(nb_engine_node(r->engine)->monitor);
    nb_engine_node(r->engine)->monitor = NULL;
    free_runner(r);
}

static void wake(void *run)
{
    struct runner *r = run;

    nb_wake_signal(&r->wake);
}

const struct nb_runner nb_runner_thread = {.start = start, .stop = stop, .wake = wake};
