/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders of driver calls that deadlock, and orders that do not, each in the model (model.h). A review
 * predicted F1 to F10 before the GPU path met a GPU. That first contact showed H1
 * (docs/results/2026-11-22-gpu-h100.md). The test also runs the order of calls that the plugin uses instead.
 * A few lines play the calls of each case. test_model_job runs the plugin's own code over the same model.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/model.h"

#define RANKS 2 /* a GPU each */
#define COMMS 4
#define WINDOWS 20

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            abort(); \
        } \
    } while (0)

/* One collective on one rank: NCCL's kernel, the codec kernel beside it, and the state that connects them. */
struct side {
    struct model_kernel nccl, codec;
    uint32_t mark;
    int told;    /* the codec kernel must end */
    int windows; /* windows served so far, of WINDOWS */
    int served, aborted;
    struct side *other; /* the other rank's side, NULL: a peer elsewhere that comes at `peer_ns` */
    int64_t peer_ns;
    const void *nccl_waits[4], *codec_waits[4];
    nb_cu_event forked, ended;
};

static struct {
    struct side side[RANKS][COMMS];
    unsigned comms;
    nb_cu_stream ours[RANKS][COMMS], nccl[RANKS][COMMS], marks[RANKS][COMMS];
    int closing, over;
    int asks;                    /* the engine asks the driver about memory before it serves */
    int no_limit;                /* a codec kernel ends only when no window is open */
    int blind;                   /* the engine cannot see marks: for it NCCL's kernel ends with its windows */
    struct model_thread *server; /* the thread that hands windows over: the engine */
} job;

static int peer_is_there(const struct side *s)
{
    return s->other ? s->other->nccl.begun : model_now() >= s->peer_ns;
}

/* Return 1 when NCCL's kernel is done. Also note the kernel's waits for the watchdog. */
static int nccl_done(void *argument)
{
    struct side *s = argument;
    unsigned n = 0;

    if (!s->served) {
        s->nccl_waits[n++] = job.server;
        if (!s->codec.begun)
            s->nccl_waits[n++] = &s->codec;
    }
    if (!peer_is_there(s) && s->other)
        s->nccl_waits[n++] = &s->other->nccl;
    s->nccl_waits[n] = NULL;
    return s->aborted || (s->served && peer_is_there(s) && (!s->other || s->other->served));
}

static int codec_done(void *argument)
{
    return ((const struct side *)argument)->told;
}

static void engine_main(void *argument)
{
    (void)argument;
    model_current(0);
    while (!job.over) {
        for (int r = 0; r < RANKS; r++) {
            for (unsigned c = 0; c < job.comms; c++) {
                struct side *s = &job.side[r][c];
                if (s->nccl.begun && s->codec.begun && !s->codec.over && !s->served) {
                    unsigned type;
                    if (job.asks)
                        model_driver.PointerGetAttribute(&type, NB_CU_POINTER_MEMORY_TYPE, 4096);
                    s->served = ++s->windows == WINDOWS;
                }
                const int open = s->nccl.begun && !nccl_done(s);
                const int there = peer_is_there(s);
                if ((s->mark || job.blind) && s->served &&
                    (!job.no_limit || job.closing || (there && !open)) && (!job.blind || nccl_done(s)))
                    s->told = 1;
                if (job.closing)
                    s->told = 1;
            }
        }
        model_sleep(20 * MODEL_US);
    }
}

/* NCCL 2.28 needs up to 640 threads and all registers of a multiprocessor. For the codec kernel see
 * model_driver.c. */
static void make_side(struct side *s, unsigned channels, unsigned blocks)
{
    memset(s, 0, sizeof(*s));
    s->nccl = (struct model_kernel){.name = "NCCL's kernel",
                                    .blocks = channels,
                                    .threads = 640,
                                    .registers = 96,
                                    .shared = 80000,
                                    .done = nccl_done,
                                    .argument = s,
                                    .waits = s->nccl_waits,
                                    .what = "its windows and its peer"};
    s->codec = (struct model_kernel){.name = "codec kernel",
                                     .blocks = blocks,
                                     .threads = 128,
                                     .registers = 128,
                                     .shared = 47924,
                                     .done = codec_done,
                                     .argument = s,
                                     .waits = s->codec_waits,
                                     .what = "being told to end"};
    s->forked = model_event();
    s->ended = model_event();
    s->codec_waits[0] = &s->nccl;
}

