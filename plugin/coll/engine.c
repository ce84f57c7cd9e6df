/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress thread. NCCL stops calling a plugin at any moment (its proxy sleeps when it has no operation, and
 * does not call for a channel group whose GPU is late), while peers still wait for what this node has staged: so
 * nothing may depend on NCCL's calls, and the engine has a thread of its own. It is started by the first
 * communicator and joined by the last; it sleeps in poll() when nothing moves.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "base/wake.h"
#include "coll/internal.h"

#define SLEEP_MS 50    /* longest sleep with communicators: signs of life are due */
/* Sleep when a transport has no descriptors to wait for, or a device has work under way: an eighth longer each
 * time that nothing has come, so that little is lost of a short wait and little CPU on a long one. */
#define BLIND_US 50
#define BLIND_MOST_US 1000
#define WORK_US 1000   /* polling before that while a device has work under way: it takes microseconds a piece */
#define MAX_FDS 16384

struct nb_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    struct nb_wake wake;
    _Atomic int sleeping;
    int refs;                     /* under the global lock */
    int stop;                     /* under lock */
    struct nb_coll_comm *added;   /* under lock: not yet taken over */
    _Atomic int news;             /* the two above changed */
    struct nb_coll_comm *running; /* the thread's */
    struct pollfd *fds;
    long blind_us;                /* next sleep without descriptors */
};

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nb_engine *the_engine;

void nb_engine_kick(struct nb_engine *engine)
{
    /* Sequentially consistent, as are the store of the window's number before and the two in nap(): either the
     * thread's last look sees the new window or we see it asleep. */
    if (atomic_load(&engine->sleeping) && atomic_exchange(&engine->sleeping, 0))
        nb_wake_signal(&engine->wake);
}

void nb_engine_wake(struct nb_engine *engine)
{
    nb_wake_signal(&engine->wake);
}

/* Take over new communicators. 1: time to end. */
static int take_added(struct nb_engine *e)
{
    int stop;

    if (!atomic_exchange(&e->news, 0))
        return 0;
    pthread_mutex_lock(&e->lock);
    while (e->added) {
        struct nb_coll_comm *comm = e->added;
        e->added = comm->engine_next;
        comm->engine_next = e->running;
        e->running = comm;
    }
    stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop;
}

/* Unlink a closed communicator; from then on it belongs to the thread that closes it. */
static void detach(struct nb_coll_comm **link)
{
    struct nb_coll_comm *comm = *link;

    *link = comm->engine_next;
    pthread_mutex_lock(&comm->progress_lock);
    comm->detached = 1;
    pthread_cond_broadcast(&comm->closed_cond);
    pthread_mutex_unlock(&comm->progress_lock);
}

/* 1 when something was handed over since the last look. */
static int has_news(struct nb_engine *e)
{
    for (struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next)
        if (!atomic_load(&comm->error) && atomic_load(&comm->submitted) != comm->begun)
            return 1;
    return atomic_load(&e->news);
}

/* How long to poll without anything moving. */
static int64_t patience_ns(const struct nb_engine *e)
{
    int64_t us = nb_params()->spin_us;

    for (const struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next)
        if (comm->tasks_open && !atomic_load(&comm->error) && us < WORK_US)
            us = WORK_US;
    return us * (int64_t)NB_NS_PER_US;
}

/* How long this communicator's links may be left alone if nothing happens to them: at most `ns`. */
static int64_t quiet_ns(const struct nb_coll_comm *comm, int64_t now_ns, int64_t ns)
{
    for (int c = 0; c < NB_CLASS_CONTROL; c++)
        if (comm->fair[c].bounded && comm->fair[c].until_ns - now_ns < ns)
            ns = comm->fair[c].until_ns - now_ns + 1;
    return ns > 0 ? ns : 0;
}

