/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The summary of a communicator, logged when it closes: totals, and for every signature and residual the
 * coded operations, their quality, and the reasons for the uncoded operations.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/flow/flow.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"

/* ---- at connect -------------------------------------------------------------------------------------- */

/* Append to a line of `cap` bytes that is `*at` long. Cut off any text that does not fit. */
__attribute__((format(printf, 4, 5))) static void append(char *line, size_t cap, size_t *at, const char *fmt,
                                                         ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line + *at, cap - *at, fmt, ap);
    va_end(ap);
    if (n > 0)
        *at += (size_t)n < cap - *at ? (size_t)n : cap - *at - 1;
}

static void plan_of(const struct nb_coll_comm *comm, char *line, size_t cap, size_t *at, enum nb_func func)
{
    const struct nb_params *p = comm->ctx->params;
    const enum nb_sum_word word = func == NB_FUNC_ALL_REDUCE ? p->ar : p->rs;
    uint64_t least = (uint64_t)(func == NB_FUNC_ALL_REDUCE ? p->ar_min_bytes : p->rs_min_bytes);

    if (word == NB_SUM_AUTO)
        least =
            nb_min64(nb_reckon_from(&comm->reckoning, func, 2), nb_reckon_from(&comm->reckoning, func, 4));
    if (word == NB_SUM_RAW || least == NB_RECKON_NEVER)
        append(line, cap, at, "%s raw (NIBBLE_%s=%s)", nb_func_name(func),
               func == NB_FUNC_ALL_REDUCE ? "AR" : "RS",
               nb_sum_words[word == NB_SUM_RAW ? word : NB_SUM_AUTO]);
    else
        append(line, cap, at, "%s %s from %llu bytes on", nb_func_name(func),
               nb_sum_words[word == NB_SUM_AUTO ? NB_SUM_INT4 : word], (unsigned long long)least);
}

static const char *gather_text(enum nb_ag_word word)
{
    switch (word) {
    case NB_AG_RAW: return "raw (NIBBLE_AG=raw)";
    case NB_AG_AUTO:
    case NB_AG_EXACT: return "exact differences";
    case NB_AG_DELTA4: return "differences, bounded ones for weights of BF16 and FP16 (NIBBLE_AG=delta4)";
    case NB_AG_DELTA4_FP32:
        return "differences, bounded ones for weights of BF16, FP16 and FP32 (NIBBLE_AG=delta4-fp32)";
    case NB_AG_OFF: return "left to NCCL's own algorithms (NIBBLE_AG=off)";
    case NB_AG_COUNT: break;
    }
    return "unknown";
}

void nb_comm_log_plan(struct nb_coll_comm *comm)
{
    const struct nb_params *p = comm->ctx->params;
    char line[700];
    size_t at = 0, cap = sizeof(line);

    plan_of(comm, line, cap, &at, NB_FUNC_REDUCE_SCATTER);
    append(line, cap, &at, ", ");
    if (nb_queue_is_profiled(comm->queue))
        plan_of(comm, line, cap, &at, NB_FUNC_ALL_REDUCE);
    else
        append(line, cap, &at,
               "all_reduce raw (NCCL's profiler events do not come here, so its length is unknown)");
    append(line, cap, &at, "; all_gather %s", gather_text(p->ag));
    if (p->ag != NB_AG_RAW && p->ag != NB_AG_OFF)
        append(line, cap, &at, " from %lld bytes on", (long long)p->ag_min_bytes);
    append(line, cap, &at, "; sums once recognised as gradients and after %lld steps%s%s",
           (long long)p->warmup_steps, p->grad[0] ? ", by NIBBLE_GRAD=" : "", p->grad);
    NB_INFO(NCCL_INIT | NCCL_NET, "%s (NIBBLE_COMMS=%s): %s%s", comm->label, comm->traits,
            comm->shadow ? "shadow mode, everything is sent raw. Otherwise: " : "", line);
}

/* ---- at close ---------------------------------------------------------------------------------------- */

