/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-hang: find the process that a stopped job waits for, by the hang reports of all nodes. */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/version.h"
#include "hang.h"
#include "tools/info/emit.h"
#include "tools/output.h"

#define MOST_ROWS 100 /* of waits and of reports, in text without --all */
#define EXIT_NONE 2
#define EXIT_WRONG 3

static const char help[] =
    "usage: nibble-hang [OPTION]... FOLDER|FILE...\n"
    "\n"
    "Name the node that holds up a job, from the hang reports that its processes have written "
    "(NIBBLE_HANG_REPORT).\n"
    "Bring the reports of all nodes to one place. \"touch FOLDER/nibble-report-now\" on each node makes new "
    "ones.\n"
    "\n"
    "  --json           one JSON object instead of text\n"
    "  --all            text: also show waits and reports beyond the first 100 lines\n"
    "  --job ID         reports of this Slurm job only\n"
    "  --least S        ignore waits of less than S seconds (default 1)\n"
    "  --within S       ignore reports more than S seconds older than the newest (default 600)\n"
    "  --version, -h, --help\n"
    "\n"
    "Exit status: 0 no process waits; 1 a process waits; 2 reports are missing, or one is unreadable; 3 a "
    "wrong call.\n";

struct call {
    bool json, all;
    const char *job;
    double least, within;
};

struct problems {
    char text[32][400];
    int n, unread;
};

__attribute__((format(printf, 2, 3))) static void note(struct problems *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n == (int)(sizeof(p->text) / sizeof(p->text[0])))
        return;
    va_start(ap, fmt);
    vsnprintf(p->text[p->n++], sizeof(p->text[0]), fmt, ap);
    va_end(ap);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void read_one(struct reports *all, struct problems *problems, const char *path)
{
    const char *wrong = reports_read(all, path);

    if (wrong) {
        note(problems, "%s: %s", path, wrong);
        problems->unread++;
    }
}

static void read_path(struct reports *all, struct problems *problems, const char *path)
{
    DIR *dir = opendir(path);
    char file[PATH_MAX];
    int n_read = 0;

    if (!dir) {
        read_one(all, problems, path);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        const size_t n = strlen(e->d_name);

        if (strncmp(e->d_name, "nibble-", 7) != 0 || n < 7 || strcmp(e->d_name + n - 7, ".report") != 0)
            continue;
        n_read++;
        if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, e->d_name) < sizeof(file))
            read_one(all, problems, file);
    }
    closedir(dir);
    if (n_read == 0)
        note(problems,
             "%s: no report in it (nibble-*.report): set NIBBLE_HANG_REPORT to a folder, or \"touch "
             "FOLDER/nibble-report-now\" in it",
             path);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

/* "comm 0x1 (name)". */
static const char *name_of(const struct comm *c, char *buf, size_t cap)
{
    snprintf(buf, cap, "comm 0x%" PRIx64 "%s%s%s", c->id, c->name[0] ? " (" : "", c->name,
             c->name[0] ? ")" : "");
    return buf;
}

/* Return the communicator in which others wait for a vertex, by its own report. */
static const struct comm *own_view(const struct vertex *v)
{
    for (int k = 0; v->process && v->comm && k < v->process->ncomms; k++) {
        const struct comm *c = &v->process->comm[k];
        if (c->id == v->comm->id && c->group == v->comm->group)
            return c;
    }
    return NULL;
}

