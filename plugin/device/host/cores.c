/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processors that this process may use, and its share of them: by its affinity mask, the ranks that run
 * beside it on this machine, and the limit of its control group. Read from /proc and /sys. An unreadable
 * limit counts as no limit. No state, for any thread.
 *
 * `root` is put in front of every path: "" for this machine, a folder for tests.
 */
#include "device/host/host.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Cores of a rank that its other threads need: the engine's thread, NCCL's proxy thread and the job's own. */
#define LEFT_TO_OTHERS 3u
/* Maximum of the default. More codec threads hardly help: one engine thread moves about 3 GB/s each way over
 * TCP, which is 12 GB/s of BF16 at 4 bits. That takes five threads that code differences, the slowest
 * codec. */
#define DEFAULT_MOST 6u

/* ---- files ------------------------------------------------------------------------------------------- */

/* Read the first line of a file, without its end. */
static bool read_line(const char *root, const char *path, char *line, size_t cap)
{
    char full[2 * 4096];
    FILE *f;
    bool got;

    if ((size_t)snprintf(full, sizeof(full), "%s%s", root, path) >= sizeof(full))
        return false;
    f = fopen(full, "re");
    if (!f)
        return false;
    got = fgets(line, (int)cap, f) != NULL;
    fclose(f);
    if (got)
        line[strcspn(line, "\n")] = 0;
    return got;
}

static bool read_cpus(const char *root, const char *path, struct nb_cpus *cpus)
{
    char line[4096];

    memset(cpus, 0, sizeof(*cpus));
    return read_line(root, path, line, sizeof(line)) && nb_cpus_parse(line, cpus);
}

/* ---- sets -------------------------------------------------------------------------------------------- */

static bool has(const struct nb_cpus *cpus, size_t cpu)
{
    return CPU_ISSET_S(cpu, sizeof(*cpus), &cpus->set);
}

void nb_cpus_mine(struct nb_cpus *cpus)
{
    memset(cpus, 0, sizeof(*cpus));
    if (sched_getaffinity(0, sizeof(*cpus), &cpus->set))
        memset(cpus, 0, sizeof(*cpus));
}

bool nb_cpus_parse(const char *list, struct nb_cpus *cpus)
{
    const char *at = list;

    memset(cpus, 0, sizeof(*cpus));
    while (*at) {
        char *end;
        unsigned long from = strtoul(at, &end, 10), to = from;
        if (end != at && *end == '-') {
            at = end + 1;
            to = strtoul(at, &end, 10);
        }
        if (end == at || (*end && *end != ',') || to >= NB_CPUS || from > to) {
            memset(cpus, 0, sizeof(*cpus));
            return false;
        }
        for (unsigned long cpu = from; cpu <= to; cpu++)
            CPU_SET_S(cpu, sizeof(*cpus), &cpus->set);
        at = end + (*end == ',');
    }
    return true;
}

bool nb_cpus_intersect(struct nb_cpus *cpus, const struct nb_cpus *other)
{
    CPU_AND_S(sizeof(*cpus), &cpus->set, &cpus->set, &other->set);
    return nb_cpus_count(cpus) > 0;
}

void nb_cpus_add(struct nb_cpus *cpus, const struct nb_cpus *other)
{
    CPU_OR_S(sizeof(*cpus), &cpus->set, &cpus->set, &other->set);
}

unsigned nb_cpus_count(const struct nb_cpus *cpus)
{
    return (unsigned)CPU_COUNT_S(sizeof(*cpus), &cpus->set);
}

/* ---- counting ---------------------------------------------------------------------------------------- */

/* Return the number of cores of which `cpus` has a hardware thread. Each counts by the first of its
 * threads. */
static unsigned count_cores(const char *root, const struct nb_cpus *cpus)
{
    struct nb_cpus firsts;

    memset(&firsts, 0, sizeof(firsts));
    for (size_t cpu = 0; cpu < NB_CPUS; cpu++) {
        struct nb_cpus siblings;
        size_t first = 0;
        char path[96];
        if (!has(cpus, cpu))
            continue;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
        if (!read_cpus(root, path, &siblings) || !has(&siblings, cpu))
            first = cpu;
        while (first < cpu && !has(&siblings, first))
            first++;
        CPU_SET_S(first, sizeof(firsts), &firsts.set);
    }
    return nb_cpus_count(&firsts);
}

