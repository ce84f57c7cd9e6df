/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine over the CUDA device: a job of several nodes, each with its own GPU that a driver made of
 * threads plays (tests/gpu/fake_driver.h). The job has gradients with carried errors, weights sent as deltas
 * and raw sums. It runs in every way in which the device works: a kernel for each batch, or a kernel beside
 * each of NCCL's. NCCL's buffers are pinned or in GPU memory. The kernels' own source runs on emulated
 * threads. In each way the results must have the bits that the host's codecs give. The program links the
 * plugin's parts: the test supplies records of operations and launches.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/process.h"
#include "abi/tables.h"
#include "base/context.h"
#include "codec/fp.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "coll/comm/stats.h"
#include "coll/report/report.h"
#include "device/cuda/cuda.h"
#include "device/cuda/driver.h"
#include "lib/gpu_net.h"
#include "lib/suite.h"
#include "policy/records/records.h"
#include "state/budget.h"
#include "tests/gpu/emulate.h"
#include "tests/gpu/fake_driver.h"

#define NODES 3
#define COMM_ID 0x67707500ull
#define MAX_OPS 40
#define BUFF_SIZE (64u << 10)

struct way {
    const char *name;
    struct fake_settings fake;
    int host;     /* without a GPU: the run with which the other runs are compared */
    int resident; /* NCCL reports its launches */
    int trains;   /* recognises gradients, instead of running all kinds of operations */
    int brief;    /* fewer operations, for slow runs */
    int split;    /* NCCL's send buffer is pinned, its receive buffer in GPU memory */
    int direct;   /* NCCL's buffer is in GPU memory, and registered as GPU memory */
    int hops;     /* messages are forwarded */
    int guests;   /* other communicators come and go beside the first */
    int escapes;  /* codec kernels begin late, and the adapters copy */
    /* Adapters reach GPU memory, where payloads lie then. The kernels and the adapters alone can touch it
     * (except with emulated kernels, whose addresses are the CPU's). */
    enum { NO_ADAPTER, BY_ADDRESS, BY_DMABUF, FALLS_BACK, ONE_REFUSES } adapter;
};

/* State of one node's run. */
struct stage {
    struct hx_node *node;
    struct hx_lib *lib;
    struct hx_comm *comm;
    const struct way *way;
    struct hx_lib *adapters; /* holds the transport with adapters in front of it */
    struct hx_ctx ctx;       /* its */
    nb_cu_stream stream;     /* NCCL's. NULL: launches go unreported */
    uint64_t *hash;          /* of results, in the node's scratch memory */
    int n;
};

static _Thread_local int pretended = -1;

static int pretended_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return pretended;
}

/* Let the calling thread work for this GPU. */
static void pretend_gpu(int gpu)
{
    pretended = gpu;
    nb_process_context()->current_gpu = pretended_gpu;
}

static int gpu_of(const struct hx_node *node)
{
    return node->rank % 4; /* the fake driver has four */
}

/* ---- operations ---- */

struct kernel {
    atomic_int over;
};

/* Stand in for NCCL's kernel, which stays on the GPU as long as its operation. */
static void nccl_kernel(void *arg)
{
    struct kernel *k = arg;

    while (!atomic_load(&k->over))
        usleep(50);
}

static int operate(struct stage *s, struct hx_op *op, const char *what)
{
    struct kernel k = {0};
    ncclResult_t ret;

    hx_where("%s", what);
    if (s->stream) {
        const bool sums = op->func == HX_ALL_REDUCE;
        uint64_t launch = nb_launch_begin(nb_process_context(), gpu_of(s->node), COMM_ID, s->node->nnodes,
                                          s->stream, sums, true);

        HX_CHECK(launch, "%s: nothing was launched beside NCCL's kernel", what);
        fake_run(s->stream, nccl_kernel, &k);
        nb_launch_end(nb_process_context(), launch);
        if (!sums)
            nb_launch_handed(nb_process_context(), gpu_of(s->node), COMM_ID);
        nb_launch_posted(nb_process_context(), launch, !sums);
    }
    ret = hx_run(s->comm, op);
    atomic_store(&k.over, 1);
    HX_CHECK(ret == ncclSuccess, "%s: result %d", what, (int)ret);
    if (s->stream)
        fake_wait(s->stream); /* nibble's kernel has ended, too, because the stream joins it */
    return 0;
}

static int keep(struct stage *s, const void *result, size_t bytes)
{
    HX_CHECK(s->n < MAX_OPS, "too many operations");
    s->hash[s->n++] = hx_hash(result, bytes);
    return 0;
}

/* Tell the plugin of a chunk's operation and buffer identity. Without them an all-reduce would be raw. */
static int push(struct stage *s, const struct sx_spec *spec, int64_t slot)
{
    struct nb_record r = {.func = NB_FUNC_ALL_REDUCE,
                          .type = spec->type,
                          .flags = NB_RECORD_API,
                          .bytes = spec->count * hx_type_size(spec->type),
                          .slot = slot,
                          .chunk = BUFF_SIZE / HX_STEPS,
                          .heads = 1 << 1,
                          .head = 0};

    HX_CHECK(nb_record_push(hx_comm_plugin(s->comm), &r) == 0, "a record was refused");
    return 0;
}

