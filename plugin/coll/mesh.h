/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group while it is made: the connections of this node, the hellos on them, and why this node objects, if
 * it does. ballot.h is what goes over the CONTROL connections next, connect.c fills the communicator.
 *
 * Nothing here blocks. All functions are for the thread that connects (NCCL's proxy service thread).
 */
#ifndef NIBBLE_COLL_MESH_H
#define NIBBLE_COLL_MESH_H

#include "coll/comm.h"
#include "coll/handshake.h"

/* What a step that never blocks has achieved. */
enum nb_stepped {
    NB_STEPPED_IDLE, /* nothing: waits for peers or a deadline */
    NB_STEPPED_ON,   /* something: step again at once */
    NB_STEPPED_DONE, /* there is nothing left to do */
};

/* What a no is about. A lower one is nearer to the cause, and takes the place of a higher one: a node that
 * misses a vote may wait for one that itself misses a connection. */
enum nb_cause {
    NB_CAUSE_SURE = 0,    /* the node that declines, itself */
    NB_CAUSE_LOST = 1,    /* a node that has gone */
    NB_CAUSE_CONNECT = 2, /* a node that has not been reached, or has not greeted, in time */
    NB_CAUSE_VOTE = 3,    /* a node that has not voted in time; + its round */
    NB_CAUSE_NONE = NB_CAUSE_VOTE + NB_ROUND_COUNT
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

/* Votes with one peer, on CONTROL (ballot.c). */
struct nb_ballot {
    struct nb_handshake out, in;
    uint8_t due, said, got; /* yeses, one a round: that may be said, that have been, that were heard */
    bool no;                /* it has said no */
    bool over;              /* nothing more will be heard of it */
    bool unreachable;       /* nothing can be said to it */
    bool ended;             /* its CONTROL has been read to an end without a no, and has not come again */
    struct nb_suspicion suspicion; /* reason.h */
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

#endif
