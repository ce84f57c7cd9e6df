/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a job's processes on this node. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "coll/comm/grid.h"
#include "device/host/host.h"
#include "doctor.h"
#include "system.h"

#define CONTROLS 2      /* sockets for control with each neighbor */
#define DATA 4          /* connections for data: two classes in each direction (docs/network.md) */
#define COMMUNICATORS 4 /* communicators of a usual job: of the world, of shards, of replicas */
#define OTHERS 512      /* files of the job, of NCCL's bootstrap and of point-to-point connections */

static const char *text_of(rlim_t v, char *text, size_t cap)
{
    if (v == RLIM_INFINITY)
        snprintf(text, cap, "unlimited");
    else
        snprintf(text, cap, "%llu", (unsigned long long)v);
    return text;
}

static void locked_memory(struct doctor *d)
{
    const bool rdma =
        strcmp(d->transport, "verbs") == 0 || system_each("/sys/class/infiniband", NULL, NULL) > 0;
    struct rlimit lim;
    char soft[32], hard[32];

    if (getrlimit(RLIMIT_MEMLOCK, &lim))
        return;
    text_of(lim.rlim_cur, soft, sizeof(soft));
    text_of(lim.rlim_max, hard, sizeof(hard));
    if (rdma && lim.rlim_cur != RLIM_INFINITY)
        say(&d->report, STATUS_PROBLEM, "memlock",
            "unlimited where the job starts: ulimit -l; slurmd: LimitMEMLOCK=infinity; Docker: --ulimit "
            "memlock=-1",
            "%s bytes may be locked (at most %s): RDMA registers more", soft, hard);
    else
        say(&d->report, STATUS_OK, "memlock", NULL, "%s bytes may be locked%s", soft,
            rdma ? "" : ", and without RDMA none need be");
}

static void open_files(struct doctor *d)
{
    const int nodes = d->options.nodes;
    struct rlimit lim;
    char soft[32], hard[32];

    if (getrlimit(RLIMIT_NOFILE, &lim))
        return;
    text_of(lim.rlim_cur, soft, sizeof(soft));
    text_of(lim.rlim_max, hard, sizeof(hard));
    if (nodes < 2) {
        say(&d->report, STATUS_OK, "files", NULL,
            "%s may be open (at most %s); --nodes N: whether that suffices", soft, hard);
        return;
    }
    const struct nb_grid g = nb_grid_choose(nodes, d->params->schedule, d->params->group);
    const rlim_t streams = d->params->tcp_streams > 1 ? (rlim_t)d->params->tcp_streams : 1;
    const rlim_t each = (CONTROLS + DATA * streams) * (rlim_t)(g.rows + g.columns - 2);
    if (lim.rlim_cur < each + OTHERS || lim.rlim_cur < COMMUNICATORS * each + OTHERS) {
        const bool none = lim.rlim_cur < each + OTHERS;
        say(&d->report, none ? STATUS_PROBLEM : STATUS_WARNING, "files", NULL,
            "%s may be open (at most %s): with %d nodes each communicator of a GPU takes %llu%s", soft, hard,
            nodes, (unsigned long long)each, none ? "" : ", and jobs have several");
        say_remedy(
            &d->report,
            "ulimit -n %llu where the job starts (Slurm: PropagateResourceLimits; Docker: --ulimit nofile)",
            (unsigned long long)(COMMUNICATORS * each + OTHERS));
        return;
    }
    say(&d->report, STATUS_OK, "files", NULL,
        "%s may be open; with %d nodes each communicator of a GPU takes %llu", soft, nodes,
        (unsigned long long)each);
}

static void ports(struct doctor *d)
{
    char line[64];
    long from = 0, to = 0;

    if (!system_line(line, sizeof(line), "/proc/sys/net/ipv4/ip_local_port_range") ||
        sscanf(line, "%ld %ld", &from, &to) != 2)
        return;
    if (to - from < 4096)
        say(&d->report, STATUS_WARNING, "ports", "sysctl net.ipv4.ip_local_port_range='32768 60999'",
            "%ld to %ld: few for a job's connections", from, to);
    else
        say(&d->report, STATUS_OK, "ports", NULL, "%ld to %ld: TCP must pass between the nodes there", from,
            to);
    const long backlog = system_number(-1, "/proc/sys/net/core/somaxconn");
    if (backlog >= 0 && backlog < 1024 && d->options.nodes * d->gpus > 64)
        say(&d->report, STATUS_WARNING, "ports", "sysctl net.core.somaxconn=4096",
            "net.core.somaxconn is %ld: connections that are opened at once may be refused", backlog);
}

