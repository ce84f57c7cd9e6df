/* SPDX-License-Identifier: Apache-2.0 */
/* From profiler events to records: joins, graph replay, lost events, threads. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "policy/job/job.h"
#include "tests/base/hear.h"
#include "tests/suite.h"

/* ---- joins ------------------------------------------------------------------------------------------- */

START_TEST(join)
{
    struct ev_comm c;
    struct nb_queue *q = consume(7, -1, 2);
    struct ev_op ag = op(EV_ALL_GATHER, "ncclBfloat16", 2, 100003),
                 rs = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 50),
                 ar = op(EV_ALL_REDUCE, "ncclFloat16", 2, 77);
    struct nb_record r;

    ev_open(prof, &c, 7, 2, 2, 1);
    ck_assert_int_eq(c.mask,
                     ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch | ncclProfileCeColl);
    ck_assert(nb_queue_is_profiled(q));
    /* A group has the calls in the user's order and the launches in NCCL's. */
    ev_call(prof, &c, &ar);
    ev_call(prof, &c, &rs);
    ev_call(prof, &c, &ag);
    ck_assert(ar.call != rs.call && rs.call != ag.call);
    ev_launch(prof, &c, &ag, 1);
    ev_launch(prof, &c, &ar, 1);
    ev_launch(prof, &c, &rs, 1);
    r = next(q);
    ck_assert_int_eq(r.func, NB_FUNC_ALL_GATHER);
    ck_assert_int_eq(r.type, ncclInt8);
    ck_assert_int_eq(r.api_type, ncclBfloat16);
    ck_assert_uint_eq(r.bytes, 200006);
    ck_assert_uint_eq(r.flags, NB_RECORD_API);
    ck_assert_ptr_eq(r.send, &buffer[0]);
    ck_assert_ptr_eq(r.recv, &buffer[1]);
    r = next(q);
    ck_assert_int_eq(r.func, NB_FUNC_ALL_REDUCE);
    ck_assert_int_eq(r.type, ncclFloat16);
    ck_assert_uint_eq(r.bytes, 154);
    ck_assert_uint_eq(r.heads, 1 << 1); /* one rank a node */
    r = next(q);
    ck_assert_int_eq(r.func, NB_FUNC_REDUCE_SCATTER);
    ck_assert_uint_eq(r.bytes, 200);
    ck_assert_uint_eq(r.flags, NB_RECORD_API);
    ck_assert_uint_eq(missing_of(&r), 0);
    nothing(q);
    ev_close(prof, &c);
    ck_assert(!nb_queue_is_profiled(q));
    end(q);
}
END_TEST

/* Before version 2.28 NCCL does not report the user's calls. */
START_TEST(without_calls)
{
    struct nb_queue *q = consume(8, -1, 2);
    ncclProfilerEventDescr_v4_t d;
    void *ctx = NULL, *handle = &d;
    int mask = 0;
    struct nb_record r;

    memset(&d, 0, sizeof(d));
    ck_assert_int_eq(ncclProfiler_v4.init(&ctx, &mask, "name", 8, 2, 2, 0, NULL), ncclSuccess);
    ck_assert_int_eq(mask, ncclProfileColl);
    d.type = ncclProfileColl;
    d.coll.func = "AllReduce";
    d.coll.datatype = "ncclFloat32";
    d.coll.count = 12;
    d.coll.algo = "COLLNET_DIRECT";
    ck_assert_int_eq(ncclProfiler_v4.startEvent(ctx, &handle, &d), ncclSuccess);
    ck_assert_ptr_null(handle);
    r = next(q);
    ck_assert_uint_eq(r.flags & NB_RECORD_API, 0);
    ck_assert_uint_eq(r.bytes, 48);
    ncclProfiler_v4.finalize(ctx);
    end(q);
}
END_TEST

