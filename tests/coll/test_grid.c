/* SPDX-License-Identifier: Apache-2.0 */
/* Grids of nodes: their shapes, their neighbors, and how control messages travel between nodes that are not
 * neighbors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "coll/flow/internal.h"
#include "coll/schedule/cut.h"
#include "coll/schedule/schedule.h"
#include "coll/watch/internal.h"
#include "coll/watch/watch.h"
#include "state/budget.h"
#include "tests/suite.h"

static struct nb_context node;

/* ---- rows and columns ------------------------------------------------------------------------------- */

START_TEST(which_grid)
{
    static const struct {
        int nodes;
        int64_t schedule, group;
        int rows, columns;
    } want[] = {
        {64, NB_SCHEDULE_AUTO, 0, 4, 16},
        {32, NB_SCHEDULE_AUTO, 0, 2, 16},
        {31, NB_SCHEDULE_AUTO, 0, 1, 31},
        {30, NB_SCHEDULE_AUTO, 0, 1, 30},
        {61, NB_SCHEDULE_AUTO, 0, 1, 61},
        {4096, NB_SCHEDULE_AUTO, 0, 32, 128},
        {64, NB_SCHEDULE_DIRECT, 0, 1, 64},
        {64, NB_SCHEDULE_TWO_HOP, 0, 1, 64},
        {4, NB_SCHEDULE_TWO_LEVEL, 0, 2, 2},
        {6, NB_SCHEDULE_TWO_LEVEL, 0, 2, 3},
        {8, NB_SCHEDULE_TWO_LEVEL, 0, 2, 4},
        {9, NB_SCHEDULE_TWO_LEVEL, 0, 3, 3},
        {16, NB_SCHEDULE_TWO_LEVEL, 0, 2, 8},
        {2, NB_SCHEDULE_TWO_LEVEL, 0, 1, 2},
        {7, NB_SCHEDULE_TWO_LEVEL, 0, 1, 7},
        {8, NB_SCHEDULE_TWO_LEVEL, 2, 4, 2},
        {8, NB_SCHEDULE_TWO_LEVEL, 3, 1, 8},
        {8, NB_SCHEDULE_TWO_LEVEL, 8, 1, 8},
        {64, NB_SCHEDULE_AUTO, 8, 8, 8},
        {262, NB_SCHEDULE_AUTO, 0, 1, 262}, /* 2 x 131 */
        /* equally near: 8, 12, 32 */
        {48, NB_SCHEDULE_AUTO, 0, 3, 16},
        {128, NB_SCHEDULE_AUTO, 0, 8, 16},
        {1000, NB_SCHEDULE_AUTO, 2, 1, 1000},
        {2, NB_SCHEDULE_AUTO, 0, 1, 2},
    };
    char why[160];

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct nb_grid g = nb_grid_choose(want[i].nodes, want[i].schedule, want[i].group);
        ck_assert_msg(g.rows == want[i].rows && g.columns == want[i].columns, "%d nodes: %d x %d",
                      want[i].nodes, g.rows, g.columns);
        nb_grid_why_not(want[i].nodes, want[i].schedule, want[i].group, why, sizeof(why));
        ck_assert_msg(!why[0] == (g.rows > 1), "%d nodes: \"%s\"", want[i].nodes, why);
    }
    nb_grid_why_not(4, NB_SCHEDULE_AUTO, 3, why, sizeof(why));
    ck_assert_str_eq(why, "NIBBLE_GROUP=3 does not divide 4");
    nb_grid_why_not(4, NB_SCHEDULE_AUTO, 2, why, sizeof(why));
    ck_assert_str_eq(why, "NIBBLE_SCHEDULE=auto makes one from 32 nodes on");
    nb_grid_why_not(1000, NB_SCHEDULE_AUTO, 2, why, sizeof(why));
    ck_assert_str_eq(why, "NIBBLE_GROUP=2 is out of range (2 to 128 nodes, 2 to 128 rows)");
    nb_grid_why_not(61, NB_SCHEDULE_AUTO, 0, why, sizeof(why));
    ck_assert_str_eq(why, "61 has no divisor that can be a row (2 to 128 nodes, 2 to 128 rows)");
    for (int n = 2; n <= NB_MAX_NODES; n++) {
        struct nb_grid g = nb_grid_choose(n, NB_SCHEDULE_TWO_LEVEL, 0);
        ck_assert_int_eq(g.rows * g.columns, n);
        ck_assert(g.rows == 1 || (g.rows <= NB_GRID_MOST && g.columns <= NB_GRID_MOST && g.columns >= 2));
    }
}
END_TEST

