/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: pieces of real arithmetic. lib/ plays their collectives to the whole plugin, and judges the plugin by
 * the truth that only the job knows. ../README.md explains how to write one. lib/ has
 *
 *   job.h        a running job: communicators, operations, steps
 *   memory.h     addresses as a caching allocator gives them
 *   model.h      weights, gradients, optimizers
 *   parallel.h   the work of frameworks with a model in a step
 *
 * Two nodes of one GPU each run in one process and one thread, in virtual time: engines without runners over
 * a transport in memory. The plugin gets the calls that NCCL would make: profiler events at every call, then
 * CollNet windows with the values. Thresholds of size are an eighth of the defaults, so that a job's tensors
 * may be as much smaller, too.
 *
 * All values here are floats, whatever their type in the job. `type` is the type in which they travel.
 */
#ifndef NIBBLE_TESTS_JOBS_JOB_H
#define NIBBLE_TESTS_JOBS_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "memory.h"
#include "nibble/nccl_types.h"
#include "policy/records/records.h"

#define NODES 2

struct job;
struct comm;

/* The true kind of an operation. A gradient has the number of its buffer (from 1): the same parameters in the
 * same places, in any memory. */
typedef int64_t truth;
#define EXACT ((truth)0)                  /* not a gradient: must not be quantized */
#define EITHER(buffer) (-(truth)(buffer)) /* a gradient that the plugin need not recognise */

/* The plugin's decisions on a sum, on one node. */
struct told {
    int step, node;
    enum nb_func func;
    size_t n;
    truth what;
    int recognised, quantized, fed; /* as a gradient. With a residual */
    int wrongly_fed;
    int why, whose; /* enum nb_class_reason, nb_identity_reason. -1: not reported */
};

struct job_settings {
    void (*listen)(void *arg, const struct told *what); /* called for every sum. May be NULL */
    void *arg;                                          /* argument of `listen`, and of the job (job_arg) */
    int steps;                                          /* 0: 90 */
    int ahead;        /* calls that the job is ahead of the network. 0: 8, -1: none */
    int silent;       /* NCCL's profiler fires no events (before 2.23, or with another profiler in nibble's
                         place) */
    int all_collnet;  /* NCCL takes CollNet for operations of any size */
    const char *grad; /* NIBBLE_GRAD: the user's word for gradients */
    int no_warmup;    /* NIBBLE_WARMUP_STEPS=0 */
    int by_signature; /* NIBBLE_EF_IDENTITY=signature */
    int ref_max_mb;   /* NIBBLE_REF_MAX_MB. 0: 4, some hundred blocks as the default is for real ones */
    int ag_min;       /* least size of coded all-gathers. 0: an eighth of the default */
    int seed;         /* added to the run's: for values that once showed a fault */
    int fed;          /* percent of the gradients' bytes that must be fed. 0: none */
};

/* ---- steps --------------------------------------------------------------------------------------------- */

/* Begin the next step. Return 0 at the end. Steps are the optimizer's, and for local SGD the outer
 * optimizer's. */
int job_step(struct job *job);
/* Return the number of the current step, from 0. */
int job_now(const struct job *job);
/* Return true in every `n`-th step, the first time in step n - 1. */
int job_every(const struct job *job, int n);
/* Return the memory of the job's GPU. */
struct memory *job_memory(struct job *job);
/* Return the job's argument from its settings. */
void *job_arg(const struct job *job);
/* Return a new number for a buffer. */
truth job_buffer(struct job *job);

/* ---- communicators ------------------------------------------------------------------------------------- */

/* Make a communicator between the two nodes. `name` may be NULL. It lives until the job ends or
 * comm_close. */
struct comm *comm_between(struct job *job, const char *name);
/* Make a communicator of `ranks` GPUs inside the node: its operations are only announced. */
struct comm *comm_inside(struct job *job, const char *name, int ranks);
void comm_close(struct comm *comm);

/* ---- operations ---------------------------------------------------------------------------------------- */

struct buffer {
    ncclDataType_t type;
    size_t n; /* values of the whole vector, of all ranks */
    address send, recv;
    truth what; /* of sums */
    enum nb_caller
        caller;   /* of all-reduces, as the plugin would find it. 0: a script, outside of backward passes */
    uint64_t tag; /* NB_TAG_*, the framework's word */
};

/* Sum contributions a, of node 0, and b. They have n values each. Integers are rounded. */
void all_reduce(struct comm *comm, const struct buffer *buffer, const float *a, const float *b);
void reduce_scatter(struct comm *comm, const struct buffer *buffer, const float *a, const float *b);
/* Gather the whole vector. Each node has a half. */
void all_gather(struct comm *comm, const struct buffer *buffer, const float *whole);
/* Sum a scalar from a fixed place: FP32, one value. */
void all_reduce_scalar(struct comm *comm, address at, float a, float b);

/* ---- the table of jobs --------------------------------------------------------------------------------- */

/* A job that is one call with `job`. */
#define JOB(name, call) \
    static void name(struct job *job) \
    { \
        call; \
    }

struct job_entry {
    const char *name;
    void (*play)(struct job *job);
    struct job_settings settings;
};
extern const struct job_entry jobs_data_parallel[], jobs_sharded[], jobs_model_parallel[], jobs_local[],
    jobs_others[], jobs_consequences[], jobs_passes[], jobs_fresh_sharded[], jobs_fresh_others[],
    jobs_fresh_tables[]; /* each ends with an entry without a name */

struct verdict {
    uint64_t sums, gradients;   /* operations of node 0 and 1 */
    uint64_t quantized_wrongly; /* quantized, but not gradients */
    uint64_t fed_wrongly;       /* with another buffer's error */
    uint64_t late_bytes, late_coded,
        late_fed;           /* of gradients of eligible size, from step 60 of their communicator on */
    int first_wrong;        /* step of the first wrong decision, -1 */
    char wrong[160];        /* its cause */
    char uncompressed[160]; /* the uncompressed gradients of one signature, and the reason */
    int confused;           /* misbehaviour of the plugin: observations that fit no operation, warnings */
    char warning[200];
};

/* Play a job and report the plugin's decisions. loud: print its log. */
void job_play(const struct job_entry *entry, uint64_t seed, int loud, struct verdict *verdict);

#endif
