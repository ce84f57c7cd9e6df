/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's GPU path (plugin/device, unchanged) over the model of driver and GPU (gpu/model.h), under a
 * job as on a cluster. Two ranks in one process have a GPU each. The job has communicators for data, tensor,
 * expert and pipeline parallelism, compute kernels that are loaded in the middle of a step, an allocator that
 * frees and allocates, graphs, and late peers. NCCL hands windows over, and an engine serves them, asks for
 * memory and answers peers late. After connect no serving thread calls the driver, kernels end, and there is
 * no circle of waits. At the end a peer does not come and the job aborts the communicator.
 *
 * Configurations, by the seed (`configure`): 1, 8 and 32 hardware queues, lazy and eager loading, graphs with
 * their branches submitted in each order, another thread that loads, frees and page-locks every 0 to 150 us,
 * an engine that is held up for long, and a launch of a codec kernel that fails, so that the job gives up its
 * communicators. Each runs with both kernels launched by one call, and with codec kernels behind NCCL's.
 * Behind NCCL's there is no thread that loads, because it would stop both.
 *
 *     test_model_job                 some steps of each configuration. With NB_LONG_TESTS runs of seeds 1,
 *                                    19, 37 ... for the first, until a rank has had 100,000 operations
 *     test_model_job SEED [STEPS]    one seed, and with NB_LONG_TESTS its configuration
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "codec/pick.h"
#include "device/cuda/cuda.h"
#include "device/cuda/table.h"
#include "tests/gpu/model.h"

#define RANKS 2
#define COMMS \
    4 /* data, tensor, expert and pipeline. With graphs, the last one's operations run from a graph */
#define WINDOWS 6
#define CHANNELS 16u
#define HELD_UP (20 * MODEL_MS) /* an engine is held up for so long, with faults */
#define COMM_ID(rank, c) (UINT64_C(100) * ((uint64_t)(c) + 1) + 0 * (uint64_t)(rank))
#define CHILD_ID 900u

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: seed %llu: %s\n", __FILE__, __LINE__, (unsigned long long)now.seed, \
                    #what); \
            abort(); \
        } \
    } while (0)

/* One operation of a communicator on one rank: from its launch until the engine has served it. */
struct operation {
    struct model_kernel nccl;
    int handed;         /* NCCL has handed it to its proxy */
    int counted;        /* the engine has noted that it begins */
    int posted, served; /* windows handed over, windows done */
    int64_t peer_ns;    /* earliest time of the peer's windows */
    int busy;
    uint64_t number; /* number among the communicator's operations, from 1 */
    const void *waits[3];
};

struct comm {
    struct nb_device *dev;
    struct operation op;
    nb_cu_stream stream;
    char *wire, *state;
    struct nb_work work[WINDOWS], answer;
    uint32_t picked[NB_PICKS];
    struct nb_compared seen[WINDOWS];
    int answers, closed, stream_captures;
    int dead; /* aborted */
    char name[32];
    const void *waits[2];
    struct model_graph *graph;
    uint64_t launched, begun; /* operations */
    struct comm *other;       /* the other rank's communicator */
};

/* Of a run, or of all runs of a configuration: operations of a rank, those whose peer is late, calls of the
 * other threads, operations that were aborted. */
struct counts {
    unsigned long long operations, late, calls, aborted;
};

static struct {
    uint64_t seed;
    struct model_settings model;
    struct nb_context ctx[RANKS];
    struct comm comm[RANKS][COMMS];
    struct model_thread *engine[RANKS], *job[RANKS];
    nb_cu_stream compute[RANKS];
    int steps, graphs, faults, behind, over[RANKS], ready[RANKS], hangs, ends;
    int loaded[32][MODEL_GPUS], grown[COMMS][MODEL_GPUS];
    int64_t grown_bytes, refusals;
    struct counts counts;
} now;

/* ---- NCCL's kernel and the engine ---------------------------------------------------------------------- */

static int there(const struct comm *c)
{
    return c->other->begun >= c->op.number && model_now() >= c->op.peer_ns;
}