/* Send the same contribution several times. With carried errors each round gives other bits. */
static int gradients(struct stage *s, enum hx_func func, ncclDataType_t type, size_t count)
{
    struct sx_spec spec = {
        .func = func, .type = type, .count = count, .fill = HX_FILL_NORMAL, .seed = 5, .max_nmse = 0.06};
    struct sx_run run;

    sx_prepare(s->node, &spec, &run);
    for (int round = 0; round < (s->way->brief ? 2 : 3); round++) {
        if (func == HX_ALL_REDUCE && push(s, &spec, 3 + (int64_t)type))
            return 1;
        if (operate(s, &run.op, sx_describe(&spec)) || sx_check(s->node, &run) ||
            keep(s, run.recv, run.recv_values * hx_type_size(type)))
            return 1;
        HX_CHECK(round == 0 || s->hash[s->n - 1] != s->hash[s->n - 2], "%s: no error was carried on",
                 sx_describe(&spec));
    }
    sx_free(&run);
    return 0;
}

/* Run sums of integers, products and extremes, which are always raw. */
static int plain(struct stage *s, enum hx_func func, ncclDataType_t type, ncclRedOp_t op)
{
    struct sx_spec spec = {.func = func,
                           .type = type,
                           .op = op,
                           .count = 3001,
                           .seed = 6,
                           .fill = op == ncclProd ? HX_FILL_POW2 : HX_FILL_EXACT};
    struct sx_run run;

    sx_prepare(s->node, &spec, &run);
    if (operate(s, &run.op, sx_describe(&spec)) || sx_check(s->node, &run) ||
        keep(s, run.recv, run.recv_values * hx_type_size(type)))
        return 1;
    sx_free(&run);
    return 0;
}

/* ---- weights ---- */

#define MOST_GATHERS 400

static void step(uint32_t *w, size_t n, uint64_t seed)
{
    uint64_t rng = hx_seed(seed, 3, 4);

    for (size_t i = 0; i < n; i++)
        w[i] += (uint32_t)hx_rand_below(&rng, 60);
}

/* Gather until all nodes have seen deltas and headers. Results must be exact. Timing decides whether a gather
 * finds a reference that all nodes have confirmed. */
static int weights(struct stage *s)
{
    const size_t n = s->way->brief ? 1500 : 12000, block = n * 4, all = block * (size_t)s->node->nnodes;
    uint32_t *w = malloc(all);
    char *result = malloc(all), what[64];
    int seen = 0;

    for (int r = 0; r < s->node->nnodes; r++)
        hx_fill(ncclFloat32, w + (size_t)r * n, n, hx_seed(9, (uint64_t)r, 1), HX_FILL_NORMAL);
    for (int i = 0; !seen; i++) {
        struct hx_op op = {.func = HX_ALL_GATHER,
                           .type = ncclInt8,
                           .count = block,
                           .recv = result,
                           .send = w + (size_t)s->node->rank * n};
        const struct nb_func_stats *f;
        struct nb_coll_stats stats;
        int mine, everyone[HX_MAX_NODES];

        HX_CHECK(i < MOST_GATHERS, "weights were never sent as differences, or never as headers");
        snprintf(what, sizeof what, "gather %d", i);
        memset(result, 0xee, all);
        if (operate(s, &op, what))
            return 1;
        HX_CHECK(memcmp(result, w, all) == 0, "%s: not the bits that were sent", what);
        nb_coll_get_stats(hx_comm_plugin(s->comm), &stats);
        f = &stats.func[NB_FUNC_ALL_GATHER];
        mine = f->unchanged_units > 0 && f->units - f->raw_units > f->unchanged_units;
        hx_allgather(s->node, &mine, sizeof mine, everyone);
        seen = 1;
        for (int r = 0; r < s->node->nnodes; r++)
            seen = seen && everyone[r];
        if (i % 2 == 0)
            step(w, n * (size_t)s->node->nnodes, (uint64_t)i);
        hx_sleep(1e-3);
    }
    free(w);
    free(result);
    return 0;
}

/* ---- communicators that come and go ---- */

static struct hx_comm_cfg config(const struct way *way);

/* Abort a guest in the middle of an operation, at another moment on each node. */
static int abort_guest(struct stage *s, int number)
{
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = 500003, .fill = HX_FILL_NORMAL};
    uint64_t rng = hx_seed(s->node->seed, (uint64_t)s->node->rank, (uint64_t)number);
    struct sx_run run;

    sx_prepare(s->node, &spec, &run);
    hx_barrier(s->node);
    HX_CHECK(hx_post(s->comm, &run.op) == ncclSuccess, "post");
    hx_sleep(1e-4 * (double)hx_rand_below(&rng, 100));
    hx_comm_abort(s->comm);
    sx_free(&run);
    return 0;
}

