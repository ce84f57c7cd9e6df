/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with an operation: its codec, and whose error it carries on. What may be coded at all follows from
 * settings, type and size (policy/policy.h); whether it is a gradient and which buffer it comes from, from the job's
 * calls and data (policy/job.h).
 */
#include "base/log.h"
#include "base/params.h"
#include "coll/internal.h"
#include "coll/observe.h"
#include "device/exact.h"

/* Slots by identity are numbered apart from those that records vouch for. */
#define IDENTITY_SLOTS ((int64_t)1 << 40)

/* ---- facts ------------------------------------------------------------------------------------------- */

/* The operation is of a communicator that was split off and shares this group, so that there was no vote on it: but
 * each node may well send raw. */
static int excluded_child(const struct nb_coll_comm *comm, const struct nb_record *r)
{
    struct nb_comm_facts facts = {.nranks = r->nranks, .nnodes = (uint32_t)comm->nranks};

    if (!comm->rules.n || !r->nranks || r->comm == comm->comm_id)
        return 0;
    facts.local = facts.nranks % facts.nnodes ? 0 : facts.nranks / facts.nnodes;
    return !nb_comm_rules_ask(&comm->rules, &facts);
}

struct nb_facts *nb_facts_new(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_record *r,
                              uint64_t bytes)
{
    struct nb_facts *f = &comm->facts[comm->facts_used++ % NB_OPS];

    *f = (struct nb_facts){.opno = op->opno, .redop = op->redop, .vouched = -1};
    if (r && r->nranks) {
        f->call = nb_job_call_of(r);
        f->number = r->call;
        f->announced = 1;
    } else {
        f->call = (struct nb_job_call){.comm = comm->job_comm,
                                       .nranks = (uint32_t)comm->nranks,
                                       .func = op->func,
                                       .type = op->type,
                                       .count = bytes / op->value,
                                       .send = r ? (uintptr_t)r->send : 0,
                                       .recv = r ? (uintptr_t)r->recv : 0,
                                       .passes = 1};
    }
    if (r)
        f->vouched = r->slot;
    f->codec = nb_policy_codec(op->func, op->type, op->redop, bytes, r != NULL, &f->reason);
    if (f->codec != NB_CODEC_RAW && r && excluded_child(comm, r)) {
        f->codec = NB_CODEC_RAW;
        f->reason = NB_RAW_COMM;
    }
    if (op->func == NB_FUNC_ALL_GATHER) {
        /* The windows are of bytes; only the user's call tells of what. */
        if (f->codec == NB_CODEC_ULP)
            f->codec = nb_policy_gather(r && (r->flags & NB_RECORD_API) ? &r->api_type : NULL, &f->dtype);
        comm->reasons[op->func][f->reason]++;
        f->settled = 1;
    } else if (f->codec != NB_CODEC_RAW) {
        nb_policy_dtype(op->type, &f->dtype);
    }
    return f;
}

/* Leading values to look at. NCCL's windows differ a little with what else is in flight; a power of two seldom does. */
static uint64_t span_of(uint64_t bytes, enum nb_dtype type)
{
    uint64_t span = 1;

    while (span * 2 * nb_dtype_size(type) <= bytes)
        span *= 2;
    return span;
}

void nb_facts_look(struct nb_coll_comm *comm, struct nb_facts *f, const void *values, uint64_t bytes)
{
    struct nb_evidence *ev = &f->evidence;
    enum nb_dtype type;
    uint64_t span;

    if (nb_policy_dtype(f->call.type, &type))
        return;
    span = span_of(bytes, type);
    ev->samples = comm->device->ops->sample(comm->device, type, values, span, NB_CLASSIFY_SAMPLES, ev->sample);
    if (f->codec == NB_CODEC_RAW) /* never coded, so no error is ever carried */
        return;
    ev->groups = comm->device->ops->profile(comm->device, type, values, span, NB_PROFILE_GROUPS, ev->profile);
    ev->span = span;
}

/* ---- reports ----------------------------------------------------------------------------------------- */

static struct nb_sig_report *report_of(struct nb_coll_comm *comm, const struct nb_facts *f)
{
    struct nb_sig_report *r = comm->report;

    for (; r < comm->report + comm->reports; r++)
        if (r->func == f->call.func && r->type == f->call.type && r->count == f->call.count &&
            r->nranks == f->call.nranks)
            return r;
    if (comm->reports == NB_SIG_REPORTS) /* what comes late shares the last line */
        return &comm->report[NB_SIG_REPORTS - 1];
    comm->reports++;
    *r = (struct nb_sig_report){.func = f->call.func, .type = f->call.type, .count = f->call.count,
                                .nranks = f->call.nranks};
    return r;
}

