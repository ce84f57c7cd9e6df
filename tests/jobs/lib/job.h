/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: pieces of real arithmetic whose collectives are played to the whole plugin, and judged by the truth that only
 * the job knows. ../README.md tells how to write one; lib/ has
 *
 *   job.h        a running job: communicators, operations, steps
 *   memory.h     addresses as a caching allocator gives them
 *   model.h      weights, gradients, optimizers
 *   parallel.h   what frameworks do with a model in a step
 *
 * Two nodes of one GPU each run in one process and one thread, in virtual time: engines without runners over a
 * transport in memory. The plugin gets what NCCL would give it: profiler events at every call, then CollNet windows
 * with the values. Thresholds of size are an eighth of the defaults, so that a job's tensors may be, too.
 *
 * All values here are floats, whatever their type in the job; `type` says as what they travel.
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

/* What an operation is, in truth. A gradient is named by the buffer that it is (from 1): the same parameters in the
 * same places, whatever memory they lie in. */
typedef int64_t truth;
#define EXACT ((truth)0)                  /* no gradient: must not be quantized */
#define EITHER(buffer) (-(truth)(buffer)) /* a gradient, but nothing obliges the plugin to see it */

/* What became of a sum, on one node. */
struct told {
    int step, node;
    enum nb_func func;
    size_t n;
    truth what;
    int recognised, quantized, fed; /* as a gradient; with a residual */
    int wrongly_fed;
    int why, whose; /* enum nb_class_reason, nb_identity_reason; -1: not told */
};

struct job_settings {
    void (*listen)(void *arg, const struct told *what); /* hears of every sum; NULL: nobody does */
    void *arg;                                          /* its own; the job's, too (job_arg) */
    int steps;                                          /* 0: 90 */
    int ahead;        /* calls that the job is ahead of the network; 0: 8, -1: none */
    int silent;       /* NCCL's profiler tells nothing (before 2.23, or another profiler in our place) */
    int all_collnet;  /* NCCL takes CollNet for everything, however small */
    const char *grad; /* NIBBLE_GRAD: what the user vouches for */
    int ref_max_mb;   /* NIBBLE_REF_MAX_MB; 0: 4, some hundred blocks as the default is for real ones */
    int ag_min;       /* least size of coded all-gathers; 0: an eighth of the default */
    int seed;         /* added to the run's: for values with which something was wrong once */
    int fed;          /* percent of the gradients' bytes that have to be fed; 0: none has to */
};

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* The next step begins; 0: there is none. Steps are the optimizer's (for local SGD, of the outer one). */
int job_step(struct job *job);
/* Number of the current step, from 0. */
int job_now(const struct job *job);
/* True in every `n`-th step, the first time in step n - 1. */
int job_every(const struct job *job, int n);
/* Memory of the job's GPU. */
struct memory *job_memory(struct job *job);
/* What the settings have for it. */
void *job_arg(const struct job *job);
/* A number for a buffer that has none yet. */
truth job_buffer(struct job *job);

/* ---- communicators --------------------------------------------------------------------------------------- */

/* Between the two nodes; `name` may be NULL. Lives until the job ends or comm_close. */
struct comm *comm_between(struct job *job, const char *name);
/* Of `ranks` GPUs inside the node: its operations are only announced. */
struct comm *comm_inside(struct job *job, const char *name, int ranks);
void comm_close(struct comm *comm);

/* ---- operations ------------------------------------------------------------------------------------------ */

struct buffer {
    ncclDataType_t type;
    size_t n; /* values of the whole vector, of all ranks */
    address send, recv;
    truth what; /* of sums */
    enum nb_caller
        caller; /* of all-reduces, as the plugin would find it; 0: a script, outside of backward passes */
};

/* Sum of contributions a (of node 0) and b. They have n values each; integers are rounded. */
void all_reduce(struct comm *comm, const struct buffer *buffer, const float *a, const float *b);
void reduce_scatter(struct comm *comm, const struct buffer *buffer, const float *a, const float *b);
/* The whole vector; each node has a half. */
void all_gather(struct comm *comm, const struct buffer *buffer, const float *whole);
/* A scalar (or a few) from a fixed place: FP32, one value. */
void all_reduce_scalar(struct comm *comm, address at, float a, float b);

/* ---- the table of jobs ------------------------------------------------------------------------------------ */

struct job_entry {
    const char *name;
    void (*play)(struct job *job);
    struct job_settings settings;
};
extern const struct job_entry jobs_data_parallel[], jobs_sharded[], jobs_model_parallel[], jobs_local[],
    jobs_others[]; /* each ends with an entry without a name */

struct verdict {
    uint64_t sums, gradients;   /* operations of node 0 and 1 */
    uint64_t quantized_wrongly; /* no gradient, yet quantized */
    uint64_t fed_wrongly;       /* with an error that is not its buffer's */
    uint64_t late_bytes, late_coded,
        late_fed;           /* of gradients of eligible size, from step 60 of their communicator on */
    int first_wrong;        /* step of the first wrong one, -1 */
    char wrong[160];        /* what it was */
    char uncompressed[160]; /* which gradients were not, and why, of one signature */
    int confused;           /* the plugin did not behave: observations that fit no operation, warnings */
    char warning[200];
};

/* Play a job and say what the plugin did. loud: print its log. */
void job_play(const struct job_entry *entry, uint64_t seed, int loud, struct verdict *verdict);

#endif
