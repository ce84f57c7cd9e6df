/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP transport's table, and the calls that need no file of their own. The parts, each above the parts
 * that it uses:
 *
 *     tcp.c                        the table, and functions that both directions share
 *     connect.c  listen.c          making connections
 *     send.c  recv.c               messages
 *     deltas.c  judge.c  places.c  deltas of messages that come again; whether they pay; which ones do
 *     dev.c  pace.c                settings and devices of a context; rate of a device, limit of unsent bytes
 *     sockets.c  wire.c            interfaces and sockets; bytes on the wire
 *     requests.c                   requests of a connection
 *
 * A connection goes one way. Payload flows over all its sockets ("streams"). In the reverse direction flows
 * at most one ERROR or FIN frame, on stream 0. Every message has a number (seq) and travels as one or more
 * DATA frames. Each frame takes any stream with room, and the frames of a stream are in order of seq. The
 * receiver assigns a message to a receive when it has read the first of its frames *and* has assigned all
 * messages before it. A stream whose next frame is too new waits ("parked"). The oldest message is never
 * behind a newer one on its stream, so that this cannot deadlock. Where the owner promises an order of its
 * receives (`ordered` in net/transport.h), message n goes to receive n at once, and only a stream whose
 * receive is not posted waits.
 *
 * Threads: the caller of isend, irecv and test does all I/O. One thread at a time uses a connection, so there
 * are no locks.
 */
#include "net/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "net/tcp/internal.h"

static int tcp_init(struct nb_context *ctx, struct nb_net **net)
{
    struct nb_tcp *tcp;
    int rc = nb_tcp_new(ctx, &nb_net_tcp, &tcp);

    if (!rc)
        *net = &tcp->net;
    return rc;
}

static void tcp_fini(struct nb_net *net)
{
    struct nb_tcp *tcp = (struct nb_tcp *)net;

    nb_tcp_abandon_all(tcp);
    nb_tcp_free(tcp);
}

static int tcp_devices(struct nb_net *net, int *ndev)
{
    *ndev = ((struct nb_tcp *)net)->ndevs;
    return 0;
}

static int tcp_properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    struct nb_tcp_dev *d = nb_tcp_device((struct nb_tcp *)net, dev);
    const int64_t pace = net->ctx->params->tcp_pace_mbps;

    if (!d)
        return -EINVAL;
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "%s", d->nif.name);
    snprintf(props->pci_path, sizeof(props->pci_path), "%s", d->nif.pci_path);
    props->guid = (uint64_t)dev;
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = d->nif.speed_mbps;
    props->rate_mbps = d->nif.known_mbps;
    if (pace > 0 && (props->rate_mbps == 0 || pace < props->rate_mbps))
        props->rate_mbps = (int)pace;
    props->max_comms = 65536;
    /* Grouped receives work, but with more than 1 NCCL shares a connection between operations. Messages of an
     * operation that runs ahead would then stand in the byte stream before the messages of an operation that
     * NCCL waits for. */
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
    *mhandle = comm; /* any pointer but NULL, which some callers take for a missing handle */
    return 0;
}

static int tcp_dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return 0;
}

/* Host memory needs no flush: *request = NULL says that the flush is complete. */
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
    const struct nb_net_req *r = request;
    const struct nb_tcp_comm *c = r->comm;

    return c->is_send ? nb_tcp_send_test(request, done, sizes) : nb_tcp_recv_test(request, done, sizes);
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
    return ((struct nb_tcp_comm *)comm)->wire;
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
    .lost = nb_tcp_lost,
    .handle_name = nb_tcp_handle_name,
    .allow_deltas = nb_tcp_allow_deltas,
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
    .ordered = nb_tcp_ordered,
    .peer_name = tcp_peer_name,
    .wire_bytes = tcp_wire_bytes,
    .resent = nb_tcp_resent,
    .round_trip_us = nb_tcp_round_trip_us,
};

void nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                      const uint8_t conn_id[16], size_t req_size)
{
    c->is_send = is_send;
    c->dev = dev;
    c->nstreams = n;
    c->key = nb_tcp_frame_key(conn_id);
    nb_net_reqs_init(&c->reqs, c, req_size, NB_TCP_REQ_MAX);
    nb_tcp_names(fd0, c->local, c->peer, sizeof(c->peer));
}

void nb_tcp_comm_fini(struct nb_tcp_comm *c)
{
    nb_net_reqs_free(&c->reqs);
}
