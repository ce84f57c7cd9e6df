/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host threads of the model (model.h). They are fibers (fiber.h), so that a run repeats exactly, and a stack
 * can be given up where it waits for ever. Programs are linked with --wrap for the functions below, so that
 * the plugin uses the model's mutexes, threads and sleeps while a thread of the model runs.
 */
#include "model_inside.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/fiber.h"

#define THREADS 128u
#define MUTEXES 256u
#define PATIENCE (5 * MODEL_SECOND)

struct model_thread {
    enum model_kind kind;
    char name[48];
    enum model_role role;
    struct nb_fiber fiber;
    void (*main)(void *);
    void *argument;
    void *(*posix)(void *); /* entry of a thread of pthread_create */
    int done;
    int64_t until; /* asleep until then, INT64_MAX: only `ready` ends the wait */
    int (*ready)(void *);
    void *ready_argument;
    const void *who;
    const char *what;
    unsigned (*blockers)(void *, const void **, unsigned);
    struct model_contexts contexts;
};

struct model_settings model;
int model_after_connect;

static struct {
    int open;
    int64_t now, moved;
    uint64_t random;
    struct model_thread *thread[THREADS], *self;
    unsigned threads;
    struct {
        pthread_mutex_t *mutex;
        struct model_thread *owner;
    } mutex[MUTEXES];
    unsigned mutexes;
    struct {
        const void *condition;
        uint64_t signals;
    } condition[16];
    struct nb_fiber main;
    char said[4096];
    const char *stop;
} host;

void model_wrong(const char *what)
{
    fprintf(stderr, "model: %s\n", what);
    abort();
}

int64_t model_now(void)
{
    return host.now;
}

uint64_t model_random(uint64_t below)
{
    host.random = host.random * 6364136223846793005u + 1442695040888963407u;
    return (host.random >> 33) % (below ? below : 1);
}

void model_moved(void)
{
    host.moved = host.now;
}

void model_stop(const char *why)
{
    if (!host.stop)
        host.stop = why;
}

struct model_thread *model_self(void)
{
    return host.self;
}

const char *model_thread_name(const struct model_thread *thread)
{
    return thread->name;
}

enum model_role model_thread_role(const struct model_thread *thread)
{
    return thread->role;
}

struct model_contexts *model_contexts(void)
{
    static struct model_contexts outside;
    return host.self ? &host.self->contexts : &outside;
}

void model_connected(int yes)
{
    model_after_connect = yes;
}

/* ---- Switching ----------------------------------------------------------------------------------------- */

static void begin(void)
{
    struct model_thread *t = host.self;

    if (t->posix)
        t->posix(t->argument);
    else
        t->main(t->argument);
    t->done = 1;
    model_moved();
    host.self = NULL;
    nb_fiber_leave(&t->fiber, &host.main);
}

static struct model_thread *make(const char *name, enum model_role role)
{
    struct model_thread *t = calloc(1, sizeof(*t));

    if (!t || host.threads == THREADS)
        abort();
    t->kind = MODEL_A_THREAD;
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->role = role;
    t->contexts.gpu[0] = -1;
    nb_fiber_open(&t->fiber, begin);
    host.thread[host.threads++] = t;
    return t;
}

struct model_thread *model_thread(const char *name, enum model_role role, void (*main)(void *),
                                  void *argument)
{
    struct model_thread *t = make(name, role);

    t->main = main;
    t->argument = argument;
    return t;
}

static void rest(int64_t until, int (*ready)(void *), void *argument, const char *what)
{
    struct model_thread *t = host.self;

    if (!t)
        model_wrong("something would wait outside of the model's threads");
    t->until = until;
    t->ready = ready;
    t->ready_argument = argument;
    t->what = what;
    host.self = NULL;
    nb_fiber_switch(&t->fiber, &host.main);
    t->ready = NULL;
    t->blockers = NULL;
    t->who = NULL;
}

void model_sleep(int64_t ns)
{
    rest(host.now + (ns > 0 ? ns : 1), NULL, NULL, "sleeps");
}

void model_block(int (*ready)(void *), void *argument, const char *what,
                 unsigned (*blockers)(void *, const void **, unsigned))
{
    if (ready(argument))
        return;
    host.self->blockers = blockers;
    rest(INT64_MAX, ready, argument, what);
}

void model_wait(int (*ready)(void *), void *argument, const void *who, const char *what)
{
    if (ready(argument))
        return;
    host.self->who = who;
    rest(INT64_MAX, ready, argument, what);
}

static int has_ended(void *thread)
{
    return ((struct model_thread *)thread)->done;
}

void model_join(struct model_thread *thread)
{
    model_wait(has_ended, thread, thread, "its end");
}

/* ---- The watchdog -------------------------------------------------------------------------------------- */

static enum model_kind kind_of(const void *node)
{
    return *(const enum model_kind *)node;
}

