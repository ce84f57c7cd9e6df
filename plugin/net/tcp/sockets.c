/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network interfaces, found and filtered as NCCL's own socket transport does it.
 *
 * TCP sockets: how they are made, their options, their names.
 */
#include "net/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"

#define DEFAULT_SPEED_MBPS 10000

/* A parsed NCCL_SOCKET_IFNAME or built-in list. */
struct if_filter {
    bool exclude, exact;
    const char *list;
};

static struct if_filter parse_filter(const char *s)
{
    struct if_filter f = {.list = s};

    if (*f.list == '^') {
        f.exclude = true;
        f.list++;
    }
    if (*f.list == '=') {
        f.exact = true;
        f.list++;
    }
    return f;
}

static bool filter_match(const struct if_filter *f, const char *name)
{
    bool hit = false;

    for (const char *p = f->list; *p && !hit;) {
        size_t n = strcspn(p, ",");
        /* Accept "name:port" as elsewhere in NCCL, and ignore the port. */
        size_t len = strcspn(p, ",:");

        if (len > 0 && strncmp(name, p, len) == 0)
            hit = !f->exact || name[len] == '\0';
        p += n + (p[n] == ',');
    }
    return hit != f->exclude;
}

static int wanted_family(int *family)
{
    const char *s = nb_env("NCCL_SOCKET_FAMILY");

    *family = AF_UNSPEC;
    if (!s)
        return 0;
    if (strcasecmp(s, "AF_INET") == 0) {
        *family = AF_INET;
    } else if (strcasecmp(s, "AF_INET6") == 0) {
        *family = AF_INET6;
    } else {
        NB_WARN("tcp: NCCL_SOCKET_FAMILY=%s is not a family: use AF_INET or AF_INET6", s);
        return -EINVAL;
    }
    return 0;
}

static bool is_link_local(const struct sockaddr *sa)
{
    struct sockaddr_in6 a;

    if (sa->sa_family != AF_INET6)
        return false;
    memcpy(&a, sa, sizeof(a));
    return IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr);
}

socklen_t nb_tcp_addr_len(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void nb_tcp_addr_name(const struct sockaddr_storage *addr, char *buf, size_t cap)
{
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;

    if (addr->ss_family == AF_INET) {
        struct sockaddr_in a;

        memcpy(&a, addr, sizeof(a));
        inet_ntop(AF_INET, &a.sin_addr, text, sizeof(text));
        port = ntohs(a.sin_port);
    } else if (addr->ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        memcpy(&a, addr, sizeof(a));
        inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof(text));
        port = ntohs(a.sin6_port);
    }
    snprintf(buf, cap, "%s<%d>", text, port);
}

static void read_sysfs(struct nb_tcp_if *d)
{
    char path[128], real[PATH_MAX];
    FILE *f;
    int speed;

    snprintf(path, sizeof(path), "/sys/class/net/%s/device", d->name);
    if (realpath(path, real) && strlen(real) < sizeof(d->pci_path))
        strcpy(d->pci_path, real);
    d->speed_mbps = DEFAULT_SPEED_MBPS;
    d->known_mbps = 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", d->name);
    f = fopen(path, "re");
    if (f) {
        /* The kernel reports -1 for an unknown speed, and reading fails while the link is down. */
        if (fscanf(f, "%d", &speed) == 1 && speed > 0)
            d->speed_mbps = d->known_mbps = speed;
        fclose(f);
    }
}

/* Pass once over the kernel's list. An interface with several usable addresses appears once, with its first
 * address that is not link-local. Name the first interface that finds no place in `left_out`. */
static int select_ifs(const struct ifaddrs *list, const struct if_filter *f, int family, bool must_run,
                      struct nb_tcp_if *ifs, int max, const char **left_out)
{
    int n = 0;

    *left_out = NULL;

    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        int known = 0, fam;
        socklen_t len;

