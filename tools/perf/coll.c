/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf coll: the collectives, in the manner of nccl-tests, between processes on this machine that
 * drive the plugin as NCCL's proxy does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "coll/coll.h"
#include "coll/stats.h"
#include "perf.h"
#include "policy/record.h"
#include "tests/harness/lib/harness.h"

/* Data are made in segments, each from a seed of its own, so that results can be checked on some of them. */
#define SEGMENT ((size_t)1 << 18)
#define CHECKED_SEGMENTS 3u

static const ncclDataType_t type_ids[] = {ncclFloat32, ncclBfloat16, ncclFloat16};

struct op_kind {
    const char *name;
    enum hx_func func;
    enum nb_func wire;
};
static const struct op_kind kinds[] = {
    {"reduce_scatter", HX_REDUCE_SCATTER, NB_FUNC_REDUCE_SCATTER},
    {"all_gather", HX_ALL_GATHER, NB_FUNC_ALL_GATHER},
    {"all_reduce", HX_ALL_REDUCE, NB_FUNC_ALL_REDUCE},
};

/* One series of operations of one kind, type and size, on one node. */
struct series {
    const struct perf_run *run;
    struct hx_node *node;
    struct hx_comm *comm;
    const struct op_kind *kind;
    ncclDataType_t type;
    size_t count; /* as in hx_op */
    size_t block; /* values of a block: count */
    uint64_t seed;
    int64_t slot;
    unsigned turn; /* operations run; all-gathers send one state and the other in turn */
    char *send[2]; /* all-gather: two states of the weights, in turn */
    char *recv;
};

static double noise(uint64_t *rng)
{
    double x = -2;

    /* Four uniform numbers make a bell of variance 1/3. */
    for (int i = 0; i < 4; i++)
        x += (double)(hx_rand(rng) >> 11) * 0x1p-53;
    return x * 1.7320508;
}

/* Segment of a rank's block: gradients, or weights before (0) and after (1) a step. */
static void make_segment(const struct series *s, int rank, size_t block, size_t segment, int state, void *buf,
                         size_t n)
{
    const uint64_t seed = hx_seed(s->seed, (uint64_t)rank << 32 | block, segment);
    uint64_t rng = seed, steps = hx_seed(seed, 1, 0);

    if (s->kind->func != HX_ALL_GATHER) {
        hx_fill(s->type, buf, n, seed, HX_FILL_NORMAL);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const double w = 0.02 * noise(&rng), d = 0.02 * s->run->weight_step * noise(&steps);
        hx_store(s->type, buf, i, state ? w + d : w);
    }
}

static void make_block(const struct series *s, int rank, size_t block, int state, char *buf)
{
    const size_t size = hx_type_size(s->type);

    for (size_t at = 0, g = 0; at < s->block; at += SEGMENT, g++)
        make_segment(s, rank, block, g, state, buf + at * size,
                     s->block - at < SEGMENT ? s->block - at : SEGMENT);
}

/* Error of `got`, which should be block `block` summed over all nodes (or, gathered, that of node `block`),
 * on a few segments. */
static void check_block(const struct series *s, size_t block, int state, const char *got, double *err,
                        double *energy)
{
    const size_t size = hx_type_size(s->type), segments = (s->block + SEGMENT - 1) / SEGMENT;
    double *sum = malloc(SEGMENT * sizeof(*sum));
    char *one = malloc(SEGMENT * size);

    if (!sum || !one)
        abort();
    for (size_t k = 0; k < CHECKED_SEGMENTS && k < segments; k++) {
        const size_t g = segments <= CHECKED_SEGMENTS ? k : k * (segments - 1) / (CHECKED_SEGMENTS - 1);
        const size_t at = g * SEGMENT, n = s->block - at < SEGMENT ? s->block - at : SEGMENT;
        const bool gather = s->kind->func == HX_ALL_GATHER;
        memset(sum, 0, n * sizeof(*sum));
        for (int r = 0; r < (gather ? 1 : s->node->nnodes); r++) {
            make_segment(s, gather ? (int)block : r, gather ? 0 : block, g, state, one, n);
            for (size_t i = 0; i < n; i++)
                sum[i] += hx_load(s->type, one, i);
        }
        for (size_t i = 0; i < n; i++) {
            const double d = hx_load(s->type, got + at * size, i) - sum[i];
            *err += d * d;
            *energy += sum[i] * sum[i];
        }
    }
    free(sum);
    free(one);
}

/* A chunk for all-reduce as NCCL would choose: smaller for small operations. */
static size_t all_reduce_chunk(const struct series *s)
{
    const size_t bytes = s->count * hx_type_size(s->type);
    size_t chunk = s->run->buff_size / HX_STEPS;

    if (s->run->chunk)
        return s->run->chunk;
    while (chunk > 65536 && chunk * (size_t)s->run->channels > bytes)
        chunk /= 2;
    return chunk;
}

