/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bring-up and teardown of a CollNet communicator in the order of NCCL's ncclCollNetSetup, sendProxyConnect,
 * recvProxyConnect and their *Free counterparts.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define GUARD 4096u /* canary before and behind the region */
#define GUARD_BYTE 0xa5

static unsigned opened; /* communicators opened by this process, so that ids agree between nodes */

static int check_devices(struct hx_comm *c)
{
    if (!c->ctx.net && hx_lib_version(c->lib) < 11 && c->ctx.ndev == 0)
        return 0; /* no net half: a linked-in CollNet table alone */
    if (c->ctx.ndev == 0)
        return 0;
    if (c->ctx.ndev != c->ctx.coll_ndev)
        return hx_fail("net reports %d devices, CollNet %d", c->ctx.ndev, c->ctx.coll_ndev);
    for (int d = 0; d < c->ctx.ndev; d++) {
        struct hx_props a, b;

        if (hx_net_properties(c->lib, d, &a) != ncclSuccess ||
            hx_coll_properties(c->lib, d, &b) != ncclSuccess)
            return hx_fail("getProperties of device %d failed", d);
        if (strcmp(a.name, b.name) != 0 || a.guid != b.guid || a.port != b.port ||
            a.ptr_support != b.ptr_support || a.speed != b.speed || strcmp(a.pci_path, b.pci_path) != 0)
            return hx_fail("device %d differs between the halves (%s and %s)", d, a.name, b.name);
    }
    return 0;
}

static int make_region(struct hx_comm *c)
{
    char *mem;

    c->region_size = 2u * HX_STEPS * (size_t)c->nchannels * (size_t)c->slot_size;
    if (c->cfg.gpu_sends)
        mem = c->cfg.recv_memory(c->region_size + 2 * GUARD);
    else if (posix_memalign((void **)&mem, 4096, c->region_size + 2 * GUARD) != 0)
        return hx_fail("no memory for a region of %zu bytes", c->region_size);
    c->region = mem + GUARD;
    memset(mem, GUARD_BYTE, GUARD);
    memset(c->region + c->region_size, GUARD_BYTE, GUARD);
    memset(c->region, 0x33, c->region_size / 2);
    memset(c->region + c->region_size / 2, 0x66, c->region_size / 2);
    c->recv_region = c->cfg.recv_memory && !c->cfg.gpu_sends ? c->cfg.recv_memory(c->region_size) : c->region;
    return 0;
}

static int region_intact(const struct hx_comm *c)
{
    for (size_t i = 0; i < GUARD; i++) {
        if ((unsigned char)c->region[-(ptrdiff_t)i - 1] != GUARD_BYTE ||
            (unsigned char)c->region[c->region_size + i] != GUARD_BYTE)
            return 0;
    }
    return 1;
}

/* Deregister, close, finalize: sendProxyFree and recvProxyFree of all channels, then ncclNetPluginFinalize.
 * Return the first error. */
static ncclResult_t teardown(struct hx_comm *c)
{
    ncclResult_t first = ncclSuccess, ret;

    for (int i = 0; i < c->nchannels && c->plugin; i++) {
        if (c->send_mh[i] && (ret = hx_coll_dereg_mr(c->lib, c->plugin, c->send_mh[i])) != ncclSuccess &&
            !first)
            first = ret;
        if (c->recv_mh[i] && (ret = hx_coll_dereg_mr(c->lib, c->plugin, c->recv_mh[i])) != ncclSuccess &&
            !first)
            first = ret;
    }
    if (c->plugin && (ret = hx_coll_close(c->lib, c->plugin)) != ncclSuccess && !first)
        first = ret;
    /* After closeColl the plugin must not touch the region. */
    if (c->region) {
        if (!region_intact(c)) {
            hx_fail("the plugin wrote outside of the region");
            first = HX_BROKEN;
        }
        if (c->recv_region != c->region)
            c->cfg.recv_memory_free(c->recv_region);
        if (c->cfg.gpu_sends)
            c->cfg.recv_memory_free(c->region - GUARD);
        else
            free(c->region - GUARD);
    }
    ret = hx_finalize(c->lib, &c->ctx);
    if (first == ncclSuccess)
        first = ret;
    while (c->open) {
        struct hx_op_state *s = c->open;

        c->open = s->next_open;
        free(s);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->done);
    free(c);
    return first;
}

static struct hx_comm *new_comm(struct hx_node *node, struct hx_lib *lib, const struct hx_comm_cfg *cfg)
{
    struct hx_comm *c = calloc(1, sizeof *c);
    pthread_condattr_t attr;
    uint64_t seed;

