/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes of a cluster (cluster.h) over devices that answer when the test says so. The engine must not wait
 * for the answer, and must leave no trace of a question when the communicator ends before the answer. For
 * tests with Check, one at a time.
 */
#ifndef NIBBLE_TESTS_COLL_SLOW_NODES_H
#define NIBBLE_TESTS_COLL_SLOW_NODES_H

#include <stdbool.h>

#include "tests/coll/cluster.h"
#include "tests/device/call.h"

#define SLOW_NODES 2
#define SLOW_QUESTIONS 4   /* most questions in flight on a device */
#define SLOW_VALUES 40000u /* values of a block: several wire units */

/* The device calls that count as questions. The device does all other calls at once. */
enum slow_kind {
    SLOW_LOOKS,  /* looks at values, before a sum */
    SLOW_ZEROS,  /* zeroing of residuals, with coded sums */
    SLOW_RESENDS /* copies of bytes that a receiver of a gather requests */
};

struct slow {
    struct asked_device asked; /* must be first */
    unsigned questions;        /* questions so far */
    unsigned held;             /* number of the first question without an answer, at first beyond all */
    unsigned refused;          /* questions to refuse before the device takes one */
    unsigned open, quiesced;   /* questions in flight, and calls of quiesce */
    int error;                 /* nonzero: the device has failed */
    struct slow_question {
        struct device_call what;
        struct nb_work *work; /* NULL: free */
        unsigned number;
    } question[SLOW_QUESTIONS];
};

extern struct cluster slow_cluster;
/* Each node's devices, in the order in which its communicators connect. */
extern struct slow *slow_device[SLOW_NODES][2];
/* Communicators: the first are slow_open's, the second are for the test's own use. */
extern struct nb_coll_comm *slow_first[SLOW_NODES], *slow_second[SLOW_NODES];
/* Each node's contribution to sums, whose first SLOW_VALUES it gathers, and places for sums. */
extern float slow_in[SLOW_NODES][SLOW_NODES * SLOW_VALUES], slow_out[2][SLOW_NODES][SLOW_VALUES];

/* Open the nodes and connect the first communicator. Close them after the test. The log is captured. */
void slow_open(enum slow_kind kind);
void slow_close(void);
/* Return the number of warnings since slow_open, and the log. */
int slow_warned(void);
const char *slow_log(void);
/* Take a turn of the cluster. Something must move. */
void slow_turn(void);
/* Begin a reduce-scatter of slow_in. Await one, and check its values. */
void slow_begin(struct nb_coll_comm *const comm[SLOW_NODES], float to[SLOW_NODES][SLOW_VALUES],
                struct nb_coll_req *req[SLOW_NODES]);
void slow_finish(float to[SLOW_NODES][SLOW_VALUES], struct nb_coll_req *req[SLOW_NODES]);
/* Take turns until all requests are complete. */
void slow_await(struct nb_coll_req *req[SLOW_NODES]);
/* Take turns until each node's first communicator has a held question in flight. */
void slow_await_questions(void);
void slow_close_all(struct nb_coll_comm *comm[SLOW_NODES]);

#endif
