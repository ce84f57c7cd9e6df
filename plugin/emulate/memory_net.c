/* SPDX-License-Identifier: Apache-2.0 */
/* Connections in memory, and their messages. See memory_net.h. */
#include "emulate/memory_net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"

#define MAGIC UINT64_C(0x6e6962626c656d65)
#define MAX_BYTES ((size_t)1 << 30) /* of a message */

/* One message of a request, or the room for one. */
struct nb_memory_part {
    struct nb_memory_part *next; /* in the end's list `waiting` */
    struct nb_memory_request *request;
    uint8_t *data;
    size_t size; /* the message's, once it is here */
    int tag;
};

struct nb_memory_request {
    struct nb_memory_request *next; /* of the same end */
    struct nb_memory_end *end;
    int n, left; /* parts, and parts without a counterpart */
    struct nb_memory_part part[];
};

struct listener {
    const struct nb_context *ctx;
    struct nb_memory_connection *waiting; /* for accept, oldest first */
};

struct handle {
    uint64_t magic;
    struct listener *listener; /* handles stay in the process, and listeners outlive connecting */
};

int nb_memory_init(struct nb_context *ctx, struct nb_net **net)
{
    struct nb_memory_net *n = calloc(1, sizeof(*n));

    if (!n)
        return -ENOMEM;
    n->net = (struct nb_net){.ops = &nb_net_memory, .ctx = ctx};
    *net = &n->net;
    return 0;
}

static void memory_fini(struct nb_net *net)
{
    free(net);
}

int nb_memory_devices(struct nb_net *net, int *ndev)
{
    (void)net;
    *ndev = 1;
    return 0;
}

int nb_memory_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    (void)net;
    if (dev != 0)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "memory0");
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = 100000; /* for NCCL; rate_mbps, which decides, stays unknown */
    props->max_comms = 65536;
    props->max_recvs = NB_NET_MAX_RECVS;
    props->max_bytes = MAX_BYTES;
    return 0;
}

/* ---- connections --------------------------------------------------------------------------------------- */

int nb_memory_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct listener *l = calloc(1, sizeof(*l));
    struct handle h = {MAGIC, l};

    (void)dev;
    *listen_comm = l;
    if (!l)
        return -ENOMEM;
    l->ctx = net->ctx;
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, &h, sizeof(h));
    return 0;
}

static void end_init(struct nb_memory_end *e, struct nb_memory_connection *c, const struct nb_context *ctx,
                     const struct nb_context *peer)
{
    e->connection = c;
    e->ctx = ctx;
    e->is_send = e == &c->send;
    e->open = true;
    snprintf(e->peer, sizeof(e->peer), "memory<%s>", peer->label);
}

/* A transport over a real network returns 0 without a comm until the connection is made, and keeps its place
 * in the handle meanwhile. It then has `abandon`, too. */
int nb_memory_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                      void **send_comm)
{
    struct nb_memory_connection *c, **end;
    struct handle h;

    (void)dev;
    (void)cfg;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof(h));
    if (h.magic != MAGIC) {
        NB_WARN("memory: the handle given to connect is not one of this process");
        return -EINVAL;
    }
    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    pthread_mutex_init(&c->lock, NULL);
    c->faults = ((struct nb_memory_net *)net)->faults;
    end_init(&c->send, c, net->ctx, h.listener->ctx);
    end_init(&c->recv, c, h.listener->ctx, net->ctx);
    for (end = &h.listener->waiting; *end; end = &(*end)->next)
        ;
    *end = c;
    *send_comm = &c->send;
    return 0;
}

int nb_memory_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct nb_memory_connection *c = l->waiting;

    *recv_comm = c ? &c->recv : NULL;
    if (c)
        l->waiting = c->next;
    return 0;
}

