/* SPDX-License-Identifier: Apache-2.0 */
/* --hosts: the doctor starts itself on every host of a list, one node each, through ssh or another
 * command. */
#ifndef NIBBLE_TOOLS_DOCTOR_HOSTS_H
#define NIBBLE_TOOLS_DOCTOR_HOSTS_H

#include "launcher.h"

#define DEFAULT_RSH "ssh -o BatchMode=yes -o ConnectTimeout=10"

struct hosts {
    const char *list;   /* "a,b,c", or a file with a host a line */
    const char *rsh;    /* words of a command that takes a host and a line for its shell */
    char *const *words; /* options that every node's doctor gets, too */
    int nwords;
    bool together; /* all end when one does not take part, not only node 0 */
};

/* Run on all hosts until every node has ended, or node 0 could not. Node 0's report goes to stdout, what else
 * is said to stderr with its host. `place` has --root, --port and --key where they were given. Returns the
 * exit status: the nodes', at least 2 where a host did not take part, 3 for a list that cannot be. */
int hosts_run(const struct hosts *hosts, const struct place *place, double limit);

/* For a node that hosts_run has started: end this process when stdin does. 0, or a negative errno. */
int hosts_tie(void);

#endif
