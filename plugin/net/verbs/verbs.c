/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's table: InfiniBand and RoCE. The parts, each above the parts that it uses:
 *
 *     verbs.c
 *     conn.c             making connections, over TCP sockets (net/tcp/connect.c)
 *     send.c  recv.c     messages
 *     progress.c         completions, events, the socket to the peer, sleeping
 *     comm.c  mr.c       functions that both directions share; registrations
 *     qp.c  gid.c        queue pairs; choice of the GID
 *     dev.c              a context's settings, adapters and ports
 *     conf.c  wire.c     settings; bytes on the wire
 *     lib.c  text.c      libibverbs; names for messages
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "net/tcp/tcp.h"
#include "net/verbs/verbs.h"

static int open_parts(struct nb_verbs *v, char *why, size_t cap, bool *misfit)
{
    int rc = nb_verbs_conf_read(v->net.ctx->params, &v->conf);

    if (rc) {
        snprintf(why, cap, "bad settings");
        return rc;
    }
    rc = nb_verbs_devices_open(v, why, cap, misfit);
    if (rc)
        return rc;
    /* Connections are made over TCP. */
    rc = nb_net_tcp.init(v->net.ctx, &v->tcp);
    if (!rc && !nb_tcp_device((struct nb_tcp *)v->tcp, 0)) {
        nb_net_tcp.fini(v->tcp);
        rc = -ENODEV;
    }
    if (rc) {
        snprintf(why, cap, "no network interface to make connections over");
        nb_verbs_devices_close(v);
    }
    return rc;
}

int nb_verbs_try(struct nb_context *ctx, struct nb_net **net, char *why, size_t cap, bool *misfit)
{
    struct nb_verbs *v = calloc(1, sizeof(*v));
    int rc;

    *misfit = false;
    if (!v)
        return -ENOMEM;
    v->net = (struct nb_net){.ops = &nb_net_verbs, .ctx = ctx};
    v->clock = &ctx->clock;
    pthread_mutex_init(&v->lock, NULL);
    rc = open_parts(v, why, cap, misfit);
    if (rc) {
        pthread_mutex_destroy(&v->lock);
        free(v);
        return rc;
    }
    *net = &v->net;
    return 0;
}

static int verbs_init(struct nb_context *ctx, struct nb_net **net)
{
    char why[512] = "";
    bool misfit;
    int rc = nb_verbs_try(ctx, net, why, sizeof(why), &misfit);

    if (rc == -ENODEV)
        NB_WARN("NIBBLE_NET=verbs, but %s", why);
    return rc;
}

static void verbs_fini(struct nb_net *net)
{
    struct nb_verbs *v = (struct nb_verbs *)net;

    nb_verbs_abandon_all(v);
    nb_verbs_devices_close(v);
    nb_net_tcp.fini(v->tcp);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

static int verbs_devices(struct nb_net *net, int *ndev)
{
    *ndev = ((struct nb_verbs *)net)->ndevs;
    return 0;
}

static int verbs_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    const struct nb_verbs_dev *d = nb_verbs_device((struct nb_verbs *)net, dev);

    if (!d)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "%s", d->name);
    snprintf(props->pci_path, sizeof(props->pci_path), "%s", d->pci_path);
    props->guid = d->hca->attr.sys_image_guid;
    props->mem_support = d->mem_support;
    props->parts = d->parts;
    props->speed_mbps = props->rate_mbps = d->speed_mbps;
    props->port = d->port + d->real_port;
    props->max_comms = d->hca->attr.max_qp;
    props->max_recvs = NB_NET_MAX_RECVS;
    /* All work requests of a message have to fit into one send queue. */
    props->max_bytes =
        (size_t)d->max_write * ((d->hca->attr.max_qp_wr > 0 && d->hca->attr.max_qp_wr < NB_VERBS_SEND_DEPTH
                                     ? (size_t)d->hca->attr.max_qp_wr
                                     : NB_VERBS_SEND_DEPTH) -
                                2);
    return 0;
}

static bool is_flush(const struct nb_verbs_comm *c, const struct nb_net_req *r)
{
    return !c->is_send && ((const struct nb_verbs_rreq *)r)->n == 0;
}

static int verbs_test(void *request, int *done, size_t *sizes)
{
    struct nb_net_req *r = request;
    struct nb_verbs_comm *c = r->comm;

    *done = 0;
    if (!r->done)
        nb_verbs_progress(c);
    if (!r->done)
        return is_flush(c, r) && nb_verbs_may_flush(c) ? 0 : c->err;
    *done = 1;
    if (sizes && c->is_send) {
        sizes[0] = ((const struct nb_verbs_sreq *)request)->part[0].size +
                   ((const struct nb_verbs_sreq *)request)->part[1].size;
    } else if (sizes) {
        const struct nb_verbs_rreq *q = request;

        memcpy(sizes, q->size, (size_t)q->n * sizeof(sizes[0]));
    }
    nb_verbs_tested(c, r);
    return 0;
}

static const char *verbs_peer_name(void *comm)
{
    return ((struct nb_verbs_comm *)comm)->peer;
}

static int verbs_lost(void *send_comm)
{
    struct nb_verbs_comm *c = send_comm;

    nb_verbs_progress(c);
    return c->err ? c->err : c->eof ? -ECONNRESET : 0;
}

static uint64_t verbs_wire_bytes(void *comm)
{
    return ((struct nb_verbs_comm *)comm)->wire;
}

const struct nb_net_ops nb_net_verbs = {
    .name = "verbs",
    .init = verbs_init,
    .fini = verbs_fini,
    .devices = verbs_devices,
    .properties = verbs_properties,
    .listen = nb_verbs_listen,
    .connect = nb_verbs_connect,
    .abandon = nb_verbs_abandon,
    .lost = verbs_lost,
    .handle_name = nb_tcp_handle_name,
    .accept = nb_verbs_accept,
    .reg_mr = nb_verbs_reg_mr,
    .reg_mr_dmabuf = nb_verbs_reg_mr_dmabuf,
    .dereg_mr = nb_verbs_dereg_mr,
    .isend = nb_verbs_isend,
    .irecv = nb_verbs_irecv,
    .isend_parts = nb_verbs_isend_parts,
    .irecv_parts = nb_verbs_irecv_parts,
    .iflush = nb_verbs_iflush,
    .icopy = nb_verbs_icopy,
    .test = verbs_test,
    .leave = nb_verbs_leave,
    .close_send = nb_verbs_close_send,
    .close_recv = nb_verbs_close_recv,
    .close_listen = nb_verbs_close_listen,
    .poll_fds = nb_verbs_poll_fds,
    .peer_name = verbs_peer_name,
    .wire_bytes = verbs_wire_bytes,
};
