/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as text for Prometheus. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/version.h"
#include "coll/flow/flow.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"

/* ---- the metrics ------------------------------------------------------------------------------------- */

/* One metric: a member of its scope's struct, or a number computed from it. */
struct metric {
    const char *name, *help;
    size_t at;                        /* offset of a uint64_t, where `of` is NULL */
    double (*of)(const void *figure); /* negative: unknown */
};

/* Return whether it is a counter. Prometheus expects names of counters to end in _total. */
static bool is_counter(const struct metric *m)
{
    const size_t n = strlen(m->name);

    return n > 6 && strcmp(m->name + n - 6, "_total") == 0;
}

#define COUNT(struct_, member, name, help) \
    { \
        name, help, offsetof(struct struct_, member), NULL \
    }
#define COMPUTED(function, name, help) \
    { \
        name, help, 0, function \
    }

static double open_windows(const void *v)
{
    return (double)((const struct nb_figures *)v)->open_windows;
}
static double waited(const void *v)
{
    return 1e-9 * (double)((const struct nb_figures *)v)->waited_ns;
}
static double late_peers(const void *v)
{
    return ((const struct nb_figures *)v)->nlate;
}
static double silence(const void *v)
{
    return 1e-9 * (double)((const struct nb_figures *)v)->silence_ns;
}
static double failed(const void *v)
{
    return ((const struct nb_figures *)v)->error != 0;
}
static double closed(const void *v)
{
    return ((const struct nb_figures *)v)->closed;
}
static double switched_off(const void *v)
{
    return ((const struct nb_figures *)v)->off;
}
static double busy(const void *v)
{
    return 1e-9 * (double)((const struct nb_figures *)v)->stats.busy_ns;
}
static double worked(const void *v)
{
    return 1e-9 * (double)((const struct nb_figures *)v)->stats.worked_ns;
}
static double share(const void *v)
{
    return nb_stats_codec_share(&((const struct nb_figures *)v)->stats);
}
static double waiting(const void *v)
{
    const struct nb_figures *f = v;
    const double share = nb_stats_codec_share(&f->stats);

    return f->stats.busy_ns && share < 1 ? 1 - share : 0;
}
static double threads(const void *v)
{
    return ((const struct nb_figures *)v)->stats.workers;
}
static double nmse(const void *v)
{
    return nb_figures_nmse(&((const struct nb_figures *)v)->stats.encode);
}
static double carried(const void *v)
{
    return nb_figures_carried(&((const struct nb_figures *)v)->stats.encode);
}
static double retransmits(const void *v)
{
    const uint64_t n = ((const struct nb_figures *)v)->retransmits;

    return n == UINT64_MAX ? -1 : (double)n;
}

