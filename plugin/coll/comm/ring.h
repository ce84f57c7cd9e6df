/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections: one in each direction for each class and peer. The rules by
 * which peers share this node's link, and the set of rings that may have received something. For the engine
 * thread.
 *
 * A message has a header and a payload. They lie one behind the other, or, where payloads lie in the device's
 * memory (flow/staging.c), headers in `mem` and payloads in `bodies`. The two ends of a connection may
 * differ.
 */
#ifndef NIBBLE_COLL_COMM_RING_H
#define NIBBLE_COLL_COMM_RING_H

#include <stddef.h>
#include <stdint.h>

#include "coll/comm/wire.h"

struct nb_coll_comm;
struct nb_peer;

/* ---- rings ------------------------------------------------------------------------------------------- */

/* A buffer that several connections send. It is free when the last connection has taken it. */
struct nb_shared {
    uint8_t *buf;
    uint8_t *body;    /* the payload. NULL: behind the header */
    size_t len, head; /* bytes of the message, and of its header (CONTROL: unused) */
    int ready;        /* the buffer is complete and may be sent */
    int left;         /* connections that still send it, and tasks that use it */
    uint64_t opno, off;
};

/* The ring that receives one class from one peer. The message buffers are filled, taken and freed in
 * order. */
struct nb_rx {
    void *conn;
    void *mhandle;
    uint8_t *mem;
    size_t buffer_bytes; /* bytes of a message buffer */
    uint8_t *bodies;     /* payloads. NULL: behind the headers */
    size_t body_bytes;
    void *body_mhandle;
    unsigned buffers; /* credits */
    unsigned window;  /* receives posted at once */
    void **req;
    size_t *len;
    /* Payloads in `bodies` arrive when a flush behind their receive is done: up to then the device may not
     * see them. */
    void *flush;
    uint64_t flushing;                              /* messages that it is for: all before this one */
    uint64_t posted, landed, arrived, taken, freed; /* counters. Their message buffer is counter % buffers */
    /* For rings with forwarded messages (CONTRIB, and RESULT of the column): the unit of each message buffer.
     * A message buffer is free when all connections have sent it. */
    struct nb_shared *shared;
    uint8_t *held; /* [buffers] tasks that read the message buffer and keep it occupied */
    int watched;   /* the epoll set reports arrivals on its socket */
    int quiet;     /* the last read found it empty. Skip it until the epoll set reports it */
    int ended;     /* its connection was read to the end */
    int closed;    /* the connection has ended. Messages that have arrived may still be taken */
    int parsed;    /* `head` is the header of message buffer `taken` */
    struct nb_msg head;
    int head_bytes;
};

struct nb_tx_item {
    const void *data;
    const void *body; /* NULL: behind the header */
    size_t len, head;
    void *req;
    void *mhandle;
    struct nb_shared
        *shared; /* the buffer that holds the data. NULL: the ring's own message buffer holds it */
    int ready;   /* the bytes are complete and may be sent */
    int apart;   /* other peers need their bytes at other times. Fairness leaves it out */
};

/* The ring that sends one class to one peer. Item n has the message buffer mem + (n % buffers) *
 * buffer_bytes. */
struct nb_tx {
    enum nb_class cls;
    void *conn;
    void *mhandle;
    void *shared_mhandle;  /* of the pool (CONTRIB, RESULT), or of the peer's retransmit unit (CONTROL) */
    void *forward_mhandle; /* of the receive ring whose message buffers it forwards (RESULT) */
    uint8_t *mem;
    size_t buffer_bytes;
    uint8_t *bodies; /* payloads. NULL: behind the headers */
    size_t body_bytes;
    void *body_mhandle; /* of all payloads in the device's memory */
    unsigned buffers;
    struct nb_tx_item *item;
    uint64_t queued, sent, done;
    /* Fairness: bytes that the transport has sent, and bytes that it is sending. */
    uint64_t had, under_way;
    uint64_t seen;    /* `had` at moved_ns */
    int64_t moved_ns; /* when `had` last grew. 0: the ring is empty */
    int64_t took_ns;  /* time between that growth and the one before */
    int closed;       /* the peer has stopped taking messages. Drop new ones */
};

struct nb_pool { /* a ring of shared buffers */
    uint8_t *mem;
    size_t buffer_bytes;
    unsigned buffers;
    struct nb_shared *shared;
    uint64_t head, tail;
};

/* Send and complete, or receive, as much as the transport allows now. Return > 0 when something moved, < 0
 * when the connection has ended (nb_comm_suspect) or the communicator has failed. */
