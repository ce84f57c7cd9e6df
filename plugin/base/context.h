/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node as an object: everything that one participant of the job is (settings, clock, transport, GPUs,
 * memory budgets, records of operations, the engine) hangs off one context. The ABI layer creates one for the
 * process and hands it down (abi/process.h); tests and simulations create as many as they like
 * (abi/context.h). Contexts know nothing of each other.
 *
 * Each member belongs to one folder, which alone knows what is in it, makes it (nb_<member>_open) and frees
 * it (nb_<member>_close). A layer reads its own members and those of the layers below, never those above.
 *
 * What has to be global all the same, and why:
 *   base/log.c            NCCL gives a process one logging function; and the label of the node that this
 *                         thread works for (thread-local), so that every line need not be handed a context
 *   base/params.c         the defaults of the settings, made once from their table
 *   codec/dispatch.c      which codec variants this CPU can run; all give the same bytes
 *   device/cuda/driver.c  the driver's functions, found by dlopen (tests put theirs there); a process has one
 *                         driver
 *   policy/job/events.c       the kernel that this thread launched last (thread-local): NCCL's stopEvent names no
 *                         communicator
 *   policy/records/caller.c        which functions lie at the return addresses of callers of NCCL; a process has one loader
 *   abi/process.c         the context of the process: most of NCCL's tables pass none
 *   abi/next.c            the plugins after ours: a library is loaded once a process
 *   abi/profiler_next.c   handles of theirs and ours: NCCL's stopEvent names no communicator
 *   net/verbs/lib.c       libibverbs' functions, found by dlopen (tests put theirs there); a process has one
 *                         libibverbs
 */
#ifndef NIBBLE_BASE_CONTEXT_H
#define NIBBLE_BASE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/params.h"

struct nb_device;
struct nb_device_wish;
struct nb_net;
struct nb_gpus;
struct nb_host_pool;
struct nb_budgets;
struct nb_queues;
struct nb_jobs;
struct nb_engine;
struct nb_schedule_ops;

struct nb_context {
    const struct nb_params *params; /* settings in force; never NULL */
    struct nb_clock clock;
    char label[64];    /* precedes this node's log lines where several share a process; "" otherwise */
    bool forwarded_to; /* another nibble has loaded this one to forward to it; set by abi/ */

    /* device/: makes devices of communicators in place of those that the settings ask for; NULL: not
     * (nb_device_choose) */
    int (*open_device)(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);

    /* Ordinal of the GPU that the calling thread works for, -1: none; NULL: the one that is current in CUDA
     * (base/gpu.h). */
    int (*current_gpu)(struct nb_context *ctx);

    /* What nodes tell each other of themselves: the name of this machine, NULL: that of the system; and where
     * random numbers come from, NULL: the kernel's generator. For simulations, which have neither. */
    const char *host;
    int (*random)(struct nb_context *ctx, void *buf, size_t bytes);

    /* In front of paths of /proc and /sys that tell of processors; NULL: nothing. For tests. */
    const char *root;

    /* coll/: a device calls it when work that it does later is done: the engine's thread looks at it, if it
     * sleeps. Any thread; cheap. NULL: there is no such thread. */
    void (*work_done)(struct nb_context *ctx);

    /* base/: what the user demands and cannot have (base/demand.h). */
    _Atomic(bool) unmet;

    /* coll/: asked before the schedules that there are (coll/schedule/schedule.h); NULL: none. */
    const struct nb_schedule_ops *schedule;

    struct nb_net *net;             /* net/: the transport in force behind its list of devices */
    struct nb_gpus *gpus;           /* device/: GPUs in use, their rings and memory */
    struct nb_host_pool *host_pool; /* device/: codec threads; NULL: there are to be none */
    struct nb_budgets *budgets;     /* state/: memory taken of the limits in the settings */
    struct nb_queues *queues;       /* policy/: records of operations, by communicator */
    struct nb_jobs *jobs;           /* policy/: what is known of each GPU's job */
    struct nb_engine *engine;       /* coll/: the progress engine */
};

#endif
