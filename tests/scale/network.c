/* SPDX-License-Identifier: Apache-2.0 */
/* Links, connections, messages without payload; see network.h. */
#include "scale/network.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scale/node.h"

#define POSTED 32 /* receives at a time: the engine posts 16 */
#define SENDS 64  /* sends at a time: the engine has 32 */
#define MAGIC 0x7363616cu

struct message {
    struct message *made_before;
    struct message *next;
    struct conn *conn;
    size_t len;
    int64_t out; /* when its last byte has left */
    bool end;    /* nothing follows it: the sender has closed the connection */
    uint8_t head[SCALE_KEPT];
};

struct line {
    struct message *head, *tail;
};

struct slot { /* a request */
    struct conn *conn;
    uint64_t number; /* of its kind, on the connection */
    uint8_t *data;
    size_t len;
};

/* One side of a connection: what the engine has as comm. */
struct end {
    struct conn *conn;
    bool open;
};

struct conn {
    struct scale_cluster *cluster;
    int from, to;
    bool up, queued; /* queued: in its link's list */
    struct listener *listener;
    struct conn *accept_next; /* in the listener's queue */
    struct conn *turn_next;   /* in the list of those that have something to send */
    struct end send, recv;
    struct line waiting; /* at the sender's link */
    struct line inbox;   /* arrived, no receive posted */
    size_t taken;        /* bytes accepted and not yet in a receive */
    bool refused;        /* the sender waits for room */
    bool ended;          /* the sender has closed it, and all before has arrived */
    uint64_t sent, delivered, posted, filled, tested;
    struct slot *recvs; /* [POSTED] by number */
    struct slot *sends; /* [SENDS], where sends are done late */
    char peer[2][24];
};

struct listener {
    int node;
    struct conn *waiting, **end;
};

struct link {
    struct scale_cluster *cluster;
    struct conn *turn, **turn_end; /* connections that have something to send */
    bool busy;
    int64_t in; /* when what comes in is free */
};

struct net {
    struct nb_net net;
    struct scale_cluster *cluster;
    int node;
};

struct scale_network {
    struct link *link;
    struct message *spare;
    struct message *made; /* the last one; all are freed at the end, wherever they are */
    struct conn **conn;
    struct listener **listener;
    int nconns, conns_cap, nlisteners, listeners_cap;
    size_t bytes;
};

struct handle {
    uint32_t magic;
    int32_t listener;
    int32_t conn; /* from 1 */
};

static void *zeroed(struct scale_network *w, size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p)
        abort();
    w->bytes += n * size;
    return p;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static struct message *message_new(struct scale_network *w)
{
    struct message *m = w->spare;

    if (m) {
        w->spare = m->next;
    } else {
        m = zeroed(w, 1, sizeof(*m));
        m->made_before = w->made;
        w->made = m;
    }
    return m;
}

static void message_free(struct scale_network *w, struct message *m)
{
    m->next = w->spare;
    w->spare = m;
}

static void append(struct line *l, struct message *m)
{
    m->next = NULL;
    if (l->head)
        l->tail->next = m;
    else
        l->head = m;
    l->tail = m;
}

static struct message *take(struct line *l)
{
    struct message *m = l->head;

    if (m)
        l->head = m->next;
    return m;
}

static int64_t takes(const struct scale_cluster *cl, size_t len)
{
    return (int64_t)((double)len * 1e9 / cl->set->link);
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
    m = take(&c->waiting);
    if (c->waiting.head) {
        c->turn_next = NULL;
        *l->turn_end = c;
        l->turn_end = &c->turn_next;
    } else {
        c->queued = false;
    }
    l->busy = true;
    m->out = cl->now + takes(cl, m->len);
    sim_queue_put(&cl->queue, cl->now + cl->set->latency, SIM_ARRIVE, -1, m);
    sim_queue_put(&cl->queue, m->out, SIM_BACK, -1, l);
}

/* A message is handed to the sender's link. */
static void enqueue(struct scale_cluster *cl, struct message *m)
{
    struct conn *c = m->conn;
    struct link *l = &cl->network->link[c->from];

    append(&c->waiting, m);
    if (!c->queued) {
        c->queued = true;
        c->turn_next = NULL;
        *l->turn_end = c;
        l->turn_end = &c->turn_next;
    }
    serve(cl, c->from);
}

