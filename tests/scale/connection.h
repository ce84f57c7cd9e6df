/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the network (network.h): connections and messages. network.c has links and the way of messages,
 * transport.c has the table that the engine calls. */
#ifndef NIBBLE_TESTS_SCALE_CONNECTION_H
#define NIBBLE_TESTS_SCALE_CONNECTION_H

#include "tests/net/simulated.h"
#include "tests/scale/network.h"

#define SCALE_POSTED 32 /* receives at a time: the engine posts 16 */
#define SCALE_SENDS 64  /* sends at a time: the engine has 32 */

struct message {
    struct simulated_link link; /* first */
    struct message *made_before;
    struct conn *conn;
    size_t len;
    int64_t out; /* when its last byte has left */
    bool end;    /* the last message: the sender has closed the connection */
    uint8_t head[SCALE_KEPT];
};

struct slot { /* a request */
    struct conn *conn;
    uint64_t number; /* number within its kind, on the connection */
    uint8_t *data;
    size_t len;
};

/* One side of a connection: the engine's comm. */
struct end {
    struct conn *conn;
    bool open;
};

struct conn {
    struct simulated_link link; /* first: in the listener's queue */
    struct scale_cluster *cluster;
    int from, to;
    bool up, queued; /* queued: in its link's list */
    struct listener *listener;
    struct conn *turn_next; /* in the list of connections with messages to send */
    struct end send, recv;
    struct simulated_line waiting; /* at the sender's link */
    struct simulated_line inbox;   /* arrived, without a posted receive */
    size_t taken;                  /* bytes accepted and not yet in a receive */
    bool refused;                  /* the sender waits for room */
    bool ended;                    /* the sender has closed it, and all messages before have arrived */
    uint64_t sent, delivered, posted, filled, tested;
    struct slot *recvs; /* [SCALE_POSTED] by number */
    struct slot *sends; /* [SCALE_SENDS], where sends finish late */
    char peer[2][SIMULATED_NAME];
};

struct listener {
    int node;
    struct simulated_line waiting; /* connections for accept */
};

struct link { /* of a node */
    struct scale_cluster *cluster;
    struct conn *turn, **turn_end; /* connections with messages to send */
    bool busy;
    int64_t in; /* when the receiving direction is free */
};

struct trunk { /* of a site, to all other sites */
    int64_t free;
};

struct scale_network {
    struct link *link;
    struct trunk *trunk;          /* [sites] */
    struct simulated_link *spare; /* messages */
    struct message *made;         /* the last one. All are freed at the end, from anywhere */
    struct simulated_list conns, listeners;
    size_t bytes;
};

/* Return the time from the sender's link or trunk to the receiver's link. */
int64_t scale_latency(const struct scale_cluster *cl, const struct conn *c);

static inline struct conn *scale_conn_at(const struct scale_network *w, int number)
{
    return w->conns.at[number];
}

/* Return zeroed memory of the simulation. */
void *scale_zeroed(struct scale_network *w, size_t n, size_t size);
/* Return a message. It goes back when it is delivered, or with the network. */
struct message *scale_message_new(struct scale_network *w);
/* Pass it to its sender's link. */
void scale_conn_enqueue(struct scale_cluster *cl, struct message *m);
/* Put arrived messages into receives. */
void scale_conn_match(struct conn *c);

#endif
