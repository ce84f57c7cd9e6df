/* SPDX-License-Identifier: Apache-2.0 */
/* How connections begin and end. See connection.h. */
#include "tests/sim/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/node.h"

/* ---- ends ---------------------------------------------------------------------------------------------- */

void sim_end_forget(struct end *e)
{
    while (e->requests) {
        struct request *r = e->requests;

        e->requests = r->next;
        free(r);
    }
}

/* Separate the sender's messages in flight from its requests. Messages in memory that is gone are lost. */
void sim_conn_forget_sends(struct conn *c)
{
    struct simulated_line kept = {0};
    struct message *m;

    while ((m = simulated_take(&c->flight))) {
        if (m->request || (!m->own && m->len))
            sim_message_free(m);
        else
            simulated_append(&kept, &m->link);
    }
    c->flight = kept;
    sim_end_forget(&c->send);
}

/* Tell the receiver that the connection's messages have ended. */
void sim_conn_launch_end(struct conn *c)
{
    struct message *m;

    if (c->stage != UP || c->recv.err)
        return;
    m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->end = true;
    sim_conn_launch(c, m);
}

/* The sender is gone: the end follows the messages that it has sent. */
void sim_conn_end_sending(struct conn *c)
{
    if (!c->send.open)
        return;
    c->send.open = false;
    c->sim->network->nic[c->from].ends--;
    sim_conn_forget_sends(c);
    sim_conn_launch_end(c);
}

/* The receiver is gone: the sender will hear of it. */
void sim_conn_end_receiving(struct conn *c)
{
    struct sim *s = c->sim;

    if (!c->recv.open)
        return;
    c->recv.open = false;
    s->network->nic[c->to].ends--;
    sim_end_forget(&c->recv);
    c->recvs = NULL;
    c->recvs_end = &c->recvs;
    sim_messages_drop(&c->inbox);
    if (c->send.open && !s->network->nic[c->to].dead)
        sim_queue_put(&s->queue, s->now + s->plan->nic[c->to].latency, SIM_BACK, -1, c);
}

void sim_listener_close(struct listener *l)
{
    struct conn *c;

    if (!l->open)
        return;
    l->open = false;
    l->sim->network->nic[l->node].listeners--;
    while ((c = simulated_take(&l->waiting)))
        sim_conn_end_receiving(c);
}

void sim_conn_back(struct sim *s, struct conn *c)
{
    if (sim_conn_blocked(c, c->to, c->from)) {
        c->tells = true;
        return;
    }
    c->tells = false;
    if (c->send.open && !c->send.err) {
        c->send.err = -ECONNRESET;
        sim_node_wake(s, c->from);
    }
}

/* ---- beginnings ---------------------------------------------------------------------------------------- */

struct conn *sim_conn_new(struct sim *s, int from, struct listener *l)
{
    struct sim_network *w = s->network;
    struct conn *c = calloc(1, sizeof(*c));

    if (!c)
        abort();
    c->sim = s;
    c->number = simulated_list_add(&w->conns, c);
    c->from = from;
    c->to = l->node;
    c->comm = w->nic[from].comm;
    c->listener = l;
    c->send.conn = c->recv.conn = c;
    c->send.open = true;
    c->recvs_end = &c->recvs;
    simulated_name(c->peer[0], from);
    simulated_name(c->peer[1], c->to);
    w->nic[from].ends++;
    return c;
}

void sim_conn_up(struct sim *s, struct conn *c)
{
    struct listener *l = c->listener;

    if (!c->send.open || c->stage != GREETING) /* the sender gave up meanwhile, or the event came twice */
        return;
    if (sim_conn_blocked(c, c->from, c->to) || sim_conn_blocked(c, c->to, c->from)) {
        c->greets = true;
        return;
    }
    c->greets = false;
    if (!l->open) {
        c->stage = REFUSED;
    } else {
        c->stage = UP;
        c->recv.open = true;
        s->network->nic[c->to].ends++;
        simulated_append(&l->waiting, &c->link);
        sim_node_wake(s, c->to);
    }
    s->progress = s->now;
    sim_node_wake(s, c->from);
}
