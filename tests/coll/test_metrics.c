/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics as text: a strict reader of Prometheus' exposition format accepts them, whatever the name of a
 * communicator. Values equal the figures. No series appears twice.
 */
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/report/internal.h"
#include "tests/suite.h"

static const struct nb_metrics_process process = {
    .host = "n01",
    .job = "77",
    .process = "4711",
    .time = 1700000000.25,
    .delta_bytes = 640,
    .past = {[NB_PAST_COPIES] = {[NB_FUNC_ALL_GATHER] = 4, [NB_PAST_ALL_TO_ALL] = 2},
             [NB_PAST_KERNELS] = {[NB_FUNC_REDUCE_SCATTER] = 1}}};

/* Return a communicator with some of everything. */
static struct nb_figures *some(unsigned serial, const char *name)
{
    struct nb_figures *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    f->serial = serial;
    f->comm_id = 0xabcdef;
    f->rank = 1;
    f->nnodes = 4;
    f->gpu = serial == 1 ? 3 : -1;
    f->info.nranks = serial == 1 ? 32 : 0;
    snprintf(f->info.name, sizeof(f->info.name), "%s", name);
    f->profiled = true;
    f->stats.func[NB_FUNC_ALL_REDUCE] = (struct nb_func_stats){
        .ops = 12, .coded_ops = 10, .windows = 24, .sent_bytes = 1000, .wire_bytes = 250};
    f->stats.func[NB_FUNC_ALL_GATHER] = (struct nb_func_stats){.ops = UINT64_MAX, .windows = 1};
    f->stats.busy_ns = 4000000000;
    f->stats.worked_ns = 1000000000;
    f->stats.encode = (struct nb_encode_stats){.values = 5, .signal2 = 8, .noise2 = 1, .carried2 = 2};
    f->stats.records[0] = 9;
    f->reasons[NB_FUNC_ALL_REDUCE][NB_RAW_WARMUP] = 2;
    f->nsignatures = 2;
    f->signature[0] = (struct nb_sig_report){
        .func = NB_FUNC_ALL_REDUCE, .type = ncclFloat32, .count = 100, .nranks = 32, .ops = 12, .coded = 10};
    f->signature[0].reason[NB_RAW_WARMUP] = 2;
    f->signature[0].encode = (struct nb_encode_stats){.signal2 = 1, .noise2 = HUGE_VAL, .carried2 = NAN};
    f->signature[1] = (struct nb_sig_report){.func = NB_FUNC_REDUCE_SCATTER, .others = 1, .ops = 1};
    f->nlate = 2;
    f->nwaited = 1;
    f->waited[0].rank = 5;
    f->waited[0].times = 7;
    f->late[0] = 0;
    f->late[1] = 3;
    f->waited_ns = 1500000000;
    f->retransmits = serial == 1 ? 6 : UINT64_MAX;
    return f;
}

static char *text_of(unsigned n, const char *name)
{
    struct nb_figures *list[] = {some(1, name), some(2, name)};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    nb_metrics_prometheus(out, &process, (const struct nb_figures *const *)list, n);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_uint_eq(strlen(text), bytes);
    free(list[0]);
    free(list[1]);
    return text;
}

/* ---- the exposition format ----------------------------------------------------------------------------- */

/* Take the name of a metric or label, which must not be empty. */
static const char *take_name(const char *p, char *name, size_t cap)
{
    size_t n = 0;

    ck_assert(isalpha((unsigned char)*p) || *p == '_');
    while (isalnum((unsigned char)*p) || *p == '_') {
        ck_assert_uint_lt(n + 1, cap);
        name[n++] = *p++;
    }
    name[n] = 0;
    return p;
}

static const char *take_quoted(const char *p)
{
    ck_assert_int_eq(*p++, '"');
    while (*p != '"') {
        ck_assert_int_ge((unsigned char)*p, ' ');
        ck_assert_int_lt((unsigned char)*p, 0x7f);
        if (*p == '\\') {
            p++;
            ck_assert(*p == '\\' || *p == '"' || *p == 'n');
        }
        p++;
    }
    return p + 1;
}

static const char *take_number(const char *p)
{
    char *end;

    ck_assert(isdigit((unsigned char)*p));
    strtod(p, &end);
    return end;
}

/* Read one family after the other. Each has help and type before its samples, and comes once. Return the
 * number of samples. */
