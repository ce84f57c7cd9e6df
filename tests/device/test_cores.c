/* SPDX-License-Identifier: Apache-2.0 */
/* This process's share of the processors, on machines made of files. */
#include "device/host/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/device/fake_root.h"
#include "tests/suite.h"

static const char *root;

static const char *const launchers[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"};

static void setup(void)
{
    root = fake_root_make();
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        unsetenv(launchers[i]);
}

static void teardown(void)
{
    fake_root_remove();
}

/* `cores` cores of two threads each: CPUs i and i + cores. */
static void machine(unsigned cores)
{
    char path[128], line[64];

    snprintf(line, sizeof(line), "0-%u", 2 * cores - 1);
    fake_root_put("/sys/devices/system/cpu/online", line);
    for (unsigned cpu = 0; cpu < 2 * cores; cpu++) {
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        snprintf(line, sizeof(line), "%u,%u", cpu % cores, cpu % cores + cores);
        fake_root_put(path, line);
    }
}

static void gpus(unsigned n)
{
    char path[128];

    for (unsigned i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/0000:%02x:00.0/", i);
        fake_root_put(path, "");
    }
}

static struct nb_cores look(const char *mask)
{
    struct nb_cpus mine;
    struct nb_cores cores;

    ck_assert(nb_cpus_parse(mask, &mine));
    nb_cores_look(root, &mine, &cores);
    return cores;
}

START_TEST(lists)
{
    struct nb_cpus a, b;

    ck_assert(nb_cpus_parse("0-3,8,10-10", &a));
    ck_assert_uint_eq(nb_cpus_count(&a), 6);
    ck_assert(CPU_ISSET(8, &a.set) && !CPU_ISSET(9, &a.set));
    ck_assert(nb_cpus_parse("8190-8191", &a)); /* more than a cpu_set_t holds */
    ck_assert_uint_eq(nb_cpus_count(&a), 2);
    ck_assert(nb_cpus_parse("", &b));
    ck_assert_uint_eq(nb_cpus_count(&b), 0);
    ck_assert(!nb_cpus_parse("8192", &a));
    ck_assert_uint_eq(nb_cpus_count(&a), 0);
    ck_assert(!nb_cpus_parse("3-1", &a) && !nb_cpus_parse("1 2", &a) && !nb_cpus_parse("x", &a));
    ck_assert(!nb_cpus_parse("1-", &a) && !nb_cpus_parse("-1", &a));
    nb_cpus_parse("0-3", &a);
    nb_cpus_parse("2-5", &b);
    ck_assert(nb_cpus_intersect(&a, &b));
    ck_assert_uint_eq(nb_cpus_count(&a), 2);
    nb_cpus_add(&a, &b);
    ck_assert_uint_eq(nb_cpus_count(&a), 4);
    nb_cpus_parse("7", &b);
    ck_assert(!nb_cpus_intersect(&a, &b));
}
END_TEST

/* Eight ranks share 112 cores, whatever source gives their number, and however they share. */
START_TEST(eight_ranks)
{
    struct nb_cores c;

    machine(112);
    c = look("0-223");
    ck_assert_uint_eq(c.machine, 112);
    ck_assert_uint_eq(c.usable, 112);
    ck_assert_uint_eq(c.ranks, 1);
    ck_assert_uint_eq(c.share, 112);
    ck_assert_uint_eq(nb_cores_default_threads(&c), 6); /* as many as help */

    setenv("LOCAL_WORLD_SIZE", "8", 1);
    c = look("0-223"); /* without binding */
    ck_assert_uint_eq(c.share, 14);
    ck_assert_str_eq(c.ranks_by, "LOCAL_WORLD_SIZE");
    c = look("0-55,112-167"); /* half of them to each half of the machine */
    ck_assert_uint_eq(c.usable, 56);
    ck_assert_uint_eq(c.share, 14);
    c = look("14-27,126-139"); /* each rank is bound to its own */
    ck_assert_uint_eq(c.share, 14);
    c = look("14-17"); /* fewer than its part */
    ck_assert_uint_eq(c.share, 4);
    ck_assert_uint_eq(nb_cores_default_threads(&c), 1);
    c = look("14-16");
    ck_assert_uint_eq(nb_cores_default_threads(&c), 0);
    c = look("14,126"); /* two threads of one core */
    ck_assert_uint_eq(c.usable, 1);
    ck_assert_uint_eq(nb_cores_default_threads(&c), 0);
    unsetenv("LOCAL_WORLD_SIZE");

    setenv("SLURM_STEP_TASKS_PER_NODE", "8(x2),4", 1);
    ck_assert_uint_eq(look("0-223").share, 14);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1", 1);
    gpus(8); /* each may have a process */
    c = look("0-223");
    ck_assert_uint_eq(c.share, 14);
    ck_assert_str_eq(c.ranks_by, "GPUs");
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "16", 1); /* ranks that share GPUs */
    ck_assert_uint_eq(look("0-223").share, 7);
    setenv("LOCAL_WORLD_SIZE", "many", 1); /* malformed, so the next variable counts */
    ck_assert_uint_eq(look("0-223").share, 7);
    setenv("LOCAL_WORLD_SIZE", "1000", 1);
    ck_assert_uint_eq(look("0-223").share, 1); /* at least one */
}
END_TEST

