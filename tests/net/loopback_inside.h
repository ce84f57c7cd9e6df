/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the parts of the loopback transport share: loopback.c has connections,
 * loopback_messages.c their messages, and loopback_faults.c the faults. */
#ifndef NIBBLE_TESTS_NET_LOOPBACK_INSIDE_H
#define NIBBLE_TESTS_NET_LOOPBACK_INSIDE_H

#include <pthread.h>

#include "loopback.h"

#define LOOPBACK_MAX_BYTES ((size_t)1 << 30) /* of a message */

struct request;

/* One message of a request, or the room for one. */
struct part {
    struct part *next; /* in the connection's list of parts without a counterpart, oldest first */
    struct request *request;
    uint8_t *data;
    size_t size;
    int tag;
};

struct request {
    struct request *next; /* of the same end */
    struct end *end;
    int n, left; /* parts, and parts without a message */
    size_t size[NB_NET_MAX_RECVS];
    struct part part[NB_NET_MAX_RECVS];
};

/* One side's view of a connection: the comm of isend, irecv and the other functions. */
struct end {
    struct connection *connection;
    bool is_send;
    int err;        /* first error, sticky */
    uint64_t bytes; /* under the connection's lock */
    struct request *requests;
    char peer[64];
};

/* Both ends of a connection, freed with the second. */
struct connection {
    pthread_mutex_t lock; /* guards all fields */
    const struct nb_context *from, *to;
    struct connection *next; /* in the listener's queue */
    struct end send, recv;
    bool send_open, recv_open;
    bool sent_all;      /* the sender closed without unfinished requests */
    bool held;          /* the receiver sees no change of it */
    struct part *sends; /* without a receive */
    struct part *recvs; /* without a message */
};

/* ---- loopback_messages.c: functions of the table ---- */

int loopback_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int loopback_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request);
int loopback_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                    void **request);
int loopback_test(void *request, int *done, size_t *sizes);
int loopback_poll_fds(void *comm, int is_send, struct pollfd *fds, int max);
int loopback_lost(void *send_comm);
uint64_t loopback_wire_bytes(void *comm);

/* ---- loopback_faults.c ---- */

bool loopback_is_dead(const struct nb_context *ctx);
/* Return whether messages between the two are stopped. */
bool loopback_is_cut(const struct nb_context *a, const struct nb_context *b);
/* Return whether to refuse this registration of the context. */
bool loopback_refuses(const struct nb_context *ctx);
/* A message has arrived: the tap may change it. */
void loopback_arrived(uint8_t *bytes, size_t size);
/* Return whether arrived messages must stay hidden. */
bool loopback_is_late(void);

#endif
