/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, messages and NICs; see network.h. */
#include "sim/network.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "codec/row.h"
#include "coll/wire.h"
#include "sim/fault.h"
#include "sim/memory.h"
#include "sim/node.h"

#define MAGIC 0x73696d6eu

struct request {
    struct request *prev, *next; /* of the same end */
    struct request *wait;        /* of receives without a message */
    struct end *end;
    uint8_t *data;
    size_t size, got;
    bool done;
};

struct message {
    struct message *next;
    int64_t arrive;
    size_t len;
    const uint8_t *from; /* the sender's buffer; or own */
    uint8_t *own;
    struct request *request; /* the sender's, NULL: it is done */
    bool end;                /* there is nothing behind it */
};

struct line { /* of messages */
    struct message *head, *tail;
    unsigned n;
};

/* One side of a connection: what the engine has as comm. */
struct end {
    struct conn *conn;
    bool open;
    int err;
    struct request *requests;
    uint64_t bytes;
};

enum stage { GREETING, REFUSED, UP };

struct conn {
    struct sim *sim;
    int number, from, to, comm;
    enum stage stage;
    struct listener *listener;
    struct conn *next; /* in the listener's queue */
    struct end send, recv;
    struct line flight, inbox;
    struct request *recvs, **recvs_end;
    int64_t last, stalled;
    bool ended;   /* the message without one behind it has arrived */
    bool greets;  /* SIM_UP is due, but something is cut */
    bool tells;   /* SIM_BACK is, too */
    bool expects; /* SIM_ARRIVE is in the queue */
    bool refused; /* sends: the node has to be woken when there is room */
    bool control; /* its messages are read as they come; others when it is their turn */
    bool broken;  /* by sim_network_reset */
    char peer[2][24];
};

struct listener {
    struct sim *sim;
    int number, node;
    bool open;
    struct conn *waiting;
};

struct nic {
    int64_t out, in; /* free from then on */
    int ends, listeners, mrs;
    bool dead;
    bool no_mr;
    int comm;
};

struct net { /* what the engine has as nb_net */
    struct nb_net net;
    struct sim *sim;
    int node;
};

struct sim_network {
    int nnodes;
    struct nic *nic;
    uint16_t *cut; /* [from][to] */
    struct conn **conn;
    int nconns, conns_cap;
    struct listener **listener;
    int nlisteners, listeners_cap;
    uint64_t messages;
    struct {
        enum { NONE, FLIP, TRUNCATE } what;
        int from, to;
        bool control; /* of such a message only */
        uint64_t which;
        size_t limit;
        int comm; /* it has happened to a message of this; -1: not yet */
    } damage;
};

struct handle {
    uint32_t magic;
    int32_t listener;
    int32_t conn; /* from 1; 0: none yet */
};

/* ---- messages -------------------------------------------------------------------------------------------- */

static void append(struct line *l, struct message *m)
{
    m->next = NULL;
    if (l->tail)
        l->tail->next = m;
    else
        l->head = m;
    l->tail = m;
    l->n++;
}

static struct message *take(struct line *l)
{
    struct message *m = l->head;

    if (m) {
        l->head = m->next;
        if (!l->head)
            l->tail = NULL;
        l->n--;
    }
    return m;
}

static void message_free(struct message *m)
{
    free(m->own);
    free(m);
}

static void drop(struct line *l)
{
    struct message *m;

    while ((m = take(l)))
        message_free(m);
}

static bool blocked(const struct conn *c, int from, int to)
{
    const struct sim_network *n = c->sim->network;

    return n->cut[from * n->nnodes + to] || n->nic[from].dead || n->nic[to].dead;
}

/* The head of what is under way is expected when it is due. */
static void expect(struct conn *c)
{
    int64_t at;

    if (c->expects || !c->flight.head || blocked(c, c->from, c->to))
        return;
    at = c->flight.head->arrive > c->stalled ? c->flight.head->arrive : c->stalled;
    c->expects = true;
    sim_queue_put(&c->sim->queue, at > c->sim->now ? at : c->sim->now, SIM_ARRIVE, -1, c);
}

