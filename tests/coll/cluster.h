/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes in one process and one thread, for tests: each is a context with settings of its own, a virtual clock
 * and an engine without a runner; the transport in memory (net/loopback.h) connects them. Time goes on when
 * nothing else moves.
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
    int64_t now; /* of its clock, in ns */
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_coll_listen *listen;   /* open, or NULL */
    struct nb_coll_connect *connect; /* in progress, or NULL */
    struct nb_coll_comm *comm;       /* connected, or NULL */
    int connected;                   /* result of connect; -EINPROGRESS before */
    bool asleep;                     /* not stepped */
    size_t left[NB_BUDGET_COUNT];    /* before anything was taken */
};

struct cluster {
    int nodes;
    struct cluster_node node[CLUSTER_MOST];
    uint64_t rounds, most_rounds; /* turns taken; more than so many end the process */
    /* What NCCL does on a node of its own accord, after each step outside of connecting; NULL: nothing. True
     * when something moved. Set by the caller. */
    bool (*nccl)(struct cluster *c, int node);
};

/* Make `nodes` nodes with the default settings but for small buffers and codecs on the host; settings may be
 * changed before anything is connected. */
void cluster_open(struct cluster *c, int nodes);
/* The same with engines that `runner` drives, in real time; NULL: as above. With a runner nothing below takes
 * turns: connect and close as NCCL does. */
void cluster_open_driven(struct cluster *c, int nodes, const struct nb_runner *runner);
/* One node at a time: begin with none, and add each with its own runner (NULL: steps in virtual time) and
 * transport. Where the default clock does not serve, the caller sets node[i].ctx.clock then: zeros are the
 * real one. */
void cluster_begin(struct cluster *c);
struct cluster_node *cluster_add(struct cluster *c, const struct nb_runner *runner,
                                 const struct nb_net_ops *net);
/* Everything is closed: check that all memory is given back, and free the nodes. */
void cluster_close(struct cluster *c);

/* One step of everything on a node: true when something moved. Else *until is the time of its clock when time
 * alone moves something; INT64_MAX: never. */
bool cluster_step(struct cluster *c, int node, int64_t *until);
/* A round of all nodes. When nothing moves, time goes on to what is due first; false when nothing is due
 * either. */
bool cluster_turn(struct cluster *c);

/* Parts of connecting: every node listens for the communicator that NCCL has given this number; one begins to
 * connect to all. */
void cluster_listen(struct cluster *c, uint64_t comm_id);
void cluster_begin_connect(struct cluster *c, int node);
/* Turns until every node that is not asleep has connected or declined. */
void cluster_await_connect(struct cluster *c);
/* Stop listening, after connecting. */
void cluster_close_listen(struct cluster *c, int node);
/* Connect all nodes to one group: ends the process where that fails. */
void cluster_connect(struct cluster *c);
/* The same, as the communicator that NCCL has given this number. Several may be open: the caller keeps `comm`
 * of each node, and puts it back to close it. */
void cluster_connect_as(struct cluster *c, uint64_t comm_id);
/* Close the communicators that are open. */
void cluster_disconnect(struct cluster *c);

/* Like assert, in every build. */
#define CLUSTER_CHECK(cond) \
    do { \
        if (!(cond)) \
            cluster_failed(__FILE__, __LINE__, #cond); \
    } while (0)
_Noreturn void cluster_failed(const char *file, int line, const char *what);

#endif
