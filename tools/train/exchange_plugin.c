/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange through the plugin. It loads the shared object as NCCL loads it and brings up a CollNet
 * communicator among the nodes. It announces every operation to the plugin's profiler, cuts it into windows
 * and lets the proxy harness drive it, in NCCL's order.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"
#include "nibble/nccl_tuner.h"
#include "tests/policy/events.h"

#define FIRST_COMM_ID 0x7261696e0000u /* a communicator after a restart has another number */

struct plugin {
    struct hx_lib *lib;
    struct hx_comm *comm;
    void *object; /* second handle of the shared object, for its profiler and tuner */
    const ncclProfiler_v7_t *profiler;
    struct ev_comm events;
    const ncclTuner_v6_t *tuner;
    void *tuner_ctx;
    char *sums; /* result of an all-reduce */
};

static int plugin_close(struct nbt_exchange *x);

/* Find profiler and tuner in the same file, as NCCL 2.28 and later do. The plugin's own tests cover their
 * absence, so it is an error here. */
static int find_tables(struct nbt_exchange *x, struct plugin *p)
{
    const char *path = x->cfg.plugin ? x->cfg.plugin : hx_plugin_path();
    p->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    p->profiler = p->object ? dlsym(p->object, "ncclProfiler_v7") : NULL;
    p->tuner = p->object ? dlsym(p->object, "ncclTunerPlugin_v6") : NULL;
    if (p->profiler && p->tuner)
        return 0;
    hx_fail("%s has no ncclProfiler_v7 or no ncclTunerPlugin_v6", path);
    return -ENOENT;
}

/* Play NCCL's question before a launch, and ignore the answer. An uncompressed run, for which CollNet is not
 * worth while, goes the same way as the other runs, because it serves for comparison. */
static int ask_tuner(const struct plugin *p, const struct hx_op *op, size_t bytes)
{
    float table[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    int channels = 0;
    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int k = 0; k < NCCL_NUM_PROTOCOLS_V5; k++)
            table[a][k] = NCCL_ALGO_PROTO_IGNORE;
    table[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] = 10;
    table[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] = 20;
    if (p->tuner->getCollInfo(p->tuner_ctx,
                              op->func == HX_ALL_GATHER   ? ncclFuncAllGather
                              : op->func == HX_ALL_REDUCE ? ncclFuncAllReduce
                                                          : ncclFuncReduceScatter,
                              bytes, 1, (float **)table, NCCL_NUM_ALGORITHMS_V5, NCCL_NUM_PROTOCOLS_V5, 0,
                              &channels) == ncclSuccess)
        return 0;
    hx_fail("the tuner has failed");
    return -EIO;
}

static int plugin_open(struct nbt_exchange *x)
{
    static uint64_t comms; /* number of this process's communicators. All nodes open them in step */
    const struct hx_comm_cfg cfg = {
        .channels = 4, .chunk = HX_CHUNK_NCCL, .comm_id = FIRST_COMM_ID + comms++};
    const int n = x->cfg.node->nnodes;
    ncclResult_t rc;
    struct plugin *p = calloc(1, sizeof *p);
    if (!p) {
        hx_fail("out of memory");
        return -ENOMEM;
    }
    p->lib = hx_lib_open(x->cfg.plugin, 0);
    if (!p->lib) {
        free(p);
        return -ENOENT;
    }
    x->state = p;
    if (find_tables(x, p)) {
        plugin_close(x);
        return -ENOENT;
    }
    ev_open(p->profiler, &p->events, cfg.comm_id, n, n, x->cfg.node->rank);
    rc = hx_comm_open(x->cfg.node, p->lib, &cfg, &p->comm, NULL);
    if (rc != ncclSuccess) {
        hx_fail_by_plugin("the communicator cannot be connected", rc);
        plugin_close(x);
        return -EIO;
    }
    if (p->tuner->init(&p->tuner_ctx, cfg.comm_id, (size_t)n, (size_t)n, hx_logger(), NULL, NULL) ==
        ncclSuccess)
        return 0;
    hx_fail("the tuner's init failed");
    plugin_close(x);
    return -EIO;
}

static const char *nccl_type(ncclDataType_t type)
{
    return type == ncclFloat32 ? "ncclFloat32" : type == ncclBfloat16 ? "ncclBfloat16" : "ncclFloat16";
}

/* Play the job's call, the choice of the algorithm, the launch, then the proxy. */
static int run(struct nbt_exchange *x, struct hx_op *op, const char *what)
{
    struct plugin *p = x->state;
    const size_t blocks = op->func == HX_ALL_REDUCE ? 1 : (size_t)x->cfg.node->nnodes;
    struct ev_op event = {.func = op->func == HX_ALL_GATHER   ? EV_ALL_GATHER
                                  : op->func == HX_ALL_REDUCE ? EV_ALL_REDUCE
                                                              : EV_REDUCE_SCATTER,
                          .type = nccl_type(op->type),
                          .type_bytes = hx_type_size(op->type),
                          .count = op->count,
                          .send = op->send,
                          .recv = op->recv};
    ev_call(p->profiler, &p->events, &event);
    if (ask_tuner(p, op, op->count * hx_type_size(op->type) * blocks))
        return -EIO;
    ev_launch(p->profiler, &p->events, &event, 1);
    const ncclResult_t rc = hx_run(p->comm, op);
    if (rc == ncclSuccess)
        return 0;
    hx_fail_by_plugin(what, rc);
    return -EIO;
}