static void log_signatures(const struct nb_figures *f)
{
    for (unsigned i = 0; i < f->nsignatures; i++) {
        const struct nb_sig_report *r = &f->signature[i];
        char rule[128], line[900];
        size_t at;

        nb_grad_rule_text(r->func, r->type, r->count, r->nranks, rule, sizeof(rule));
        at = (size_t)snprintf(line, sizeof(line), "%s%s: ops=%" PRIu64 " coded=%" PRIu64, rule,
                              r->others ? " and others" : "", r->ops, r->coded);
        if (r->coded)
            at += (size_t)snprintf(
                line + at, sizeof(line) - at,
                " feedback=%" PRIu64 " nmse=%.5f carried=%.3f bytes=%" PRIu64 " %s=%" PRIu64 " ratio=%.2f",
                r->with_feedback, nb_figures_nmse(&r->encode), nb_figures_carried(&r->encode), r->bytes,
                f->shadow ? "would_be" : "wire", r->wire_bytes, nb_figures_ratio(r->bytes, r->wire_bytes));
        if (r->sums && at < sizeof(line))
            at += (size_t)snprintf(line + at, sizeof(line) - at, " sum_nmse=%.5f", r->sum_nmse);
        if (r->passed_on && at < sizeof(line))
            at += (size_t)snprintf(line + at, sizeof(line) - at, " hop_nmse=%.5f", r->hop_nmse);
        for (int why = NB_CODED + 1; why < NB_RAW_REASON_COUNT && at < sizeof(line); why++)
            if (r->reason[why])
                at += (size_t)snprintf(line + at, sizeof(line) - at, "; raw %" PRIu64 ": %s", r->reason[why],
                                       nb_raw_reason_text(why));
        if (r->reason[NB_RAW_CLASS] && at < sizeof(line))
            at += (size_t)snprintf(line + at, sizeof(line) - at, " (%s; NIBBLE_GRAD=%s would change that)",
                                   nb_class_reason_text(r->gradient.reason), rule);
        for (int why = 0; why < NB_ID_REASON_COUNT && at < sizeof(line); why++)
            if (r->identity[why])
                at += (size_t)snprintf(line + at, sizeof(line) - at, "; buffer %" PRIu64 ": %s",
                                       r->identity[why], nb_identity_reason_text(why));
        NB_INFO(NCCL_NET, "summary %s: signature %s", f->label, line);
    }
}

static void log_slots(const struct nb_figures *f)
{
    for (unsigned n = 0; n < f->nresiduals && n < NB_FIGURES_RESIDUALS; n++) {
        const struct nb_ef_report *r = &f->residual[n];
        NB_INFO(NCCL_NET,
                "summary %s: residual of %s, %" PRIu64 " x %" PRIu64 " values: ops=%" PRIu64
                " nmse=%.5f carried=%.3f "
                "bounded_tiles=%" PRIu64 " emptied=%" PRIu64 " state_bytes=%zu",
                f->label, nb_func_name((enum nb_func)r->key.func), (uint64_t)r->key.blocks, r->key.n, r->ops,
                nb_figures_nmse(&r->encode), nb_figures_carried(&r->encode), r->encode.bounded, r->emptied,
                r->bytes);
    }
    if (f->nresiduals > NB_FIGURES_RESIDUALS)
        NB_INFO(NCCL_NET, "summary %s: and %u more residuals", f->label,
                f->nresiduals - NB_FIGURES_RESIDUALS);
}

