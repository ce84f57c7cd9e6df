/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults while nodes connect, in virtual time: one node of a group has a fault, at each of the steps of its
 * connect, from the first connection to the last vote. In all cases every living node ends within
 * NIBBLE_CONNECT_TIMEOUT by its own clock, and its log names the culprit. Where some nodes have a
 * communicator all the same, it fails at once. A late node alone is not an error.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/comm/wire.h"
#include "tests/base/hear.h"
#include "tests/coll/cluster.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define SECOND ((int64_t)NB_NS_PER_S)
#define TURNS 2000000 /* most turns of a run */

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;

/* The fate of each node, in time outside of all clocks, and lines of its log. */
static struct fate {
    int64_t offset; /* offset of its clock from that time */
    int64_t began, ended, due;
    bool dead;
    bool returns; /* it wakes up again */
    char declined[512], failed[512];
} fate[CLUSTER_MOST];

static int nodes, speaking;
static unsigned turns;
static uint64_t dice;               /* not 0: seed of the random order in which nodes step */
static struct nb_net_ops transport; /* the run's transport */
static int64_t now_ns;              /* time outside of all clocks */

static void hear(ncclDebugLogLevel level, const char *text)
{
    if (getenv("NB_SHOW"))
        fprintf(stderr, "%10.3f node %d: %s\n", (double)now_ns / 1e9, speaking, text);
    if (level != NCCL_LOG_WARN || speaking < 0)
        return;
    if (strstr(text, "is declined"))
        snprintf(fate[speaking].declined, sizeof(fate[speaking].declined), "%.511s", text);
    else if (strstr(text, "comm 0x"))
        snprintf(fate[speaking].failed, sizeof(fate[speaking].failed), "%.511s", text);
}

static uint64_t draw(uint64_t below)
{
    dice ^= dice >> 12; /* xorshift64* */
    dice ^= dice << 25;
    dice ^= dice >> 27;
    return (dice * UINT64_C(2685821657736338717) >> 33) % below;
}

static bool is_late(void *arg)
{
    (void)arg;
    return draw(4) != 0;
}

static void *control; /* node 0's connection, over which it votes */
static bool broken;   /* it has been broken, or must not be */
static bool older;    /* node 1 says that it is of an earlier release */

static int connect_and_note(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                            void **conn)
{
    const int ret = loopback_ops.connect(net, dev, cfg, handle, conn);

    if (net->ctx == &node[0].ctx && cfg->urgent && *conn && !broken)
        control = *conn;
    return ret;
}

/* Refuse votes, as a transport without room may, until the connection breaks under node 0's first vote. */
static int break_under_vote(void *conn, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct nb_hello hello;
    const char *why;

    if (older && size == NB_HELLO_BYTES && nb_hello_parse(data, size, &hello, &why) == 0 && hello.rank == 1) {
        snprintf(hello.version, sizeof(hello.version), "0.1.0");
        hello.settings = 1;
        nb_hello_pack(&hello, (void *)(uintptr_t)data);
    }
    if (broken || size != NB_VOTE_BYTES)
        return loopback_ops.isend(conn, data, size, tag, mhandle, request);
    *request = NULL;
    if (conn == control) {
        loopback_cut(conn);
        broken = true;
    }
    return 0;
}

/* Replace the table that the original init installs. */
static int changed_init(struct nb_context *ctx, struct nb_net **net)
{
    const int rc = loopback_ops.init(ctx, net);

    if (!rc)
        (*net)->ops = &transport;
    return rc;
}

static void begin(int n, bool grid)
{
    transport = loopback_ops;
    transport.init = changed_init;
    transport.connect = connect_and_note;
    transport.isend = break_under_vote;
    broken = true;
    older = false;
    if (dice && draw(2)) /* an ended connection shows at its next use only */
        transport.lost = NULL;
    loopback_set_late(dice && draw(2) ? is_late : NULL, NULL);
    nb_log_set(hear_log);
    loopback_heal();
    nodes = n;
    turns = 0;
    now_ns = 0;
    speaking = -1;
    memset(fate, 0, sizeof(fate));
    cluster_begin(&cluster);
    for (int i = 0; i < n; i++) {
        struct cluster_node *added = cluster_add(&cluster, NULL, &transport);
        fate[i].offset = added->now;
        added->params.unit_bytes = 16384;
        added->params.schedule = grid ? NB_SCHEDULE_TWO_LEVEL : NB_SCHEDULE_DIRECT;
    }
    cluster_listen(&cluster, 17);
}

