/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP transport's state in one context: settings, devices, connects in progress.
 */
#include "net/tcp/tcp.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"

#define MIN_DEAD_MS 60000 /* a network may take this long to route around a failure */

/* Read one of NCCL's integer variables. Leave `value` untouched when it is unset. Return -EINVAL after a WARN
 * line when it is no number. */
static int env_int(const char *name, int min, int max, int *value)
{
    const char *s = nb_env(name);
    char *end;
    long v;

    if (!s)
        return 0;
    errno = 0;
    v = strtol(s, &end, 0);
    if (errno || *end || v < INT_MIN || v > INT_MAX) {
        NB_WARN("tcp: %s=%s is not a number", name, s);
        return -EINVAL;
    }
    /* NCCL's own "-1: choose yourself" */
    if (v >= min)
        *value = v > max ? max : (int)v;
    return 0;
}

/* Read nibble's settings and NCCL's variables (NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD,
 * NCCL_SOCKET_RCVBUF, NCCL_SOCKET_SNDBUF). Return 0 and *conf, or -EINVAL after a WARN line that names
 * variable and value. */
static int read_conf(const struct nb_params *p, struct nb_tcp_conf *conf)
{
    struct nb_tcp_conf c = {.streams = (int)p->tcp_streams,
                            .stated = (int)p->tcp_streams,
                            .congestion = p->tcp_congestion,
                            .connect_ms = (int)p->connect_timeout * 1000,
                            .dead_ms = (int)p->peer_timeout * 1000,
                            .pace = (uint64_t)p->tcp_pace_mbps * 1000000 / 8};
    int threads = 0, socks = 0, rc;

    rc = env_int("NCCL_SOCKET_NTHREADS", 0, 16, &threads);
    rc = rc ? rc : env_int("NCCL_NSOCKS_PERTHREAD", 0, 64, &socks);
    rc = rc ? rc : env_int("NCCL_SOCKET_RCVBUF", 1, INT_MAX, &c.rcvbuf);
    rc = rc ? rc : env_int("NCCL_SOCKET_SNDBUF", 1, INT_MAX, &c.sndbuf);
    if (rc)
        return rc;
    if (c.streams == 0 && (threads > 0 || socks > 0)) {
        c.streams = (threads > 0 ? threads : 1) * (socks > 0 ? socks : 1);
        if (c.streams > NB_TCP_MAX_STREAMS)
            c.streams = NB_TCP_MAX_STREAMS;
    }
    if (c.dead_ms < MIN_DEAD_MS)
        c.dead_ms = MIN_DEAD_MS;
    rc = nb_tcp_congestion_check(c.congestion);
    if (rc) {
        NB_WARN("tcp: NIBBLE_TCP_CONGESTION=%s: %s. Remedy: load its module (modprobe tcp_%s) and allow it "
                "(net.ipv4.tcp_allowed_congestion_control), or leave the setting out",
                c.congestion, strerror(-rc), c.congestion);
        c.congestion = "";
    }
    *conf = c;
    return 0;
}

struct nb_tcp_dev *nb_tcp_device(struct nb_tcp *tcp, int dev)
{
    if (dev >= 0 && dev < tcp->ndevs)
        return &tcp->dev[dev];
    NB_WARN("tcp: device %d is unknown: there are %d", dev, tcp->ndevs);
    return NULL;
}

static void free_devices(struct nb_tcp *tcp)
{
    for (int i = 0; i < tcp->ndevs; i++)
        nb_tcp_pace_free(tcp->dev[i].pace);
    tcp->ndevs = 0;
}

static int find_devices(struct nb_tcp *tcp)
{
    struct nb_tcp_if ifs[NB_NET_MAX_DEVS];
    int n = nb_tcp_if_find(ifs, NB_NET_MAX_DEVS);

    if (n < 0)
        return n;
    for (int i = 0; i < n; i++) {
        struct nb_tcp_dev *d = &tcp->dev[i];
        char addr[64];

        *d = (struct nb_tcp_dev){.tcp = tcp, .nif = ifs[i]};
        if (tcp->conf.pace > 0) {
            d->pace = nb_tcp_pace_new(tcp->conf.pace, tcp->clock);
            if (!d->pace) {
                free_devices(tcp);
                return -ENOMEM;
            }
        }
        tcp->ndevs++;
        nb_tcp_addr_name(&ifs[i].addr, addr, sizeof(addr));
        addr[strcspn(addr, "<")] = '\0';
        NB_INFO(NCCL_INIT | NCCL_NET, "tcp: device %d is %s, %s, %d Mbit/s", i, ifs[i].name, addr,
                ifs[i].speed_mbps);
    }
    return 0;
}

int nb_tcp_new(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_tcp **out)
{
    struct nb_tcp *tcp = calloc(1, sizeof(*tcp));
    int rc;

    if (!tcp)
        return -ENOMEM;
    tcp->net = (struct nb_net){.ops = ops, .ctx = ctx};
    tcp->clock = &ctx->clock;
    pthread_mutex_init(&tcp->lock, NULL);
    rc = read_conf(ctx->params, &tcp->conf);
    rc = rc ? rc : find_devices(tcp);
    if (rc)
        nb_tcp_free(tcp);
    else
        *out = tcp;
    return rc;
}

void nb_tcp_free(struct nb_tcp *tcp)
{
    free_devices(tcp);
    pthread_mutex_destroy(&tcp->lock);
    free(tcp);
}
