/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the transport in force (NIBBLE_NET), puts the list of devices in front of it and counts who uses
 * it. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "net/devices.h"
#include "net/transport.h"
#include "net/verbs_probe.h"

/* The words of NIBBLE_NET. */
enum { CHOICE_AUTO, CHOICE_VERBS, CHOICE_TCP, CHOICE_FORWARD };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct nb_net_ops *transport; /* initialised */
static const struct nb_net_ops *in_force;  /* the transport behind the list of devices */
static int users;
static int forwarded_to;

#ifdef NB_HAVE_VERBS
static const struct nb_net_ops *const verbs = &nb_net_verbs;
#else
static const struct nb_net_ops *const verbs;

int nb_verbs_try(char *why, size_t cap, bool *misfit)
{
    *misfit = false;
    snprintf(why, cap, "built without verbs (configure had no infiniband/verbs.h, or --without-verbs)");
    return -ENODEV;
}
#endif

/* Initialise a transport, log why it was taken. */
static int start(const struct nb_net_ops *ops, const char *why)
{
    int rc = ops->init();

    if (rc)
        return rc;
    transport = ops;
    NB_INFO(NCCL_INIT | NCCL_NET, "transport %s: %s", ops->name, why);
    return 0;
}

/* Verbs where a port is active. What rules it out is told in one line, a warning where it looks like a
 * mistake. */
static int start_auto(void)
{
    char why[512] = "";
    bool misfit;
    int rc = nb_verbs_try(why, sizeof(why), &misfit);

    if (rc == 0) {
        transport = verbs;
        NB_INFO(NCCL_INIT | NCCL_NET, "transport verbs: an RDMA port is active");
        return 0;
    }
    if (rc != -ENODEV)
        return rc;
    if (!misfit)
        return start(&nb_net_tcp, why);
    rc = nb_net_tcp.init();
    if (rc)
        return rc;
    transport = &nb_net_tcp;
    NB_WARN("transport tcp: %s (NIBBLE_NET=tcp where that is meant)", why);
    return 0;
}

static int choose(void)
{
    const struct nb_params *p = nb_params();

    /* The settings that made another nibble load this one are there for this one too. */
    if (forwarded_to)
        return start_auto();
    switch (p->net) {
    case CHOICE_VERBS:
        if (verbs)
            return start(verbs, "NIBBLE_NET=verbs");
        NB_WARN("NIBBLE_NET=verbs, but nibble was built without verbs: infiniband/verbs.h was not there when "
                "it was "
                "configured");
        return -EINVAL;
    case CHOICE_FORWARD: return start(&nb_net_forward, "NIBBLE_NET=forward");
    case CHOICE_TCP: return start(&nb_net_tcp, "NIBBLE_NET=tcp");
    default:
        if (*p->net_forward)
            return start(&nb_net_forward, "NIBBLE_NET_FORWARD is set");
        return start_auto();
    }
}

int nb_net_acquire(const struct nb_net_ops **ops)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (users == 0) {
        rc = nb_params_acquire();
        if (rc)
            goto out;
        rc = choose();
        if (rc) {
            nb_params_release();
            goto out;
        }
        rc = nb_devices_open(transport, forwarded_to ? 1 : (int)nb_params()->devs_per_nic, &in_force);
        if (rc) {
            NB_WARN("transport %s cannot tell its devices: %s", transport->name, strerror(-rc));
            transport->fini();
            nb_params_release();
            goto out;
        }
    }
    users++;
    *ops = in_force;
out:
    pthread_mutex_unlock(&lock);
    return rc;
}

void nb_net_release(void)
{
    pthread_mutex_lock(&lock);
    if (users > 0 && --users == 0) {
        transport->fini();
        nb_params_release();
    }
    pthread_mutex_unlock(&lock);
}

void nb_net_forwarded(int on)
{
    pthread_mutex_lock(&lock);
    forwarded_to = on;
    pthread_mutex_unlock(&lock);
}
