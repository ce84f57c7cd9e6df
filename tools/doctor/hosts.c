/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See hosts.h. Every node's stdin is a pipe whose other end only this process has. A /bin/sh on the host
 * reads the node's command from it, so the user's shell there sees only "exec /bin/sh". --tied makes the node
 * end when the pipe closes, and ssh passes that on. All nodes therefore end, however this process ends. A
 * tied node writes MARK as its last line on stderr. An exit status counts only behind that line: a host's
 * shell can end with 0 without having started anything.
 */
#include "hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/output.h"

#define ALL_TOOLS "nibble-tools" /* packages/nibble_tools.c: takes the tool as its first argument */
#define SHELL_LINE "exec /bin/sh"
#define MARK "nibble: this node has ended with status "
#define EXIT_PROBLEM 2
#define EXIT_WRONG 3
#define GRACE 3.0  /* seconds from closed pipes to SIGTERM, and on to SIGKILL */
#define START 30.0 /* seconds beyond the doctor's own limit, for the command that reaches the host */

struct node {
    char *host;
    pid_t pid;      /* 0: has ended */
    int in, out;    /* to its stdin, and from its stderr (and stdout, except node 0's). -1: closed */
    bool marked;    /* MARK has come */
    char line[512]; /* bytes of an incomplete line */
    size_t len;
};

struct run {
    const struct hosts *hosts;
    struct node *node;
    int n;
    int status;
    int stage;   /* 0: nodes run. Then stdin is closed, then SIGTERM, then SIGKILL */
    double next; /* when the next stage begins */
};

static double seconds(void)
{
    return 1e-9 * (double)nb_now_ns();
}

/* ---- The list ---- */

static bool add_host(struct run *r, const char *name)
{
    struct node *more;

    for (int i = 0; i < r->n; i++)
        if (strcmp(r->node[i].host, name) == 0)
            return true; /* MPI's host files name a host once a process */
    if (*name == '-' || r->n == MOST_NODES)
        return false;
    more = realloc(r->node, (size_t)(r->n + 1) * sizeof(*more));
    if (!more)
        return false;
    r->node = more;
    more[r->n] = (struct node){.host = strdup(name), .in = -1, .out = -1};
    return more[r->n].host && ++r->n;
}

/* Say that a file of hosts cannot be read. Return false. */
static bool hosts_unread(const char *file, int err)
{
    fprintf(stderr, "%s: --hosts: cannot read %s: %s\n", program_invocation_short_name, file, strerror(err));
    return false;
}

/* Return whether there is a list of hosts, or false after a line that says why not. */
static bool read_hosts(struct run *r, const char *list)
{
    FILE *f = strchr(list, ',') ? NULL : fopen(list, "re");
    char line[512], *rest, *name;
    bool good = true;

    /* A host's name has no slash. */
    if (!f && strchr(list, '/'))
        return hosts_unread(list, errno);
    while (f && good && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "#\n")] = '\0';
        name = strtok_r(line, " \t\r", &rest);
        good = !name || add_host(r, name);
    }
    if (f) {
        const int err = ferror(f) ? errno : 0;
        fclose(f);
        if (err)
            return hosts_unread(list, err);
    } else {
        char *copy = strdup(list);
        good = copy != NULL;
        for (name = copy ? strtok_r(copy, ", ", &rest) : NULL; name && good;
             name = strtok_r(NULL, ", ", &rest))
            good = add_host(r, name);
        free(copy);
    }
    if (good && r->n > 0)
        return true;
    fprintf(stderr, "%s: --hosts: no list of 1 to %d hosts: \"%s\"\n", program_invocation_short_name,
            MOST_NODES, list);
    return false;
}

/* ---- What a host's shell is told ---- */

static void quote(FILE *f, const char *text)
{
    fputc('\'', f);
    for (; *text; text++)
        fputs(*text == '\'' ? "'\\''" : (char[2]){*text, '\0'}, f);
    fputc('\'', f);
}

/* Return whether a job's launcher passes the variable on and it tells how NCCL and nibble behave. */
static bool passed(const char *variable)
{
    static const char *const names[] = {
        "NCCL_", "NIBBLE_", "CUDA_", "LD_LIBRARY_PATH=", "PATH=", "PYTHONPATH=", "VIRTUAL_ENV="};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static char *command_of(const struct run *r, const struct place *p, int rank, const char *self,
                        const char *folder)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    if (!f)
        return NULL;
    fputs("cd ", f);
    quote(f, folder);
    fputs(" 2>/dev/null; exec env", f);
    for (char **v = environ; *v; v++)
        if (passed(*v)) {
            fputc(' ', f);
            quote(f, *v);
        }
    fputc(' ', f);
    quote(f, self);
    if (strcmp(strrchr(self, '/') ? strrchr(self, '/') + 1 : self, ALL_TOOLS) == 0)
        fprintf(f, " %s", program_invocation_short_name);
    for (int i = 0; i < r->hosts->nwords; i++) {
        fputc(' ', f);
        quote(f, r->hosts->words[i]);
    }
    fprintf(f, " --tied --rank %d --nodes %d --port %d --key %llu --root ", rank, r->n, p->port,
            (unsigned long long)p->key);
    quote(f, p->root);
    fputc('\n', f);
    return fclose(f) ? NULL : text;
}

