/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point transports behind one table of functions. The table is shaped like the point-to-point half
 * of NCCL's ncclNet API, so that another plugin can be forwarded to, but it has no versions, and errors are
 * negative errno values.
 *
 * An initialized transport is a `struct nb_net`: its functions and the context it was initialized for. Each
 * transport embeds it as the first member of its own state (devices, settings, connections being made), so
 * two contexts in one process share nothing. Connections are opaque pointers, each of one transport.
 *
 * Both halves of the plugin use it: the ncclNet tables pass NCCL's own point-to-point traffic through, and
 * the collective engine builds its mesh from the same connections.
 *
 * Threads: a connection is used by one thread at a time (NCCL's rule), different ones by different threads at
 * once. init and fini are called under the caller's lock, fini when no connection or listener is left.
 *
 * Errors: the first error on a connection is sticky: every later call on it, or on a request that is in
 * flight on it, returns the same code at once. A request that completed before still tests done, so messages
 * that preceded the error are not lost. An error is logged once, where it is detected, with the peer and the
 * cause. The exception is a graceful shutdown by the peer after all its messages: whoever waits for more gets
 * -ECONNRESET, and decides whether to log it.
 */
#ifndef NIBBLE_NET_TRANSPORT_H
#define NIBBLE_NET_TRANSPORT_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

struct nb_context;
struct nb_net;

#define NB_NET_HANDLE_BYTES 128 /* NCCL_NET_HANDLE_MAXSIZE */
#define NB_NET_MAX_RECVS 8      /* receives in one grouped irecv */
#define NB_NET_MAX_DEVS 64      /* NCCL keeps its CollNet resources in arrays of 64, by device */

enum nb_mem { NB_MEM_HOST = 1, NB_MEM_CUDA = 2, NB_MEM_DMABUF = 4 }; /* values of NCCL_PTR_* */

struct nb_net_props {
    char name[64];
    char pci_path[256]; /* "" when unknown */
    uint64_t guid;
    int mem_support; /* NB_MEM_* bits */
    int speed_mbps;
    int rate_mbps; /* what one may count on: the nominal rate, or what a setting holds it to; 0: unknown */
    int port;
    float latency_us; /* 0: unknown */
    int max_comms;
    int max_recvs;
    size_t max_bytes;
    int force_flush; /* 1: device memory has to be flushed whatever NCCL thinks of the machine */
};

/* How a connection is to be made; chosen by the connecting side. NULL means defaults. */
struct nb_net_conn_cfg {
    int streams;       /* sockets or queue pairs; 0: the transport's parameters decide */
    int traffic_class; /* -1: unset */
    /* 1: what is sent may wait until a send is tested, so that several leave in one call: who has posted one
     * tests before sleeping. */
    int lazy;
    /* 1: little may wait unsent in the host, so that a send tests done about when it leaves. Transports whose
     * sends test done later than that do so anyway. */
    int shallow;
    /* 1: little is sent, and that at once: a rate that the device is held to (NIBBLE_TCP_PACE_MBPS) does not
     * hold it back, though it counts. */
    int urgent;
};

struct nb_net_ops {
    const char *name;
    int early; /* 1: a send tests done when the host has taken it, which may be long before it leaves */

    /* Read the settings (ctx->params, environment) and find devices. 0 and *net, to be freed with fini, or a
     * negative errno after a WARN line. No devices is not an error. `ctx` outlives *net. */
    int (*init)(struct nb_context *ctx, struct nb_net **net);
    void (*fini)(struct nb_net *net);
    int (*devices)(struct nb_net *net, int *ndev);
    int (*properties)(struct nb_net *net, int dev, struct nb_net_props *props);

    /* Never blocks. Fills `handle` (NB_NET_HANDLE_BYTES), to be passed to the peer's connect. Any number of
     * connections can be accepted from one listener. */
    int (*listen)(struct nb_net *net, int dev, void *handle, void **listen_comm);
    /* Non-blocking: 0 with *send_comm == NULL means call again with the same handle (which may hold
     * state). */
    int (*connect)(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                   void **send_comm);
    /* Give up a connect in progress (or none): frees the state that the handle stands for. NULL in the table:
     * there is none. */
    void (*abandon)(struct nb_net *net, void *handle);
    /* 0, or the error by which the peer has ended a sending connection on which nothing is in flight: it was
     * not accepted, perhaps. Without a WARN line. NULL in the table: nobody knows before the next send. */
    int (*lost)(void *send_comm);
    /* "address<port>" of the listener that filled `handle`, for messages. NULL in the table: it is a secret.
     */
    void (*handle_name)(const void *handle, char *name, size_t cap);
    /* Non-blocking, as connect: 0 with *recv_comm == NULL means call again. */
    int (*accept)(void *listen_comm, void **recv_comm);

    int (*reg_mr)(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                         void **mhandle); /* may be NULL in the table */
    int (*dereg_mr)(void *comm, void *mhandle);

    /* 0 with *request == NULL means try again later. A message matches the oldest receive with its tag. size
     * may be 0. The buffer belongs to the transport until the request tests done. */
    int (*isend)(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
    /* Grouped receive of n <= NB_NET_MAX_RECVS messages. Each may be shorter than its sizes[i]; a longer one
     * is an error (-EMSGSIZE) of both sides' next call. */
    int (*irecv)(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
    /* 0 with *request == NULL here means that there is nothing to wait for. */
    int (*iflush)(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles, void **request);
    /* sizes may be NULL; else n entries (1 for a send) are filled in when *done. A done request is freed. */
    int (*test)(void *request, int *done, size_t *sizes);

    /* The owner takes nothing more on this receiving connection, will reclaim the memory of its receives, and
     * close it: tells the peer, so that what it still sends meanwhile is refused as after a graceful
     * shutdown, not as a failure. Calls other than test, dereg_mr and close_recv fail from then on. NULL in
     * the table: close_recv is soon enough. */
    void (*leave)(void *recv_comm);
    /* Close at once, whatever is in flight; never wait for the peer. Requests of the connection are freed
     * with it. Data of *completed* sends still reaches a peer that is alive. NULL is allowed. */
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listen_comm);

    /* File descriptors, with the events wanted now, that become ready when this connection can make progress.
     * Returns how many were filled in (<= max); 0 when nothing is in flight; -1 when the owner must not sleep
     * but call test again: a request is done and not yet tested, the connection has failed, or `max` is too
     * small (17 is enough for tcp, 3 for verbs). */
    int (*poll_fds)(void *comm, int is_send, struct pollfd *fds, int max);
    /* A descriptor for epoll (EPOLLIN, also edge-triggered) that becomes ready whenever something outside
     * this process requires a posted receive of this connection to be tested again. EPOLLRDHUP may fire once,
     * before the end of the connection is readable. Valid as long as the connection. -1: there is none, test.
     * NULL in the table: no connection has one. */
    int (*watch_fd)(void *recv_comm);
    /* "address<port>" of the peer, for messages; valid as long as the connection. */
    const char *(*peer_name)(void *comm);
    /* Payload and framing bytes handed to the network by this connection so far. */
    uint64_t (*wire_bytes)(void *comm);
    /* Segments that the system has sent again so far on this sending connection, because they were lost. Any
     * thread, until it is closed. NULL in the table: not known. */
    uint64_t (*resent)(void *send_comm);
};

/* An initialized transport. */
struct nb_net {
    const struct nb_net_ops *ops;
    struct nb_context *ctx;
};

/* Initialize the transport that the settings name (NIBBLE_NET, NIBBLE_NET_FORWARD) for a context, with the
 * list of devices in front of it (net/devices.h), and set ctx->net. While ctx->forwarded_to the transport is
 * not `forward`, whatever the settings say, and each NIC is one device: both are the forwarding nibble's
 * business. 0, or a negative errno after a WARN line that names the cause; ctx->net is then NULL. Under the
 * caller's lock. */
int nb_net_open(struct nb_context *ctx);
/* The same over a transport of the caller's choice, for tests and simulations. */
int nb_net_open_with(struct nb_context *ctx, const struct nb_net_ops *transport);
/* Free ctx->net, of which no connection or listener is left. Under the caller's lock. */
void nb_net_close(struct nb_context *ctx);

/* What a nibble that forwards looks for in the library it has loaded, which may be another copy of nibble
 * under the same environment. That copy's ABI layer notes the call in its context (forwarded_to). Exported
 * beside NCCL's tables. */
struct nb_forwarding_v1 {
    void (*forwarded)(int on);
};
#define NB_FORWARDING_SYMBOL "nibbleForwarding_v1"
extern const struct nb_forwarding_v1 nibbleForwarding_v1;

extern const struct nb_net_ops nb_net_tcp;
extern const struct nb_net_ops nb_net_forward;
extern const struct nb_net_ops nb_net_verbs; /* where configure found libibverbs' headers (NB_HAVE_VERBS) */

#endif
