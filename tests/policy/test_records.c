/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From profiler events to records: joins, queues, communicators that share resources, graph replay, lost
 * events, threads; and from records to operations: alignment when some are missing.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "policy/align.h"
#include "policy/events.h"
#include "policy/record.h"

extern const ncclProfiler_v4_t ncclProfiler_v4;
extern const ncclProfiler_v5_t ncclProfiler_v5;
extern const ncclProfiler_v6_t ncclProfiler_v6;

static const ncclProfiler_v6_t *const prof = &ncclProfiler_v6;
static int buffer[4];

static struct ev_op op(int func, const char *type, size_t type_bytes, size_t count)
{
    return (struct ev_op){.func = func,
                          .type = type,
                          .type_bytes = type_bytes,
                          .count = count,
                          .send = &buffer[0],
                          .recv = &buffer[1]};
}

static void both(struct ev_comm *c, struct ev_op *o)
{
    ev_call(prof, c, o);
    ev_launch(prof, c, o, 1);
}

static struct nb_queue *consume(uint64_t id, int device, int nnodes)
{
    struct nb_queue *q = nb_queue_get(id, device);

    ck_assert_ptr_nonnull(q);
    ck_assert_int_eq(nb_queue_attach(q, nnodes), 0);
    return q;
}

static void end(struct nb_queue *q)
{
    nb_queue_detach(q);
    nb_queue_put(q);
}

static struct nb_record next(struct nb_queue *q)
{
    struct nb_record r;

    ck_assert_uint_eq(nb_queue_take(q, &r, 1), 1);
    return r;
}

static uint32_t missing_of(const struct nb_record *r)
{
    uint32_t n = 0;
    for (int f = 0; f < NB_FUNC_COUNT; f++)
        n += r->missing[f];
    return n;
}

static uint32_t missing_of_next(struct nb_queue *q)
{
    struct nb_record r = next(q);
    return missing_of(&r);
}

static void nothing(struct nb_queue *q)
{
    struct nb_record r;
    ck_assert_uint_eq(nb_queue_take(q, &r, 1), 0);
}

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
    ck_assert_int_eq(c.mask, ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch);
    ck_assert(nb_queue_is_profiled(q));
    /* A group: the calls in the user's order, the launches in NCCL's. */
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

/* NCCL does not tell the users' calls before 2.28. */
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
    } row[] = {{"RING", 2, 0},  {"TREE", 2, 0},          {"COLLNET_DIRECT", 2, 1}, {"COLLNET_CHAIN", 2, 1},
               {"NVLS", 2, 1},  {"NVLS", 1, 0},          {"NVLS_TREE", 2, 0},      {"PAT", 2, 0},
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
    ev_launch(prof, &c, &b, 1); /* another count than the user's */
    r = next(q);
    ck_assert_uint_eq(r.flags & (NB_RECORD_API | NB_RECORD_DOUBT), NB_RECORD_DOUBT);
    b = a;
    b.type = "ncclFloat16";
    ev_launch(prof, &c, &b, 1);
    ck_assert_uint_eq(next(q).flags & (NB_RECORD_API | NB_RECORD_DOUBT), NB_RECORD_DOUBT);
    /* Handles that are none of ours: NULL, pointers, garbage, another communicator's. */
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

/* Calls are forgotten when thousands have come after them, never mistaken for others. */
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
    for (int i = 0; i < 20000; i++) { /* replays among eager operations; the ring goes round several times */
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
    both(&c, &ring); /* told, and goes elsewhere: nothing is missing */
    both(&c, &o);
    ck_assert_uint_eq(missing_of_next(q), 0);
    ev_launch(prof, &c, &o, 0);
    both(&c, &ring); /* shows that one is missing; the next record says so */
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

/* ---- whose queue ------------------------------------------------------------------------------------- */

START_TEST(either_half_first)
{
    struct ev_comm c;
    struct nb_queue *q;
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5);

    nb_pretend_gpu(3);
    ev_open(prof, &c, 16, 2, 2, 0);
    both(&c, &o); /* nobody consumes */
    nb_pretend_gpu(-1); /* the connecting thread has no context: the communicator tells */
    q = consume(16, -1, 2);
    nothing(q);
    both(&c, &o);
    ck_assert_uint_eq(next(q).bytes, 20);
    end(q);
    both(&c, &o);
    ev_close(prof, &c);
    nb_pretend_gpu(-2);
}
END_TEST

START_TEST(several_gpus_in_a_process)
{
    struct ev_comm c[4];
    struct nb_queue *q[4];

    for (int g = 0; g < 4; g++) {
        nb_pretend_gpu(g);
        ev_open(prof, &c[g], 17, 2, 8, g);
        q[g] = consume(17, nb_current_gpu(), 2);
    }
    for (int g = 0; g < 4; g++) {
        struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 10 + (size_t)g);
        both(&c[g], &o);
    }
    for (int g = 0; g < 4; g++) {
        struct nb_record r = next(q[g]);
        ck_assert_uint_eq(r.bytes, 4 * (10 + (uint64_t)g));
        ck_assert_uint_eq(r.heads, 0x1e); /* one to four heads a node */
        nothing(q[g]);
    }
    for (int g = 0; g < 4; g++) {
        ev_close(prof, &c[g]);
        end(q[g]);
    }
    nb_pretend_gpu(-2);
}
END_TEST

