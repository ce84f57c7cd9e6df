/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-top: show the communicators of this machine's running processes, which it asks over their
 * sockets. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/version.h"
#include "coll/report/report.h"
#include "metrics.h"
#include "tools/output.h"

#define MOST 1024             /* processes */
#define MOST_TEXT (64u << 20) /* bytes of a process's answer */
#define PATIENCE_S 4          /* for an answer */
#define EXIT_NONE 1
#define EXIT_WRONG 2

static const char help[] =
    "usage: nibble-top [OPTION]... [PID]...\n"
    "\n"
    "Show what the running processes of this machine send with nibble, by communicator, and which nodes are\n"
    "late. They answer the same user and root, unless NIBBLE_LIVE=0. No file and no setting is needed.\n"
    "\n"
    "  --interval S     seconds between two tables, 1 to 3600 (default 2)\n"
    "  --count N        number of tables (default: 1, and on a terminal until it is interrupted)\n"
    "  --text           print the processes' metrics as text for Prometheus, once\n"
    "  --version, -h, --help\n"
    "\n"
    "Columns: operations a second and GB/s of values since the last table, in the first one over a second; "
    "bytes\n"
    "on the wire over bytes of values; error of the code (NMSE); share of the busy time in which the codec "
    "worked,\n"
    "and in which the node waited for others. \"late\": nodes whose data the oldest open window lacked when "
    "at least\n"
    "half of the nodes had delivered, with the share of the checks, one a second, that found that. A node "
    "far\n"
    "above the others is a straggler.\n"
    "\n"
    "Exit status: 0; 1 where no process answers, or the output cannot be written; 2 for a wrong call.\n";

struct call {
    int interval, count; /* count 0: until interrupted */
    bool text;
    char **pid;
    int pids;
};

/* ---- asking ---- */

struct source {
    char name[108]; /* of the socket, behind its leading zero byte */
    int fd;
    char *text;
};

/* Return the part of a socket's name that begins with the process's number, or NULL for another socket. */
static const char *process_in(const char *name)
{
    const size_t prefix = strlen(NB_LIVE_PREFIX);

    return strncmp(name, NB_LIVE_PREFIX, prefix) == 0 ? name + prefix : NULL;
}

static bool is_wanted(const struct call *call, const char *process)
{
    for (int i = 0; i < call->pids; i++) {
        const size_t n = strlen(call->pid[i]);
        if (strncmp(process, call->pid[i], n) == 0 && (process[n] == '\0' || process[n] == '-'))
            return true;
    }
    return call->pids == 0;
}

/* Return the listening sockets, from /proc/net/unix. */
static int find(const struct call *call, struct source *list)
{
    FILE *f = fopen("/proc/net/unix", "re");
    char line[512], name[256];
    unsigned flags;
    int n = 0;

    while (f && n < MOST && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s @%255s", &flags, name) != 2 ||
            !(flags & 0x10000) /* listens */
            || !process_in(name) || !is_wanted(call, process_in(name)) || strlen(name) >= sizeof(list->name))
            continue;
        list[n] = (struct source){.fd = -1};
        snprintf(list[n++].name, sizeof(list->name), "%.107s", name);
    }
    if (f)
        fclose(f);
    return n;
}

/* Connect. A process of another user is believed by root only, since any process may take such a name. */
static void dial(struct source *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const size_t length = strlen(s->name);
    struct ucred who;
    socklen_t size = sizeof(who);

    memcpy(address.sun_path + 1, s->name,
           length < sizeof(address.sun_path) - 1 ? length : sizeof(address.sun_path) - 1);
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0)
        return;
    setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(s->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)); /* of connect */
    if (connect(s->fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) == 0 &&
        getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
        (geteuid() == 0 || who.uid == geteuid() || who.uid == 0))
        return;
    close(s->fd);
    s->fd = -1;
}

static void hear(struct source *s)
{
    size_t len = 0, cap = 0;

    while (s->fd >= 0) {
        ssize_t n;

        if (len + 1 >= cap) {
            char *more = cap < MOST_TEXT ? realloc(s->text, cap + 65536) : NULL;
            if (!more)
                break;
            s->text = more;
            cap += 65536;
        }
        n = recv(s->fd, s->text + len, cap - len - 1, 0);
        if (n == 0 && len > 0) {
            s->text[len] = '\0';
            close(s->fd);
            s->fd = -1;
            return;
        }
        if (n == 0 || (n < 0 && errno != EINTR))
            break;
        len += n > 0 ? (size_t)n : 0;
    }
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    free(s->text);
    s->text = NULL;
}

/* Ask all processes. Return the number of those found. Those that did not answer have no text. */
static int ask(const struct call *call, struct source *list)
{
    const int n = find(call, list);

    for (int i = 0; i < n; i++)
        dial(&list[i]);
    for (int i = 0; i < n; i++)
        hear(&list[i]);
    return n;
}

/* ---- telling ---- */

static struct top_process now[MOST], before[MOST];
static int nnow, nbefore;

static const struct top_comm *earlier(const struct top_process *p, const struct top_comm *c, double *seconds)
{
    for (int i = 0; i < nbefore; i++)
        for (int k = 0;
             k < before[i].n && strcmp(before[i].pid, p->pid) == 0 && strcmp(before[i].host, p->host) == 0;
             k++)
            if (before[i].comm[k].serial == c->serial && p->time > before[i].time) {
                *seconds = p->time - before[i].time;
                return &before[i].comm[k];
            }
    return NULL;
}

static void rate(int width, double value, bool known)
{
    if (known)
        printf(" %*.3g", width, value);
    else
        printf(" %*s", width, "-");
}

