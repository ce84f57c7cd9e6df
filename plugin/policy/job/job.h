/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of a GPU: the calls that NCCL's profiler reports, and the decisions of recognition and identity on
 * them.
 */
#ifndef NIBBLE_POLICY_JOB_H
#define NIBBLE_POLICY_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/identity/identity.h"
#include "policy/recognise/recognise.h"
#include "policy/records/records.h"

struct nb_context;
struct nb_params;
struct nb_job;

/* ---- events.c: NCCL's profiler events ----------------------------------------------------------------- */

#define NB_EVENTS_RING 4096u  /* user's calls that are kept until their launch */
#define NB_EVENTS_BLOCK 1024u /* captured calls of a block ... */
#define NB_EVENTS_BLOCKS 64u  /* ... and the largest number of blocks */
/* Calls of a collective in a row without a launch, after which they count as bypassing CollNet. Only for
 * versions of NCCL that do not report kernels for symmetric memory. */
#define NB_EVENTS_UNLAUNCHED 2048u

/* Tags of a call (userProfilerTag of NCCL 2.31), and names of a communicator, by which a framework states
 * what the sums hold. A name may be longer and contain one of these. */
#define NB_TAG_GRADIENT UINT64_C(0x4e4942424c450001) /* "NIBBLE", 1 */
#define NB_TAG_EXACT UINT64_C(0x4e4942424c450002)
#define NB_NAME_GRADIENT "nibble:gradients"
#define NB_NAME_EXACT "nibble:exact"

struct nb_events; /* of one rank of one communicator */

/*
 * Observer of NCCL's kernel launches. The layer above registers it to run a kernel beside NCCL's. NCCL's
 * launching thread calls the functions, also while a graph is captured. They do not wait for a GPU.
 */
struct nb_launch_observer {
    /* Note that one more or one less communicator, as `by` is 1 or -1, reports its launches on GPU `gpu`. */
    void (*attached)(struct nb_context *ctx, int gpu, int by);
    /* NCCL is about to launch a kernel of the communicator, of `nnodes` nodes, on `stream`. It may have
     * collectives: uncaptured ones where `eager`, and among these all-reduces where `sums`, otherwise only
     * captured ones. Return a number for `end` and `posted`, or 0 to ignore this launch. */
    uint64_t (*begin)(struct nb_context *ctx, int gpu, uint64_t comm_id, int nnodes, void *stream, bool sums,
                      bool eager);
    /* NCCL has launched the kernel. */
    void (*end)(struct nb_context *ctx, uint64_t launch);
    /* NCCL hands over an operation that reaches CollNet, other than an all-reduce. For a captured kernel this
     * comes with every replay. */
    void (*handed)(struct nb_context *ctx, int gpu, uint64_t comm_id);
    /* NCCL has handed the launch over to its proxy, which needs no further step of this thread. `counts`: all
     * of its operations that reach CollNet came to `handed`. Comes once for each `end`. Without an event for
     * it, it comes when the thread launches the communicator's next kernel. */
    void (*posted)(struct nb_context *ctx, uint64_t launch, bool counts);
};

struct nb_events_counts {
    uint64_t calls;          /* user's collective calls */
    uint64_t calls_dropped;  /* captured calls beyond the space for them */
    uint64_t launches;       /* operations launched */
    uint64_t recorded;       /* launched operations that went into a queue */
    uint64_t elsewhere;      /* operations whose algorithm or function does not reach CollNet */
    uint64_t orphans;        /* operations launched without a known call */
    uint64_t contradictions; /* operations whose launch and call disagree */
    uint64_t missing;        /* launches without an event, by NCCL's sequence numbers */
    uint64_t unqueued;       /* no consumer, queue full, or owner uncertain */
    uint64_t bypassed;       /* calls that NCCL carries out without CollNet */
};

/* A user's call, in NCCL's words. Texts may be NULL. */
struct nb_events_call {
    const char *func, *type;
    size_t count;
    int captured;
    enum nb_caller caller; /* see nb_events_asks_caller */
    uint64_t tag;          /* the user's, from the configuration of the call. 0: none */
};

/* An operation at its launch. */
struct nb_events_op {
    const char *func, *type, *algo;
    size_t count; /* elements, or bytes of a block for an all-gather */
    uint64_t seq;
    const void *send, *recv;
    const void *call; /* handle of the user's call, or anything */
    bool symmetric;   /* by a kernel for symmetric memory: it does not reach CollNet */
};

/* What NCCL reports: the users' calls and the launches of kernels, and which launches are kernels for
 * symmetric memory. */
#define NB_REPORTS_CALLS 1u
#define NB_REPORTS_SYMMETRY 2u

/* Create the events of one rank of one communicator. The thread has the rank's GPU current. `reports` has
 * NB_REPORTS bits. `launches`, unless NULL, observes the launches of kernels and outlives the events. Return
 * NULL without memory. */
struct nb_events *nb_events_create(struct nb_context *ctx, const struct nb_launch_observer *launches,
                                   uint64_t comm_id, int nnodes, int nranks, int rank, unsigned reports);
/* Set the name of a communicator that has one. */
void nb_events_name(struct nb_events *events, const char *name);
void nb_events_destroy(struct nb_events *events);
/* Return 1 when the caller of this call matters: for an all-reduce between nodes that might be quantized. */
int nb_events_asks_caller(const struct nb_events *events, const struct nb_events_call *call);
/* Note a user's call. Return the handle to give to NCCL, or NULL when there is no space for the call or its
 * function or type is irrelevant. */
