/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the network. See network.h. */
#include "tests/sim/network.h"

#include <errno.h>
#include <string.h>

#include "codec/row.h"
#include "coll/comm/wire.h"
#include "tests/sim/connection.h"
#include "tests/sim/fault.h"
#include "tests/sim/node.h"

void sim_network_cut(struct sim *s, int a, int b)
{
    s->network->cut[a * s->network->nnodes + b]++;
}

void sim_network_join(struct sim *s, int a, int b)
{
    struct sim_network *w = s->network;

    if (--w->cut[a * w->nnodes + b])
        return;
    for (int i = 0; i < w->conns.n; i++) {
        struct conn *c = sim_conn_at(w, i);
        if (c->from == a && c->to == b)
            sim_conn_expect(c);
        if (c->greets && ((c->from == a && c->to == b) || (c->from == b && c->to == a)))
            sim_queue_put(&s->queue, s->now, SIM_UP, -1, c);
        if (c->tells && c->to == a && c->from == b)
            sim_queue_put(&s->queue, s->now, SIM_BACK, -1, c);
    }
}

void sim_network_kill(struct sim *s, int node, bool silently)
{
    struct sim_network *w = s->network;

    w->nic[node].dead = silently;
    for (int i = 0; i < w->conns.n; i++) {
        struct conn *c = sim_conn_at(w, i);
        if (c->from == node) {
            if (silently) {
                c->send.open = false;
                sim_conn_forget_sends(c);
            } else {
                sim_conn_end_sending(c);
            }
        }
        if (c->to == node)
            sim_conn_end_receiving(c);
    }
    for (int i = 0; i < w->listeners.n; i++)
        if (sim_listener_at(w, i)->node == node)
            sim_listener_close(sim_listener_at(w, i));
    w->nic[node].mrs = w->nic[node].ends = 0;
}

static struct conn *choose(struct sim *s, int a, int b, uint64_t which, int comm)
{
    struct sim_network *w = s->network;
    int n = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0, k = 0; i < w->conns.n; i++) {
            struct conn *c = sim_conn_at(w, i);
            if (c->stage != UP || !c->send.open || !c->recv.open || c->from != a || c->to != b ||
                c->send.err || c->recv.err || (comm >= 0 && c->comm != comm))
                continue;
            if (pass == 0)
                n++;
            else if ((uint64_t)k++ == which % (uint64_t)n)
                return c;
        }
        if (n == 0)
            break;
    }
    return NULL;
}

bool sim_network_reset(struct sim *s, int a, int b, uint64_t which, int comm, int ends)
{
    struct conn *c = choose(s, a, b, which, comm);

    if (!c)
        return false;
    if (ends & 1) {
        c->send.err = -ECONNRESET;
        sim_node_wake(s, c->from);
    }
    if (ends & 2) {
        c->recv.err = -ECONNRESET;
        sim_node_wake(s, c->to);
    }
    c->broken = true;
    sim_messages_drop(&c->flight);
    if (!(ends & 2)) /* as TCP does: its reset follows with the next message */
        sim_conn_launch_end(c);
    return true;
}

bool sim_network_shows(const struct sim *s, int comm)
{
    const struct sim_network *w = s->network;

    for (int i = 0; i < w->conns.n; i++) {
        const struct conn *c = sim_conn_at(w, i);
        if (!c->broken || c->comm != comm)
            continue;
        if ((c->send.open && c->send.err && c->send.requests) ||
            (c->recv.open && (c->recv.err || c->ended) && c->recvs))
            return true;
    }
    return false;
}

bool sim_network_has_unread(const struct sim *s, int comm, int from, int to)
{
    const struct sim_network *w = s->network;

    for (int i = 0; i < w->conns.n; i++) {
        const struct conn *c = sim_conn_at(w, i);
        if (c->comm != comm || !c->control || c->from != from || c->to != to || !c->recv.open)
            continue;
        if (c->inbox.head)
            return true;
        for (const struct request *r = c->recv.requests; r; r = r->next)
            if (r->done)
                return true;
    }
    return false;
}

bool sim_network_stall(struct sim *s, int a, int b, uint64_t which, int64_t until)
{
    struct conn *c = choose(s, a, b, which, -1);

    if (c)
        c->stalled = until;
    return c != NULL;
}

void sim_network_no_mr(struct sim *s, int node)
{
    s->network->nic[node].no_mr = true;
}

/* ---- damage -------------------------------------------------------------------------------------------- */

/* Return the promise for a byte of a message. */
static enum sim_cover cover_of(const struct conn *c, const struct message *m, size_t at)
{
    const struct sim_plan *plan = c->sim->plan;
    const struct sim_comm *comm = &plan->comm[c->comm];
    const char *why;
    struct nb_msg msg;
    uint32_t token;
    int header;

    if (c->control)
        return at < NB_CTL_BYTES ? SIM_FOUND : SIM_RESENT_TWICE; /* a payload that the receiver asked for */
    if (m->len < NB_MSG_BYTES)
        return SIM_READ;
    memcpy(&token, m->own + 12, 4); /* little-endian, as all tests are */
    header = nb_msg_parse(m->own, m->len, token, SIZE_MAX, &msg, &why);
    if (header < 0 || at < (size_t)header) /* not a data message: nodes are connecting */
        return SIM_READ;
    if (nb_codec_row(msg.codec)->reference)
        return SIM_RESENT;
    if (!(msg.flags & (NB_MSG_CHECKED | NB_MSG_KEEP)))
        return SIM_NOT_CHECKED;
    for (int r = 0; r < comm->nmembers; r++)
        /* it compares no check values */
        if (plan->params[comm->member[r]].payload_check == NB_PAYLOAD_CHECK_OFF)
            return SIM_NOT_CHECKED;
    return msg.flags & NB_MSG_KEEP ? SIM_RESENT : SIM_READ;
}

void sim_network_damage(struct conn *c, struct message *m)
{
    struct sim *s = c->sim;
    struct sim_network *n = s->network;
    size_t limit = n->damage.limit && n->damage.limit < m->len ? n->damage.limit : m->len, at;
    enum sim_cover cover = c->control ? SIM_FOUND : SIM_READ;

    if (n->damage.what == NONE || n->damage.from != c->from || n->damage.to != c->to || m->len == 0 ||
        (n->damage.control && !c->control))
        return;
    if (n->damage.what == FLIP) {
        at = n->damage.which / 8 % limit;
        cover = cover_of(c, m, at);
        m->own[at] ^= (uint8_t)(1u << n->damage.which % 8);
    } else {
        m->len -= 1 + n->damage.which % m->len;
    }
    n->damage.what = NONE;
    n->damage.comm = c->comm;
    sim_trace(s, "damaged", c->to, c->from, (long)m->len, NULL);
    sim_fault_damaged(s, c->comm, cover);
}

void sim_network_flip(struct sim *s, int a, int b, bool control, uint64_t which, size_t limit)
{
    s->network->damage.what = FLIP;
    s->network->damage.control = control;
    s->network->damage.from = a;
    s->network->damage.to = b;
    s->network->damage.which = which;
    s->network->damage.limit = limit;
}

void sim_network_truncate(struct sim *s, int a, int b, bool control)
{
    sim_network_flip(s, a, b, control, sim_below(s, 1u << 20), 0);
    s->network->damage.what = TRUNCATE;
}