/* More GPUs a node than heads that can be told apart (a rack that is one node): nothing is known of their
 * number, also when a gather or scatter has shown it. */
START_TEST(heads_beyond_count)
{
    struct nb_queue *q = consume(19, -1, 2);
    struct ev_comm c;
    struct ev_op ar = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5), rs = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 5);
    struct nb_record r;

    rs.algo = ar.algo = "NVLS";
    ev_open(prof, &c, 19, 2, 144, 0);
    for (int i = 0; i < 2; i++) {
        both(&c, &ar);
        r = next(q);
        ck_assert_uint_eq(r.heads, 0);
        ck_assert(r.flags & NB_RECORD_CHAIN); /* its length says nothing */
        both(&c, &rs);
        ck_assert_uint_eq(next(q).bytes, 20);
    }
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* A gather or scatter through CollNet shows that every GPU of a node is a head. */
START_TEST(heads_learned)
{
    struct nb_queue *q = consume(18, -1, 2);
    struct ev_comm c;
    struct ev_op ar = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5), rs = op(EV_REDUCE_SCATTER, "ncclFloat32", 4, 5);

    ev_open(prof, &c, 18, 2, 16, 0);
    both(&c, &ar);
    ck_assert_uint_eq(next(q).heads, 0x1fe);
    rs.algo = "RING";
    both(&c, &rs); /* says nothing about heads */
    both(&c, &ar);
    ck_assert_uint_eq(next(q).heads, 0x1fe);
    rs.algo = "NVLS";
    both(&c, &rs);
    ck_assert_uint_eq(next(q).heads, 1 << 8);
    both(&c, &ar);
    ck_assert_uint_eq(next(q).heads, 1 << 8);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* ncclCommSplit with shared resources: no listen, operations over the parent's connections. */
START_TEST(split_children)
{
    struct ev_comm parent, child, elsewhere, wide;
    struct nb_queue *q, *second;
    struct ev_op a = op(EV_ALL_REDUCE, "ncclFloat32", 4, 1), b = op(EV_ALL_REDUCE, "ncclFloat32", 4, 2);
    struct nb_events_counts n;

    nb_pretend_gpu(0);
    ev_open(prof, &parent, 20, 2, 2, 0);
    q = consume(20, 0, 2);
    ev_open(prof, &child, 21, 2, 2, 0);
    ev_open(prof, &wide, 22, 3, 3, 0); /* other nodes: cannot share */
    nb_pretend_gpu(1);
    ev_open(prof, &elsewhere, 23, 2, 2, 0); /* another device: no head */
    both(&parent, &a);
    both(&child, &b);
    both(&elsewhere, &b);
    both(&wide, &b);
    both(&parent, &a);
    ck_assert_uint_eq(next(q).bytes, 4);
    ck_assert_uint_eq(next(q).bytes, 8);
    ck_assert_uint_eq(next(q).bytes, 4);
    nothing(q);
    nb_events_get_counts(elsewhere.ctx, &n);
    ck_assert_uint_eq(n.unqueued, 1);
    /* A second family on the device: whose the child is cannot be told, so both learn that one may be
     * missing. */
    second = consume(24, 0, 2);
    both(&child, &b);
    nothing(q);
    nothing(second);
    both(&parent, &a);
    ck_assert_uint_eq(missing_of_next(q), 1);
    end(second);
    /* The child gets a group of its own. */
    second = consume(21, 0, 2);
    both(&child, &b);
    nothing(q);
    ck_assert_uint_eq(next(second).bytes, 8);
    end(second);
    ev_close(prof, &wide);
    ev_close(prof, &elsewhere);
    ev_close(prof, &child);
    ev_close(prof, &parent);
    end(q);
    nb_pretend_gpu(-2);
}
END_TEST

