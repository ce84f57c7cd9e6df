/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport's table: InfiniBand and RoCE. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "net/tcp_int.h"
#include "net/verbs_int.h"
#include "net/verbs_probe.h"

static int users; /* inits minus finis */

int nb_verbs_try(char *why, size_t cap, bool *misfit)
{
    int rc;

    *misfit = false;
    if (users > 0) {
        users++;
        return 0;
    }
    rc = nb_verbs_devices_open(why, cap, misfit);
    if (rc)
        return rc;
    /* Connections are made over TCP. */
    rc = nb_net_tcp.init();
    if (!rc && !nb_tcp_device(0))
        rc = -ENODEV;
    if (rc) {
        snprintf(why, cap, "no network interface to make connections over");
        nb_verbs_devices_close();
        return rc;
    }
    users = 1;
    return 0;
}

static int verbs_init(void)
{
    char why[512] = "";
    bool misfit;
    int rc = nb_verbs_try(why, sizeof(why), &misfit);

    if (rc == -ENODEV)
        NB_WARN("NIBBLE_NET=verbs, but %s", why);
    return rc;
}

static void verbs_fini(void)
{
    if (users == 0 || --users > 0)
        return;
    nb_verbs_abandon_all();
    nb_verbs_devices_close();
    nb_net_tcp.fini();
}

static int verbs_devices(int *ndev)
{
    *ndev = nb_verbs_device_count();
    return 0;
}

static int verbs_properties(int dev, struct nb_net_props *props)
{
    const struct nb_verbs_dev *d = nb_verbs_device(dev);

    if (!d)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "%s", d->name);
    snprintf(props->pci_path, sizeof(props->pci_path), "%s", d->pci_path);
    props->guid = d->hca->attr.sys_image_guid;
    props->mem_support = d->mem_support;
    props->speed_mbps = d->speed_mbps;
    props->port = d->port + d->real_port;
    props->max_comms = d->hca->attr.max_qp;
    props->max_recvs = NB_NET_MAX_RECVS;
    /* All requests of a message have to fit into one send queue. */
    props->max_bytes = (size_t)d->max_write *
                       ((d->hca->attr.max_qp_wr > 0 && d->hca->attr.max_qp_wr < NB_VERBS_SEND_DEPTH
                             ? (size_t)d->hca->attr.max_qp_wr : NB_VERBS_SEND_DEPTH) - 2);
    return 0;
}

static const char *verbs_peer_name(void *comm)
{
    return ((struct nb_verbs_comm *)comm)->peer;
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
    .accept = nb_verbs_accept,
    .reg_mr = nb_verbs_reg_mr,
    .reg_mr_dmabuf = nb_verbs_reg_mr_dmabuf,
    .dereg_mr = nb_verbs_dereg_mr,
    .isend = nb_verbs_isend,
    .irecv = nb_verbs_irecv,
    .iflush = nb_verbs_iflush,
    .test = nb_verbs_test,
    .leave = nb_verbs_leave,
    .close_send = nb_verbs_close_send,
    .close_recv = nb_verbs_close_recv,
    .close_listen = nb_verbs_close_listen,
    .poll_fds = nb_verbs_poll_fds,
    .peer_name = verbs_peer_name,
    .wire_bytes = verbs_wire_bytes,
};
