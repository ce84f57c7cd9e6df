/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slowest node's link decides whether sums are coded, wherever that node is and however nodes are
 * connected. The reckoning never overrules a forced codec. One log line states the result.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/demand.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/comm/grid.h"
#include "coll/decide/decide.h"
#include "coll/report/report.h"
#include "policy/rules/rules.h"
#include "tests/base/hear.h"
#include "tests/coll/cluster.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define MOST 6
#define VALUES 40000u /* values of a block: several wire units */
#define FAST 400000
#define SLOW 10
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;
static int rate[MOST]; /* each node's link rate in Mbit/s, 0: unknown */
static unsigned lines, declined, warnings;
static char line[1024]; /* the last log line about the reckoning */

static void (*hear_also)(ncclDebugLogLevel level, const char *text);

static void hear(ncclDebugLogLevel level, const char *text)
{
    if (hear_also)
        hear_also(level, text);
    warnings += level == NCCL_LOG_WARN;
    declined += strstr(text, ": not compressed, NCCL uses its own algorithms: ") &&
                strstr(text, "no gain on links of 400 Gbit/s with codec ");
    if (!strstr(text, ": auto"))
        return;
    lines++;
    snprintf(line, sizeof(line), "%.1023s", text);
}

static int properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    const int ret = loopback_ops.properties(net, dev, props);

    props->rate_mbps = rate[(struct cluster_node *)(void *)net->ctx - node];
    return ret;
}

static struct nb_net_ops transport;

/* Replace the table that the original init installs. */
static int init(struct nb_context *ctx, struct nb_net **net)
{
    const int ret = loopback_ops.init(ctx, net);

    if (!ret)
        (*net)->ops = &transport;
    return ret;
}

static uint32_t us; /* round trip of the node that measures a long one, else 50. 0: unknown */
static uint32_t round_trip_us(void *conn)
{
    static unsigned calls;

    (void)conn;
    return us && calls++ % 5 ? 50 : us;
}

/* Make n nodes with these settings of NIBBLE_RS and NIBBLE_AR. They connect whatever the gain. */
static void make(int n, bool grid, enum nb_sum_word word, int64_t stated)
{
    transport = loopback_ops;
    transport.properties = properties;
    transport.init = init;
    transport.round_trip_us = round_trip_us;
    lines = declined = warnings = 0;
    line[0] = 0;
    nb_log_set(hear_log);
    cluster_begin(&cluster);
    for (int i = 0; i < n; i++) {
        struct nb_params *p = &cluster_add(&cluster, NULL, &transport)->params;
        p->schedule = grid ? NB_SCHEDULE_TWO_LEVEL : NB_SCHEDULE_AUTO;
        p->grad = "all";
        p->warmup_steps = 0;
        p->rs = p->ar = word;
        p->ag = NB_AG_EXACT;
        p->link_mbps = stated;
    }
}

static void begin(int n, bool grid, enum nb_sum_word word, int64_t stated)
{
    make(n, grid, word, stated);
    cluster_connect(&cluster);
}

static void end(void)
{
    cluster_disconnect(&cluster);
    cluster_close(&cluster);
    nb_log_set(NULL);
}

static void must_count_with(int n, uint32_t mbps)
{
    for (int i = 0; i < n; i++) {
        const struct nb_reckoning *r = &node[i].comm->reckoning;

        ck_assert_msg(r->facts.mbps == mbps, "node %d of %d: %u Mbit/s, not %u", i, n, r->facts.mbps, mbps);
        ck_assert_uint_eq(r->facts.codec, nb_reckon_codec_of(nb_codec_selected()));
        ck_assert_uint_eq(r->facts.workers, 0);
        ck_assert_int_eq(memcmp(r->of, node[0].comm->reckoning.of, sizeof(r->of)), 0);
        ck_assert_int_eq(memcmp(&r->facts, &node[0].comm->reckoning.facts, sizeof(r->facts)), 0);
        ck_assert_int_eq(r->group.columns, node[0].comm->reckoning.group.columns);
    }
    ck_assert_uint_eq(lines, (unsigned)n); /* one line each */
}

/* Each node in turn is slow, and each in turn does not know its rate. */
START_TEST(slowest_counts)
{
    static const struct {
        int nodes;
        bool grid;
    } groups[] = {{2, false}, {5, false}, {4, true}, {6, true}};

    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        const int n = groups[g].nodes;

        for (int slow = 0; slow < n; slow++)
            for (int unknown = 0; unknown < 2; unknown++) {
                for (int i = 0; i < n; i++)
                    rate[i] = FAST + 1000 * i;
                rate[slow] = unknown ? 0 : 25000;
                begin(n, groups[g].grid, NB_SUM_AUTO, 0);
                ck_assert(nb_on_grid(node[0].comm) == groups[g].grid);
                must_count_with(n, unknown ? 0 : 25000);
                ck_assert(strstr(line, unknown
                                           ? ": auto: sums coded, since the rate of a node's link is unknown"
                                           : ": auto, on links of 25 Gbit/s with codec "));
                end();
            }
    }
}
END_TEST

