/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message rings over the transport's connections: one each way for each class and peer. How peers share this node's
 * link, and which rings have news. All is the engine thread's.
 */
#ifndef NIBBLE_COLL_COMM_RING_H
#define NIBBLE_COLL_COMM_RING_H

#include <stddef.h>
#include <stdint.h>

#include "coll/comm/wire.h"

struct nb_coll_comm;
struct nb_peer;

/* ---- rings ------------------------------------------------------------------------------------------- */

/*
 * Message rings over the transport's connections (ring.c): one each way for each class and peer, and the
 * units that several of them send. All is the engine thread's.
 */

/* Bytes that more than one connection sends, kept until the last has taken them. */
struct nb_shared {
    uint8_t *buf;
    size_t len;
    int ready; /* its bytes are there: may be sent */
    int left;  /* peers that have not finished sending it, and tasks that use it */
    uint64_t opno, off;
};

/* Receive side of one class from one peer: a ring of slots, filled in order, taken in order, freed in
 * order. */
struct nb_rx {
    void *conn;
    void *mhandle;
    uint8_t *mem;
    size_t slot;     /* bytes a slot */
    unsigned slots;  /* credits */
    unsigned window; /* receives posted at once */
    void **req;
    size_t *len;
    uint64_t posted, arrived, taken, freed; /* counters; slot = counter % slots */
    /* Where things are forwarded from it (CONTRIB; a column's RESULT): of each slot, not free while some is
     * left. */
    struct nb_shared *unit;
    uint8_t *held; /* of each slot: a task reads it, so that it is not free */
    int watched;   /* ring.c tells when there is something to read */
    int quiet;     /* and there is nothing: need not be asked */
    int ended;     /* its connection is read to its end */
    int closed;    /* nothing more arrives; what has arrived may still be taken */
    int parsed;    /* head below is that of slot `taken` */
    struct nb_msg head;
    int head_bytes;
};

struct nb_tx_item {
    const void *data;
    size_t len;
    void *req;
    void *mhandle;
    struct nb_shared *shared; /* not NULL: data is in this refcounted buffer, and the two others */
    int ready;                /* its bytes are there: may be sent */
    int apart; /* other peers do not need theirs at the same time: it neither waits for them nor they for it */
};

/* Send side: items in order; each has a buffer of its own at mem + (number % slots) * slot. */
struct nb_tx {
    enum nb_class cls;
    void *conn;
    void *mhandle;
    void *shared_mhandle;  /* CONTRIB, RESULT: of the pool; CONTROL: of the peer's resend unit */
    void *forward_mhandle; /* RESULT: of what has arrived and is forwarded */
    uint8_t *mem;
    size_t slot;
    unsigned slots;
    struct nb_tx_item *item;
    uint64_t queued, sent, done;
    /* For ring.c: bytes that the transport is done with, and that it was given and is not done with. */
    uint64_t had, under_way;
    uint64_t seen;    /* `had` at moved_ns */
    int64_t moved_ns; /* when it last moved; 0: it has nothing to send */
    int64_t took_ns;  /* and how long that took */
    int closed;       /* the peer takes nothing more: what is pushed is dropped */
};

struct nb_pool { /* ring of shared units */
    uint8_t *mem;
    size_t slot;
    unsigned slots;
    struct nb_shared *unit;
    uint64_t head, tail;
};

/* ring.c; functions return > 0 when something moved, 0, or a negative errno: the connection has ended
 * (nb_comm_suspect), or the communicator has failed. */
int nb_tx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_tx *tx);
int nb_rx_progress(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_rx *rx);
/* Buffer for the next item, or NULL when all are in use. */
static inline void *nb_tx_buffer(struct nb_tx *tx)
{
    return tx->queued - tx->done < tx->slots ? tx->mem + (tx->queued % tx->slots) * tx->slot : NULL;
}
void nb_tx_push(struct nb_tx *tx, const void *data, size_t len, struct nb_shared *shared);
/* An item whose bytes will come into its buffer (or the refcounted one, whose `ready` tells): its number.
 * Nothing behind it is sent before. */
uint64_t nb_tx_reserve(struct nb_tx *tx, struct nb_shared *shared);
void nb_tx_ready(struct nb_tx *tx, uint64_t item, size_t len);
/* 1 when there is something to be sent that ring.c has to bear in mind. */
static inline int nb_tx_is_fair(const struct nb_tx *tx)
{
    return tx->done < tx->queued && !tx->item[tx->done % tx->slots].apart;
}
/* The same for bytes that lie in a slot of a ring that is forwarded from. */
void nb_tx_forward(struct nb_tx *tx, struct nb_shared *slot);
/* Oldest arrived message or NULL; data messages are parsed and checked once (an error fails the
 * communicator). */
const uint8_t *nb_rx_head(struct nb_coll_comm *comm, struct nb_peer *peer, enum nb_class cls);
void nb_rx_take(struct nb_rx *rx);
/* Number of the slot that is at the head. */
static inline unsigned nb_rx_at(const struct nb_rx *rx)
{
    return (unsigned)(rx->taken % rx->slots);
}

/* ---- sharing the link -------------------------------------------------------------------------------- */

/* How a node's peers share its link. For the engine thread. */

/* How far rings of one class may be ahead of the last of them (ring.c). */
struct nb_fair {
    int bounded;    /* 0: nothing is held back */
    uint64_t most;  /* bytes up to which a peer may be given something */
    uint64_t lead;  /* bytes that a peer may be ahead of the last */
    uint64_t noted; /* what the last had had at handshake_ns (0: nothing is to be sent), for that */
    int64_t handshake_ns;
    int64_t until_ns; /* then another look may find that one is stuck, for which others wait */
};

/* See how far the peers' rings of a class have got, before something is sent. */
void nb_fair_update(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns);
/* 1 when the transport may be given something more of this ring, whose class `f` is of. */
static inline int nb_fair_allows(const struct nb_fair *f, const struct nb_tx *tx)
{
    return tx->cls == NB_CLASS_CONTROL || !f->bounded || !nb_tx_is_fair(tx) ||
           tx->had + tx->under_way <= f->most;
}

/* ---- rings with news --------------------------------------------------------------------------------- */

/* Which receive rings may have got something. For the engine thread, but open and close. */

struct nb_arrivals {
    int fd; /* epoll set, or -1: all rings are asked in every round */
};

/* After connect: begin; watches nothing where the transport has no descriptors for it. */
void nb_arrivals_open(struct nb_coll_comm *comm);
void nb_arrivals_close(struct nb_coll_comm *comm);
/* Find the rings that have news. */
void nb_arrivals_poll(struct nb_coll_comm *comm);
/* Let all be asked once, now and then: nothing is known to need it. */
void nb_arrivals_rescan(struct nb_coll_comm *comm);

#endif
