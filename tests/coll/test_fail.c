/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of a group's nodes when one of them fails. Eight nodes in one process and one thread, on a
 * grid of two rows, are connected in memory, with a virtual clock (cluster.h). Each acts as NCCL does: when a
 * call returns an error, it closes the communicator. Every living node must name the culprit and state the
 * evidence of the first witness.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "tests/base/hear.h"
#include "tests/coll/cluster.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define NODES 8
#define COLUMNS 4
#define SECOND ((int64_t)NB_NS_PER_S)
#define VALUES 4096u
#define UNIT 16384u
#define LINES 8

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;

/* NCCL's state on each node, and the node's log. */
static struct nccl {
    struct nb_coll_req *req;
    int error;     /* result of a call */
    bool held_off; /* NCCL does not call, and so learns of no error */
    bool closing, closed;
    char said[LINES][900];
    int lines;
} nccl[NODES];

static float in[NODES][VALUES], out[NODES][VALUES];

/* Takes the place of the C library's. Returns a name as clusters of many nodes have them. */
int gethostname(char *name, size_t len)
{
    snprintf(name, len, "ip-10-11-12-13.rack-0017.cluster-a.somewhere-west-2.compute.internal");
    return 0;
}

/* Lines begin with "NET/nibble : nodeN: ". */
static void hear(ncclDebugLogLevel level, const char *text)
{
    const char *const at = strstr(text, " n#");

    if (level != NCCL_LOG_WARN || !at || strstr(text, "memory: "))
        return;
    struct nccl *n = &nccl[at[3] - '0'];
    ck_assert_int_lt(n->lines, LINES);
    snprintf(n->said[n->lines++], sizeof(n->said[0]), "%.890s", at);
}

/* ---- a device that gets stuck ------------------------------------------------------------------------- */

static struct {
    const struct nb_device_ops *sound;
    struct nb_device_ops ops;
    struct nb_device device;
    /* Work that begins in the first bytes never ends, except work that begins in the second. */
    const uint8_t *from, *but;
    size_t bytes, but_bytes;
} stuck;

static bool sticks(const void *at)
{
    const uint8_t *const b = at;

    return b >= stuck.from && b < stuck.from + stuck.bytes &&
           (b < stuck.but || b >= stuck.but + stuck.but_bytes);
}

static int stuck_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    return sticks(src) || sticks(dst) ? -EINPROGRESS : stuck.sound->copy(dev, work, dst, src, bytes);
}

static ssize_t stuck_poll(struct nb_device *dev, struct nb_work *work)
{
    (void)dev, (void)work;
    return -EINPROGRESS;
}

/* Make the host's device of node `i` stick: work that begins in `bytes` bytes at `from` never ends, except
 * work that begins in `but_bytes` at `but`. The device does all other work at once. */
static void get_stuck(int i, const void *from, size_t bytes, const void *but, size_t but_bytes)
{
    stuck.sound = node[i].comm->device->ops;
    stuck.ops = *stuck.sound;
    stuck.ops.copy = stuck_copy;
    stuck.ops.poll = stuck_poll;
    stuck.from = from;
    stuck.bytes = bytes;
    stuck.but = but;
    stuck.but_bytes = but_bytes;
    stuck.device.ops = &stuck.ops;
    node[i].comm->device = &stuck.device;
}

/* ---- a group of nodes ------------------------------------------------------------------------------ */

/* Take NCCL's turn on a node. Return true when something moved. */
static bool nccl_turn(struct cluster *c, int i)
{
    struct nb_coll_comm *comm = c->node[i].comm;
    struct nccl *n = &nccl[i];
    bool moved = false;
    int done;

    if (n->req && !n->error && !n->held_off) {
        n->error = nb_coll_test(n->req, &done, NULL);
        if (done)
            n->req = NULL;
        moved = done || n->error;
    }
    if (n->error && !n->closing) {
        ck_assert_int_eq(nb_coll_close_begin(comm), 0);
        n->closing = moved = true;
    }
    if (n->closing && !n->closed && nb_coll_close_step(comm) == 0)
        n->closed = moved = true;
    return moved;
}