static const struct metric of_communicator[] = {
    COMPUTED(open_windows, "open_windows", "Windows that NCCL has handed over and that are not done."),
    COMPUTED(waited, "waited_seconds", "Time since the oldest open window last progressed."),
    COMPUTED(late_peers, "late_peers", "Nodes that the oldest open window waits for at present."),
    COUNT(nb_figures, late_reports, "late_reports_total", "Log lines about late nodes (NIBBLE_LATE_REPORT)."),
    COUNT(nb_figures, waits, "wait_checks_total", "Checks, one a second, that found an open window."),
    COMPUTED(silence, "peer_silence_seconds", "Longest silence of a connected node."),
    COMPUTED(failed, "failed", "1 when the communicator has failed."),
    COMPUTED(closed, "closed", "1 when the communicator is closed and its figures are final."),
    COMPUTED(switched_off, "compression_off", "1 while NIBBLE_CONTROL has switched compression off."),
    COMPUTED(busy, "busy_seconds_total", "Time in which some window was open."),
    COMPUTED(worked, "processor_seconds_total",
             "Time in which this processor coded, decoded, summed or copied."),
    COMPUTED(share, "processor_share",
             "Share of the busy time in which the processor, or each codec thread, worked."),
    COMPUTED(waiting, "waiting_share", "The rest of the busy time: waiting for nodes and links."),
    COUNT(nb_figures, stats.worked_bytes, "processor_bytes_total",
          "Bytes of values that went through that work."),
    COMPUTED(threads, "codec_threads", "Codec threads. 0: the engine's thread codes."),
    COUNT(nb_figures, stats.encode.values, "quantized_values_total", "Values quantized."),
    COMPUTED(nmse, "code_error_ratio", "Energy of the code's error over the values' energy (NMSE)."),
    COMPUTED(carried, "carried_error_ratio", "Energy of the added residuals over the values' energy."),
    COUNT(nb_figures, stats.encode.escapes, "escaped_values_total",
          "Values sent exactly, since they did not fit."),
    COUNT(nb_figures, stats.encode.nonfinite, "nonfinite_values_total",
          "NaN and infinities among the values."),
    COUNT(nb_figures, stats.encode.bounded, "bounded_tiles_total", "Tiles whose residual was bounded."),
    COUNT(nb_figures, stats.feedback_ops, "feedback_operations_total",
          "Quantized operations with error feedback."),
    COUNT(nb_figures, stats.no_feedback_ambiguous, "no_feedback_ambiguous_total",
          "Quantized operations without error feedback: their residual was uncertain."),
    COUNT(nb_figures, stats.no_feedback_budget, "no_feedback_budget_total",
          "Quantized operations without error feedback: no memory within the budget."),
    COUNT(nb_figures, stats.feedback_resets, "feedback_resets_total",
          "Residuals dropped after values that are not finite."),
    COUNT(nb_figures, stats.weight_jumps, "weight_jumps_total",
          "Gathers of weights far from the earlier weights, which drop all residuals."),
    COUNT(nb_figures, stats.feedback_dropped, "feedback_dropped_total",
          "Residuals that these gathers dropped."),
    COUNT(nb_figures, stats.feedback_bytes, "feedback_bytes", "Memory of residuals."),
    COUNT(nb_figures, stats.reference_bytes, "reference_bytes", "Memory of weight references."),
    COUNT(nb_figures, stats.references, "references", "Weight references."),
    COUNT(nb_figures, stats.ref_hits, "reference_hits_total",
          "All-gathers of an own block with a reference."),
    COUNT(nb_figures, stats.ref_new, "reference_new_total", "Such whose block was not known."),
    COUNT(nb_figures, stats.ref_unconfirmed, "reference_unconfirmed_total",
          "Such whose reference other nodes had not confirmed."),
    COUNT(nb_figures, stats.ref_budget, "reference_budget_total", "Such without memory within the budget."),
    COUNT(nb_figures, stats.resends, "resends_total",
          "Messages that a receiver asked for again as raw bytes."),
    COUNT(nb_figures, stats.payload_checked, "payloads_checked_total",
          "Payloads compared with their check value."),
    COUNT(nb_figures, stats.payload_damaged, "payloads_damaged_total", "Payloads that did not fit it."),
    COUNT(nb_figures, stats.control_bytes, "control_bytes_total", "Bytes of control messages sent."),
    COMPUTED(retransmits, "transport_retransmits_total",
             "Segments that TCP has sent again since they were lost."),
};

static double ratio_of_func(const void *v)
{
    const struct nb_func_stats *f = v;

    return nb_figures_ratio(f->sent_bytes, f->wire_bytes);
}

static const struct metric of_collective[] = {
    COUNT(nb_func_stats, ops, "operations_total", "Operations begun."),
    COUNT(nb_func_stats, coded_ops, "coded_operations_total", "Of these, coded in part at least."),
    COUNT(nb_func_stats, two_hop_ops, "two_hop_operations_total", "Of these, in two hops."),
    COUNT(nb_func_stats, two_level_ops, "two_level_operations_total", "Of these, in two levels."),
    COUNT(nb_func_stats, windows, "windows_total", "Calls from NCCL."),
    COUNT(nb_func_stats, sent_bytes, "sent_bytes_total",
          "Bytes of values sent to other nodes, before coding."),
    COUNT(nb_func_stats, wire_bytes, "wire_bytes_total", "The same as sent, with headers."),
    COUNT(nb_func_stats, would_be_bytes, "would_be_bytes_total",
          "All-gathers in shadow mode: as they would be sent."),
    COMPUTED(ratio_of_func, "compression_ratio", "sent_bytes_total over wire_bytes_total."),
    COUNT(nb_func_stats, units, "messages_total", "Messages sent."),
    COUNT(nb_func_stats, raw_units, "raw_messages_total", "Of these, raw."),
    COUNT(nb_func_stats, unchanged_units, "unchanged_messages_total",
          "Of these, a header only: the segment was unchanged."),
};

static double value_of(const void *v)
{
    return (double)*(const uint64_t *)v;
}

static const struct metric of_reason[] = {
    COMPUTED(value_of, "raw_operations_total", "Operations sent raw, by the reason."),
};

static const struct metric of_record[] = {
    COMPUTED(value_of, "records_total", "Operations by how certain it is which call of the job they are."),
};

static double one(const void *v)
{
    (void)v;
    return 1;
}

static const struct metric of_late[] = {
    COMPUTED(one, "late_peer", "1 for each node that the oldest open window waits for at present."),
};

