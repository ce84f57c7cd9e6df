/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group while it is made: the connections of this node, the handshake messages on them (hello, vote), and
 * why this node objects, if it does. connect.c fills the communicator from it.
 *
 * Nothing here blocks. All functions are for the thread that connects (NCCL's proxy service thread).
 */
#ifndef NIBBLE_COLL_MESH_H
#define NIBBLE_COLL_MESH_H

#include "coll/comm.h"

/* What a step that never blocks has achieved. */
enum nb_stepped {
    NB_STEPPED_IDLE, /* nothing: waits for peers or a deadline */
    NB_STEPPED_ON,   /* something: step again at once */
    NB_STEPPED_DONE, /* there is nothing left to do */
};

/* A handshake message on a connection: hello, then vote. */
struct nb_handshake {
    uint8_t buf[256];
    void *mhandle;
    void *req;
    int posted, done;
    size_t len;
};

struct nb_outgoing { /* to one peer, one class */
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *conn;
    struct nb_handshake hello;
};

struct nb_incoming { /* from a peer that its hello names */
    void *conn;
    struct nb_handshake hello;
    int known, rank, cls; /* known: 1 the other two are set, -1 they never will be */
};

struct nb_mesh {
    struct nb_coll_comm *comm; /* lent */
    void *listener;            /* lent */
    uint8_t *linked; /* [nnodes] to be connected with: comm->neighbors, and others to whom a no is owed */
    struct nb_outgoing *out;      /* [nnodes][NB_CLASS_COUNT] */
    struct nb_incoming *in;       /* in the order of acceptance */
    struct nb_incoming **by_peer; /* [nnodes][NB_CLASS_COUNT], once the hello has told */
    int nin, most_in;
    struct nb_hello mine;
    uint32_t *token;     /* [nnodes] shares of the group token, of those that have greeted */
    uint32_t *row_token; /* [rows] those of rows, of the own one and those that have voted */
    uint8_t *lost;       /* [nnodes] no vote can be had from this peer */
    struct nb_handshake *vote_out, *vote_in; /* [nnodes] */
    char reason[NB_CTL_TEXT];                /* why this node votes no; "" = yes */
    int voting;       /* connections are made, but for those that nb_mesh_answer makes */
    int differs;      /* from another node: connects with all, and votes with all at once */
    int vague;        /* the reason only tells that another node will have one */
    int heard;        /* the reason is another's, and names it */
    int wanted;       /* the no is a setting's, not a failure */
    int64_t deadline; /* for the connections */
    struct {          /* vote.c: the round in flight */
        struct nb_vote mine;
        int yes;          /* no other node has said no so far, and none is lost */
        int64_t deadline; /* counts once there is a no */
    } round;
};

/* Prepare `m` for `comm`. The handles are copied. 0, or a negative errno; then nb_mesh_free is enough. */
int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles);

/* Connect with all neighbors, both ways, send them a hello and read theirs. What goes wrong with one of them,
 * or does not fit, is an objection. Done when all are connected or lost, at the latest after
 * NIBBLE_CONNECT_TIMEOUT, and after a quarter of it where a node differs in settings or version. */
enum nb_stepped nb_mesh_step(struct nb_mesh *m);

/* During the vote: answer nodes that greet this one unexpectedly, so that they do not wait for it. What is
 * wrong with them does not change this node's vote; the votes of others will tell. True when something
 * moved. */
bool nb_mesh_answer(struct nb_mesh *m);

/* vote.c: tell the others whether this node objects, and read what they say. Done when the outcome is known:
 * m->round.yes is 1 when no node objects, and comm->token is set; 0 when one does, and m->reason tells why
 * where that is known. Once there is a no, votes are waited for as long as NIBBLE_CONNECT_TIMEOUT says, in
 * each round. */
void nb_vote_begin(struct nb_mesh *m);
enum nb_stepped nb_vote_step(struct nb_mesh *m);

/* Deregister the handshake messages. won: the connections are the communicator's from here on; else they are
 * closed, with those of them that the communicator has already been given, of which nothing is registered any
 * more. */
void nb_mesh_dissolve(struct nb_mesh *m, int won);

/* Free what nb_mesh_init took. */
void nb_mesh_free(struct nb_mesh *m);

/* This node votes no. The first reason that is not vague is the one that is told. */
void nb_mesh_object(struct nb_mesh *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Peer `rank` cannot be reached: an objection that says `what` was tried, and the error. */
void nb_mesh_lose(struct nb_mesh *m, int rank, int err, const char *what);

/* The connection of a class from a peer, or NULL while it is not known. */
static inline struct nb_incoming *nb_mesh_in(const struct nb_mesh *m, int rank, int cls)
{
    return m->by_peer[rank * NB_CLASS_COUNT + cls];
}

/* Drive a handshake message over its connection: > 0 moved, 0 not, or < 0 when the connection is lost. */
int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);

#endif
