/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and graphs of the fake driver: a stream is a thread with a queue. See fake_driver.h. */
#include "fake_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_kernel.h"
#include "tests/gpu/emulate.h"

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned long kernels;

/* ---- Streams ------------------------------------------------------------------------------------------- */

struct fake_graph {
    struct fake_item *first, **last;
    uint64_t id;
    struct fake_stream *origin;
    unsigned holds; /* under lock */
};

static struct fake_graph *capturing[8];
static uint64_t captures;

unsigned long fake_kernels(void)
{
    pthread_mutex_lock(&fake_lock);
    unsigned long n = kernels;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static void run_kernel(const struct fake_item *it)
{
    if (fake.lazy_us)
        usleep(fake.lazy_us);
    while (fake.never) /* the test sets it back */
        usleep(1000);
    if (it->launch.ring && fake.emulate)
        nb_emulate_run(&it->launch, it->blocks < NB_EMULATE_BLOCKS ? it->blocks : NB_EMULATE_BLOCKS,
                       it->value + 1);
    else
        fake_kernel(&it->launch, fake.stuck);
    pthread_mutex_lock(&fake_lock);
    kernels++;
    pthread_mutex_unlock(&fake_lock);
}

static void run_item(struct fake_item *it)
{
    switch (it->kind) {
    case RECORD:
        pthread_mutex_lock(&fake_lock);
        if (it->event->reached < it->value)
            it->event->reached = it->value;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&fake_lock);
        break;
    case WAIT:
        pthread_mutex_lock(&fake_lock);
        while (it->event->reached < it->value)
            pthread_cond_wait(&changed, &fake_lock);
        pthread_mutex_unlock(&fake_lock);
        break;
    case LAUNCH: run_kernel(it); break;
    case SET:
        if (it->bytes == 4 && (uintptr_t)it->at % 4 == 0)
            __atomic_store_n((uint32_t *)(void *)it->at, it->pattern, __ATOMIC_RELEASE);
        else if (!it->pattern)
            fake_zero(fake_seen_at(it->at), it->bytes);
        else
            memset(fake_seen_at(it->at), (int)it->pattern, it->bytes);
        break;
    case COPY: memcpy(fake_seen_at(it->at), fake_seen_at(it->from), it->bytes); break;
    case FUNCTION: it->function(it->argument); break;
    case GRAPH:
        fake_replay(it->graph);
        fake_graph_free(it->graph);
        break;
    }
}

static struct fake_event *events; /* under lock */

struct fake_event *fake_make_event(void)
{
    struct fake_event *e = calloc(1, sizeof(*e));

    if (!e)
        abort();
    pthread_mutex_lock(&fake_lock);
    e->next = events;
    e->link = &events;
    if (events)
        events->link = &e->next;
    events = e;
    pthread_mutex_unlock(&fake_lock);
    return e;
}

/* Free an event. The caller holds the lock. */
static void free_event(struct fake_event *e)
{
    *e->link = e->next;
    if (e->next)
        e->next->link = e->link;
    free(e);
}

void fake_end_event(struct fake_event *e)
{
    pthread_mutex_lock(&fake_lock);
    if (e->destroyed)
        fake_wrong("an event was destroyed twice");
    e->destroyed = 1;
    if (e->items == 0)
        free_event(e);
    pthread_mutex_unlock(&fake_lock);
}

/* Release an item that has run. The caller holds the lock. */
static void drop(struct fake_item *it)
{
    struct fake_event *e = it->event;

    if (e && --e->items == 0 && e->destroyed)
        free_event(e);
    free(it);
}

static void *stream_main(void *arg)
{
    struct fake_stream *s = arg;

    pthread_mutex_lock(&fake_lock);
    for (;;) {
        struct fake_item *it = s->first;
        if (!it) {
            if (s->end)
                break;
            if (s->busy) { /* once: idle streams that told each other would never sleep */
                s->busy = 0;
                pthread_cond_broadcast(&changed);
            }
            pthread_cond_wait(&changed, &fake_lock);
            continue;
        }
        s->first = it->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = 1;
        pthread_mutex_unlock(&fake_lock);
        run_item(it);
        pthread_mutex_lock(&fake_lock);
        drop(it);
    }
    pthread_mutex_unlock(&fake_lock);
    nb_emulate_end();
    return NULL;
}

struct fake_graph *fake_graph_of(uint64_t id)
{
    for (unsigned i = 0; i < 8; i++)
        if (capturing[i] && capturing[i]->id == id)
            return capturing[i];
    return NULL;
}

/* Append an item to a stream. The caller holds the lock. */
void fake_put(struct fake_stream *s, const struct fake_item *what)
{
    struct fake_item *it = malloc(sizeof(*it));
    struct fake_graph *g = s->capture ? fake_graph_of(s->capture) : NULL;

    if (!it)
        abort();
    *it = *what;
    it->next = NULL;
    it->stream = s;
    if (it->event)
        it->event->items++;
    if (g) {
        *g->last = it;
        g->last = &it->next;
        return;
    }
    *s->last = it;
    s->last = &it->next;
    s->busy = 1;
    pthread_cond_broadcast(&changed);
}

