/* SPDX-License-Identifier: Apache-2.0 */
/* See report.h. */
#include "report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/info/emit.h"
#include "tools/output.h"

static const char *const words[] = {"ok", "warning", "problem"};
static const enum output_colour colours[] = {OUTPUT_GREEN, OUTPUT_YELLOW, OUTPUT_RED};

void say(struct report *report, enum status status, const char *subject, const char *remedy,
         const char *found, ...)
{
    va_list ap;

    if (report->n == report->cap) {
        const size_t cap = report->cap ? 2 * report->cap : 64;
        struct check *more = realloc(report->check, cap * sizeof(*more));
        if (!more) {
            report->lost = true;
            return;
        }
        report->check = more;
        report->cap = cap;
    }
    struct check *c = &report->check[report->n++];
    *c = (struct check){.status = status, .subject = subject};
    memcpy(c->where, report->where, sizeof(c->where));
    snprintf(c->remedy, sizeof(c->remedy), "%s", remedy ? remedy : "");
    va_start(ap, found);
    vsnprintf(c->found, sizeof(c->found), found, ap);
    va_end(ap);
    for (size_t i = 0; i + 1 < report->n; i++)
        if (report->check[i].status == status && strcmp(report->check[i].subject, subject) == 0 &&
            strcmp(report->check[i].where, c->where) == 0 && strcmp(report->check[i].found, c->found) == 0) {
            report->n--; /* the plugin may say the same at several occasions */
            return;
        }
}

void say_remedy(struct report *report, const char *remedy, ...)
{
    va_list ap;

    if (!report->n || report->lost)
        return;
    struct check *c = &report->check[report->n - 1];
    va_start(ap, remedy);
    vsnprintf(c->remedy, sizeof(c->remedy), remedy, ap);
    va_end(ap);
}

static int count(const struct report *report, enum status status)
{
    int n = 0;

    for (size_t i = 0; i < report->n; i++)
        n += report->check[i].status == status;
    return n;
}

enum status report_status(const struct report *report)
{
    if (report->lost || count(report, STATUS_PROBLEM))
        return STATUS_PROBLEM;
    return count(report, STATUS_WARNING) ? STATUS_WARNING : STATUS_OK;
}

static void show_text(const struct report *report, FILE *out)
{
    for (size_t i = 0; i < report->n; i++) {
        const struct check *c = &report->check[i];
        fprintf(out, "%s%-8s%s %-12s %s%s%s\n", output_colour(out, colours[c->status]), words[c->status],
                output_colour(out, OUTPUT_PLAIN), c->subject, c->where, *c->where ? ": " : "", c->found);
        if (*c->remedy)
            fprintf(out, "%-8s %-12s -> %s\n", "", "", c->remedy);
    }
}

static void show_json(const struct report *report, struct emit *e)
{
    emit_section(e, "checks", "checks");
    for (size_t i = 0; i < report->n; i++) {
        const struct check *c = &report->check[i];
        emit_row(e);
        emit_text(e, "status", words[c->status]);
        emit_text(e, "subject", c->subject);
        emit_text(e, "where", c->where);
        emit_text(e, "found", c->found);
        emit_text(e, "remedy", *c->remedy ? c->remedy : NULL);
    }
}

int report_show(const struct report *report, FILE *out, bool json, const char *version, const char *scope)
{
    const int problems = count(report, STATUS_PROBLEM), warnings = count(report, STATUS_WARNING);
    struct emit e;

    if (json) {
        emit_begin(&e, out, true);
        emit_section(&e, "doctor", "nibble-doctor");
        emit_row(&e);
        emit_text(&e, "version", version);
        emit_text(&e, "scope", scope);
        emit_text(&e, "status", words[report_status(report)]);
        emit_number(&e, "problems", problems);
        emit_number(&e, "warnings", warnings);
        emit_flag(&e, "whole", !report->lost);
        show_json(report, &e);
        return emit_end(&e);
    }
    fprintf(out, "nibble-doctor %s: %s\n", version, scope);
    show_text(report, out);
    if (report->lost)
        fputs("problem  memory       not all checks could be kept\n", out);
    fprintf(out, "%d problem%s, %d warning%s\n", problems, problems == 1 ? "" : "s", warnings,
            warnings == 1 ? "" : "s");
    return fflush(out) || ferror(out) ? -1 : 0;
}

void report_free(struct report *report)
{
    free(report->check);
    *report = (struct report){0};
}
