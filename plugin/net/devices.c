/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices and the table that translates its indices; see devices.h. */
#include "net/devices.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define UNKNOWN_SPEED_MBPS 10000 /* of a NIC that cannot tell; as NCCL assumes for sockets */

/* Written by nb_devices_open, which nobody calls while the table is in use. */
static const struct nb_net_ops *under;
static struct nb_net_ops shown;
static struct nb_net_props list[NB_NET_MAX_DEVS];
static int nnics, ndevices;

/* The transport's index of a device of the list, or -EINVAL. */
static int nic_of(int dev)
{
    if (dev >= 0 && dev < ndevices)
        return dev % nnics;
    NB_WARN("there is no device %d, there are %d", dev, ndevices);
    return -EINVAL;
}

static int shown_devices(int *ndev)
{
    *ndev = ndevices;
    return 0;
}

static int shown_properties(int dev, struct nb_net_props *props)
{
    int nic = nic_of(dev);

    if (nic < 0)
        return nic;
    *props = list[dev];
    return 0;
}

static int shown_listen(int dev, void *handle, void **listen_comm)
{
    int nic = nic_of(dev);

    return nic < 0 ? nic : under->listen(nic, handle, listen_comm);
}

static int shown_connect(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm)
{
    int nic = nic_of(dev);

    return nic < 0 ? nic : under->connect(nic, cfg, handle, send_comm);
}

/* 1 when one of the first n devices has this name. */
static int is_taken(const char *name, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return 1;
    return 0;
}

/* Give device `dev` the name of its NIC, with the number of the copy where that is not 0, unlike all before.
 */
static void name_device(int dev, const char *nic, int copy)
{
    char *name = list[dev].name;
    size_t cap = sizeof(list[dev].name);

    if (copy == 0)
        snprintf(name, cap, "%.*s", (int)cap - 1, nic);
    for (int n = copy; n > 0 || is_taken(name, dev); n++) {
        char suffix[16];
        int len = snprintf(suffix, sizeof(suffix), "#%d", n ? n : 1);

        snprintf(name, cap, "%.*s%s", (int)cap - 1 - len, nic, suffix);
        if (!is_taken(name, dev))
            break;
    }
}

int nb_devices_open(const struct nb_net_ops *transport, int copies, const struct nb_net_ops **ops)
{
    int n = 0, ret = transport->devices(&n);

    if (ret)
        return ret;
    if (n > NB_NET_MAX_DEVS) {
        NB_WARN("transport %s has %d devices, only the first %d are used", transport->name, n,
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
    for (int i = 0; i < n; i++) {
        struct nb_net_props props;

        memset(&props, 0, sizeof(props));
        ret = transport->properties(i, &props);
        if (ret) {
            /* One device less on this node alone would end the job where CollNet devices are counted. */
            NB_WARN(
                "device %d of transport %s cannot tell its properties (%s); it is shown, and fails when used",
                i, transport->name, strerror(-ret));
            memset(&props, 0, sizeof(props));
            snprintf(props.name, sizeof(props.name), "%s%d", transport->name, i);
            props.guid = (uint64_t)i;
            props.mem_support = NB_MEM_HOST;
            props.speed_mbps = UNKNOWN_SPEED_MBPS;
        }
        list[i] = props;
        name_device(i, props.name, 0);
    }
    for (int i = n; i < n * copies; i++) {
        list[i] = list[i % n];
        name_device(i, list[i % n].name, i / n);
    }
    under = transport;
    nnics = n;
    ndevices = n * copies;
    shown = *transport;
    shown.devices = shown_devices;
    shown.properties = shown_properties;
    shown.listen = shown_listen;
    shown.connect = shown_connect;
    *ops = &shown;
    return 0;
}