void *nb_events_call(struct nb_events *events, const struct nb_events_call *call);
void nb_events_launch(struct nb_events *events, const struct nb_events_op *op);
/* Note that NCCL carries out an operation with copy engines and so without CollNet. Its CeColl event, v6
 * and later, reports it. Logged once. */
void nb_events_copy_engine(struct nb_events *events, const char *func);
/* Note that NCCL is about to launch a kernel on `stream`, as its KernelLaunch event reports. See
 * nb_launch_observer. Return the handle to give to NCCL, or NULL when the observer ignores the launch. */
void *nb_events_kernel(struct nb_events *events, void *stream);
/* Return the handle for the launch of an operation (Coll), and for the operations of one kernel together
 * (Group). */
void *nb_events_launched(void);
void *nb_events_grouped(void);
/* Note the end of an event. `handle` is one of the three above, or any other value. The first end of an
 * operation's launch, on the thread that launched a kernel, means that all operations of that kernel are
 * known. */
void nb_events_stop(void *handle);
void nb_events_get_counts(struct nb_events *events, struct nb_events_counts *counts);

/* ---- job.c: the job ----------------------------------------------------------------------------------- */

#define NB_JOB_CALLS 4096u /* announced calls that the engine has not taken in yet */

/* Check NIBBLE_REQUIRE, NIBBLE_GRAD, NIBBLE_COMMS and NIBBLE_SITE. Return 0, or -EINVAL with the name of the
 * first wrong one at *name and the reason in `error`. The function does not log. */
int nb_job_check_settings(const struct nb_params *params, const char **name, char *error, size_t cap);

/* Create and free ctx->jobs, the context's list of jobs. Put all jobs before nb_jobs_close. Return 0 or
 * -ENOMEM. */
int nb_jobs_open(struct nb_context *ctx);
void nb_jobs_close(struct nb_context *ctx);

/* Return the job of GPU `gpu`, as nb_current_gpu numbers it, with one reference. The call creates it if
 * needed. Return NULL without memory. Any thread. */
struct nb_job *nb_job_get(struct nb_context *ctx, int gpu);
void nb_job_put(struct nb_job *job);

/* Attach or detach a group of nodes. Calls are recorded while at least one is attached. Return 0 or
 * -ENOMEM. */
int nb_job_attach(struct nb_job *job);
void nb_job_detach(struct nb_job *job);
/* Forget a communicator of the job that is gone. */
void nb_job_forget(struct nb_job *job, uint64_t comm);

struct nb_job_call {
    uint64_t comm; /* any number that tells the job's communicators apart */
    uint32_t nranks;
    enum nb_func func;
    ncclDataType_t type;   /* the user's type. ncclInt8 for an all-gather of unknown type, in bytes */
    uint64_t count;        /* elements of the whole vector, of all ranks together */
    uint64_t send, recv;   /* addresses. 0: unknown */
    int passes;            /* 1: reaches the network */
    enum nb_caller caller; /* of a sum */
};
/* Return the call of a record, on a communicator of `nranks` ranks. */
struct nb_job_call nb_job_call_of(const struct nb_record *record);

/* Announce a call. Return its number, from 1, or 0 when no group is attached. Any thread, also a CUDA host
 * callback: the function holds a lock for a few instructions and does not wait otherwise. */
uint64_t nb_job_announce(struct nb_job *job, const struct nb_job_call *call);

/* ---- for the engine thread --------------------------------------------------------------------------- */

/* Evidence in the data of an operation, from device/host/evidence.c. */
struct nb_evidence {
    float sample[NB_CLASSIFY_SAMPLES];
    unsigned samples;
    float profile[NB_PROFILE_GROUPS];
    unsigned groups; /* 0: no profile */
    uint64_t span;   /* elements over which the profile is spread */
};

struct nb_decision {
    struct nb_class_decision gradient;
    struct nb_identity_decision identity;
};

/* Decide on a reduction that begins. `number` is the number of its announcement. With `announced` = 0 and
 * `number` = 0 it has not been announced yet. With `announced` = 1 and `number` = 0 the announcement is
 * unknown, and the operation gets no tracked buffer. `geometry` is as for nb_identity_reduce. Where the
 * weights show that its tracked buffer stands for several buffers (NB_ID_SHARED), the decision still names
 * the tracked buffer, but its content is invalid. */
struct nb_decision nb_job_reduce(struct nb_job *job, uint64_t number, int announced,
                                 const struct nb_job_call *call, ncclRedOp_t op,
                                 const struct nb_evidence *evidence, uint64_t geometry);

/* Note that the own block of an all-gather was sent. `weight_block` and `changed` are as for
 * nb_identity_gather. */
void nb_job_gather(struct nb_job *job, uint64_t number, int announced, const struct nb_job_call *call,
                   const struct nb_evidence *evidence, int64_t weight_block, int changed);

/* Note a delivered sum of a reduce-scatter, or gathered weights. See nb_classify_sum, nb_classify_shard and
 * nb_classify_weights. */
void nb_job_sum(struct nb_job *job, const struct nb_job_call *call, const uint64_t key[NB_CAUSAL_NAMES],
                const uint32_t *raw, unsigned picks);
uint64_t nb_job_shard(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, size_t *width);
void nb_job_weights(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, const uint32_t *raw);

struct nb_job_counts {
    uint64_t calls, lost; /* announced calls, and calls overwritten before the engine took them in */
};
void nb_job_get_counts(struct nb_job *job, struct nb_job_counts *counts);

#endif
