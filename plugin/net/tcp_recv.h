/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving side of a TCP connection. One thread at a time. */
#ifndef NIBBLE_NET_TCP_RECV_H
#define NIBBLE_NET_TCP_RECV_H

#include "net/tcp_comm.h"

#define NB_TCP_READ_AHEAD 8192 /* bytes read beyond known payload; copied once more */

struct nb_tcp_rreq;

/* One receive of a group. */
struct nb_tcp_slot {
    struct nb_tcp_slot *next; /* in the list of receives without a message, or of messages in parts */
    struct nb_tcp_rreq *req;
    uint8_t *data;
    size_t cap, size; /* of the receive; of its message, once matched */
    size_t claimed;   /* bytes in frames seen */
    size_t got;       /* bytes in place */
    uint32_t seq;     /* of the message */
    int32_t tag;
};

struct nb_tcp_rreq {
    struct nb_net_req head;
    int n, left; /* slots; slots not complete */
    struct nb_tcp_slot slot[NB_NET_MAX_RECVS];
};

struct nb_tcp_rstream {
    int fd;
    bool eof, bye;
    bool drained;      /* the kernel had no more in this round */
    bool have;         /* `frame` is the header of what comes next */
    unsigned pos, end; /* unread bytes of buf */
    size_t off, rest;  /* payload of `frame`: where the next byte goes in slot, how many are missing */
    struct nb_tcp_frame frame;
    struct nb_tcp_slot *slot; /* NULL until frame is matched */
    uint8_t buf[NB_TCP_READ_AHEAD];
};

struct nb_tcp_recv {
    struct nb_tcp_comm c;
    struct nb_tcp_slot *posted, **posted_end; /* receives without a message, oldest first */
    struct nb_tcp_slot *active;               /* messages of which some parts are still to be seen or read */
    struct nb_tcp_rstream stream[];
};

/* Take over `n` connected sockets, in stream order; -ENOMEM leaves them to the caller. */
int nb_tcp_recv_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_recv **comm);

/* As in struct nb_net_ops. */
int nb_tcp_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
int nb_tcp_recv_test(struct nb_tcp_rreq *req, int *done, size_t *sizes);
int nb_tcp_recv_poll(struct nb_tcp_recv *s, struct pollfd *fds, int max);
int nb_tcp_watch_fd(void *recv_comm);
int nb_tcp_close_recv(void *recv_comm);

#endif
