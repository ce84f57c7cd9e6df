/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `forward`: the point-to-point half of another installed plugin (NIBBLE_NET_FORWARD). A
 * vendor's plugin keeps driving its network, and the collective engine runs over it.
 *
 * Each connection wraps one of the plugin's and adds the parts that the plugin interface lacks: the sticky
 * error, the number of requests in flight, bytes. Requests are wrapped because test gets only the request. A
 * plugin has no descriptors to wait for, so poll_fds makes the owner poll.
 */
#include "net/forward/table.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "net/tcp/tcp.h"
#include "net/transport.h"

struct fwd_req {
    struct nb_net_req head;
    void *foreign;
    int n;       /* messages; 0: a flush */
    bool dead;   /* the plugin has failed it: do not test it again */
    size_t size; /* in bytes, of a send */
};

struct fwd_comm {
    struct nb_foreign *plugin;
    void *foreign;
    int is_send;
    int err;
    unsigned open; /* requests in flight */
    atomic_uint_fast64_t bytes;
    struct nb_net_reqs reqs;
    char peer[128];
};

struct forward {
    struct nb_net net;
    struct nb_foreign *plugin;
};

struct fwd_listen {
    struct nb_foreign *plugin;
    void *foreign;
};

static struct nb_foreign *plugin_of(struct nb_net *net)
{
    return ((struct forward *)net)->plugin;
}

static const char *result_name(ncclResult_t res)
{
    static const char *const names[] = {"success",
                                        "an unhandled CUDA error",
                                        "a system error",
                                        "an internal error",
                                        "an invalid argument",
                                        "invalid usage",
                                        "a remote error",
                                        "in progress",
                                        "a timeout"};

    return (unsigned)res < sizeof(names) / sizeof(names[0]) ? names[res] : "an unknown error";
}

/* Convert the plugin's result to errno and log it once. A remote error may be a graceful shutdown by the
 * peer, which the caller judges. The plugin has then logged its cause itself. */
static int failed(const struct nb_foreign *plugin, const char *what, const char *peer, ncclResult_t res)
{
    if (res == ncclRemoteError) {
        NB_INFO(NCCL_NET, "forward: %s: a remote error from plugin %s%s%s", what, nb_foreign_label(plugin),
                peer ? ", " : "", peer ? peer : "");
        return -ECONNRESET;
    }
    NB_WARN("forward: %s: %s (result %d) from plugin %s%s%s", what, result_name(res), (int)res,
            nb_foreign_label(plugin), peer ? ", " : "", peer ? peer : "");
    switch (res) {
    case ncclInvalidArgument:
    case ncclInternalError: return -EINVAL;
    case ncclInvalidUsage: return -EMSGSIZE;
    case ncclTimeout: return -ETIMEDOUT;
    default: return -EIO;
    }
}

static int fail_comm(struct fwd_comm *c, const char *what, ncclResult_t res)
{
    if (!c->err)
        c->err = failed(c->plugin, what, c->peer, res);
    return c->err;
}

/* ---- Devices -------------------------------------------------------------------------------------- */

static int fwd_init(struct nb_context *ctx, struct nb_net **net)
{
    const char *name = ctx->params->net_forward;
    struct forward *f;
    int ret;

    if (!*name) {
        NB_WARN("bad setting: NIBBLE_NET=forward needs NIBBLE_NET_FORWARD, the name or path of a plugin");
        return -EINVAL;
    }
    f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->net = (struct nb_net){.ops = &nb_net_forward, .ctx = ctx};
    ret = nb_foreign_open(name, &f->plugin);
    if (ret) {
        free(f);
        return ret;
    }
    NB_INFO(NCCL_INIT | NCCL_NET, "forward: point-to-point traffic goes through plugin %s",
            nb_foreign_label(f->plugin));
    *net = &f->net;
    return 0;
}

static void fwd_fini(struct nb_net *net)
{
    nb_foreign_close(plugin_of(net));
    free(net);
}

static int fwd_devices(struct nb_net *net, int *ndev)
{
    struct nb_foreign *plugin = plugin_of(net);
    ncclResult_t res = nb_foreign_devices(plugin, ndev);

    return res == ncclSuccess ? 0 : failed(plugin, "devices", NULL, res);
}

static int fwd_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    struct nb_foreign *plugin = plugin_of(net);
    int type = NCCL_NET_DEVICE_HOST;
    ncclResult_t res = nb_foreign_properties(plugin, dev, props, &type);

    if (res != ncclSuccess)
        return failed(plugin, "getProperties", NULL, res);
    if (type != NCCL_NET_DEVICE_HOST) {
        NB_WARN("forward: device %s of plugin %s is driven by NCCL's kernels (type %d), which cannot be "
                "forwarded",
                props->name, nb_foreign_label(plugin), type);
        return -ENOTSUP;
    }
    return 0;
}

