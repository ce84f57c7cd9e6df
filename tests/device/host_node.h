/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose host device has codec threads, for tests; and the codec threads of this process as the system sees
 * them, whichever node they belong to. */
#ifndef NIBBLE_TESTS_DEVICE_HOST_NODE_H
#define NIBBLE_TESTS_DEVICE_HOST_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/context.h"
#include "base/params.h"
#include "device/device.h"

struct host_node {
    struct nb_context ctx;
    struct nb_params params;
    atomic_uint done;    /* calls of work_done */
    _Atomic int64_t now; /* of its clock, in ns; the caller's to change */
};

/* With NIBBLE_HOST_THREADS=threads. */
void host_node_open(struct host_node *n, int64_t threads);
void host_node_close(struct host_node *n);
/* The device of a new communicator of four nodes. */
struct nb_device *host_node_device(struct host_node *n);
/* Wait for a work: its result. */
ssize_t host_finished(struct nb_device *dev, struct nb_work *w);

#define HOST_MOST_THREADS 128
/* Numbers of this process's codec threads: how many. */
unsigned host_codec_threads(pid_t tid[HOST_MOST_THREADS]);
/* True when they are so many, or are soon: the system lists a thread for a moment longer than its join takes. */
bool host_threads_are(unsigned n);
/* Processor time of a thread, and of all codec threads, in seconds. */
double host_thread_seconds(pid_t tid);
double host_pool_seconds(void);
void host_nap_ms(long ms);

#endif
