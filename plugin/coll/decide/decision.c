/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides on an operation: its codec, and which residual it continues. The rules say which operations may be
 * coded (policy/rules/decide.c). The job's calls and data say whether the operation carries a gradient, and
 * which buffer it comes from (policy/job/job.c).
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"
#include "device/host/host.h"

/* Residuals that an identity found are numbered apart from residuals whose records name the buffer. */
#define IDENTITY_BUFFERS ((int64_t)1 << 40)

/* ---- state ------------------------------------------------------------------------------------------- */

/*
 * The facts of an operation, known when its first window comes, and the decision, made when the first of its
 * segments is encoded. Decisions are made in the order of operations. The evidence of earlier gathers is
 * therefore complete by then, however far NCCL or a peer is ahead.
 */
struct nb_op_info {
    struct nb_job_call call;
    uint64_t number; /* number of its announcement. 0: see nb_job_reduce */
    int announced;
    uint64_t opno;
    uint64_t bytes;                  /* of the whole vector */
    struct nb_kept_evidence *looked; /* kept until the decision. NULL: values were not sampled */
    /* for reductions */
    ncclRedOp_t redop;
    struct nb_facts facts; /* as far as they are known */
    enum nb_dtype dtype;   /* all-gather: valid when the codec is DELTA4 */
    int64_t asserted;      /* identity by the record of a tool or test, -1: none */
    uint64_t values;       /* values in a block of the residual */
    uint32_t blocks;
    uint64_t geometry;
    enum nb_raw_reason reason;
    enum nb_codec codec; /* codec that the operation may use. Once settled: codec that it uses */
    int settled;
    struct nb_decision decision; /* this field and the next ones: once settled */
    int wants_residual;          /* key names the residual, which the operation before still uses */
    struct nb_ef_key key;
    int fresh;
    struct nb_residual *ef;
    struct nb_sig_report *report;
    struct nb_sum_energies looked2; /* of a sampled sum that is still to be judged */
};

/* Evidence from an operation's values. There are as many as operations that wait for their decision at the
 * same time. */
struct nb_kept_evidence {
    struct nb_evidence seen;
    struct nb_kept_evidence *next;
};

static void drop_evidence(struct nb_decisions *d, struct nb_op_info *f)
{
    if (!f->looked)
        return;
    f->looked->next = d->spare;
    d->spare = f->looked;
    f->looked = NULL;
}

/* Return empty evidence for the operation. Return NULL when memory has run out: then its values stay
 * unseen. */
static struct nb_evidence *keep_evidence(struct nb_decisions *d, struct nb_op_info *f)
{
    drop_evidence(d, f);
    f->looked = d->spare;
    if (f->looked)
        d->spare = f->looked->next;
    else
        f->looked = malloc(sizeof(*f->looked));
    if (!f->looked)
        return NULL;
    f->looked->seen = (struct nb_evidence){.samples = 0};
    return &f->looked->seen;
}

static struct nb_job *join_job(struct nb_context *ctx)
{
    struct nb_job *job = nb_job_get(ctx, nb_current_gpu(ctx));

    if (job && nb_job_attach(job)) {
        nb_job_put(job);
        job = NULL;
    }
    return job;
}

int nb_decisions_init(struct nb_coll_comm *comm)
{
    struct nb_decisions *d = calloc(1, sizeof(*d));

    comm->decisions = d;
    if (!d)
        return -ENOMEM;
    nb_proofs_init(&d->proofs);
    d->feedback = nb_feedback_create(comm->ctx, comm->device);
    d->info = calloc(NB_OPS, sizeof(*d->info));
    nb_slab_init(&d->reports, sizeof(struct nb_sig_report), NB_SIG_REPORTS);
    d->job_comm = comm->comm_id ? comm->comm_id : (uint64_t)(uintptr_t)comm;
    d->job = join_job(comm->ctx);
    return d->feedback && d->info && !nb_slab_reach(&d->reports, 1) && d->job ? 0 : -ENOMEM;
}