START_TEST(no_context)
{
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 1);
    struct ev_comm c = {NULL, 0, {0, 0, 0}};
    ncclProfilerEventDescr_v5_t d5;
    void *handle = &o;

    both(&c, &o);
    memset(&d5, 0, sizeof(d5));
    d5.type = ncclProfileCollApi;
    ck_assert_int_eq(ncclProfiler_v5.startEvent(NULL, &handle, &d5), ncclSuccess);
    ck_assert_ptr_null(handle);
    ck_assert_int_eq(ncclProfiler_v5.startEvent(NULL, NULL, NULL), ncclSuccess);
    ck_assert_int_eq(ncclProfiler_v4.startEvent(NULL, NULL, NULL), ncclSuccess);
    ck_assert_int_eq(prof->startEvent(NULL, NULL, NULL), ncclSuccess);
    ck_assert_int_eq(prof->stopEvent(NULL), ncclSuccess);
    ck_assert_int_eq(prof->recordEventState(NULL, 22, NULL), ncclSuccess);
    ck_assert_int_eq(prof->finalize(NULL), ncclSuccess);
    ck_assert_int_eq(prof->init(NULL, 1, NULL, NULL, 1, 1, 0, NULL), ncclSuccess);
    ck_assert_int_eq(ncclProfiler_v5.init(&handle, 1, NULL, NULL, 1, 1, 0, NULL), ncclSuccess);
    /* Relatives of the wanted events, texts that are missing. */
    for (unsigned bit = 0; bit < 16; bit++) {
        void *h = &o;
        memset(&d5, 0, sizeof(d5));
        d5.type = UINT64_C(1) << bit;
        ck_assert_int_eq(ncclProfiler_v5.startEvent(handle, &h, &d5), ncclSuccess);
        ck_assert_ptr_null(h);
    }
    ncclProfiler_v5.finalize(handle);
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

    nb_pretend_gpu(0);
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
    /* What was dropped last is told by a record yet to come. */
    nb_queue_push(q, &(struct nb_record){.bytes = 4});
    missing += missing_of_next(q);
    ck_assert_uint_eq(missing, n.dropped);
    (void)last;
    for (int i = 0; i < THREADS; i++)
        ev_close(prof, &c[i]);
    end(q);
    nb_pretend_gpu(-2);
}
END_TEST

/* One communicator, its calls from one thread and its replays from another, as NCCL's host callbacks do. */
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
    nb_queue_get_counts(q, &n); /* a full queue may have dropped either */
    ck_assert(gathers > 0 || n.dropped >= EACH);
    ev_close(prof, &c);
    end(q);
}
END_TEST

/* ---- alignment --------------------------------------------------------------------------------------- */

static struct nb_align *al;

static void add(enum nb_func func, uint64_t bytes, uint32_t missing)
{
    struct nb_record r = {.func = func, .type = ncclFloat32, .bytes = bytes, .heads = 2, .head = -1,
                          .slot = (int64_t)bytes};
    r.missing[func] = missing;
    nb_align_add(al, &r);
}

static uint64_t got;

/* An operation begins: how, and which bytes the record says. All-reduces do not show theirs. */
static enum nb_alignment begin(enum nb_func func, uint64_t bytes)
{
    struct nb_seen seen = {func, ncclFloat32, func == NB_FUNC_ALL_REDUCE ? 0 : bytes};
    struct nb_record r;
    enum nb_alignment how = nb_align_begin(al, &seen, &r);

    got = how == NB_ALIGN_CERTAIN || how == NB_ALIGN_ALIKE ? r.bytes : 0;
    if (got)
        ck_assert_uint_eq(got, bytes); /* never a wrong one */
    return how;
}

/* The same, all of it: one head, steps of 1000 bytes. */
static enum nb_alignment reduce(uint64_t bytes)
{
    enum nb_alignment how = begin(NB_FUNC_ALL_REDUCE, bytes);
    nb_align_ended(al, (bytes + 999) / 1000, 1000);
    return how;
}

#define RS NB_FUNC_REDUCE_SCATTER
#define AR NB_FUNC_ALL_REDUCE