/* ---- Connections ---------------------------------------------------------------------------------- */

static struct fwd_comm *comm_new(struct nb_foreign *plugin, void *foreign, int is_send)
{
    struct fwd_comm *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->plugin = plugin;
    c->foreign = foreign;
    c->is_send = is_send;
    nb_net_reqs_init(&c->reqs, c, sizeof(struct fwd_req), 0);
    /* The plugin hides the peer's address. */
    snprintf(c->peer, sizeof(c->peer), "peer of %s connection %p", is_send ? "sending" : "receiving",
             foreign);
    return c;
}

static int fwd_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct fwd_listen *l = calloc(1, sizeof(*l));
    ncclResult_t res;

    *listen_comm = NULL;
    if (!l)
        return -ENOMEM;
    l->plugin = plugin_of(net);
    res = nb_foreign_listen(l->plugin, dev, handle, &l->foreign);
    if (res == ncclSuccess && !l->foreign)
        res = ncclInternalError;
    if (res != ncclSuccess) {
        int ret = failed(l->plugin, "listen", NULL, res);

        free(l);
        return ret;
    }
    *listen_comm = l;
    return 0;
}

static int fwd_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                       void **send_comm)
{
    struct nb_foreign *plugin = plugin_of(net);
    void *foreign = NULL;
    ncclResult_t res = nb_foreign_connect(
        plugin, dev, cfg ? cfg->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, &foreign);

    *send_comm = NULL;
    if (res != ncclSuccess)
        return failed(plugin, "connect", NULL, res);
    if (!foreign)
        return 0;
    *send_comm = comm_new(plugin, foreign, 1);
    if (*send_comm)
        return 0;
    nb_foreign_close_send(plugin, foreign);
    return -ENOMEM;
}

static int fwd_accept(void *listen_comm, void **recv_comm)
{
    struct fwd_listen *l = listen_comm;
    void *foreign = NULL;
    ncclResult_t res = nb_foreign_accept(l->plugin, l->foreign, &foreign);

    *recv_comm = NULL;
    if (res != ncclSuccess)
        return failed(l->plugin, "accept", NULL, res);
    if (!foreign)
        return 0;
    *recv_comm = comm_new(l->plugin, foreign, 0);
    if (*recv_comm)
        return 0;
    nb_foreign_close_recv(l->plugin, foreign);
    return -ENOMEM;
}

static int close_comm(struct fwd_comm *c, ncclResult_t (*close)(struct nb_foreign *, void *),
                      const char *what)
{
    ncclResult_t res;
    int ret;

    if (!c)
        return 0;
    res = close(c->plugin, c->foreign);
    ret = res == ncclSuccess ? 0 : failed(c->plugin, what, c->peer, res);
    nb_net_reqs_free(&c->reqs);
    free(c);
    return ret;
}

static int fwd_close_send(void *comm)
{
    return close_comm(comm, nb_foreign_close_send, "closeSend");
}

static int fwd_close_recv(void *comm)
{
    return close_comm(comm, nb_foreign_close_recv, "closeRecv");
}

static int fwd_close_listen(void *comm)
{
    struct fwd_listen *l = comm;
    ncclResult_t res;
    int ret;

    if (!l)
        return 0;
    res = nb_foreign_close_listen(l->plugin, l->foreign);
    ret = res == ncclSuccess ? 0 : failed(l->plugin, "closeListen", NULL, res);
    free(l);
    return ret;
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static int fwd_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res = nb_foreign_reg_mr(c->plugin, c->foreign, data, size, (int)type, mhandle);

    return res == ncclSuccess ? 0 : failed(c->plugin, "regMr", c->peer, res);
}

static int fwd_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                             void **mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res =
        nb_foreign_reg_mr_dmabuf(c->plugin, c->foreign, data, size, (int)type, offset, fd, mhandle);

    return res == ncclSuccess ? 0 : failed(c->plugin, "regMrDmaBuf", c->peer, res);
}

static int fwd_dereg_mr(void *comm, void *mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res = nb_foreign_dereg_mr(c->plugin, c->foreign, mhandle);

    return res == ncclSuccess ? 0 : failed(c->plugin, "deregMr", c->peer, res);
}

/* ---- Messages ------------------------------------------------------------------------------------- */

