/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's nodes equal the plugin's nodes. N processes run the plugin over TCP as NCCL drives it
 * (tests/harness), and the library runs the same operations with the same values. After each operation
 * results, residuals and bytes on the wire must be the same on every node, to the bit. Residuals are h - Q(h)
 * of all encoded values, so that equal residuals show equal coded bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "base/sync.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "coll/comm/stats.h"
#include "coll/decide/decide.h"
#include "coll/report/report.h"
#include "harness/lib/suite.h"
#include "nibble/emulate.h"
#include "policy/records/records.h"
#include "state/feedback.h"

#define MOST_SETTINGS 12
#define STEPS 5
#define BUFFERS 2 /* buffers that each function reduces in each step */

struct job {
    const char *name;
    int nnodes, channels;
    size_t buffer, chunk; /* 0: as NCCL sets it */
    enum nb_dtype type;
    size_t count; /* values of a reduce-scatter's and all-gather's block. An all-reduce has three times as
                  many and 77 */
    const char *settings[MOST_SETTINGS];
    bool two_hop;   /* reduce-scatters must take this schedule */
    bool two_level; /* all operations must take this schedule */
    int raw_steps;  /* first steps in which all operations are raw */
    bool nan;       /* a gradient of the third step is not finite */
};

/* A node's state after an operation. */
struct seen {
    uint64_t result, residual, wire_bytes;
};

#define OPERATIONS (STEPS * (2 * BUFFERS + 1))

struct what {
    enum nb_func func;
    int buffer, step;
};

static struct what operation(int i)
{
    const int k = i % (2 * BUFFERS + 1);

    return (struct what){.func = k < BUFFERS       ? NB_FUNC_ALL_REDUCE
                                 : k < 2 * BUFFERS ? NB_FUNC_REDUCE_SCATTER
                                                   : NB_FUNC_ALL_GATHER,
                         .buffer = k % BUFFERS,
                         .step = i / (2 * BUFFERS + 1)};
}

static ncclDataType_t nccl_type(enum nb_dtype type)
{
    return type == NB_F32 ? ncclFloat32 : type == NB_BF16 ? ncclBfloat16 : ncclFloat16;
}

static size_t count_of(const struct job *job, enum nb_func func)
{
    return func == NB_FUNC_ALL_REDUCE ? 3 * job->count + 77 : job->count;
}

/* Return the number of a node's own values, and the room for the result. */
static size_t sent(const struct job *job, enum nb_func func)
{
    return count_of(job, func) * (func == NB_FUNC_REDUCE_SCATTER ? (size_t)job->nnodes : 1);
}

static size_t received(const struct job *job, enum nb_func func)
{
    return count_of(job, func) * (func == NB_FUNC_ALL_GATHER ? (size_t)job->nnodes : 1);
}

/* Write node `rank`'s values for an operation. Weights move by a thousandth or so from step to step. */
static void fill(const struct job *job, const struct what *op, int rank, void *buf)
{
    const ncclDataType_t type = nccl_type(job->type);
    const size_t n = sent(job, op->func);
    uint64_t seed = (uint64_t)op->func * 1000 + (uint64_t)op->buffer * 100 + (uint64_t)rank, moves = seed + 1;

    if (op->func != NB_FUNC_ALL_GATHER)
        seed += (uint64_t)(op->step + 1) * 10000;
    hx_fill(type, buf, n, seed, HX_FILL_NORMAL);
    for (size_t i = 0; op->func == NB_FUNC_ALL_GATHER && i < n; i++) {
        const double by = 1e-3 * op->step * ((double)(hx_rand(&moves) >> 40) / (1 << 23) - 1);

        hx_store(type, buf, i, hx_load(type, buf, i) * (1 + by));
    }
    if (job->nan && op->step == 2 && op->buffer == 1 && op->func != NB_FUNC_ALL_GATHER && rank == 0)
        memset((char *)buf + n / 2 * hx_type_size(type), 0xff, hx_type_size(type));
}

/* ---- the plugin ---------------------------------------------------------------------------------------- */

