/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See staging.h. Registered GPU memory has pinned memory of the same size beside it, with every message at
 * the same place in both. A send is copied before the transport gets it, a receive after it has arrived.
 */
#include "abi/staging.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/context.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

struct staging {
    struct nb_net net;
    struct nb_net_ops ops;
    struct nb_net *under;
};

struct listener {
    struct nb_net *net; /* the transport */
    void *under;
};

struct request { /* a request of the transport, and the copy to make at its end */
    void *under;
    struct comm *comm;
    struct request *next, **link;
    int n;
    struct {
        uint8_t *to; /* NULL: without copy */
        const uint8_t *from;
    } part[NB_NET_MAX_RECVS];
};

struct memory {
    void *under;
    uint8_t *data, *host; /* host NULL: the transport reaches `data` */
    size_t size;
    struct memory *next; /* deregistered, but receives may still arrive */
};

struct comm {
    struct nb_net *net; /* the transport */
    void *under;
    struct nb_cuda_copier *copier; /* once GPU memory is registered */
    struct request *requests;
    struct memory *left;
};

/* ---- Connections ------------------------------------------------------------------------------------ */

static int wrap(struct nb_net *net, void *theirs, int (*give_up)(void *), void **out)
{
    struct comm *c;

    *out = NULL;
    if (!theirs)
        return 0;
    c = calloc(1, sizeof(*c));
    if (!c) {
        give_up(theirs);
        return -ENOMEM;
    }
    c->net = net;
    c->under = theirs;
    *out = c;
    return 0;
}

static struct nb_net *under_of(struct nb_net *net)
{
    return ((struct staging *)net)->under;
}

static int staged_devices(struct nb_net *net, int *ndev)
{
    return under_of(net)->ops->devices(under_of(net), ndev);
}

static int staged_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    return under_of(net)->ops->properties(under_of(net), dev, props);
}

static int staged_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct listener *l = calloc(1, sizeof(*l));
    int ret;

    *listen_comm = NULL;
    if (!l)
        return -ENOMEM;
    l->net = under_of(net);
    ret = l->net->ops->listen(under_of(net), dev, handle, &l->under);
    if (ret)
        free(l);
    else
        *listen_comm = l;
    return ret;
}

/* Messages pass through host memory here, too, so both ends may keep them. */
static int staged_allow_deltas(void *listen_comm, void *handle)
{
    struct listener *l = listen_comm;

    return l->net->ops->allow_deltas ? l->net->ops->allow_deltas(l->under, handle) : 0;
}

static int staged_close_listen(void *listen_comm)
{
    struct listener *l = listen_comm;
    int ret;

    if (!l)
        return 0;
    ret = l->net->ops->close_listen(l->under);
    free(l);
    return ret;
}

static int staged_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                          void **send_comm)
{
    struct nb_net *under = under_of(net);
    void *theirs = NULL;
    int ret = under->ops->connect(under, dev, cfg, handle, &theirs);

    return ret ? ret : wrap(under, theirs, under->ops->close_send, send_comm);
}

static int staged_accept(void *listen_comm, void **recv_comm)
{
    struct listener *l = listen_comm;
    void *theirs = NULL;
    int ret = l->net->ops->accept(l->under, &theirs);

    return ret ? ret : wrap(l->net, theirs, l->net->ops->close_recv, recv_comm);
}

static void forget(struct request *r)
{
    *r->link = r->next;
    if (r->next)
        r->next->link = r->link;
    free(r);
}

static void free_memory(struct comm *c, struct memory *m)
{
    if (m->host)
        nb_copier_unpin(c->copier, m->host);
    free(m);
}

static int close_comm(struct comm *c, int (*close)(void *))
{
    int ret = close(c->under);

    while (c->requests)
        forget(c->requests);
    for (struct memory *m = c->left, *next; m; m = next) {
        next = m->next;
        free_memory(c, m);
    }
    nb_copier_close(c->copier);
    free(c);
    return ret;
}

static int staged_close_send(void *send_comm)
{
    struct comm *c = send_comm;

    return c ? close_comm(c, c->net->ops->close_send) : 0;
}

static int staged_close_recv(void *recv_comm)
{
    struct comm *c = recv_comm;

    return c ? close_comm(c, c->net->ops->close_recv) : 0;
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

static int staged_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct memory *m = calloc(1, sizeof(*m));
    struct comm *c = comm;
    int ret = 0;

    *mhandle = NULL;
    if (!m)
        return -ENOMEM;
    m->data = data;
    m->size = size;
    if (type == NB_MEM_CUDA) {
        if (!c->copier)
            ret = nb_copier_open(nb_current_gpu(c->net->ctx), &c->copier);
        if (!ret && !(m->host = nb_copier_pinned(c->copier, size ? size : 1)))
            ret = -ENOMEM;
    }
    if (!ret)
        ret = c->net->ops->reg_mr(c->under, m->host ? m->host : data, size, m->host ? NB_MEM_HOST : type,
                                  &m->under);
    if (ret) {
        free_memory(c, m);
        return ret;
    }
    *mhandle = m;
    return 0;
}

