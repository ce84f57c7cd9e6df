/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the nodes this is, and where they meet: from options, or from the environment of a launcher. */
#ifndef NIBBLE_TOOLS_DOCTOR_LAUNCHER_H
#define NIBBLE_TOOLS_DOCTOR_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_NODES 4096
#define DEFAULT_PORT 29877

struct place {
    int rank, nodes; /* nodes 0: this node alone */
    char root[256];  /* host or address of node 0; "" */
    int port;        /* of node 0's listener; 0: DEFAULT_PORT, or the launcher's */
    uint64_t key;    /* the same on the nodes of one job */
    const char *by;  /* "options", "Slurm", ...: static storage */
};

/* Complete what the options have left open (rank -1, nodes 0, root "", port 0). Without a launcher in the
 * environment and without --rank it is this node alone. False with `why`: something is missing or cannot
 * be. */
bool launcher_place(struct place *place, char *why, size_t cap);

#endif
