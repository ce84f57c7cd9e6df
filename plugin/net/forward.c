/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `forward`: the point-to-point half of another installed plugin (NIBBLE_NET_FORWARD), so that
 * what a vendor's plugin does better for its network stays, and the collective engine runs over it.
 *
 * A comm of ours wraps the plugin's and keeps what its interface lacks: the error that every later call
 * returns, how many requests are open, bytes. Requests are wrapped since test is given nothing else. The
 * plugin cannot be slept on: it has no descriptors to tell, so poll_fds asks the owner to come back.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "net/forward_table.h"
#include "net/transport.h"

#define BATCH 32 /* requests allocated at once */

struct fwd_req {
    struct fwd_comm *comm;
    void *foreign;
    int n;       /* messages; 0: a flush */
    int dead;    /* the plugin has failed it: it is not asked again */
    size_t size; /* of a send */
    struct fwd_req *next_free;
};

struct fwd_batch {
    struct fwd_batch *next;
    struct fwd_req req[BATCH];
};

struct fwd_comm {
    void *foreign;
    int is_send;
    int err;
    unsigned open; /* requests */
    atomic_uint_fast64_t bytes;
    struct fwd_req *free;
    struct fwd_batch *batches;
    char peer[128];
};

/* Written by init and fini, which run under the caller's lock while no comm exists. */
static struct nb_foreign *plugin;
static int users;

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

/* The plugin's result as errno, said once. A remote error may be a peer that has closed in order, which the
 * caller judges; what the plugin knows about it, it has said itself. */
static int failed(const char *what, const char *peer, ncclResult_t res)
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
        c->err = failed(what, c->peer, res);
    return c->err;
}

/* ---- Devices -------------------------------------------------------------------------------------- */

static int fwd_init(void)
{
    const char *name = nb_params()->net_forward;
    int ret;

    if (users > 0) {
        users++;
        return 0;
    }
    if (!*name) {
        NB_WARN("bad setting: NIBBLE_NET=forward needs NIBBLE_NET_FORWARD, the name or path of a plugin");
        return -EINVAL;
    }
    ret = nb_foreign_open(name, &plugin);
    if (ret)
        return ret;
    NB_INFO(NCCL_INIT | NCCL_NET, "forward: point-to-point traffic goes through plugin %s",
            nb_foreign_label(plugin));
    users = 1;
    return 0;
}

static void fwd_fini(void)
{
    if (users == 0 || --users > 0)
        return;
    nb_foreign_close(plugin);
    plugin = NULL;
}

static int fwd_devices(int *ndev)
{
    ncclResult_t res = nb_foreign_devices(plugin, ndev);

    return res == ncclSuccess ? 0 : failed("devices", NULL, res);
}

static int fwd_properties(int dev, struct nb_net_props *props)
{
    int type = NCCL_NET_DEVICE_HOST;
    ncclResult_t res = nb_foreign_properties(plugin, dev, props, &type);

    if (res != ncclSuccess)
        return failed("getProperties", NULL, res);
    if (type != NCCL_NET_DEVICE_HOST) {
        NB_WARN("forward: device %s of plugin %s is driven by NCCL's kernels (type %d), which cannot be "
                "forwarded",
                props->name, nb_foreign_label(plugin), type);
        return -ENOTSUP;
    }
    return 0;
}

/* ---- Connections ---------------------------------------------------------------------------------- */

static struct fwd_comm *comm_new(void *foreign, int is_send)
{
    struct fwd_comm *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->foreign = foreign;
    c->is_send = is_send;
    /* Its address is the plugin's secret. */
    snprintf(c->peer, sizeof(c->peer), "peer of %s connection %p", is_send ? "sending" : "receiving",
             foreign);
    return c;
}

static int fwd_listen(int dev, void *handle, void **listen_comm)
{
    ncclResult_t res = nb_foreign_listen(plugin, dev, handle, listen_comm);

    if (res == ncclSuccess && !*listen_comm)
        res = ncclInternalError;
    return res == ncclSuccess ? 0 : failed("listen", NULL, res);
}

static int fwd_connect(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm)
{
    void *foreign = NULL;
    ncclResult_t res = nb_foreign_connect(
        plugin, dev, cfg ? cfg->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, &foreign);

    *send_comm = NULL;
    if (res != ncclSuccess)
        return failed("connect", NULL, res);
    if (!foreign)
        return 0;
    *send_comm = comm_new(foreign, 1);
    if (*send_comm)
        return 0;
    nb_foreign_close_send(plugin, foreign);
    return -ENOMEM;
}