static unsigned read_exposition(char *text)
{
    static char families[200][96], series[4000][1024];
    unsigned nfamilies = 0, nseries = 0, samples = 0;
    char name[96] = "", type[16] = "", other[96];

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const char *p = line;

        if (strncmp(line, "# HELP ", 7) == 0) {
            p = take_name(line + 7, name, sizeof(name));
            ck_assert_int_eq(*p, ' ');
            ck_assert_uint_gt(strlen(p), 10);
            for (unsigned i = 0; i < nfamilies; i++)
                ck_assert_str_ne(families[i], name);
            ck_assert_uint_lt(nfamilies, 200);
            strcpy(families[nfamilies++], name);
            type[0] = 0;
            continue;
        }
        if (strncmp(line, "# TYPE ", 7) == 0) {
            p = take_name(line + 7, other, sizeof(other));
            ck_assert_str_eq(other, name);
            ck_assert(strcmp(p, " counter") == 0 || strcmp(p, " gauge") == 0);
            snprintf(type, sizeof(type), "%s", p + 1);
            ck_assert(strcmp(type, "gauge") == 0 || strcmp(name + strlen(name) - 6, "_total") == 0);
            continue;
        }
        p = take_name(p, other, sizeof(other));
        ck_assert_str_eq(other, name);
        ck_assert(type[0]);
        ck_assert_int_eq(*p++, '{');
        for (;;) {
            p = take_name(p, other, sizeof(other));
            ck_assert_int_eq(*p++, '=');
            p = take_quoted(p);
            if (*p == '}')
                break;
            ck_assert_int_eq(*p++, ',');
        }
        p++;
        snprintf(series[nseries], sizeof(series[0]), "%.*s", (int)(p - line), line);
        for (unsigned i = 0; i < nseries; i++)
            ck_assert_str_ne(series[i], series[nseries]);
        ck_assert_uint_lt(++nseries, 4000);
        ck_assert_int_eq(*p++, ' ');
        ck_assert_int_eq(*take_number(p), 0);
        samples++;
    }
    return samples;
}

static const char *const names[] = {"", "tp_cp", "a \"quoted\" \\ name\n# HELP x y\t{}\x01\x7f",
                                    "\xc3\xa9tage"};

START_TEST(exposition_is_strict)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (unsigned n = 0; n <= 2; n++) {
            char *text = text_of(n, names[i]);
            ck_assert_uint_eq(text[strlen(text) - 1], '\n');
            ck_assert_uint_ge(read_exposition(text), n ? 60 * n : 2);
            free(text);
        }
    }
}
END_TEST

#define OF_1 \
    "{slurm_job_id=\"77\",node=\"n01\",pid=\"4711\",gpu=\"GPU3\",comm_name=\"dp\",comm=\"0xabcdef\",serial=" \
    "\"1\"," \
    "dev=\"0\",n_nodes=\"4\",node_rank=\"1\",nranks=\"32\""

/* Every reason for raw has its own word, and operations in types that are never coded do not all become one
 * series. */
START_TEST(labels_tell_apart)
{
    struct nb_figures *f = some(1, "");
    const struct nb_figures *list[] = {f};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    for (int why = NB_CODED + 1; why < NB_RAW_REASON_COUNT; why++)
        f->reasons[NB_FUNC_ALL_REDUCE][why] = 1;
    f->signature[0].type = ncclInt64;
    f->signature[1] = f->signature[0];
    f->signature[1].type = ncclFloat64;
    nb_metrics_prometheus(out, &process, list, 1);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_null(strstr(text, "reason=\"unknown\""));
    ck_assert_ptr_nonnull(strstr(text, "signature=\"all_reduce:int64:100@32\""));
    ck_assert_ptr_nonnull(strstr(text, "signature=\"all_reduce:float64:100@32\""));
    read_exposition(text);
    free(text);
    free(f);
}
END_TEST

