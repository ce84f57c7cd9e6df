/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine makes no steps, because its thread hangs in a call or because its owner does not step it. NCCL's
 * calls notice, fail and return, and leave memory that the engine may still use. Two nodes in one process are
 * connected in memory, with a clock that the test moves.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/coll/cluster.h"
#include "tests/net/hanging.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define NODES 2
#define SECOND ((int64_t)NB_NS_PER_S)
#define VALUES 4096u

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;

static _Atomic int64_t now;
static float region[2 * VALUES], out[VALUES];

static uint64_t virtual_ns(void *arg)
{
    (void)arg;
    return (uint64_t)atomic_load(&now);
}

/* Open both nodes. Node 0 has the runner, and sends that may hang. */
static void open_all(const struct nb_runner *runner)
{
    atomic_store(&now, SECOND);
    hanging_set(false);
    capture_reset();
    nb_log_set(capture_log);
    cluster_begin(&cluster);
    cluster_add(&cluster, runner, &hanging_ops);
    cluster_add(&cluster, NULL, &loopback_ops);
    for (int i = 0; i < NODES; i++) {
        node[i].params.unit_bytes = nb_params_defaults()->unit_bytes;
        node[i].ctx.clock = (struct nb_clock){virtual_ns, NULL};
    }
}

static void step_one(void)
{
    nb_engine_step(node[1].ctx.engine, atomic_load(&now));
}

static void close_all(void)
{
    cluster_close(&cluster);
    nb_log_set(NULL);
}

static void post(struct nb_coll_req **req)
{
    ck_assert_int_eq(nb_coll_iallreduce(node[0].comm, region, out, VALUES, ncclFloat32, ncclSum, req), 0);
    ck_assert_ptr_nonnull(*req);
}

/* Return the seconds of the clock until nb_coll_test fails, called every `every` seconds. */
static int64_t until_stuck(struct nb_coll_req *req, int64_t every)
{
    const int64_t began = atomic_load(&now);
    int ret = 0, done;

    while (!ret) {
        ret = nb_coll_test(req, &done, NULL);
        ck_assert(!done);
        if (!ret)
            atomic_fetch_add(&now, every * SECOND);
        ck_assert_int_lt(atomic_load(&now) - began, 10000 * SECOND);
    }
    ck_assert_int_eq(ret, -ETIMEDOUT);
    return (atomic_load(&now) - began) / SECOND;
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* Its thread hangs in a send. */
START_TEST(thread_hangs)
{
    struct nb_coll_req *req, *other;
    struct nb_coll_listen *listen;
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *mhandle;
    int64_t took;

    open_all(&nb_runner_thread);
    cluster_connect_alone(&cluster);
    ck_assert_int_eq(nb_coll_reg_mr(node[0].comm, region, sizeof(region), NCCL_PTR_HOST, &mhandle), 0);
    hanging_set(true);
    post(&req);
    while (!hanging_seen())
        usleep(1000);
    took = until_stuck(req, 1);
    ck_assert_int_gt(took, 60);
    ck_assert_int_lt(took, 64);
    ck_assert_int_eq(capture_warned(), 1);
    ck_assert(capture_has("made no step for 60 s"));
    /* All later calls fail too, and none waits. */
    ck_assert_int_eq(nb_coll_iallreduce(node[0].comm, region, out, VALUES, ncclFloat32, ncclSum, &other),
                     -ETIMEDOUT);
    ck_assert_ptr_null(other);
    ck_assert_int_eq(nb_coll_dereg_mr(node[0].comm, mhandle), -ETIMEDOUT);
    ck_assert_int_eq(nb_coll_close(node[0].comm), -ETIMEDOUT);
    ck_assert_int_eq(capture_warned(), 3);
    ck_assert_int_eq(nb_engine_acquire(node[0].ctx.engine), -ETIMEDOUT);
    ck_assert_int_eq(nb_coll_listen(&node[0].ctx, 0, 18, handle, &listen), 0);
    ck_assert_int_eq(nb_coll_close_listen(listen), 0);

    /* The engine goes on after all. Its memory was left to it, and it does not touch NCCL's memory. */
    memset(region, 0xff, sizeof(region));
    memset(out, 0xee, sizeof(out));
    hanging_set(false);
    while (nb_coll_close_step(node[0].comm)) {
        step_one();
        usleep(1000);
    }
    for (size_t i = 0; i < sizeof(out); i++)
        ck_assert_uint_eq(((uint8_t *)out)[i], 0xee);
    ck_assert_int_eq(nb_coll_close_begin(node[1].comm), 0);
    while (nb_coll_close_step(node[1].comm))
        step_one();
    ck_assert_int_eq(nb_engine_acquire(node[0].ctx.engine), 0);
    nb_engine_release(node[0].ctx.engine);
    close_all();
}
END_TEST

/* The limit follows NIBBLE_PEER_TIMEOUT. The time between two looks counts only in part. */
START_TEST(limit)
{
    struct nb_coll_req *req;
    int64_t took;
    int done;

    open_all(NULL);
    node[0].params.peer_timeout = node[1].params.peer_timeout = 100;
    cluster_connect_alone(&cluster);
    post(&req);
    took = until_stuck(req, 1);
    ck_assert_int_gt(took, 200);
    ck_assert_int_lt(took, 204);
    nb_engine_step(node[0].ctx.engine, atomic_load(&now)); /* it learns that it was given up */
    ck_assert_int_eq(nb_coll_test(req, &done, NULL), -ETIMEDOUT);
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
        while (nb_coll_close_step(node[i].comm)) {
            nb_engine_step(node[i].ctx.engine, atomic_load(&now));
            atomic_fetch_add(&now, SECOND / 100);
        }
    }
    close_all();
}
END_TEST

/* A process that was stopped, for however long, finds its engine unchanged. A slow engine never counts as
 * stuck. */
START_TEST(late_is_no_error)
{
    struct nb_coll_req *req;
    int done;

    open_all(NULL);
    node[0].params.peer_timeout = node[1].params.peer_timeout = 86400;
    cluster_connect_alone(&cluster);
    post(&req);
    for (int i = 0; i < 200; i++) {
        atomic_fetch_add(&now, 3600 * SECOND);
        ck_assert_int_eq(nb_coll_test(req, &done, NULL), 0);
        atomic_fetch_add(&now, 3600 * SECOND);
        ck_assert_int_eq(nb_coll_test(req, &done, NULL), 0);
        for (int n = 0; n < NODES; n++)
            nb_engine_step(node[n].ctx.engine, atomic_load(&now));
    }
    ck_assert_int_eq(capture_warned(), 0);
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
    for (int i = 0; i < NODES; i++)
        while (nb_coll_close_step(node[i].comm)) {
            nb_engine_step(node[i].ctx.engine, atomic_load(&now));
            atomic_fetch_add(&now, SECOND / 100);
        }
    close_all();
}
END_TEST

SUITE_MAIN("coll/stuck", TEST(thread_hangs), TEST(limit), TEST(late_is_no_error))