/* Each guest gives back all memory and registrations, also where it ended with messages under way. */
static int guests(struct stage *s)
{
    struct hx_comm *const host = s->comm;
    struct hx_comm_cfg cfg = config(s->way);
    const int own = gpu_net_registered();
    size_t memory = 0;
    const char *at;

    for (int i = 0; i < 5; i++) {
        cfg.comm_id = COMM_ID + 1 + (uint64_t)i;
        HX_CHECK(hx_comm_open(s->node, s->lib, &cfg, &s->comm, &at) == ncclSuccess, "guest %d: %s", i, at);
        HX_CHECK(gpu_net_registered() == 2 * own, "guest %d: %d registrations, the host has %d", i,
                 gpu_net_registered(), own);
        memory = i ? memory : fake_created();
        HX_CHECK(fake_created() == memory, "guest %d: the GPU's memory grew from %zu to %zu", i, memory,
                 fake_created());
        if (i % 2) {
            if (abort_guest(s, i))
                return 1;
        } else {
            if (gradients(s, HX_REDUCE_SCATTER, ncclFloat32, 5003))
                return 1;
            HX_CHECK(hx_comm_close(s->comm) == ncclSuccess, "closing guest %d", i);
        }
        HX_CHECK(gpu_net_registered() == own, "guest %d has left registrations", i);
        hx_barrier(s->node);
    }
    s->comm = host;
    return gradients(s, HX_REDUCE_SCATTER, ncclFloat32, 5003);
}

/* ---- the job ---- */

static int all_of_it(struct stage *s)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};

    if (s->way->guests)
        return gradients(s, HX_REDUCE_SCATTER, ncclFloat32, 5003) || guests(s);
    if (s->way->brief)
        return gradients(s, HX_REDUCE_SCATTER, ncclFloat32, 1203) ||
               gradients(s, HX_ALL_REDUCE, ncclBfloat16, 1501) ||
               plain(s, HX_REDUCE_SCATTER, ncclInt32, ncclSum) || weights(s);
    for (int t = 0; t < 3; t++)
        if (gradients(s, HX_REDUCE_SCATTER, types[t], 5003) || gradients(s, HX_ALL_REDUCE, types[t], 9001))
            return 1;
    if (plain(s, HX_REDUCE_SCATTER, ncclInt32, ncclSum) || plain(s, HX_ALL_REDUCE, ncclFloat64, ncclProd) ||
        plain(s, HX_ALL_REDUCE, ncclBfloat16, ncclMax) || plain(s, HX_REDUCE_SCATTER, ncclUint8, ncclMin))
        return 1;
    return weights(s);
}

static int adapters(struct stage *s)
{
    const struct gpu_net how = {.dmabuf = s->way->adapter == BY_DMABUF,
                                .falls_back = s->way->adapter == FALLS_BACK,
                                .refuses = s->way->adapter == ONE_REFUSES && s->node->rank == 1,
                                .copies = s->way->escapes};

    s->adapters = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    HX_CHECK(hx_init(s->adapters, COMM_ID, &s->ctx) == ncclSuccess && s->ctx.coll_ok, "init");
    gpu_net_wrap(nb_process_context(), &how);
    nb_device_pointers(nb_process_context(), 1);
    return 0;
}

/* Check that the staging budget counts the whole of every message buffer: its payload and its header. */
static int check_budget(struct hx_comm *at, bool on_gpu)
{
    const struct nb_coll_comm *comm = hx_comm_plugin(at);
    const size_t buffers = (size_t)(4 * comm->nneighbors + 2) * comm->neighbors[0]->rx[0].buffers;
    const size_t each = on_gpu ? 128 + (comm->buffer_bytes + 255) / 256 * 256 : comm->buffer_bytes;
    const size_t limit = (size_t)comm->ctx->params->staging_max_mb << 20;

    HX_CHECK(comm->staging_bytes == buffers * each, "staging of %zu bytes, not of %zu x %zu",
             comm->staging_bytes, buffers, each);
    HX_CHECK(nb_budget_left(comm->ctx->budgets, NB_BUDGET_STAGING) == limit - buffers * each,
             "another budget was taken");
    return 0;
}

