/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf: find the plugin's threads in this process by their names, and give each a share of a
 * processor. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "perf.h"

/* A millisecond: far shorter than the operations that need a share, far longer than a switch of threads. */
#define SHARE_PERIOD_NS 1000000u

void perf_own_threads(void (*each)(enum perf_thread kind, long tid, void *arg), void *arg)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL) {
        char path[300], name[32] = "";
        FILE *f;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        f = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (f && fgets(name, sizeof(name), f)) {
            if (strcmp(name, "nibble-engine\n") == 0)
                each(PERF_ENGINE, atol(entry->d_name), arg);
            else if (strcmp(name, "nibble-codec\n") == 0)
                each(PERF_CODEC, atol(entry->d_name), arg);
        }
        if (f)
            fclose(f);
    }
    if (dir)
        closedir(dir);
}

/* The C library lacks this struct and its function. */
struct deadline_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* ns */
};
enum { SCHED_DEADLINE_POLICY = 6 };

struct share {
    double percent;
    int error, threads;
};

static void limit(enum perf_thread kind, long tid, void *arg)
{
    struct share *s = arg;
    const struct deadline_attr attr = {.size = sizeof(attr),
                                       .policy = SCHED_DEADLINE_POLICY,
                                       .runtime = (uint64_t)(s->percent / 100 * SHARE_PERIOD_NS),
                                       .deadline = SHARE_PERIOD_NS,
                                       .period = SHARE_PERIOD_NS};

    (void)kind;
    s->threads++;
    if (!s->error && syscall(SYS_sched_setattr, tid, &attr, 0))
        s->error = -errno;
}

int perf_share(double percent)
{
    struct share s = {.percent = percent};

    perf_own_threads(limit, &s);
    return s.threads ? s.error : -ESRCH;
}
