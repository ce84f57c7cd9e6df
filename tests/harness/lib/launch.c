/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: fork one process for each node, watch the processes against a deadline, collect how each of them
 * ended. Also the runner of named cases. The parent kills, by pid, only processes that it has forked itself.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"
#include "tests/gpu/fiber.h" /* NB_TSAN */

#define GRACE_S 20.0 /* time that the other nodes have after one node has failed */

static void apply_env(const char *const *list)
{
    for (; list && *list; list++) {
        const char *eq = strchr(*list, '=');
        char name[128];

        if (!eq) {
            unsetenv(*list);
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)(eq - *list), *list);
        setenv(name, eq + 1, 1);
    }
}

/* Apply the caller's settings for this node, from NB_HARNESS_SETTINGS. */
static void apply_settings(int rank)
{
    char all[sizeof hx_env_read()->settings], *group = all, *save = NULL;
    int groups = 1;

    snprintf(all, sizeof all, "%s", hx_env_read()->settings);
    for (const char *at = all; *at; at++)
        groups += *at == '|';
    for (int i = 0; i < rank % groups; i++)
        group = strchr(group, '|') + 1;
    group[strcspn(group, "|")] = 0;
    for (char *one = strtok_r(group, " ", &save); one; one = strtok_r(NULL, " ", &save)) {
        const char *const list[] = {one, NULL};

        apply_env(list);
    }
}

static _Noreturn void run_node(const struct hx_job *job, struct hx_shared *shared, int rank)
{
    struct hx_node node = {rank, job->nnodes, job->seed, shared, job->meeting, job->log, job->quiet};
    int rc = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    hx_env_hide();
    hx_this_node = &node;
    atomic_store(&shared->node[rank].pid, (int)getpid());
    if (!job->meeting)
        setenv("NCCL_SOCKET_IFNAME", job->netns || job->netns_prefix ? "hx0" : "lo",
               job->netns || job->netns_prefix);
    /* Tests of the exchange need coding from the first operation on. Traces of real jobs test which
     * operations are recognised as gradients, and when. */
    setenv("NIBBLE_GRAD", "all", 0);
    setenv("NIBBLE_WARMUP_STEPS", "0", 0);
    if (!job->meeting)
        apply_settings(rank);
    apply_env(job->env);
    apply_env(job->node_env[rank]);
    hx_where("starting");
    if (job->netns)
        rc = hx_netns_child_up(job, rank, &shared->node[rank].wired);
    else if (job->netns_prefix)
        rc = hx_netns_join(job, rank);
    if (!rc)
        rc = job->fn(&node, job->arg);
    if (rc == 0 && atomic_load(&shared->node[rank].failed))
        rc = 1;
    if (rc && rc != HX_SKIP) {
        if (!atomic_load(&shared->node[rank].failed))
            hx_fail("failed with %d and no reason", rc);
        fflush(NULL);
        _exit(1); /* threads and memory are as the failure left them: avoid leak reports about it */
    }
    fflush(NULL);
    exit(rc);
}

static struct hx_report *new_report(void)
{
    struct hx_report *r = calloc(1, sizeof *r);

    if (!r)
        abort();
    return r;
}

void hx_report_free(struct hx_report *report)
{
    if (!report)
        return;
    for (int i = 0; i < HX_MAX_NODES; i++)
        free(report->node[i].log);
    free(report);
}

int hx_report_has(const struct hx_report *report, int rank, const char *a, const char *b)
{
    for (int r = 0; r < HX_MAX_NODES; r++) {
        const char *at = report->node[r].log;

        if (rank >= 0 && r != rank)
            continue;
        while (at && *at) {
            const char *eol = strchr(at, '\n');
            size_t len = eol ? (size_t)(eol - at) : strlen(at);
            char line[2100];

            snprintf(line, sizeof line, "%.*s", (int)len, at);
            if (strstr(line, a) && (!b || strstr(line, b)))
                return 1;
            at = eol ? eol + 1 : NULL;
        }
    }
    return 0;
}

static int has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

/* Return whether this process has forked the node. */
static bool forked_here(const struct hx_job *job, int rank)
{
    return job->meeting ? rank == job->meeting->rank : hx_hosts_here(rank);
}

