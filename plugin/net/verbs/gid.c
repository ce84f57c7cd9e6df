/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a port's GID for a connection, by NCCL's rules, so that existing settings keep working.
 *
 * InfiniBand: the GID at NCCL_IB_ROUTABLE_FLID_GID_INDEX when it carries a routable LID (FLID), else index 0.
 *
 * RoCE: NCCL_IB_GID_INDEX if set. Otherwise go through the table from index 0 on. A later GID wins over the
 * best GID so far in two cases. In the first it is of the wanted address family and in the wanted range, and
 * the best GID is of another family. In the second it is a configured, routable address of that family and
 * range with the wanted RoCE version, and the best GID has another version or is no such address.
 */
#include "net/verbs/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

void nb_verbs_gid_name(const uint8_t raw[16], char *buf)
{
    if (!inet_ntop(AF_INET6, raw, buf, INET6_ADDRSTRLEN))
        strcpy(buf, "?");
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static int family(const union ibv_gid *g)
{
    static const uint8_t multicast[4] = {0xff, 0x0e, 0, 0};
    bool head = all_zero(g->raw, 10) || (memcmp(g->raw, multicast, 4) == 0 && all_zero(g->raw + 4, 6));

    return head && g->raw[10] == 0xff && g->raw[11] == 0xff ? AF_INET : AF_INET6;
}

static bool in_range(const struct nb_verbs_conf *conf, const union ibv_gid *g)
{
    const uint8_t *a = conf->addr_family == AF_INET ? g->raw + 12 : g->raw;
    int bits = conf->range_bits;

    for (int i = 0; bits > 0; i++, bits -= 8) {
        uint8_t mask = bits >= 8 ? 0xff : (uint8_t)(0xff << (8 - bits));

        if ((a[i] ^ conf->range[i]) & mask)
            return false;
    }
    return true;
}

/* Return whether the address is configured and not link-local. */
static bool routable(const union ibv_gid *g)
{
    static const uint8_t link_local[8] = {0xfe, 0x80};

    return !all_zero(g->raw, 16) && memcmp(g->raw, link_local, 8) != 0;
}

/* Return 1 or 2, or 0 when the kernel does not report the version. In a container the kernel may refuse other
 * containers' indices. */
static int roce_version(const struct nb_verbs_dev *d, int index)
{
    char path[160], text[32];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", d->hca->name,
             d->port, index);
    if (d->hca->api->read_sysfs(path, text, sizeof(text)) <= 0)
        return 0;
    if (strncmp(text, "IB/RoCE v1", 10) == 0 || strncmp(text, "RoCE v1", 7) == 0)
        return 1;
    return strncmp(text, "RoCE v2", 7) == 0 ? 2 : 0;
}

static int query(const struct nb_verbs_dev *d, int index, union ibv_gid *g)
{
    errno = 0;
    if (d->hca->api->query_gid(d->hca->context, (uint8_t)d->port, index, g) == 0)
        return 0;
    NB_WARN("verbs: %s: GID %d cannot be read: %s (the table has %d)", d->name, index, strerror(errno),
            d->attr.gid_tbl_len);
    return errno ? -errno : -EIO;
}

static int choose_ib(const struct nb_verbs_dev *d, int *index)
{
    int flid = d->hca->conf->flid_gid_index;
    union ibv_gid g;

    *index = 0;
    if (flid >= d->attr.gid_tbl_len ||
        d->hca->api->query_gid(d->hca->context, (uint8_t)d->port, flid, &g) != 0)
        return 0;
    if (g.raw[4] || g.raw[5])
        *index = flid;
    return 0;
}

static int choose_roce(const struct nb_verbs_dev *d, int *index)
{
    union ibv_gid best, g;
    int rc;

    *index = d->hca->conf->gid_index;
    if (*index >= 0)
        return 0;
    *index = 0;
    rc = query(d, 0, &best);
    for (int i = 1; i < d->attr.gid_tbl_len && !rc; i++) {
        bool wanted, better;

        /* Tables have holes. */
        if (d->hca->api->query_gid(d->hca->context, (uint8_t)d->port, i, &g) != 0)
            continue;
        wanted = family(&g) == d->hca->conf->addr_family && in_range(d->hca->conf, &g);
        if (!wanted)
            continue;
        better = family(&best) != family(&g);
        if (!better && routable(&g)) {
            int v = roce_version(d, i);

            better = v == d->hca->conf->roce_version && (roce_version(d, *index) != v || !routable(&best));
        }
        if (better) {
            *index = i;
            best = g;
        }
    }
    return rc;
}

int nb_verbs_gid_choose(const struct nb_verbs_dev *d, int *index, union ibv_gid *gid)
{
    int rc = d->attr.link_layer == IBV_LINK_LAYER_ETHERNET ? choose_roce(d, index) : choose_ib(d, index);

    rc = rc ? rc : query(d, *index, gid);
    if (!rc && d->attr.link_layer == IBV_LINK_LAYER_ETHERNET && all_zero(gid->raw, 16)) {
        NB_WARN("verbs: %s: GID %d is empty: has the network interface an address? see NCCL_IB_GID_INDEX",
                d->name, *index);
        rc = -EADDRNOTAVAIL;
    }
    return rc;
}
