/* SPDX-License-Identifier: Apache-2.0 */
/* The sending side of a TCP connection. One thread at a time. */
#ifndef NIBBLE_NET_TCP_SEND_H
#define NIBBLE_NET_TCP_SEND_H

#include "net/tcp_comm.h"
#include "net/tcp_unsent.h"

#define NB_TCP_BATCH 32       /* frames in one gather write */
#define NB_TCP_QUANTUM 262144 /* bytes put on one stream before the next gets its turn */

struct nb_tcp_sreq {
    struct nb_net_req head;
    struct nb_tcp_sreq *next; /* in the queue */
    const uint8_t *data;
    size_t size, assigned; /* bytes of the message; bytes already bound to a stream */
    uint32_t chunk;        /* most bytes in one frame */
    uint32_t seq;
    int32_t tag;
    int frames; /* bound to streams and not yet written */
};

/* A frame bound to a stream. */
struct nb_tcp_out {
    uint8_t hdr[NB_TCP_FRAME_BYTES];
    uint32_t len;
    const uint8_t *data;
    struct nb_tcp_sreq *req;
};

struct nb_tcp_sstream {
    int fd;
    struct nb_tcp_unsent unsent;
    bool blocked;     /* the kernel or the pace took no more in this round */
    bool paced;       /* it was the pace */
    int first, count; /* out[first .. first + count) is not yet written */
    size_t written;   /* bytes of out[first] already written, header included */
    size_t turn;      /* bytes since this stream became the current one */
    struct nb_tcp_out out[NB_TCP_BATCH];
};

struct nb_tcp_send {
    struct nb_tcp_comm c;
    struct nb_tcp_sreq *queue, **queue_end; /* messages with bytes not yet bound to a stream */
    int cur;                                /* stream whose turn it is */
    bool lazy;                              /* isend leaves it to test to write */
    bool urgent;                            /* the pace does not hold it back */
    int wait_fd;     /* timer for an owner that sleeps while the pace forbids writing; -1 until needed */
    unsigned peeked; /* isends since the reverse direction was read */
    int64_t moved_ms, checked_ms; /* when bytes last moved; when the kernel was last asked about a stall */
    uint8_t back[NB_TCP_FRAME_BYTES]; /* a frame from the receiver, `back_have` bytes of it */
    unsigned back_have;
    struct nb_tcp_sstream stream[];
};

/* Take over `n` connected sockets, in stream order. `cfg` (NULL: defaults) says whether it is lazy,
 * shallow and urgent. -ENOMEM leaves the sockets to the caller. */
int nb_tcp_send_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    const struct nb_net_conn_cfg *cfg, struct nb_tcp_send **comm);

/* As in struct nb_net_ops. */
int nb_tcp_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_tcp_send_test(struct nb_tcp_sreq *req, int *done, size_t *sizes);
int nb_tcp_send_poll(struct nb_tcp_send *s, struct pollfd *fds, int max);
int nb_tcp_lost(void *send_comm);
uint64_t nb_tcp_resent(void *send_comm);
int nb_tcp_close_send(void *send_comm);

#endif
