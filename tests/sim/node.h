/* SPDX-License-Identifier: Apache-2.0 */
/* A node: its context, its communicators from listen to close, and when it is stepped. */
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
    struct nb_context ctx; /* first: what hooks are given */
    struct sim *sim;
    int number;
    int64_t wake;       /* the event that counts; SIM_NEVER: none */
    int64_t slow_until; /* until then it takes slow_ns to notice something */
    int64_t slow_ns;
    bool dead;                    /* killed, or without power */
    bool stopped, woken;          /* woken: there is something to do when it goes on */
    uint64_t random;              /* what its engine is given */
    size_t left[NB_BUDGET_COUNT]; /* budgets before anything was taken */
    size_t blocks;                /* memory likewise */
    int connecting;               /* the communicator that comes next */
    int64_t connect_at;
    bool was_stopped;  /* since it began to connect */
    int64_t continued; /* when it went on last, after it was stopped */
    bool finished;     /* all communicators are closed, or never were */
    struct sim_proxy proxy[SIM_COMMS];
    struct nb_device *device[SIM_COMMS];
    unsigned warnings;
    char warning[4][256]; /* the first */
};

struct sim_node *sim_node_open(struct sim *s, int number);
/* Once all connected ones are closed. Violations: what is left. */
void sim_node_close(struct sim_node *n);

/* Something has happened that concerns it: it is stepped soon. */
void sim_node_wake(struct sim *s, int node);
/* The same, at a time. */
void sim_node_wake_at(struct sim *s, int node, int64_t at);
void sim_node_event(struct sim *s, const struct sim_event *event);

/* Faults. */
void sim_node_kill(struct sim *s, int node, bool silently);
void sim_node_stop(struct sim *s, int node);
void sim_node_continue(struct sim *s, int node);

#endif
