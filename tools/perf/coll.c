/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf coll: measure the collectives, in the manner of nccl-tests, between processes on this machine
 * that drive the plugin as NCCL's proxy does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "coll/coll.h"
#include "coll/comm/stats.h"
#include "coll/report/report.h"
#include "machines.h"
#include "policy/records/records.h"
#include "tests/harness/lib/harness.h"
#include "tools/output.h"

/* Data are made in segments, each from its own seed, so that the program can check results on some
 * segments. */
#define SEGMENT ((size_t)1 << 18)
#define CHECKED_SEGMENTS 3u
#define BATCH 1000 /* operations posted at once. The queue of records has room for more */

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

static const char *op_name(int i)
{
    return i < (int)(sizeof(kinds) / sizeof(kinds[0])) ? kinds[i].name : NULL;
}

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
    int pass;      /* of --compare */
    unsigned turn; /* operations run. All-gathers send the two states in turn */
    char *send[2]; /* all-gather: two states of the weights, in turn */
    char *recv;
    bool in_place;  /* recv is unused then */
    char *whole[2]; /* buffer that an operation sends from and receives into, for all-gather one for each
                       state */
};

static double noise(uint64_t *rng)
{
    double x = -2;

    /* Four uniform numbers make a bell of variance 1/3. */
    for (int i = 0; i < 4; i++)
        x += (double)(hx_rand(rng) >> 11) * 0x1p-53;
    return x * 1.7320508;
}

/* Make a segment of a rank's block: gradients, or weights before (0) and after (1) a step. */
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

/* ---- Checking results ---- */

#define NEAR 1024u /* neighboring values whose largest magnitude counts */

static double largest_near(const double *v, size_t n, size_t at)
{
    double most = 0;

    for (size_t i = at / NEAR * NEAR; i < n && i < (at / NEAR + 1) * NEAR; i++)
        most = fabs(v[i]) > most ? fabs(v[i]) : most;
    return most;
}

/* Return how far a value may be off: half a step of 4 bits, of which there are 14, for each contribution and
 * once more for the sum. Groups may lie differently from NEAR, so take twice that. Raw: each addition rounds.
 * `near` is the sum of the neighbors' magnitudes. */
static double tolerance(const struct series *s, double near)
{
    const double rounds = s->type == ncclFloat32 ? 0x1p-23 : s->type == ncclFloat16 ? 0x1p-10 : 0x1p-7;

    if (s->kind->func == HX_ALL_GATHER)
        return 0;
    return near * (s->run->raw ? s->node->nnodes * rounds : 1.0 / 7);
}

/* Compute the error of `got` on a few segments. It should be block `block` summed over all nodes or,
 * gathered, node `block`'s block. */
static void check_block(const struct series *s, size_t block, int state, const char *got, double *err,
                        double *energy, double *wrong)
{
    const size_t size = hx_type_size(s->type), segments = (s->block + SEGMENT - 1) / SEGMENT;
    double *sum = malloc(SEGMENT * sizeof(*sum)), *part = malloc(SEGMENT * sizeof(*part));
    double *near = malloc(SEGMENT / NEAR * sizeof(*near));
    char *one = malloc(SEGMENT * size);

    if (!sum || !part || !near || !one)
        abort();
    for (size_t k = 0; k < CHECKED_SEGMENTS && k < segments; k++) {
        const size_t g = segments <= CHECKED_SEGMENTS ? k : k * (segments - 1) / (CHECKED_SEGMENTS - 1);
        const size_t at = g * SEGMENT, n = s->block - at < SEGMENT ? s->block - at : SEGMENT;
        const bool gather = s->kind->func == HX_ALL_GATHER;
        memset(sum, 0, n * sizeof(*sum));
        memset(near, 0, SEGMENT / NEAR * sizeof(*near));
        for (int r = 0; r < (gather ? 1 : s->node->nnodes); r++) {
            make_segment(s, gather ? (int)block : r, gather ? 0 : block, g, state, one, n);
            for (size_t i = 0; i < n; i++)
                sum[i] += part[i] = hx_load(s->type, one, i);
            for (size_t i = 0; i < n; i += NEAR)
                near[i / NEAR] += largest_near(part, n, i);
        }
        for (size_t i = 0; i < n; i += NEAR)
            near[i / NEAR] += largest_near(sum, n, i);
        for (size_t i = 0; i < n; i++) {
            const double d = hx_load(s->type, got + at * size, i) - sum[i];
            *wrong += !(fabs(d) <= tolerance(s, near[i / NEAR]));
            *err += d * d;
            *energy += sum[i] * sum[i];
        }
    }
    free(sum);
    free(part);
    free(near);
    free(one);
}

