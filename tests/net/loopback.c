/* SPDX-License-Identifier: Apache-2.0 */
/* See loopback.h. */
#include "loopback.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MAGIC 0x6c6f6f706261636bull /* "loopback" */
#define MAX_BYTES ((size_t)1 << 30)

/* ---- state ---- */

/* What init makes. A transport with settings, adapters or connects in progress has them here. */
struct loopback {
    struct nb_net net; /* first: what the layers above hold */
};

/* What travels to the connecting side. */
struct handle {
    uint64_t magic;
    uint64_t listener; /* its number */
    const struct nb_context *ctx;
};

struct request;

/* One message of a request, or the room for one. */
struct part {
    struct part *next; /* in the connection's list of those without a counterpart, oldest first */
    struct request *request;
    uint8_t *data;
    size_t size;
    int tag;
};

struct request {
    struct request *next; /* of the same end */
    struct end *end;
    int n, left; /* parts; parts without a message */
    size_t size[NB_NET_MAX_RECVS];
    struct part part[NB_NET_MAX_RECVS];
};

/* One side's view of a connection: what isend, irecv and the others get as comm. */
struct end {
    struct connection *connection;
    bool is_send;
    int err;        /* first error, sticky */
    uint64_t bytes; /* under the connection's lock */
    struct request *requests;
    char peer[64];
};

/* Both ends of a connection, freed with the second. */
struct connection {
    pthread_mutex_t lock; /* of all that is in it */
    const struct nb_context *from, *to;
    struct connection *next; /* in the listener's queue */
    struct end send, recv;
    bool send_open, recv_open;
    bool sent_all;      /* the sender closed with nothing unfinished */
    bool held;          /* nothing of it is told to the receiver */
    struct part *sends; /* without a receive */
    struct part *recvs; /* without a message */
};

struct listener {
    struct listener *next;
    uint64_t number;
    const struct nb_context *ctx;
    struct connection *waiting; /* for accept, oldest first */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listener *listeners; /* under lock */
static uint64_t last_listener;
static atomic_int objects;

/* ---- faults ---- */

#define FAULTS 64

static struct {
    const struct nb_context *a, *b; /* b NULL: a is dead */
} faults[FAULTS];                   /* under fault_lock, which is taken last */
static int nfaults;
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const struct nb_context *ctx; /* NULL: none */
    int after;
} refusal;

static bool has_fault(const struct nb_context *a, const struct nb_context *b)
{
    bool has = false;

    pthread_mutex_lock(&fault_lock);
    for (int i = 0; i < nfaults; i++)
        has |= (faults[i].a == a && faults[i].b == b) || (b && faults[i].a == b && faults[i].b == a);
    pthread_mutex_unlock(&fault_lock);
    return has;
}

static void add_fault(const struct nb_context *a, const struct nb_context *b)
{
    pthread_mutex_lock(&fault_lock);
    if (nfaults == FAULTS)
        abort();
    faults[nfaults].a = a;
    faults[nfaults++].b = b;
    pthread_mutex_unlock(&fault_lock);
}

void loopback_separate(const struct nb_context *a, const struct nb_context *b)
{
    add_fault(a, b);
}

void loopback_kill(const struct nb_context *ctx)
{
    add_fault(ctx, NULL);
}

void loopback_refuse(const struct nb_context *ctx, int after)
{
    refusal.ctx = ctx;
    refusal.after = after;
}

void loopback_heal(void)
{
    pthread_mutex_lock(&fault_lock);
    nfaults = 0;
    refusal.ctx = NULL;
    pthread_mutex_unlock(&fault_lock);
}

static bool is_dead(const struct nb_context *ctx)
{
    return has_fault(ctx, NULL);
}

static bool is_cut(const struct connection *c)
{
    return has_fault(c->from, c->to);
}

static struct {
    loopback_tap *call;
    void *arg;
} tap;

void loopback_set_tap(loopback_tap *call, void *arg)
{
    tap.call = call;
    tap.arg = arg;
}

static struct {
    loopback_late *call;
    void *arg;
} late;

void loopback_set_late(loopback_late *call, void *arg)
{
    late.call = call;
    late.arg = arg;
}

int loopback_open_objects(void)
{
    return atomic_load(&objects);
}

/* ---- the transport and its device ---- */