static const struct metric of_waited[] = {
    COMPUTED(value_of, "waited_for_total",
             "Of wait_checks_total: the oldest open window lacked data of this node and had those of half of "
             "the nodes or more. The 16 nodes with most."),
};

static double nmse_of_signature(const void *v)
{
    return nb_figures_nmse(&((const struct nb_sig_report *)v)->encode);
}
static double carried_of_signature(const void *v)
{
    return nb_figures_carried(&((const struct nb_sig_report *)v)->encode);
}
static double ratio_of_signature(const void *v)
{
    const struct nb_sig_report *r = v;

    return nb_figures_ratio(r->bytes, r->wire_bytes);
}
static double sum_nmse_of_signature(const void *v)
{
    return ((const struct nb_sig_report *)v)->sum_nmse;
}
static double hop_nmse_of_signature(const void *v)
{
    return ((const struct nb_sig_report *)v)->hop_nmse;
}
static double fallen_back(const void *v)
{
    return ((const struct nb_sig_report *)v)->fallen_back;
}

static const struct metric of_signature[] = {
    COUNT(nb_sig_report, ops, "signature_operations_total", "Operations of the signature."),
    COUNT(nb_sig_report, coded, "signature_coded_operations_total", "Of these, coded."),
    COUNT(nb_sig_report, with_feedback, "signature_feedback_operations_total",
          "Of these, with error feedback."),
    COUNT(nb_sig_report, bytes, "signature_bytes_total", "Bytes of values that were encoded."),
    COUNT(nb_sig_report, wire_bytes, "signature_wire_bytes_total", "The same as encoded."),
    COMPUTED(ratio_of_signature, "signature_compression_ratio", "The former over the latter."),
    COMPUTED(nmse_of_signature, "signature_code_error_ratio", "Error of the code, as code_error_ratio."),
    COMPUTED(carried_of_signature, "signature_carried_error_ratio", "Carried error, as carried_error_ratio."),
    COMPUTED(
        sum_nmse_of_signature, "signature_sum_error_ratio",
        "Error of the sums over their energy, estimated from samples. Large where contributions cancel."),
    COMPUTED(hop_nmse_of_signature, "signature_hop_error_ratio",
             "Error of the sums on the second hop over their energy. The former includes it."),
    COMPUTED(fallen_back, "signature_fallen_back", "1 when it goes on with 8 bits (NIBBLE_FALLBACK_NMSE)."),
};

static const struct metric of_signature_reason[] = {
    COMPUTED(value_of, "signature_raw_operations_total",
             "Operations of the signature sent raw, by the reason."),
};

/* ---- scopes: the subjects of metrics ----------------------------------------------------------------- */

#define LABELS 3

/* One item of a scope. */
struct item {
    const void *figure; /* read by its metrics. NULL: without figures */
    struct {
        const char *key;
        char value[160];
    } label[LABELS];
    int labels;
};

static void label(struct item *it, const char *key, const char *value)
{
    it->label[it->labels].key = key;
    snprintf(it->label[it->labels++].value, sizeof(it->label[0].value), "%s", value);
}

/* Return the name that NCCL's ncclFuncToString gives. */
static const char *collective(enum nb_func func)
{
    static const char *const name[NB_FUNC_COUNT] = {"ReduceScatter", "AllGather", "AllReduce"};

    return (unsigned)func < NB_FUNC_COUNT ? name[func] : "unknown";
}

static bool communicators(const struct nb_figures *f, unsigned i, struct item *it)
{
    it->figure = f;
    return i == 0;
}

static bool collectives(const struct nb_figures *f, unsigned i, struct item *it)
{
    if (i >= NB_FUNC_COUNT)
        return false;
    it->figure = f->stats.func[i].windows ? &f->stats.func[i] : NULL;
    label(it, "collective", collective((enum nb_func)i));
    return true;
}

static bool reasons(const struct nb_figures *f, unsigned i, struct item *it)
{
    const unsigned func = i / NB_RAW_REASON_COUNT, why = i % NB_RAW_REASON_COUNT;

    if (func >= NB_FUNC_COUNT)
        return false;
    it->figure = why != NB_CODED && f->reasons[func][why] ? &f->reasons[func][why] : NULL;
    label(it, "collective", collective((enum nb_func)func));
    label(it, "reason", nb_reason_name((enum nb_raw_reason)why));
    return true;
}