        if (!i->ifa_addr)
            continue;
        fam = i->ifa_addr->sa_family;
        if ((fam != AF_INET && fam != AF_INET6) || (family != AF_UNSPEC && fam != family))
            continue;
        if (must_run && (i->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
            continue;
        if (!filter_match(f, i->ifa_name))
            continue;
        len = fam == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        while (known < n && strcmp(ifs[known].name, i->ifa_name) != 0)
            known++;
        if (known < n) {
            if (is_link_local((struct sockaddr *)&ifs[known].addr) && !is_link_local(i->ifa_addr))
                memcpy(&ifs[known].addr, i->ifa_addr, len);
            continue;
        }
        if (n == max) {
            *left_out = *left_out ? *left_out : i->ifa_name;
            continue;
        }
        memset(&ifs[n], 0, sizeof(ifs[n]));
        snprintf(ifs[n].name, sizeof(ifs[n].name), "%s", i->ifa_name);
        memcpy(&ifs[n].addr, i->ifa_addr, len);
        ifs[n].index = if_nametoindex(i->ifa_name);
        n++;
    }
    return n;
}

/* List the names of all interfaces that have an address, for the message about a missing one. */
static void list_names(const struct ifaddrs *list, char *buf, size_t cap)
{
    static const struct if_filter all = {.exclude = true, .list = ""};
    struct nb_tcp_if ifs[32];
    const char *more;
    int n = select_ifs(list, &all, AF_UNSPEC, false, ifs, 32, &more);
    size_t used = 0;

    buf[0] = '\0';
    for (int i = 0; i < n && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%s", i ? ", " : "", ifs[i].name);
}

int nb_tcp_if_find(struct nb_tcp_if *ifs, int max)
{
    static const char *const defaults[] = {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"};
    const char *want = nb_env("NCCL_SOCKET_IFNAME"), *left_out = NULL;
    struct ifaddrs *list;
    int family, n = 0, rc = wanted_family(&family);

    if (rc)
        return rc;
    if (getifaddrs(&list) != 0) {
        rc = -errno;
        NB_WARN("tcp: the system's list of network interfaces cannot be read: %s", strerror(-rc));
        return rc;
    }
    if (want) {
        struct if_filter f = parse_filter(want);

        /* Named interfaces count while they are down, too: every node has to report the same devices. */
        n = select_ifs(list, &f, family, false, ifs, max, &left_out);
        if (n == 0) {
            char names[256];

            list_names(list, names, sizeof(names));
            NB_WARN("tcp: NCCL_SOCKET_IFNAME=%s matches no interface with an %s address. Interfaces: %s",
                    want,
                    family == AF_INET    ? "IPv4"
                    : family == AF_INET6 ? "IPv6"
                                         : "IP",
                    names);
            n = -ENODEV;
        }
    } else {
        for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]) && n == 0; i++) {
            struct if_filter f = parse_filter(defaults[i]);

            n = select_ifs(list, &f, family, true, ifs, max, &left_out);
        }
    }
    if (left_out)
        NB_WARN(
            "tcp: only the first %d network interfaces are used, as NCCL allows: %s and those after it are "
            "left out. Choose with NCCL_SOCKET_IFNAME",
            max, left_out);
    freeifaddrs(list);
    for (int i = 0; i < n; i++)
        read_sysfs(&ifs[i]);
    return n;
}

void nb_tcp_names(int fd, char *local, char *peer, size_t cap)
{
    struct sockaddr_storage a;
    socklen_t len;

    if (local) {
        memset(&a, 0, sizeof(a));
        len = sizeof(a);
        getsockname(fd, (struct sockaddr *)&a, &len);
        nb_tcp_addr_name(&a, local, cap);
    }
    if (peer) {
        memset(&a, 0, sizeof(a));
        len = sizeof(a);
        getpeername(fd, (struct sockaddr *)&a, &len);
        nb_tcp_addr_name(&a, peer, cap);
    }
}

/* Set the options of every data socket. TCP_USER_TIMEOUT stays unset: by it Linux ends a connection when the
 * receiver keeps its window closed for that long, even if it is alive. A peer may post its receives minutes
 * late. */
void nb_tcp_tune(const struct nb_tcp_conf *conf, int fd, bool before_connect)
{
    static const int on = 1, idle = 30, interval = 10, count = 6;

    if (before_connect) {
        /* Only before the handshake can these sizes decide the window scale. Accepted sockets inherit the
         * listener's. */
        if (conf->sndbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &conf->sndbuf, sizeof(int));
        if (conf->rcvbuf > 0)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &conf->rcvbuf, sizeof(int));
        if (*conf->congestion)
            setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, conf->congestion,
                       (socklen_t)strlen(conf->congestion));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* Keepalive finds a dead host behind an idle connection in about 90 s. The peer's kernel answers, so that
     * the peer's process may sleep as long as it likes. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

int nb_tcp_congestion_check(const char *name)
{
    int fd, ret;

    if (!*name)
        return 0;
    fd = nb_tcp_socket(AF_INET);
    if (fd < 0)
        return fd;
    ret = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) ? -errno : 0;
    close(fd);
    return ret;
}

int nb_tcp_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

    if (fd >= 0)
        return fd;
    fd = -errno;
    NB_WARN("tcp: no socket: %s%s", strerror(-fd),
            fd == -EMFILE || fd == -ENFILE ? " (raise the limit of open files, ulimit -n)" : "");
    return fd;
}
