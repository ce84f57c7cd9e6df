/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes meet at node 0, over TCP connections of their own, and report their findings to it. Every step
 * ends in time: a node that does not come or falls silent is absent from then on, and the others go on.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_MEET_H
#define NIBBLE_TOOLS_DOCTOR_MEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher.h"

struct blob {
    char *data; /* NULL: absent */
    size_t len;
};

struct meet {
    int rank, nodes;
    int fd[MOST_NODES];          /* node 0: to each node, -1: absent. Others: [0] */
    struct blob got[MOST_NODES]; /* node 0: of the last gather */
};

/* Come together within `seconds`: node 0 waits for all, the others for node 0's answer. Return 0, or -1 with
 * `why` (node 0: its listener failed. Others: node 0 is out of reach or silent). */
int meet_open(struct meet *meet, const struct place *place, double seconds, char *why, size_t cap);
/* Send each node's data to node 0, whose `got` has them (its own, too) after at most `seconds`. All nodes
 * call. Return 0, or -1 when node 0 is gone. */
int meet_gather(struct meet *meet, const void *data, size_t len, double seconds);
/* Send data from node 0 to all. The others wait at most `seconds` and free the data. Return 0 or -1, as
 * above. */
int meet_say(struct meet *meet, const void *data, size_t len);
int meet_hear(struct meet *meet, struct blob *said, double seconds);
void meet_close(struct meet *meet);

#endif