static void begin_connect(int i)
{
    fate[i].began = now_ns;
    cluster_begin_connect(&cluster, i);
}

/* Step everything on a node once. Return true when something moved. */
static bool step(int i)
{
    const bool connects = node[i].connect != NULL;
    bool moved;

    speaking = i;
    moved = cluster_step(&cluster, i, &fate[i].due);
    speaking = -1;
    if (connects && !node[i].connect)
        fate[i].ended = now_ns;
    if (fate[i].due != INT64_MAX)
        fate[i].due -= fate[i].offset;
    return moved;
}

/* Step all nodes but the sleeping ones. When all stand still, move time to the first due event, at most to
 * `limit`. */
static void turn(int64_t limit)
{
    static bool moves; /* something moved in the last round */
    bool moved = false, skipped = false;
    int64_t next = limit;

    ck_assert_uint_lt(turns++, TURNS);
    for (int i = 0; i < nodes; i++) {
        if (node[i].asleep || fate[i].dead)
            continue;
        if (dice && moves && draw(2)) {
            skipped = true;
            continue;
        }
        moved |= step(i);
        if (fate[i].due < next)
            next = fate[i].due;
    }
    moves = moved;
    if (moved || skipped)
        return;
    ck_assert_msg(next != INT64_MAX, "nothing moves, and nothing is due");
    now_ns = next > now_ns ? next : now_ns;
    now_ns++;
    for (int i = 0; i < nodes; i++)
        node[i].now = now_ns + fate[i].offset;
}

static bool is_living(int i)
{
    return !fate[i].dead && (!node[i].asleep || fate[i].returns);
}

static bool all_ended(void)
{
    for (int i = 0; i < nodes; i++)
        if (is_living(i) && node[i].connected == -EINPROGRESS)
            return false;
    return true;
}

static void close_comms(void)
{
    int open = 0;

    for (int i = 0; i < nodes; i++) {
        open += node[i].comm != NULL;
        if (node[i].comm)
            ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
    }
    while (open) {
        turn(INT64_MAX);
        for (int i = 0; i < nodes; i++) {
            if (!node[i].comm || nb_coll_close_step(node[i].comm))
                continue;
            node[i].comm = NULL;
            open--;
        }
    }
}

/* Wake all nodes up. They end by themselves and leave no trace. */
static void end(void)
{
    for (int i = 0; i < nodes; i++) {
        node[i].asleep = fate[i].dead = false;
        if (!node[i].connect && node[i].connected == -EINPROGRESS) /* it never began */
            ck_assert_int_eq(nb_coll_close_listen(node[i].listen), 0);
    }
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < nodes; i++)
            more |= node[i].connect != NULL;
        if (more)
            turn(INT64_MAX);
    }
    for (int i = 0; i < nodes; i++)
        if (node[i].connected == 0)
            ck_assert_int_eq(nb_coll_close_listen(node[i].listen), 0);
    close_comms();
    cluster_close(&cluster);
    loopback_set_late(NULL, NULL);
    nb_log_set(NULL);
}

/* ---- one fault -------------------------------------------------------------------------------------- */

enum fault { KILLED, STOPPED, CUT, CUT_OFF, PAUSED, SLOW, FAULTS };
static const char *const fault_name[FAULTS] = {"killed", "stopped", "cut", "cut off", "paused", "slow"};

static const struct group {
    int nodes;
    bool grid;
} groups[] = {{2, false}, {3, false}, {4, false}, {5, false}, {6, false},
              {7, false}, {8, false}, {4, true},  {6, true},  {8, true}};
#define GROUPS (int)(sizeof(groups) / sizeof(groups[0]))

static struct run {
    struct group group;
    enum fault fault;
    int victim, other; /* CUT: between these two */
    int at;            /* the step of the victim before which it happens */
    char phase[64];    /* the victim's phase then */
    bool done;         /* it has happened */
    int64_t when;
    bool split;
    uint64_t seed; /* in_any_order */
} run;

