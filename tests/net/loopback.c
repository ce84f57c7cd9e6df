/* SPDX-License-Identifier: Apache-2.0 */
/* The transport, its connections and its table. See loopback.h. */
#include "loopback_inside.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MAGIC 0x6c6f6f706261636bull /* "loopback" */

/* ---- state ---- */

/* The object that init makes. A transport with settings, adapters or connects in progress has them here. */
struct loopback {
    struct nb_net net; /* first: the layers above hold its address */
};

/* The handle that travels to the connecting side. */
struct handle {
    uint64_t magic;
    uint64_t listener; /* its number */
    const struct nb_context *ctx;
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
    props->max_bytes = LOOPBACK_MAX_BYTES;
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
 * in the handle meanwhile. It then has `abandon`, too. */
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
    cut = loopback_is_cut(c->from, c->to);
    if (l && (loopback_is_dead(h.ctx) || loopback_is_dead(net->ctx)))
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

/* Close one end of a connection. Its unfinished requests die with it. */
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

/* ---- memory: registration is empty ---- */

static int loop_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    const struct end *e = comm;

    (void)data;
    (void)size;
    *mhandle = NULL;
    if (loopback_refuses(e->is_send ? e->connection->from : e->connection->to))
        return -ENOMEM;
    *mhandle = type == NB_MEM_HOST ? comm : NULL;
    return type == NB_MEM_HOST ? 0 : -EINVAL;
}

static int loop_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

static const char *loop_peer_name(void *comm)
{
    return ((struct end *)comm)->peer;
}

const struct nb_net_ops loopback_ops = {
    .name = "loopback",
    .init = loop_init,
    .fini = loop_fini,
    .devices = loop_devices,
    .properties = loop_properties,
    .listen = loop_listen,
    .connect = loop_connect,
    .lost = loopback_lost,
    .handle_name = loop_handle_name,
    .accept = loop_accept,
    .reg_mr = loop_reg_mr,
    .dereg_mr = loop_dereg_mr,
    .isend = loopback_isend,
    .irecv = loopback_irecv,
    .iflush = loopback_iflush,
    .test = loopback_test,
    .close_send = loop_close,
    .close_recv = loop_close,
    .close_listen = loop_close_listen,
    .poll_fds = loopback_poll_fds,
    .peer_name = loop_peer_name,
    .wire_bytes = loopback_wire_bytes,
};
