/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job as one GPU's process sees it: the sequence of its collective calls on all communicators, and two
 * decisions on each operation. policy/recognise/recognise.h decides whether it is a gradient, and
 * policy/identity/identity.h which residual it continues.
 *
 * NCCL's profiler events announce the calls, in call order, from any thread. The engine dequeues operations
 * later, each with the number of its announcement. An operation may lack one, because of an older NCCL,
 * another profiler in our place or a lost event. It is announced when it is dequeued. Then its addresses and
 * the calls inside the node are unknown, and everything that they would prove stays unproved.
 */
#include "policy/job/job.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/demand.h"
#include "base/nccl_names.h"
#include "base/params.h"
#include "policy/rules/rules.h"

#define BATCH 32u

/* Order of locks: the list's lock, decisions_lock, ring_lock. */
struct nb_jobs {
    pthread_mutex_t lock;
    struct nb_job *list;
};

struct nb_job {
    struct nb_context *ctx;
    struct nb_jobs *jobs;
    int device;
    struct nb_job *next; /* under the list's lock */
    int refs, groups;    /* under the list's lock */
    _Atomic int attached;

    /* Announcements, from many producers. The lock is held for one copy. */
    pthread_mutex_t ring_lock;
    struct nb_job_call *ring; /* [NB_JOB_CALLS] */
    uint64_t announced, lost;

    /* Decisions. Only the engine thread uses them, except that any thread may forget a communicator. */
    pthread_mutex_t decisions_lock;
    uint64_t taken;   /* calls known to identity, which keeps them until their operations begin */
    uint64_t *number; /* [NB_JOB_CALLS] identity's numbers of the calls taken in. UINT64_MAX: lost */
    struct nb_classify *classify;
    struct nb_identity *identity;
    const struct nb_class_op *deciding; /* the reduction at hand */
    struct nb_grad_rules rules;         /* of NIBBLE_GRAD */
};

int nb_job_check_settings(const struct nb_params *params, const char **name, char *error, size_t cap)
{
    struct nb_grad_rules rules;
    struct nb_comm_rules comms;
    char why[256];
    uint32_t mbps;
    size_t len;

    *name = "NIBBLE_REQUIRE";
    if (nb_demand_check(params->require, error, cap))
        return -EINVAL;
    *name = "NIBBLE_GRAD";
    if (nb_grad_rules_parse(params->grad, &rules, why, sizeof(why))) {
        snprintf(error, cap, "NIBBLE_GRAD: %s, in %s", why, params->grad);
        return -EINVAL;
    }
    *name = "NIBBLE_COMMS";
    if (nb_comm_rules_parse(params->comms, &comms, why, sizeof(why))) {
        snprintf(error, cap, "NIBBLE_COMMS: %s, in %s", why, params->comms);
        return -EINVAL;
    }
    *name = "NIBBLE_SITE";
    if (strlen(params->site) >= NB_SITE_BYTES) {
        snprintf(error, cap, "NIBBLE_SITE: at most %d characters, not %zu", NB_SITE_BYTES - 1,
                 strlen(params->site));
        return -EINVAL;
    }
    if (nb_params_site(params->site, &len, &mbps)) {
        snprintf(error, cap, "NIBBLE_SITE: %s is neither NAME nor NAME:MBPS with a rate from 1 to 100000000",
                 params->site);
        return -EINVAL;
    }
    return 0;
}

/* Answer the question nb_identity_config.certain on the reduction at hand. */
static int certain(void *arg, uint64_t buffer)
{
    struct nb_job *job = arg;
    struct nb_class_op op = *job->deciding;

    op.predicted = buffer;
    return nb_classify_certain(job->classify, &op);
}

/* ---- life -------------------------------------------------------------------------------------------- */

int nb_jobs_open(struct nb_context *ctx)
{
    struct nb_jobs *jobs = calloc(1, sizeof(*jobs));

    if (!jobs)
        return -ENOMEM;
    pthread_mutex_init(&jobs->lock, NULL);
    ctx->jobs = jobs;
    return 0;
}

void nb_jobs_close(struct nb_context *ctx)
{
    if (!ctx->jobs)
        return;
    pthread_mutex_destroy(&ctx->jobs->lock);
    free(ctx->jobs);
    ctx->jobs = NULL;
}

struct nb_job *nb_job_get(struct nb_context *ctx, int device)
{
    struct nb_jobs *jobs = ctx->jobs;
    struct nb_job *job;

    pthread_mutex_lock(&jobs->lock);
    for (job = jobs->list; job && job->device != device; job = job->next)
        ;
    if (!job) {
        job = calloc(1, sizeof(*job));
        if (job) {
            job->ctx = ctx;
            job->jobs = jobs;
            job->device = device;
            pthread_mutex_init(&job->ring_lock, NULL);
            pthread_mutex_init(&job->decisions_lock, NULL);
            job->next = jobs->list;
            jobs->list = job;
        }
    }
    if (job)
        job->refs++;
    pthread_mutex_unlock(&jobs->lock);
    return job;
}

