/* SPDX-License-Identifier: Apache-2.0 */
/* This node's number and the nodes' meeting place: from options, or from the environment of a launcher. */
#ifndef NIBBLE_TOOLS_DOCTOR_LAUNCHER_H
#define NIBBLE_TOOLS_DOCTOR_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_NODES 4096
#define DEFAULT_PORT 29877

struct place {
    int rank, nodes; /* nodes 0: this node alone */
    char root[256];  /* host or address of node 0, or "" */
    int port;        /* of node 0's listener. 0: DEFAULT_PORT, or the launcher's */
    uint64_t key;    /* the same on the nodes of one job */
    const char *by;  /* "options", "Slurm", ... in static storage */
};

/* Complete the fields that the options left open (rank -1, nodes 0, root "", port 0). Without a launcher in
 * the environment and without --rank this node is alone. Return false with `why` when a field is missing or
 * impossible. */
bool launcher_place(struct place *place, char *why, size_t cap);

#endif