/* The site of each rank is a character, or '.' for none. */
static struct nb_grid grid_at(const char *sites, enum nb_schedule_word schedule, int64_t group, char *why,
                              size_t cap)
{
    const int nodes = (int)strlen(sites);
    char(*name)[NB_SITE_BYTES] = calloc((size_t)nodes, sizeof(*name));
    struct nb_grid g;

    ck_assert(name != NULL);
    for (int r = 0; r < nodes; r++)
        name[r][0] = sites[r] == '.' ? '\0' : sites[r];
    ck_assert_int_eq(
        nb_grid_of_sites(nodes, (const char(*)[NB_SITE_BYTES])name, schedule, group, &g, why, cap), 0);
    free(name);
    return g;
}

/* `ranks`: as digits, row after row, where they do not follow places. */
START_TEST(rows_within_sites)
{
    static const struct {
        const char *sites;
        enum nb_schedule_word schedule;
        int64_t group;
        int rows, columns;
        const char *ranks, *why;
    } want[] = {
        {"aabb", NB_SCHEDULE_TWO_LEVEL, 0, 2, 2, NULL, ""},
        {"abab", NB_SCHEDULE_TWO_LEVEL, 0, 2, 2, "0213", ""},
        {"bbaa", NB_SCHEDULE_TWO_LEVEL, 0, 2, 2, NULL, ""},
        {"aaaabbbb", NB_SCHEDULE_AUTO, 0, 2, 4, NULL, ""},
        {"abbbabaa", NB_SCHEDULE_AUTO, 0, 2, 4, "04671235", ""},
        {"abcabc", NB_SCHEDULE_TWO_LEVEL, 0, 3, 2, "031425", ""},
        {"ababab", NB_SCHEDULE_AUTO, 0, 2, 3, "024135", ""},
        /* a site of several rows */
        {"aabbbb", NB_SCHEDULE_TWO_LEVEL, 0, 3, 2, NULL, ""},
        {"babbab", NB_SCHEDULE_TWO_LEVEL, 0, 3, 2, "023514", ""},
        {"aaaabbbb", NB_SCHEDULE_TWO_LEVEL, 2, 4, 2, NULL, ""},
        /* no rows within sites */
        {"aaabb", NB_SCHEDULE_AUTO, 0, 1, 5, NULL,
         "no row of 2 or more nodes fits into each site (a: 3, b: 2)"},
        {"abcd", NB_SCHEDULE_AUTO, 0, 1, 4, NULL,
         "no row of 2 or more nodes fits into each site (a: 1, b: 1, c: 1, d: 1)"},
        {"aaab", NB_SCHEDULE_TWO_LEVEL, 0, 2, 2, NULL,
         "no row of 2 or more nodes fits into each site (a: 3, b: 1)"},
        {"aaabbb", NB_SCHEDULE_AUTO, 2, 1, 6, NULL,
         "no row of NIBBLE_GROUP nodes fits into each site (a: 3, b: 3)"},
        {"aabb", NB_SCHEDULE_AUTO, 0, 1, 4, NULL,
         "rows of 2 nodes speed up only all-reduces (NIBBLE_SCHEDULE=two-level makes them)"},
        {"aaaa", NB_SCHEDULE_AUTO, 0, 1, 4, NULL, "all nodes are at one site (a)"},
        {"aa.b", NB_SCHEDULE_AUTO, 0, 1, 4, NULL, "node 2 names no site"},
        {"aabb", NB_SCHEDULE_DIRECT, 0, 1, 4, NULL, "NIBBLE_SCHEDULE=direct makes no rows"},
        {"ab", NB_SCHEDULE_AUTO, 0, 1, 2, NULL, "no row of 2 or more nodes fits into each site (a: 1, b: 1)"},
        {"....", NB_SCHEDULE_TWO_LEVEL, 0, 2, 2, NULL, ""},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        char why[128];
        struct nb_grid g = grid_at(want[i].sites, want[i].schedule, want[i].group, why, sizeof(why));

        ck_assert_msg(g.rows == want[i].rows && g.columns == want[i].columns && !g.rank == !want[i].ranks,
                      "%s: %d x %d", want[i].sites, g.rows, g.columns);
        ck_assert_str_eq(why, want[i].why);
        for (int k = 0; k < g.rows * g.columns; k++) {
            const int rank = nb_grid_node(g, k / g.columns, k % g.columns);

            ck_assert_int_eq(rank, want[i].ranks ? want[i].ranks[k] - '0' : k);
            ck_assert(nb_grid_row(g, rank) == k / g.columns && nb_grid_column(g, rank) == k % g.columns);
        }
        for (int a = 0; g.sites && a < g.rows * g.columns; a++)
            for (int b = 0; b < g.rows * g.columns; b++)
                ck_assert(!nb_grid_same_row(g, a, b) || want[i].sites[a] == want[i].sites[b]);
        nb_grid_free(&g);
    }
}
END_TEST