static bool records(const struct nb_figures *f, unsigned i, struct item *it)
{
    static const char *const word[NB_COLL_RECORD_OUTCOMES] = {
        [NB_ALIGN_CERTAIN] = "certain", [NB_ALIGN_ALIKE] = "alike",   [NB_ALIGN_ABSENT] = "absent",
        [NB_ALIGN_DOUBT] = "doubtful",  [NB_ALIGN_MISFIT] = "misfit",
    };

    if (i >= NB_COLL_RECORD_OUTCOMES)
        return false;
    it->figure = f->profiled ? &f->stats.records[i] : NULL;
    label(it, "outcome", word[i]);
    return true;
}

static bool late_ones(const struct nb_figures *f, unsigned i, struct item *it)
{
    char rank[16];

    if (i >= f->nlate || i >= NB_FIGURES_LATE)
        return false;
    it->figure = f;
    snprintf(rank, sizeof(rank), "%d", f->late[i]);
    label(it, "peer", rank);
    return true;
}

static bool waited_ones(const struct nb_figures *f, unsigned i, struct item *it)
{
    char rank[16];

    if (i >= f->nwaited)
        return false;
    it->figure = &f->waited[i].times;
    snprintf(rank, sizeof(rank), "%d", f->waited[i].rank);
    label(it, "peer", rank);
    return true;
}

static void label_signature(struct item *it, const struct nb_sig_report *r)
{
    char rule[128];

    nb_grad_rule_text(r->func, r->type, r->count, r->nranks, rule, sizeof(rule));
    label(it, "collective", collective(r->func));
    label(it, "signature", r->others ? "others" : rule);
}

static bool signatures(const struct nb_figures *f, unsigned i, struct item *it)
{
    if (i >= f->nsignatures)
        return false;
    it->figure = &f->signature[i];
    label_signature(it, &f->signature[i]);
    return true;
}

static bool signature_reasons(const struct nb_figures *f, unsigned i, struct item *it)
{
    const unsigned s = i / NB_RAW_REASON_COUNT, why = i % NB_RAW_REASON_COUNT;

    if (s >= f->nsignatures)
        return false;
    it->figure = why != NB_CODED && f->signature[s].reason[why] ? &f->signature[s].reason[why] : NULL;
    label_signature(it, &f->signature[s]);
    label(it, "reason", nb_reason_name((enum nb_raw_reason)why));
    return true;
}

#define SCOPE(items, metrics) \
    { \
        items, metrics, sizeof(metrics) / sizeof((metrics)[0]) \
    }

static const struct scope {
    /* Get the i-th item. Return false behind the last one. */
    bool (*item)(const struct nb_figures *f, unsigned i, struct item *it);
    const struct metric *metric;
    size_t n;
} scopes[] = {
    SCOPE(communicators, of_communicator),
    SCOPE(collectives, of_collective),
    SCOPE(reasons, of_reason),
    SCOPE(records, of_record),
    SCOPE(late_ones, of_late),
    SCOPE(waited_ones, of_waited),
    SCOPE(signatures, of_signature),
    SCOPE(signature_reasons, of_signature_reason),
};
#define SCOPES (sizeof(scopes) / sizeof(scopes[0]))

/* ---- text -------------------------------------------------------------------------------------------- */

/* Write a text between quotes. The format takes UTF-8 only, and NCCL's names are any bytes, cut anywhere:
 * control characters become blanks, and bytes outside ASCII question marks. */
static void put_text(FILE *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        const unsigned char c = (unsigned char)*p;

        if (c == '"' || c == '\\')
            fputc('\\', out);
        fputc(c < ' ' || c == 0x7f ? ' ' : c > 0x7f ? '?' : c, out);
    }
}

/* Return whether a figure is a known number. */
static bool is_known(const struct metric *m, const void *figure)
{
    return !m->of || (m->of(figure) >= 0 && isfinite(m->of(figure)));
}

static void put_value(FILE *out, const struct metric *m, const void *figure)
{
    double value;

    if (!m->of) {
        fprintf(out, "%" PRIu64, *(const uint64_t *)((const char *)figure + m->at));
        return;
    }
    value = m->of(figure);
    fprintf(out, value < 1e15 && value == (double)(uint64_t)value ? "%.0f" : "%.9g", value);
}

/* Labels of a communicator. */
static void put_labels(FILE *out, const struct nb_metrics_process *p, const struct nb_figures *f)
{
    char gpu[16] = "unknown", nranks[16] = "unknown";

    if (f->gpu >= 0)
        snprintf(gpu, sizeof(gpu), "GPU%d", f->gpu);
    if (f->info.nranks)
        snprintf(nranks, sizeof(nranks), "%" PRIu32, f->info.nranks);
    fputs("slurm_job_id=\"", out);
    put_text(out, p->job);
    fputs("\",node=\"", out);
    put_text(out, p->host);
    fprintf(out, "\",pid=\"%s\",gpu=\"%s\",comm_name=\"", p->process, gpu);
    put_text(out, f->info.name[0] ? f->info.name : "unknown");
    fprintf(out,
            "\",comm=\"0x%" PRIx64
            "\",serial=\"%u\",dev=\"%d\",n_nodes=\"%d\",node_rank=\"%d\",nranks=\"%s\"",
            f->comm_id, f->serial, f->dev, f->nnodes, f->rank, nranks);
}