static const char *run_name(void)
{
    static char text[256];

    snprintf(text, sizeof(text), "seed %llu: %d nodes%s, node %d %s before step %d (%s)",
             (unsigned long long)run.seed, run.group.nodes, run.group.grid ? " on a grid" : "", run.victim,
             fault_name[run.fault], run.at, run.phase);
    return text;
}

static void make_fault(void)
{
    struct cluster_node *v = &node[run.victim];

    run.done = true;
    run.when = now_ns;
    snprintf(run.phase, sizeof(run.phase), "%s", nb_coll_connect_phase(v->connect));
    switch (run.fault) {
    case KILLED:
        fate[run.victim].dead = true;
        loopback_kill(&v->ctx);
        break;
    case CUT_OFF:
        for (int i = 0; i < nodes; i++)
            if (i != run.victim)
                loopback_separate(&v->ctx, &node[i].ctx);
        break;
    case CUT: loopback_separate(&v->ctx, &node[run.other].ctx); break;
    case PAUSED:
    case SLOW: fate[run.victim].returns = true; /* fall through */
    default: v->asleep = true;
    }
}

/* Return whether a line of node i's log names the missing node. */
static bool names(int i, const char *line)
{
    char victim[16], other[16];

    snprintf(victim, sizeof(victim), "node %d (", run.victim);
    snprintf(other, sizeof(other), "node %d (", run.other);
    if (i == run.victim && run.fault == CUT_OFF) /* to itself the other nodes are missing */
        return strstr(line, " node ") != NULL;
    return strstr(line, victim) || (run.fault == CUT && strstr(line, other));
}

/* Check that a communicator which only some nodes have fails at once, with the cause. */
static void check_split(int i)
{
    const int64_t limit = now_ns + (run.fault == STOPPED || run.fault == CUT_OFF ? 35 : 1) * SECOND;

    run.split = true;
    while (!nb_comm_failed(node[i].comm) && now_ns < limit)
        turn(limit);
    ck_assert_msg(nb_comm_failed(node[i].comm), "%s: node %d alone has a communicator", run_name(), i);
    ck_assert_msg(names(i, fate[i].failed), "%s: node %d says \"%s\"", run_name(), i, fate[i].failed);
}

static void check_outcome(void)
{
    const bool harmless = run.fault == PAUSED || run.fault == SLOW;
    int declined = 0;

    for (int i = 0; i < nodes; i++) {
        const struct cluster_node *n = &node[i];
        const struct fate *f = &fate[i];
        if (!is_living(i))
            continue;
        declined += n->connected != 0;
        ck_assert_msg(n->connected == 0 || n->connected == -ECONNREFUSED, "%s: node %d: %d", run_name(), i,
                      n->connected);
        ck_assert_msg(f->ended - f->began <= n->params.connect_timeout * SECOND + (int64_t)NB_NS_PER_MS,
                      "%s: node %d ends after %.3f s", run_name(), i, (double)(f->ended - f->began) / 1e9);
        ck_assert_msg(n->connected == 0 || names(i, f->declined), "%s: node %d says \"%s\"", run_name(), i,
                      f->declined);
        /* A detected end is reported at once. A transport that cannot detect it learns of it when it uses the
         * connection. */
        ck_assert_msg(run.fault != KILLED || !transport.lost || f->ended - run.when < SECOND,
                      "%s: node %d ends after %.3f s", run_name(), i, (double)(f->ended - run.when) / 1e9);
    }
    ck_assert_msg(!harmless || declined == 0, "%s: %s", run_name(), fate[0].declined);
    for (int i = 0; i < nodes && declined; i++)
        if (is_living(i) && node[i].connected == 0)
            check_split(i);
}

/* Begin one connect after the other, within some milliseconds. */
static void begin_connects(void)
{
    for (int i = 0; i < nodes; i++) {
        for (int64_t late = dice ? now_ns + (int64_t)draw(20) * (int64_t)NB_NS_PER_MS : 0; now_ns < late;)
            turn(late);
        begin_connect(i);
    }
}

