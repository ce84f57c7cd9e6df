/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport's state in one context: settings, adapters, their ports, connects in progress. */
#ifndef NIBBLE_NET_VERBS_DEV_H
#define NIBBLE_NET_VERBS_DEV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "net/transport.h"
#include "net/verbs_api.h"
#include "net/verbs_conf.h"

#define NB_VERBS_MAX_WRITE (1u << 30) /* bytes of one work request; ports may allow less */
/* Parts of a message, one for each queue pair, start at multiples: NCCL's LL128 protocol relies on it. */
#define NB_VERBS_CHUNK_ALIGN 128

struct nb_verbs_comm;
struct nb_verbs_connecting;

/* A registration, of the adapter's cache. */
struct nb_verbs_mr {
    struct ibv_mr *mr;
    struct nb_verbs_hca *hca;
    uintptr_t addr;
    size_t bytes; /* whole pages */
    int refs;
    enum nb_mem type;
    bool dmabuf;
};

/* An opened adapter, which may have several ports. */
struct nb_verbs_hca {
    struct nb_verbs_hca *next;
    const struct nb_verbs_api *api;
    const struct nb_verbs_conf *conf;
    const struct nb_clock *clock;
    struct ibv_context *context;
    struct ibv_device_attr attr;
    char name[64];
    atomic_bool fatal;           /* the adapter is lost */
    pthread_mutex_t lock;        /* of what follows */
    struct nb_verbs_comm *comms; /* all of them, for asynchronous events */
    struct ibv_pd *pd;           /* while there are comms */
    int pd_refs;
    struct nb_verbs_mr **mr; /* cached registrations, by address */
    int nmr, mr_cap;
};

/* An active port, or one that was active at init. */
struct nb_verbs_dev {
    struct nb_verbs_hca *hca;
    char name[64]; /* "mlx5_0"; "mlx5_0:2" for other ports than the first */
    int port;
    int real_port; /* ports of the same card before this one */
    struct ibv_port_attr attr;
    int speed_mbps;
    char pci_path[256], full_path[256];
    bool adaptive_routing;
    int mem_support;
    uint32_t max_write;
};

/* The transport's state in one context. */
struct nb_verbs {
    struct nb_net net; /* first */
    struct nb_verbs_conf conf;
    const struct nb_verbs_api *api;
    const struct nb_clock *clock; /* the context's */
    struct nb_net *tcp;           /* over which connections are made: the TCP transport, of this one's own */
    struct nb_verbs_hca *hcas;
    int ndevs;
    struct nb_verbs_dev dev[NB_NET_MAX_DEVS];
    pthread_mutex_t lock;                   /* of what follows */
    struct nb_verbs_connecting *connecting; /* connects in progress */
    uint64_t last_id;                       /* of those; the handle of each holds its number */
};

/* Opens the library and all adapters that pass the filters, as v->conf has them. 0, or a negative errno with
 * the reason in `why` (one line, no WARN): -ENODEV when nothing usable is there. *misfit: there is an
 * adapter, but none can be used. */
int nb_verbs_devices_open(struct nb_verbs *v, char *why, size_t cap, bool *misfit);
void nb_verbs_devices_close(struct nb_verbs *v);
/* NULL with a WARN when `dev` is out of range. */
struct nb_verbs_dev *nb_verbs_device(struct nb_verbs *v, int dev);

/* The adapter's protection domain, made by the first user and gone with the last. NULL: errno in *err. */
struct ibv_pd *nb_verbs_pd_get(struct nb_verbs_hca *hca, int *err);
void nb_verbs_pd_put(struct nb_verbs_hca *hca);

#endif