START_TEST(only_what_reaches_us)
{
    static const struct {
        const char *algo;
        int nnodes, reaches;
    } row[] = {{"RING", 2, 0},    {"TREE", 2, 0},          {"COLLNET_DIRECT", 2, 1}, {"COLLNET_CHAIN", 2, 1},
               {"NVLS", 2, 1},    {"NVLS", 1, 0},          {"NVLS_TREE", 2, 0},      {"PAT", 2, 0},
               {"Unknown", 2, 0}, {"COLLNET_DIRECT", 1, 0}};

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct nb_queue *q = consume(100 + i, -1, row[i].nnodes);
        struct ev_op ar = op(EV_ALL_REDUCE, "ncclFloat32", 4, 10);
        struct ev_comm c;
        ar.algo = row[i].algo;
        ev_open(prof, &c, 100 + i, row[i].nnodes, 4, 0);
        both(&c, &ar);
        if (row[i].reaches) {
            struct nb_record r = next(q);
            ck_assert_int_eq(!!(r.flags & NB_RECORD_CHAIN), strcmp(row[i].algo, "COLLNET_CHAIN") == 0);
        }
        nothing(q);
        ev_close(prof, &c);
        end(q);
    }
}
END_TEST

START_TEST(contradictions_and_orphans)
{
    struct nb_queue *q = consume(9, -1, 2);
    struct ev_comm c, other;
    struct ev_op a = op(EV_ALL_REDUCE, "ncclFloat32", 4, 10), b = a;
    struct nb_events_counts n;
    struct nb_record r;

    ev_open(prof, &c, 9, 2, 2, 0);
    ev_open(prof, &other, 10, 2, 2, 0);
    ev_call(prof, &c, &a);
    b.count = 11;
    b.call = a.call;
    ev_launch(prof, &c, &b, 1); /* another count than in the user's call */
    r = next(q);
    ck_assert_uint_eq(r.flags & (NB_RECORD_API | NB_RECORD_DOUBT), NB_RECORD_DOUBT);
    b = a;
    b.type = "ncclFloat16";
    ev_launch(prof, &c, &b, 1);
    ck_assert_uint_eq(next(q).flags & (NB_RECORD_API | NB_RECORD_DOUBT), NB_RECORD_DOUBT);
    /* Foreign handles: NULL, pointers, garbage, another communicator's. */
    void *const bad[] = {NULL, &a, (void *)~(uintptr_t)0, (void *)(uintptr_t)0xb, NULL};
    ev_call(prof, &other, &b);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        a.call = i == 4 ? b.call : bad[i];
        ev_launch(prof, &c, &a, 1);
        ck_assert_uint_eq(next(q).flags, 0);
    }
    nb_events_get_counts(c.ctx, &n);
    ck_assert_uint_eq(n.contradictions, 2);
    ck_assert_uint_eq(n.orphans, 5);
    ev_close(prof, &other);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* The queue forgets calls when thousands have come after them, and never mistakes them for others. */
START_TEST(generations)
{
    struct nb_queue *q = consume(11, -1, 2);
    struct ev_comm c;
    struct ev_op first = op(EV_ALL_REDUCE, "ncclFloat32", 4, 1), o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 2);

    ev_open(prof, &c, 11, 2, 2, 0);
    ev_call(prof, &c, &first);
    for (unsigned i = 0; i < NB_EVENTS_RING - 1; i++)
        ev_call(prof, &c, &o);
    ev_launch(prof, &c, &first, 1);
    ck_assert_uint_eq(next(q).flags, NB_RECORD_API);
    ev_call(prof, &c, &o);
    ev_launch(prof, &c, &first, 1);
    ck_assert_uint_eq(next(q).flags, 0);
    ev_launch(prof, &c, &o, 1);
    ck_assert_uint_eq(next(q).flags, NB_RECORD_API);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* ---- CUDA graphs ------------------------------------------------------------------------------------- */

START_TEST(replay)
{
    struct nb_queue *q = consume(12, -1, 2);
    struct ev_comm c;
    struct ev_op captured = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5),
                 eager = op(EV_ALL_REDUCE, "ncclFloat32", 4, 6);
    struct nb_record r;

    ev_open(prof, &c, 12, 2, 2, 0);
    captured.captured = true;
    ev_call(prof, &c, &captured);
    for (int i = 0; i < 20000; i++) { /* replays among eager operations, while the ring goes round several
                                         times */
        if (i % 3 == 0) {
            both(&c, &eager);
            r = next(q);
            ck_assert_uint_eq(r.bytes, 24);
            ck_assert_uint_eq(r.flags, NB_RECORD_API);
        } else {
            ev_launch(prof, &c, &captured, 1);
            r = next(q);
            ck_assert_uint_eq(r.bytes, 20);
            ck_assert_uint_eq(r.flags, NB_RECORD_API | NB_RECORD_CAPTURED);
        }
        ck_assert_uint_eq(missing_of(&r), 0);
    }
    ev_close(prof, &c);
    end(q);
}
END_TEST

