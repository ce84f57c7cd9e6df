/* SPDX-License-Identifier: Apache-2.0 */
/* The queue that a record joins: either half first, several GPUs, heads, communicators that share
 * resources. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "fixture.h"
#include "policy/job/job.h"
#include "tests/suite.h"

START_TEST(either_half_first)
{
    struct ev_comm c;
    struct nb_queue *q;
    struct ev_op o = op(EV_ALL_REDUCE, "ncclFloat32", 4, 5);

    gpu = 3;
    ev_open(prof, &c, 16, 2, 2, 0);
    both(&c, &o); /* without a consumer */
    gpu = -1;     /* the connecting thread has no context, so the communicator tells the GPU */
    q = consume(16, -1, 2);
    nothing(q);
    both(&c, &o);
    ck_assert_uint_eq(next(q).bytes, 20);
    end(q);
    both(&c, &o);
    ev_close(prof, &c);
    gpu = -1;
}
END_TEST

START_TEST(several_gpus_in_a_process)
{
    struct ev_comm c[4];
    struct nb_queue *q[4];

    for (int g = 0; g < 4; g++) {
        gpu = g;
        ev_open(prof, &c[g], 17, 2, 8, g);
        q[g] = consume(17, nb_current_gpu(node), 2);
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
    gpu = -1;
}
END_TEST

/* More GPUs a node than heads that the record can distinguish (a rack that is one node). Their number stays
 * unknown, even after a gather or scatter has shown it. */
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
        ck_assert(r.flags & NB_RECORD_CHAIN); /* its length says nothing about heads */
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

    gpu = 0;
    ev_open(prof, &parent, 20, 2, 2, 0);
    q = consume(20, 0, 2);
    ev_open(prof, &child, 21, 2, 2, 0);
    ev_open(prof, &wide, 22, 3, 3, 0); /* other nodes: cannot share */
    gpu = 1;
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
    /* A second family on the device makes the child's parent uncertain, so both families learn that a record
     * may be missing. */
    second = consume(24, 0, 2);
    both(&child, &b);
    nothing(q);
    nothing(second);
    both(&parent, &a);
    ck_assert_uint_eq(missing_of_next(q), 1);
    end(second);
    /* The child gets its own group. */
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
    gpu = -1;
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
    /* Send relatives of the wanted events, and events without texts. */
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

int main(void)
{
    if (fixture_open())
        return EXIT_FAILURE;
    return SUITE("policy/queue", TEST(either_half_first), TEST(several_gpus_in_a_process),
                 TEST(heads_beyond_count), TEST(heads_learned), TEST(split_children), TEST(no_context));
}
