/* SPDX-License-Identifier: Apache-2.0 */
/* Where codec threads of the host's device run, and that idle threads do not run. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "device/host/host.h"
#include "tests/device/fake_root.h"
#include "tests/device/host_node.h"
#include "tests/suite.h"

static void check_places(const struct nb_cpus *want, unsigned threads)
{
    pid_t tid[HOST_MOST_THREADS];

    ck_assert(host_threads_are(threads));
    ck_assert_uint_eq(host_codec_threads(tid), threads);
    for (unsigned i = 0; i < threads; i++) {
        struct nb_cpus is;
        memset(&is, 0, sizeof(is));
        ck_assert_int_eq(sched_getaffinity(tid[i], sizeof(is), &is.set), 0);
        ck_assert(CPU_EQUAL_S(sizeof(is), &is.set, &want->set));
    }
}

static void nth_of(const struct nb_cpus *from, unsigned number, struct nb_cpus *one)
{
    memset(one, 0, sizeof(*one));
    for (size_t cpu = 0; cpu < NB_CPUS; cpu++)
        if (CPU_ISSET_S(cpu, sizeof(*from), &from->set) && number-- == 0)
            CPU_SET_S(cpu, sizeof(*one), &one->set);
}

static void bind_to(const struct nb_cpus *cpus)
{
    ck_assert_int_eq(sched_setaffinity(0, sizeof(*cpus), &cpus->set), 0);
}

/* They run only where the threads that asked for them may run. */
START_TEST(affinity)
{
    struct nb_cpus all, one, other, both;
    struct nb_device *dev[2];
    struct host_node n;

    nb_cpus_mine(&all);
    if (nb_cpus_count(&all) < 2) {
        printf("SKIP: affinity: this process may use one CPU only\n");
        return;
    }
    nth_of(&all, 0, &one);
    nth_of(&all, 1, &other);
    both = one;
    nb_cpus_add(&both, &other);
    host_node_open(&n, 3);
    bind_to(&other);
    dev[0] = host_node_device(&n);
    check_places(&other, 3);
    bind_to(&one);
    dev[1] = host_node_device(&n); /* of a communicator made on another CPU */
    check_places(&both, 3);
    bind_to(&all);
    dev[0]->ops->close(dev[0]);
    dev[1]->ops->close(dev[1]);
    bind_to(&other);
    dev[0] = host_node_device(&n); /* the earlier place is forgotten */
    check_places(&other, 3);
    dev[0]->ops->close(dev[0]);
    host_node_close(&n);
}
END_TEST

/* On a machine with two NUMA nodes they run beside NCCL's buffer. Where the mask has none of these CPUs, the
 * mask decides. */
START_TEST(near_the_buffer)
{
    static uint8_t buffer[8192];
    struct nb_cpus all, one, other, near;
    struct nb_device *dev;
    struct host_node n;
    const char *root;
    char text[32];
    size_t second = 0;

    nb_cpus_mine(&all);
    if (nb_cpus_count(&all) < 2) {
        printf("SKIP: near_the_buffer: this process may use one CPU only\n");
        return;
    }
    nth_of(&all, 0, &one);
    nth_of(&all, 1, &other);
    while (!CPU_ISSET_S(second, sizeof(other), &other.set))
        second++;
    root = fake_root_make();
    snprintf(text, sizeof(text), "%zu", second);
    fake_root_put("/sys/devices/system/node/online", "0-1");
    fake_root_put("/sys/devices/system/node/node0/cpulist", text);
    buffer[4096] = 1;
    if (nb_cores_near(root, buffer + 4096, &near)) {
        host_node_open(&n, 2);
        n.ctx.root = root;
        dev = host_node_device(&n);
        check_places(&all, 2);
        ck_assert_int_eq(dev->ops->region(dev, buffer + 4096, 4096, -1, 0), 0);
        check_places(&other, 2);
        ck_assert_int_eq(dev->ops->region(dev, buffer + 4096, 0, -1, 0), 0);
        dev->ops->close(dev);
        bind_to(&one);
        dev = host_node_device(&n);
        ck_assert_int_eq(dev->ops->region(dev, buffer + 4096, 4096, -1, 0), 0);
        check_places(&one, 2);
        bind_to(&all);
        dev->ops->close(dev);
        host_node_close(&n);
    } else {
        printf("SKIP: near_the_buffer: the system does not tell where memory is\n");
    }
    fake_root_remove();
}
END_TEST

/* Threads that have worked and are idle use no processor time. */
START_TEST(idle)
{
    static uint8_t from[1 << 20], to[1 << 20];
    struct nb_work w[8];
    struct nb_device *dev;
    struct host_node n;
    double worked, idle_s;

    host_node_open(&n, 7);
    dev = host_node_device(&n);
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 8; i++)
            ck_assert_int_eq(dev->ops->copy(dev, &w[i], to + i * 131072, from + i * 131072, 131072),
                             -EINPROGRESS);
        for (unsigned i = 0; i < 8; i++)
            ck_assert_int_eq(host_finished(dev, &w[i]), 0);
    }
    host_nap_ms(50); /* they poll for NB_SPIN_US */
    worked = host_pool_seconds();
    ck_assert(worked > 0);
    host_nap_ms(1000);
    idle_s = host_pool_seconds() - worked;
    ck_assert_msg(idle_s < 0.05, "seven idle threads have used %.3f s of a second", idle_s);
    dev->ops->close(dev);
    host_node_close(&n);
}
END_TEST

SUITE_MAIN("host_places", TEST(affinity), TEST(near_the_buffer), TEST(idle))