static void log_figures(const struct nb_figures *figures)
{
    const struct nb_coll_stats s = figures->stats;
    char line[896];
    size_t at;

    at = (size_t)snprintf(line, sizeof(line), "summary %s:", figures->label);
    for (int f = 0; f < NB_FUNC_COUNT && at < sizeof(line); f++) {
        const struct nb_func_stats *fs = &s.func[f];
        if (fs->windows)
            at += (size_t)snprintf(line + at, sizeof(line) - at,
                                   " %s ops=%llu coded=%llu two_hop=%llu two_level=%llu windows=%llu "
                                   "bytes=%llu wire=%llu ratio=%.2f",
                                   nb_func_name(f), (unsigned long long)fs->ops,
                                   (unsigned long long)fs->coded_ops, (unsigned long long)fs->two_hop_ops,
                                   (unsigned long long)fs->two_level_ops, (unsigned long long)fs->windows,
                                   (unsigned long long)fs->sent_bytes, (unsigned long long)fs->wire_bytes,
                                   nb_figures_ratio(fs->sent_bytes, fs->wire_bytes));
    }
    NB_INFO(NCCL_NET, "%s", line);
    if (s.busy_ns)
        NB_INFO(NCCL_NET,
                "summary %s: time busy_s=%.6f processor_s=%.6f share=%.2f worked_gbps=%.2f threads=%u "
                "device=%s device_bytes=%llu",
                figures->label, 1e-9 * (double)s.busy_ns, 1e-9 * (double)s.worked_ns,
                nb_stats_codec_share(&s), s.worked_ns ? (double)s.worked_bytes / (double)s.worked_ns : 0.0,
                s.workers, figures->device, (unsigned long long)s.device_bytes);
    if (s.payload_checked || s.payload_damaged)
        NB_INFO(NCCL_NET, "summary %s: payload checked=%llu bytes=%llu damaged=%llu", figures->label,
                (unsigned long long)s.payload_checked, (unsigned long long)s.payload_checked_bytes,
                (unsigned long long)s.payload_damaged);
    if (s.encode.values)
        NB_INFO(NCCL_NET,
                "summary %s: feedback ops=%llu ambiguous=%llu budget=%llu resets=%llu jumps=%llu "
                "dropped=%llu bounded_tiles=%llu "
                "nmse=%.5f carried=%.3f escapes=%llu nonfinite=%llu state_bytes=%llu",
                figures->label, (unsigned long long)s.feedback_ops,
                (unsigned long long)s.no_feedback_ambiguous, (unsigned long long)s.no_feedback_budget,
                (unsigned long long)s.feedback_resets, (unsigned long long)s.weight_jumps,
                (unsigned long long)s.feedback_dropped, (unsigned long long)s.encode.bounded,
                nb_figures_nmse(&s.encode), nb_figures_carried(&s.encode),
                (unsigned long long)s.encode.escapes, (unsigned long long)s.encode.nonfinite,
                (unsigned long long)s.feedback_bytes);
    if (s.feedback_dropped * 2 > s.feedback_ops && s.weight_jumps > 1)
        NB_INFO(
            NCCL_NET,
            "summary %s: most residuals were dropped before their next use: gathered weights were far from "
            "the earlier ones %llu times. If the job gathers other data beside its weights, give that its "
            "own communicator",
            figures->label, (unsigned long long)s.weight_jumps);
    if (s.func[NB_FUNC_ALL_GATHER].would_be_bytes)
        NB_INFO(NCCL_NET, "summary %s: all_gather bytes=%llu would_be=%llu ratio=%.2f", figures->label,
                (unsigned long long)s.func[NB_FUNC_ALL_GATHER].sent_bytes,
                (unsigned long long)s.func[NB_FUNC_ALL_GATHER].would_be_bytes,
                (double)s.func[NB_FUNC_ALL_GATHER].sent_bytes /
                    (double)s.func[NB_FUNC_ALL_GATHER].would_be_bytes);
    if (figures->profiled)
        NB_INFO(
            NCCL_NET,
            "summary %s: records certain=%llu alike=%llu absent=%llu doubtful=%llu misfits=%llu wrong=%llu",
            figures->label, (unsigned long long)s.records[NB_ALIGN_CERTAIN],
            (unsigned long long)s.records[NB_ALIGN_ALIKE], (unsigned long long)s.records[NB_ALIGN_ABSENT],
            (unsigned long long)s.records[NB_ALIGN_DOUBT], (unsigned long long)s.records[NB_ALIGN_MISFIT],
            (unsigned long long)s.records_wrong);
    if (s.func[NB_FUNC_ALL_GATHER].windows)
        NB_INFO(NCCL_NET,
                "summary %s: references slots=%llu hit=%llu new=%llu unconfirmed=%llu budget=%llu "
                "unchanged_units=%llu resends=%llu state_bytes=%llu",
                figures->label, (unsigned long long)s.references, (unsigned long long)s.ref_hits,
                (unsigned long long)s.ref_new, (unsigned long long)s.ref_unconfirmed,
                (unsigned long long)s.ref_budget,
                (unsigned long long)s.func[NB_FUNC_ALL_GATHER].unchanged_units, (unsigned long long)s.resends,
                (unsigned long long)s.reference_bytes);
    if (s.gathers_bounded)
        NB_INFO(NCCL_NET,
                "summary %s: lossy all_gather delta4=%llu ops; delta4 units=%llu runs=%llu lossy_runs=%llu",
                figures->label, (unsigned long long)s.gathers_bounded, (unsigned long long)s.bounded_units,
                (unsigned long long)s.bounded_runs, (unsigned long long)s.bounded_lossy_runs);
    for (int f = 0; f < NB_FUNC_COUNT; f++)
        for (int why = NB_CODED + 1; why < NB_RAW_REASON_COUNT; why++)
            if (figures->reasons[f][why])
                NB_INFO(NCCL_NET, "summary %s: raw %s ops=%llu because: %s", figures->label, nb_func_name(f),
                        (unsigned long long)figures->reasons[f][why], nb_raw_reason_text(why));
    log_signatures(figures);
    log_slots(figures);
}

void nb_comm_log_summary(struct nb_coll_comm *comm)
{
    struct nb_figures *figures = calloc(1, sizeof(*figures));

    if (!figures) {
        NB_WARN("%s: no summary: out of memory", comm->label);
        return;
    }
    nb_turn_lock_take(&comm->progress_lock);
    nb_figures_take(figures, comm);
    nb_figures_take_residuals(figures, comm);
    nb_turn_lock_give(&comm->progress_lock);
    log_figures(figures);
    nb_facts_log_seen(comm, &figures->stats);
    free(figures);
}
