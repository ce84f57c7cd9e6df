/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of a GPU: the calls that NCCL's profiler reports, and what recognition and identity make of them.
 */
#ifndef NIBBLE_POLICY_JOB_H
#define NIBBLE_POLICY_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "policy/identity/identity.h"
#include "policy/recognise/recognise.h"
#include "policy/records/records.h"

struct nb_context;
struct nb_params;
struct nb_job;

/* ---- events.c: NCCL's profiler events
 * -------------------------------------------------------------------- */

#define NB_EVENTS_RING 4096u  /* user's calls remembered until their launch */
#define NB_EVENTS_BLOCK 1024u /* captured calls come in blocks ... */
#define NB_EVENTS_BLOCKS 64u  /* ... of which there are so many at most */
/* Calls of a collective in a row, without a launch of one, from which on they are taken to go past
 * CollNet. */
#define NB_EVENTS_UNLAUNCHED 2048u

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
    /* NCCL has handed it over to its proxy, which needs nothing of this thread any more. Once for each `end`:
     * where no event says so, when the thread launches the communicator's next kernel. */
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
/* NCCL carries out an operation with copy engines (its CeColl event, v6 and later), so without CollNet. Said
 * once. */
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

/* ---- job.c: the job
 * -------------------------------------------------------------------------------------- */

#define NB_JOB_CALLS 4096u /* announced and not yet taken in */

/* Check NIBBLE_REQUIRE, NIBBLE_GRAD and NIBBLE_COMMS: 0, or -EINVAL with the name of the first that is wrong,
 * and what is wrong with it in `error`. Logs nothing. */
int nb_job_check_settings(const struct nb_params *params, const char **name, char *error, size_t cap);

/* Make and free the context's list of jobs (ctx->jobs): 0 or -ENOMEM. All jobs have been put before it is
 * freed. */
int nb_jobs_open(struct nb_context *ctx);
void nb_jobs_close(struct nb_context *ctx);

/* The job of a GPU (nb_current_gpu), created if need be; one reference. NULL: no memory. Any thread. */
struct nb_job *nb_job_get(struct nb_context *ctx, int gpu);
void nb_job_put(struct nb_job *job);

/* Attach or detach a group of nodes; calls are recorded while one is attached. 0 or -ENOMEM. */
int nb_job_attach(struct nb_job *job);
void nb_job_detach(struct nb_job *job);
/* A communicator of the job is gone: what was learnt of it is forgotten. */
void nb_job_forget(struct nb_job *job, uint64_t comm);

struct nb_job_call {
    uint64_t comm; /* any number that tells the job's communicators apart */
    uint32_t nranks;
    enum nb_func func;
    ncclDataType_t type;   /* the user's; bytes of an all-gather of unknown type: ncclInt8 */
    uint64_t count;        /* elements of the whole vector, of all ranks together */
    uint64_t send, recv;   /* addresses; 0: unknown */
    int passes;            /* reaches the network */
    enum nb_caller caller; /* of an all-reduce */
};
/* The call that a record tells of, on a communicator of `nranks` ranks. */
struct nb_job_call nb_job_call_of(const struct nb_record *record);

/* A call: returns its number, from 1 on; 0 when no group is attached. Any thread, also a CUDA host callback:
 * waits for nothing but a few instructions under a lock. */
uint64_t nb_job_announce(struct nb_job *job, const struct nb_job_call *call);

/* ---- for the engine thread --------------------------------------------------------------------------- */

/* What the data of an operation look like; see device/host/evidence.c. */
struct nb_evidence {
    float sample[NB_CLASSIFY_SAMPLES];
    unsigned samples;
    float profile[NB_PROFILE_GROUPS];
    unsigned groups; /* 0: no profile */
    uint64_t span;   /* elements that the profile is spread over */
    int blind;       /* reduce-scatter: its sum will not be told (nb_job_sum) */
};

struct nb_decision {
    struct nb_class_decision gradient;
    struct nb_identity_decision identity;
};

/* A reduction begins. Where the weights show that its tracked buffer is several buffers' (NB_ID_SHARED) the
 * tracked buffer is still named, and what it holds is nobody's. number: of its announcement; 0 with announced
 * = 0: it has none yet; 0 with announced = 1: which one is not known, so that it gets no tracked buffer.
 * `geometry` as for nb_identity_reduce. */
struct nb_decision nb_job_reduce(struct nb_job *job, uint64_t number, int announced,
                                 const struct nb_job_call *call, ncclRedOp_t op,
                                 const struct nb_evidence *evidence, uint64_t geometry);

/* The own block of an all-gather was sent. weight block, changed: as for nb_identity_gather. */
void nb_job_gather(struct nb_job *job, uint64_t number, int announced, const struct nb_job_call *call,
                   const struct nb_evidence *evidence, int64_t weight_block, int changed);

/* The sum of a reduce-scatter was delivered, or weights were gathered: see nb_classify_sum, nb_classify_shard
 * and nb_classify_weights. */
void nb_job_sum(struct nb_job *job, const struct nb_job_call *call, const uint64_t key[NB_CAUSAL_NAMES],
                const uint32_t *raw, unsigned picks);
uint64_t nb_job_shard(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, size_t *width);
void nb_job_weights(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, const uint32_t *raw);

struct nb_job_counts {
    uint64_t calls, lost; /* announced; overwritten before the engine looked */
};
void nb_job_get_counts(struct nb_job *job, struct nb_job_counts *counts);

#endif