/* Its first byte is at the receiver's link: when will the last be through? */
static void arrive(struct scale_cluster *cl, struct message *m)
{
    struct link *l = &cl->network->link[m->conn->to];
    const int64_t last = m->out + cl->set->latency;

    l->in = (l->in > cl->now ? l->in : cl->now) + takes(cl, m->len);
    if (l->in < last)
        l->in = last;
    sim_queue_put(&cl->queue, l->in, SIM_WORK, -1, m);
}

/* What has arrived goes into receives. */
static void match(struct conn *c)
{
    struct scale_cluster *cl = c->cluster;

    while (c->filled < c->posted && c->inbox.head) {
        struct slot *r = &c->recvs[c->filled++ % POSTED];
        struct message *m = take(&c->inbox);

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
    append(&c->inbox, m);
    match(c);
    if (c->sends)
        scale_node_wake(cl, c->from);
}

static void up(struct scale_cluster *cl, struct conn *c)
{
    if (!c->send.open)
        return;
    c->up = c->recv.open = true;
    *c->listener->end = c;
    c->listener->end = &c->accept_next;
    scale_node_wake(cl, c->to);
    scale_node_wake(cl, c->from);
}

void scale_network_event(struct scale_cluster *cl, const struct sim_event *e)
{
    struct link *l;

    switch (e->kind) {
    case SIM_UP: up(cl, e->thing); break;
    case SIM_DUE: enqueue(cl, e->thing); break;
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

/* ---- the table ------------------------------------------------------------------------------------------ */

static int net_init(struct nb_context *ctx, struct nb_net **out)
{
    struct scale_node *node = (struct scale_node *)ctx; /* its first member */
    struct net *n = calloc(1, sizeof(*n));

    if (!n)
        return -ENOMEM;
    n->cluster = node->cluster;
    n->node = node->number;
    n->net =
        (struct nb_net){.ops = node->cluster->set->early ? &scale_net_early : &scale_net_late, .ctx = ctx};
    *out = &n->net;
    return 0;
}

static void net_fini(struct nb_net *net)
{
    free(net);
}

static int net_devices(struct nb_net *net, int *ndev)
{
    (void)net;
    *ndev = 1;
    return 0;
}

static int net_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    const struct net *n = (const struct net *)net;

    (void)dev;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "scale0");
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = (int)(n->cluster->set->link * 8e-6);
    props->max_comms = 65536;
    props->max_recvs = 1;
    props->max_bytes = (size_t)1 << 30;
    return 0;
}

static void *grown(void *list, int n, int *cap)
{
    if (n == *cap) {
        *cap = *cap ? 2 * *cap : 64;
        list = realloc(list, (size_t)*cap * sizeof(void *));
        if (!list)
            abort();
    }
    return list;
}

static int net_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    const struct net *n = (const struct net *)net;
    struct scale_network *w = n->cluster->network;
    struct listener *l = zeroed(w, 1, sizeof(*l));
    const struct handle h = {.magic = MAGIC, .listener = w->nlisteners};

    (void)dev;
    l->node = n->node;
    l->end = &l->waiting;
    w->listener = grown(w->listener, w->nlisteners, &w->listeners_cap);
    w->listener[w->nlisteners++] = l;
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, &h, sizeof(h));
    *listen_comm = l;
    return 0;
}

static struct conn *conn_new(struct scale_cluster *cl, int from, struct listener *l)
{
    struct scale_network *w = cl->network;
    struct conn *c = zeroed(w, 1, sizeof(*c));

    w->conn = grown(w->conn, w->nconns, &w->conns_cap);
    w->conn[w->nconns++] = c;
    c->cluster = cl;
    c->from = from;
    c->to = l->node;
    c->listener = l;
    c->send.conn = c->recv.conn = c;
    c->send.open = true;
    c->recvs = zeroed(w, POSTED, sizeof(*c->recvs));
    if (!cl->set->early)
        c->sends = zeroed(w, SENDS, sizeof(*c->sends));
    snprintf(c->peer[0], sizeof(c->peer[0]), "10.0.%d.%d<1>", from / 256, from % 256);
    snprintf(c->peer[1], sizeof(c->peer[1]), "10.0.%d.%d<1>", c->to / 256, c->to % 256);
    return c;
}