/* The rate is no part of the name, and the lowest one counts, with and without rows. */
START_TEST(stated_rates)
{
    static const char names[8][NB_SITE_BYTES] = {"rome",      "rome:10000", "paris:25000", "paris",
                                                 "rome:9000", "rome",       "paris",       "paris:25000"};
    static const char bad[][NB_SITE_BYTES] = {"rome:",   "rome:0", "rome:x",        "rome:-1",
                                              "rome:1x", ":1",     "rome:100000001"};
    struct nb_grid g;
    char why[128];
    uint32_t mbps;
    size_t len;

    for (int schedule = NB_SCHEDULE_AUTO; schedule <= NB_SCHEDULE_DIRECT; schedule++) {
        ck_assert_int_eq(nb_grid_of_sites(8, names, (enum nb_schedule_word)schedule, 0, &g, why, sizeof(why)),
                         0);
        ck_assert_int_eq(g.sites, schedule == NB_SCHEDULE_AUTO ? 2 : 0);
        ck_assert(g.named == 2 && g.trunk == 9000);
        nb_grid_free(&g);
    }
    ck_assert_int_eq(nb_grid_of_sites(2, names, NB_SCHEDULE_AUTO, 0, &g, why, sizeof(why)), 0);
    ck_assert_str_eq(why, "all nodes are at one site (rome)");
    ck_assert(g.named == 0 && g.trunk == 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(nb_params_site(bad[i], &len, &mbps), -EINVAL);
}
END_TEST

/* The list of sites may be longer than the line. */
START_TEST(many_sites)
{
    char sites[60], why[64];
    struct nb_grid g;

    for (int i = 0; i < 59; i++)
        sites[i] = (char)('A' + i);
    sites[59] = '\0';
    g = grid_at(sites, NB_SCHEDULE_AUTO, 0, why, sizeof(why));
    ck_assert(g.rows == 2 || g.rows == 1);
    ck_assert_msg(strlen(why) == sizeof(why) - 1 && strcmp(why + strlen(why) - 4, "...)") == 0, "%s", why);
}
END_TEST

/* Return a grid of consecutive ranks, or of sites between which the ranks take turns. */
static struct nb_grid grid_of(int rows, int columns, int turns)
{
    char sites[64], why[64];

    for (int r = 0; r < rows * columns; r++)
        sites[r] = turns ? (char)('a' + r % rows) : '.';
    sites[rows * columns] = '\0';
    return turns ? grid_at(sites, NB_SCHEDULE_TWO_LEVEL, columns, why, sizeof(why))
                 : (struct nb_grid){.rows = rows, .columns = columns};
}

START_TEST(who_is_near)
{
    for (int rows = 1; rows < 5; rows++) {
        for (int columns = 2; columns < 5; columns++) {
            struct nb_grid g = grid_of(rows, columns, _i);
            int neighbors[8], n;
            for (int a = 0; a < rows * columns; a++) {
                n = nb_grid_connected(g, a, neighbors);
                ck_assert_int_eq(n, rows + columns - 2);
                for (int i = 0; i < n; i++) {
                    ck_assert(neighbors[i] != a && (i == 0 || neighbors[i] > neighbors[i - 1]));
                    ck_assert(nb_grid_same_row(g, a, neighbors[i]) ||
                              nb_grid_same_column(g, a, neighbors[i]));
                }
            }
            nb_grid_free(&g);
        }
    }
}
END_TEST

/* Messages to an owner and from it pass the same node, one step from both. */
START_TEST(ways)
{
    for (int rows = 2; rows < 5; rows++) {
        for (int columns = 2; columns < 5; columns++) {
            struct nb_grid g = grid_of(rows, columns, _i);
            for (int k = 0; k < rows * columns * rows * columns; k++) {
                int owner = k / (rows * columns), b = k % (rows * columns);
                int there = nb_grid_next(g, b, owner, 1), back = nb_grid_next(g, owner, b, 0);
                if (nb_grid_same_row(g, owner, b) || nb_grid_same_column(g, owner, b)) {
                    ck_assert(there == owner && back == b);
                    continue;
                }
                ck_assert_int_eq(there, back);
                ck_assert(nb_grid_same_row(g, there, b) && nb_grid_same_column(g, there, owner));
            }
            nb_grid_free(&g);
        }
    }
}
END_TEST

/* ---- control messages: node 1 of a grid of 2 x 2, connected with 0 (its row) and 3 (its column) -------- */

#define BUFFERS 8u
#define BUFFER_BYTES (NB_CTL_BYTES + NB_CTL_DATA_BYTES)

static int net_isend(void *conn, const void *data, size_t size, int tag, void *mhandle, void **req)
{
    (void)conn, (void)data, (void)size, (void)tag, (void)mhandle;
    *req = NULL;
    return 0;
}

static const struct nb_net_ops net = {.isend = net_isend};
static struct nb_coll_comm *comm;
static struct nb_peer *neighbors[2];

static void setup(void)
{
    comm = calloc(1, sizeof(*comm));
    node.params = nb_params_defaults();
    comm->ctx = &node;
    ck_assert_int_eq(nb_budgets_open(comm->ctx), 0);
    comm->nnodes = 4;
    comm->rank = 1;
    comm->token = 77;
    comm->grid = (struct nb_grid){.rows = 2, .columns = 2};
    comm->net = &net;
    comm->peer = calloc(4, sizeof(*comm->peer));
    comm->neighbors = comm->sends_to = neighbors;
    comm->nneighbors = 2;
    ck_assert(!nb_confirms_create(comm) && !nb_flow_create(comm) && !nb_watch_create(comm));
    comm->decisions = calloc(1, sizeof(*comm->decisions));
    for (int r = 0; r < 4; r++) {
        struct nb_peer *p = &comm->peer[r];
        struct nb_rx *rx = &p->rx[NB_CLASS_CONTROL];
        struct nb_tx *tx = &p->tx[NB_CLASS_CONTROL];
        p->rank = r;
        snprintf(p->name, sizeof(p->name), "node %d", r);
        if (r == 1 || r == 2)
            continue;
        neighbors[r == 3] = p;
        p->linked = 1;
        p->flow->raw.most = NB_GRID_MOST;
        p->flow->raw.ask = calloc(p->flow->raw.most, sizeof(*p->flow->raw.ask));
        p->flow->raw.answer.buf = malloc(BUFFER_BYTES);
        rx->buffer_bytes = tx->buffer_bytes = BUFFER_BYTES;
        rx->buffers = tx->buffers = BUFFERS;
        rx->mem = malloc((size_t)BUFFER_BYTES * BUFFERS);
        tx->mem = malloc((size_t)BUFFER_BYTES * BUFFERS);
        rx->len = calloc(BUFFERS, sizeof(*rx->len));
        rx->held = calloc(BUFFERS, sizeof(*rx->held));
        tx->item = calloc(BUFFERS, sizeof(*tx->item));
    }
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        free(neighbors[i]->flow->raw.ask);
        free(neighbors[i]->flow->raw.answer.buf);
        free(neighbors[i]->rx[NB_CLASS_CONTROL].mem);
        free(neighbors[i]->tx[NB_CLASS_CONTROL].mem);
        free(neighbors[i]->rx[NB_CLASS_CONTROL].len);
        free(neighbors[i]->rx[NB_CLASS_CONTROL].held);
        free(neighbors[i]->tx[NB_CLASS_CONTROL].item);
    }
    nb_budgets_close(comm->ctx);
    nb_confirms_destroy(comm);
    nb_flow_destroy(comm);
    nb_watch_destroy(comm);
    free(comm->decisions);
    free(comm->peer);
    free(comm);
}

