/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of one process connect over TCP on loopback, and one has another version of the TCP protocol. The
 * nodes that meet it know at once and tell all, long before NIBBLE_CONNECT_TIMEOUT. A stranger with another
 * version does not disturb them. The clock is real, and the test does not depend on its speed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "net/tcp/tcp.h"
#include "net/transport.h"
#include "tests/base/hear.h"
#include "tests/coll/cluster.h"
#include "tests/suite.h"

#define NODES 3
#define FOREVER 86400 /* seconds, longer than the limit of a test */

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;
static char declined[NODES][512]; /* lines of their logs */
static int speaking = -1;

static void hear(ncclDebugLogLevel level, const char *text)
{
    if (level == NCCL_LOG_WARN && speaking >= 0 && strstr(text, "is declined"))
        snprintf(declined[speaking], sizeof(declined[speaking]), "%.511s", text);
}

/* Takes the place of the C library's: no route leads to an IPv6 address. */
int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    if (addr->sa_family != AF_INET6)
        return (int)syscall(SYS_connect, fd, addr, len);
    errno = ENETUNREACH;
    return -1;
}

static void setup(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    nb_log_set(hear_log);
    memset(declined, 0, sizeof(declined));
    cluster_begin(&cluster);
    for (int i = 0; i < NODES; i++) {
        struct cluster_node *n = cluster_add(&cluster, NULL, &nb_net_tcp);
        n->ctx.clock = (struct nb_clock){0};
        n->params.credits = nb_params_defaults()->credits;
        n->params.unit_bytes = nb_params_defaults()->unit_bytes;
        n->params.connect_timeout = FOREVER;
    }
    cluster_listen(&cluster, 17);
}

static void teardown(void)
{
    cluster_close(&cluster);
    nb_log_set(NULL);
}

/* Connect all nodes. The other nodes see `seen` as node 1's handle. Each must end with `result`. */
static void connect_all(const void *seen, int result)
{
    bool more = true;

    for (int i = 0; i < NODES; i++) {
        void *handles[NODES];
        for (int r = 0; r < NODES; r++)
            handles[r] = r == 1 && i != 1 ? (void *)(uintptr_t)seen : node[r].handle;
        ck_assert_int_eq(nb_coll_connect_begin(handles, NODES, i, node[i].listen, &node[i].connect), 0);
    }
    while (more) {
        const struct timespec pause = {0, 200000};
        bool moved = false;

        more = false;
        for (int i = 0; i < NODES; i++) {
            bool on;

            if (node[i].connected != -EINPROGRESS)
                continue;
            speaking = i;
            node[i].connected = nb_coll_connect_step(node[i].connect, &on, &node[i].comm);
            speaking = -1;
            moved |= on;
            if (node[i].connected == -EINPROGRESS)
                more = true;
            else
                node[i].connect = NULL;
        }
        if (!moved)
            nanosleep(&pause, NULL);
    }
    for (int i = 0; i < NODES; i++)
        ck_assert_int_eq(node[i].connected, result);
}

/* Node 1 listens with another version, as the other nodes see it. In a real job node 1 would see the same.
 * Here it finds the other nodes gone. */
START_TEST(in_a_handle)
{
    uint8_t seen[NB_NET_HANDLE_BYTES];
    struct nb_tcp_handle h;

    ck_assert_int_eq(nb_tcp_handle_get(node[1].handle, &h), 0);
    h.version++;
    memcpy(seen, node[1].handle, sizeof(seen));
    nb_tcp_handle_put(seen, &h);
    connect_all(seen, -ECONNREFUSED);
    for (int i = 0; i < NODES; i += 2)
        ck_assert_msg(strstr(declined[i], "cannot connect to node 1 (") &&
                          strstr(declined[i], "another version of the transport's protocol"),
                      "node %d: %s", i, declined[i]);
}
END_TEST

/* Node 1 has an IPv6 address only, and the other nodes reach none. They say so at once. */
START_TEST(in_a_family)
{
    uint8_t seen[NB_NET_HANDLE_BYTES];
    struct nb_tcp_handle h;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(1)};

    ck_assert_int_eq(inet_pton(AF_INET6, "fd00::3", &six.sin6_addr), 1);
    ck_assert_int_eq(nb_tcp_handle_get(node[1].handle, &h), 0);
    memcpy(&h.addr, &six, sizeof(six));
    memcpy(seen, node[1].handle, sizeof(seen));
    nb_tcp_handle_put(seen, &h);
    connect_all(seen, -ECONNREFUSED);
    for (int i = 0; i < NODES; i += 2)
        ck_assert_msg(strstr(declined[i], "cannot connect to node 1 (fd00::3<1>)") &&
                          strstr(declined[i], "one node has an IPv4 address, the other an IPv6 address"),
                      "node %d: %s", i, declined[i]);
}
END_TEST

/* Somebody who has seen the token connects to node 0 with another version. */
START_TEST(in_a_hello)
{
    struct nb_tcp_hello hello = {.version = NB_TCP_WIRE_VERSION + 1, .streams = 1, .conn_id = "another"};
    uint8_t b[NB_TCP_HELLO_BYTES];
    struct nb_tcp_handle h;
    int fd;

    ck_assert_int_eq(nb_tcp_handle_get(node[0].handle, &h), 0);
    memcpy(hello.token, h.token, sizeof(hello.token));
    nb_tcp_hello_put(b, &hello);
    fd = socket(h.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&h.addr, nb_tcp_addr_len(&h.addr)), 0);
    ck_assert_int_eq(write(fd, b, sizeof(b)), sizeof(b));
    connect_all(node[1].handle, 0);
    for (int i = 0; i < NODES; i++)
        ck_assert_str_eq(declined[i], "");
    close(fd);
    cluster_disconnect(&cluster);
}
END_TEST

SUITE_MAIN("coll/connect_tcp", FIXTURE(setup, teardown), TEST(in_a_handle), TEST(in_a_family),
           TEST(in_a_hello))
