/* SPDX-License-Identifier: Apache-2.0 */
/* Network devices of the transport that a job would use. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "doctor.h"
#include "net/tcp/tcp.h"
#include "system.h"

static void tell_log(struct doctor *d, enum status status)
{
    char line[400];

    while (log_next(line, sizeof(line)))
        say(&d->report, status, "device", "see docs/network.md, Troubleshooting", "%s", line);
}

/* ---- TCP ---- */

static void interface(struct doctor *d, const struct nb_tcp_if *nif)
{
    const long mtu = system_number(0, "/sys/class/net/%s/mtu", nif->name);
    const long speed = system_number(-1, "/sys/class/net/%s/speed", nif->name);
    const bool loop = strcmp(nif->name, "lo") == 0;
    char address[64];

    nb_tcp_addr_name(&nif->addr, address, sizeof(address));
    address[strcspn(address, "<")] = '\0';
    say(&d->report, STATUS_OK, "device", NULL, "%s: tcp, %s, MTU %ld, %d Mbit/s%s", nif->name, address, mtu,
        nif->speed_mbps, speed > 0 ? "" : " (assumed: the kernel does not know)");
    if (loop && d->options.nodes > 1)
        say(&d->report, STATUS_PROBLEM, "device",
            "name the interface of the job's network in NCCL_SOCKET_IFNAME",
            "lo: no other machine can be reached over it");
    if (strncmp(address, "169.254.", 8) == 0 || strncasecmp(address, "fe80:", 5) == 0)
        say(&d->report, STATUS_PROBLEM, "device",
            "give the interface an address, or name another one in NCCL_SOCKET_IFNAME",
            "%s: %s is link local: only machines of the same wire can be reached", nif->name, address);
    if (!loop && strncmp(address, "127.", 4) == 0)
        say(&d->report, STATUS_PROBLEM, "device", "name another interface in NCCL_SOCKET_IFNAME",
            "%s: %s is this machine's own", nif->name, address);
    if (strncmp(nif->name, "docker", 6) == 0 || strncmp(nif->name, "virbr", 5) == 0)
        say(&d->report, STATUS_WARNING, "device",
            "name the interface of the job's network in NCCL_SOCKET_IFNAME",
            "%s: a bridge of containers or virtual machines, most often of this machine only", nif->name);
    if (speed >= 25000 && mtu > 0 && mtu < 4000)
        say(&d->report, STATUS_WARNING, "device", "set an MTU of 9000 on nodes and switches",
            "%s: MTU %ld on a link of %ld Gbit/s: six times the packets for each byte", nif->name, mtu,
            speed / 1000);
}

/* The kernel sends everything through the first of several interfaces of one subnet. */
static void one_subnet(struct doctor *d, const struct nb_tcp_if *ifs, int n)
{
    struct ifaddrs *list;
    in_addr_t net[NB_NET_MAX_DEVS] = {0};

    if (getifaddrs(&list))
        return;
    for (int i = 0; i < n; i++)
        for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
            struct sockaddr_in address, mask;
            if (!a->ifa_addr || !a->ifa_netmask || a->ifa_addr->sa_family != AF_INET ||
                ifs[i].addr.ss_family != AF_INET || strcmp(a->ifa_name, ifs[i].name) != 0)
                continue;
            memcpy(&address, a->ifa_addr, sizeof(address));
            memcpy(&mask, a->ifa_netmask, sizeof(mask));
            net[i] = address.sin_addr.s_addr & mask.sin_addr.s_addr;
            break;
        }
    freeifaddrs(list);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i && net[i]; j++)
            if (net[i] == net[j]) {
                say(&d->report, STATUS_WARNING, "device",
                    "give them subnets of their own, or name one in NCCL_SOCKET_IFNAME",
                    "%s and %s are in one subnet: without policy routing the kernel sends everything through "
                    "one",
                    ifs[j].name, ifs[i].name);
                return;
            }
}

static void tcp_devices(struct doctor *d)
{
    struct nb_tcp_if *ifs = calloc(NB_NET_MAX_DEVS, sizeof(*ifs));
    const int n = ifs ? nb_tcp_if_find(ifs, NB_NET_MAX_DEVS) : 0;

    for (int i = 0; i < n; i++)
        interface(d, &ifs[i]);
    if (n > 1)
        one_subnet(d, ifs, n);
    free(ifs);
}

/* ---- All transports ---- */

static void other_devices(struct doctor *d)
{
    for (int i = 0; i < d->list->n; i++) {
        const struct nb_device_info *info = &d->list->device[i];
        say(&d->report, STATUS_OK, "device", NULL, "%s: %s, %d Mbit/s, %s", info->net.name, d->transport,
            info->net.speed_mbps,
            info->net.mem_support & NB_MEM_DMABUF ? "reaches GPU memory by DMA-BUF"
            : info->net.mem_support & NB_MEM_CUDA ? "reaches GPU memory by peermem"
                                                  : "host memory only");
    }
}

void check_devices(struct doctor *d)
{
    d->transport = "";
    d->list = calloc(1, sizeof(*d->list));
    d->ctx = calloc(1, sizeof(*d->ctx));
    if (!d->list || !d->ctx || nb_context_init(d->ctx, NULL)) {
        say(&d->report, STATUS_PROBLEM, "device", "free memory", "no memory");
        free(d->ctx);
        d->ctx = NULL;
        return;
    }
    d->ctx->params = d->params;
    if (nb_context_start(d->ctx, NULL)) {
        tell_log(d, STATUS_PROBLEM);
        nb_context_fini(d->ctx);
        free(d->ctx);
        d->ctx = NULL;
        return;
    }
    d->transport = d->ctx->net->ops->name;
    tell_log(d, STATUS_WARNING);
    if (nb_device_list_fill(d->ctx, d->list) || d->list->n == 0)
        say(&d->report, STATUS_PROBLEM, "device",
            "bring an interface up, or name one in NCCL_SOCKET_IFNAME or NCCL_IB_HCA",
            "there is no network device");
    else if (strcmp(d->transport, "tcp") == 0)
        tcp_devices(d);
    else
        other_devices(d);
    tell_log(d, STATUS_WARNING);
}