static int64_t some(struct sim *s, int64_t most)
{
    return most > 0 ? (int64_t)sim_below(s, (uint64_t)most + 1) : 0;
}

/* Give a message to the NIC. */
static void launch(struct conn *c, struct message *m)
{
    struct sim *s = c->sim;
    struct nic *out = &s->network->nic[c->from], *in = &s->network->nic[c->to];
    const struct sim_nic *a = &s->plan->nic[c->from], *b = &s->plan->nic[c->to];
    int64_t takes = (int64_t)(m->len + 60) * 1000, at;

    out->out = (out->out > s->now ? out->out : s->now) + takes / a->rate_out;
    at = out->out + a->latency + some(s, a->jitter);
    in->in = (in->in > at ? in->in : at) + takes / b->rate_in;
    at = in->in;
    if (at <= c->last)
        at = c->last + 1;
    c->last = m->arrive = at;
    append(&c->flight, m);
    expect(c);
}

/* A message is there whole: into the receive that waits for it. */
static void match(struct conn *c)
{
    while (c->recvs && c->inbox.head) {
        struct request *r = c->recvs;
        struct message *m;

        if (c->inbox.head->len > r->size) {
            NB_WARN("simulation: a message of %zu bytes for a receive of %zu", c->inbox.head->len, r->size);
            c->send.err = c->recv.err = -EMSGSIZE;
            return;
        }
        m = take(&c->inbox);
        c->recvs = r->wait;
        if (!c->recvs)
            c->recvs_end = &c->recvs;
        if (m->len)
            memcpy(r->data, m->own, m->len);
        r->got = m->len;
        r->done = true;
        c->recv.bytes += m->len;
        message_free(m);
    }
}

/* What is promised of a byte of a message. */
static enum sim_cover cover_of(const struct conn *c, const struct message *m, size_t at)
{
    const struct sim_plan *plan = c->sim->plan;
    const struct sim_comm *comm = &plan->comm[c->comm];
    const char *why;
    struct nb_msg msg;
    uint32_t token;
    int header;

    if (c->control)
        return at < NB_CTL_BYTES ? SIM_FOUND : SIM_RESENT_TWICE; /* bytes that were asked for */
    if (m->len < NB_MSG_BYTES)
        return SIM_READ;
    memcpy(&token, m->own + 12, 4); /* little-endian, as all tests are */
    header = nb_msg_parse(m->own, m->len, token, SIZE_MAX, &msg, &why);
    if (header < 0 || at < (size_t)header) /* no data message: while nodes connect */
        return SIM_READ;
    if (nb_codec_row(msg.codec)->reference)
        return SIM_RESENT;
    if (!(msg.flags & (NB_MSG_CHECKED | NB_MSG_KEEP)))
        return SIM_NOT_CHECKED;
    for (int r = 0; r < comm->nmembers; r++)
        if (plan->params[comm->member[r]].payload_check == 2) /* it compares none */
            return SIM_NOT_CHECKED;
    return msg.flags & NB_MSG_KEEP ? SIM_RESENT : SIM_READ;
}

static void damage(struct conn *c, struct message *m)
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

/* The message leaves its sender's memory; the sender is done with it. */
static void let_go(struct conn *c, struct message *m)
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
    while (c->flight.head && c->flight.head->arrive <= s->now && c->stalled <= s->now &&
           !blocked(c, c->from, c->to)) {
        struct message *m = take(&c->flight);

        news = true;
        if (m->end) {
            c->ended = true;
            message_free(m);
            continue;
        }
        let_go(c, m);
        s->network->messages++;
        if (m->len != 224) /* not only a heartbeat */
            s->progress = s->now;
        if (!c->recv.open || c->recv.err) {
            message_free(m);
            continue;
        }
        damage(c, m);
        append(&c->inbox, m);
        sim_trace(s, "message", c->to, c->number, (long)m->len, NULL);
        match(c);
    }
    expect(c);
    if (news) {
        sim_node_wake(s, c->to);
        if (c->refused || !s->plan->early)
            sim_node_wake(s, c->from);
        c->refused = false;
    }
}

