/* SPDX-License-Identifier: Apache-2.0 */
/* The network as the engine calls it: a transport's table. See network.h. */
#include "tests/sim/network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/sim/connection.h"
#include "tests/sim/memory.h"
#include "tests/sim/node.h"

/* Return the node, whose first member is the context. */
static const struct sim_node *node_of(const struct nb_net *net)
{
    return (const struct sim_node *)net->ctx;
}

static int net_init(struct nb_context *ctx, struct nb_net **net)
{
    const struct sim_node *node = (const struct sim_node *)ctx;

    return simulated_init(ctx, node->sim->plan->early ? &sim_net_early : &sim_net_late, net);
}

static int net_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    const struct sim_node *n = node_of(net);

    (void)dev;
    simulated_properties(props, "sim0", 1e6 * (double)n->sim->plan->nic[n->number].rate_out);
    return 0;
}

static int net_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    const struct sim_node *n = node_of(net);
    struct sim_network *w = n->sim->network;
    int before = sim_memory_enter(SIM_NOBODY);
    struct listener *l = calloc(1, sizeof(*l));
    struct simulated_handle h = {.magic = SIMULATED_HANDLE};

    (void)dev;
    if (!l)
        abort();
    h.listener = simulated_list_add(&w->listeners, l);
    *l = (struct listener){.sim = n->sim, .number = h.listener, .node = n->number, .open = true};
    w->nic[n->number].listeners++;
    simulated_handle_write(handle, &h);
    *listen_comm = l;
    sim_memory_enter(before);
    return 0;
}

static int net_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                       void **send_comm)
{
    const struct sim_node *n = node_of(net);
    struct sim *s = n->sim;
    struct simulated_handle h;
    struct conn *c;

    (void)dev;
    *send_comm = NULL;
    if (simulated_handle_read(handle, &h))
        return -EINVAL;
    if (!h.conn) {
        int before = sim_memory_enter(SIM_NOBODY);
        const struct sim_nic *nic = &s->plan->nic[n->number];

        c = sim_conn_new(s, n->number, sim_listener_at(s->network, h.listener));
        c->control = cfg->urgent;
        h.conn = c->number + 1;
        simulated_handle_write(handle, &h);
        sim_queue_put(&s->queue, s->now + 2 * nic->latency + sim_some(s, nic->jitter), SIM_UP, -1, c);
        sim_memory_enter(before);
        return 0;
    }
    c = sim_conn_at(s->network, h.conn - 1);
    if (c->stage == REFUSED) {
        if (c->send.open)
            s->network->nic[c->from].ends--;
        c->send.open = false;
        NB_WARN("simulation: %s refuses connections", c->peer[1]);
        return -ECONNREFUSED;
    }
    if (c->send.err) { /* the connection failed before this call */
        const int before = sim_memory_enter(SIM_NOBODY);

        sim_conn_end_sending(c);
        sim_memory_enter(before);
        return c->send.err;
    }
    if (c->stage == UP)
        *send_comm = &c->send;
    return 0;
}

static void net_abandon(struct nb_net *net, void *handle)
{
    const struct sim_node *n = node_of(net);
    struct simulated_handle h;

    if (!simulated_handle_read(handle, &h) && h.conn) {
        int before = sim_memory_enter(SIM_NOBODY);
        sim_conn_end_sending(sim_conn_at(n->sim->network, h.conn - 1));
        sim_memory_enter(before);
    }
}

static int net_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct conn *c = simulated_take(&l->waiting);

    *recv_comm = c ? &c->recv : NULL;
    return 0;
}

static int net_close_send(void *comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (comm)
        sim_conn_end_sending(((struct end *)comm)->conn);
    sim_memory_enter(before);
    return 0;
}

static int net_close_recv(void *comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (comm)
        sim_conn_end_receiving(((struct end *)comm)->conn);
    sim_memory_enter(before);
    return 0;
}

static int net_close_listen(void *listen_comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (listen_comm)
        sim_listener_close(listen_comm);
    sim_memory_enter(before);
    return 0;
}

