/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIBBLE_REQUIRE=collnet: a declined communicator stops the job on every node that demands it, except where
 * the settings exclude it.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/demand.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/coll/cluster.h"
#include "tests/suite.h"

#define NODES 3

static struct cluster c;

static void setup(void)
{
    capture_reset();
    nb_log_set(capture_log);
    cluster_open(&c, NODES);
    for (int i = 0; i < NODES; i++)
        c.node[i].params.require = "collnet";
}

static void teardown(void)
{
    cluster_close(&c);
    nb_log_set(NULL);
}

static void connect_all(int expected)
{
    void *handles[NODES];
    bool more = true;

    for (int i = 0; i < NODES; i++) {
        handles[i] = c.node[i].handle;
        ck_assert_int_eq(nb_coll_listen(&c.node[i].ctx, 0, 1, c.node[i].handle, &c.node[i].listen), 0);
    }
    for (int i = 0; i < NODES; i++) {
        c.node[i].connected = -EINPROGRESS;
        ck_assert_int_eq(nb_coll_connect_begin(handles, NODES, i, c.node[i].listen, &c.node[i].connect), 0);
    }
    while (more) {
        ck_assert(cluster_turn(&c));
        more = false;
        for (int i = 0; i < NODES; i++)
            more |= c.node[i].connected == -EINPROGRESS;
    }
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_eq(c.node[i].connected, expected);
        if (!expected)
            ck_assert_int_eq(nb_coll_close_listen(c.node[i].listen), 0);
    }
    cluster_disconnect(&c);
}

START_TEST(a_declined_communicator_stops_who_demands_it)
{
    c.node[1].params.fault = "regmr";
    c.node[2].params.require = "settings";
    connect_all(-ECONNREFUSED);
    ck_assert(nb_demand_unmet(&c.node[0].ctx) && nb_demand_unmet(&c.node[1].ctx));
    ck_assert(!nb_demand_unmet(&c.node[2].ctx));
    ck_assert_msg(capture_has("the job stops, since NIBBLE_REQUIRE has collnet: node 1"), "%s", capture_text);
    ck_assert(capture_has("cannot register staging memory"));
}
END_TEST

/* Between distant nodes the smallest NCCL_BUFFSIZE has to suffice. */
START_TEST(a_small_window_stops_who_demands_it)
{
    for (int i = 0; i < NODES; i++) {
        c.node[i].params.require = i ? "settings" : "collnet,window";
        c.node[i].params.rs = NB_SUM_INT4;
        c.node[i].params.link_mbps = 10000;
        c.node[i].params.link_rtt_us = 70000;
    }
    if (_i)
        setenv("NCCL_BUFFSIZE", "134217728", 1);
    connect_all(0);
    unsetenv("NCCL_BUFFSIZE");
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(nb_demand_unmet(&c.node[i].ctx), !_i && i == 0);
    ck_assert_int_eq(capture_has("set NCCL_BUFFSIZE=134217728 (now 4194304) on all ranks"), !_i);
}
END_TEST

START_TEST(what_the_settings_exclude_is_not_demanded)
{
    for (int i = 0; i < NODES; i++)
        c.node[i].params.comms = "!nnodes=3";
    connect_all(-ECONNREFUSED);
    for (int i = 0; i < NODES; i++)
        ck_assert(!nb_demand_unmet(&c.node[i].ctx));
}
END_TEST

START_TEST(what_is_connected_is_met)
{
    connect_all(0);
    for (int i = 0; i < NODES; i++)
        ck_assert(!nb_demand_unmet(&c.node[i].ctx));
}
END_TEST

SUITE_MAIN("demand", FIXTURE(setup, teardown), TEST(a_declined_communicator_stops_who_demands_it),
           TEST(what_the_settings_exclude_is_not_demanded), LOOP(a_small_window_stops_who_demands_it, 0, 2),
           TEST(what_is_connected_is_met))