/* Deliver a message from `via`. Return the result of reading it. */
static int message(int via, const struct nb_ctl *ctl)
{
    struct nb_rx *rx = &comm->peer[via].rx[NB_CLASS_CONTROL];
    uint8_t *slot = rx->mem + (rx->arrived % BUFFERS) * BUFFER_BYTES;

    nb_ctl_pack(ctl, slot);
    memset(slot + NB_CTL_BYTES, 0x5a, NB_CTL_DATA_BYTES);
    rx->len[rx->arrived % BUFFERS] = NB_CTL_BYTES + (ctl->kind == NB_CTL_DATA ? ctl->c : 0);
    rx->landed = ++rx->arrived;
    return nb_control_read(comm, &comm->peer[via]);
}

static int comes(int via, enum nb_ctl_kind kind, int from, int to, uint64_t a, uint64_t b, uint32_t c)
{
    struct nb_ctl ctl = {.kind = (uint8_t)kind,
                         .token = 77,
                         .a = a,
                         .b = b,
                         .c = c,
                         .from = (uint32_t)from,
                         .to = (uint32_t)to};
    return message(via, &ctl);
}

/* Return the last message queued for `to`, which must be the n-th. */
static struct nb_ctl left_for(int to, unsigned n)
{
    struct nb_tx *tx = &comm->peer[to].tx[NB_CLASS_CONTROL];
    const struct nb_tx_item *item = &tx->item[(tx->queued - 1) % BUFFERS];
    struct nb_ctl ctl = {0};
    const char *why = "";