/* Return a chunk for all-reduce as NCCL would choose it: smaller for small operations. */
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

/* Set the buffers of the next operation. In place NCCL wants the own block at its place in the other
 * buffer. */
static void buffers(const struct series *s, struct hx_op *op)
{
    const unsigned state = s->kind->func == HX_ALL_GATHER ? s->turn % 2 : 0;
    const size_t own = (size_t)s->node->rank * s->block * hx_type_size(s->type);

    if (!s->in_place) {
        op->send = s->send[state];
        op->recv = s->recv;
        return;
    }
    op->send = s->whole[state] + (s->kind->func == HX_ALL_GATHER ? own : 0);
    op->recv = s->whole[state] + (s->kind->func == HX_REDUCE_SCATTER ? own : 0);
}

/* Run `n` operations, posted at once, one after the other. */
static int run_batch(struct series *s, int n)
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
                                .chunk = s->kind->func == HX_ALL_REDUCE ? chunk : s->run->chunk,
                                .flags = s->run->nocopy ? HX_OP_NOCOPY : 0};
        buffers(s, &ops[i]);
        if (!s->run->plugin && push_record(s, chunk) != 0)
            ret = hx_fail("a record was refused");
        else if (hx_post(s->comm, &ops[i]) != ncclSuccess)
            ret = hx_fail("%s: posting failed", s->kind->name);
    }
    for (int i = 0; i < n && !ret; i++)
        if (hx_wait(s->comm, &ops[i], 0) != ncclSuccess) {
            char what[80];
            snprintf(what, sizeof(what), "%s of %zu values failed", s->kind->name, s->count);
            ret = hx_fail_by_plugin(what, ops[i].result);
        }
    free(ops);
    return ret;
}

/* Run operations in batches that fit into the queue of records. */
static int run_many(struct series *s, int n)
{
    int ret = 0;

    for (; n > 0 && !ret; n -= BATCH)
        ret = run_batch(s, n < BATCH ? n : BATCH);
    return ret;
}

