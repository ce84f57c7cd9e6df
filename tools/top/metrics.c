/* SPDX-License-Identifier: Apache-2.0 */
/* See metrics.h. */
#include "metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copy the value of a label, "" where there is none. A backslash precedes quotes and backslashes in it. */
static void label(const char *labels, const char *key, char *out, size_t cap)
{
    const size_t len = strlen(key);
    size_t n = 0;

    for (const char *at = labels; (at = strstr(at, key)); at += len) {
        if ((at != labels && at[-1] != ',' && at[-1] != '{') || at[len] != '=' || at[len + 1] != '"')
            continue;
        for (at += len + 2; *at && *at != '"' && n + 1 < cap; at++) {
            at += *at == '\\' && at[1];
            out[n++] = *at;
        }
        break;
    }
    out[n] = '\0';
}

static int number(const char *labels, const char *key)
{
    char text[24];

    label(labels, key, text, sizeof(text));
    return atoi(text);
}

/* Return the communicator of these labels, a new one where it is not known yet. NULL: out of memory. */
static struct top_comm *comm_of(struct top_process *p, const char *labels)
{
    const int serial = number(labels, "serial");
    struct top_comm *more, *c;

    for (int i = 0; i < p->n; i++)
        if (p->comm[i].serial == serial)
            return &p->comm[i];
    more = realloc(p->comm, ((size_t)p->n + 1) * sizeof(*more));
    if (!more)
        return NULL;
    p->comm = more;
    c = &more[p->n++];
    *c = (struct top_comm){
        .serial = serial, .nodes = number(labels, "n_nodes"), .node = number(labels, "node_rank")};
    label(labels, "comm", c->id, sizeof(c->id));
    label(labels, "comm_name", c->name, sizeof(c->name));
    return c;
}

static void take(struct top_comm *c, const char *name, const char *labels, double value)
{
    const struct {
        const char *name;
        double *sum;
    } sums[] = {{"operations_total", &c->operations}, {"coded_operations_total", &c->coded},
                {"sent_bytes_total", &c->bytes},      {"wire_bytes_total", &c->wire},
                {"code_error_ratio", &c->error},      {"processor_share", &c->processor},
                {"waiting_share", &c->waiting},       {"waited_seconds", &c->waited_s},
                {"wait_checks_total", &c->checks}};
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"failed", &c->failed}, {"closed", &c->closed}, {"compression_off", &c->off}};

    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        if (strcmp(name, sums[i].name) == 0)
            *sums[i].sum += value;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (strcmp(name, flags[i].name) == 0)
            *flags[i].flag = value != 0;
    if (strcmp(name, "waited_for_total") == 0 && c->nwaited < TOP_WAITED) {
        c->waited[c->nwaited].peer = number(labels, "peer");
        c->waited[c->nwaited++].times = value;
    }
}

/* Take a line "nibble_NAME{LABELS} VALUE". */
static bool take_line(struct top_process *p, char *line)
{
    static const char prefix[] = "nibble_";
    char *labels = strchr(line, '{'), *end = strrchr(line, '}');
    struct top_comm *c;

    if (strncmp(line, prefix, sizeof(prefix) - 1) != 0 || !labels || !end || end < labels)
        return true; /* a comment */
    *labels++ = '\0';
    *end++ = '\0';
    line += sizeof(prefix) - 1;
    if (strcmp(line, "info") == 0) {
        label(labels, "pid", p->pid, sizeof(p->pid));
        label(labels, "node", p->host, sizeof(p->host));
        label(labels, "slurm_job_id", p->job, sizeof(p->job));
        label(labels, "version", p->version, sizeof(p->version));
        return true;
    }
    if (strcmp(line, "written_timestamp_seconds") == 0) {
        p->time = atof(end);
        return true;
    }
    c = comm_of(p, labels);
    if (c)
        take(c, line, labels, atof(end));
    return c != NULL;
}

bool top_read(char *text, struct top_process *out)
{
    char *line;

    *out = (struct top_process){0};
    while ((line = strsep(&text, "\n")))
        if (!take_line(out, line)) {
            top_free(out);
            return false;
        }
    return true;
}

void top_free(struct top_process *process)
{
    free(process->comm);
    *process = (struct top_process){0};
}
