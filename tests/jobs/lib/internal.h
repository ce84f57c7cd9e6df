/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of tests/jobs/lib share. */
#ifndef NIBBLE_TESTS_JOBS_INTERNAL_H
#define NIBBLE_TESTS_JOBS_INTERNAL_H

#include "base/log.h"
#include "coll/comm/node.h"
#include "job.h"
#include "tests/coll/cluster.h"

#define COMMS 8
#define TRACKED_MOST 65536u
#define PENDING 64 /* operations announced and not on the network yet, at most */
#define LATE 60    /* from this step of its communicator on a gradient has to be quantized */

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

/* What is remembered of an operation until the plugin tells what it did. */
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
    struct posted *done; /* all that was posted */
    size_t posted, cap;
};

struct kept {
    struct kept *next;
    float value[];
};

struct watcher { /* of a node */
    struct job *job;
    int node;
    int64_t
        *holder; /* [TRACKED_MOST] whose error a slot holds: a buffer, 0: nobody's, -1: not a gradient's */
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
/* An operation, whose data the network frees: it happens once the job is so far ahead; or now, all of
 * them. */
void network_queue(const struct operation *operation);
void network_drain(struct job *job);
/* Told by the engine: see coll/comm/node.h. */
void judge_observe(void *watcher, const struct nb_observation *what);
/* The communicator ends: what the plugin has not told of is raw. */
void judge_rest(struct comm *comm);

#endif