static const char *name_of(const void *node)
{
    switch (kind_of(node)) {
    case MODEL_A_THREAD: return ((const struct model_thread *)node)->name;
    case MODEL_A_KERNEL: return ((const struct model_kernel *)node)->name;
    default: return model_op_name(node);
    }
}

static unsigned blockers_of(const void *node, const void **out, unsigned most, const char **why)
{
    if (kind_of(node) == MODEL_AN_OPERATION)
        return model_op_blockers(node, out, most, why);
    if (kind_of(node) == MODEL_A_KERNEL) {
        const struct model_kernel *k = node;
        *why = "its launch";
        if (k->over || !most || (!k->op && !k->launcher))
            return 0;
        if (k->op)
            return model_op_blockers(k->op, out, most, why);
        out[0] = k->launcher;
        return 1;
    }
    const struct model_thread *t = node;
    *why = t->what;
    if (t->done || t->until != INT64_MAX)
        return 0;
    if (t->blockers)
        return t->blockers(t->ready_argument, out, most);
    if (t->who && most) {
        out[0] = t->who;
        return 1;
    }
    return 0;
}

#define NODES 512u
#define EDGES 64u

static struct {
    const void *node[NODES], *path[NODES];
    const char *why[NODES];
    unsigned nodes, depth;
} search;

static int find_circle(const void *node)
{
    const void *next[EDGES];
    const char *why = "waits";

    for (unsigned i = 0; i < search.depth; i++) {
        if (search.path[i] != node)
            continue;
        size_t at = (size_t)snprintf(host.said, sizeof(host.said), "a circle:");
        for (unsigned k = i; k < search.depth && at < sizeof(host.said); k++)
            at += (size_t)snprintf(host.said + at, sizeof(host.said) - at, " [%s] --%s-->",
                                   name_of(search.path[k]), search.why[k]);
        if (at < sizeof(host.said))
            snprintf(host.said + at, sizeof(host.said) - at, " [%s]", name_of(node));
        return 1;
    }
    for (unsigned i = 0; i < search.nodes; i++)
        if (search.node[i] == node)
            return 0;
    if (search.nodes == NODES || search.depth == NODES)
        return 0;
    search.node[search.nodes++] = node;
    const unsigned n = blockers_of(node, next, EDGES, &why);
    search.path[search.depth] = node;
    search.why[search.depth] = why;
    search.depth++;
    for (unsigned i = 0; i < n; i++)
        if (find_circle(next[i]))
            return 1;
    search.depth--;
    return 0;
}

static const char *explain(void)
{
    const void *waiting[NODES];
    unsigned n = 0;
    size_t at;

    memset(&search, 0, sizeof(search));
    for (unsigned i = 0; i < host.threads; i++)
        if (!host.thread[i]->done && n < NODES)
            waiting[n++] = host.thread[i];
    n += model_all_waiting(waiting + n, NODES - n);
    for (unsigned i = 0; i < n; i++)
        if (find_circle(waiting[i]))
            return host.said;
    at = (size_t)snprintf(host.said, sizeof(host.said), "nothing moves:");
    for (unsigned i = 0; i < n && at < sizeof(host.said); i++) {
        const void *next[EDGES];
        const char *why = "";
        const unsigned k = blockers_of(waiting[i], next, EDGES, &why);
        at += (size_t)snprintf(host.said + at, sizeof(host.said) - at, " [%s] --%s-->%s%s%s;",
                               name_of(waiting[i]), why, k ? " [" : "", k ? name_of(next[0]) : "",
                               k ? "]" : "");
    }
    return host.said;
}

/* ---- A run --------------------------------------------------------------------------------------------- */

void model_open(const struct model_settings *settings)
{
    if (host.open)
        model_wrong("two runs at once");
    memset(&host, 0, sizeof(host));
    model = *settings;
    if (!model.queues)
        model.queues = 8;
    if (!model.sms)
        model.sms = 132;
    if (!model.patience)
        model.patience = PATIENCE;
    host.open = 1;
    host.now = MODEL_SECOND; /* 0 means "never" in some places */
    host.moved = host.now;
    host.random = model.seed * 2654435761u + 12345;
    model_after_connect = 0;
    model_gpus_open();
    model_codec_open();
}

void model_close(void)
{
    for (unsigned i = 0; i < host.threads; i++) {
        nb_fiber_close(&host.thread[i]->fiber);
        free(host.thread[i]);
    }
    model_gpus_close();
    host.threads = 0;
    host.open = 0;
}

static int may_run(const struct model_thread *t)
{
    if (t->done)
        return 0;
    return t->until <= host.now || (t->ready && t->ready(t->ready_argument));
}

static int run_threads(void)
{
    int ran = 0;
    const unsigned n = host.threads, first = (unsigned)model_random(n);

    for (unsigned i = 0; i < n && !host.stop; i++) {
        struct model_thread *t = host.thread[(first + i) % n];
        if (!may_run(t))
            continue;
        host.self = t;
        nb_fiber_switch(&host.main, &t->fiber);
        ran = 1;
    }
    return ran;
}