static int loop_init(struct nb_context *ctx, struct nb_net **net)
{
    struct loopback *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->net = (struct nb_net){.ops = &loopback_ops, .ctx = ctx};
    atomic_fetch_add(&objects, 1);
    *net = &l->net;
    return 0;
}

static void loop_fini(struct nb_net *net)
{
    atomic_fetch_sub(&objects, 1);
    free(net);
}

static int loop_devices(struct nb_net *net, int *ndev)
{
    (void)net;
    *ndev = 1;
    return 0;
}

static int loop_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    (void)net;
    if (dev != 0)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "loop0");
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = 100000;
    props->max_comms = 65536;
    props->max_recvs = NB_NET_MAX_RECVS;
    props->max_bytes = MAX_BYTES;
    return 0;
}

/* ---- connections ---- */

static int loop_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct listener *l = calloc(1, sizeof(*l));
    struct handle h = {.magic = MAGIC, .ctx = net->ctx};

    (void)dev;
    *listen_comm = NULL;
    if (!l)
        return -ENOMEM;
    l->ctx = net->ctx;
    pthread_mutex_lock(&lock);
    h.listener = l->number = ++last_listener;
    l->next = listeners;
    listeners = l;
    pthread_mutex_unlock(&lock);
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, &h, sizeof(h));
    atomic_fetch_add(&objects, 1);
    *listen_comm = l;
    return 0;
}

static struct connection *connection_new(uint64_t listener)
{
    struct connection *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->send.connection = c->recv.connection = c;
    c->send.is_send = true;
    c->send_open = c->recv_open = true;
    snprintf(c->send.peer, sizeof(c->send.peer), "loopback<%llu>", (unsigned long long)listener);
    snprintf(c->recv.peer, sizeof(c->recv.peer), "loopback<%llu>", (unsigned long long)listener);
    return c;
}

/* A transport over a real network returns 0 without a comm until the connection is made, and keeps its place
 * in the handle meanwhile; then it has `abandon`, too. */
static int loop_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                        void **send_comm)
{
    struct connection *c, **end;
    struct listener *l;
    struct handle h;
    bool cut = false;

    (void)dev;
    (void)cfg;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof(h));
    if (h.magic != MAGIC) {
        NB_WARN("loopback: the handle given to connect is not one of this transport");
        return -EINVAL;
    }
    c = connection_new(h.listener);
    if (!c)
        return -ENOMEM;
    pthread_mutex_lock(&lock);
    for (l = listeners; l && l->number != h.listener; l = l->next)
        ;
    c->from = net->ctx;
    c->to = h.ctx;
    cut = is_cut(c);
    if (l && (is_dead(h.ctx) || is_dead(net->ctx)))
        l = NULL;
    if (l && !cut) {
        for (end = &l->waiting; *end; end = &(*end)->next)
            ;
        *end = c;
    }
    pthread_mutex_unlock(&lock);
    if (!l || cut) {
        if (!cut)
            NB_WARN("loopback: nobody listens as %llu", (unsigned long long)h.listener);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return cut ? 0 : -ECONNREFUSED;
    }
    atomic_fetch_add(&objects, 2);
    *send_comm = &c->send;
    return 0;
}

static void loop_handle_name(const void *handle, char *name, size_t cap)
{
    struct handle h;

    memcpy(&h, handle, sizeof(h));
    snprintf(name, cap, "loopback<%llu>", (unsigned long long)h.listener);
}

static int loop_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct connection *c;

    pthread_mutex_lock(&lock);
    c = l->waiting;
    if (c)
        l->waiting = c->next;
    pthread_mutex_unlock(&lock);
    *recv_comm = c ? &c->recv : NULL;
    return 0;
}

/* Close one end of a connection. Requests that have not completed die with it. */
static void end_close(struct end *e)
{
    struct connection *c = e->connection;
    struct request *requests = e->requests;
    bool last;

    pthread_mutex_lock(&c->lock);
    if (e->is_send) {
        c->sent_all = !c->sends && !e->err;
        c->send_open = false;
        c->sends = NULL;
    } else {
        c->recv_open = false;
        c->recvs = NULL;
    }
    last = !c->send_open && !c->recv_open;
    pthread_mutex_unlock(&c->lock);
    /* From here on the other end may free the connection, and this end with it. */
    while (requests) {
        struct request *r = requests;

        requests = r->next;
        free(r);
    }
    atomic_fetch_sub(&objects, 1);
    if (last) {
        pthread_mutex_destroy(&c->lock);
        free(c);
    }
}