#define NMSE_RATE 0.02   /* weight of a piece in the moving average */
#define NMSE_PIECES 100u /* before it is judged */

/* The safety net under 4 bits: data that they do not suit are noticed by the error that they leave. */
static void judge_error(struct nb_coll_comm *comm, struct nb_facts *f, const struct nb_encode_stats *stats)
{
    struct nb_sig_report *r = f->report;
    double limit = nb_params()->fallback_nmse, nmse;
    char rule[128];

    if (f->codec != NB_CODEC_INT4 || !(stats->signal2 > 0))
        return;
    nmse = stats->noise2 / stats->signal2;
    r->recent_nmse += (r->measured ? NMSE_RATE : 1.0) * (nmse - r->recent_nmse);
    if (r->measured < NMSE_PIECES)
        r->measured++;
    if (limit <= 0 || r->measured < NMSE_PIECES || r->recent_nmse <= limit || r->fallen_back)
        return;
    r->fallen_back = 1;
    nb_grad_rule_text(r->func, r->type, r->count, r->nranks, rule, sizeof(rule));
    NB_INFO(NCCL_NET, "%s: %s: goes on with 8 bits, 4 leave an error of %.3f of the energy (NIBBLE_FALLBACK_NMSE=%.3f)",
            comm->label, rule, r->recent_nmse, limit);
}

void nb_op_encoded(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_encode_stats *stats, size_t bytes,
                   size_t coded)
{
    struct nb_facts *f = op->facts;

    nb_encode_stats_add(&comm->stats.encode, stats);
    nb_encode_stats_add(&f->report->encode, stats);
    judge_error(comm, f, stats);
    f->report->bytes += bytes;
    f->report->wire_bytes += coded;
    if (f->ef)
        nb_feedback_note(f->ef, f->opno, stats);
    if (stats->nonfinite) {
        /* The optimizer will skip this step or is lost: what its operations consumed and left is wrong. */
        f->ef = NULL;
        comm->stats.feedback_resets += nb_feedback_drop_step(comm->feedback);
    }
}

/* ---- decisions --------------------------------------------------------------------------------------- */

static void tell(const struct nb_coll_comm *comm, const struct nb_facts *f, const struct nb_class_decision *d)
{
    const struct nb_class_op what = {.comm = f->call.comm, .nranks = f->call.nranks, .func = f->call.func,
                                     .type = f->call.type, .op = f->redop, .count = f->call.count};
    char text[400];

    if (d->reason == NB_WHY_YOUNG)
        return;
    nb_classify_text(&what, d, text, sizeof(text));
    NB_INFO(NCCL_NET | NCCL_COLL, "%s: %s", comm->label, text);
}

/* Which error slot a quantized operation has, if any. */
static void want_slot(struct nb_coll_comm *comm, struct nb_facts *f)
{
    const struct nb_params *p = nb_params();
    const struct nb_identity_decision *id = &f->verdict.identity;
    int vouched = f->vouched >= 0 || p->ef_identity == 1; /* "signature": the user vouches */

    if (p->ef == NB_EF_OFF)
        return;
    f->report->identity[id->reason]++;
    if (!vouched && id->slot < 0) {
        comm->stats.no_feedback_ambiguous++;
        return;
    }
    f->key = (struct nb_ef_key){.func = f->call.func, .type = f->dtype, .n = f->values, .blocks = f->blocks,
                                .id = vouched ? f->vouched : IDENTITY_SLOTS + id->slot, .geometry = f->geometry};
    f->fresh = !vouched && id->empty;
    f->wants_slot = 1;
}

/* Take it: 1, or 0 while the operation before uses it. */
static int take_slot(struct nb_coll_comm *comm, struct nb_facts *f)
{
    if (nb_feedback_busy(comm->feedback, &f->key))
        return 0;
    f->wants_slot = 0;
    nb_feedback_trim(comm->feedback, nb_window(comm, comm->oldest)->op->opno);
    f->ef = nb_feedback_get(comm->feedback, &f->key, f->opno, f->fresh);
    if (f->ef) {
        comm->stats.feedback_ops++;
        f->report->with_feedback++;
    } else {
        comm->stats.no_feedback_budget++;
    }
    return 1;
}

static void observe(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_verdict *v)
{
    const struct nb_facts *f = op->facts;
    struct nb_observation o = {.comm = comm, .opno = f->opno, .func = op->func, .recorded = f->announced,
                               .call = f->number - 1, .codec = op->func == NB_FUNC_ALL_GATHER ? op->codec : f->codec,
                               .class_kind = -1, .slot = -1, .id_reason = -1, .fed = f->ef != NULL};

    if (v) {
        o.class_kind = v->gradient.kind;
        o.class_reason = v->gradient.reason;
        o.warmup = v->gradient.warmup;
        o.slot = v->identity.slot;
        o.empty = v->identity.empty;
        o.id_reason = v->identity.reason;
    }
    nb_observe_tell(&o);
}