/* ---- Processes ---- */

static void become(const struct node *node, const char *rsh, const int in[2], const int out[2], bool first)
{
    char *words = strdup(rsh), *rest, *argv[64];
    int n = 0;

    for (char *w = words ? strtok_r(words, " ", &rest) : NULL; w && n < 60; w = strtok_r(NULL, " ", &rest))
        argv[n++] = w;
    argv[n] = node->host;
    argv[n + 1] = (char *)SHELL_LINE;
    argv[n + 2] = NULL;
    /* A process group of its own, so that signals also reach the processes that the command starts. */
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    if (dup2(in[0], 0) >= 0 && dup2(out[1], 2) >= 0 && (first || dup2(out[1], 1) >= 0))
        execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Write the command into the pipe without waiting for the host. Return 0 or a negative errno. */
static int hand_over(int fd, const char *command)
{
    const size_t len = strlen(command);

    if (len > 65536)
        fcntl(fd, F_SETPIPE_SZ, (int)len);
    if (fcntl(fd, F_SETFL, O_NONBLOCK))
        return -errno;
    const ssize_t n = write(fd, command, len);
    if (n < 0 && errno != EPIPE) /* EPIPE: it has ended, which reap() sees */
        return -errno;
    return n < 0 || (size_t)n == len ? 0 : -E2BIG;
}

static int start(struct run *r, int rank, const char *command)
{
    struct node *node = &r->node[rank];
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err;

    if (!pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC))
        node->pid = fork();
    else
        node->pid = -1;
    if (node->pid == 0)
        become(node, r->hosts->rsh, in, out, rank == 0);
    err = node->pid > 0 ? hand_over(in[1], command) : -errno;
    close(in[0]);
    close(out[1]);
    node->in = in[1];
    node->out = out[0];
    if (node->pid < 0)
        node->pid = 0;
    return err;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void next_stage(struct run *r)
{
    r->stage++;
    r->next = seconds() + GRACE;
    for (int i = 0; i < r->n; i++) {
        close_fd(&r->node[i].in);
        if (r->stage > 1 && r->node[i].pid)
            kill(-r->node[i].pid, r->stage > 2 ? SIGKILL : SIGTERM);
    }
}

static void show(struct node *node, const char *text, size_t len)
{
    const char *mark = memmem(text, len, MARK, strlen(MARK));

    if (mark) {
        node->marked = true;
        len = (size_t)(mark - text);
        if (len == 0)
            return;
    }
    output_progress_end();
    fprintf(stderr, "%s: %.*s\n", node->host, (int)len, text);
}

static void hear(struct node *node)
{
    const ssize_t n = read(node->out, node->line + node->len, sizeof(node->line) - node->len);
    char *end;

    if (n <= 0) {
        if (n < 0 && errno == EINTR)
            return;
        if (node->len)
            show(node, node->line, node->len);
        node->len = 0;
        close_fd(&node->out);
        return;
    }
    node->len += (size_t)n;
    while ((end = memchr(node->line, '\n', node->len)) || node->len == sizeof(node->line)) {
        const size_t len = end ? (size_t)(end - node->line) : node->len, gone = len + (end != NULL);
        show(node, node->line, len);
        memmove(node->line, node->line + gone, node->len - gone);
        node->len -= gone;
    }
}

/* Hear all that an ended node has written. */
static void hear_rest(struct node *node)
{
    struct pollfd fd = {.fd = node->out, .events = POLLIN};

    while (node->out >= 0 && poll(&fd, 1, 0) > 0)
        hear(node);
}

/* Handle the end of a node. Only node 0 writes a report, so the others end with it. */
static void ended(struct run *r, int rank, int status)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

    hear_rest(&r->node[rank]);
    const bool started = r->node[rank].marked || code < 0 || code > EXIT_PROBLEM;
    const bool took_part = started && code >= 0 && code <= EXIT_PROBLEM;
    const int counts = took_part ? code : EXIT_PROBLEM;

    r->node[rank].pid = 0;
    close_fd(&r->node[rank].in);
    if (counts > r->status)
        r->status = counts;
    if (took_part)
        return;
    if (!started)
        fprintf(stderr,
                "%s: node %d: %s ended without a report, with status %d: its shell has started nothing (a "
                "disabled account, a forced command, or a profile that exits; \"%s %s /bin/sh\" must read "
                "commands)\n",
                program_invocation_short_name, rank, r->node[rank].host, code, r->hosts->rsh,
                r->node[rank].host);
    else if (WIFSIGNALED(status))
        fprintf(stderr, "%s: node %d (%s): ended by signal %d\n", program_invocation_short_name, rank,
                r->node[rank].host, WTERMSIG(status));
    else if (code == 126 || code == 127)
        fprintf(
            stderr,
            "%s: node %d (%s): a command was not found there: install the same nibble, at the same place\n",
            program_invocation_short_name, rank, r->node[rank].host);
    else
        fprintf(stderr, "%s: node %d (%s): ended with status %d (\"%s %s\" must work without a password)\n",
                program_invocation_short_name, rank, r->node[rank].host, code, r->hosts->rsh,
                r->node[rank].host);
    if ((rank == 0 || r->hosts->together) && r->stage == 0)
        next_stage(r);
}