int loopback_drop_waiting(const struct nb_context *ctx)
{
    struct connection *dropped = NULL;
    int n = 0;

    pthread_mutex_lock(&lock);
    for (struct listener *l = listeners; l && !dropped; l = l->next) {
        if (l->ctx != ctx)
            continue;
        dropped = l->waiting;
        l->waiting = NULL;
    }
    pthread_mutex_unlock(&lock);
    for (struct connection *next; dropped; dropped = next, n++) {
        next = dropped->next;
        end_close(&dropped->recv);
    }
    return n;
}

static int loop_close(void *comm)
{
    if (comm)
        end_close(comm);
    return 0;
}

static int loop_close_listen(void *listen_comm)
{
    struct listener *l = listen_comm, **p;

    if (!l)
        return 0;
    pthread_mutex_lock(&lock);
    for (p = &listeners; *p != l; p = &(*p)->next)
        ;
    *p = l->next;
    pthread_mutex_unlock(&lock);
    while (l->waiting) {
        struct connection *c = l->waiting;

        l->waiting = c->next;
        end_close(&c->recv);
    }
    atomic_fetch_sub(&objects, 1);
    free(l);
    return 0;
}

/* ---- memory: nothing to register ---- */

static int loop_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    const struct end *e = comm;

    (void)data;
    (void)size;
    *mhandle = NULL;
    if (refusal.ctx && refusal.ctx == (e->is_send ? e->connection->from : e->connection->to) &&
        refusal.after-- == 0) {
        refusal.ctx = NULL;
        return -ENOMEM;
    }
    *mhandle = type == NB_MEM_HOST ? comm : NULL;
    return type == NB_MEM_HOST ? 0 : -EINVAL;
}

static int loop_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

/* ---- messages; all with the connection's lock but for the functions of the table ---- */

/* The error of calls on this end, and of requests of it that have not completed. */
static int end_error(struct end *e)
{
    struct connection *c = e->connection;
    const bool dead = is_dead(c->from) || is_dead(c->to);

    if (e->err || (!dead && ((e->is_send ? c->recv_open : c->send_open) || is_cut(c))))
        return e->err;
    e->err = -ECONNRESET;
    /* A graceful shutdown is not logged here: the caller knows whether it matters. */
    if (!e->is_send && !c->sent_all && !dead)
        NB_WARN("loopback: %s closed with sends in flight", e->peer);
    return e->err;
}

static struct request *request_new(struct end *e, int n)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->end = e;
    r->n = r->left = n;
    for (int i = 0; i < n; i++)
        r->part[i].request = r;
    r->next = e->requests;
    e->requests = r;
    return r;
}

static void part_done(struct part *p, size_t size)
{
    struct request *r = p->request;

    r->size[p - r->part] = size;
    r->left--;
    r->end->bytes += size;
}

/* A send and the receive with its tag. */
static void carry(struct part *from, struct part *to)
{
    struct connection *c = from->request->end->connection;

    if (from->size > to->size) {
        NB_WARN("loopback: a message of %zu bytes (tag %d) for a receive of %zu", from->size, from->tag,
                to->size);
        c->send.err = c->recv.err = -EMSGSIZE;
        return;
    }
    if (from->size > 0)
        memcpy(to->data, from->data, from->size);
    if (tap.call)
        tap.call(tap.arg, to->data, from->size);
    part_done(to, from->size);
    part_done(from, from->size);
}

/* The oldest part of the list with the tag, taken out of it; NULL: none. */
static struct part *take(struct part **list, int tag)
{
    for (; *list; list = &(*list)->next) {
        struct part *p = *list;

        if (p->tag == tag) {
            *list = p->next;
            return p;
        }
    }
    return NULL;
}

static void append(struct part **list, struct part *p)
{
    while (*list)
        list = &(*list)->next;
    p->next = NULL;
    *list = p;
}

/* All that the network lets through. Tags: an end without them has only 0. */
static void match(struct connection *c)
{
    if (is_cut(c) || is_dead(c->from) || is_dead(c->to))
        return;
    for (struct part **at = &c->sends; *at && !c->send.err;) {
        struct part *from = *at, *to = take(&c->recvs, from->tag);

        if (!to) {
            at = &from->next;
            continue;
        }
        *at = from->next;
        carry(from, to);
    }
}