/* Close one end of a connection. Its unfinished requests die with it. */
int nb_memory_close(void *comm)
{
    struct nb_memory_end *e = comm;
    struct nb_memory_connection *c;
    struct nb_memory_request *requests;
    bool last;

    if (!e)
        return 0;
    c = e->connection;
    requests = e->requests;
    pthread_mutex_lock(&c->lock);
    if (e->is_send)
        c->sent_all = !e->waiting && !e->err;
    e->waiting = NULL;
    e->open = false;
    last = !c->send.open && !c->recv.open;
    pthread_mutex_unlock(&c->lock);
    /* From here on the other end may free the connection, and this end with it. */
    while (requests) {
        struct nb_memory_request *r = requests;

        requests = r->next;
        free(r);
    }
    if (last) {
        pthread_mutex_destroy(&c->lock);
        free(c);
    }
    return 0;
}

int nb_memory_close_listen(void *listen_comm)
{
    void *comm = NULL;

    while (listen_comm && !nb_memory_accept(listen_comm, &comm) && comm)
        nb_memory_close(comm);
    free(listen_comm);
    return 0;
}

/* ---- memory: registration is empty --------------------------------------------------------------------- */

int nb_memory_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    (void)data;
    (void)size;
    *mhandle = type == NB_MEM_HOST ? comm : NULL;
    return *mhandle ? 0 : -EINVAL;
}

int nb_memory_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

/* ---- messages: sends and receives wait for their counterparts ------------------------------------------ */

/* All functions except those in the table need the connection's lock. */

static int path(const struct nb_memory_connection *c)
{
    return c->faults ? c->faults->path(c->send.ctx, c->recv.ctx) : 0;
}

/* Return the error of calls on this end, and of its unfinished requests. */
static int end_error(struct nb_memory_end *e)
{
    struct nb_memory_connection *c = e->connection;
    const int passes = path(c);

    if (e->err || (passes >= 0 && ((e->is_send ? c->recv.open : c->send.open) || passes > 0)))
        return e->err;
    e->err = passes < 0 ? passes : -ECONNRESET;
    /* A graceful shutdown is not logged here: the caller knows whether it matters. */
    if (!e->is_send && !c->sent_all && passes >= 0)
        NB_WARN("memory: %s closed with sends in flight", e->peer);
    return e->err;
}

static struct nb_memory_request *request_new(struct nb_memory_end *e, int n)
{
    struct nb_memory_request *r = calloc(1, sizeof(*r) + (size_t)n * sizeof(r->part[0]));

    if (!r)
        return NULL;
    r->end = e;
    r->n = r->left = n;
    r->next = e->requests;
    e->requests = r;
    return r;
}

/* Append a part to those that wait. */
static void post(struct nb_memory_request *r, int i, void *data, size_t size, int tag)
{
    struct nb_memory_part **end = &r->end->waiting;

    r->part[i] = (struct nb_memory_part){.request = r, .data = data, .size = size, .tag = tag};
    while (*end)
        end = &(*end)->next;
    *end = &r->part[i];
}

static void part_done(struct nb_memory_part *p, size_t size)
{
    p->size = size;
    p->request->left--;
    p->request->end->bytes += size;
}

/* Carry a message from a send to the receive with its tag. */
static void carry(struct nb_memory_connection *c, struct nb_memory_part *from, struct nb_memory_part *to)
{
    if (from->size > to->size) {
        NB_WARN("memory: a message of %zu bytes (tag %d) for a receive of %zu", from->size, from->tag,
                to->size);
        c->send.err = c->recv.err = -EMSGSIZE;
        return;
    }
    if (from->size > 0)
        memcpy(to->data, from->data, from->size);
    if (c->faults)
        c->faults->arrived(to->data, from->size);
    part_done(to, from->size);
    part_done(from, from->size);
}

/* Take the oldest part with the tag out of the list. Return NULL when there is none. */
static struct nb_memory_part *take(struct nb_memory_part **list, int tag)
{
    for (; *list; list = &(*list)->next) {
        struct nb_memory_part *p = *list;

        if (p->tag == tag) {
            *list = p->next;
            return p;
        }
    }
    return NULL;
}

