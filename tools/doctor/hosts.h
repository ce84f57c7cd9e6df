/* SPDX-License-Identifier: Apache-2.0 */
/* --hosts: the doctor starts itself on every host of a list, one node each, through ssh or another
 * command. */
#ifndef NIBBLE_TOOLS_DOCTOR_HOSTS_H
#define NIBBLE_TOOLS_DOCTOR_HOSTS_H

#include "launcher.h"

#define DEFAULT_RSH "ssh -o BatchMode=yes -o ConnectTimeout=10"

struct hosts {
    const char *list; /* "a,b,c", or a file with a host a line */
    const char *rsh;  /* words of a command that takes a host and a line for its shell, and passes stdin on */
    char *const *words; /* options that every node's doctor gets, too */
    int nwords;
    bool together; /* the absence of any node ends all nodes, not only the absence of node 0 */
};

/* Run on all hosts until every node has ended, or node 0 failed to start. Node 0's report goes to stdout, all
 * other output to stderr with its host. `place` has --root, --port and --key where they were given. Return
 * the exit status: the nodes', at least 2 where a host was absent or did not come to hosts_untie, 3 for an
 * invalid list. The process ignores SIGPIPE from then on. */
int hosts_run(const struct hosts *hosts, const struct place *place, double limit);

/* End this process when its stdin closes. For a node that hosts_run started. Return 0 or a negative errno. */
int hosts_tie(void);
/* Tell hosts_run at the end of such a node that it has run, as the process's last output. Return the exit
 * status: `status`, or 3 where stdout could not be written. */
int hosts_untie(int status);

#endif