static void drop_decisions(struct nb_job *job)
{
    nb_classify_destroy(job->classify);
    nb_identity_destroy(job->identity);
    free(job->number);
    free(job->ring);
    job->classify = NULL;
    job->identity = NULL;
    job->number = NULL;
    job->ring = NULL;
}

void nb_job_put(struct nb_job *job)
{
    struct nb_jobs *jobs;

    if (!job)
        return;
    jobs = job->jobs;
    pthread_mutex_lock(&jobs->lock);
    if (--job->refs == 0) {
        struct nb_job **at = &jobs->list;
        while (*at != job)
            at = &(*at)->next;
        *at = job->next;
        drop_decisions(job);
        pthread_mutex_destroy(&job->ring_lock);
        pthread_mutex_destroy(&job->decisions_lock);
        free(job);
    }
    pthread_mutex_unlock(&jobs->lock);
}

/* Create the state of the decisions. It outlives a group, because a job may destroy one communicator and make
 * the next. */
static int make_decisions(struct nb_job *job)
{
    const struct nb_params *params = job->ctx->params;
    char error[256];
    const struct nb_classify_config config = {.warmup_steps = (unsigned)params->warmup_steps,
                                              .rules = &job->rules};

    if (job->classify)
        return 0;
    nb_grad_rules_parse(params->grad, &job->rules, error,
                        sizeof(error)); /* checked when the settings were read */
    job->ring = calloc(NB_JOB_CALLS, sizeof(*job->ring));
    job->number = calloc(NB_JOB_CALLS, sizeof(*job->number));
    job->classify = nb_classify_create(&config);
    job->identity = nb_identity_create(&(struct nb_identity_config){.certain = certain, .arg = job});
    if (job->ring && job->number && job->classify && job->identity)
        return 0;
    drop_decisions(job);
    return -ENOMEM;
}

int nb_job_attach(struct nb_job *job)
{
    int ret;

    pthread_mutex_lock(&job->jobs->lock);
    ret = make_decisions(job);
    if (!ret) {
        job->groups++;
        atomic_store(&job->attached, 1);
    }
    pthread_mutex_unlock(&job->jobs->lock);
    return ret;
}

void nb_job_detach(struct nb_job *job)
{
    pthread_mutex_lock(&job->jobs->lock);
    if (--job->groups == 0)
        atomic_store(&job->attached, 0);
    pthread_mutex_unlock(&job->jobs->lock);
}

void nb_job_forget(struct nb_job *job, uint64_t comm)
{
    pthread_mutex_lock(&job->jobs->lock);
    if (job->classify) {
        pthread_mutex_lock(&job->decisions_lock);
        nb_classify_forget(job->classify, comm);
        nb_identity_forget(job->identity, comm);
        pthread_mutex_unlock(&job->decisions_lock);
    }
    pthread_mutex_unlock(&job->jobs->lock);
}

/* ---- calls ------------------------------------------------------------------------------------------- */

struct nb_job_call nb_job_call_of(const struct nb_record *r)
{
    struct nb_job_call call = {.comm = r->comm,
                               .nranks = r->nranks,
                               .func = r->func,
                               .type = r->flags & NB_RECORD_API ? r->api_type : r->type,
                               .send = (uintptr_t)r->send,
                               .recv = (uintptr_t)r->recv,
                               .passes = 1,
                               .caller = r->caller};

    call.count = r->bytes / nb_nccl_type_size(call.type);
    if (r->func != NB_FUNC_ALL_REDUCE)
        call.count *= r->nranks;
    return call;
}

