/* SPDX-License-Identifier: Apache-2.0 */
/* How peers share a link: four rings of one class, whose transport is done when the test says so. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"
#include "coll/comm/comm.h"
#include "tests/suite.h"

static struct nb_context node;

#define NODES 5
#define LEAD 131072u
#define MS ((int64_t)NB_NS_PER_MS)

static const struct nb_net_ops net = {.early = 1}, net_other;
static struct nb_coll_comm comm;
static struct nb_peer peers[NODES], *neighbors[NODES];
static struct nb_tx_item items[NODES][NB_CLASS_COUNT][1]; /* all items of a ring are alike */
static int64_t t;

static void setup(void)
{
    memset(&comm, 0, sizeof(comm));
    memset(peers, 0, sizeof(peers));
    memset(items, 0, sizeof(items));
    node.params = nb_params_defaults();
    comm.ctx = &node;
    comm.nnodes = NODES;
    comm.rank = 2;
    comm.peer = peers;
    comm.net = &net;
    comm.neighbors = neighbors;
    for (int r = 0; r < NODES; r++)
        if (r != comm.rank)
            neighbors[comm.nneighbors++] = &peers[r];
    for (int r = 0; r < NODES; r++)
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            peers[r].tx[c].cls = (enum nb_class)c;
            peers[r].tx[c].item = items[r][c];
            peers[r].tx[c].buffers = 1;
        }
    t = 1000 * MS;
}

static struct nb_tx *ring(int r)
{
    return &peers[r].tx[NB_CLASS_CONTRIB];
}

/* Set the number of items that ring `r` has in all, and that are done. */
static void has(int r, uint64_t queued, uint64_t done)
{
    ring(r)->queued = queued;
    ring(r)->done = done;
}

static int allows(int r)
{
    nb_fair_update(&comm, NB_CLASS_CONTRIB, t);
    return nb_fair_allows(&comm.fair[NB_CLASS_CONTRIB], ring(r));
}

START_TEST(the_lead_is_bounded)
{
    for (int r = 0; r < NODES; r++)
        has(r, 9, 1);
    has(comm.rank, 0, 0);
    ring(0)->had = 1000000;
    ring(1)->had = ring(3)->had = 1000000;
    ring(4)->had = 1000000 + LEAD;
    ck_assert(allows(0));
    ck_assert(allows(4)); /* as far ahead as it may be */
    ring(4)->had++;
    ck_assert(!allows(4));
    ck_assert(allows(3));
    ring(3)->under_way = LEAD + 1; /* bytes under way count as sent for their ring */
    ck_assert(!allows(3));
    ring(3)->had += 5000;
    ring(3)->under_way -= 5000;
    ck_assert(!allows(3));
    ring(0)->had += 5000;
    ck_assert(!allows(3));
    ring(1)->had += 5000; /* every ring has passed the place of the last one */
    ck_assert(allows(3));
}
END_TEST

START_TEST(one_alone_waits_for_nobody)
{
    has(0, 9, 1);
    ring(0)->had = 50000000;
    ck_assert(allows(0));
    has(1, 9, 1); /* an idle ring has nothing to catch up */
    ck_assert(allows(0));
    ck_assert_uint_eq(ring(1)->had, 50000000);
    ring(0)->had += LEAD + 1;
    ck_assert(!allows(0));
    has(1, 9, 9); /* idle again */
    ck_assert(allows(0));
}
END_TEST

START_TEST(a_stuck_one_holds_up_nobody_for_long)
{
    has(0, 9, 1);
    has(1, 9, 1);
    ring(0)->had = LEAD + 1;
    ck_assert(!allows(0));
    ck_assert_int_eq(comm.fair[0].until_ns, t + 20 * MS); /* time of the engine's next look */
    t += 20 * MS;
    ck_assert(!allows(0));
    t += 1;
    ck_assert(allows(0));
    t += 1000 * MS;
    ring(0)->had += 1000000;
    ck_assert(allows(0));
    ring(1)->had = 1; /* it moves, and counts again */
    ck_assert(!allows(0));
}
END_TEST

START_TEST(the_others_stay_even_while_one_is_stuck)
{
    has(0, 9, 1);
    has(1, 9, 1);
    has(3, 9, 1);
    ck_assert(allows(0));
    for (int i = 0; i < 20; i++) {
        t += 4 * MS;
        ring(0)->had += 1000;
        ring(1)->had += 1000;
        ck_assert(allows(0) && allows(1) && allows(3));
    }
    ring(0)->had += LEAD; /* ahead of the stuck one, within the limit for the other */
    ck_assert(allows(0));
    ring(0)->had += 1;
    ck_assert(!allows(0));
    ring(1)->had += 1;
    ck_assert(allows(0));
    peers[1].gone = 1; /* only the stuck one is left */
    ring(0)->had += 10 * LEAD;
    ck_assert(allows(0));
}
END_TEST