/* Reap ended nodes. Return true when one of them failed. */
static int reap(const struct hx_job *job, struct hx_shared *shared, const pid_t *pid)
{
    int bad = 0;

    for (int r = 0; r < job->nnodes; r++) {
        int status;

        if (!forked_here(job, r)) { /* another machine's parent reaps it */
            bad |= atomic_load(&shared->node[r].failed) && !(job->dies >> r & 1);
            continue;
        }
        if (atomic_load(&shared->node[r].ended) || waitpid(pid[r], &status, WNOHANG) != pid[r])
            continue;
        shared->node[r].status = status;
        atomic_store(&shared->node[r].ended, 1);
        if (job->dies >> r & 1)
            bad |= !WIFSIGNALED(status);
        else
            bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return bad;
}

static int nodes_left(const struct hx_job *job, struct hx_shared *shared)
{
    int left = 0;

    for (int r = 0; r < job->nnodes; r++)
        left += !atomic_load(&shared->node[r].ended);
    return left;
}

/* Write how node r went wrong, "" if it did not. Several nodes may have the same text. */
static void tell_node(const struct hx_job *job, const struct hx_report *rep, int r, char *text, size_t cap)
{
    const int status = rep->node[r].status, dies = job->dies >> r & 1;
    char what[64] = "";

    if (rep->node[r].hung)
        snprintf(what, sizeof what, "hung");
    else if (WIFSIGNALED(status) && !dies)
        snprintf(what, sizeof what, "ended by signal %d", WTERMSIG(status));
    else if (!WIFSIGNALED(status) && dies)
        snprintf(what, sizeof what, "was meant to die and did not");
    else if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != HX_SKIP)
        snprintf(what, sizeof what, "failed (%d)", WEXITSTATUS(status));
    *text = 0;
    if (what[0])
        snprintf(text, cap, "%s at \"%.80s\"%s%.400s", what, rep->node[r].where,
                 rep->node[r].failure[0] ? ": " : "", rep->node[r].failure);
}

/* Return why node r failed, wherever it was, or else its text. */
static const char *cause_of(const struct hx_report *rep, int r, const char *text)
{
    return WIFEXITED(rep->node[r].status) && rep->node[r].failure[0] ? rep->node[r].failure : text;
}

static void judge(const struct hx_job *job, struct hx_report *rep)
{
    char text[HX_MAX_NODES][600];
    size_t at = 0;

    rep->ok = true;
    for (int r = 0; r < job->nnodes; r++) {
        const int status = rep->node[r].status;

        tell_node(job, rep, r, text[r], sizeof text[r]);
        if (text[r][0])
            rep->ok = false;
        else if (WIFEXITED(status) && WEXITSTATUS(status) == HX_SKIP)
            rep->skipped = true;
    }
    /* Neighbors that failed alike share a line. */
    for (int r = 0, last; r < job->nnodes && at < sizeof rep->reason - 1; r = last + 1) {
        last = r;
        if (!text[r][0])
            continue;
        while (last + 1 < job->nnodes && text[last + 1][0] &&
               strcmp(cause_of(rep, last + 1, text[last + 1]), cause_of(rep, r, text[r])) == 0)
            last++;
        at += (size_t)snprintf(rep->reason + at, sizeof rep->reason - at, "%snode%s %d", at ? "; " : "",
                               last > r ? "s" : "", r);
        if (last > r && at < sizeof rep->reason - 1)
            at += (size_t)snprintf(rep->reason + at, sizeof rep->reason - at, " to %d", last);
        if (at < sizeof rep->reason - 1)
            at += (size_t)snprintf(rep->reason + at, sizeof rep->reason - at, " %s", text[r]);
    }
    if (!rep->ok)
        rep->skipped = false;
}