uint64_t nb_job_announce(struct nb_job *job, const struct nb_job_call *call)
{
    uint64_t number;

    if (!atomic_load_explicit(&job->attached, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&job->ring_lock);
    job->ring[job->announced % NB_JOB_CALLS] = *call;
    number = ++job->announced;
    pthread_mutex_unlock(&job->ring_lock);
    return number;
}

static struct nb_class_op class_op(const struct nb_job_call *call, ncclRedOp_t op)
{
    return (struct nb_class_op){.comm = call->comm,
                                .nranks = call->nranks,
                                .func = call->func,
                                .type = call->type,
                                .op = op,
                                .count = call->count,
                                .send = call->send,
                                .caller = call->caller};
}

/* Return true for an all-reduce that the user's rules name. */
static bool is_named(const struct nb_job *job, const struct nb_job_call *call)
{
    return call->func == NB_FUNC_ALL_REDUCE &&
           nb_grad_rules_ask(&job->rules, call->func, call->type, call->count, call->nranks) == NB_GRAD_YES;
}

static void take_in_one(struct nb_job *job, const struct nb_job_call *call)
{
    const struct nb_identity_call id = {.comm = call->comm,
                                        .func = call->func,
                                        .type = call->type,
                                        .count = call->count,
                                        .send = call->send,
                                        .recv = call->recv,
                                        .passes = call->passes,
                                        .bucket = call->caller == NB_CALLER_BUCKET,
                                        .named = is_named(job, call)};
    job->number[job->taken++ % NB_JOB_CALLS] = nb_identity_call(job->identity, &id);
}

/* Take in announced calls, in order. Under decisions_lock. */
static void take_in(struct nb_job *job)
{
    struct nb_job_call call[BATCH];
    uint64_t skip;
    unsigned n;

    do {
        pthread_mutex_lock(&job->ring_lock);
        /* Announcements overwrite the oldest ones when no operation passes the network for long. */
        skip = job->announced - job->taken > NB_JOB_CALLS ? job->announced - job->taken - NB_JOB_CALLS : 0;
        job->lost += skip;
        job->taken += skip;
        for (n = 0; n < BATCH && job->taken + n < job->announced; n++)
            call[n] = job->ring[(job->taken + n) % NB_JOB_CALLS];
        pthread_mutex_unlock(&job->ring_lock);
        for (uint64_t i = 1; i <= skip && i <= NB_JOB_CALLS; i++)
            job->number[(job->taken - i) % NB_JOB_CALLS] = UINT64_MAX;
        for (unsigned i = 0; i < n; i++)
            take_in_one(job, &call[i]);
    } while (n == BATCH);
}

/* Return identity's number of the operation, or UINT64_MAX without one. */
static uint64_t number_of(struct nb_job *job, uint64_t number, int announced, const struct nb_job_call *call)
{
    take_in(job);
    if (!number && !announced) {
        number = nb_job_announce(job, call);
        take_in(job);
    }
    if (!number || number > job->taken || job->taken - number >= NB_JOB_CALLS)
        return UINT64_MAX;
    return job->number[(number - 1) % NB_JOB_CALLS];
}

/* ---- operations -------------------------------------------------------------------------------------- */

struct nb_decision nb_job_reduce(struct nb_job *job, uint64_t number, int announced,
                                 const struct nb_job_call *call, ncclRedOp_t op, const struct nb_evidence *ev,
                                 uint64_t geometry)
{
    struct nb_class_op what = class_op(call, op);
    const struct nb_profile profile = {.value = ev->profile, .known = ev->groups, .span = ev->span};
    struct nb_decision v = {.identity = {.tracked = -1, .reason = NB_ID_UNPREDICTED}};

    pthread_mutex_lock(&job->decisions_lock);
    number = number_of(job, number, announced, call);
    job->deciding = &what;
    if (number != UINT64_MAX)
        v.identity = nb_identity_reduce(job->identity, number, ev->groups ? &profile : NULL, geometry);
    what.buffer = v.identity.buffer;
    what.predicted = v.identity.predicted;
    what.found = v.identity.reason == NB_ID_FOUND;
    what.unlike = v.identity.reason == NB_ID_MISMATCH;
    what.passes = v.identity.passes;
    what.cycles = v.identity.cycles;
    what.linked = v.identity.parent != 0;
    v.gradient = nb_classify_reduce(job->classify, &what, ev->sample, ev->samples);
    if (v.gradient.shared && v.identity.tracked >= 0)
        v.identity.reason = NB_ID_SHARED;
    pthread_mutex_unlock(&job->decisions_lock);
    return v;
}

void nb_job_gather(struct nb_job *job, uint64_t number, int announced, const struct nb_job_call *call,
                   const struct nb_evidence *ev, int64_t weight_block, int changed)
{
    const struct nb_class_op what = class_op(call, ncclSum);

    pthread_mutex_lock(&job->decisions_lock);
    number = number_of(job, number, announced, call);
    if (ev->samples)
        nb_classify_gather(job->classify, &what, ev->sample, ev->samples);
    if (number != UINT64_MAX)
        nb_identity_gather(job->identity, number, weight_block, changed, ev->sample, ev->samples);
    pthread_mutex_unlock(&job->decisions_lock);
}

void nb_job_sum(struct nb_job *job, const struct nb_job_call *call, const uint64_t key[NB_CAUSAL_NAMES],
                const uint32_t *raw, unsigned picks)
{
    const struct nb_class_op what = class_op(call, ncclSum);

    pthread_mutex_lock(&job->decisions_lock);
    nb_classify_sum(job->classify, &what, key, raw, picks);
    pthread_mutex_unlock(&job->decisions_lock);
}

uint64_t nb_job_shard(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, size_t *width)
{
    uint64_t values;

    pthread_mutex_lock(&job->decisions_lock);
    values = nb_classify_shard(job->classify, call->comm, call->type, bytes, width);
    pthread_mutex_unlock(&job->decisions_lock);
    return values;
}

void nb_job_weights(struct nb_job *job, const struct nb_job_call *call, uint64_t bytes, const uint32_t *raw)
{
    pthread_mutex_lock(&job->decisions_lock);
    nb_classify_weights(job->classify, call->comm, call->type, bytes, raw);
    pthread_mutex_unlock(&job->decisions_lock);
}

void nb_job_get_counts(struct nb_job *job, struct nb_job_counts *counts)
{
    pthread_mutex_lock(&job->ring_lock);
    counts->calls = job->announced;
    counts->lost = job->lost;
    pthread_mutex_unlock(&job->ring_lock);
}