static int nccl_done(void *argument)
{
    struct comm *c = argument;
    struct operation *op = &c->op;
    unsigned n = 0;

    c->begun = op->number;
    if (op->served < WINDOWS)
        op->waits[n++] = op->handed ? now.engine[c >= now.comm[1]] : now.job[c >= now.comm[1]];
    if (!there(c))
        op->waits[n++] = c->other->launched < op->number ? (const void *)now.job[c < now.comm[1]]
                                                         : (const void *)&c->other->op.nccl;
    op->waits[n] = NULL;
    return c->dead || (op->served == WINDOWS && there(c));
}

/* Allocate memory for the residual of a new gradient, now and then. */
static void want_memory(struct comm *c)
{
    void *p;

    if (model_random(40) || now.grown_bytes > (4 << 20))
        return;
    p = c->dev->ops->alloc(c->dev, NB_PLACE_STATE, 80 << 20);
    if (!p) {
        now.refusals++;
        return;
    }
    now.grown_bytes += 1 << 18;
    if (model_random(2))
        c->dev->ops->free(c->dev, NB_PLACE_STATE, p, 80 << 20);
}

/* Hand over a window's work: a copy, every other time a look at its values, and a gather's questions about a
 * segment. */
static ssize_t hand_over(struct comm *c, int window)
{
    if (window % 4 == 2)
        return c->dev->ops->compare(c->dev, &c->work[window], c->wire + 256 * window, c->state, 64,
                                    &c->seen[window]);
    if (window % 2)
        return c->dev->ops->pick(c->dev, &c->work[window], 4, c->wire + 256 * window, 512, 256, 0, 64,
                                 c->picked);
    return c->dev->ops->copy(c->dev, &c->work[window], c->state, c->wire + 256 * window, 64);
}

/* Serve windows without a device, with codecs on the CPU, as with one hardware queue. */
static int serve_on_cpu(struct comm *c)
{
    struct operation *op = &c->op;
    const int most = there(c) ? WINDOWS : WINDOWS / 2, moved = op->busy && op->served < most;

    if (op->busy && op->handed && op->nccl.begun)
        op->served = most;
    if (op->served == WINDOWS || c->dead)
        op->busy = 0;
    if (moved)
        model_moved();
    return moved;
}

/* Return whether a communicator's operations are all-reduces, whose end the plugin cannot count. */
static int is_sum(const struct comm *c)
{
    return (c - now.comm[c >= now.comm[1]]) % 2 == 1;
}

/* Do the engine's round for one communicator: hand over, take back, tell the device. */
static int serve(struct comm *c)
{
    struct operation *op = &c->op;
    const struct nb_device_ops *ops = c->dev->ops;
    int moved = 0;

    if (c->dead)
        op->busy = 0;
    if (op->busy && op->handed && op->nccl.begun && (op->posted || ops->ready(c->dev))) {
        if (!op->counted && !is_sum(c))
            ops->begins(c->dev);
        op->counted = 1;
        /* Results need the peer's windows. Until these are there, the last half is not done. */
        if (op->posted == 0)
            want_memory(c);
        const int most = there(c) ? WINDOWS : WINDOWS / 2;
        while (op->posted < most && hand_over(c, op->posted) == -EINPROGRESS)
            moved = ++op->posted;
        while (op->served < op->posted && ops->poll(c->dev, &c->work[op->served]) >= 0) {
            moved = ++op->served;
            model_moved();
        }
        if (op->served == WINDOWS)
            op->busy = 0;
    }
    if (ops->failed(c->dev)) { /* the job gives up */
        CHECK(now.faults);
        c->dead = c->other->dead = 1;
    }
    ops->turn(c->dev, c->dead ? -1 : op->busy && op->handed && op->nccl.begun);
    return moved;
}

/* Answer a peer's request after the operation, now and then, when no kernel is there. */
static void answer(struct comm *c)
{
    if (c->answers)
        c->answers = c->dev->ops->poll(c->dev, &c->answer) == -EINPROGRESS;
    else if (!c->op.busy && !now.ends && model_random(100) == 0)
        c->answers = c->dev->ops->copy(c->dev, &c->answer, c->state, c->wire, 64) == -EINPROGRESS;
}

