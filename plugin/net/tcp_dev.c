/* SPDX-License-Identifier: Apache-2.0 */
/* See tcp_dev.h. */
#include "net/tcp_dev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"

struct nb_tcp_dev *nb_tcp_device(struct nb_tcp *tcp, int dev)
{
    if (dev >= 0 && dev < tcp->ndevs)
        return &tcp->dev[dev];
    NB_WARN("tcp: there is no device %d, there are %d", dev, tcp->ndevs);
    return NULL;
}

static void free_devices(struct nb_tcp *tcp)
{
    for (int i = 0; i < tcp->ndevs; i++)
        nb_tcp_pace_free(tcp->dev[i].pace);
    tcp->ndevs = 0;
}

static int find_devices(struct nb_tcp *tcp)
{
    struct nb_tcp_if ifs[NB_NET_MAX_DEVS];
    int n = nb_tcp_if_find(ifs, NB_NET_MAX_DEVS);

    if (n < 0)
        return n;
    for (int i = 0; i < n; i++) {
        struct nb_tcp_dev *d = &tcp->dev[i];
        char addr[64];

        *d = (struct nb_tcp_dev){.tcp = tcp, .nif = ifs[i]};
        if (tcp->conf.pace > 0) {
            d->pace = nb_tcp_pace_new(tcp->conf.pace, tcp->clock);
            if (!d->pace) {
                free_devices(tcp);
                return -ENOMEM;
            }
        }
        tcp->ndevs++;
        nb_tcp_addr_name(&ifs[i].addr, addr, sizeof(addr));
        addr[strcspn(addr, "<")] = '\0';
        NB_INFO(NCCL_INIT | NCCL_NET, "tcp: device %d is %s, %s, %d Mbit/s", i, ifs[i].name, addr,
                ifs[i].speed_mbps);
    }
    return 0;
}

int nb_tcp_new(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_tcp **out)
{
    struct nb_tcp *tcp = calloc(1, sizeof(*tcp));
    int rc;

    if (!tcp)
        return -ENOMEM;
    tcp->net = (struct nb_net){.ops = ops, .ctx = ctx};
    tcp->clock = &ctx->clock;
    pthread_mutex_init(&tcp->lock, NULL);
    rc = nb_tcp_conf_read(ctx->params, &tcp->conf);
    rc = rc ? rc : find_devices(tcp);
    if (rc)
        nb_tcp_free(tcp);
    else
        *out = tcp;
    return rc;
}

void nb_tcp_free(struct nb_tcp *tcp)
{
    free_devices(tcp);
    pthread_mutex_destroy(&tcp->lock);
    free(tcp);
}