/* Explain why it keeps others waiting, and what to do. */
static void explain(const struct vertex *v, char *buf, size_t cap)
{
    const struct comm *own = own_view(v), *c = v->comm;
    char name[120];

    name_of(c, name, sizeof(name));
    if (!v->process && v->heard > 5)
        snprintf(buf, cap,
                 "it was last heard of %.0f s ago and has written no report: stopped, gone or cut off",
                 v->heard);
    else if (!v->process)
        snprintf(buf, cap,
                 "it is alive, but has not contributed to %s %" PRIu64
                 " of %s, and there is no report of it: fetch "
                 "it, or see what its process does (py-spy, gdb)",
                 c->function, c->op, name);
    else if (v->process->silent)
        snprintf(buf, cap,
                 "it was last heard of %.0f s ago and has written nothing since: stopped, gone or cut off",
                 v->heard);
    else if (own && (strcmp(own->state, "locked") == 0 || v->process->still > 5))
        snprintf(buf, cap, "its engine has made no step for %.0f s: the thread nibble-engine hangs in a call",
                 v->process->still);
    else if (own && own->submitted > own->begun)
        snprintf(buf, cap, "its engine has not begun with %" PRIu64 " windows of %s: its device is not ready",
                 own->submitted - own->begun, name);
    else if (own && own->next_op > c->op)
        snprintf(buf, cap,
                 "it had begun %s %" PRIu64
                 " of %s when it wrote its report: the reports are too far apart, ask for new ones",
                 c->function, c->op, name);
    else
        snprintf(buf, cap,
                 "it has not posted %s %" PRIu64
                 " of %s and waits for nobody: see what its process does (py-spy, gdb)",
                 c->function, c->op, name);
}

static void tell_vertex(struct emit *e, const struct vertex *v, const char *why)
{
    emit_row(e);
    emit_text(e, "node", v->name[0] ? v->name : "a node");
    if (v->process) {
        emit_text(e, "host", v->process->host);
        emit_number(e, "pid", v->process->pid);
    }
    emit_number(e, "waiting", v->waiting);
    emit_number(e, "waited_s", v->waited);
    emit_text(e, "because", why);
}

static int most_awaited(const void *a, const void *b)
{
    const struct vertex *x = *(const struct vertex *const *)a, *y = *(const struct vertex *const *)b;

    if (x->waiting != y->waiting)
        return x->waiting > y->waiting ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Write the culprits at the end of all chains, beginning with the one that most wait for. Return their
 * number, or -1. */
static int tell_culprits(struct emit *e, const struct graph *g)
{
    const struct vertex **list = calloc((size_t)g->nvertices + 1, sizeof(*list));
    char why[400];
    int n = 0;

    if (!list)
        return -1;
    for (int i = 0; i < g->nvertices; i++)
        if (graph_is_culprit(g, i))
            list[n++] = &g->vertex[i];
    qsort(list, (size_t)n, sizeof(*list), most_awaited);
    for (int i = 0; i < n; i++) {
        explain(list[i], why, sizeof(why));
        tell_vertex(e, list[i], why);
    }
    free(list);
    return n;
}

/* Write the nodes of circles, which have no end. */
static void tell_circles(struct emit *e, const struct graph *g)
{
    for (int i = 0; i < g->nvertices; i++)
        if (g->vertex[i].circle)
            tell_vertex(e, &g->vertex[i],
                        g->vertex[i].heard > 5
                            ? "it and another one do not hear each other: the network between them"
                            : "it waits for others that wait for it: please report this");
}

/* Write how many lines are left out: thousands would hide those above them. */
static void tell_rest(struct emit *e, int n, int most)
{
    char text[64];

    if (n <= most)
        return;
    snprintf(text, sizeof(text), "... and %d more (--all)", n - most);
    emit_row(e);
    emit_text(e, "text", text);
}

static void tell_waits(struct emit *e, const struct graph *g, int most)
{
    emit_section(e, "waits", "who waits for whom");
    for (int i = 0; i < g->nedges && i < most; i++) {
        const struct edge *edge = &g->edge[i];
        const struct process *p = g->vertex[edge->from].process;
        char name[120];

        emit_row(e);
        emit_text(e, "host", p->host);
        emit_number(e, "pid", p->pid);
        emit_number(e, "own_node", edge->comm->node);
        emit_text(e, "for", edge->peer->name);
        emit_number(e, "waited_s", edge->comm->waited);
        emit_number(e, "silent_s", edge->peer->silent);
        emit_text(e, "function", edge->comm->function);
        emit_number(e, "operation", (double)edge->comm->op);
        emit_text(e, "comm", name_of(edge->comm, name, sizeof(name)));
    }
    tell_rest(e, g->nedges, most);
}

static void tell_processes(struct emit *e, const struct reports *all, int most)
{
    emit_section(e, "reports", "reports");
    for (int i = 0; i < all->n && i < most; i++) {
        const struct process *p = &all->process[i];

        emit_row(e);
        emit_text(e, "host", p->host);
        emit_number(e, "pid", p->pid);
        emit_text(e, "why", p->why);
        emit_text(e, "version", p->version);
        emit_text(e, "file", p->file);
        for (int k = 0; k < p->ncomms; k++)
            if (p->comm[k].cause[0])
                emit_text(e, "failed", p->comm[k].cause);
    }
    tell_rest(e, all->n, most);
}

/* Find nodes of a communicator without a report. Return 0, or -1 when out of memory. */
static int find_missing(const struct reports *all, struct problems *problems)
{
    struct group {
        const struct comm *first;
        int here;
    } *group = NULL;
    struct index x = {0};
    int n = 0, err = -1;

    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < all->process[i].ncomms; k++) {
            const struct comm *c = &all->process[i].comm[k];
            int *at = index_at(&x, c->id, c->group, 0);
            if (at && *at < 0 && list_more((void **)&group, n, sizeof(*group))) {
                group[n].first = c;
                *at = n++;
            }
            if (!at || *at < 0)
                goto out;
            group[*at].here++;
        }
    for (int i = 0; i < n; i++)
        if (group[i].here < group[i].first->of)
            note(problems, "comm 0x%" PRIx64 ": reports of %d of its %d nodes", group[i].first->id,
                 group[i].here, group[i].first->of);
    err = 0;
out:
    index_free(&x);
    free(group);
    return err;
}

