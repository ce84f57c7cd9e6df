/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes in one process and one thread, for tests. Each node is a context with its own settings, a virtual
 * clock and an engine without a runner. The transport in memory (net/loopback.h) connects them. Time goes on
 * when everything else stands still.
 */
#ifndef NIBBLE_TESTS_COLL_CLUSTER_H
#define NIBBLE_TESTS_COLL_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/context.h"
#include "base/params.h"
#include "coll/coll.h"
#include "coll/engine.h"
#include "net/transport.h"
#include "state/budget.h"

#define CLUSTER_MOST 8

struct cluster_node {
    struct nb_context ctx;
    struct nb_params params;
    int64_t now; /* its clock, in ns */
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_coll_listen *listen;   /* open, or NULL */
    struct nb_coll_connect *connect; /* in progress, or NULL */
    struct nb_coll_comm *comm;       /* connected, or NULL */
    int connected;                   /* result of connect, or -EINPROGRESS before it */
    bool asleep;                     /* the cluster does not step it */
    size_t left[NB_BUDGET_COUNT];    /* budgets at the beginning */
};

struct cluster {
    int nodes;
    struct cluster_node node[CLUSTER_MOST];
    uint64_t rounds, most_rounds; /* turns taken, and the number that ends the process */
    /* Do NCCL's part on a node after each step outside of connecting. Return true when something moved. Set
     * by the caller, may be NULL. */
    bool (*nccl)(struct cluster *c, int node);
};

/* Make `nodes` nodes with the default settings, except for small buffers and codecs on the host. The caller
 * may change settings before it connects. */
void cluster_open(struct cluster *c, int nodes);
/* Make nodes with engines that `runner` drives in real time. NULL: as cluster_open. With a runner the
 * functions below that take turns are unavailable: connect and close as NCCL does. */
void cluster_open_driven(struct cluster *c, int nodes, const struct nb_runner *runner);
/* Begin without nodes, and add each node with its own runner (NULL: steps in virtual time) and transport.
 * Where the default clock does not serve, the caller then sets node[i].ctx.clock: zeros are the real
 * clock. */
void cluster_begin(struct cluster *c);
struct cluster_node *cluster_add(struct cluster *c, const struct nb_runner *runner,
                                 const struct nb_net_ops *net);
/* Check that all memory is returned, and free the nodes. The caller has closed everything. */
void cluster_close(struct cluster *c);

/* Step everything on a node once. Return true when something moved. Otherwise set *until to the time of its
 * clock when time alone moves something, or INT64_MAX. */
bool cluster_step(struct cluster *c, int node, int64_t *until);
/* Step all nodes once. When everything stands still, move time to the first due event. Return false when
 * there is no such event. */
bool cluster_turn(struct cluster *c);

/* Do parts of connecting: let every node listen for the communicator to which NCCL gave this number, and let
 * one node begin to connect to all. */
void cluster_listen(struct cluster *c, uint64_t comm_id);
void cluster_begin_connect(struct cluster *c, int node);
/* Take turns until every node that is awake has connected or declined. */
void cluster_await_connect(struct cluster *c);
/* Stop listening, after connecting. */
void cluster_close_listen(struct cluster *c, int node);
/* Connect all nodes to one group. A failure ends the process. */
void cluster_connect(struct cluster *c);
/* Connect as the communicator to which NCCL gave this number. Several may be open: the caller keeps each
 * node's `comm`, and puts it back to close it. */
void cluster_connect_as(struct cluster *c, uint64_t comm_id);
/* Connect all nodes to one group without a step of their engines, so that no time passes for them. A failure
 * ends the process. */
void cluster_connect_alone(struct cluster *c);
/* Close the open communicators. */
void cluster_disconnect(struct cluster *c);

/* Like assert, in every build. */
#define CLUSTER_CHECK(cond) \
    do { \
        if (!(cond)) \
            cluster_failed(__FILE__, __LINE__, #cond); \
    } while (0)
_Noreturn void cluster_failed(const char *file, int line, const char *what);

#endif
