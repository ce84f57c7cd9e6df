/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between the contexts of one process, in memory. It has one device, of unknown rate, that takes
 * host memory. connect succeeds at once. When both its send and its receive are posted, the second of the two
 * calls copies the message, and only then the send tests done. Every message arrives, at once and in order,
 * except under the faults of a test (tests/net/loopback.h), which has its own table over these functions.
 *
 * Threads: as every transport. Different threads may use the two ends of a connection. A listener's calls,
 * and connects to it, need a common lock, or one thread.
 */
#ifndef NIBBLE_EMULATE_MEMORY_NET_H
#define NIBBLE_EMULATE_MEMORY_NET_H

#include <pthread.h>
#include <stdbool.h>

#include "net/transport.h"

extern const struct nb_net_ops nb_net_memory;

/* What a test may do to messages. The connection's lock is held. */
struct nb_memory_faults {
    /* Return 0 if messages from one context to the other pass, 1 if they wait, or the error that ends the
     * connection. */
    int (*path)(const struct nb_context *from, const struct nb_context *to);
    /* A message has arrived, and its receiver has not seen it: change its bytes. */
    void (*arrived)(uint8_t *bytes, size_t size);
    /* Return whether arrived messages, and the connection's end, stay hidden from a receiver that looks. */
    bool (*late)(void);
};

/* The object that init makes. */
struct nb_memory_net {
    struct nb_net net;                     /* first: the layers above hold its address */
    const struct nb_memory_faults *faults; /* NULL: none. For connections made from now on */
};

struct nb_memory_connection;
struct nb_memory_request;
struct nb_memory_part;

/* One side's view of a connection: the comm of isend, irecv and the other functions. */
struct nb_memory_end {
    struct nb_memory_connection *connection;
    const struct nb_context *ctx;
    bool is_send, open;
    int err; /* first error, sticky */
    uint64_t bytes;
    struct nb_memory_request *requests;
    struct nb_memory_part *waiting; /* sends without a receive, or receives without a message, oldest first */
    char peer[80];
};

/* Both ends of a connection, freed with the second. */
struct nb_memory_connection {
    pthread_mutex_t lock; /* guards all fields */
    const struct nb_memory_faults *faults;
    struct nb_memory_connection *next; /* in the listener's queue */
    struct nb_memory_end send, recv;
    bool sent_all; /* the sender closed without unfinished requests */
    bool held;     /* the receiver sees no change of it */
};

/* Functions of the table. */
int nb_memory_init(struct nb_context *ctx, struct nb_net **net);
int nb_memory_devices(struct nb_net *net, int *ndev);
int nb_memory_properties(struct nb_net *net, int dev, struct nb_net_props *props);
int nb_memory_listen(struct nb_net *net, int dev, void *handle, void **listen_comm);
int nb_memory_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                      void **send_comm);
int nb_memory_lost(void *send_comm);
int nb_memory_accept(void *listen_comm, void **recv_comm);
int nb_memory_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
int nb_memory_dereg_mr(void *comm, void *mhandle);
int nb_memory_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_memory_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                    void **mhandles, void **request);
int nb_memory_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                     void **request);
int nb_memory_test(void *request, int *done, size_t *sizes);
int nb_memory_close(void *comm);
int nb_memory_close_listen(void *listen_comm);
int nb_memory_poll_fds(void *comm, int is_send, struct pollfd *fds, int max);
const char *nb_memory_peer_name(void *comm);
uint64_t nb_memory_wire_bytes(void *comm);

#endif