    ck_assert_uint_eq(tx->queued, n);
    ck_assert_msg(nb_ctl_parse(item->data, item->shared ? item->shared->len : item->len, 77, &ctl, &why) == 0,
                  "%s", why);
    return ctl;
}

/* Node `from` of the row has the blocks of this column, and could keep all but the blocks of the rows in
 * `lost`. */
static int confirms(int from, uint64_t opno, uint64_t rows, uint64_t lost)
{
    struct nb_ctl ctl = {.kind = NB_CTL_COLUMN,
                         .token = 77,
                         .a = opno,
                         .from = (uint32_t)from,
                         .to = 1,
                         .rows = {rows},
                         .lost = {lost}};
    return message(from, &ctl);
}

/* This node has all blocks of an operation, and should have kept the blocks in `keep`. Bits stand for
 * ranks. */
static int done(uint64_t opno, uint64_t keep, uint64_t lost)
{
    const struct nb_op op = {.opno = opno, .keep = &keep, .lost = &lost};

    return nb_confirm_columns(comm, &op);
}

START_TEST(confirmations_are_gathered)
{
    struct nb_ctl ctl;

    ck_assert_int_eq(confirms(0, 5, 2, 0), 1); /* node 3's block, before this node has it */
    ck_assert_uint_eq(comm->confirms_open, 1);
    ck_assert_uint_eq(comm->peer[3].tx[NB_CLASS_CONTROL].queued, 0);
    ck_assert_int_eq(done(5, 13, 0), 0);
    ctl = left_for(3, 1);
    ck_assert(ctl.kind == NB_CTL_CONFIRM && ctl.a == 5 && ctl.b == 1 && ctl.c == 2 && ctl.from == 1 &&
              ctl.to == 3);
    ctl = left_for(0, 1); /* of its own block, and of node 2's block below it */
    ck_assert(ctl.kind == NB_CTL_COLUMN && ctl.a == 5 && ctl.rows[0] == 3 && ctl.lost[0] == 0 && ctl.to == 0);
    ck_assert_uint_eq(comm->confirms_open, 0);
    /* One node that could not keep the block decides for all. */
    ck_assert_int_eq(done(6, 8, 0), 0);
    left_for(0, 1); /* still the first message */
    ck_assert_int_eq(confirms(0, 6, 2, 2), 1);
    ctl = left_for(3, 2);
    ck_assert(ctl.a == 6 && ctl.b == 0 && ctl.c == 2);
    ck_assert_int_eq(done(7, 4, 4), 0);
    ctl = left_for(0, 2);
    ck_assert(ctl.rows[0] == 2 && ctl.lost[0] == 2);
    ck_assert_uint_eq(comm->confirms_open, 0);
}
END_TEST

