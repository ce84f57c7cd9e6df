/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point transports behind one table of functions. The table has the shape of the point-to-point half
 * of NCCL's ncclNet API, so that nibble can forward to another plugin. It has no versions, and errors are
 * negative errno values.
 *
 * An initialized transport is a `struct nb_net`: its functions and the context it was initialized for. Each
 * transport embeds it as the first member of its own state (devices, settings, connections being made), so
 * that two contexts in one process share no state. Connections are opaque pointers. Each belongs to one
 * transport.
 *
 * Both halves of the plugin use the table: the ncclNet tables pass NCCL's own point-to-point traffic through,
 * and the collective engine builds its mesh from the same connections.
 *
 * Threads: one thread at a time uses a connection (NCCL's rule). Different threads may use different
 * connections at once. The caller holds its lock around init and fini, and calls fini after it has closed all
 * connections and listeners.
 *
 * Errors: the first error on a connection is sticky. Every later call on the connection, or on one of its
 * requests in flight, returns the same code at once. A request that completed before still tests done, so
 * that messages before the error are kept. An error is logged once, where it is detected, with the peer and
 * the cause. The exception is a graceful shutdown by the peer after all its messages: a caller that waits for
 * more gets -ECONNRESET, and decides whether to log it.
 */
#ifndef NIBBLE_NET_TRANSPORT_H
#define NIBBLE_NET_TRANSPORT_H

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>

struct nb_context;
struct nb_net;

#define NB_NET_HANDLE_BYTES 128 /* NCCL_NET_HANDLE_MAXSIZE */
#define NB_NET_HANDLE_FREE 32   /* bytes at the end of a handle that a transport leaves to its caller */
#define NB_NET_MAX_RECVS 8      /* receives in one grouped irecv */
#define NB_NET_MAX_DEVS 64      /* NCCL keeps its CollNet resources in arrays of 64, by device */

enum nb_mem { NB_MEM_HOST = 1, NB_MEM_CUDA = 2, NB_MEM_DMABUF = 4 }; /* values of NCCL_PTR_* */

struct nb_net_props {
    char name[64];
    char pci_path[256]; /* "" when unknown */
    uint64_t guid;
    int mem_support; /* NB_MEM_* bits */
    int parts;       /* 1: isend_parts takes parts from any two places */
    int speed_mbps;
    int rate_mbps; /* the rate to count on: the nominal rate, or a setting's limit; 0: unknown */
    int port;
    float latency_us; /* 0: unknown */
    int max_comms;
    int max_recvs;
    size_t max_bytes;
    int force_flush; /* 1: device memory must be flushed whatever NCCL's view of the machine */
};

/* Which messages may travel as exact deltas against an earlier one: messages whose content is about that of
 * the earlier one, or whose tag and size are those of the earlier one. */
enum nb_net_deltas { NB_DELTAS_NONE, NB_DELTAS_BY_CONTENT, NB_DELTAS_BY_TAG };

/* How to make a connection. The connecting side chooses. NULL means defaults. */
struct nb_net_conn_cfg {
    int streams;  /* sockets or queue pairs; 0: the transport's parameters decide */
    int settable; /* 1: a setting for the number of sockets counts, where the user gave one, not `streams` */
    int traffic_class; /* -1: unset */
    /* 1: messages may wait until a send is tested, so that several leave in one call. The caller tests its
     * sends before it sleeps. */
    int lazy;
    /* 1: keep few unsent bytes in the host, so that a send tests done about when it leaves. Transports whose
     * sends test done later than that do so anyway. */
    int shallow;
    /* 1: the caller sends little and wants it sent at once. The device's rate limit (NIBBLE_TCP_PACE_MBPS)
     * counts these bytes but does not delay them. */
    int urgent;
    int deltas; /* enum nb_net_deltas. It counts where the listener allows deltas */
};

/* A part of a message. */
struct nb_net_part {
    void *data; /* only read where it is sent */
    size_t size;
    void *mhandle;
};

struct nb_net_ops {
    const char *name;
    int early; /* 1: a send tests done when the host has taken it, perhaps long before it leaves */

    /* Read the settings (ctx->params, environment) and find devices. An empty list of devices is no error.
     * `ctx` outlives *net. Return 0 and *net, which fini frees, or a negative errno after a WARN line. */
    int (*init)(struct nb_context *ctx, struct nb_net **net);
    void (*fini)(struct nb_net *net);
    int (*devices)(struct nb_net *net, int *ndev);
    int (*properties)(struct nb_net *net, int dev, struct nb_net_props *props);

    /* 1: listen may fill all of a handle. 0: the last NB_NET_HANDLE_FREE bytes are zero and the caller's. */
    int fills_handle;
    /* Listen, without blocking. Fill `handle` (NB_NET_HANDLE_BYTES), which the caller passes to the peer's
     * connect. One listener accepts any number of connections. */
    int (*listen)(struct nb_net *net, int dev, void *handle, void **listen_comm);
    /* Let connections of a new listener receive exact deltas of messages that come again (NIBBLE_P2P), and
     * note that in the handle. The messages are kept in host memory. NULL in the table: all messages travel
     * plain. A transport with this function takes host memory without registration: a mhandle of NULL. */
    int (*allow_deltas)(void *listen_comm, void *handle);
    /* Connect, without blocking. 0 with *send_comm == NULL means call again with the same handle, which may
     * hold state. */
    int (*connect)(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                   void **send_comm);
    /* Give up a connect in progress, if there is one, and free the state that the handle stands for. NULL in
     * the table: connects have no state. */
    void (*abandon)(struct nb_net *net, void *handle);
    /* Ask for the state of a sending connection on which no request is in flight. Return 0, or the error by
     * which the peer or the system has ended the connection, for example because the peer did not accept it
     * or does not acknowledge the bytes of earlier sends. Log no WARN line.
     * NULL in the table: the next send finds out. */
    int (*lost)(void *send_comm);
    /* Write "address<port>" of the listener that filled `handle`, for messages. NULL in the table: the handle
     * hides its address. */
    void (*handle_name)(const void *handle, char *name, size_t cap);
    /* Accept, without blocking. As with connect, 0 with *recv_comm == NULL means call again. */
    int (*accept)(void *listen_comm, void **recv_comm);

    int (*reg_mr)(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                         void **mhandle); /* may be NULL in the table */
    int (*dereg_mr)(void *comm, void *mhandle);

    /* Send a message. It matches the peer's oldest receive with its tag. size may be 0. The buffer belongs to
     * the transport until the request tests done. 0 with *request == NULL means try again later. */
    int (*isend)(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
    /* Receive a group of n <= NB_NET_MAX_RECVS messages. Each may be shorter than its sizes[i]. With a longer
     * message the next call of both sides fails (-EMSGSIZE). */
    int (*irecv)(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
    /* Send, or receive, a message of two parts in memory of two kinds: a head, and a body. The body goes
     * where a receive in two parts wants it, and behind the head into a receive of irecv. A message of
     * isend is a head alone. `test` of a receive in two parts tells the bytes of the body. A longer head
     * or body than its place is an error as with irecv. Devices without `parts` in their properties send
     * parts that lie one behind the other, and fail with others (-EOPNOTSUPP). NULL in the table, both or
     * none: messages have one part. Return as isend and irecv. */
    int (*isend_parts)(void *send_comm, const struct nb_net_part part[2], int tag, void **request);
    int (*irecv_parts)(void *recv_comm, const struct nb_net_part part[2], int tag, void **request);
    /* Note that all further messages of this receiving connection have one tag, and that its receives are
     * posted one by one (n == 1) and tested in the order in which they are posted. A message that arrives
     * before earlier ones then need not wait for them. No receive is in flight. Return how many receives
     * may be posted at once, or 0 when the note makes no difference. NULL in the table: 0. */
    unsigned (*ordered)(void *recv_comm);
    /* Flush received data to device memory. 0 with *request == NULL means that the flush is already
     * complete. The peer's end (-ECONNRESET) neither prevents a flush nor ends one in flight. */
    int (*iflush)(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles, void **request);
    /* Copy `size` bytes by the adapter itself, without the peer and without the GPU's driver. One side is GPU
     * memory, the other host memory, and both are registered with this connection. The GPU sees the bytes
     * when the request is done. 0 with *request == NULL means try again later. -EOPNOTSUPP: this connection
     * cannot copy. As flushes do, copies begin and complete also after the peer's end. A transport
     * with this function takes reg_mr, reg_mr_dmabuf and dereg_mr from any thread. NULL in the table: it has
     * no adapter. */
    int (*icopy)(void *recv_comm, void *to, void *to_mhandle, const void *from, void *from_mhandle,
                 size_t size, void **request);
    /* Test a request. When it is *done, fill n entries of `sizes` (1 for a send) unless `sizes` is NULL, and
     * free the request. */
    int (*test)(void *request, int *done, size_t *sizes);

    /* Announce that the owner stops receiving on this connection, will reclaim the memory of its receives,
     * and will close it. The peer learns it, so that its further sends fail as after a graceful shutdown and
     * do not look like a failure. From then on only test, dereg_mr and close_recv may be called. NULL in the
     * table: close_recv is soon enough. */
    void (*leave)(void *recv_comm);
    /* Close at once, even with requests in flight, and never wait for the peer. Free the connection's
     * requests. Data of *completed* sends still reaches a peer that is alive. NULL is allowed. */
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listen_comm);

    /* Fill in file descriptors, with the events wanted now, that become ready when this connection can make
     * progress. Return how many were filled in (<= max), or 0 when no request is in flight. Return -1 when
     * the owner must call test again instead of sleeping: a request is done and untested, the connection has
     * failed, or `max` is too small (17 is enough for tcp, 3 for verbs). */
    int (*poll_fds)(void *comm, int is_send, struct pollfd *fds, int max);
    /* Return a descriptor for epoll (EPOLLIN, also edge-triggered). It becomes ready whenever an event
     * outside this process makes it necessary to test a posted receive of this connection again. EPOLLRDHUP
     * may fire once, before the end of the connection is readable. The descriptor is valid as long as the
     * connection. -1: this connection has no descriptor, so test. NULL in the table: all connections lack
     * one. */
    int (*watch_fd)(void *recv_comm);
    /* Return "address<port>" of the peer, for messages. It is valid as long as the connection. */
    const char *(*peer_name)(void *comm);
    /* Return the payload and framing bytes that this connection has handed to the network so far. */
    uint64_t (*wire_bytes)(void *comm);
    /* Return how many segments of this sending connection the system has retransmitted so far. Any thread,
     * until the connection is closed. NULL in the table: not known. */
    uint64_t (*resent)(void *send_comm);
    /* Return the connection's round trip so far in microseconds. 0, or NULL in the table: not known. */
    uint32_t (*round_trip_us)(void *send_comm);
};

/* Explain the error by which a connection ended: return text to put behind strerror(err), or "". The kernel
 * gives a connection up with these errors when nothing of the peer's host arrives any more. A process that
 * ends, ends its connections otherwise. */
static inline const char *nb_net_hint(int err)
{
    switch (err) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENONET: return ": host down or network cut";
    default: return "";
    }
}

/* An initialized transport. */
struct nb_net {
    const struct nb_net_ops *ops;
    struct nb_context *ctx;
};

/* Initialize the transport that the settings name (NIBBLE_NET, NIBBLE_NET_FORWARD) for a context, put the
 * list of devices (net/devices.h) in front of it, and set ctx->net. While ctx->forwarded_to the transport is
 * another one than `forward`, whatever the settings say, and each NIC is one device: the forwarding nibble
 * handles both settings. Return 0, or a negative errno after a WARN line that names the cause. ctx->net is
 * then NULL. The caller holds its lock. */
int nb_net_open(struct nb_context *ctx);
/* Do the same over a transport of the caller's choice, for tests and simulations. */
int nb_net_open_with(struct nb_context *ctx, const struct nb_net_ops *transport);
/* Free ctx->net. All its connections and listeners are closed. The caller holds its lock. */
void nb_net_close(struct nb_context *ctx);

/* The symbol by which a forwarding nibble finds out that the library it has loaded is another copy of nibble
 * under the same environment. That copy's ABI layer notes the call in its context (forwarded_to). The library
 * exports it beside NCCL's tables. */
struct nb_forwarding_v1 {
    void (*forwarded)(int on);
};
#define NB_FORWARDING_SYMBOL "nibbleForwarding_v1"
extern const struct nb_forwarding_v1 nibbleForwarding_v1;

extern const struct nb_net_ops nb_net_tcp;
extern const struct nb_net_ops nb_net_forward;
extern const struct nb_net_ops nb_net_verbs; /* where configure found libibverbs' headers (NB_HAVE_VERBS) */

#endif