struct fake_stream *fake_make_stream(void)
{
    struct fake_stream *s = calloc(1, sizeof(*s));

    if (!s)
        abort();
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, stream_main, s))
        abort();
    return s;
}

void fake_end_stream(struct fake_stream *s)
{
    pthread_mutex_lock(&fake_lock);
    s->end = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&fake_lock);
    pthread_join(s->thread, NULL);
    free(s);
}

nb_cu_stream fake_stream(void)
{
    return fake_make_stream();
}

void fake_stream_free(nb_cu_stream stream)
{
    fake_end_stream(stream);
}

void fake_run(nb_cu_stream stream, void (*function)(void *), void *argument)
{
    pthread_mutex_lock(&fake_lock);
    fake_put(stream, &(struct fake_item){.kind = FUNCTION, .function = function, .argument = argument});
    pthread_mutex_unlock(&fake_lock);
}

void fake_wait(nb_cu_stream stream)
{
    struct fake_stream *s = stream;

    pthread_mutex_lock(&fake_lock);
    while (s->first || s->busy)
        pthread_cond_wait(&changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- Graphs -------------------------------------------------------------------------------------------- */

void fake_capture(nb_cu_stream stream)
{
    struct fake_stream *s = stream;
    struct fake_graph *g = calloc(1, sizeof(*g));

    if (!g)
        abort();
    pthread_mutex_lock(&fake_lock);
    g->last = &g->first;
    g->holds = 1;
    g->id = ++captures;
    g->origin = s;
    s->capture = g->id;
    for (unsigned i = 0;; i++) {
        if (i == 8)
            fake_wrong("too many captures");
        if (!capturing[i]) {
            capturing[i] = g;
            break;
        }
    }
    pthread_mutex_unlock(&fake_lock);
}

struct fake_graph *fake_capture_try_end(nb_cu_stream stream)
{
    struct fake_stream *s = stream;
    struct fake_graph *g;
    struct fake_stream *joined = NULL;

    pthread_mutex_lock(&fake_lock);
    g = fake_graph_of(s->capture);
    for (unsigned i = 0; i < 8; i++)
        if (capturing[i] == g)
            capturing[i] = NULL;
    for (struct fake_item *it = g->first; it; it = it->next) {
        it->stream->capture = 0;
        if (it->stream != s && it->kind == RECORD)
            joined = it->stream; /* something waits for part of it, see below */
    }
    s->capture = 0;
    /* Require that each captured stream is joined: the origin must wait for its last item. */
    for (struct fake_item *it = g->first; it && joined; it = it->next)
        if (it->stream == s && it->kind == WAIT)
            joined = NULL;
    pthread_mutex_unlock(&fake_lock);
    if (!joined)
        return g;
    fake_graph_free(g);
    return NULL;
}

struct fake_graph *fake_capture_end(nb_cu_stream stream)
{
    struct fake_graph *g = fake_capture_try_end(stream);

    if (!g)
        fake_wrong("a capture that ends with work that is not joined");
    return g;
}

static unsigned lane_of(struct fake_stream *const *of, unsigned n, const struct fake_stream *stream)
{
    unsigned i = 0;

    while (i < n && of[i] != stream)
        i++;
    return i;
}

/* Each replay has its own records of a graph's events: their counts go on. */
void fake_replay(struct fake_graph *g)
{
    struct fake_stream *lane[32];
    struct fake_stream *of[32];
    unsigned n = 0;

    for (struct fake_item *it = g->first; it; it = it->next) {
        if (lane_of(of, n, it->stream) < n)
            continue;
        if (n == 32)
            fake_wrong("a graph of too many streams");
        of[n] = it->stream;
        lane[n++] = fake_make_stream();
    }
    pthread_mutex_lock(&fake_lock); /* no other record of an event comes between one and its wait */
    for (struct fake_item *it = g->first; it; it = it->next) {
        struct fake_item copy = *it;
        if (it->kind == RECORD)
            copy.value = ++it->event->recorded;
        if (it->kind == WAIT)
            copy.value = it->event->recorded;
        fake_put(lane[lane_of(of, n, it->stream)], &copy);
    }
    pthread_mutex_unlock(&fake_lock);
    for (unsigned i = 0; i < n; i++)
        fake_end_stream(lane[i]);
}

void fake_hold(struct fake_graph *g)
{
    pthread_mutex_lock(&fake_lock);
    g->holds++;
    pthread_mutex_unlock(&fake_lock);
}

void fake_graph_free(struct fake_graph *g)
{
    pthread_mutex_lock(&fake_lock);
    if (--g->holds) {
        pthread_mutex_unlock(&fake_lock);
        return;
    }
    while (g->first) {
        struct fake_item *it = g->first;
        g->first = it->next;
        drop(it);
    }
    pthread_mutex_unlock(&fake_lock);
    free(g);
}
