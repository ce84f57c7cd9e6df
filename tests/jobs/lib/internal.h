/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of tests/jobs/lib share. */
#ifndef NIBBLE_TESTS_JOBS_INTERNAL_H
#define NIBBLE_TESTS_JOBS_INTERNAL_H

#include "base/log.h"
#include "coll/comm/node.h"
#include "job.h"
#include "tests/coll/cluster.h"

#define COMMS 8
#define TRACKED_MOST 65536u
#define PENDING 64 /* most announced operations that have not reached the network */
#define LATE 60    /* the step of its communicator from which a gradient must be quantized */

/* An operation that reaches the network. */
struct operation {
    struct comm *comm;
    enum nb_func func;
    struct buffer what;
    size_t size;  /* of a value */
    size_t bytes; /* of the whole vector */
    int step;
    void *data[NODES];
};

/* Record of an operation until the plugin reports its decision. */
struct posted {
    enum nb_func func;
    ncclDataType_t type;
    size_t n, bytes;
    int step;
    truth what;
};

struct member { /* a node's end of a communicator */
    struct nb_events *events;
    uint64_t seq[NB_FUNC_COUNT];
    struct nb_coll_comm *coll;
    uint8_t *region;
    void *mhandle[2];
    size_t observed;
};

struct comm {
    struct job *job; /* NULL: free */
    uint64_t id;
    int nodes, ranks;
    int since; /* step in which it was made */
    struct member member[NODES];
    struct posted *done; /* all posted operations */
    size_t posted, cap;
};

struct kept {
    struct kept *next;
    float value[];
};

struct watcher { /* of a node */
    struct job *job;
    int node;
    int64_t *holder; /* [TRACKED_MOST] owner of a tracked buffer's error: a buffer, 0: unused, -1: not a
                    gradient */
};

struct job {
    struct cluster cluster;
    struct memory memory;
    struct kept *kept;
    struct comm comm[COMMS];
    uint64_t comms;
    truth buffers;
    int step, steps, ahead, silent, all_collnet, loud;
    struct operation pending[PENDING];
    size_t first, last; /* of them */
    void (*listen)(void *arg, const struct told *what);
    void *arg;
    struct watcher watcher[NODES];
    struct verdict *verdict;
};

/* Connect and close a communicator between nodes. */
void network_connect(struct comm *comm);
void network_disconnect(struct comm *comm);
/* Queue an operation, whose data the network frees. It runs once the job is far enough ahead. network_drain
 * runs all of them now. */
void network_queue(const struct operation *operation);
void network_drain(struct job *job);
/* The engine calls it: see coll/comm/node.h. */
void judge_observe(void *watcher, const struct nb_observation *what);
/* The communicator ends: operations without a report are raw. */
void judge_rest(struct comm *comm);

#endif
