/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node as an object: one context holds everything that one participant of the job has (settings, clock,
 * transport, GPUs, memory budgets, records of operations, the engine). The ABI layer creates one for the
 * process and hands it down (abi/process.h). Tests and simulations create as many as they like
 * (abi/context.h). Contexts are independent of each other.
 *
 * Each member belongs to one folder, which alone knows its contents, makes it (nb_<member>_open) and frees it
 * (nb_<member>_close). A layer reads its own members and the members of lower layers only.
 *
 * These must be global all the same, for the reasons given:
 *   base/log.c               NCCL gives a process one logging function; and the label of the node that this
 *                            thread works for and where its warnings are kept (thread-local), so that lines
 *                            need no context
 *   emulate/emulate.c        why this thread's last emulation did not open (thread-local): there is no object
 *                            to ask
 *   base/params.c            the defaults of the settings, made once from their table
 *   codec/dispatch.c         which codec variants this CPU can run; all give the same bytes
 *   device/cuda/driver.c     the driver's functions, found by dlopen (tests put theirs there); a process has
 *                            one driver
 *   policy/job/events.c      the kernel that this thread launched last (thread-local): NCCL's stopEvent names
 *                            no communicator
 *   policy/records/caller.c  which functions lie at the return addresses of callers of NCCL; a process has
 *                            one loader
 *   abi/process.c            the context of the process: most of NCCL's tables pass no context
 *   abi/next.c               the plugins after ours: a library is loaded once a process
 *   abi/profiler_next.c      handles of theirs and ours: NCCL's stopEvent names no communicator
 *   net/verbs/lib.c          libibverbs' functions, found by dlopen (tests put theirs there); a process has
 *                            one libibverbs
 */
#ifndef NIBBLE_BASE_CONTEXT_H
#define NIBBLE_BASE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/nccl_names.h"
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
    char label[64];    /* precedes this node's log lines where several nodes share a process; "" otherwise */
    bool forwarded_to; /* another nibble has loaded this one to forward to it; set by abi/ */

    /* device/: makes the devices of communicators. NULL: nb_device_choose does, by the settings. */
    int (*open_device)(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);

    /* Returns the ordinal of the GPU that the calling thread works for, -1 without a GPU. NULL: use the
     * current GPU of CUDA. */
    int (*current_gpu)(struct nb_context *ctx);

    /* The name of this machine that nodes send each other, and the source of random numbers. NULL: the
     * system's name and the kernel's generator. For simulations, which have neither. */
    const char *host;
    int (*random)(struct nb_context *ctx, void *buf, size_t bytes);

    /* Prefix of paths of /proc and /sys that describe processors. NULL: no prefix. For tests. */
    const char *root;

    /* coll/: a device calls it when asynchronous work is done, and it wakes a sleeping engine thread. Any
     * thread. Cheap. NULL: there is no engine thread. */
    void (*work_done)(struct nb_context *ctx);

    /* base/: whether a demand of the user is unmet (base/demand.h). */
    _Atomic(bool) unmet;

    /* net/: exact deltas of point-to-point messages (NIBBLE_P2P) that this process has sent. abi/: its puts
     * to other nodes (NIBBLE_RMA). */
    struct nb_p2p_counts {
        _Atomic uint64_t messages, bytes,
            wire_bytes; /* bytes: of the messages; wire_bytes: of their deltas */
        _Atomic uint64_t puts, put_bytes;
        _Atomic uint64_t past[NB_PAST_WAYS][NB_PAST_COUNT]; /* policy/: operations past CollNet */
    } p2p;

    /* coll/: asked before the built-in schedules (coll/schedule/schedule.h); may be NULL. */
    const struct nb_schedule_ops *schedule;

    struct nb_net *net;             /* net/: the transport in force behind its list of devices */
    struct nb_gpus *gpus;           /* device/: GPUs in use, their rings and memory */
    struct nb_host_pool *host_pool; /* device/: codec threads; NULL: there are to be no such threads */
    struct nb_budgets *budgets;     /* state/: memory taken from the limits in the settings */
    struct nb_queues *queues;       /* policy/: records of operations, by communicator */
    struct nb_jobs *jobs;           /* policy/: the facts known of each GPU's job */
    struct nb_engine *engine;       /* coll/: the progress engine */
};

/* Return the ordinal of the calling thread's current GPU, -1 without CUDA. Ask ctx->current_gpu where it is
 * set, else CUDA. Any thread, but not from CUDA host callbacks. */
int nb_current_gpu(struct nb_context *ctx);

/* Return 1 when the context's setting NIBBLE_FAULT, a list of names separated by commas, contains `where`.
 * Log an INFO line that says so. The caller then behaves as if that step had failed. Any thread. Cheap when
 * the list is empty. */
int nb_fault(const struct nb_context *ctx, const char *where);

#endif
