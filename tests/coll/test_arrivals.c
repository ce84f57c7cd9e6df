/* SPDX-License-Identifier: Apache-2.0 */
/* The receive rings that the engine tests: rings with news, by descriptors of pipes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "coll/comm/comm.h"
#include "tests/suite.h"

static struct nb_context node;

#define NODES 4
#define BUFFERS 4

static struct connection {
    int fd[2];      /* a pipe, or -1: the connection has no descriptor */
    unsigned asked; /* number of tests */
    int has;        /* messages that have arrived */
    int ends_after; /* receives until the transport finds the end, behind one message for each. 0: never */
} connections[NODES];

static struct nb_coll_comm comm;
static struct nb_peer peers[NODES], *neighbors[NODES];
static uint8_t mem[NODES][BUFFERS], held[NODES][BUFFERS];
static void *req[NODES][BUFFERS];
static size_t len[NODES][BUFFERS];

static int net_irecv(void *conn, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                     void **out)
{
    (void)n, (void)data, (void)sizes, (void)tags, (void)mhandles;
    *out = conn;
    if (((struct connection *)conn)->ends_after == 0)
        return 0;
    if (--((struct connection *)conn)->ends_after == 0)
        return -ECONNRESET;
    ((struct connection *)conn)->has++;
    return 0;
}

static int net_test(void *conn, int *done, size_t *sizes)
{
    struct connection *c = conn;

    c->asked++;
    *done = c->has > 0;
    c->has -= *done;
    *sizes = 1;
    return 0;
}

static int net_watch_fd(void *conn)
{
    return ((struct connection *)conn)->fd[0];
}

/* Payloads lie in the device's memory: a flush that is done when the test says so. */
static struct {
    bool done;
    unsigned made;
    uint8_t *data; /* the payload that it was made for */
} flush;

static int net_irecv_parts(void *conn, const struct nb_net_part part[2], int tag, void **out)
{
    ck_assert(part[0].size == 1 && part[1].size == 2 && tag == 0);
    return net_irecv(conn, 1, NULL, NULL, NULL, NULL, out);
}

static int net_iflush(void *conn, int n, void **data, const size_t *sizes, void **mhandles, void **out)
{
    (void)conn, (void)mhandles;
    ck_assert(n == 1 && sizes[0] == 1);
    flush.made++;
    flush.done = false;
    flush.data = data[0];
    *out = &flush;
    return 0;
}

static int net_test_flush(void *request, int *done, size_t *sizes)
{
    if (request != &flush)
        return net_test(request, done, sizes);
    *done = flush.done;
    return 0;
}

static const struct nb_net_ops net_parts = {
    .irecv_parts = net_irecv_parts, .iflush = net_iflush, .test = net_test_flush};
static uint8_t bodies[2 * BUFFERS];

static const struct nb_net_ops net = {.irecv = net_irecv, .test = net_test, .watch_fd = net_watch_fd};
static const struct nb_net_ops net_without = {.irecv = net_irecv, .test = net_test};

/* This is node 0. Node 3's connection has no descriptor. */
static void setup(void)
{
    memset(&comm, 0, sizeof(comm));
    memset(peers, 0, sizeof(peers));
    memset(connections, 0, sizeof(connections));
    node.params = nb_params_defaults();
    comm.ctx = &node;
    comm.nnodes = NODES;
    comm.peer = peers;
    comm.net = &net;
    comm.arrivals.fd = -1;
    comm.neighbors = neighbors;
    for (int r = 1; r < NODES; r++) {
        neighbors[comm.nneighbors++] = &peers[r];
        connections[r].fd[0] = connections[r].fd[1] = -1;
        if (r < 3)
            ck_assert_int_eq(pipe(connections[r].fd), 0);
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            static struct connection none = {.fd = {-1, -1}};
            peers[r].rx[c].conn = c == 0 ? &connections[r] : &none;
        }
        peers[r].rx[0].buffer_bytes = 1;
        peers[r].rx[0].buffers = peers[r].rx[0].window = BUFFERS;
        peers[r].rx[0].mem = mem[r];
        peers[r].rx[0].held = held[r];
        peers[r].rx[0].req = req[r];
        peers[r].rx[0].len = len[r];
    }
}