/* Start the driver and open a communicator on it. */
static int stage_open(struct stage *s, const struct hx_comm_cfg *cfg)
{
    const char *at;
    ncclResult_t ret;

    fake = s->way->fake;
    nb_cuda_override(&fake_driver);
    pretend_gpu(s->way->host ? -1 : gpu_of(s->node));
    if (s->way->resident) {
        nb_launch_attached(nb_process_context(), gpu_of(s->node), 1);
        s->stream = fake_stream();
    }
    s->lib = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    if (s->way->adapter && adapters(s))
        return 1;
    ret = hx_comm_open(s->node, s->lib, cfg, &s->comm, &at);
    HX_CHECK(ret == ncclSuccess, "bring-up failed in %s with %d", at, (int)ret);
    HX_CHECK(s->way->host || hx_log_count("I ", "device cuda") == 1, "codecs do not run on the GPU");
    if (s->way->adapter == ONE_REFUSES && s->node->rank == 1)
        HX_CHECK(hx_log_count("I ", "payloads stay in host memory") == 1, "no line says why");
    else
        HX_CHECK(hx_log_count("I ", "payloads in GPU memory") == (s->way->adapter != NO_ADAPTER),
                 "payloads lie elsewhere");
    return check_budget(s->comm, s->way->adapter != NO_ADAPTER &&
                                     (s->way->adapter != ONE_REFUSES || s->node->rank != 1));
}

/* Check that the summary says where the codecs ran, and that a GPU carried out work. */
static int summary_names_device(bool host)
{
    char line[512], device[16] = "";
    unsigned long long bytes = 0;
    const char *at;

    hx_log_first("time busy_s=", line, sizeof line);
    at = strstr(line, " device=");
    HX_CHECK(at && sscanf(at, " device=%15s device_bytes=%llu", device, &bytes) == 2, "the summary is \"%s\"",
             line);
    HX_CHECK(strcmp(device, host ? "host" : "cuda") == 0 && host == (bytes == 0), "the summary is \"%s\"",
             line);
    return 0;
}

/* Check that the fake driver holds no resources, and that a kernel ran. */
static int stage_end(struct stage *s)
{
    if (s->stream)
        fake_stream_free(s->stream);
    if (s->way->adapter) {
        const bool refuses = s->way->adapter == ONE_REFUSES && s->node->rank == 1;
        HX_CHECK(hx_finalize(s->adapters, &s->ctx) == ncclSuccess, "closing");
        hx_lib_close(s->adapters);
        HX_CHECK(gpu_net_registered() == 0, "%d registrations are left", gpu_net_registered());
        HX_CHECK((gpu_net_sent() == 0) == refuses && (gpu_net_flushed() == 0) == refuses,
                 "%lu payloads left GPU memory, %lu flushes", gpu_net_sent(), gpu_net_flushed());
    }
    HX_CHECK((gpu_net_copied() > 0) == (s->way->escapes != 0) &&
                 (hx_log_count("I ", "no codec kernel has taken work for") > 0) == (s->way->escapes != 0),
             "%lu copies by the adapter", gpu_net_copied());
    HX_CHECK(fake_alive() == 0, "%ld things of the driver's are left", fake_alive());
    HX_CHECK(s->way->host || fake_kernels() > 0, "no kernel ran");
    return 0;
}

static struct hx_comm_cfg config(const struct way *way)
{
    struct hx_comm_cfg cfg = {
        .channels = way->brief ? 1 : 2, .buff_size = BUFF_SIZE, .comm_id = COMM_ID, .poison = true};

    if (way->split || way->direct) {
        cfg.recv_memory = fake_gpu_window;
        cfg.recv_memory_free = fake_gpu_window_free;
        cfg.gpu_sends = way->direct;
    }
    return cfg;
}

static int way_node(struct hx_node *node, void *arg)
{
    const struct way *way = arg;
    struct hx_comm_cfg cfg = config(way);
    struct stage s = {.node = node, .way = way, .hash = hx_scratch(node, node->rank)};

    return stage_open(&s, &cfg) || all_of_it(&s) || sx_close(s.lib, s.comm, way->guests) || stage_end(&s) ||
           summary_names_device(way->host);
}

/* ---- effect of sums on weights ---- */

/* Train a shard as FSDP does: gather it in BF16, run a sum of the same size that changes no weights, then the
 * sum of the gradient, by which the owner moves its weights. NIBBLE_GRAD names neither sum. The GPU's samples
 * of sums and gathers must show which sum to code. */
#define STEPS 64
#define KEPT 12 /* steps at the end whose results are compared */

struct shard {
    size_t n;
    float *master, *sum, *all;
    uint16_t *weights, *gathered;
};

static int train_step(struct stage *s, struct shard *w, uint64_t step)
{
    const size_t nodes = (size_t)s->node->nnodes, rank = (size_t)s->node->rank;
    struct hx_op gather = {
        .func = HX_ALL_GATHER, .type = ncclBfloat16, .count = w->n, .send = w->weights, .recv = w->gathered};
    struct hx_op sum = {.func = HX_REDUCE_SCATTER, .type = ncclFloat32, .send = w->all, .recv = w->sum};

    for (size_t i = 0; i < w->n; i++)
        w->weights[i] = nb_f32_to_bf16(w->master[i]);
    if (operate(s, &gather, "a gather of weights"))
        return 1;
    HX_CHECK(memcmp(w->gathered + rank * w->n, w->weights, 2 * w->n) == 0, "other weights than were sent");
    for (int moves = 0; moves < 2; moves++) {
        sum.count = w->n;
        hx_fill(ncclFloat32, w->all, nodes * sum.count, hx_seed(step, rank, 40 + (uint64_t)moves),
                HX_FILL_NORMAL);
        if (operate(s, &sum, moves ? "a gradient" : "another sum"))
            return 1;
        if (step >= STEPS - KEPT && keep(s, w->sum, 4 * sum.count))
            return 1;
    }
    for (size_t i = 0; i < w->n; i++)
        w->master[i] -= 0.01f * w->sum[i];
    return 0;
}

