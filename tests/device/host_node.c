/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose host device has codec threads. See host_node.h. */
#include "tests/device/host_node.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "device/host/host.h"

static void note_done(struct nb_context *ctx)
{
    atomic_fetch_add(&((struct host_node *)ctx)->done, 1);
}

static uint64_t virtual_ns(void *arg)
{
    return (uint64_t)atomic_load(&((struct host_node *)arg)->now);
}

void host_node_open(struct host_node *n, int64_t threads)
{
    memset(n, 0, sizeof(*n));
    n->params = *nb_params_defaults();
    n->params.device = NB_DEVICE_HOST;
    n->params.host_threads = threads;
    n->ctx.params = &n->params;
    n->ctx.clock = (struct nb_clock){virtual_ns, n};
    n->ctx.work_done = note_done;
    atomic_store(&n->now, (int64_t)NB_NS_PER_S);
    ck_assert_int_eq(nb_gpus_open(&n->ctx), 0);
    ck_assert_int_eq(nb_host_pool_open(&n->ctx), 0);
}

void host_node_close(struct host_node *n)
{
    nb_host_pool_close(&n->ctx);
    nb_gpus_close(&n->ctx);
}

struct nb_device *host_node_device(struct host_node *n)
{
    const struct nb_device_wish wish = {.gpu = -1, .nnodes = 4, .comm_id = 1};
    struct nb_device *dev = NULL;

    ck_assert_int_eq(nb_device_choose(&n->ctx, &wish, &dev), 0);
    return dev;
}

/* ---- the threads, as the system sees them -------------------------------------------------------------- */

unsigned host_codec_threads(pid_t tid[HOST_MOST_THREADS])
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned n = 0;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[300], name[32] = "";
        FILE *f;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        f = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f)
            continue;
        if (fgets(name, sizeof(name), f) && strcmp(name, "nibble-codec\n") == 0) {
            ck_assert_uint_lt(n, HOST_MOST_THREADS);
            tid[n++] = (pid_t)atoi(entry->d_name);
        }
        fclose(f);
    }
    closedir(dir);
    return n;
}

bool host_threads_are(unsigned n)
{
    pid_t tid[HOST_MOST_THREADS];

    for (unsigned ms = 0; ms < 60000; ms++) {
        if (host_codec_threads(tid) == n)
            return true;
        host_nap_ms(1);
    }
    return false;
}

/* Return the processor time of a thread, from the system's clock for it. */
double host_thread_seconds(pid_t tid)
{
    const clockid_t clock = (clockid_t)((~(unsigned)tid << 3) | 6u);
    struct timespec t;

    ck_assert_int_eq(clock_gettime(clock, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double host_pool_seconds(void)
{
    pid_t tid[HOST_MOST_THREADS];
    const unsigned n = host_codec_threads(tid);
    double s = 0;

    for (unsigned i = 0; i < n; i++)
        s += host_thread_seconds(tid[i]);
    return s;
}

void host_nap_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

ssize_t host_finished(struct nb_device *dev, struct nb_work *w)
{
    ssize_t ret;

    while ((ret = dev->ops->poll(dev, w)) == -EINPROGRESS)
        sched_yield();
    return ret;
}