static int push_record(const struct series *s, size_t chunk)
{
    const struct nb_record r = {.func = s->kind->wire,
                                .type = s->type,
                                .api_type = s->type,
                                .flags = NB_RECORD_API,
                                .bytes = s->count * hx_type_size(s->type),
                                .slot = s->run->feedback ? s->slot : -1,
                                .chunk = (uint32_t)chunk,
                                .heads = 1 << 1};

    if (s->kind->func == HX_ALL_GATHER || (s->kind->func == HX_REDUCE_SCATTER && !s->run->feedback))
        return 0;
    return nb_record_push(hx_comm_plugin(s->comm), &r);
}

/* `n` operations, posted at once and run one after the other. */
static int run_many(struct series *s, int n)
{
    struct hx_op *ops = calloc((size_t)n, sizeof(*ops));
    const size_t chunk = all_reduce_chunk(s);
    int ret = 0;

    if (!ops)
        return hx_fail("not enough memory");
    for (int i = 0; i < n && !ret; i++, s->turn++) {
        ops[i] = (struct hx_op){.func = s->kind->func,
                                .type = s->type,
                                .op = ncclSum,
                                .count = s->count,
                                .send = s->send[s->kind->func == HX_ALL_GATHER ? s->turn % 2 : 0],
                                .recv = s->recv,
                                .chunk = s->kind->func == HX_ALL_REDUCE ? chunk : s->run->chunk,
                                .flags = s->run->nocopy ? HX_OP_NOCOPY : 0};
        if (!s->run->plugin && push_record(s, chunk) != 0)
            ret = hx_fail("a record was refused");
        else if (hx_post(s->comm, &ops[i]) != ncclSuccess)
            ret = hx_fail("%s: posting failed", s->kind->name);
    }
    for (int i = 0; i < n && !ret; i++)
        if (hx_wait(s->comm, &ops[i], 0) != ncclSuccess)
            ret = hx_fail("%s of %zu values failed with %d", s->kind->name, s->count, (int)ops[i].result);
    free(ops);
    return ret;
}

/* What nodes tell each other after a series. */
struct outcome {
    double err, energy, sent, wire;
};

static void take_stats(const struct series *s, struct nb_func_stats *out)
{
    struct nb_coll_stats stats;

    memset(out, 0, sizeof(*out));
    if (s->run->plugin)
        return;
    nb_coll_get_stats(hx_comm_plugin(s->comm), &stats);
    *out = stats.func[s->kind->wire];
}

/* As a job that computes: what nodes still tell each other of the operation before has arrived. */
static void pause_all(const struct series *s)
{
    struct nb_coll_stats stats;

    do {
        hx_sleep(s->run->pause_s);
        if (s->run->plugin) /* which does not tell */
            return;
        nb_coll_get_stats(hx_comm_plugin(s->comm), &stats);
    } while (stats.unanswered);
}

/* One after the other where there are pauses: gathers that overlap are given several references, one of which
 * may later hold the very bytes that are measured. */
static int warm_up(struct series *s)
{
    const int n = s->run->warmup;

    if (s->run->pause_s <= 0)
        return n ? run_many(s, n) : 0;
    for (int i = 0; i < n; i++) {
        pause_all(s);
        if (run_many(s, 1))
            return 1;
    }
    return 0;
}

static int measure(struct series *s, size_t bytes)
{
    const int nodes = s->node->nnodes, iterations = s->run->iterations, reps = s->run->repetitions;
    const char *interface = s->run->netns ? "hx0" : NULL;
    struct perf_row row = perf_row_make(s->run, s->kind->name, hx_type_name(s->type), bytes);
    double seconds[PERF_MOST_REPETITIONS], sent = 0, wire = 0, err = 0, energy = 0;
    struct outcome mine = {0}, all[HX_MAX_NODES];
    struct nb_func_stats before, after;
    struct perf_usage from, to;

    hx_where("warm-up of %s, %zu bytes", s->kind->name, bytes);
    if (warm_up(s))
        return 1;
    hx_barrier(s->node);
    take_stats(s, &before);
    hx_where("%s, %zu bytes", s->kind->name, bytes);
    perf_usage_now(interface, &from);
    for (int i = 0; i < reps; i++) {
        if (s->run->pause_s > 0)
            pause_all(s);
        hx_barrier(s->node);
        const double start = hx_now();
        if (run_many(s, iterations))
            return 1;
        seconds[i] = (hx_now() - start) / iterations;
    }
    hx_barrier(s->node);
    perf_usage_now(interface, &to);
    take_stats(s, &after);
    mine.sent = (double)(after.sent_bytes - before.sent_bytes);
    mine.wire = (double)(after.wire_bytes - before.wire_bytes);
    if (!s->run->nocopy) {
        if (s->kind->func == HX_ALL_GATHER)
            for (int b = 0; b < nodes; b++)
                check_block(s, (size_t)b, (int)((s->turn - 1) % 2),
                            s->recv + (size_t)b * s->block * hx_type_size(s->type), &mine.err, &mine.energy);
        else
            check_block(s, s->kind->func == HX_REDUCE_SCATTER ? (size_t)s->node->rank : 0, 0, s->recv,
                        &mine.err, &mine.energy);
    }
    hx_allgather(s->node, &mine, sizeof(mine), all);
    for (int r = 0; r < nodes; r++) {
        sent += all[r].sent;
        wire += all[r].wire;
        err += all[r].err;
        energy += all[r].energy;
    }
    perf_row_measured(&row, s->node, seconds, &from, &to, iterations * reps);
    row.busbw = row.algbw * (nodes - 1.0) / nodes * (s->kind->func == HX_ALL_REDUCE ? 2 : 1);
    if (sent > 0)
        row.wire_ratio = wire / sent;
    if (energy > 0)
        row.nmse = err / energy;
    perf_row_add(s->node, &row);
    return 0;
}

