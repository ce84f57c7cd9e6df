/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room share: a group while it is made. Its connections (the mesh), the messages on
 * them, reasons against it, the vote, and the object of a communicator. coll/coll.h is what this room offers.
 *
 * Nothing here blocks. All functions are for the thread that connects (NCCL's proxy service thread).
 */
#ifndef NIBBLE_COLL_CONNECT_CONNECT_H
#define NIBBLE_COLL_CONNECT_CONNECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/comm/comm.h"
#include "net/transport.h"

struct nb_coll_comm;
struct nb_context;

/* ---- messages of the handshake ----------------------------------------------------------------------- */

/*
 * Messages of one size that two nodes exchange on a connection while a group is made: a hello, then votes.
 *
 * Nothing here blocks. All functions are for the thread that connects.
 */

/* A message, the buffer of which serves for the next one on the same connection, too. */
struct nb_handshake {
    uint8_t buf[256];
    void *mhandle; /* of the connection; stays when the buffer is used again */
    void *req;
    bool posted;
    bool refused; /* the last failure is that of registering the buffer: the connection is as it was */
    int done;
    size_t len;
};

/* Drive a handshake message over its connection: > 0 moved, 0 not, or < 0 when the connection is lost
 * (or n->refused). */
int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
/* Its buffer is free for another message on the same connection. */
void nb_handshake_again(struct nb_handshake *n);

/* ---- the mesh ---------------------------------------------------------------------------------------- */

/*
 * A group while it is made: the connections of this node, the hellos on them, and why this node objects, if
 * it does. connect.h is what goes over the CONTROL connections next, connect.c fills the communicator.
 *
 * Nothing here blocks. All functions are for the thread that connects (NCCL's proxy service thread).
 */

/* What a step that never blocks has achieved. */
enum nb_stepped {
    NB_STEPPED_IDLE, /* nothing: waits for peers or a deadline */
    NB_STEPPED_ON,   /* something: step again at once */
    NB_STEPPED_DONE, /* there is nothing left to do */
};

struct nb_outgoing {                     /* to one peer, one class */
    uint8_t handle[NB_NET_HANDLE_BYTES]; /* with the state of a connect in progress */
    void *conn;
    struct nb_handshake hello;
    int64_t again_ns; /* no attempt before */
    unsigned attempts;
};

struct nb_incoming { /* from a peer that its hello names */
    struct nb_incoming *next;
    void *conn;
    struct nb_handshake hello;
    int rank, cls;
};

/* Something with a peer has ended, and it has not said why so far. */
struct nb_suspicion {
    const char *what; /* "lost", "cannot connect to"; NULL: there is none */
    int err;
    int64_t since_ns;
};

/* Votes with one peer, on CONTROL (vote.c). */
struct nb_ballot {
    struct nb_handshake out, in;
    uint8_t due, said, got; /* yeses, one a round: that may be said, that have been, that were heard */
    bool no;                /* it has said no */
    bool over;              /* nothing more will be heard of it */
    bool unreachable;       /* nothing can be said to it */
    bool ended;             /* its CONTROL has been read to an end without a no, and has not come again */
    struct nb_suspicion suspicion; /* connect.h */
    unsigned told;                 /* the version of the own no that it was sent; 0: none */
};

struct nb_mesh {
    struct nb_coll_comm *comm; /* lent */
    void *listener;            /* lent */
    uint8_t *linked; /* [nnodes] to be connected with: comm->neighbors, and others to whom a no is owed */
    uint8_t (*handle)[NB_NET_HANDLE_BYTES]; /* [nnodes] as the peers' listen has filled them */
    struct nb_outgoing *out;                /* [nnodes][NB_CLASS_COUNT] */
    struct nb_incoming **by_peer;           /* [nnodes][NB_CLASS_COUNT], once the hello has told; owned */
    struct nb_incoming *unknown;            /* without a hello so far, oldest first; owned */
    int nunknown;
    struct nb_ballot *ballot; /* [nnodes] */
    struct nb_hello mine;
    uint32_t *token;              /* [nnodes] shares of the group token, of those that have greeted */
    uint32_t *row_token;          /* [rows] those of rows, of the own one and those that have voted */
    struct nb_reckon_facts facts; /* of this node's link and codec */
    struct nb_reckon_facts
        row_facts; /* the slowest of the row's nodes that have voted (no grid: of all), with it */
    struct nb_reckon_facts other_facts; /* and of the other rows that have */
    enum nb_cause cause;                /* NONE: this node does not object */
    char reason[NB_CTL_TEXT];           /* why it does */
    bool own;                           /* the reason is this node's; else another's, and names it */
    unsigned version;                   /* of the reason, from 1 */
    int64_t reason_ns;                  /* since when it is this one */
    bool wanted;                        /* the no is a setting's, not a failure */
    bool prepared;       /* the connections are the communicator's: none may be replaced any more */
    bool declining;      /* there will be no communicator; only CONTROL is needed */
    bool differs;        /* from another node: tells all why, neighbors or not */
    bool deaf;           /* cannot accept */
    bool starved;        /* of descriptors */
    enum nb_round round; /* vote.c: that in progress */
    int64_t begun;
    int64_t deadline; /* for all others to have done their part; then a no is told */
    int64_t end;      /* NIBBLE_CONNECT_TIMEOUT after `begun`: the end in any case */
    int64_t look_ns;  /* when connections that nothing is expected of are looked at next */
};

/* Prepare `m` for `comm`. The handles are copied. 0, or a negative errno; then nb_mesh_free is enough. */
int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles);