/* A node's results, which nodes exchange after a series. */
struct outcome {
    double err, energy, sent, wire, wrong;
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

/* Pause, as a job that computes, until the last operation's messages between nodes have arrived. */
static void pause_all(const struct series *s)
{
    struct nb_coll_stats stats;

    do {
        hx_sleep(s->run->pause_s);
        if (s->run->plugin) /* this plugin does not tell */
            return;
        nb_coll_get_stats(hx_comm_plugin(s->comm), &stats);
    } while (stats.unanswered);
}

/* Run operations one after the other where there are pauses. Overlapping gathers get several references, one
 * of which may later hold exactly the measured bytes. */
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

/* Run the measured operations. Store the seconds of an operation in each repetition. */
static int time_it(struct series *s, double *seconds)
{
    for (int i = 0; i < s->run->repetitions; i++) {
        if (s->node->rank == 0)
            output_progress("%s of %zu values: repetition %d of %d", s->kind->name, s->count, i + 1,
                            s->run->repetitions);
        if (s->run->pause_s > 0)
            pause_all(s);
        hx_barrier(s->node);
        const double start = hx_now();
        if (run_many(s, s->run->iterations))
            return 1;
        seconds[i] = (hx_now() - start) / s->run->iterations;
    }
    hx_barrier(s->node);
    return 0;
}

/* Check the last operation. */
static void check(const struct series *s, struct outcome *mine)
{
    const size_t size = hx_type_size(s->type);
    const int state = s->kind->func == HX_ALL_GATHER ? (int)((s->turn - 1) % 2) : 0;
    struct hx_op op = {0};
    struct series last = *s;

    last.turn -= s->kind->func == HX_ALL_GATHER;
    buffers(&last, &op);
    if (s->kind->func == HX_ALL_GATHER)
        for (int b = 0; b < s->node->nnodes; b++)
            check_block(s, (size_t)b, state, (const char *)op.recv + (size_t)b * s->block * size, &mine->err,
                        &mine->energy, &mine->wrong);
    else
        check_block(s, s->kind->func == HX_REDUCE_SCATTER ? (size_t)s->node->rank : 0, 0, op.recv, &mine->err,
                    &mine->energy, &mine->wrong);
}

static void busbw_of(const struct series *s, double algbw, double *busbw)
{
    const double nodes = s->node->nnodes;

    *busbw = algbw * (nodes - 1) / nodes * (s->kind->func == HX_ALL_REDUCE ? 2 : 1);
}

static int measure(struct series *s, struct perf_row *row)
{
    const int nodes = s->node->nnodes;
    const char *interface = s->run->netns ? "hx0" : NULL;
    double seconds[PERF_MOST_REPETITIONS], sent = 0, wire = 0, err = 0, energy = 0;
    struct outcome mine = {0}, all[HX_MAX_NODES];
    struct nb_func_stats before, after;
    struct perf_usage from, to;

    hx_where("warm-up of %s, %llu bytes", s->kind->name, (unsigned long long)row->bytes);
    if (s->node->rank == 0)
        output_progress("%s of %llu bytes", s->kind->name, (unsigned long long)row->bytes);
    if (warm_up(s))
        return 1;
    if (s->run->share > 0) {
        const int error = perf_share(s->run->share);
        if (error)
            return hx_fail("--share %g: %s", s->run->share, strerror(-error));
    }
    hx_barrier(s->node);
    take_stats(s, &before);
    hx_where("%s, %llu bytes", s->kind->name, (unsigned long long)row->bytes);
    perf_usage_now(interface, &from);
    if (time_it(s, seconds))
        return 1;
    perf_usage_now(interface, &to);
    take_stats(s, &after);
    mine.sent = (double)(after.sent_bytes - before.sent_bytes);
    mine.wire = (double)(after.wire_bytes - before.wire_bytes);
    if (!s->run->nocopy)
        check(s, &mine);
    hx_allgather(s->node, &mine, sizeof(mine), all);
    row->wrong = s->run->nocopy ? NAN : 0;
    for (int r = 0; r < nodes; r++) {
        sent += all[r].sent;
        wire += all[r].wire;
        err += all[r].err;
        energy += all[r].energy;
        row->wrong += all[r].wrong;
    }
    perf_row_measured(row, s->node, seconds, &from, &to, s->run->iterations * s->run->repetitions);
    busbw_of(s, row->algbw, &row->busbw);
    if (sent > 0)
        row->wire_ratio = wire / sent;
    if (energy > 0)
        row->nmse = err / energy;
    return 0;
}

/* Put the own data where an operation in place looks for them. */
static void fill_in_place(struct series *s)
{
    const size_t size = hx_type_size(s->type), nodes = (size_t)s->node->nnodes;

    for (int state = 0; state < 2 && s->whole[state]; state++) {
        char *own = s->whole[state] + (size_t)s->node->rank * s->block * size;
        if (s->kind->func == HX_ALL_GATHER)
            make_block(s, s->node->rank, 0, state, own);
        for (size_t b = 0; s->kind->func != HX_ALL_GATHER && b < (s->kind->func == HX_ALL_REDUCE ? 1 : nodes);
             b++)
            make_block(s, s->node->rank, b, 0, s->whole[state] + b * s->block * size);
    }
}

/* Return whether the series may be in place. An all-reduce's result is the next one's data, so values would
 * grow each time. */
static bool may_be_in_place(const struct series *s)
{
    const double times = (double)s->run->warmup + (double)s->run->iterations * s->run->repetitions + 1;

    return s->kind->func != HX_ALL_REDUCE || (s->type != ncclFloat16 && times * log2(s->node->nnodes) < 100);
}

static int measure_in_place(struct series *s, struct perf_row *row)
{
    const size_t blocks = s->kind->func == HX_ALL_REDUCE ? 1 : (size_t)s->node->nnodes;
    double seconds[PERF_MOST_REPETITIONS];
    struct perf_row again = *row;
    struct perf_usage none = {0};
    struct outcome mine = {0}, all[HX_MAX_NODES];
    int ret = 0;

    if (!may_be_in_place(s))
        return 0;
    for (int state = 0; state < (s->kind->func == HX_ALL_GATHER ? 2 : 1); state++) {
        s->whole[state] = malloc(blocks * s->block * hx_type_size(s->type));
        if (!s->whole[state])
            ret = hx_fail("not enough memory for %llu bytes", (unsigned long long)row->bytes);
    }
    s->in_place = true;
    if (!ret) {
        fill_in_place(s);
        hx_where("%s in place, %llu bytes", s->kind->name, (unsigned long long)row->bytes);
        ret = warm_up(s) || time_it(s, seconds);
    }
    if (!ret && !s->run->nocopy) {
        fill_in_place(s);
        hx_barrier(s->node);
        ret = run_many(s, 1);
        if (!ret)
            check(s, &mine);
    }
    if (!ret) {
        perf_row_measured(&again, s->node, seconds, &none, &none, s->run->iterations * s->run->repetitions);
        hx_allgather(s->node, &mine, sizeof(mine), all);
        row->in_place_us = again.time_us;
        row->in_place_algbw = again.algbw;
        busbw_of(s, again.algbw, &row->in_place_busbw);
        row->in_place_wrong = s->run->nocopy ? NAN : 0;
        for (int r = 0; r < s->node->nnodes; r++)
            row->in_place_wrong += all[r].wrong;
    }
    s->in_place = false;
    free(s->whole[0]);
    free(s->whole[1]);
    s->whole[0] = s->whole[1] = NULL;
    return ret;
}

/* Totals for the end of the table of a run over machines. */
static struct {
    char last[24];
    double wrong, busbw;
    unsigned n;
} table;

static void sum_up(const struct perf_row *row)
{
    perf_tests_row(row, table.last);
    table.wrong += row->wrong > 0 ? row->wrong : 0;
    table.wrong += row->in_place_wrong > 0 ? row->in_place_wrong : 0;
    table.busbw += row->busbw + (row->in_place_us > 0 ? row->in_place_busbw : 0);
    table.n += 1 + (row->in_place_us > 0);
}

/* ---- --compare ---- */

#define MOST_COMPARED 256 /* kinds, types and sizes of operations */

/* Rows that are measured raw and coded in turns. */
static struct compared {
    struct perf_row row; /* coded */
    double seconds[2][PERF_MOST_REPETITIONS];
} * compared;

static void keep_turn(const struct perf_row *row, unsigned number, bool raw, int turn)
{
    if (number >= MOST_COMPARED)
        return;
    compared[number].seconds[raw][turn] = 1e-6 * row->time_us;
    if (!raw)
        compared[number].row = *row;
}

/* Set the medians of all turns. */
static void finish_compared(struct perf_row *row, double seconds[2][PERF_MOST_REPETITIONS], int turns,
                            const struct series *s)
{
    const size_t n = (size_t)turns;

    row->time_us = 1e6 * perf_median(seconds[0], n); /* this also sorts them */
    row->min_us = 1e6 * seconds[0][0];
    row->max_us = 1e6 * seconds[0][n - 1];
    row->raw_us = 1e6 * perf_median(seconds[1], n);
    row->repetitions = turns;
    row->algbw = 1e-3 * (double)row->bytes / row->time_us;
    busbw_of(s, row->algbw, &row->busbw);
}

static void set_raw(bool raw, const char *const before[3])
{
    static const char *const name[] = {"NIBBLE_RS", "NIBBLE_AR", "NIBBLE_AG"};

    for (int i = 0; i < 3; i++) {
        if (raw || before[i])
            setenv(name[i], raw ? "raw" : before[i], 1);
        else
            unsetenv(name[i]);
    }
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
    struct perf_row row = perf_row_make(s->run, s->kind->name, hx_type_name(s->type),
                                        s->block * size * (reduce_all ? 1 : nodes));
    ret = measure(s, &row);
    if (!ret && s->run->compare) {
        if (s->node->rank == 0)
            keep_turn(&row, (unsigned)s->slot - 1, s->run->raw, s->pass);
    } else if (!ret && s->run->place.nodes) {
        ret = measure_in_place(s, &row);
        row.quiet = true;
        if (!ret && s->node->rank == 0)
            sum_up(&row);
    }
    if (!ret && !s->run->compare)
        perf_row_add(s->node, &row);
    free(s->recv);
    free(s->send[0]);
    free(s->send[1]);
    s->recv = s->send[0] = s->send[1] = NULL;
    return ret;
}

/* Connect, and run all series. */
static int run_all(struct series *s)
{
    const struct perf_run *run = s->run;
    const struct hx_comm_cfg cfg = {
        .channels = run->channels, .buff_size = run->buff_size, .chunk = HX_CHUNK_NCCL};
    struct hx_lib *lib;
    ncclResult_t rc;
    int ret = 0;

    lib = run->plugin ? hx_lib_open(run->plugin, 0)
                      : hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    if (!lib)
        return 1;
    rc = hx_comm_open(s->node, lib, &cfg, &s->comm, NULL);
    if (rc != ncclSuccess)
        return hx_fail_by_plugin("the communicator cannot be connected", rc);
    s->slot = 0;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && !ret; k++) {
        for (size_t t = 0; t < sizeof(type_ids) / sizeof(type_ids[0]) && !ret; t++) {
            if (!perf_listed(run->ops, kinds[k].name) ||
                !perf_listed(run->types ? run->types : "bfloat16", hx_type_name(type_ids[t])))
                continue;
            for (size_t bytes = perf_run_next(run, 0); bytes && !ret; bytes = perf_run_next(run, bytes)) {
                s->kind = &kinds[k];
                s->type = type_ids[t];
                s->seed = hx_seed(s->node->seed, k, bytes + t);
                s->slot++;
                ret = series(s, bytes);
            }
        }
    }
    if (ret)
        return ret;
    rc = hx_comm_close(s->comm);
    hx_lib_close(lib);
    return rc == ncclSuccess ? 0 : hx_fail_by_plugin("the communicator does not close", rc);
}

