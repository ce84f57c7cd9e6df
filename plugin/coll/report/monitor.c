/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that writes metrics and hang reports, and answers nibble-top, while a job runs. */
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/periodic.h"
#include "base/system.h"
#include "coll/comm/comm.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"
#include "coll/watch/watch.h"

#define PATIENCE_S 2    /* for the thread to end */
#define LOCK_MS 200     /* for a communicator in use by the engine */
#define CLOSED_MOST 32u /* closed communicators that stay in the files */
#define TRIGGER "nibble-report-now"

struct entry {
    struct entry *next;
    struct nb_coll_comm *comm; /* NULL: closed */
    struct nb_figures figures;
    uint32_t *waited;      /* by node: nb_figures_note_wait. NULL: out of memory, or closed */
    uint64_t late_reports; /* at the last check */
    int error;
    struct nb_waits *failed; /* waits at its close after an error, else NULL */
    bool told;               /* a report contains its error */
};

struct output { /* a kind of file */
    char *path; /* NULL: unwanted */
    const char *setting;
    bool warned;
};

struct nb_monitor {
    struct nb_periodic *periodic;
    locale_t plain; /* numbers with decimal points, whatever the job's locale */
    char host[64], job[64];
    int period, late_report; /* seconds */
    struct output metrics, report;
    char *trigger;
    int live; /* the socket of nibble-top. -1: none */
    /* For the periodic thread only. */
    int64_t written_ns;              /* time of the last metrics, of CLOCK_MONOTONIC. 0: never */
    uint64_t steps, moved;           /* of the engine, and of windows, at the last check */
    unsigned still, quiet;           /* checks since their last change */
    bool looked;                     /* the trigger has been checked */
    struct timespec seen;            /* time of its change. 0: it was missing */
    pthread_mutex_t lock;            /* of the fields below. Never held during a call that may block */
    const _Atomic uint64_t *engine;  /* steps that it has made. NULL: it may be gone */
    const struct nb_p2p_counts *p2p; /* the context's, or `last` */
    struct nb_p2p_counts last;       /* the counts when the context let go */
    struct entry *entries;
    unsigned serial;
};

/* ---- copies; with the lock --------------------------------------------------------------------------- */

/* Update the entry's figures, or keep the old ones where the engine holds the lock. */
static void refresh(struct entry *e)
{
    if (!e->comm)
        return;
    if (nb_turn_lock_ask(&e->comm->progress_lock, LOCK_MS)) {
        nb_figures_take(&e->figures, e->comm);
        nb_turn_lock_give(&e->comm->progress_lock);
    }
    nb_figures_ask_transport(&e->figures, e->comm);
}

static unsigned count(const struct nb_monitor *m)
{
    unsigned n = 0;

    for (const struct entry *e = m->entries; e; e = e->next)
        n++;
    return n;
}

/* ---- files; without the lock ------------------------------------------------------------------------- */

static void told(struct output *o, int ret)
{
    if (ret && !o->warned)
        NB_WARN("%s: cannot write %s: %s. It is tried again from time to time", o->setting, o->path,
                strerror(-ret));
    o->warned = ret != 0;
}