/* All but the error slot. */
static void decide(struct nb_coll_comm *comm, struct nb_facts *f)
{
    const struct nb_verdict *v = &f->verdict;

    f->settled = 1;
    f->verdict = nb_job_reduce(comm->job, f->number, f->announced, &f->call, f->redop, &f->evidence, f->geometry);
    f->report = report_of(comm, f);
    if (f->codec != NB_CODEC_RAW) {
        if (v->gradient.changed)
            tell(comm, f, &v->gradient);
        if (comm->off)
            f->reason = NB_RAW_SWITCHED;
        else if (v->gradient.kind != NB_CLASS_GRADIENT)
            f->reason = v->gradient.reason == NB_WHY_YOUNG ? NB_RAW_YOUNG : NB_RAW_CLASS;
        else if (v->gradient.warmup)
            f->reason = NB_RAW_WARMUP;
        if (f->reason != NB_CODED)
            f->codec = NB_CODEC_RAW;
    }
    comm->reasons[f->call.func][f->reason]++;
    f->report->ops++;
    f->report->reason[f->reason]++;
    f->report->gradient = v->gradient;
    if (f->codec != NB_CODEC_RAW) {
        f->report->coded++;
        if (f->codec == NB_CODEC_INT4 && f->report->fallen_back)
            f->codec = NB_CODEC_INT8;
        if (!comm->shadow)
            comm->stats.func[f->call.func].coded_ops++;
        want_slot(comm, f);
    } else if (v->identity.slot >= 0 && v->identity.empty) { /* said once, whether this operation is coded or not */
        nb_feedback_drop(comm->feedback, IDENTITY_SLOTS + v->identity.slot);
    }
}

int nb_op_settle(struct nb_coll_comm *comm, struct nb_op *op)
{
    struct nb_facts *f = op->facts;

    if (!f || (f->settled && !f->wants_slot))
        return 1;
    if (!f->settled) {
        if (comm->gather_tasks) /* what they show has to be known */
            return 0;
        decide(comm, f);
    }
    if (f->wants_slot && !take_slot(comm, f))
        return 0;
    if (nb_observed())
        observe(comm, op, &f->verdict);
    return 1;
}

/* ---- all-gathers ------------------------------------------------------------------------------------- */

void nb_facts_look_gather(struct nb_coll_comm *comm, struct nb_facts *f, const void *block, uint64_t bytes)
{
    enum nb_dtype type;

    if (nb_policy_dtype(f->call.type, &type))
        type = NB_BF16; /* the upper halves of FP32 and BF16 values look alike, and FP16's are in order */
    f->evidence.samples = comm->device->ops->sample(comm->device, type, block, span_of(bytes, type), NB_CLASSIFY_SAMPLES, f->evidence.sample);
}

/* Errors of gradients belong to a step; where weights are gathered, their change ends it. */
static void mark_step(struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (!comm->has_anchor) {
        comm->has_anchor = 1;
        comm->anchor = op->like->slot;
    }
    if (op->like->slot == comm->anchor)
        nb_feedback_step(comm->feedback, op->opno);
}

/* A checkpoint was loaded, or the like (state/jump.h): far larger differences than usual, or content like nothing
 * before where a block of this size used to come. */
static int jumped(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (op->outcome == NB_REF_NEW)
        return nb_refs_steady(comm->refs, op->block);
    return op->outcome == NB_REF_HIT && op->changed &&
           nb_jump_weights(&op->ref->jump, op->moved_values, op->moved_bits);
}

static void forget_errors(struct nb_coll_comm *comm)
{
    if (!comm->stats.weight_jumps++)
        NB_INFO(NCCL_NET, "%s: gathered weights are far from those before (a checkpoint?): carried errors are dropped, "
                          "now and whenever it happens again", comm->label);
    nb_feedback_drop_all(comm->feedback);
}

void nb_op_gathered(struct nb_coll_comm *comm, struct nb_op *op)
{
    const struct nb_facts *f = op->facts;
    int64_t unit = op->like && op->outcome != NB_REF_NEW ? (int64_t)op->like->slot : -1;

    nb_job_gather(comm->job, f->number, f->announced, &f->call, &f->evidence, unit, op->changed);
    if (op->like && op->changed)
        mark_step(comm, op);
    if (jumped(comm, op))
        forget_errors(comm);
    if (nb_observed())
        observe(comm, op, NULL);
}
