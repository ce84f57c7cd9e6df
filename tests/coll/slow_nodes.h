/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes of a cluster (cluster.h) over devices that answer when the test says so: nobody may wait for the answer, and
 * nothing may be left of a question when the communicator ends before it comes. For tests of Check, one at a time.
 */
#ifndef NIBBLE_TESTS_COLL_SLOW_NODES_H
#define NIBBLE_TESTS_COLL_SLOW_NODES_H

#include <stdbool.h>

#include "tests/coll/cluster.h"
#include "tests/device/call.h"

#define SLOW_NODES 2
#define SLOW_QUESTIONS 4   /* in flight on a device */
#define SLOW_VALUES 40000u /* of a block: several wire units */

/* Of what is asked of a device, what is a question; the rest is done at once. */
enum slow_kind {
    SLOW_LOOKS,  /* at values, before a sum */
    SLOW_ZEROS,  /* in residuals; sums are coded then */
    SLOW_RESENDS /* copies of bytes that a receiver of a gather asks for */
};

struct slow {
    struct asked_device asked; /* first */
    unsigned questions;        /* so many were asked */
    unsigned held;             /* those from this number on are not answered: none at first */
    unsigned refused;          /* so many are, before one is taken */
    unsigned open, quiesced;   /* questions in flight; calls */
    int error;                 /* set: it has failed */
    struct slow_question {
        struct device_call what;
        struct nb_work *work; /* NULL: free */
        unsigned number;
    } question[SLOW_QUESTIONS];
};

extern struct cluster slow_cluster;
/* Of each node, in the order in which its communicators connect. */
extern struct slow *slow_device[SLOW_NODES][2];
/* Communicators: of slow_open; for the test's own use. */
extern struct nb_coll_comm *slow_first[SLOW_NODES], *slow_second[SLOW_NODES];
/* What each node contributes to sums, or gathers the first SLOW_VALUES of; places for sums. */
extern float slow_in[SLOW_NODES][SLOW_NODES * SLOW_VALUES], slow_out[2][SLOW_NODES][SLOW_VALUES];

/* Open the nodes, and connect the first communicator; before and after each test. The log is captured. */
void slow_open(enum slow_kind kind);
void slow_close(void);
/* Warnings that were logged since then, and the log. */
int slow_warned(void);
const char *slow_log(void);
/* A turn of the cluster, which has to move something. */
void slow_turn(void);
/* Begin a reduce-scatter of slow_in; await one, and check its values. */
void slow_begin(struct nb_coll_comm *const comm[SLOW_NODES], float to[SLOW_NODES][SLOW_VALUES],
                struct nb_coll_req *req[SLOW_NODES]);
void slow_finish(float to[SLOW_NODES][SLOW_VALUES], struct nb_coll_req *req[SLOW_NODES]);
/* Turns until all requests are complete. */
void slow_await(struct nb_coll_req *req[SLOW_NODES]);
/* Turns until the first communicator of every node has a question in flight that is held. */
void slow_await_questions(void);
void slow_close_all(struct nb_coll_comm *comm[SLOW_NODES]);

#endif