/* Slow links and large messages: a slow ring is not stuck. */
START_TEST(a_slow_one_counts)
{
    has(0, 9, 1);
    has(1, 9, 1);
    for (int i = 0; i < 5; i++) {
        ck_assert(allows(1));
        t += 30 * MS; /* the first of them counts as stuck */
        ring(1)->had += 140000;
    }
    ring(0)->had = ring(1)->had + LEAD + 1;
    ck_assert(!allows(0));
    t += 100 * MS;
    ck_assert(!allows(0));
    t += 21 * MS;
    ck_assert(allows(0));
}
END_TEST

START_TEST(a_pause_is_not_a_standstill)
{
    has(0, 9, 1);
    has(1, 9, 1);
    ck_assert(allows(0));
    has(0, 9, 9);
    has(1, 9, 9);
    ck_assert(allows(0));
    t += 500 * MS; /* the job computed */
    has(0, 20, 9);
    has(1, 20, 9);
    ck_assert_uint_eq(ring(0)->had, 0); /* all begin level */
    ring(0)->had += LEAD + 1;
    ck_assert(!allows(0));
}
END_TEST

START_TEST(the_lead_grows_with_the_speed)
{
    has(0, 9, 1);
    has(1, 9, 1);
    ck_assert(allows(0));
    for (int i = 0; i < 10; i++) { /* 10 MB in 4 ms */
        t += 4 * MS;
        ring(0)->had += 10000000;
        ring(1)->had += 10000000;
        ck_assert(allows(0));
    }
    ring(0)->had += 9000000;
    ck_assert(allows(0));
    ring(0)->had += 1000001;
    ck_assert(!allows(0));
    ring(0)->had = ring(1)->had = 100000000;
    has(0, 9, 9);
    has(1, 9, 9);
    ck_assert(allows(0));
    t += 500 * MS; /* and stays after a pause */
    has(0, 20, 9);
    has(1, 20, 9);
    ring(0)->had = 9000000;
    ck_assert(allows(0));
}
END_TEST

START_TEST(classes_are_independent)
{
    for (int r = 0; r < 2; r++) {
        has(r, 9, 1);
        peers[r].tx[NB_CLASS_RESULT].queued = 9;
    }
    ring(0)->had = LEAD + 1;
    ck_assert(!allows(0));
    nb_fair_update(&comm, NB_CLASS_RESULT, t);
    ck_assert(nb_fair_allows(&comm.fair[NB_CLASS_RESULT], &peers[0].tx[NB_CLASS_RESULT]));
    peers[0].tx[NB_CLASS_CONTROL].under_way = UINT64_MAX / 2; /* heartbeats always go */
    ck_assert(nb_fair_allows(&comm.fair[NB_CLASS_CONTROL], &peers[0].tx[NB_CLASS_CONTROL]));
}
END_TEST

/* Values for the owners of a direct reduce-scatter: no ring waits for another, whatever else is sent. */
START_TEST(what_is_needed_apart_waits_for_nobody)
{
    for (int r = 0; r < 2; r++) {
        has(r, 9, 1);
        ring(r)->item->apart = 1;
    }
    ring(0)->had = 100 * LEAD;
    ck_assert(allows(0) && allows(1));
    has(3, 9, 1);
    has(4, 9, 1);
    ring(3)->had = LEAD + 1;
    ck_assert(!allows(3)); /* because of ring 4, not of ring 1 */
    ring(4)->had = 1;
    ck_assert(allows(3) && allows(0));
    ring(0)->item->apart = 0; /* an operation whose peers need it at the same time */
    ck_assert(!allows(0));
    ring(1)->item->apart = 0; /* level with the last */
    ck_assert(allows(1));
    ck_assert_uint_eq(ring(1)->had, 1);
}
END_TEST

/* Where sends are done when they have arrived, no bytes pile up. */
START_TEST(other_transports_are_left_alone)
{
    comm.net = &net_other;
    has(0, 9, 1);
    has(1, 9, 1);
    ring(0)->had = 100 * LEAD;
    ck_assert(allows(0));
}
END_TEST

SUITE_MAIN("coll/fair", FIXTURE(setup, NULL), TEST(the_lead_is_bounded), TEST(one_alone_waits_for_nobody),
           TEST(a_stuck_one_holds_up_nobody_for_long), TEST(the_others_stay_even_while_one_is_stuck),
           TEST(a_slow_one_counts), TEST(a_pause_is_not_a_standstill), TEST(the_lead_grows_with_the_speed),
           TEST(classes_are_independent), TEST(what_is_needed_apart_waits_for_nobody),
           TEST(other_transports_are_left_alone))