static uint64_t residual_of(struct nb_coll_comm *comm, const struct what *op, int nnodes)
{
    uint64_t hash = 1;
    struct nb_ef ef;
    uint64_t n;

    nb_turn_lock_take(&comm->progress_lock);
    for (int b = 0; b < (op->func == NB_FUNC_ALL_REDUCE ? 1 : nnodes); b++) {
        if (nb_feedback_peek(comm->decisions->feedback, op->func, op->buffer, (uint32_t)b, &ef, &n))
            continue;
        hash = nb_hash64(ef.err, nb_ef_err_bytes(n), hash);
        hash = nb_hash64(ef.scale, nb_ef_scale_bytes(n), hash);
    }
    nb_turn_lock_give(&comm->progress_lock);
    return hash;
}

static int push(struct nb_coll_comm *comm, const struct job *job, const struct what *op)
{
    const bool gather = op->func == NB_FUNC_ALL_GATHER;
    const ncclDataType_t type = nccl_type(job->type);
    struct nb_record r = {.func = op->func,
                          .type = gather ? ncclInt8 : type,
                          .api_type = type,
                          .flags = NB_RECORD_API,
                          .bytes = count_of(job, op->func) * hx_type_size(type),
                          .slot = gather ? -1 : op->buffer,
                          .send = (void *)(uintptr_t)(65536 * (10 * op->func + op->buffer + 1)),
                          .recv = (void *)(uintptr_t)(65536 * (10 * op->func + op->buffer + 1)),
                          .heads = 1 << 1};

    return nb_record_push(comm, &r);
}

static int plugin_node(struct hx_node *node, void *arg)
{
    static const enum hx_func funcs[] = {HX_REDUCE_SCATTER, HX_ALL_GATHER, HX_ALL_REDUCE};
    const struct job *job = arg;
    struct hx_comm_cfg cfg = {.channels = job->channels,
                              .buff_size = job->buffer,
                              .chunk = job->chunk ? job->chunk : HX_CHUNK_NCCL,
                              .poison = true};
    const size_t value = nb_dtype_size(job->type);
    struct seen *seen = hx_scratch(node, node->rank);
    struct nb_coll_stats stats;
    struct nb_coll_comm *plugin;
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    plugin = hx_comm_plugin(comm);
    for (int i = 0; i < OPERATIONS; i++) {
        const struct what what = operation(i);
        void *in = malloc(value * sent(job, what.func)), *out = malloc(value * received(job, what.func));
        struct hx_op op = {.func = funcs[what.func],
                           .type = nccl_type(job->type),
                           .op = ncclSum,
                           .count = count_of(job, what.func),
                           .send = in,
                           .recv = out};

        HX_CHECK(in && out, "no memory");
        fill(job, &what, node->rank, in);
        HX_CHECK(push(plugin, job, &what) == 0, "a record was refused");
        HX_CHECK(hx_run(comm, &op) == ncclSuccess, "operation %d failed", i);
        hx_settle(node); /* waits for the confirmations */
        nb_coll_get_stats(plugin, &stats);
        seen[i].result = nb_hash64(out, value * received(job, what.func), 0);
        seen[i].residual = residual_of(plugin, &what, node->nnodes);
        seen[i].wire_bytes = stats.func[what.func].wire_bytes;
        free(in);
        free(out);
    }
    return sx_close(lib, comm, false);
}

/* ---- the library --------------------------------------------------------------------------------------- */

static uint64_t emulated_residual(struct nb_emulation *e, const struct job *job, const struct what *op,
                                  int rank)
{
    const size_t n = count_of(job, op->func);
    int8_t *err = calloc(1, nb_ef_err_bytes(n));
    uint8_t *scale = calloc(1, nb_ef_scale_bytes(n));
    uint64_t hash = 1;

    for (unsigned b = 0; b < (op->func == NB_FUNC_ALL_REDUCE ? 1 : (unsigned)job->nnodes); b++) {
        if (nb_emulate_residual(e, rank, (enum nb_emulate_func)op->func, op->buffer, b, n, err, scale, NULL))
            continue;
        hash = nb_hash64(err, nb_ef_err_bytes(n), hash);
        hash = nb_hash64(scale, nb_ef_scale_bytes(n), hash);
    }
    free(err);
    free(scale);
    return hash;
}

