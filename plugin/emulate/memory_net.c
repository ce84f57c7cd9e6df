/* SPDX-License-Identifier: Apache-2.0 */
/* Connections in memory. See memory_net.h. */
#include "emulate/memory_net.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MAGIC UINT64_C(0x6e6962626c656d65)
#define MAX_BYTES ((size_t)1 << 30)

struct end;

/* A message that is posted on one side, or is done and untested. */
struct request {
    struct request *next;          /* in the end's list of waiting requests */
    struct request *newer, *older; /* in the list of all the end's requests */
    struct end *end;
    uint8_t *data;
    size_t size;
    bool done;
};

struct end {
    struct pipe *pipe;
    struct request *first, **last; /* still without their counterparts */
    struct request *all;           /* untested requests */
    bool open;
    int err;
    uint64_t bytes;
    char peer[32];
};

struct pipe {
    struct end send, recv;
    struct pipe *next; /* in the listener's queue */
};

struct listener {
    uint64_t magic;
    struct pipe *waiting, **last;
};

struct handle {
    uint64_t magic;
    struct listener *listener; /* handles stay in the process, and listeners outlive connecting */
};

static int memory_init(struct nb_context *ctx, struct nb_net **out)
{
    struct nb_net *net = calloc(1, sizeof(*net));

    if (!net)
        return -ENOMEM;
    *net = (struct nb_net){.ops = &nb_net_memory, .ctx = ctx};
    *out = net;
    return 0;
}

static void memory_fini(struct nb_net *net)
{
    free(net);
}

static int memory_devices(struct nb_net *net, int *ndev)
{
    (void)net;
    *ndev = 1;
    return 0;
}

static int memory_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    (void)net;
    (void)dev;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "memory0");
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = 100000; /* for NCCL; rate_mbps, which decides, stays unknown */
    props->max_comms = 65536;
    props->max_recvs = 1;
    props->max_bytes = MAX_BYTES;
    return 0;
}

/* ---- connections --------------------------------------------------------------------------------------- */

static int memory_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct listener *l = calloc(1, sizeof(*l));
    struct handle h = {MAGIC, l};

    (void)net;
    (void)dev;
    if (!l)
        return -ENOMEM;
    l->magic = MAGIC;
    l->last = &l->waiting;
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, &h, sizeof(h));
    *listen_comm = l;
    return 0;
}

static void end_init(struct end *e, struct pipe *p, const char *what)
{
    e->pipe = p;
    e->open = true;
    e->last = &e->first;
    snprintf(e->peer, sizeof(e->peer), "memory<%s>", what);
}

static int memory_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                          void **send_comm)
{
    struct handle h;
    struct pipe *p;

    (void)net;
    (void)dev;
    (void)cfg;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof(h));
    if (h.magic != MAGIC || h.listener->magic != MAGIC) {
        NB_WARN("memory: the handle given to connect is not one of this process");
        return -EINVAL;
    }
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    end_init(&p->send, p, "receiver");
    end_init(&p->recv, p, "sender");
    *h.listener->last = p;
    h.listener->last = &p->next;
    *send_comm = &p->send;
    return 0;
}

static int memory_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    struct pipe *p = l->waiting;

    *recv_comm = p ? &p->recv : NULL;
    if (p) {
        l->waiting = p->next;
        if (!l->waiting)
            l->last = &l->waiting;
    }
    return 0;
}

static int end_close(struct end *e)
{
    struct pipe *p = e->pipe;

    while (e->all) {
        struct request *r = e->all;

        e->all = r->older;
        free(r);
    }
    e->first = NULL;
    e->last = &e->first;
    e->open = false;
    if (!p->send.open && !p->recv.open)
        free(p);
    return 0;
}

static int memory_close(void *comm)
{
    return comm ? end_close(comm) : 0;
}

static int memory_close_listen(void *listen_comm)
{
    struct listener *l = listen_comm;

    while (l && l->waiting) {
        struct pipe *p = l->waiting;

        l->waiting = p->next;
        end_close(&p->recv);
    }
    free(l);
    return 0;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static int memory_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    (void)data;
    (void)size;
    *mhandle = type == NB_MEM_HOST ? comm : NULL;
    return *mhandle ? 0 : -EINVAL;
}

