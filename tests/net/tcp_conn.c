/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: devices, connections and their messages' formats. */
#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp/internal.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_net *net;

/* ---- devices ---- */

START_TEST(device_list)
{
    struct nb_net_props props;
    int n = -1;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->devices(net, &n), 0);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(net->ops->properties(net, 0, &props), 0);
    ck_assert_str_eq(props.name, "lo");
    ck_assert_str_eq(props.pci_path, "");
    ck_assert_int_eq(props.speed_mbps, 10000);
    ck_assert_int_eq(props.rate_mbps, 0); /* the value would be a guess */
    ck_assert_int_eq(props.mem_support, NB_MEM_HOST);
    ck_assert_int_ge(props.max_recvs, 1);
    ck_assert_uint_gt(props.max_bytes, 1u << 30);
    ck_assert_int_eq(net->ops->properties(net, 1, &props), -EINVAL);
    ck_assert_int_eq(net->ops->properties(net, -1, &props), -EINVAL);
    net_down();
    net = net_up("NIBBLE_TCP_PACE_MBPS=400", NULL);
    ck_assert_int_eq(net->ops->properties(net, 0, &props), 0);
    ck_assert(props.speed_mbps == 10000 && props.rate_mbps == 400);
    net_down();
}
END_TEST

/* A value of NCCL_SOCKET_IFNAME, with or without a family, and whether it finds loopback. */
static const struct {
    const char *ifname, *family;
    int rc; /* of init. 0: loopback is the first and only device */
} names[] = {
    {"lo", "AF_INET", 0},
    {"=lo", NULL, 0},
    {"l", NULL, 0},
    {"nosuch,lo", NULL, 0},
    {"lo:0", NULL, 0},
    {"=l", NULL, -ENODEV},
    {"=nosuch0", NULL, -ENODEV},
    {"nosuch", NULL, -ENODEV},
    {"lo", "AF_INET7", -EINVAL},
    {"^lo,e,d,b,v,w,t,s,c,i,n,p,u,m,o,a,f,g,h,j,k,q,r,x,y,z", NULL, -ENODEV},
};

START_TEST(interface_names)
{
    struct nb_net *other;
    int n, rc;

    net_up(NULL, NULL); /* for the logger and the settings. Closed before the real try */
    net_close();
    setenv("NCCL_SOCKET_IFNAME", names[_i].ifname, 1);
    if (names[_i].family)
        setenv("NCCL_SOCKET_FAMILY", names[_i].family, 1);
    rc = net_open(&other);
    ck_assert_msg(rc == names[_i].rc, "%s gives %d", names[_i].ifname, rc);
    if (rc == 0) {
        ck_assert_int_eq(other->ops->devices(other, &n), 0);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(warnings(), 0);
        net_close();
    } else {
        ck_assert_int_eq(warnings(), 1);
        ck_assert_msg(strstr(last_warning(), rc == -EINVAL ? "NCCL_SOCKET_FAMILY" : "NCCL_SOCKET_IFNAME"),
                      "%s", last_warning());
    }
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("NCCL_SOCKET_FAMILY");
}
END_TEST

/* Takes the place of the C library's: with `many` there are so many interfaces. */
static int many;

int getifaddrs(struct ifaddrs **list)
{
    static int (*real)(struct ifaddrs **);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getifaddrs");
    if (!many)
        return real(list);

    struct ifaddrs *all = calloc((size_t)many + 1, sizeof(*all) + 16 + sizeof(struct sockaddr_in));
    char *rest = (char *)(all + many + 1);

    if (!all)
        return -1;
    for (int i = 0; i < many; i++) {
        struct sockaddr_in *addr = (struct sockaddr_in *)(void *)(rest + 16 * (many + 1)) + i;

        snprintf(rest + 16 * i, 16, "eth%d", i);
        *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        all[i] = (struct ifaddrs){.ifa_name = rest + 16 * i,
                                  .ifa_flags = IFF_UP | IFF_RUNNING,
                                  .ifa_addr = (struct sockaddr *)addr,
                                  .ifa_next = i + 1 < many ? &all[i + 1] : NULL};
    }
    *list = all;
    return 0;
}

