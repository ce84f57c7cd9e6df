/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads (NIBBLE_TCP_THREADS of them a device): they do the system calls of its comms, so that a
 * caller with many fast connections is not limited to what one core can copy. The streams of a comm are dealt
 * out to the threads, and a thread takes turns among its streams.
 *
 * A thread learns of work by epoll, edge-triggered, or by a kick from isend or irecv. Its lock guards its
 * list of kicked streams; it is taken inside a comm's lock, never around one.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp_int.h"

#define EVENTS 64
#define PACE_WAIT_MS 1

struct nb_tcp_thread {
    struct nb_tcp_pool *pool;
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* round has gone up */
    int epoll_fd, wake_fd;
    bool stop, asleep, running;
    uint64_t round;             /* times around the loop */
    struct nb_tcp_work *kicked; /* any order */
};

/* The threads of a device. Lives as long as the device or any of its comms. */
struct nb_tcp_pool {
    int n, users;
    unsigned next; /* where the next comm's first stream goes */
    struct nb_tcp_thread thread[];
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER; /* pool pointers of devices, and users */

static void wake(struct nb_tcp_thread *t)
{
    uint64_t one = 1;

    (void)!write(t->wake_fd, &one, sizeof(one));
}

/* One turn on a stream. Put back into `again` when it is not finished; the result is true when that should
 * happen at once, not in a while. */
static bool take_turn(struct nb_tcp_work *w, struct nb_tcp_work **again)
{
    struct nb_tcp_comm *c = w->comm;
    bool more = false, paced = false;

    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->closing)) {
        more = c->is_send ? nb_tcp_send_turn((struct nb_tcp_send *)c, w->stream, &paced)
                          : nb_tcp_recv_turn((struct nb_tcp_recv *)c, w->stream);
        nb_tcp_threads_notify(c);
    }
    pthread_mutex_unlock(&c->lock);
    if (!more && !paced)
        return false;
    pthread_mutex_lock(&w->thread->lock);
    if (!w->queued) {
        w->queued = true;
        w->next = *again;
        *again = w;
    }
    pthread_mutex_unlock(&w->thread->lock);
    return more;
}

static void *thread_main(void *arg)
{
    struct nb_tcp_thread *t = arg;
    struct nb_tcp_work *list, *again = NULL;
    struct epoll_event ev[EVENTS];
    bool at_once = false;

    for (;;) {
        int n;

        pthread_mutex_lock(&t->lock);
        /* What is left from the last time around joins what was kicked; comms that are being closed leave. */
        while (again) {
            struct nb_tcp_work *w = again;

            again = w->next;
            w->next = t->kicked;
            t->kicked = w;
        }
        for (struct nb_tcp_work **p = &t->kicked; *p;) {
            struct nb_tcp_work *w = *p;

            if (atomic_load(&w->comm->closing)) {
                *p = w->next;
                w->queued = false;
            } else {
                p = &w->next;
            }
        }
        t->round++;
        pthread_cond_broadcast(&t->turned);
        if (t->stop) {
            t->running = false;
            pthread_mutex_unlock(&t->lock);
            return NULL;
        }
        t->asleep = !t->kicked;
        n = t->kicked ? at_once ? 0 : PACE_WAIT_MS : -1;
        pthread_mutex_unlock(&t->lock);

        n = epoll_wait(t->epoll_fd, ev, EVENTS, n);

        pthread_mutex_lock(&t->lock);
        t->asleep = false;
        for (int i = 0; i < n; i++) {
            struct nb_tcp_work *w = ev[i].data.ptr;

            if (!w) {
                uint64_t count;

                (void)!read(t->wake_fd, &count, sizeof(count));
            } else if (!w->queued) {
                w->queued = true;
                w->next = t->kicked;
                t->kicked = w;
            }
        }
        list = t->kicked;
        t->kicked = NULL;
        pthread_mutex_unlock(&t->lock);
        at_once = false;
        while (list) {
            struct nb_tcp_work *w = list;

            pthread_mutex_lock(&t->lock);
            list = w->next;
            w->queued = false; /* a kick from here on means another turn */
            pthread_mutex_unlock(&t->lock);
            at_once |= take_turn(w, &again);
        }
    }
}

static void thread_fini(struct nb_tcp_thread *t)
{
    pthread_cond_destroy(&t->turned);
    pthread_mutex_destroy(&t->lock);
    close(t->wake_fd);
    close(t->epoll_fd);
}