static void engine_main(void *argument)
{
    const int r = (int)(intptr_t)argument;
    int64_t nap = 20 * MODEL_US;

    while (!now.ready[r])
        model_sleep(MODEL_MS);
    for (unsigned i = 0; i < COMMS; i++) /* the first turn comes before the first window */
        if (now.comm[r][i].dev)
            now.comm[r][i].dev->ops->turn(now.comm[r][i].dev, 0);
    while (!now.over[r]) {
        nap += nap < MODEL_MS ? nap / 8 : 0;
        for (unsigned i = 0; i < COMMS; i++) {
            if (now.comm[r][i].closed)
                continue;
            if (now.comm[r][i].dev ? serve(&now.comm[r][i]) : serve_on_cpu(&now.comm[r][i]))
                nap = 20 * MODEL_US;
            if (now.comm[r][i].dev)
                answer(&now.comm[r][i]);
        }
        model_sleep(nap + (int64_t)model_random(10000));
        if (now.faults && model_random(2000) == 0)
            model_sleep(HELD_UP);
    }
}

/* ---- The job ------------------------------------------------------------------------------------------- */

static void connect_rank(int r)
{
    struct nb_device_wish wish = {.gpu = r, .nnodes = 2};
    char why[256];

    model_current(r);
    now.compute[r] = model_stream(0);
    for (unsigned i = 0; i < COMMS; i++) {
        struct comm *c = &now.comm[r][i];
        nb_launch_attached(&now.ctx[r], r, 1);
        wish.comm_id = COMM_ID(r, i);
        const int ret = nb_cuda_device_open(&now.ctx[r], &wish, &c->dev, why, sizeof(why));
        c->stream = model_stream(0);
        if (now.behind && now.model.queues < 8) {
            CHECK(ret == -ENOTSUP && strstr(why, "CUDA_DEVICE_MAX_CONNECTIONS"));
            continue;
        }
        CHECK(ret == 0);
        c->wire = c->dev->ops->alloc(c->dev, NB_PLACE_WIRE, 4096);
        c->state = c->dev->ops->alloc(c->dev, NB_PLACE_STATE, 4096);
        CHECK(c->wire && c->state);
        snprintf(c->name, sizeof(c->name), "codec kernel %d.%u", r, i);
        c->waits[0] = &c->op.nccl;
        model_name_codec(&nb_cuda_of(c->dev)->gpu->ring.host->ring, c->name, c->waits);
    }
    now.ready[r] = 1;
}

static void close_comm(int r, unsigned i)
{
    struct comm *c = &now.comm[r][i];

    c->closed = 1; /* the engine drops it, and goes on with other communicators */
    if (!c->dev)
        return;
    c->dev->ops->quiesce(c->dev);
    while (!c->dev->ops->failed(c->dev) && c->dev->ops->turn(c->dev, 0))
        model_sleep(MODEL_MS);
    c->dev->ops->free(c->dev, NB_PLACE_WIRE, c->wire, 4096);
    c->dev->ops->free(c->dev, NB_PLACE_STATE, c->state, 4096);
    c->dev->ops->close(c->dev);
    nb_launch_attached(&now.ctx[r], r, -1);
}

static void prepare(struct comm *c, int r, unsigned i)
{
    struct operation *op = &c->op;

    op->handed = op->counted = op->posted = op->served = 0;
    op->number = ++c->launched;
    const bool late = model_random(200) == 0;
    op->peer_ns = model_now() + (late ? 1500 * MODEL_MS : (int64_t)model_random(200) * MODEL_US);
    now.counts.operations += r == 0;
    now.counts.late += r == 0 && late;
    op->nccl = (struct model_kernel){.name = i == 0   ? "NCCL's kernel (data)"
                                             : i == 1 ? "NCCL's kernel (tensor)"
                                             : i == 2 ? "NCCL's kernel (expert)"
                                                      : "NCCL's kernel (pipeline)",
                                     .blocks = CHANNELS,
                                     .threads = 640,
                                     .registers = 96,
                                     .shared = 80000,
                                     .done = nccl_done,
                                     .argument = c,
                                     .waits = op->waits,
                                     .what = "its windows and its peer",
                                     .grown = now.grown[i],
                                     .launcher = now.job[r]};
    op->busy = 1;
}