/* One node's messages may be late. They must not take the places of other nodes. */
START_TEST(late_confirmations)
{
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(done(8 + (uint64_t)i * NB_OPS, 8, 0), 0);
    ck_assert_int_eq(done(9, 8, 0), 0);
    ck_assert_uint_eq(comm->confirms_open, 5);
    for (unsigned i = 0; i < 4; i++) {
        struct nb_ctl ctl;
        ck_assert_int_eq(confirms(0, 8 + (uint64_t)i * NB_OPS, 2, 0), 1);
        ctl = left_for(3, i + 1);
        ck_assert_uint_eq(ctl.a, 8 + (uint64_t)i * NB_OPS);
    }
    ck_assert_int_eq(confirms(0, 9, 2, 0), 1);
    ck_assert_uint_eq(comm->confirms_open, 0);
    /* The number is bounded by the number of operations. */
    for (uint64_t i = 0; i < NB_OPS; i++)
        ck_assert_int_eq(done(1000 + i, 8, 0), 0);
    ck_assert_int_eq(done(2000, 8, 0), -EPROTO);
}
END_TEST

/* The node that should answer is gone. */
START_TEST(asks_one_that_is_gone)
{
    struct nb_ctl ctl;

    comm->peer[3].gone = 1;
    ck_assert_int_eq(comes(0, NB_CTL_RAW, 0, 3, 9, 4096, 100), 1);
    ctl = left_for(0, 1);
    ck_assert(ctl.kind == NB_CTL_ABORT && strstr(ctl.text, "node 3"));
}
END_TEST

/* A node that has received everything still stays for the nodes of its row that may have to ask an owner
 * through it. */
START_TEST(goodbye_when_the_row_is_done)
{
    comm->refs = nb_refs_create(comm->ctx, nb_host_device(), 4);
    comm->device = nb_host_device();
    comm->arrivals.fd = -1;
    nb_turn_lock_init(&comm->progress_lock);
    comm->state = NB_COMM_CLOSING;
    comm->watch->close_deadline_ns = INT64_MAX;
    ck_assert_int_eq(done(5, 8, 0), 0);
    nb_comm_progress(comm, 1);
    ck_assert_int_eq(comm->drained, 0);
    ck_assert_int_eq(confirms(0, 5, 2, 0), 1);
    nb_comm_progress(comm, 1);
    ck_assert_int_eq(comm->drained, 1);
    ck_assert_int_eq(left_for(0, 1).kind, NB_CTL_FIN);
    nb_refs_destroy(comm->refs);
}
END_TEST

START_TEST(confirms_for_others)
{
    ck_assert_int_lt(comes(3, NB_CTL_CONFIRM, 3, 1, 9, 1, _i ? 3 : 1), 0); /* rows have two nodes */
    ck_assert_int_eq(comm->failure.error, -EPROTO);
}
END_TEST

/* The own block: its owner learns of each node of its row. */
START_TEST(own_block_is_confirmed)
{
    uint8_t block[64] = {1};
    struct nb_ref_search search = {.own = block, .avail = sizeof(block), .bytes = sizeof(block)};
    struct nb_ref *ref = NULL;

    comm->refs = nb_refs_create(comm->ctx, nb_host_device(), 4);
    nb_refs_seek(comm->refs, &search);
    ck_assert_int_eq(nb_refs_pick(comm->refs, &search, 9, &ref), NB_REF_NEW);
    memcpy(nb_refs_write(ref, 0, sizeof(block), 9), block, sizeof(block));
    ck_assert_int_eq(confirms(0, 9, 1, 0), 1);
    ck_assert_uint_eq(ref->answers, 1);
    ck_assert_int_eq(comes(3, NB_CTL_CONFIRM, 3, 1, 9, 1, 2), 1); /* for its row */
    ck_assert_uint_eq(ref->answers, 3);
    ck_assert_uint_eq(ref->confirms, 3);
    ck_assert_int_eq(nb_refs_unconfirmed(comm->refs), 0);
    nb_refs_destroy(comm->refs);
}
END_TEST