static void al_setup(void)
{
    al = nb_align_create();
}

static void al_teardown(void)
{
    nb_align_destroy(al);
}

START_TEST(in_step)
{
    for (uint64_t i = 1; i < 3 * NB_QUEUE_RECORDS; i++) {
        add(i % 2 ? AR : RS, 4 * i, 0);
        ck_assert_int_eq(i % 2 ? reduce(4 * i) : begin(RS, 4 * i), NB_ALIGN_CERTAIN);
        ck_assert_uint_eq(nb_align_room(al), NB_QUEUE_RECORDS - (i % 2 ? 0 : 1));
    }
    ck_assert_int_eq(reduce(4), NB_ALIGN_ABSENT);
    add(AR, 8, 0);
    ck_assert_int_eq(reduce(8), NB_ALIGN_CERTAIN);
}
END_TEST

/* A loss that showed when its operation came costs nothing later, when NCCL's number tells of it. */
START_TEST(lost_and_seen)
{
    for (uint64_t i = 1; i < 20; i++) {
        ck_assert_int_eq(reduce(9000), NB_ALIGN_ABSENT);
        add(RS, 64, 0);
        add(AR, 4 * i, 1);
        ck_assert_int_eq(begin(RS, 64), NB_ALIGN_CERTAIN);
        ck_assert_int_eq(reduce(4 * i), NB_ALIGN_CERTAIN);
    }
}
END_TEST

/* A launch that contradicts its call stands for one operation, whichever. */
START_TEST(contradicting_record)
{
    struct nb_record bad = {.func = AR, .type = ncclInt32, .bytes = 12, .heads = 2, .flags = NB_RECORD_DOUBT},
                     r;
    struct nb_seen seen = {AR, ncclFloat32, 0};

    nb_align_add(al, &bad);
    add(AR, 4000, 0);
    ck_assert_int_eq(nb_align_begin(al, &seen, &r), NB_ALIGN_CERTAIN);
    ck_assert_uint_eq(r.flags, NB_RECORD_DOUBT);
    ck_assert_int_eq(nb_align_ended(al, 7, 1000), 0);
    ck_assert_int_eq(reduce(4000), NB_ALIGN_CERTAIN);
}
END_TEST

START_TEST(misfit_then_next)
{
    add(AR, 5000, 0); /* of the second operation: the first one's is missing, and nothing tells */
    add(RS, 64, 0);
    ck_assert_int_eq(begin(RS, 100), NB_ALIGN_MISFIT);
    ck_assert_int_eq(reduce(5000), NB_ALIGN_CERTAIN);
    ck_assert_int_eq(begin(RS, 64), NB_ALIGN_CERTAIN);
}
END_TEST

/* An event was lost among all-reduces of the same type; NCCL's number told. Until sizes show which is which,
 * none is used; then all are. */
START_TEST(lost_among_alike)
{
    int certain = 0;

    add(AR, 5000, 0);
    ck_assert_int_eq(reduce(5000), NB_ALIGN_CERTAIN);
    /* 9000 is lost; 3000, 7000, 2000, 4000 follow */
    add(AR, 3000, 1);
    add(AR, 7000, 0);
    add(AR, 2000, 0);
    add(AR, 4000, 0);
    ck_assert_int_eq(reduce(9000), NB_ALIGN_DOUBT);
    for (uint64_t i = 0; i < 4; i++)
        certain += reduce((uint64_t[]){3000, 7000, 2000, 4000}[i]) == NB_ALIGN_CERTAIN;
    ck_assert_int_ge(certain, 3);
}
END_TEST

/* The lost operation never came here (another algorithm). */
START_TEST(lost_elsewhere)
{
    int certain = 0;

    add(AR, 3000, 1);
    add(AR, 7000, 0);
    add(AR, 2000, 0);
    ck_assert_int_eq(reduce(3000), NB_ALIGN_DOUBT);
    certain += reduce(7000) == NB_ALIGN_CERTAIN;
    certain += reduce(2000) == NB_ALIGN_CERTAIN;
    ck_assert_int_ge(certain, 1);
}
END_TEST

/* All sizes equal: which is which stays open, but they all say the same, without a buffer. */
START_TEST(alike_is_enough)
{
    add(AR, 4000, 1);
    for (int i = 0; i < 6; i++)
        add(AR, 4000, 0);
    ck_assert_int_eq(reduce(4000), NB_ALIGN_DOUBT);
    for (int i = 0; i < 4; i++) {
        enum nb_alignment how = reduce(4000);
        ck_assert_int_eq(how, NB_ALIGN_ALIKE);
    }
}
END_TEST