static void put_sample(FILE *out, const struct nb_metrics_process *p, const struct nb_figures *f,
                       const struct metric *m, const struct item *it, bool *headed)
{
    if (!is_known(m, it->figure))
        return;
    if (!*headed)
        fprintf(out, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", m->name, m->help, m->name,
                is_counter(m) ? "counter" : "gauge");
    *headed = true;
    fprintf(out, "nibble_%s{", m->name);
    put_labels(out, p, f);
    for (int i = 0; i < it->labels; i++) {
        fprintf(out, ",%s=\"", it->label[i].key);
        put_text(out, it->label[i].value);
        fputc('"', out);
    }
    fputs("} ", out);
    put_value(out, m, it->figure);
    fputc('\n', out);
}

/* Write one metric of the process. `labels` stand behind the common ones, `value` behind the brackets. `help`
 * is NULL for further values of a metric. */
static void put_of_process(FILE *out, const struct nb_metrics_process *p, const char *name, const char *help,
                           const char *labels, const char *value)
{
    const struct metric m = {.name = name};

    if (help)
        fprintf(out, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", name, help, name,
                is_counter(&m) ? "counter" : "gauge");
    fprintf(out, "nibble_%s{slurm_job_id=\"", name);
    put_text(out, p->job);
    fprintf(out, "\",node=\"");
    put_text(out, p->host);
    fprintf(out, "\",pid=\"%s\"%s} %s\n", p->process, labels, value);
}

static void put_count(FILE *out, const struct nb_metrics_process *p, const char *name, const char *help,
                      uint64_t count)
{
    char value[24];

    snprintf(value, sizeof(value), "%" PRIu64, count);
    put_of_process(out, p, name, help, "", value);
}

static void put_past(FILE *out, const struct nb_metrics_process *p)
{
    static const char *const way[NB_PAST_WAYS] = {"copy_engines", "kernels"};
    const char *help = "Operations that NCCL carries out past CollNet, on communicators of several nodes.";

    for (int w = 0; w < NB_PAST_WAYS; w++)
        for (int f = 0; f < NB_PAST_COUNT; f++) {
            char labels[64], value[24];
            if (!p->past[w][f])
                continue;
            snprintf(labels, sizeof(labels), ",collective=\"%s\",way=\"%s\"",
                     f == NB_PAST_ALL_TO_ALL ? "AlltoAll" : collective((enum nb_func)f), way[w]);
            snprintf(value, sizeof(value), "%" PRIu64, p->past[w][f]);
            put_of_process(out, p, "past_collnet_operations_total", help, labels, value);
            help = NULL;
        }
}

void nb_metrics_prometheus(FILE *out, const struct nb_metrics_process *p,
                           const struct nb_figures *const *figures, unsigned n)
{
    char text[128];

    snprintf(text, sizeof(text), ",version=\"%s\"", nb_version_with_commit());
    put_of_process(out, p, "info", "Version of the plugin.", text, "1");
    snprintf(text, sizeof(text), "%.3f", p->time);
    put_of_process(out, p, "written_timestamp_seconds", "When this file was written.", "", text);
    put_count(out, p, "p2p_delta_messages_total", "Point-to-point messages sent as exact deltas.",
              p->delta_messages);
    put_count(out, p, "p2p_delta_bytes_total", "Bytes of these messages.", p->delta_bytes);
    put_count(out, p, "p2p_delta_wire_bytes_total", "Bytes of their deltas.", p->delta_wire_bytes);
    put_count(out, p, "puts_total", "One-sided puts to other nodes, of gathers by copy engines and others.",
              p->puts);
    put_count(out, p, "put_bytes_total", "Bytes of these puts.", p->put_bytes);
    put_past(out, p);
    for (size_t s = 0; s < SCOPES; s++)
        for (size_t k = 0; k < scopes[s].n; k++) {
            bool headed = false;
            for (unsigned c = 0; c < n; c++)
                for (unsigned i = 0;; i++) {
                    struct item it = {.labels = 0};
                    if (!scopes[s].item(figures[c], i, &it))
                        break;
                    if (it.figure)
                        put_sample(out, p, figures[c], &scopes[s].metric[k], &it, &headed);
                }
        }
}
