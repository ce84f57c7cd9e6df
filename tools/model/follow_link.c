/* SPDX-License-Identifier: Apache-2.0 */
/* Rings and links; see follow.h. */
#include <stdlib.h>

#include "follow.h"

#define CHUNK 1024
#define LITTLE 1e-9 /* seconds */

struct chunk {
    struct chunk *next;
    struct message of[CHUNK];
};

struct ring *follow_ring(const struct follow *f, int from, int to, enum follow_class class)
{
    const int k = f->columns;
    const size_t peer = (size_t)(from / k == to / k ? to % k : k + to / k);

    return &f->ring[((size_t)from * (size_t)(k + f->rows) + peer) * FOLLOW_CLASSES + class];
}

struct message *follow_message(struct follow *f, struct ring *r, struct segment *s, double bytes)
{
    struct message *m;

    if (!f->spare) {
        struct chunk *c = malloc(sizeof(*c));
        if (!c) {
            f->failed = true;
            return NULL;
        }
        c->next = f->chunks;
        f->chunks = c;
        for (int i = 0; i < CHUNK; i++)
            follow_free(f, &c->of[i]);
    }
    m = f->spare;
    f->spare = m->next;
    *m = (struct message){.ring = r, .segment = s, .bytes = bytes};
    return m;
}

void follow_free(struct follow *f, struct message *m)
{
    m->next = f->spare;
    f->spare = m;
}

void follow_free_all(struct follow *f)
{
    while (f->chunks) {
        struct chunk *c = f->chunks;
        f->chunks = c->next;
        free(c);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

void follow_work(struct follow *f, int node, double seconds)
{
    f->node[node].thread += seconds / f->w->f->cores;
    f->w->used += seconds / f->w->n;
}

void follow_wake(struct follow *f, int node)
{
    struct node *n = &f->node[node];

    if (n->woken)
        return;
    n->woken = true;
    nm_agenda_put(&f->agenda, nb_max_double(f->now, n->thread), FOLLOW_ROUND, node, NULL);
}

/* ---- rings --------------------------------------------------------------------------------------------- */

static void offer(struct follow *f, struct ring *r)
{
    f->node[r->from].offers += !r->offered;
    r->offered = true;
}

static void use(struct follow *f, struct ring *r, int buffers)
{
    int *pending = &f->node[r->from].pending[(r - f->ring) % FOLLOW_CLASSES];

    *pending -= r->used > 0;
    r->used += buffers;
    *pending += r->used > 0;
}

void follow_made(struct follow *f, struct message *m)
{
    use(f, m->ring, 1);
    follow_append(&m->ring->made, m);
    offer(f, m->ring);
}

static bool takes(const struct follow *f, const struct ring *r)
{
    const double queue = f->w->f->queue;

    return queue <= 0 || r->under_way <= 0 || r->under_way + r->made.head->bytes <= queue;
}

bool follow_send(struct follow *f, int node)
{
    const bool early = f->w->f->queue > 0;
    /* What goes straight to the owners of sums is not held back. */
    const bool fair =
        early && !(f->w->op->schedule == NB_COST_DIRECT && f->w->op->func == NB_FUNC_REDUCE_SCATTER);
    struct node *n = &f->node[node];
    bool moved = false;
    int held = 0;

    for (int c = 0; fair && c < FOLLOW_CLASSES; c++)
        follow_look_fair(f, node, (enum follow_class)c);
    for (int i = 0; n->offers > held && i < FOLLOW_CLASSES * f->npeers; i++) {
        const int to = f->peers[node * f->npeers + i / FOLLOW_CLASSES];
        const enum follow_class class = (enum follow_class)(i % FOLLOW_CLASSES);
        struct ring *r = follow_ring(f, node, to, class);

        if (!r->offered)
            continue;
        n->offers--;
        r->offered = false;
        while (r->made.head && takes(f, r)) {
            struct message *m;
            if (fair && r->had > n->fair[class].most) {
                offer(f, r);
                held++;
                if (n->alarm <= f->now) {
                    n->alarm = n->fair[class].until + LITTLE;
                    nm_agenda_put(&f->agenda, n->alarm, FOLLOW_LOOK, node, NULL);
                }
                break;
            }
            m = follow_pop(&r->made);
            r->under_way += m->bytes;
            r->had += m->bytes;
            if (early) /* else the buffer is held until it has arrived */
                use(f, r, -1);
            follow_work(f, node, f->w->f->message);
            nm_agenda_put(&f->agenda, n->thread, FOLLOW_DUE, node, m);
            moved = true;
        }
    }
    return moved;
}

/* The receiver has a buffer for one of the ring's, and will look at it. */
static void taken(struct follow *f, struct message *m)
{
    struct ring *r = m->ring;

    follow_append(&f->node[r->to].inbox, m);
    r->under_way -= m->bytes;
    if (r->under_way < 0.5)
        r->under_way = 0;
    if (f->w->f->queue <= 0)
        use(f, r, -1);
    if (r->made.head)
        offer(f, r);
    if (r->made.head || f->w->f->queue <= 0)
        follow_wake(f, r->from);
}

void follow_read(struct follow *f, struct ring *r)
{
    r->unread--;
    if (r->outside.head)
        taken(f, follow_pop(&r->outside));
}

/* ---- links --------------------------------------------------------------------------------------------- */

static void queue_up(struct node *n, struct ring *r)
{
    r->queued = true;
    r->turn = NULL;
    if (n->turn)
        n->turn_last->turn = r;
    else
        n->turn = r;
    n->turn_last = r;
}

/* The link sends the next message of the ring whose turn it is. */
static void serve_link(struct follow *f, int node)
{
    struct node *n = &f->node[node], *to;
    struct ring *r = n->turn;
    struct message *m;
    double takes, out;

    if (n->busy || !r)
        return;
    n->turn = r->turn;
    m = follow_pop(&r->link);
    r->queued = false;
    if (r->link.head)
        queue_up(n, r);
    n->busy = true;
    takes = m->bytes / f->w->rate;
    out = f->now + takes;
    to = &f->node[r->to];
    to->in = nb_max_double(nb_max_double(to->in, f->now + f->w->f->latency) + takes, out + f->w->f->latency);
    nm_agenda_put(&f->agenda, out, FOLLOW_OUT, node, NULL);
    nm_agenda_put(&f->agenda, to->in, FOLLOW_IN, r->to, m);
}

void follow_link_event(struct follow *f, const struct nm_event *event)
{
    struct node *n = &f->node[event->node];
    struct message *m = event->thing;

    switch (event->kind) {
    case FOLLOW_DUE:
        follow_append(&m->ring->link, m);
        if (!m->ring->queued)
            queue_up(n, m->ring);
        serve_link(f, event->node);
        break;
    case FOLLOW_OUT:
        n->busy = false;
        serve_link(f, event->node);
        break;
    default:
        if (m->ring->unread++ < f->w->op->credits)
            taken(f, m);
        else
            follow_append(&m->ring->outside, m);
        follow_wake(f, event->node);
        break;
    }
}
