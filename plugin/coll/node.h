/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the communicators of one node share besides the engine that drives them. A node has one such object,
 * inside its engine (engine.h); communicators reach it as `comm->node`.
 */
#ifndef NIBBLE_COLL_NODE_H
#define NIBBLE_COLL_NODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "coll/control_file.h"
#include "coll/observe.h"
#include "net/transport.h"

struct nb_monitor;

/* Communicators counted by GPU, for the criterion `order` of NIBBLE_COMMS. */
struct nb_comm_count {
    uint64_t last_id; /* NCCL's hash of the communicator counted last */
    uint32_t n;
};

struct nb_coll_node {
    pthread_mutex_t lock;                        /* guards `count` */
    struct nb_comm_count count[NB_NET_MAX_DEVS]; /* [GPU ordinal + 1] */
    struct nb_control_file control; /* engine thread, and its runner while that starts or stops it */
    struct nb_monitor *monitor;     /* NULL: none; the runner's while that starts or stops, else constant */
    bool monitor_left_behind;       /* one's thread never came back; as above */
    struct nb_observer observer;
    /* Lines that a node logs once. Engine thread only. */
    bool warned_profiler, warned_tuner; /* operation.c: events or questions do not reach this plugin */
    bool reported_lossy;                /* gather.c: what a lossy all-gather costs */
};

/* Initialise an object of the caller's, and give back what that took. */
void nb_node_init(struct nb_coll_node *node);
void nb_node_destroy(struct nb_coll_node *node);

/* Count a communicator of the GPU `gpu` (CUDA ordinal, -1: none): returns its number, from 1. Consecutive
 * calls with the same `comm_id` (one communicator that listens on several devices) get the same number,
 * except that 0 is no identifier. Any thread. */
uint32_t nb_node_count_comm(struct nb_coll_node *node, int gpu, uint64_t comm_id);

#endif