static int fwd_accept(void *listen_comm, void **recv_comm)
{
    void *foreign = NULL;
    ncclResult_t res = nb_foreign_accept(plugin, listen_comm, &foreign);

    *recv_comm = NULL;
    if (res != ncclSuccess)
        return failed("accept", NULL, res);
    if (!foreign)
        return 0;
    *recv_comm = comm_new(foreign, 0);
    if (*recv_comm)
        return 0;
    nb_foreign_close_recv(plugin, foreign);
    return -ENOMEM;
}

static int close_comm(struct fwd_comm *c, ncclResult_t (*close)(struct nb_foreign *, void *),
                      const char *what)
{
    ncclResult_t res;
    int ret;

    if (!c)
        return 0;
    res = close(plugin, c->foreign);
    ret = res == ncclSuccess ? 0 : failed(what, c->peer, res);
    while (c->batches) {
        struct fwd_batch *next = c->batches->next;

        free(c->batches);
        c->batches = next;
    }
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
    ncclResult_t res = comm ? nb_foreign_close_listen(plugin, comm) : ncclSuccess;

    return res == ncclSuccess ? 0 : failed("closeListen", NULL, res);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static int fwd_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res = nb_foreign_reg_mr(plugin, c->foreign, data, size, (int)type, mhandle);

    return res == ncclSuccess ? 0 : failed("regMr", c->peer, res);
}

static int fwd_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                             void **mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res =
        nb_foreign_reg_mr_dmabuf(plugin, c->foreign, data, size, (int)type, offset, fd, mhandle);

    return res == ncclSuccess ? 0 : failed("regMrDmaBuf", c->peer, res);
}

static int fwd_dereg_mr(void *comm, void *mhandle)
{
    struct fwd_comm *c = comm;
    ncclResult_t res = nb_foreign_dereg_mr(plugin, c->foreign, mhandle);

    return res == ncclSuccess ? 0 : failed("deregMr", c->peer, res);
}

/* ---- Messages ------------------------------------------------------------------------------------- */

static struct fwd_req *req_new(struct fwd_comm *c)
{
    struct fwd_req *r;

    if (!c->free) {
        struct fwd_batch *b = calloc(1, sizeof(*b));

        if (!b)
            return NULL;
        b->next = c->batches;
        c->batches = b;
        for (int i = 0; i < BATCH; i++) {
            b->req[i].comm = c;
            b->req[i].next_free = c->free;
            c->free = &b->req[i];
        }
    }
    r = c->free;
    c->free = r->next_free;
    r->foreign = NULL;
    r->dead = 0;
    r->size = 0;
    return r;
}

static void req_free(struct fwd_req *r)
{
    r->next_free = r->comm->free;
    r->comm->free = r;
}

/* The plugin has answered: hand the request on, or take it back. */
static int posted(struct fwd_comm *c, struct fwd_req *r, const char *what, ncclResult_t res, void **request)
{
    if (res != ncclSuccess || !r->foreign) {
        req_free(r);
        return res == ncclSuccess ? 0 : fail_comm(c, what, res);
    }
    c->open++;
    *request = r;
    return 0;
}

/* A request of n messages on a comm that has not failed. */
static int prepare(struct fwd_comm *c, int n, struct fwd_req **r, void **request)
{
    *request = NULL;
    if (c->err)
        return c->err;
    *r = req_new(c);
    if (!*r)
        return -ENOMEM;
    (*r)->n = n;
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
    res = nb_foreign_isend(plugin, c->foreign, data, size, tag, mhandle, &r->foreign);
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
    res = nb_foreign_irecv(plugin, c->foreign, n, data, sizes, tags, mhandles, &r->foreign);
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
    res = nb_foreign_iflush(plugin, c->foreign, n, data, sizes, mhandles, &r->foreign);
    return posted(c, r, "iflush", res, request);
}

static int fwd_test(void *request, int *done, size_t *sizes)
{
    struct fwd_req *r = request;
    struct fwd_comm *c = r->comm;
    int got[NB_NET_MAX_RECVS] = {0};
    ncclResult_t res;

    *done = 0;
    if (r->dead)
        return c->err;
    res = nb_foreign_test(plugin, r->foreign, done, got);
    if (res != ncclSuccess) {
        *done = 0;
        r->dead = 1;
        return fail_comm(c, c->is_send ? "test of a send" : "test of a receive", res);
    }
    if (!*done)
        return c->err; /* of another request: what is not done by now will not be */
    for (int i = 0; sizes && i < r->n; i++)
        sizes[i] = c->is_send ? r->size : got[i] < 0 ? 0 : (size_t)got[i];
    c->open--;
    req_free(r);
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
    .listen = fwd_listen,
    .connect = fwd_connect,
    .abandon = NULL, /* the interface has no such call */
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