START_TEST(captured_calls_are_bounded)
{
    struct ev_comm c;
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5);
    struct nb_events_counts n;
    void *last = NULL;

    ev_open(prof, &c, 13, 2, 2, 0);
    o.captured = true;
    for (unsigned i = 0; i < NB_EVENTS_BLOCK * NB_EVENTS_BLOCKS; i++) {
        ev_call(prof, &c, &o);
        if (!o.call || o.call == last)
            ck_abort_msg("call %u was not kept", i);
        last = o.call;
    }
    ev_call(prof, &c, &o);
    ck_assert_ptr_null(o.call);
    nb_events_get_counts(c.ctx, &n);
    ck_assert_uint_eq(n.calls_dropped, 1);
    ev_close(prof, &c);
}
END_TEST

/* ---- lost events ------------------------------------------------------------------------------------- */

START_TEST(missing_launches)
{
    struct nb_queue *q = consume(14, -1, 2);
    struct ev_comm c;
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5), g = op(EV_ALL_GATHER, "ncclFloat32", 4, 5),
                 ring = o;

    ev_open(prof, &c, 14, 2, 2, 0);
    ring.algo = "RING";
    both(&c, &o);
    ck_assert_uint_eq(missing_of_next(q), 0);
    ev_call(prof, &c, &o);
    ev_launch(prof, &c, &o, 0);
    ev_launch(prof, &c, &o, 0);
    both(&c, &o);
    ck_assert_uint_eq(missing_of_next(q), 2);
    both(&c, &ring); /* reported, and runs elsewhere: no record is missing */
    both(&c, &o);
    ck_assert_uint_eq(missing_of_next(q), 0);
    ev_launch(prof, &c, &o, 0);
    both(&c, &ring); /* shows a loss, which the next record states */
    both(&c, &g);
    ck_assert_uint_eq(missing_of_next(q), 1);
    ev_close(prof, &c);
    end(q);
}
END_TEST

START_TEST(full_queue)
{
    struct nb_queue *q = consume(15, -1, 2);
    struct nb_record r = {.func = NB_FUNC_ALL_REDUCE, .type = ncclFloat32, .bytes = 4, .heads = 2};
    struct nb_queue_counts n;

    for (unsigned i = 0; i < NB_QUEUE_RECORDS; i++)
        ck_assert_int_eq(nb_queue_push(q, &r), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(nb_queue_push(q, &r), -ENOSPC);
    ck_assert_uint_eq(missing_of_next(q), 0);
    ck_assert_int_eq(nb_queue_push(q, &r), 0);
    for (unsigned i = 0; i < NB_QUEUE_RECORDS - 1; i++)
        next(q);
    ck_assert_uint_eq(missing_of_next(q), 3);
    nothing(q);
    nb_queue_get_counts(q, &n);
    ck_assert_uint_eq(n.dropped, 3);
    ck_assert_uint_eq(n.pushed, NB_QUEUE_RECORDS + 1);
    end(q);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 20000 };

static atomic_int running;

static void *producer(void *arg)
{
    struct ev_comm *c = arg;
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 0);

    o.captured = false;
    for (int i = 0; i < EACH; i++) {
        o.count = (size_t)i + 1;
        ev_call(prof, c, &o);
        ev_launch(prof, c, &o, 1);
    }
    atomic_fetch_sub(&running, 1);
    return NULL;
}