static int trained_node(struct hx_node *node, void *arg)
{
    const struct way *way = arg;
    struct hx_comm_cfg cfg = config(way);
    struct stage s = {.node = node, .way = way, .hash = hx_scratch(node, node->rank)};
    struct shard w = {.n = way->brief ? 1200 : 12000};
    struct nb_coll_stats stats;
    uint64_t coded = 0;

    if (stage_open(&s, &cfg))
        return 1;
    w.master = malloc(4 * w.n);
    w.sum = malloc(4 * w.n);
    w.all = malloc(4 * w.n * (size_t)node->nnodes);
    w.weights = malloc(2 * w.n);
    w.gathered = malloc(2 * w.n * (size_t)node->nnodes);
    hx_fill(ncclFloat32, w.master, w.n, hx_seed(7, (uint64_t)node->rank, 1), HX_FILL_NORMAL);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (train_step(&s, &w, step))
            return 1;
        nb_coll_get_stats(hx_comm_plugin(s.comm), &stats);
        coded += stats.func[NB_FUNC_REDUCE_SCATTER].coded_ops > coded;
        HX_CHECK(coded == stats.func[NB_FUNC_REDUCE_SCATTER].coded_ops,
                 "step %d: the sum that changes nothing was coded, too", (int)step);
    }
    HX_CHECK(coded >= KEPT, "coded in %d of %d steps", (int)coded, STEPS);
    HX_CHECK(hx_log_count("I ", "the gathered weights follow its sums") > 0, "not recognised");
    HX_CHECK(hx_log_count("", "cannot read its sums") == 0, "the GPU shows nothing");
    free(w.master);
    free(w.sum);
    free(w.all);
    free(w.weights);
    free(w.gathered);
    return sx_close(s.lib, s.comm, false) || stage_end(&s);
}

static int play(const struct way *way, uint64_t (*hash)[MAX_OPS])
{
    const char *const trained[] = {way->host ? "NIBBLE_DEVICE=host" : "NIBBLE_DEVICE=cuda",
                                   "NIBBLE_GRAD",
                                   "NIBBLE_RS=int4",
                                   "NIBBLE_MIN_BYTES=0",
                                   "NIBBLE_GPU_RESERVE_MB=0",
                                   "CUDA_LAUNCH_BLOCKING",
                                   "CUDA_DEVICE_MAX_CONNECTIONS",
                                   NULL};
    const char *const env[] = {way->host ? "NIBBLE_DEVICE=host" : "NIBBLE_DEVICE=cuda",
                               "NIBBLE_RS=int4",
                               "NIBBLE_MIN_BYTES=0",
                               "NIBBLE_AR=int4",
                               "NIBBLE_AG=exact",
                               "NIBBLE_EF=full",
                               "NIBBLE_EF_IDENTITY=signature",
                               "NIBBLE_GPU_RESERVE_MB=0",
                               "CUDA_LAUNCH_BLOCKING",
                               "CUDA_DEVICE_MAX_CONNECTIONS",
                               way->hops ? "NIBBLE_SCHEDULE=two-hop" : "NIBBLE_SCHEDULE",
                               NULL};
    struct hx_job job = {.name = way->name,
                         .nnodes = way->brief ? 2 : NODES,
                         .fn = way->trains ? trained_node : way_node,
                         .env = way->trains ? trained : env};
    struct hx_report *rep;
    int rc;

    job.arg = (void *)(uintptr_t)way;
    rc = hx_job_run(&job, &rep);
    for (int r = 0; r < job.nnodes; r++)
        memcpy(hash[r], rep->node[r].scratch, sizeof hash[r]);
    hx_report_free(rep);
    return rc;
}

static int compare(const struct way *way)
{
    const struct way on_the_host = {.name = "host",
                                    .host = 1,
                                    .trains = way->trains,
                                    .brief = way->brief,
                                    .hops = way->hops,
                                    .guests = way->guests};
    uint64_t want[NODES][MAX_OPS] = {{0}}, got[NODES][MAX_OPS] = {{0}};
    int rc = play(&on_the_host, want);

    if (!rc)
        rc = play(way, got);
    if (rc)
        return rc;
    for (int r = 0; r < NODES; r++)
        for (int i = 0; i < MAX_OPS; i++)
            HX_CHECK(want[r][i] == got[r][i],
                     "operation %d has other bits on node %d than with the host's codecs", i, r);
    HX_CHECK(want[0][0], "nothing was compared");
    return 0;
}

