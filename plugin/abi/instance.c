/* SPDX-License-Identifier: Apache-2.0 */
/* The reference-counted state that both tables stand on. */
#include "abi/instance.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/staging.h"
#include "base/log.h"
#include "base/params.h"
#include "config.h"
#include "device/cuda.h"
#include "device/device.h"
#include "nibble/nccl_net.h"
#include "policy/job.h"

/* NCCL cuts windows far smaller; this only must not limit it. */
#define NB_MAX_COLL_BYTES ((size_t)1 << 30)
#define NB_MAX_COMMS 65536 /* for transports that do not count them */

/* Memory that both halves can take: NCCL uses one half's answer for both. The engine takes GPU memory where its
 * codecs run on the GPU. NIBBLE_GPU_POINTERS=1 says so even where the transport does not reach it: sends and
 * receives are then staged. */
static int nb_memory_of(const struct nb_net_props *net)
{
    const int asked = nb_params()->gpu_pointers == 2;
    int mem = net->mem_support & NB_MEM_HOST;
    char why[256] = "";

    if (!asked && !(net->mem_support & NB_MEM_CUDA))
        return mem;
    if (nb_cuda_takes_pointers(-1, why, sizeof(why)))
        return mem | NB_MEM_CUDA | (net->mem_support & NB_MEM_DMABUF);
    NB_INFO(NCCL_INIT | NCCL_NET, "%s: NCCL is to hand over host memory: %s", net->name, why);
    return mem;
}

static struct {
    pthread_mutex_t lock;
    int up;
    int refs; /* contexts, and halves that are held for good */
    int held[NB_HALF_COUNT];
    struct nb_context *contexts;
    _Atomic(const struct nb_net_ops *) transport; /* set while up */
    atomic_long open;
    int ndevices;
    struct nb_device_info devices[NB_NET_MAX_DEVS];
} nb_instance = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *nb_half_name(enum nb_half half)
{
    return half == NB_HALF_NET ? "net" : "CollNet";
}

static int nb_find_devices(const struct nb_net_ops *ops)
{
    int n = 0, claimed = 0, staged = 0;
    int err = ops->devices(&n); /* at most NB_NET_MAX_DEVS, as net/devices.h has them */
    if (err)
        return err;
    size_t unit = (size_t)nb_params()->unit_bytes;
    for (int i = 0; i < n; i++) {
        struct nb_device_info *info = &nb_instance.devices[i];
        memset(info, 0, sizeof(*info));
        err = ops->properties(i, &info->net);
        if (err)
            return err;
        struct nb_net_props *net = &info->net;
        if (net->max_comms <= 0)
            net->max_comms = NB_MAX_COMMS;
        if (net->max_recvs < 1 || net->max_recvs > NB_NET_MAX_RECVS)
            net->max_recvs = NB_NET_MAX_RECVS;
        if (net->max_bytes == 0 || net->max_bytes > (size_t)NCCL_MAX_NET_SIZE_BYTES)
            net->max_bytes = (size_t)NCCL_MAX_NET_SIZE_BYTES;
        info->mem_support = nb_memory_of(net);
        claimed |= (info->mem_support & NB_MEM_CUDA) != 0;
        staged |= info->mem_support & NB_MEM_CUDA && !(net->mem_support & NB_MEM_CUDA);
        info->max_coll_bytes = NB_MAX_COLL_BYTES / unit * unit;
    }
    for (int i = 0; i < n && staged; i++)
        nb_instance.devices[i].mem_support &= ~NB_MEM_DMABUF;
    if (staged)
        NB_INFO(NCCL_INIT | NCCL_NET, "transport %s does not reach GPU memory: sends and receives of it are copied "
                "through the host's (NIBBLE_GPU_POINTERS=1)", ops->name);
    nb_instance.ndevices = n;
    nb_device_pointers(claimed);
    atomic_store_explicit(&nb_instance.transport, staged ? nb_staging_over(ops) : ops, memory_order_release);
    return 0;
}

static void nb_banner(const struct nb_net_ops *ops)
{
    char names[256] = "";
    size_t at = 0;
    for (int i = 0; i < nb_instance.ndevices && at < sizeof(names); i++)
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "",
                               nb_instance.devices[i].net.name);
    char settings[512];
    nb_params_describe(settings, sizeof(settings));
    NB_INFO(NCCL_INIT | NCCL_NET, "version " PACKAGE_VERSION ", transport %s, %d device%s: %s; settings: %s",
            ops->name, nb_instance.ndevices, nb_instance.ndevices == 1 ? "" : "s",
            nb_instance.ndevices ? names : "none found", *settings ? settings : "defaults");
}

/* The functions below are called with the lock held. */

static int nb_bring_up(void)
{
    int err = nb_params_acquire();
    if (err) {
        NB_WARN("not started because of bad settings, see the lines above");
        return err;
    }
    const struct nb_net_ops *ops;
    err = nb_job_check_settings();
    if (!err)
        err = nb_net_acquire(&ops);
    if (err)
        goto no_transport;
    err = nb_find_devices(ops);
    if (err) {
        NB_WARN("transport %s cannot tell its devices: %s", ops->name, strerror(-err));
        goto no_devices;
    }
    nb_banner(ops);
    return 0;

no_devices:
    nb_net_release();
no_transport:
    nb_params_release();
    return err;
}