static void shared_memory(struct doctor *d)
{
    const double mib = 1024.0 * 1024;
    struct statvfs fs;

    if (statvfs("/dev/shm", &fs))
        say(&d->report, STATUS_PROBLEM, "shm", "mount a tmpfs there",
            "/dev/shm is not there: NCCL uses it between GPUs of a node");
    else {
        const double free = (double)fs.f_bavail * (double)fs.f_frsize / mib;
        say(&d->report, free < 256 ? STATUS_WARNING : STATUS_OK, "shm",
            free < 256 ? "Docker: --shm-size=1g or --ipc=host; Kubernetes: an emptyDir of medium Memory"
                       : NULL,
            "/dev/shm has %.0f MiB free", free);
    }
}

static void processors(struct doctor *d)
{
    struct nb_cpus mine;
    struct nb_cores cores;

    nb_cpus_mine(&mine);
    nb_cores_look(d->options.system, &mine, &cores);
    d->threads =
        d->params->host_threads < 0 ? (int)nb_cores_default_threads(&cores) : (int)d->params->host_threads;
    /* For each GPU: the framework's thread, NCCL's proxy, and the engine, which codes where there are no
     * codec threads. */
    if (cores.share < 3)
        say(&d->report, STATUS_WARNING, "processors", "srun --cpus-per-task, mpirun --bind-to none",
            "%u of %u cores for this process (%u rank%s here): the job, NCCL's proxy and nibble's engine "
            "need one each",
            cores.share, cores.machine, cores.ranks, cores.ranks == 1 ? "" : "s");
    else
        say(&d->report, STATUS_OK, "processors", NULL, "%u of %u cores for this process, codec threads: %d",
            cores.share, cores.machine, d->threads);
}

void check_limits(struct doctor *d)
{
    locked_memory(d);
    open_files(d);
    ports(d);
    shared_memory(d);
    processors(d);
}

/* Compare the largest socket buffer that the kernel gives with twice the bytes on the way of a round trip. */
static void socket_buffers(struct doctor *d, const char *name, double needed)
{
    long least = 0, usual = 0, most = 0;
    char line[96];

    if (!system_line(line, sizeof(line), "/proc/sys/net/ipv4/%s", name) ||
        sscanf(line, "%ld %ld %ld", &least, &usual, &most) != 3)
        return;
    if ((double)most >= needed) {
        say(&d->report, STATUS_OK, "distance", NULL, "net.ipv4.%s: at most %ld bytes, which suffices", name,
            most);
        return;
    }
    say(&d->report, STATUS_WARNING, "distance", NULL,
        "net.ipv4.%s: at most %ld bytes; a socket needs %.0f for %.4g Gbit/s and a round trip of %.4g ms",
        name, most, needed, d->facts.mbps / 1e3, 1e-3 * (double)d->params->link_rtt_us);
    say_remedy(&d->report, "sysctl -w net.ipv4.%s='%ld %ld %.0f', or more sockets (NIBBLE_TCP_STREAMS)", name,
               least, usual, needed);
}

/* A job sends in bursts. After a pause the kernel would let each burst begin as slowly as a new
 * connection. */
static void pauses(struct doctor *d)
{
    if (system_number(0, "/proc/sys/net/ipv4/tcp_slow_start_after_idle") == 1)
        say(&d->report, STATUS_WARNING, "distance", "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
            "after each pause TCP starts slowly again, for several round trips");
}

void check_distance(struct doctor *d)
{
    const double rtt = 1e-6 * (double)d->params->link_rtt_us, have = 0x1p20 * d->facts.buffer;
    const double streams = d->params->tcp_streams > 1 ? (double)d->params->tcp_streams : 1;
    uint32_t trunk;
    size_t name;
    const bool stated = !nb_params_site(d->params->site, &name, &trunk) && trunk > 0;
    const double path = stated && trunk < d->facts.mbps ? trunk : d->facts.mbps;
    const double needed = nb_reckon_buffer(rtt), unit = nb_reckon_unit(path);

    if (rtt <= 0 || d->facts.mbps == 0)
        return;
    if (strcmp(d->transport, "tcp") == 0) {
        socket_buffers(d, "tcp_rmem", ceil(2 * 1e6 / 8 * d->facts.mbps * rtt / streams));
        socket_buffers(d, "tcp_wmem", ceil(2 * 1e6 / 8 * d->facts.mbps * rtt / streams));
        pauses(d);
    }
    if (unit > (double)d->params->unit_bytes) {
        say(&d->report, STATUS_WARNING, "distance", NULL, "messages are too short for %.4g Gbit/s",
            path / 1e3);
        say_remedy(&d->report, "export NIBBLE_UNIT_BYTES=%.0f on all ranks", unit);
    }
    if (needed <= have) {
        say(&d->report, STATUS_OK, "distance", NULL, "NCCL_BUFFSIZE keeps enough bytes in flight");
        return;
    }
    say(&d->report, STATUS_WARNING, "distance", NULL,
        "NCCL keeps too few bytes in flight for %.4g Gbit/s and a round trip of %.4g ms", path / 1e3,
        1e3 * rtt);
    say_remedy(&d->report, "export NCCL_BUFFSIZE=%.0f on all ranks, or an eighth of the largest operation",
               needed);
}