void nb_decisions_destroy(struct nb_coll_comm *comm)
{
    struct nb_decisions *d = comm->decisions;

    if (!d)
        return;
    nb_proofs_destroy(comm);
    nb_feedback_destroy(d->feedback);
    if (d->job) {
        nb_job_detach(d->job);
        nb_job_forget(d->job, d->job_comm);
        nb_job_put(d->job);
    }
    for (unsigned i = 0; d->info && i < NB_OPS; i++)
        drop_evidence(d, &d->info[i]);
    for (struct nb_kept_evidence *e = d->spare, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    free(d->info);
    nb_slab_free(&d->reports);
    free(d);
}

void nb_decisions_count_raw(struct nb_coll_comm *comm, enum nb_func func, enum nb_raw_reason why)
{
    comm->decisions->reasons[func][why]++;
}

void nb_decisions_release_residual(struct nb_coll_comm *comm, struct nb_residual *residual)
{
    nb_feedback_release(comm->decisions->feedback, residual);
}

int nb_decisions_progress(struct nb_coll_comm *comm)
{
    const int ret =
        nb_decisions_at_work(comm->decisions) ? nb_feedback_progress(comm->decisions->feedback) : 0;

    return ret < 0 ? nb_comm_error(comm, ret, "cannot empty residuals: %s", strerror(-ret)) : ret;
}

bool nb_decisions_at_work(const struct nb_decisions *d)
{
    return d->feedback && nb_feedback_at_work(d->feedback);
}

void nb_decisions_kill_switch(struct nb_coll_comm *comm, int off)
{
    if (comm->decisions->off && !off) /* residuals date from before the switch */
        nb_feedback_drop_all(comm->decisions->feedback);
    comm->decisions->off = off;
}

/* ---- facts ------------------------------------------------------------------------------------------- */

/* Return whether the operation belongs to an excluded communicator that was split off and shares this group.
 * The nodes held no vote on such a communicator, but each node can send its operations raw. */
static int excluded_child(const struct nb_coll_comm *comm, const struct nb_record *r)
{
    struct nb_comm_info info = {.nranks = r->nranks, .nnodes = (uint32_t)comm->nnodes};

    if (!comm->rules.n || !r->nranks || r->comm == comm->comm_id)
        return 0;
    info.local = info.nranks % info.nnodes ? 0 : info.nranks / info.nnodes;
    return !nb_comm_rules_ask(&comm->rules, &info);
}

/* Return the facts that an operation's first window shows. */
static struct nb_facts facts_of(const struct nb_coll_comm *comm, const struct nb_op *op,
                                const struct nb_record *r, uint64_t bytes)
{
    struct nb_facts facts = {.params = comm->ctx->params,
                             .func = op->func,
                             .type = op->type,
                             .redop = op->redop,
                             .bytes = bytes,
                             .recorded = r != NULL,
                             .excluded = r && excluded_child(comm, r),
                             .shadow = comm->shadow};

    if (nb_policy_reckons(facts.params, op->func))
        facts.pays_from = nb_reckon_from(&comm->reckoning, op->func, op->value);
    /* NCCL passes all-gathers as bytes. Only the user's call names the type. */
    if (op->func == NB_FUNC_ALL_GATHER && r && r->flags & NB_RECORD_API) {
        facts.type = r->api_type;
        facts.typed = true;
    }
    return facts;
}

bool nb_op_is_known_raw(const struct nb_coll_comm *comm, const struct nb_op *op, uint64_t bytes)
{
    const struct nb_facts facts = facts_of(comm, op, NULL, bytes);

    return nb_decide(&facts, NB_STAGE_CALL).codec == NB_CODEC_RAW;
}

static void take_verdict(struct nb_op_info *f, enum nb_stage stage)
{
    const struct nb_verdict v = nb_decide(&f->facts, stage);

    f->codec = v.codec;
    f->reason = v.reason;
    f->dtype = v.dtype;
}

struct nb_op_info *nb_op_info_new(struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_record *r, uint64_t bytes)
{
    struct nb_op_info *f = &comm->decisions->info[comm->decisions->infos_used++ % NB_OPS];

    drop_evidence(comm->decisions, f); /* evidence of an operation that ended undecided */
    *f = (struct nb_op_info){.opno = op->opno, .bytes = bytes, .redop = op->redop, .asserted = -1};
    if (r && r->nranks) {
        f->call = nb_job_call_of(r);
        f->number = r->call;
        f->announced = 1;
    } else {
        f->call = (struct nb_job_call){.comm = comm->decisions->job_comm,
                                       .nranks = (uint32_t)comm->nnodes,
                                       .func = op->func,
                                       .type = op->type,
                                       .count = bytes / op->value,
                                       .send = r ? (uintptr_t)r->send : 0,
                                       .recv = r ? (uintptr_t)r->recv : 0,
                                       .passes = 1};
    }
    if (r)
        f->asserted = r->slot;
    f->facts = facts_of(comm, op, r, bytes);
    take_verdict(f, NB_STAGE_CALL);
    if (op->func == NB_FUNC_ALL_GATHER) {
        comm->decisions->reasons[op->func][f->reason]++;
        f->settled = 1;
    }
    return f;
}

void nb_op_info_shape(struct nb_op_info *f, uint64_t values, uint32_t blocks, uint64_t geometry)
{
    f->values = values;
    f->blocks = blocks;
    f->geometry = geometry;
}

enum nb_codec nb_op_info_codec(const struct nb_op_info *f)
{
    return f->codec;
}

enum nb_dtype nb_op_info_dtype(const struct nb_op_info *f)
{
    return f->dtype;
}

const struct nb_job_call *nb_op_info_call(const struct nb_op_info *f)
{
    return &f->call;
}

struct nb_residual *nb_op_info_residual(const struct nb_op_info *f, uint64_t *opno)
{
    *opno = f->opno;
    return f->ef;
}

enum nb_codec nb_op_segment_codec(const struct nb_op *op, bool sure, uint64_t values, enum nb_hop hop)
{
    struct nb_facts facts;

    if (!op->info || op->info->codec == NB_CODEC_RAW)
        return NB_CODEC_RAW;
    facts = op->info->facts;
    facts.sure = sure;
    facts.values = values;
    facts.passed_on = hop != NB_HOP_CONTRIBUTION;
    if (facts.passed_on)
        facts.bits = hop == NB_HOP_ROW ? 8 : nb_second_hop_bits(facts.params->second_hop);
    return nb_decide(&facts, NB_STAGE_SEGMENT).codec;
}

/* Return how many leading values to sample. The lengths of NCCL's windows vary a little with the other
 * operations in flight. A power of two seldom varies. */
static uint64_t span_of(uint64_t bytes, enum nb_dtype type)
{
    uint64_t span = 1;

    while (span * 2 * nb_dtype_size(type) <= bytes)
        span *= 2;
    return span;
}

/* Return the type as which the values are read. Gathered bytes of an unknown type are read as BF16: the upper
 * halves of FP32 and BF16 values look alike, and FP16's values keep their order. */
static enum nb_dtype looks_like(const struct nb_op_info *f)
{
    enum nb_dtype type;

    return nb_policy_dtype(f->call.type, &type) ? NB_BF16 : type;
}

int nb_op_info_wants_sample(struct nb_coll_comm *comm, struct nb_op_info *f, uint64_t bytes)
{
    struct nb_evidence *ev;
    enum nb_dtype type;

    if (f->call.func != NB_FUNC_ALL_GATHER && nb_policy_dtype(f->call.type, &type))
        return 0;
    ev = keep_evidence(comm->decisions, f);
    if (!ev)
        return 0;
    ev->span = span_of(bytes, looks_like(f));
    return 1;
}

int nb_op_info_sample(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work,
                      const void *values)
{
    struct nb_evidence *ev;

    if (!f->looked)
        return 0;
    ev = &f->looked->seen;
    return comm->device->ops->sample(comm->device, work, looks_like(f), values, ev->span, NB_CLASSIFY_SAMPLES,
                                     ev->sample);
}

int nb_op_info_sampled(struct nb_op_info *f, unsigned samples)
{
    if (!f->looked)
        return 0;
    f->looked->seen.samples = samples;
    return f->call.func != NB_FUNC_ALL_GATHER &&
           f->codec != NB_CODEC_RAW; /* else the operation is never coded and carries no error */
}

int nb_op_info_sums(struct nb_coll_comm *comm, struct nb_op_info *f, struct nb_work *work, const void *values)
{
    struct nb_evidence *ev = &f->looked->seen;

    return comm->device->ops->sums(comm->device, work, looks_like(f), values, ev->span, NB_PROFILE_GROUPS,
                                   ev->profile);
}

void nb_op_info_summed(struct nb_op_info *f, unsigned groups)
{
    f->looked->seen.groups = nb_profile_of_sums(f->looked->seen.profile, groups, f->looked->seen.profile);
}

/* ---- reports ----------------------------------------------------------------------------------------- */

const struct nb_sig_report *nb_decisions_report(const struct nb_decisions *d, unsigned i)
{
    return i < d->reported ? nb_slab_at(&d->reports, i) : NULL;
}

static struct nb_sig_report *report_of(struct nb_coll_comm *comm, const struct nb_op_info *f)
{
    struct nb_decisions *d = comm->decisions;
    struct nb_sig_report *r;

    for (unsigned i = 0; i < d->reported; i++) {
        r = nb_slab_at(&d->reports, i);
        if (r->func == f->call.func && r->type == f->call.type && r->count == f->call.count &&
            r->nranks == f->call.nranks)
            return r;
    }
    if (nb_slab_reach(&d->reports, d->reported + 1)) { /* signatures beyond the limit share the last line */
        r = nb_slab_at(&d->reports, d->reported - 1);
        r->others = 1;
        return r;
    }
    r = nb_slab_at(&d->reports, d->reported++);
    *r = (struct nb_sig_report){
        .func = f->call.func, .type = f->call.type, .count = f->call.count, .nranks = f->call.nranks};
    return r;
}

#define NMSE_RATE 0.02   /* weight of a segment in the moving average */
#define NMSE_PIECES 100u /* segments measured before the average is judged */

#define SUMS 32u /* sampled sums before their error is judged */

/* Go on with more bits. `what` names the energy that the error is compared with. */
static void fall_back(struct nb_coll_comm *comm, struct nb_op_info *f, double nmse, const char *what)
{
    const struct nb_codec_row *codec = nb_codec_row(f->codec);
    struct nb_sig_report *r = f->report;
    char rule[128];

    r->fallen_back = 1;
    nb_grad_rule_text(r->func, r->type, r->count, r->nranks, rule, sizeof(rule));
    NB_INFO(NCCL_NET,
            "%s: %s: goes on with %u bits, %u leave an error of %.3f of %s (NIBBLE_FALLBACK_NMSE=%.3f)",
            comm->label, rule, nb_codec_row(codec->finer)->bits, codec->bits, nmse, what,
            comm->ctx->params->fallback_nmse);
}

/* Go back to more bits when data that few bits do not suit leave too large an error. */
static void judge_error(struct nb_coll_comm *comm, struct nb_op_info *f, const struct nb_encode_stats *stats)
{
    const struct nb_codec_row *codec = nb_codec_row(f->codec);
    struct nb_sig_report *r = f->report;
    double limit = comm->ctx->params->fallback_nmse, nmse;

    if (codec->finer == codec->code || !(stats->signal2 > 0))
        return;
    nmse = stats->noise2 / stats->signal2;
    r->recent_nmse += (r->measured ? NMSE_RATE : 1.0) * (nmse - r->recent_nmse);
    if (r->measured < NMSE_PIECES)
        r->measured++;
    if (limit <= 0 || r->measured < NMSE_PIECES || r->recent_nmse <= limit || r->fallen_back)
        return;
    fall_back(comm, f, r->recent_nmse, "the energy");
}

bool nb_op_wants_energies(const struct nb_op *op)
{
    const struct nb_op_info *f = op->info;
    const struct nb_codec_row *codec;

    if (!f || (f->settled && f->report->fallen_back))
        return false;
    codec = nb_codec_row(f->codec);
    return codec->lossy && codec->finer != codec->code;
}

/* Judge the error of a sum. All nodes' contributions have about the energy and the coding error of this
 * node's, on average over blocks and operations. Their errors are independent, so those of all coded
 * contributions add up. A second hop codes the sum of an all-reduce, or the sum of the others' values of a
 * reduce-scatter, to which neither its summing node nor its owner sends a coded contribution. */
static void judge_sum(struct nb_coll_comm *comm, struct nb_op_info *f)
{
    struct nb_sig_report *r = f->report;
    struct nb_sum_energies *e = &f->looked2;
    const double limit = comm->ctx->params->fallback_nmse, rate = r->sums ? NMSE_RATE : 1.0;
    const int coded = comm->nnodes - (e->others_coded ? 2 : 1);
    double hop2 = 0;

    if (!(e->own2 > 0))
        return;
    if (e->others_coded)
        hop2 = e->others2;
    else if (f->call.func == NB_FUNC_ALL_REDUCE)
        hop2 = e->sum2;
    r->recent_own2 += rate * (e->own2 - r->recent_own2);
    r->recent_hop2 += rate * (hop2 - r->recent_hop2);
    r->recent_sum2 += rate * (e->sum2 - r->recent_sum2);
    e->own2 = 0;
    if (r->sums < SUMS)
        r->sums++;
    if (!(r->recent_sum2 > 0))
        return;
    r->sum_nmse = (r->recent_nmse * coded * r->recent_own2 + r->hop_nmse * r->recent_hop2) / r->recent_sum2;
    if (limit <= 0 || r->measured < NMSE_PIECES || r->sums < SUMS || r->sum_nmse <= limit || r->fallen_back)
        return;
    fall_back(comm, f, r->sum_nmse, "their sum's energy, since contributions cancel");
}

void nb_op_summed(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_sum_energies *energies)
{
    struct nb_op_info *f = op->info;

    if (!isfinite(energies->own2 + energies->sum2 + energies->others2))
        return;
    f->looked2 = *energies;
    if (f->settled && f->codec != NB_CODEC_RAW)
        judge_sum(comm, f);
}

void nb_op_passed_on(const struct nb_op *op, const struct nb_encode_stats *stats)
{
    struct nb_sig_report *r = op->info->report;
    const double nmse = stats->noise2 / stats->signal2;

    if (!isfinite(nmse))
        return;
    r->hop_nmse += (r->passed_on ? NMSE_RATE : 1.0) * (nmse - r->hop_nmse);
    r->passed_on = 1;
}

void nb_op_encoded(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_encode_stats *stats,
                   size_t bytes, size_t coded)
{
    struct nb_op_info *f = op->info;

    nb_encode_stats_add(&comm->stats.encode, stats);
    nb_encode_stats_add(&f->report->encode, stats);
    judge_error(comm, f, stats);
    judge_sum(comm, f);
    f->report->bytes += bytes;
    f->report->wire_bytes += coded;
    if (f->ef)
        nb_feedback_note(f->ef, f->opno, stats);
    if (stats->nonfinite) {
        /* The optimizer skips this step, or the training is lost. The residuals that the step's operations
         * used and left are wrong. */
        f->ef = NULL;
        comm->stats.feedback_resets += nb_feedback_drop_step(comm->decisions->feedback);
    }
}

/* ---- decisions --------------------------------------------------------------------------------------- */

static void tell(const struct nb_coll_comm *comm, const struct nb_op_info *f,
                 const struct nb_class_decision *d)
{
    const struct nb_class_op what = {.comm = f->call.comm,
                                     .nranks = f->call.nranks,
                                     .func = f->call.func,
                                     .type = f->call.type,
                                     .op = f->redop,
                                     .count = f->call.count};
    char text[400];

    if (d->reason == NB_WHY_YOUNG)
        return;
    nb_classify_text(&what, d, text, sizeof(text));
    NB_INFO(NCCL_NET | NCCL_COLL, "%s: %s", comm->label, text);
}

/* Choose the residual of a quantized operation, if it has one. */
static void want_residual(struct nb_coll_comm *comm, struct nb_op_info *f)
{
    const struct nb_params *p = comm->ctx->params;
    const struct nb_identity_decision *id = &f->decision.identity;
    int asserted = f->asserted >= 0 || p->ef_identity == NB_EF_IDENTITY_SIGNATURE; /* the user vouches */

    if (p->ef == NB_FEEDBACK_OFF)
        return;
    f->report->identity[id->reason]++;
    if (!asserted && (id->tracked < 0 || id->reason == NB_ID_SHARED)) {
        comm->stats.no_feedback_ambiguous++;
        if (id->tracked >= 0) /* its residual cannot be assigned to one buffer */
            nb_feedback_drop(comm->decisions->feedback, IDENTITY_BUFFERS + id->tracked);
        return;
    }
    f->key = (struct nb_ef_key){.func = f->call.func,
                                .type = f->dtype,
                                .n = f->values,
                                .blocks = f->blocks,
                                .id = asserted ? f->asserted : IDENTITY_BUFFERS + id->tracked,
                                .geometry = f->geometry};
    f->fresh = !asserted && id->empty;
    f->wants_residual = 1;
}

/* Take the residual. Return 1, or 0 while the operation before uses it. */
static int take_residual(struct nb_coll_comm *comm, struct nb_op_info *f)
{
    if (nb_feedback_busy(comm->decisions->feedback, &f->key))
        return 0;
    f->wants_residual = 0;
    nb_feedback_trim(comm->decisions->feedback, nb_window(comm, comm->oldest)->op->opno);
    f->ef = nb_feedback_get(comm->decisions->feedback, &f->key, f->opno, f->fresh);
    if (f->ef) {
        comm->stats.feedback_ops++;
        f->report->with_feedback++;
    } else {
        comm->stats.no_feedback_budget++;
    }
    return 1;
}

static void observe(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_decision *v)
{
    const struct nb_op_info *f = op->info;
    struct nb_observation o = {.comm = comm,
                               .opno = f->opno,
                               .func = op->func,
                               .recorded = f->announced,
                               .call = f->number - 1,
                               .codec = op->func == NB_FUNC_ALL_GATHER ? op->codec : f->codec,
                               .class_kind = -1,
                               .tracked = -1,
                               .id_reason = -1,
                               .fed = f->ef != NULL};

    if (v) {
        o.class_kind = v->gradient.kind;
        o.class_reason = v->gradient.reason;
        o.warmup = v->gradient.warmup;
        o.tracked = v->identity.tracked;
        o.empty = v->identity.empty;
        o.id_reason = v->identity.reason;
    }
    nb_observe_report(&comm->node->observer, &o);
}

/* Decide everything except the residual. */
static void decide(struct nb_coll_comm *comm, struct nb_op *op, struct nb_op_info *f)
{
    const struct nb_decision *v = &f->decision;
    static const struct nb_evidence nothing;
    const struct nb_evidence *seen = f->looked ? &f->looked->seen : &nothing;

    f->settled = 1;
    f->decision =
        nb_job_reduce(comm->decisions->job, f->number, f->announced, &f->call, f->redop, seen, f->geometry);
    drop_evidence(comm->decisions, f);
    f->report = report_of(comm, f);
    if (op->func == NB_FUNC_REDUCE_SCATTER)
        nb_proof_decided(op, v->gradient.key);
    if (f->codec != NB_CODEC_RAW) {
        if (v->gradient.changed)
            tell(comm, f, &v->gradient);
        f->facts.switched_off = comm->decisions->off;
        f->facts.gradient = v->gradient.kind == NB_CLASS_GRADIENT;
        f->facts.young = v->gradient.reason == NB_WHY_YOUNG;
        f->facts.warmup = v->gradient.warmup;
        f->facts.finer = f->report->fallen_back;
        take_verdict(f, NB_STAGE_VALUES);
    }
    comm->decisions->reasons[f->call.func][f->reason]++;
    f->report->ops++;
    f->report->reason[f->reason]++;
    f->report->gradient = v->gradient;
    if (f->codec != NB_CODEC_RAW) {
        f->report->coded++;
        if (!comm->shadow)
            comm->stats.func[f->call.func].coded_ops++;
        want_residual(comm, f);
    } else if (v->identity.tracked >= 0 &&
               v->identity.empty) { /* the job says so once, for coded and raw operations */
        nb_feedback_drop(comm->decisions->feedback, IDENTITY_BUFFERS + v->identity.tracked);
    }
}

int nb_op_settle(struct nb_coll_comm *comm, struct nb_op *op)
{
    struct nb_op_info *f = op->info;

    if (!f || (f->settled && !f->wants_residual))
        return 1;
    if (!f->settled) {
        if (comm->gathering || nb_proof_pending(comm, op->opno))
            return 0; /* the decision needs the evidence of these gathers */
        decide(comm, op, f);
    }
    if (f->wants_residual && !take_residual(comm, f))
        return 0;
    if (nb_observed(&comm->node->observer))
        observe(comm, op, &f->decision);
    return 1;
}

/* ---- all-gathers ------------------------------------------------------------------------------------- */

enum nb_codec nb_op_gather_codec(struct nb_coll_comm *comm, struct nb_op *op)
{
    struct nb_op_info *f = op->info;

    if (f->codec == NB_CODEC_RAW)
        return NB_CODEC_RAW;
    f->facts.switched_off = comm->decisions->off;
    take_verdict(f, NB_STAGE_VALUES);
    if (f->reason != NB_CODED)
        nb_decisions_count_raw(comm, op->func, f->reason);
    return f->codec;
}

/* Errors of gradients belong to a step. Where weights are gathered, their change ends the step. */
static void mark_step(struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (!comm->decisions->has_anchor) {
        comm->decisions->has_anchor = 1;
        comm->decisions->anchor = op->like->number;
    }
    if (op->like->number == comm->decisions->anchor)
        nb_feedback_step(comm->decisions->feedback, op->opno);
}

/* Return whether a checkpoint was loaded, or something similar happened (state/jump.h): the differences are
 * far larger than usual, or a block's content is new where a known block of this size used to come. */
static int jumped(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (op->outcome == NB_REF_NEW)
        return nb_refs_news(comm->refs, op->block);
    return op->outcome == NB_REF_HIT && op->changed &&
           nb_jump_weights(&op->ref->jump, op->moved_values, op->moved_bits);
}

static void forget_errors(struct nb_coll_comm *comm)
{
    if (!comm->stats.weight_jumps++)
        NB_INFO(NCCL_NET,
                "%s: gathered weights are far from the earlier ones (a checkpoint?): residuals are dropped, "
                "now and at each later jump",
                comm->label);
    comm->stats.feedback_dropped += nb_feedback_drop_all(comm->decisions->feedback);
}

void nb_op_gathered(struct nb_coll_comm *comm, struct nb_op *op)
{
    static const struct nb_evidence nothing;
    struct nb_op_info *f = op->info;
    int64_t unit = op->like && op->outcome != NB_REF_NEW ? (int64_t)op->like->number : -1;

    nb_proof_gathered(comm, op, !op->like || op->changed);
    nb_job_gather(comm->decisions->job, f->number, f->announced, &f->call,
                  f->looked ? &f->looked->seen : &nothing, unit, op->changed);
    drop_evidence(comm->decisions, f);
    if (op->like && op->changed)
        mark_step(comm, op);
    if (jumped(comm, op))
        forget_errors(comm);
    if (nb_observed(&comm->node->observer))
        observe(comm, op, NULL);
}
