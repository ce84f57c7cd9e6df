/* SPDX-License-Identifier: Apache-2.0 */
/* Links, and the way of messages without payload through them. See network.h. */
#include "tests/scale/network.h"

#include <stdlib.h>
#include <string.h>

#include "tests/scale/connection.h"
#include "tests/scale/node.h"

void *scale_zeroed(struct scale_network *w, size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p)
        abort();
    w->bytes += n * size;
    return p;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

struct message *scale_message_new(struct scale_network *w)
{
    struct message *m = (struct message *)w->spare;

    if (m) {
        w->spare = m->link.next;
    } else {
        m = scale_zeroed(w, 1, sizeof(*m));
        m->made_before = w->made;
        w->made = m;
    }
    return m;
}

static void message_free(struct scale_network *w, struct message *m)
{
    m->link.next = w->spare;
    w->spare = &m->link;
}

static int64_t takes(double rate, size_t len)
{
    return (int64_t)((double)len * 1e9 / rate);
}

static int site_of(const struct scale_cluster *cl, int node)
{
    return scale_site(cl->set, node);
}

int64_t scale_latency(const struct scale_cluster *cl, const struct conn *c)
{
    return site_of(cl, c->from) == site_of(cl, c->to) ? cl->set->near : cl->set->latency;
}

/* Return when the message's first byte leaves the sender's site, and set when its last byte does. */
static int64_t leave(struct scale_cluster *cl, struct message *m)
{
    const int site = site_of(cl, m->conn->from);
    int64_t *free = &cl->network->trunk[site].free, begins = cl->now;

    m->out = cl->now + takes(cl->set->link, m->len);
    if (site == site_of(cl, m->conn->to))
        return begins;
    cl->crossed += m->len;
    if (cl->set->trunk <= 0)
        return begins;
    begins = *free > begins ? *free : begins;
    *free = begins + takes(cl->set->trunk, m->len);
    m->out = *free > m->out ? *free : m->out;
    return begins;
}

/* The link sends the next message of the connection whose turn it is. */
static void serve(struct scale_cluster *cl, int node)
{
    struct link *l = &cl->network->link[node];
    struct conn *c = l->turn;
    struct message *m;

    if (l->busy || !c)
        return;
    l->turn = c->turn_next;
    if (!l->turn)
        l->turn_end = &l->turn;
    m = simulated_take(&c->waiting);
    if (c->waiting.head) {
        c->turn_next = NULL;
        *l->turn_end = c;
        l->turn_end = &c->turn_next;
    } else {
        c->queued = false;
    }
    l->busy = true;
    sim_queue_put(&cl->queue, leave(cl, m) + scale_latency(cl, c), SIM_ARRIVE, -1, m);
    sim_queue_put(&cl->queue, cl->now + takes(cl->set->link, m->len), SIM_BACK, -1, l);
}

/* Pass a message to the sender's link. */
void scale_conn_enqueue(struct scale_cluster *cl, struct message *m)
{
    struct conn *c = m->conn;
    struct link *l = &cl->network->link[c->from];

    simulated_append(&c->waiting, &m->link);
    if (!c->queued) {
        c->queued = true;
        c->turn_next = NULL;
        *l->turn_end = c;
        l->turn_end = &c->turn_next;
    }
    serve(cl, c->from);
}

/* A message's first byte is at the receiver's link: find when the last byte will be through. */
static void arrive(struct scale_cluster *cl, struct message *m)
{
    struct link *l = &cl->network->link[m->conn->to];
    const int64_t last = m->out + scale_latency(cl, m->conn);

    l->in = (l->in > cl->now ? l->in : cl->now) + takes(cl->set->link, m->len);
    if (l->in < last)
        l->in = last;
    sim_queue_put(&cl->queue, l->in, SIM_WORK, -1, m);
}

/* Put arrived messages into receives. */
void scale_conn_match(struct conn *c)
{
    struct scale_cluster *cl = c->cluster;

    while (c->filled < c->posted && c->inbox.head) {
        struct slot *r = &c->recvs[c->filled++ % SCALE_POSTED];
        struct message *m = simulated_take(&c->inbox);

        r->len = m->len;
        memcpy(r->data, m->head, m->len < SCALE_KEPT ? m->len : SCALE_KEPT);
        c->taken -= m->len;
        message_free(cl->network, m);
        if (c->refused) {
            c->refused = false;
            scale_node_wake(cl, c->from);
        }
    }
}

static void deliver(struct scale_cluster *cl, struct message *m)
{
    struct conn *c = m->conn;

    scale_node_wake(cl, c->to);
    if (m->end)
        c->ended = true;
    if (m->end || !c->recv.open) {
        message_free(cl->network, m);
        return;
    }
    c->delivered++;
    simulated_append(&c->inbox, &m->link);
    scale_conn_match(c);
    if (c->sends)
        scale_node_wake(cl, c->from);
}

static void up(struct scale_cluster *cl, struct conn *c)
{
    if (!c->send.open)
        return;
    c->up = c->recv.open = true;
    simulated_append(&c->listener->waiting, &c->link);
    scale_node_wake(cl, c->to);
    scale_node_wake(cl, c->from);
}

void scale_network_event(struct scale_cluster *cl, const struct sim_event *e)
{
    struct link *l;

    switch (e->kind) {
    case SIM_UP: up(cl, e->thing); break;
    case SIM_DUE: scale_conn_enqueue(cl, e->thing); break;
    case SIM_ARRIVE: arrive(cl, e->thing); break;
    case SIM_WORK: deliver(cl, e->thing); break;
    case SIM_BACK: /* the link has sent a message */
        l = e->thing;
        l->busy = false;
        serve(cl, (int)(l - cl->network->link));
        break;
    default: abort();
    }
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

struct scale_network *scale_network_open(struct scale_cluster *cl)
{
    struct scale_network *w = calloc(1, sizeof(*w));

    if (!w)
        abort();
    w->link = scale_zeroed(w, (size_t)cl->set->nodes, sizeof(*w->link));
    w->trunk = scale_zeroed(w, (size_t)cl->set->sites, sizeof(*w->trunk));
    for (int i = 0; i < cl->set->nodes; i++) {
        w->link[i].cluster = cl;
        w->link[i].turn_end = &w->link[i].turn;
    }
    return w;
}

void scale_network_close(struct scale_network *w)
{
    for (int i = 0; i < w->conns.n; i++) {
        free(scale_conn_at(w, i)->recvs);
        free(scale_conn_at(w, i)->sends);
        free(scale_conn_at(w, i));
    }
    while (w->made) {
        struct message *m = w->made;
        w->made = m->made_before;
        free(m);
    }
    for (int i = 0; i < w->listeners.n; i++)
        free(w->listeners.at[i]);
    free(w->conns.at);
    free(w->listeners.at);
    free(w->link);
    free(w->trunk);
    free(w);
}

int scale_network_connections(const struct scale_network *w)
{
    return w->conns.n;
}

size_t scale_network_bytes(const struct scale_network *w)
{
    return w->bytes + (size_t)(w->conns.cap + w->listeners.cap) * sizeof(void *);
}