static int net_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                       void **send_comm)
{
    const struct net *n = (const struct net *)net;
    struct scale_network *w = n->cluster->network;
    struct handle h;
    struct conn *c;

    (void)dev;
    (void)cfg;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof(h));
    if (h.magic != MAGIC)
        return -EINVAL;
    if (!h.conn) {
        c = conn_new(n->cluster, n->node, w->listener[h.listener]);
        h.conn = w->nconns;
        memcpy(handle, &h, sizeof(h));
        sim_queue_put(&n->cluster->queue, n->cluster->now + 2 * n->cluster->set->latency, SIM_UP, -1, c);
        return 0;
    }
    c = w->conn[h.conn - 1];
    if (c->up)
        *send_comm = &c->send;
    return 0;
}

static void net_abandon(struct nb_net *net, void *handle)
{
    const struct net *n = (const struct net *)net;
    struct handle h;

    memcpy(&h, handle, sizeof(h));
    if (h.magic == MAGIC && h.conn)
        n->cluster->network->conn[h.conn - 1]->send.open = false;
}

static int net_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct conn *c = l->waiting;

    *recv_comm = c ? &c->recv : NULL;
    if (c) {
        l->waiting = c->accept_next;
        if (!l->waiting)
            l->end = &l->waiting;
    }
    return 0;
}

static struct message *message_to(struct conn *c, size_t len)
{
    struct message *m = message_new(c->cluster->network);

    m->conn = c;
    m->len = len;
    m->end = false;
    return m;
}

/* Give a message to the sender's link, at the time of its thread. */
static void launch(struct message *m)
{
    struct scale_cluster *cl = m->conn->cluster;
    const int64_t at = cl->node[m->conn->from]->clock;

    if (at > cl->now)
        sim_queue_put(&cl->queue, at, SIM_DUE, -1, m);
    else
        enqueue(cl, m);
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
    if ((c->taken && c->taken + size > cl->set->queue) || (c->sends && c->sent - c->delivered >= SENDS)) {
        c->refused = true;
        return 0;
    }
    m = message_to(c, size);
    memcpy(m->head, data, size < SCALE_KEPT ? size : SCALE_KEPT);
    c->taken += size;
    if (c->sends) {
        struct slot *s = &c->sends[c->sent % SENDS];
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
    if (c->posted - c->tested == POSTED)
        return 0;
    r = &c->recvs[c->posted % POSTED];
    r->conn = c;
    r->number = c->posted++;
    r->data = data[0];
    *request = r;
    match(c);
    return 0;
}

static int net_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                      void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
    *request = NULL;
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
    if (c->sends && s >= c->sends && s < c->sends + SENDS) {
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

/* Nodes are woken by what happens. */
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

#define TABLE(early_) \
    { \
        .name = "scale", .early = early_, .init = net_init, .fini = net_fini, .devices = net_devices, \
        .properties = net_properties, .listen = net_listen, .connect = net_connect, .abandon = net_abandon, \
        .accept = net_accept, .reg_mr = net_reg_mr, .dereg_mr = net_dereg_mr, .isend = net_isend, \
        .irecv = net_irecv, .iflush = net_iflush, .test = net_test, .close_send = net_close_send, \
        .close_recv = net_close_recv, .close_listen = net_close_listen, .poll_fds = net_poll_fds, \
        .peer_name = net_peer_name, .wire_bytes = net_wire_bytes, \
    }
const struct nb_net_ops scale_net_early = TABLE(1);
const struct nb_net_ops scale_net_late = TABLE(0);

/* ---- begin and end -------------------------------------------------------------------------------------- */

struct scale_network *scale_network_open(struct scale_cluster *cl)
{
    struct scale_network *w = calloc(1, sizeof(*w));

    if (!w)
        abort();
    w->link = zeroed(w, (size_t)cl->set->nodes, sizeof(*w->link));
    for (int i = 0; i < cl->set->nodes; i++) {
        w->link[i].cluster = cl;
        w->link[i].turn_end = &w->link[i].turn;
    }
    return w;
}

void scale_network_close(struct scale_network *w)
{
    for (int i = 0; i < w->nconns; i++) {
        free(w->conn[i]->recvs);
        free(w->conn[i]->sends);
        free(w->conn[i]);
    }
    while (w->made) {
        struct message *m = w->made;
        w->made = m->made_before;
        free(m);
    }
    for (int i = 0; i < w->nlisteners; i++)
        free(w->listener[i]);
    free(w->conn);
    free(w->listener);
    free(w->link);
    free(w);
}

int scale_network_connections(const struct scale_network *w)
{
    return w->nconns;
}

size_t scale_network_bytes(const struct scale_network *w)
{
    return w->bytes + (size_t)(w->conns_cap + w->listeners_cap) * sizeof(void *);
}