static int tell(const struct call *call, struct reports *all, struct problems *problems)
{
    const int dropped = reports_drop(all, call->within, call->job);
    struct graph g;
    struct emit e;
    int culprits = 0;

    if (dropped)
        note(problems, "%d older reports, or of other jobs, are left out (--within, --job)", dropped);
    if (graph_make(&g, all, call->least) || find_missing(all, problems)) {
        graph_free(&g);
        fputs("nibble-hang: no memory\n", stderr);
        return EXIT_NONE;
    }
    emit_begin(&e, stdout, call->json);
    /* Without a report "all wait for: none" would read as if no process waited. */
    if (call->json || all->n > 0) {
        emit_section(&e, "culprits", "all wait for");
        culprits = tell_culprits(&e, &g);
        if (culprits == 0)
            tell_circles(&e, &g);
        tell_waits(&e, &g, call->all || call->json ? INT_MAX : MOST_ROWS);
        tell_processes(&e, all, call->all || call->json ? INT_MAX : MOST_ROWS);
    }
    emit_section(&e, "problems", "problems");
    for (int i = 0; i < problems->n; i++) {
        emit_row(&e);
        emit_text(&e, "text", problems->text[i]);
    }
    const bool waiting = g.nedges > 0;
    graph_free(&g);
    if (emit_end(&e) || culprits < 0)
        return EXIT_NONE;
    if (all->n == 0 || problems->unread)
        return EXIT_NONE;
    return waiting;
}

/* ---- the call ------------------------------------------------------------------------------------------ */

/* Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, struct call *call)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},         {"all", no_argument, NULL, 'a'},
        {"job", required_argument, NULL, 'J'},    {"least", required_argument, NULL, 'l'},
        {"within", required_argument, NULL, 'w'}, {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},         {0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 'j': call->json = true; break;
        case 'a': call->all = true; break;
        case 'J': call->job = optarg; break;
        case 'l': good = option_number("--least", optarg, 0, 1e12, &call->least); break;
        case 'w': good = option_number("--within", optarg, 0, 1e12, &call->within); break;
        case 'v': printf("nibble-hang %s\n", nb_version_with_commit()); return 0;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-hang --help\n", stderr); return EXIT_WRONG;
        }
        if (!good)
            return EXIT_WRONG;
    }
    if (optind < argc)
        return -1;
    fputs("nibble-hang: which folder? try --help\n", stderr);
    return EXIT_WRONG;
}

int main(int argc, char **argv)
{
    struct call call = {.least = 1, .within = 600};
    static struct problems problems;
    struct reports all = {0};
    int status;

    output_check(EXIT_WRONG);
    status = parse(argc, argv, &call);
    if (status >= 0)
        return status;
    for (int i = optind; i < argc; i++)
        read_path(&all, &problems, argv[i]);
    status = tell(&call, &all, &problems);
    reports_free(&all);
    return status;
}