static void open_job(const struct model_settings *settings, unsigned comms, unsigned channels,
                     unsigned blocks)
{
    model_open(settings);
    memset(&job, 0, sizeof(job));
    job.comms = comms;
    job.server = model_thread("engine", MODEL_SERVES, engine_main, NULL);
    for (int r = 0; r < RANKS; r++) {
        model_current(r);
        for (unsigned c = 0; c < comms; c++) {
            make_side(&job.side[r][c], channels, blocks);
            job.nccl[r][c] = model_stream(0);
            job.ours[r][c] = model_stream(-5);
            job.marks[r][c] = model_stream(-5);
        }
    }
}

/* Make the other rank's side take part too. */
static void two_ranks(unsigned c)
{
    for (int r = 0; r < RANKS; r++)
        job.side[r][c].other = &job.side[!r][c];
}

enum { BEFORE = 1, MARK = 2, OWN_MARK = 4, JOIN = 8, NO_CODEC = 16 };

/* Launch NCCL's kernel and the codec kernel, in the order that `how` says. */
static void launch(int r, unsigned c, int how)
{
    struct side *s = &job.side[r][c];
    const nb_cu_stream nccl = job.nccl[r][c], ours = job.ours[r][c];

    if (how & NO_CODEC) {
        s->served = 1; /* by the CPU */
        model_launch(nccl, &s->nccl);
        return;
    }
    model_record(s->forked, nccl);
    model_stream_waits(ours, s->forked);
    if (how & BEFORE)
        model_launch(ours, &s->codec);
    model_launch(nccl, &s->nccl);
    if (how & OWN_MARK) { /* before the codec kernel, which ends only by it */
        nb_cu_event behind = model_event();
        model_record(behind, nccl);
        model_stream_waits(job.marks[r][c], behind);
        model_set(job.marks[r][c], &s->mark, 1);
    }
    if (!(how & BEFORE))
        model_launch(ours, &s->codec);
    model_record(s->ended, ours);
    if (how & MARK)
        model_set(nccl, &s->mark, 1);
    if (how & JOIN)
        model_stream_waits(nccl, s->ended);
}

static void compute(struct model_kernel *k, int *loaded)
{
    *k = (struct model_kernel){.name = "compute kernel",
                               .blocks = 256,
                               .threads = 256,
                               .registers = 64,
                               .ns = MODEL_MS,
                               .loaded = loaded};
}

/* ---- The job's thread of each case --------------------------------------------------------------------- */

static int order;
static int64_t took;
static int grown[MODEL_GPUS], loaded[MODEL_GPUS];
static struct model_kernel kernels[4];
static nb_cu_stream computing;

static void one_then_compute(void *argument)
{
    (void)argument;
    model_current(0);
    const int64_t begin = model_now();
    launch(0, 0, order);
    compute(&kernels[0], loaded);
    model_launch(computing, &kernels[0]);
    model_synchronize(computing);
    took = model_now() - begin;
    model_synchronize(job.nccl[0][0]);
    while (!job.side[0][0].codec.over && !(order & NO_CODEC))
        model_sleep(MODEL_MS);
    job.over = 1;
}

static struct model_thread *start(void (*main)(void *), void *argument, const char *name)
{
    struct model_thread *t = model_thread(name, MODEL_JOB, main, argument);
    for (int r = 0; r < RANKS; r++)
        for (unsigned c = 0; c < job.comms; c++)
            job.side[r][c].nccl.launcher = job.side[r][c].codec.launcher = t;
    return t;
}

/* Run, and compare with the expected outcome: words of the circle, or NULL. */
static void outcome(const char *what, const char *expected, const char *more)
{
    const char *said = model_run();

    printf("%-66s %s\n", what, said ? said : "goes through");
    fflush(stdout);
    if (!expected)
        CHECK(!said);
    else
        CHECK(said && strstr(said, expected) && (!more || strstr(said, more)));
    model_close();
}

static void single(const struct model_settings *settings)
{
    open_job(settings, 1, 16, 34);
    model_current(0);
    computing = model_stream(0);
    memset(loaded, 0, sizeof(loaded));
    memset(grown, 0, sizeof(grown));
}