static void teardown(void)
{
    nb_arrivals_close(&comm);
    for (int r = 1; r < 3; r++) {
        close(connections[r].fd[0]);
        close(connections[r].fd[1]);
    }
}

/* Do a round. Return how often the engine tested each ring in it. */
static const unsigned *round_of(void)
{
    static unsigned asked[NODES];

    nb_arrivals_poll(&comm);
    for (int r = 1; r < NODES; r++) {
        connections[r].asked = 0;
        ck_assert_int_ge(nb_rx_progress(&comm, &peers[r], &peers[r].rx[0]), 0);
        asked[r] = connections[r].asked;
    }
    return asked;
}

static void arrive(int r)
{
    connections[r].has++;
    ck_assert_int_eq(write(connections[r].fd[1], "x", 1), 1);
}

START_TEST(the_idle_are_not_asked)
{
    const unsigned *asked;

    nb_arrivals_open(&comm);
    round_of(); /* posts receives */
    asked = round_of();
    ck_assert(asked[1] == 1 && asked[2] == 1 && asked[3] == 1);
    for (int i = 0; i < 5; i++) {
        asked = round_of();
        ck_assert(asked[1] == 0 && asked[2] == 0 && asked[3] == 1);
    }
    arrive(2);
    asked = round_of();
    ck_assert(asked[1] == 0 && asked[2] == 2); /* one message, and then no second one */
    ck_assert_uint_eq(peers[2].rx[0].arrived, 1);
    nb_rx_take(&peers[2].rx[0]);
    round_of(); /* posts its slot again, for which the transport may have read ahead */
    asked = round_of();
    ck_assert(asked[1] == 0 && asked[2] == 1);
    asked = round_of();
    ck_assert(asked[1] == 0 && asked[2] == 0);
    nb_arrivals_rescan(&comm);
    asked = round_of();
    ck_assert(asked[1] == 1 && asked[2] == 1);
}
END_TEST

/* The engine remembers news that come while it can take no message. */
START_TEST(a_full_ring_is_asked_later)
{
    const unsigned *asked;

    nb_arrivals_open(&comm);
    round_of();
    for (int i = 0; i < BUFFERS; i++)
        arrive(1);
    round_of();
    ck_assert_uint_eq(peers[1].rx[0].arrived, BUFFERS);
    arrive(1);
    asked = round_of();
    ck_assert_uint_eq(asked[1], 0); /* without posted receives */
    nb_rx_take(&peers[1].rx[0]);
    round_of(); /* posts */
    round_of();
    ck_assert_uint_eq(peers[1].rx[0].arrived, BUFFERS + 1);
}
END_TEST

/* An end may lie behind bytes that are read first. From then on the engine tests the ring in every round. */
START_TEST(an_end_is_asked_for)
{
    nb_arrivals_open(&comm);
    round_of();
    round_of();
    ck_assert_uint_eq(round_of()[2], 0);
    close(connections[2].fd[1]);
    connections[2].fd[1] = -1;
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(round_of()[2], 1);
    ck_assert_uint_eq(round_of()[1], 0);
}
END_TEST

/* The transport finds the end of a connection when a receive is posted, and has filled the receives before
 * it. Their messages count, whether the peer has left in order or not. */
START_TEST(an_end_behind_messages)
{
    struct nb_peer *peer = &peers[3];
    struct nb_rx *rx = &peer->rx[0];
    const bool in_order = _i;

    peer->life.fin = in_order;
    peer->life.fin_count[0] = BUFFERS + 3; /* the last one is lost */
    connections[3].has = BUFFERS;
    ck_assert_int_ge(nb_rx_progress(&comm, peer, rx), 0);
    ck_assert_int_ge(nb_rx_progress(&comm, peer, rx), 0);
    ck_assert_uint_eq(rx->arrived, BUFFERS);
    for (int i = 0; i < BUFFERS; i++)
        nb_rx_take(rx);
    connections[3].ends_after = 3;
    ck_assert_int_eq(nb_rx_progress(&comm, peer, rx), in_order ? 0 : -ECONNRESET);
    ck_assert_uint_eq(rx->arrived, BUFFERS + 2);
    ck_assert(rx->ended && rx->closed == in_order);
    ck_assert_int_eq(peer->life.lost, in_order ? 0 : -ECONNRESET);
}
END_TEST