/* Get on with connecting to all linked nodes, accepting, and the hellos both ways. What does not fit is an
 * objection. A connection that ends before its peer has confirmed it is made again. While declining: CONTROL
 * only. True when something moved. */
bool nb_mesh_move(struct nb_mesh *m);

/* What keeps the mesh from being whole with peer `rank`, or NULL. */
const char *nb_mesh_missing(const struct nb_mesh *m, int rank);
/* Close a connection from a peer; it may come again. */
void nb_mesh_drop(struct nb_mesh *m, struct nb_incoming *in);

/* Deregister the handshake messages. won: the connections are the communicator's from here on; else they are
 * closed, with those of them that the communicator has already been given, of which nothing is registered any
 * more. */
void nb_mesh_dissolve(struct nb_mesh *m, bool won);

/* Free what nb_mesh_init took. */
void nb_mesh_free(struct nb_mesh *m);

/* The connection to a peer has ended before it was confirmed: it is made again, after a while. */
void nb_mesh_dial_again(struct nb_mesh *m, int rank, int cls, int err);

/* Seconds since connect began. */
long long nb_mesh_age(const struct nb_mesh *m);

/* The connection of a class from a peer, or NULL while it is not known. */
static inline struct nb_incoming *nb_mesh_in(const struct nb_mesh *m, int rank, int cls)
{
    return m->by_peer[rank * NB_CLASS_COUNT + cls];
}
static inline struct nb_outgoing *nb_mesh_out(const struct nb_mesh *m, int rank, int cls)
{
    return &m->out[rank * NB_CLASS_COUNT + cls];
}

/* ---- reasons ----------------------------------------------------------------------------------------- */

/* This node votes no, for what it is itself. */
void nb_reason_object(struct nb_mesh *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* It votes no because of another node, which the text names. Nothing where there is a reason as good. */
void nb_reason_blame(struct nb_mesh *m, enum nb_cause cause, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Nothing can be said to peer `rank` any more: `what` ("lost", "cannot connect to"; a constant) has failed
 * with `err`. It is blamed when that is all that can be known. */
void nb_reason_suspect(struct nb_mesh *m, int rank, const char *what, int err);

/* ---- ballots ----------------------------------------------------------------------------------------- */

/* Say what is due, and hear what has come, of all peers. True when something moved. */
bool nb_ballots_move(struct nb_mesh *m);

/* ---- the vote ---------------------------------------------------------------------------------------- */

/* The vote that ends connect, the token of the group, and what becomes of a no. For the thread that connects.
 */

/* Begin to vote: nothing keeps this node from being part of the group. */
void nb_vote_begin(struct nb_mesh *m);
/* Exchange votes. Done when all nodes are known to be ready and to know it (then comm->token is set), or
 * when m->cause tells why there will be no communicator; at the latest at m->deadline. */
enum nb_stepped nb_vote_step(struct nb_mesh *m);
/* Whether there is a communicator. */
bool nb_vote_is_won(const struct nb_mesh *m);

/* Begin to tell all others why this node gives up: m->reason, or, where there is none that is nearer to the
 * cause, who is missing now. m->deadline is set anew: to a quarter of NIBBLE_CONNECT_TIMEOUT from now, within
 * m->end. */
void nb_decline_begin(struct nb_mesh *m);
/* Done when they have been told, and m->reason is as near to the cause as can be known; at the latest at
 * m->deadline. */
enum nb_stepped nb_decline_step(struct nb_mesh *m);

/* ---- the object of a communicator -------------------------------------------------------------------- */

/*
 * Making and freeing the object of a communicator. Called on NCCL's proxy service thread, before the engine
 * knows the communicator and after it has let go of it.
 */

/* The object itself with the state of its modules, without connections, staging memory (flow/flow.h) or engine:
 * node `rank` of `nnodes` nodes on net device `dev`. Its device is that which nb_device_choose says, or, with
 * the reason in comm->device_error, the host. NULL: no memory. */
struct nb_coll_comm *nb_setup_comm(struct nb_context *ctx, int dev, uint64_t comm_id,
                                   const struct nb_net_ops *net, int nnodes, int rank);
/* Free everything, staging memory included, but not connections and the reference to the engine. */
void nb_setup_free(struct nb_coll_comm *comm);

#endif
