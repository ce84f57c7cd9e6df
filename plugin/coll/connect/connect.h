/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group while it is formed: its connections (the mesh), the messages on them, reasons against it, the vote,
 * and the object of a communicator. Private to this folder, which offers the listen, connect and close of
 * coll/coll.h.
 *
 * All functions return at once. All are for the thread that connects (NCCL's proxy service thread).
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

/* Messages of one size that two nodes exchange on a connection while a group is formed: a hello, then
 * votes. */

/* A message. The next message on the same connection uses its buffer again. */
struct nb_handshake {
    uint8_t buf[256];
    void *mhandle; /* registration with the connection, kept for later messages */
    void *req;
    bool posted;
    bool refused; /* registering the buffer failed. The connection is unharmed */
    int done;
    size_t len;
};

/* Drive a message over its connection. Return > 0 when it moved, 0 when it stood still, < 0 when the
 * connection is lost or n->refused is set. */
int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
/* Free the buffer for the next message on the same connection. */
void nb_handshake_again(struct nb_handshake *n);

/* ---- the mesh ---------------------------------------------------------------------------------------- */

/* The connections of this node, the hellos on them, and its reason against the group, if there is one. */

/* Outcomes of a step. */
enum nb_stepped {
    NB_STEPPED_IDLE, /* it waits for peers or a deadline */
    NB_STEPPED_ON,   /* something moved: step again at once */
    NB_STEPPED_DONE, /* the step's work is done */
};

struct nb_outgoing {                     /* a connection to a peer, of one class */
    uint8_t handle[NB_NET_HANDLE_BYTES]; /* the peer's handle, with the state of a connect in progress */
    void *conn;
    struct nb_handshake hello;
    int64_t again_ns; /* time of the next attempt */
    unsigned attempts;
};

struct nb_incoming { /* a connection from a peer, which its hello names */
    struct nb_incoming *next;
    void *conn;
    struct nb_handshake hello;
    int rank, cls;
};

/* A peer's connection has ended, for a reason that is unknown so far. */
struct nb_suspicion {
    const char *what; /* "lost" or "cannot connect to". NULL: the peer is not suspected */
    int err;
    int64_t since_ns;
};

/* Votes with one peer, on CONTROL (vote.c). */
struct nb_ballot {
    struct nb_handshake out, in;
    uint8_t due, said, got;        /* numbers of yeses: allowed, sent, received */
    bool no;                       /* the peer has voted no */
    bool over;                     /* this node has read the peer's last message */
    bool unreachable;              /* messages to the peer are lost */
    bool ended;                    /* the peer's CONTROL has ended without a no, and has not come again */
    struct nb_suspicion suspicion; /* why the peer may be lost */
    unsigned told;                 /* version of this node's no that the peer was sent. 0: not sent */
};

struct nb_mesh {
    struct nb_coll_comm *comm; /* lent */
    void *listener;            /* lent */
    uint8_t *linked;           /* [nnodes] to be connected: comm->neighbors, and nodes that are owed a no */
    uint8_t (*handle)[NB_NET_HANDLE_BYTES]; /* [nnodes] from the peers' listen */
    struct nb_outgoing *out;                /* [nnodes][NB_CLASS_COUNT] */
    struct nb_incoming **by_peer;           /* [nnodes][NB_CLASS_COUNT], known by their hellos. Owned */
    struct nb_incoming *unknown;            /* without a hello so far, oldest first. Owned */
    int nunknown;
    struct nb_ballot *ballot; /* [nnodes] */
    struct nb_hello mine;
    uint32_t *token;              /* [nnodes] shares of the group token, from hellos */
    uint32_t *row_token;          /* [rows] shares of rows: the own share, and the shares from votes */
    struct nb_reckon_facts facts; /* this node's link and codec */
    struct nb_reckon_facts
        row_facts; /* the slowest of the row so far, this node included. Without a grid: of all nodes */
    struct nb_reckon_facts other_facts; /* the slowest of the other rows so far */
    enum nb_cause cause;                /* cause of the reason. NONE: there is no reason against the group */
    char reason[NB_CTL_TEXT];           /* the reason */
    bool own;                           /* the reason is this node's. Else it names another node */
    unsigned version;                   /* version of the reason, from 1 */
    int64_t reason_ns;                  /* time at which it became the reason */
    bool wanted;                        /* a setting or the reckoning declines, which is no failure */
    bool prepared;                      /* the communicator has the connections, so they must stay */
    bool declining;                     /* the group is declined, so only CONTROL is needed */
    bool differs; /* this node differs from another one. It sends the reason to all nodes, also beyond its
                     neighbors */
    bool deaf;    /* accept fails */
    bool starved; /* descriptors have run out */
    enum nb_round round; /* the round in progress (vote.c) */
    int64_t begun;
    int64_t deadline; /* time at which the missing nodes become the reason against the group */
    int64_t end;      /* last moment: NIBBLE_CONNECT_TIMEOUT after `begun` */
    int64_t look_ns;  /* time of the next check of idle connections */
};

/* Prepare `m` for `comm`. Copy the handles. Return 0, or a negative errno. After an error, too, call
 * nb_mesh_free. */
int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles);

