/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-scale: how long collectives of many nodes take. The nodes are real contexts (engine, policy, state,
 * schedules, wire format) in one thread and in virtual time, as in tests/sim. But messages consist of a
 * header and a length, without payload, so hundreds of nodes fit into one process. A run draws no random
 * numbers and has no faults. The figures are the same on every machine.
 *
 *   network.h   a transport: links with a rate in each direction and a latency
 *   device.h    codecs that only take time
 *   node.h      a node, and NCCL's walk over an operation
 *   cluster.h   a run: connect, operations one after the other, close
 *
 * A node's engine thread is busy with codecs and messages. They advance the node's own clock, and its
 * messages leave at that time (node.h).
 */
#ifndef NIBBLE_TESTS_SCALE_H
#define NIBBLE_TESTS_SCALE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "base/params.h"
#include "tests/sim/queue.h"

#define SCALE_US INT64_C(1000)
#define SCALE_MS INT64_C(1000000)
#define SCALE_S INT64_C(1000000000)

/* Bytes of values a second. 0: takes no time. */
struct scale_speed {
    double encode, encode_feedback, decode, decode_add, ulp_encode, ulp_decode, copy;
};

struct scale_settings {
    int nodes;
    enum nb_func func;
    bool coded;   /* else raw */
    bool wide;    /* FP32, else BF16 */
    size_t bytes; /* of the whole vector */
    size_t chunk; /* NCCL's chunk, of a channel */
    int channels;
    double link;         /* bytes a second of a node's link, in each direction */
    int64_t latency;     /* ns, from a node's link to another's */
    int sites;           /* of as many consecutive nodes each, at least 1. The nodes name them */
    double trunk;        /* bytes a second that leave a site together. 0: without limit */
    int64_t near;        /* ns, from a node's link to another's of the same site */
    size_t queue;        /* bytes that a connection takes before they are delivered */
    int64_t message;     /* ns of the engine's thread for each message sent, and each received */
    double gather_ratio; /* coded over plain bytes of an all-gather's deltas */
    struct scale_speed speed;
    bool whole; /* slots of messages have their real size, to measure memory */
    bool early; /* a send is done when taken (TCP), else when it has arrived (RDMA) */
    struct nb_params params;
};

static inline int scale_site(const struct scale_settings *set, int node)
{
    return (int)((int64_t)node * set->sites / set->nodes);
}

struct scale_cluster {
    const struct scale_settings *set;
    int64_t now;
    struct sim_queue queue;
    struct scale_network *network;
    struct scale_node **node;        /* [set->nodes] */
    int connected, complete, closed; /* nodes that are */
    int64_t barrier;                 /* when all nodes begin the next operation */
    bool failed;
    uint64_t steps, messages, wire; /* rounds of engines, data messages and their bytes */
    uint64_t crossed;               /* bytes of all messages that have left their site */
};

#endif