int hx_job_run(const struct hx_job *job, struct hx_report **out)
{
    struct hx_shared *shared;
    struct hx_report *rep = new_report();
    pid_t pid[HX_MAX_NODES];
    int saved_ns = -1, rc;
    double begin = hx_now(), deadline;
    bool hurried = false;

    hx_env_read();
    if (out)
        *out = rep;
    if (job->nnodes < 1 || job->nnodes > HX_MAX_NODES)
        abort();
    if ((job->netns || job->netns_prefix) && hx_env_read()->hosts > 1) {
        snprintf(rep->reason, sizeof rep->reason, "network namespaces are for one machine");
        rep->skipped = true;
        rc = HX_SKIP;
        if (!out)
            hx_report_free(rep);
        return rc;
    }
    shared = hx_hosts_begin();
    if (!shared)
        abort();
    deadline = hx_now() + (job->deadline_s > 0 ? job->deadline_s : HX_LIMIT_S) * hx_env_read()->patience;
    if (job->netns && (rc = hx_netns_begin(job, &saved_ns, rep->reason, sizeof rep->reason))) {
        rep->skipped = rc == HX_SKIP;
        fprintf(stderr, "harness: %s: %s\n", job->name, rep->reason);
        goto done;
    }
    fflush(NULL);
    for (int r = 0; r < job->nnodes; r++) {
        if (!forked_here(job, r)) {
            atomic_store(&shared->node[r].ended, job->meeting != NULL); /* its own process judges it */
            continue;
        }
        pid[r] = fork();
        if (pid[r] < 0)
            abort();
        if (pid[r] == 0) {
            if (job->netns && hx_netns_child())
                _exit(1);
            run_node(job, shared, r);
        }
    }
    for (int r = 0; job->netns && r < job->nnodes; r++) {
        /* A node that has published its pid has its own namespace. A node that ended instead is reaped
         * below. */
        while (!atomic_load(&shared->node[r].pid) && !has_ended(pid[r]))
            hx_sleep(1e-3);
        if (!atomic_load(&shared->node[r].pid) || hx_netns_wire(job, r, pid[r]))
            deadline = hx_now();
        else
            atomic_store(&shared->node[r].wired, 1);
    }
    while (nodes_left(job, shared)) {
        long long chosen = atomic_exchange(&shared->deadline_ms, 0);

        if (chosen)
            deadline = 1e-3 * (double)chosen;
        if (reap(job, shared, pid) && !hurried) {
            hurried = true;
            if (deadline > hx_now() + GRACE_S)
                deadline = hx_now() + GRACE_S;
        }
        for (int r = 0; r < job->nnodes && hx_now() > deadline; r++) {
            struct hx_shared_node *n = &shared->node[r];

            if (atomic_load(&n->ended))
                continue;
            if (forked_here(job, r)) {
                kill(pid[r], SIGKILL);
                waitpid(pid[r], &n->status, 0);
            } else if (hx_now() < deadline + GRACE_S) {
                continue; /* the other machine's parent handles it */
            }
            n->hung = 1;
            atomic_store(&n->ended, 1);
        }
        hx_sleep(3e-3);
    }
    for (int r = 0; r < job->nnodes; r++) {
        struct hx_shared_node *n = &shared->node[r];

        rep->node[r].status = n->status;
        rep->node[r].hung = n->hung;
        memcpy(rep->node[r].where, WIFEXITED(n->status) && n->failure[0] ? n->failed_where : n->where,
               sizeof n->where);
        memcpy(rep->node[r].failure, n->failure, sizeof n->failure);
        memcpy(rep->node[r].scratch, n->scratch, sizeof n->scratch);
        rep->node[r].warns = atomic_load(&n->warns);
        rep->node[r].log = strndup(n->log, atomic_load(&n->log_len));
    }
    judge(job, rep);
    if (job->netns)
        hx_netns_end(saved_ns);
    if (!rep->ok && !job->quiet)
        fprintf(stderr, "harness: %s: %s\n", job->name, rep->reason);
done:
    hx_hosts_end(shared);
    rep->seconds = hx_now() - begin;
    rc = rep->skipped ? HX_SKIP : !rep->ok;
    if (!out)
        hx_report_free(rep);
    return rc;
}

/* ---- named cases ---- */

int hx_quick(void)
{
    return hx_env_read()->quick;
}

#ifdef NB_TSAN
#define LEFT_OUT (HX_CASE_FULL | HX_CASE_SLOW)
#else
#define LEFT_OUT HX_CASE_FULL
#endif

static int chosen(const struct hx_case *c, int argc, char **argv)
{
    if (argc > 1) {
        for (int i = 1; i < argc; i++) {
            if (strcmp(argv[i], c->name) == 0)
                return 1;
        }
        return 0;
    }
    if (hx_quick() && (c->flags & LEFT_OUT))
        return 0;
    return !(c->flags & HX_CASE_LONG) || hx_env_read()->long_tests;
}

int hx_main(int argc, char **argv, const struct hx_case *cases, size_t ncases)
{
    int passed = 0, failed = 0, skipped = 0, unknown = argc > 1 ? argc - 1 : 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    hx_env_forget_settings();
    if (argc > 1 && strcmp(argv[1], "-l") == 0) {
        for (size_t i = 0; i < ncases; i++)
            puts(cases[i].name);
        return 0;
    }
    for (size_t i = 0; i < ncases; i++) {
        double begin = hx_now();
        int status = 0, rc;
        pid_t pid;

        if (!chosen(&cases[i], argc, argv))
            continue;
        unknown--;
        fflush(NULL);
        pid = fork();
        if (pid < 0)
            abort();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(cases[i].run());
        }
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        passed += rc == 0;
        skipped += rc == HX_SKIP;
        failed += rc != 0 && rc != HX_SKIP;
        printf("%-7s %-40s %6.2f s\n",
               rc == 0         ? "ok"
               : rc == HX_SKIP ? "skipped"
                               : "FAILED",
               cases[i].name, hx_now() - begin);
    }
    if (argc > 1 && unknown > 0) {
        fprintf(stderr, "%s: no such case (-l lists them)\n", argv[0]);
        return 1;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : passed ? 0 : HX_SKIP;
}