static int all_ended(void)
{
    for (unsigned i = 0; i < host.threads; i++)
        if (!host.thread[i]->done && host.thread[i]->role != MODEL_BESIDE)
            return 0;
    return 1;
}

const char *model_run(void)
{
    const int says = getenv("NB_MODEL_SAYS") != NULL;
    int64_t said = host.now;

    for (;;) {
        int64_t next;
        if (says && host.now - said > MODEL_SECOND / 10) {
            said = host.now;
            fprintf(stderr, "%.1f s, moved %.1f: %s\n", (double)host.now / 1e9, (double)host.moved / 1e9,
                    explain());
        }
        while (model_gpus_step() && !host.stop)
            ;
        if (host.stop)
            return host.stop;
        if (run_threads())
            continue;
        if (host.stop)
            return host.stop;
        if (all_ended())
            return NULL;
        next = model_gpus_next();
        for (unsigned i = 0; i < host.threads; i++)
            if (!host.thread[i]->done && host.thread[i]->until < next)
                next = host.thread[i]->until;
        if (next == INT64_MAX || next - host.moved > model.patience)
            return explain();
        host.now = next;
    }
}

/* ---- Functions with which programs are linked (--wrap) ------------------------------------------------- */

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*main)(void *), void *argument);
int __real_pthread_join(pthread_t t, void **result);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_signal(pthread_cond_t *c);
int __real_pthread_cond_broadcast(pthread_cond_t *c);
int __real_nanosleep(const struct timespec *t, struct timespec *left);
int __real_sched_yield(void);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*main)(void *), void *argument);
int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_signal(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_sched_yield(void);

static struct model_thread **owner_of(pthread_mutex_t *m)
{
    for (unsigned i = 0; i < host.mutexes; i++)
        if (host.mutex[i].mutex == m)
            return &host.mutex[i].owner;
    for (unsigned i = 0; i < host.mutexes; i++) {
        if (!host.mutex[i].owner) {
            host.mutex[i].mutex = m;
            return &host.mutex[i].owner;
        }
    }
    if (host.mutexes == MUTEXES)
        model_wrong("too many mutexes");
    host.mutex[host.mutexes].mutex = m;
    return &host.mutex[host.mutexes++].owner;
}

static int is_free(void *mutex)
{
    return *owner_of(mutex) == NULL;
}

static unsigned mutex_blockers(void *mutex, const void **out, unsigned most)
{
    struct model_thread *owner = *owner_of(mutex);
    if (!owner || !most)
        return 0;
    out[0] = owner;
    return 1;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    if (!host.self)
        return __real_pthread_mutex_lock(m);
    model_block(is_free, m, "a mutex", mutex_blockers);
    *owner_of(m) = host.self;
    return __real_pthread_mutex_lock(m);
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
    const int ret = __real_pthread_mutex_trylock(m);

    if (ret == 0 && host.self)
        *owner_of(m) = host.self;
    return ret;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    if (host.self)
        *owner_of(m) = NULL;
    return __real_pthread_mutex_unlock(m);
}

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *a, void *(*main)(void *), void *argument)
{
    if (!host.self)
        return __real_pthread_create(id, a, main, argument);
    struct model_thread *t = make("helper", MODEL_BESIDE);
    t->posix = main;
    t->argument = argument;
    *id = (pthread_t)(uintptr_t)t;
    return 0;
}

int __wrap_pthread_join(pthread_t id, void **result)
{
    if (!host.self)
        return __real_pthread_join(id, result);
    model_join((struct model_thread *)(uintptr_t)id);
    return 0;
}

struct signalled {
    unsigned at;
    uint64_t before;
};

static unsigned condition_at(const void *c)
{
    for (unsigned i = 0; i < 16; i++) {
        if (!host.condition[i].condition)
            host.condition[i].condition = c;
        if (host.condition[i].condition == c)
            return i;
    }
    model_wrong("too many conditions");
}

static int was_signalled(void *s)
{
    const struct signalled *w = s;
    return host.condition[w->at].signals != w->before;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    struct signalled w;

    if (!host.self)
        return __real_pthread_cond_wait(c, m);
    w.at = condition_at(c);
    w.before = host.condition[w.at].signals;
    __wrap_pthread_mutex_unlock(m);
    model_wait(was_signalled, &w, NULL, "a signal");
    return __wrap_pthread_mutex_lock(m);
}

int __wrap_pthread_cond_signal(pthread_cond_t *c)
{
    if (host.self)
        host.condition[condition_at(c)].signals++;
    return __real_pthread_cond_signal(c);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
    if (host.self)
        host.condition[condition_at(c)].signals++;
    return __real_pthread_cond_broadcast(c);
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
    if (!host.self)
        return __real_nanosleep(t, left);
    model_sleep((int64_t)t->tv_sec * MODEL_SECOND + t->tv_nsec);
    return 0;
}

int __wrap_sched_yield(void)
{
    if (!host.self)
        return __real_sched_yield();
    model_sleep(5 * MODEL_US);
    return 0;
}
