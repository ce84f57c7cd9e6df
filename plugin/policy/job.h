/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job as one GPU's process sees it: the sequence of its collective calls, on all communicators, and what
 * follows from it for the operation at hand: is it a gradient (policy/classify.h), and which residual
 * does it continue (policy/identity.h).
 *
 * NCCL's profiler events announce the calls, in call order, from any thread; the engine dequeues operations
 * later, each with the number of its announcement. An operation without one (an older NCCL, another profiler
 * in our place, a lost event) is announced when it is dequeued: then its addresses and what happens inside
 * the node are unknown, and what they would prove stays unproved.
 */
#ifndef NIBBLE_POLICY_JOB_H
#define NIBBLE_POLICY_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "policy/caller.h"
#include "policy/classify.h"
#include "policy/identity.h"
#include "policy/record.h"

#define NB_JOB_CALLS 4096u /* announced and not yet taken in */

struct nb_context;
struct nb_params;
struct nb_job;

/* Check NIBBLE_GRAD, NIBBLE_COMMS and NIBBLE_TYPES: 0, or -EINVAL with the name of the first that is wrong,
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

/* A call: returns its number, from 1 on; 0 when no group is attached. Any thread, also a CUDA host callback: waits
 * for nothing but a few instructions under a lock. */
uint64_t nb_job_announce(struct nb_job *job, const struct nb_job_call *call);

/* ---- for the engine thread --------------------------------------------------------------------------- */

/* What the data of an operation look like; see device/evidence.h. */
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

/* A reduction begins. Where the weights show that its slot is several buffers' (NB_ID_SHARED) the slot is still named, and what
 * it holds is nobody's. number: of its announcement; 0 with announced = 0: it has none yet; 0 with announced =
 * 1: which one is not known, so that it gets no slot. `geometry` as for nb_identity_reduce. */
struct nb_decision nb_job_reduce(struct nb_job *job, uint64_t number, int announced,
                                 const struct nb_job_call *call, ncclRedOp_t op,
                                 const struct nb_evidence *evidence, uint64_t geometry);

/* The own block of an all-gather was sent. unit, changed: as for nb_identity_gather. */
void nb_job_gather(struct nb_job *job, uint64_t number, int announced, const struct nb_job_call *call,
                   const struct nb_evidence *evidence, int64_t unit, int changed);

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
