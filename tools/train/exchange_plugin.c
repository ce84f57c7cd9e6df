/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange through the plugin: the shared object is loaded as NCCL loads it, a CollNet communicator is
 * brought up among the nodes, and every operation is cut into windows and driven by the proxy harness.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

struct plugin {
    struct hx_lib *lib;
    struct hx_comm *comm;
};

static int plugin_open(struct nbt_exchange *x)
{
    const struct hx_comm_cfg cfg = {.channels = 4, .chunk = HX_CHUNK_NCCL};
    const char *stage = "?";
    struct plugin *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->lib = hx_lib_open(x->cfg.plugin, 0);
    if (!p->lib) {
        free(p);
        return -ENOENT;
    }
    const ncclResult_t rc = hx_comm_open(x->cfg.node, p->lib, &cfg, &p->comm, &stage);
    if (rc != ncclSuccess) {
        hx_fail("bringing the communicator up failed at %s (%d)", stage, (int)rc);
        hx_lib_close(p->lib);
        free(p);
        return -EIO;
    }
    x->state = p;
    return 0;
}

static int run(struct nbt_exchange *x, struct hx_op *op, const char *what)
{
    const struct plugin *p = x->state;
    const ncclResult_t rc = hx_run(p->comm, op);
    if (rc == ncclSuccess)
        return 0;
    hx_fail("%s failed (%d)", what, (int)rc);
    return -EIO;
}

static int plugin_reduce_scatter(struct nbt_exchange *x, const void *send, void *recv)
{
    struct hx_op op = {
        .func = HX_REDUCE_SCATTER,
        .type = x->cfg.grad_type == NB_BF16 ? ncclBfloat16 : ncclFloat32,
        .op = ncclSum,
        .count = x->cfg.block,
        .send = send,
        .recv = recv,
    };
    return run(x, &op, "reduce-scatter of the gradients");
}

static int plugin_all_gather(struct nbt_exchange *x, uint16_t *buf)
{
    struct hx_op op = {
        .func = HX_ALL_GATHER,
        .type = ncclBfloat16,
        .op = ncclSum,
        .count = x->cfg.block,
        .send = buf + (size_t)x->cfg.node->rank * x->cfg.block,
        .recv = buf,
    };
    return run(x, &op, "all-gather of the weights");
}

/* The counters of a loaded plugin are its own; it says them when the communicator closes. */
static void plugin_traffic(struct nbt_exchange *x, struct nbt_traffic *traffic)
{
    (void)x;
    memset(traffic, 0, sizeof *traffic);
}

/* The number behind `key` (as in "wire=") in the text [at, end). */
static int number_after(const char *at, const char *end, const char *key, uint64_t *value)
{
    const size_t n = strlen(key);
    for (; at + n < end; at++) {
        if (strncmp(at, key, n) == 0) {
            char *stop;
            *value = strtoull(at + n, &stop, 10);
            return stop > at + n;
        }
    }
    return 0;
}

/* What the plugin logs at its close (plugin/coll/comm.c), of which is read:
 *   summary ...: reduce_scatter ops=N coded=N ... wire=N ... all_gather ops=N ... wire=N ...
 *   summary ...: feedback ops=N ... */
static void plugin_traffic_from_log(const char *log, struct nbt_traffic *t)
{
    memset(t, 0, sizeof *t);
    while ((log = strstr(log, "summary ")) != NULL) {
        const char *end = strchr(log, '\n');
        end = end ? end : log + strlen(log);
        const char *rs = strstr(log, " reduce_scatter "), *ag = strstr(log, " all_gather ");
        uint64_t ops = 0, coded = 0, wire = 0;
        if (rs && ag && rs < ag && ag < end) {
            t->known = number_after(rs, ag, " ops=", &ops) && number_after(rs, ag, " coded=", &coded) &&
                       number_after(rs, ag, " wire=", &wire);
            t->reduce_scatter.ops += ops;
            t->reduce_scatter.wire += wire;
            t->quantized_ops += coded;
            t->known =
                t->known && number_after(ag, end, " ops=", &ops) && number_after(ag, end, " wire=", &wire);
            t->all_gather.ops += ops;
            t->all_gather.wire += wire;
        }
        if (number_after(log, end, " feedback ops=", &ops))
            t->feedback_ops += ops;
        log = end;
    }
}

static int plugin_close(struct nbt_exchange *x)
{
    struct plugin *p = x->state;
    if (!p)
        return 0;
    const ncclResult_t rc = hx_comm_close(p->comm);
    hx_lib_close(p->lib);
    free(p);
    x->state = NULL;
    if (rc == ncclSuccess)
        return 0;
    hx_fail("closing the communicator failed (%d)", (int)rc);
    return -EIO;
}

const struct nbt_exchange_ops nbt_exchange_plugin = {
    .name = "plugin",
    .open = plugin_open,
    .reduce_scatter = plugin_reduce_scatter,
    .all_gather = plugin_all_gather,
    .traffic = plugin_traffic,
    .close = plugin_close,
    .traffic_from_log = plugin_traffic_from_log,
};
