/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the network (network.h): what is known of connections, messages and NICs. network.c has NICs and
 * the way of messages, connection.c how connections begin and end, transport.c the table that the engine
 * calls, network_fault.c what is done to them.
 *
 * All memory is the simulation's (SIM_NOBODY): callers see to that.
 */
#ifndef NIBBLE_TESTS_SIM_CONNECTION_H
#define NIBBLE_TESTS_SIM_CONNECTION_H

#include "tests/net/simulated.h"
#include "tests/sim/network.h"

struct request {
    struct request *prev, *next; /* of the same end */
    struct request *wait;        /* of receives without a message */
    struct end *end;
    uint8_t *data;
    size_t size, got;
    bool done;
};

struct message {
    struct simulated_link link; /* first */
    int64_t arrive;
    size_t len;
    const uint8_t *from; /* the sender's buffer; or own */
    uint8_t *own;
    struct request *request; /* the sender's, NULL: it is done */
    bool end;                /* there is nothing behind it */
};

/* One side of a connection: what the engine has as comm. */
struct end {
    struct conn *conn;
    bool open;
    int err;
    struct request *requests;
    uint64_t bytes;
};

enum stage { GREETING, REFUSED, UP };

struct conn {
    struct sim *sim;
    int number, from, to, comm;
    enum stage stage;
    struct listener *listener;
    struct conn *next; /* in the listener's queue */
    struct end send, recv;
    struct simulated_line flight, inbox;
    struct request *recvs, **recvs_end;
    int64_t last, stalled;
    bool ended;   /* the message without one behind it has arrived */
    bool greets;  /* SIM_UP is due, but something is cut */
    bool tells;   /* SIM_BACK is, too */
    bool expects; /* SIM_ARRIVE is in the queue */
    bool refused; /* sends: the node has to be woken when there is room */
    bool control; /* its messages are read as they come; others when it is their turn */
    bool broken;  /* by sim_network_reset */
    char peer[2][SIMULATED_NAME];
};

struct listener {
    struct sim *sim;
    int number, node;
    bool open;
    struct conn *waiting;
};

struct nic {
    int64_t out, in; /* free from then on */
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
        bool control; /* of such a message only */
        uint64_t which;
        size_t limit;
        int comm; /* it has happened to a message of this; -1: not yet */
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

/* The oldest message of a line that has one. */
static inline struct message *sim_line_head(const struct simulated_line *line)
{
    return (struct message *)line->head;
}

/* ---- network.c ----------------------------------------------------------------------------------------- */

void sim_message_free(struct message *m);
/* All of a line. */
void sim_messages_drop(struct simulated_line *line);
/* Nothing passes from one node to the other. */
bool sim_conn_blocked(const struct conn *c, int from, int to);
/* The head of what is under way is expected when it is due. */
void sim_conn_expect(struct conn *c);
/* Give a message to the NIC. */
void sim_conn_launch(struct conn *c, struct message *m);
/* What has arrived goes into the receives that wait for it. */
void sim_conn_match(struct conn *c);
/* The message leaves its sender's memory; the sender is done with it. */
void sim_conn_let_go(struct conn *c, struct message *m);
/* From 0 to `most`, drawn; nothing is where most is 0. */
int64_t sim_some(struct sim *s, int64_t most);

/* ---- connection.c -------------------------------------------------------------------------------------- */

/* A connection that greets `l`, from node `from`. */
struct conn *sim_conn_new(struct sim *s, int from, struct listener *l);
/* The greeting is through, or the answer to it. */
void sim_conn_up(struct sim *s, struct conn *c);
/* The sender hears that the receiver is gone. */
void sim_conn_back(struct sim *s, struct conn *c);
/* The sender is gone: what it has sent is followed by the end. The receiver is: the sender will hear of it.
 * Both also where that is so already. */
void sim_conn_end_sending(struct conn *c);
void sim_conn_end_receiving(struct conn *c);
/* What the sender's requests have under way is lost where it lies in memory that is gone. */
void sim_conn_forget_sends(struct conn *c);
/* The receiver will hear that nothing follows. */
void sim_conn_launch_end(struct conn *c);
/* Free an end's requests. */
void sim_end_forget(struct end *e);
void sim_listener_close(struct listener *l);

/* ---- network_fault.c ----------------------------------------------------------------------------------- */

/* A message arrives: damage it, if that is to be. */
void sim_network_damage(struct conn *c, struct message *m);

#endif
