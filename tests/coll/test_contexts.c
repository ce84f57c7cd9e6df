/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes in one process and one thread. Each has its own context with its own settings, a virtual clock
 * and an engine without a runner. A transport in memory connects them. State that they share by mistake shows
 * as a wrong count, a wrong time or memory that is not returned.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"
#include "tests/base/capture.h"
#include "tests/coll/cluster.h"
#include "tests/suite.h"

#define NODES 2
#define SECOND ((int64_t)NB_NS_PER_S)

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;
static void setup(void)
{
    capture_reset();
    nb_log_set(capture_log);
    cluster_open(&cluster, NODES);
    cluster.most_rounds = 2000000;
    for (int i = 0; i < NODES; i++) {
        node[i].params.credits = i ? 7 : 4;
        node[i].params.unit_bytes = 16384;
    }
}

/* Check that all memory is returned and everything is closed. */
static void teardown(void)
{
    cluster_close(&cluster);
    nb_log_set(NULL);
}

static void turn(void)
{
    ck_assert_msg(cluster_turn(&cluster), "nothing moves, and nothing is due");
}

/* ---- operations ------------------------------------------------------------------------------------- */

#define VALUES 40000u /* values of a block: several wire units */

static float in[NODES][NODES * VALUES], out[NODES][NODES * VALUES];

static float value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 1001) - 500;
}

static void fill(void)
{
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < NODES * VALUES; i++) {
            in[r][i] = value(r, i);
            out[r][i] = -1;
        }
}

static void finish(struct nb_coll_req *req[NODES])
{
    for (int r = 0; r < NODES; r++) {
        int done = 0;
        ck_assert_ptr_nonnull(req[r]);
        while (!done) {
            ck_assert_int_eq(nb_coll_test(req[r], &done, NULL), 0);
            if (!done)
                turn();
        }
    }
}

static void all_reduce(void)
{
    struct nb_coll_req *req[NODES];

    fill();
    for (int r = 0; r < NODES; r++)
        ck_assert_int_eq(
            nb_coll_iallreduce(node[r].comm, in[r], out[r], VALUES, ncclFloat32, ncclSum, &req[r]), 0);
    finish(req);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < VALUES; i++)
            ck_assert(out[r][i] == value(0, i) + value(1, i));
}

static void all_gather(void)
{
    const size_t block = VALUES * sizeof(float);
    struct nb_coll_req *req[NODES];

    fill();
    for (int r = 0; r < NODES; r++)
        ck_assert_int_eq(
            nb_coll_iallgather(node[r].comm, in[r], out[r], NODES * block, block, 0, NODES * block, &req[r]),
            0);
    finish(req);
    for (int r = 0; r < NODES; r++)
        for (int owner = 0; owner < NODES; owner++)
            ck_assert_mem_eq(out[r] + (size_t)owner * VALUES, in[owner], block);
}

static void reduce_scatter(void)
{
    const size_t block = VALUES * sizeof(float);
    struct nb_coll_req *req[NODES];

    fill();
    for (int r = 0; r < NODES; r++)
        ck_assert_int_eq(nb_coll_ireducescatter(node[r].comm, in[r], NODES * block, out[r], block, 0,
                                                NODES * block, ncclFloat32, ncclSum, &req[r]),
                         0);
    finish(req);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < VALUES; i++) {
            const size_t at = (size_t)r * VALUES + i;
            ck_assert(out[r][i] == value(0, at) + value(1, at));
        }
}

/* ---- tests ------------------------------------------------------------------------------------------ */

