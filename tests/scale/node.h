/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of nibble-scale: its context and communicator, and NCCL's walk over an operation. The walk makes
 * calls of up to eight channels and keeps eight steps in flight. A slot is free again when its call is
 * finished, and GPUs take no time.
 *
 * Time. Events make the engine take a step. The work of a step takes time on the node's thread: the node's
 * clock runs ahead of the cluster's by that time, messages leave at the time of this clock, and the next step
 * begins no earlier.
 */
#ifndef NIBBLE_TESTS_SCALE_NODE_H
#define NIBBLE_TESTS_SCALE_NODE_H

#include "base/context.h"
#include "emulate/nccl_walk.h"
#include "tests/scale/scale.h"

struct idle;
struct nb_coll_comm;
struct nb_coll_connect;
struct nb_coll_listen;
struct nb_coll_req;

#define SCALE_GROUPS 8

enum scale_state {
    SCALE_CONNECTING,
    SCALE_WAITING,
    SCALE_RUNNING,
    SCALE_COMPLETE,
    SCALE_CLOSING,
    SCALE_CLOSED
};

struct scale_group { /* of up to NB_NCCL_GROUP channels */
    uint64_t called, tested;
    struct nb_coll_req *request[NB_NCCL_STEPS];
};

struct scale_node {
    struct nb_context ctx; /* first: hooks get its address */
    struct nb_params params;
    char site[NB_SITE_BYTES];
    struct scale_cluster *cluster;
    int number;
    int64_t clock; /* time up to which its thread has worked */
    int64_t wake;  /* the valid wake event */
    uint64_t random;
    struct idle *device;
    size_t wire_bytes, state_bytes; /* memory that the device has given out */

    enum scale_state state;
    struct nb_coll_listen *listen;
    uint8_t handle[128];
    struct nb_coll_connect *connect;
    struct nb_coll_comm *coll;
    void *mhandle[2];

    struct nb_nccl_walk walk; /* of the operation */
    uint64_t step;            /* the next step to post */
    int next;                 /* and its group */
    struct scale_group group[SCALE_GROUPS];
    int64_t ended; /* when the operation was complete */
};

struct scale_node *scale_node_open(struct scale_cluster *cluster, int number);
/* Free the node, closed or not. */
void scale_node_free(struct scale_node *node);
/* All nodes listen: connect. */
void scale_node_connect(struct scale_node *node);
/* Close the communicator. */
void scale_node_close(struct scale_node *node);

/* An event concerns the node: step it, now or when its thread has the time. */
void scale_node_wake(struct scale_cluster *cluster, int node);
void scale_node_wake_at(struct scale_cluster *cluster, int node, int64_t at);
/* SIM_NODE. */
void scale_node_event(struct scale_cluster *cluster, const struct sim_event *event);
/* Keep the node's thread busy for another `ns`. Return its clock after that. */
int64_t scale_node_spends(struct scale_node *node, int64_t ns);

#endif
