/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices, and a table of functions that translates its indices. See devices.h. */
#include "net/devices.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define UNKNOWN_SPEED_MBPS 10000 /* of a NIC that reports no speed: NCCL's assumption for sockets */

struct devices {
    struct nb_net net;
    struct nb_net_ops ops; /* the transport's, with the list's own functions in some places */
    struct nb_net *under;
    int nnics, ndevices;
    struct nb_net_props list[NB_NET_MAX_DEVS];
};

static struct devices *devices_of(struct nb_net *net)
{
    return (struct devices *)net;
}

/* Return the transport's index of a device of the list, or -EINVAL. */
static int nic_of(const struct devices *d, int dev)
{
    if (dev >= 0 && dev < d->ndevices)
        return dev % d->nnics;
    NB_WARN("device %d is unknown: there are %d", dev, d->ndevices);
    return -EINVAL;
}

static void list_fini(struct nb_net *net)
{
    struct devices *d = devices_of(net);

    d->under->ops->fini(d->under);
    free(d);
}

static int list_devices(struct nb_net *net, int *ndev)
{
    *ndev = devices_of(net)->ndevices;
    return 0;
}

static int list_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    struct devices *d = devices_of(net);
    int nic = nic_of(d, dev);

    if (nic < 0)
        return nic;
    *props = d->list[dev];
    return 0;
}

static int list_listen(struct nb_net *net, int dev, void *handle, void **listen_comm)
{
    struct devices *d = devices_of(net);
    int nic = nic_of(d, dev);

    return nic < 0 ? nic : d->under->ops->listen(d->under, nic, handle, listen_comm);
}

static int list_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                        void **send_comm)
{
    struct devices *d = devices_of(net);
    int nic = nic_of(d, dev);

    return nic < 0 ? nic : d->under->ops->connect(d->under, nic, cfg, handle, send_comm);
}

static void list_abandon(struct nb_net *net, void *handle)
{
    struct nb_net *under = devices_of(net)->under;

    under->ops->abandon(under, handle);
}

static bool is_taken(const struct devices *d, const char *name, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(d->list[i].name, name) == 0)
            return true;
    return false;
}

/* Give device `dev` the name of its NIC, with the number of the copy unless that is 0. The name differs from
 * those of all earlier devices. */
static void name_device(struct devices *d, int dev, const char *nic, int copy)
{
    char *name = d->list[dev].name;
    size_t cap = sizeof(d->list[dev].name);

    if (copy == 0)
        snprintf(name, cap, "%.*s", (int)cap - 1, nic);
    for (int n = copy; n > 0 || is_taken(d, name, dev); n++) {
        char suffix[16];
        int len = snprintf(suffix, sizeof(suffix), "#%d", n ? n : 1);

        snprintf(name, cap, "%.*s%s", (int)cap - 1 - len, nic, suffix);
        if (!is_taken(d, name, dev))
            break;
    }
}

/* Read the properties of NIC `i`. Make them up where the transport cannot report them. */
static void read_properties(struct devices *d, int i)
{
    struct nb_net *under = d->under;
    struct nb_net_props props;
    int ret;

    memset(&props, 0, sizeof(props));
    ret = under->ops->properties(under, i, &props);
    if (ret) {
        /* Leaving the device out on this node alone would end the job: NCCL counts CollNet devices. */
        NB_WARN("device %d of transport %s does not report its properties (%s): it stays in the list, and "
                "its connections fail",
                i, under->ops->name, strerror(-ret));
        memset(&props, 0, sizeof(props));
        snprintf(props.name, sizeof(props.name), "%s%d", under->ops->name, i);
        props.guid = (uint64_t)i;
        props.mem_support = NB_MEM_HOST;
        props.speed_mbps = UNKNOWN_SPEED_MBPS;
    }
    d->list[i] = props;
    name_device(d, i, props.name, 0);
}

int nb_devices_open(struct nb_net *under, int copies, struct nb_net **net)
{
    struct devices *d;
    int n = 0, ret = under->ops->devices(under, &n);

    if (ret)
        return ret;
    d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    if (n > NB_NET_MAX_DEVS) {
        NB_WARN("transport %s has %d devices: only the first %d are used", under->ops->name, n,
                NB_NET_MAX_DEVS);
        n = NB_NET_MAX_DEVS;
    }
    if (copies < 1)
        copies = 1;
    if (n > 0 && copies > NB_NET_MAX_DEVS / n) {
        NB_WARN(
            "NIBBLE_DEVS_PER_NIC=%d with %d NICs would be %d devices, NCCL allows %d: %d per NIC are shown",
            copies, n, copies * n, NB_NET_MAX_DEVS, NB_NET_MAX_DEVS / n);
        copies = NB_NET_MAX_DEVS / n;
    }
    d->under = under;
    d->nnics = n;
    d->ndevices = n * copies;
    for (int i = 0; i < n; i++) {
        read_properties(d, i);
        d->list[i].rate_mbps /= copies; /* the copies are used at the same time */
    }
    for (int i = n; i < n * copies; i++) {
        d->list[i] = d->list[i % n];
        name_device(d, i, d->list[i % n].name, i / n);
    }
    d->ops = *under->ops;
    d->ops.init = NULL;
    d->ops.fini = list_fini;
    d->ops.devices = list_devices;
    d->ops.properties = list_properties;
    d->ops.listen = list_listen;
    d->ops.connect = list_connect;
    d->ops.abandon = under->ops->abandon ? list_abandon : NULL;
    d->net = (struct nb_net){.ops = &d->ops, .ctx = under->ctx};
    *net = &d->net;
    return 0;
}