/* ---- connections ----------------------------------------------------------------------------------------- */

static void forget_requests(struct end *e)
{
    while (e->requests) {
        struct request *r = e->requests;

        e->requests = r->next;
        free(r);
    }
}

/* What the sender's requests have under way is not theirs any more: it is lost where it lies in memory that
 * is gone. */
static void forget_sends(struct conn *c)
{
    struct line kept = {0};
    struct message *m;

    while ((m = take(&c->flight))) {
        if (m->request || (!m->own && m->len))
            message_free(m);
        else
            append(&kept, m);
    }
    c->flight = kept;
    forget_requests(&c->send);
}

/* The receiver will hear that nothing follows. */
static void launch_end(struct conn *c)
{
    struct message *m;

    if (c->stage != UP || c->recv.err)
        return;
    m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->end = true;
    launch(c, m);
}

/* The sender is gone: what it has sent is followed by the end. */
static void end_sending(struct conn *c)
{
    if (!c->send.open)
        return;
    c->send.open = false;
    c->sim->network->nic[c->from].ends--;
    forget_sends(c);
    launch_end(c);
}

/* The receiver is gone: the sender will hear of it. */
static void end_receiving(struct conn *c)
{
    struct sim *s = c->sim;

    if (!c->recv.open)
        return;
    c->recv.open = false;
    s->network->nic[c->to].ends--;
    forget_requests(&c->recv);
    c->recvs = NULL;
    c->recvs_end = &c->recvs;
    drop(&c->inbox);
    if (c->send.open && !s->network->nic[c->to].dead)
        sim_queue_put(&s->queue, s->now + s->plan->nic[c->to].latency, SIM_BACK, -1, c);
}

static void back(struct sim *s, struct conn *c)
{
    if (blocked(c, c->to, c->from)) {
        c->tells = true;
        return;
    }
    c->tells = false;
    if (c->send.open && !c->send.err) {
        c->send.err = -ECONNRESET;
        sim_node_wake(s, c->from);
    }
}

static void up(struct sim *s, struct conn *c)
{
    struct listener *l = c->listener;
    struct conn **end;

    if (!c->send.open || c->stage != GREETING) /* given up meanwhile, or told twice */
        return;
    if (blocked(c, c->from, c->to) || blocked(c, c->to, c->from)) {
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
        for (end = &l->waiting; *end; end = &(*end)->next)
            ;
        *end = c;
        sim_node_wake(s, c->to);
    }
    s->progress = s->now;
    sim_node_wake(s, c->from);
}

void sim_network_event(struct sim *s, const struct sim_event *e)
{
    if (e->kind == SIM_ARRIVE)
        arrive(s, e->thing);
    else if (e->kind == SIM_BACK)
        back(s, e->thing);
    else
        up(s, e->thing);
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static int net_init(struct nb_context *ctx, struct nb_net **out)
{
    struct net *n = calloc(1, sizeof(*n));
    struct sim_node *node = (struct sim_node *)ctx; /* its first member */

    if (!n)
        return -ENOMEM;
    n->sim = node->sim;
    n->node = node->number;
    n->net = (struct nb_net){.ops = node->sim->plan->early ? &sim_net_early : &sim_net_late, .ctx = ctx};
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
    snprintf(props->name, sizeof(props->name), "sim0");
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = (int)(n->sim->plan->nic[n->node].rate_out * 8);
    props->max_comms = 65536;
    props->max_recvs = 1;
    props->max_bytes = (size_t)1 << 30;
    return 0;
}

/* Room for one more in a list of pointers. */
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
    struct sim_network *w = n->sim->network;
    int before = sim_memory_enter(SIM_NOBODY);
    struct listener *l = calloc(1, sizeof(*l));
    struct handle h = {.magic = MAGIC};

    (void)dev;
    if (!l)
        abort();
    w->listener = grown(w->listener, w->nlisteners, &w->listeners_cap);
    *l = (struct listener){.sim = n->sim, .number = w->nlisteners, .node = n->node, .open = true};
    w->listener[w->nlisteners++] = l;
    w->nic[n->node].listeners++;
    h.listener = l->number;
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, &h, sizeof(h));
    *listen_comm = l;
    sim_memory_enter(before);
    return 0;
}