/* Where no event is due, no running node may have an open communicator. */
static void turn(void)
{
    (void)cluster_turn(&cluster);
}

static void setup_with(int schedule)
{
    memset(nccl, 0, sizeof(nccl));
    nb_log_set(hear_log);
    cluster_open(&cluster, NODES);
    cluster.most_rounds = 200000;
    cluster.nccl = nccl_turn;
    for (int i = 0; i < NODES; i++) {
        node[i].params.unit_bytes = UNIT;
        node[i].params.schedule = schedule;
        node[i].params.group = schedule == NB_SCHEDULE_TWO_LEVEL ? COLUMNS : 0;
        snprintf(node[i].ctx.label, sizeof(node[i].ctx.label), "n#%d", i);
    }
    cluster_connect(&cluster);
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(nccl[i].lines, 0);
}

static void setup(void)
{
    setup_with(NB_SCHEDULE_TWO_LEVEL);
}

static void setup_direct(void)
{
    setup_with(NB_SCHEDULE_DIRECT);
}

static void teardown(void)
{
    for (int i = 0; i < NODES; i++) {
        if (!nccl[i].closing)
            ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
        node[i].asleep = false;
        nccl[i].closing = true;
    }
    for (int i = 0; i < NODES; i++)
        while (!nccl[i].closed)
            turn();
    cluster_close(&cluster);
    nb_log_set(NULL);
}

static void post(int i)
{
    ck_assert_int_eq(
        nb_coll_iallreduce(node[i].comm, in[i], out[i], VALUES, ncclFloat32, ncclSum, &nccl[i].req), 0);
    ck_assert_ptr_nonnull(nccl[i].req);
}

/* Kill a node's process: it stops, and its connections end. */
static void die(int i)
{
    struct nb_coll_comm *comm = node[i].comm;

    node[i].asleep = true;
    for (int k = 0; k < comm->nneighbors; k++)
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            loopback_cut(comm->neighbors[k]->tx[c].conn);
            loopback_cut(comm->neighbors[k]->rx[c].conn);
        }
}

/* Take turns until all nodes but `but` have told their NCCL, at most `s` seconds. */
static void all_fail(int but, int64_t s)
{
    const int64_t began = node[0].now;

    for (int i = 0; i < NODES; i++)
        while (i != but && !nccl[i].error)
            turn();
    ck_assert_int_le(node[0].now - began, s * SECOND);
}