START_TEST(more_interfaces_than_devices)
{
    struct nb_tcp_if ifs[NB_NET_MAX_DEVS];

    capture_log();
    many = NB_NET_MAX_DEVS;
    ck_assert_int_eq(nb_tcp_if_find(ifs, NB_NET_MAX_DEVS), NB_NET_MAX_DEVS);
    ck_assert_int_eq(warnings(), 0);
    many = NB_NET_MAX_DEVS + 3;
    ck_assert_int_eq(nb_tcp_if_find(ifs, NB_NET_MAX_DEVS), NB_NET_MAX_DEVS);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), "the first 64 network interfaces"));
    ck_assert_ptr_nonnull(strstr(last_warning(), "eth64 and those after it"));
    many = 0;
}
END_TEST

START_TEST(no_setting)
{
    struct nb_net *other;
    struct nb_net_props props;
    int n = 0;

    ck_assert_int_eq(net_open(&other), 0);
    ck_assert_int_eq(other->ops->devices(other, &n), 0);
    ck_assert_int_ge(n, 1);
    /* Loopback is a device only where it is the only interface. */
    for (int i = 0; i < n && n > 1; i++) {
        ck_assert_int_eq(other->ops->properties(other, i, &props), 0);
        ck_assert_str_ne(props.name, "lo");
    }
    net_close();
}
END_TEST

START_TEST(bad_numbers)
{
    static const char *const vars[] = {"NCCL_SOCKET_RCVBUF", "NCCL_SOCKET_SNDBUF", "NCCL_NSOCKS_PERTHREAD",
                                       "NCCL_SOCKET_NTHREADS"};
    struct nb_net *other;

    net_up(NULL, NULL);
    net_close();
    setenv(vars[_i], "12q", 1);
    ck_assert_int_eq(net_open(&other), -EINVAL);
    ck_assert_int_eq(warnings(), 1);
    ck_assert_ptr_nonnull(strstr(last_warning(), vars[_i]));
    setenv(vars[_i], "-1", 1); /* NCCL's "choose yourself" */
    ck_assert_int_eq(net_open(&other), 0);
    net_close();
    unsetenv(vars[_i]);
}
END_TEST

/* ---- connections ---- */

START_TEST(ipv6)
{
    struct nb_tcp_handle h;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool have = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
    struct pair p;

    if (fd >= 0)
        close(fd);
    if (!have) {
        printf("ipv6: no IPv6 on loopback here, not tested\n");
        return;
    }
    net = net_up("NCCL_SOCKET_FAMILY=AF_INET6", NULL);
    pair_open(&p, 3);
    ck_assert_int_eq(nb_tcp_handle_get(p.handle, &h), 0);
    ck_assert_int_eq(h.addr.ss_family, AF_INET6);
    ck_assert_int_eq(strncmp(net->ops->peer_name(p.send), "::1<", 4), 0);
    pair_exchange(&p, 300000);
    pair_down(&p);
}
END_TEST

START_TEST(settings_of_sockets)
{
    struct pair p;
    int streams;

    net = net_up("NCCL_SOCKET_RCVBUF=131072", "NCCL_SOCKET_SNDBUF=98304", "NCCL_SOCKET_NTHREADS=2",
                 "NCCL_NSOCKS_PERTHREAD=3", NULL);
    pair_open(&p, 0);
    streams = ((struct nb_tcp_send *)p.send)->c.nstreams;
    ck_assert_int_eq(streams, 6);
    for (int i = 0; i < streams; i++) {
        struct nb_tcp_send *s = p.send;
        struct nb_tcp_recv *r = p.recv;
        int v = 0;
        socklen_t len = sizeof(v);

        /* The kernel doubles the requested size. */
        getsockopt(s->stream[i].fd, SOL_SOCKET, SO_SNDBUF, &v, &len);
        ck_assert_int_eq(v, 2 * 98304);
        getsockopt(r->stream[i].fd, SOL_SOCKET, SO_RCVBUF, &v, &len);
        ck_assert_int_eq(v, 2 * 131072);
    }
    pair_exchange(&p, 1 << 20);
    pair_down(&p);
}
END_TEST

