/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A separate network for a job. The parent moves into a fresh network namespace that holds a bridge, and
 * every node into another namespace that a veth pair joins to the bridge. The host's namespace stays
 * unchanged, and the network vanishes with the last process.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static int run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Run a command. Its arguments are only numbers and names that this file makes. */
static int run(const char *fmt, ...)
{
    char cmd[512];
    va_list ap;
    int rc;

    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    rc = system(cmd);
    if (rc != 0)
        fprintf(stderr, "harness: \"%s\" failed (%d)\n", cmd, rc);
    return rc != 0;
}

int hx_netns_begin(const struct hx_job *job, int *saved, char *reason, size_t cap)
{
    (void)job;
    if (geteuid() != 0) {
        snprintf(reason, cap, "network namespaces need root");
        return HX_SKIP;
    }
    if (system("ip -V >/dev/null 2>&1 && tc -V >/dev/null 2>&1") != 0) {
        snprintf(reason, cap, "network namespaces need the commands ip and tc");
        return HX_SKIP;
    }
    *saved = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (*saved < 0 || unshare(CLONE_NEWNET) != 0) {
        snprintf(reason, cap, "cannot make a network namespace: %s", strerror(errno));
        if (*saved >= 0)
            close(*saved);
        return HX_SKIP;
    }
    if (run("ip link add hxbr type bridge 2>/dev/null") || run("ip link set hxbr up")) {
        snprintf(reason, cap, "cannot make a bridge");
        hx_netns_end(*saved);
        return HX_SKIP;
    }
    return 0;
}

int hx_netns_child(void)
{
    return unshare(CLONE_NEWNET) != 0;
}

int hx_netns_wire(const struct hx_job *job, int rank, pid_t pid)
{
    (void)job;
    return run("ip link add hxb%d type veth peer name hx0 netns %d", rank, (int)pid) ||
           run("ip link set hxb%d master hxbr up", rank);
}

static int no_qdisc(const char *name)
{
    fprintf(stderr, "harness: skipped: this kernel has no queueing discipline %s\n", name);
    return HX_SKIP;
}

int hx_netns_child_up(const struct hx_job *job, int rank, atomic_int *wired)
{
    /* tbf lets a burst of 5 ms through and queues 20 ms more, about what a shallow switch port does. */
    unsigned long burst = job->rate_mbps * 1000000ul / 8 / 200 + 65536;
    const char *parent = "root";

    while (!atomic_load(wired))
        hx_sleep(1e-3);
    if (run("ip link set lo up") || run("ip addr add 10.77.0.%d/24 dev hx0", rank + 1) ||
        run("ip link set hx0 up"))
        return 1;
    if (job->rate_mbps) {
        if (run("tc qdisc add dev hx0 root handle 1: tbf rate %umbit burst %lu latency 20ms", job->rate_mbps,
                burst))
            return no_qdisc("tbf");
        parent = "parent 1:1";
    }
    if (job->delay_us &&
        run("tc qdisc add dev hx0 %s handle 10: netem limit 100000 delay %uus", parent, job->delay_us))
        return no_qdisc("netem");
    return 0;
}

int hx_netns_join(const struct hx_job *job, int rank)
{
    char path[256];
    int fd, rc;

    snprintf(path, sizeof path, "/run/netns/%s%d", job->netns_prefix, rank);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hx_fail("cannot open the network namespace %s: %s", path, strerror(errno));
    rc = setns(fd, CLONE_NEWNET);
    if (rc != 0)
        hx_fail("cannot enter the network namespace %s: %s", path, strerror(errno));
    close(fd);
    return rc != 0;
}

void hx_netns_end(int saved)
{
    if (setns(saved, CLONE_NEWNET) != 0)
        fprintf(stderr, "harness: cannot return to the first network namespace: %s\n", strerror(errno));
    close(saved);
}
