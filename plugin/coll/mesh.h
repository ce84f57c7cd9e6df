/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group while it is made: the connections of this node, what is said on them first (hello, vote), and why this
 * node objects, if it does. connect.c fills the communicator from it.
 *
 * All functions are for the thread that connects (NCCL's proxy service thread); nothing here outlives it.
 */
#ifndef NIBBLE_COLL_MESH_H
#define NIBBLE_COLL_MESH_H

#include "coll/internal.h"

/* A small message on a connection: hello, then vote. */
struct nb_note {
    uint8_t buf[256];
    void *mhandle;
    void *req;
    int posted, done;
    size_t len;
};

struct nb_outgoing { /* to one peer, one class */
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *conn;
    struct nb_note hello;
};

struct nb_incoming { /* from a peer that its hello names */
    void *conn;
    struct nb_note hello;
    int known, rank, cls; /* known: 1 the other two are set, -1 they never will be */
};

struct nb_mesh {
    struct nb_coll_comm *comm; /* lent */
    void *listener;            /* lent */
    uint8_t *linked;           /* [nranks] to be connected with: comm->near, and others to whom a no is owed */
    struct nb_outgoing *out;   /* [nranks][NB_CLASS_COUNT] */
    struct nb_incoming *in;    /* in the order of acceptance */
    struct nb_incoming **by_peer; /* [nranks][NB_CLASS_COUNT], once the hello has told */
    int nin, most_in;
    struct nb_hello mine;
    uint32_t *token;           /* [nranks] shares of the group token, of those that have greeted */
    uint32_t *row_token;       /* [rows] those of rows, of the own one and those that have voted */
    uint8_t *lost;             /* [nranks] no vote can be had from this peer */
    struct nb_note *vote_out, *vote_in; /* [nranks] */
    char reason[NB_CTL_TEXT];           /* why this node votes no; "" = yes */
    int voting;                         /* connections are made, but for those that nb_mesh_answer makes */
    int differs;                        /* from another node: connects with all, and votes with all at once */
    int vague;                          /* the reason only tells that another node will have one */
    int heard;                          /* the reason is another's, and names it */
    int wanted;                         /* the no is a setting's, not a failure */
    int64_t deadline;
};

/* Prepare `m` for `comm`. The handles are copied. 0, or a negative errno; then nb_mesh_free is enough. */
int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles);

/* Connect with all peers of comm->near, both ways, greet them and hear their greetings. What goes wrong with one of
 * them, or does not fit, is an objection; ends when all are connected or lost, at the latest after
 * NIBBLE_CONNECT_TIMEOUT, and after a quarter of it where a node differs in settings or version. */
void nb_mesh_make(struct nb_mesh *m);

/* During the vote: answer nodes that greet this one unexpectedly, so that they do not wait for it. What is wrong with
 * them does not change this node's vote; the vote of others will tell. */
void nb_mesh_answer(struct nb_mesh *m);

/* Tell the others whether this node objects, and hear them (vote.c). 1 when no node does: comm->token is set. 0 when
 * there is a no; m->reason then tells why where that is known. Once there is one, what others say is waited for as
 * long as NIBBLE_CONNECT_TIMEOUT says, in each round. */
int nb_mesh_vote(struct nb_mesh *m);

/* The notes' registrations end. won: the connections are the communicator's from here on; else they are closed, with
 * those of them that the communicator has already been given, and its registrations end. */
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

/* Drive a note over its connection: > 0 moved, 0 not, or < 0 when the connection is lost. */
int nb_note_send(const struct nb_net_ops *net, void *conn, struct nb_note *n);
int nb_note_receive(const struct nb_net_ops *net, void *conn, struct nb_note *n);

/* Sleep between rounds in which nothing moved. */
void nb_mesh_pause(void);

#endif
