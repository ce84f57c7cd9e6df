/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the network (network.h): connections, messages and NICs. network.c has NICs and the way of
 * messages, connection.c the begin and end of connections, transport.c the table that the engine calls,
 * network_fault.c the faults.
 *
 * All memory belongs to the simulation (SIM_NOBODY): callers make sure of it.
 */
#ifndef NIBBLE_TESTS_SIM_CONNECTION_H
#define NIBBLE_TESTS_SIM_CONNECTION_H

#include "tests/net/simulated.h"
#include "tests/sim/network.h"

struct request {
    struct request *prev, *next; /* of the same end */
    struct request *wait;        /* next receive without a message */
    struct end *end;
    uint8_t *data;
    size_t size, got;
    bool done;
};

struct message {
    struct simulated_link link; /* first */
    int64_t arrive;
    size_t len;
    const uint8_t *from; /* the sender's buffer, or own */
    uint8_t *own;
    struct request *request; /* the sender's. NULL: it is done */
    bool end;                /* the last of the connection */
};

/* One side of a connection: the engine's comm. */
struct end {
    struct conn *conn;
    bool open;
    int err;
    struct request *requests;
    uint64_t bytes;
};

enum stage { GREETING, REFUSED, UP };

struct conn {
    struct simulated_link link; /* first: in the listener's queue */
    struct sim *sim;
    int number, from, to, comm;
    enum stage stage;
    struct listener *listener;
    struct end send, recv;
    struct simulated_line flight, inbox;
    struct request *recvs, **recvs_end;
    int64_t last, stalled;
    bool ended;   /* the last message has arrived */
    bool greets;  /* SIM_UP is due, but the nodes are cut off */
    bool tells;   /* the same for SIM_BACK */
    bool expects; /* SIM_ARRIVE is in the queue */
    bool refused; /* sends: the node must be woken when there is room */
    bool control; /* the engine reads its messages as they come, and other messages in their turn */
    bool broken;  /* sim_network_reset has ended it */
    char peer[2][SIMULATED_NAME];
};

struct listener {
    struct sim *sim;
    int number, node;
    bool open;
    struct simulated_line waiting; /* connections for accept */
};

struct nic {
    int64_t out, in; /* times from which each direction is free */
    int ends, listeners, mrs;
    bool dead;
    bool no_mr;
    int comm;
};

struct sim_network {
    int nnodes;
    struct nic *nic;
    uint16_t *cut; /* [from][to] */
    struct simulated_list conns, listeners;
    uint64_t messages;
    struct {
        enum { NONE, FLIP, TRUNCATE } what;
        int from, to;
        bool control; /* hit only messages of class CONTROL */
        uint64_t which;
        size_t limit;
        int comm; /* communicator of the damaged message. -1: not yet */
    } damage;
};

static inline struct conn *sim_conn_at(const struct sim_network *w, int number)
{
    return w->conns.at[number];
}

static inline struct listener *sim_listener_at(const struct sim_network *w, int number)
{
    return w->listeners.at[number];
}

/* Return the oldest message of a line, which must have one. */
static inline struct message *sim_line_head(const struct simulated_line *line)
{
    return (struct message *)line->head;
}

/* ---- network.c ----------------------------------------------------------------------------------------- */

void sim_message_free(struct message *m);
/* All of a line. */
void sim_messages_drop(struct simulated_line *line);
/* Return whether a cut stops all messages from one node to the other. */
bool sim_conn_blocked(const struct conn *c, int from, int to);
/* Put the arrival of the first message in flight into the queue. */
void sim_conn_expect(struct conn *c);
/* Give a message to the NIC. */
void sim_conn_launch(struct conn *c, struct message *m);
/* Put arrived messages into the receives that wait for them. */
void sim_conn_match(struct conn *c);
/* Take the message out of its sender's memory. The sender has then finished with it. */
void sim_conn_let_go(struct conn *c, struct message *m);
/* Draw a number from 0 to `most`. Where most is 0 it draws no number. */
int64_t sim_some(struct sim *s, int64_t most);

/* ---- connection.c -------------------------------------------------------------------------------------- */

/* Make a connection from node `from` that greets `l`. */
struct conn *sim_conn_new(struct sim *s, int from, struct listener *l);
/* The greeting has arrived, or its answer. */
void sim_conn_up(struct sim *s, struct conn *c);
/* The sender hears that the receiver is gone. */
void sim_conn_back(struct sim *s, struct conn *c);
/* The sender is gone: the end follows the messages that it has sent. The receiver is gone: the sender will
 * hear of it. Both calls may come again. */
void sim_conn_end_sending(struct conn *c);
void sim_conn_end_receiving(struct conn *c);
/* Separate the sender's messages in flight from its requests. Messages in memory that is gone are lost. */
void sim_conn_forget_sends(struct conn *c);
/* Tell the receiver that the connection's messages have ended. */
void sim_conn_launch_end(struct conn *c);
/* Free an end's requests. */
void sim_end_forget(struct end *e);
void sim_listener_close(struct listener *l);

/* ---- network_fault.c ----------------------------------------------------------------------------------- */

/* Damage an arriving message, if the plan says so. */
void sim_network_damage(struct conn *c, struct message *m);

#endif
