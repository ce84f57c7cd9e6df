/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec threads of a context (nb_context.host_pool): workers that take jobs from one queue, first come first
 * served. They live from the first communicator that wants them to the last, sleep when there is nothing to do,
 * and run on the CPUs of the threads that asked for them only, of these on those of the NUMA nodes of NCCL's
 * buffers, where there are several.
 *
 * After a fork the child has no workers: there nothing is ever done, and nothing waits for it.
 *
 * Private to plugin/device; device.h has nb_host_pool_open and nb_host_pool_close.
 */
#ifndef NIBBLE_DEVICE_HOST_POOL_H
#define NIBBLE_DEVICE_HOST_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct nb_context;
struct nb_cpus;
struct nb_host_pool;

#define NB_POOL_MOST 64u /* workers */

/* Something to do, part of what its owner keeps. The pool alone accesses the fields but `run` and `owner`, until the
 * job has begun or was cancelled. */
struct nb_pool_job {
    void (*run)(struct nb_pool_job *job); /* on a worker; the pool does not touch the job from then on */
    const void *owner;
    struct nb_pool_job *next;
};

/* Have at least `threads` workers for this user, on CPUs of `cpus` (and of other users'). Returns how many there are,
 * perhaps fewer; 0: none could be made, and nothing is to be released. On a thread that may block. */
unsigned nb_pool_acquire(struct nb_host_pool *pool, unsigned threads, const struct nb_cpus *cpus);
/* The last one ends the workers, and returns when they have ended; none of the user's jobs is in the queue. */
void nb_pool_release(struct nb_host_pool *pool);
/* NCCL's buffer lies at `at`: prefer the CPUs of its NUMA node. Any thread, with the pool acquired. */
void nb_pool_prefer_near(struct nb_host_pool *pool, const void *at);

/* Queue a job. Any thread, with the pool acquired; does not block for longer than others queue theirs. */
void nb_pool_submit(struct nb_host_pool *pool, struct nb_pool_job *job);
/* Take out of the queue what has not begun of the owner's jobs, and call `cancelled` for each, with the queue locked. */
void nb_pool_cancel(struct nb_host_pool *pool, const void *owner, void (*cancelled)(struct nb_pool_job *job));
/* Jobs begun and ended so far, of all owners: for who watches that there is progress. */
uint64_t nb_pool_ended(const struct nb_host_pool *pool);
/* This is a child of the process that made the workers. */
bool nb_pool_is_orphan(const struct nb_host_pool *pool);

#endif