static void launch(int r, unsigned i, uint64_t id)
{
    struct comm *c = &now.comm[r][i];
    const uint64_t number = nb_launch_begin(&now.ctx[r], r, id, 2, c->stream, is_sum(c), true);

    model_launch(c->stream, &c->op.nccl);
    nb_launch_end(&now.ctx[r], number);
    if (!is_sum(c) && !c->stream_captures)
        nb_launch_handed(&now.ctx[r], r, id);
    c->op.handed = c->stream_captures == 0;
    nb_launch_posted(&now.ctx[r], number, !is_sum(c));
    CHECK(number != 0 || !c->dev || now.faults);
}

static int is_over(void *argument)
{
    const struct comm *c = argument;
    return c->op.nccl.over;
}

static void collective(int r, unsigned i)
{
    struct comm *c = &now.comm[r][i];

    if (c->op.busy || (c->op.nccl.done && !c->op.nccl.over)) /* one after the other, as NCCL does */
        model_wait(is_over, c, &c->op.nccl, "the operation before");
    while (c->op.busy)
        model_sleep(10 * MODEL_US);
    if (c->dead)
        return;
    prepare(c, r, i);
    if (i == COMMS - 1 && now.graphs) {
        if (!c->graph) {
            c->stream_captures = 1;
            model_capture(c->stream);
            launch(r, i, COMM_ID(r, i));
            c->graph = model_capture_end(c->stream);
            c->stream_captures = 0;
        }
        model_replay(c->graph, c->stream);
        if (!is_sum(c))
            nb_launch_handed(&now.ctx[r], r, COMM_ID(r, i));
        c->op.handed = 1;
        return;
    }
    launch(r, i, COMM_ID(r, i));
}

static struct model_kernel compute[RANKS][4];

/* Launch a compute kernel, one of many functions, each loaded at its first launch. */
static void compute_some(int r)
{
    struct model_kernel *k = &compute[r][model_random(4)];

    if (k->blocks && !k->over)
        return;
    *k = (struct model_kernel){.name = "compute kernel",
                               .blocks = 64 + (unsigned)model_random(400),
                               .threads = 256,
                               .registers = 32 + 32 * (unsigned)model_random(4),
                               .shared = model_random(4) ? 16384 : 200 << 10,
                               .ns = (int64_t)(20 + model_random(200)) * MODEL_US,
                               .loaded = now.loaded[model_random(32)]};
    model_launch(now.compute[r], k);
}

static int both_over(void *argument)
{
    const int r = (int)(intptr_t)argument;
    for (unsigned i = 0; i < COMMS; i++)
        if (now.comm[r][i].op.busy)
            return 0;
    return 1;
}

/* The last operation's peer does not come. A watchdog of the job calls ncclCommAbort, which waits for the
 * operation's stream only. The thread that launched the operation may be held up by a thread that loads and
 * waits for it. */
static void watchdog_main(void *argument)
{
    struct comm *c = &now.comm[0][0];

    (void)argument;
    model_current(0);
    while (!now.hangs && !now.over[0])
        model_sleep(MODEL_MS);
    model_sleep(100 * MODEL_MS);
    if (now.over[0] || c->dead)
        return;
    CHECK(!c->op.nccl.over);
    const int64_t begin = model_now();
    c->dead = 1;
    now.counts.aborted++;
    model_synchronize(c->stream);
    /* The stream waits for the codec kernel, too, which the engine ends once it is no longer held up. */
    CHECK(model_now() - begin < (now.faults ? HELD_UP + 10 * MODEL_MS : 10 * MODEL_MS));
}