/* Records whose operations never came. */
START_TEST(superfluous)
{
    add(RS, 1111, 0);
    add(AR, 3000, 0);
    ck_assert_int_eq(reduce(3000), NB_ALIGN_MISFIT);
    add(AR, 2000, 0);
    ck_assert_int_eq(reduce(2000), NB_ALIGN_CERTAIN);
}
END_TEST

START_TEST(wrong_size_shows_at_the_end)
{
    struct nb_seen seen = {AR, ncclFloat32, 0};
    struct nb_record r;

    add(AR, 30000, 0);
    ck_assert_int_eq(nb_align_begin(al, &seen, &r), NB_ALIGN_CERTAIN);
    ck_assert_int_eq(nb_align_ended(al, 2, 1000), -1);
}
END_TEST

/* Random sequences with random losses that NCCL's numbers show, and operations elsewhere: never a wrong
 * record, and most are used. */
START_TEST(random_losses)
{
    uint64_t seed = 0x9e3779b97f4a7c15 * (uint64_t)(_i + 1), used = 0, total = 0;
    uint32_t missing[NB_FUNC_COUNT] = {0};
    struct { uint64_t bytes; int func; } wait[8];
    unsigned waiting = 0;

    for (int i = 0; i < 20000; i++) {
        uint64_t bytes, kind;
        int func;
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        bytes = 4 * (1 + seed % 4 * 700);
        func = seed >> 20 & 1 ? AR : RS;
        kind = seed >> 32 & 63;
        if (kind == 0) { /* lost, comes here */
            missing[func]++;
        } else if (kind == 1) { /* lost, goes elsewhere */
            missing[func]++;
            continue;
        } else {
            add((enum nb_func)func, bytes, missing[func]);
            missing[func] = 0;
        }
        wait[waiting].bytes = bytes;
        wait[waiting++].func = func;
        if (waiting < 1 + (seed >> 40 & 7)) /* launches run ahead */
            continue;
        for (unsigned k = 0; k < waiting; k++) {
            enum nb_alignment how = wait[k].func == AR ? reduce(wait[k].bytes) : begin(RS, wait[k].bytes);
            used += how == NB_ALIGN_CERTAIN || how == NB_ALIGN_ALIKE;
            total++;
        }
        waiting = 0;
    }
    ck_assert_int_eq(al->blind, 0);
    ck_assert_msg(used * 10 > total * 7, "only %lu of %lu records were used", (unsigned long)used,
                  (unsigned long)total);
    if (_i == 0)
        printf("alignment: %lu of %lu operations had their record, 1 in 32 events lost\n",
               (unsigned long)used, (unsigned long)total);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("records");
    TCase *t = tcase_create("events"), *a = tcase_create("alignment");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_set_timeout(a, 120);
    tcase_add_test(t, join);
    tcase_add_test(t, without_calls);
    tcase_add_test(t, only_what_reaches_us);
    tcase_add_test(t, contradictions_and_orphans);
    tcase_add_test(t, generations);
    tcase_add_test(t, replay);
    tcase_add_test(t, captured_calls_are_bounded);
    tcase_add_test(t, missing_launches);
    tcase_add_test(t, full_queue);
    tcase_add_test(t, either_half_first);
    tcase_add_test(t, several_gpus_in_a_process);
    tcase_add_test(t, heads_learned);
    tcase_add_test(t, heads_beyond_count);
    tcase_add_test(t, split_children);
    tcase_add_test(t, no_context);
    tcase_add_test(t, threads);
    tcase_add_test(t, replay_beside_calls);
    tcase_add_checked_fixture(a, al_setup, al_teardown);
    tcase_add_test(a, in_step);
    tcase_add_test(a, lost_and_seen);
    tcase_add_test(a, contradicting_record);
    tcase_add_test(a, misfit_then_next);
    tcase_add_test(a, lost_among_alike);
    tcase_add_test(a, lost_elsewhere);
    tcase_add_test(a, alike_is_enough);
    tcase_add_test(a, superfluous);
    tcase_add_test(a, wrong_size_shows_at_the_end);
    tcase_add_loop_test(a, random_losses, 0, 40);
    suite_add_tcase(s, t);
    suite_add_tcase(s, a);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