/* Check that every node but `but` logged one line, with both texts in it. */
static void all_say(int but, const char *text, const char *too)
{
    for (int i = 0; i < NODES; i++) {
        if (i == but)
            continue;
        ck_assert_int_eq(nccl[i].lines, 1);
        ck_assert_msg(strstr(nccl[i].said[0], text) && strstr(nccl[i].said[0], too),
                      "node %d does not say \"%s\" and \"%s\" but: %s", i, text, too, nccl[i].said[0]);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------ */

START_TEST(dies)
{
    const int dead = _i;
    char name[32];

    snprintf(name, sizeof(name), "lost node %d (ip-", dead);
    for (int i = 0; i < NODES; i++)
        if (i != dead)
            post(i);
    for (int i = 0; i < 5; i++)
        turn();
    die(dead);
    all_fail(dead, 2);
    all_say(dead, name, "reset by peer");
}
END_TEST

/* It stops without an end of its connections: its machine, or the network. */
START_TEST(falls_silent)
{
    const int dead = _i;
    char name[64];

    snprintf(name, sizeof(name), "no sign of life from node %d (ip-", dead);
    for (int i = 0; i < NODES; i++)
        if (i != dead)
            post(i);
    node[dead].asleep = true;
    all_fail(dead, node[0].params.peer_timeout + 2);
    all_say(dead, name, "(NIBBLE_PEER_TIMEOUT)");
}
END_TEST

/* The user's job ends one process in the middle of an operation. */
START_TEST(gives_up)
{
    const int culprit = _i;
    char name[64];

    snprintf(name, sizeof(name), "node %d", culprit);
    for (int i = 0; i < NODES; i++)
        post(i);
    ck_assert_int_eq(nb_coll_close_begin(node[culprit].comm), 0);
    nccl[culprit].closing = nccl[culprit].held_off = true;
    all_fail(culprit, 2);
    all_say(culprit, name, "has failed: the communicator was closed with unfinished operations");
}
END_TEST

/* A node's last message may arrive later than the end of another of its connections. */
START_TEST(says_so_late)
{
    static const int neighbors[] = {1, 4, 6, 7};
    const int culprit = 5, late = neighbors[_i];

    for (int i = 0; i < NODES; i++)
        post(i);
    /* Hold back the other witnesses too. */
    for (int i = 0; i < node[late].comm->nneighbors; i++)
        loopback_hold(node[late].comm->neighbors[i]->rx[NB_CLASS_CONTROL].conn, 1);
    ck_assert_int_eq(nb_coll_close_begin(node[culprit].comm), 0);
    nccl[culprit].closing = nccl[culprit].held_off = true;
    while (!nccl[culprit].closed)
        turn();
    for (int i = 0; i < 20; i++)
        turn();
    for (int i = 0; i < node[late].comm->nneighbors; i++)
        loopback_hold(node[late].comm->neighbors[i]->rx[NB_CLASS_CONTROL].conn, 0);
    all_fail(culprit, 2);
    all_say(culprit, "node 5", "has failed: the communicator was closed with unfinished operations");
}
END_TEST

/* Begin a reduce-scatter of `block` bytes for each node, then close `leaving`. */
static float sum[NODES][8 * VALUES], addend[NODES * 8 * VALUES];

static void scatter_and_leave(int leaving, size_t block)
{
    ck_assert_uint_le(block, sizeof(sum[0]));
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(nb_coll_ireducescatter(node[i].comm, addend, NODES * block, sum[i], block, 0,
                                                NODES * block, ncclFloat32, ncclSum, &nccl[i].req),
                         0);
    while (nccl[leaving].req)
        turn();
    ck_assert_int_eq(nb_coll_close_begin(node[leaving].comm), 0);
    nccl[leaving].closing = true;
}

/* A node has data for a peer that does not take it, and its close runs out of time. All other nodes have all
 * they need from it. They learn which of the two is the culprit. */
START_TEST(closes_unheard)
{
    const int deaf = 5, leaving = 4;
    const int64_t began = node[leaving].now;

    node[leaving].params.close_timeout = 4;
    loopback_hold(node[leaving].comm->peer[deaf].tx[NB_CLASS_CONTRIB].conn, 1);
    scatter_and_leave(leaving, 8 * VALUES * sizeof(float)); /* twice as much as a peer takes at a time */
    for (int i = 0; i < NODES; i++)
        while (i != leaving && !nccl[i].closed && !nb_comm_failed(node[i].comm)) /* closed: it has failed */
            turn();
    while (!nccl[leaving].closed)
        turn();
    ck_assert_int_le(node[leaving].now - began, 5 * SECOND);
    all_say(-1, "node 5 (ip-", "has not taken all that it is owed");
    all_say(leaving, "node 4 (ip-", "has failed: closing although");
}
END_TEST

/* A node's device gets stuck after it gave the closing node what that node needs. The other nodes wait for
 * the stuck node, and take no more data from the closing node. The closing node names the node for which they
 * wait. */
START_TEST(closes_behind_a_stuck_device)
{
    const size_t block = sizeof(sum[0]);
    const int culprit = 5, leaving = 4;

    node[leaving].params.close_timeout = 4;
    get_stuck(culprit, addend, sizeof(addend), (const char *)addend + leaving * block, block);
    scatter_and_leave(leaving, block);
    for (int i = 0; i < NODES; i++)
        while (!nccl[i].closed && !nb_comm_failed(node[i].comm)) /* closed: it has failed */
            turn();
    all_say(-1, ", held up by node 5 (ip-", "closing although node ");
}
END_TEST

/* A connection carries no data. The log names its two ends, the only fact that the closing node can know. */
START_TEST(closes_behind_a_stalled_connection)
{
    const int from = 5, to = 2, leaving = 4;

    node[leaving].params.close_timeout = 4;
    loopback_hold(node[from].comm->peer[to].tx[NB_CLASS_CONTRIB].conn, 1);
    scatter_and_leave(leaving, sizeof(sum[0]));
    for (int i = 0; i < NODES; i++)
        while (!nccl[i].closed && !nb_comm_failed(node[i].comm))
            turn();
    all_say(-1, "closing although node 2, held up by node 5 (", "has not taken all that it is owed");
}
END_TEST

/* A node sends FIN, and falls silent while its earlier messages are on their way. The other nodes wait for it
 * no longer than for any silent node. */
START_TEST(leaves_and_falls_silent)
{
    const int waiting = 5, leaving = 4;
    int64_t began;

    loopback_hold(node[leaving].comm->peer[waiting].tx[NB_CLASS_CONTRIB].conn, 1);
    scatter_and_leave(leaving, 2048);
    while (!node[waiting].comm->peer[leaving].life.fin)
        turn();
    node[leaving].asleep = true;
    began = node[waiting].now;
    while (!nccl[waiting].error)
        turn();
    ck_assert_int_le(node[waiting].now - began, (node[waiting].params.peer_timeout + 2) * SECOND);
    ck_assert_msg(strstr(nccl[waiting].said[0], "no sign of life from node 4 (ip-"), "%s",
                  nccl[waiting].said[0]);
}
END_TEST

/* A node sends FIN, all its earlier messages have arrived, and it loses power: the end of its connections
 * never shows. A node that begins an operation without it does not wait for it. */
START_TEST(leaves_without_an_end)
{
    const int waiting = 5, leaving = 4;

    scatter_and_leave(leaving, 2048);
    while (nccl[waiting].req || !node[waiting].comm->peer[leaving].life.fin_acked)
        turn();
    ck_assert(!nccl[leaving].closed && !node[waiting].comm->peer[leaving].gone);
    node[leaving].asleep = true;
    post(waiting);
    while (!nccl[waiting].error)
        turn();
    ck_assert_msg(strstr(nccl[waiting].said[0], "node 4 (ip-") &&
                      strstr(nccl[waiting].said[0], "has closed its communicator but all_reduce"),
                  "%s", nccl[waiting].said[0]);
}
END_TEST

static float weights[NODES][8 * VALUES], all[NODES][NODES * 8 * VALUES];

/* Let all nodes gather, and wait until all but `but` have finished. */
static void all_gather(int but)
{
    for (int i = 0; i < NODES; i++) {
        node[i].params.close_timeout = 8;
        ck_assert_int_eq(nb_coll_iallgather(node[i].comm, weights[i], all[i], sizeof(all[i]),
                                            sizeof(weights[i]), 0, sizeof(all[i]), &nccl[i].req),
                         0);
    }
    for (int i = 0; i < NODES; i++)
        while (i != but && nccl[i].req)
            turn();
}

/* Let all nodes gather, and stop `stopped` before its confirmations have left. */
static void stop_unconfirmed(int stopped)
{
    for (int k = 0; k < node[stopped].comm->nneighbors; k++)
        loopback_hold(node[stopped].comm->neighbors[k]->tx[NB_CLASS_CONTROL].conn, 1);
    all_gather(-1);
    node[stopped].asleep = true;
}

/* Return the last node without a connection to it. */
static int far_from(int rank)
{
    int far = -1;

    for (int i = 0; i < NODES; i++)
        if (i != rank && !node[i].comm->peer[rank].linked)
            far = i;
    ck_assert_int_ge(far, 0);
    return far;
}

static void begin_close(int i)
{
    ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
    nccl[i].closing = true;
}

/* A node loses power after all have received its FIN, but before the end of its connections shows. The other
 * nodes do not fail. They wait for its confirmation of their own FINs until their close times out, and name
 * it. They name no node that has confirmed, though heartbeats for such nodes may be on their way at that
 * moment. */
START_TEST(closes_without_a_confirmation)
{
    const int silent = 4;
    bool linked[NODES];

    for (int i = 0; i < NODES; i++) {
        node[i].params.close_timeout = 4;
        node[i].params.peer_timeout = 8; /* heartbeats are due when closes end */
    }
    loopback_hold(node[5].comm->peer[silent].tx[NB_CLASS_CONTROL].conn, 1); /* so that it does not close */
    scatter_and_leave(silent, 2048);
    for (int i = 0; i < NODES; i++)
        while (i != silent && (nccl[i].req || (node[i].comm->peer[silent].linked &&
                                               !node[i].comm->peer[silent].life.fin_acked)))
            turn();
    ck_assert(!nccl[silent].closed);
    node[silent].asleep = true;
    for (int i = 0; i < NODES; i++)
        linked[i] = i != silent && node[i].comm->peer[silent].linked; /* a closed peer is freed */
    for (int i = 0; i < NODES; i++)
        if (i != silent)
            begin_close(i);
    for (int i = 0; i < NODES; i++)
        while (i != silent && !nccl[i].closed)
            turn();
    for (int i = 0; i < NODES; i++) {
        if (!linked[i])
            continue;
        ck_assert_int_eq(nccl[i].lines, 1);
        ck_assert_msg(strstr(nccl[i].said[0], "closing although node 4 (ip-") &&
                          !strstr(nccl[i].said[0], ", nor") &&
                          strstr(nccl[i].said[0], "has not confirmed it"),
                      "%s", nccl[i].said[0]);
    }
}
END_TEST

/* A node is stopped when only its confirmations are missing, and all other nodes close. The nodes without a
 * connection to it wait for nodes that wait for it. All name the stopped node. */
START_TEST(closes_together)
{
    const int stopped = _i;
    char name[32];

    snprintf(name, sizeof(name), "node %d (ip-", stopped);
    stop_unconfirmed(stopped);
    for (int i = 0; i < NODES; i++)
        if (i != stopped)
            begin_close(i);
    for (int i = 0; i < NODES; i++)
        while (i != stopped && !nccl[i].closed)
            turn();
    all_say(stopped, name, "has not taken all that it is owed");
}
END_TEST

/* The same, but only one node closes, which has no connection to the stopped node. The nodes for which it
 * waits have told it which node is silent. */
START_TEST(closes_far_away)
{
    const int stopped = _i, closing = far_from(stopped);
    char name[64];

    snprintf(name, sizeof(name), "has received no heartbeat of node %d for ", stopped);
    stop_unconfirmed(stopped);
    begin_close(closing);
    for (int i = 0; i < NODES; i++)
        while (i != stopped && !nccl[i].closed && !nb_comm_failed(node[i].comm)) /* closed: it has failed */
            turn();
    all_say(stopped, name, "closing although");
}
END_TEST

/* A living node does not take data that the other nodes have taken, because its device is stuck. A node
 * without a connection to it therefore lacks its confirmation, and closes. */
START_TEST(closes_far_from_a_stuck_device)
{
    const int culprit = _i, closing = far_from(culprit);
    /* One of the last segments, so that it takes all others, and not one that it must forward. */
    const int owner = culprit == NODES - 1 ? NODES - 2 : NODES - 1;
    const int segment = (owner + 1) % COLUMNS == culprit % COLUMNS ? 7 : 6;
    char name[64];

    snprintf(name, sizeof(name), ", held up by node %d (", culprit);
    get_stuck(culprit, (char *)(all[culprit] + owner * 8 * VALUES) + segment * UNIT, UNIT, NULL, 0);
    all_gather(culprit);
    begin_close(closing);
    for (int i = 0; i < NODES; i++)
        while (!nccl[i].closed && !nb_comm_failed(node[i].comm))
            turn();
    all_say(-1, name, "closing although node ");
}
END_TEST

/* A single connection ends while its peer lives and reports no error. The node reports it after a while. */
START_TEST(connection_breaks)
{
    for (int i = 0; i < NODES; i++)
        post(i);
    loopback_cut(node[4].comm->peer[5].tx[NB_CLASS_CONTRIB].conn);
    for (int i = 0; i < NODES; i++)
        while (!nccl[i].error)
            turn();
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_eq(nccl[i].lines, 1);
        ck_assert_msg(strstr(nccl[i].said[0], "lost node 4") || strstr(nccl[i].said[0], "lost node 5"),
                      "node %d says: %s", i, nccl[i].said[0]);
    }
}
END_TEST

/* The system gives up a connection on which all is sent, while the operation waits for another node. The
 * peer's heartbeats arrive (0), or do not (1). */
START_TEST(connection_breaks_after_sending)
{
    const int64_t began = node[4].now;
    const bool silent = _i;

    for (int i = 0; i < NODES; i++)
        if (i != 2)
            post(i);
    while (node[4].now - began < 3 * SECOND)
        turn();
    ck_assert_uint_gt(node[4].comm->peer[5].tx[NB_CLASS_CONTRIB].done, 0);
    ck_assert_uint_eq(node[4].comm->peer[5].tx[NB_CLASS_CONTRIB].done,
                      node[4].comm->peer[5].tx[NB_CLASS_CONTRIB].queued);
    if (silent) {
        node[5].asleep = true;
        while (node[4].now - began < 6 * SECOND)
            turn();
    }
    loopback_give_up(node[4].comm->peer[5].tx[NB_CLASS_CONTRIB].conn, -ETIMEDOUT);
    while (!nccl[4].error)
        turn();
    ck_assert_int_le(node[4].now - began, 10 * SECOND);
    if (silent) {
        ck_assert_msg(strstr(nccl[4].said[0], "lost node 5 (ip-") &&
                          strstr(nccl[4].said[0], "Connection timed out: host down or network cut"),
                      "%s", nccl[4].said[0]);
        return;
    }
    all_fail(2, 10);
    all_say(2, "lost node 5 (ip-",
            "the MTU of the path may be too small: its heartbeats arrive, data does not");
}
END_TEST

/* Until NCCL closes a failed communicator, the engine's thread sleeps, whichever node was ahead at the
 * failure. */
START_TEST(sleeps_until_closed)
{
    const int64_t least = SECOND / 100;

    for (int i = 1; i < NODES; i++) {
        nccl[i].held_off = true;
        post(i);
        for (int c = 0; c < NB_CLASS_CONTROL; c++)
            node[i].comm->fair[c] = (struct nb_fair){.bounded = 1, .until_ns = node[i].now};
    }
    die(0);
    for (int i = 1; i < NODES; i++)
        while (!nb_comm_failed(node[i].comm))
            turn();
    for (int i = 1; i < NODES; i++) {
        int64_t until;
        while (cluster_step(&cluster, i, &until))
            ;
        ck_assert_int_ge(until - node[i].now, least);
    }
}
END_TEST

SUITE_MAIN("coll/fail", FIXTURE(setup, teardown), LOOP(dies, 0, NODES), LOOP(falls_silent, 0, NODES),
           LOOP(gives_up, 0, NODES), LOOP(says_so_late, 0, 4), LOOP(closes_together, 0, NODES),
           LOOP(closes_far_away, 0, NODES), LOOP(closes_far_from_a_stuck_device, 0, NODES),
           TEST(connection_breaks), LOOP(connection_breaks_after_sending, 0, 2), TEST(sleeps_until_closed),
           FIXTURE(setup_direct, teardown), TEST(closes_unheard), TEST(closes_behind_a_stuck_device),
           TEST(closes_behind_a_stalled_connection), TEST(leaves_and_falls_silent),
           TEST(leaves_without_an_end), TEST(closes_without_a_confirmation))