/* 1: it was blind. */
static int nap(struct nb_engine *e)
{
    int n = 1, blind = 0;
    int64_t now_ns = (int64_t)nb_now_ns(), most = SLEEP_MS * (int64_t)NB_NS_PER_MS;
    struct timespec ts = {0, 0};

    atomic_store(&e->sleeping, 1);
    if (!has_news(e)) {
        e->fds[0] = (struct pollfd){.fd = nb_wake_fd(&e->wake), .events = POLLIN};
        for (struct nb_coll_comm *comm = e->running; comm; comm = comm->engine_next) {
            int k = nb_comm_poll_fds(comm, e->fds + n, MAX_FDS - n);
            most = quiet_ns(comm, now_ns, most);
            if (k < 0)
                blind = 1;
            else
                n += k;
        }
        ts.tv_nsec = blind ? e->blind_us * 1000 : (long)most;
        ppoll(e->fds, (nfds_t)n, e->running ? &ts : NULL, NULL);
        if (blind && e->blind_us < BLIND_MOST_US)
            e->blind_us += e->blind_us / 8;
    }
    atomic_store(&e->sleeping, 0);
    nb_wake_drain(&e->wake);
    return blind;
}

static void *engine_main(void *arg)
{
    struct nb_engine *e = arg;
    int64_t idle_since = 0;

    e->blind_us = BLIND_US;
    while (!take_added(e)) {
        int64_t t = (int64_t)nb_now_ns();
        int moved = 0;
        nb_switch_look(t);
        for (struct nb_coll_comm **link = &e->running; *link;) {
            int ret = nb_comm_progress(*link, t);
            if (ret < 0) {
                detach(link);
                continue;
            }
            moved |= ret;
            link = &(*link)->engine_next;
        }
        if (moved) {
            idle_since = 0;
            e->blind_us = BLIND_US;
            continue;
        }
        if (!idle_since)
            idle_since = t;
        if (e->running && t - idle_since < patience_ns(e)) {
            sched_yield();
            continue;
        }
        if (!nap(e))
            idle_since = 0;
    }
    return NULL;
}

struct nb_engine *nb_engine_acquire(void)
{
    struct nb_engine *e;
    sigset_t all, old;
    int err;

    pthread_mutex_lock(&global_lock);
    e = the_engine;
    if (e) {
        e->refs++;
        pthread_mutex_unlock(&global_lock);
        return e;
    }
    e = calloc(1, sizeof(*e));
    if (!e)
        goto out;
    e->fds = calloc(MAX_FDS, sizeof(*e->fds));
    if (!e->fds || nb_wake_init(&e->wake)) {
        NB_WARN("engine: out of memory or descriptors");
        free(e->fds);
        free(e);
        e = NULL;
        goto out;
    }
    pthread_mutex_init(&e->lock, NULL);
    e->refs = 1;
    /* Signals are the application's business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&e->thread, NULL, engine_main, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        NB_WARN("engine: cannot start its thread: %s", strerror(err));
        nb_wake_destroy(&e->wake);
        pthread_mutex_destroy(&e->lock);
        free(e->fds);
        free(e);
        e = NULL;
        goto out;
    }
    pthread_setname_np(e->thread, "nibble-engine");
    the_engine = e;
out:
    pthread_mutex_unlock(&global_lock);
    return e;
}

void nb_engine_release(struct nb_engine *e)
{
    pthread_mutex_lock(&global_lock);
    if (--e->refs == 0) {
        the_engine = NULL;
        pthread_mutex_lock(&e->lock);
        e->stop = 1;
        atomic_store(&e->news, 1);
        pthread_mutex_unlock(&e->lock);
        nb_wake_signal(&e->wake);
        pthread_join(e->thread, NULL);
        nb_wake_destroy(&e->wake);
        pthread_mutex_destroy(&e->lock);
        free(e->fds);
        free(e);
    }
    pthread_mutex_unlock(&global_lock);
}

void nb_engine_add(struct nb_engine *e, struct nb_coll_comm *comm)
{
    pthread_mutex_lock(&e->lock);
    comm->engine_next = e->added;
    e->added = comm;
    atomic_store(&e->news, 1);
    pthread_mutex_unlock(&e->lock);
    nb_wake_signal(&e->wake);
}