static void nb_tear_down(void)
{
    nb_instance.up = 0;
    nb_instance.ndevices = 0;
    atomic_store_explicit(&nb_instance.transport, NULL, memory_order_release);
    nb_net_release();
    nb_params_release();
    nb_log_set(NULL); /* NCCL's function may go away before the next init */
}

static int nb_get(ncclDebugLogger_t logger)
{
    /* Left behind by an earlier finalize that found open connections, which are closed by now. */
    if (nb_instance.up && nb_instance.refs == 0 && atomic_load(&nb_instance.open) == 0)
        nb_tear_down();
    nb_log_set(logger);
    if (!nb_instance.up) {
        int err = nb_bring_up();
        if (err) {
            nb_log_set(NULL);
            return err;
        }
        nb_instance.up = 1;
    }
    nb_instance.refs++;
    return 0;
}

static void nb_put(void)
{
    if (--nb_instance.refs > 0)
        return;
    long open = atomic_load(&nb_instance.open);
    if (open == 0)
        nb_tear_down();
    else /* staying up costs a little; pulling the transport from under its users would crash */
        NB_INFO(NCCL_INIT | NCCL_NET, "%ld connections are still open after the last finalize", open);
}

int nb_instance_enter(enum nb_half half, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                      struct nb_context **ctx)
{
    struct nb_context *made = calloc(1, sizeof(*made));
    if (!made)
        return -ENOMEM;
    made->half = half;
    made->comm_id = comm_id;
    made->traffic_class = traffic_class;

    pthread_mutex_lock(&nb_instance.lock);
    int err = nb_get(logger);
    if (!err) {
        made->next = nb_instance.contexts;
        nb_instance.contexts = made;
    }
    pthread_mutex_unlock(&nb_instance.lock);
    if (err) {
        free(made);
        return err;
    }
    *ctx = made;
    return 0;
}

int nb_instance_leave(enum nb_half half, struct nb_context *ctx)
{
    pthread_mutex_lock(&nb_instance.lock);
    struct nb_context **at = &nb_instance.contexts;
    while (*at && *at != ctx)
        at = &(*at)->next;
    int known = *at && ctx->half == half;
    if (known) {
        *at = ctx->next;
        free(ctx);
        nb_put();
    } else {
        NB_WARN("finalize of a %s context that does not exist", nb_half_name(half));
    }
    pthread_mutex_unlock(&nb_instance.lock);
    return known ? 0 : -EINVAL;
}

int nb_instance_enter_for_good(enum nb_half half, ncclDebugLogger_t logger)
{
    pthread_mutex_lock(&nb_instance.lock);
    int err = 0;
    if (nb_instance.held[half])
        nb_log_set(logger);
    else
        err = nb_get(logger);
    if (!err)
        nb_instance.held[half] = 1;
    pthread_mutex_unlock(&nb_instance.lock);
    return err;
}

int nb_instance_has(enum nb_half half)
{
    pthread_mutex_lock(&nb_instance.lock);
    int has = nb_instance.held[half];
    for (const struct nb_context *c = nb_instance.contexts; c && !has; c = c->next)
        has = c->half == half;
    pthread_mutex_unlock(&nb_instance.lock);
    return has;
}

const struct nb_net_ops *nb_instance_transport(void)
{
    const struct nb_net_ops *ops = atomic_load_explicit(&nb_instance.transport, memory_order_acquire);
    if (!ops)
        NB_WARN("called before init or after finalize");
    return ops;
}

void nb_instance_count(int change)
{
    atomic_fetch_add_explicit(&nb_instance.open, change, memory_order_relaxed);
}

int nb_instance_devices(int *ndev)
{
    if (!nb_instance_transport())
        return -EINVAL;
    *ndev = nb_instance.ndevices;
    return 0;
}

const struct nb_device_info *nb_instance_device(int dev)
{
    if (!nb_instance_transport())
        return NULL;
    if (dev < 0 || dev >= nb_instance.ndevices) {
        NB_WARN("device %d is not one of the %d devices", dev, nb_instance.ndevices);
        return NULL;
    }
    return &nb_instance.devices[dev];
}

/* Gives back what tables without finalize hold. With connections open the process is ending in the middle of a
 * job; threads may still be running, and the kernel cleans up. */
__attribute__((destructor)) static void nb_instance_unload(void)
{
    pthread_mutex_lock(&nb_instance.lock);
    for (int half = 0; half < NB_HALF_COUNT && atomic_load(&nb_instance.open) == 0; half++) {
        if (!nb_instance.held[half])
            continue;
        nb_instance.held[half] = 0;
        nb_log_set(NULL); /* NCCL may be gone already */
        nb_put();
    }
    pthread_mutex_unlock(&nb_instance.lock);
}