static struct conn *conn_new(struct sim *s, int from, struct listener *l)
{
    struct sim_network *w = s->network;
    struct conn *c = calloc(1, sizeof(*c));

    if (!c)
        abort();
    w->conn = grown(w->conn, w->nconns, &w->conns_cap);
    c->sim = s;
    c->number = w->nconns;
    c->from = from;
    c->to = l->node;
    c->comm = w->nic[from].comm;
    c->listener = l;
    c->send.conn = c->recv.conn = c;
    c->send.open = true;
    c->recvs_end = &c->recvs;
    snprintf(c->peer[0], sizeof(c->peer[0]), "10.0.%d.%d<1>", from / 256, from % 256);
    snprintf(c->peer[1], sizeof(c->peer[1]), "10.0.%d.%d<1>", c->to / 256, c->to % 256);
    w->conn[w->nconns++] = c;
    w->nic[from].ends++;
    return c;
}

static int net_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                       void **send_comm)
{
    const struct net *n = (const struct net *)net;
    struct sim *s = n->sim;
    struct handle h;
    struct conn *c;

    (void)dev;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof(h));
    if (h.magic != MAGIC)
        return -EINVAL;
    if (!h.conn) {
        int before = sim_memory_enter(SIM_NOBODY);
        const struct sim_nic *nic = &s->plan->nic[n->node];

        c = conn_new(s, n->node, s->network->listener[h.listener]);
        c->control = cfg->urgent;
        h.conn = c->number + 1;
        memcpy(handle, &h, sizeof(h));
        sim_queue_put(&s->queue, s->now + 2 * nic->latency + some(s, nic->jitter), SIM_UP, -1, c);
        sim_memory_enter(before);
        return 0;
    }
    c = s->network->conn[h.conn - 1];
    if (c->stage == REFUSED) {
        if (c->send.open)
            s->network->nic[c->from].ends--;
        c->send.open = false;
        NB_WARN("simulation: %s refuses connections", c->peer[1]);
        return -ECONNREFUSED;
    }
    if (c->send.err) { /* before it was handed over */
        const int before = sim_memory_enter(SIM_NOBODY);

        end_sending(c);
        sim_memory_enter(before);
        return c->send.err;
    }
    if (c->stage == UP)
        *send_comm = &c->send;
    return 0;
}

static void net_abandon(struct nb_net *net, void *handle)
{
    const struct net *n = (const struct net *)net;
    struct handle h;

    memcpy(&h, handle, sizeof(h));
    if (h.magic == MAGIC && h.conn) {
        int before = sim_memory_enter(SIM_NOBODY);
        end_sending(n->sim->network->conn[h.conn - 1]);
        sim_memory_enter(before);
    }
}

static int net_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct conn *c = l->waiting;

    *recv_comm = c ? &c->recv : NULL;
    if (c)
        l->waiting = c->next;
    return 0;
}

static int net_close_send(void *comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (comm)
        end_sending(((struct end *)comm)->conn);
    sim_memory_enter(before);
    return 0;
}

static int net_close_recv(void *comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (comm)
        end_receiving(((struct end *)comm)->conn);
    sim_memory_enter(before);
    return 0;
}

static void listener_close(struct listener *l)
{
    if (!l->open)
        return;
    l->open = false;
    l->sim->network->nic[l->node].listeners--;
    for (; l->waiting; l->waiting = l->waiting->next)
        end_receiving(l->waiting);
}