START_TEST(values_are_those_of_the_figures)
{
    static const char *const lines[] = {
        "nibble_operations_total" OF_1 ",collective=\"AllReduce\"} 12\n",
        "nibble_operations_total" OF_1 ",collective=\"AllGather\"} 18446744073709551615\n",
        "nibble_compression_ratio" OF_1 ",collective=\"AllReduce\"} 4\n",
        "nibble_busy_seconds_total" OF_1 "} 4\n",
        "nibble_processor_share" OF_1 "} 0.25\n",
        "nibble_waiting_share" OF_1 "} 0.75\n",
        "nibble_waited_seconds" OF_1 "} 1.5\n",
        "nibble_code_error_ratio" OF_1 "} 0.125\n",
        "nibble_carried_error_ratio" OF_1 "} 0.25\n",
        "nibble_raw_operations_total" OF_1 ",collective=\"AllReduce\",reason=\"warmup\"} 2\n",
        "nibble_signature_coded_operations_total" OF_1
        ",collective=\"AllReduce\",signature=\"all_reduce:float32:100@32\"} 10\n",
        "nibble_signature_raw_operations_total" OF_1
        ",collective=\"AllReduce\",signature=\"all_reduce:float32:100@32\",reason=\"warmup\"} 2\n",
        "nibble_signature_operations_total" OF_1 ",collective=\"ReduceScatter\",signature=\"others\"} 1\n",
        "nibble_late_peer" OF_1 ",peer=\"3\"} 1\n",
        "nibble_records_total" OF_1 ",outcome=\"certain\"} 9\n",
        "nibble_transport_retransmits_total" OF_1 "} 6\n",
        "gpu=\"unknown\",comm_name=\"dp\",comm=\"0xabcdef\",serial=\"2\",dev=\"0\",n_nodes=\"4\",node_rank="
        "\"1\","
        "nranks=\"unknown\"} ",
        "nibble_p2p_delta_bytes_total{slurm_job_id=\"77\",node=\"n01\",pid=\"4711\"} 640\n",
        "nibble_written_timestamp_seconds{slurm_job_id=\"77\",node=\"n01\",pid=\"4711\"} 1700000000.250\n",
    };
    char *text = text_of(2, "dp");
    const char *at;

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(strstr(text, lines[i]) != NULL, "not there: %s", lines[i]);
    /* Unknown values are missing: retransmits of the second communicator, a collective without calls, and
     * NaN. */
    ck_assert_ptr_null(strstr(text, "nibble_signature_carried_error_ratio" OF_1 ",collective=\"AllReduce\""));
    at = strstr(text, "nibble_transport_retransmits_total{");
    ck_assert_ptr_nonnull(at);
    ck_assert_ptr_null(strstr(at + 1, "nibble_transport_retransmits_total{"));
    ck_assert_ptr_null(strstr(text, "collective=\"ReduceScatter\"} "));
    free(text);
}
END_TEST

/* ---- documents
 * ------------------------------------------------------------------------------------------ */

static char *read_source(const char *name)
{
    const char *dir = getenv("NB_SRCDIR");
    char path[512], *text;
    FILE *f;
    size_t n;

    snprintf(path, sizeof(path), "%s/%s", dir ? dir : ".", name);
    f = fopen(path, "re");
    if (!f)
        return NULL;
    text = calloc(1, 1 << 20);
    ck_assert_ptr_nonnull(text);
    n = fread(text, 1, (1 << 20) - 1, f);
    ck_assert_uint_gt(n, 0);
    fclose(f);
    return text;
}

/* Every metric is in the table of docs/operators.md. Every metric that the table, the dashboard and the
 * alerts name exists. */
START_TEST(documents)
{
    static const char *const files[] = {"docs/operators.md", "tools/grafana/nibble.json",
                                        "tools/grafana/nibble-alerts.yml"};
    char *text = text_of(1, "dp"), name[128], find[160];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *page = read_source(files[i]);
        if (!page) { /* run by hand, in another folder */
            free(text);
            return;
        }
        for (const char *p = page; (p = strstr(p, "nibble_"));) {
            p = take_name(p, name, sizeof(name));
            if (strcmp(name, "nibble_nccl") == 0) /* the wheel's module */
                continue;
            snprintf(find, sizeof(find), "\n# TYPE %s ", name);
            ck_assert_msg(strstr(text, find) != NULL, "%s has %s, which is no metric", files[i], name);
        }
        for (const char *p = text; i == 0 && (p = strstr(p, "# TYPE "));) {
            p = take_name(p + 7, name, sizeof(name));
            snprintf(find, sizeof(find), "`%s`", name);
            ck_assert_msg(strstr(page, find) != NULL, "%s does not have %s", files[i], name);
        }
        free(page);
    }
    free(text);
}
END_TEST

SUITE_MAIN("coll/metrics", TEST(exposition_is_strict), TEST(labels_tell_apart),
           TEST(values_are_those_of_the_figures), TEST(documents))
