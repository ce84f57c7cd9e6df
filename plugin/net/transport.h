/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point transports behind one table, shaped like the p2p half of NCCL's ncclNet API (so that another
 * plugin's table can be forwarded to) but version-free and with negative errno results.
 *
 * Both halves of the plugin sit on it: the ncclNet tables pass NCCL's own p2p traffic through, and the
 * collective engine builds its mesh from the same connections.
 *
 * Threads: a comm is used by one thread at a time (NCCL's rule); different comms by different threads at
 * once. init/fini are called under the caller's lock.
 * Errors: the first error on a comm is sticky: every later call on it, or on an unfinished request of it,
 * returns the same code at once; a request that was complete before still tests done, so that a peer's last
 * words are not lost. Errors are logged once, where they arise, naming the peer and the cause. One is not: a
 * peer that has closed in order, after all its messages, gives -ECONNRESET to whoever waits for more, and the
 * caller knows whether that is worth a line.
 */
#ifndef NIBBLE_NET_TRANSPORT_H
#define NIBBLE_NET_TRANSPORT_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define NB_NET_HANDLE_BYTES 128 /* NCCL_NET_HANDLE_MAXSIZE */
#define NB_NET_MAX_RECVS 8      /* receives in one grouped irecv */
#define NB_NET_MAX_DEVS 64      /* NCCL keeps its CollNet resources in arrays of 64, by device */

enum nb_mem { NB_MEM_HOST = 1, NB_MEM_CUDA = 2, NB_MEM_DMABUF = 4 }; /* values of NCCL_PTR_* */

struct nb_net_props {
    char name[64];
    char pci_path[256]; /* "" when unknown */
    uint64_t guid;
    int mem_support;    /* NB_MEM_* bits */
    int speed_mbps;
    int port;
    float latency_us;   /* 0: unknown */
    int max_comms;
    int max_recvs;
    size_t max_bytes;
    int force_flush;    /* 1: device memory has to be flushed whatever NCCL thinks of the machine */
};

/* How a connection is to be made; chosen by the connecting side. NULL means defaults. */
struct nb_net_conn_cfg {
    int streams;       /* sockets or queue pairs; 0: the transport's parameters decide */
    int traffic_class; /* -1: unset */
    int lazy;          /* 1: what is sent may wait until a send is tested, so that several leave in one call: who has
                        * posted one tests before sleeping */
    int shallow;       /* 1: little may wait unsent in the host, so that a send tests done about when it leaves; a
                        * transport whose sends test done later than that does so anyway */
};

struct nb_net_ops {
    const char *name;
    int early; /* 1: a send tests done when the host has taken it, which may be long before it leaves */

    /* Find devices; reads its parameters. 0 with no devices is not an error. Reference counted. */
    int (*init)(void);
    void (*fini)(void);
    int (*devices)(int *ndev);
    int (*properties)(int dev, struct nb_net_props *props);

    /* Never blocks. Fills `handle` (NB_NET_HANDLE_BYTES) to be passed to the peer's connect. Any number of
     * connections can be accepted from one listen comm. */
    int (*listen)(int dev, void *handle, void **listen_comm);
    /* Non-blocking: 0 with *send_comm == NULL means call again with the same handle (which may hold
     * state). */
    int (*connect)(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm);
    /* Give up a connect under way (or none): frees what the handle stands for. NULL in the table: nothing to free. */
    void (*abandon)(void *handle);
    int (*accept)(void *listen_comm, void **recv_comm);

    int (*reg_mr)(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                         void **mhandle); /* may be NULL in the table */
    int (*dereg_mr)(void *comm, void *mhandle);

    /* 0 with *request == NULL means try again later. A message matches the receive with its tag, in order.
     * size may be 0. The buffer belongs to the transport until the request tests done. */
    int (*isend)(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
    /* Grouped receive of n <= NB_NET_MAX_RECVS messages; each may be shorter than its sizes[i], longer is an
     * error (-EMSGSIZE) on both sides' next call. */
    int (*irecv)(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
    /* 0 with *request == NULL here means that there is nothing to wait for. */
    int (*iflush)(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles, void **request);
    /* sizes may be NULL; else filled with n entries (1 for a send) when *done. A done request is freed. */
    int (*test)(void *request, int *done, size_t *sizes);

    /* The owner takes nothing more on this receiving comm, and will give back the memory of its receives and
     * close it: tells the peer, so that what it still sends meanwhile counts as refused in order, and not as
     * a failure. Calls other than test, dereg_mr and close_recv fail from then on. NULL in the table:
     * close_recv is soon enough. */
    void (*leave)(void *recv_comm);
    /* Close at once, whatever is unfinished; never wait for the peer. Requests of the comm die with it. Data
     * of *completed* sends still reaches a peer that is alive. NULL is allowed. */
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listen_comm);

    /* File descriptors (with the events wanted now) that become ready when this comm can make progress;
     * returns how many were filled in (<= max); 0 when nothing is under way; -1 when the owner must not sleep
     * but call test again: a request is done and not yet tested, the comm has failed, or `max` is too small
     * (17 is enough for tcp, 3 for verbs). */
    int (*poll_fds)(void *comm, int is_send, struct pollfd *fds, int max);
    /* A descriptor on which epoll tells (EPOLLIN, also edge-triggered) whenever something has happened outside this
     * process for which a receive of this comm that is posted and not done has to be tested again; of the connection's
     * end it may tell (EPOLLRDHUP) before that end can be read, and not again. It lives as long as the comm. -1: there is none, test. NULL in the table: for no comm. */
    int (*watch_fd)(void *recv_comm);
    /* "address<port>" of the peer, for messages; valid as long as the comm. */
    const char *(*peer_name)(void *comm);
    /* Payload and framing bytes handed to the network by this comm so far. */
    uint64_t (*wire_bytes)(void *comm);
};

/* The transport in force (NIBBLE_NET) behind the list of devices (net/devices.h), reference counted. 0 and *ops set,
 * or a negative errno after a log line that names the cause. Safe from any thread. */
int nb_net_acquire(const struct nb_net_ops **ops);
void nb_net_release(void);

/* Another nibble has loaded this one to forward to it (on) or is about to unload it (off). While on, the transport is
 * not `forward`, whatever the settings say, and each NIC is one device: both are the other's business. */
void nb_net_forwarded(int on);

/* What a nibble that forwards looks for in the library it has loaded, which may be another copy of nibble under the same
 * environment: nb_net_forwarded of that copy. Exported beside NCCL's tables. */
struct nb_forwarding_v1 {
    void (*forwarded)(int on);
};
#define NB_FORWARDING_SYMBOL "nibbleForwarding_v1"
extern const struct nb_forwarding_v1 nibbleForwarding_v1;

extern const struct nb_net_ops nb_net_tcp;
extern const struct nb_net_ops nb_net_forward;
extern const struct nb_net_ops nb_net_verbs; /* where configure found libibverbs' headers (NB_HAVE_VERBS) */

#endif