static int emulated_operation(struct nb_emulation *e, const struct job *job, const struct what *op,
                              struct seen *seen)
{
    const size_t value = nb_dtype_size(job->type), n = count_of(job, op->func);
    const void *in[HX_MAX_NODES];
    void *out[HX_MAX_NODES];
    int ret;

    for (int r = 0; r < job->nnodes; r++) {
        void *x = malloc(value * sent(job, op->func));

        fill(job, op, r, x);
        in[r] = x;
        out[r] = malloc(value * received(job, op->func));
    }
    if (op->func == NB_FUNC_ALL_REDUCE)
        ret = nb_emulate_all_reduce(e, job->type, n, in, out, op->buffer);
    else if (op->func == NB_FUNC_REDUCE_SCATTER)
        ret = nb_emulate_reduce_scatter(e, job->type, n, in, out, op->buffer);
    else
        ret = nb_emulate_all_gather(e, job->type, n, in, out);
    for (int r = 0; r < job->nnodes; r++) {
        struct nb_emulate_figures f = {.size = sizeof(f)};

        nb_emulate_figures(e, r, (enum nb_emulate_func)op->func, &f);
        seen[r] = (struct seen){.result = nb_hash64(out[r], value * received(job, op->func), 0),
                                .residual = emulated_residual(e, job, op, r),
                                .wire_bytes = f.wire_bytes};
        free((void *)(uintptr_t)in[r]);
        free(out[r]);
    }
    return ret;
}

/* ---- both ---------------------------------------------------------------------------------------------- */

/* Check that the job tested its subject: coded, with residuals, by the schedule that it names. */
static int check_kind(struct nb_emulation *e, const struct job *job)
{
    const unsigned long nodes = (unsigned long)job->nnodes,
                        coded = nodes * BUFFERS * (unsigned)(STEPS - job->raw_steps);
    struct nb_emulate_figures rs = {.size = sizeof(rs)}, ar = {.size = sizeof(ar)};

    nb_emulate_figures(e, NB_EMULATE_ALL_NODES, NB_EMULATE_REDUCE_SCATTER, &rs);
    nb_emulate_figures(e, NB_EMULATE_ALL_NODES, NB_EMULATE_ALL_REDUCE, &ar);
    HX_CHECK(rs.coded == coded && ar.coded == coded,
             "%s: %lu reduce-scatters and %lu all-reduces were coded, not %lu", job->name,
             (unsigned long)rs.coded, (unsigned long)ar.coded, coded);
    HX_CHECK(rs.with_feedback == 2 * coded, "%s: %lu of them with a residual", job->name,
             (unsigned long)rs.with_feedback);
    HX_CHECK(rs.two_hop == (job->two_hop ? nodes * BUFFERS * STEPS : 0),
             "%s: %lu reduce-scatters in two hops", job->name, (unsigned long)rs.two_hop);
    HX_CHECK(rs.two_level == (job->two_level ? nodes * BUFFERS * STEPS : 0), "%s: %lu on the grid", job->name,
             (unsigned long)rs.two_level);
    HX_CHECK(!job->nan || rs.feedback_resets > 0, "%s: no residual was dropped", job->name);
    return 0;
}

