/* SPDX-License-Identifier: Apache-2.0 */
/* Read hang reports. A file may hold anything: the reader reports a malformed one and ignores it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hang.h"

#define MOST_BYTES (64l << 20)

static char problem[200];

/* ---- fields -------------------------------------------------------------------------------------------- */

/* Get the value of ` KEY=` in a line, without quotes, or "". */
static void field(const char *line, const char *key, char *value, size_t cap)
{
    const size_t n = strlen(key);
    const char *p = line;
    size_t len;

    value[0] = 0;
    while ((p = strchr(p, ' '))) {
        p++;
        if (strncmp(p, key, n) == 0 && p[n] == '=') {
            p += n + 1;
            len = *p == '"' ? strcspn(++p, "\"") : strcspn(p, " ");
            snprintf(value, cap, "%.*s", (int)len, p);
            return;
        }
        p += strcspn(p, "= ");
        if (p[0] == '=' && p[1] == '"') { /* blanks within quotes belong to the value */
            p += 2 + strcspn(p + 2, "\"");
            p += *p == '"';
        }
    }
}

static uint64_t whole(const char *line, const char *key, int base)
{
    char value[32];

    field(line, key, value, sizeof(value));
    return strtoull(value, NULL, base);
}

static double number(const char *line, const char *key)
{
    char value[32];

    field(line, key, value, sizeof(value));
    return strtod(value, NULL);
}

static bool yes(const char *line, const char *key)
{
    char value[8];

    field(line, key, value, sizeof(value));
    return strcmp(value, "yes") == 0;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

void *list_more(void **list, int n, size_t size)
{
    /* A list of 1, 2, 4, ... elements is full. */
    char *grown = n & (n - 1) ? *list : realloc(*list, (n ? 2 * (size_t)n : 1) * size);

    if (!grown)
        return NULL;
    *list = grown;
    return memset(grown + (size_t)n * size, 0, size);
}

static bool take_comm(struct process *p, const char *line)
{
    struct comm *c = list_more((void **)&p->comm, p->ncomms, sizeof(*c));

    if (!c)
        return false;
    p->ncomms++;
    c->id = whole(line, "id", 16);
    c->group = whole(line, "group", 16);
    c->node = (int)whole(line, "node", 10);
    c->of = (int)whole(line, "of", 10);
    field(line, "state", c->state, sizeof(c->state));
    field(line, "name", c->name, sizeof(c->name));
    field(line, "cause", c->cause, sizeof(c->cause));
    c->submitted = whole(line, "submitted", 10);
    c->begun = whole(line, "begun", 10);
    c->oldest = whole(line, "oldest", 10);
    c->next_op = whole(line, "next_op", 10);
    return true;
}

static void take_window(struct comm *c, const char *line)
{
    c->has_window = true;
    field(line, "function", c->function, sizeof(c->function));
    c->op = whole(line, "op", 10);
    c->waited = number(line, "waited");
}

/* Keep only peers that are missing something or silent, of possibly thousands. */
static bool take_peer(struct comm *c, const char *line)
{
    const bool missing = yes(line, "missing");
    const double silent = number(line, "silent");
    struct peer *p;

    if (!missing && !(silent > SILENT_S))
        return true;
    p = list_more((void **)&c->peer, c->npeers, sizeof(*p));
    if (!p)
        return false;
    c->npeers++;
    p->node = (int)whole(line, "node", 10);
    p->missing = missing;
    p->gone = yes(line, "gone");
    p->silent = silent;
    field(line, "name", p->name, sizeof(p->name));
    return true;
}

static bool begins(const char *line, const char *word)
{
    const size_t n = strlen(word);

    return strncmp(line, word, n) == 0 && line[n] == ' ';
}

/* Return NULL, or the fault. */
static const char *parse(struct process *p, char *text)
{
    bool ended = false;
    int lines = 0;
    char *rest = text;

    for (char *line; (line = strsep(&rest, "\n")) && !ended; lines++) {
        struct comm *c = p->ncomms ? &p->comm[p->ncomms - 1] : NULL;

        if (!*line && !rest && lines) /* behind the last line's end */
            break;
        if (lines == 0) {
            if (!begins(line, "report"))
                return "not a hang report";
            if (whole(line, "format", 10) != 1)
                return "a hang report of another format, by a newer nibble";
            field(line, "host", p->host, sizeof(p->host));
            field(line, "job", p->job, sizeof(p->job));
            field(line, "why", p->why, sizeof(p->why));
            field(line, "version", p->version, sizeof(p->version));
            p->pid = (int)whole(line, "pid", 10);
            p->time = number(line, "time");
        } else if (begins(line, "engine")) {
            p->still = number(line, "still");
        } else if (begins(line, "comm")) {
            if (!take_comm(p, line))
                return "no memory";
        } else if (begins(line, "window") && c) {
            take_window(c, line);
        } else if (begins(line, "peer") && c) {
            if (!take_peer(c, line))
                return "no memory";
        } else if (begins(line, "end")) {
            ended = true;
        } else {
            return "not a hang report";
        }
    }
    return ended ? NULL : "not complete";
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void free_process(struct process *p)
{
    for (int i = 0; i < p->ncomms; i++)
        free(p->comm[i].peer);
    free(p->comm);
    free(p->file);
}

/* Return the file's bytes with a 0 behind them, or NULL with the reason in `problem`. */
static char *slurp(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    char *text = NULL;
    size_t at = 0;
    ssize_t n = 1;

    if (fd < 0 || fstat(fd, &st)) {
        snprintf(problem, sizeof(problem), "%s", strerror(errno));
    } else if (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES) {
        snprintf(problem, sizeof(problem), "not a hang report");
    } else if (!(text = malloc((size_t)st.st_size + 1))) {
        snprintf(problem, sizeof(problem), "no memory");
    } else {
        while (at < (size_t)st.st_size && (n = read(fd, text + at, (size_t)st.st_size - at)) > 0)
            at += (size_t)n;
        text[at] = 0;
        if (n < 0 || strlen(text) != at) {
            snprintf(problem, sizeof(problem), "%s", n < 0 ? strerror(errno) : "not a hang report");
            free(text);
            text = NULL;
        }
    }
    if (fd >= 0)
        close(fd);
    return text;
}

const char *reports_read(struct reports *all, const char *path)
{
    char *text = slurp(path);
    struct process *p;
    const char *wrong;

    if (!text)
        return problem;
    p = list_more((void **)&all->process, all->n, sizeof(*p));
    wrong = p ? parse(p, text) : "no memory";
    free(text);
    if (!wrong && !(p->file = strdup(path)))
        wrong = "no memory";
    if (!wrong)
        all->n++;
    else if (p)
        free_process(p);
    return wrong;
}

void reports_free(struct reports *all)
{
    for (int i = 0; i < all->n; i++)
        free_process(&all->process[i]);
    free(all->process);
    *all = (struct reports){0};
}

int reports_drop(struct reports *all, double seconds, const char *job)
{
    double newest = 0;
    int kept = 0, dropped;

    for (int i = 0; i < all->n; i++)
        if ((!job || strcmp(all->process[i].job, job) == 0) && all->process[i].time > newest)
            newest = all->process[i].time;
    for (int i = 0; i < all->n; i++) {
        if (all->process[i].time < newest - seconds || (job && strcmp(all->process[i].job, job) != 0))
            free_process(&all->process[i]);
        else
            all->process[kept++] = all->process[i];
    }
    dropped = all->n - kept;
    all->n = kept;
    return dropped;
}
