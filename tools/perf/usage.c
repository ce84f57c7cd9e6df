/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf: processor time and bytes of an interface, before and after a measurement. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* Return the seconds of a thread by its number, from the thread's own clock. */
static double thread_seconds(long tid)
{
    const clockid_t clock = (clockid_t)((~(unsigned long)tid << 3) | 6u);
    struct timespec t;

    return clock_gettime(clock, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add_thread(enum perf_thread kind, long tid, void *arg)
{
    struct perf_usage *usage = arg;

    *(kind == PERF_ENGINE ? &usage->engine_s : &usage->codec_s) += thread_seconds(tid);
}

/* First line of /proc/stat: user nice system idle iowait irq softirq steal, in ticks. */
static void machine_time(struct perf_usage *usage)
{
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    unsigned long long t[8] = {0};
    FILE *f = fopen("/proc/stat", "re");

    if (!f)
        return;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
               &t[6], &t[7]) == 8) {
        for (int i = 0; i < 8; i++)
            usage->total_s += tick * (double)t[i];
        usage->busy_s = usage->total_s - tick * (double)(t[3] + t[4]);
    }
    fclose(f);
}

/* /proc/self/net belongs to the network namespace of this thread. */
static void interface_bytes(const char *interface, struct perf_usage *usage)
{
    const size_t len = strlen(interface);
    unsigned long long received, sent;
    FILE *f = fopen("/proc/self/net/dev", "re");
    char line[512];

    while (f && fgets(line, sizeof(line), f)) {
        const char *name = line + strspn(line, " ");
        if (strncmp(name, interface, len) != 0 || name[len] != ':')
            continue;
        if (sscanf(name + len + 1, "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &received, &sent) == 2) {
            usage->received = (double)received;
            usage->sent = (double)sent;
        }
    }
    if (f)
        fclose(f);
}

void perf_usage_now(const char *interface, struct perf_usage *usage)
{
    struct rusage r;

    memset(usage, 0, sizeof(*usage));
    if (getrusage(RUSAGE_SELF, &r) == 0)
        usage->cpu_s = seconds_of(r.ru_utime) + seconds_of(r.ru_stime);
    perf_own_threads(add_thread, usage);
    machine_time(usage);
    if (interface)
        interface_bytes(interface, usage);
}
