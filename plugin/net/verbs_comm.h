/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two directions of verbs connections share: making, closing, posting, failing.
 *
 * A connection goes one way, and the receiver drives it. irecv writes addresses, keys and sizes of a group of
 * receives into a slot of a table in the sender's memory ("clear to send"). The sender matches its queued
 * sends with the open slots, by tag, in order, and writes each message straight to its place, on one queue
 * pair or cut over all of them; the last write of a part carries an immediate that tells slot, entry, and
 * number of parts. So nothing depends on an order between queue pairs.
 *
 * No queue can overflow: the receiver has a receive work request for every message that it has cleared, on
 * every queue pair, and the sender one for every slot; each post counts the send queue's free places first
 * and waits its turn.
 *
 * The TCP socket over which the two have met stays open. It tells that a peer has closed (and how many
 * messages it knows to be complete), that it has failed (and why), or that its process has died, long before
 * the network's retries end.
 *
 * Threads: a connection is used by one thread at a time; what devices share has locks. There are no threads
 * of its own: asynchronous events are read by whichever connection looks first.
 */
#ifndef NIBBLE_NET_VERBS_COMM_H
#define NIBBLE_NET_VERBS_COMM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "net/requests.h"
#include "net/verbs_dev.h"
#include "net/verbs_wire.h"

#define NB_VERBS_REQ_MAX 1024 /* requests of a connection before isend and irecv answer "later" */
/* Receives in flight, each of a group counted: 32 requests of 8, as NCCL's limit. */
#define NB_VERBS_RECV_DEPTH 256
#define NB_VERBS_SEND_DEPTH 512

/* Room in a queue pair's send queue. */
struct nb_verbs_qp {
    struct ibv_qp *qp;
    unsigned free;       /* places in the send queue */
    unsigned unsignaled; /* work requests posted since the last that will report */
    unsigned owed;       /* receive work requests consumed and not yet posted again */
};

/* What a direction does with what progress finds. */
struct nb_verbs_direction {
    /* A work request has succeeded. */
    void (*completion)(struct nb_verbs_comm *c, const struct ibv_wc *wc);
    /* Post what has become possible; NULL: nothing waits for room. */
    void (*push)(struct nb_verbs_comm *c);
    /* Whether there are requests that only the peer can complete. */
    bool (*needs_peer)(const struct nb_verbs_comm *c);
    /* The peer has received all messages: their requests are done although nothing acknowledged them. NULL:
     * receiving. */
    void (*all_received)(struct nb_verbs_comm *c);
};

/* First member of sending and receiving connections. */
struct nb_verbs_comm {
    struct nb_verbs_comm *next, *prev; /* in the adapter's list */
    bool is_send;
    int err;          /* first error, negative errno; sticky */
    atomic_int async; /* an asynchronous event about this comm: its type + 1 */
    struct nb_verbs_dev *dev;
    struct nb_verbs_hca *hca;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    bool armed; /* the next completion makes the channel readable */
    bool have_pd;
    int nqps;
    unsigned send_depth, recv_depth; /* of the queue pairs that send, or receive, more than nothing */
    struct nb_verbs_qp *qp;
    const struct ibv_qp *flush_qp; /* receiving: the queue pair of flushes; NULL: none */
    uint8_t *mem;                  /* our part of the tables, registered by mem_mr */
    size_t mem_bytes;
    struct ibv_mr *mem_mr;
    struct nb_verbs_meta meta, peer_meta;
    union ibv_gid gid;
    int gid_index;
    int fd; /* the socket to the peer; -1 when closed */
    uint8_t heard[NB_VERBS_CONTROL_BYTES];
    unsigned heard_bytes;
    bool eof, bye; /* the peer has closed; in order */
    uint64_t bye_count;
    int64_t eof_ms;
    int unfinished, done_untested; /* requests in these states */
    uint64_t messages;             /* send: given to the queue pairs; receive: complete */
    uint64_t wire;
    int64_t checked_ms; /* when the slow checks were last made */
    bool failing;       /* a work request has failed; the peer may still tell why */
    int64_t failing_ms;
    struct ibv_wc failing_wc;
    char peer[64], local[64];
    struct nb_net_reqs reqs;
    const struct nb_verbs_direction *direction;
};

/* Work request ids: 0..19 request, 20..39 places in the send queue that its completion frees, 40..47 queue
 * pair. */
#define NB_VERBS_WR_ID(req, places, qp) ((uint64_t)(req) | (uint64_t)(places) << 20 | (uint64_t)(qp) << 40)
#define NB_VERBS_WR_REQ(id) ((unsigned)((id)&0xfffff))
#define NB_VERBS_WR_PLACES(id) ((unsigned)((id) >> 20 & 0xfffff))
#define NB_VERBS_WR_QP(id) ((unsigned)((id) >> 40 & 0xff))

/* Fields of a new connection that has the socket `fd`: completion queue, queue pairs in INIT, memory of
 * `mem_bytes`, requests of `req_size` bytes, `meta`. 0, or a negative errno after a WARN line;
 * nb_verbs_comm_fini undoes what was done in either case. */
int nb_verbs_comm_init(struct nb_verbs_comm *c, struct nb_verbs_dev *dev,
                       const struct nb_verbs_direction *direction, bool is_send, int nqps, int fd,
                       size_t mem_bytes, size_t req_size);
void nb_verbs_comm_fini(struct nb_verbs_comm *c);
/* The connection can get asynchronous events from here on. */
void nb_verbs_comm_enlist(struct nb_verbs_comm *c);

/* The connection's first error: logs it with both ends' names and tells the peer. Later ones are dropped. */
void nb_verbs_fail(struct nb_verbs_comm *c, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Posts to a queue pair; on an error the connection has failed. `places` are taken from its send queue. */
int nb_verbs_post(struct nb_verbs_comm *c, struct nb_verbs_qp *q, struct ibv_send_wr *wr, unsigned places);
/* Keeps each queue pair's receive queue at its depth: posts what is owed. */
void nb_verbs_repost(struct nb_verbs_comm *c);
/* Graceful shutdown: tells the peer the number of messages known to be complete. */
void nb_verbs_close(struct nb_verbs_comm *c, uint64_t count);

/* A request is complete. */
static inline void nb_verbs_done(struct nb_verbs_comm *c, struct nb_net_req *r)
{
    r->done = true;
    c->unfinished--;
    c->done_untested++;
}

/* A complete one has been tested: it is free again. */
static inline void nb_verbs_tested(struct nb_verbs_comm *c, struct nb_net_req *r)
{
    c->done_untested--;
    nb_net_req_put(&c->reqs, r);
}

#endif