    if (!c)
        abort();
    c->node = node;
    c->lib = lib;
    c->cfg = *cfg;
    if (!c->cfg.channels)
        c->cfg.channels = 2;
    if (c->cfg.channels > HX_MAX_CHANNELS)
        abort();
    if (!c->cfg.buff_size)
        c->cfg.buff_size = 4u << 20;
    if (!c->cfg.comm_id)
        c->cfg.comm_id = hx_seed(node->seed, 0x636f6d6d, opened);
    opened++;
    seed = c->cfg.seed ? c->cfg.seed : node->seed;
    c->rng = hx_seed(seed, (uint64_t)node->rank + 1, 0x67707521);
    c->stall_phase = c->cfg.stall_every ? (unsigned)hx_rand_below(&c->rng, c->cfg.stall_every) : 0;
    c->nchannels = c->cfg.channels;
    c->slot_size = (ssize_t)(c->cfg.buff_size / HX_STEPS);
    for (int i = 0; i < c->nchannels; i++) {
        c->channel[i].send.head = (uint64_t)-HX_STEPS; /* no credit yet */
        for (int k = 0; k < HX_STEPS; k++)
            c->channel[i].send.slot[k].size = -1;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_cond_init(&c->done, &attr);
    pthread_condattr_destroy(&attr);
    return c;
}

static ncclResult_t reg_all(struct hx_comm *c)
{
    for (int i = 0; i < c->nchannels; i++) {
        const int recv_type = c->cfg.recv_memory ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
        const int send_type = c->cfg.gpu_sends ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
        ncclResult_t ret;

        ret = hx_coll_reg_mr(c->lib, c->plugin, c->recv_region, c->region_size, recv_type, &c->recv_mh[i]);
        if (ret != ncclSuccess)
            return ret;
        ret = hx_coll_reg_mr(c->lib, c->plugin, c->region, c->region_size, send_type, &c->send_mh[i]);
        if (ret != ncclSuccess)
            return ret;
    }
    return ncclSuccess;
}

ncclResult_t hx_comm_open(struct hx_node *node, struct hx_lib *lib, const struct hx_comm_cfg *cfg,
                          struct hx_comm **out, const char **stage)
{
    static const struct hx_comm_cfg none;
    struct hx_comm *c = new_comm(node, lib, cfg ? cfg : &none);
    unsigned char handles[HX_MAX_NODES][HX_HANDLE_BYTES], mine[HX_HANDLE_BYTES] = {0};
    void *handle[HX_MAX_NODES], *listen = NULL;
    const char *at = "init";
    ncclResult_t ret;

    *out = NULL;
    hx_where("init of the plugin");
    ret = hx_init(lib, c->cfg.comm_id, &c->ctx);
    if (ret != ncclSuccess)
        goto fail;
    at = "CollNet init";
    ret = ncclSystemError;
    if (!c->ctx.coll_ok)
        goto fail;
    at = "devices";
    ret = HX_BROKEN;
    if (check_devices(c) || c->cfg.dev >= c->ctx.coll_ndev)
        goto fail;
    at = "getProperties";
    ret = hx_coll_properties(lib, c->cfg.dev, &c->props);
    if (ret != ncclSuccess)
        goto fail;
    if (c->props.max_coll_bytes == 0 || c->props.max_coll_bytes > (size_t)NCCL_MAX_NET_SIZE_BYTES) {
        hx_fail("maxCollBytes is %zu", c->props.max_coll_bytes);
        ret = HX_BROKEN;
        goto fail;
    }
    at = "listen";
    ret = hx_coll_listen(lib, &c->ctx, c->cfg.dev, mine, &listen);
    if (ret != ncclSuccess)
        goto fail;

    at = "connect";
    hx_where("exchange of CollNet handles");
    hx_allgather(node, mine, sizeof mine, handles);
    for (int r = 0; r < node->nnodes; r++)
        handle[r] = handles[r];
    hx_where("CollNet connect");
    ret = hx_coll_connect(lib, handle, node->nnodes, node->rank, listen, &c->plugin);
    if (ret != ncclSuccess) {
        c->plugin = NULL; /* NCCL drops the listen comm here without closeListen */
        goto fail;
    }
    at = "closeListen";
    ret = hx_coll_close_listen(lib, listen);
    if (ret != ncclSuccess)
        goto fail;
    at = "regMr";
    hx_where("regMr");
    ret = ncclSystemError;
    if (make_region(c))
        goto fail;
    ret = reg_all(c);
    if (ret != ncclSuccess)
        goto fail;
    at = "reduceSupport";
    for (int type = 0; type < ncclNumTypes && ret == ncclSuccess; type++) {
        for (int op = 0; op < 4 && ret == ncclSuccess; op++) {
            int supported = -1;

            ret = hx_coll_reduce_support(lib, (ncclDataType_t)type, (ncclRedOp_t)op, &supported);
            if (ret == ncclSuccess && supported != 0 && supported != 1) {
                hx_fail("reduceSupport says %d", supported);
                ret = HX_BROKEN;
            }
        }
    }
    if (ret != ncclSuccess)
        goto fail;
    at = "proxy";
    ret = ncclSystemError;
    if (hx_proxy_start(c))
        goto fail;
    hx_where("CollNet communicator is up");
    *out = c;
    if (stage)
        *stage = "done";
    return ncclSuccess;
fail:
    hx_where("bring-up failed in %s", at);
    if (stage)
        *stage = at;
    teardown(c);
    return ret;
}

ncclResult_t hx_comm_close(struct hx_comm *comm)
{
    if (!comm)
        return ncclSuccess;
    hx_where("closing: waiting for queued operations");
    hx_proxy_stop(comm, false);
    hx_where("closing the communicator");
    return teardown(comm);
}

ncclResult_t hx_comm_abort(struct hx_comm *comm)
{
    if (!comm)
        return ncclSuccess;
    hx_proxy_stop(comm, true);
    hx_where("closing with unfinished requests");
    return teardown(comm);
}

void *hx_comm_plugin(struct hx_comm *comm)
{
    return comm->plugin;
}

char *hx_comm_region(struct hx_comm *comm, size_t *size)
{
    if (size)
        *size = comm->region_size;
    return comm->region;
}

void *hx_comm_mhandle(struct hx_comm *comm, bool recv_side)
{
    return recv_side ? comm->recv_mh[0] : comm->send_mh[0];
}

const struct hx_ctx *hx_comm_ctx(struct hx_comm *comm)
{
    return &comm->ctx;
}

void hx_comm_counts(struct hx_comm *comm, struct hx_counts *counts)
{
    pthread_mutex_lock(&comm->lock);
    *counts = comm->counts;
    pthread_mutex_unlock(&comm->lock);
}
