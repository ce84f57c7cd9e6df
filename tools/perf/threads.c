/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf coll --threads: the same operations with several numbers of codec threads, in turns, so that
 * other load of the machine hits all of them alike.
 */
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "tests/harness/lib/harness.h"

#define MOST_COUNTS 16
#define MOST_ROWS 256 /* kinds, types and sizes of operations */

struct measured {
    struct perf_row row;
    double seconds[PERF_MOST_REPETITIONS], engine_us[PERF_MOST_REPETITIONS], codec_us[PERF_MOST_REPETITIONS];
};

struct table {
    int counts[MOST_COUNTS], ncounts;
    size_t rows;         /* rows of each count */
    struct measured *at; /* [MOST_ROWS][ncounts] */
};

static bool parse(const char *list, struct table *t)
{
    double count[MOST_COUNTS];

    t->ncounts = perf_numbers("--threads", list, 0, 64, count, MOST_COUNTS);
    for (int i = 0; i < t->ncounts; i++) {
        t->counts[i] = (int)count[i];
        if (count[i] != t->counts[i]) {
            fprintf(stderr, "nibble-perf: --threads: %g is no whole number\n", count[i]);
            return false;
        }
    }
    return t->ncounts > 0;
}

static int one_job(struct hx_job job, const struct perf_run *run, struct table *t, int count, int turn)
{
    struct perf_run once = *run;
    struct hx_report *report = NULL;
    char setting[40];
    uint64_t n = 0;
    int status;

    snprintf(setting, sizeof(setting), "NIBBLE_HOST_THREADS=%d", t->counts[count]);
    once.env[once.nenv] = setting;
    once.repetitions = 1;
    once.quiet = true;
    job.arg = &once;
    job.env = once.env;
    status = hx_job_run(&job, &report);
    if (status == 0) {
        n = perf_rows_of(report, NULL, 0);
        n = n < MOST_ROWS ? n : MOST_ROWS;
        for (uint64_t i = 0; i < n; i++) {
            struct measured *m = &t->at[i * (uint64_t)t->ncounts + (uint64_t)count];
            perf_rows_of(report, &m->row, i);
            m->seconds[turn] = 1e-6 * m->row.time_us;
            m->engine_us[turn] = m->row.engine_us;
            m->codec_us[turn] = m->row.codec_us;
        }
        t->rows = n;
    } else if (report && report->reason[0]) {
        fprintf(stderr, "nibble-perf: %s\n", report->reason);
    }
    hx_report_free(report);
    return status;
}

/* Return the time that the busiest thread of a node needs for an operation: its least duration with enough
 * processors. */
static double busiest_us(double engine_us, double codec_us, int threads)
{
    const double each = threads ? codec_us / threads : 0;

    return engine_us > each ? engine_us : each;
}

static void tell(const struct table *t, int turns, struct perf_json *json)
{
    const size_t n = (size_t)turns;

    printf("%-15s %-9s %5s %12s %7s %12s %12s %12s %7s %10s %10s %7s\n", "op", "type", "nodes", "bytes",
           "threads", "time(us)", "least", "most", "faster", "engine(us)", "codec(us)", "allows");
    for (size_t i = 0; i < t->rows; i++) {
        double first_us = 0, first_busiest = 0;
        for (int c = 0; c < t->ncounts; c++) {
            struct measured *m = &t->at[i * (size_t)t->ncounts + (size_t)c];
            const double us = 1e6 * perf_median(m->seconds, n); /* the seconds are sorted */
            const double engine = perf_median(m->engine_us, n), codec = perf_median(m->codec_us, n);
            const double busiest = busiest_us(engine, codec, t->counts[c]);
            if (c == 0) {
                first_us = us;
                first_busiest = busiest;
            }
            printf("%-15s %-9s %5d %12llu %7d %12.1f %12.1f %12.1f %7.2f %10.1f %10.1f %7.2f\n", m->row.op,
                   m->row.type, m->row.nodes, (unsigned long long)m->row.bytes, t->counts[c], us,
                   1e6 * m->seconds[0], 1e6 * m->seconds[n - 1], first_us / us, engine, codec,
                   first_busiest / busiest);
            perf_json_begin(json);
            perf_json_text(json, "op", m->row.op);
            perf_json_text(json, "type", m->row.type);
            perf_json_number(json, "nodes", m->row.nodes);
            perf_json_number(json, "bytes", (double)m->row.bytes);
            perf_json_number(json, "threads", t->counts[c]);
            perf_json_number(json, "time_us", us);
            perf_json_number(json, "min_us", 1e6 * m->seconds[0]);
            perf_json_number(json, "max_us", 1e6 * m->seconds[n - 1]);
            perf_json_number(json, "faster", first_us / us);
            perf_json_number(json, "engine_us", engine);
            perf_json_number(json, "codec_us", codec);
            perf_json_number(json, "allows", first_busiest / busiest);
            perf_json_end(json);
        }
    }
}

int perf_threads(const struct hx_job *job, const struct perf_run *run)
{
    struct table t = {0};
    struct perf_json *json;
    int status = 0;

    if (!parse(run->threads, &t))
        return 2;
    t.at = calloc((size_t)MOST_ROWS * (size_t)t.ncounts, sizeof(*t.at));
    if (!t.at || !perf_json_open(run->json, &json)) {
        free(t.at);
        return 1;
    }
    for (int turn = 0; turn < run->repetitions && !status; turn++)
        for (int c = 0; c < t.ncounts && !status; c++)
            status = one_job(*job, run, &t, c, turn);
    if (!status)
        tell(&t, run->repetitions, json);
    free(t.at);
    return perf_json_close(json) || status ? (status ? status : 1) : 0;
}