static int memory_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

static int post(struct end *e, void *data, size_t size, struct request **out)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->end = e;
    r->data = data;
    r->size = size;
    r->older = e->all;
    if (r->older)
        r->older->newer = r;
    e->all = r;
    *e->last = r;
    e->last = &r->next;
    *out = r;
    return 0;
}

static struct request *take_first(struct end *e)
{
    struct request *r = e->first;

    e->first = r->next;
    if (!e->first)
        e->last = &e->first;
    r->next = NULL;
    r->done = true;
    return r;
}

static void match(struct pipe *p)
{
    while (p->send.first && p->recv.first) {
        struct request *from = p->send.first, *to = p->recv.first;

        if (from->size > to->size) {
            NB_WARN("memory: a message of %zu bytes for a receive of %zu", from->size, to->size);
            p->send.err = p->recv.err = -EMSGSIZE;
            return;
        }
        take_first(&p->send);
        take_first(&p->recv);
        if (from->size)
            memcpy(to->data, from->data, from->size);
        to->size = from->size;
        p->send.bytes += from->size;
        p->recv.bytes += from->size;
    }
}

/* Return the end's error. -ECONNRESET: the other end is closed, and all its earlier messages have been
 * received. */
static int end_error(struct end *e)
{
    const struct end *other = e == &e->pipe->send ? &e->pipe->recv : &e->pipe->send;

    if (!e->err && !other->open)
        e->err = -ECONNRESET;
    return e->err;
}

static int memory_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle,
                        void **request)
{
    struct end *e = send_comm;
    struct request *r = NULL;
    int err = end_error(e);

    (void)mhandle;
    *request = NULL;
    if (!err && (tag || size > MAX_BYTES))
        err = -EINVAL;
    if (!err)
        err = post(e, (void *)(uintptr_t)data, size, &r);
    if (err)
        return err;
    *request = r;
    match(e->pipe);
    return 0;
}

static int memory_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                        void **mhandles, void **request)
{
    struct end *e = recv_comm;
    struct request *r = NULL;
    int err = e->err;

    (void)mhandles;
    *request = NULL;
    if (!err && (n != 1 || (tags && tags[0])))
        err = -EINVAL;
    if (!err)
        err = post(e, data[0], sizes[0], &r);
    if (err)
        return err;
    *request = r;
    match(e->pipe);
    return 0;
}

static int memory_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                         void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
    *request = NULL;
    return 0;
}

static int memory_test(void *request, int *done, size_t *sizes)
{
    struct request *r = request;
    struct end *e = r->end;

    *done = r->done;
    if (!r->done)
        return end_error(e);
    if (sizes)
        *sizes = r->size;
    if (r->newer)
        r->newer->older = r->older;
    else
        e->all = r->older;
    if (r->older)
        r->older->newer = r->newer;
    free(r);
    return 0;
}

static int memory_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    const struct end *e = comm;

    (void)is_send;
    (void)fds;
    (void)max;
    return e->err || e->all ? -1 : 0;
}

static const char *memory_peer_name(void *comm)
{
    return ((struct end *)comm)->peer;
}

static uint64_t memory_wire_bytes(void *comm)
{
    return ((struct end *)comm)->bytes;
}

const struct nb_net_ops nb_net_memory = {
    .name = "memory",
    .init = memory_init,
    .fini = memory_fini,
    .devices = memory_devices,
    .properties = memory_properties,
    .listen = memory_listen,
    .connect = memory_connect,
    .accept = memory_accept,
    .reg_mr = memory_reg_mr,
    .dereg_mr = memory_dereg_mr,
    .isend = memory_isend,
    .irecv = memory_irecv,
    .iflush = memory_iflush,
    .test = memory_test,
    .close_send = memory_close,
    .close_recv = memory_close,
    .close_listen = memory_close_listen,
    .poll_fds = memory_poll_fds,
    .peer_name = memory_peer_name,
    .wire_bytes = memory_wire_bytes,
};