/* Match all parts that the network lets through. An end without tags has only tag 0. */
static void match(struct nb_memory_connection *c)
{
    if (path(c))
        return;
    for (struct nb_memory_part **at = &c->send.waiting; *at && !c->send.err;) {
        struct nb_memory_part *from = *at, *to = take(&c->recv.waiting, from->tag);

        if (!to) {
            at = &from->next;
            continue;
        }
        *at = from->next;
        carry(c, from, to);
    }
}

int nb_memory_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct nb_memory_end *e = send_comm;
    struct nb_memory_connection *c = e->connection;
    struct nb_memory_request *r = NULL;
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
        post(r, 0, (void *)(uintptr_t)data, size, tag);
        match(c);
        *request = r;
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

int nb_memory_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                    void **mhandles, void **request)
{
    struct nb_memory_end *e = recv_comm;
    struct nb_memory_connection *c = e->connection;
    struct nb_memory_request *r = NULL;
    int err;

    (void)mhandles;
    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    err = e->err; /* messages before the peer's close are here already, or will not come: test reports them */
    if (!err && !(r = request_new(e, n)))
        err = -ENOMEM;
    if (!err) {
        for (int i = 0; i < n; i++)
            post(r, i, data[i], sizes[i], tags ? tags[i] : 0);
        match(c);
        *request = r;
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

int nb_memory_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                     void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
    *request = NULL; /* complete at once */
    return 0;
}

int nb_memory_test(void *request, int *done, size_t *sizes)
{
    struct nb_memory_request *r = request, **p;
    struct nb_memory_end *e = r->end;
    struct nb_memory_connection *c = e->connection;
    int err = 0;

    pthread_mutex_lock(&c->lock);
    if (r->left)
        match(c);
    *done = r->left == 0;
    if (!e->is_send && (c->held || (c->faults && c->faults->late()))) {
        *done = 0;
    } else if (!*done) {
        err = end_error(e);
    } else {
        for (int i = 0; sizes && i < r->n; i++)
            sizes[i] = r->part[i].size;
        for (p = &e->requests; *p != r; p = &(*p)->next)
            ;
        *p = r->next;
        free(r);
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

/* There is no descriptor to sleep on. Return 0 without requests in flight, else ask for another test. */
int nb_memory_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    struct nb_memory_end *e = comm;
    bool busy;

    (void)is_send, (void)fds, (void)max;
    pthread_mutex_lock(&e->connection->lock);
    busy = e->err || e->requests;
    pthread_mutex_unlock(&e->connection->lock);
    return busy ? -1 : 0;
}

int nb_memory_lost(void *send_comm)
{
    struct nb_memory_end *e = send_comm;
    int err;

    pthread_mutex_lock(&e->connection->lock);
    err = end_error(e);
    pthread_mutex_unlock(&e->connection->lock);
    return err;
}

const char *nb_memory_peer_name(void *comm)
{
    return ((struct nb_memory_end *)comm)->peer;
}

uint64_t nb_memory_wire_bytes(void *comm)
{
    struct nb_memory_end *e = comm;
    uint64_t n;

    pthread_mutex_lock(&e->connection->lock);
    n = e->bytes;
    pthread_mutex_unlock(&e->connection->lock);
    return n;
}

const struct nb_net_ops nb_net_memory = {
    .name = "memory",
    .init = nb_memory_init,
    .fini = memory_fini,
    .devices = nb_memory_devices,
    .properties = nb_memory_properties,
    .listen = nb_memory_listen,
    .connect = nb_memory_connect,
    .lost = nb_memory_lost,
    .accept = nb_memory_accept,
    .reg_mr = nb_memory_reg_mr,
    .dereg_mr = nb_memory_dereg_mr,
    .isend = nb_memory_isend,
    .irecv = nb_memory_irecv,
    .iflush = nb_memory_iflush,
    .test = nb_memory_test,
    .close_send = nb_memory_close,
    .close_recv = nb_memory_close,
    .close_listen = nb_memory_close_listen,
    .poll_fds = nb_memory_poll_fds,
    .peer_name = nb_memory_peer_name,
    .wire_bytes = nb_memory_wire_bytes,
};
