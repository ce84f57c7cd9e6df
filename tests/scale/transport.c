/* SPDX-License-Identifier: Apache-2.0 */
/* The network as the engine calls it: a transport's table. See network.h. */
#include "tests/scale/network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scale/connection.h"
#include "tests/scale/node.h"

/* Return the node, whose first member is the context. */
static const struct scale_node *node_of(const struct nb_net *net)
{
    return (const struct scale_node *)net->ctx;
}

static int net_init(struct nb_context *ctx, struct nb_net **net)
{
    const struct scale_node *node = (const struct scale_node *)ctx;

    return simulated_init(ctx, node->cluster->set->early ? &scale_net_early : &scale_net_late, net);
}

static int net_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    const struct scale_node *n = node_of(net);

    (void)dev;
    simulated_properties(props, "scale0", n->cluster->set->link);
    return 0;
}

static int net_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    const struct scale_node *n = node_of(net);
    struct scale_network *w = n->cluster->network;
    struct listener *l = scale_zeroed(w, 1, sizeof(*l));
    const struct simulated_handle h = {.magic = SIMULATED_HANDLE,
                                       .listener = simulated_list_add(&w->listeners, l)};

    (void)dev;
    l->node = n->number;
    simulated_handle_write(handle, &h);
    *listen_comm = l;
    return 0;
}

static struct conn *conn_new(struct scale_cluster *cl, int from, struct listener *l)
{
    struct scale_network *w = cl->network;
    struct conn *c = scale_zeroed(w, 1, sizeof(*c));

    simulated_list_add(&w->conns, c);
    c->cluster = cl;
    c->from = from;
    c->to = l->node;
    c->listener = l;
    c->send.conn = c->recv.conn = c;
    c->send.open = true;
    c->recvs = scale_zeroed(w, SCALE_POSTED, sizeof(*c->recvs));
    if (!cl->set->early)
        c->sends = scale_zeroed(w, SCALE_SENDS, sizeof(*c->sends));
    simulated_name(c->peer[0], from);
    simulated_name(c->peer[1], c->to);
    return c;
}

static int net_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                       void **send_comm)
{
    const struct scale_node *n = node_of(net);
    struct scale_network *w = n->cluster->network;
    struct simulated_handle h;
    struct conn *c;

    (void)dev;
    (void)cfg;
    *send_comm = NULL;
    if (simulated_handle_read(handle, &h))
        return -EINVAL;
    if (!h.conn) {
        c = conn_new(n->cluster, n->number, w->listeners.at[h.listener]);
        h.conn = w->conns.n;
        simulated_handle_write(handle, &h);
        sim_queue_put(&n->cluster->queue, n->cluster->now + 2 * scale_latency(n->cluster, c), SIM_UP, -1, c);
        return 0;
    }
    c = scale_conn_at(w, h.conn - 1);
    if (c->up)
        *send_comm = &c->send;
    return 0;
}

static void net_abandon(struct nb_net *net, void *handle)
{
    const struct scale_node *n = node_of(net);
    struct simulated_handle h;

    if (!simulated_handle_read(handle, &h) && h.conn)
        scale_conn_at(n->cluster->network, h.conn - 1)->send.open = false;
}

static int net_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct conn *c = simulated_take(&l->waiting);

    *recv_comm = c ? &c->recv : NULL;
    return 0;
}

static struct message *message_to(struct conn *c, size_t len)
{
    struct message *m = scale_message_new(c->cluster->network);

    m->conn = c;
    m->len = len;
    m->end = false;
    return m;
}

/* Pass a message to the sender's link, at the time of its thread. */
static void launch(struct message *m)
{
    struct scale_cluster *cl = m->conn->cluster;
    const int64_t at = cl->node[m->conn->from]->clock;

    if (at > cl->now)
        sim_queue_put(&cl->queue, at, SIM_DUE, -1, m);
    else
        scale_conn_enqueue(cl, m);
}

static int net_close_send(void *comm)
{
    struct end *e = comm;
    struct message *m;

    if (!e || !e->open)
        return 0;
    e->open = false;
    m = message_to(e->conn, 0);
    m->end = true;
    launch(m);
    return 0;
}

static int net_close_recv(void *comm)
{
    struct end *e = comm;

    if (e)
        e->open = false;
    return 0;
}

static int net_close_listen(void *listen_comm)
{
    (void)listen_comm;
    return 0;
}

static int net_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    (void)data;
    (void)size;
    *mhandle = comm;
    return type == NB_MEM_HOST ? 0 : -EINVAL;
}

static int net_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

static int net_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct conn *c = ((struct end *)send_comm)->conn;
    struct scale_cluster *cl = c->cluster;
    struct message *m;

    (void)mhandle;
    *request = NULL;
    if (tag != 0)
        return -EINVAL;
    if (!c->recv.open)
        return -ECONNRESET;
    if ((c->taken && c->taken + size > cl->set->queue) ||
        (c->sends && c->sent - c->delivered >= SCALE_SENDS)) {
        c->refused = true;
        return 0;
    }
    m = message_to(c, size);
    memcpy(m->head, data, size < SCALE_KEPT ? size : SCALE_KEPT);
    c->taken += size;
    if (c->sends) {
        struct slot *s = &c->sends[c->sent % SCALE_SENDS];
        s->conn = c;
        s->number = c->sent;
        *request = s;
    } else {
        *request = &c->send;
    }
    c->sent++;
    cl->messages++;
    cl->wire += size;
    scale_node_spends(cl->node[c->from], size > SCALE_KEPT ? cl->set->message : 0);
    launch(m);
    return 0;
}

static int net_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                     void **mhandles, void **request)
{
    struct conn *c = ((struct end *)recv_comm)->conn;
    struct slot *r;

    (void)mhandles;
    (void)sizes;
    *request = NULL;
    if (n != 1 || (tags && tags[0] != 0))
        return -EINVAL;
    if (c->posted - c->tested == SCALE_POSTED)
        return 0;
    r = &c->recvs[c->posted % SCALE_POSTED];
    r->conn = c;
    r->number = c->posted++;
    r->data = data[0];
    *request = r;
    scale_conn_match(c);
    return 0;
}

static int net_test(void *request, int *done, size_t *sizes)
{
    struct slot *s = request;
    struct end *e = request;
    struct conn *c;

    if (e->conn && request == &e->conn->send) { /* taken */
        *done = 1;
        if (sizes)
            *sizes = 0;
        return 0;
    }
    c = s->conn;
    if (c->sends && s >= c->sends && s < c->sends + SCALE_SENDS) {
        *done = s->number < c->delivered;
        return 0;
    }
    *done = s->number < c->filled;
    if (!*done && c->ended)
        return -ECONNRESET;
    if (*done) {
        if (sizes)
            *sizes = s->len;
        c->tested++;
        if (s->len > SCALE_KEPT)
            scale_node_spends(c->cluster->node[c->to], c->cluster->set->message);
    }
    return 0;
}

/* Events wake nodes, so there are no descriptors. */
static int net_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    (void)comm, (void)is_send, (void)fds, (void)max;
    return 0;
}

static const char *net_peer_name(void *comm)
{
    struct end *e = comm;

    return e->conn->peer[e == &e->conn->send];
}

static uint64_t net_wire_bytes(void *comm)
{
    (void)comm;
    return 0;
}

const struct nb_net_ops scale_net_early = SIMULATED_TABLE("scale", 1, );
const struct nb_net_ops scale_net_late = SIMULATED_TABLE("scale", 0, );
