/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose host device has codec threads, for tests. Also the codec threads of this process as the system
 * sees them, of all nodes together. */
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
    _Atomic int64_t now; /* its clock in ns, which the caller changes */
};

/* Open a node with NIBBLE_HOST_THREADS=threads. */
void host_node_open(struct host_node *n, int64_t threads);
void host_node_close(struct host_node *n);
/* Return the device of a new communicator of four nodes. */
struct nb_device *host_node_device(struct host_node *n);
/* Wait for the work `w`. Return its result. */
ssize_t host_finished(struct nb_device *dev, struct nb_work *w);

#define HOST_MOST_THREADS 128
/* Write the system's numbers of this process's codec threads. Return how many exist. */
unsigned host_codec_threads(pid_t tid[HOST_MOST_THREADS]);
/* Return true when n codec threads exist, now or soon: the system lists a thread for a moment longer than its
 * join takes. */
bool host_threads_are(unsigned n);
/* Return the processor time of a thread, and of all codec threads, in seconds. */
double host_thread_seconds(pid_t tid);
double host_pool_seconds(void);
void host_nap_ms(long ms);

#endif