START_TEST(several_from_one_listener)
{
    enum { N = 20 };
    void *listen, *send[N] = {NULL}, *recv[N];
    uint8_t handle[N][NB_NET_HANDLE_BYTES];
    int accepted = 0;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, handle[0], &listen), 0);
    for (int i = 1; i < N; i++)
        memcpy(handle[i], handle[0], sizeof(handle[0]));
    /* All are connected before any is accepted: connect needs no call on the other side. */
    for (int i = 0; i < N; i++) {
        struct nb_net_conn_cfg cfg = {.streams = 1 + i % 4, .traffic_class = 0x20};
        int64_t end = patient_ms() + 5000;

        while (!send[i]) {
            ck_assert_int_eq(net->ops->connect(net, 0, &cfg, handle[i], &send[i]), 0);
            ck_assert_int_lt(patient_ms(), end);
        }
    }
    for (int64_t end = patient_ms() + 5000; accepted < N;) {
        ck_assert_int_eq(net->ops->accept(listen, &recv[accepted]), 0);
        accepted += recv[accepted] != NULL;
        ck_assert_int_lt(patient_ms(), end);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(net->ops->close_send(send[i]), 0);
        ck_assert_int_eq(net->ops->close_recv(recv[i]), 0);
    }
    ck_assert_int_eq(net->ops->close_listen(listen), 0);
    net_down();
}
END_TEST

START_TEST(bad_handles)
{
    uint8_t good[NB_NET_HANDLE_BYTES], bad[NB_NET_HANDLE_BYTES];
    void *listen, *send;

    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->listen(net, 0, good, &listen), 0);
    memset(bad, 0, sizeof(bad));
    ck_assert_int_eq(net->ops->connect(net, 0, NULL, bad, &send), -EINVAL);
    memset(bad, 0xff, sizeof(bad));
    ck_assert_int_eq(net->ops->connect(net, 0, NULL, bad, &send), -EINVAL);
    /* Flip a bit anywhere in the checked part. In the state word it makes a connect that was never begun. */
    for (size_t i = 0; i < 72; i++) {
        if ((i >= 28 && i < 32) || (i >= 60 && i < 64))
            continue; /* unused */
        memcpy(bad, good, sizeof(bad));
        bad[i] ^= 0x10;
        send = bad;
        ck_assert_msg(net->ops->connect(net, 0, NULL, bad, &send) == -EINVAL, "byte %zu", i);
        ck_assert_ptr_null(send);
    }
    srand(1);
    for (int i = 0; i < 1000; i++) {
        for (size_t k = 0; k < sizeof(bad); k++)
            bad[k] = (uint8_t)rand();
        ck_assert_int_eq(net->ops->connect(net, 0, NULL, bad, &send), -EINVAL);
    }
    ck_assert_int_eq(net->ops->connect(net, 5, NULL, good, &send), -EINVAL);
    ck_assert_int_gt(warnings(), 1000);
    ck_assert_int_eq(net->ops->close_listen(listen), 0);
    net_down();
}
END_TEST