HX_CASE(batch, compare(&(struct way){.name = "batch", .fake = {.other = FAKE_PINNED}}))
HX_CASE(resident, compare(&(struct way){.name = "resident", .fake = {.other = FAKE_PINNED}, .resident = 1}))
HX_CASE(gpu_memory,
        compare(&(struct way){.name = "gpu-memory", .fake = {.other = FAKE_DEVICE}, .resident = 1}))

/* Only the receive buffer is GPU-direct, as with NCCL_NET_GDR_READ=0. */
HX_CASE(gpu_receives, compare(&(struct way){
                          .name = "gpu-receives", .fake = {.other = FAKE_PINNED}, .resident = 1, .split = 1}))

/* Both buffers are GPU-direct: NCCL registers device pointers only. */
HX_CASE(gpu_pointers,
        compare(&(struct way){
            .name = "gpu-pointers", .fake = {.other = FAKE_PINNED}, .resident = 1, .direct = 1}))

/* Payloads lie in GPU memory: sent straight and through other nodes, registered by address and by DMA-BUF, by
 * address because DMA-BUF fails, on all nodes and on all but one. */
HX_CASE(gpu_payloads,
        compare(&(struct way){.name = "gpu-payloads",
                              .fake = {.other = FAKE_PINNED, .no_dmabuf = 1},
                              .resident = 1,
                              .direct = 1,
                              .adapter = BY_ADDRESS}) ||
            compare(&(struct way){.name = "gpu-payloads-hops",
                                  .fake = {.other = FAKE_DEVICE},
                                  .resident = 1,
                                  .hops = 1,
                                  .adapter = BY_DMABUF}) ||
            compare(&(struct way){.name = "gpu-payloads-fall-back",
                                  .fake = {.other = FAKE_DEVICE},
                                  .brief = 1,
                                  .adapter = FALLS_BACK}) ||
            compare(&(struct way){
                .name = "gpu-payloads-but-one", .fake = {.other = FAKE_DEVICE}, .adapter = ONE_REFUSES}))

/* The CPU encodes deltas into them, too. */
HX_CASE(gpu_payloads_no_differences,
        compare(&(struct way){.name = "gpu-payloads-no-differences",
                              .fake = {.other = FAKE_DEVICE, .major = NB_GPU_NO_DIFFERENCES},
                              .adapter = BY_ADDRESS}))

HX_CASE(gpu_payloads_guests, compare(&(struct way){.name = "gpu-payloads-guests",
                                                   .fake = {.other = FAKE_DEVICE, .memory = 1u << 30},
                                                   .guests = 1,
                                                   .adapter = BY_DMABUF}))

/* Codec kernels begin after NCCL's, so that this processor does the first works of each operation, and the
 * adapter carries their values. The kernels do the rest. NCCL's buffer lies in GPU memory that this processor
 * cannot reach, by an address of its own or not. */
HX_CASE(escapes, compare(&(struct way){.name = "escapes",
                                       .fake = {.other = FAKE_PINNED, .lazy_us = 60000},
                                       .resident = 1,
                                       .direct = 1,
                                       .brief = 1,
                                       .escapes = 1,
                                       .adapter = BY_ADDRESS}) ||
                     compare(&(struct way){.name = "escapes-all",
                                           .fake = {.other = FAKE_DEVICE, .lazy_us = 400000},
                                           .resident = 1,
                                           .brief = 1,
                                           .escapes = 1,
                                           .adapter = BY_ADDRESS}))

/* Node 0 is closed in the middle of an operation whose kernels do not begin. Node 1 learns it. No copy is
 * left, and no registration. Kernels begin a little later than that. */
static int cut_node(struct hx_node *node, void *arg)
{
    const struct way way = {
        .fake = {.other = FAKE_DEVICE}, .resident = 1, .escapes = 1, .adapter = BY_ADDRESS};
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = BUFF_SIZE, .comm_id = COMM_ID};
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = 600007, .fill = HX_FILL_NORMAL};
    struct stage s = {.node = node, .way = &way};
    const unsigned long enough = 1 + 7 * *(unsigned *)arg;
    struct kernel k = {0};
    uint64_t launch;
    struct sx_run run;
    ncclResult_t ret;

    if (stage_open(&s, &cfg))
        return 1;
    sx_prepare(node, &spec, &run);
    fake.never = 1;
    hx_barrier(node);
    launch =
        nb_launch_begin(nb_process_context(), gpu_of(node), COMM_ID, node->nnodes, s.stream, false, true);
    fake_run(s.stream, nccl_kernel, &k);
    nb_launch_end(nb_process_context(), launch);
    nb_launch_handed(nb_process_context(), gpu_of(node), COMM_ID);
    nb_launch_posted(nb_process_context(), launch, true);
    HX_CHECK(hx_post(s.comm, &run.op) == ncclSuccess, "post");
    if (node->rank == 0) {
        while (gpu_net_copied() < enough)
            HX_CHECK(hx_wait(s.comm, &run.op, 0.001) == HX_TIMEOUT, "the operation ended too soon");
    } else {
        ret = hx_wait(s.comm, &run.op, HX_SOON_S);
        HX_CHECK(ret != HX_TIMEOUT && ret != ncclSuccess, "nobody noticed: %d", (int)ret);
    }
    fake.never = 0;
    atomic_store(&k.over, 1);
    hx_comm_abort(s.comm);
    fake.never = 0;
    hx_lib_close(s.lib);
    sx_free(&run);
    if (s.stream)
        fake_stream_free(s.stream);
    HX_CHECK(hx_finalize(s.adapters, &s.ctx) == ncclSuccess, "closing");
    hx_lib_close(s.adapters);
    HX_CHECK(gpu_net_registered() == 0, "%d registrations are left", gpu_net_registered());
    HX_CHECK(fake_alive() == 0, "%ld things of the driver's are left", fake_alive());
    HX_CHECK(hx_log_count("W ", "does not end") == 0, "a copy or a kernel is left");
    return 0;
}

