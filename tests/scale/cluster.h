/* SPDX-License-Identifier: Apache-2.0 */
/* A run of nibble-scale: nodes connect, operations run one after the other and are timed, all nodes close. */
#ifndef NIBBLE_TESTS_SCALE_CLUSTER_H
#define NIBBLE_TESTS_SCALE_CLUSTER_H

#include "tests/scale/scale.h"

#define SCALE_OPERATIONS 4 /* of a run, at most: an all-gather is coded from the second operation on */

struct scale_result {
    bool failed;                      /* after a message */
    double seconds[SCALE_OPERATIONS]; /* of each operation, from its beginning to its end on the last node */
    const char *schedule;             /* schedule of the last operation */
    double connect;                   /* virtual seconds until all were connected */
    uint64_t steps, messages;         /* of the last operation: rounds of engines, messages of all kinds */
    double wire;                      /* average bytes that a node sent in it */
    double crossed;                   /* average bytes that left a site */
    int rows, columns;                /* of the grid. 1 row: a full mesh */
    /* Of node 0: */
    int peers;                            /* number of its neighbors */
    int connections;                      /* one way each, with all of these */
    unsigned credits;                     /* buffers of a ring */
    size_t staging;                       /* used part of NIBBLE_STAGING_MAX_MB */
    size_t wire_bytes, state_bytes, heap; /* memory of messages, of residuals, references and sums, and of
                                             objects */
};

/* Run it. `operations`: with 0 the nodes only connect and close. */
void scale_run(const struct scale_settings *settings, int operations, struct scale_result *result);

#endif