static int thread_init(struct nb_tcp_thread *t, struct nb_tcp_pool *pool)
{
    struct epoll_event ev = {.events = EPOLLIN};
    sigset_t all, old;
    int rc;

    t->pool = pool;
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (t->epoll_fd < 0)
        return -errno;
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->wake_fd < 0 || epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->wake_fd, &ev) != 0) {
        rc = -errno;
        if (t->wake_fd >= 0)
            close(t->wake_fd);
        close(t->epoll_fd);
        return rc;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->turned, NULL);
    t->running = true;
    /* The job's signals are for the job's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&t->id, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        thread_fini(t);
        return -rc;
    }
    pthread_setname_np(t->id, "nibble-tcp");
    return 0;
}

static void pool_put(struct nb_tcp_pool *p)
{
    if (--p->users > 0)
        return;
    for (int i = 0; i < p->n; i++)
        thread_fini(&p->thread[i]);
    free(p);
}

static void pool_stop(struct nb_tcp_pool *p)
{
    for (int i = 0; i < p->n; i++) {
        struct nb_tcp_thread *t = &p->thread[i];

        pthread_mutex_lock(&t->lock);
        t->stop = true;
        pthread_mutex_unlock(&t->lock);
        wake(t);
        pthread_join(t->id, NULL);
    }
}

static int pool_new(int n, struct nb_tcp_pool **out)
{
    struct nb_tcp_pool *p = calloc(1, sizeof(*p) + (size_t)n * sizeof(p->thread[0]));
    int rc;

    if (!p)
        return -ENOMEM;
    p->users = 1;
    for (; p->n < n; p->n++) {
        rc = thread_init(&p->thread[p->n], p);
        if (rc) {
            NB_WARN("tcp: cannot start helper thread %d of %d: %s", p->n + 1, n, strerror(-rc));
            pool_stop(p);
            pool_put(p);
            return rc;
        }
    }
    *out = p;
    return 0;
}

int nb_tcp_threads_attach(struct nb_tcp_comm *c, const int *fds)
{
    struct nb_tcp_pool *p;
    int rc = 0, i;

    if (nb_tcp_conf.threads == 0)
        return 0;
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event_fd < 0)
        return -errno;
    pthread_mutex_lock(&pools_lock);
    if (!c->dev->pool)
        rc = pool_new(nb_tcp_conf.threads, &c->dev->pool);
    p = c->dev->pool;
    if (!rc) {
        p->users++;
        for (i = 0; i < c->nstreams; i++)
            c->work[i] = (struct nb_tcp_work){.comm = c, .stream = i,
                                              .thread = &p->thread[(p->next + (unsigned)i) % (unsigned)p->n]};
        p->next += (unsigned)c->nstreams;
    }
    pthread_mutex_unlock(&pools_lock);
    if (rc)
        return rc;
    c->pool = p;
    c->threaded = true;
    for (i = 0; i < c->nstreams; i++) {
        struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = &c->work[i]};

        if (c->is_send)
            ev.events = i == 0 ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLOUT | EPOLLET;
        if (epoll_ctl(c->work[i].thread->epoll_fd, EPOLL_CTL_ADD, fds[i], &ev) != 0) {
            rc = -errno;
            NB_WARN("tcp: cannot watch a socket to %s: %s", c->peer, strerror(-rc));
            nb_tcp_threads_detach(c, fds);
            return rc;
        }
    }
    return 0;
}

void nb_tcp_threads_detach(struct nb_tcp_comm *c, const int *fds)
{
    if (!c->threaded)
        return;
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->closing, true);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->nstreams; i++)
        epoll_ctl(c->work[i].thread->epoll_fd, EPOLL_CTL_DEL, fds[i], NULL);
    /* A thread may have fetched an event of ours before that. It lets go of it when it comes around the
     * loop. */
    for (int i = 0; i < c->pool->n; i++) {
        struct nb_tcp_thread *t = &c->pool->thread[i];
        uint64_t round;

        pthread_mutex_lock(&t->lock);
        round = t->round;
        wake(t);
        while (t->running && t->round == round)
            pthread_cond_wait(&t->turned, &t->lock);
        pthread_mutex_unlock(&t->lock);
    }
    pthread_mutex_lock(&pools_lock);
    pool_put(c->pool);
    pthread_mutex_unlock(&pools_lock);
    c->pool = NULL;
    c->threaded = false;
}

void nb_tcp_threads_kick(struct nb_tcp_comm *c, int stream)
{
    struct nb_tcp_work *w = &c->work[stream];
    struct nb_tcp_thread *t = w->thread;
    bool asleep = false;

    pthread_mutex_lock(&t->lock);
    if (!w->queued) {
        w->queued = true;
        w->next = t->kicked;
        t->kicked = w;
        asleep = t->asleep;
        t->asleep = false; /* one wake is enough */
    }
    pthread_mutex_unlock(&t->lock);
    if (asleep)
        wake(t);
}

void nb_tcp_threads_notify(struct nb_tcp_comm *c)
{
    uint64_t one = 1;

    if (!c->armed || (c->done_untested == 0 && !c->err))
        return;
    c->armed = false;
    (void)!write(c->event_fd, &one, sizeof(one));
}

void nb_tcp_threads_settle(struct nb_tcp_comm *c)
{
    while (c->busy > 0)
        pthread_cond_wait(&c->idle, &c->lock);
}

int nb_tcp_threads_poll(struct nb_tcp_comm *c, struct pollfd *fds, int max)
{
    uint64_t count;
    int n = 1;

    pthread_mutex_lock(&c->lock);
    if (c->err || c->done_untested > 0 || max < 1) {
        n = -1;
    } else if (c->unfinished == 0) {
        n = 0;
    } else {
        (void)!read(c->event_fd, &count, sizeof(count));
        c->armed = true;
        fds[0] = (struct pollfd){.fd = c->event_fd, .events = POLLIN};
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

void nb_tcp_threads_stop(struct nb_tcp_dev *dev)
{
    struct nb_tcp_pool *p;

    pthread_mutex_lock(&pools_lock);
    p = dev->pool;
    dev->pool = NULL;
    pthread_mutex_unlock(&pools_lock);
    if (!p)
        return;
    pool_stop(p);
    pthread_mutex_lock(&pools_lock);
    pool_put(p);
    pthread_mutex_unlock(&pools_lock);
}