static double date(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return the figures of all entries as text, which the caller frees with free(), or NULL when out of
 * memory. */
static char *format(struct nb_monitor *m, size_t *bytes)
{
    struct nb_metrics_process process = {.time = date()};
    const struct nb_figures **list;
    char *text = NULL;
    FILE *out;
    unsigned n = 0;

    nb_process_name(process.process);
    memcpy(process.host, m->host, sizeof(process.host));
    memcpy(process.job, m->job, sizeof(process.job));
    process.delta_messages = m->p2p->messages;
    process.delta_bytes = m->p2p->bytes;
    process.delta_wire_bytes = m->p2p->wire_bytes;
    process.puts = m->p2p->puts;
    process.put_bytes = m->p2p->put_bytes;
    for (int way = 0; way < NB_PAST_WAYS; way++)
        for (int func = 0; func < NB_PAST_COUNT; func++)
            process.past[way][func] = m->p2p->past[way][func];
    list = calloc(count(m) + 1, sizeof(*list));
    out = list ? open_memstream(&text, bytes) : NULL;
    if (out) {
        for (const struct entry *e = m->entries; e; e = e->next)
            list[n++] = &e->figures;
        nb_metrics_prometheus(out, &process, list, n);
        if (fclose(out)) {
            free(text);
            text = NULL;
        }
    }
    free(list);
    return text;
}

/* Return present figures as text, as `format`. */
static char *take_text(struct nb_monitor *m, size_t *bytes)
{
    char *text;

    pthread_mutex_lock(&m->lock);
    for (struct entry *e = m->entries; e; e = e->next)
        refresh(e);
    text = format(m, bytes);
    pthread_mutex_unlock(&m->lock);
    return text;
}

static void write_metrics(struct nb_monitor *m)
{
    size_t bytes = 0;
    char *text = take_text(m, &bytes);

    told(&m->metrics, text ? nb_out_file_replace(m->metrics.path, text, bytes) : -ENOMEM);
    free(text);
}

/* ---- live queries ------------------------------------------------------------------------------------ */

static void answer(struct nb_monitor *m)
{
    const int fd = nb_live_accept(&m->live);
    size_t bytes = 0;
    char *text;

    if (fd < 0)
        return;
    text = take_text(m, &bytes);
    nb_live_answer(fd, text, text ? bytes : 0);
    free(text);
}

/* Note whom the communicators wait for. */
static void note_waits(struct nb_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    for (struct entry *e = m->entries; e; e = e->next)
        if (e->comm && e->waited && nb_turn_lock_ask(&e->comm->progress_lock, LOCK_MS)) {
            nb_figures_note_wait(&e->figures, e->comm, e->waited);
            nb_turn_lock_give(&e->comm->progress_lock);
        }
    pthread_mutex_unlock(&m->lock);
}

/* ---- hang reports ------------------------------------------------------------------------------------ */

/* Return whether the file that asks for a report has changed since the last check. */
static bool triggered(struct nb_monitor *m)
{
    struct timespec now = {0, 0};
    struct stat st;
    bool changed;

    if (stat(m->trigger, &st) == 0)
        now = st.st_ctim;
    changed = m->looked && (now.tv_sec || now.tv_nsec) &&
              (now.tv_sec != m->seen.tv_sec || now.tv_nsec != m->seen.tv_nsec);
    m->looked = true;
    m->seen = now;
    return changed;
}

/* Return true once in NIBBLE_LATE_REPORT seconds in which `now` has kept its value. *looks counts the checks.
 * A process that was stopped as a whole checks once. */
static bool has_stood(const struct nb_monitor *m, uint64_t now, uint64_t *before, unsigned *looks)
{
    *looks = now == *before ? *looks + 1 : 0;
    *before = now;
    return *looks && *looks % (unsigned)m->late_report == 0;
}

/* Return why a report is due, or NULL. A node that blocks other nodes may itself wait for no node, so each
 * node without progress writes a report. Call with the lock. */
static const char *due(struct nb_monitor *m)
{
    uint64_t moved = 0;
    const char *why = NULL;
    bool any = false, late = false, failed = false;

    for (struct entry *e = m->entries; e; e = e->next) {
        uint64_t reports;
        int error;

        if (!e->comm) { /* an owner that closes at once after an error may be faster than the next check */
            failed |= e->failed && !e->told;
            continue;
        }
        moved += atomic_load(&e->comm->submitted) + atomic_load(&e->comm->finished);
        reports = nb_watch_late_reports(e->comm);
        error = nb_comm_failed(e->comm);
        any |= !error; /* a failure is reported once, with the state at that time */
        late |= reports != e->late_reports;
        failed |= error != e->error;
        e->late_reports = reports;
        e->error = error;
    }
    if (has_stood(m, moved, &m->moved, &m->quiet) && any)
        why = "quiet";
    if (late)
        why = "late";
    if (failed)
        why = "failed";
    if (!any || !m->engine) /* an engine without communicators sleeps */
        m->still = 0;
    else if (has_stood(m, atomic_load_explicit(m->engine, memory_order_relaxed), &m->steps, &m->still))
        why = "stuck";
    return why;
}

/* Return the waits of a communicator, which the caller frees with free(), or NULL when out of memory. Call
 * with the lock. */
static struct nb_waits *look_at(struct nb_coll_comm *comm)
{
    struct nb_waits *w = nb_waits_new(comm);

    if (w && nb_turn_lock_ask(&comm->progress_lock, LOCK_MS)) {
        nb_waits_take(w, comm);
        nb_turn_lock_give(&comm->progress_lock);
    } else if (w) {
        nb_waits_glance(w, comm);
    }
    return w;
}

/* Get the waits of all communicators, and of communicators closed after an error, which may have caused later
 * waits. Return their number. Call with the lock. */
static unsigned take_waits(struct nb_monitor *m, struct nb_waits **list)
{
    unsigned n = 0;

    for (struct entry *e = m->entries; e; e = e->next) {
        struct nb_waits *w = e->comm ? look_at(e->comm) : nb_waits_copy(e->failed);

        if (!w)
            continue;
        e->told |= w->error != 0;
        list[n++] = w;
    }
    return n;
}

static void write_report(struct nb_monitor *m, const char *why)
{
    struct nb_waits_process process = {.host = m->host, .job = m->job, .why = why, .pid = getpid()};
    struct nb_waits **list;
    char *text = NULL;
    size_t bytes = 0;
    unsigned n = 0;
    FILE *out;

    pthread_mutex_lock(&m->lock);
    list = calloc(count(m) + 1, sizeof(*list));
    if (list)
        n = take_waits(m, list);
    process.time = date();
    process.steps = m->steps;
    process.still = m->still;
    pthread_mutex_unlock(&m->lock);
    out = list ? open_memstream(&text, &bytes) : NULL;
    if (out) {
        nb_waits_write(out, &process, (const struct nb_waits *const *)list, n);
        if (fclose(out)) {
            free(text);
            text = NULL;
        }
    }
    told(&m->report, text ? nb_out_file_replace(m->report.path, text, bytes) : -ENOMEM);
    free(text);
    for (unsigned i = 0; i < n; i++)
        free(list[i]);
    free(list);
}

/* ---- the periodic thread ----------------------------------------------------------------------------- */

static void turn(void *arg)
{
    struct nb_monitor *m = arg;
    const int64_t now = (int64_t)nb_now_ns();
    const char *why;

    uselocale(m->plain);
    note_waits(m);
    if (m->live >= 0)
        answer(m);
    if (m->report.path) {
        const bool asked = triggered(m);

        pthread_mutex_lock(&m->lock);
        why = due(m);
        pthread_mutex_unlock(&m->lock);
        if (asked || why)
            write_report(m, why ? why : "asked");
    }
    if (m->metrics.path && (!m->written_ns || now - m->written_ns >= m->period * (int64_t)NB_NS_PER_S)) {
        m->written_ns = now;
        write_metrics(m);
    }
}

static void last(void *arg)
{
    struct nb_monitor *m = arg;
    const char *why;

    pthread_mutex_lock(&m->lock);
    why = m->report.path ? due(m) : NULL;
    pthread_mutex_unlock(&m->lock);
    if (why)
        write_report(m, why);
    if (m->metrics.path)
        write_metrics(m);
    uselocale(LC_GLOBAL_LOCALE); /* the other locale is about to be freed */
}

static void free_entry(struct entry *e)
{
    free(e->failed);
    free(e->waited);
    free(e);
}

static void release(void *arg)
{
    struct nb_monitor *m = arg;

    while (m->entries) {
        struct entry *e = m->entries;
        m->entries = e->next;
        free_entry(e);
    }
    if (m->live >= 0)
        close(m->live);
    free(m->metrics.path);
    free(m->report.path);
    free(m->trigger);
    freelocale(m->plain);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* Keep the characters of `text` that a file's name may have. */
static void clean(char *text)
{
    for (; *text; text++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", *text))
            *text = '_';
}

/* Return "FOLDER/nibble-HOST-PROCESS[-LABEL].ENDING", or NULL when out of memory. */
static char *file_in(const struct nb_monitor *m, const char *folder, const char *label, const char *ending)
{
    char process[NB_PROCESS_NAME], name[192], *path = NULL;

    nb_process_name(process);
    snprintf(name, sizeof(name), "nibble-%s-%s%s%.40s.%s", m->host, process, *label ? "-" : "", label,
             ending);
    clean(name);
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

static bool name_files(struct nb_monitor *m, const struct nb_context *ctx)
{
    const struct nb_params *p = ctx->params;

    m->metrics.setting = "NIBBLE_METRICS";
    m->report.setting = "NIBBLE_HANG_REPORT";
    if (p->metrics[0] && !(m->metrics.path = file_in(m, p->metrics, ctx->label, "prom")))
        return false;
    if (!p->hang_report[0])
        return true;
    m->report.path = file_in(m, p->hang_report, ctx->label, "report");
    return m->report.path && asprintf(&m->trigger, "%s/" TRIGGER, p->hang_report) >= 0;
}

static struct nb_monitor *make(const struct nb_context *ctx, const _Atomic uint64_t *steps)
{
    struct nb_monitor *m = calloc(1, sizeof(*m));
    const char *job = getenv("SLURM_JOB_ID");

    if (!m)
        return NULL;
    m->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!m->plain) {
        free(m);
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    m->live = -1;
    m->engine = steps;
    m->p2p = &ctx->p2p;
    m->period = (int)ctx->params->metrics_period;
    m->late_report = (int)ctx->params->late_report;
    snprintf(m->job, sizeof(m->job), "%s", job && *job ? job : "unknown");
    if (ctx->host)
        snprintf(m->host, sizeof(m->host), "%s", ctx->host);
    else if (gethostname(m->host, sizeof(m->host) - 1))
        snprintf(m->host, sizeof(m->host), "unknown");
    if (name_files(m, ctx))
        return m;
    release(m);
    return NULL;
}

struct nb_monitor *nb_monitor_open(const struct nb_context *ctx, const _Atomic uint64_t *steps)
{
    struct nb_periodic_work work = {
        .thread = "nibble-monitor", .turn = turn, .last = last, .release = release};
    struct nb_monitor *m;
    int err;

    if (!ctx->params->metrics[0] && !ctx->params->hang_report[0] && !ctx->params->live)
        return NULL;
    m = make(ctx, steps);
    if (m && ctx->params->live)
        m->live = nb_live_open(ctx->label);
    work.arg = m;
    err = m ? nb_periodic_begin(&work, ctx->label, &m->periodic) : ENOMEM;
    if (!err)
        return m;
    NB_WARN("NIBBLE_METRICS, NIBBLE_HANG_REPORT, NIBBLE_LIVE: cannot start their thread: %s", strerror(err));
    if (m)
        release(m);
    return NULL;
}

void nb_monitor_add(struct nb_monitor *m, struct nb_coll_comm *comm)
{
    struct entry *e, **end;

    if (!m)
        return;
    e = calloc(1, sizeof(*e));
    if (!e) {
        NB_WARN("%s: not in NIBBLE_METRICS and NIBBLE_HANG_REPORT: out of memory", comm->label);
        return;
    }
    e->comm = comm;
    e->waited = calloc((size_t)comm->nnodes, sizeof(*e->waited));
    pthread_mutex_lock(&m->lock);
    e->figures.serial = ++m->serial;
    for (end = &m->entries; *end; end = &(*end)->next)
        ;
    *end = e;
    pthread_mutex_unlock(&m->lock);
}

/* Drop the oldest closed communicators. Call with the lock. */
static void forget(struct nb_monitor *m)
{
    unsigned closed = 0;

    for (const struct entry *e = m->entries; e; e = e->next)
        closed += !e->comm;
    for (struct entry **at = &m->entries; *at && closed > CLOSED_MOST;) {
        struct entry *e = *at;

        if (e->comm) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free_entry(e);
        closed--;
    }
}

void nb_monitor_remove(struct nb_monitor *m, struct nb_coll_comm *comm)
{
    struct entry *e;

    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    for (e = m->entries; e && e->comm != comm; e = e->next)
        ;
    if (e) {
        refresh(e);
        e->figures.closed = true;
        if (m->report.path && e->figures.error)
            e->failed = look_at(comm);
        e->comm = NULL;
        free(e->waited);
        e->waited = NULL;
        forget(m);
    }
    pthread_mutex_unlock(&m->lock);
}

bool nb_monitor_close(struct nb_monitor *m)
{
    if (!m)
        return true;
    pthread_mutex_lock(&m->lock);
    m->engine = NULL;
    m->last.messages = m->p2p->messages;
    m->last.bytes = m->p2p->bytes;
    m->last.wire_bytes = m->p2p->wire_bytes;
    m->last.puts = m->p2p->puts;
    m->last.put_bytes = m->p2p->put_bytes;
    for (int way = 0; way < NB_PAST_WAYS; way++)
        for (int func = 0; func < NB_PAST_COUNT; func++)
            m->last.past[way][func] = m->p2p->past[way][func];
    m->p2p = &m->last;
    pthread_mutex_unlock(&m->lock);
    if (nb_periodic_end(m->periodic, PATIENCE_S))
        return true;
    NB_WARN("NIBBLE_METRICS, NIBBLE_HANG_REPORT: writing does not return (a dead mount?). The thread is left "
            "behind, and writing ends here");
    return false;
}
