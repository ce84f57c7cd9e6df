/* SPDX-License-Identifier: Apache-2.0 */
/* A node: its context, its communicators from listen to close, and the times of its steps. */
#ifndef NIBBLE_TESTS_SIM_NODE_H
#define NIBBLE_TESTS_SIM_NODE_H

#include "base/context.h"
#include "net/transport.h"
#include "state/budget.h"
#include "tests/sim/nccl.h"
#include "tests/sim/sim.h"

struct nb_coll_comm;
struct nb_coll_connect;
struct nb_coll_listen;
struct nb_device;

#define SIM_NEVER INT64_MAX

struct sim_node {
    struct nb_context ctx; /* first: hooks get its address */
    struct sim *sim;
    int number;
    int64_t wake;       /* the valid wake event. SIM_NEVER: there is none */
    int64_t slow_until; /* until then it notices events slow_ns late */
    int64_t slow_ns;
    bool dead;                    /* killed, or without power */
    bool stopped, woken;          /* woken: it has work when it goes on */
    uint64_t random;              /* source of its engine's random numbers */
    size_t left[NB_BUDGET_COUNT]; /* budgets before the first use */
    size_t blocks;                /* memory likewise */
    int connecting;               /* number of the next communicator to connect */
    int64_t connect_at;
    bool was_stopped;  /* since it began to connect */
    int64_t continued; /* when it last went on after a stop */
    bool finished;     /* all communicators are closed, or were never open */
    struct sim_proxy proxy[SIM_COMMS];
    struct nb_device *device[SIM_COMMS];
    unsigned warnings;
    char warning[4][256]; /* the first */
};

struct sim_node *sim_node_open(struct sim *s, int number);
/* Close the node once its communicators are closed. Resources that are left are violations. */
void sim_node_close(struct sim_node *n);

/* An event concerns the node: step it soon. */
void sim_node_wake(struct sim *s, int node);
/* Step it at a given time. */
void sim_node_wake_at(struct sim *s, int node, int64_t at);
void sim_node_event(struct sim *s, const struct sim_event *event);

/* Faults. */
void sim_node_kill(struct sim *s, int node, bool silently);
void sim_node_stop(struct sim *s, int node);
void sim_node_continue(struct sim *s, int node);

#endif