/* Parse "8" or, for several machines, "8(x2),4": return the largest number, or 0 for another text. */
static unsigned parse_ranks(const char *text)
{
    unsigned long most = 0;

    while (*text) {
        char *end;
        const unsigned long n = strtoul(text, &end, 10);
        if (end == text || n > 65536)
            return 0;
        if (n > most)
            most = n;
        text = end;
        if (*text == '(')
            text += strcspn(text, ")") + (strchr(text, ')') != NULL);
        if (*text && *text != ',')
            return 0;
        text += *text == ',';
    }
    return (unsigned)most;
}

static unsigned count_gpus(const char *root)
{
    char path[512];
    struct dirent *entry;
    unsigned n = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus", root);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)) != NULL)
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* Count the ranks on this machine: the launcher's number, or the number of GPUs where that is larger, since
 * other jobs may then run beside this one. */
static void count_ranks(const char *root, struct nb_cores *cores)
{
    static const char *const variables[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                            "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE",
                                            "SLURM_STEP_TASKS_PER_NODE"};
    const unsigned gpus = count_gpus(root);

    cores->ranks = 0;
    cores->ranks_by = "";
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]) && !cores->ranks; i++) {
        const char *text = getenv(variables[i]);
        cores->ranks = text ? parse_ranks(text) : 0;
        if (cores->ranks)
            cores->ranks_by = variables[i];
    }
    if (gpus > cores->ranks) {
        cores->ranks = gpus;
        cores->ranks_by = "GPUs";
    }
    if (!cores->ranks)
        cores->ranks = 1;
}

/* Return the processors of "MICROSECONDS PERIOD", or 0 for "max". */
static double parse_limit(const char *text)
{
    char *end;
    const double used = strtod(text, &end), period = end == text ? 0 : strtod(end, NULL);

    return used > 0 && period > 0 ? used / period : 0;
}

/* Return the lowest limit of this process's control group and its parents (cgroup v2). Inside a container the
 * top group is the container's. */
static double group_limit(const char *root)
{
    char group[4096] = "", path[4200], line[128];
    double least = 0;

    if (!read_line(root, "/proc/self/cgroup", group, sizeof(group)) || strncmp(group, "0::", 3) != 0)
        return 0;
    for (char *at = group + strlen(group);; *at = 0) {
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", strcmp(group + 3, "/") ? group + 3 : "");
        if (read_line(root, path, line, sizeof(line))) {
            const double limit = parse_limit(line);
            if (limit > 0 && (least == 0 || limit < least))
                least = limit;
        }
        at = strrchr(group + 3, '/');
        if (!at)
            return least;
    }
}

static unsigned min_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

void nb_cores_look(const char *root, const struct nb_cpus *mine, struct nb_cores *cores)
{
    struct nb_cpus online;

    memset(cores, 0, sizeof(*cores));
    count_ranks(root, cores);
    if (!read_cpus(root, "/sys/devices/system/cpu/online", &online))
        online = *mine;
    cores->machine = count_cores(root, &online);
    cores->usable = count_cores(root, mine);
    cores->limit = group_limit(root);
    /* The mask may be this rank's alone or shared with other ranks. In both cases a fair part of the machine
     * is at most the machine's part, and at most the mask. */
    cores->share = min_of(cores->usable, cores->machine / cores->ranks);
    if (cores->limit > 0)
        cores->share = min_of(cores->share, (unsigned)(cores->limit / cores->ranks));
    if (!cores->share)
        cores->share = 1;
}

unsigned nb_cores_default_threads(const struct nb_cores *cores)
{
    return cores->share > LEFT_TO_OTHERS ? min_of(cores->share - LEFT_TO_OTHERS, DEFAULT_MOST) : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

bool nb_cores_near(const char *root, const void *at, struct nb_cpus *cpus)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *pages[1] = {(void *)((uintptr_t)at / page * page)};
    int node[1] = {-1};
    struct nb_cpus nodes; /* a list of nodes has the form of a list of CPUs */
    char path[96];

    if (!read_cpus(root, "/sys/devices/system/node/online", &nodes) || nb_cpus_count(&nodes) < 2)
        return false;
    /* Without target nodes the call reports where pages are. A container may forbid it. */
    if (syscall(SYS_move_pages, 0, 1ul, pages, NULL, node, 0) || node[0] < 0)
        return false;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node[0]);
    return read_cpus(root, path, cpus);
}