static int node_at(const struct end *e)
{
    return e == &e->conn->send ? e->conn->from : e->conn->to;
}

static int net_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct end *e = comm;
    struct nic *nic = &e->conn->sim->network->nic[node_at(e)];

    (void)data;
    (void)size;
    *mhandle = NULL;
    if (type != NB_MEM_HOST)
        return -EINVAL;
    if (nic->no_mr) {
        nic->no_mr = false;
        NB_WARN("simulation: a registration fails");
        return -ENOMEM;
    }
    nic->mrs++;
    *mhandle = nic;
    return 0;
}

static int net_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    if (mhandle)
        ((struct nic *)mhandle)->mrs--;
    return 0;
}

static struct request *request_new(struct end *e, void *data, size_t size)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r)
        abort();
    r->end = e;
    r->data = data;
    r->size = size;
    r->next = e->requests;
    if (r->next)
        r->next->prev = r;
    e->requests = r;
    return r;
}

static int net_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct end *e = send_comm;
    struct conn *c = e->conn;
    struct sim *s = c->sim;
    struct message *m;
    struct request *r;
    int before;

    (void)mhandle;
    *request = NULL;
    if (e->err)
        return e->err;
    if (tag != 0 || c->flight.n + c->inbox.n >= (unsigned)s->plan->window) {
        c->refused = true;
        return tag ? -EINVAL : 0;
    }
    before = sim_memory_enter(SIM_NOBODY);
    r = request_new(e, (void *)(uintptr_t)data, size);
    m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->len = size;
    m->from = data;
    m->request = r;
    if (s->plan->early)
        sim_conn_let_go(c, m);
    sim_conn_launch(c, m);
    sim_memory_enter(before);
    *request = r;
    return 0;
}

static int net_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                     void **mhandles, void **request)
{
    struct end *e = recv_comm;
    struct conn *c = e->conn;
    struct request *r;
    int before;

    (void)mhandles;
    *request = NULL;
    if (e->err)
        return e->err;
    if (n != 1 || (tags && tags[0] != 0))
        return -EINVAL;
    before = sim_memory_enter(SIM_NOBODY);
    r = request_new(e, data[0], sizes[0]);
    *c->recvs_end = r;
    c->recvs_end = &r->wait;
    if (c->inbox.head) {
        sim_conn_match(c);
        if (c->refused)
            sim_node_wake(c->sim, c->from);
        c->refused = false;
    }
    sim_memory_enter(before);
    if (!r->done && c->ended && !c->inbox.head) { /* as TCP: it reads on when a receive is posted */
        e->err = -ECONNRESET;
        return e->err;
    }
    *request = r;
    return 0;
}

static int net_test(void *request, int *done, size_t *sizes)
{
    struct request *r = request;
    struct end *e = r->end;
    int before;

    *done = r->done;
    if (!r->done) {
        if (!e->err && e == &e->conn->recv && e->conn->ended && !e->conn->inbox.head)
            e->err = -ECONNRESET;
        return e->err;
    }
    if (sizes)
        *sizes = r->got;
    before = sim_memory_enter(SIM_NOBODY);
    if (r->prev)
        r->prev->next = r->next;
    else
        e->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    free(r);
    sim_memory_enter(before);
    return 0;
}

static int net_lost(void *send_comm)
{
    return ((struct end *)send_comm)->err;
}

static int net_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    const struct end *e = comm;

    (void)is_send;
    (void)fds;
    (void)max;
    return e->err || e->requests ? -1 : 0;
}

static const char *net_peer_name(void *comm)
{
    struct end *e = comm;

    return e->conn->peer[e == &e->conn->send];
}

static uint64_t net_wire_bytes(void *comm)
{
    return ((struct end *)comm)->bytes;
}

const struct nb_net_ops sim_net_early = SIMULATED_TABLE("sim", 1, .lost = net_lost);
const struct nb_net_ops sim_net_late = SIMULATED_TABLE("sim", 0, .lost = net_lost);