START_TEST(threads)
{
    pthread_t t[THREADS];
    struct ev_comm c[THREADS];
    struct nb_queue *q;
    struct nb_queue_counts n;
    uint64_t taken = 0, missing = 0, last = 0;
    struct nb_record r[64];

    gpu = 0;
    q = consume(30, 0, 2);
    for (int i = 0; i < THREADS; i++) /* a family: one parent, three children */
        ev_open(prof, &c[i], 30 + (uint64_t)i, 2, 2, 0);
    atomic_store(&running, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, producer, &c[i]);
    for (;;) {
        int done = atomic_load(&running) == 0;
        size_t k = nb_queue_take(q, r, 64);
        for (size_t i = 0; i < k; i++) {
            if (!(r[i].flags & NB_RECORD_API) || r[i].bytes == 0 || r[i].bytes > 4 * EACH)
                ck_abort_msg("a torn record");
            missing += missing_of(&r[i]);
        }
        taken += k;
        if (done && k == 0)
            break;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    nb_queue_get_counts(q, &n);
    ck_assert_uint_eq(taken, n.pushed);
    ck_assert_uint_eq(n.pushed + n.dropped, THREADS * EACH);
    /* A later record reports the last drops. */
    nb_queue_push(q, &(struct nb_record){.bytes = 4});
    missing += missing_of_next(q);
    ck_assert_uint_eq(missing, n.dropped);
    (void)last;
    for (int i = 0; i < THREADS; i++)
        ev_close(prof, &c[i]);
    end(q);
    gpu = -1;
}
END_TEST

/* One communicator with calls from one thread and replays from another, as NCCL's host callbacks do. */
static void *replayer(void *arg)
{
    struct ev_comm *c = arg;
    struct ev_op o = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 9);

    o.captured = true;
    ev_call(prof, c, &o);
    for (int i = 0; i < EACH; i++)
        ev_launch(prof, c, &o, 1);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

START_TEST(replay_beside_calls)
{
    pthread_t t[2];
    struct ev_comm c;
    struct nb_queue *q = consume(40, -1, 2);
    struct nb_record r[64];
    struct nb_queue_counts n;
    uint64_t gathers = 0;

    ev_open(prof, &c, 40, 2, 2, 0);
    atomic_store(&running, 2);
    pthread_create(&t[0], NULL, producer, &c);
    pthread_create(&t[1], NULL, replayer, &c);
    for (;;) {
        int done = atomic_load(&running) == 0;
        size_t k = nb_queue_take(q, r, 64);
        if (done && k == 0)
            break;
        for (size_t i = 0; i < k; i++) {
            gathers += r[i].func == NB_FUNC_REDUCE_SCATTER;
            if (!(r[i].flags & NB_RECORD_API) ||
                (r[i].func == NB_FUNC_REDUCE_SCATTER) != !!(r[i].flags & NB_RECORD_CAPTURED))
                ck_abort_msg("a record of another operation");
        }
    }
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    nb_queue_get_counts(q, &n); /* a full queue may have dropped calls or launches */
    ck_assert(gathers > 0 || n.dropped >= EACH);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* ---- operations that NCCL runs without CollNet --------------------------------------------------------- */

/* Number of reports, and the last text. */
static int told;
static char words[512];

static void hear(ncclDebugLogLevel level, const char *text)
{
    if (level != NCCL_LOG_WARN)
        return;
    snprintf(words, sizeof(words), "%.511s", text);
    told++;
}

static void open_listening(struct ev_comm *c, int nodes)
{
    told = 0;
    words[0] = '\0';
    memset(c, 0, sizeof(*c));
    prof->init(&c->ctx, 0x9f, &c->mask, NULL, nodes, nodes, 0, hear_log);
}

/* The same through v6. What events tell depends on the table that began the communicator. */
static void open_listening_v6(struct ev_comm *c, int nodes)
{
    open_listening(c, nodes);
    prof->finalize(c->ctx);
    ncclProfiler_v6.init(&c->ctx, 0x9f, &c->mask, NULL, nodes, nodes, 0, hear_log);
}

/* The framework's word is in the record of the call: by the tag of the call, else by the communicator's name.
 * Other tags and names say nothing. */
START_TEST(framework_says)
{
    static const struct {
        const char *name;
        uint64_t tag;
        enum nb_caller says;
    } row[] = {{NULL, NB_TAG_GRADIENT, NB_CALLER_SAYS_GRADIENT},
               {NULL, NB_TAG_EXACT, NB_CALLER_SAYS_EXACT},
               {NULL, 1, NB_CALLER_UNKNOWN},
               {"mesh_dp", 0, NB_CALLER_UNKNOWN},
               {"nibble:gradients", 0, NB_CALLER_SAYS_GRADIENT},
               {"mesh nibble:exact 3", 0, NB_CALLER_SAYS_EXACT},
               {"nibble:gradients", 1, NB_CALLER_SAYS_GRADIENT},
               {"nibble:gradients", NB_TAG_EXACT, NB_CALLER_SAYS_EXACT}};
    struct nb_queue *q = consume(0x7a, -1, 2);

    for (unsigned i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        for (int captured = 0; captured < 2; captured++) {
            struct ev_op rs = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 64);
            struct ev_comm c = {0};
            prof->init(&c.ctx, 0x7a, &c.mask, row[i].name, 2, 2, 0, NULL);
            rs.tag = row[i].tag;
            rs.captured = captured;
            both(&c, &rs);
            ck_assert_int_eq(next(q).caller, row[i].says);
            ev_close(prof, &c);
        }
    end(q);
}
END_TEST

/* Before v7, calls of one function that NCCL never launches use kernels for symmetric memory. That is not so
 * while some calls are launched, in a graph, inside a node, or for other functions. */
START_TEST(symmetric_memory)
{
    struct nb_queue *q = consume(0x9f, -1, 2);
    struct ev_op ag = op(EV_ALL_GATHER, "ncclBfloat16", 2, 64),
                 rs = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 64),
                 graph = op(EV_ALL_GATHER, "ncclBfloat16", 2, 64);
    struct nb_events_counts n;
    struct ev_comm c;

    graph.captured = true;
    open_listening_v6(&c, 2);
    for (unsigned i = 1; i < NB_EVENTS_UNLAUNCHED; i++)
        ev_call(prof, &c, &ag);
    for (unsigned i = 0; i < 2 * NB_EVENTS_UNLAUNCHED && i < 4096; i++)
        ev_call(prof, &c, &graph);
    ev_launch(prof, &c, &ag, 1);
    for (unsigned i = 1; i < NB_EVENTS_UNLAUNCHED; i++)
        ev_call(prof, &c, &ag);
    ev_call(prof, &c, &rs);
    ck_assert_int_eq(told, 0);
    ev_call(prof, &c, &ag);
    ck_assert_int_eq(told, 1);
    ck_assert_ptr_nonnull(
        strstr(words, "comm 0x9f: NCCL carries out all_gather with kernels for symmetric memory"));
    ck_assert_ptr_nonnull(strstr(words, "NCCL_WIN_ENABLE=0"));
    for (int i = 0; i < 3; i++)
        ev_call(prof, &c, &ag);
    ck_assert_int_eq(told, 1);
    nb_events_get_counts(c.ctx, &n);
    ck_assert_uint_eq(n.bypassed, NB_EVENTS_UNLAUNCHED + 3);
    ev_close(prof, &c);
    open_listening_v6(&c, 1);
    for (unsigned i = 0; i < 2 * NB_EVENTS_UNLAUNCHED; i++)
        ev_call(prof, &c, &ag);
    ck_assert_int_eq(told, 0);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* Version 7 says which launches are kernels for symmetric memory, so that calls without a launch prove
 * nothing. Such an operation does not reach CollNet, whatever its algorithm is called: it makes no record. */
START_TEST(symmetric_memory_reported)
{
    struct nb_queue *q = consume(0x9f, -1, 2);
    struct ev_op ag = op(EV_ALL_GATHER, "ncclBfloat16", 2, 64), ar = op(EV_ALL_REDUCE, "ncclFloat32", 4, 64);
    struct nb_events_counts n;
    struct ev_comm c;

    for (int nodes = 1; nodes <= 2; nodes++) {
        open_listening(&c, nodes);
        for (unsigned i = 0; i < 2 * NB_EVENTS_UNLAUNCHED; i++)
            ev_call(prof, &c, &ag);
        ck_assert_int_eq(told, 0);
        ar.symmetric = false;
        ev_call(prof, &c, &ar);
        ev_launch(prof, &c, &ar, 1);
        ck_assert_int_eq(told, 0);
        ar.symmetric = true;
        for (int i = 0; i < 3; i++) {
            ev_call(prof, &c, &ar);
            ev_launch(prof, &c, &ar, 1);
        }
        ck_assert_int_eq(told, nodes - 1);
        nb_events_get_counts(c.ctx, &n);
        ck_assert_uint_eq(n.bypassed, nodes == 2 ? 3 : 0);
        ck_assert_uint_eq(n.recorded, nodes == 2 ? 1 : 0);
        ck_assert_uint_eq(n.elsewhere, nodes == 2 ? 3 : 4);
        ev_close(prof, &c);
    }
    ck_assert_ptr_nonnull(strstr(words, "all_reduce with kernels for symmetric memory, past CollNet"));
    end(q);
}
END_TEST

/* Copy engines: NCCL reports them from version 6 on. */
START_TEST(copy_engines)
{
    struct nb_queue *q = consume(0x9f, -1, 2);
    ncclProfilerEventDescr_v7_t d;
    void *handle = &d;
    struct ev_comm c;

    memset(&d, 0, sizeof(d));
    d.type = ncclProfileCeColl;
    d.ceColl.func = "AllGather";
    for (int nodes = 1; nodes <= 2; nodes++) {
        open_listening(&c, nodes);
        ck_assert(c.mask & ncclProfileCeColl);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(prof->startEvent(c.ctx, &handle, &d), ncclSuccess);
            ck_assert_ptr_null(handle);
        }
        ck_assert_int_eq(told, nodes - 1);
        ev_close(prof, &c);
    }
    ck_assert_ptr_nonnull(strstr(words, "all_gather with copy engines, past CollNet"));
    ck_assert_ptr_nonnull(strstr(words, "NIBBLE_RMA=1"));
    /* By nibble's puts their bytes may travel as deltas: no reason for a warning. */
    struct nb_context *ctx = nb_process_context();
    const struct nb_params *before = ctx->params;
    struct nb_params puts = *before;
    puts.rma = 1;
    ctx->params = &puts;
    open_listening(&c, 2);
    ck_assert_int_eq(prof->startEvent(c.ctx, &handle, &d), ncclSuccess);
    d.ceColl.func = "AlltoAll";
    ck_assert_int_eq(prof->startEvent(c.ctx, &handle, &d), ncclSuccess);
    d.ceColl.func = "Gather"; /* inside a node */
    ck_assert_int_eq(prof->startEvent(c.ctx, &handle, &d), ncclSuccess);
    ck_assert_int_eq(told, 0);
    ck_assert_uint_eq(ctx->p2p.past[NB_PAST_COPIES][NB_FUNC_ALL_GATHER], 3);
    ck_assert_uint_eq(ctx->p2p.past[NB_PAST_COPIES][NB_PAST_ALL_TO_ALL], 1);
    ev_close(prof, &c);
    ctx->params = before;
    end(q);
}
END_TEST

/* ---- launches of kernels ----------------------------------------------------------------------------- */

static char seen[256]; /* the observer's calls */

static void note(const char *what, int number)
{
    const size_t at = strlen(seen);

    snprintf(seen + at, sizeof(seen) - at, "%s%s%d", at ? " " : "", what, number);
}

static void attached(struct nb_context *ctx, int device, int by)
{
    (void)ctx;
    (void)device;
    (void)by;
}

static uint64_t kernel_begins(struct nb_context *ctx, int device, uint64_t comm_id, int nnodes, void *stream,
                              bool sums, bool eager)
{
    (void)ctx;
    (void)device;
    (void)stream;
    note(comm_id != 5 || nnodes != 2 ? "wrong" : eager ? "begin" : "captured", sums);
    return 1;
}

static void kernel_ends(struct nb_context *ctx, uint64_t launch)
{
    (void)ctx;
    note("end", (int)launch);
}

static void handed(struct nb_context *ctx, int device, uint64_t comm_id)
{
    (void)ctx;
    (void)device;
    note("handed", (int)comm_id);
}

static void posted(struct nb_context *ctx, uint64_t launch, bool counts)
{
    (void)ctx;
    (void)launch;
    note("posted", counts);
}

/* Launch a kernel of the calls `calls`, in a group. Return what the observer was told. */
static const char *kernel_of(struct nb_events *ev, const char *const *calls, const char *algo, int known)
{
    static uint64_t seq[3];
    const void *call[4] = {NULL};
    int n = 0;

    seen[0] = 0;
    for (; calls[n]; n++)
        if (known)
            call[n] = nb_events_call(
                ev, &(struct nb_events_call){.func = calls[n], .type = "ncclFloat32", .count = 1000});
    nb_events_stop(nb_events_kernel(ev, &n));
    for (int i = 0; i < n; i++)
        nb_events_launch(ev, &(struct nb_events_op){.func = calls[i],
                                                    .type = "ncclFloat32",
                                                    .algo = algo,
                                                    .count = 1000,
                                                    .seq = seq[calls[i][3] == 'R' ? 0 : 1]++,
                                                    .call = call[i]});
    nb_events_stop(nb_events_launched());
    nb_events_stop(nb_events_grouped());
    return seen;
}

/* Check the calls that the observer gets for each kernel: begin (1 where all-reduces may come), end, handed
 * with records for the engine, posted. A kernel that only sends and receives causes no call. */
START_TEST(kernels)
{
    static const struct nb_launch_observer observer = {attached, kernel_begins, kernel_ends, handed, posted};
    static const char *const none[] = {NULL}, *const scatter[] = {"ReduceScatter", NULL},
                             *const sum[] = {"AllReduce", NULL},
                             *const both[] = {"AllReduce", "ReduceScatter", NULL};
    struct nb_context *ctx = nb_process_context();
    struct nb_queue *q = consume(5, -1, 2);
    struct nb_events *ev = nb_events_create(ctx, &observer, 5, 2, 2, 0, 1);

    ck_assert_ptr_nonnull(ev);
    ck_assert_str_eq(kernel_of(ev, none, NULL, 1), "");
    ck_assert_str_eq(kernel_of(ev, scatter, "COLLNET_DIRECT", 1), "begin0 end1 handed5 posted1");
    ck_assert_str_eq(kernel_of(ev, scatter, "RING", 1), "begin0 end1 posted1");
    ck_assert_str_eq(kernel_of(ev, sum, "COLLNET_DIRECT", 1), "begin1 end1 posted0");
    ck_assert_str_eq(kernel_of(ev, both, "COLLNET_DIRECT", 1), "begin1 end1 handed5 posted0");
    ck_assert_str_eq(kernel_of(ev, none, NULL, 1), "");
    /* The tuner's tables: no codec kernel where NCCL chose CollNet for none of the calls. */
    nb_queue_chosen(q, false);
    ck_assert_str_eq(kernel_of(ev, sum, "RING", 1), "");
    nb_queue_chosen(q, true);
    nb_queue_chosen(q, false);
    ck_assert_str_eq(kernel_of(ev, both, "COLLNET_DIRECT", 1), "begin1 end1 handed5 posted0");
    ck_assert_str_eq(kernel_of(ev, scatter, "RING", 1), "begin0 end1 posted1"); /* it was not asked */
    nb_queue_chosen(q, false);
    ck_assert_str_eq(kernel_of(ev, none, NULL, 1), ""); /* launches nothing that it was asked for */
    ck_assert_str_eq(kernel_of(ev, scatter, "TREE", 1), "");
    nb_queue_chosen(q, false);
    ck_assert_str_eq(kernel_of(ev, scatter, "COLLNET_DIRECT", 1), "handed5"); /* the table was wrong, */
    nb_queue_chosen(q, false);
    ck_assert_str_eq(kernel_of(ev, scatter, "RING", 1), "begin0 end1 posted1"); /* and counts no more */
    /* A captured call: its launches have no further calls. The observer knows
     * whether it is one. */
    ck_assert_ptr_nonnull(nb_events_call(
        ev,
        &(struct nb_events_call){.func = "AllReduce", .type = "ncclFloat32", .count = 10, .captured = 1}));
    ck_assert_str_eq(kernel_of(ev, none, NULL, 1), "captured0 end1 posted1");
    ck_assert_str_eq(kernel_of(ev, scatter, "RING", 1), "begin0 end1 posted1");
    while (nb_queue_take(q, &(struct nb_record){0}, 1))
        ;
    nb_events_destroy(ev);
    end(q);
}
END_TEST

int main(void)
{
    if (fixture_open())
        return EXIT_FAILURE;
    return SUITE("policy/events", TEST(join), TEST(without_calls), TEST(only_what_reaches_us),
                 TEST(contradictions_and_orphans), TEST(generations), TEST(replay),
                 TEST(captured_calls_are_bounded), TEST(missing_launches), TEST(full_queue), TEST(threads),
                 TEST(replay_beside_calls), TEST(symmetric_memory), TEST(symmetric_memory_reported),
                 TEST(copy_engines), TEST(kernels), TEST(framework_says));
}