/* The ranks in a control group share its limit. Of nested groups' limits the smallest counts. */
START_TEST(limits)
{
    machine(16);
    fake_root_put("/proc/self/cgroup", "0::/");
    fake_root_put("/sys/fs/cgroup/cpu.max", "max 100000");
    ck_assert_uint_eq(look("0-31").share, 16);
    fake_root_put("/sys/fs/cgroup/cpu.max", "650000 100000");
    ck_assert_uint_eq(look("0-31").share, 6);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    ck_assert_uint_eq(look("0-31").share, 3);
    unsetenv("LOCAL_WORLD_SIZE");
    fake_root_put("/proc/self/cgroup", "0::/jobs/one");
    fake_root_put("/sys/fs/cgroup/cpu.max", "max 100000");
    fake_root_put("/sys/fs/cgroup/jobs/one/cpu.max", "800000 100000");
    ck_assert_uint_eq(look("0-31").share, 8);
    fake_root_put("/sys/fs/cgroup/jobs/cpu.max", "250000 50000");
    ck_assert_uint_eq(look("0-31").share, 5);
    fake_root_put("/proc/self/cgroup", "12:cpuset:/x"); /* cgroup v1 */
    ck_assert_uint_eq(look("0-31").share, 16);
}
END_TEST

/* Without readable files the affinity mask counts. */
START_TEST(no_files)
{
    struct nb_cores c = look("0-7");

    ck_assert_uint_eq(c.usable, 8);
    ck_assert_uint_eq(c.share, 8);
    ck_assert(c.limit == 0);
}
END_TEST

START_TEST(near_memory)
{
    struct nb_cpus cpus;
    static char here[4096];

    here[0] = 1;
    ck_assert(!nb_cores_near(root, here, &cpus));
    fake_root_put("/sys/devices/system/node/online", "0");
    fake_root_put("/sys/devices/system/node/node0/cpulist", "1,3");
    ck_assert(!nb_cores_near(root, here, &cpus)); /* with one node there is no choice */
    fake_root_put("/sys/devices/system/node/online", "0-1");
    if (!nb_cores_near(root, here, &cpus)) /* a filter of system calls forbids it, or it is on another node */
        return;
    ck_assert_uint_eq(nb_cpus_count(&cpus), 2);
    ck_assert(CPU_ISSET(1, &cpus.set) && CPU_ISSET(3, &cpus.set));
}
END_TEST

SUITE_MAIN("cores", FIXTURE(setup, teardown), TEST(lists), TEST(eight_ranks), TEST(limits), TEST(no_files),
           TEST(near_memory))
