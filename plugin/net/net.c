/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a context's transport (NIBBLE_NET) and puts the list of devices in front of it. */
#include "config.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "net/devices.h"
#include "net/transport.h"
#include "net/verbs/verbs.h"

#ifdef NB_HAVE_VERBS
static const struct nb_net_ops *const verbs = &nb_net_verbs;
#else
static const struct nb_net_ops *const verbs;

int nb_verbs_try(struct nb_context *ctx, struct nb_net **net, char *why, size_t cap, bool *misfit)
{
    (void)ctx;
    (void)net;
    *misfit = false;
    snprintf(why, cap, "built without verbs (configure had no infiniband/verbs.h, or --without-verbs)");
    return -ENODEV;
}
#endif

/* Initialize a transport and log why it was chosen. */
static int start(struct nb_context *ctx, const struct nb_net_ops *ops, const char *why, struct nb_net **net)
{
    int rc = ops->init(ctx, net);

    if (rc)
        return rc;
    NB_INFO(NCCL_INIT | NCCL_NET, "transport %s: %s", ops->name, why);
    return 0;
}

/* Start verbs where a port is active, else TCP. One log line gives the reason against verbs. It is a warning
 * where that looks like a mistake. */
static int start_auto(struct nb_context *ctx, struct nb_net **net)
{
    char why[512] = "";
    bool misfit;
    int rc = nb_verbs_try(ctx, net, why, sizeof(why), &misfit);

    if (rc == 0) {
        NB_INFO(NCCL_INIT | NCCL_NET, "transport verbs: an RDMA port is active");
        return 0;
    }
    if (rc != -ENODEV)
        return rc;
    if (!misfit)
        return start(ctx, &nb_net_tcp, why, net);
    rc = nb_net_tcp.init(ctx, net);
    if (rc)
        return rc;
    NB_WARN("transport tcp: %s (NIBBLE_NET=tcp where that is meant)", why);
    return 0;
}

static int choose(struct nb_context *ctx, struct nb_net **net)
{
    /* This nibble sees the same settings as the nibble that forwards to it, NIBBLE_NET=forward among them. */
    if (ctx->forwarded_to)
        return start_auto(ctx, net);
    switch (ctx->params->net) {
    case NB_NET_VERBS:
        if (verbs)
            return start(ctx, verbs, "NIBBLE_NET=verbs", net);
        NB_WARN("NIBBLE_NET=verbs, but nibble was built without verbs: infiniband/verbs.h was not there when "
                "it was configured");
        return -EINVAL;
    case NB_NET_FORWARD: return start(ctx, &nb_net_forward, "NIBBLE_NET=forward", net);
    case NB_NET_TCP: return start(ctx, &nb_net_tcp, "NIBBLE_NET=tcp", net);
    case NB_NET_AUTO:
    case NB_NET_COUNT: break;
    }
    if (*ctx->params->net_forward)
        return start(ctx, &nb_net_forward, "NIBBLE_NET_FORWARD is set", net);
    return start_auto(ctx, net);
}

/* Put the list of devices in front of `transport`. Free `transport` on failure. */
static int list_devices(struct nb_context *ctx, struct nb_net *transport)
{
    int copies = ctx->forwarded_to ? 1 : (int)ctx->params->devs_per_nic;
    int rc = nb_devices_open(transport, copies, &ctx->net);

    if (rc) {
        NB_WARN("transport %s cannot list its devices: %s", transport->ops->name, strerror(-rc));
        transport->ops->fini(transport);
    }
    return rc;
}

int nb_net_open(struct nb_context *ctx)
{
    struct nb_net *transport;
    int rc;

    ctx->net = NULL;
    rc = choose(ctx, &transport);
    return rc ? rc : list_devices(ctx, transport);
}

int nb_net_open_with(struct nb_context *ctx, const struct nb_net_ops *ops)
{
    struct nb_net *transport;
    int rc;

    ctx->net = NULL;
    rc = ops->init(ctx, &transport);
    return rc ? rc : list_devices(ctx, transport);
}

void nb_net_close(struct nb_context *ctx)
{
    if (ctx->net)
        ctx->net->ops->fini(ctx->net);
    ctx->net = NULL;
}
