/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-scale: how long collectives of many nodes take. The nodes are real contexts (engine, policy, state,
 * schedules, wire format) in one thread and in virtual time, as in tests/sim, but messages have no payload:
 * a header, and a length. So hundreds of nodes fit into one process. Nothing is drawn and nothing fails; the
 * figures are the same on every machine.
 *
 *   network.h   a transport: links with a rate each way and a latency
 *   device.h    codecs that only take time
 *   node.h      a node, and NCCL's walk over an operation
 *   cluster.h   a run: connect, operations one after the other, close
 *
 * A node's engine thread is busy with codecs and messages: the node has a clock of its own that these move
 * on, and what it sends leaves at that time (node.h).
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

/* Bytes of values a second; 0: takes no time. */
struct scale_speed {
    double encode, encode_feedback, decode, decode_add, ulp_encode, ulp_decode, copy;
};

struct scale_settings {
    int nodes;
    enum nb_func func;
    bool coded;   /* else raw */
    bool wide;    /* FP32, else BF16 */
    size_t bytes; /* of the whole vector */
    size_t chunk; /* NCCL's, of a channel */
    int channels;
    double link;         /* bytes a second of a node's link, each way */
    int64_t latency;     /* ns, from a node's link to another's */
    size_t queue;        /* bytes that a connection takes before they are delivered */
    int64_t message;     /* ns of the engine's thread for each message sent, and each received */
    double gather_ratio; /* coded over plain bytes of an all-gather's differences */
    struct scale_speed speed;
    bool whole; /* slots of messages are as large as they would be: to measure memory */
    bool early; /* sends are done when taken (TCP), else when they have arrived (RDMA) */
    struct nb_params params;
};

struct scale_cluster {
    const struct scale_settings *set;
    int64_t now;
    struct sim_queue queue;
    struct scale_network *network;
    struct scale_node **node;        /* [set->nodes] */
    int connected, complete, closed; /* nodes that are */
    int64_t barrier;                 /* when all begin with the next operation */
    bool failed;
    uint64_t steps, messages, wire; /* rounds of engines; messages and their bytes, data only */
};

#endif