static void job_main(void *argument)
{
    const int r = (int)(intptr_t)argument;
    nb_cu_event before;

    connect_rank(r);
    while (!now.ready[!r])
        model_sleep(MODEL_MS);
    model_connected(1);
    before = model_event();
    for (int s = 0; s < now.steps; s++) {
        unsigned first = (unsigned)(s % COMMS);
        for (unsigned k = 0; k < COMMS; k++) {
            const unsigned i = (first + k) % COMMS;
            compute_some(r);
            model_record(before, now.compute[r]); /* NCCL's stream waits for the values that it reduces */
            model_stream_waits(now.comm[r][i].stream, before);
            collective(r, i);
            compute_some(r);
        }
        if (model_random(8) == 0)
            model_free();
        if (model_random(16) == 0)
            model_synchronize_device();
        if (model_random(8) == 0) { /* the optimizer waits for the gradients */
            model_record(before, now.comm[r][0].stream);
            model_stream_waits(now.compute[r], before);
        }
        model_moved();
    }
    model_wait(both_over, (void *)(intptr_t)r, now.engine[r], "the last operations");
    for (unsigned i = 0; i < COMMS; i++)
        model_synchronize(now.comm[r][i].stream);
    if (r == 0) {
        now.hangs = 1;
        collective(r, 0);
        model_wait(is_over, &now.comm[0][0], &now.comm[0][0].op.nccl, "the abort");
    }
    model_synchronize_device(); /* codec kernels end by themselves */
    model_connected(0);
    now.ends = 1; /* answers end here */
    for (unsigned i = 0; i < COMMS; i++) {
        struct comm *c = &now.comm[r][i];
        const struct nb_gpu *g = c->dev ? nb_cuda_of(c->dev)->gpu : NULL;
        while (g && (c->answers || atomic_load(&g->launches.open) ||
                     __atomic_load_n(&g->ring.host->ring.started, __ATOMIC_ACQUIRE) !=
                         __atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE)))
            model_sleep(MODEL_MS); /* the engine ends them, or the watchdog this */
        close_comm(r, i);
    }
    now.over[r] = 1;
}

/* Another thread of the job, which starts when NCCL's kernels have been launched once. Every 0 to 150 us it
 * launches an unloaded kernel (where kernels are loaded eagerly: loads a module), frees memory, or page-locks
 * some. */
static void other_main(void *argument)
{
    const int r = (int)(intptr_t)argument;
    static struct model_kernel k[RANKS];
    static int fresh[RANKS][MODEL_GPUS];
    nb_cu_stream stream;

    model_current(r);
    stream = model_stream(0);
    for (unsigned i = 0; i < COMMS; i++)
        while (!now.over[r] && now.comm[r][i].launched < 3)
            model_sleep(MODEL_MS);
    while (!now.over[r]) {
        const uint64_t call = model_random(4);
        if (call == 0) {
            model_free();
        } else if (call == 1) {
            void *pages;
            CHECK(model_driver.MemHostAlloc(&pages, 4096, 0) == 0);
            model_driver.MemFreeHost(pages);
        } else if (now.model.eager) {
            nb_cu_module module;
            model_driver.ModuleLoadData(&module, NULL);
        } else {
            fresh[r][r] = 0;
            k[r] = (struct model_kernel){.name = "kernel of another thread",
                                         .blocks = 8,
                                         .threads = 128,
                                         .registers = 32,
                                         .ns = 10 * MODEL_US,
                                         .aside = 1,
                                         .loaded = fresh[r]};
            model_launch(stream, &k[r]);
            model_synchronize(stream);
        }
        now.counts.calls++;
        model_sleep((int64_t)model_random(150) * MODEL_US);
    }
}

/* ---- Configurations ------------------------------------------------------------------------------------ */

static uint64_t model_clock(void *argument)
{
    (void)argument;
    return (uint64_t)model_now();
}

__attribute__((format(printf, 5, 6))) static void hear(ncclDebugLogLevel level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...)
{
    (void)flags;
    (void)file;
    (void)line;
    if (level == NCCL_LOG_WARN && !now.faults) {
        fprintf(stderr, "warning: %s\n", fmt);
        abort();
    }
}

static void open_contexts(void)
{
    for (int r = 0; r < RANKS; r++) {
        now.ctx[r].clock.now_ns = model_clock;
        CHECK(nb_params_read(&now.ctx[r].params) == 0 && nb_gpus_open(&now.ctx[r]) == 0);
    }
    nb_cuda_override(&model_driver);
}

static void close_contexts(void)
{
    for (int r = 0; r < RANKS; r++) {
        nb_gpus_close(&now.ctx[r]);
        nb_params_free(now.ctx[r].params);
    }
}

static void run(const struct model_settings *settings, int steps, int graphs, int behind, int faults,
                struct counts *sum)
{
    const char *said;