static int staged_dereg_mr(void *comm, void *mhandle)
{
    struct memory *m = mhandle;
    struct comm *c = comm;
    int ret;

    if (!m)
        return 0;
    ret = c->net->ops->dereg_mr(c->under, m->under);
    if (c->requests) { /* NCCL gives up: the transport may write there until the connection is closed */
        m->next = c->left;
        c->left = m;
    } else {
        free_memory(c, m);
    }
    return ret;
}

/* Find the transport's address of `size` bytes at `data`. Return 0 and *at, *theirs, or -EINVAL after a WARN
 * line. */
static int place(const struct memory *m, const void *data, size_t size, void **at, void **theirs)
{
    const uintptr_t into = m ? (uintptr_t)data - (uintptr_t)m->data : 0;

    *at = (void *)(uintptr_t)data;
    *theirs = m ? m->under : NULL;
    if (!m || !m->host || !size)
        return 0;
    if (into > m->size || size > m->size - into) {
        NB_WARN("%zu bytes at %p are not of the registered %zu at %p", size, data, m->size, (void *)m->data);
        return -EINVAL;
    }
    *at = m->host + into;
    return 0;
}

/* ---- Messages --------------------------------------------------------------------------------------- */

static struct request *new_request(struct comm *c)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->comm = c;
    r->next = c->requests;
    r->link = &c->requests;
    if (r->next)
        r->next->link = &r->next;
    c->requests = r;
    return r;
}

/* Complete a call: the transport's request gets ours, if it has one. */
static int hand_over(struct request *r, int ret, void **request)
{
    if (ret || !r->under)
        forget(r);
    else
        *request = r;
    return ret;
}

static int staged_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle,
                        void **request)
{
    struct comm *c = send_comm;
    struct request *r;
    void *at, *theirs;
    int ret = place(mhandle, data, size, &at, &theirs);

    *request = NULL;
    if (!ret && at != data)
        ret = nb_copier_copy(c->copier, at, data, size);
    if (ret)
        return ret;
    r = new_request(c);
    return r ? hand_over(r, c->net->ops->isend(c->under, at, size, tag, theirs, &r->under), request)
             : -ENOMEM;
}

static int staged_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                        void **mhandles, void **request)
{
    void *at[NB_NET_MAX_RECVS], *theirs[NB_NET_MAX_RECVS];
    struct comm *c = recv_comm;
    struct request *r;
    int ret = 0;

    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    r = new_request(c);
    if (!r)
        return -ENOMEM;
    r->n = n;
    for (int i = 0; i < n && !ret; i++) {
        ret = place(mhandles[i], data[i], sizes[i], &at[i], &theirs[i]);
        if (!ret && at[i] != data[i]) {
            r->part[i].to = data[i];
            r->part[i].from = at[i];
        }
    }
    if (!ret)
        ret = c->net->ops->irecv(c->under, n, at, sizes, tags, theirs, &r->under);
    return hand_over(r, ret, request);
}

/* The copy is complete when the receive tests done. */
static int staged_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                         void **request)
{
    void *at[NB_NET_MAX_RECVS], *theirs[NB_NET_MAX_RECVS];
    struct comm *c = recv_comm;
    struct request *r;
    int copied = 0, ret = 0;

    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    for (int i = 0; i < n && !ret; i++) {
        ret = place(mhandles[i], data[i], sizes[i], &at[i], &theirs[i]);
        copied += at[i] != data[i];
    }
    if (ret || copied)
        return ret;
    r = new_request(c);
    return r ? hand_over(r, c->net->ops->iflush(c->under, n, at, sizes, theirs, &r->under), request)
             : -ENOMEM;
}

static int staged_test(void *request, int *done, size_t *sizes)
{
    struct request *r = request;
    size_t got[NB_NET_MAX_RECVS];
    int ret;

    for (int i = 0; i < NB_NET_MAX_RECVS; i++)
        got[i] = SIZE_MAX;
    ret = r->comm->net->ops->test(r->under, done, got);
    for (int i = 0; !ret && *done && i < NB_NET_MAX_RECVS; i++) {
        if (got[i] == SIZE_MAX)
            continue;
        if (sizes)
            sizes[i] = got[i];
        if (i < r->n && r->part[i].to)
            ret = nb_copier_copy(r->comm->copier, r->part[i].to, r->part[i].from, got[i]);
    }
    if (!ret && *done)
        forget(r);
    return ret; /* after an error the connection frees the request */
}

int nb_staging_open(struct nb_net *transport, struct nb_net **staging)
{
    struct staging *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->under = transport;
    s->ops = (struct nb_net_ops){
        .name = transport->ops->name,
        .early = transport->ops->early,
        .devices = staged_devices,
        .properties = staged_properties,
        .listen = staged_listen,
        .allow_deltas = staged_allow_deltas,
        .connect = staged_connect,
        .accept = staged_accept,
        .reg_mr = staged_reg_mr,
        .dereg_mr = staged_dereg_mr,
        .isend = staged_isend,
        .irecv = staged_irecv,
        .iflush = staged_iflush,
        .test = staged_test,
        .close_send = staged_close_send,
        .close_recv = staged_close_recv,
        .close_listen = staged_close_listen,
    };
    s->net = (struct nb_net){.ops = &s->ops, .ctx = transport->ctx};
    *staging = &s->net;
    return 0;
}

void nb_staging_close(struct nb_net *staging)
{
    free(staging);
}