/* A rate that the user states replaces the adapters' rates. */
START_TEST(stated)
{
    for (int i = 0; i < MOST; i++)
        rate[i] = i % 2 ? FAST : 0;
    begin(3, false, NB_SUM_AUTO, 500);
    must_count_with(3, 500);
    ck_assert_ptr_nonnull(strstr(line, "on links of 0.5 Gbit/s"));
    ck_assert_ptr_nonnull(strstr(line, "times as fast as raw"));
    end();
}
END_TEST

static char advice[512];

static void hear_advice(ncclDebugLogLevel level, const char *text)
{
    (void)level;
    if (strstr(text, "the longest round trip"))
        snprintf(advice, sizeof(advice), "%.500s", text);
}

/* One node of a grid measures a long round trip, all know it, and their reckoning stays as it was. */
START_TEST(measured_distance)
{
    static const uint32_t told[] = {1000, 70040};

    for (int i = 0; i < MOST; i++)
        rate[i] = 10000;
    for (int far = 0; far < 2; far++) {
        struct nb_reckoning r;

        hear_also = hear_advice;
        advice[0] = 0;
        us = told[far];
        begin(6, true, NB_SUM_AUTO, 0);
        must_count_with(6, 10000);
        ck_assert_uint_eq(node[0].comm->reckoning.facts.measured, far ? 700 : 10);
        nb_facts_reckon(&node[0].params, &node[0].comm->grid, &node[0].comm->reckoning.facts, &r);
        ck_assert(r.group.rtt == 0);
        if (far)
            ck_assert_msg(strstr(advice, "the longest round trip is 70 ms. Set NIBBLE_LINK_RTT_US=70000"),
                          "%s", advice);
        else
            ck_assert_str_eq(advice, "");
        hear_also = NULL;
        us = 0;
        end();
    }
}
END_TEST

static float in[2][2 * VALUES], out[2][VALUES];

/* Run one reduce-scatter of two nodes. Return how many of them coded it. */
static unsigned coded(void)
{
    const size_t block = VALUES * sizeof(float);
    struct nb_coll_req *req[2];
    unsigned n = 0;

    for (int r = 0; r < 2; r++) {
        for (size_t i = 0; i < (size_t)2 * VALUES; i++)
            in[r][i] = (float)((i * 7 + (size_t)r * 13) % 1001) - 500;
        ck_assert_int_eq(nb_coll_ireducescatter(node[r].comm, in[r], 2 * block, out[r], block, 0, 2 * block,
                                                ncclFloat32, ncclSum, &req[r]),
                         0);
    }
    for (int r = 0; r < 2; r++)
        for (int done = 0; !done;) {
            ck_assert_int_eq(nb_coll_test(req[r], &done, NULL), 0);
            node[0].now += 1000; /* otherwise it would take no time */
            node[1].now += 1000;
            if (!done)
                ck_assert(cluster_turn(&cluster));
        }
    for (int r = 0; r < 2; r++) {
        struct nb_coll_stats stats;
        nb_coll_get_stats(node[r].comm, &stats);
        n += stats.func[NB_FUNC_REDUCE_SCATTER].coded_ops > 0;
        ck_assert_uint_eq(node[r].comm->decisions->reasons[NB_FUNC_REDUCE_SCATTER][NB_RAW_LINK],
                          stats.func[NB_FUNC_REDUCE_SCATTER].coded_ops == 0);
    }
    return n;
}

