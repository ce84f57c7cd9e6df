/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL's profiler events tell, without table versions: the user's call (CollApi) is kept until the
 * launch (Coll) names it as its parent; the two together make an operation record (policy/record.h).
 *
 * NCCL hands back the handle of a user's call much later, for a captured graph at every replay, and sometimes
 * a handle that was never meant. So a handle is no pointer but an index with a generation, and is looked up.
 * Calls that run at once share a ring; captured ones are kept until the communicator ends.
 *
 * Any thread may call everything, also a CUDA host callback (nb_events_launch): no CUDA calls, nothing waits.
 */
#ifndef NIBBLE_POLICY_EVENTS_H
#define NIBBLE_POLICY_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "policy/caller.h"

#define NB_EVENTS_RING 4096u  /* user's calls remembered until their launch */
#define NB_EVENTS_BLOCK 1024u /* captured calls come in blocks ... */
#define NB_EVENTS_BLOCKS 64u  /* ... of which there are so many at most */
/* Calls of a collective in a row, without a launch of one, from which on they are taken to go past CollNet. */
#define NB_EVENTS_UNLAUNCHED 2048u

struct nb_context;
struct nb_events; /* of one rank of one communicator */

/*
 * Who wants to know of NCCL's kernel launches: the layer above registers what runs a kernel beside NCCL's.
 * Functions are called on the thread that launches, also while a graph is captured, and do not wait for a
 * GPU.
 */
struct nb_launch_observer {
    /* One more communicator (+1), or one less (-1), on GPU `gpu` reports its launches. */
    void (*attached)(struct nb_context *ctx, int gpu, int by);
    /* NCCL is about to launch a kernel of the communicator, of `nnodes` nodes, on `stream`: a number for the
     * next three functions, or 0 when there is nothing to be told of this launch. */
    uint64_t (*begin)(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream);
    /* NCCL has launched it. */
    void (*end)(struct nb_context *ctx, uint64_t launch);
    /* No operation of that launch reaches CollNet. Between `end` and `posted`. */
    void (*unused)(struct nb_context *ctx, uint64_t launch);
    /* NCCL has handed it over to its proxy, which needs nothing of this thread any more. Once for each `end`: where no
     * event says so, when the thread launches the communicator's next kernel. */
    void (*posted)(struct nb_context *ctx, uint64_t launch);
};

struct nb_events_counts {
    uint64_t calls;          /* user's collective calls */
    uint64_t calls_dropped;  /* captured calls beyond what is kept */
    uint64_t launches;       /* operations launched */
    uint64_t recorded;       /* of these, put into a queue */
    uint64_t elsewhere;      /* algorithm or function does not reach CollNet */
    uint64_t orphans;        /* launched without a known call */
    uint64_t contradictions; /* launch and call disagree */
    uint64_t missing;        /* launches that NCCL's sequence numbers show were not told */
    uint64_t unqueued;       /* nobody consumes, queue full, or not certain whose */
    uint64_t bypassed;       /* calls that NCCL carries out past CollNet */
};

/* A user's call, in NCCL's words; texts may be NULL. */
struct nb_events_call {
    const char *func, *type;
    size_t count;
    const void *stream;
    int captured;
    enum nb_caller caller; /* see nb_events_asks_caller */
};

/* An operation as it is launched. */
struct nb_events_op {
    const char *func, *type, *algo;
    size_t count; /* all-gather: bytes of a block */
    uint64_t seq;
    const void *send, *recv;
    const void *call; /* handle of the user's call, or anything */
};

/* `has_calls`: this NCCL reports the users' calls, and its launches, of which `launches` (NULL: nobody) is
 * told; it outlives the events. The thread has the rank's GPU current. NULL: no memory. */
struct nb_events *nb_events_create(struct nb_context *ctx, const struct nb_launch_observer *launches,
                                   uint64_t comm_id, int nnodes, int nranks, int rank, int has_calls);
/* The name of the communicator, where it has one. */
void nb_events_name(struct nb_events *events, const char *name);
void nb_events_destroy(struct nb_events *events);
/* 1 when it matters who makes this call: an all-reduce between nodes that might be quantized. */
int nb_events_asks_caller(const struct nb_events *events, const struct nb_events_call *call);
/* The handle to give to NCCL; NULL when the call cannot be kept or is of no interest. */
void *nb_events_call(struct nb_events *events, const struct nb_events_call *call);
void nb_events_launch(struct nb_events *events, const struct nb_events_op *op);
/* NCCL carries out an operation with copy engines (its CeColl event, v6 and later), so without CollNet. Said once. */
void nb_events_copy_engine(struct nb_events *events, const char *func);
/* NCCL is about to launch a kernel on `stream` (its KernelLaunch event): see nb_launch_observer. The handle
 * to give to NCCL, NULL when nothing comes of it. */
void *nb_events_kernel(struct nb_events *events, void *stream);
/* The handle for the launch of an operation (Coll), and of a kernel's operations together (Group). */
void *nb_events_launched(void);
void *nb_events_grouped(void);
/* An event has ended: `handle` is one of the three above, or anything else. The first end of an operation's
 * launch on the thread that launched a kernel tells that all operations of that kernel have been told. */
void nb_events_stop(void *handle);
void nb_events_get_counts(struct nb_events *events, struct nb_events_counts *counts);

#endif
