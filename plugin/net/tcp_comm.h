/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two directions of TCP connections share.
 *
 * A connection goes one way. Payload flows over all its sockets ("streams"); against it flows at most one
 * ERROR or BYE frame, on stream 0. Every message has a number (seq) and travels as one or more DATA frames,
 * each on whichever stream had room, in order of seq on each stream. The receiver assigns a message to a
 * receive when the first of its frames is read *and* all messages before it have been assigned; a stream
 * whose next frame is too new waits ("parked"). The oldest message is never behind a newer one on its stream,
 * so this cannot deadlock.
 *
 * Threads: the caller of isend, irecv and test does all I/O, and a connection is used by one thread at a
 * time, so nothing is locked.
 */
#ifndef NIBBLE_NET_TCP_COMM_H
#define NIBBLE_NET_TCP_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "net/requests.h"
#include "net/tcp_dev.h"
#include "net/tcp_wire.h"

#define NB_TCP_REQ_MAX 1024 /* requests of a connection before isend and irecv answer "later" */

/* First member of sending and receiving connections. */
struct nb_tcp_comm {
    bool is_send;
    int err; /* first error, negative errno; sticky */
    int nstreams;
    int unfinished, done_untested; /* requests in these states */
    uint32_t key;                  /* of the frame check */
    uint32_t next_seq; /* send: of the next message queued; receive: of the oldest message not yet seen */
    uint64_t wire;     /* bytes moved */
    struct nb_tcp_dev *dev;
    struct nb_net_reqs reqs;
    char peer[64], local[64]; /* "address<port>" */
};

/* Fields of a new connection of n streams, the first of which is socket fd0, with requests of req_size
 * bytes. */
void nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                      const uint8_t conn_id[16], size_t req_size);
/* Frees its requests. */
void nb_tcp_comm_fini(struct nb_tcp_comm *c);

/* A request is complete. */
static inline void nb_tcp_comm_done(struct nb_tcp_comm *c, struct nb_net_req *r)
{
    r->done = true;
    c->unfinished--;
    c->done_untested++;
}

/* A complete one has been tested: it is free again. */
static inline void nb_tcp_comm_tested(struct nb_tcp_comm *c, struct nb_net_req *r)
{
    c->done_untested--;
    nb_net_req_put(&c->reqs, r);
}

#endif