static int compare(struct job *job)
{
    struct hx_job run = {
        .name = job->name, .nnodes = job->nnodes, .fn = plugin_node, .arg = job, .env = job->settings};
    const struct nb_emulate_config config = {.size = sizeof(config),
                                             .nodes = job->nnodes,
                                             .channels = job->channels,
                                             .buffer_bytes = job->buffer,
                                             .chunk_bytes = job->chunk,
                                             .settings = job->settings};
    struct nb_emulation *e = NULL;
    struct hx_report *report;
    int ret = hx_job_run(&run, &report);

    if (ret)
        return ret;
    HX_CHECK(nb_emulate_open(&config, &e) == 0, "%s: nb_emulate_open fails", job->name);
    for (int i = 0; i < OPERATIONS; i++) {
        const struct what op = operation(i);
        struct seen lib[HX_MAX_NODES];

        HX_CHECK(emulated_operation(e, job, &op, lib) == 0, "%s: operation %d fails", job->name, i);
        for (int r = 0; r < job->nnodes; r++) {
            const struct seen *plugin = (const struct seen *)(const void *)report->node[r].scratch + i;

            HX_CHECK(plugin->result == lib[r].result, "%s: node %d, step %d, %s %d: other results", job->name,
                     r, op.step, nb_func_name(op.func), op.buffer);
            HX_CHECK(plugin->residual == lib[r].residual, "%s: node %d, step %d, %s %d: other residuals",
                     job->name, r, op.step, nb_func_name(op.func), op.buffer);
            HX_CHECK(plugin->wire_bytes == lib[r].wire_bytes,
                     "%s: node %d, step %d, %s %d: %lu bytes sent, not %lu", job->name, r, op.step,
                     nb_func_name(op.func), op.buffer, (unsigned long)lib[r].wire_bytes,
                     (unsigned long)plugin->wire_bytes);
        }
    }
    ret = check_kind(e, job);
    nb_emulate_close(e);
    hx_report_free(report);
    return ret;
}

#define CODED "NIBBLE_RS=int4", "NIBBLE_AR=int4", "NIBBLE_MIN_BYTES=0"

static int direct_2(void)
{
    struct job job = {.name = "2 nodes, FP32, direct",
                      .nnodes = 2,
                      .channels = 2,
                      .buffer = 256 << 10,
                      .type = NB_F32,
                      .count = 20011,
                      .nan = true,
                      .settings = {CODED, "NIBBLE_WARMUP_STEPS=0", NULL}};

    return compare(&job);
}

static int direct_3(void)
{
    struct job job = {.name = "3 nodes, BF16, direct, moving average of the error",
                      .nnodes = 3,
                      .channels = 12,
                      .buffer = 64 << 10,
                      .chunk = 1536,
                      .type = NB_BF16,
                      .count = 15001,
                      .settings = {CODED, "NIBBLE_SCHEDULE=direct", "NIBBLE_EF=ema", "NIBBLE_WARMUP_STEPS=0",
                                   "NIBBLE_AG=delta4", NULL}};

    return compare(&job);
}

/* Both count steps alike: reduce-scatters' by the gathered weights, all-reduces' by their buffers. */
static int warm_up_3(void)
{
    struct job job = {.name = "3 nodes, BF16, warm-up",
                      .nnodes = 3,
                      .channels = 2,
                      .buffer = 256 << 10,
                      .type = NB_BF16,
                      .count = 20000,
                      .raw_steps = 3, /* one more step shows that a step is over */
                      .settings = {CODED, "NIBBLE_WARMUP_STEPS=2", NULL}};

    return compare(&job);
}

static int two_hop_4(void)
{
    struct job job = {.name = "4 nodes, FP16, two hops",
                      .nnodes = 4,
                      .channels = 4,
                      .buffer = 512 << 10,
                      .type = NB_F16,
                      .count = 16384,
                      .two_hop = true,
                      .settings = {CODED, "NIBBLE_SCHEDULE=two-hop", "NIBBLE_WARMUP_STEPS=0", NULL}};

    return compare(&job);
}

static int two_hop_5(void)
{
    struct job job = {.name = "5 nodes, BF16, two hops with 8 bits",
                      .nnodes = 5,
                      .channels = 3,
                      .buffer = 256 << 10,
                      .type = NB_BF16,
                      .count = 12345,
                      .two_hop = true,
                      .nan = true,
                      .settings = {CODED, "NIBBLE_SCHEDULE=two-hop", "NIBBLE_SECOND_HOP=int8",
                                   "NIBBLE_UNIT_BYTES=16384", "NIBBLE_WARMUP_STEPS=0",
                                   "NIBBLE_HOST_THREADS=3", NULL}};

    return compare(&job);
}

static int grid_6(void)
{
    struct job job = {.name = "6 nodes, FP32, rows and columns",
                      .nnodes = 6,
                      .channels = 2,
                      .buffer = 256 << 10,
                      .type = NB_F32,
                      .count = 8191,
                      .two_level = true,
                      .settings = {CODED, "NIBBLE_SCHEDULE=two-level", "NIBBLE_WARMUP_STEPS=0", NULL}};

    return compare(&job);
}