    memset(&now, 0, sizeof(now));
    memset(compute, 0, sizeof(compute));
    now.seed = settings->seed;
    now.model = *settings;
    now.steps = steps;
    now.graphs = graphs;
    now.faults = faults;
    now.behind = behind;
    if (settings->queues < 8)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    else
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    open_contexts();
    model_open(settings);
    model_fails = faults ? (unsigned)steps * COMMS * 2 / 3 : 0;
    for (int r = 0; r < RANKS; r++) {
        now.engine[r] =
            model_thread(r ? "engine 1" : "engine 0", MODEL_SERVES, engine_main, (void *)(intptr_t)r);
        now.job[r] = model_thread(r ? "job 1" : "job 0", MODEL_JOB, job_main, (void *)(intptr_t)r);
        if (!behind)
            model_thread(r ? "another thread 1" : "another thread 0", MODEL_BESIDE, other_main,
                         (void *)(intptr_t)r);
        if (r == 0)
            model_thread("ncclCommAbort", MODEL_BESIDE, watchdog_main, NULL);
        for (unsigned i = 0; i < COMMS; i++) {
            now.comm[r][i].op.nccl.over = 1;
            now.comm[r][i].other = &now.comm[!r][i];
        }
    }
    said = model_run();
    printf(
        "seed %llu: %s, %u queue%s, %s%s%s%s: %d steps in %.1f s of the model's, %llu operations, %llu calls "
        "beside: %s\n",
        (unsigned long long)settings->seed, getenv("NIBBLE_GPU_LAUNCH"), settings->queues,
        settings->queues > 1 ? "s" : "", settings->eager ? "eager" : "lazy",
        !graphs                   ? ""
        : settings->branches == 0 ? ", graphs as captured"
        : settings->branches == 1 ? ", graphs NCCL first"
        : settings->branches == 2 ? ", graphs ours first"
                                  : ", graphs at random",
        behind ? "" : ", threads that load", faults ? ", faults" : "", steps,
        (double)(model_now() - MODEL_SECOND) / 1e9, now.counts.operations, now.counts.calls,
        said ? said : "goes through");
    fflush(stdout);
    for (int r = 0; said && r < RANKS; r++) {
        for (unsigned i = 0; i < COMMS; i++) {
            const struct comm *c = &now.comm[r][i];
            const struct nb_gpu *g = c->dev && !c->closed ? nb_cuda_of(c->dev)->gpu : NULL;
            printf("  %d.%u: operation %llu, %s, handed %d, posted %d, served %d%s", r, i,
                   (unsigned long long)c->op.number, c->op.busy ? "open" : "done", c->op.handed, c->op.posted,
                   c->op.served, c->dead ? ", aborted" : "");
            if (g)
                printf("; launched %llu, begun %llu, ended %llu, told %llu, open %u, handed %llu, begun "
                       "%llu, failed %d",
                       (unsigned long long)g->launches.launched,
                       (unsigned long long)g->ring.host->ring.started,
                       (unsigned long long)g->ring.host->ring.ended, (unsigned long long)g->launches.told,
                       atomic_load(&g->launches.open), (unsigned long long)g->launches.handed,
                       (unsigned long long)g->launches.begun, atomic_load(&g->ring.failed));
            for (unsigned k = 0; g && k < NB_LAUNCH_OPEN; k++)
                if (atomic_load(&g->launches.beside[k].state))
                    printf("; place %u: state %d number %llu%s", k, atomic_load(&g->launches.beside[k].state),
                           (unsigned long long)g->launches.beside[k].number,
                           g->launches.beside[k].marks ? "" : " without a mark");
            printf("\n");
        }
        fflush(stdout);
    }
    model_none_forbidden();
    CHECK(!said);
    model_close();
    close_contexts();
    sum->operations += now.counts.operations;
    sum->late += now.counts.late;
    sum->calls += now.counts.calls;
    sum->aborted += now.counts.aborted;
}

/* ---- The ring's rate (F6): pieces of 128 KiB, one after the other, through one kernel ------------------ */

#define PIECES 2000
#define PIECE (128.0 * 1024)

static double rate; /* GB/s */

