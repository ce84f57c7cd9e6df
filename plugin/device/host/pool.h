/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec threads of a context (nb_context.host_pool): workers that take jobs from one queue, first come
 * first served. They live from the first communicator that wants them to the last, and sleep without jobs.
 * They run only on the CPUs of the threads that asked for them. Where there are several NUMA nodes, they run
 * on the nodes of NCCL's buffers among these.
 *
 * After a fork the child has no workers. Jobs there stay undone, and no caller waits for them.
 *
 * Private to plugin/device. device.h has nb_host_pool_open and nb_host_pool_close.
 */
#ifndef NIBBLE_DEVICE_HOST_POOL_H
#define NIBBLE_DEVICE_HOST_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct nb_context;
struct nb_cpus;
struct nb_host_pool;

#define NB_POOL_MOST 64u /* workers */

/* A job, part of its owner's memory. Only the pool accesses the fields except `run` and `owner`, until the
 * job has begun or was cancelled. */
struct nb_pool_job {
    void (*run)(struct nb_pool_job *job); /* on a worker. The pool does not touch the job from then on */
    const void *owner;
    struct nb_pool_job *next;
};

/* Ensure at least `threads` workers for this user, on CPUs of `cpus` and of other users. Return the number of
 * workers, perhaps fewer. 0: the system refused all, and the caller has none to release. On a thread that may
 * block. */
unsigned nb_pool_acquire(struct nb_host_pool *pool, unsigned threads, const struct nb_cpus *cpus);
/* Release the workers, when none of the user's jobs is in the queue. The last user's call ends the workers
 * and returns after that. */
void nb_pool_release(struct nb_host_pool *pool);
/* Prefer the CPUs of the NUMA node of NCCL's buffer at `at`. Any thread, with the pool acquired. */
void nb_pool_prefer_near(struct nb_host_pool *pool, const void *at);

/* Queue a job. Any thread, with the pool acquired. It blocks at most while other threads queue their jobs. */
void nb_pool_submit(struct nb_host_pool *pool, struct nb_pool_job *job);
/* Take the owner's jobs that have not begun out of the queue, and call `cancelled` for each, with the queue
 * locked. */
void nb_pool_cancel(struct nb_host_pool *pool, const void *owner, void (*cancelled)(struct nb_pool_job *job));
/* Return the number of ended jobs of all owners, for a watchdog. */
uint64_t nb_pool_ended(const struct nb_host_pool *pool);
/* Return whether this process is a child of the one that made the workers. */
bool nb_pool_is_orphan(const struct nb_host_pool *pool);

#endif