static int auto_8(void)
{
    struct job job = {.name = "8 nodes, FP32, as it comes",
                      .nnodes = 8,
                      .channels = 2,
                      .buffer = 256 << 10,
                      .type = NB_F32,
                      .count = 8192,
                      .settings = {CODED, "NIBBLE_WARMUP_STEPS=0", NULL}};

    return compare(&job);
}

/* The library refuses impossible calls and keeps its state. */
static int refused(void)
{
    static const char *const bad[] = {"NIBBLE_RS=int3", NULL};
    struct nb_emulate_config config = {
        .size = sizeof(config), .nodes = 2, .channels = 1, .buffer_bytes = 65536};
    struct nb_emulate_figures f = {.size = sizeof(f)};
    float a[2][100] = {{1}, {2}}, b[2][100], residual[200];
    const void *in[] = {a[0], a[1]};
    void *out[] = {b[0], b[1]};
    struct nb_emulation *e = NULL;

    config.nodes = 1;
    HX_CHECK(nb_emulate_open(&config, &e) == -EINVAL, "one node");
    config.nodes = NB_EMULATE_NODES + 1;
    HX_CHECK(nb_emulate_open(&config, &e) == -EINVAL, "too many nodes");
    config.nodes = 2;
    config.size--;
    HX_CHECK(nb_emulate_open(&config, &e) == -EINVAL, "a smaller struct");
    config.size++;
    config.chunk_bytes = 65536;
    HX_CHECK(nb_emulate_open(&config, &e) == -EINVAL, "a chunk larger than its slot");
    config.chunk_bytes = 0;
    config.settings = bad;
    HX_CHECK(nb_emulate_open(&config, &e) == -EINVAL && !e, "a bad setting");
    HX_CHECK(strstr(nb_emulate_reason(), "NIBBLE_RS") && strstr(nb_emulate_reason(), "int3"),
             "the reason is \"%s\"", nb_emulate_reason());
    config.settings = NULL;
    HX_CHECK(nb_emulate_open(&config, &e) == 0, "nb_emulate_open");
    HX_CHECK(!*nb_emulate_reason(), "a reason after success: %s", nb_emulate_reason());
    HX_CHECK(nb_emulate_all_reduce(e, NB_DTYPE_COUNT, 100, in, out, 0) == -EINVAL, "no such type");
    HX_CHECK(nb_emulate_all_reduce(e, NB_F32, 0, in, out, 0) == -EINVAL, "no values");
    HX_CHECK(nb_emulate_all_reduce(e, NB_F32, 100, in, out, -2) == -EINVAL, "no such buffer");
    out[1] = NULL;
    HX_CHECK(nb_emulate_all_reduce(e, NB_F32, 100, in, out, 0) == -EINVAL, "no room for the result");
    out[1] = b[1];
    HX_CHECK(nb_emulate_residual(e, 0, NB_EMULATE_ALL_REDUCE, 0, 0, 200, NULL, NULL, residual) == -ENOENT,
             "no residual");
    HX_CHECK(nb_emulate_figures(e, 2, NB_EMULATE_ALL_REDUCE, &f) == -EINVAL, "no such node");
    HX_CHECK(nb_emulate_all_reduce(e, NB_F32, 100, in, out, 0) == 0 && b[0][0] == 3 && b[1][0] == 3,
             "the sum");
    HX_CHECK(nb_emulate_figures(e, 1, NB_EMULATE_ALL_REDUCE, &f) == 0 && f.operations == 1 && f.coded == 0,
             "figures");
    nb_emulate_close(e);
    nb_emulate_close(NULL);
    return 0;
}

HX_MAIN({"refused", refused, 0}, {"warm-up-3", warm_up_3, 0}, {"direct-2", direct_2, 0},
        {"direct-3", direct_3, HX_CASE_SLOW}, {"two-hop-4", two_hop_4, 0},
        {"two-hop-5", two_hop_5, HX_CASE_SLOW}, {"grid-6", grid_6, HX_CASE_SLOW},
        {"auto-8", auto_8, HX_CASE_FULL})