/* Run all series raw and coded in turns, and add a row for each. */
static int run_compared(struct series *s)
{
    const char *const before[] = {getenv("NIBBLE_RS"), getenv("NIBBLE_AR"), getenv("NIBBLE_AG")};
    const struct perf_run *whole = s->run;
    struct perf_run once = *whole;
    char *kept[3];
    int ret = 0;

    compared = calloc(MOST_COMPARED, sizeof(*compared));
    for (int i = 0; i < 3; i++)
        kept[i] = before[i] ? strdup(before[i]) : NULL;
    if (!compared)
        return hx_fail("not enough memory");
    once.repetitions = 1;
    s->run = &once;
    for (int i = 0; i < 2 * whole->repetitions && !ret; i++) {
        once.raw = i % 2 == 0;
        s->pass = i / 2;
        set_raw(once.raw, (const char *const *)kept);
        ret = run_all(s);
    }
    for (unsigned i = 0; i < (unsigned)s->slot && i < MOST_COMPARED && !ret && s->node->rank == 0; i++) {
        struct perf_row *row = &compared[i].row;
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
            s->kind = strcmp(kinds[k].name, row->op) == 0 ? &kinds[k] : s->kind;
        finish_compared(row, compared[i].seconds, whole->repetitions, s);
        row->quiet = whole->place.nodes > 0;
        if (row->quiet)
            sum_up(row);
        perf_row_add(s->node, row);
    }
    for (int i = 0; i < 3; i++)
        free(kept[i]);
    free(compared);
    s->run = whole;
    return ret;
}

