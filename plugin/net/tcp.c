/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport's table: devices and their properties, settings, and the calls that need no file of their
 * own. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "net/tcp_int.h"

#define MIN_DEAD_MS 60000 /* a network may take this long to route around a failure */

struct nb_tcp_conf nb_tcp_conf;

static struct nb_tcp_dev devs[NB_NET_MAX_DEVS];
static int ndevs;
static int users; /* inits minus finis */

struct nb_tcp_dev *nb_tcp_device(int dev)
{
    if (dev >= 0 && dev < ndevs)
        return &devs[dev];
    NB_WARN("tcp: there is no device %d, there are %d", dev, ndevs);
    return NULL;
}

/* One of NCCL's integer variables: `value` untouched when unset, -EINVAL after a WARN when it is no
 * number. */
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

static int read_conf(void)
{
    const struct nb_params *p = nb_params();
    struct nb_tcp_conf c = {.streams = (int)p->tcp_streams, .threads = (int)p->tcp_threads,
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
    nb_tcp_conf = c;
    return 0;
}

static int tcp_init(void)
{
    struct nb_tcp_if ifs[NB_NET_MAX_DEVS];
    int rc, n;

    if (users > 0) {
        users++;
        return 0;
    }
    rc = read_conf();
    if (rc)
        return rc;
    n = nb_tcp_if_find(ifs, NB_NET_MAX_DEVS);
    if (n < 0)
        return n;
    for (int i = 0; i < n; i++) {
        char addr[64];

        devs[i] = (struct nb_tcp_dev){.nif = ifs[i]};
        if (nb_tcp_conf.pace > 0) {
            devs[i].pace = nb_tcp_pace_new(nb_tcp_conf.pace);
            if (!devs[i].pace) {
                while (i-- > 0)
                    nb_tcp_pace_free(devs[i].pace);
                return -ENOMEM;
            }
        }
        nb_tcp_addr_name(&ifs[i].addr, addr, sizeof(addr));
        addr[strcspn(addr, "<")] = '\0';
        NB_INFO(NCCL_INIT | NCCL_NET, "tcp: device %d is %s, %s, %d Mbit/s", i, ifs[i].name, addr,
                ifs[i].speed_mbps);
    }
    ndevs = n;
    users = 1;
    return 0;
}

static void tcp_fini(void)
{
    if (users == 0 || --users > 0)
        return;
    nb_tcp_connect_abandon_all();
    for (int i = 0; i < ndevs; i++) {
        nb_tcp_threads_stop(&devs[i]);
        nb_tcp_pace_free(devs[i].pace);
        devs[i].pace = NULL;
    }
    ndevs = 0;
}

static int tcp_devices(int *ndev)
{
    *ndev = ndevs;
    return 0;
}

static int tcp_properties(int dev, struct nb_net_props *props)
{
    struct nb_tcp_dev *d = nb_tcp_device(dev);

    if (!d)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "%s", d->nif.name);
    snprintf(props->pci_path, sizeof(props->pci_path), "%s", d->nif.pci_path);
    props->guid = (uint64_t)dev;
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = d->nif.speed_mbps;
    props->max_comms = 65536;
    /* Grouped receives work, but with more than 1 NCCL shares a connection between operations, and messages
     * of one that runs ahead would stand in the byte stream before those of another that is waited for. */
    props->max_recvs = 1;
    props->max_bytes = NB_TCP_MAX_MESSAGE;
    return 0;
}

static int tcp_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    (void)data;
    (void)size;
    if (type != NB_MEM_HOST) {
        NB_WARN("tcp: only host memory can be registered, not type %d", (int)type);
        *mhandle = NULL;
        return -EINVAL;
    }
    *mhandle = comm; /* nothing to remember; not NULL, which some callers take for none */
    return 0;
}

static int tcp_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

/* Host memory needs no flush: *request = NULL, there is nothing to wait for. */
static int tcp_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                      void **request)
{
    struct nb_tcp_comm *c = recv_comm;

    (void)n;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL;
    return c->err;
}

static int tcp_test(void *request, int *done, size_t *sizes)
{
    struct nb_tcp_req_head *h = request;

    return h->comm->is_send ? nb_tcp_send_test(request, done, sizes) : nb_tcp_recv_test(request, done, sizes);
}

static int tcp_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    return is_send ? nb_tcp_send_poll(comm, fds, max) : nb_tcp_recv_poll(comm, fds, max);
}

static const char *tcp_peer_name(void *comm)
{
    return ((struct nb_tcp_comm *)comm)->peer;
}

static uint64_t tcp_wire_bytes(void *comm)
{
    struct nb_tcp_comm *c = comm;
    uint64_t n;

    nb_tcp_lock(c);
    n = c->wire;
    nb_tcp_unlock(c);
    return n;
}

const struct nb_net_ops nb_net_tcp = {
    .name = "tcp",
    .init = tcp_init,
    .fini = tcp_fini,
    .devices = tcp_devices,
    .properties = tcp_properties,
    .listen = nb_tcp_listen,
    .connect = nb_tcp_connect,
    .abandon = nb_tcp_abandon,
    .accept = nb_tcp_accept,
    .reg_mr = tcp_reg_mr,
    .reg_mr_dmabuf = NULL,
    .dereg_mr = tcp_dereg_mr,
    .isend = nb_tcp_isend,
    .irecv = nb_tcp_irecv,
    .iflush = tcp_iflush,
    .test = tcp_test,
    .close_send = nb_tcp_close_send,
    .close_recv = nb_tcp_close_recv,
    .close_listen = nb_tcp_close_listen,
    .early = 1,
    .poll_fds = tcp_poll_fds,
    .watch_fd = nb_tcp_watch_fd,
    .peer_name = tcp_peer_name,
    .wire_bytes = tcp_wire_bytes,
};