static void tell_comm(const struct top_process *p, const struct top_comm *c)
{
    static const struct top_comm nothing;
    double seconds = NAN;
    const struct top_comm *was = earlier(p, c, &seconds);
    const bool known = was != NULL;
    const char *state = c->failed         ? "failed"
                        : c->closed       ? "closed"
                        : c->off          ? "off"
                        : c->waited_s > 5 ? "stands"
                                          : "";

    was = was ? was : &nothing;
    const double bytes = c->bytes - was->bytes, wire = c->wire - was->wire;
    printf("  %-18s %-12.12s %5d %5d", c->id, c->name, c->nodes, c->node);
    rate(8, (c->operations - was->operations) / seconds, known);
    rate(8, 1e-9 * bytes / seconds, known);
    rate(6, wire / bytes, bytes > 0);
    rate(8, c->error, c->error > 0);
    printf(" %5.0f%% %6.0f%%", 100 * c->processor, 100 * c->waiting);
    printf("  %s%s%s", output_colour(stdout, c->failed ? OUTPUT_RED : OUTPUT_YELLOW), state,
           output_colour(stdout, OUTPUT_PLAIN));
    if (*state == 's')
        printf(" %.0f s", c->waited_s);
    putchar('\n');
    if (c->nwaited == 0 || !(c->checks > 0))
        return;
    printf("    late");
    for (int i = 0; i < c->nwaited && i < 6; i++)
        printf("%s node %d: %.0f%%", i ? "," : "", c->waited[i].peer, 100 * c->waited[i].times / c->checks);
    printf(" of %.0f checks\n", c->checks);
}

static void tell(void)
{
    for (int i = 0; i < nnow; i++) {
        const struct top_process *p = &now[i];
        printf("%sprocess %s on %s, job %s%s, nibble %s\n", output_colour(stdout, OUTPUT_BOLD), p->pid,
               p->host, p->job, output_colour(stdout, OUTPUT_PLAIN), p->version);
        if (p->n == 0)
            puts("  no communicator");
        else
            printf("  %-18s %-12s %5s %5s %8s %8s %6s %8s %6s %7s  %s\n", "comm", "name", "nodes", "node",
                   "op/s", "GB/s", "wire", "error", "codec", "waiting", "state");
        for (int k = 0; k < p->n; k++)
            tell_comm(p, &p->comm[k]);
    }
    fflush(stdout);
}

/* Ask once, and show the answers unless this only begins. Return the number of processes that answered. */
static int show(const struct call *call, bool begins)
{
    static struct source list[MOST];
    const int n = ask(call, list);
    int answered = 0;

    for (int i = 0; i < nbefore; i++)
        top_free(&before[i]);
    memcpy(before, now, sizeof(now));
    nbefore = nnow;
    nnow = 0;
    for (int i = 0; i < n; i++) {
        if (!list[i].text)
            fprintf(stderr, "nibble-top: %s: no answer (another user's, busy, or stopped)\n",
                    process_in(list[i].name));
        else if (call->text)
            fputs(list[i].text, stdout);
        else if (top_read(list[i].text, &now[nnow]))
            nnow++;
        answered += list[i].text != NULL;
        free(list[i].text);
        list[i].text = NULL;
    }
    for (int i = 0; i < call->pids; i++)
        if (kill((pid_t)atoi(call->pid[i]), 0) && errno == ESRCH)
            fprintf(stderr, "nibble-top: there is no process %s\n", call->pid[i]);
    if (n == 0)
        fputs("nibble-top: no process here answers: NIBBLE_LIVE=0, another network namespace (nsenter -n), "
              "nibble is not loaded, or its log (NCCL_DEBUG=INFO) has a line \"nibble-top cannot ask\"\n",
              stderr);
    if (!call->text && !begins)
        tell();
    return answered;
}

/* Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, struct call *call)
{
    static const struct option longs[] = {
        {"interval", required_argument, NULL, 'i'}, {"count", required_argument, NULL, 'c'},
        {"text", no_argument, NULL, 't'},           {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},           {0},
    };
    int c, pid;

    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1)
        switch (c) {
        case 'i':
            if (!option_whole("--interval", optarg, 1, 3600, &call->interval))
                return EXIT_WRONG;
            break;
        case 'c':
            if (!option_whole("--count", optarg, 1, 1 << 30, &call->count))
                return EXIT_WRONG;
            break;
        case 't': call->text = true; break;
        case 'v': printf("nibble-top %s\n", nb_version_with_commit()); return 0;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-top --help\n", stderr); return EXIT_WRONG;
        }
    call->pid = argv + optind;
    call->pids = argc - optind;
    for (int i = 0; i < call->pids; i++)
        if (!option_whole("a process", call->pid[i], 1, 1 << 30, &pid))
            return EXIT_WRONG;
    return -1;
}

int main(int argc, char **argv)
{
    struct call call = {.interval = 2, .count = isatty(STDOUT_FILENO) ? 0 : 1};
    int status, answered = 0;

    output_check(EXIT_NONE);
    status = parse(argc, argv, &call);
    if (status >= 0)
        return status;
    answered = show(&call, true);
    for (int i = 0; !call.text && answered > 0 && (call.count == 0 || i < call.count); i++) {
        sleep(i == 0 ? 1 : (unsigned)call.interval);
        if (i > 0 && *output_colour(stdout, OUTPUT_PLAIN))
            fputs("\033[H\033[J", stdout);
        answered = show(&call, false);
    }
    for (int i = 0; i < nnow; i++)
        top_free(&now[i]);
    for (int i = 0; i < nbefore; i++)
        top_free(&before[i]);
    return answered ? 0 : EXIT_NONE;
}
