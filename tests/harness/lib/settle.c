/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wait until the nodes of a job are idle. Confirmations, credits and other messages that a plugin's threads
 * send each other behind a finished operation have then arrived, however slow the machine is.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define APART_S 3e-3 /* between two looks: longer than the sleep of any thread that still has work */
/* Over a transport without event descriptors a plugin only sleeps briefly: the wait is then a pause. */
#define MOST_LOOKS 16

/* Return how often the other threads of this process have lost a processor, negative while one of them is
 * awake. */
static long switches_asleep(void)
{
    DIR *d = opendir("/proc/self/task");
    long sum = 0, self = (long)gettid();

    for (struct dirent *e = d ? readdir(d) : NULL; e && sum >= 0; e = readdir(d)) {
        char path[300], line[256];
        FILE *f;

        if (e->d_name[0] == '.' || strtol(e->d_name, NULL, 10) == self)
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        f = fopen(path, "re");
        while (f && sum >= 0 && fgets(line, sizeof line, f)) {
            if (strncmp(line, "State:", 6) == 0 && !strchr(line + 6, 'S'))
                sum = -1;
            else if (strstr(line, "_ctxt_switches:"))
                sum += strtol(strchr(line, ':') + 1, NULL, 10);
        }
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return sum;
}

void hx_settle(struct hx_node *node)
{
    char mine, all[HX_MAX_NODES];
    bool quiet = false;

    hx_barrier(node);
    for (int looks = 0; looks < MOST_LOOKS && !quiet; looks++) {
        long before, after;

        before = switches_asleep();
        hx_sleep(APART_S);
        after = switches_asleep();
        mine = before >= 0 && before == after;
        hx_allgather(node, &mine, 1, all);
        quiet = true;
        for (int r = 0; r < node->nnodes; r++)
            quiet = quiet && (all[r] || hx_ended(node, r));
    }
}