/* F1: the engine asks the driver while a thread of the job loads a kernel. */
static void first_launch_beside(void)
{
    const struct model_settings s = {.seed = 1}, eager = {.seed = 1, .eager = 1};

    order = OWN_MARK;
    single(&s);
    job.asks = 1;
    start(one_then_compute, NULL, "the job's thread");
    outcome("F1 engine asks the driver, kernel loaded beside", "a circle", "the context's lock");
    single(&eager);
    job.asks = 1;
    start(one_then_compute, NULL, "the job's thread");
    outcome("F1 the same with kernels loaded eagerly", NULL, NULL);
    single(&s);
    start(one_then_compute, NULL, "the job's thread");
    outcome("F1 the engine asks nothing", NULL, NULL);
}

/* H1: NCCL's first launch waits for the GPU, on which the codec kernel is. */
static void launched_before(void)
{
    const struct model_settings s = {.seed = 2, .eager = 1};

    for (int behind = 0; behind < 2; behind++) {
        single(&s);
        job.side[0][0].nccl.grown = grown;
        order = OWN_MARK | (behind ? 0 : BEFORE);
        start(one_then_compute, NULL, "the job's thread");
        outcome(behind ? "H1 codec kernel launched behind NCCL's" : "H1 codec kernel launched before NCCL's",
                behind ? NULL : "a circle", "codec kernel");
    }
}

/* Load a kernel on another thread of the job between NCCL's launch and the plugin's. */
static void loads_between(void *argument)
{
    (void)argument;
    model_current(0);
    while (!job.side[0][0].nccl.begun)
        model_sleep(100);
    compute(&kernels[1], loaded);
    model_launch(computing, &kernels[1]);
}

static void two_threads(void)
{
    for (int eager = 0; eager < 2; eager++) {
        const struct model_settings s = {.seed = 3, .eager = eager};
        single(&s);
        order = OWN_MARK;
        start(one_then_compute, NULL, "the launching thread");
        model_thread("another thread of the job", MODEL_JOB, loads_between, NULL);
        outcome(eager ? "   the same with kernels loaded eagerly"
                      : "   a second thread loads between NCCL's launch and ours",
                eager ? NULL : "a circle", "codec kernel");
    }
}

/* F3: ncclCommAbort while the peer is away: it waits for its stream, then stops the proxy. */
static void aborts(void *argument)
{
    (void)argument;
    model_current(0);
    launch(0, 0, order);
    model_sleep(100 * MODEL_MS);
    const int64_t begin = model_now();
    job.side[0][0].aborted = 1;
    model_synchronize(job.nccl[0][0]);
    job.closing = 1;
    took = model_now() - begin;
    job.over = 1;
}

static void abort_late(void)
{
    const struct model_settings s = {.seed = 4};

    for (int now = 0; now < 2; now++) {
        single(&s);
        job.no_limit = !now;
        job.side[0][0].peer_ns = INT64_MAX;
        order = now ? OWN_MARK : MARK | JOIN;
        struct model_thread *t = start(aborts, NULL, "ncclCommAbort");
        job.side[0][0].codec_waits[0] = t; /* windows are open until it stops the proxy */
        outcome(now ? "F3 no join" : "F3 abort while the peer is late, the codec kernel joined",
                now ? NULL : "a circle", "ncclCommAbort");
    }
    CHECK(took < 10 * MODEL_MS);
}

/* F4: the effect of a mark and a join in NCCL's stream on later launches. */
static int64_t overlap(unsigned queues, int how)
{
    const struct model_settings s = {.seed = 5, .queues = queues, .eager = 1};

    single(&s);
    job.side[0][0].peer_ns = model_now() + 1500 * MODEL_MS;
    order = how;
    start(one_then_compute, NULL, "the job's thread");
    outcome(how & NO_CODEC   ? "F4 one queue: plain NCCL"
            : queues == 1    ? "F4 one queue: mark and join behind NCCL's kernel"
            : how & OWN_MARK ? "F4 8 queues: mark on a stream of ours, no join"
                             : "F4 8 queues: mark and join behind NCCL's kernel",
            NULL, NULL);
    return took;
}