static int reap(struct run *r)
{
    int left = 0, status;

    for (int i = 0; i < r->n; i++) {
        if (r->node[i].pid && waitpid(r->node[i].pid, &status, WNOHANG) == r->node[i].pid)
            ended(r, i, status);
        left += r->node[i].pid != 0;
    }
    return left;
}

/* 0: every pipe is closed */
static int hear_all(struct run *r, struct pollfd *fds, int patience)
{
    int heard = 0;

    for (int i = 0; i < r->n; i++)
        fds[i] = (struct pollfd){.fd = r->node[i].out, .events = POLLIN};
    if (poll(fds, (nfds_t)r->n, patience) <= 0)
        return 0;
    for (int i = 0; i < r->n; i++)
        if (fds[i].revents) {
            hear(&r->node[i]);
            heard++;
        }
    return heard;
}

/* Wait until all nodes have ended. Processes that they left running with their stderr do not count. */
static void attend(struct run *r, double limit)
{
    struct pollfd *fds = calloc((size_t)r->n, sizeof(*fds));

    const double begin = seconds();
    int left;

    r->next = r->next > 0 ? r->next : begin + limit;
    while (fds && (left = reap(r)) > 0) {
        if (seconds() > r->next) {
            if (r->stage == 0)
                fprintf(stderr, "%s: nodes that have not ended after %.0f s are ended\n",
                        program_invocation_short_name, limit);
            next_stage(r);
        }
        output_progress("%d of %d hosts at work, %.0f s", left, r->n, seconds() - begin);
        hear_all(r, fds, 100);
    }
    output_progress_end();
    while (fds && hear_all(r, fds, 0) > 0)
        ;
    for (int i = 0; i < r->n; i++)
        if (r->node[i].len)
            show(&r->node[i], r->node[i].line, r->node[i].len);
    free(fds);
}

/* ---- The whole ---- */

static int start_all(struct run *r, const struct place *p)
{
    char self[4096], folder[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0 || !getcwd(folder, sizeof(folder)))
        return -errno;
    self[n] = '\0';
    for (int i = 0; i < r->n && r->stage == 0; i++) {
        char *command = command_of(r, p, i, self, folder);
        const int err = command ? start(r, i, command) : -ENOMEM;
        free(command);
        if (err)
            return err;
    }
    return 0;
}

/* Two pipes a node. */
static void many_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

int hosts_run(const struct hosts *hosts, const struct place *place, double limit)
{
    struct run r = {.hosts = hosts};
    struct place p = *place;
    int err;

    if (!read_hosts(&r, hosts->list)) {
        r.status = EXIT_WRONG;
    } else {
        /* The address by which the other nodes reach it: without "user@". */
        const char *at = strrchr(r.node[0].host, '@');
        if (!*p.root)
            snprintf(p.root, sizeof(p.root), "%s", at ? at + 1 : r.node[0].host);
        p.port = p.port ? p.port : DEFAULT_PORT;
        if (!p.key && getrandom(&p.key, sizeof(p.key), 0) != sizeof(p.key))
            p.key = nb_now_ns();
        many_files();
        signal(SIGPIPE, SIG_IGN);
        err = start_all(&r, &p);
        if (err) {
            fprintf(stderr, "%s: --hosts: %s\n", program_invocation_short_name, strerror(-err));
            r.status = EXIT_PROBLEM;
            next_stage(&r);
        }
        attend(&r, 2 * limit + START);
    }
    for (int i = 0; i < r.n; i++) {
        close_fd(&r.node[i].in);
        close_fd(&r.node[i].out);
        free(r.node[i].host);
    }
    free(r.node);
    return r.status;
}

static void *tied(void *arg)
{
    char nothing[64];
    ssize_t n;

    do
        n = read(0, nothing, sizeof(nothing));
    while (n > 0 || (n < 0 && errno == EINTR));
    _exit(EXIT_WRONG);
    return arg;
}

int hosts_tie(void)
{
    pthread_t thread;
    const int err = pthread_create(&thread, NULL, tied, NULL);

    return err ? -err : -pthread_detach(thread);
}

int hosts_untie(int status)
{
    if (fflush(stdout) || ferror(stdout))
        status = EXIT_WRONG;
    fprintf(stderr, MARK "%d\n", status);
    return status;
}
