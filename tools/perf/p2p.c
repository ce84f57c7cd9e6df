/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf p2p: point-to-point transfers through the ncclNet half of the plugin, driven as NCCL's net
 * proxy does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "perf.h"
#include "tests/harness/lib/harness.h"
#include "tools/output.h"

/* Make the next transfer's values out of the last one's: `percent` of them move by one place. */
static void change(char *data, size_t bytes, double percent, uint64_t *state)
{
    const double every = log1p(-percent / 100);
    uint16_t value;

    if (percent >= 100)
        hx_fill(ncclBfloat16, data, bytes / 2, (*state)++, HX_FILL_NORMAL);
    if (percent <= 0 || percent >= 100)
        return;
    for (double at = 0;; at++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        at += floor(log(((double)(*state >> 11) + 1) * 0x1p-53) / every);
        if (at >= (double)(bytes / 2))
            return;
        memcpy(&value, data + 2 * (size_t)at, 2);
        value = (uint16_t)(*state >> 33 & 1 ? value + 1 : value - 1);
        memcpy(data + 2 * (size_t)at, &value, 2);
    }
}

/* Changing values of both nodes of a pair. */
struct values {
    char *send, *want;
    uint64_t mine, peers; /* states of their changes */
};

static void next_values(const struct perf_run *run, struct values *v, size_t bytes)
{
    if (run->changed < 0)
        return;
    change(v->send, bytes, run->changed, &v->mine);
    change(v->want, bytes, run->changed, &v->peers);
}

static int transfer(struct hx_p2p *p2p, const struct perf_run *run, int rank, char *send, char *recv,
                    size_t bytes, int n)
{
    const bool sends = rank % 2 == 0 || run->bidirectional, receives = rank % 2 == 1 || run->bidirectional;

    for (int i = 0; i < n; i++) {
        const ncclResult_t rc = hx_p2p_run(p2p, send, sends ? bytes : 0, recv, receives ? bytes : 0, 0);
        if (rc != ncclSuccess)
            return hx_fail_by_plugin("a transfer failed", rc);
    }
    return 0;
}

static int p2p_size(struct hx_node *node, struct hx_p2p *p2p, const struct perf_run *run, size_t bytes)
{
    const int peer = node->rank ^ 1;
    const char *interface = run->netns ? "hx0" : NULL;
    struct perf_row row = perf_row_make(run, "p2p", "bytes", bytes);
    double seconds[PERF_MOST_REPETITIONS];
    struct perf_usage from, to;
    char *send = malloc(bytes), *recv = malloc(bytes), *want = malloc(bytes);
    struct values values = {.send = send,
                            .want = want,
                            .mine = hx_seed(node->seed, (uint64_t)node->rank, bytes),
                            .peers = hx_seed(node->seed, (uint64_t)peer, bytes)};
    double mine = 0, all[HX_MAX_NODES], wrong = 0;

    if (!send || !recv || !want)
        return hx_fail("not enough memory for %zu bytes", bytes);
    if (run->changed < 0) {
        hx_fill(ncclUint8, send, bytes, values.mine, HX_FILL_BITS);
        hx_fill(ncclUint8, want, bytes, values.peers, HX_FILL_BITS);
    } else {
        hx_fill(ncclBfloat16, send, bytes / 2, values.mine, HX_FILL_NORMAL);
        hx_fill(ncclBfloat16, want, bytes / 2, values.peers, HX_FILL_NORMAL);
        send[bytes - 1] = want[bytes - 1] = 0;
    }
    memset(recv, 0, bytes);
    hx_where("p2p, %zu bytes", bytes);
    if (node->rank == 0)
        output_progress("p2p of %zu bytes", bytes);
    for (int i = 0; i < run->warmup; i++) {
        next_values(run, &values, bytes);
        if (transfer(p2p, run, node->rank, send, recv, bytes, 1))
            return 1;
    }
    hx_barrier(node);
    perf_usage_now(interface, &from);
    for (int i = 0; i < run->repetitions; i++) {
        next_values(run, &values, bytes);
        hx_barrier(node);
        const double start = hx_now();
        if (transfer(p2p, run, node->rank, send, recv, bytes, run->iterations))
            return 1;
        seconds[i] = (hx_now() - start) / run->iterations;
    }
    hx_barrier(node);
    perf_usage_now(interface, &to);
    if (node->rank % 2 == 1 || run->bidirectional)
        mine = memcmp(recv, want, bytes) != 0;
    hx_allgather(node, &mine, sizeof(mine), all);
    for (int r = 0; r < node->nnodes; r++)
        wrong += all[r];
    perf_row_measured(&row, node, seconds, &from, &to, run->iterations * run->repetitions);
    row.nmse = run->nocopy ? NAN : 0;
    perf_row_add(node, &row);
    free(send);
    free(recv);
    free(want);
    return wrong > 0 && !run->nocopy ? hx_fail("%zu bytes did not arrive as they were sent", bytes) : 0;
}

static int p2p_node(struct hx_node *node, void *arg)
{
    const struct perf_run *run = arg;
    const struct hx_p2p_cfg cfg = {.streams = run->streams, .slot = run->chunk, .nocopy = run->nocopy};
    struct hx_ctx ctx;
    struct hx_p2p *p2p = NULL;
    struct hx_lib *lib;
    ncclResult_t rc;
    int ret = run->cpus ? perf_pin(run->cpus, node->rank) : 0;

    if (ret)
        return hx_fail("--cpus %s: no CPU for node %d (%s)", run->cpus, node->rank, strerror(-ret));
    lib = run->plugin ? hx_lib_open(run->plugin, 0)
                      : hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    if (!lib)
        return 1;
    rc = hx_init(lib, node->seed, &ctx);
    if (rc != ncclSuccess || ctx.ndev < 1)
        return hx_fail_by_plugin("the plugin does not start", rc);
    rc = hx_p2p_open(node, lib, &ctx, node->rank ^ 1, &cfg, &p2p);
    if (rc != ncclSuccess)
        return hx_fail_by_plugin("the nodes cannot be connected", rc);
    for (size_t bytes = perf_run_next(run, 0); bytes && !ret; bytes = perf_run_next(run, bytes))
        ret = p2p_size(node, p2p, run, bytes);
    if (ret)
        return ret;
    rc = hx_p2p_close(p2p);
    if (hx_finalize(lib, &ctx) != ncclSuccess || rc != ncclSuccess)
        ret = hx_fail_by_plugin("the connections do not close", rc);
    hx_lib_close(lib);
    return ret;
}

int perf_p2p(int argc, char **argv)
{
    struct perf_run run;
    struct hx_job job = {.name = "nibble-perf p2p", .deadline_s = 24 * 3600.0, .fn = p2p_node, .seed = 1};

    if (!perf_run_parse(argc, argv, "p2p", &run))
        return 2;
    if (run.help)
        return 0;
    if (run.nodes % 2) {
        fprintf(stderr, "nibble-perf: p2p takes an even number of nodes\n");
        return 2;
    }
    job.nnodes = run.nodes;
    job.arg = &run;
    job.netns_prefix = run.netns;
    job.env = run.env;
    job.log = run.log;
    job.quiet = true;
    return perf_rows_job(&job, &run);
}
