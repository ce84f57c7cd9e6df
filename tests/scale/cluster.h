/* SPDX-License-Identifier: Apache-2.0 */
/* A run of nibble-scale: nodes connect, operations are timed one after the other, all close. */
#ifndef NIBBLE_TESTS_SCALE_CLUSTER_H
#define NIBBLE_TESTS_SCALE_CLUSTER_H

#include "tests/scale/scale.h"

#define SCALE_OPERATIONS 4 /* of a run, at most: an all-gather is coded from the second on */

struct scale_result {
    bool failed;                      /* after a message */
    double seconds[SCALE_OPERATIONS]; /* of each operation, from its beginning to its end on the last node */
    const char *schedule;             /* that the last one took */
    double connect;                   /* virtual seconds until all were connected */
    uint64_t steps, messages;         /* of the last operation: rounds of engines, messages of all kinds */
    double wire;                      /* bytes that a node sent in it, on average */
    int rows, columns;                /* of the grid; 1 row: everybody is connected with everybody */
    /* Of node 0: */
    int peers;                            /* that it is connected with */
    int connections;                      /* one way each, with all of these */
    unsigned credits;                     /* buffers of a ring */
    size_t staging;                       /* taken of NIBBLE_STAGING_MAX_MB */
    size_t wire_bytes, state_bytes, heap; /* memory for messages; residuals, references, sums; and objects */
};

/* `operations`: 0 connects and closes only. */
void scale_run(const struct scale_settings *settings, int operations, struct scale_result *result);

#endif