/* F4, the same as a deadlock: two ranks with two communicators, in opposite orders. */
static void both(void *argument)
{
    const int r = (int)(intptr_t)argument;

    model_current(r);
    launch(r, (unsigned)r, order);
    launch(r, (unsigned)!r, order);
    model_synchronize(job.nccl[r][0]);
    model_synchronize(job.nccl[r][1]);
}

static void watch_both(void *argument)
{
    (void)argument;
    for (int r = 0; r < RANKS; r++)
        for (unsigned c = 0; c < job.comms; c++)
            while (!job.side[r][c].nccl.over)
                model_sleep(MODEL_MS);
    job.over = 1;
}

static void opposite_orders(unsigned queues, int how, const char *what, const char *expected)
{
    const struct model_settings s = {.seed = 6, .queues = queues, .eager = 1};

    open_job(&s, 2, 16, 17);
    two_ranks(0);
    two_ranks(1);
    order = how;
    for (int r = 0; r < RANKS; r++) {
        struct model_thread *t = model_thread(r ? "rank 1" : "rank 0", MODEL_JOB, both, (void *)(intptr_t)r);
        for (unsigned c = 0; c < 2; c++)
            job.side[r][c].nccl.launcher = job.side[r][c].codec.launcher = t;
    }
    model_thread("watch", MODEL_JOB, watch_both, NULL);
    outcome(what, expected, "queue");
}

/* F5: four communicators on two ranks, begun in opposite orders: the last ones' kernels find no room. */
static void all_four(void *argument)
{
    const int r = (int)(intptr_t)argument;

    model_current(r);
    for (unsigned i = 0; i < COMMS; i++)
        launch(r, r ? COMMS - 1 - i : i, OWN_MARK);
}

static void no_room(unsigned blocks, const char *what, const char *expected)
{
    const struct model_settings s = {.seed = 7, .queues = 32, .eager = 1};

    open_job(&s, COMMS, 24, blocks);
    for (unsigned c = 0; c < COMMS; c++)
        two_ranks(c);
    for (int r = 0; r < RANKS; r++) {
        struct model_thread *t =
            model_thread(r ? "rank 1" : "rank 0", MODEL_JOB, all_four, (void *)(intptr_t)r);
        for (unsigned c = 0; c < COMMS; c++)
            job.side[r][c].nccl.launcher = job.side[r][c].codec.launcher = t;
    }
    model_thread("watch", MODEL_JOB, watch_both, NULL);
    outcome(what, expected, "room");
}

/* F9: a lock of the process is held during a launch, with two GPUs in one process. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static int held;

static void launches_under_lock(void *argument)
{
    const int r = (int)(intptr_t)argument;

    model_current(r);
    if (r == 1)
        model_sleep(5 * MODEL_MS); /* the second GPU's thread is later */
    for (unsigned c = 0; c < 2; c++) {
        if (r == 0 && c == 1)
            model_sleep(2 * MODEL_MS); /* its GPU's context is locked by now */
        if (held)
            pthread_mutex_lock(&list_lock);
        launch(r, c, OWN_MARK);
        if (held)
            pthread_mutex_unlock(&list_lock);
    }
}

static void loads_after(void *argument)
{
    (void)argument;
    model_current(0);
    while (!job.side[0][0].codec.begun)
        model_sleep(100 * MODEL_US);
    compute(&kernels[2], loaded);
    model_launch(computing, &kernels[2]);
}

static void locked_list(void)
{
    for (held = 1; held >= 0; held--) {
        const struct model_settings s = {.seed = 8};
        open_job(&s, 2, 16, 17);
        model_current(0);
        computing = model_stream(0);
        memset(loaded, 0, sizeof(loaded));
        two_ranks(0);
        two_ranks(1);
        for (int r = 0; r < RANKS; r++) {
            struct model_thread *t = model_thread(r ? "thread of GPU 1" : "thread of GPU 0", MODEL_JOB,
                                                  launches_under_lock, (void *)(intptr_t)r);
            for (unsigned c = 0; c < 2; c++)
                job.side[r][c].nccl.launcher = job.side[r][c].codec.launcher = t;
        }
        model_thread("loading thread", MODEL_JOB, loads_after, NULL);
        model_thread("watch", MODEL_JOB, watch_both, NULL);
        outcome(held ? "F9 a lock of the process's is held across launches" : "F9 it is not",
                held ? "a circle" : NULL, "a mutex");
    }
}

