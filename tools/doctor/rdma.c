/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of InfiniBand and RoCE as the kernel shows them in sysfs, so that the report also names those that
 * the transport cannot use. */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/params.h"
#include "doctor.h"
#include "system.h"

struct port {
    struct doctor *d;
    const char *hca;
    int number;
};

struct gids {
    const struct port *port;
    int v1, v2, routable; /* RoCE version 1 and 2. routable: of version 2, neither empty nor link local */
};

static bool empty_or_local(const char *gid)
{
    return strcmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000") == 0 || strncmp(gid, "fe80", 4) == 0;
}

static int roce_version(const struct port *p, const char *index)
{
    char type[32];

    system_line(type, sizeof(type), "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%s", p->hca, p->number,
                index);
    return strstr(type, "v2") ? 2 : *type ? 1 : 0;
}

static void see_gid(void *arg, const char *index)
{
    struct gids *g = arg;
    const struct port *p = g->port;
    char gid[64];

    system_line(gid, sizeof(gid), "/sys/class/infiniband/%s/ports/%d/gids/%s", p->hca, p->number, index);
    if (strncmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000", sizeof(gid)) == 0 || !*gid)
        return;
    const int version = roce_version(p, index);
    g->v1 += version == 1;
    g->v2 += version == 2;
    g->routable += version == 2 && !empty_or_local(gid);
}

static void chosen_gid(const struct port *p, const char *index)
{
    struct report *r = &p->d->report;
    char gid[64];

    system_line(gid, sizeof(gid), "/sys/class/infiniband/%s/ports/%d/gids/%s", p->hca, p->number, index);
    const char *wrong = !*gid || strncmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000", 39) == 0 ? "is empty"
                        : roce_version(p, index) == 1 ? "is of RoCE version 1, which is not routed"
                        : empty_or_local(gid)         ? "is link local, which is not routed"
                                                      : NULL;
    if (wrong)
        say(r, STATUS_PROBLEM, "rdma", "unset NCCL_IB_GID_INDEX, or choose by NCCL_IB_ADDR_RANGE",
            "%s:%d: NCCL_IB_GID_INDEX=%s %s", p->hca, p->number, index, wrong);
}

static void roce(const struct port *p)
{
    struct report *r = &p->d->report;
    struct gids g = {.port = p};
    const char *index = nb_env("NCCL_IB_GID_INDEX"), *version = nb_env("NCCL_IB_ROCE_VERSION_NUM");
    char path[200], netdev[64];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gids", p->hca, p->number);
    system_each(path, see_gid, &g);
    system_line(netdev, sizeof(netdev), "/sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/0", p->hca,
                p->number);
    const long mtu = *netdev ? system_number(0, "/sys/class/net/%s/mtu", netdev) : 0;

    say(r, STATUS_OK, "rdma", NULL,
        "%s:%d: RoCE over %s, MTU %ld, GIDs: %d of version 1, %d of version 2, %d of them routable", p->hca,
        p->number, *netdev ? netdev : "?", mtu, g.v1, g.v2, g.routable);
    if (g.v2 == 0)
        say(r, STATUS_PROBLEM, "rdma",
            "rdma_rxe and old adapters: cma_roce_mode -m 2, or another adapter by NCCL_IB_HCA",
            "%s:%d: no GID of RoCE version 2: version 1 does not pass routers", p->hca, p->number);
    else if (g.routable == 0)
        say(r, STATUS_PROBLEM, "rdma", "give the interface an IP address on all nodes",
            "%s:%d: its GIDs are link local: %s has no address", p->hca, p->number,
            *netdev ? netdev : "its interface");
    if (version && atoi(version) == 1)
        say(r, STATUS_WARNING, "rdma", "unset NCCL_IB_ROCE_VERSION_NUM",
            "NCCL_IB_ROCE_VERSION_NUM=1 asks for GIDs that no router passes");
    if (index && atoi(index) >= 0)
        chosen_gid(p, index);
    if (mtu > 0 && mtu < 4200)
        say(r, STATUS_WARNING, "rdma", "set an MTU of 4200 or more on nodes and switches, alike",
            "%s:%d: MTU %ld under RoCE: packets carry 1024 bytes instead of 4096", p->hca, p->number, mtu);
}

static void see_port(void *arg, const char *number)
{
    struct port p = *(const struct port *)arg;
    struct report *r = &p.d->report;
    char state[32], rate[64], layer[32];

    p.number = atoi(number);
    system_line(state, sizeof(state), "/sys/class/infiniband/%s/ports/%d/state", p.hca, p.number);
    system_line(rate, sizeof(rate), "/sys/class/infiniband/%s/ports/%d/rate", p.hca, p.number);
    system_line(layer, sizeof(layer), "/sys/class/infiniband/%s/ports/%d/link_layer", p.hca, p.number);
    const bool active = strstr(state, "ACTIVE") != NULL;
    say(r, active ? STATUS_OK : STATUS_WARNING, "rdma",
        active ? NULL : "cable, switch; InfiniBand: a subnet manager. A port that is not meant: NCCL_IB_HCA",
        "%s:%d: %s, %s, %s", p.hca, p.number, *layer ? layer : "InfiniBand", rate,
        *state ? state : "no state");
    if (active && strcmp(layer, "Ethernet") == 0)
        roce(&p);
}

static void see_hca(void *arg, const char *name)
{
    struct port p = {.d = arg, .hca = name};
    char path[160];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%.60s/ports", name);
    system_each(path, see_port, &p);
}

static void see_uverbs(void *arg, const char *name)
{
    *(int *)arg += strncmp(name, "uverbs", 6) == 0;
}

void check_rdma(struct doctor *d)
{
    const int adapters = system_each("/sys/class/infiniband", see_hca, d);
    struct utsname kernel;
    int usable = 0;

    if (adapters == 0) {
        say(&d->report, STATUS_OK, "rdma", NULL, "no adapter");
        return;
    }
    system_each("/dev/infiniband", see_uverbs, &usable);
    if (usable == 0)
        say(&d->report, STATUS_PROBLEM, "rdma", "container: --device /dev/infiniband, or --privileged",
            "%d adapter%s, but /dev/infiniband has none: no program can open them", adapters,
            adapters == 1 ? "" : "s");
    if (*d->transport && strcmp(d->transport, "tcp") == 0)
        say(&d->report, STATUS_WARNING, "rdma", "nibble-info says why; NIBBLE_NET=verbs makes it an error",
            "%d adapter%s, but the transport is tcp", adapters, adapters == 1 ? "" : "s");
    /* From 5.12 on the kernel copies pinned pages at fork. Before, libibverbs needs a setting. */
    int major = 0, minor = 0;
    if (uname(&kernel) == 0 && sscanf(kernel.release, "%d.%d", &major, &minor) == 2 &&
        (major < 5 || (major == 5 && minor < 12)) && !getenv("RDMAV_FORK_SAFE") && !getenv("IBV_FORK_SAFE"))
        say(&d->report, STATUS_WARNING, "rdma", "export RDMAV_FORK_SAFE=1 (data loaders fork)",
            "kernel %s: memory that is registered is not safe from fork", kernel.release);
}