/* Finish a call of the plugin: pass its request to the caller, or put it back. */
static int posted(struct fwd_comm *c, struct fwd_req *r, const char *what, ncclResult_t res, void **request)
{
    if (res != ncclSuccess || !r->foreign) {
        nb_net_req_put(&c->reqs, &r->head);
        return res == ncclSuccess ? 0 : fail_comm(c, what, res);
    }
    c->open++;
    *request = r;
    return 0;
}

/* Get a request of n messages, unless the comm has failed. */
static int prepare(struct fwd_comm *c, int n, struct fwd_req **r, void **request)
{
    *request = NULL;
    if (c->err)
        return c->err;
    *r = nb_net_req_get(&c->reqs);
    if (!*r)
        return -ENOMEM;
    (*r)->foreign = NULL;
    (*r)->n = n;
    (*r)->dead = false;
    (*r)->size = 0;
    return 0;
}

static int fwd_isend(void *comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct fwd_comm *c = comm;
    struct fwd_req *r;
    ncclResult_t res;
    int ret = prepare(c, 1, &r, request);

    if (ret)
        return ret;
    r->size = size;
    res = nb_foreign_isend(c->plugin, c->foreign, data, size, tag, mhandle, &r->foreign);
    if (res == ncclSuccess && r->foreign)
        atomic_fetch_add_explicit(&c->bytes, size, memory_order_relaxed);
    return posted(c, r, "isend", res, request);
}

static int fwd_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                     void **request)
{
    struct fwd_comm *c = comm;
    struct fwd_req *r;
    ncclResult_t res;
    int ret = prepare(c, n, &r, request);

    if (ret)
        return ret;
    res = nb_foreign_irecv(c->plugin, c->foreign, n, data, sizes, tags, mhandles, &r->foreign);
    return posted(c, r, "irecv", res, request);
}

static int fwd_iflush(void *comm, int n, void **data, const size_t *sizes, void **mhandles, void **request)
{
    struct fwd_comm *c = comm;
    struct fwd_req *r;
    ncclResult_t res;
    int ret = prepare(c, 0, &r, request);

    if (ret)
        return ret;
    res = nb_foreign_iflush(c->plugin, c->foreign, n, data, sizes, mhandles, &r->foreign);
    return posted(c, r, "iflush", res, request);
}

static int fwd_test(void *request, int *done, size_t *sizes)
{
    struct fwd_req *r = request;
    struct fwd_comm *c = r->head.comm;
    int got[NB_NET_MAX_RECVS] = {0};
    ncclResult_t res;

    *done = 0;
    if (r->dead)
        return c->err;
    res = nb_foreign_test(c->plugin, r->foreign, done, got);
    if (res != ncclSuccess) {
        *done = 0;
        r->dead = true;
        return fail_comm(c, c->is_send ? "test of a send" : "test of a receive", res);
    }
    if (!*done)
        return c->err; /* of another request: the remaining requests will never complete */
    for (int i = 0; sizes && i < r->n; i++)
        sizes[i] = c->is_send ? r->size : got[i] < 0 ? 0 : (size_t)got[i];
    c->open--;
    nb_net_req_put(&c->reqs, &r->head);
    return 0;
}

static int fwd_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    struct fwd_comm *c = comm;

    (void)is_send;
    (void)fds;
    (void)max;
    return c->err || c->open > 0 ? -1 : 0;
}

static const char *fwd_peer_name(void *comm)
{
    return ((struct fwd_comm *)comm)->peer;
}

static uint64_t fwd_wire_bytes(void *comm)
{
    return atomic_load_explicit(&((struct fwd_comm *)comm)->bytes, memory_order_relaxed);
}

const struct nb_net_ops nb_net_forward = {
    .name = "forward",
    .init = fwd_init,
    .fini = fwd_fini,
    .devices = fwd_devices,
    .properties = fwd_properties,
    .fills_handle = 1, /* the plugin's */
    .listen = fwd_listen,
    .connect = fwd_connect,
    .abandon = NULL, /* the plugin interface has no such call */
    .accept = fwd_accept,
    .reg_mr = fwd_reg_mr,
    .reg_mr_dmabuf = fwd_reg_mr_dmabuf,
    .dereg_mr = fwd_dereg_mr,
    .isend = fwd_isend,
    .irecv = fwd_irecv,
    .iflush = fwd_iflush,
    .test = fwd_test,
    .close_send = fwd_close_send,
    .close_recv = fwd_close_recv,
    .close_listen = fwd_close_listen,
    .poll_fds = fwd_poll_fds,
    .peer_name = fwd_peer_name,
    .wire_bytes = fwd_wire_bytes,
};