static void ring_main(void *argument)
{
    static struct nb_work work[NB_GPU_RING];
    struct comm *c = &now.comm[0][0];
    const struct nb_device_ops *ops;
    int given = 0, taken = 0;

    (void)argument;
    connect_rank(0);
    ops = c->dev->ops;
    const int64_t begin = model_now();
    while (taken < PIECES) {
        while (given < PIECES && given - taken < (int)NB_GPU_RING &&
               ops->copy(c->dev, &work[given % NB_GPU_RING], c->state, c->wire, 64) == -EINPROGRESS)
            given++;
        while (taken < given && ops->poll(c->dev, &work[taken % NB_GPU_RING]) == 0)
            taken++;
        ops->turn(c->dev, 1);
        model_sleep(MODEL_US);
    }
    rate = PIECE * PIECES / (double)(model_now() - begin);
    for (unsigned i = 0; i < COMMS; i++)
        close_comm(0, i);
}

static void ring_rate(unsigned carries)
{
    const struct model_settings settings = {.seed = 1};

    memset(&now, 0, sizeof(now));
    open_contexts();
    model_open(&settings);
    model_carries = carries;
    model_thread("ring", MODEL_JOB, ring_main, NULL);
    const char *said = model_run();
    CHECK(!said);
    model_carries = 0;
    model_close();
    close_contexts();
    printf("F6 pieces of 128 KiB, at most %u a round of the carrying block: %.0f GB/s\n",
           carries ? carries : NB_GPU_RING, rate);
}

/* Go through the configurations: queues, then loading, then the special case. Beyond them the seeds of a run
 * differ. */
#define CONFIGURATIONS 18u
#define LONG_STEPS 1000         /* of a run of the long form */
#define LONG_OPERATIONS 100000u /* of a configuration */

static void configure(uint64_t seed, int steps, int behind, struct counts *sum)
{
    static const unsigned queues[] = {1, 8, 32};
    const unsigned at = (unsigned)((seed - 1) % CONFIGURATIONS), special = at / 6;
    const int graphs = special == 1;
    const struct model_settings settings = {
        .seed = seed,
        .queues = queues[at % 3],
        .eager = at / 3 % 2,
        .branches = graphs && queues[at % 3] > 1 ? (int)(seed / CONFIGURATIONS + at) % 4 : 0,
        .patience = 20 * MODEL_SECOND};

    setenv("NIBBLE_GPU_LAUNCH", behind ? "behind" : "together", 1);
    /* With codec kernels launched behind NCCL's, a load between the two launches stops both. This is known,
     * and is why the other order exists. */
    run(&settings, steps, graphs, behind, special == 2, sum);
}

/* Run a configuration with one seed after the other until it has had so many operations. */
static void go_on(uint64_t seed, unsigned long long operations, int behind)
{
    struct counts sum = {0, 0, 0, 0};

    for (; sum.operations < operations; seed += CONFIGURATIONS)
        configure(seed, LONG_STEPS, behind, &sum);
    printf("in all: %llu operations, %llu with a late peer, %llu calls beside, %llu aborted\n",
           sum.operations, sum.late, sum.calls, sum.aborted);
    fflush(stdout);
}

int main(int argc, char **argv)
{
#ifdef NB_TSAN
    printf("SKIP: the thread sanitizer does not follow contexts that are switched by hand\n");
    return 77;
#endif
    struct counts sum = {0, 0, 0, 0};
    const int steps = argc > 2 ? atoi(argv[2]) : getenv("NB_TEST_QUICK") ? 20 : 60;

    nb_log_set(hear);
    setenv("NIBBLE_GPU_RESERVE_MB", "0", 1);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("CUDA_LAUNCH_BLOCKING");
    const uint64_t only = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    for (int behind = 0; behind < 2; behind++)
        for (uint64_t seed = only ? only : 1; seed <= (only ? only : CONFIGURATIONS); seed++)
            if (getenv("NB_LONG_TESTS"))
                go_on(seed, LONG_OPERATIONS, behind);
            else
                configure(seed, steps, behind, &sum);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    /* One in a round, as the kernel once did, and all published ones, as it does now. */
    now.model.queues = 8;
    ring_rate(1);
    CHECK(rate > 25 && rate < 35);
    ring_rate(0);
    CHECK(rate > 350);
    return 0;
}