/* Return false when the victim has connected before that step. */
static bool run_fault(void)
{
    int steps = 0;

    begin(run.group.nodes, run.group.grid);
    run.done = run.split = false;
    begin_connects();
    while (!all_ended()) {
        struct cluster_node *v = &node[run.victim];
        int64_t limit = INT64_MAX;

        if (!run.done && v->connect && steps++ == run.at)
            make_fault();
        if (run.done && run.fault == PAUSED) {
            limit = run.when + 20 * SECOND;
            if (now_ns >= limit) {
                v->asleep = false;
                limit = INT64_MAX;
            }
        } else if (run.done && run.fault == SLOW) {
            limit = (now_ns / SECOND + 1) * SECOND; /* one step a second */
            v->asleep = true;
            turn(limit);
            v->asleep = now_ns < limit;
            if (v->asleep)
                continue;
        }
        turn(limit);
    }
    if (run.done)
        check_outcome();
    end();
    return run.done;
}

static const char *const phases[] = {"connecting",
                                     "preparing",
                                     "vote of the row",
                                     "vote of the column",
                                     "second vote of the row",
                                     "second vote of the column"};
#define PHASES (int)(sizeof(phases) / sizeof(phases[0]))

/* Sanitizers see an eighth of the steps, another one for each fault and victim. For each fault the groups
 * together see all eighths. */
START_TEST(table)
{
    const int stride = getenv("NB_TEST_QUICK") ? 8 : 1;
    bool seen[PHASES] = {false};
    int runs = 0, splits = 0;

    run.group = groups[_i / FAULTS];
    run.fault = (enum fault)(_i % FAULTS);
    for (int who = 0; who < 2; who++) {
        run.victim = who ? run.group.nodes - 1 : run.group.nodes / 2;
        run.other = run.victim ^ 1;
        if (run.other >= run.group.nodes)
            run.other = run.victim - 1;
        for (run.at = (_i + who) % stride; run_fault(); run.at += stride) {
            runs++;
            splits += run.split;
            for (int k = 0; k < PHASES; k++)
                seen[k] |= strcmp(run.phase, phases[k]) == 0;
            ck_assert_int_lt(run.at, 1000);
        }
    }
    for (int k = 0; k < PHASES; k++)
        ck_assert_msg(seen[k] || stride > 1 || (!run.group.grid && strstr(phases[k], "column")),
                      "never in phase %s", phases[k]);
    printf("%d nodes%s, %s: %d runs, in %d of them some had a communicator, which failed\n", run.group.nodes,
           run.group.grid ? " on a grid" : "", fault_name[run.fault], runs, splits);
    fflush(stdout);
}
END_TEST