static int plugin_reduce_scatter(struct nbt_exchange *x, const void *send, void *recv)
{
    struct plugin *p = x->state;
    const size_t nodes = (size_t)x->cfg.node->nnodes;
    const size_t bytes = x->cfg.block * nb_dtype_size(x->cfg.grad_type);
    struct hx_op op = {
        .func = x->cfg.all_reduce ? HX_ALL_REDUCE : HX_REDUCE_SCATTER,
        .type = x->cfg.grad_type == NB_BF16  ? ncclBfloat16
                : x->cfg.grad_type == NB_F16 ? ncclFloat16
                                             : ncclFloat32,
        .op = ncclSum,
        .count = x->cfg.block,
        .send = send,
        .recv = recv,
    };
    int rc;

    if (!x->cfg.all_reduce)
        return run(x, &op, "the reduce-scatter of the gradients failed");
    if (!p->sums)
        p->sums = malloc(nodes * bytes);
    if (!p->sums) {
        hx_fail("out of memory");
        return -ENOMEM;
    }
    op.count *= nodes;
    op.recv = p->sums;
    rc = run(x, &op, "the all-reduce of the gradients failed");
    if (rc == 0)
        memcpy(recv, p->sums + (size_t)x->cfg.node->rank * bytes, bytes);
    return rc;
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
    return run(x, &op, "the all-gather of the weights failed");
}

/* Read the number behind `key` (as in "wire=") in the text [at, end). */
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

/* Read parts of the plugin's log at its close (plugin/coll/report/summary.c):
 *   summary ...: reduce_scatter ops=N coded=N ... wire=N ... all_gather ops=N ... wire=N ...
 *   (a run by all-reduce has all_reduce ops=N ... in place of reduce_scatter)
 *   summary ...: feedback ops=N ... */
static void plugin_traffic_from_log(const char *log, struct nbt_traffic *t)
{
    memset(t, 0, sizeof *t);
    while ((log = strstr(log, "summary ")) != NULL) {
        const char *end = strchr(log, '\n');
        end = end ? end : log + strlen(log);
        const char *rs = strstr(log, " reduce_scatter ops="), *ag = strstr(log, " all_gather ops=");
        const char *ar = strstr(log, " all_reduce ops="), *sum = rs && rs < end ? rs : ar;
        uint64_t ops = 0, coded = 0, wire = 0;
        if (sum && ag && sum < end && ag < end) {
            t->known = number_after(sum, end, " ops=", &ops) && number_after(sum, end, " coded=", &coded) &&
                       number_after(sum, end, " wire=", &wire);
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

/* Read the lines of the log that tell how the plugin recognized gradients and how it treated them, without
 * the text before their signature. */
static void plugin_story(const char *log, char *story, size_t cap)
{
    static const char *const begin[] = {": reduce_scatter:", ": all_reduce:", ": signature "};
    size_t n = 0;
    story[0] = 0;
    while (log && *log) {
        const size_t len = strcspn(log, "\n");
        char line[1000];
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), log);
        for (size_t k = 0; k < sizeof begin / sizeof *begin && n + 1 < cap; k++) {
            const char *at = strstr(line, begin[k]);
            if (!at)
                continue;
            n += (size_t)snprintf(story + n, cap - n, "  %s\n", at + 2);
            n = n < cap ? n : cap - 1;
            break;
        }
        log += len + (log[len] == '\n');
    }
}

static int plugin_close(struct nbt_exchange *x)
{
    struct plugin *p = x->state;
    if (!p)
        return 0;
    ncclResult_t rc = ncclSuccess;
    if (p->tuner_ctx)
        p->tuner->finalize(p->tuner_ctx);
    if (p->profiler)
        ev_close(p->profiler, &p->events);
    if (p->comm)
        rc = hx_comm_close(p->comm);
    if (p->object)
        dlclose(p->object);
    hx_lib_close(p->lib);
    free(p->sums);
    free(p);
    x->state = NULL;
    if (rc == ncclSuccess)
        return 0;
    hx_fail_by_plugin("the communicator does not close", rc);
    return -EIO;
}

const struct nbt_exchange_ops nbt_exchange_plugin = {
    .name = "plugin",
    .open = plugin_open,
    .reduce_scatter = plugin_reduce_scatter,
    .all_gather = plugin_all_gather,
    .close = plugin_close,
    .traffic_from_log = plugin_traffic_from_log,
    .story_from_log = plugin_story,
};
