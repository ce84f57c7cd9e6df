/* SPDX-License-Identifier: Apache-2.0 */
/* NICs, and the way of messages through them. See network.h. */
#include "tests/sim/network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/sim/connection.h"
#include "tests/sim/node.h"

void sim_message_free(struct message *m)
{
    free(m->own);
    free(m);
}

void sim_messages_drop(struct simulated_line *l)
{
    struct message *m;

    while ((m = simulated_take(l)))
        sim_message_free(m);
}

bool sim_conn_blocked(const struct conn *c, int from, int to)
{
    const struct sim_network *n = c->sim->network;

    return n->cut[from * n->nnodes + to] || n->nic[from].dead || n->nic[to].dead;
}

/* Put the arrival of the first message in flight into the queue. */
void sim_conn_expect(struct conn *c)
{
    int64_t at;

    if (c->expects || !c->flight.head || sim_conn_blocked(c, c->from, c->to))
        return;
    at = sim_line_head(&c->flight)->arrive > c->stalled ? sim_line_head(&c->flight)->arrive : c->stalled;
    c->expects = true;
    sim_queue_put(&c->sim->queue, at > c->sim->now ? at : c->sim->now, SIM_ARRIVE, -1, c);
}

int64_t sim_some(struct sim *s, int64_t most)
{
    return most > 0 ? (int64_t)sim_below(s, (uint64_t)most + 1) : 0;
}

/* Give a message to the NIC. */
void sim_conn_launch(struct conn *c, struct message *m)
{
    struct sim *s = c->sim;
    struct nic *out = &s->network->nic[c->from], *in = &s->network->nic[c->to];
    const struct sim_nic *a = &s->plan->nic[c->from], *b = &s->plan->nic[c->to];
    int64_t takes = (int64_t)(m->len + 60) * 1000, at;

    out->out = (out->out > s->now ? out->out : s->now) + takes / a->rate_out;
    at = out->out + a->latency + sim_some(s, a->jitter);
    in->in = (in->in > at ? in->in : at) + takes / b->rate_in;
    at = in->in;
    if (at <= c->last)
        at = c->last + 1;
    c->last = m->arrive = at;
    simulated_append(&c->flight, &m->link);
    sim_conn_expect(c);
}

/* Put whole messages into the receives that wait for them. */
void sim_conn_match(struct conn *c)
{
    while (c->recvs && c->inbox.head) {
        struct request *r = c->recvs;
        struct message *m;

        if (sim_line_head(&c->inbox)->len > r->size) {
            NB_WARN("simulation: a message of %zu bytes for a receive of %zu", sim_line_head(&c->inbox)->len,
                    r->size);
            c->send.err = c->recv.err = -EMSGSIZE;
            return;
        }
        m = simulated_take(&c->inbox);
        c->recvs = r->wait;
        if (!c->recvs)
            c->recvs_end = &c->recvs;
        if (m->len)
            memcpy(r->data, m->own, m->len);
        r->got = m->len;
        r->done = true;
        c->recv.bytes += m->len;
        sim_message_free(m);
    }
}

/* Take the message out of its sender's memory. The sender has then finished with it. */
void sim_conn_let_go(struct conn *c, struct message *m)
{
    if (!m->own && m->len) {
        m->own = malloc(m->len);
        if (!m->own)
            abort();
        memcpy(m->own, m->from, m->len);
    }
    if (m->request) {
        m->request->done = true;
        m->request = NULL;
        c->send.bytes += m->len;
    }
}

static void arrive(struct sim *s, struct conn *c)
{
    bool news = false;

    c->expects = false;
    while (c->flight.head && sim_line_head(&c->flight)->arrive <= s->now && c->stalled <= s->now &&
           !sim_conn_blocked(c, c->from, c->to)) {
        struct message *m = simulated_take(&c->flight);

        news = true;
        if (m->end) {
            c->ended = true;
            sim_message_free(m);
            continue;
        }
        sim_conn_let_go(c, m);
        s->network->messages++;
        if (m->len != 224) /* more than a heartbeat */
            s->progress = s->now;
        if (!c->recv.open || c->recv.err) {
            sim_message_free(m);
            continue;
        }
        sim_network_damage(c, m);
        simulated_append(&c->inbox, &m->link);
        sim_trace(s, "message", c->to, c->number, (long)m->len, NULL);
        sim_conn_match(c);
    }
    sim_conn_expect(c);
    if (news) {
        sim_node_wake(s, c->to);
        if (c->refused || !s->plan->early)
            sim_node_wake(s, c->from);
        c->refused = false;
    }
}

void sim_network_event(struct sim *s, const struct sim_event *e)
{
    if (e->kind == SIM_ARRIVE)
        arrive(s, e->thing);
    else if (e->kind == SIM_BACK)
        sim_conn_back(s, e->thing);
    else
        sim_conn_up(s, e->thing);
}

void sim_network_comm(struct sim *s, int node, int comm)
{
    s->network->nic[node].comm = comm;
}

int sim_network_objects(const struct sim *s, int node)
{
    const struct nic *n = &s->network->nic[node];

    return n->ends + n->listeners + n->mrs;
}

uint64_t sim_network_messages(const struct sim *s)
{
    return s->network->messages;
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

struct sim_network *sim_network_open(struct sim *s)
{
    struct sim_network *w = calloc(1, sizeof(*w));
    size_t n = (size_t)s->plan->nnodes;

    if (w) {
        w->nnodes = (int)n;
        w->nic = calloc(n, sizeof(*w->nic));
        w->cut = calloc(n * n, sizeof(*w->cut));
        w->damage.comm = -1;
    }
    if (!w || !w->nic || !w->cut)
        abort();
    return w;
}

void sim_network_close(struct sim_network *w)
{
    for (int i = 0; i < w->conns.n; i++) {
        struct conn *c = sim_conn_at(w, i);
        sim_messages_drop(&c->flight);
        sim_messages_drop(&c->inbox);
        sim_end_forget(&c->send);
        sim_end_forget(&c->recv);
        free(c);
    }
    for (int i = 0; i < w->listeners.n; i++)
        free(sim_listener_at(w, i));
    free(w->conns.at);
    free(w->listeners.at);
    free(w->nic);
    free(w->cut);
    free(w);
}