/* Messages must have as few parts as possible, which their headers show. */
START_TEST(parts_of_messages)
{
    static const struct {
        size_t size;
        unsigned parts[2]; /* on one socket, on four */
    } messages[] = {{1, {1, 1}},       {512 << 10, {1, 1}},     {(512 << 10) + 1, {1, 2}}, {600000, {1, 2}},
                    {1 << 20, {1, 2}}, {(1 << 20) + 1, {1, 3}}, {5000001, {1, 10}}};

    net = net_up(NULL, NULL);
    for (unsigned several = 0; several < 2; several++) {
        struct pair p;

        pair_open(&p, several ? 4 : 1);
        for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
            const uint64_t before = net->ops->wire_bytes(p.send);

            pair_exchange(&p, messages[i].size);
            ck_assert_uint_eq(net->ops->wire_bytes(p.send) - before,
                              messages[i].size + messages[i].parts[several] * NB_TCP_FRAME_BYTES);
        }
        pair_close(&p);
    }
    net_down();
}
END_TEST

START_TEST(null_closes)
{
    net = net_up(NULL, NULL);
    ck_assert_int_eq(net->ops->close_send(NULL), 0);
    ck_assert_int_eq(net->ops->close_recv(NULL), 0);
    ck_assert_int_eq(net->ops->close_listen(NULL), 0);
    net_down();
}
END_TEST

/* ---- parsers ---- */

START_TEST(wire_formats)
{
    struct nb_tcp_frame f = {.seq = 7, .tag = -3, .size = 100, .offset = 40, .len = 60, .kind = NB_TCP_DATA};
    struct nb_tcp_frame g;
    struct nb_tcp_hello h = {.version = NB_TCP_WIRE_VERSION, .stream = 3, .streams = 4}, k;
    uint8_t b[NB_TCP_HELLO_BYTES];

    nb_tcp_frame_put(b, &f, 99);
    ck_assert_int_eq(nb_tcp_frame_get(b, &g, 99), 0);
    ck_assert(g.seq == 7 && g.tag == -3 && g.size == 100 && g.offset == 40 && g.len == 60);
    ck_assert_int_eq(nb_tcp_frame_get(b, &g, 98), -EPROTO);
    for (size_t bit = 0; bit < NB_TCP_FRAME_BYTES * 8; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_msg(nb_tcp_frame_get(b, &g, 99) == -EPROTO, "bit %zu", bit);
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* Fields that contradict each other, with a good check. */
#define BAD(field, value) \
    do { \
        struct nb_tcp_frame bad = f; \
        bad.field = value; \
        nb_tcp_frame_put(b, &bad, 99); \
        ck_assert_int_eq(nb_tcp_frame_get(b, &g, 99), -EPROTO); \
    } while (0)
    BAD(len, 61);
    BAD(len, 0);
    BAD(len, UINT32_MAX);
    BAD(offset, 101);
    BAD(offset, UINT64_MAX);
    BAD(size, UINT64_MAX);
    BAD(size, NB_TCP_MAX_MESSAGE + 1);
    BAD(kind, 0);
    BAD(kind, 4);
    BAD(kind, NB_TCP_FIN);
    nb_tcp_hello_put(b, &h);
    ck_assert_int_eq(nb_tcp_hello_get(b, &k), 0);
    ck_assert(k.stream == 3 && k.streams == 4);
    h.stream = 4;
    nb_tcp_hello_put(b, &h);
    ck_assert_int_eq(nb_tcp_hello_get(b, &k), -EBADMSG);
    h.streams = 17;
    nb_tcp_hello_put(b, &h);
    ck_assert_int_eq(nb_tcp_hello_get(b, &k), -EBADMSG);
    b[0] ^= 1;
    ck_assert_int_eq(nb_tcp_hello_get(b, &k), -EINVAL);
}
END_TEST

SUITE_MAIN("net/tcp_conn", TEST(device_list),
           LOOP(interface_names, 0, (int)(sizeof(names) / sizeof(names[0]))),
           TEST(more_interfaces_than_devices), TEST(no_setting), LOOP(bad_numbers, 0, 4), TEST(wire_formats),
           TEST(null_closes), TEST(parts_of_messages), TEST(ipv6), TEST(settings_of_sockets),
           TEST(several_from_one_listener), TEST(bad_handles))