static int loop_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct end *e = send_comm;
    struct connection *c = e->connection;
    struct request *r = NULL;
    int err;

    (void)mhandle;
    *request = NULL;
    if (size > MAX_BYTES || (!data && size))
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    err = end_error(e);
    if (!err && !(r = request_new(e, 1)))
        err = -ENOMEM;
    if (!err) {
        r->part[0].data = (uint8_t *)(uintptr_t)data;
        r->part[0].size = size;
        r->part[0].tag = tag;
        append(&c->sends, &r->part[0]);
        match(c);
        *request = r;
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

static int loop_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                      void **mhandles, void **request)
{
    struct end *e = recv_comm;
    struct connection *c = e->connection;
    struct request *r = NULL;
    int err;

    (void)mhandles;
    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    err = e->err; /* what the peer sent before it closed is here already, or not to come: test tells */
    if (!err && !(r = request_new(e, n)))
        err = -ENOMEM;
    for (int i = 0; i < n && !err; i++) {
        struct part *to = &r->part[i];

        to->data = data[i];
        to->size = sizes[i];
        to->tag = tags ? tags[i] : 0;
        append(&c->recvs, to);
    }
    if (!err)
        match(c);
    if (!err)
        *request = r;
    pthread_mutex_unlock(&c->lock);
    return err;
}

static int loop_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                       void **request)
{
    (void)recv_comm;
    (void)n;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL; /* nothing to wait for */
    return 0;
}

static int loop_test(void *request, int *done, size_t *sizes)
{
    struct request *r = request, **p;
    struct end *e = r->end;
    int err = 0;

    pthread_mutex_lock(&e->connection->lock);
    if (r->left)
        match(e->connection);
    *done = r->left == 0;
    if (!e->is_send && (e->connection->held || (late.call && late.call(late.arg)))) {
        *done = 0;
    } else if (!*done) {
        err = end_error(e);
    } else {
        for (int i = 0; sizes && i < r->n; i++)
            sizes[i] = r->size[i];
        for (p = &e->requests; *p != r; p = &(*p)->next)
            ;
        *p = r->next;
        free(r);
    }
    pthread_mutex_unlock(&e->connection->lock);
    return err;
}

/* ---- for tests ---- */

void loopback_cut(void *comm)
{
    struct connection *c = ((struct end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->send.err = c->recv.err = -ECONNRESET;
    pthread_mutex_unlock(&c->lock);
}

void loopback_hold(void *comm, int hold)
{
    struct connection *c = ((struct end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->held = hold;
    pthread_mutex_unlock(&c->lock);
}

/* ---- for owners that sleep, and for the log ---- */

/* There is no descriptor to sleep on: 0 where nothing is in flight, else test again. */
static int loop_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    struct end *e = comm;
    bool busy;

    (void)is_send;
    (void)fds;
    (void)max;
    pthread_mutex_lock(&e->connection->lock);
    busy = e->err || e->requests;
    pthread_mutex_unlock(&e->connection->lock);
    return busy ? -1 : 0;
}

static const char *loop_peer_name(void *comm)
{
    return ((struct end *)comm)->peer;
}

static int loop_lost(void *send_comm)
{
    struct end *e = send_comm;
    int err;

    pthread_mutex_lock(&e->connection->lock);
    err = end_error(e);
    pthread_mutex_unlock(&e->connection->lock);
    return err;
}

static uint64_t loop_wire_bytes(void *comm)
{
    struct end *e = comm;
    uint64_t n;

    pthread_mutex_lock(&e->connection->lock);
    n = e->bytes;
    pthread_mutex_unlock(&e->connection->lock);
    return n;
}

const struct nb_net_ops loopback_ops = {
    .name = "loopback",
    .init = loop_init,
    .fini = loop_fini,
    .devices = loop_devices,
    .properties = loop_properties,
    .listen = loop_listen,
    .connect = loop_connect,
    .lost = loop_lost,
    .handle_name = loop_handle_name,
    .accept = loop_accept,
    .reg_mr = loop_reg_mr,
    .dereg_mr = loop_dereg_mr,
    .isend = loop_isend,
    .irecv = loop_irecv,
    .iflush = loop_iflush,
    .test = loop_test,
    .close_send = loop_close,
    .close_recv = loop_close,
    .close_listen = loop_close_listen,
    .poll_fds = loop_poll_fds,
    .peer_name = loop_peer_name,
    .wire_bytes = loop_wire_bytes,
};