/* Nodes begin and take their steps in any order, over transports with and without `lost`. */
START_TEST(in_any_order)
{
    static const enum fault faults[] = {KILLED, STOPPED, CUT, CUT_OFF};
    const uint64_t seeds = getenv("NB_SEEDS") ? strtoull(getenv("NB_SEEDS"), NULL, 0) : 10;
    int runs = 0;

    for (uint64_t seed = 0; seed < seeds; seed++) {
        dice = (seed * GROUPS + (uint64_t)_i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        run.group = groups[_i];
        run.fault = faults[draw(4)];
        run.victim = (int)draw((uint64_t)run.group.nodes);
        run.other = (run.victim + 1 + (int)draw((uint64_t)run.group.nodes - 1)) % run.group.nodes;
        run.at = (int)draw(40);
        run.seed = seed;
        runs += run_fault();
    }
    dice = 0;
    ck_assert_int_gt(runs, (int)seeds / 4);
}
END_TEST

/* An adapter refuses memory to one of the nodes, at each of its registrations while it connects. The node
 * knows at once and tells all. */
START_TEST(registration_refused)
{
    const int nodes_of[] = {2, 4};
    bool refused = true;
    int runs = 0;

    for (int at = 0; refused; at++) {
        begin(nodes_of[_i], false);
        loopback_refuse(&node[1].ctx, at);
        for (int i = 0; i < nodes; i++)
            begin_connect(i);
        while (!all_ended())
            turn(INT64_MAX);
        refused = node[1].connected != 0;
        for (int i = 0; i < nodes; i++) {
            ck_assert_msg((node[i].connected != 0) == refused, "refused the %d. time: node %d: %d", at, i,
                          node[i].connected);
            ck_assert_msg(!refused || strstr(fate[i].declined, "cannot register"), "node %d says \"%s\"", i,
                          fate[i].declined);
            ck_assert_msg(!refused || i == 1 || strstr(fate[i].declined, "node 1 "), "node %d says \"%s\"", i,
                          fate[i].declined);
            ck_assert_int_lt(fate[i].ended, SECOND);
        }
        runs += refused;
        end();
    }
    ck_assert_int_gt(runs, 10);
}
END_TEST

/* ---- strangers, and nodes of the job that are taken for strangers -------------------------------------- */

static void connect_all(void)
{
    for (int i = 0; i < nodes; i++)
        begin_connect(i);
}

static void all_connected(void)
{
    while (!all_ended())
        turn(INT64_MAX);
    for (int i = 0; i < nodes; i++)
        ck_assert_msg(node[i].connected == 0, "node %d: %s", i, fate[i].declined);
    ck_assert_int_lt(now_ns, 20 * SECOND);
    end();
}

/* Connections without a hello, as many as the job would make, and many times that. They take no node's
 * place. */
START_TEST(without_a_hello)
{
    const int count = _i ? 200 : 3;
    void *stranger[200];

    begin(2, false);
    for (int i = 0; i < count; i++) {
        uint8_t handle[NB_NET_HANDLE_BYTES];
        struct nb_net *net = node[1].ctx.net;

        memcpy(handle, node[0].handle, sizeof(handle));
        ck_assert_int_eq(net->ops->connect(net, 0, NULL, handle, &stranger[i]), 0);
    }
    connect_all();
    while (!all_ended())
        turn(INT64_MAX);
    for (int i = 0; i < count; i++)
        loopback_ops.close_send(stranger[i]);
    all_connected();
}
END_TEST

/* A listener drops a node's connections before it has read their hello. The node makes them again. */
START_TEST(taken_for_a_stranger)
{
    int dropped = 0;

    begin(4, _i & 1);
    connect_all();
    if (_i & 2) /* it has sent its hello to the other nodes, which confirm it */
        step(1);
    node[1].asleep = fate[1].returns = true;
    for (int i = 0; i < 5; i++)
        turn(10 * SECOND);
    dropped = loopback_drop_waiting(&node[1].ctx);
    ck_assert_int_ge(dropped, _i & 1 ? 6 : 9);
    for (int i = 0; i < 100; i++)
        turn(10 * SECOND);
    ck_assert_int_ge(loopback_drop_waiting(&node[1].ctx), dropped);
    node[1].asleep = false;
    all_connected();
}
END_TEST

/* A node of another release has other rules. All nodes decline, and say which node runs which release. */
START_TEST(of_another_release)
{
    begin(3, false);
    older = true;
    connect_all();
    while (!all_ended())
        turn(INT64_MAX);
    for (int i = 0; i < nodes; i++) {
        ck_assert_int_eq(node[i].connected, -ECONNREFUSED);
        ck_assert_msg(strstr(fate[i].declined, "runs nibble 0.1.0, node ") != NULL, "%s", fate[i].declined);
        ck_assert_msg(strstr(fate[i].declined, "install the same on all nodes") != NULL, "%s",
                      fate[i].declined);
    }
    end();
}
END_TEST

/* ---- a connection that ends under a message ------------------------------------------------------- */

/* A message that was on its way when a connection ended belongs to that connection. The node does not repeat
 * it over the next one. */
START_TEST(vote_under_way)
{
    begin(2, false);
    control = NULL;
    broken = false;
    connect_all();
    while (!broken)
        turn(10 * SECOND);
    all_connected();
}
END_TEST

SUITE_MAIN("coll/connect", LOOP(table, 0, GROUPS *FAULTS), LOOP(registration_refused, 0, 2),
           LOOP(without_a_hello, 0, 2), LOOP(taken_for_a_stranger, 0, 4), TEST(of_another_release),
           TEST(vote_under_way), LOOP(in_any_order, 0, GROUPS))