static int cut(void)
{
    static const char *const env[] = {"NIBBLE_DEVICE=cuda",
                                      "NIBBLE_MIN_BYTES=0",
                                      "NIBBLE_RS=int4",
                                      "NIBBLE_GPU_RESERVE_MB=0",
                                      "CUDA_LAUNCH_BLOCKING",
                                      "CUDA_DEVICE_MAX_CONNECTIONS",
                                      NULL};

    for (unsigned i = 0; i < (hx_quick() ? 2 : 8); i++)
        if (sx_job("cut", 2, cut_node, &i, env))
            return 1;
    return 0;
}

/* With kernels that are emulated. */
static int compare_emulated(const struct way *way)
{
#ifdef NB_TSAN
    (void)way;
    printf("        skipped: the emulation changes stacks, which the thread sanitizer does not follow\n");
    return HX_SKIP;
#else
    return compare(way);
#endif
}

HX_CASE(gpu_payloads_emulated, compare_emulated(&(struct way){.name = "gpu-payloads-emulated",
                                                              .fake = {.other = FAKE_DEVICE, .emulate = 1},
                                                              .brief = 1,
                                                              .adapter = BY_ADDRESS}))

/* The CPU encodes deltas, the kernel decodes them. */
HX_CASE(no_differences,
        compare(&(struct way){.name = "no-differences",
                              .fake = {.other = FAKE_DEVICE, .major = NB_GPU_NO_DIFFERENCES}}))

HX_CASE(emulated, compare_emulated(&(struct way){
                      .name = "emulated", .fake = {.other = FAKE_DEVICE, .emulate = 1}, .brief = 1}))

/* The GPU must recognise sums as the host does, from the same step on. */
HX_CASE(recognised,
        compare(&(struct way){.name = "recognised-pinned", .fake = {.other = FAKE_PINNED}, .trains = 1}) ||
            compare(&(struct way){
                .name = "recognised-gpu-memory", .fake = {.other = FAKE_DEVICE}, .resident = 1, .trains = 1}))

HX_CASE(recognised_emulated, compare_emulated(&(struct way){.name = "recognised-emulated",
                                                            .fake = {.other = FAKE_DEVICE, .emulate = 1},
                                                            .trains = 1,
                                                            .brief = 1}))

/* ---- a kernel that makes no progress ---- */

/* The watchdog of node 1 must end the operation on all nodes, and the plugin must give back its resources. */
static int stuck_node(struct hx_node *node, void *arg)
{
    const struct way way = {.fake = {.other = FAKE_DEVICE}, .resident = *(int *)arg};
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = BUFF_SIZE, .comm_id = COMM_ID};
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = 60007, .fill = HX_FILL_NORMAL};
    struct stage s = {.node = node, .way = &way};
    struct kernel k = {0};
    uint64_t launch = 0;
    struct sx_run run;
    ncclResult_t ret;

    if (stage_open(&s, &cfg))
        return 1;
    sx_prepare(node, &spec, &run);
    fake.stuck = node->rank == 1;
    hx_barrier(node);
    if (s.stream) {
        launch =
            nb_launch_begin(nb_process_context(), gpu_of(node), COMM_ID, node->nnodes, s.stream, true, true);
        fake_run(s.stream, nccl_kernel, &k);
        nb_launch_end(nb_process_context(), launch);
        nb_launch_posted(nb_process_context(), launch, false);
    }
    HX_CHECK(hx_post(s.comm, &run.op) == ncclSuccess, "post");
    ret = hx_wait(s.comm, &run.op, HX_SOON_S);
    HX_CHECK(ret != HX_TIMEOUT, "nobody noticed");
    HX_CHECK(ret != ncclSuccess, "results of a kernel that does nothing");
    HX_CHECK(hx_log_count("W ", node->rank == 1 ? "NIBBLE_GPU_TIMEOUT" : "node 1") > 0,
             "no WARN line says why");
    hx_barrier(node);         /* so that each node sees its own end before it hears of another end */
    atomic_store(&k.over, 1); /* NCCL gives up, too */
    hx_comm_close(s.comm);
    hx_lib_close(s.lib);
    sx_free(&run);
    return stage_end(&s);
}

