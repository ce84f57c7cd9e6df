/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport's state in one context: settings, devices, connects in progress. */
#ifndef NIBBLE_NET_TCP_DEV_H
#define NIBBLE_NET_TCP_DEV_H

#include <pthread.h>

#include "base/clock.h"
#include "net/tcp_conf.h"
#include "net/tcp_if.h"
#include "net/tcp_pace.h"
#include "net/transport.h"

struct nb_tcp;
struct nb_tcp_connecting;

/* A network interface. */
struct nb_tcp_dev {
    struct nb_tcp *tcp;
    struct nb_tcp_if nif;
    struct nb_tcp_pace *pace; /* NULL: no limit */
};

struct nb_tcp {
    struct nb_net net; /* first */
    struct nb_tcp_conf conf;
    const struct nb_clock *clock; /* the context's */
    int ndevs;
    struct nb_tcp_dev dev[NB_NET_MAX_DEVS];
    pthread_mutex_t lock;                 /* of what follows, which is tcp_connect.c's */
    struct nb_tcp_connecting *connecting; /* connects in progress */
    uint64_t last_id;                     /* of those; the handle of each holds its number */
};

/* A transport for ctx with the settings and interfaces as they are: 0 and *tcp, or a negative errno after a
 * WARN line. */
int nb_tcp_new(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_tcp **tcp);
/* Frees it, of which no connection, listener or connect in progress is left. */
void nb_tcp_free(struct nb_tcp *tcp);

/* The device, or NULL with a WARN when `dev` is out of range. */
struct nb_tcp_dev *nb_tcp_device(struct nb_tcp *tcp, int dev);

#endif