/* Post the first `receives` receives. */
static struct nb_rx *with_bodies(unsigned receives)
{
    struct nb_rx *rx = &peers[3].rx[0];

    memset(&flush, 0, sizeof(flush));
    comm.net = &net_parts;
    rx->bodies = bodies;
    rx->body_bytes = 2;
    rx->window = receives;
    ck_assert_int_eq(nb_rx_progress(&comm, &peers[3], rx), 0);
    rx->window = BUFFERS;
    return rx;
}

/* Messages with payloads in the device's memory arrive behind a flush that was made after they had landed. */
START_TEST(a_flush_is_for_what_has_landed)
{
    struct nb_rx *rx = with_bodies(BUFFERS);

    connections[3].has = 2;
    ck_assert_int_eq(nb_rx_progress(&comm, &peers[3], rx), 0);
    ck_assert(rx->landed == 2 && rx->arrived == 0 && flush.made == 1 && flush.data == bodies + 2);
    connections[3].has = 1;
    ck_assert_int_eq(nb_rx_progress(&comm, &peers[3], rx), 0);
    ck_assert(rx->landed == 3 && rx->arrived == 0 && flush.made == 1);
    flush.done = true;
    ck_assert_int_eq(nb_rx_progress(&comm, &peers[3], rx), 1);
    ck_assert(rx->arrived == 2 && flush.made == 2 && flush.data == bodies + 4);
    flush.done = true;
    ck_assert_int_eq(nb_rx_progress(&comm, &peers[3], rx), 1);
    ck_assert(rx->arrived == 3 && flush.made == 2 && !rx->flush);
}
END_TEST

/* The end of a connection is found while a flush is under way. What landed before the end counts. */
START_TEST(an_end_behind_a_flush)
{
    struct nb_peer *peer = &peers[3];
    struct nb_rx *rx = with_bodies(2);
    const bool in_order = _i;

    peer->life.fin = in_order;
    peer->life.fin_count[0] = 3; /* the last one is lost */
    connections[3].has = 2;
    for (int i = 0; i < 3; i++) {
        connections[3].ends_after = 1; /* the next receive finds the end */
        ck_assert_int_eq(nb_rx_progress(&comm, peer, rx), 0);
    }
    ck_assert(rx->landed == 2 && rx->arrived == 0 && !rx->ended && !rx->closed);
    flush.done = true;
    connections[3].ends_after = 1;
    ck_assert_int_eq(nb_rx_progress(&comm, peer, rx), in_order ? 0 : -ECONNRESET);
    ck_assert_uint_eq(rx->arrived, 2);
    ck_assert(rx->ended && rx->closed == in_order);
}
END_TEST

/* A peer that has sent FIN is gone when the last of its messages has arrived, or can no longer arrive. */
START_TEST(gone_after_the_last_message)
{
    struct nb_peer *peer = &peers[3];

    peer->life.fin = 1;
    peer->life.fin_count[0] = 2;
    peer->rx[2].closed = 1;
    for (int i = 0; i < 3; i++) {
        connections[3].has = i > 0;
        ck_assert_int_ge(nb_rx_progress(&comm, peer, &peer->rx[0]), 0);
        ck_assert_int_eq(peer->gone, i == 2);
    }
}
END_TEST

START_TEST(without_descriptors_all_are_asked)
{
    comm.net = &net_without;
    nb_arrivals_open(&comm);
    round_of();
    for (int i = 0; i < 3; i++) {
        const unsigned *asked = round_of();
        ck_assert(asked[1] == 1 && asked[2] == 1 && asked[3] == 1);
    }
}
END_TEST

SUITE_MAIN("coll/watch", FIXTURE(setup, teardown), TEST(the_idle_are_not_asked),
           TEST(a_full_ring_is_asked_later), TEST(an_end_is_asked_for), LOOP(an_end_behind_messages, 0, 2),
           TEST(a_flush_is_for_what_has_landed), LOOP(an_end_behind_a_flush, 0, 2),
           TEST(gone_after_the_last_message), TEST(without_descriptors_all_are_asked))