static int stuck(void)
{
    static const char *const env[] = {"NIBBLE_DEVICE=cuda",          "NIBBLE_GPU_TIMEOUT=5",
                                      "NIBBLE_GPU_RESERVE_MB=0",     "CUDA_LAUNCH_BLOCKING",
                                      "CUDA_DEVICE_MAX_CONNECTIONS", NULL};

    for (int resident = hx_quick(); resident < 2; resident++)
        if (sx_job("stuck", NODES, stuck_node, &resident, env))
            return 1;
    return 0;
}

/* ---- sends and receives of GPU memory, over a transport that cannot reach GPU memory ---- */

static int p2p_node(struct hx_node *node, void *arg)
{
    static const size_t bytes[] = {0, 1, 100003, 1000000};
    struct hx_p2p_cfg cfg = {.streams = 3,
                             .slot = 16384,
                             .flush = *(bool *)arg,
                             .memory = fake_gpu_memory,
                             .memory_free = fake_gpu_memory_free};
    unsigned char *send = malloc(1000000), *want = malloc(1000000), *recv = malloc(1000000);
    struct hx_lib *lib = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    struct hx_props net, coll;
    struct hx_p2p *p2p;
    struct hx_ctx ctx;

    nb_cuda_override(&fake_driver);
    pretend_gpu(gpu_of(node));
    HX_CHECK(hx_init(lib, COMM_ID, &ctx) == ncclSuccess && ctx.coll_ok, "init");
    HX_CHECK(hx_net_properties(lib, 0, &net) == ncclSuccess &&
                 hx_coll_properties(lib, 0, &coll) == ncclSuccess,
             "getProperties");
    HX_CHECK(net.ptr_support == (NCCL_PTR_HOST | NCCL_PTR_CUDA) && coll.ptr_support == net.ptr_support,
             "ptrSupport is %d and %d", net.ptr_support, coll.ptr_support);
    HX_CHECK(hx_p2p_open(node, lib, &ctx, !node->rank, &cfg, &p2p) == ncclSuccess,
             "connections of GPU memory");
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        hx_fill(ncclUint8, send, bytes[i], hx_seed(i, (uint64_t)node->rank, 8), HX_FILL_BITS);
        hx_fill(ncclUint8, want, bytes[i], hx_seed(i, (uint64_t)!node->rank, 8), HX_FILL_BITS);
        HX_CHECK(hx_p2p_run(p2p, send, bytes[i], recv, bytes[i], HX_SOON_S) == ncclSuccess, "%zu bytes",
                 bytes[i]);
        HX_CHECK(memcmp(recv, want, bytes[i]) == 0, "%zu bytes did not arrive as they were sent", bytes[i]);
    }
    hx_barrier(node);
    HX_CHECK(hx_p2p_close(p2p) == ncclSuccess && hx_finalize(lib, &ctx) == ncclSuccess, "closing");
    hx_lib_close(lib);
    HX_CHECK(hx_log_warns() == 0, "warnings");
    HX_CHECK(fake_alive() == 0, "%ld things of the driver's are left", fake_alive());
    free(send);
    free(want);
    free(recv);
    return 0;
}

static int p2p(void)
{
    static const char *const env[] = {"NIBBLE_NET=tcp", "NIBBLE_GPU_POINTERS=1", "CUDA_LAUNCH_BLOCKING",
                                      "CUDA_DEVICE_MAX_CONNECTIONS", NULL};

    for (int flush = 0; flush < 2; flush++)
        if (sx_job("p2p", 2, p2p_node, &(bool){flush}, env))
            return 1;
    return 0;
}

HX_MAIN({"batch", batch, HX_CASE_FULL}, {"resident", resident, 0}, {"gpu-memory", gpu_memory, 0},
        {"gpu-receives", gpu_receives, 0}, {"gpu-pointers", gpu_pointers, 0},
        {"gpu-payloads", gpu_payloads, 0}, {"gpu-payloads-guests", gpu_payloads_guests, HX_CASE_SLOW},
        {"gpu-payloads-no-differences", gpu_payloads_no_differences, 0}, {"escapes", escapes, 0},
        {"escapes-cut", cut, 0}, {"gpu-payloads-emulated", gpu_payloads_emulated, 0},
        {"no-differences", no_differences, 0}, {"emulated", emulated, 0},
        {"recognised", recognised, HX_CASE_SLOW}, {"recognised-emulated", recognised_emulated, HX_CASE_FULL},
        {"stuck", stuck, 0}, {"p2p", p2p, 0})