static int series(struct series *s, size_t bytes)
{
    const size_t size = hx_type_size(s->type), nodes = (size_t)s->node->nnodes;
    const bool reduce_all = s->kind->func == HX_ALL_REDUCE, gather = s->kind->func == HX_ALL_GATHER;
    size_t send_blocks, recv_blocks;
    int ret = 0;

    s->count = s->block = bytes / size / (reduce_all ? 1 : nodes);
    if (s->count == 0)
        s->count = s->block = 1;
    send_blocks = s->kind->func == HX_REDUCE_SCATTER ? nodes : 1;
    recv_blocks = gather ? nodes : 1;
    s->recv = malloc(recv_blocks * s->block * size);
    for (int state = 0; state < (gather ? 2 : 1); state++) {
        s->send[state] = malloc(send_blocks * s->block * size);
        if (!s->recv || !s->send[state])
            return hx_fail("not enough memory for %zu bytes", bytes);
        for (size_t b = 0; b < send_blocks; b++)
            make_block(s, s->node->rank, b, state, s->send[state] + b * s->block * size);
    }
    ret = measure(s, s->block * size * (reduce_all ? 1 : nodes));
    free(s->recv);
    free(s->send[0]);
    free(s->send[1]);
    s->recv = s->send[0] = s->send[1] = NULL;
    return ret;
}

static int coll_node(struct hx_node *node, void *arg)
{
    const struct perf_run *run = arg;
    const struct hx_comm_cfg cfg = {
        .channels = run->channels, .buff_size = run->buff_size, .chunk = HX_CHUNK_NCCL};
    struct series s = {.run = run, .node = node};
    const char *stage = "?";
    struct hx_lib *lib;
    ncclResult_t rc;
    int ret = 0;

    lib = run->plugin ? hx_lib_open(run->plugin, 0)
                      : hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    if (!lib)
        return 1;
    rc = hx_comm_open(node, lib, &cfg, &s.comm, &stage);
    if (rc != ncclSuccess)
        return hx_fail("bringing the communicator up failed in %s (%d)", stage, (int)rc);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && !ret; k++) {
        for (size_t t = 0; t < sizeof(type_ids) / sizeof(type_ids[0]) && !ret; t++) {
            if (!perf_listed(run->ops, kinds[k].name) ||
                !perf_listed(run->types ? run->types : "bfloat16", hx_type_name(type_ids[t])))
                continue;
            for (size_t bytes = perf_run_next(run, 0); bytes && !ret; bytes = perf_run_next(run, bytes)) {
                s.kind = &kinds[k];
                s.type = type_ids[t];
                s.seed = hx_seed(node->seed, k, bytes + t);
                s.slot++;
                ret = series(&s, bytes);
            }
        }
    }
    if (ret)
        return ret;
    rc = hx_comm_close(s.comm);
    hx_lib_close(lib);
    return rc == ncclSuccess ? 0 : hx_fail("closing failed (%d)", (int)rc);
}

int perf_coll(int argc, char **argv)
{
    struct perf_run run;
    struct hx_job job = {.name = "nibble-perf coll", .deadline_s = 24 * 3600.0, .fn = coll_node, .seed = 1};

    if (!perf_run_parse(argc, argv, "coll", &run))
        return 2;
    if (run.help)
        return 0;
    job.nnodes = run.nodes;
    job.arg = &run;
    job.netns_prefix = run.netns;
    job.env = run.env;
    if (run.threads)
        return perf_threads(&job, &run);
    return perf_rows_job(&job, run.json);
}
