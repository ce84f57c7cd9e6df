/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's listeners, which may refuse, and its faults. See loopback.h. */
#include "loopback.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "emulate/memory_net.h"

#define FAULTS 64
#define AT 64 /* of struct handle in the handle, behind memory_net's part */

struct listener {
    struct listener *next;
    uint64_t number; /* connects to a closed listener do not find it */
    const struct nb_context *ctx;
    void *comm;
};

struct handle {
    uint64_t listener; /* its number */
    const struct nb_context *ctx;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listener *listeners; /* under lock */
static uint64_t last_listener;
static atomic_int objects;

int loopback_open_objects(void)
{
    return atomic_load(&objects);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

static struct {
    const struct nb_context *a, *b; /* b NULL: a is dead */
} faults[FAULTS];                   /* under fault_lock, the last of the locks */
static int nfaults;
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const struct nb_context *ctx; /* NULL: none */
    int after;
} refusal;

static struct {
    loopback_tap *call;
    void *arg;
} tap;

static struct {
    loopback_late *call;
    void *arg;
} late;

static int path(const struct nb_context *a, const struct nb_context *b)
{
    int found = 0;

    pthread_mutex_lock(&fault_lock);
    for (int i = 0; i < nfaults && found >= 0; i++) {
        if (!faults[i].b && (faults[i].a == a || faults[i].a == b))
            found = -ECONNRESET;
        else if ((faults[i].a == a && faults[i].b == b) || (faults[i].a == b && faults[i].b == a))
            found = 1;
    }
    pthread_mutex_unlock(&fault_lock);
    return found;
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

void loopback_set_tap(loopback_tap *call, void *arg)
{
    tap.call = call;
    tap.arg = arg;
}

static void arrived(uint8_t *bytes, size_t size)
{
    if (tap.call)
        tap.call(tap.arg, bytes, size);
}

void loopback_set_late(loopback_late *call, void *arg)
{
    late.call = call;
    late.arg = arg;
}

static bool is_late(void)
{
    return late.call && late.call(late.arg);
}

void loopback_cut(void *comm)
{
    struct nb_memory_connection *c = ((struct nb_memory_end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->send.err = c->recv.err = -ECONNRESET;
    pthread_mutex_unlock(&c->lock);
}

void loopback_give_up(void *send_comm, int err)
{
    struct nb_memory_end *e = send_comm;

    pthread_mutex_lock(&e->connection->lock);
    e->err = err;
    pthread_mutex_unlock(&e->connection->lock);
}

void loopback_hold(void *comm, int hold)
{
    struct nb_memory_connection *c = ((struct nb_memory_end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->held = hold;
    pthread_mutex_unlock(&c->lock);
}

/* ---- functions of the table that differ ---------------------------------------------------------------- */

static int loop_init(struct nb_context *ctx, struct nb_net **net)
{
    static const struct nb_memory_faults memory_faults = {path, arrived, is_late};
    const int err = nb_memory_init(ctx, net);

    if (err)
        return err;
    (*net)->ops = &loopback_ops;
    ((struct nb_memory_net *)*net)->faults = &memory_faults;
    atomic_fetch_add(&objects, 1);
    return 0;
}

static void loop_fini(struct nb_net *net)
{
    atomic_fetch_sub(&objects, 1);
    nb_net_memory.fini(net);
}

static int loop_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct listener *l = calloc(1, sizeof(*l));
    struct handle h = {.ctx = net->ctx};
    const int err = l ? nb_memory_listen(net, dev, handle, &l->comm) : -ENOMEM;

    *listen_comm = NULL;
    if (err) {
        free(l);
        return err;
    }
    l->ctx = net->ctx;
    pthread_mutex_lock(&lock);
    h.listener = l->number = ++last_listener;
    l->next = listeners;
    listeners = l;
    pthread_mutex_unlock(&lock);
    memcpy((uint8_t *)handle + AT, &h, sizeof(h));
    atomic_fetch_add(&objects, 1);
    *listen_comm = l;
    return 0;
}

static int loop_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                        void **send_comm)
{
    struct listener *l;
    struct handle h;
    int err = 0, way;

    *send_comm = NULL;
    memcpy(&h, (uint8_t *)handle + AT, sizeof(h));
    if (!h.listener) {
        NB_WARN("memory: the handle given to connect is not one of the tests' transport");
        return -EINVAL;
    }
    pthread_mutex_lock(&lock);
    for (l = listeners; l && l->number != h.listener; l = l->next)
        ;
    way = path(net->ctx, h.ctx);
    if (way < 0 || (way == 0 && !l)) {
        NB_WARN("memory: nobody listens as %llu", (unsigned long long)h.listener);
        err = -ECONNREFUSED;
    } else if (way == 0) {
        err = nb_memory_connect(net, dev, cfg, handle, send_comm);
    }
    pthread_mutex_unlock(&lock);
    if (*send_comm)
        atomic_fetch_add(&objects, 2);
    return err;
}

static void loop_handle_name(const void *handle, char *name, size_t cap)
{
    struct handle h;

    memcpy(&h, (const uint8_t *)handle + AT, sizeof(h));
    snprintf(name, cap, "loopback<%llu>", (unsigned long long)h.listener);
}

static int loop_accept(void *listen_comm, void **recv_comm)
{
    int err;

    pthread_mutex_lock(&lock);
    err = nb_memory_accept(((struct listener *)listen_comm)->comm, recv_comm);
    pthread_mutex_unlock(&lock);
    return err;
}

static int loop_close(void *comm)
{
    if (comm)
        atomic_fetch_sub(&objects, 1);
    return nb_memory_close(comm);
}

/* Close the connections that wait for accept, under the lock. Return how many. */
static int drop(struct listener *l)
{
    void *comm;
    int n = 0;

    for (; !nb_memory_accept(l->comm, &comm) && comm; n++)
        loop_close(comm);
    return n;
}

int loopback_drop_waiting(const struct nb_context *ctx)
{
    int n = 0;

    pthread_mutex_lock(&lock);
    for (struct listener *l = listeners; l && !n; l = l->next)
        if (l->ctx == ctx)
            n = drop(l);
    pthread_mutex_unlock(&lock);
    return n;
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
    drop(l);
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&objects, 1);
    nb_memory_close_listen(l->comm);
    free(l);
    return 0;
}

static int loop_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    const struct nb_memory_end *e = comm;

    *mhandle = NULL;
    if (refusal.ctx && refusal.ctx == e->ctx && refusal.after-- == 0) {
        refusal.ctx = NULL;
        return -ENOMEM;
    }
    return nb_memory_reg_mr(comm, data, size, type, mhandle);
}

const struct nb_net_ops loopback_ops = {
    .name = "loopback",
    .init = loop_init,
    .fini = loop_fini,
    .devices = nb_memory_devices,
    .properties = nb_memory_properties,
    .listen = loop_listen,
    .connect = loop_connect,
    .lost = nb_memory_lost,
    .handle_name = loop_handle_name,
    .accept = loop_accept,
    .reg_mr = loop_reg_mr,
    .dereg_mr = nb_memory_dereg_mr,
    .isend = nb_memory_isend,
    .irecv = nb_memory_irecv,
    .iflush = nb_memory_iflush,
    .test = nb_memory_test,
    .close_send = loop_close,
    .close_recv = loop_close,
    .close_listen = loop_close_listen,
    .poll_fds = nb_memory_poll_fds,
    .peer_name = nb_memory_peer_name,
    .wire_bytes = nb_memory_wire_bytes,
};