START_TEST(operations)
{
    static const struct {
        int first, second;
        enum nb_sum_word word;
        unsigned coded;
    } cases[] = {{FAST, FAST, NB_SUM_AUTO, 0}, {FAST, SLOW, NB_SUM_AUTO, 2}, {SLOW, SLOW, NB_SUM_AUTO, 2},
                 {FAST, 0, NB_SUM_AUTO, 2},    {0, 0, NB_SUM_AUTO, 2},       {FAST, FAST, NB_SUM_INT4, 2},
                 {FAST, FAST, NB_SUM_INT8, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        rate[0] = cases[i].first;
        rate[1] = cases[i].second;
        begin(2, false, cases[i].word, 0);
        ck_assert_msg(coded() == cases[i].coded, "case %zu", i);
        ck_assert_uint_eq(lines, cases[i].word == NB_SUM_AUTO ? 2 : 0);
        if (cases[i].coded == 0) /* to the bit */
            for (int r = 0; r < 2; r++)
                for (size_t k = 0; k < VALUES; k++)
                    ck_assert(out[r][k] == in[0][(size_t)r * VALUES + k] + in[1][(size_t)r * VALUES + k]);
        end();
        /* At close each node logs the outcome where the reckoning decided. */
        const bool reckoned = cases[i].word == NB_SUM_AUTO && cases[i].first && cases[i].second;
        ck_assert_uint_eq(lines, reckoned ? 4 : cases[i].word == NB_SUM_AUTO ? 2 : 0);
        ck_assert(reckoned == (strstr(line, ": auto, reduce_scatter ") != NULL));
        ck_assert(reckoned == (strstr(line, "came true: ") || strstr(line, "did not come true: ")));
    }
}
END_TEST

/* Connect, while node `late` sleeps in all but every `each`-th turn. Return how many nodes connected. */
static int connect_unevenly(int late, int each)
{
    int connected = 0;
    bool open = true;

    cluster_listen(&cluster, 17);
    for (int i = 0; i < cluster.nodes; i++)
        cluster_begin_connect(&cluster, i);
    for (int turn = 0; open; turn++) {
        node[late].asleep = turn % each != 0;
        cluster_turn(&cluster);
        open = false;
        for (int i = 0; i < cluster.nodes; i++)
            open |= node[i].connect != NULL;
    }
    node[late].asleep = false;
    for (int i = 0; i < cluster.nodes; i++) {
        ck_assert(node[i].connected == 0 || node[i].connected == -ECONNREFUSED);
        connected += node[i].connected == 0;
        if (node[i].connected == 0)
            cluster_close_listen(&cluster, i);
        node[i].listen = NULL; /* a declining node frees it */
    }
    return connected;
}

/* All nodes decline alike, whichever decides first. No node takes another's no for a failure, so that
 * NIBBLE_REQUIRE=collnet lets the job run. */
START_TEST(nothing_to_gain)
{
    static const struct {
        int nodes;
        bool grid;
    } groups[] = {{3, false}, {5, false}, {4, true}, {6, true}};
    static const int each[] = {1, 2, 3, 7, 20, 50};

    for (size_t g = 0; g < COUNT(groups); g++)
        for (int late = 0; late < groups[g].nodes; late++)
            for (size_t e = 0; e < COUNT(each); e++) {
                const int n = groups[g].nodes;

                for (int i = 0; i < n; i++)
                    rate[i] = FAST;
                make(n, groups[g].grid, NB_SUM_AUTO, 0);
                for (int i = 0; i < n; i++) {
                    node[i].params.ag = NB_AG_AUTO;
                    node[i].params.require = "collnet";
                }
                ck_assert_int_eq(connect_unevenly(late, each[e]), 0);
                ck_assert_uint_eq(declined, (unsigned)n);
                ck_assert_uint_eq(warnings, 0);
                for (int i = 0; i < n; i++)
                    ck_assert(!nb_demand_unmet(&node[i].ctx));
                cluster_close(&cluster);
                nb_log_set(NULL);
            }
}
END_TEST

/* With one fact, or one setting, all connect. */
START_TEST(something_to_gain)
{
    enum { SLOW_NODE, UNKNOWN_NODE, RS, AR, AG, SHADOW, FORCE, CASES };

    for (int k = 0; k < CASES; k++) {
        for (int i = 0; i < 3; i++)
            rate[i] = FAST;
        if (k == SLOW_NODE || k == UNKNOWN_NODE)
            rate[1] = k == SLOW_NODE ? SLOW : 0;
        make(3, false, NB_SUM_AUTO, 0);
        for (int i = 0; i < 3; i++) {
            struct nb_params *p = &node[i].params;
            p->ag = k == AG ? NB_AG_EXACT : NB_AG_AUTO;
            p->rs = k == RS ? NB_SUM_INT4 : p->rs;
            p->ar = k == AR ? NB_SUM_INT4 : p->ar;
            p->shadow = k == SHADOW;
            p->force_collnet = k == FORCE;
        }
        ck_assert_msg(connect_unevenly(0, 1) == 3, "case %d", k);
        ck_assert_uint_eq(declined, 0);
        end();
    }
}
END_TEST

SUITE_MAIN("facts", TEST(slowest_counts), TEST(stated), TEST(measured_distance), TEST(operations),
           TEST(nothing_to_gain), TEST(something_to_gain))