int nb_tx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx);
int nb_rx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx);
/* Ask for the state of the connection of an empty ring, whose bytes may still be on their way. Return 0, or
 * < 0 as nb_tx_progress. */
int nb_tx_check(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx);
/* Return the buffer for the next item, or NULL when all are in use. */
static inline void *nb_tx_buffer(struct nb_tx *tx)
{
    return tx->queued - tx->done < tx->buffers ? tx->mem + (tx->queued % tx->buffers) * tx->buffer_bytes
                                               : NULL;
}
/* Return where its payload goes. NULL: behind its header. */
static inline uint8_t *nb_tx_body(const struct nb_tx *tx)
{
    return tx->bodies ? tx->bodies + (tx->queued % tx->buffers) * tx->body_bytes : NULL;
}
void nb_tx_push(struct nb_tx *tx, const void *data, size_t len, struct nb_shared *shared);
/* Reserve an item whose bytes come later, into its own buffer or into `shared`. Return its number. Later
 * items wait for it. ready: mark its bytes as complete, `len` with a header of `head` bytes. */
uint64_t nb_tx_reserve(struct nb_tx *tx, struct nb_shared *shared);
void nb_tx_ready(struct nb_tx *tx, uint64_t item, size_t head, size_t len);
/* Return true when the oldest unsent item takes part in fairness. */
static inline int nb_tx_is_fair(const struct nb_tx *tx)
{
    return tx->done < tx->queued && !tx->item[tx->done % tx->buffers].apart;
}
/* Push an item whose bytes lie in a message buffer of a receive ring. */
void nb_tx_forward(struct nb_tx *tx, struct nb_shared *buffer);
/* Return the oldest message that has not been taken, or NULL. Data messages are parsed and checked once. A
 * malformed message fails the communicator. */
const uint8_t *nb_rx_head(struct nb_coll_comm *comm, struct nb_peer *peer, enum nb_class cls);
void nb_rx_take(struct nb_rx *rx);
/* Return the number of that message's buffer. */
static inline unsigned nb_rx_at(const struct nb_rx *rx)
{
    return (unsigned)(rx->taken % rx->buffers);
}
/* Return the payload of the message that nb_rx_head has returned, and the number of the buffer that has the
 * payload `body`. */
static inline uint8_t *nb_rx_body(const struct nb_rx *rx)
{
    return rx->bodies ? rx->bodies + nb_rx_at(rx) * rx->body_bytes
                      : rx->mem + nb_rx_at(rx) * rx->buffer_bytes + rx->head_bytes;
}
static inline size_t nb_rx_number(const struct nb_rx *rx, const uint8_t *body)
{
    return rx->bodies ? (size_t)(body - rx->bodies) / rx->body_bytes
                      : (size_t)(body - rx->mem) / rx->buffer_bytes;
}

/* ---- sharing the link -------------------------------------------------------------------------------- */

/* How far the rings of one class may be ahead of the slowest ring. ring.c explains the rule. */
struct nb_fair {
    int bounded;    /* 0: every ring may send */
    uint64_t most;  /* `had` up to which a peer may be given more */
    uint64_t lead;  /* bytes that a peer may be ahead of the slowest peer */
    uint64_t noted; /* `had` of the slowest ring at noted_ns. 0: all rings are empty */
    int64_t noted_ns;
    int64_t until_ns; /* time of the next update, which may find the slowest ring stuck */
};

/* Update the rule from the progress of all rings of a class. Call it before sending. */
void nb_fair_update(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns);
/* Return true when the ring, of the class of `f`, may give the transport more. */
static inline int nb_fair_allows(const struct nb_fair *f, const struct nb_tx *tx)
{
    return tx->cls == NB_CLASS_CONTROL || !f->bounded || !nb_tx_is_fair(tx) ||
           tx->had + tx->under_way <= f->most;
}

/* ---- arrivals ---------------------------------------------------------------------------------------- */

struct nb_arrivals {
    int fd; /* epoll set. -1: every round asks all rings */
};

/* Open the set after connect, and close it. Transports without descriptors are asked in every round. Any
 * thread, while the engine does not know the communicator. */
void nb_arrivals_open(struct nb_coll_comm *comm);
void nb_arrivals_close(struct nb_coll_comm *comm);
/* Mark the rings that may have received something. */
void nb_arrivals_poll(struct nb_coll_comm *comm);
/* Mark all rings. Called now and then as a safeguard. */
void nb_arrivals_rescan(struct nb_coll_comm *comm);

#endif