/* Continue to connect to all linked nodes, to accept, and to exchange hellos. Differences become reasons. A
 * connection that ends before its peer has confirmed it is made again. While the group is declined, do so for
 * CONTROL only. Return true when something moved. */
bool nb_mesh_move(struct nb_mesh *m);

/* Return the text that says which connection or confirmation of peer `rank` is missing, or NULL. */
const char *nb_mesh_missing(const struct nb_mesh *m, int rank);
/* Close a connection from a peer, which may connect again. */
void nb_mesh_drop(struct nb_mesh *m, struct nb_incoming *in);

/* Deregister the messages. won: the communicator keeps the connections. Else close all connections, also the
 * communicator's, whose memory must be deregistered. */
void nb_mesh_dissolve(struct nb_mesh *m, bool won);

/* Free the memory of nb_mesh_init. */
void nb_mesh_free(struct nb_mesh *m);

/* Connect to a peer again after a while. Call when a connection to it has ended before it was confirmed. */
void nb_mesh_dial_again(struct nb_mesh *m, int rank, int cls, int err);

/* Return the seconds since connect began. */
long long nb_mesh_age(const struct nb_mesh *m);

/* nb_mesh_in: return the connection of a class from a peer, or NULL while it is unknown. nb_mesh_out: return
 * the connection of a class to a peer. */
static inline struct nb_incoming *nb_mesh_in(const struct nb_mesh *m, int rank, int cls)
{
    return m->by_peer[rank * NB_CLASS_COUNT + cls];
}
static inline struct nb_outgoing *nb_mesh_out(const struct nb_mesh *m, int rank, int cls)
{
    return &m->out[rank * NB_CLASS_COUNT + cls];
}

/* ---- reasons ----------------------------------------------------------------------------------------- */

/* Vote no because of another node, which the text names. A reason as near to the cause stays. */
void nb_decline_blame(struct nb_mesh *m, enum nb_cause cause, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Vote no for a reason of this node. */
#define nb_decline(m, ...) nb_decline_blame(m, NB_CAUSE_SURE, __VA_ARGS__)

/* Suspect peer `rank`: `what` ("lost" or "cannot connect to", a constant) has failed with `err`. The peer is
 * blamed unless a better reason turns up. */
void nb_decline_suspect(struct nb_mesh *m, int rank, const char *what, int err);

/* ---- ballots ----------------------------------------------------------------------------------------- */

/* Send the votes that are due, and receive the votes of all peers. Return true when something moved. */
bool nb_ballots_move(struct nb_mesh *m);

/* ---- the vote ---------------------------------------------------------------------------------------- */

/* The vote that ends connect, the token of the group, and declining. */

/* Begin to vote. This node must have no reason against the group. */
void nb_vote_begin(struct nb_mesh *m);
/* Exchange votes. Done when all nodes are known to be ready and to know it (then comm->token is set), or when
 * m->cause has a reason against the group, and at the latest at m->deadline. */
enum nb_stepped nb_vote_step(struct nb_mesh *m);
/* Return whether the communicator is made. */
bool nb_vote_is_won(const struct nb_mesh *m);

/* Begin to send all nodes this node's reason, m->reason. Without a nearer reason, blame the nodes that are
 * missing now. Set m->deadline to a quarter of NIBBLE_CONNECT_TIMEOUT from now, within m->end. */
void nb_decline_begin(struct nb_mesh *m);
/* Continue. Done when all nodes have the reason and m->reason is as near to the cause as this node can know,
 * and at the latest at m->deadline. */
enum nb_stepped nb_decline_step(struct nb_mesh *m);

/* ---- the object of a communicator -------------------------------------------------------------------- */

/* The object of a communicator. For NCCL's proxy service thread, before the engine knows the communicator and
 * after it has let go of it. */

/* Create the object and the state of all folders for node `rank` of `nnodes` on net device `dev`.
 * Connections, staging memory (flow/flow.h) and engine come later. The codec device is the choice of
 * nb_device_choose. If that fails it is the host, with the reason in comm->device_error. Return NULL when
 * memory has run out. handles: of the nodes' listeners, with the names of their sites. */
struct nb_coll_comm *nb_setup_comm(struct nb_context *ctx, int dev, uint64_t comm_id,
                                   const struct nb_net_ops *net, void *const *handles, int nnodes, int rank);
/* Free the object with its staging memory. The caller closes connections and releases the engine. */
void nb_setup_free(struct nb_coll_comm *comm);

#endif