START_TEST(collectives)
{
    cluster_connect(&cluster);
    for (int i = 0; i < 3; i++) {
        all_reduce();
        all_gather();
        reduce_scatter();
    }
    cluster_disconnect(&cluster);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* Each node takes the memory that its own settings state, from its own budget. */
START_TEST(settings_and_budgets)
{
    size_t taken[NODES];

    cluster_connect(&cluster);
    for (int i = 0; i < NODES; i++)
        taken[i] = node[i].left[NB_BUDGET_STAGING] - nb_budget_left(node[i].ctx.budgets, NB_BUDGET_STAGING);
    ck_assert_uint_gt(taken[0], 0);
    ck_assert_uint_eq(taken[0] / 4, taken[1] / 7);
    ck_assert_uint_eq(taken[0] % 4 + taken[1] % 7, 0);
    all_gather();
    for (int i = 0; i < NODES; i++)
        ck_assert_uint_lt(nb_budget_left(node[i].ctx.budgets, NB_BUDGET_REFERENCE),
                          node[i].left[NB_BUDGET_REFERENCE]);
    cluster_disconnect(&cluster);
}
END_TEST

/* The communicators of one node share state, and nodes share none. */
START_TEST(shared_by_one_node_only)
{
    struct nb_coll_node *shared[NODES];

    for (int i = 0; i < NODES; i++)
        shared[i] = nb_engine_node(node[i].ctx.engine);
    cluster_connect(&cluster);
    cluster_disconnect(&cluster);
    ck_assert_uint_eq(nb_node_count_comm(shared[0], -1, 18), 2); /* cluster_connect's is 1 */
    ck_assert_uint_eq(nb_node_count_comm(shared[0], -1, 19), 3);
    ck_assert_uint_eq(nb_node_count_comm(shared[1], -1, 20), 2);
    ck_assert(!shared[0]->control.off && !shared[1]->control.off);
}
END_TEST

/* A node does not come: the waiting node ends its connect by its own clock. */
START_TEST(alone)
{
    const int64_t began = node[0].now;

    cluster_listen(&cluster, 17);
    cluster_begin_connect(&cluster, 0);
    node[1].asleep = true;
    cluster_await_connect(&cluster);
    ck_assert_int_eq(node[0].connected, -ECONNREFUSED);
    ck_assert_ptr_null(node[0].comm);
    ck_assert_int_ge(node[0].now - began, node[0].params.connect_timeout * SECOND);
    ck_assert_int_lt(node[0].now - began, (node[0].params.connect_timeout * 2 + 1) * SECOND);
    ck_assert_int_eq(capture_warned(), 1);
    cluster_close_listen(&cluster, 1);
}
END_TEST

/* Nodes whose settings differ where they must agree decline at once, and say why. */
START_TEST(other_settings)
{
    const int64_t began = node[0].now;

    node[1].params.min_bytes = 32768;
    cluster_listen(&cluster, 17);
    for (int i = 0; i < NODES; i++)
        cluster_begin_connect(&cluster, i);
    cluster_await_connect(&cluster);
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(node[i].connected, -ECONNREFUSED);
    ck_assert_int_lt(node[0].now - began, SECOND);
    ck_assert_int_eq(capture_warned(), NODES);
    ck_assert(capture_has("has other settings than"));
}
END_TEST

/* Missing heartbeats show that a node has stopped. Only its peer notices. */
START_TEST(stopped)
{
    struct nb_coll_req *req;
    int64_t then;
    int done, ret = 0;

    cluster_connect(&cluster);
    all_reduce();
    node[1].asleep = true;
    then = node[0].now;
    ck_assert_int_eq(nb_coll_iallreduce(node[0].comm, in[0], out[0], VALUES, ncclFloat32, ncclSum, &req), 0);
    while (!ret) {
        turn();
        ret = nb_coll_test(req, &done, NULL);
        ck_assert(!done);
    }
    ck_assert_int_eq(ret, -ETIMEDOUT);
    ck_assert_int_ge(node[0].now - then, node[0].params.peer_timeout * SECOND);
    ck_assert_int_lt(node[0].now - then, (node[0].params.peer_timeout + 2) * SECOND);
    ck_assert_int_eq(capture_warned(), 1);
    node[1].asleep = false;
    cluster_disconnect(&cluster);
}
END_TEST

/* The blocking calls work without a runner too. */
START_TEST(closed_by_one_call)
{
    cluster_connect(&cluster);
    all_reduce();
    ck_assert_int_eq(nb_coll_close_begin(node[1].comm), 0);
    for (int i = 0; i < 1000; i++) /* node 1 has sent all its messages */
        turn();
    nb_coll_iallreduce(node[0].comm, in[0], out[0], VALUES, ncclFloat32, ncclSum,
                       &(struct nb_coll_req *){NULL});
    ck_assert_int_eq(nb_coll_close(node[0].comm), 0); /* returns at once: an operation is unfinished */
    while (nb_coll_close_step(node[1].comm))
        turn();
    node[0].comm = node[1].comm = NULL;
}
END_TEST

/* The switch is turned off and on again before the other node answers. Its answer to the first change does
 * not count for the second one. */
START_TEST(switched_twice)
{
    struct nb_kill_switch *mine, *other;

    cluster_connect(&cluster);
    mine = &node[0].comm->decisions->kill_switch;
    other = &node[1].comm->decisions->kill_switch;
    node[1].asleep = true;
    for (int off = 1; off >= 0; off--) {
        nb_engine_node(node[0].ctx.engine)->control.off = off;
        while (mine->epoch < 2u - (unsigned)off)
            turn();
        ck_assert_uint_eq(mine->answers, 1);
    }
    node[1].asleep = false;
    for (const int64_t then = node[0].now; node[0].now - then < SECOND;)
        turn();
    ck_assert_uint_eq(other->epoch, 2);
    ck_assert(!nb_decisions_off(node[1].comm->decisions));
    ck_assert_uint_eq(mine->answers, 2);
    cluster_disconnect(&cluster);
}
END_TEST

SUITE_MAIN("coll/contexts", FIXTURE(setup, teardown), TEST(collectives), TEST(settings_and_budgets),
           TEST(shared_by_one_node_only), TEST(alone), TEST(other_settings), TEST(stopped),
           TEST(closed_by_one_call), TEST(switched_twice))