START_TEST(others_messages_pass)
{
    struct nb_tx *tx = &comm->peer[0].tx[NB_CLASS_CONTROL];
    struct nb_ctl ctl;

    ck_assert_int_eq(comes(0, NB_CTL_RAW, 0, 3, 9, 4096, 100), 1);
    ctl = left_for(3, 1);
    ck_assert(ctl.kind == NB_CTL_RAW && ctl.from == 0 && ctl.to == 3 && ctl.a == 9 && ctl.b == 4096 &&
              ctl.c == 100);
    ck_assert_int_eq(comes(3, NB_CTL_DATA, 3, 0, 9, 4096, 100), 1);
    ctl = left_for(0, 1);
    ck_assert(ctl.kind == NB_CTL_DATA && ctl.from == 3 && ctl.to == 0 && ctl.c == 100);
    ck_assert_int_eq(((const uint8_t *)tx->item[0].data)[NB_CTL_BYTES + 99], 0x5a);
    /* The next message waits until its buffer is free again. */
    ck_assert_int_eq(comes(3, NB_CTL_DATA, 3, 0, 9, 4196, 50), 0);
    ck_assert_uint_eq(tx->queued, 1);
    comm->peer[0].flow->raw.answer.left = 0;
    tx->done = tx->sent = 1;
    ck_assert_int_eq(nb_control_read(comm, &comm->peer[3]), 1);
    ctl = left_for(0, 2);
    ck_assert(ctl.b == 4196 && ctl.c == 50);
}
END_TEST

/* The message's way does not lead through here, or its sender may not send it. */
START_TEST(wrong_ways)
{
    static const struct {
        int via;
        enum nb_ctl_kind kind;
        int from, to;
    } wrong[] = {
        {0, NB_CTL_RAW, 0, 2},   /* 0 and 2 are connected */
        {0, NB_CTL_RAW, 2, 3},   /* 2 and 3 are connected */
        {3, NB_CTL_RAW, 3, 0},   /* goes along row 1 first */
        {0, NB_CTL_DATA, 0, 3},  /* goes along column 0 first */
        {0, NB_CTL_ABORT, 2, 1}, /* is never forwarded */
        {0, NB_CTL_FIN, 0, 3},     {3, NB_CTL_ALIVE, 0, 1},   {0, NB_CTL_RAW, 2, 1}, /* came the wrong way */
        {0, NB_CTL_RAW, 0, 4},     {0, NB_CTL_CONFIRM, 9, 1}, {0, NB_CTL_CONFIRM, 1, 1},
        {0, NB_CTL_CONFIRM, 0, 3}, /* goes no further */
        {3, NB_CTL_COLUMN, 3, 1},  /* is for nodes of a row */
    };

    ck_assert_int_eq(comes(wrong[_i].via, wrong[_i].kind, wrong[_i].from, wrong[_i].to, 1, 0, 1) < 0, 1);
    ck_assert_int_eq(comm->failure.error, -EPROTO);
}
END_TEST

/* A request of a node beyond gets its answer along the same way. */
START_TEST(asked_from_beyond)
{
    ck_assert_int_eq(comes(3, NB_CTL_RAW, 2, 1, 4, 64, 32), 1);
    ck_assert_uint_eq(comm->peer[3].flow->raw.n, 1);
    ck_assert(comm->peer[3].flow->raw.ask[0].rank == 2 && comm->peer[3].flow->raw.ask[0].off == 64 &&
              comm->peer[3].flow->raw.ask[0].len == 32);
}
END_TEST

/* ---- chains of waiting nodes -------------------------------------------------------------------------- */

/* Deliver a heartbeat of `via`. */
static int beats(int via, enum nb_chain_kind kind, int end, unsigned steps)
{
    const struct nb_ctl ctl = {.kind = NB_CTL_ALIVE,
                               .token = 77,
                               .c = (uint32_t)kind,
                               .from = (uint32_t)via,
                               .to = 1,
                               .wait = {.end = (uint32_t)end, .steps = steps}};

    return message(via, &ctl);
}

/* Node 1 has taken over an all-gather, and waits for node 0's messages about it. Its conclusions follow from
 * node 0's heartbeat. */