/* F10: the driver loads code for its first memset, behind NCCL's kernel, before NCCL calls its proxy. */
static int posted;

static int posted_and_served(void *argument)
{
    return posted && nccl_done(argument);
}

static void first_memset(void *argument)
{
    struct side *s = &job.side[0][0];
    struct model_kernel memset_kernel = {.name = "the driver's memset",
                                         .blocks = 1,
                                         .threads = 32,
                                         .registers = 16,
                                         .ns = 1000,
                                         .loaded = loaded};

    model_current(0);
    if (argument) { /* at connect */
        model_launch(job.ours[0][0], &memset_kernel);
        model_synchronize(job.ours[0][0]);
    }
    model_launch(job.nccl[0][0], &s->nccl);
    model_launch(job.marks[0][0], &memset_kernel);
    model_launch(job.ours[0][0], &s->codec);
    posted = 1;
    s->mark = 1;
    model_synchronize(job.nccl[0][0]);
    model_synchronize(job.marks[0][0]);
    job.over = 1;
}

static void memset_loads(void)
{
    for (int warm = 0; warm < 2; warm++) {
        const struct model_settings s = {.seed = 9};
        single(&s);
        posted = 0;
        job.side[0][0].nccl.done = posted_and_served;
        struct model_thread *t = start(first_memset, warm ? &posted : NULL, "the job's thread");
        job.server = t; /* it hands over to the proxy */
        outcome(warm ? "F10 warmed up at connect" : "F10 the first memset behind NCCL's kernel",
                warm ? NULL : "a circle", "the job's thread");
    }
}

/* Graphs: the codec branch before or behind NCCL's. With one queue the join stands before the work for which
 * it waits. */
static void replays(void *argument)
{
    struct side *s = &job.side[0][0];
    struct model_graph *g;

    (void)argument;
    model_current(0);
    model_capture(job.nccl[0][0]);
    launch(0, 0, MARK | JOIN);
    g = model_capture_end(job.nccl[0][0]);
    for (int i = 0; i < 5; i++) {
        s->served = s->told = s->windows = 0;
        s->mark = 0;
        model_replay(g, computing);
        model_synchronize(computing);
    }
    job.over = 1;
}

static void graphs(void)
{
    for (unsigned queues = 1; queues <= 8; queues += 7) {
        for (int branches = 0; branches < 3; branches++) {
            const struct model_settings s = {
                .seed = 10 + (uint64_t)branches, .branches = branches, .queues = queues};
            char what[80];
            single(&s);
            start(replays, NULL, "the job's thread");
            snprintf(what, sizeof(what), "F12 graph, %u queue%s, branches %s", queues, queues > 1 ? "s" : "",
                     branches == 0   ? "as captured"
                     : branches == 1 ? "NCCL's first"
                                     : "the codec kernel's first");
            const int blocked = queues == 1 && branches == 1;
            outcome(what, blocked ? "a circle" : NULL, "queue");
        }
    }
}

int main(void)
{
#ifdef NB_TSAN
    printf("SKIP: the thread sanitizer does not follow contexts that are switched by hand\n");
    return 77;
#endif
    first_launch_beside();
    launched_before();
    two_threads();
    abort_late();
    const int64_t plain = overlap(1, NO_CODEC), bad = overlap(1, MARK | JOIN), eight = overlap(8, OWN_MARK);
    printf("   compute beside a collective whose peer is 1.5 s late: %.1f ms; behind mark and join in one "
           "queue %.1f ms; 8 queues, mark on a stream of ours %.1f ms\n",
           (double)plain / 1e6, (double)bad / 1e6, (double)eight / 1e6);
    CHECK(plain < 20 * MODEL_MS && bad > 1400 * MODEL_MS && eight < 20 * MODEL_MS);
    opposite_orders(1, MARK | JOIN, "F4 one queue, two communicators in opposite orders", "a circle");
    opposite_orders(8, OWN_MARK, "F4 the same with 8 queues", NULL);
    opposite_orders(1, NO_CODEC, "F4 one queue, no codec kernel", NULL);
    no_room(34, "F5 34 blocks for each of four communicators", "a circle");
    no_room(8, "F5 32 blocks for all of them", NULL);
    locked_list();
    memset_loads();
    graphs();
    return 0;
}