static int coll_node(struct hx_node *node, void *arg)
{
    const struct perf_run *run = arg;
    struct series s = {.run = run, .node = node};
    int ret;

    if (run->place.nodes)
        perf_tests_head(node, run);
    ret = run->compare ? run_compared(&s) : run_all(&s);
    if (ret)
        return ret;
    if (run->place.nodes && node->rank == 0)
        perf_tests_tail(table.wrong, table.busbw, table.n);
    return table.wrong > 0 ? hx_fail("%.0f values are wrong", table.wrong) : 0;
}

/* Copy the options that every node gets: all except the options that say where nodes are. Return their
 * number. */
static int others(int argc, char **argv, char **words, int room)
{
    static const char *const ours[] = {"--hosts", "--rsh", "--root", "--port", "--key"};
    int n = 0;

    for (int i = 1; i < argc && n < room; i++) {
        bool skip = false;
        for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]); k++) {
            const size_t len = strlen(ours[k]);
            if (strncmp(argv[i], ours[k], len) != 0 || (argv[i][len] && argv[i][len] != '='))
                continue;
            skip = true;
            i += argv[i][len] != '=';
            break;
        }
        if (!skip)
            words[n++] = argv[i];
    }
    return n;
}

int perf_coll(int argc, char **argv)
{
    struct perf_run run;
    char *words[128] = {(char *)"coll"};
    struct hx_job job = {.name = "nibble-perf coll", .deadline_s = 24 * 3600.0, .fn = coll_node, .seed = 1};

    if (!perf_run_parse(argc, argv, "coll", &run))
        return run.tied ? hosts_untie(2) : 2;
    if (run.help)
        return 0;
    if (!perf_words("--ops", run.ops, op_name) || !perf_words("--types", run.types, perf_type_name))
        return run.tied ? hosts_untie(2) : 2;
    if (run.hosts.list) {
        run.hosts.words = words;
        run.hosts.together = true;
        run.hosts.nwords = others(argc, argv, words + 1, 127) + 1;
        return hosts_run(&run.hosts, &run.place, 12 * 3600.0);
    }
    job.nnodes = run.nodes;
    job.arg = &run;
    job.netns_prefix = run.netns;
    job.env = run.env;
    job.log = run.log;
    job.quiet = true;
    if (run.threads)
        return perf_threads(&job, &run);
    const int status = perf_rows_job(&job, &run);
    return run.tied ? hosts_untie(status) : status;
}