static int net_close_listen(void *listen_comm)
{
    int before = sim_memory_enter(SIM_NOBODY);

    if (listen_comm)
        listener_close(listen_comm);
    sim_memory_enter(before);
    return 0;
}

static int node_of(const struct end *e)
{
    return e == &e->conn->send ? e->conn->from : e->conn->to;
}

static int net_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct end *e = comm;
    struct nic *nic = &e->conn->sim->network->nic[node_of(e)];

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
        let_go(c, m);
    launch(c, m);
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
        match(c);
        if (c->refused)
            sim_node_wake(c->sim, c->from);
        c->refused = false;
    }
    sim_memory_enter(before);
    *request = r;
    return 0;
}

static int net_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                      void **request)
{
    (void)recv_comm;
    (void)n;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL;
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

#define TABLE(name_, early_) \
    { \
        .name = name_, .early = early_, .init = net_init, .fini = net_fini, .devices = net_devices, \
        .properties = net_properties, .listen = net_listen, .connect = net_connect, .abandon = net_abandon, \
        .accept = net_accept, .reg_mr = net_reg_mr, .dereg_mr = net_dereg_mr, .isend = net_isend, \
        .irecv = net_irecv, .iflush = net_iflush, .test = net_test, .close_send = net_close_send, \
        .close_recv = net_close_recv, .close_listen = net_close_listen, .poll_fds = net_poll_fds, \
        .peer_name = net_peer_name, .wire_bytes = net_wire_bytes, \
    }
const struct nb_net_ops sim_net_early = TABLE("sim", 1);
const struct nb_net_ops sim_net_late = TABLE("sim", 0);

/* ---- faults ---------------------------------------------------------------------------------------------- */

void sim_network_cut(struct sim *s, int a, int b)
{
    s->network->cut[a * s->network->nnodes + b]++;
}

void sim_network_join(struct sim *s, int a, int b)
{
    struct sim_network *w = s->network;

    if (--w->cut[a * w->nnodes + b])
        return;
    for (int i = 0; i < w->nconns; i++) {
        struct conn *c = w->conn[i];
        if (c->from == a && c->to == b)
            expect(c);
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
    for (int i = 0; i < w->nconns; i++) {
        struct conn *c = w->conn[i];
        if (c->from == node) {
            if (silently) {
                c->send.open = false;
                forget_sends(c);
            } else {
                end_sending(c);
            }
        }
        if (c->to == node)
            end_receiving(c);
    }
    for (int i = 0; i < w->nlisteners; i++)
        if (w->listener[i]->node == node)
            listener_close(w->listener[i]);
    w->nic[node].mrs = w->nic[node].ends = 0;
}

static struct conn *choose(struct sim *s, int a, int b, uint64_t which, int comm)
{
    struct sim_network *w = s->network;
    int n = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0, k = 0; i < w->nconns; i++) {
            struct conn *c = w->conn[i];
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
    drop(&c->flight);
    if (!(ends & 2)) /* as TCP does: its reset follows, as soon as something passes */
        launch_end(c);
    return true;
}

bool sim_network_shows(const struct sim *s, int comm)
{
    const struct sim_network *w = s->network;

    for (int i = 0; i < w->nconns; i++) {
        const struct conn *c = w->conn[i];
        if (!c->broken || c->comm != comm)
            continue;
        if ((c->send.open && c->send.err && c->send.requests) ||
            (c->recv.open && (c->recv.err || c->ended) && c->recvs))
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

void sim_network_no_mr(struct sim *s, int node)
{
    s->network->nic[node].no_mr = true;
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

/* ---- begin and end --------------------------------------------------------------------------------------- */

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
    for (int i = 0; i < w->nconns; i++) {
        struct conn *c = w->conn[i];
        drop(&c->flight);
        drop(&c->inbox);
        forget_requests(&c->send);
        forget_requests(&c->recv);
        free(c);
    }
    for (int i = 0; i < w->nlisteners; i++)
        free(w->listener[i]);
    free(w->conn);
    free(w->listener);
    free(w->nic);
    free(w->cut);
    free(w);
}