START_TEST(whom_a_node_waits_for)
{
    static const struct {
        struct nb_chain told, found;
    } cases[] = {
        {{NB_CHAIN_UNKNOWN, 0, 0, NULL}, {NB_CHAIN_LOST, -1, 0, NULL}},
        {{NB_CHAIN_LOST, 0, 0, NULL}, {NB_CHAIN_LOST, -1, 0, NULL}},
        {{NB_CHAIN_NONE, 0, 0, NULL}, {NB_CHAIN_END, 0, 1, NULL}},
        {{NB_CHAIN_END, 2, 1, NULL}, {NB_CHAIN_END, 2, 2, NULL}},
        {{NB_CHAIN_END, 3, NB_CHAIN_STEPS - 1, NULL}, {NB_CHAIN_END, 3, NB_CHAIN_STEPS, NULL}},
        {{NB_CHAIN_END, 3, NB_CHAIN_STEPS, NULL}, {NB_CHAIN_LOST, -1, 0, NULL}},
        {{NB_CHAIN_END, 1, 1, NULL}, {NB_CHAIN_MUTUAL, 0, 1, NULL}},
        {{NB_CHAIN_END, 1, 2, NULL}, {NB_CHAIN_LOST, -1, 0, NULL}},
        {{NB_CHAIN_MUTUAL, 1, 1, NULL}, {NB_CHAIN_MUTUAL, 0, 1, NULL}},
        {{NB_CHAIN_MUTUAL, 2, 1, NULL}, {NB_CHAIN_MUTUAL, 2, 2, NULL}},
    };
    const struct nb_chain *found = &comm->watch->chain.found;
    const int64_t now = nb_clock_ns(&comm->ctx->clock);

    for (int i = 0; i < 2; i++)
        neighbors[i]->life.received_ns = now;
    nb_chain_update(comm, now - NB_NS_PER_MS);
    ck_assert_int_eq(found->kind, NB_CHAIN_NONE);
    ck_assert_int_eq(done(5, 13, 0), 0);
    nb_chain_update(comm, now - NB_NS_PER_MS);
    ck_assert_int_eq(beats(3, NB_CHAIN_NONE, 0, 0), 1); /* it waits for no node, and no node waits for it */
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        ck_assert_int_eq(beats(0, cases[k].told.kind, cases[k].told.end, cases[k].told.steps), 1);
        nb_chain_update(comm, now);
        ck_assert_msg(found->kind == cases[k].found.kind && found->end == cases[k].found.end &&
                          found->steps == cases[k].found.steps,
                      "case %zu: kind %d, node %d, %u steps", k, (int)found->kind, found->end, found->steps);
        ck_assert_ptr_eq(found->via, &comm->peer[0]);
        ck_assert_int_eq(nb_chain_ends_at(comm, &comm->peer[0]), cases[k].told.kind == NB_CHAIN_NONE);
        ck_assert(!nb_chain_ends_at(comm, &comm->peer[3]));
    }
    /* Its last report is old. */
    nb_chain_update(comm, now + 2 * (int64_t)NB_NS_PER_S);
    ck_assert(found->kind == NB_CHAIN_END && found->end == 0 && found->steps == 1);
    /* Now it is on time again. */
    ck_assert_int_eq(confirms(0, 5, 2, 0), 1);
    nb_chain_update(comm, now);
    ck_assert_int_eq(found->kind, NB_CHAIN_NONE);
}
END_TEST

START_TEST(absurd_heartbeats)
{
    static const struct nb_chain absurd[] = {
        {NB_CHAIN_COUNT, 0, 0, NULL},  {NB_CHAIN_END, 4, 1, NULL},
        {NB_CHAIN_END, -1, 1, NULL},   {NB_CHAIN_END, 0, 1, NULL},
        {NB_CHAIN_END, 2, 0, NULL},    {NB_CHAIN_END, 2, NB_CHAIN_STEPS + 1, NULL},
        {NB_CHAIN_MUTUAL, 0, 1, NULL}, {NB_CHAIN_MUTUAL, 4, 1, NULL},
    };

    ck_assert_int_lt(beats(0, absurd[_i].kind, absurd[_i].end, absurd[_i].steps), 0);
    ck_assert_int_eq(comm->failure.error, -EPROTO);
}
END_TEST

SUITE_MAIN("coll/grid", TEST(which_grid), TEST(rows_within_sites), TEST(stated_rates), TEST(many_sites),
           LOOP(who_is_near, 0, 2), LOOP(ways, 0, 2), FIXTURE(setup, teardown),
           TEST(confirmations_are_gathered), TEST(own_block_is_confirmed), TEST(late_confirmations),
           TEST(asks_one_that_is_gone), TEST(goodbye_when_the_row_is_done), LOOP(confirms_for_others, 0, 2),
           TEST(others_messages_pass), LOOP(wrong_ways, 0, 13), TEST(asked_from_beyond),
           TEST(whom_a_node_waits_for), LOOP(absurd_heartbeats, 0, 8))
